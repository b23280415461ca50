//! A transmit queue of an uplink: one worker takes from it at a time, or several do side by side
//! ([`weir_engine::turn`]), which place their frames in the order in which they took them.
//!
//! ```text
//! worker 1   | take        | place, in its turn |   copy ......   | settle |
//! worker 2                 | take               | place           | copy .. | settle |
//!            | lock        | .. then no lock .................... | lock   |
//! ```
//!
//! What several cannot do is done by one, when no other has a burst under way: trying frames again that
//! wait for a receiver, and taking newer ones while any wait.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use weir_engine::burst::{Burst, Scratch};
use weir_engine::turn::Turns;
use weir_engine::{DropReason, PortCounters, Take, Taken, UnderWay, lock, lock_when};
use weir_fabric::PortId;
use weir_limits::PARKED_NS_MAX;

/// Where the frames of a queue come from. Each lies in a place with a name, its chain's token in a burst,
/// from when it is taken until it is [released](Self::release).
pub trait Source {
    /// Which places hold a frame, and what else changes as frames are taken: under the queue's lock.
    type Places;

    /// Most frames that wait for receivers, at most [`BURST_MAX`](weir_limits::BURST_MAX).
    const PARKED_MAX: usize;
    /// [`has_more`](Self::has_more) sees a new frame without a system call.
    const PEEK: bool;

    /// Takes new frames, at most a burst: a chain for each that has a place, and its frame unless it is
    /// dropped. Says how many were consumed.
    fn fill<'m>(&'m self, places: &mut Self::Places, now_ns: u64, burst: &mut Burst<'m>) -> usize;

    /// Adds chain and frame of a place again, which waited since `since_ns`.
    fn fill_again<'m>(
        &'m self,
        places: &Self::Places,
        token: u64,
        since_ns: u64,
        burst: &mut Burst<'m>,
    );

    /// That place holds a frame no more.
    fn release(&self, places: &mut Self::Places, token: u64);

    /// All places of a burst are released, or their frames wait.
    fn released(&self, _places: &mut Self::Places) {}

    /// There may be a frame that gives no kick.
    fn has_more(&self, places: &Self::Places) -> bool;
}

/// A frame that waits for a receiver that was full.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    token: u64,
    port: PortId,
    since_ns: u64,
}

/// What is behind a queue's lock. Every place is free, that of a frame in `waiting`, or of one in a burst
/// that is under way.
struct State<P> {
    places: P,
    /// In the order of arrival.
    waiting: VecDeque<Waiting>,
    /// Those that were taken in turn.
    bursts: UnderWay,
}

impl<P> State<P> {
    fn is_for_one(&self, what: Take) -> bool {
        what != Take::New || !self.waiting.is_empty()
    }
}

/// A transmit queue whose frames come from a [`Source`] with such places.
pub struct TransmitQueue<P> {
    state: Mutex<State<P>>,
    turns: Arc<Turns>,
    side_by_side: AtomicBool,
}

/// Who takes, and for whom.
pub struct Taking<'a> {
    /// [`Port::take`](weir_engine::Port::take)'s.
    pub what: Take,
    /// Which of the port's transmit queues it is.
    pub queue: usize,
    /// The time (ns).
    pub now_ns: u64,
    /// The port's.
    pub counters: &'a PortCounters,
    /// Whether the port has stopped: other workers' bursts are not waited for then, and what waits is
    /// dropped.
    pub has_failed: &'a dyn Fn() -> bool,
}

impl<P> TransmitQueue<P> {
    /// A queue with these places, of which none holds a frame.
    pub fn new(places: P) -> Self {
        let state = State { places, waiting: VecDeque::new(), bursts: UnderWay::default() };
        let (turns, side_by_side) = Default::default();
        Self { state: Mutex::new(state), turns, side_by_side }
    }

    /// Whether several workers may take from it at a time, from now on.
    pub fn set_side_by_side(&self, on: bool) {
        // Who takes the one way waits for those who took the other way.
        self.side_by_side.store(on, Ordering::Relaxed);
    }

    /// Whether there may be a frame that gives no kick.
    pub fn has_more<S: Source<Places = P>>(&self, source: &S) -> bool {
        source.has_more(&lock(&self.state).places)
    }

    /// Its places.
    #[cfg(test)]
    pub(crate) fn places<T>(&self, look: impl FnOnce(&P) -> T) -> T {
        look(&lock(&self.state).places)
    }

    /// A worker takes from it.
    #[cfg(test)]
    pub(crate) fn is_locked(&self) -> bool {
        self.state.try_lock().is_err()
    }

