//! Delays of wake-ups and timers: constant, or random if the tail is known.

use crate::random::Random;
use crate::scenario::Scenario;

/// Median, 90th and 99th percentile of the exponential distribution with mean 1: logarithms of 2,
/// 10 and 100.
const MEDIAN: f64 = std::f64::consts::LN_2;
const P90: f64 = std::f64::consts::LN_10;
const P99: f64 = 2.0 * P90;

/// The delays of a host.
#[derive(Debug)]
pub(super) struct Delays {
    wakeup: Delay,
    timer: Delay,
    random: Random,
}

/// A median, and the 90th and 99th percentiles (ns) if they exceed it. Between two of them, below
/// the first and above the last, the distribution is exponential.
#[derive(Clone, Copy, Debug)]
struct Delay {
    median_ns: u64,
    p90_ns: u64,
    p99_ns: u64,
}

impl Delay {
    fn draw(self, random: &mut Random) -> u64 {
        let Self { median_ns, p90_ns, p99_ns } = self;
        if p90_ns.max(p99_ns) <= median_ns {
            return median_ns;
        }
        let (begin, end) = ((MEDIAN, median_ns), (P99, p99_ns));
        let middle = (P90, p90_ns);
        let chance = -libm::log(random.unit());
        let (from, to) = match (median_ns < p90_ns, p90_ns < p99_ns) {
            (true, true) if chance < P90 => (begin, middle),
            (true, true) => (middle, end),
            (true, false) => (begin, middle),
            (false, _) => (begin, end),
        };
        let mean_ns = to.1.saturating_sub(from.1) as f64 / (to.0 - from.0);
        (from.1 as f64 + (chance - from.0) * mean_ns).max(0.0) as u64
    }
}

impl Delays {
    /// Returns the delays of `scenario`, with their own random stream.
    pub(super) fn new(scenario: &Scenario, random: Random) -> Self {
        let profile = &scenario.profile;
        Self {
            wakeup: Delay {
                median_ns: profile.wakeup_latency_ns,
                p90_ns: profile.wakeup_latency_p90_ns,
                p99_ns: profile.wakeup_latency_p99_ns,
            },
            timer: Delay {
                median_ns: profile.timer_late_ns,
                p90_ns: profile.timer_late_p90_ns,
                p99_ns: profile.timer_late_p99_ns,
            },
            random,
        }
    }

    /// Draws the time from a kick or a call until the sleeper's thread is ready (ns).
    pub(super) fn wakeup_ns(&mut self) -> u64 {
        self.wakeup.draw(&mut self.random)
    }

    /// Draws the time from a timer's end until its sleeper's thread is ready (ns).
    pub(super) fn timer_late_ns(&mut self) -> u64 {
        self.timer.draw(&mut self.random)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Times;

    fn drawn(median_ns: u64, p90_ns: u64, p99_ns: u64) -> Times {
        let (mut random, mut times) = (Random::stream(1, 0), Times::default());
        let delay = Delay { median_ns, p90_ns, p99_ns };
        (0..100_000).for_each(|_| times.record(delay.draw(&mut random)));
        times
    }

    #[test]
    fn a_delay_has_the_percentiles_that_it_was_given() {
        for (median_ns, p90_ns, p99_ns) in [
            (10_000, 0, 30_000),
            // The percentiles are further apart than in an exponential distribution.
            (10_000, 0, 300_000),
            (10_000, 12_000, 300_000),
            (10_000, 30_000, 31_000),
            (10_000, 50_000, 400_000),
        ] {
            let times = drawn(median_ns, p90_ns, p99_ns);
            for (share, expected) in [(0.5, median_ns), (0.9, p90_ns), (0.99, p99_ns)] {
                let got = times.quantile_ns(share) as f64;
                let apart = got / expected as f64 - 1.0;
                assert!(expected == 0 || apart.abs() < 0.06, "{expected} at {share}: {got}");
            }
        }
    }

    #[test]
    fn a_percentile_below_one_before_it_is_left_out() {
        let same = |one: Times, other: Times| {
            let of = |times: &Times| [0.1, 0.5, 0.9, 0.99].map(|share| times.quantile_ns(share));
            assert_eq!(of(&one), of(&other));
        };
        same(drawn(10_000, 9_000, 30_000), drawn(10_000, 0, 30_000));
        same(drawn(10_000, 20_000, 15_000), drawn(10_000, 20_000, 0));
    }

    #[test]
    fn without_a_tail_all_delays_are_alike() {
        for p99_ns in [0, 10_000] {
            let times = drawn(10_000, 0, p99_ns);
            assert_eq!((times.mean_ns(), times.max_ns()), (10_000.0, 10_000));
        }
    }
}
