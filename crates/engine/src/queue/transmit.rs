//! A transmit queue: one worker takes from it at a time, or several in parallel ([`turn`](super::turn)), which place
//! their frames in the order in which they took them.
//!
//! ```text
//! worker 1   | take | bring | place, in its turn |   copy ......   | settle |
//! worker 2          | take  | bring .............| place           | copy .. | settle |
//!            | lock |        no lock .............................. | lock   |
//! ```
//!
//! Some work is for one worker alone, with the lock held and no other burst under way: retrying frames that wait for a
//! receiver, which are older than any in the ring; taking newer frames while any wait; and work that the port
//! [reserves](Source::is_for_one). Without a helper, one worker does all work in this way.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, MutexGuard};

use weir_fabric::PortId;

use super::parked::{Again, ParkedFrames};
use super::under_way::UnderWay;
use crate::calls::{Asked, CallPolicy, Completed, Received, TransmitCalls, TransmitRing};
use crate::frames::burst::{Burst, Scratch};
use crate::frames::drop_reason::DropReason;
use crate::frames::port::{Ask, Forward, Take, Taken};
use crate::frames::stats::PortCounters;
use crate::frames::turn::{Turn, Turns};
use crate::threads::lock::{lock, lock_settled, lock_when};
use crate::threads::stages::{self, Stage};

/// A port as the source of one transmit queue's frames. A frame's name is its chain's token in a burst, from the take
/// until the frame is settled or released.
pub trait Source {
    /// The data behind the queue's lock: the ring, and the set of taken frames.
    type Ring: TransmitRing;
    /// The data that a burst borrows, from the take until it is settled.
    type Lent;
    /// An error that ends the service of the port.
    type Error;

    /// True if bursts that pass in parallel are settled in the order in which they were taken. Otherwise, the names of
    /// frames are ascending.
    const IN_ORDER: bool = true;
    /// See [`Taken::peek`].
    const PEEK: bool = true;
    /// See [`Burst::from_device`].
    const FROM_DEVICE: bool = false;

    /// The number of the port's transmit queue.
    fn index(&self) -> usize;

    /// The port's counters.
    fn counters(&self) -> &PortCounters;

    /// True if the port has stopped. Then no worker waits for other workers' bursts.
    fn has_failed(&self) -> bool;

    /// Most frames that wait for receivers.
    fn parked_max(&self, ring: &Self::Ring) -> usize;

    /// True if only one worker at a time can take new frames now, even with a helper.
    fn is_for_one(&self, _ring: &Self::Ring) -> bool {
        false
    }

    /// True if taken frames are dropped, not forwarded.
    fn is_drained(&self, _ring: &Self::Ring) -> bool {
        false
    }

    /// Lends the data to a burst of `what`; `None` while nothing can be taken.
    fn lend(&self, ring: &mut Self::Ring, what: Take) -> Option<Self::Lent>;

    /// Takes new frames, at most [`Burst::frames_max`]: adds a chain for each that must be settled, and its frame
    /// unless it is dropped. Returns the number of consumed chains.
    ///
    /// # Errors
    /// The guest broke a rule.
    fn fill<'m>(
        &'m self,
        ring: &mut Self::Ring,
        lent: &'m Self::Lent,
        now_ns: u64,
        burst: &mut Burst<'m>,
    ) -> Result<usize, Self::Error>;

    /// Adds a chain and its frame again after a wait, with the frame's time of arrival.
    ///
    /// # Errors
    /// The guest broke a rule.
    fn fill_again<'m>(
        &'m self,
        ring: &mut Self::Ring,
        lent: &'m Self::Lent,
        token: u64,
        arrived_ns: u64,
        burst: &mut Burst<'m>,
    ) -> Result<(), Self::Error>;

    /// Fetches payload that is not in memory yet. The lock is not held, so that another worker can take frames
    /// meanwhile.
    fn bring<'m>(&'m self, _lent: &'m Self::Lent, _burst: &mut Burst<'m>) {}

    /// Completes forwarded and refused frames, keeps parked ones, and publishes. Returns the chains newly visible
    /// to the guest.
    fn settle(&self, ring: &mut Self::Ring, lent: &Self::Lent, burst: &Burst<'_>) -> u32;

    /// Takes back the lent data.
    fn take_back(&self, _ring: &mut Self::Ring, _lent: Self::Lent) {}

    /// Gives up a waiting frame, which is lost for the reason `why`.
    fn release(&self, ring: &mut Self::Ring, token: u64, why: DropReason);

    /// The number of the ring's entries that are not complete, if `parked` frames wait.
    fn in_ring(&self, _ring: &mut Self::Ring, _parked: usize) -> u32 {
        0
    }

    /// True if there may be a frame without a kick.
    ///
    /// # Errors
    /// The taken frames cannot be trusted.
    fn has_more(&self, ring: &mut Self::Ring) -> Result<bool, Self::Error>;
}

