//! Interruptions of a running thread that its CPU clock does not show. They delay calls that are held until shortly
//! before a deadline.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use weir_limits::BURST_NS_MAX;
use weir_vif::load::small;

use super::super::figures::FigureRow;
use super::contest::{Contest, Purpose};
use crate::rig::{Load, pin, two_cpus};

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
        // A hold, and half of the time between packets until the next one begins.
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

/// Returns the packets per second of a contest with a breach count, if its packets have a rate.
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
