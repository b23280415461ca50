//! `weir bench` measures weir on this machine with this program alone. [`demo`] is `weir demo`.
//!
//! Each slice of a measurement has its own [rig]: a switch with one worker, two built-in guests, and traffic. Slices
//! of the measurements alternate, so that a disturbance of the machine affects all. A figure is the median over its
//! slices, with its spread.
//!
//! | file | contents |
//! |---|---|
//! | `plan.rs` | the measurements: their traffic and figures |
//! | `slice.rs` | one slice of a measurement |
//! | `memcpy.rs` | the cost of a plain copy |
//! | `report.rs` | medians, the table, and JSON |
//! | `policies/` | `--policies`: moderation policies side by side |
//! | `filter.rs` | `--filter-cost`: packets with and without a filter |
//! | `sharing.rs` | `--sharing`: how senders share a worker |
//! | `cores/` | several workers and many interfaces |
//! | `figures.rs` | figures with a value of each round |
//! | `rig/` | the switch and the guests of `weir bench`, `weir demo` and `weir lab` |
//! | `demo/` | `weir demo` |
//! | `args.rs` | the command line of both |

#![forbid(unsafe_code)]

use std::fmt::Display;
use std::io::{self, Write};
use std::num::NonZero;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use miette::Diagnostic;
use serde::Serialize;
use thiserror::Error;

use args::BenchArgs;
use rig::RigError;

pub mod args;
mod cores;
pub mod demo;
mod figures;
mod filter;
mod memcpy;
mod plan;
mod policies;
mod report;
pub mod rig;
mod sharing;
mod slice;

use plan::Measurement;
use report::Report;
use slice::Slice;

/// Workers of the measured switch.
const WORKERS: u64 = 1;
const SLICES: u32 = 5;
/// Longest time for any step: on a busy machine a thread may wait for seconds.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The reason for which there is no result.
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

/// A measurement with its slices so far.
struct Measured {
    measurement: Measurement,
    slices: Vec<Slice>,
}

/// Measures and prints the result. Progress goes to standard error if that is a terminal.
pub fn run(args: &BenchArgs, out: &mut dyn Write) -> Result<(), BenchError> {
    if args.policies {
        return policies::run(args, out);
    }
    if args.filter_cost {
        return filter::run(args, out);
    }
    if args.sharing {
        return sharing::run(args, out);
    }
    if let Some(measurement) = cores::asked_for(args) {
        return measurement(args, out);
    }
    let plan = select(plan::all(), args.filter.as_deref())?;
    let stop = rig::catch_signals()?;
    let dir = rig::temp_dir()?;
    let time = Duration::from_secs(args.seconds.into()) / SLICES;
    let mut measured: Vec<_> =
        plan.into_iter().map(|m| Measured { measurement: m, slices: Vec::new() }).collect();
    measure(&mut measured, time, dir.path(), &stop)?;
    // After an interruption, measurements that have not begun have no result.
    measured.retain(|measured| !measured.slices.is_empty());
    if measured.is_empty() {
        return Err(BenchError::Interrupted);
    }
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    Ok(print(&Report::new(&measured, time, cores), args.json, out)?)
}

/// Writes a result for people, or as JSON.
pub fn print(
    result: &(impl Display + Serialize),
    json: bool,
    out: &mut dyn Write,
) -> io::Result<()> {
    if json {
        serde_json::to_writer_pretty(&mut *out, result)?;
        writeln!(out)?;
    } else {
        write!(out, "{result}")?;
    }
    out.flush()
}

/// Returns the measurements that match `filter`, at least one.
fn select(all: Vec<Measurement>, filter: Option<&str>) -> Result<Vec<Measurement>, BenchError> {
    let Some(filter) = filter else { return Ok(all) };
    let names: Vec<_> = all.iter().map(|measurement| measurement.name).collect();
    let help = format!("there are {}, and their figures", names.join(", "));
    let selected: Vec<_> = all.into_iter().filter(|m| m.is_meant_by(filter)).collect();
    if selected.is_empty() {
        return Err(BenchError::NoSuchFigure { filter: filter.into(), help });
    }
    Ok(selected)
}

/// Measures all slices, of each measurement in turn: A B C A B C ... Ends early if `stop` is set.
fn measure(
    measured: &mut [Measured],
    time: Duration,
    dir: &Path,
    stop: &AtomicBool,
) -> Result<(), BenchError> {
    let progress = progress(measured.len());
    for _ in 0..SLICES {
        for Measured { measurement, slices } in &mut *measured {
            progress.set_message(measurement.name);
            let slice = Slice::measure(measurement, time, dir, stop)?;
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            slices.push(slice);
            progress.inc(1);
        }
    }
    Ok(())
}

/// Waits until a condition holds, with a timeout.
fn wait_for(what: &'static str, mut holds: impl FnMut() -> bool) -> Result<(), BenchError> {
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
fn progress(measurements: usize) -> ProgressBar {
    progress_of(u64::from(SLICES) * measurements as u64)
}

/// Returns a progress bar on standard error, with the remaining time; it is invisible without a
/// terminal.
pub fn progress_of(parts: u64) -> ProgressBar {
    let bar = ProgressBar::new(parts).with_finish(ProgressFinish::AndClear);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len}, {eta} left: {msg}");
    bar.with_style(style.expect("a constant template that is valid"))
}

#[cfg(test)]
mod tests;
