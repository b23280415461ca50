//! Computes figures from counters.

use std::collections::BTreeMap;
use std::time::Duration;

use weir_switch::stats::Times;

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
