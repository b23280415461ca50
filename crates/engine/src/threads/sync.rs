//! Primitives that `tests/model` replaces with its own, so that the model checker can run the code built on them.

pub(crate) use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
pub(crate) use std::sync::{Mutex, MutexGuard};

/// Checks of the turn before the core is yielded: placing takes a few microseconds, without preemption.
const SPINS: u32 = 1_000;

/// One step of a short wait for another worker.
pub(crate) fn pause(spins: &mut u32) {
    *spins += 1;
    if spins.is_multiple_of(SPINS) {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}
