//! A table of the receiver's own: a guest with its own hash names the queue of each flow. Flows
//! then do not follow their transmit queues, and no entry moves by load.
//!
//! Under another hash flows change entries, and no pending change can wait for that. So a new hash,
//! and the end of the given table, take effect at once, like another number of queues. While the
//! hash stays, the entries of a new table move as others do, when the move reorders nothing, and
//! are tried until they have moved.

use std::sync::atomic::Ordering;

use weir_limits::INDIRECTION_LEN;

use super::changes::{Changes, What};
use super::{Receiver, Steering};

impl Steering {
    /// Returns whether the table is the receiver's. Then [`queue_for`](Self::queue_for) takes the
    /// receiver's hash.
    #[inline]
    pub fn is_given(&self) -> bool {
        self.given.load(Ordering::Relaxed)
    }

    /// Installs the receiver's table at once. A queue that is not in use is replaced by the first
    /// one.
    pub fn give(&self, table: &[u8; INDIRECTION_LEN]) {
        let mut changes = self.changes();
        changes.clear();
        let table = self.in_use(table);
        for (entry, queue) in table.iter().enumerate() {
            self.indirection.set(entry, *queue, false);
        }
        changes.wanted = Some(table);
        self.flows.settle();
        self.given.store(true, Ordering::Relaxed);
    }

    /// Replaces a receiver's table that was [given](Self::give) for the same hash. Entries move as
    /// soon as that reorders nothing.
    pub fn revise(&self, table: &[u8; INDIRECTION_LEN], receiver: &dyn Receiver) {
        let mut changes = self.changes();
        if changes.wanted.is_some() {
            changes.wanted = Some(self.in_use(table));
            self.move_to_wanted(&mut changes, receiver);
        }
    }

    /// Replaces a given table by weir's own, which is spread again at once.
    pub fn take_back(&self) {
        let mut changes = self.changes();
        if changes.wanted.is_some() {
            self.spread_anew(&mut changes, self.queues.load(Ordering::Relaxed));
        }
    }

    fn in_use(&self, table: &[u8; INDIRECTION_LEN]) -> [u8; INDIRECTION_LEN] {
        let queues = self.queues.load(Ordering::Relaxed);
        table.map(|queue| if queue < queues { queue } else { 0 })
    }

    /// Begins, redirects or gives up moves of entries until all are on their way to the receiver's
    /// table, as far as there is room.
    pub(super) fn move_to_wanted(&self, changes: &mut Changes, receiver: &dyn Receiver) {
        let Some(wanted) = changes.wanted else { return };
        for (entry, to) in wanted.into_iter().enumerate() {
            let what = What::Entry(entry);
            let (from, changing) = self.indirection.get(entry);
            if from == to && !changing {
                continue;
            }
            match changes.find(what) {
                Some(slot) if from == to => {
                    changes.end(slot);
                    self.indirection.set(entry, from, false);
                }
                Some(slot) => {
                    if let Some(change) = changes.get_mut(slot) {
                        change.to = to;
                    }
                }
                None if self.begin(changes, what, (from, to), receiver) => {}
                None => return,
            }
        }
    }
}
