//! Which workers have frames that wait for a receiver's buffers.
//!
//! ```text
//! a worker with frames                              whoever takes the receiver's kick
//! 1. notes how often the receiver was refilled
//! 2. delivers, finds it full, and that asked
//!    for a kick                                     1. counts the refill
//! 3. says that it waits                             2. takes the list of those who wait, and tells them
//! 4. was it refilled since 1.? Tries again at once
//! ```
//!
//! Either 4. sees the refill, or 2. the worker: in each order one of them does. A kick reaches nobody else.

use crate::sync::{AtomicU64, Ordering};

const _: () = assert!(weir_limits::WORKERS_MAX <= u64::BITS as usize);

/// A receiver's. On lines of cache that are written where a receiver was full, and not for each frame.
#[derive(Debug, Default)]
pub struct Waiters {
    refills: AtomicU64,
    /// Bit i: worker i waits.
    workers: AtomicU64,
}

impl Waiters {
    /// How often it was refilled: to be noted before frames are delivered that may have to wait.
    #[inline]
    pub fn refills(&self) -> u64 {
        self.refills.load(Ordering::SeqCst)
    }

    /// Frames of `worker` wait since refill `seen`. Returns whether a refill came in between: then nobody else
    /// tells.
    pub fn wait(&self, worker: usize, seen: u64) -> bool {
        self.workers.fetch_or(1 << worker, Ordering::SeqCst);
        self.refills() != seen
    }

    /// It has buffers again: bit i is for worker i, which is to be told.
    pub fn refilled(&self) -> u64 {
        self.refills.fetch_add(1, Ordering::SeqCst);
        self.workers.swap(0, Ordering::SeqCst)
    }
}
