//! What a running program uses of the machine, as `/proc/PID` tells.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::io::Errno;

use crate::error::{Error, Result};

/// A running program, by its process id.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    pid: u32,
}

impl Usage {
    /// That of process `pid`.
    pub fn of(pid: u32) -> Self {
        Self { pid }
    }

    /// Voluntary and involuntary context switches of all of its threads so far.
    pub fn context_switches(self) -> Result<u64> {
        Ok(self.of_every_thread("status")?.iter().map(|text| switches_of(text)).sum())
    }

    /// Time that its threads spent on a CPU so far, to the nanosecond.
    pub fn cpu_time(self) -> Result<Duration> {
        let texts = self.of_every_thread("schedstat")?;
        texts.iter().map(|text| on_cpu(text)).sum()
    }

    /// The same of those of its threads whose names begin with `prefix`.
    pub fn cpu_time_of(self, prefix: &str) -> Result<Duration> {
        let mut sum = Duration::ZERO;
        for thread in self.threads()? {
            let name = read_unless_gone(&thread.join("comm"))?;
            if name.is_some_and(|name| name.starts_with(prefix))
                && let Some(text) = read_unless_gone(&thread.join("schedstat"))?
            {
                sum += on_cpu(&text)?;
            }
        }
        Ok(sum)
    }

    /// Bytes of its memory that are resident and not shared with others: its heap and stacks, and
    /// its files. The memory of its guests is theirs and does not count.
    pub fn resident_bytes(self) -> Result<u64> {
        let text = self.read("status")?;
        Ok(kilobytes(&text, "RssAnon:")? + kilobytes(&text, "RssFile:")?)
    }

    /// Bytes of its page tables, which no resident size contains.
    pub fn page_table_bytes(self) -> Result<u64> {
        kilobytes(&self.read("status")?, "VmPTE:")
    }

    fn dir(self) -> PathBuf {
        PathBuf::from(format!("/proc/{}", self.pid))
    }

    fn read(self, file: &str) -> Result<String> {
        read(&self.dir().join(file))
    }

    fn of_every_thread(self, file: &str) -> Result<Vec<String>> {
        let threads = self.threads()?;
        let texts = threads.iter().map(|thread| read_unless_gone(&thread.join(file)).transpose());
        texts.flatten().collect()
    }

    /// The directories of its threads.
    fn threads(self) -> Result<Vec<PathBuf>> {
        let tasks = self.dir().join("task");
        let entries = fs::read_dir(&tasks).map_err(Error::io("list", &tasks))?;
        Ok(entries.flatten().map(|task| task.path()).collect())
    }
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(Error::io("read", path))
}

/// The same of a thread's file; `None` if the thread has ended since it was listed.
fn read_unless_gone(path: &Path) -> Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => Ok(None),
        Err(error) => Err(Error::io("read", path)(error)),
    }
}

/// The sum of both kinds of context switches in a `status`.
fn switches_of(status: &str) -> u64 {
    status
        .lines()
        .filter_map(|line| line.split_once("voluntary_ctxt_switches:"))
        .filter_map(|(_, count)| count.trim().parse::<u64>().ok())
        .sum()
}

/// The first number of a `schedstat`: nanoseconds on a CPU.
fn on_cpu(schedstat: &str) -> Result<Duration> {
    let first = schedstat.split_whitespace().next().and_then(|word| word.parse().ok());
    first.map(Duration::from_nanos).ok_or_else(|| Error::parse("a thread's schedstat", schedstat))
}

/// The bytes of a line of a `status`, as `RssAnon:      1234 kB`.
fn kilobytes(status: &str, key: &'static str) -> Result<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix(key));
    let number =
        value.and_then(|value| value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    number.map(|number| number * 1024).ok_or_else(|| Error::parse(key, status))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    const STATUS: &str = "Name:\tweir\nVmPTE:\t      64 kB\nRssAnon:\t     120 kB\n\
        RssFile:\t    2048 kB\nRssShmem:\t  999999 kB\n\
        voluntary_ctxt_switches:\t40\nnonvoluntary_ctxt_switches:\t2\n";

    #[test]
    fn both_kinds_of_context_switches_count() {
        assert_eq!(switches_of(STATUS), 42);
    }

    #[test]
    fn sizes_are_read_in_bytes() {
        assert_eq!(kilobytes(STATUS, "RssAnon:").unwrap(), 120 * 1024);
        assert!(kilobytes(STATUS, "VmHWM:").is_err());
    }

    #[test]
    fn time_on_a_cpu_is_the_first_number() {
        assert_eq!(on_cpu("1500000000 77 12\n").unwrap(), Duration::from_millis(1500));
        assert!(on_cpu("").is_err());
    }

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
