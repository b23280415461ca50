//! Chooses the receive queue of a flow on a multi-queue interface.
//!
//! There are two rules; the first that applies wins:
//! 1. **The flow follows its transmit queue**, as in Linux `tun`: frames of a flow to a guest
//!    go to the queue on which the guest last sent that flow, so that one vCPU does both
//!    (`flows`).
//! 2. **Receive-side scaling**: a 128-entry indirection table over the flow hash spreads the rest
//!    evenly (Dong 2011, vRSS; `indirection`).
//!
//! A guest may give its own table, for its own hash: then only that table applies (`changes`).
//!
//! Every `hash` is the 32-bit **symmetric** flow hash: swapping source and destination (address and port) must not
//! change it, or else rule 1 would look a reply up under a hash that was never recorded, and never apply.
//!
//! **A flow is never reordered**: a flow or an entry changes queues only when all its frames have
//! been taken from the old one. Until then the change is pending (`changes`), and its flow or entry
//! takes a slower look-up. To this end each burst tells when it begins to look queues up and when
//! its frames are placed: a [`Visit`].
//!
//! All methods take `&self`, and only pending changes are behind a lock: one worker records while
//! others look up. Each table entry is one atomic word, so a reader sees an old entry or a new one,
//! never half of each. Relaxed ordering is enough for them: `changes` tells when all workers have
//! seen a pending change.

mod changes;
mod flows;
pub mod rebalance;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use weir_limits::{INDIRECTION_LEN, QUEUE_PAIRS_MAX};

use changes::{Changes, Touched, Visits, What};
use flows::{Flow, FlowTable};
use flows::{IndirectionTable, entry_of};
use rebalance::EntryLoad;

/// The state of receive queues that decides when a flow may change them. The default methods
/// describe a receiver that takes a frame as soon as it is placed.
pub trait Receiver {
    /// Returns the position of receive queue `queue`.
    fn mark(&self, _queue: usize) -> Mark {
        Mark::default()
    }

    /// Returns whether the first `placed` of all frames ever placed in `queue` have surely been
    /// taken out. `before` dates from before the last of them was placed.
    fn has_taken(&self, _queue: usize, _placed: u64, _before: Mark) -> bool {
        true
    }
}

/// The position of a receive queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// Total of frames ever placed in it.
    pub placed: u64,
    /// The driver's value when it last asked for a call. Only a change of the value matters.
    pub event: Option<u16>,
}

/// The time of one burst between looking up its first frame's queue and having placed its last
/// frame. The caller passes it to [`Steering::leave`].
#[derive(Debug, Default)]
pub struct Visit {
    /// The visit's generation, once it has looked something up.
    generation: Option<u64>,
    touched: Touched,
    run: Option<Run>,
}

/// Consecutive frames of one flow.
#[derive(Debug)]
struct Run {
    hash: u32,
    queue: u8,
    /// The entry that steers them.
    entry: Option<usize>,
    frames: u64,
}

/// The receive queue selection of one interface.
#[derive(Debug)]
pub struct Steering {
    queues: AtomicU8,
    indirection: IndirectionTable,
    flows: FlowTable,
    visits: Visits,
    changes: Mutex<Changes>,
    moved_entries: AtomicU64,
    /// Set while the table is the receiver's.
    given: AtomicBool,
}

/// Error: the entry or flow has a pending change.
struct Changing;

impl Steering {
    /// Spreads flows over `queues` receive queues.
    ///
    /// # Errors
    /// If `queues` is zero or more than `weir_limits::QUEUE_PAIRS_MAX`.
    pub fn new(queues: usize) -> Result<Self, QueueCountError> {
        let checked = check_queues(queues)?;
        Ok(Self {
            queues: AtomicU8::new(checked),
            indirection: IndirectionTable::new(checked),
            flows: FlowTable::default(),
            visits: Visits::default(),
            changes: Mutex::default(),
            moved_entries: AtomicU64::new(0),
            given: AtomicBool::new(false),
        })
    }

