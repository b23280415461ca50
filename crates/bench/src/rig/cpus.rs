//! CPUs of a measurement's threads.

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Distribution of the threads if there are two CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Places {
    /// The scheduler decides. It distributes three threads over two CPUs differently each time.
    Anywhere,
    /// The guests share a CPU, and the workers have the other.
    GuestsTogether,
    /// The receiver has a CPU alone, so that its thread's CPU time does not include switches to the sender.
    ReceiverAlone,
}

/// CPU of each thread.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cpus {
    pub(super) workers: usize,
    pub(super) sender: usize,
    pub(super) receiver: usize,
}

impl Places {
    /// Returns the CPUs; `None` if the scheduler decides, or there is only one CPU.
    pub(super) fn cpus(self) -> Option<Cpus> {
        let [first, last] = two_cpus()?;
        match self {
            Self::Anywhere => None,
            Self::GuestsTogether => Some(Cpus { workers: last, sender: first, receiver: first }),
            Self::ReceiverAlone => Some(Cpus { workers: last, sender: last, receiver: first }),
        }
    }
}

/// Returns the CPUs on which this thread may run.
pub fn usable_cpus() -> Vec<usize> {
    let allowed = sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect()
}

/// Returns the first and the last usable CPU; `None` if there is only one.
pub fn two_cpus() -> Option<[usize; 2]> {
    match usable_cpus()[..] {
        [first, .., last] => Some([first, last]),
        _ => None,
    }
}

/// Pins a thread (`None`: this thread) to a CPU. A thread that may not be pinned runs anywhere.
pub fn pin(thread: Option<u32>, cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    let thread = thread.map(|id| i32::try_from(id).ok().and_then(Pid::from_raw));
    if !matches!(thread, Some(None)) {
        let _ = sched_setaffinity(thread.flatten(), &set);
    }
}
