//! Locks of ports, which several workers serve, and the count of a port's receive queues that are ready.

use crate::threads::sync::{AtomicUsize, Mutex, MutexGuard, Ordering, pause};

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

/// The number of leading receive queues of a port that can receive. It is counted again after a change, and every
/// sender reads it.
#[derive(Debug, Default)]
pub struct ReadyQueues {
    ready: AtomicUsize,
    /// This lock is held while queues are counted: an older count must not replace a newer one.
    counting: Mutex<()>,
}

impl ReadyQueues {
    /// The number of queues that can receive.
    #[inline]
    pub fn get(&self) -> usize {
        self.ready.load(Ordering::Relaxed)
    }

    /// Counts the queues by `count`, which may lock queues, so the caller must hold no queue's lock. The result is 0
    /// once `failed` returns true. Passes the result to `then` before another thread counts.
    pub fn count(
        &self,
        failed: impl Fn() -> bool,
        count: impl FnOnce() -> usize,
        then: impl FnOnce(usize),
    ) {
        let _counting = lock(&self.counting);
        then(self.set(failed, count));
    }

    /// Sets the count, for a caller that is alone in counting.
    pub(crate) fn set(&self, failed: impl Fn() -> bool, count: impl FnOnce() -> usize) -> usize {
        let ready = if failed() { 0 } else { count() };
        // The store is a swap, as in `none`: the later of the two sees everything that the earlier thread did before.
        self.ready.swap(ready, Ordering::AcqRel);
        // The port may have failed since: its stop does not wait for a count.
        if failed() {
            self.none();
        }
        ready
    }

    /// Sets the number to 0 after the port has failed; `failed` already returns true.
    pub fn none(&self) {
        self.ready.swap(0, Ordering::AcqRel);
    }
}
