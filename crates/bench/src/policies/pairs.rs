//! One policy against another that it should beat.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use weir_limits::BURST_NS_MAX;
use weir_vif::load::small;

use super::super::figures::FigureRow;
use super::super::report::median_and_spread;
use super::super::slice::Slice;
use super::contests::{Contest, Purpose};
use crate::rig::{Load, pin, two_cpus};

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
    /// The policy that `policy` is compared with, and its median.
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

/// Shortest pause that counts (ns). Shorter ones are within the margin of every hold.
const PAUSE_NS_MIN: u64 = BURST_NS_MAX;

/// Pauses of a thread that only reads its clocks.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    /// Duration of the observation (ns).
    watched_ns: u64,
    /// Lengths of pauses of [`PAUSE_NS_MIN`] or more (ns), during most of which the CPU clock ran
    /// on.
    lengths_ns: Vec<u64>,
}

impl Pauses {
    /// Observes a worker's CPU for `time`, or until `stop` is set.
    pub(super) fn watch(&mut self, time: Duration, stop: &AtomicBool) {
        thread::scope(|scope| {
            scope.spawn(|| {
                if let Some([_, last]) = two_cpus() {
                    pin(None, last);
                }
                self.look(time, stop);
            });
        });
    }

    fn look(&mut self, time: Duration, stop: &AtomicBool) {
        let ns = |clock| Duration::try_from(clock_gettime(clock)).unwrap_or_default().as_nanos();
        let clocks = || (ns(ClockId::Monotonic), ns(ClockId::ThreadCPUTime));
        let start = clocks();
        let mut before = start;
        while before.0 - start.0 < time.as_nanos() && !stop.load(Ordering::Relaxed) {
            let now = clocks();
            self.saw((now.0 - before.0) as u64, (now.1 - before.1) as u64);
            before = now;
        }
        self.watched_ns += (before.0 - start.0) as u64;
    }

    /// Records the time between two readings, and the CPU time in it (ns).
    fn saw(&mut self, gap_ns: u64, cpu_ns: u64) {
        if gap_ns >= PAUSE_NS_MIN && cpu_ns > gap_ns / 2 {
            self.lengths_ns.push(gap_ns);
        }
    }

    /// Returns the late calls per million packets at `rate` a second, if this thread held each call
    /// for `budget_ns` less [`BURST_NS_MAX`].
    fn late_per_million(&self, budget_ns: u64, rate: u64) -> f64 {
        // The mean time from one hold to the next: a hold, and half of the time between packets.
        let hold_ns = budget_ns.saturating_sub(BURST_NS_MAX) + 500_000_000 / rate.max(1);
        let late = |pause_ns: &u64| {
            // The part of a pause in which the deadline of a hold is missed.
            let critical_ns = pause_ns.saturating_sub(BURST_NS_MAX);
            (critical_ns as f64 / hold_ns as f64).min(1.0)
        };
        let packets = rate as f64 * self.watched_ns as f64 / 1e9;
        if packets > 0.0 {
            1e6 * self.lengths_ns.iter().map(late).sum::<f64>() / packets
        } else {
            0.0
        }
    }

    /// Returns the figures of the worst of the contests' loads with single packets, and the number of pauses.
    pub(super) fn figures<'c>(
        &self,
        contests: impl Iterator<Item = &'c Contest>,
    ) -> Vec<FigureRow> {
        if self.watched_ns == 0 {
            return Vec::new();
        }
        let loads = contests.filter_map(|contest| {
            let budget_ns = contest.measurement().latency_budget.ns();
            let late = self.late_per_million(budget_ns, rate(contest)?);
            Some((late, format!("{} with {}", contest.load_name, contest.budget)))
        });
        let limit = loads.max_by(|a, b| a.0.total_cmp(&b.0)).and_then(|(late, load)| {
            let says = format!(
                "the same of a thread that only looks at the clock, and calls {} us before each deadline: {load}",
                BURST_NS_MAX / 1_000,
            );
            let name = "budget_breaches_per_million_limit";
            FigureRow::new(name, "per million packets", says, vec![late])
        });
        let per_second = self.lengths_ns.len() as f64 * 1e9 / self.watched_ns as f64;
        let says = format!(
            "pauses of {} us or more of that thread, of which its CPU clock does not know",
            PAUSE_NS_MIN / 1_000
        );
        let pauses = FigureRow::new("pauses_per_s", "1/s", says, vec![per_second]);
        limit.into_iter().chain(pauses).collect()
    }
}

/// Returns the packet rate of a contest that counts breaches (packets/s), if its load has a fixed rate.
fn rate(contest: &Contest) -> Option<u64> {
    match (contest.purpose, contest.load) {
        (
            Purpose::Breaches,
            Load::Small(small::Options { rate: small::Rate::PerSecond(rate), .. }),
        ) => Some(rate),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    fn pauses(lengths_ns: &[u64]) -> Pauses {
        Pauses { watched_ns: SECOND_NS, lengths_ns: lengths_ns.to_vec() }
    }

    #[test]
    fn a_pause_makes_late_what_ends_in_it_after_the_call_was_due() {
        assert_eq!(pauses(&[]).late_per_million(100_000, 20_000), 0.0);
        assert_eq!(pauses(&[BURST_NS_MAX]).late_per_million(100_000, 20_000), 0.0, "just in time");
        // Holds end every 1,000 us, of which 100 us are within the pause: one call in ten, of 20,000 packets.
        let one =
            pauses(&[BURST_NS_MAX + 100_000]).late_per_million(BURST_NS_MAX + 975_000, 20_000);
        assert!((one - 5.0).abs() < 1e-9, "{one}");
        let two = pauses(&[SECOND_NS, SECOND_NS]).late_per_million(100_000, 20_000);
        assert!((two - 100.0).abs() < 1e-9, "one hold is under way at a time: {two}");
    }

    #[test]
    fn what_the_cpu_clock_knows_of_is_no_pause() {
        let mut seen = Pauses::default();
        for (gap_ns, cpu_ns) in
            [(200_000, 90_000), (PAUSE_NS_MIN - 1, PAUSE_NS_MIN - 1), (150_000, 140_000)]
        {
            seen.saw(gap_ns, cpu_ns);
        }
        assert_eq!(seen.lengths_ns, [150_000]);
    }

    #[test]
    fn the_worst_load_is_shown_with_the_pauses() {
        let contests = super::super::contests::all();
        let rows = pauses(&[160_000]).figures(contests.iter());
        let names: Vec<_> = rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names, ["budget_breaches_per_million_limit", "pauses_per_s"]);
        assert!(rows[0].says.ends_with("64B-20k with 100us"), "{}", rows[0].says);
        assert_eq!(rows[1].median, 1.0);
        assert!(Pauses::default().figures(contests.iter()).is_empty(), "nothing was watched");
        let others = contests.iter().filter(|contest| rate(contest).is_none());
        let rows = pauses(&[160_000]).figures(others);
        assert_eq!(rows.len(), 1, "no deadline that could be missed");
    }

    #[test]
    fn a_thread_watches_for_as_long_as_it_is_told() {
        let mut seen = Pauses::default();
        seen.watch(Duration::from_millis(5), &AtomicBool::new(false));
        assert!(seen.watched_ns >= 5_000_000);
        seen.watch(Duration::from_secs(3600), &AtomicBool::new(true));
    }
}
