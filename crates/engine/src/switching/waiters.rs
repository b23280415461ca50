//! Workers with frames that wait for a receiver's buffers.
//!
//! ```text
//! a worker with frames                              whoever takes the receiver's kick
//! 1. notes how often the receiver was refilled
//! 2. delivers; the receiver is full, and asks for
//!    a kick                                         1. counts the refill
//! 3. says that it waits                             2. takes the list of those who wait, and tells them
//! 4. tries again at once if the receiver was
//!    refilled since 1.
//! ```
//!
//! Either step 4 sees the refill, or step 2 sees the worker: in each order one of them does. A kick wakes no other
//! worker.

use crate::threads::sync::{AtomicU64, Ordering};

const _: () = assert!(weir_limits::WORKERS_MAX <= u64::BITS as usize);

/// The waiting workers of a receiver. They have their own cache lines, which are written when a
/// receiver was full, and not for each frame.
#[derive(Debug, Default)]
pub struct Waiters {
    refills: AtomicU64,
    /// Bit i: worker i waits.
    workers: AtomicU64,
}

impl Waiters {
    /// The number of the receiver's refills. It must be read before the delivery of frames that may have to wait.
    #[inline]
    pub fn refills(&self) -> u64 {
        self.refills.load(Ordering::SeqCst)
    }

    /// Notes that frames of `worker` wait since refill `seen`. Returns true if a refill came in between: then nobody
    /// else notifies the worker.
    pub fn wait(&self, worker: usize, seen: u64) -> bool {
        self.workers.fetch_or(1 << worker, Ordering::SeqCst);
        self.refills() != seen
    }

    /// Counts a refill. Bit i of the result is set if worker i must be notified.
    pub fn refilled(&self) -> u64 {
        self.refills.fetch_add(1, Ordering::SeqCst);
        self.workers.swap(0, Ordering::SeqCst)
    }
}
