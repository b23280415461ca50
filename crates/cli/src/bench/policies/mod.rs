//! `weir bench --policies`: moderation policies side by side, under the same loads.
//!
//! A [`Contest`] is a load under several settings, measured in turn. What is said of it depends on what
//! it is there for:
//!
//! | file | what |
//! |---|---|
//! | `contests.rs` | all of them: which loads, which settings |
//! | `grid.rs` | a grid of loads: what `auto` loses to the best of those with a fixed hold |
//! | `pairs.rs` | one policy against another, where it is to be better |
//! | `breaches.rs` | how often a guest is told later than its budget allows |
//! | `report.rs` | figures and tables |

use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::plan::Measurement;
use super::slice::Slice;
use super::{BenchError, SLICES, progress};
use crate::args::BenchArgs;
use crate::config::LatencyBudget;
use crate::rig::{self, Load};
use crate::stats::CallSettings;

mod breaches;
mod contests;
mod grid;
mod pairs;
mod report;

use pairs::Comparison;
use report::Report;

/// A policy with its settings.
#[derive(Debug, Clone)]
struct Setting {
    name: String,
    calls: CallSettings,
    /// What it may take to find out how long to hold.
    warm_up: Duration,
}

/// A load under several settings.
struct Contest {
    /// Its name, and its load's alone.
    name: String,
    load_name: &'static str,
    load: Load,
    /// The budget that the policies may spend, as the configuration says it.
    budget: &'static str,
    /// Whether the guests take containers.
    containers: bool,
    settings: Vec<Setting>,
    /// Those of the sender, where it does not have the receiver's.
    sender_calls: Option<CallSettings>,
    purpose: Purpose,
}

/// What a contest is there for.
#[derive(Clone, Copy)]
enum Purpose {
    /// To compare the last setting with the best of the others.
    Grid,
    /// To compare the first setting with the second.
    Pair(&'static [Comparison]),
    /// To count what came too late.
    Breaches,
}

/// A contest with what was measured.
struct Measured {
    contest: Contest,
    /// By setting, one for each round.
    slices: Vec<Vec<Slice>>,
}

impl Contest {
    /// Whether `filter` is a part of its name or of a figure's.
    fn is_meant_by(&self, filter: &str) -> bool {
        let figure = match self.purpose {
            Purpose::Pair(figures) => figures.iter().any(|figure| figure.name.contains(filter)),
            Purpose::Grid | Purpose::Breaches => false,
        };
        figure || self.name.contains(filter)
    }
}

/// Measures, and prints the result.
pub(super) fn run(args: &BenchArgs, out: &mut dyn Write) -> Result<(), BenchError> {
    let contests = select(contests::all(), args.filter.as_deref().unwrap_or_default())?;
    let stop = rig::catch_signals()?;
    let dir = rig::temp_dir()?;
    let time = Duration::from_secs(args.seconds.into()) / SLICES;
    let mut measured: Vec<_> = contests
        .into_iter()
        .map(|contest| Measured { slices: vec![Vec::new(); contest.settings.len()], contest })
        .collect();
    measure(&mut measured, time, dir.path(), &stop)?;
    measured.retain(|measured| measured.slices.iter().all(|slices| !slices.is_empty()));
    if measured.is_empty() {
        return Err(BenchError::Interrupted);
    }
    let report = Report::new(&measured);
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &report).map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else {
        write!(out, "{report}")?;
    }
    out.flush()?;
    Ok(())
}

/// Those that `filter` means, which must be some.
fn select(all: Vec<Contest>, filter: &str) -> Result<Vec<Contest>, BenchError> {
    let names: Vec<_> = all.iter().map(|contest| contest.name.clone()).collect();
    let selected: Vec<_> = all.into_iter().filter(|contest| contest.is_meant_by(filter)).collect();
    if selected.is_empty() {
        let help = names.join(", ");
        return Err(BenchError::NoSuchFigure { filter: filter.into(), help });
    }
    Ok(selected)
}

/// All settings of a contest in turn, contest by contest, and again. Ends early when `stop` is set.
fn measure(
    measured: &mut [Measured],
    time: Duration,
    dir: &Path,
    stop: &AtomicBool,
) -> Result<(), BenchError> {
    let progress = progress(measured.iter().map(|measured| measured.slices.len()).sum());
    for _ in 0..SLICES {
        for Measured { contest, slices } in &mut *measured {
            let budget: LatencyBudget = contest.budget.parse().expect("a constant that is valid");
            progress.set_message(contest.name.clone());
            for (setting, slices) in contest.settings.iter().zip(slices) {
                let measurement = Measurement {
                    calls: setting.calls,
                    latency_budget: budget,
                    warm_up: setting.warm_up,
                    containers: contest.containers,
                    sender_calls: contest.sender_calls,
                    ..Measurement::new(contest.load_name, contest.load, &[])
                };
                let slice = Slice::measure(&measurement, time, dir, stop)?;
                if stop.load(Ordering::Relaxed) {
                    return Ok(());
                }
                slices.push(slice);
                progress.inc(1);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
