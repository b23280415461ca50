//! `weir bench` measures weir on this machine with this program alone. [`demo`] is `weir demo`.
//!
//! Each slice of a measurement has its own [rig]: a switch with one worker, two built-in guests, and traffic. Slices
//! of the measurements alternate, so that a disturbance of the machine affects all. A figure is the median over its
//! slices, with its spread.
//!
//! | file | contents |
//! |---|---|
//! | `plan.rs` | the measurements: their traffic and figures |
//! | `slice.rs` | one slice of a measurement, and the cost of a plain copy |
//! | `report.rs` | medians, the table, and JSON |
//! | `policies/` | `--policies`: moderation policies side by side |
//! | `filter.rs` | `--filter-cost`: packets with and without a filter |
//! | `sharing.rs` | `--sharing`: how senders share a worker |
//! | `cores/` | several workers and many interfaces |
//! | `figures.rs` | figures with a value of each round |
//! | `rig/` | the switch and the guests of `weir bench`, `weir demo` and `weir lab` |
//! | `demo/` | `weir demo` |
//! | `steps.rs` | waits, the progress bar, and the reasons for which there is no result |
//! | `args.rs` | the command line of both |

#![forbid(unsafe_code)]

use std::io::Write;
use std::num::NonZero;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use args::BenchArgs;

pub mod args;
mod cores;
pub mod demo;
mod figures;
mod filter;
mod plan;
mod policies;
mod report;
pub mod rig;
mod sharing;
mod slice;
mod steps;

pub use figures::print;
use plan::Measurement;
use report::{Measured, Report};
use slice::Slice;
pub use steps::{BenchError, progress_of};
use steps::{SLICES, progress};

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

#[cfg(test)]
mod tests;
