//! Transmit queues: from a guest's requests into a burst, by one grant copy, and the guest's answers.
//!
//! Requests are answered in the order in which they came. A ring then says by itself where to go on, when
//! weir is killed and started again: what was not answered is sent once more, and nothing is answered
//! twice. Behind a frame that waits for its receiver the answers wait, too.
//!
//! The event for answers may wait as the call for completed frames of a virtqueue does
//! (`weir_policy::moderation::Completions`).

mod pool;
mod ring;

use weir_engine::burst::{Burst, Scratch};
use weir_engine::guest::CallPolicy;
use weir_engine::stages::{self, Stage};
use weir_engine::{DropReason, PortCounters, Take, Taken};
use weir_limits::{PARKED_NS_MAX, XEN_PARKED_MAX};
use weir_policy::moderation::{Completions, Deadline, Verdict};

pub(crate) use self::ring::{TxRing, emptied};
use crate::error::StopReason;
use crate::multicast::Groups;

/// What a queue has of its port.
#[derive(Clone, Copy)]
pub(crate) struct Context<'p> {
    /// Which queue it is.
    pub(crate) index: usize,
    pub(crate) groups: &'p Groups,
    pub(crate) counters: &'p PortCounters,
}

/// A transmit queue.
#[derive(Default)]
pub(crate) struct TxQueue {
    pub(crate) ring: Option<TxRing>,
    /// Holds the events for answers; `None` where they are given at once.
    completions: Option<Completions>,
    deadline: Deadline,
    /// Responses that the guest has not been told of.
    untold: u32,
}

impl TxQueue {
    pub(crate) fn new(calls: &CallPolicy) -> Self {
        Self { completions: calls.completions(), ..Self::default() }
    }

    /// See [`weir_engine::Port::take`].
    pub(crate) fn take(
        &mut self,
        context: Context<'_>,
        what: Take,
        now_ns: u64,
        scratch: &mut Scratch,
        forward: &mut dyn FnMut(&mut Burst<'_>),
    ) -> Result<Taken, StopReason> {
        let Context { index, groups, counters } = context;
        let Some(ring) = self.ring.as_mut() else { return Ok(Taken::default()) };
        // The burst borrows the memory while the ring is answered below.
        let pages = ring.pages();
        let mut burst = scratch.lend();
        burst.waited = what == Take::Parked;
        let frames = match what {
            Take::New => {
                let filled = ring.fill_new(&pages, groups, &mut burst, now_ns, counters);
                filled.map_err(StopReason::tx(index))?
            }
            Take::Parked => ring.fill_waiting(&pages, &mut burst, now_ns, counters),
        };
        stages::lap(Stage::Take);
        if what == Take::New {
            burst.blocked.extend(ring.waits().map(|(port, _)| port));
            burst.blocked.dedup();
        }
        burst.park_room = XEN_PARKED_MAX.saturating_sub(ring.waits().count());
        if !burst.frames().is_empty() {
            if what == Take::New {
                counters.tx[index].frames.add(burst.frames().len() as u64);
                counters.tx[index].bytes.add(burst.frames().iter().map(|f| u64::from(f.len)).sum());
            }
            forward(&mut burst);
        }
        if what == Take::New {
            counters.parked.add(burst.parked.len() as u64);
        }
        let answered = ring.settle(&burst);
        stages::lap(Stage::Publish);
        let bytes = burst.frames().iter().map(|frame| u64::from(frame.len)).sum();
        scratch.give_back(burst);
        let (mut parked, mut oldest) = (0, None::<u64>);
        for (_, since_ns) in ring.waits() {
            parked += 1;
            oldest = Some(oldest.map_or(since_ns, |oldest| oldest.min(since_ns)));
        }
        let more = ring.peek();
        Ok(Taken {
            frames,
            more,
            peek: true,
            parked,
            parked_more: false, // all of them are tried in one burst
            parked_until: oldest.map(|since_ns| since_ns.saturating_add(PARKED_NS_MAX)),
            hold_until: self.hold(index, answered, bytes, now_ns, counters),
        })
    }

    /// Asks the policy about the event for what was answered just now. Says when to ask again, if a timer
    /// is to be set.
    fn hold(
        &mut self,
        index: usize,
        answered: u32,
        bytes: u64,
        now_ns: u64,
        counters: &PortCounters,
    ) -> Option<u64> {
        let ring = self.ring.as_mut()?;
        let Some(completions) = &mut self.completions else {
            self.call(index, counters);
            return None;
        };
        if answered == 0 {
            return None;
        }
        // A driver that wants no event now looks for itself when it wants one again: nothing is owed.
        if !ring.back.ring().wants_notify() {
            self.call(index, counters);
            return None;
        }
        self.untold = self.untold.saturating_add(answered);
        let size = ring.back.ring().size();
        let in_ring = ring.back.ring().available() + ring.back.ring().unanswered();
        match completions.completed(now_ns, answered, bytes, in_ring + self.untold, size) {
            Verdict::HoldUntil(until_ns) => self.deadline.set(until_ns, now_ns),
            Verdict::Call => {
                self.call(index, counters);
                None
            }
        }
    }

    /// Tells the guest of everything that is answered, if it wants to be told.
    fn call(&mut self, index: usize, counters: &PortCounters) {
        if let Some(ring) = self.ring.as_mut()
            && ring.back.ring().unannounced() > 0
        {
            if ring.back.ring().needs_notify() {
                ring.link.notify();
                counters.tx[index].calls.add(1);
            } else {
                counters.tx[index].calls_suppressed.add(1);
            }
        }
        stages::lap(Stage::Call);
        if let Some(completions) = &mut self.completions {
            completions.delivered();
            self.deadline.clear();
            self.untold = 0;
        }
    }

    /// See [`weir_engine::Port::expired`].
    pub(crate) fn expired(
        &mut self,
        index: usize,
        by_ns: u64,
        counters: &PortCounters,
    ) -> Option<u64> {
        if let Err(ask_at) = self.deadline.fired(by_ns) {
            return ask_at;
        }
        match self.completions.as_mut().map(|completions| completions.expired(by_ns)) {
            Some(Verdict::HoldUntil(until_ns)) => self.deadline.set(until_ns, by_ns),
            _ => {
                self.call(index, counters);
                None
            }
        }
    }

    /// Replaces the policy.
    pub(crate) fn set_policy(&mut self, index: usize, calls: &CallPolicy, counters: &PortCounters) {
        self.call(index, counters);
        self.completions = calls.completions();
    }

    /// Sets the limit of its holds (ns).
    pub(crate) fn set_hold_ns_max(&mut self, hold_ns_max: u64) {
        if let Some(completions) = &mut self.completions {
            completions.set_hold_ns_max(hold_ns_max);
        }
    }

    /// Takes the ring out of service: what waits is dropped, so that nothing is left unanswered, and the
    /// guest is told of all of it.
    pub(crate) fn stop(&mut self, index: usize, counters: &PortCounters) -> Option<TxRing> {
        if let Some(ring) = self.ring.as_mut() {
            counters.dropped(DropReason::TxStopped, ring.abandon());
        }
        self.call(index, counters);
        self.ring.take()
    }
}
