//! Estimates how late a worker acts on a deadline, so that the worker can begin that much earlier.
//!
//! A timer fires late because the kernel takes time to run the worker: some microseconds on an otherwise idle host, ten
//! times as much in a virtual machine. Before the worker notifies its guest, it serves a burst and makes a call. Both
//! take some microseconds, and more with a cold cache or after an interrupt. A promise that ends at a deadline must
//! allow for the worst of both delays. So a worker keeps the largest delay of each kind, and forgets it slowly.

use weir_limits::BURST_NS_MAX;

use crate::law::LAW;

/// One worker's record of its timers and bursts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lateness {
    timers: Largest,
    bursts: Largest,
}

impl Lateness {
    /// Notes that a timer fired `late_ns` late.
    pub fn fired(&mut self, late_ns: u64) {
        self.timers.saw(late_ns.min(LAW.lead_ns_max));
    }

    /// Notes that the last burst before a sleep took `burst_ns`.
    pub fn took(&mut self, burst_ns: u64) {
        self.bursts.saw(burst_ns.min(BURST_NS_MAX));
    }

    /// Returns how long before a deadline to set its timer (ns). The value is bounded: a worker
    /// that allowed for the longest delays would hold nothing.
    pub fn lead_ns(&self) -> u64 {
        self.timers.foreseen_ns().min(LAW.lead_ns_max) + self.work_ns()
    }

    /// Returns the part of [`Self::lead_ns`] for the work after the timer (ns): the excess over the
    /// law's margin, which each deadline leaves anyway.
    pub fn work_ns(&self) -> u64 {
        self.bursts.foreseen_ns().min(BURST_NS_MAX).saturating_sub(LAW.margin_ns)
    }
}

/// The largest of many times (ns), remembered for a while.
#[derive(Clone, Copy, Debug, Default)]
struct Largest(u64);

impl Largest {
    fn saw(&mut self, ns: u64) {
        let forgotten_ns = self.0 - self.0.div_ceil(LAW.times_to_forget());
        self.0 = forgotten_ns.max(ns);
    }

    /// Returns the largest time and a quarter of it, since the worst is still to come.
    fn foreseen_ns(self) -> u64 {
        self.0 + (self.0 >> LAW.part)
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt as _, SeedableRng as _};
    use rand_xoshiro::SplitMix64;

    use super::*;

    /// Notes a timer's lateness. Returns whether it exceeds the allowance.
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
        // Kernel lateness: mostly constant, with an exponential tail.
        let mut lateness = Lateness::default();
        let mut random = SplitMix64::seed_from_u64(1);
        let mut late = || 5_000 + (-5_000.0 * (1.0 - random.random::<f64>()).ln()) as u64;
        (0..100_000).for_each(|_| lateness.fired(late()));
        let later = (0..1_000_000).filter(|_| is_late(&mut lateness, late())).count();
        assert!(later < 100, "{later} of a million");
    }
}
