//! Errors of set-up and of measurement: machines, switches and traffic. Counts of checks by result.

use std::{io, ops::AddAssign, path::Path, process::ExitCode, time::Duration};

/// `Result` with the test bed's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a step, or a fault that a test has found.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or process operation failed.
    #[error("{what}: {source}")]
    Io {
        /// The operation and what it was applied to.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// A program did not end with success.
    #[error("`{command}` ended with {status}\n{output}")]
    Command {
        /// The command line.
        command: String,
        /// The exit status.
        status: String,
        /// The program's output on both streams.
        output: String,
    },
    /// An awaited event did not happen in time.
    #[error("{what}: not within {} s", .after.as_secs_f32())]
    Timeout {
        /// The awaited event.
        what: String,
        /// The time limit.
        after: Duration,
    },
    /// A program printed something that could not be understood.
    #[error("{what}: cannot read {text:?}")]
    Parse {
        /// The expected text.
        what: &'static str,
        /// The text found instead.
        text: String,
    },
    /// A program that weir is compared with does not run on this machine.
    #[error("{peer} does not run here: {why}")]
    Absent {
        /// The program's name.
        peer: &'static str,
        /// The reason.
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

    /// An [`Error::Absent`], for `map_err` where `peer` is started: a peer is optional.
    pub fn absent(peer: &'static str) -> impl FnOnce(Self) -> Self {
        move |error| Self::Absent { peer, why: error.to_string() }
    }

    /// `what` was expected, but a program printed `text`.
    pub fn parse(what: &'static str, text: impl Into<String>) -> Self {
        Self::Parse { what, text: text.into() }
    }
}

/// Ends a test with [`Error::Check`] unless `holds`.
pub fn check(holds: bool, otherwise: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::Check(otherwise())) }
}

/// Counts of checks by result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Checks that held.
    pub passed: u32,
    /// Checks that did not hold or could not be carried out.
    pub failed: u32,
    /// Checks that were not tried, for a printed reason.
    pub skipped: u32,
    /// Descriptions of the failed checks.
    pub failures: Vec<String>,
}

impl Tally {
    /// The count of a check that held.
    pub fn passed() -> Self {
        Self { passed: 1, ..Self::default() }
    }

    /// The count of a check that failed, with its description.
    pub fn failed(what: impl Into<String>) -> Self {
        Self { failed: 1, failures: vec![what.into()], ..Self::default() }
    }

    /// The count of a check that was not tried.
    pub fn skipped() -> Self {
        Self { skipped: 1, ..Self::default() }
    }

    /// Prints the failures again, which may have scrolled away, and the counts. Returns the exit code.
    pub fn report(self) -> ExitCode {
        for failure in &self.failures {
            println!("\nfailed: {failure}");
        }
        if self.skipped > 0 {
            println!("{} skipped", self.skipped);
        }
        println!("{} passed, {} failed", self.passed, self.failed);
        if self.failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.failures.extend(other.failures);
    }
}
