//! How many checks went which way.

use std::{ops::AddAssign, process::ExitCode};

/// How many checks went which way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Held.
    pub passed: u32,
    /// Did not hold, or could not be carried out.
    pub failed: u32,
    /// Were not tried, for a reason that has been printed.
    pub skipped: u32,
    /// What is known of those that failed.
    pub failures: Vec<String>,
}

impl Tally {
    /// The count of a check that held.
    pub fn passed() -> Self {
        Self { passed: 1, ..Self::default() }
    }

    /// The count of a check that did not, by what is known of it.
    pub fn failed(what: impl Into<String>) -> Self {
        Self { failed: 1, failures: vec![what.into()], ..Self::default() }
    }

    /// The count of one that was not tried.
    pub fn skipped() -> Self {
        Self { skipped: 1, ..Self::default() }
    }

    /// Prints what failed, which may be far above by now, and the counts; what to exit with.
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
