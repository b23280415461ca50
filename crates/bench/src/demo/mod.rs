//! `weir demo`: a switch and its guests in one process, traffic between them, and its cost.
//!
//! Each phase has a [rig] of its own, so that counters and histograms belong to the phase.
//!
//! | file | contents |
//! |---|---|
//! | `phase.rs` | kinds of traffic; phases, their counters and results, and the interface of a view |
//! | `figures.rs` | figures, from counters |
//! | `screen.rs`, `plain.rs` | the live display, and lines of text |
//! | `report.rs`, `json.rs` | the table at the end, and as JSON |

use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use weir_config::Moderation;

use crate::args::DemoArgs;
use crate::rig::{self, Rig};

mod figures;
mod json;
mod phase;
mod plain;
mod report;
mod screen;

pub use phase::DemoError;
use phase::Traffic;
use phase::{Outcome, Phase, Progress, TICK, View};
use plain::Plain;
use screen::Screen;

/// Returns the phases of a demo that takes `total`.
fn plan(total: Duration) -> Vec<Phase> {
    let shares: u32 = Traffic::ALL.iter().map(|traffic| traffic.share()).sum();
    Traffic::ALL
        .into_iter()
        .map(|traffic| Phase {
            traffic,
            moderation: Moderation::default(),
            duration: total * traffic.share() / shares,
        })
        .collect()
}

/// Runs the demo. `terminal` is true if standard output is a terminal.
///
/// # Errors
/// [`DemoError`]; the table of the earlier phases is printed.
pub fn run(args: &DemoArgs, out: &mut dyn Write, terminal: bool) -> Result<(), DemoError> {
    let stop = rig::catch_signals()?;
    let dir = rig::temp_dir()?;
    let total = Duration::from_secs(args.seconds.into());
    let plan = plan(total);
    let mut outcomes = Vec::new();
    if args.json {
        let result = drive(&plan, dir.path(), &stop, &mut json::Quiet::new(total), &mut outcomes);
        let columns: Vec<_> = outcomes.iter().map(json::Column::from).collect();
        serde_json::to_writer_pretty(&mut *out, &columns).map_err(io::Error::from)?;
        writeln!(out)?;
        return result;
    }
    let result = if args.plain || !terminal || !screen::has_keyboard() {
        drive(&plan, dir.path(), &stop, &mut Plain::new(out), &mut outcomes)
    } else {
        Screen::open()
            .map_err(DemoError::Terminal)
            .and_then(|mut screen| drive(&plan, dir.path(), &stop, &mut screen, &mut outcomes))
    };
    write!(out, "{}", report::Summary::new(&outcomes))?;
    result?;
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get());
    write!(out, "{}", report::Closing::new(&outcomes, cpus))?;
    out.flush()?;
    Ok(())
}

/// Runs the phases in order until the last one, or until the user ends the demo.
fn drive(
    plan: &[Phase],
    dir: &Path,
    stop: &AtomicBool,
    view: &mut dyn View,
    outcomes: &mut Vec<Outcome>,
) -> Result<(), DemoError> {
    let total = plan.iter().map(|phase| phase.duration).sum();
    let mut before = Duration::ZERO;
    for (current, phase) in plan.iter().enumerate() {
        let rig = Rig::start(&phase::setup(*phase), dir)?;
        let mut samples = vec![phase::sample(*phase, &rig)];
        let mut ended = false;
        while !ended {
            let left = phase.duration.saturating_sub(rig.elapsed());
            let enough = view.wait(left.min(TICK))? || stop.load(Ordering::Relaxed);
            ended = enough || rig.elapsed() >= phase.duration || rig.has_failed();
            if enough {
                stop.store(true, Ordering::Relaxed);
            }
            let sample = phase::sample(*phase, &rig);
            let elapsed = before + sample.at.min(phase.duration);
            samples.push(sample);
            view.show(&Progress {
                plan,
                current,
                samples: &samples,
                ended,
                outcomes,
                elapsed,
                total,
            })?;
        }
        rig.finish()?;
        if let [first, .., last] = samples.as_slice() {
            let figures = first.until(last);
            // A phase that ended before any frame arrived has no report.
            if figures.frames > 0 {
                outcomes.push(Outcome { phase: *phase, figures });
            }
        }
        if stop.load(Ordering::Relaxed) {
            break;
        }
        before += phase.duration;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
