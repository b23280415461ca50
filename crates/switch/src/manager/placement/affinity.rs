//! A thread's CPU affinity: sched_setaffinity(2).

use std::collections::BTreeSet;

use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processors on which a thread may run; this thread if none is named.
pub(super) fn allowed(thread: Option<u32>) -> Result<BTreeSet<u16>, Errno> {
    let set = sched_getaffinity(thread.map(pid).transpose()?)?;
    let cpus = (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu));
    Ok(cpus.filter_map(|cpu| u16::try_from(cpu).ok()).collect())
}

/// Restricts a thread to `cpus`.
///
/// # Errors
/// `EPERM`: the thread is another user's; `EINVAL`: there are no such processors, or this process's cpuset has none
/// of them; `ESRCH`: the thread has ended.
pub(crate) fn set(thread: u32, cpus: &BTreeSet<u16>) -> Result<(), Errno> {
    let mut set = CpuSet::new();
    for cpu in cpus.iter().map(|cpu| usize::from(*cpu)).filter(|cpu| *cpu < CpuSet::MAX_CPU) {
        set.set(cpu);
    }
    sched_setaffinity(Some(pid(thread)?), &set)
}

fn pid(thread: u32) -> Result<Pid, Errno> {
    i32::try_from(thread).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)
}

/// The meaning of an error.
pub(super) fn explain(error: Errno) -> String {
    let hint = match error {
        Errno::PERM => {
            " (the thread is another user's: run weir as that user, or with CAP_SYS_NICE)"
        }
        Errno::INVAL => " (the kernel, or this process's cpuset, has no such processor)",
        Errno::SRCH => " (the thread has ended)",
        _ => "",
    };
    format!("{}{hint}", std::io::Error::from(error))
}
