//! The facts about the receive rings that choose the queue of a flow.

use weir_engine::lock;
use weir_policy::steering::{Mark, Receiver};

use super::VhostPort;
use crate::rx;

impl Receiver for VhostPort {
    fn mark(&self, queue: usize) -> Mark {
        self.guest.pair(queue).map_or(Mark::default(), |pair| rx::mark(&lock(&pair.rx)))
    }

    fn has_taken(&self, queue: usize, placed: u64, before: Mark) -> bool {
        self.guest.pair(queue).is_none_or(|pair| rx::has_taken(&lock(&pair.rx), placed, before))
    }
}
