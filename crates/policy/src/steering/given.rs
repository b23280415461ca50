//! A table that the receiver gives: a guest that has set up its own hash says by it which queue each flow
//! goes to. Flows do not follow their transmit queues then, and nothing moves by load.
//!
//! With another hash, flows change entries, which no pending change can wait for: then, and when the table
//! is taken back, all is different at once, as with another number of queues. While the hash stays, the
//! entries of a new table move as others do, when that reorders nothing, and are tried until they have.

use std::sync::atomic::Ordering;

use weir_limits::INDIRECTION_LEN;

use super::changes::{Changes, What};
use super::{Receiver, Steering};

impl Steering {
    /// Whether the table is the receiver's: then [`queue_for`](Self::queue_for) is given the receiver's hash.
    #[inline]
    pub fn is_given(&self) -> bool {
        self.given.load(Ordering::Relaxed)
    }

    /// The receiver's table from now on, at once. Queues that are not in use are the first one.
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

    /// Another table of a receiver that has [given](Self::give) one, for the same hash: its entries move as
    /// soon as that reorders nothing.
    pub fn revise(&self, table: &[u8; INDIRECTION_LEN], receiver: &dyn Receiver) {
        let mut changes = self.changes();
        if changes.wanted.is_some() {
            changes.wanted = Some(self.in_use(table));
            self.move_to_wanted(&mut changes, receiver);
        }
    }

    /// weir's own table again, spread anew at once, if the receiver has given one.
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

    /// Begins, turns or gives up moves of entries until all are on their way to where the receiver wants
    /// them, as far as there is room.
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
