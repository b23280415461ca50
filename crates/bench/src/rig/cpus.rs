//! Which processors the threads of a measurement run on.

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Who shares a processor with whom, where there are two of them and more threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Places {
    /// The scheduler decides. Where it puts three threads on two processors, it does so differently each time.
    Anywhere,
    /// The guests are together, and workers by themselves.
    GuestsTogether,
    /// The receiver has a CPU alone: its thread's CPU time excludes turns with its sender.
    ReceiverAlone,
}

/// Where each of them runs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cpus {
    pub(super) workers: usize,
    pub(super) sender: usize,
    pub(super) receiver: usize,
}

impl Places {
    /// `None` if that is the scheduler's choice, or there is but one processor.
    pub(super) fn cpus(self) -> Option<Cpus> {
        let [first, last] = two_cpus()?;
        match self {
            Self::Anywhere => None,
            Self::GuestsTogether => Some(Cpus { workers: last, sender: first, receiver: first }),
            Self::ReceiverAlone => Some(Cpus { workers: last, sender: last, receiver: first }),
        }
    }
}

/// Processors on which this thread may run.
pub fn usable_cpus() -> Vec<usize> {
    let allowed = sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect()
}

/// The first and the last of them; `None` if there is but one.
pub fn two_cpus() -> Option<[usize; 2]> {
    match usable_cpus()[..] {
        [first, .., last] => Some([first, last]),
        _ => None,
    }
}

/// Holds a thread, or this one, on a processor; one that may not be held runs where it likes.
pub fn pin(thread: Option<u32>, cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    let thread = thread.map(|id| i32::try_from(id).ok().and_then(Pid::from_raw));
    if !matches!(thread, Some(None)) {
        let _ = sched_setaffinity(thread.flatten(), &set);
    }
}
