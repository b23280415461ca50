//! `/proc/stat`: CPU time of the guest's kernel.

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
