//! Which receive queue of a multi-queue interface a flow uses.
//!
//! Two rules, the first that applies wins:
//! 1. **The flow follows its transmit queue**, as in Linux `tun`: what a guest receives of a flow
//!    goes to the queue on which the guest last sent that flow, so that one vCPU does both
//!    (`flows`).
//! 2. **Receive-side scaling**: a 128-entry indirection table over the flow hash spreads the rest
//!    evenly (Dong 2011, vRSS; `indirection`).
//!
//! A guest may give a table of its own, for a hash of its own: then that alone holds (`given`).
//!
//! Every `hash` is the 32-bit **symmetric** flow hash: swapping source and destination (address and
//! port) must not change it, or else rule 1 would look up a reply under another hash than the one
//! it was recorded with and never apply.
//!
//! **A flow is never reordered**: a flow or an entry changes queues only when all its frames have been taken
//! from the old one. Until then the change is pending (`changes`), and what changes is looked up the slow
//! way. For that each burst says when it begins to look queues up and when its frames are placed: a
//! [`Visit`].
//!
//! All methods take `&self`, and only what changes is behind a lock: one worker records while others
//! look up. Each table entry is one atomic word, so a reader sees an old entry or a new one, never
//! half of each. Relaxed ordering is enough for them: that all have seen a pending change is for
//! `visits` to say.

mod changes;
mod flows;
mod given;
mod indirection;
pub mod rebalance;
#[cfg(test)]
mod tests;
mod visits;

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use weir_limits::{INDIRECTION_LEN, QUEUE_PAIRS_MAX};

use changes::{Changes, Touched, What};
use flows::{Flow, FlowTable};
use indirection::{IndirectionTable, entry_of};
use rebalance::EntryLoad;
use visits::Visits;

/// What must be known of receive queues to tell when a flow may change them. The methods given are those of a
/// receiver that has taken a frame as soon as it is placed.
pub trait Receiver {
    /// Where receive queue `queue` stands.
    fn mark(&self, _queue: usize) -> Mark {
        Mark::default()
    }

    /// Whether the first `placed` of all that was ever placed in `queue` have surely been taken out.
    /// `before` is from before the last of them was placed.
    fn has_taken(&self, _queue: usize, _placed: u64, _before: Mark) -> bool {
        true
    }
}

/// Where a receive queue stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// All that was ever placed in it.
    pub placed: u64,
    /// What the driver wrote when it last asked for a call: only whether it changes counts.
    pub event: Option<u16>,
}

/// One burst's time between looking up its first frame's queue and having placed its last frame. To be
/// given to [`Steering::leave`].
#[derive(Debug, Default)]
pub struct Visit {
    /// Its generation, once it has looked something up.
    generation: Option<u64>,
    touched: Touched,
    run: Option<Run>,
}

/// Frames of one flow in a row.
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
    /// The table is the receiver's.
    given: AtomicBool,
}

