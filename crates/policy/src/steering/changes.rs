//! Pending changes of queue. Each waits until none of its frames can be in the old queue.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use weir_limits::{INDIRECTION_LEN, STEERING_CHANGES_MAX};

use super::{Mark, Receiver, Steering};

/// The object of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// An entry of the indirection table.
    Entry(usize),
    /// A followed flow, by its hash.
    Flow(u32),
}

/// A pending change.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    pub(super) what: What,
    pub(super) from: u8,
    pub(super) to: u8,
    /// The flow follows the indirection table from then on.
    pub(super) leaves: bool,
    /// Generation of the visits that may have looked `what` up before every worker saw the change.
    begun: u64,
    /// Set when the visits before the change have ended.
    ended: bool,
    /// Visits that have looked it up since and have not ended.
    inside: u32,
    /// The old queue's position before the last of these visits placed a frame.
    before: Mark,
    /// Total placed in the old queue when the last of them ended.
    placed: u64,
    /// Number of [agings](Changes::age).
    age: u32,
    /// Set when the change was dropped; its slot stays for the visits inside.
    dead: bool,
}

impl Change {
    /// Returns whether all frames that went to the old queue have been taken from it.
    fn is_safe(&mut self, visits: &Visits, receiver: &dyn Receiver) -> bool {
        if self.inside > 0 || self.dead {
            return false;
        }
        let from = usize::from(self.from);
        if !self.ended {
            if !visits.have_ended(self.begun) {
                return false;
            }
            self.ended = true;
            self.placed = self.placed.max(receiver.mark(from).placed);
        }
        receiver.has_taken(from, self.placed, self.before)
    }
}

/// All pending changes of one interface.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// `STEERING_CHANGES_MAX` at most. Most interfaces have one queue and never a change.
    slots: Vec<Option<Change>>,
    /// Number of times that all changes were dropped. Slots of a visit from an earlier era are invalid.
    era: u32,
    /// The receiver's own table, if it gave one: the targets of entries.
    pub(super) wanted: Option<[u8; INDIRECTION_LEN]>,
}

/// Pending changes that a visit has looked up: a bit for each slot.
#[derive(Debug, Default)]
pub(super) struct Touched {
    era: u32,
    slots: u64,
}

const _: () = assert!(STEERING_CHANGES_MAX <= u64::BITS as usize);

impl Touched {
    pub(super) fn any(&self) -> bool {
        self.slots != 0
    }
}

impl Changes {
    /// Returns the slot of a change.
    pub(super) fn find(&self, what: What) -> Option<usize> {
        let is_it =
            |slot: &Option<Change>| slot.is_some_and(|change| change.what == what && !change.dead);
        self.slots.iter().position(is_it)
    }

    pub(super) fn get_mut(&mut self, slot: usize) -> Option<&mut Change> {
        self.slots.get_mut(slot)?.as_mut()
    }

    /// Iterates over all changes that may still happen.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Change> {
        self.slots.iter().flatten().filter(|change| !change.dead)
    }

    pub(super) fn is_full(&self) -> bool {
        self.slots.len() == STEERING_CHANGES_MAX && self.slots.iter().all(Option::is_some)
    }

    /// Makes a change pending, if there is room. The caller has marked `what` before.
    pub(super) fn begin(
        &mut self,
        what: What,
        (from, to): (u8, u8),
        visits: &Visits,
        receiver: &dyn Receiver,
    ) {
        let before = receiver.mark(from.into());
        let change = Change {
            what,
            from,
            to,
            leaves: false,
            begun: visits.begun(),
            ended: false,
            inside: 0,
            before,
            placed: before.placed,
            age: 0,
            dead: false,
        };
        match self.slots.iter().position(Option::is_none) {
            Some(free) => self.slots[free] = Some(change),
            None if self.slots.len() < STEERING_CHANGES_MAX => self.slots.push(Some(change)),
            None => {}
        }
    }

    /// Returns whether the change in `slot` may be made now.
    pub(super) fn is_safe(
        &mut self,
        slot: usize,
        visits: &Visits,
        receiver: &dyn Receiver,
    ) -> bool {
        self.get_mut(slot).is_some_and(|change| change.is_safe(visits, receiver))
    }

    /// Notes that a visit has looked up the object of `slot`, and goes to the old queue.
    pub(super) fn touch(&mut self, slot: usize, touched: &mut Touched, receiver: &dyn Receiver) {
        if touched.era != self.era {
            *touched = Touched { era: self.era, slots: 0 };
        }
        let Some(change) = self.get_mut(slot) else { return };
        change.before = receiver.mark(change.from.into());
        if touched.slots & 1 << slot == 0 {
            touched.slots |= 1 << slot;
            change.inside += 1;
        }
    }

    /// Notes that a visit has placed all its frames.
    pub(super) fn leave(&mut self, touched: &Touched, receiver: &dyn Receiver) {
        if touched.era != self.era {
            return;
        }
        for (slot, place) in self.slots.iter_mut().enumerate() {
            if touched.slots & 1 << slot == 0 {
                continue;
            }
            if let Some(change) = place {
                change.inside = change.inside.saturating_sub(1);
                change.placed = change.placed.max(receiver.mark(change.from.into()).placed);
                if change.dead && change.inside == 0 {
                    *place = None;
                }
            }
        }
    }

    /// Takes a change out, made or dropped.
    pub(super) fn end(&mut self, slot: usize) -> Option<Change> {
        let place = self.slots.get_mut(slot)?;
        let change = (*place)?;
        match place {
            Some(change) if change.inside > 0 => change.dead = true,
            _ => *place = None,
        }
        Some(change)
    }

    /// Ages every change by one look.
    pub(super) fn age(&mut self) {
        for change in self.slots.iter_mut().flatten() {
            change.age = change.age.saturating_add(1);
        }
    }

    /// Returns a change that has aged more than `age_max` times.
    pub(super) fn older_than(&self, age_max: u32) -> Option<usize> {
        let old = |change: &Change| !change.dead && change.age > age_max;
        self.slots.iter().position(|slot| slot.as_ref().is_some_and(old))
    }

    /// Drops all changes.
    pub(super) fn clear(&mut self) {
        self.slots.clear();
        self.era = self.era.wrapping_add(1);
    }
}

