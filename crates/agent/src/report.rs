//! Counts between two samples of the guest, and the CPU time of its kernel from `/proc/stat`.

use weir_limits::{AGENT_COST_NS_MAX, AGENT_COST_NS_MIN};
use weir_wire::Mac;

use crate::protocol::Report;

/// The guest's counters at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) at_ns: u64,
    /// See [`Report::cpu_ns`].
    pub(crate) cpu_ns: u64,
    pub(crate) counts: Vec<Counts>,
}

/// The counters of one interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) mac: Mac,
    /// See [`Report::interrupts`].
    pub(crate) interrupts: Option<u64>,
    pub(crate) rx_packets: u64,
}

/// Computes reports from samples.
#[derive(Debug, Default)]
pub(crate) struct Reporter {
    before: Option<Sample>,
    cost: Cost,
}

impl Reporter {
    /// Forgets the last sample: the next report begins with the next sample.
    pub(crate) fn restart(&mut self) {
        self.before = None;
    }

    /// Returns the counts since the previous sample, for each interface that is in both; none after
    /// a restart. A counter that went backwards belongs to a device that was plugged in again, and
    /// counts as zero.
    pub(crate) fn next(&mut self, sample: Sample) -> Vec<Report> {
        let Some(before) = self.before.replace(sample.clone()) else { return Vec::new() };
        let interval_ns = sample.at_ns.saturating_sub(before.at_ns);
        let cpu_ns = sample.cpu_ns.saturating_sub(before.cpu_ns);
        let mut reports = Vec::new();
        for after in &sample.counts {
            let Some(before) = before.counts.iter().find(|counts| counts.mac == after.mac) else {
                continue;
            };
            reports.push(Report {
                mac: after.mac,
                interval_ns,
                interrupts: after
                    .interrupts
                    .zip(before.interrupts)
                    .map(|(after, before)| after.saturating_sub(before)),
                rx_packets: after.rx_packets.saturating_sub(before.rx_packets),
                cpu_ns,
                cost_ns_per_interrupt: None,
            });
        }
        let interrupts = reports
            .iter()
            .try_fold(0_u64, |sum, report| Some(sum.saturating_add(report.interrupts?)));
        if let Some(interrupts) = interrupts {
            let packets =
                reports.iter().fold(0_u64, |sum, report| sum.saturating_add(report.rx_packets));
            self.cost.add(interval_ns, cpu_ns, interrupts, packets);
        }
        for report in &mut reports {
            report.cost_ns_per_interrupt = self.cost.ns_per_interrupt();
        }
        reports
    }
}

const NS_PER_SECOND: u64 = 1_000_000_000;

/// Returns the time of all CPUs in system calls, interrupts and softirqs since the guest's start
/// (ns), from the line `cpu user nice system idle iowait irq softirq ...`; `None` without it. The
/// kernel counts ticks of 1/`ticks_per_second` s, so a single second is coarse.
pub(crate) fn kernel_ns(text: &str, ticks_per_second: u64) -> Option<u64> {
    let mut words = text.lines().find_map(|line| line.strip_prefix("cpu "))?.split_whitespace();
    let mut ticks = |skip| words.nth(skip)?.parse::<u64>().ok();
    let (system, irq, softirq) = (ticks(2)?, ticks(2)?, ticks(0)?);
    let sum = system.saturating_add(irq).saturating_add(softirq);
    Some(sum.saturating_mul(NS_PER_SECOND.checked_div(ticks_per_second)?))
}

/// Weight of a new sample. The samples of the last half minute dominate.
const WEIGHT: f64 = 1.0 / 32.0;
/// Number of samples before there is an estimate.
const SAMPLES_MIN: u32 = 16;
/// Smallest part of the interrupts' variance that packets must leave unexplained.
const APART_MIN: f64 = 0.05;
/// Smallest distance of an estimate from zero (standard errors).
const ERRORS_MIN: f64 = 3.0;

/// The guest's cost of an interrupt, estimated while it runs (C_v of Dong 2011 Eq. 2): means and co-moments of
/// (packets, interrupts, CPU ns), per second.
///
/// The kernel's CPU time per second is modelled as `a + b * packets + c * interrupts`, and `c` is found by least
/// squares with fading weights. Packets and interrupts mostly vary together. They vary independently only while weir
/// changes the interval, and only then can `c` be found.
#[derive(Debug, Default)]
struct Cost {
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
    use super::*;
    use rand_xoshiro::SplitMix64;
    use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};

    const A: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const B: Mac = Mac([2, 0, 0, 0, 0, 2]);

    fn sample(at_ns: u64, counts: &[(Mac, Option<u64>, u64)]) -> Sample {
        let counts = counts
            .iter()
            .map(|&(mac, interrupts, rx_packets)| Counts { mac, interrupts, rx_packets })
            .collect();
        Sample { at_ns, cpu_ns: at_ns / 10, counts }
    }

    #[test]
    fn reports_are_about_the_time_between_two_samples() {
        let mut reporter = Reporter::default();
        assert_eq!(reporter.next(sample(1000, &[(A, Some(5), 50), (B, None, 7)])), []);
        let reports = reporter.next(sample(3000, &[(A, Some(8), 150), (B, None, 7)]));
        let quiet = Report {
            mac: B,
            interval_ns: 2000,
            interrupts: None,
            rx_packets: 0,
            cpu_ns: 200,
            cost_ns_per_interrupt: None,
        };
        let busy = Report { mac: A, interrupts: Some(3), rx_packets: 100, ..quiet };
        assert_eq!(reports, [busy, quiet]);
    }

    #[test]
    fn interfaces_that_come_and_counters_that_start_again_are_no_burst() {
        let mut reporter = Reporter::default();
        assert_eq!(reporter.next(sample(0, &[(A, Some(1000), 1000)])), []);
        let reports = reporter.next(sample(1, &[(A, Some(3), 4), (B, Some(99), 99)]));
        assert_eq!(reports.len(), 1);
        assert_eq!((reports[0].interrupts, reports[0].rx_packets), (Some(0), 0));
    }

    #[test]
    fn nothing_is_reported_about_the_time_before_a_restart() {
        let mut reporter = Reporter::default();
        assert_eq!(reporter.next(sample(0, &[(A, Some(1), 1)])), []);
        reporter.restart();
        assert_eq!(reporter.next(sample(10, &[(A, Some(2), 2)])), []);
        assert_eq!(reporter.next(sample(20, &[(A, Some(4), 5)]))[0].interval_ns, 10);
    }

    #[test]
    fn system_irq_and_softirq_are_added_up() {
        let linux_6 = "cpu  2119559 1169 276613 4548977 8303 5 13236 1297 0 0\n\
            cpu0 1009801 341 127970 2340162 2524 0 1405 678 0 0\nintr 1 2 3\n";
        assert_eq!(kernel_ns(linux_6, 100), Some((276_613 + 5 + 13_236) * 10_000_000));
        // Older kernels have fewer columns.
        assert_eq!(kernel_ns("cpu  1 2 3 4 5 6 7\n", 1000), Some(16_000_000));
    }

    #[test]
    fn what_is_not_there_is_none() {
        for text in ["", "cpu0 1 2 3 4 5 6 7", "cpu  1 2 3 4 5 6", "cpu  1 2 x 4 5 6 7"] {
            assert_eq!(kernel_ns(text, 100), None, "{text}");
        }
        assert_eq!(kernel_ns("cpu  1 2 3 4 5 6 7", 0), None);
    }

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
