//! Counts of checks by result.

use std::{ops::AddAssign, process::ExitCode};

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
