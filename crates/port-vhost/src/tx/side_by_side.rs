//! A transmit queue that several workers send from: see [`weir_engine::turn`].
//!
//! What cannot pass side by side is done by one worker, when nobody else has a burst under way: frames that
//! wait for a receiver, which are older than any in the ring, a frame of weir's own, and a disabled ring.

use std::sync::Arc;

use weir_engine::burst::Burst;
use weir_engine::turn::Turn;
use weir_engine::{PortCounters, Take, Taken};
use weir_guestmem::GuestMemory;

use super::{TxQueue, count, fill_new};
use crate::error::StopReason;

/// A burst that was taken.
pub(crate) struct Begun {
    /// Which one, of all that were taken side by side.
    pub(crate) number: u64,
    consumed: usize,
}

impl TxQueue {
    /// No worker has a burst of it under way, but for one that holds its lock.
    pub(crate) fn is_settled(&self) -> bool {
        self.bursts.is_settled()
    }

    /// `what` is for one worker at a time.
    pub(crate) fn is_for_one(&self, what: Take) -> bool {
        let left = self.queue.ring.as_ref().is_some_and(|ring| !ring.left_behind.is_empty());
        let waiting = !self.waiting.is_empty() || self.injected.is_some() || left;
        what != Take::New || waiting || !self.queue.enabled
    }

    /// The memory that its ring is in; `None` while nothing may be taken from it.
    pub(crate) fn memory(&self) -> Option<Arc<GuestMemory>> {
        let ring = self
            .queue
            .ring
            .as_ref()
            .filter(|ring| ring.is_served() && !self.bursts.is_closing())?;
        Some(Arc::clone(&ring.memory))
    }

    /// Takes new frames from the ring, whose memory is `memory`; `None` if there are none.
    pub(crate) fn begin<'m>(
        &mut self,
        index: usize,
        memory: &'m GuestMemory,
        burst: &mut Burst<'m>,
        now_ns: u64,
        counters: &PortCounters,
    ) -> Result<Option<Begun>, StopReason> {
        let Some(ring) = self.queue.ring.as_mut() else { return Ok(None) };
        let consumed = fill_new(ring, memory, burst, now_ns, counters)
            .map_err(|broken| broken.at(2 * index + 1, memory))?;
        if consumed == 0 {
            return Ok(None);
        }
        count(counters, index, burst, Take::New);
        Ok(Some(Begun { number: self.bursts.begin(), consumed }))
    }

    /// In its `turn`, before the queue's lock is given back: what holds for its frames.
    pub(crate) fn note_turn(&self, turn: &Turn, burst: &mut Burst<'_>) {
        turn.blocked(&mut burst.blocked);
        burst.park_room = self.waiting_max().saturating_sub(burst.blocked.len());
        burst.blocked.dedup();
    }

    /// Whether bursts that were taken before it are settled; `None` when the ring has stopped without it.
    pub(crate) fn may_settle(&self, begun: &Begun) -> Option<bool> {
        self.bursts.may_settle(begun.number)
    }

    /// Its frames are placed and copied: completes them.
    pub(crate) fn end(
        &mut self,
        index: usize,
        begun: &Begun,
        burst: &Burst<'_>,
        now_ns: u64,
        counters: &PortCounters,
    ) -> Result<Taken, StopReason> {
        let hold_until = self.settle(index, Take::New, false, burst, now_ns, counters);
        self.bursts.settle();
        self.taken(begun.consumed, false, hold_until)
    }
}
