//! `weir demo`: a switch and its guests in one process, traffic between them, and its cost.
//!
//! Each phase has a [rig] of its own, so that counters and histograms belong to the phase.
//!
//! | file | contents |
//! |---|---|
//! | `traffic.rs` | the kinds of traffic, and the measurements of each end |
//! | `counters.rs` | counts at one moment |
//! | `figures.rs` | figures, from counters |
//! | `screen.rs`, `plain.rs` | the live display, and lines of text |
//! | `report.rs`, `json.rs` | the table at the end, and as JSON |

use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use miette::Diagnostic;
use thiserror::Error;
use weir_config::Moderation;

use crate::args::DemoArgs;
use crate::rig::{self, Rig, RigError};

mod counters;
mod figures;
mod json;
mod plain;
mod report;
mod screen;
mod traffic;

use figures::Sample;
use plain::Plain;
use screen::Screen;
use traffic::Traffic;

/// Interval of readings and redraws.
const TICK: Duration = Duration::from_millis(100);

/// The reason for which the demo ended early.
#[derive(Debug, Error, Diagnostic)]
pub enum DemoError {
    /// The switch or a guest failed.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Rig(#[from] RigError),
    /// The display cannot be drawn.
    #[error("cannot use the terminal for the live display")]
    #[diagnostic(help("`weir demo --plain` prints lines of text instead"))]
    Terminal(#[source] io::Error),
    /// Text cannot be written.
    #[error("cannot write the output")]
    Output(#[from] io::Error),
}

/// One kind of traffic under one policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Phase {
    traffic: Traffic,
    moderation: Moderation,
    duration: Duration,
}

/// Result of a phase.
#[derive(Debug, Clone)]
struct Outcome {
    phase: Phase,
    figures: Sample,
}

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

/// Progress of the demo.
struct Progress<'a> {
    plan: &'a [Phase],
    current: usize,
    /// Counters since this phase began, one [`TICK`] apart.
    samples: &'a [Sample],
    /// True if this phase is over.
    ended: bool,
    /// Results of earlier phases.
    outcomes: &'a [Outcome],
    elapsed: Duration,
    total: Duration,
}

impl Progress<'_> {
    fn phase(&self) -> Phase {
        self.plan[self.current]
    }

    /// Returns the newest counters.
    fn now(&self) -> Sample {
        self.samples.last().cloned().unwrap_or_default()
    }

    /// Returns the counters from `window` ago, or the oldest.
    fn before(&self, window: Duration) -> Sample {
        let since = self.now().at.saturating_sub(window);
        let before = self.samples.iter().rev().find(|sample| sample.at <= since);
        before.or(self.samples.first()).cloned().unwrap_or_default()
    }
}

/// A view of the demo for the user.
trait View {
    /// Shows the progress.
    fn show(&mut self, progress: &Progress<'_>) -> Result<(), DemoError>;

    /// Waits for `time`, or less if the user ends the demo. Returns true if the user did.
    fn wait(&mut self, time: Duration) -> Result<bool, DemoError>;
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
        let rig = Rig::start(&counters::setup(*phase), dir)?;
        let mut samples = vec![counters::sample(*phase, &rig)];
        let mut ended = false;
        while !ended {
            let left = phase.duration.saturating_sub(rig.elapsed());
            let enough = view.wait(left.min(TICK))? || stop.load(Ordering::Relaxed);
            ended = enough || rig.elapsed() >= phase.duration || rig.has_failed();
            if enough {
                stop.store(true, Ordering::Relaxed);
            }
            let sample = counters::sample(*phase, &rig);
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
