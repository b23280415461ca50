//! The CPU time of a virtual machine's processors, from `/proc`.

use std::fs;
use std::path::{Path, PathBuf};

use super::core::GuestCpu;

/// QEMU's names of vCPU threads (`CPU 0/KVM`, `CPU 0/TCG`) with `-name debug-threads=on`, cloud-hypervisor's
/// (`vcpu0`) and crosvm's (`crosvm_vcpu0`).
pub(super) const VCPU_NAMES: [&str; 3] = ["CPU ", "vcpu", "crosvm_vcpu"];
/// Readings after which the process is searched for threads again: processors are rarely added.
const READINGS: u32 = 50;
/// After a failed reading, the search follows after this many readings.
const READINGS_AFTER_FAILURE: u32 = 10;
/// The most threads of one process that are read.
pub(super) const THREADS_MAX: usize = 1024;

/// The threads of a virtual machine's processors.
#[derive(Debug, Default)]
pub(super) struct GuestThreads {
    process: Option<u32>,
    /// The threads' `schedstat` files.
    files: Vec<PathBuf>,
    readings: u32,
}

impl GuestThreads {
    /// CPU time of the vCPUs of the virtual machine in `process`, or of all its threads if none has a vCPU's name;
    /// `None` if the kernel does not say. A front end in weir's own process, as in `weir demo`, is no virtual
    /// machine.
    pub(super) fn cpu(&mut self, process: Option<u32>) -> Option<GuestCpu> {
        let process = process.filter(|process| *process != std::process::id())?;
        self.cpu_in(Path::new("/proc"), process)
    }

    fn cpu_in(&mut self, proc: &Path, process: u32) -> Option<GuestCpu> {
        if self.process != Some(process) || self.readings == 0 {
            self.files = threads(&proc.join(process.to_string()).join("task"));
            self.process = Some(process);
            self.readings = READINGS;
        }
        self.readings -= 1;
        let times: Option<Vec<u64>> = self.files.iter().map(|file| cpu_ns(file)).collect();
        match times {
            Some(times) if !times.is_empty() => {
                Some(GuestCpu { process, cpu_ns: times.iter().sum() })
            }
            // A thread has ended, or the kernel does not count CPU time.
            _ => {
                self.files.clear();
                self.readings = self.readings.min(READINGS_AFTER_FAILURE);
                None
            }
        }
    }
}

/// The `schedstat` files of the threads in `tasks` that are virtual processors, or of all threads if none is.
fn threads(tasks: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(tasks) else {
        return Vec::new();
    };
    let all: Vec<_> = entries.flatten().take(THREADS_MAX).map(|entry| entry.path()).collect();
    let is_vcpu = |thread: &&PathBuf| {
        let name = fs::read_to_string(thread.join("comm"));
        name.is_ok_and(|name| VCPU_NAMES.iter().any(|vcpu| name.starts_with(vcpu)))
    };
    let vcpus: Vec<_> = all.iter().filter(is_vcpu).cloned().collect();
    let threads = if vcpus.is_empty() { all } else { vcpus };
    threads.into_iter().map(|thread| thread.join("schedstat")).collect()
}

/// True if the thread has the name of a virtual processor, in any process.
pub(crate) fn is_virtual_processor(proc: &Path, thread: u32) -> bool {
    let name = fs::read_to_string(proc.join(thread.to_string()).join("comm"));
    name.is_ok_and(|name| VCPU_NAMES.iter().any(|vcpu| name.starts_with(vcpu)))
}

/// The first number of the file: time on a CPU (ns).
fn cpu_ns(schedstat: &Path) -> Option<u64> {
    fs::read_to_string(schedstat).ok()?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(proc: &Path, tid: u32, name: &str, cpu_ns: u64) {
        let dir = proc.join("7/task").join(tid.to_string());
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("comm"), format!("{name}\n")).unwrap();
        fs::write(dir.join("schedstat"), format!("{cpu_ns} 5 6\n")).unwrap();
    }

    fn cpu_ns_of(threads: &mut GuestThreads, proc: &Path) -> Option<u64> {
        threads.cpu_in(proc, 7).map(|cpu| cpu.cpu_ns)
    }

    #[test]
    fn virtual_processors_are_told_by_their_names() {
        let proc = tempfile::tempdir().unwrap();
        thread(proc.path(), 7, "qemu-system-x86", 1_000);
        let mut threads = GuestThreads::default();
        assert_eq!(cpu_ns_of(&mut threads, proc.path()), Some(1_000), "all, while none has a name");
        thread(proc.path(), 8, "CPU 0/KVM", 30);
        thread(proc.path(), 9, "CPU 1/TCG", 4);
        assert_eq!(cpu_ns_of(&mut GuestThreads::default(), proc.path()), Some(34));
    }

    #[test]
    fn a_thread_that_ends_is_no_time_and_the_rest_is_found_again() {
        let proc = tempfile::tempdir().unwrap();
        thread(proc.path(), 8, "CPU 0/KVM", 30);
        thread(proc.path(), 9, "CPU 1/KVM", 4);
        let mut threads = GuestThreads::default();
        assert_eq!(cpu_ns_of(&mut threads, proc.path()), Some(34));
        fs::remove_dir_all(proc.path().join("7/task/9")).unwrap();
        let unread = (0..).take_while(|_| cpu_ns_of(&mut threads, proc.path()).is_none()).count();
        assert!((1..=READINGS_AFTER_FAILURE as usize + 1).contains(&unread), "{unread}");
        assert_eq!(cpu_ns_of(&mut threads, proc.path()), Some(30));
        fs::remove_dir_all(proc.path().join("7")).unwrap();
        for _ in 0..2 * READINGS {
            assert_eq!(cpu_ns_of(&mut threads, proc.path()), None, "the process has ended");
        }
    }

    #[test]
    fn this_process_is_no_virtual_machine() {
        let mut threads = GuestThreads::default();
        assert_eq!(threads.cpu(Some(std::process::id())), None);
        assert_eq!(threads.cpu(None), None);
    }
}
