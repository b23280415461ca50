//! The guest's cost of an interrupt, estimated while it runs (C_v of Dong 2011 Eq. 2).
//!
//! The kernel's CPU time per second is modelled as `a + b * packets + c * interrupts`, and `c`
//! found by least squares with fading weights. Packets and interrupts mostly vary together. Only
//! while weir changes the interval do they vary independently, so `c` can be found.

use weir_limits::{AGENT_COST_NS_MAX, AGENT_COST_NS_MIN};

/// Weight of a new sample. The samples of the last half minute dominate.
const WEIGHT: f64 = 1.0 / 32.0;
/// Number of samples before there is an estimate.
const SAMPLES_MIN: u32 = 16;
/// Smallest part of the interrupts' variance that packets must leave unexplained.
const APART_MIN: f64 = 0.05;
/// Smallest distance of an estimate from zero (standard errors).
const ERRORS_MIN: f64 = 3.0;

/// Means and co-moments of (packets, interrupts, CPU ns), per second.
#[derive(Debug, Default)]
pub(crate) struct Cost {
    samples: u32,
    packets: f64,
    interrupts: f64,
    cpu_ns: f64,
    packets_packets: f64,
    packets_interrupts: f64,
    packets_cpu: f64,
    interrupts_interrupts: f64,
    interrupts_cpu: f64,
    cpu_cpu: f64,
}

impl Cost {
    pub(crate) fn add(&mut self, interval_ns: u64, cpu_ns: u64, interrupts: u64, packets: u64) {
        if interval_ns == 0 {
            return;
        }
        let per_second = 1e9 / interval_ns as f64;
        self.samples = self.samples.saturating_add(1);
        // The first samples have equal weights; afterwards the weights fade.
        let weight = WEIGHT.max(1.0 / f64::from(self.samples));
        let packets = packets as f64 * per_second - self.packets;
        let interrupts = interrupts as f64 * per_second - self.interrupts;
        let cpu_ns = cpu_ns as f64 * per_second - self.cpu_ns;
        self.packets += weight * packets;
        self.interrupts += weight * interrupts;
        self.cpu_ns += weight * cpu_ns;
        let moment = |old: f64, a: f64, b: f64| (1.0 - weight) * (old + weight * a * b);
        self.packets_packets = moment(self.packets_packets, packets, packets);
        self.packets_interrupts = moment(self.packets_interrupts, packets, interrupts);
        self.packets_cpu = moment(self.packets_cpu, packets, cpu_ns);
        self.interrupts_interrupts = moment(self.interrupts_interrupts, interrupts, interrupts);
        self.interrupts_cpu = moment(self.interrupts_cpu, interrupts, cpu_ns);
        self.cpu_cpu = moment(self.cpu_cpu, cpu_ns, cpu_ns);
    }

    /// Returns the cost of one interrupt (ns), if the samples distinguish it from noise.
    pub(crate) fn ns_per_interrupt(&self) -> Option<u64> {
        if self.samples < SAMPLES_MIN || self.interrupts_interrupts <= 0.0 {
            return None;
        }
        // The part of interrupts and CPU time that packets do not explain.
        let explained = |with_packets: f64| {
            if self.packets_packets > 0.0 { with_packets / self.packets_packets } else { 0.0 }
        };
        let by_packets = explained(self.packets_interrupts);
        let variance = self.interrupts_interrupts - by_packets * self.packets_interrupts;
        if variance < APART_MIN * self.interrupts_interrupts {
            return None;
        }
        let covariance = self.interrupts_cpu - by_packets * self.packets_cpu;
        let cost = covariance / variance;
        let cpu_variance = self.cpu_cpu - explained(self.packets_cpu) * self.packets_cpu;
        let residual = (cpu_variance - cost * covariance).max(0.0);
        let samples = f64::from(self.samples).min(2.0 / WEIGHT);
        let error = (residual / variance / (samples - 3.0)).sqrt();
        let believed = AGENT_COST_NS_MIN as f64..=AGENT_COST_NS_MAX as f64;
        (cost >= ERRORS_MIN * error && believed.contains(&cost)).then_some(cost as u64)
    }
}

#[cfg(test)]
mod tests {
    use rand_xoshiro::SplitMix64;
    use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};

    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const COST: u64 = 4000;

    /// Returns random numbers below 2^16.
    fn noise() -> impl FnMut() -> u64 {
        let mut random = SplitMix64::seed_from_u64(1);
        move || random.next_u64() >> 48
    }

    fn cpu_ns(interrupts: u64, packets: u64, noise: u64) -> u64 {
        // As in /proc/stat: in ticks of 10 ms.
        (100_000_000 + COST * interrupts + 1500 * packets + 100 * noise) / 10_000_000 * 10_000_000
    }

    #[test]
    fn the_cost_is_found_although_packets_cost_too_and_time_is_counted_in_ticks() {
        let (mut cost, mut noise) = (Cost::default(), noise());
        for _ in 0..200 {
            let (interrupts, packets) = (noise() / 4, noise());
            cost.add(SECOND, cpu_ns(interrupts, packets, noise()), interrupts, packets);
        }
        let found = cost.ns_per_interrupt().unwrap();
        assert!(found.abs_diff(COST) < COST / 5, "{found}");
    }

    #[test]
    fn interrupts_that_come_only_with_packets_tell_nothing() {
        let (mut cost, mut noise) = (Cost::default(), noise());
        for _ in 0..200 {
            let packets = noise();
            cost.add(SECOND, cpu_ns(packets / 3, packets, noise()), packets / 3, packets);
        }
        assert_eq!(cost.ns_per_interrupt(), None);
    }

    #[test]
    fn cpu_time_of_something_else_is_not_taken_for_a_cost() {
        let (mut cost, mut noise) = (Cost::default(), noise());
        for _ in 0..200 {
            let (interrupts, packets) = (noise() / 64, noise() / 64);
            cost.add(SECOND, noise() * 15_000, interrupts, packets);
        }
        assert_eq!(cost.ns_per_interrupt(), None);
    }

    #[test]
    fn too_little_is_no_answer() {
        let mut cost = Cost::default();
        for interrupts in 0..u64::from(SAMPLES_MIN) - 1 {
            cost.add(SECOND, cpu_ns(interrupts * 1000, 0, 0), interrupts * 1000, 0);
        }
        assert_eq!(cost.ns_per_interrupt(), None);
        cost.add(0, u64::MAX, u64::MAX, u64::MAX);
        assert_eq!(cost.ns_per_interrupt(), None);
    }

    #[test]
    fn any_numbers_are_survived() {
        let mut cost = Cost::default();
        for sample in 0..100 {
            cost.add(1, u64::MAX * (sample % 2), u64::MAX * (sample % 3 / 2), u64::MAX);
            let _ = cost.ns_per_interrupt();
        }
    }
}
