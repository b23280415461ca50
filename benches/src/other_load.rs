//! Load of other programs. On a busy machine, figures depend more on the sharing of cores than on the switches.

use std::{fs, path::Path, thread, time::Duration};

use weir_bed::error::{Error, Result};

/// Duration of a sample: 20 of the kernel's clock ticks for every CPU.
const TIME: Duration = Duration::from_millis(200);

/// Load from which on the report marks figures as unreliable.
pub(super) const DISTURBING_PERCENT: f64 = 10.0;

/// Returns the present share of the machine's CPU time that other programs use (percent).
pub(super) fn percent() -> Result<f64> {
    let before = CpuTime::read()?;
    thread::sleep(TIME);
    Ok(CpuTime::read()?.busy_percent_since(before))
}

/// Clock ticks of all CPUs together since the machine started.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct CpuTime {
    total: f64,
    idle: f64,
}

impl CpuTime {
    pub(super) fn read() -> Result<Self> {
        let path = Path::new("/proc/stat");
        let text = fs::read_to_string(path).map_err(Error::io("read", path))?;
        Self::parse(&text).ok_or_else(|| Error::parse("/proc/stat", text))
    }

    /// Parses the first line: `cpu user nice system idle iowait irq softirq steal guest
    /// guest_nice`, where `guest` is part of `user`.
    fn parse(stat: &str) -> Option<Self> {
        let numbers = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
        let ticks: Vec<f64> =
            numbers.take(8).map(|word| word.parse().ok()).collect::<Option<_>>()?;
        let idle = ticks.get(3)? + ticks.get(4)?;
        Some(Self { total: ticks.iter().sum(), idle })
    }

    pub(super) fn busy_percent_since(self, before: Self) -> f64 {
        let total = self.total - before.total;
        let idle = self.idle - before.idle;
        if total > 0.0 { (100.0 * (total - idle) / total).max(0.0) } else { 0.0 }
    }

    /// Returns the CPU time of the machine for each second.
    pub(super) fn busy_cores_since(self, before: Self) -> Result<f64> {
        let cpus = thread::available_parallelism().map(usize::from);
        let cpus = cpus.map_err(|source| Error::Io { what: "count CPUs".into(), source })?;
        Ok(self.busy_percent_since(before) / 100.0 * cpus as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_neither_idle_nor_waiting_is_busy() {
        let before = CpuTime::parse("cpu  10 0 10 80 0 0 0 0 5 0\ncpu0 1 1 1 1\n").unwrap();
        assert_eq!(before, CpuTime { total: 100.0, idle: 80.0 });
        let after = CpuTime { total: 140.0, idle: 110.0 };
        assert_eq!(after.busy_percent_since(before), 25.0);
        assert_eq!(before.busy_percent_since(before), 0.0);
    }

    #[test]
    fn this_machine_can_be_read() {
        assert!((0.0..=100.0).contains(&percent().unwrap()));
    }
}
