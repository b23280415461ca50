//! How long wake-ups take and how late timers are: always alike, or by chance where the tail is known.

use crate::random::Random;
use crate::scenario::Scenario;

/// Natural logarithms of 2 and of 100 / 2: an exponential distribution has its median at the first times its
/// mean, and so many means lie between that and the 99th percentile.
const LN_2: f64 = std::f64::consts::LN_2;
const LN_50: f64 = 3.912_023_005_428_146;

/// Those of a host.
#[derive(Debug)]
pub(super) struct Delays {
    wakeup: Delay,
    timer: Delay,
    random: Random,
}

/// A median (ns), and the 99th percentile if it is above that.
#[derive(Clone, Copy, Debug)]
struct Delay {
    median_ns: u64,
    p99_ns: u64,
}

impl Delay {
    fn draw(self, random: &mut Random) -> u64 {
        let Self { median_ns, p99_ns } = self;
        if p99_ns <= median_ns {
            return median_ns;
        }
        let mean_ns = (p99_ns - median_ns) as f64 / LN_50;
        let least_ns = (median_ns as f64 - mean_ns * LN_2).max(0.0);
        (least_ns - libm::log(random.unit()) * mean_ns) as u64
    }
}

impl Delays {
    /// Those of `scenario`, with chance of their own.
    pub(super) fn new(scenario: &Scenario, random: Random) -> Self {
        let profile = &scenario.profile;
        let delay = |median_ns, p99_ns| Delay { median_ns, p99_ns };
        Self {
            wakeup: delay(profile.wakeup_latency_ns, profile.wakeup_latency_p99_ns),
            timer: delay(profile.timer_late_ns, profile.timer_late_p99_ns),
            random,
        }
    }

    /// From a kick or a call until the sleeper's thread is ready (ns).
    pub(super) fn wakeup_ns(&mut self) -> u64 {
        self.wakeup.draw(&mut self.random)
    }

    /// From a timer's time until its sleeper's thread is ready (ns).
    pub(super) fn timer_late_ns(&mut self) -> u64 {
        self.timer.draw(&mut self.random)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Times;

    fn drawn(median_ns: u64, p99_ns: u64) -> Times {
        let (mut random, mut times) = (Random::stream(1, 0), Times::default());
        let delay = Delay { median_ns, p99_ns };
        (0..100_000).for_each(|_| times.record(delay.draw(&mut random)));
        times
    }

    #[test]
    fn a_delay_has_the_median_and_the_tail_that_it_was_given() {
        let times = drawn(10_000, 30_000);
        for (share, expected) in [(0.5, 10_000.0), (0.99, 30_000.0)] {
            let got = times.quantile_ns(share) as f64;
            assert!((got / expected - 1.0).abs() < 0.05, "{share}: {got}");
        }
    }

    #[test]
    fn without_a_tail_all_delays_are_alike() {
        for p99_ns in [0, 10_000] {
            let times = drawn(10_000, p99_ns);
            assert_eq!((times.mean_ns(), times.max_ns()), (10_000.0, 10_000));
        }
    }
}
