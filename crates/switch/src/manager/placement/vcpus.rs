//! The threads of guests' vCPUs and the CPUs on which they last ran, from `/proc/PID/task/TID/stat`
//! (proc_pid_stat(5)).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use weir_limits::PROC_STAT_BYTES_MAX;

use crate::manager::guest_cpu::{THREADS_MAX, VCPU_NAMES};

const NS_PER_S: f64 = 1e9;
/// If no thread has a virtual processor's name, threads that are busy for this part of the time count as virtual
/// processors.
const BUSY: f64 = 0.05;

/// A thread, distinguishable from a later thread with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Thread {
    pub(super) process: u32,
    pub(super) id: u32,
    /// The thread's start time, in ticks since the machine's start.
    pub(super) started: u64,
}

impl Thread {
    /// True if the thread still exists in `proc`.
    pub(super) fn is_there(&self, proc: &Path) -> bool {
        let path = proc.join(format!("{}/task/{}", self.process, self.id));
        stat(&path).is_some_and(|stat| stat.started == self.started)
    }
}

/// A virtual processor's thread since the last look.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Vcpu {
    pub(super) thread: Thread,
    pub(super) last_cpu: u16,
    /// The thread's fraction of a processor's time, 0 to 1.
    pub(super) load: f64,
    /// True if the thread has the name of a virtual processor.
    pub(super) named: bool,
}

/// Reads the threads of processes.
#[derive(Debug, Default)]
pub(super) struct Vcpus {
    looked_ns: Option<u64>,
    /// CPU time of each thread at the last look, in ticks.
    ticks: BTreeMap<Thread, u64>,
}

impl Vcpus {
    /// The virtual processors of each of `processes`, which are monitors of virtual machines.
    pub(super) fn look(
        &mut self,
        proc: &Path,
        processes: &BTreeSet<u32>,
        now_ns: u64,
    ) -> BTreeMap<u32, Vec<Vcpu>> {
        let since_ns = self.looked_ns.map_or(0, |looked_ns| now_ns.saturating_sub(looked_ns));
        let ticks_per_s = rustix::param::clock_ticks_per_second() as f64;
        let ticks_since = since_ns as f64 / NS_PER_S * ticks_per_s;
        let before = std::mem::take(&mut self.ticks);
        self.looked_ns = Some(now_ns);
        let mut found = BTreeMap::new();
        for process in processes {
            let mut threads = Vec::new();
            for (id, stat) in stats(&proc.join(format!("{process}/task"))) {
                let thread = Thread { process: *process, id, started: stat.started };
                self.ticks.insert(thread, stat.ticks);
                // A new thread counts as idle.
                let since = stat.ticks.saturating_sub(*before.get(&thread).unwrap_or(&stat.ticks));
                let load = if ticks_since > 0.0 { since as f64 / ticks_since } else { 0.0 };
                let load = load.min(1.0);
                threads.push(Vcpu { thread, last_cpu: stat.cpu, load, named: stat.named });
            }
            if threads.iter().any(|thread| thread.named) {
                threads.retain(|thread| thread.named);
            } else {
                threads.retain(|thread| thread.load >= BUSY);
            }
            found.insert(*process, threads);
        }
        found
    }
}

/// The fields that are read of a thread.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    named: bool,
    ticks: u64,
    started: u64,
    cpu: u16,
}

/// Each thread in `tasks`; empty if the process has ended.
fn stats(tasks: &Path) -> Vec<(u32, Stat)> {
    let Ok(entries) = fs::read_dir(tasks) else {
        return Vec::new();
    };
    let thread = |entry: fs::DirEntry| {
        let id = entry.file_name().to_str()?.parse().ok()?;
        Some((id, stat(&entry.path())?))
    };
    entries.flatten().take(THREADS_MAX).filter_map(thread).collect()
}

fn stat(task: &Path) -> Option<Stat> {
    let path: PathBuf = task.join("stat");
    let mut text = Vec::new();
    File::open(path).ok()?.take(PROC_STAT_BYTES_MAX).read_to_end(&mut text).ok()?;
    // A name can contain any bytes.
    parse(&String::from_utf8_lossy(&text))
}

