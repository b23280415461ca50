//! Due times of packets at a rate.

use std::time::Duration;

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};

/// Shortest mean gap (s): no sender keeps up with more than a packet each nanosecond.
const GAP_S_MIN: f64 = 1e-9;

/// Distribution of the gaps between packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gaps {
    /// Equal gaps.
    Even,
    /// Exponentially distributed gaps (a Poisson process), the same ones in each run.
    Random,
}

/// The number of packets due, as a function of time.
#[derive(Debug)]
pub(super) struct Schedule {
    gaps: Gaps,
    mean_gap_s: f64,
    random: SplitMix64,
    due: u64,
    /// Due time of the next packet (s).
    next_at_s: f64,
}

impl Schedule {
    /// Returns a schedule of `rate` packets a second, at least one.
    pub(super) fn new(rate: u64, gaps: Gaps) -> Self {
        let mean_gap_s = (1.0 / rate.max(1) as f64).max(GAP_S_MIN);
        let mut schedule =
            Self { gaps, mean_gap_s, random: SplitMix64::seed_from_u64(0), due: 0, next_at_s: 0.0 };
        schedule.next_at_s = schedule.gap_s();
        schedule
    }

    /// Returns the number of packets due `elapsed` after the beginning. `elapsed` must not
    /// decrease.
    pub(super) fn due(&mut self, elapsed: Duration) -> u64 {
        let elapsed_s = elapsed.as_secs_f64();
        while self.next_at_s <= elapsed_s {
            self.due += 1;
            self.next_at_s += self.gap_s();
        }
        self.due
    }

    /// Returns the due time of the next packet, from the beginning.
    pub(super) fn next_at(&self) -> Duration {
        Duration::from_secs_f64(self.next_at_s)
    }

    fn gap_s(&mut self) -> f64 {
        match self.gaps {
            Gaps::Even => self.mean_gap_s,
            Gaps::Random => -self.mean_gap_s * unit(&mut self.random).ln(),
        }
    }
}

/// Returns a number above 0, and at most 1.
fn unit(random: &mut SplitMix64) -> f64 {
    // 53 bits fill the fraction.
    ((random.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_packets_are_due_one_gap_after_the_other() {
        let mut schedule = Schedule::new(1000, Gaps::Even);
        assert_eq!(schedule.due(Duration::from_micros(999)), 0);
        assert_eq!(schedule.next_at(), Duration::from_millis(1));
        assert_eq!(schedule.due(Duration::from_micros(2500)), 2);
        assert_eq!(schedule.due(Duration::from_micros(10_500)), 10);
    }

    #[test]
    fn random_packets_have_the_rate_and_gaps_of_a_poisson_process() {
        let mut schedule = Schedule::new(1000, Gaps::Random);
        let mut gaps = Vec::new();
        let mut last = Duration::ZERO;
        for _ in 0..100_000 {
            let at = schedule.next_at();
            gaps.push((at - last).as_secs_f64());
            last = at;
            // The schedule rounds to nanoseconds.
            schedule.due(at + Duration::from_nanos(1));
        }
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        assert!((mean / 1e-3 - 1.0).abs() < 0.02, "{mean}");
        // Of exponential gaps, a share of 1 / e is longer than the mean.
        let longer = gaps.iter().filter(|gap| **gap > 1e-3).count() as f64 / gaps.len() as f64;
        assert!((longer - (-1.0_f64).exp()).abs() < 0.01, "{longer}");
    }

    #[test]
    fn no_rate_is_too_high_for_the_schedule_to_end() {
        let mut schedule = Schedule::new(u64::MAX, Gaps::Even);
        assert!(schedule.due(Duration::from_micros(1)) <= 1001);
        assert_eq!(Schedule::new(0, Gaps::Even).next_at(), Duration::from_secs(1));
    }
}
