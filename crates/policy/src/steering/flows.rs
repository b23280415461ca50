//! The queue on which the guest last sent each flow.

use std::iter;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use weir_limits::{QUEUE_PAIRS_MAX, STEERING_FLOW_IDLE_SECS, STEERING_FLOWS_MAX};

/// A direct-mapped table of `STEERING_FLOWS_MAX` flows, indexed by the low bits of the flow hash.
///
/// An entry holds the whole hash, so that a flow never follows another's queue. Of two flows that
/// share a slot the first keeps it until it has been silent for `STEERING_FLOW_IDLE_SECS`. If the
/// slot passed to and fro, each flow would keep changing queues, and be reordered.
///
/// The slots are 8 KiB. They are made for the first flow, since most guests have one queue and no flow to follow.
#[derive(Debug, Default)]
pub(super) struct FlowTable {
    slots: OnceLock<Box<[AtomicU64]>>,
}

/// One slot: `hash:32 | seconds:24 | changing:1 | queue + 1:7`; zero is an empty slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flow {
    pub(super) hash: u32,
    /// Low 24 bits of the second of the last frame; they wrap after 194 days.
    pub(super) secs: u32,
    pub(super) queue: u8,
    /// Set while a change of the queue is pending.
    pub(super) changing: bool,
}

const SECS_MASK: u32 = (1 << 24) - 1;
const CHANGING: u8 = 1 << 7;
const _: () = assert!(QUEUE_PAIRS_MAX < CHANGING as usize);

impl Flow {
    pub(super) fn new(hash: u32, queue: u8, now_secs: u32, changing: bool) -> Self {
        Self { hash, secs: now_secs & SECS_MASK, queue, changing }
    }

    fn pack(self) -> u64 {
        let queue = (self.queue + 1) | if self.changing { CHANGING } else { 0 };
        u64::from(self.hash) << 32 | u64::from(self.secs) << 8 | u64::from(queue)
    }

    fn unpack(word: u64) -> Option<Self> {
        let [h3, h2, h1, h0, s2, s1, s0, queue] = word.to_be_bytes();
        Some(Self {
            hash: u32::from_be_bytes([h3, h2, h1, h0]),
            secs: u32::from_be_bytes([0, s2, s1, s0]),
            queue: (queue & !CHANGING).checked_sub(1)?,
            changing: queue & CHANGING != 0,
        })
    }

    /// Returns true if another flow may take the slot, since the guest has long not sent this flow.
    pub(super) fn is_idle(&self, now_secs: u32) -> bool {
        let idle_secs = now_secs.wrapping_sub(self.secs) & SECS_MASK;
        // Another worker's clock may be a second ahead of this one's.
        idle_secs != SECS_MASK && idle_secs >= STEERING_FLOW_IDLE_SECS
    }
}

impl FlowTable {
    /// Returns the slot of a hash; `None` if no flow has ever had a slot.
    fn slot(&self, hash: u32) -> Option<&AtomicU64> {
        self.slots.get()?.get(hash as usize % STEERING_FLOWS_MAX)
    }

    /// Notes that the guest sent a frame of this flow on `queue` (below `QUEUE_PAIRS_MAX`). Returns
    /// `true` if the table has this entry already, or has no room for it. Writes only when the
    /// second changed, so that a busy flow does not keep the cache line dirty.
    pub(super) fn refresh(&self, hash: u32, queue: u8, now_secs: u32) -> bool {
        let Some(slot) = self.slot(hash) else { return false };
        let word = slot.load(Ordering::Relaxed);
        let new = Flow::new(hash, queue, now_secs, false);
        match Flow::unpack(word) {
            Some(old) if old == new => true,
            Some(old) if old.hash != hash => !old.is_idle(now_secs),
            Some(old) if old.queue == queue && !old.changing => {
                // A failed exchange means that a change has become pending. The time is not worth a
                // retry.
                let (new, relaxed) = (new.pack(), Ordering::Relaxed);
                let _ = slot.compare_exchange(word, new, relaxed, relaxed);
                true
            }
            _ => false,
        }
    }

    /// Returns the content of this flow's slot.
    pub(super) fn in_slot(&self, hash: u32) -> Option<Flow> {
        Flow::unpack(self.slot(hash)?.load(Ordering::Relaxed))
    }

    /// Returns the flow, if the guest has sent it.
    pub(super) fn get(&self, hash: u32) -> Option<Flow> {
        self.in_slot(hash).filter(|flow| flow.hash == hash)
    }

    /// Puts a flow into its slot.
    pub(super) fn set(&self, flow: Flow) {
        let empty = || iter::repeat_with(|| AtomicU64::new(0)).take(STEERING_FLOWS_MAX).collect();
        let slots = self.slots.get_or_init(empty);
        slots[flow.hash as usize % STEERING_FLOWS_MAX].store(flow.pack(), Ordering::Relaxed);
    }

    /// Forgets the flow in this one's slot.
    pub(super) fn remove(&self, hash: u32) {
        if let Some(slot) = self.slot(hash) {
            slot.store(0, Ordering::Relaxed);
        }
    }

    /// Clears the mark of a pending change.
    pub(super) fn settle(&self) {
        for slot in self.slots.get().into_iter().flatten() {
            slot.fetch_and(!u64::from(CHANGING), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_flow_unpacks_and_zero_is_empty() {
        for flow in [
            Flow::new(0, 0, 0, false),
            Flow::new(u32::MAX, 126, SECS_MASK, true),
            Flow::new(0x0102_0304, 7, 0x05_0607, false),
        ] {
            assert!(Flow::unpack(flow.pack()) == Some(flow));
        }
        assert!(Flow::unpack(0).is_none());
    }

    #[test]
    fn idle_time_survives_the_wrap_and_clocks_a_second_apart() {
        let flow = Flow::new(7, 1, SECS_MASK, false);
        assert!(!flow.is_idle(SECS_MASK - 1));
        assert!(!flow.is_idle(SECS_MASK + STEERING_FLOW_IDLE_SECS - 1));
        assert!(flow.is_idle(SECS_MASK + STEERING_FLOW_IDLE_SECS));
    }

    #[test]
    fn slots_are_made_for_the_first_flow() {
        let table = FlowTable::default();
        assert!(!table.refresh(7, 1, 1));
        assert_eq!((table.get(7), table.in_slot(7)), (None, None));
        table.remove(7);
        table.settle();
        assert!(table.slots.get().is_none());
        table.set(Flow::new(7, 1, 1, false));
        assert_eq!(table.slots.get().map(|slots| slots.len()), Some(STEERING_FLOWS_MAX));
        assert!(table.refresh(7, 1, 1));
    }

    #[test]
    fn time_is_not_written_over_a_pending_change() {
        let table = FlowTable::default();
        table.set(Flow::new(7, 1, 0, true));
        assert!(!table.refresh(7, 1, 1));
        assert!(table.get(7).unwrap().changing);
        table.settle();
        assert!(table.refresh(7, 1, 1));
        assert_eq!(table.get(7), Some(Flow::new(7, 1, 1, false)));
    }
}
