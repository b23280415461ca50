//! Phases of the demo, their results, and the interface of a view.

use std::io;
use std::time::Duration;

use miette::Diagnostic;
use thiserror::Error;
use weir_config::Moderation;

use super::figures::Sample;
use super::traffic::Traffic;
use crate::rig::RigError;

/// Interval of readings and redraws.
pub(super) const TICK: Duration = Duration::from_millis(100);

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
pub(super) struct Phase {
    pub(super) traffic: Traffic,
    pub(super) moderation: Moderation,
    pub(super) duration: Duration,
}

/// Result of a phase.
#[derive(Debug, Clone)]
pub(super) struct Outcome {
    pub(super) phase: Phase,
    pub(super) figures: Sample,
}

/// Progress of the demo.
pub(super) struct Progress<'a> {
    pub(super) plan: &'a [Phase],
    pub(super) current: usize,
    /// Counters since this phase began, one [`TICK`] apart.
    pub(super) samples: &'a [Sample],
    /// True if this phase is over.
    pub(super) ended: bool,
    /// Results of earlier phases.
    pub(super) outcomes: &'a [Outcome],
    pub(super) elapsed: Duration,
    pub(super) total: Duration,
}

impl Progress<'_> {
    pub(super) fn phase(&self) -> Phase {
        self.plan[self.current]
    }

    /// Returns the newest counters.
    pub(super) fn now(&self) -> Sample {
        self.samples.last().cloned().unwrap_or_default()
    }

    /// Returns the counters from `window` ago, or the oldest.
    pub(super) fn before(&self, window: Duration) -> Sample {
        let since = self.now().at.saturating_sub(window);
        let before = self.samples.iter().rev().find(|sample| sample.at <= since);
        before.or(self.samples.first()).cloned().unwrap_or_default()
    }
}

/// A view of the demo for the user.
pub(super) trait View {
    /// Shows the progress.
    fn show(&mut self, progress: &Progress<'_>) -> Result<(), DemoError>;

    /// Waits for `time`, or less if the user ends the demo. Returns true if the user did.
    fn wait(&mut self, time: Duration) -> Result<bool, DemoError>;
}
