//! The tables that choose a receive queue: the queue on which the guest last sent each flow, and the receive
//! indirection table, from hash to queue, evenly at first.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::{array, iter};

use weir_limits::{INDIRECTION_LEN, QUEUE_PAIRS_MAX, STEERING_FLOW_IDLE_SECS, STEERING_FLOWS_MAX};

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

/// `INDIRECTION_LEN` queue numbers, indexed by the low bits of the flow hash, with the number of
/// frames that each entry has steered.
#[derive(Debug)]
pub(super) struct IndirectionTable {
    entries: [AtomicU8; INDIRECTION_LEN],
    frames: [AtomicU64; INDIRECTION_LEN],
}

/// Returns the entry of a flow hash.
pub(super) fn entry_of(hash: u32) -> usize {
    hash as usize % INDIRECTION_LEN
}

impl IndirectionTable {
    /// Returns a table as [`spread`](Self::spread) leaves it.
    pub(super) fn new(queues: u8) -> Self {
        let table = Self {
            entries: array::from_fn(|_| AtomicU8::new(0)),
            frames: array::from_fn(|_| AtomicU64::new(0)),
        };
        table.spread(queues);
        table
    }

    /// Sets entry `i` to queue `i % queues`, as `ethtool -X <dev> equal <queues>` sets it: the
    /// queues' numbers of entries differ by at most one. `queues` is at least 1. No change is
    /// pending.
    pub(super) fn spread(&self, queues: u8) {
        for (entry, queue) in self.entries.iter().zip((0..queues).cycle()) {
            entry.store(queue, Ordering::Relaxed);
        }
    }

    /// Returns the queue of an entry, and whether a change is pending. Any `entry` is valid: it
    /// wraps.
    pub(super) fn get(&self, entry: usize) -> (u8, bool) {
        let word = self.entries[entry % INDIRECTION_LEN].load(Ordering::Relaxed);
        (word & !CHANGING, word & CHANGING != 0)
    }

    /// Sets an entry; see [`get`](Self::get).
    pub(super) fn set(&self, entry: usize, queue: u8, changing: bool) {
        let word = queue | if changing { CHANGING } else { 0 };
        self.entries[entry % INDIRECTION_LEN].store(word, Ordering::Relaxed);
    }

    /// Counts `frames` more for an entry.
    pub(super) fn count(&self, entry: usize, frames: u64) {
        self.frames[entry % INDIRECTION_LEN].fetch_add(frames, Ordering::Relaxed);
    }

    /// Returns the frames that an entry has steered.
    pub(super) fn frames(&self, entry: usize) -> u64 {
        self.frames[entry % INDIRECTION_LEN].load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use weir_limits::QUEUE_PAIRS_MAX;

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

    #[test]
    fn entries_per_queue_differ_by_at_most_one() {
        for queues in 1..=QUEUE_PAIRS_MAX as u8 {
            let table = IndirectionTable::new(queues);
            let mut entries_per_queue = vec![0; queues.into()];
            for entry in 0..INDIRECTION_LEN {
                entries_per_queue[usize::from(table.get(entry).0)] += 1;
            }
            let most = entries_per_queue.iter().max().unwrap();
            let least = entries_per_queue.iter().min().unwrap();
            assert!(most - least <= 1, "{queues} queues: {entries_per_queue:?}");
        }
    }
}
