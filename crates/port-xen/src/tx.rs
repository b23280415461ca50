//! Transmit queues: from a guest's requests into a burst, by one grant copy, and the guest's answers.
//!
//! Requests are answered in the order in which they came. A ring then says by itself where to go on, when
//! weir is killed and started again: what was not answered is sent once more, and nothing is answered
//! twice. Behind a frame that waits for its receiver the answers wait, too.
//! When the guest gets its event: [`weir_engine::guest`].
//!
//! Several workers may send from one queue at a time ([`weir_engine::turn`]). Each takes requests under the queue's
//! lock; the copies of their bytes are its own, and their frames are placed in the order of the requests:
//!
//! ```text
//! worker 1   | take    | copy | place, in its turn |   copies of others | settle |
//! worker 2             | take | copy ............. | place              | settle |
//!            |- lock --|      no lock .......................... | lock |
//! ```
//!
//! Frames that wait for a receiver are older than any in the ring: while there are some, one worker takes at a time,
//! with the lock held, as always where nobody helps.

mod haul;
mod pool;
mod ring;

use std::cell::RefCell;
use std::sync::Arc;

use weir_engine::burst::{Burst, Scratch};
use weir_engine::guest::{Asked, CallPolicy, Completed, Received, TransmitCalls};
use weir_engine::stages::{self, Stage};
use weir_engine::turn::{Turn, Turns};
use weir_engine::{DropReason, PortCounters, Take, Taken, lock, lock_settled, lock_when};
use weir_limits::{PARKED_NS_MAX, XEN_PARKED_MAX};

pub(crate) use self::haul::{Haul, emptied};
pub(crate) use self::ring::TxRing;
use crate::control::GuestHash;
use crate::error::StopReason;
use crate::multicast::Groups;
use crate::port::{Pair, XenPort};

/// What a queue has of its port.
#[derive(Clone, Copy)]
pub(crate) struct Context<'p> {
    /// Which queue it is.
    pub(crate) index: usize,
    pub(crate) groups: &'p Groups,
    pub(crate) hash: &'p GuestHash,
    pub(crate) counters: &'p PortCounters,
}

/// A transmit queue.
#[derive(Default)]
pub(crate) struct TxQueue {
    pub(crate) ring: Option<TxRing>,
    pub(crate) calls: TransmitCalls,
    /// Several workers may send from it at a time.
    pub(crate) shared: bool,
    /// Its ring is about to stop: nothing is taken any more.
    closing: bool,
    /// Turns that were drawn, ever.
    drawn: u64,
    /// Bursts under way without the queue's lock.
    under_way: usize,
    /// Rings that have stopped: what is under way is of the one in service if this has not changed.
    stopped: u64,
}

/// A burst that was taken, and its place among others.
pub(crate) struct Begun {
    haul: Haul,
    consumed: usize,
    /// [`TxQueue::stopped`] when it was taken.
    stopped: u64,
}

impl TxQueue {
    pub(crate) fn new(calls: &CallPolicy) -> Self {
        Self { calls: TransmitCalls::patient(calls), ..Self::default() }
    }

    /// No worker has a burst of it under way, but for one that holds its lock.
    fn is_settled(&self) -> bool {
        self.under_way == 0
    }

    /// `what` is for one worker at a time.
    fn is_for_one(&self, what: Take) -> bool {
        !self.shared
            || what != Take::New
            || self.ring.as_ref().is_some_and(|ring| ring.waiting() > 0)
    }

    /// A burst of `what` may be taken now.
    fn may_take(&self, what: Take) -> bool {
        self.is_settled() || !self.is_for_one(what)
    }

    /// Takes packets; `None` while nothing may be taken.
    fn begin(
        &mut self,
        context: Context<'_>,
        what: Take,
        frames_max: usize,
        now_ns: u64,
    ) -> Result<Option<Begun>, StopReason> {
        let Context { index, groups, counters, .. } = context;
        let Some(ring) = self.ring.as_mut().filter(|_| !self.closing) else { return Ok(None) };
        let mut haul = ring.haul();
        let consumed = match what {
            Take::New => ring
                .take_new(&mut haul, groups, frames_max, now_ns, counters)
                .map_err(StopReason::tx(index))?,
            Take::Parked(receiver) => ring.take_waiting(receiver, &mut haul, now_ns, counters),
        };
        Ok(Some(Begun { haul, consumed, stopped: self.stopped }))
    }

    /// The turn of a burst that was taken and goes on without the lock.
    fn draw(&mut self, turns: &Arc<Turns>) -> Turn {
        let turn = turns.draw(self.drawn);
        self.drawn += 1;
        self.under_way += 1;
        turn
    }

    /// What holds for frames that one worker alone has taken.
    fn note_waiting(&self, what: Take, burst: &mut Burst<'_>) {
        let Some(ring) = &self.ring else { return };
        if what == Take::New {
            burst.blocked.extend(ring.waits().map(|(port, _)| port));
            burst.blocked.dedup();
        }
        burst.park_room = XEN_PARKED_MAX.saturating_sub(ring.waiting());
    }

