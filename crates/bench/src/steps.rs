//! Steps of every measurement: waits, and the progress bar.

use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};

use crate::error::BenchError;

pub(super) const SLICES: u32 = 5;
/// Longest time for any step: on a busy machine a thread may wait for seconds.
pub(super) const TIMEOUT: Duration = Duration::from_secs(20);

/// Waits until a condition holds, with a timeout.
pub(super) fn wait_for(
    what: &'static str,
    mut holds: impl FnMut() -> bool,
) -> Result<(), BenchError> {
    let start = Instant::now();
    while !holds() {
        if start.elapsed() > TIMEOUT {
            return Err(BenchError::NothingArrived { measurement: what, time: TIMEOUT });
        }
        thread::yield_now();
    }
    Ok(())
}

/// Returns a progress bar for all slices of these measurements.
pub(super) fn progress(measurements: usize) -> ProgressBar {
    progress_of(u64::from(SLICES) * measurements as u64)
}

/// Returns a progress bar on standard error, with the remaining time; it is invisible without a
/// terminal.
pub fn progress_of(parts: u64) -> ProgressBar {
    let bar = ProgressBar::new(parts).with_finish(ProgressFinish::AndClear);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len}, {eta} left: {msg}");
    bar.with_style(style.expect("a constant template that is valid"))
}