/// A transmit queue.
#[derive(Debug, Default)]
pub struct TransmitQueue<R> {
    state: Mutex<Transmit<R>>,
    turns: Arc<Turns>,
}

/// The data behind a transmit queue's lock.
#[derive(Debug, Default)]
pub struct Transmit<R> {
    /// The port's part of the queue.
    pub queue: R,
    /// The calls to the guest about completed frames.
    pub calls: TransmitCalls,
    parked: ParkedFrames,
    bursts: UnderWay,
    /// True if several workers may send from the queue at a time.
    side_by_side: bool,
}

impl<R: TransmitRing> TransmitQueue<R> {
    /// A queue from which no frames are taken.
    pub fn new(queue: R, calls: TransmitCalls) -> Self {
        let (parked, bursts, side_by_side) = Default::default();
        let state = Transmit { queue, calls, parked, bursts, side_by_side };
        Self { state: Mutex::new(state), turns: Arc::default() }
    }

    /// Locks the queue.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, Transmit<R>> {
        lock(&self.state)
    }

    /// See [`Port::share_tx`](crate::Port::share_tx).
    pub fn set_side_by_side(&self, on: bool) {
        // The next worker that takes frames waits for bursts under way, if it must.
        self.lock().side_by_side = on;
    }

    /// Takes a burst and forwards it: see [`Port::take`](crate::Port::take). Locks are taken in this order: the
    /// queue's, the turn, then receivers'. A worker with a turn never waits for the queue to be settled. The function
    /// is longer than a screen: the lent data, the turn and the burst live from its first step to its last.
    ///
    /// # Errors
    /// An error of `source`, after which the port must stop.
    #[inline(always)]
    pub fn take<S: Source<Ring = R>>(
        &self,
        source: &S,
        ask: Ask,
        scratch: &mut Scratch,
        forward: Forward<'_>,
    ) -> Result<Taken, S::Error> {
        let Ask { what, now_ns } = ask;
        let may_take =
            |state: &Transmit<R>| state.bursts.is_settled() || !state.is_for_one(source, what);
        let Some(mut state) = lock_when(&self.state, || source.has_failed(), may_take) else {
            return Ok(nothing());
        };
        let alone = state.is_for_one(source, what);
        if state.bursts.is_closing() {
            return Ok(nothing());
        }
        let Some(lent) = source.lend(&mut state.queue, what) else { return Ok(nothing()) };
        let turn = RefCell::new(None);
        let mut burst = scratch.lend();
        burst.from_device = S::FROM_DEVICE;
        burst.waited = what != Take::New;
        let consumed = match what {
            Take::New => source.fill(&mut state.queue, &lent, now_ns, &mut burst)?,
            Take::Parked(receiver) => {
                state.fill_parked(source, &lent, receiver, now_ns, &mut burst)?
            }
        };
        let mut state = if alone || consumed == 0 {
            source.bring(&lent, &mut burst);
            stages::lap(Stage::Take);
            state.parked.tell(what, source.parked_max(&state.queue), &mut burst);
            if source.is_drained(&state.queue) {
                source.counters().dropped_of(DropReason::TxDisabled, &burst, burst.all());
            } else if !burst.frames().is_empty() {
                count(source, what, &burst);
                forward(&mut burst);
            }
            state
        } else {
            match self.take_turn(state, source, &lent, &turn, &mut burst, forward) {
                Some(state) => state,
                None => return Ok(nothing()),
            }
        };
        if what == Take::New && !burst.room.parked.is_empty() {
            source.counters().parked.add(burst.room.parked.len() as u64);
        }
        let (hold_until, parked_more) = state.settle(source, &lent, what, now_ns, &burst);
        source.take_back(&mut state.queue, lent);
        state.taken::<S>(source, consumed, parked_more, hold_until)
    }

    /// Forwards a burst taken in parallel with others; `None` if the port, or its ring, has stopped in the meantime.
    #[cold]
    fn take_turn<'q, 'm, S: Source<Ring = R>>(
        &'q self,
        mut state: MutexGuard<'q, Transmit<R>>,
        source: &'m S,
        lent: &'m S::Lent,
        turn: &'m RefCell<Option<Turn>>,
        burst: &mut Burst<'m>,
        forward: Forward<'_>,
    ) -> Option<MutexGuard<'q, Transmit<R>>> {
        let number = state.bursts.begin();
        let mine = self.turns.draw(number);
        let parked_max = source.parked_max(&state.queue);
        drop(state);
        source.bring(lent, burst);
        stages::lap(Stage::Take);
        mine.wait();
        mine.blocked(&mut burst.room.blocked);
        burst.park_room = parked_max.saturating_sub(burst.room.blocked.len());
        burst.room.blocked.dedup();
        turn.replace(Some(mine));
        burst.turn = Some(turn);
        if !burst.frames().is_empty() {
            count(source, Take::New, burst);
            forward(burst);
        }
        if let Some(mine) = turn.take() {
            mine.park(burst.room.parked.iter().map(|parked| parked.port));
        }

        let may_settle = |state: &Transmit<R>| match state.bursts.may_settle(number) {
            Some(is_next) => is_next || !S::IN_ORDER,
            None => true,
        };
        let mut state = lock_when(&self.state, || source.has_failed(), may_settle)?;
        state.bursts.may_settle(number)?;
        state.bursts.settle();
        if state.bursts.is_settled() {
            self.turns.settled();
        }
        Some(state)
    }

    /// Locks the queue once workers have settled all taken frames, and take no new ones. Drops waiting frames for the
    /// reason `why`, and returns their number. The ring can then go out of service, or service continues.
    pub fn stop<S: Source<Ring = R>>(
        &self,
        source: &S,
        why: DropReason,
    ) -> (MutexGuard<'_, Transmit<R>>, u64) {
        let mut state = self.settle(source);
        let dropped = state.abandon(source, why);
        (state, dropped)
    }

    /// Locks the queue once workers have settled all taken frames, and take no new ones. Waiting frames go on waiting:
    /// the ring can go out of service for a while.
    pub fn settle<S: Source<Ring = R>>(&self, source: &S) -> MutexGuard<'_, Transmit<R>> {
        // A worker that panicked has failed the port, and is not waited for.
        let mut state = lock_settled(
            &self.state,
            || source.has_failed(),
            |state| state.bursts.close(),
            |state| state.bursts.is_settled(),
        );
        state.bursts.abandon();
        self.turns.settled();
        state
    }
}

