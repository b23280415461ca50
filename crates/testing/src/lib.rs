//! Helpers for tests and examples of several crates: the report of a skipped test (which `make test` counts), waits,
//! a guest's answers to ping, frames of multicast, the commands in documents, and the form of a document in JSON.

#![forbid(unsafe_code)]

pub mod document;
pub mod echo;
pub mod json;
pub mod multicast;
pub mod slow;

use std::{
    env,
    io::{self, Write},
    thread,
    time::{Duration, Instant},
};

/// The mark of a skipped test's line. `xtask test` looks for it.
pub const SKIPPED: &str = "skipped test: ";

/// True for root. If false, the calling test is counted as skipped and must return.
pub fn is_root(why: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skipped(&format!("needs root: {why}"));
    }
    root
}

/// True if `program`, from Debian's `package`, is in `PATH`. If false, the calling test is counted as skipped and
/// must return.
pub fn has(program: &str, package: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).any(|dir| dir.join(program).exists());
    if !found {
        skipped(&format!("{program} is not installed: apt-get install {package}"));
    }
    found
}

/// Reports that the calling test was skipped, with the reason. The test must return then.
pub fn skipped(why: &str) {
    let thread = thread::current();
    let test = thread.name().unwrap_or("a test");
    // `println!` is captured by the test harness, which does not show the output of tests that pass.
    let mut out = io::stdout().lock();
    let _ =
        out.write_all(format!("{SKIPPED}{test}: {why}\n").as_bytes()).and_then(|()| out.flush());
}

/// Longest wait of [`eventually`]: longer than any event takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Calls `is` until it returns a value.
///
/// # Panics
/// If it returns none for a minute.
pub fn eventually<T>(what: &str, mut is: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(it) = is() {
            return it;
        }
        assert!(start.elapsed() < PATIENCE, "never happened: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}
