//! How late a worker comes to what it has promised, so that it can begin that much earlier.
//!
//! A timer fires late by what the kernel takes to run the worker after it: some microseconds on a
//! host that is left alone, and ten times as much in a virtual machine. What the worker then does before its guest is
//! told, a burst and a call, takes some microseconds, and longer with a cold cache or where an interrupt comes in between.
//! A promise that ends at a deadline must count on the worst of both. So a worker keeps the largest that it saw of each,
//! and forgets it by and by.

use weir_limits::BURST_NS_MAX;

use crate::law::LAW;

/// What one worker knows of its timers and bursts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lateness {
    timers: Largest,
    bursts: Largest,
}

impl Lateness {
    /// A timer fired so late (ns).
    pub fn fired(&mut self, late_ns: u64) {
        self.timers.saw(late_ns.min(LAW.lead_ns_max));
    }

    /// The last burst before a sleep took so long (ns).
    pub fn took(&mut self, burst_ns: u64) {
        self.bursts.saw(burst_ns.min(BURST_NS_MAX));
    }

    /// How much before a deadline to set the timer for it (ns). It is bounded: to come back in time after the
    /// longest delays would mean not to hold anything.
    pub fn lead_ns(&self) -> u64 {
        self.timers.foreseen_ns().min(LAW.lead_ns_max) + self.work_ns()
    }

    /// The part of that which is for the work after the timer (ns): what the law's margin, which each deadline leaves
    /// anyway, has no room for.
    pub fn work_ns(&self) -> u64 {
        self.bursts.foreseen_ns().min(BURST_NS_MAX).saturating_sub(LAW.margin_ns)
    }
}

/// The largest of many times (ns) that is remembered.
#[derive(Clone, Copy, Debug, Default)]
struct Largest(u64);

impl Largest {
    fn saw(&mut self, ns: u64) {
        let forgotten_ns = self.0 - self.0.div_ceil(LAW.times_to_forget());
        self.0 = forgotten_ns.max(ns);
    }

    /// The largest and a quarter of it, since what was seen is not the worst.
    fn foreseen_ns(self) -> u64 {
        self.0 + (self.0 >> LAW.part)
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt as _, SeedableRng as _};
    use rand_xoshiro::SplitMix64;

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
        for _ in 0..LAW.times_to_forget() {
            assert!(!is_late(&mut lateness, 5_000));
        }
        assert!((15_000..25_000).contains(&lateness.lead_ns()), "{lateness:?}");
        for _ in 0..10 * LAW.times_to_forget() {
            assert!(!is_late(&mut lateness, 5_000));
        }
        assert_eq!(lateness.lead_ns(), 6_250);
    }

    #[test]
    fn a_worker_that_lost_its_cpu_for_long_still_holds_afterwards() {
        let mut lateness = Lateness::default();
        lateness.fired(1_000_000_000);
        assert_eq!(lateness.lead_ns(), LAW.lead_ns_max);
    }

    #[test]
    fn bursts_that_take_longer_than_the_margin_have_holds_end_sooner() {
        let mut lateness = Lateness::default();
        lateness.fired(40_000);
        lateness.took(LAW.margin_ns / 5 * 4);
        assert_eq!((lateness.lead_ns(), lateness.work_ns()), (50_000, 0), "there is room for it");
        lateness.took(40_000);
        assert_eq!((lateness.lead_ns(), lateness.work_ns()), (80_000, 30_000));
        lateness.took(1_000_000_000);
        assert_eq!(lateness.work_ns(), BURST_NS_MAX - LAW.margin_ns, "or nothing would be held");
        for _ in 0..10 * LAW.times_to_forget() {
            lateness.took(2_000);
        }
        assert_eq!(lateness.work_ns(), 0);
    }

    #[test]
    fn of_a_million_timers_a_few_are_later_than_allowed_for() {
        // Lateness as a kernel shows it: mostly the same, with a tail that is exponential.
        let mut lateness = Lateness::default();
        let mut random = SplitMix64::seed_from_u64(1);
        let mut late = || 5_000 + (-5_000.0 * (1.0 - random.random::<f64>()).ln()) as u64;
        (0..100_000).for_each(|_| lateness.fired(late()));
        let later = (0..1_000_000).filter(|_| is_late(&mut lateness, late())).count();
        assert!(later < 100, "{later} of a million");
    }
}
