//! Phases of the demo, their counters and results, and the interface of a view.
//!
//! The kinds of traffic that the demo shows.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use miette::Diagnostic;
use thiserror::Error;
use weir_config::{LatencyBudget, Moderation, Workers};
use weir_switch::stats::{CallSettings, SwitchStats};
use weir_text::decimal;
use weir_vif::load::{bulk, pingpong, small};

use super::figures::{Latency, Sample, Trouble};
use crate::rig::{Guest, Load, Places, Rig, RigError, Role, Setup, port};

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

/// Length of small frames (bytes).
const SMALL_FRAME_BYTES: usize = 64;
/// Small packets in flight at full speed: half a guest's ring, so that no packet is lost for lack of buffers.
const FLOOD_WINDOW: u32 = 512;
/// Retransmission timeout of a stream: Linux's `TCP_RTO_MIN`, longer than a guest waits for a CPU.
const BULK_RETRANSMIT_TIMEOUT: Duration = Duration::from_millis(200);
/// Packets per second of the paced traffic.
const PACED_PER_S: u64 = 10_000;

/// A kind of traffic, from one guest to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Traffic {
    /// A TCP-like stream.
    Bulk,
    /// Small packets at full speed.
    Flood,
    /// Small packets at a modest rate.
    Paced,
    /// One request at a time.
    RequestResponse,
}

impl Traffic {
    /// All kinds, in the order of display.
    pub(super) const ALL: [Self; 4] = [Self::Bulk, Self::Flood, Self::Paced, Self::RequestResponse];

    /// Returns the name, which heads a column.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Bulk => "bulk TCP",
            Self::Flood => "64-byte flood",
            Self::Paced => "64-byte paced",
            Self::RequestResponse => "request-reply",
        }
    }

    pub(super) fn about(self) -> String {
        match self {
            Self::Bulk => "a TCP-like stream, TSO frames of up to 64 KiB".into(),
            Self::Flood => format!("UDP as fast as it goes, at most {FLOOD_WINDOW} in flight"),
            Self::Paced => format!("UDP, {} packets each second", decimal(PACED_PER_S)),
            Self::RequestResponse => {
                format!("one {SMALL_FRAME_BYTES}-byte UDP request at a time, and its reply")
            }
        }
    }

    pub(super) fn latency(self) -> &'static str {
        match self {
            Self::Bulk => "frame to ACK",
            Self::Flood | Self::Paced => "one way",
            Self::RequestResponse => "round trip",
        }
    }

    /// Returns the share of the demo's time, relative to the other kinds.
    pub(super) fn share(self) -> u32 {
        match self {
            Self::Bulk | Self::Flood => 3,
            Self::Paced | Self::RequestResponse => 2,
        }
    }

    /// Returns the guests' load.
    pub(super) fn load(self) -> Load {
        let frame_bytes = SMALL_FRAME_BYTES;
        let small = |rate| Load::Small(small::Options { frame_bytes, rate, ..Default::default() });
        match self {
            Self::Bulk => Load::Bulk(bulk::Options {
                retransmit_timeout: BULK_RETRANSMIT_TIMEOUT,
                ..Default::default()
            }),
            Self::Flood => small(small::Rate::Window(FLOOD_WINDOW)),
            Self::Paced => small(small::Rate::PerSecond(PACED_PER_S)),
            Self::RequestResponse => {
                Load::RequestResponse(pingpong::Options { frame_bytes, ..Default::default() })
            }
        }
    }
}
