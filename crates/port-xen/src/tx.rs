//! Transmit queues: from a guest's requests into a burst, by one grant copy, and the guest's answers.
//!
//! Requests are answered in the order in which they came. A ring then says by itself where to go on, when
//! weir is killed and started again: what was not answered is sent once more, and nothing is answered
//! twice. Behind a frame that waits for its receiver the answers wait, too.
//! When the guest gets its event: [`weir_engine::guest`].

mod pool;
mod ring;

use weir_engine::burst::{Burst, Scratch};
use weir_engine::guest::{CallPolicy, Completed, TransmitCalls};
use weir_engine::stages::{self, Stage};
use weir_engine::{DropReason, PortCounters, Take, Taken};
use weir_limits::{PARKED_NS_MAX, XEN_PARKED_MAX};

pub(crate) use self::pool::Pool;
pub(crate) use self::ring::{TxRing, emptied};
use crate::control::GuestHash;
use crate::error::StopReason;
use crate::multicast::Groups;

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
}

impl TxQueue {
    pub(crate) fn new(calls: &CallPolicy) -> Self {
        Self { calls: TransmitCalls::new(calls), ..Self::default() }
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
        let Context { index, groups, counters, .. } = context;
        let Some(ring) = self.ring.as_mut() else { return Ok(Taken::default()) };
        // The burst borrows the memory while the ring is answered below.
        let pool = ring.pool();
        let mut burst = scratch.lend();
        burst.waited = what == Take::Parked;
        let frames = match what {
            Take::New => {
                let filled = ring.fill_new(&pool, groups, &mut burst, now_ns, counters);
                filled.map_err(StopReason::tx(index))?
            }
            Take::Parked => ring.fill_waiting(&pool, &mut burst, now_ns, counters),
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
        let answered = ring.settle(&burst, counters);
        stages::lap(Stage::Publish);
        let in_ring = ring.back.ring().available() + ring.back.ring().unanswered();
        let done = Completed { chains: answered, in_ring, now_ns };
        let (mut parked, mut oldest) = (0, None::<u64>);
        for (_, since_ns) in ring.waits() {
            parked += 1;
            oldest = Some(oldest.map_or(since_ns, |oldest| oldest.min(since_ns)));
        }
        let more = ring.peek();
        let hold_until = self.calls.complete(index, &mut self.ring, done, &burst, counters);
        scratch.give_back(burst);
        Ok(Taken {
            frames,
            more,
            peek: true,
            parked,
            parked_more: false, // all of them are tried in one burst
            parked_until: oldest.map(|since_ns| since_ns.saturating_add(PARKED_NS_MAX)),
            hold_until,
        })
    }

    /// See [`weir_engine::Port::expired`].
    pub(crate) fn expired(
        &mut self,
        index: usize,
        by_ns: u64,
        counters: &PortCounters,
    ) -> Option<u64> {
        self.calls.expired(index, &mut self.ring, by_ns, counters)
    }

    /// Replaces the policy.
    pub(crate) fn set_policy(&mut self, index: usize, calls: &CallPolicy, counters: &PortCounters) {
        self.calls.set_policy(index, &mut self.ring, calls, counters);
    }

    /// Takes the ring out of service: what waits is dropped, so that nothing is left unanswered, and the
    /// guest is told of all of it.
    pub(crate) fn stop(&mut self, index: usize, counters: &PortCounters) -> Option<TxRing> {
        if let Some(ring) = self.ring.as_mut() {
            counters.dropped(DropReason::TxStopped, ring.abandon());
        }
        self.calls.call(index, &mut self.ring, counters);
        self.ring.take()
    }
}
