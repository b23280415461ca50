//! How late a worker's timers fire, so that it can set them that much earlier.
//!
//! A timer fires late by what the kernel takes to run the worker after it: some microseconds on a
//! host that is left alone, and ten times as much in a virtual machine. A promise that ends at a deadline
//! must count on the worst of that. So a worker keeps the largest lateness that it saw, and forgets it
//! by and by.

use weir_limits::TIMER_LEAD_NS_MAX;

/// Timers after which most of the largest lateness is forgotten, if none was as late since.
const TIMERS_TO_FORGET: u64 = 16_384;

/// What one worker knows of its timers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lateness {
    /// The largest that is remembered (ns).
    largest_ns: u64,
}

impl Lateness {
    /// A timer fired so late (ns).
    pub fn fired(&mut self, late_ns: u64) {
        let forgotten_ns = self.largest_ns - self.largest_ns.div_ceil(TIMERS_TO_FORGET);
        self.largest_ns = forgotten_ns.max(late_ns.min(TIMER_LEAD_NS_MAX));
    }

    /// How much before a deadline to set the timer for it (ns): the largest lateness and a quarter of it, since
    /// what was seen is not the worst. It is bounded: to come back in time after the longest delays would mean
    /// not to hold anything.
    pub fn lead_ns(&self) -> u64 {
        (self.largest_ns + self.largest_ns / 4).min(TIMER_LEAD_NS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether it is later than was allowed for.
    fn is_late(lateness: &mut Lateness, late_ns: u64) -> bool {
        let foreseen_ns = lateness.lead_ns();
        lateness.fired(late_ns);
        late_ns > foreseen_ns
    }

    #[test]
    fn the_largest_lateness_is_allowed_for_and_forgotten_by_and_by() {
        let mut lateness = Lateness::default();
        assert!(is_late(&mut lateness, 40_000), "nothing was known");
        assert_eq!(lateness.lead_ns(), 50_000);
        assert!(!is_late(&mut lateness, 45_000));
        for _ in 0..TIMERS_TO_FORGET {
            assert!(!is_late(&mut lateness, 5_000));
        }
        assert!((15_000..25_000).contains(&lateness.lead_ns()), "{lateness:?}");
        for _ in 0..10 * TIMERS_TO_FORGET {
            assert!(!is_late(&mut lateness, 5_000));
        }
        assert_eq!(lateness.lead_ns(), 6_250);
    }

    #[test]
    fn a_worker_that_lost_its_cpu_for_long_still_holds_afterwards() {
        let mut lateness = Lateness::default();
        lateness.fired(1_000_000_000);
        assert_eq!(lateness.lead_ns(), TIMER_LEAD_NS_MAX);
    }

    #[test]
    fn of_a_million_timers_a_few_are_later_than_allowed_for() {
        // Lateness as a kernel shows it: mostly the same, with a tail that is exponential.
        let mut lateness = Lateness::default();
        let mut state = 1u64;
        let mut late = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let uniform = (state >> 11) as f64 / (1u64 << 53) as f64;
            5_000 + (-5_000.0 * (1.0 - uniform).ln()) as u64
        };
        (0..100_000).for_each(|_| lateness.fired(late()));
        let later = (0..1_000_000).filter(|_| is_late(&mut lateness, late())).count();
        assert!(later < 100, "{later} of a million");
    }
}
