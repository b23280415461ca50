//! The measurements: their traffic, and their figures.

use std::time::Duration;

use weir_config::LatencyBudget;
use weir_engine::stages::Stage;
use weir_switch::stats::CallSettings;
use weir_vif::load::{bulk, pingpong, small};

use super::slice::Slice;
use crate::rig::{Load, Places};

/// Length of a small packet's frame (bytes), without check sequence, as weir sees it.
pub(super) const SMALL_FRAME_BYTES: usize = 64;
/// Length of a large packet's frame (bytes).
pub(super) const LARGE_FRAME_BYTES: usize = 1500;
/// Packets in flight at full speed: half a ring, so that no packet is lost for lack of buffers.
pub(super) const WINDOW: u32 = 512;
/// Length of a frame with an MTU of 1500 (bytes).
const MTU_FRAME_BYTES: usize = 1514;
/// Number of these frames in 1 Gbit/s, check sequences included.
const GBIT_FRAMES_PER_S: u64 = 1_000_000_000 / ((MTU_FRAME_BYTES as u64 + 4) * 8);
/// Retransmission timeout of a stream: Linux's `TCP_RTO_MIN`, longer than a guest waits for a CPU.
pub(super) const RETRANSMIT_TIMEOUT: Duration = Duration::from_millis(200);

/// Time before counting, for measurements with nothing to learn.
pub(super) const WARM_UP: Duration = Duration::from_millis(100);

/// A kind of traffic, and its figures.
pub(super) struct Measurement {
    pub(super) name: &'static str,
    pub(super) load: Load,
    /// True if the guests use packed rings.
    pub(super) packed: bool,
    /// True if the guests accept several frames in one buffer.
    pub(super) containers: bool,
    /// CPUs of guests and workers.
    pub(super) places: Places,
    /// Time before counting, in which caches, rings and policies settle.
    pub(super) warm_up: Duration,
    pub(super) calls: CallSettings,
    /// Policy of the sender's calls, if it differs.
    pub(super) sender_calls: Option<CallSettings>,
    /// Longest hold of the guests' frames.
    pub(super) latency_budget: LatencyBudget,
    /// The sender's filter rules.
    pub(super) filter: &'static [&'static str],
    /// True if a plain copy is measured directly afterwards.
    pub(super) memcpy: bool,
    pub(super) tells: Tells,
}

/// Results of a measurement.
pub(super) enum Tells {
    /// Figures of the traffic.
    Figures(&'static [Figure]),
    /// The cost of each stage. This measurement enables the marks of stages.
    Stages,
}

pub(super) struct Figure {
    pub(super) name: &'static str,
    pub(super) unit: &'static str,
    pub(super) says: &'static str,
    /// Computes the figure from counts; `None` for a zero denominator.
    pub(super) of: fn(&Slice) -> Option<f64>,
}

impl Measurement {
    pub(super) fn new(name: &'static str, load: Load, figures: &'static [Figure]) -> Self {
        Self {
            name,
            load,
            packed: false,
            containers: false,
            places: Places::GuestsTogether,
            warm_up: WARM_UP,
            calls: CallSettings::default(),
            sender_calls: None,
            latency_budget: LatencyBudget::DEFAULT,
            filter: &[],
            memcpy: false,
            tells: Tells::Figures(figures),
        }
    }

    fn stages(name: &'static str, load: Load) -> Self {
        Self { tells: Tells::Stages, ..Self::new(name, load, &[]) }
    }

    fn packed(self) -> Self {
        Self { packed: true, ..self }
    }

