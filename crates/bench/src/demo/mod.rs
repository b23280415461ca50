//! `weir demo`: a switch and its guests in one process, traffic between them, and what it cost.
//!
//! Each phase has a [rig] of its own, so that counters and histograms are the phase's.
//!
//! | file | what |
//! |---|---|
//! | `traffic.rs` | the kinds of traffic, and which end measures what |
//! | `counters.rs` | what is counted at a moment |
//! | `figures.rs` | from counters to figures |
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

/// How often counters are read and the display is drawn.
const TICK: Duration = Duration::from_millis(100);

/// Why the demo ended before its time.
#[derive(Debug, Error, Diagnostic)]
pub enum DemoError {
    /// The switch or a guest.
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

/// One kind of traffic under one policy, for a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Phase {
    traffic: Traffic,
    moderation: Moderation,
    duration: Duration,
}

/// What a phase came to.
#[derive(Debug, Clone)]
struct Outcome {
    phase: Phase,
    figures: Sample,
}

/// The phases of a demo that takes `total`.
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

/// How far the demo is.
struct Progress<'a> {
    plan: &'a [Phase],
    current: usize,
    /// The counters since this phase began, one [`TICK`] apart.
    samples: &'a [Sample],
    /// Whether this phase is over.
    ended: bool,
    /// Earlier phases.
    outcomes: &'a [Outcome],
    elapsed: Duration,
    total: Duration,
}

impl Progress<'_> {
    fn phase(&self) -> Phase {
        self.plan[self.current]
    }

    /// The newest counters.
    fn now(&self) -> Sample {
        self.samples.last().cloned().unwrap_or_default()
    }

    /// The counters from `window` ago, or the oldest.
    fn before(&self, window: Duration) -> Sample {
        let since = self.now().at.saturating_sub(window);
        let before = self.samples.iter().rev().find(|sample| sample.at <= since);
        before.or(self.samples.first()).cloned().unwrap_or_default()
    }
}

/// Shows the user how it goes.
trait View {
    /// Shows the progress.
    fn show(&mut self, progress: &Progress<'_>) -> Result<(), DemoError>;

    /// Waits for `time`, or less if the user asks for the end; whether that is so.
    fn wait(&mut self, time: Duration) -> Result<bool, DemoError>;
}

/// Runs the demo. `terminal`: a person looks at standard output.
///
/// # Errors
/// [`DemoError`]; the table is printed for the phases before.
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

/// Runs the phases one after the other, until the last or until the user has seen enough.
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
            // Ended before anything went through: there is nothing to report.
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
