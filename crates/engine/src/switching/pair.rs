//! A pair of queues, with the workers that serve it.

use std::sync::atomic::{AtomicU16, Ordering};

use weir_limits::{QUEUE_PAIRS_MAX, WORKERS_MAX};

use crate::frames::stats::Counter;

/// No worker.
const NOBODY: u16 = u16::MAX;
const _: () = assert!(WORKERS_MAX < NOBODY as usize);

/// A pair of queues as the workers see it.
#[derive(Debug)]
pub struct Pair {
    worker: AtomicU16,
    /// A second worker that takes frames from the same queue, if one is not enough.
    helper: AtomicU16,
    /// Time for which the pair's bursts kept a worker busy (ns).
    pub(crate) busy_ns: Counter,
}

/// A port's pairs of queues.
pub type Pairs = [Pair; QUEUE_PAIRS_MAX];

impl Default for Pair {
    fn default() -> Self {
        let nobody = || AtomicU16::new(NOBODY);
        Self { worker: nobody(), helper: nobody(), busy_ns: Counter::default() }
    }
}

impl Pair {
    /// The number of the pair's worker.
    #[inline]
    pub(crate) fn worker(&self) -> Option<usize> {
        number(self.worker.load(Ordering::Relaxed))
    }

    /// The number of the pair's helper.
    #[inline]
    pub(crate) fn helper(&self) -> Option<usize> {
        number(self.helper.load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn is_served_by(&self, worker: usize) -> bool {
        self.worker() == Some(worker) || self.helper() == Some(worker)
    }

    /// Makes `worker` the pair's worker.
    pub(crate) fn set_worker(&self, worker: usize) {
        // The number is below WORKERS_MAX.
        self.worker.store(worker as u16, Ordering::Relaxed);
    }

    /// Sets the pair's helper; returns the previous one.
    pub(crate) fn set_helper(&self, helper: Option<usize>) -> Option<usize> {
        // The number is below WORKERS_MAX.
        let helper = helper.map_or(NOBODY, |helper| helper as u16);
        number(self.helper.swap(helper, Ordering::Relaxed))
    }

    /// Removes the worker and the helper from the pair.
    pub(crate) fn release(&self) {
        self.worker.store(NOBODY, Ordering::Relaxed);
        self.helper.store(NOBODY, Ordering::Relaxed);
    }
}

#[inline]
fn number(worker: u16) -> Option<usize> {
    (worker != NOBODY).then_some(worker.into())
}