    /// Takes a burst and has it forwarded: see [`Port::take`](weir_engine::Port::take).
    pub fn take<S: Source<Places = P>>(
        &self,
        source: &S,
        taking: &Taking<'_>,
        scratch: &mut Scratch,
        forward: &mut dyn FnMut(&mut Burst<'_>),
    ) -> Taken {
        let &Taking { what, queue, now_ns, counters, has_failed } = taking;
        let side_by_side = self.side_by_side.load(Ordering::Relaxed);
        let may_take = |state: &State<P>| {
            state.bursts.is_settled() || (side_by_side && !state.is_for_one(what))
        };
        let Some(mut state) = lock_when(&self.state, has_failed, may_take) else {
            self.abandon_waiting(source, counters);
            return Taken::default();
        };
        let in_turn = side_by_side && !state.is_for_one(what);

        let turn = RefCell::new(None);
        let mut burst = scratch.lend();
        burst.from_device = true;
        burst.waited = what != Take::New;
        let frames = match what {
            Take::New => source.fill(&mut state.places, now_ns, &mut burst),
            Take::Parked(receiver) => state.fill_waiting(receiver, source, taking, &mut burst),
        };
        if what == Take::New
            && let Some(tx) = counters.tx.get(queue)
        {
            tx.frames.add(burst.frames().len() as u64);
            tx.bytes.add(burst.frames().iter().map(|frame| u64::from(frame.len)).sum());
        }
        burst.blocked.extend(state.waiting.iter().map(|waiting| waiting.port));
        if in_turn && !burst.frames().is_empty() {
            let number = state.bursts.begin();
            // With the lock, so that nobody takes later frames and has an earlier turn.
            let mine = self.turns.wait(number);
            mine.blocked(&mut burst.blocked);
            burst.park_room = S::PARKED_MAX.saturating_sub(burst.blocked.len());
            burst.blocked.dedup();
            drop(state);
            turn.replace(Some(mine));
            burst.turn = Some(&turn);
            forward(&mut burst);
            if let Some(mine) = turn.take() {
                mine.park(burst.parked.iter().map(|parked| parked.port));
            }
            let is_next = |state: &State<P>| state.bursts.may_settle(number) == Some(true);
            let Some(locked) = lock_when(&self.state, has_failed, is_next) else {
                return Taken::default();
            };
            state = locked;
            state.bursts.settle();
            if state.bursts.is_settled() {
                self.turns.settled();
            }
        } else if !burst.frames().is_empty() {
            burst.park_room = S::PARKED_MAX.saturating_sub(burst.blocked.len());
            burst.blocked.dedup();
            forward(&mut burst);
        }
        if what == Take::New {
            counters.parked.add(burst.parked.len() as u64);
        }
        state.settle(source, &burst);
        scratch.give_back(burst);
        state.taken(source, frames)
    }

    /// Drops what waits: the port has stopped.
    pub fn abandon_waiting<S: Source<Places = P>>(&self, source: &S, counters: &PortCounters) {
        let mut state = lock(&self.state);
        let State { places, waiting, .. } = &mut *state;
        counters.dropped(DropReason::TxDisabled, waiting.len() as u64);
        for frame in waiting.drain(..) {
            source.release(places, frame.token);
        }
        source.released(places);
    }
}

impl<P> State<P> {
    /// Takes all frames that wait for `receiver`, or for anybody, but for those that have waited too long. Says how
    /// many there were.
    fn fill_waiting<'m, S: Source<Places = P>>(
        &mut self,
        receiver: Option<PortId>,
        source: &'m S,
        taking: &Taking<'_>,
        burst: &mut Burst<'m>,
    ) -> usize {
        let frames = self.waiting.len();
        let places = &mut self.places;
        self.waiting.retain(|&Waiting { token, port, since_ns }| {
            if receiver.is_some_and(|receiver| receiver != port) {
                return true;
            }
            if since_ns.saturating_add(PARKED_NS_MAX) <= taking.now_ns {
                taking.counters.dropped(DropReason::RxWaitedTooLong, 1);
                source.release(places, token);
            } else {
                source.fill_again(places, token, since_ns, burst);
            }
            false
        });
        frames - self.waiting.len()
    }

    /// After a burst: its frames wait, or their places are released.
    fn settle<S: Source<Places = P>>(&mut self, source: &S, burst: &Burst<'_>) {
        // Chains that were refused have no frame; the others have theirs in the same order.
        let mut frames = burst.frames().iter().enumerate().peekable();
        for chain in &burst.chains {
            let frame = frames.next_if(|(_, frame)| frame.token == chain.token);
            let waits = frame.filter(|_| !burst.parked.is_empty()).and_then(|(index, frame)| {
                let parked = burst.parked.iter().find(|it| usize::from(it.frame) == index)?;
                Some(Waiting { token: chain.token, port: parked.port, since_ns: frame.arrived_ns })
            });
            match waits {
                Some(waiting) => self.waiting.push_back(waiting),
                None => source.release(&mut self.places, chain.token),
            }
        }
        source.released(&mut self.places);
    }

    fn taken<S: Source<Places = P>>(&self, source: &S, frames: usize) -> Taken {
        let oldest = self.waiting.iter().map(|waiting| waiting.since_ns).min();
        Taken {
            frames,
            more: source.has_more(&self.places),
            peek: S::PEEK,
            parked: self.waiting.len(),
            parked_more: false, // all of them are tried in one burst
            parked_until: oldest.map(|since_ns| since_ns.saturating_add(PARKED_NS_MAX)),
            hold_until: None,
        }
    }
}