    /// A burst's frames have gone, or are to wait: answers what can be answered.
    fn end(
        &mut self,
        context: Context<'_>,
        begun: &Begun,
        burst: &Burst<'_>,
        now_ns: u64,
    ) -> Taken {
        let Context { index, counters, .. } = context;
        self.calls.before_more(&mut self.ring);
        let Some(ring) = self.ring.as_mut() else { return Taken::default() };
        let answered = ring.settle(&begun.haul, burst, counters);
        stages::lap(Stage::Publish);
        let in_ring = ring.back.ring().available() + ring.back.ring().unanswered();
        let done = Completed { chains: answered, in_ring, now_ns };
        let oldest = ring.waits().map(|(_, since_ns)| since_ns).min();
        let (parked, more) = (ring.waiting(), ring.peek());
        let hold_until = self.calls.complete(index, &mut self.ring, done, burst, counters);
        Taken {
            frames: begun.consumed,
            more,
            peek: true,
            parked,
            parked_more: false, // all of them are tried in one burst
            parked_until: oldest.map(|since_ns| since_ns.saturating_add(PARKED_NS_MAX)),
            hold_until,
        }
    }

    /// Keeps the room of a burst that has ended.
    fn give_back(&mut self, Begun { haul, .. }: Begun) {
        if let Some(ring) = self.ring.as_mut() {
            ring.give_back(haul);
        }
    }

    /// See [`weir_engine::Port::expired`].
    pub(crate) fn expired(
        &mut self,
        index: usize,
        by_ns: u64,
        received: Received,
        counters: &PortCounters,
    ) -> Asked {
        self.calls.expired(index, &mut self.ring, by_ns, received, counters)
    }

    /// Replaces the policy.
    pub(crate) fn set_policy(&mut self, index: usize, calls: &CallPolicy, counters: &PortCounters) {
        self.calls.set_policy(index, &mut self.ring, calls, counters);
    }

    /// Takes the ring out of service: what waits is dropped, so that nothing is left unanswered, and the
    /// guest is told of all of it. A burst that is under way even so, of a port that has failed, is not waited for.
    fn stop(&mut self, index: usize, counters: &PortCounters) -> Option<TxRing> {
        self.closing = false;
        self.stopped += 1;
        self.under_way = 0;
        if let Some(ring) = self.ring.as_mut() {
            counters.dropped(DropReason::TxStopped, ring.abandon());
        }
        self.calls.call(index, &mut self.ring, counters);
        self.ring.take()
    }
}

impl XenPort {
    /// See [`weir_engine::Port::take`]. Locks are taken in this order: the queue's, the turn, receivers' below it;
    /// and who has a turn never waits for the queue to be settled.
    pub(crate) fn take_burst(
        &self,
        pair: &Pair,
        context: Context<'_>,
        what: Take,
        now_ns: u64,
        scratch: &mut Scratch,
        forward: &mut dyn FnMut(&mut Burst<'_>),
    ) -> Result<Taken, StopReason> {
        let Context { index, counters, .. } = context;
        let may_take = |tx: &TxQueue| tx.may_take(what);
        let Some(mut tx) = lock_when(&pair.tx, || self.has_failed(), may_take) else {
            return Ok(Taken::default());
        };
        let alone = tx.is_for_one(what);
        let turn = RefCell::new(None);
        // The burst borrows both.
        let mut begun;
        let mut burst = scratch.lend();
        burst.waited = what != Take::New;
        begun = match tx.begin(context, what, burst.frames_max, now_ns)? {
            Some(begun) => begun,
            None => {
                scratch.give_back(burst);
                return Ok(Taken::default());
            }
        };
        let (held, mine) = if alone || begun.consumed == 0 {
            tx.note_waiting(what, &mut burst);
            (Some(tx), None)
        } else {
            let mine = tx.draw(&pair.turns);
            drop(tx);
            (None, Some(mine))
        };
        if what == Take::New {
            begun.haul.bring();
        }
        begun.haul.add_to(&mut burst, counters);
        stages::lap(Stage::Take);
        if let Some(mine) = mine {
            mine.wait();
            mine.blocked(&mut burst.blocked);
            burst.park_room = XEN_PARKED_MAX.saturating_sub(burst.blocked.len());
            burst.blocked.dedup();
            turn.replace(Some(mine));
            burst.turn = Some(&turn);
        }
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
        if let Some(mine) = turn.take() {
            mine.park(burst.parked.iter().map(|parked| parked.port));
        }

        let goes_on = held.is_none();
        let mut tx = held.unwrap_or_else(|| lock(&pair.tx));
        if self.has_failed() || tx.stopped != begun.stopped {
            scratch.give_back(burst);
            return Ok(Taken::default());
        }
        let taken = tx.end(context, &begun, &burst, now_ns);
        scratch.give_back(burst);
        tx.give_back(begun);
        if goes_on {
            tx.under_way -= 1;
            if tx.is_settled() {
                pair.turns.settled();
            }
        }
        Ok(taken)
    }

    /// Takes a transmit ring out of service, when workers have settled what they had taken.
    pub(crate) fn stop_tx(&self, index: usize, pair: &Pair) -> Option<TxRing> {
        let close = |tx: &mut TxQueue| tx.closing = true;
        let mut tx = lock_settled(&pair.tx, || self.has_failed(), close, TxQueue::is_settled);
        // One that panicked has failed the port, and is not waited for.
        let ring = tx.stop(index, self.counters());
        drop(tx);
        pair.turns.settled();
        ring
    }
}
