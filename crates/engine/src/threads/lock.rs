//! Locks of ports, which several workers serve.

use crate::threads::sync::{Mutex, MutexGuard, pause};

/// Locks a mutex. If its holder panicked, the data belongs to a port that is stopped anyway.
#[inline]
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Locks the mutex once `holds` is true, which other workers soon make it; `None` if the port has failed, which may
/// prevent that.
#[inline]
pub fn lock_when<T>(
    mutex: &Mutex<T>,
    has_failed: impl Fn() -> bool,
    holds: impl Fn(&T) -> bool,
) -> Option<MutexGuard<'_, T>> {
    let mut spins = 0;
    loop {
        let guard = lock(mutex);
        if has_failed() {
            return None;
        }
        if holds(&guard) {
            return Some(guard);
        }
        drop(guard);
        pause(&mut spins);
    }
}

/// Locks a stopping ring once none of its bursts is under way. `close` stops new bursts, or workers would never all be
/// done. Does not wait for a failed port.
pub fn lock_settled<'m, T>(
    mutex: &'m Mutex<T>,
    has_failed: impl Fn() -> bool,
    close: impl FnOnce(&mut T),
    is_settled: impl Fn(&T) -> bool,
) -> MutexGuard<'m, T> {
    close(&mut lock(mutex));
    lock_when(mutex, has_failed, is_settled).unwrap_or_else(|| lock(mutex))
}
