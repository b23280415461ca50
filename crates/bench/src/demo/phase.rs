//! Phases of the demo, their counters and results, and the interface of a view.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use miette::Diagnostic;
use thiserror::Error;
use weir_config::{LatencyBudget, Moderation, Workers};
use weir_switch::stats::{CallSettings, SwitchStats};

use super::figures::{Latency, Sample, Trouble};
use super::traffic::Traffic;
use crate::rig::{Guest, Places, Rig, RigError, Role, Setup, port};

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

pub(super) fn setup(phase: Phase) -> Setup {
    Setup {
        load: phase.traffic.load(),
        calls: CallSettings { moderation: phase.moderation, ..CallSettings::default() },
        sender_calls: None,
        latency_budget: LatencyBudget::DEFAULT,
        workers: Workers::Auto,
        filter: &[],
        packed: false,
        containers: false,
        places: Places::Anywhere,
    }
}

/// Returns the present counters of a phase.
pub(super) fn sample(phase: Phase, rig: &Rig) -> Sample {
    let latency = rig.guest(phase.traffic.load().latency_at()).stats.latency();
    let latency = (!latency.is_empty()).then(|| Latency {
        p50_ns: latency.value_at_quantile(0.5),
        p99_ns: latency.value_at_quantile(0.99),
    });
    let at = rig.elapsed();
    let stats = rig.stats();
    let receiver = port(&stats, Role::Receiver);
    let rx = receiver.map(|port| port.rx).unwrap_or_default();
    let loads = rig.guests().map(|guest| guest.stats.snapshot());
    let sum =
        |counter: fn(&weir_vif::load::LoadSnapshot) -> u64| loads.iter().map(counter).sum::<u64>();
    Sample {
        at,
        frames: rx.frames,
        bytes: rx.bytes,
        calls: rx.calls,
        hold: receiver.map(|port| port.hold_ns).unwrap_or_default(),
        latency,
        lost: sum(|load| load.lost),
        reordered: sum(|load| load.reordered),
        trouble: Trouble {
            retransmitted: sum(|load| load.retransmitted),
            invalid: sum(|load| load.invalid),
            dropped: drops(&stats),
        },
        switch_cpu_ns: stats.workers.iter().map(|worker| worker.cpu_ns).sum(),
        guests_cpu_ns: rig.guests().map(Guest::cpu_ns).iter().sum(),
    }
}

/// Returns both ports' dropped frames by reason.
fn drops(stats: &SwitchStats) -> BTreeMap<String, u64> {
    let mut drops = BTreeMap::new();
    for (reason, count) in stats.ports.iter().flat_map(|port| &port.drops) {
        *drops.entry(reason.clone()).or_default() += count;
    }
    drops
}
