//! Which receive queue of a multi-queue interface a flow uses.
//!
//! Two rules, the first that applies wins:
//! 1. **The flow follows its transmit queue**, as in Linux `tun`: what a guest receives of a flow
//!    goes to the queue on which the guest last sent that flow, so that one vCPU does both
//!    (`flows`).
//! 2. **Receive-side scaling**: a 128-entry indirection table over the flow hash spreads the rest
//!    evenly (Dong 2011, vRSS; `indirection`).
//!
//! Every `hash` is the 32-bit **symmetric** flow hash: swapping source and destination (address and
//! port) must not change it, or else rule 1 would look up a reply under another hash than the one
//! it was recorded with and never apply.
//!
//! All methods take `&self` and never wait: one worker records while others look up. Each table entry
//! is one atomic word, so a reader sees an old entry or a new one, never half of each. Relaxed
//! ordering is enough, since nothing but the entry itself depends on it.

mod flows;
mod indirection;

use std::sync::atomic::{AtomicU8, Ordering};

use weir_limits::QUEUE_PAIRS_MAX;

use flows::FlowTable;
use indirection::IndirectionTable;

/// The receive queue selection of one interface.
#[derive(Debug)]
pub struct Steering {
    queues: AtomicU8,
    indirection: IndirectionTable,
    flows: FlowTable,
}

impl Steering {
    /// Spreads flows over `queues` receive queues.
    ///
    /// # Errors
    /// If `queues` is zero or more than `weir_limits::QUEUE_PAIRS_MAX`.
    pub fn new(queues: usize) -> Result<Self, QueueCountError> {
        let checked = check_queues(queues)?;
        Ok(Self {
            queues: AtomicU8::new(checked),
            indirection: IndirectionTable::new(checked),
            flows: FlowTable::new(),
        })
    }

    /// The guest changed the number of queue pairs in use (virtio 1.2 §5.1.6.5.6,
    /// `VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET`). Flows recorded on a queue that is gone fall back to the
    /// indirection table.
    ///
    /// A lookup that runs at the same time may still give a queue of the old number; whoever
    /// delivers checks that the queue is enabled in any case.
    ///
    /// # Errors
    /// As [`Self::new`]; nothing has changed then.
    pub fn set_queues(&self, queues: usize) -> Result<(), QueueCountError> {
        let checked = check_queues(queues)?;
        self.queues.store(checked, Ordering::Relaxed);
        self.indirection.spread(checked);
        Ok(())
    }

    /// Receive queues in use, 1 to `weir_limits::QUEUE_PAIRS_MAX`.
    pub fn queues(&self) -> usize {
        usize::from(self.queues.load(Ordering::Relaxed))
    }

    /// The guest sent a frame with this symmetric flow hash on transmit queue `queue`. `now_secs` is
    /// from any monotonic clock of whole seconds. A `queue` not in use is ignored.
    pub fn record(&self, hash: u32, queue: usize, now_secs: u32) {
        let queues = self.queues.load(Ordering::Relaxed);
        match u8::try_from(queue) {
            Ok(queue) if queue < queues => self.flows.record(hash, queue, now_secs),
            _ => {}
        }
    }

    /// The receive queue for a frame with this symmetric flow hash, below [`Self::queues`].
    pub fn queue_for(&self, hash: u32) -> usize {
        let queues = self.queues.load(Ordering::Relaxed);
        let followed = self.flows.queue_for(hash).filter(|&queue| queue < queues);
        usize::from(followed.unwrap_or_else(|| self.indirection.queue_for(hash)))
    }
}

/// A number of queue pairs that weir does not serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{queues} queue pairs; valid: 1 to {QUEUE_PAIRS_MAX}")]
pub struct QueueCountError {
    /// The number asked for.
    pub queues: usize,
}

fn check_queues(queues: usize) -> Result<u8, QueueCountError> {
    match u8::try_from(queues) {
        Ok(checked) if (1..=QUEUE_PAIRS_MAX).contains(&queues) => Ok(checked),
        _ => Err(QueueCountError { queues }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hash whose indirection entry is not the queue recorded for it in the tests below.
    const HASH: u32 = 0x1234_5600;

    #[test]
    fn unrecorded_flow_uses_the_indirection_table() {
        let steering = Steering::new(4).unwrap();
        assert_eq!(
            (0..8).map(|hash| steering.queue_for(hash)).collect::<Vec<_>>(),
            [0, 1, 2, 3, 0, 1, 2, 3]
        );
    }

    #[test]
    fn recorded_flow_follows_its_transmit_queue() {
        let steering = Steering::new(4).unwrap();
        steering.record(HASH, 3, 0);
        assert_eq!(steering.queue_for(HASH), 3);
        steering.record(HASH, 1, 0);
        assert_eq!(steering.queue_for(HASH), 1);
    }

    #[test]
    fn flow_on_a_queue_taken_away_falls_back() {
        let steering = Steering::new(4).unwrap();
        steering.record(HASH, 3, 0);
        steering.set_queues(2).unwrap();
        assert_eq!(steering.queue_for(HASH), 0);
        assert!((0..10_000).all(|hash| steering.queue_for(hash) < 2));
    }

    #[test]
    fn recording_a_queue_not_in_use_changes_nothing() {
        let steering = Steering::new(2).unwrap();
        for queue in [2, 255, 256, 257, usize::MAX] {
            steering.record(HASH, queue, 0);
            assert_eq!(steering.queue_for(HASH), 0, "after recording queue {queue}");
        }
    }

    #[test]
    fn queue_count_outside_the_limit_is_refused_and_named() {
        for queues in [0, QUEUE_PAIRS_MAX + 1, 257, usize::MAX] {
            assert_eq!(Steering::new(queues).unwrap_err(), QueueCountError { queues });
        }
        let steering = Steering::new(QUEUE_PAIRS_MAX).unwrap();
        let error = steering.set_queues(0).unwrap_err();
        assert_eq!(error.to_string(), "0 queue pairs; valid: 1 to 8");
        assert_eq!(steering.queues(), QUEUE_PAIRS_MAX);
    }
}
