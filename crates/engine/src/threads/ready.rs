//! The number of leading receive queues of a port that can receive: counted again after a change, and read by every
//! sender.

use crate::threads::lock::lock;
use crate::threads::sync::{AtomicUsize, Mutex, Ordering};

/// The count of a port.
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
