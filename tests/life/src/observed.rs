//! A program's use of the machine.

use procfs::{
    Current, Uptime,
    process::{Process, Stat},
};
use weir_bed::error::{Error, Result};

/// Resources that must not grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Private memory (`RssAnon`), without guests' memory and program text.
    pub own_kib: u64,
    /// Number of descriptors.
    pub fds: u64,
    /// Number of permanent threads, see [`STAYS_S`].
    pub threads: u64,
}

/// Age from which on a thread counts as permanent (s). The keeper's closers end after a second without work.
const STAYS_S: f64 = 3.0;

impl Observed {
    /// Reads the present resources of process `pid`.
    pub fn of(pid: u32) -> Result<Self> {
        let look = || {
            let process = Process::new(pid.cast_signed())?;
            let own_kib = process.status()?.rssanon.unwrap_or(0);
            let (now, ticks) = (Uptime::current()?.uptime, procfs::ticks_per_second() as f64);
            let age = |stat: Stat| now - stat.starttime as f64 / ticks;
            let own = age(process.stat()?);
            // A thread that has ended meanwhile has no status.
            let tasks = process.tasks()?.flatten().filter_map(|task| task.stat().ok());
            let threads = staying(own, &tasks.map(age).collect::<Vec<_>>()) as u64;
            Ok(Self { own_kib, fds: process.fd_count()? as u64, threads })
        };
        look().map_err(|error: procfs::ProcError| Error::Check(format!("/proc/{pid}: {error}")))
    }
}

/// Returns the number of a program's permanent threads. In a young program all threads count.
fn staying(program_s: f64, threads_s: &[f64]) -> usize {
    let is_young = program_s < 2.0 * STAYS_S;
    threads_s.iter().filter(|age| is_young || **age >= STAYS_S).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_comes_and_goes_does_not_count() {
        assert_eq!(staying(100.0, &[100.0, 99.9, 3.0, 0.9, 0.0]), 3);
        assert_eq!(staying(1.0, &[1.0, 1.0, 0.9]), 3);
    }
}
