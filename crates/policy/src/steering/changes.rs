//! Pending changes of queue. Each waits until none of its frames can be in the old queue.

use weir_limits::{INDIRECTION_LEN, STEERING_CHANGES_MAX};

use super::visits::Visits;
use super::{Mark, Receiver};

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
