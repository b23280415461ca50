//! What `/proc` says of weir.

use procfs::{
    CurrentSI, KernelStats,
    process::{Process, Status},
};
use rustix::param::clock_ticks_per_second;

/// A process by its number.
#[derive(Clone, Copy, Debug)]
pub struct Observed(pub u32);

impl Observed {
    /// Descriptors; 0 where they cannot be seen.
    pub fn fds(self) -> usize {
        self.process().and_then(|it| it.fd_count().ok()).unwrap_or(0)
    }

    /// Threads.
    pub fn threads(self) -> usize {
        self.status().map_or(0, |status| status.threads as usize)
    }

    /// Memory of its own (`RssAnon`, KiB): neither guests' memory nor its program's text.
    pub fn own_kib(self) -> u64 {
        self.status().and_then(|status| status.rssanon).unwrap_or(0)
    }

    /// Processor time (ns): of the threads whose names begin with `these`, and of all others (in steps of a clock's tick).
    pub fn cpu_ns(self, these: &str) -> [u64; 2] {
        let Some(process) = self.process() else { return [0; 2] };
        let ticks = process.stat().map_or(0, |stat| stat.utime + stat.stime);
        let of_these = process
            .tasks()
            .into_iter()
            .flatten()
            .flatten()
            .filter(|task| task.stat().is_ok_and(|stat| stat.comm.starts_with(these)))
            .filter_map(|task| task.schedstat().ok())
            .map(|it| it.sum_exec_runtime)
            .sum();
        let all = ticks * 1_000_000_000 / clock_ticks_per_second();
        [of_these, all.saturating_sub(of_these)]
    }

    fn process(self) -> Option<Process> {
        Process::new(self.0.cast_signed()).ok()
    }

    fn status(self) -> Option<Status> {
        self.process()?.status().ok()
    }
}

/// Threads and processes that the machine has begun since it started.
pub fn begun() -> u64 {
    KernelStats::current().map_or(0, |stats| stats.processes)
}
