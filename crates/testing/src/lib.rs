//! What tests and examples of several crates share: how a test says that it was skipped, so that `make test` counts
//! it as that, how it waits for what others do, how a guest answers ping, and what documents tell a reader to type.

#![forbid(unsafe_code)]

pub mod document;
pub mod echo;
pub mod slow;

use std::{
    env,
    io::{self, Write},
    thread,
    time::{Duration, Instant},
};

/// What the line of a skipped test has; `xtask test` looks for it.
pub const SKIPPED: &str = "skipped test: ";

/// Whether this is root. Otherwise the test that asks, which then returns, is counted as skipped.
pub fn is_root(why: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skipped(&format!("needs root: {why}"));
    }
    root
}

/// Whether `program`, of Debian's `package`, is in `PATH`. Otherwise the test that asks, which then returns, is counted
/// as skipped.
pub fn has(program: &str, package: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).any(|dir| dir.join(program).exists());
    if !found {
        skipped(&format!("{program} is not installed: apt-get install {package}"));
    }
    found
}

/// Says that this test, which then returns, was skipped, and why.
pub fn skipped(why: &str) {
    let thread = thread::current();
    let test = thread.name().unwrap_or("a test");
    // Not by `println!`: the test harness keeps what a test that passes prints.
    let mut out = io::stdout().lock();
    let _ =
        out.write_all(format!("{SKIPPED}{test}: {why}\n").as_bytes()).and_then(|()| out.flush());
}

/// How long [`eventually`] waits: with a busy machine's other tests, and longer than anything that is to happen takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Asks `is` until it returns a value.
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