/// What is looked up is changing.
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
            flows: FlowTable::new(),
            visits: Visits::default(),
            changes: Mutex::default(),
            moved_entries: AtomicU64::new(0),
            given: AtomicBool::new(false),
        })
    }

    /// The guest changed the number of queue pairs in use (virtio 1.2 §5.1.6.5.6,
    /// `VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET`), if it is another one. The indirection table is spread anew, at
    /// once, pending changes are dropped, and flows recorded on a queue that is gone fall back to
    /// the table: what the rings hold is the guest's to sort out. A table that the receiver gave is gone.
    ///
    /// A lookup that runs at the same time may still give a queue of the old number; whoever
    /// delivers checks that the queue is enabled in any case.
    ///
    /// # Errors
    /// As [`Self::new`]; nothing has changed then.
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

    /// weir's own table, with nothing pending.
    fn spread_anew(&self, changes: &mut Changes, queues: u8) {
        changes.clear();
        changes.wanted = None;
        self.indirection.spread(queues);
        self.flows.settle();
        self.given.store(false, Ordering::Relaxed);
    }

    /// Receive queues in use, 1 to `weir_limits::QUEUE_PAIRS_MAX`.
    pub fn queues(&self) -> usize {
        usize::from(self.queues.load(Ordering::Relaxed))
    }

    /// The guest sent a frame with this symmetric flow hash on transmit queue `queue`. `now_secs` is
    /// from any monotonic clock of whole seconds. A `queue` not in use is ignored, and so are all while the
    /// table [is given](Self::is_given).
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

    /// The receive queue for a frame with this symmetric flow hash, below [`Self::queues`]. The frame
    /// is placed there before the visit ends.
    #[inline]
    pub fn queue_for(&self, hash: u32, visit: &mut Visit, receiver: &dyn Receiver) -> usize {
        if let Some(run) = visit.run.as_mut().filter(|run| run.hash == hash) {
            run.frames += 1;
            return run.queue.into();
        }
        self.begin_run(hash, visit, receiver)
    }

    /// The queue that a frame with this hash would go to now, and whether its flow follows its transmit queue: for who
    /// only looks. A change that is pending counts as not made.
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

    /// All frames whose queue `visit` has looked up are placed, or waiting elsewhere to be looked up again.
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

    /// The queue, and the entry of the indirection table if that has said so.
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

    /// The flow, if it follows its transmit queue.
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
        // Twice at most: a flow that goes back to the indirection table may find its entry changing.
        loop {
            // Others may have made it meanwhile.
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

    /// The guest sends a flow on another queue than before, or one that has no slot yet.
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

    /// A flow gets a slot, and changes from where the indirection table has sent it.
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

    /// An idle flow follows the indirection table again, which frees its slot.
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

    /// Makes a change pending, if there is room; says whether.
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

    /// Whether another change can be pending, if need be in place of one that can be made now.
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

    /// Makes a pending change if nothing of it can be in the old queue.
    fn make_if_safe(&self, changes: &mut Changes, slot: usize, receiver: &dyn Receiver) -> bool {
        if !changes.is_safe(slot, &self.visits, receiver) {
            return false;
        }
        let Some(&mut change) = changes.get_mut(slot) else { return false };
        if let (What::Flow(hash), true) = (change.what, change.leaves) {
            // Frames that went by this change do not count in one that its entry is in, and the entry may
            // have changed since.
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

    /// Moves an entry of the indirection table to another queue as soon as that reorders nothing. Says
    /// whether this is under way: not if the queue is the same or not in use, the entry is moving
    /// already, too much else is, or the table [is given](Self::is_given).
    pub fn begin_move(&self, entry: usize, to: usize, receiver: &dyn Receiver) -> bool {
        let Ok(to) = u8::try_from(to) else { return false };
        let mut changes = self.changes();
        let (from, changing) = self.indirection.get(entry);
        let wanted =
            entry < INDIRECTION_LEN && from != to && to < self.queues.load(Ordering::Relaxed);
        let free = !changing && changes.wanted.is_none();
        wanted && free && self.begin(&mut changes, What::Entry(entry), (from, to), receiver)
    }

    /// Makes pending changes that can be made, and gives up those that could not for more than
    /// `looks_max` calls. To be called at regular times.
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

    /// The indirection table: each entry's queue, where it is about to move, and how many frames it
    /// has steered.
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

    /// How many times an entry has moved.
    pub fn moved_entries(&self) -> u64 {
        self.moved_entries.load(Ordering::Relaxed)
    }

    /// What a panic leaves behind may be wrong about order, and about nothing else.
    fn changes(&self) -> MutexGuard<'_, Changes> {
        self.changes.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// A number of queue pairs that weir does not serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{queues} queue pairs; valid: 1 to {QUEUE_PAIRS_MAX}")]
pub struct QueueCountError {
    /// The number asked for.
    pub queues: usize,
}

fn check_queues(queues: usize) -> Result<u8, QueueCountError> {
    match u8::try_from(queues) {
        Ok(checked) if (1..=QUEUE_PAIRS_MAX).contains(&queues) => Ok(checked),
        _ => Err(QueueCountError { queues }),
    }
}
