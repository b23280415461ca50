//! What can go wrong while machines, switches and traffic are set up and measured.

use std::{io, path::Path, time::Duration};

/// `Result` with the test bed's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Why a step could not be carried out, or what it found to be wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or process operation failed.
    #[error("{what}: {source}")]
    Io {
        /// The operation and what it was applied to.
        what: String,
        /// The system's answer.
        source: io::Error,
    },
    /// A program ended with something other than success.
    #[error("`{command}` ended with {status}\n{output}")]
    Command {
        /// The command line.
        command: String,
        /// Its exit status.
        status: String,
        /// What it printed, on both streams.
        output: String,
    },
    /// Something awaited did not happen.
    #[error("{what}: not within {} s", .after.as_secs_f32())]
    Timeout {
        /// What was awaited.
        what: String,
        /// How long.
        after: Duration,
    },
    /// A program printed something that could not be understood.
    #[error("{what}: cannot read {text:?}")]
    Parse {
        /// What was expected.
        what: &'static str,
        /// What was there instead.
        text: String,
    },
    /// What weir is to be compared with does not run on this machine.
    #[error("{peer} does not run here: {why}")]
    Absent {
        /// What it is.
        peer: &'static str,
        /// What went wrong.
        why: String,
    },
    /// A check of a test did not hold.
    #[error("{0}")]
    Check(String),
}

impl Error {
    /// An I/O error with the operation and the path it concerned, for `map_err`.
    pub fn io<'a>(operation: &'a str, path: &'a Path) -> impl FnOnce(io::Error) -> Self + 'a {
        move |source| Self::Io { what: format!("{operation} {}", path.display()), source }
    }

    /// For `map_err` where `peer` is started, which need not be there.
    pub fn absent(peer: &'static str) -> impl FnOnce(Self) -> Self {
        move |error| Self::Absent { peer, why: error.to_string() }
    }

    /// `what` was expected; `text` is what a program printed.
    pub fn parse(what: &'static str, text: impl Into<String>) -> Self {
        Self::Parse { what, text: text.into() }
    }
}

/// Ends a test with [`Error::Check`] unless `holds`.
pub fn check(holds: bool, otherwise: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::Check(otherwise())) }
}