    /// Sets the number of queue pairs in use, after the guest changed it (virtio 1.2 §5.1.6.5.6,
    /// `VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET`). The same number changes nothing. Otherwise the
    /// indirection table is spread again at once, pending changes and a given table are dropped, and
    /// flows recorded on a removed queue fall back to the table. The guest has to sort out the
    /// frames in the rings.
    ///
    /// A concurrent look-up may still return a queue of the old number; delivery checks that the
    /// queue is enabled in any case.
    ///
    /// # Errors
    /// As [`Self::new`]; an error leaves everything unchanged.
    pub fn set_queues(&self, queues: usize) -> Result<(), QueueCountError> {
        let checked = check_queues(queues)?;
        if self.queues.load(Ordering::Relaxed) == checked {
            return Ok(());
        }
        let mut changes = self.changes();
        self.queues.store(checked, Ordering::Relaxed);
        self.spread_anew(&mut changes, checked);
        Ok(())
    }

    /// Restores weir's own table, with nothing pending.
    fn spread_anew(&self, changes: &mut Changes, queues: u8) {
        changes.clear();
        changes.wanted = None;
        self.indirection.spread(queues);
        self.flows.settle();
        self.given.store(false, Ordering::Relaxed);
    }

    /// Returns the number of receive queues in use, 1 to `weir_limits::QUEUE_PAIRS_MAX`.
    pub fn queues(&self) -> usize {
        usize::from(self.queues.load(Ordering::Relaxed))
    }

    /// Notes that the guest sent a frame with this symmetric flow hash on transmit queue `queue`.
    /// `now_secs` is from any monotonic clock of whole seconds. A `queue` not in use is ignored,
    /// and so is every queue while the table [is given](Self::is_given).
    pub fn record(&self, hash: u32, queue: usize, now_secs: u32, receiver: &dyn Receiver) {
        if self.is_given() {
            return;
        }
        let queues = self.queues.load(Ordering::Relaxed);
        match u8::try_from(queue) {
            Ok(queue) if queue < queues && !self.flows.refresh(hash, queue, now_secs) => {
                self.record_other(hash, queue, now_secs, receiver);
            }
            _ => {}
        }
    }

    /// Returns the receive queue for a frame with this symmetric flow hash, below [`Self::queues`].
    /// The frame must be placed there before the visit ends.
    #[inline]
    pub fn queue_for(&self, hash: u32, visit: &mut Visit, receiver: &dyn Receiver) -> usize {
        if let Some(run) = visit.run.as_mut().filter(|run| run.hash == hash) {
            run.frames += 1;
            return run.queue.into();
        }
        self.begin_run(hash, visit, receiver)
    }

    /// Returns the queue that a frame with this hash would go to now, and whether its flow follows
    /// its transmit queue. For observers only. A pending change counts as not made.
    pub fn would_be_queue_for(&self, hash: u32) -> (usize, bool) {
        match self.followed(hash) {
            Some(flow) => (flow.queue.into(), true),
            None => (self.indirection.get(entry_of(hash)).0.into(), false),
        }
    }

    fn begin_run(&self, hash: u32, visit: &mut Visit, receiver: &dyn Receiver) -> usize {
        self.end_run(visit);
        if visit.generation.is_none() {
            visit.generation = Some(self.visits.enter());
        }
        let (queue, entry) = match self.look_up(hash) {
            Ok(found) => found,
            Err(Changing) => self.look_up_changing(hash, visit, receiver),
        };
        visit.run = Some(Run { hash, queue, entry, frames: 1 });
        queue.into()
    }

    /// Ends a visit whose frames are all placed, or waiting elsewhere to be looked up again.
    pub fn leave(&self, mut visit: Visit, receiver: &dyn Receiver) {
        self.end_run(&mut visit);
        if visit.touched.any() {
            self.changes().leave(&visit.touched, receiver);
        }
        if let Some(generation) = visit.generation {
            self.visits.leave(generation);
        }
    }

    fn end_run(&self, visit: &mut Visit) {
        if let Some(Run { entry: Some(entry), frames, .. }) = visit.run.take() {
            self.indirection.count(entry, frames);
        }
    }

    /// Returns the queue, and the entry of the indirection table if the table decided.
    fn look_up(&self, hash: u32) -> Result<(u8, Option<usize>), Changing> {
        let (queue, entry, changing) = match self.followed(hash) {
            Some(flow) => (flow.queue, None, flow.changing),
            None => {
                let entry = entry_of(hash);
                let (queue, changing) = self.indirection.get(entry);
                (queue, Some(entry), changing)
            }
        };
        if changing { Err(Changing) } else { Ok((queue, entry)) }
    }

