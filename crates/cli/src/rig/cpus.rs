//! Which processors the threads of a measurement run on.

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Two processors on which this thread may run: the first and the last; `None` if there is but one.
pub(crate) fn two_cpus() -> Option<[usize; 2]> {
    let set = sched_getaffinity(None).ok()?;
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu));
    Some([cpus.next()?, cpus.next_back()?])
}

/// Holds a thread, or this one, on a processor; one that may not be held runs where it likes.
pub(crate) fn pin(thread: Option<u32>, cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    let thread = thread.map(|id| i32::try_from(id).ok().and_then(Pid::from_raw));
    if !matches!(thread, Some(None)) {
        let _ = sched_setaffinity(thread.flatten(), &set);
    }
}
