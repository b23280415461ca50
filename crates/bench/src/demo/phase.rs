//! Phases of the demo, their counters and results with the figures that are computed from them, and the interface of a
//! view.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use miette::Diagnostic;
use thiserror::Error;
use weir_config::{LatencyBudget, Moderation, Workers};
use weir_switch::stats::{CallSettings, SwitchStats, Times};
use weir_text::decimal;
use weir_vif::load::{bulk, pingpong, small};

use crate::rig::{Guest, Load, Places, Rig, RigError, Role, Setup, port};

/// Interval of readings and redraws.
pub(super) const TICK: Duration = Duration::from_millis(100);

/// The reason why the demo ended early.
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

/// Counts from the beginning of a phase to one moment of it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Sample {
    /// Time since the traffic began.
    pub(super) at: Duration,
    /// Frames that the switch gave to the receiver. A TSO frame counts once.
    pub(super) frames: u64,
    /// Bytes of these frames, Ethernet headers included.
    pub(super) bytes: u64,
    /// Calls (virtual interrupts) that the receiver got for them.
    pub(super) calls: u64,
    /// Hold times of these calls.
    pub(super) hold: Times,
    /// Latencies measured by the guests, if they measure them.
    pub(super) latency: Option<Latency>,
    /// Frames that did not arrive.
    pub(super) lost: u64,
    /// Frames that arrived after a later one.
    pub(super) reordered: u64,
    /// Events that should not occur.
    pub(super) trouble: Trouble,
    /// CPU time of the switch's workers (ns).
    pub(super) switch_cpu_ns: u64,
    /// CPU time of both guests' threads (ns).
    pub(super) guests_cpu_ns: u64,
}

/// A distribution of latencies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Latency {
    /// Median (ns).
    pub(super) p50_ns: u64,
    /// 99th percentile (ns).
    pub(super) p99_ns: u64,
}

/// Counts of events that should not occur; shown if there are any.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Trouble {
    /// Retransmitted frames of the stream.
    pub(super) retransmitted: u64,
    /// Frames that arrived damaged.
    pub(super) invalid: u64,
    /// Frames that the switch dropped, by reason.
    pub(super) dropped: BTreeMap<String, u64>,
}

impl Sample {
    /// Returns the counts from `self` to a later sample of the phase. Hold times, latencies and
    /// errors count from the phase's start.
    pub(super) fn until(&self, to: &Self) -> Self {
        Self {
            at: to.at.saturating_sub(self.at),
            frames: to.frames.saturating_sub(self.frames),
            bytes: to.bytes.saturating_sub(self.bytes),
            calls: to.calls.saturating_sub(self.calls),
            switch_cpu_ns: to.switch_cpu_ns.saturating_sub(self.switch_cpu_ns),
            guests_cpu_ns: to.guests_cpu_ns.saturating_sub(self.guests_cpu_ns),
            ..to.clone()
        }
    }

    /// Returns the duration (s).
    pub(super) fn seconds(&self) -> f64 {
        self.at.as_secs_f64()
    }

    pub(super) fn switch_cpu_s(&self) -> f64 {
        self.switch_cpu_ns as f64 / 1e9
    }

    /// Returns the CPU time of both guests' threads (s).
    pub(super) fn guests_cpu_s(&self) -> f64 {
        self.guests_cpu_ns as f64 / 1e9
    }

    /// Returns the throughput (10^9 bits per second).
    pub(super) fn gbit_per_s(&self) -> f64 {
        ratio(self.bytes as f64 * 8.0 / 1e9, self.seconds()).unwrap_or(0.0)
    }

    /// Returns the packets per second, rounded.
    pub(super) fn packets_per_s(&self) -> u64 {
        ratio(self.frames as f64, self.seconds()).unwrap_or(0.0).round() as u64
    }

    /// Returns the receiver's calls per packet.
    pub(super) fn calls_per_packet(&self) -> Option<f64> {
        ratio(self.calls as f64, self.frames as f64)
    }

    /// Returns the forwarded bytes per second of the switch's CPU time.
    pub(super) fn bytes_per_cpu_s(&self) -> Option<f64> {
        ratio(self.bytes as f64, self.switch_cpu_s())
    }

    /// Returns the number of CPUs that the switch's workers kept busy.
    pub(super) fn switch_cpus(&self) -> f64 {
        ratio(self.switch_cpu_s(), self.seconds()).unwrap_or(0.0)
    }

    /// Returns the number of CPUs that the guests kept busy.
    pub(super) fn guests_cpus(&self) -> f64 {
        ratio(self.guests_cpu_s(), self.seconds()).unwrap_or(0.0)
    }
}

/// Returns the ratio; `None` for a zero denominator.
fn ratio(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}

/// Returns the text of a value, or a dash without one.
pub(super) fn or_dash(value: Option<f64>, text: impl FnOnce(f64) -> String) -> String {
    value.map_or_else(|| "-".into(), text)
}