impl<R: TransmitRing> Transmit<R> {
    /// True if only one worker at a time can take `what`.
    #[inline]
    fn is_for_one<S: Source<Ring = R>>(&self, source: &S, what: Take) -> bool {
        !self.side_by_side
            || what != Take::New
            || !self.parked.is_empty()
            || source.is_for_one(&self.queue)
    }

    /// Adds frames that wait for `receiver`, or for any, to a burst, and drops those that have waited too long. Returns
    /// the number of both.
    #[cold]
    #[inline(never)]
    fn fill_parked<'m, S: Source<Ring = R>>(
        &mut self,
        source: &'m S,
        lent: &'m S::Lent,
        receiver: Option<PortId>,
        now_ns: u64,
        burst: &mut Burst<'m>,
    ) -> Result<usize, S::Error> {
        let Self { queue, parked, .. } = self;
        parked.try_again(receiver, now_ns, |token, again| match again {
            Again::Try(arrived_ns) => source.fill_again(queue, lent, token, arrived_ns, burst),
            Again::Drop => {
                const WHY: DropReason = DropReason::RxWaitedTooLong;
                source.counters().dropped(WHY, 1);
                source.release(queue, token, WHY);
                Ok(())
            }
        })
    }

    /// Settles a burst whose frames were forwarded, or wait. Returns the time to ask about a held call, and true if
    /// waiting frames must be retried at once.
    #[inline(always)]
    fn settle<S: Source<Ring = R>>(
        &mut self,
        source: &S,
        lent: &S::Lent,
        what: Take,
        now_ns: u64,
        burst: &Burst<'_>,
    ) -> (Option<u64>, bool) {
        let Self { queue, calls, parked, .. } = self;
        calls.before_more(queue);
        let parked_more = parked.settle(what, S::IN_ORDER, burst);
        let chains = source.settle(queue, lent, burst);
        stages::lap(Stage::Publish);
        let parked = parked.len();
        let done =
            |queue: &mut R| Completed { chains, in_ring: source.in_ring(queue, parked), now_ns };
        let hold_until = calls.complete(source.index(), queue, done, burst, source.counters());
        (hold_until, parked_more)
    }

    /// The result of [`take`](TransmitQueue::take) for a settled burst.
    #[inline(always)]
    fn taken<S: Source<Ring = R>>(
        &mut self,
        source: &S,
        frames: usize,
        parked_more: bool,
        hold_until: Option<u64>,
    ) -> Result<Taken, S::Error> {
        Ok(Taken {
            frames,
            more: source.has_more(&mut self.queue)?,
            peek: S::PEEK,
            parked: self.parked.len(),
            parked_more,
            parked_until: self.parked.until_ns(),
            hold_until,
        })
    }

    /// Drops waiting frames, and returns their number.
    pub fn abandon<S: Source<Ring = R>>(&mut self, source: &S, why: DropReason) -> u64 {
        let Self { queue, parked, .. } = self;
        let waited = parked.len() as u64;
        parked.abandon(|token| source.release(queue, token, why));
        source.counters().dropped(why, waited);
        waited
    }

    /// See [`Port::expired`](crate::Port::expired).
    pub fn expired(
        &mut self,
        index: usize,
        by_ns: u64,
        received: Received,
        counters: &PortCounters,
    ) -> Asked {
        self.calls.expired(index, &mut self.queue, by_ns, received, counters)
    }

    /// Makes a held call now, before the ring stops.
    pub fn flush(&mut self, index: usize, counters: &PortCounters) {
        self.calls.flush(index, &mut self.queue, counters);
    }

    /// Replaces the policy of calls.
    pub fn set_policy(&mut self, index: usize, calls: &CallPolicy, counters: &PortCounters) {
        self.calls.set_policy(index, &mut self.queue, calls, counters);
    }
}

/// The result if nothing can be taken. It is a separate function, so that the usual path does not
/// prepare the result.
#[cold]
#[inline(never)]
fn nothing() -> Taken {
    Taken::default()
}

/// Counts new frames.
#[inline(always)]
fn count<S: Source>(source: &S, what: Take, burst: &Burst<'_>) {
    if what == Take::New
        && let Some(tx) = source.counters().tx.get(source.index())
    {
        tx.frames.add_alone(burst.frames().len() as u64);
        tx.bytes.add_alone(burst.bytes());
    }
}
