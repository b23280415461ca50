//! The receive indirection table: hash to queue, evenly.

use std::array;
use std::sync::atomic::{AtomicU8, Ordering};

use weir_limits::INDIRECTION_LEN;

/// `INDIRECTION_LEN` entries, indexed by the low bits of the flow hash, each a queue number.
#[derive(Debug)]
pub(super) struct IndirectionTable {
    entries: [AtomicU8; INDIRECTION_LEN],
}

impl IndirectionTable {
    /// Entry `i` is queue `i % queues`, as `ethtool -X <dev> equal <queues>` sets it: no queue has
    /// more than one entry above another. `queues` is at least 1.
    pub(super) fn new(queues: u8) -> Self {
        let table = Self { entries: array::from_fn(|_| AtomicU8::new(0)) };
        table.spread(queues);
        table
    }

    /// Spreads anew over `queues` (at least 1).
    pub(super) fn spread(&self, queues: u8) {
        for (entry, queue) in self.entries.iter().zip((0..queues).cycle()) {
            entry.store(queue, Ordering::Relaxed);
        }
    }

    pub(super) fn queue_for(&self, hash: u32) -> u8 {
        let index = hash as usize % INDIRECTION_LEN;
        self.entries[index].load(Ordering::Relaxed)
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
            for hash in 0..INDIRECTION_LEN as u32 {
                entries_per_queue[usize::from(table.queue_for(hash))] += 1;
            }
            let most = entries_per_queue.iter().max().unwrap();
            let least = entries_per_queue.iter().min().unwrap();
            assert!(most - least <= 1, "{queues} queues: {entries_per_queue:?}");
        }
    }
}
