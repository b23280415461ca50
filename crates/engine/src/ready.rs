//! How many leading receive queues of a port can receive: counted anew by whoever changes one, read by every sender.

use crate::lock::lock;
use crate::sync::{AtomicUsize, Mutex, Ordering};

/// A port's.
#[derive(Debug, Default)]
pub struct ReadyQueues {
    ready: AtomicUsize,
    /// Who counts: what one has counted is not to replace what another has counted since.
    counting: Mutex<()>,
}

impl ReadyQueues {
    /// How many there are.
    #[inline]
    pub fn get(&self) -> usize {
        self.ready.load(Ordering::Relaxed)
    }

    /// Counts them by `count`, which may lock queues: the caller holds none. There are none once `failed` says that
    /// the port has failed. Tells `then` how many there are, before anybody else counts.
    pub fn count(
        &self,
        failed: impl Fn() -> bool,
        count: impl FnOnce() -> usize,
        then: impl FnOnce(usize),
    ) {
        let _counting = lock(&self.counting);
        then(self.set(failed, count));
    }

    /// The same for who counts alone.
    pub(crate) fn set(&self, failed: impl Fn() -> bool, count: impl FnOnce() -> usize) -> usize {
        let ready = if failed() { 0 } else { count() };
        // By a swap, as `none` does: whoever comes second sees what the first had done before.
        self.ready.swap(ready, Ordering::AcqRel);
        // It may have failed since: who stops it does not wait for those who count.
        if failed() {
            self.none();
        }
        ready
    }

    /// The port has failed, as those who count are told already.
    pub fn none(&self) {
        self.ready.swap(0, Ordering::AcqRel);
    }
}
