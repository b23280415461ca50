//! Locks of ports, which several workers serve.

use crate::sync::{Mutex, MutexGuard, pause};

/// A lock whose holder panicked guards data of a port that is stopped anyway.
#[inline]
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Locks it once `holds`, which other workers see to soon; `None` if the port has failed, which may be the reason
/// why nobody does.
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

/// Locks what is about to stop once nothing of it is under way: `close` has nothing new begin, or else workers that
/// follow one another would never all be done. A port that has failed is not waited for.
pub fn lock_settled<'m, T>(
    mutex: &'m Mutex<T>,
    has_failed: impl Fn() -> bool,
    close: impl FnOnce(&mut T),
    is_settled: impl Fn(&T) -> bool,
) -> MutexGuard<'m, T> {
    close(&mut lock(mutex));
    lock_when(mutex, has_failed, is_settled).unwrap_or_else(|| lock(mutex))
}