/// A table of the receiver's own: a guest with its own hash names the queue of each flow. Flows then do not follow
/// their transmit queues, and no entry moves by load.
///
/// Under another hash flows change entries, and no pending change can wait for that. So a new hash, and the end of the
/// given table, take effect at once, like another number of queues. While the hash stays, the entries of a new table
/// move as others do, when the move reorders nothing, and are tried until they have moved.
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

/// Counts visits by generation. So it can tell when all visits that began before a moment have
/// ended, though others have begun (as in Linux' SRCU). Only a generation's parity is counted: a
/// generation begins when no visit is left of the one before the present.
#[derive(Debug, Default)]
pub(super) struct Visits {
    generation: AtomicU64,
    inside: [AtomicU32; 2],
}

impl Visits {
    /// Begins a visit, and returns its generation. Stores before a [`begun`](Self::begun) are
    /// visible to visits of later generations.
    pub(super) fn enter(&self) -> u64 {
        loop {
            let generation = self.generation.load(Ordering::SeqCst);
            let inside = &self.inside[(generation & 1) as usize];
            inside.fetch_add(1, Ordering::SeqCst);
            // Sequentially consistent: either this visit sees a generation that has begun
            // meanwhile, or the thread that wants to begin the generation after that sees this
            // visit.
            if self.generation.load(Ordering::SeqCst) == generation {
                return generation;
            }
            inside.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Ends a visit. A thread that sees the end sees the placed frames too.
    pub(super) fn leave(&self, generation: u64) {
        self.inside[(generation & 1) as usize].fetch_sub(1, Ordering::Release);
    }

    /// Returns the generation of the visits that may be inside now, for
    /// [`have_ended`](Self::have_ended). Later visits belong to the next generation, if it can
    /// begin. The caller must exclude concurrent calls of both methods.
    pub(super) fn begun(&self) -> u64 {
        let generation = self.generation.load(Ordering::SeqCst);
        self.advance();
        generation
    }

    /// Returns whether all visits have ended that began before [`begun`](Self::begun) returned
    /// `generation`.
    pub(super) fn have_ended(&self, generation: u64) -> bool {
        // The first step leaves `generation` behind. The second step is possible when no visit of
        // it is left.
        while self.generation.load(Ordering::SeqCst) < generation + 2 {
            if !self.advance() {
                return false;
            }
        }
        true
    }

    /// Begins the next generation, if no visit is left of the one before the present.
    fn advance(&self) -> bool {
        let generation = self.generation.load(Ordering::SeqCst);
        let free = self.inside[((generation + 1) & 1) as usize].load(Ordering::SeqCst) == 0;
        if free {
            self.generation.store(generation + 1, Ordering::SeqCst);
        }
        free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visits_end_by_generation_though_others_have_begun() {
        let visits = Visits::default();
        let old = visits.enter();
        let begun = visits.begun();
        let young = visits.enter();
        assert_ne!(old, young);
        assert!(!visits.have_ended(begun));
        visits.leave(old);
        assert!(visits.have_ended(begun));
        let later = visits.begun();
        assert!(!visits.have_ended(later));
        visits.leave(young);
        assert!(visits.have_ended(later));
    }

    #[test]
    fn nobody_inside_is_nobody_to_wait_for() {
        let visits = Visits::default();
        for _ in 0..5 {
            assert!(visits.have_ended(visits.begun()));
            visits.leave(visits.enter());
        }
    }
}
