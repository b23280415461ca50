//! On which queue the guest last sent each flow.

use std::iter;
use std::sync::atomic::{AtomicU64, Ordering};

use weir_limits::{STEERING_FLOW_IDLE_SECS, STEERING_FLOWS_MAX};

/// A direct-mapped table of `STEERING_FLOWS_MAX` flows, indexed by the low bits of the flow hash.
///
/// An entry holds the whole hash, so that a flow never follows another's queue. Of two flows that
/// share a slot the first keeps it until it has been silent for `STEERING_FLOW_IDLE_SECS`: were the
/// slot to pass to and fro between them, each would change queues, and be reordered, all the time.
#[derive(Debug)]
pub(super) struct FlowTable {
    slots: Box<[AtomicU64]>,
}

/// One slot: `hash:32 | seconds:24 | queue + 1:8`; zero is an empty slot.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Flow {
    hash: u32,
    /// The low 24 bits of the second of the last frame; they wrap after 194 days.
    secs: u32,
    queue: u8,
}

const SECS_MASK: u32 = (1 << 24) - 1;

impl Flow {
    fn pack(self) -> u64 {
        u64::from(self.hash) << 32 | u64::from(self.secs) << 8 | (u64::from(self.queue) + 1)
    }

    fn unpack(word: u64) -> Option<Self> {
        let [h3, h2, h1, h0, s2, s1, s0, queue] = word.to_be_bytes();
        Some(Self {
            hash: u32::from_be_bytes([h3, h2, h1, h0]),
            secs: u32::from_be_bytes([0, s2, s1, s0]),
            queue: queue.checked_sub(1)?,
        })
    }
}

impl FlowTable {
    pub(super) fn new() -> Self {
        let slots = iter::repeat_with(|| AtomicU64::new(0)).take(STEERING_FLOWS_MAX).collect();
        Self { slots }
    }

    fn slot(&self, hash: u32) -> &AtomicU64 {
        &self.slots[hash as usize % STEERING_FLOWS_MAX]
    }

    /// The guest sent a frame of this flow on `queue` (below `QUEUE_PAIRS_MAX`). Writes only when
    /// the second or the queue changed, so that a busy flow does not keep the cache line dirty.
    pub(super) fn record(&self, hash: u32, queue: u8, now_secs: u32) {
        let slot = self.slot(hash);
        let new = Flow { hash, secs: now_secs & SECS_MASK, queue };
        match Flow::unpack(slot.load(Ordering::Relaxed)) {
            Some(old) if old == new => return,
            Some(old) if old.hash != hash => {
                let idle_secs = new.secs.wrapping_sub(old.secs) & SECS_MASK;
                // Another worker's clock may be a second ahead of this one's.
                let old_is_ahead = idle_secs == SECS_MASK;
                if old_is_ahead || idle_secs < STEERING_FLOW_IDLE_SECS {
                    return;
                }
            }
            _ => {}
        }
        slot.store(new.pack(), Ordering::Relaxed);
    }

    /// The queue on which the guest last sent this flow.
    pub(super) fn queue_for(&self, hash: u32) -> Option<u8> {
        let flow = Flow::unpack(self.slot(hash).load(Ordering::Relaxed))?;
        (flow.hash == hash).then_some(flow.queue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: u32 = 7;
    /// In the same slot as `A`.
    const B: u32 = A + STEERING_FLOWS_MAX as u32;

    #[test]
    fn packed_flow_unpacks_and_zero_is_empty() {
        for flow in [
            Flow { hash: 0, secs: 0, queue: 0 },
            Flow { hash: u32::MAX, secs: SECS_MASK, queue: 254 },
            Flow { hash: 0x0102_0304, secs: 0x05_0607, queue: 7 },
        ] {
            assert!(Flow::unpack(flow.pack()) == Some(flow));
        }
        assert!(Flow::unpack(0).is_none());
    }

    #[test]
    fn flow_never_follows_another_flows_queue() {
        let table = FlowTable::new();
        table.record(A, 3, 0);
        assert_eq!(table.queue_for(B), None);
    }

    #[test]
    fn active_flow_keeps_its_slot() {
        let table = FlowTable::new();
        for now_secs in 10..20 {
            table.record(A, 1, now_secs);
            table.record(B, 2, now_secs);
            table.record(B, 2, now_secs + STEERING_FLOW_IDLE_SECS - 1);
            assert_eq!((table.queue_for(A), table.queue_for(B)), (Some(1), None));
        }
    }

    #[test]
    fn idle_flow_yields_its_slot() {
        let table = FlowTable::new();
        table.record(A, 1, 10);
        table.record(B, 2, 10 + STEERING_FLOW_IDLE_SECS);
        assert_eq!((table.queue_for(A), table.queue_for(B)), (None, Some(2)));
    }

    #[test]
    fn idle_time_survives_the_wrap_and_clocks_a_second_apart() {
        let table = FlowTable::new();
        table.record(A, 1, SECS_MASK);
        table.record(B, 2, SECS_MASK - 1);
        table.record(B, 2, SECS_MASK + 2);
        assert_eq!((table.queue_for(A), table.queue_for(B)), (Some(1), None));
        table.record(B, 2, SECS_MASK + STEERING_FLOW_IDLE_SECS);
        assert_eq!(table.queue_for(B), Some(2));
    }
}