    /// Returns true if `filter` is a part of the measurement's name or of a figure's.
    pub(super) fn is_meant_by(&self, filter: &str) -> bool {
        self.name.contains(filter)
            || match self.tells {
                Tells::Figures(figures) => figures.iter().any(|f| f.name.contains(filter)),
                Tells::Stages => Stage::ALL.iter().any(|stage| stage.as_str().contains(filter)),
            }
    }
}

/// Returns all measurements, in the order of display.
pub(super) fn all() -> Vec<Measurement> {
    let flood = |frame_bytes| {
        let rate = small::Rate::Window(WINDOW);
        Load::Small(small::Options { frame_bytes, rate, ..small::Options::default() })
    };
    let paced = Load::Small(small::Options {
        frame_bytes: MTU_FRAME_BYTES,
        rate: small::Rate::PerSecond(GBIT_FRAMES_PER_S),
        ..small::Options::default()
    });
    let stream = Load::Bulk(bulk::Options {
        retransmit_timeout: RETRANSMIT_TIMEOUT,
        ..bulk::Options::default()
    });
    let requests = Load::RequestResponse(pingpong::Options::default());
    let (small, large) = (flood(SMALL_FRAME_BYTES), flood(LARGE_FRAME_BYTES));
    vec![
        Measurement::new("pps64_split", small, PPS64_SPLIT),
        Measurement::new("pps64_packed", small, PPS64_PACKED).packed(),
        Measurement::new("pps1500_split", large, PPS1500_SPLIT),
        Measurement { memcpy: true, ..Measurement::new("tso", stream, TSO) },
        Measurement::new("rtt", requests, RTT),
        Measurement::new("paced", paced, PACED),
        Measurement::new("idle", Load::Silence, IDLE),
        Measurement::stages("stages64_split", small),
        Measurement::stages("stages64_packed", small).packed(),
        Measurement::stages("stages1500_split", large),
        Measurement::stages("stages_tso", stream),
    ]
}

const PPS64_SPLIT: &[Figure] = &[
    Figure {
        name: "pps64_split",
        unit: "packets/s",
        says: "64 B one way, split rings, 512 in flight",
        of: Slice::packets_per_s,
    },
    Figure {
        name: "pps64_split_per_core",
        unit: "packets/s",
        says: "the same for a second of the worker's CPU time",
        of: Slice::packets_per_cpu_s,
    },
];

const PPS64_PACKED: &[Figure] = &[
    Figure {
        name: "pps64_packed",
        unit: "packets/s",
        says: "64 B one way, packed rings, 512 in flight",
        of: Slice::packets_per_s,
    },
    Figure {
        name: "pps64_packed_per_core",
        unit: "packets/s",
        says: "the same for a second of the worker's CPU time",
        of: Slice::packets_per_cpu_s,
    },
];

const PPS1500_SPLIT: &[Figure] = &[
    Figure {
        name: "pps1500_split",
        unit: "packets/s",
        says: "1500 B one way, split rings, 512 in flight",
        of: Slice::packets_per_s,
    },
    Figure {
        name: "pps1500_split_per_core",
        unit: "packets/s",
        says: "the same for a second of the worker's CPU time",
        of: Slice::packets_per_cpu_s,
    },
];

const TSO: &[Figure] = &[
    Figure {
        name: "gbps_tso",
        unit: "Gbit/s",
        says: "a TCP-like stream in 64 KiB segments",
        of: Slice::gbit_per_s,
    },
    Figure {
        name: "gbps_tso_per_core",
        unit: "Gbit/s",
        says: "the same for a second of the worker's CPU time",
        of: Slice::gbit_per_cpu_s,
    },
    Figure {
        name: "gbps_memcpy",
        unit: "Gbit/s",
        says: "a plain copy of 64 KiB at a time, as one core does it",
        of: Slice::memcpy_gbit_per_s,
    },
    Figure {
        name: "tso_vs_memcpy",
        unit: "x",
        says: "weir's core against the copying one",
        of: Slice::stream_vs_memcpy,
    },
];

const RTT: &[Figure] = &[
    Figure {
        name: "rtt_p50",
        unit: "us",
        says: "64 B request and reply, one at a time",
        of: |slice| slice.latency_us(|latency| latency.p50_ns),
    },
    Figure {
        name: "rtt_p99",
        unit: "us",
        says: "99 of 100 take at most this",
        of: |slice| slice.latency_us(|latency| latency.p99_ns),
    },
];

const PACED: &[Figure] = &[
    Figure {
        name: "cpu_at_1gbps_1500B",
        unit: "cores",
        says: "the worker's CPU time at 1 Gbit/s, evenly paced",
        of: |slice| Some(slice.switch_cores()),
    },
    Figure {
        name: "cpu_per_packet",
        unit: "us",
        says: "the same for each packet",
        of: Slice::cpu_us_per_packet,
    },
    Figure {
        name: "wakeups_per_packet",
        unit: "",
        says: "how often the worker woke from sleep for each",
        of: Slice::wakeups_per_packet,
    },
];

const IDLE: &[Figure] = &[
    Figure {
        name: "cpu_idle",
        unit: "% of a core",
        says: "two silent guests: the worker's CPU time",
        of: |slice| Some(100.0 * slice.switch_cores()),
    },
    Figure {
        name: "wakeups_idle",
        unit: "/s",
        says: "how often it woke",
        of: Slice::wakeups_per_s,
    },
];