    /// Returns the flow, if it follows its transmit queue.
    #[inline]
    fn followed(&self, hash: u32) -> Option<Flow> {
        let queues = self.queues.load(Ordering::Relaxed);
        self.flows.get(hash).filter(|flow| flow.queue < queues && !self.is_given())
    }

    #[cold]
    fn look_up_changing(
        &self,
        hash: u32,
        visit: &mut Visit,
        receiver: &dyn Receiver,
    ) -> (u8, Option<usize>) {
        let mut changes = self.changes();
        // At most two rounds: a flow that goes back to the indirection table may find its entry
        // changing.
        loop {
            // Another worker may have made the change meanwhile.
            if let Ok(found) = self.look_up(hash) {
                return found;
            }
            let flow = self.followed(hash);
            let (what, entry) = match flow {
                Some(_) => (What::Flow(hash), None),
                None => (What::Entry(entry_of(hash)), Some(entry_of(hash))),
            };
            if let Some(slot) = changes.find(what) {
                if self.make_if_safe(&mut changes, slot, receiver) {
                    continue;
                }
                changes.touch(slot, &mut visit.touched, receiver);
            }
            let queue = flow.map_or(self.indirection.get(entry_of(hash)).0, |flow| flow.queue);
            return (queue, entry);
        }
    }

    /// Handles a flow that the guest now sends on a different queue, or a flow without a slot.
    #[cold]
    fn record_other(&self, hash: u32, queue: u8, now_secs: u32, receiver: &dyn Receiver) {
        let mut changes = self.changes();
        match self.flows.in_slot(hash) {
            Some(flow) if flow.hash == hash => {
                self.flows.set(Flow::new(hash, flow.queue, now_secs, flow.changing));
                if let Some(slot) = changes.find(What::Flow(hash)) {
                    if let Some(change) = changes.get_mut(slot) {
                        (change.to, change.leaves) = (queue, false);
                    }
                } else if flow.queue != queue {
                    self.begin(&mut changes, What::Flow(hash), (flow.queue, queue), receiver);
                }
            }
            Some(idle) if idle.is_idle(now_secs) => {
                self.send_home(&mut changes, idle, receiver);
                if self.flows.in_slot(hash).is_none() {
                    self.insert(&mut changes, hash, queue, now_secs, receiver);
                }
            }
            Some(_) => {}
            None => self.insert(&mut changes, hash, queue, now_secs, receiver),
        }
    }

    /// Gives a flow a slot, and changes its queue from the one that the indirection table gave.
    fn insert(
        &self,
        changes: &mut Changes,
        hash: u32,
        queue: u8,
        now_secs: u32,
        receiver: &dyn Receiver,
    ) {
        let (from, _) = self.indirection.get(entry_of(hash));
        if from == queue || self.make_room(changes, receiver) {
            self.flows.set(Flow::new(hash, from, now_secs, false));
            if from != queue {
                self.begin(changes, What::Flow(hash), (from, queue), receiver);
            }
        }
    }

    /// Sends an idle flow back to the indirection table, which frees its slot.
    fn send_home(&self, changes: &mut Changes, flow: Flow, receiver: &dyn Receiver) {
        let what = What::Flow(flow.hash);
        let (home, home_changes) = self.indirection.get(entry_of(flow.hash));
        if flow.queue == home && !flow.changing && !home_changes {
            self.flows.remove(flow.hash);
            return;
        }
        if changes.find(what).is_none() {
            self.begin(changes, what, (flow.queue, home), receiver);
        }
        if let Some(slot) = changes.find(what) {
            if let Some(change) = changes.get_mut(slot) {
                (change.to, change.leaves) = (home, true);
            }
            self.make_if_safe(changes, slot, receiver);
        }
    }

    /// Makes a change pending, if there is room. Returns whether there was.
    fn begin(
        &self,
        changes: &mut Changes,
        what: What,
        (from, to): (u8, u8),
        receiver: &dyn Receiver,
    ) -> bool {
        let room = self.make_room(changes, receiver);
        if room {
            self.set(what, from, true);
            changes.begin(what, (from, to), &self.visits, receiver);
        }
        room
    }

    /// Returns whether another change can be pending. If need be, makes a pending change that is
    /// safe now.
    fn make_room(&self, changes: &mut Changes, receiver: &dyn Receiver) -> bool {
        if changes.is_full() {
            self.make_all_safe(changes, receiver);
        }
        !changes.is_full()
    }

