//! The receive indirection table: hash to queue, evenly at first.

use std::array;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use weir_limits::INDIRECTION_LEN;

/// Bit of an entry with a pending change.
const CHANGING: u8 = 1 << 7;

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
    use super::*;
    use weir_limits::QUEUE_PAIRS_MAX;

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
