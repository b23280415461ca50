//! Facts about weir from `/proc`.

use procfs::{
    CurrentSI, KernelStats,
    process::{Process, Status},
};
use rustix::param::clock_ticks_per_second;

/// A process by its ID.
#[derive(Clone, Copy, Debug)]
pub struct Observed(pub u32);

impl Observed {
    /// Number of descriptors; 0 if they cannot be read.
    pub fn fds(self) -> usize {
        self.process().and_then(|it| it.fd_count().ok()).unwrap_or(0)
    }

    /// Number of threads.
    pub fn threads(self) -> usize {
        self.status().map_or(0, |status| status.threads as usize)
    }

    /// Private memory (`RssAnon`, KiB): neither guests' memory nor program text.
    pub fn own_kib(self) -> u64 {
        self.status().and_then(|status| status.rssanon).unwrap_or(0)
    }

    /// CPU time (ns) of the threads whose names begin with `these`, and of all others (in clock ticks).
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

/// Threads and processes that have been started on the machine since it booted.
pub fn begun() -> u64 {
    KernelStats::current().map_or(0, |stats| stats.processes)
}
