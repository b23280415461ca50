//! One policy against another that it should beat.

use serde::Serialize;

use super::super::figures::FigureRow;
use super::super::report::median_and_spread;
use super::super::slice::Slice;
use super::contest::Contest;

/// A figure of both policies, and the ratio of the first's to the second's within each round.
pub(super) struct Comparison {
    /// The ratio's name.
    pub(super) name: &'static str,
    pub(super) says: &'static str,
    unit: &'static str,
    of: fn(&Slice) -> Option<f64>,
}

pub(super) const RR_LATENCY: &[Comparison] = &[Comparison {
    name: "rr_latency_vs_immediate",
    says: "median round trip, 64 B, one request at a time: auto / immediate",
    unit: "us",
    of: |slice| slice.latency_us(|latency| latency.p50_ns),
}];

pub(super) const AGGREGATE_PPS: &[Comparison] = &[
    Comparison {
        name: "aggregate_pps_vs_single",
        says: "64 B with complete checksums, 512 in flight: packets that a receiver, on a processor of its own, \
               takes from its ring for each second of its CPU, containers / immediate",
        unit: "packets/s",
        of: Slice::packets_per_receiver_cpu_s,
    },
    Comparison {
        name: "aggregate_worker_pps_vs_single",
        says: "the same for each second of the worker's CPU, acknowledgements counted",
        unit: "packets/s",
        of: Slice::packets_per_cpu_s,
    },
    Comparison {
        name: "aggregate_path_pps_vs_single",
        says: "the same for each second of CPU of worker and receiver together",
        unit: "packets/s",
        of: Slice::packets_per_delivering_cpu_s,
    },
    Comparison {
        name: "aggregate_arrived_vs_single",
        says: "packets that arrived in a second, sender and worker on one processor",
        unit: "packets/s",
        of: Slice::packets_per_s,
    },
];

pub(super) const AGGREGATE_BESIDE_SENDER: &[Comparison] = &[
    Comparison {
        name: "aggregate_beside_sender_pps_vs_single",
        says: "packets that a receiver takes for each second of its CPU where it shares a processor with its \
               sender: containers / immediate",
        unit: "packets/s",
        of: Slice::packets_per_receiver_cpu_s,
    },
    Comparison {
        name: "aggregate_beside_sender_worker_pps_vs_single",
        says: "the same for each second of the worker's CPU, acknowledgements counted",
        unit: "packets/s",
        of: Slice::packets_per_cpu_s,
    },
    Comparison {
        name: "aggregate_beside_sender_arrived_vs_single",
        says: "packets that arrived in a second there",
        unit: "packets/s",
        of: Slice::packets_per_s,
    },
];

pub(super) const ADAPTIVE_DELAY: &[Comparison] = &[
    Comparison {
        name: "adaptive_delay_vs_fixed",
        says: "mean one-way time, 64 B at random, one expected in the timeout of 1 ms: \
               aggregate-adaptive / aggregate",
        unit: "us",
        of: Slice::mean_latency_us,
    },
    Comparison {
        name: "adaptive_jitter_vs_fixed",
        says: "the same: mean difference between the times of successive packets (RFC 3550)",
        unit: "us",
        of: Slice::jitter_us,
    },
];

pub(super) const ADAPTIVE_PPS: &[Comparison] = &[Comparison {
    name: "adaptive_pps_vs_fixed",
    says: "packets that arrived, 64 B, 512 in flight: aggregate-adaptive / aggregate",
    unit: "packets/s",
    of: Slice::packets_per_s,
}];

/// A comparison with the names of both policies.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct PairRow {
    pub(super) name: &'static str,
    pub(super) load: &'static str,
    pub(super) unit: &'static str,
    /// The policy that should be better, and its median.
    pub(super) policy: String,
    pub(super) value: f64,
    /// The policy that it is compared with, and its median.
    pub(super) against: String,
    pub(super) against_value: f64,
}

impl Comparison {
    /// Returns the ratio by round, with the names of both policies; `None` if there is nothing to compare.
    pub(super) fn rows(
        &self,
        contest: &Contest,
        slices: &[Vec<Slice>],
    ) -> Option<(FigureRow, PairRow)> {
        let ([tested, baseline], [tested_slices, baseline_slices]) =
            (contest.settings.as_slice(), slices)
        else {
            return None;
        };
        let rounds = tested_slices.iter().zip(baseline_slices);
        let ratios: Vec<_> = rounds
            .filter_map(|(tested, baseline)| Some((self.of)(tested)? / (self.of)(baseline)?))
            .filter(|ratio| ratio.is_finite())
            .collect();
        let median = |slices: &[Slice]| {
            median_and_spread(slices.iter().filter_map(self.of).collect())
                .map(|(median, ..)| median)
        };
        let pair = PairRow {
            name: self.name,
            load: contest.load_name,
            unit: self.unit,
            policy: tested.name.clone(),
            value: median(tested_slices)?,
            against: baseline.name.clone(),
            against_value: median(baseline_slices)?,
        };
        Some((FigureRow::new(self.name, "x", self.says, ratios)?, pair))
    }
}