    fn make_all_safe(&self, changes: &mut Changes, receiver: &dyn Receiver) {
        for slot in 0..weir_limits::STEERING_CHANGES_MAX {
            self.make_if_safe(changes, slot, receiver);
        }
    }

    /// Makes a pending change if none of its frames can be in the old queue.
    fn make_if_safe(&self, changes: &mut Changes, slot: usize, receiver: &dyn Receiver) -> bool {
        if !changes.is_safe(slot, &self.visits, receiver) {
            return false;
        }
        let Some(&mut change) = changes.get_mut(slot) else { return false };
        if let (What::Flow(hash), true) = (change.what, change.leaves) {
            // Frames that went by this flow's change do not count in a change of its entry, and the
            // entry may have changed since.
            if self.indirection.get(entry_of(hash)) != (change.to, false) {
                return false;
            }
            self.flows.remove(hash);
        } else {
            self.set(change.what, change.to, false);
        }
        if let What::Entry(_) = change.what {
            self.moved_entries.fetch_add(1, Ordering::Relaxed);
        }
        changes.end(slot);
        true
    }

    fn set(&self, what: What, queue: u8, changing: bool) {
        match what {
            What::Entry(entry) => self.indirection.set(entry, queue, changing),
            What::Flow(hash) => {
                if let Some(flow) = self.flows.get(hash) {
                    self.flows.set(Flow { queue, changing, ..flow });
                }
            }
        }
    }

    /// Moves an entry of the indirection table to another queue as soon as that reorders nothing.
    /// Returns whether the move is under way. It is not if the queue is the same or not in use, the
    /// entry is moving already, too many changes are pending, or the table [is
    /// given](Self::is_given).
    pub fn begin_move(&self, entry: usize, to: usize, receiver: &dyn Receiver) -> bool {
        let Ok(to) = u8::try_from(to) else { return false };
        let mut changes = self.changes();
        let (from, changing) = self.indirection.get(entry);
        let wanted =
            entry < INDIRECTION_LEN && from != to && to < self.queues.load(Ordering::Relaxed);
        let free = !changing && changes.wanted.is_none();
        wanted && free && self.begin(&mut changes, What::Entry(entry), (from, to), receiver)
    }

    /// Makes pending changes that are safe, and gives up those that were not for more than
    /// `looks_max` calls. Call it at regular times.
    pub fn look_after(&self, looks_max: u32, receiver: &dyn Receiver) {
        let mut changes = self.changes();
        self.make_all_safe(&mut changes, receiver);
        changes.age();
        while let Some(slot) = changes.older_than(looks_max) {
            if let Some(change) = changes.end(slot) {
                self.set(change.what, change.from, false);
            }
        }
        self.move_to_wanted(&mut changes, receiver);
    }

    /// Returns the indirection table: each entry's queue, its pending target, and the number of
    /// frames it has steered.
    pub fn entries(&self) -> [EntryLoad; INDIRECTION_LEN] {
        let mut entries = std::array::from_fn(|entry| EntryLoad {
            queue: self.indirection.get(entry).0,
            moving_to: None,
            frames: self.indirection.frames(entry),
        });
        for change in self.changes().iter() {
            if let What::Entry(entry) = change.what
                && let Some(load) = entries.get_mut(entry)
            {
                load.moving_to = Some(change.to);
            }
        }
        entries
    }

    /// Returns how many times an entry has moved.
    pub fn moved_entries(&self) -> u64 {
        self.moved_entries.load(Ordering::Relaxed)
    }

    /// A panic can leave only the order of frames wrong, so a poisoned lock is still used.
    fn changes(&self) -> MutexGuard<'_, Changes> {
        self.changes.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Error: weir does not serve this number of queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{queues} queue pairs; valid: 1 to {QUEUE_PAIRS_MAX}")]
pub struct QueueCountError {
    /// The requested number of queues.
    pub queues: usize,
}

fn check_queues(queues: usize) -> Result<u8, QueueCountError> {
    match u8::try_from(queues) {
        Ok(checked) if (1..=QUEUE_PAIRS_MAX).contains(&queues) => Ok(checked),
        _ => Err(QueueCountError { queues }),
    }
}
