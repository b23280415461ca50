//! The time slice of a thread under the fair scheduler: the only file of this crate with `unsafe`.
//!
//! A thread that wakes up gets its CPU at once if its slice is the shorter one (`PREEMPT_SHORT`, Linux 6.12). With
//! equal slices it waits until the running thread has used its own: 3 ms or more beside a guest or another program that
//! computes. A short slice takes no more of a CPU: the shares stay as they are.

use std::{io, mem};

use libc::{SYS_sched_getattr, SYS_sched_setattr, c_uint, sched_attr, syscall};

/// The slice of a worker: the shortest that Linux has.
pub(crate) const WORKER_NS: u64 = 100_000;

const SIZE: c_uint = size_of::<sched_attr>() as c_uint;

/// The attributes of a thread of this process; 0 is the one that asks.
fn attributes(thread: u32) -> io::Result<sched_attr> {
    // SAFETY: every field is a number, for which zeros are a value.
    let mut attributes: sched_attr = unsafe { mem::zeroed() };
    // SAFETY: the kernel writes at most `SIZE` bytes to the structure.
    let got = unsafe { syscall(SYS_sched_getattr, thread, &raw mut attributes, SIZE, 0) };
    if got == 0 { Ok(attributes) } else { Err(io::Error::last_os_error()) }
}

/// Sets the slice of this thread, and of the threads that it starts from now on. An older kernel
/// accepts the call, and nothing changes.
///
/// # Errors
/// The error of sched_setattr(2).
pub(crate) fn set_own(slice_ns: u64) -> io::Result<()> {
    let attributes = sched_attr { sched_runtime: slice_ns, ..attributes(0)? };
    // SAFETY: the kernel reads `size` bytes, and sched_getattr(2) has set `size` to `SIZE` at most.
    let set = unsafe { syscall(SYS_sched_setattr, 0, &raw const attributes, 0) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The slice (ns) of a thread; 0 if the kernel does not have slices of single threads.
#[cfg(test)]
pub(crate) fn of(thread: u32) -> io::Result<u64> {
    attributes(thread).map(|it| it.sched_runtime)
}
