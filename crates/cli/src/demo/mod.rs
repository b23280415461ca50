//! `weir demo`: a switch and its guests in one process, traffic between them, and what it cost.
//!
//! Nothing is faked but the machines: the switch is what `weir run` starts, the guests are
//! [`weir_vif`] drivers, and they meet over vhost-user sockets in a temporary directory. Each
//! phase has a switch and guests of its own, so that counters and histograms are the phase's.
//!
//! | file | what |
//! |---|---|
//! | `traffic.rs` | the kinds of traffic, and which end measures what |
//! | `rig.rs`, `guest.rs` | a switch with two guests, and what they count at a moment |
//! | `figures.rs` | from counters to figures |
//! | `screen.rs`, `plain.rs` | the live display, and lines of text |
//! | `report.rs` | the table at the end |

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use miette::{Diagnostic, Report};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tempfile::TempDir;
use thiserror::Error;
use weir_vif::VifError;
use weir_vif::load::LoadError;

use crate::args::DemoArgs;
use crate::commands::CommandError;
use crate::config::{Moderation, ValueError};
use crate::switch::SwitchError;

mod figures;
mod guest;
mod plain;
mod report;
mod rig;
mod screen;
mod traffic;

use figures::{Figures, Sample};
use plain::Plain;
use rig::Rig;
use screen::Screen;
use traffic::Traffic;

/// How often counters are read and the display is drawn.
const TICK: Duration = Duration::from_millis(100);

/// Why the demo ended before its time.
#[derive(Debug, Error, Diagnostic)]
pub enum DemoError {
    /// No directory for the sockets.
    #[error("cannot make a temporary directory in {}", dir.display())]
    #[diagnostic(help("set TMPDIR to a directory that you may write to"))]
    TempDir {
        /// Where it was to be.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The directory cannot hold sockets.
    #[error("no socket can have the path {}", path.display())]
    #[diagnostic(help("set TMPDIR to a directory with a short path, such as /tmp"))]
    SocketPath {
        /// The path.
        path: PathBuf,
        /// What is wrong with it.
        source: ValueError,
    },
    /// The switch did not start.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Switch(#[from] SwitchError),
    /// A guest did not connect.
    #[error("the guest {guest} cannot connect to the switch")]
    Connect {
        /// The guest.
        guest: &'static str,
        /// What went wrong.
        source: VifError,
    },
    /// A guest is connected and nothing goes through its interface.
    #[error("the interface of the guest {guest} does not start: {reason}")]
    NotReady {
        /// The guest.
        guest: &'static str,
        /// What the switch says of the port.
        reason: String,
    },
    /// A guest's thread could not be had.
    #[error("cannot start a thread for the guest {guest}")]
    Thread {
        /// The guest.
        guest: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A guest gave up.
    #[error("the guest {guest} gave up")]
    Load {
        /// The guest.
        guest: &'static str,
        /// Why.
        source: LoadError,
    },
    /// Signals cannot be caught.
    #[error("cannot catch signals")]
    Signals(#[source] io::Error),
    /// The display cannot be drawn.
    #[error("cannot use the terminal for the live display")]
    #[diagnostic(help("`weir demo --plain` prints lines of text instead"))]
    Terminal(#[source] io::Error),
    /// Text cannot be written.
    #[error("cannot write the output")]
    Output(#[from] io::Error),
}

impl DemoError {
    /// As a report: a reader of the output who went away is told from other errors by
    /// [`exit_code`](crate::commands::exit_code).
    pub fn into_report(self) -> Report {
        match self {
            Self::Output(source) => CommandError::Output(source).into(),
            other => other.into(),
        }
    }
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
    figures: Figures,
}

/// The phases of a demo that takes `total`.
fn plan(total: Duration) -> Vec<Phase> {
    let shares: u32 = Traffic::ALL.iter().map(|traffic| traffic.share()).sum();
    Traffic::ALL
        .into_iter()
        .map(|traffic| Phase {
            traffic,
            moderation: Moderation::Immediate,
            duration: total * traffic.share() / shares,
        })
        .collect()
}

/// How far the demo is.
struct Progress<'a> {
    plan: &'a [Phase],
    /// Which phase it is.
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
    let stop = catch_signals()?;
    let dir = temp_dir()?;
    let plan = plan(Duration::from_secs(args.seconds.into()));
    let mut outcomes = Vec::new();
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

/// A flag that SIGINT, SIGTERM and SIGHUP set.
fn catch_signals() -> Result<Arc<AtomicBool>, DemoError> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).map_err(DemoError::Signals)?;
    }
    Ok(stop)
}

fn temp_dir() -> Result<TempDir, DemoError> {
    let parent = std::env::temp_dir();
    std::path::absolute(&parent)
        .and_then(|parent| tempfile::Builder::new().prefix("weir-demo-").tempdir_in(parent))
        .map_err(|source| DemoError::TempDir { dir: parent, source })
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
        let rig = Rig::start(*phase, dir)?;
        let mut samples = vec![rig.sample()];
        let mut ended = false;
        while !ended {
            let left = phase.duration.saturating_sub(rig.elapsed());
            let enough = view.wait(left.min(TICK))? || stop.load(Ordering::Relaxed);
            ended = enough || rig.elapsed() >= phase.duration || rig.has_failed();
            if enough {
                stop.store(true, Ordering::Relaxed);
            }
            let sample = rig.sample();
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
            let figures = Figures::between(first, last);
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
