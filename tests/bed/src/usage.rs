//! A program's use of the machine, from `/proc/PID`.

use std::time::Duration;

use procfs::{
    ProcError, ProcResult,
    process::{Process, Status, Task},
};
use rustix::io::Errno;

use crate::error::{Error, Result};

/// A running program, by its process id.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    pid: u32,
}

impl Usage {
    /// Usage of process `pid`.
    pub fn of(pid: u32) -> Self {
        Self { pid }
    }

    /// Voluntary and involuntary context switches of all threads so far.
    pub fn context_switches(self) -> Result<u64> {
        self.sum(|thread| {
            let status = thread.status()?;
            let switches = [status.voluntary_ctxt_switches, status.nonvoluntary_ctxt_switches];
            Ok(switches.into_iter().flatten().sum())
        })
    }

    /// Time of all threads on a CPU so far, in nanoseconds.
    pub fn cpu_time(self) -> Result<Duration> {
        self.cpu_time_of("")
    }

    /// CPU time of the threads whose names begin with `prefix`.
    pub fn cpu_time_of(self, prefix: &str) -> Result<Duration> {
        let on_cpu_ns = |thread: &Task| {
            let counts = thread.stat()?.comm.starts_with(prefix);
            Ok(if counts { thread.schedstat()?.sum_exec_runtime } else { 0 })
        };
        self.sum(on_cpu_ns).map(Duration::from_nanos)
    }

    /// CPU time of the program and of those that it has started and that still run, such as those
    /// of user-mode Linux.
    pub fn cpu_time_of_all(self) -> Result<Duration> {
        let mut sum = self.cpu_time()?;
        for thread in self.process()?.tasks().map_err(|error| self.unread(&error))?.flatten() {
            for child in thread.children().unwrap_or_default() {
                // A child may have ended since it was listed.
                sum += Self::of(child).cpu_time_of_all().unwrap_or_default();
            }
        }
        Ok(sum)
    }

    /// Resident bytes that are not shared with others: heap, stacks and files. Guests' memory does not count.
    pub fn resident_bytes(self) -> Result<u64> {
        let status = self.status()?;
        Ok(1024 * (status.rssanon.unwrap_or(0) + status.rssfile.unwrap_or(0)))
    }

    /// Bytes of the page tables. They are not part of the resident size.
    pub fn page_table_bytes(self) -> Result<u64> {
        Ok(1024 * self.status()?.vmpte.unwrap_or(0))
    }

    fn process(self) -> Result<Process> {
        Process::new(self.pid.cast_signed()).map_err(|error| self.unread(&error))
    }

    fn status(self) -> Result<Status> {
        self.process()?.status().map_err(|error| self.unread(&error))
    }

    /// The sum over the threads, without those that have ended since they were listed.
    fn sum(self, of: impl Fn(&Task) -> ProcResult<u64>) -> Result<u64> {
        let mut sum = 0;
        for thread in self.process()?.tasks().map_err(|error| self.unread(&error))? {
            match thread.and_then(|thread| of(&thread)) {
                Ok(value) => sum += value,
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(self.unread(&error)),
            }
        }
        Ok(sum)
    }

    fn unread(self, error: &ProcError) -> Error {
        Error::Check(format!("/proc/{}: {error}", self.pid))
    }
}

fn is_gone(error: &ProcError) -> bool {
    match error {
        ProcError::NotFound(_) => true,
        ProcError::Io(error, _) => error.raw_os_error() == Some(Errno::SRCH.raw_os_error()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn time_of_threads_is_told_by_their_names() {
        let usage = Usage::of(std::process::id());
        let computing = std::thread::Builder::new().name("CPU 0/test".into()).spawn(move || {
            let mut value = 1_u64;
            while usage.cpu_time_of("CPU 0").unwrap() == Duration::ZERO {
                value = std::hint::black_box(value.wrapping_mul(3));
            }
            (usage.cpu_time_of("CPU 0").unwrap(), usage.cpu_time_of("CPU 1").unwrap())
        });
        let (named, other) = computing.unwrap().join().unwrap();
        assert!(named > Duration::ZERO && other == Duration::ZERO);
    }

    #[test]
    fn threads_that_end_meanwhile_are_no_error() {
        let usage = Usage::of(std::process::id());
        let end = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !end.load(Ordering::Relaxed) {
                    std::thread::scope(|short| drop(short.spawn(|| ())));
                }
            });
            let looked = (0..2_000).try_for_each(|_| {
                usage.cpu_time_of("test")?;
                usage.cpu_time()?;
                usage.context_switches().map(drop)
            });
            end.store(true, Ordering::Relaxed);
            looked.unwrap();
        });
    }

    #[test]
    fn a_process_that_computes_is_seen_to() {
        let usage = Usage::of(std::process::id());
        let before = usage.cpu_time().unwrap();
        let mut value = 1_u64;
        while usage.cpu_time().unwrap() == before {
            value = std::hint::black_box(value.wrapping_mul(3));
        }
        assert!(usage.resident_bytes().unwrap() > 0);
    }
}