/// `8 (CPU 0/KVM) S 1 ...`: the name ends at the last parenthesis, because it may contain parentheses.
fn parse(stat: &str) -> Option<Stat> {
    let (before, after) = stat.rsplit_once(')')?;
    let (_, name) = before.split_once('(')?;
    // The first field after the name is field 3, the state.
    let fields: Vec<&str> = after.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).copied();
    let user: u64 = field(14)?.parse().ok()?;
    let system: u64 = field(15)?.parse().ok()?;
    Some(Stat {
        named: VCPU_NAMES.iter().any(|vcpu| name.starts_with(vcpu)),
        ticks: user.saturating_add(system),
        started: field(22)?.parse().ok()?,
        cpu: field(39)?.parse().ok()?,
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Writes the `stat` of a thread below `proc`.
    pub(in super::super) fn thread(
        proc: &Path,
        process: u32,
        id: u32,
        name: &str,
        ticks: u64,
        cpu: u16,
    ) {
        let dir = proc.join(format!("{process}/task/{id}"));
        fs::create_dir_all(&dir).unwrap();
        let stat = format!(
            "{id} ({name}) S 1 7 7 0 -1 64 1 0 0 0 {ticks} 0 0 0 20 0 3 0 555 9 9 9 1 1 1 1 1 0 0 0 0 0 0 0 \
             -1 {cpu} 0 0 0 0 0\n"
        );
        fs::write(dir.join("stat"), stat).unwrap();
    }

    fn ids(found: &BTreeMap<u32, Vec<Vcpu>>) -> Vec<u32> {
        found.values().flatten().map(|vcpu| vcpu.thread.id).collect()
    }

    #[test]
    fn a_name_may_have_parentheses_and_what_is_no_stat_is_nothing() {
        let stat = parse(
            "8 (CPU 0/KVM) odd) S 1 7 7 0 -1 64 1 0 0 0 30 4 0 0 20 0 3 0 555 9 9 9 1 1 1 1 1 0 0 0 0 0 0 0 -1 5 0",
        );
        assert_eq!(stat, Some(Stat { named: true, ticks: 34, started: 555, cpu: 5 }));
        for bad in ["", "8", "8 (x", "8 (x)", "8 (x) S 1 2 3", ") ("] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn this_thread_is_read() {
        let stat = stat(Path::new("/proc/thread-self")).unwrap();
        assert!(stat.started > 0);
    }

    #[test]
    fn named_threads_are_virtual_processors_with_their_load() {
        let proc = tempfile::tempdir().unwrap();
        let ticks = rustix::param::clock_ticks_per_second();
        let mut vcpus = Vcpus::default();
        thread(proc.path(), 7, 7, "qemu-system-x86", 1_000, 0);
        thread(proc.path(), 7, 8, "CPU 0/KVM", 1_000, 4);
        thread(proc.path(), 7, 9, "CPU 1/KVM", 1_000, 5);
        let found = vcpus.look(proc.path(), &[7].into(), 1_000_000_000);
        assert_eq!(ids(&found), [8, 9]);
        thread(proc.path(), 7, 8, "CPU 0/KVM", 1_000 + ticks / 2, 6);
        let found = vcpus.look(proc.path(), &[7, 70].into(), 2_000_000_000);
        let first = found[&7].iter().find(|vcpu| vcpu.thread.id == 8).unwrap();
        assert_eq!((first.last_cpu, first.load, first.named), (6, 0.5, true));
        assert!(found[&70].is_empty(), "the process is not there");
        assert!(first.thread.is_there(proc.path()));
        let later = Thread { started: 556, ..first.thread };
        assert!(!later.is_there(proc.path()), "another one with its number");
    }

    #[test]
    fn without_names_busy_threads_are_virtual_processors() {
        let proc = tempfile::tempdir().unwrap();
        let ticks = rustix::param::clock_ticks_per_second();
        let mut vcpus = Vcpus::default();
        for id in [7, 8, 9] {
            thread(proc.path(), 7, id, "monitor", 0, 1);
        }
        assert_eq!(ids(&vcpus.look(proc.path(), &[7].into(), 0)), [0; 0]);
        thread(proc.path(), 7, 9, "monitor", ticks, 1);
        let found = vcpus.look(proc.path(), &[7].into(), 1_000_000_000);
        assert_eq!(ids(&found), [9]);
        assert!(!found[&7][0].named);
    }
}
