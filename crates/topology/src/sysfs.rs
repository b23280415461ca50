//! One file of sysfs, read strictly and bounded.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use thiserror::Error;
use weir_limits::SYSFS_BYTES_MAX;

use crate::cpu_list::{CpuListError, parse_cpu_list};

/// Why a machine's processors are not known.
#[derive(Debug, Error)]
pub enum TopologyError {
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file is longer than any of its kind.
    #[error("{} is longer than {SYSFS_BYTES_MAX} bytes", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// A file has no list of processors.
    #[error("{}: {source}", path.display())]
    CpuList {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: CpuListError,
    },
    /// A file has no number.
    #[error("{}: {text:?} is not a number", path.display())]
    Number {
        /// The file.
        path: PathBuf,
        /// What it has.
        text: String,
    },
    /// The threads of a processor's core, or the sharers of its cache, are without itself.
    #[error("{} does not list its own CPU {cpu}", path.display())]
    NotItself {
        /// The file.
        path: PathBuf,
        /// The processor.
        cpu: u16,
    },
}

/// A file's text, without its last newline; `None` if there is none.
pub(crate) fn text(path: &Path) -> Result<Option<String>, TopologyError> {
    let read = |source| TopologyError::Read { path: path.into(), source };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(read(error)),
    };
    let mut text = String::new();
    // One byte more than allowed tells "too long" from "just fits".
    file.take(SYSFS_BYTES_MAX + 1).read_to_string(&mut text).map_err(read)?;
    if text.len() as u64 > SYSFS_BYTES_MAX {
        return Err(TopologyError::TooLong { path: path.into() });
    }
    if text.ends_with('\n') {
        text.pop();
    }
    Ok(Some(text))
}

/// A file's list of processors; `None` if there is no such file.
pub(crate) fn cpus(path: &Path) -> Result<Option<BTreeSet<u16>>, TopologyError> {
    let parse = |text: String| {
        parse_cpu_list(&text).map_err(|source| TopologyError::CpuList { path: path.into(), source })
    };
    text(path)?.map(parse).transpose()
}

/// As [`cpus`]; among them must be `cpu`.
pub(crate) fn cpus_with(path: &Path, cpu: u16) -> Result<Option<BTreeSet<u16>>, TopologyError> {
    match cpus(path)? {
        Some(cpus) if !cpus.contains(&cpu) => {
            Err(TopologyError::NotItself { path: path.into(), cpu })
        }
        cpus => Ok(cpus),
    }
}

/// A file's number; `None` if there is no such file.
pub(crate) fn number(path: &Path) -> Result<Option<i64>, TopologyError> {
    let parse =
        |text: String| text.parse().map_err(|_| TopologyError::Number { path: path.into(), text });
    text(path)?.map(parse).transpose()
}
