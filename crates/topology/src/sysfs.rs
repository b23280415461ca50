//! One file of sysfs, read strictly and bounded.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use thiserror::Error;
use weir_limits::SYSFS_BYTES_MAX;

use crate::cpu_list::{CpuListError, parse_cpu_list};

/// Reason why a machine's processors are unknown.
#[derive(Debug, Error)]
pub enum TopologyError {
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file exceeds its limit.
    #[error("{} is longer than {SYSFS_BYTES_MAX} bytes", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// A file has no valid list of processors.
    #[error("{}: {source}", path.display())]
    CpuList {
        /// The file.
        path: PathBuf,
        /// The fault.
        source: CpuListError,
    },
    /// A file has no valid number.
    #[error("{}: {text:?} is not a number", path.display())]
    Number {
        /// The file.
        path: PathBuf,
        /// The file's content.
        text: String,
    },
    /// The threads of a processor's core, or the sharers of its cache, do not include the processor
    /// itself.
    #[error("{} does not list its own CPU {cpu}", path.display())]
    NotItself {
        /// The file.
        path: PathBuf,
        /// The processor.
        cpu: u16,
    },
}

/// Reads a file's text, without its last newline; `None` if the file does not exist.
pub(crate) fn text(path: &Path) -> Result<Option<String>, TopologyError> {
    let read = |source| TopologyError::Read { path: path.into(), source };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(read(error)),
    };
    let mut text = String::new();
    // One byte more than allowed distinguishes "too long" from "just fits".
    file.take(SYSFS_BYTES_MAX + 1).read_to_string(&mut text).map_err(read)?;
    if text.len() as u64 > SYSFS_BYTES_MAX {
        return Err(TopologyError::TooLong { path: path.into() });
    }
    if text.ends_with('\n') {
        text.pop();
    }
    Ok(Some(text))
}

/// Reads a file's list of processors; `None` if the file does not exist.
pub(crate) fn cpus(path: &Path) -> Result<Option<BTreeSet<u16>>, TopologyError> {
    let parse = |text: String| {
        parse_cpu_list(&text).map_err(|source| TopologyError::CpuList { path: path.into(), source })
    };
    text(path)?.map(parse).transpose()
}

/// Reads a list like [`cpus`], which must include `cpu`.
pub(crate) fn cpus_with(path: &Path, cpu: u16) -> Result<Option<BTreeSet<u16>>, TopologyError> {
    match cpus(path)? {
        Some(cpus) if !cpus.contains(&cpu) => {
            Err(TopologyError::NotItself { path: path.into(), cpu })
        }
        cpus => Ok(cpus),
    }
}

/// Reads a file's number; `None` if the file does not exist.
pub(crate) fn number(path: &Path) -> Result<Option<i64>, TopologyError> {
    let parse =
        |text: String| text.parse().map_err(|_| TopologyError::Number { path: path.into(), text });
    text(path)?.map(parse).transpose()
}
