//! Counts between two samples of the guest, and the CPU time of its kernel from `/proc/stat`.

use weir_wire::Mac;

use crate::cost::Cost;
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
