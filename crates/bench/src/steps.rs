//! Steps of every measurement: waits, the progress bar, and the reasons why there is no result.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use miette::Diagnostic;
use thiserror::Error;

use crate::rig::RigError;

pub(super) const SLICES: u32 = 5;
/// Longest time for any step: on a busy machine a thread may wait for seconds.
pub(super) const TIMEOUT: Duration = Duration::from_secs(20);

/// The reason why there is no result.
#[derive(Debug, Error, Diagnostic)]
pub enum BenchError {
    /// The switch or a guest failed.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Rig(#[from] RigError),
    /// A port could not be added.
    #[error("cannot add a simulated port")]
    Port(#[from] weir_fabric::PortError),
    /// No measurement matches `--filter`.
    #[error("no measurement or figure has {filter:?} in its name")]
    NoSuchFigure {
        /// The text given.
        filter: String,
        /// The existing names.
        #[help]
        help: String,
    },
    /// There was no traffic.
    #[error("{measurement}: no packet arrived in {} ms", time.as_millis())]
    #[diagnostic(help(
        "the machine may be busy with other work; \
                       try more --seconds"
    ))]
    NothingArrived {
        /// Name of the measurement.
        measurement: &'static str,
        /// Duration of the wait.
        time: Duration,
    },
    /// The switch refuses a request.
    #[error("the switch refused {request}: {reason}")]
    Refused {
        /// The request.
        request: &'static str,
        /// The switch's answer.
        reason: String,
    },
    /// The measurement needs two CPUs.
    #[error("this takes two CPUs, and this process may use one")]
    OneProcessor,
    /// Interrupted before the first result.
    #[error("interrupted before the first result")]
    Interrupted,
    /// Output failed.
    #[error("cannot write the output")]
    Output(#[from] io::Error),
}

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
