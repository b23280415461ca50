//! `weir bench --policies`: moderation policies side by side, under the same loads.
//!
//! A [`Contest`] is a load under several settings, which take turns between the same two guests, since guests differ
//! from one start to the next. Each round starts two new guests.
//!
//! | file | contents |
//! |---|---|
//! | `contest.rs` | a contest |
//! | `contests.rs` | all contests: loads and settings |
//! | `grid.rs` | a grid of loads: `auto` against the best fixed hold |
//! | `pairs.rs` | one policy against another that it should beat |
//! | `breaches.rs` | how often a guest is notified later than its budget allows |
//! | `pauses.rs` | how often this machine alone would cause such a breach |
//! | `report.rs` | figures and tables |

use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::figures::print;
use super::slice::{self, Slice};
use crate::args::BenchArgs;
use crate::rig::{self, Rig};
use crate::steps::{BenchError, SLICES, progress};

mod breaches;
mod contest;
mod contests;
mod grid;
mod pairs;
mod pauses;
mod report;

use contest::{Contest, Measured, Purpose, Setting};
use pauses::Pauses;
use report::Report;

/// Measures and prints the result.
pub(super) fn run(args: &BenchArgs, out: &mut dyn Write) -> Result<(), BenchError> {
    let contests = select(contests::all(), args.filter.as_deref().unwrap_or_default())?;
    let stop = rig::catch_signals()?;
    let dir = rig::temp_dir()?;
    let time = Duration::from_secs(args.seconds.into()) / SLICES;
    let mut measured: Vec<_> = contests
        .into_iter()
        .map(|contest| Measured { slices: vec![Vec::new(); contest.settings.len()], contest })
        .collect();
    let mut pauses = Pauses::default();
    measure(&mut measured, &mut pauses, time, dir.path(), &stop)?;
    measured.retain(|measured| measured.slices.iter().all(|slices| !slices.is_empty()));
    if measured.is_empty() {
        return Err(BenchError::Interrupted);
    }
    let report = Report::new(&measured, &pauses);
    Ok(print(&report, args.json, out)?)
}

/// Returns the contests that match `filter`, at least one.
fn select(all: Vec<Contest>, filter: &str) -> Result<Vec<Contest>, BenchError> {
    let names: Vec<_> = all.iter().map(|contest| contest.name.clone()).collect();
    let selected: Vec<_> = all.into_iter().filter(|contest| contest.is_meant_by(filter)).collect();
    if selected.is_empty() {
        let help = names.join(", ");
        return Err(BenchError::NoSuchFigure { filter: filter.into(), help });
    }
    Ok(selected)
}

/// Measures a round of each contest, repeatedly. Ends early if `stop` is set.
fn measure(
    measured: &mut [Measured],
    pauses: &mut Pauses,
    time: Duration,
    dir: &Path,
    stop: &AtomicBool,
) -> Result<(), BenchError> {
    let turns = |contest: &Contest| contest.purpose.turns() as usize;
    let progress = progress(measured.iter().map(|m| m.slices.len() * turns(&m.contest)).sum());
    for _ in 0..SLICES {
        for measured in &mut *measured {
            progress.set_message(measured.contest.name.clone());
            measure_round(measured, time, dir, stop, &|| progress.inc(1))?;
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
        }
        // Pauses are observed as long as the longest contest with a breach count takes.
        let breaches = measured.iter().filter(|of| matches!(of.contest.purpose, Purpose::Breaches));
        if let Some(longer) = breaches.map(|of| of.contest.longer).max() {
            pauses.watch(time * longer, stop);
        }
    }
    Ok(())
}

/// Measures all settings in turn, repeatedly, between the same two guests. Calls `measured`
/// after each slice.
fn measure_round(
    of: &mut Measured,
    time: Duration,
    dir: &Path,
    stop: &AtomicBool,
    measured: &dyn Fn(),
) -> Result<(), BenchError> {
    let Measured { contest, slices } = of;
    let turns = contest.purpose.turns();
    let given_up = match contest.purpose {
        Purpose::Grid => grid::given_up(contest, slices),
        Purpose::Pair(_) | Purpose::Breaches => vec![false; contest.settings.len()],
    };
    let time = time * contest.longer / turns;
    let rig = Rig::start(&slice::setup(&contest.measurement()), dir)?;
    for _ in 0..turns {
        // The order rotates, so that no setting always follows the same one.
        let first = slices.iter().map(Vec::len).max().unwrap_or(0);
        let mut turn = Vec::new();
        for index in (first..).map(|n| n % slices.len()).take(slices.len()) {
            if !given_up[index] {
                let Setting { calls, warm_up, .. } = contest.settings[index];
                rig.set_calls(calls, contest.sender_calls)?;
                let slice = Slice::count(&rig, contest.load, warm_up, time, stop);
                if stop.load(Ordering::Relaxed) {
                    return Ok(());
                }
                if rig.has_failed() {
                    return Ok(rig.finish()?);
                }
                slice.check(contest.load_name, contest.load, stop)?;
                turn.push((index, slice));
            }
            measured();
        }
        for (index, slice) in turn {
            slices[index].push(slice);
        }
    }
    Ok(rig.finish()?)
}

#[cfg(test)]
mod tests;
