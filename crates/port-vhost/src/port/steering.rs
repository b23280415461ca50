//! Which receive queue a flow goes to, and what must be known of the rings for that.

use weir_engine::burst::Burst;
use weir_engine::{lock, symmetric_hash};
use weir_policy::steering::{Mark, Receiver};

use super::VhostPort;
use crate::rx;

impl Receiver for VhostPort {
    fn mark(&self, queue: usize) -> Mark {
        self.pairs.get(queue).map_or(Mark::default(), |pair| rx::mark(&lock(&pair.rx)))
    }

    fn has_taken(&self, queue: usize, placed: u64, before: Mark) -> bool {
        self.pairs.get(queue).is_none_or(|pair| rx::has_taken(&lock(&pair.rx), placed, before))
    }
}

impl VhostPort {
    /// A flow's replies go to the queue on which the guest sent it.
    pub(super) fn follow(&self, queue: usize, burst: &Burst<'_>, now_secs: u32) {
        for frame in burst.frames() {
            let hash = symmetric_hash(frame.head.as_slice());
            self.steering.record(hash, queue, now_secs, self);
        }
    }
}
