//! Transmit queues: from a guest's requests into a burst, by one grant copy, and the guest's
//! answers.
//!
//! Requests are answered in order. The ring itself then shows where to continue after weir was
//! killed: unanswered requests are sent again, and none is answered twice. Behind a frame that
//! waits for its receiver, answers wait too. A worker that ends its burst waits for no other: it
//! records the result of its requests, and the worker that finishes the oldest burst answers.
//!
//! [`weir_engine::queue`] handles turns, waiting frames and the time of the event. The queue's lock
//! covers taking requests, not the grant copy.

mod haul;
mod pool;
mod ring;

use weir_engine::burst::Burst;
use weir_engine::queue::Source;
use weir_engine::{DropReason, PortCounters, Take};
use weir_limits::XEN_PARKED_MAX;
use weir_netif::Status;

pub(crate) use self::haul::{Haul, emptied};
pub(crate) use self::ring::TxRing;
use crate::control::Groups;
use crate::control::GuestHash;
use crate::link::{StopReason, Stopped};
use crate::port::XenPort;

/// The port's data for a queue.
#[derive(Clone, Copy)]
pub(crate) struct Context<'p> {
    pub(crate) index: usize,
    pub(crate) groups: &'p Groups,
    pub(crate) hash: &'p GuestHash,
    pub(crate) counters: &'p PortCounters,
}

pub(crate) type TxQueue = weir_engine::queue::TransmitQueue<Option<TxRing>>;

/// One of a port's transmit queues.
pub(crate) struct Sending<'p> {
    pub(crate) port: &'p XenPort,
    pub(crate) index: usize,
}

impl Source for Sending<'_> {
    type Ring = Option<TxRing>;
    type Lent = Haul;
    type Error = Stopped;

    const IN_ORDER: bool = false;

    fn index(&self) -> usize {
        self.index
    }

    fn counters(&self) -> &PortCounters {
        self.port.counters()
    }

    fn has_failed(&self) -> bool {
        self.port.has_failed()
    }

    fn parked_max(&self, _: &Option<TxRing>) -> usize {
        XEN_PARKED_MAX
    }

    fn lend(&self, ring: &mut Option<TxRing>, what: Take) -> Option<Haul> {
        Some(ring.as_mut()?.haul(what != Take::New))
    }

    fn fill<'m>(
        &'m self,
        ring: &mut Option<TxRing>,
        haul: &'m Haul,
        now_ns: u64,
        burst: &mut Burst<'m>,
    ) -> Result<usize, Stopped> {
        let Some(ring) = ring else { return Ok(0) };
        ring.take_new(haul, &self.port.groups, burst.frames_max, now_ns, self.port.counters())
            .map_err(|error| self.port.stop(&StopReason::tx(self.index)(error)))
    }

    fn fill_again<'m>(
        &'m self,
        ring: &mut Option<TxRing>,
        haul: &'m Haul,
        token: u64,
        arrived_ns: u64,
        _: &mut Burst<'m>,
    ) -> Result<(), Stopped> {
        if let Some(ring) = ring {
            ring.take_again(haul, token, arrived_ns);
        }
        Ok(())
    }

    fn bring<'m>(&'m self, haul: &'m Haul, burst: &mut Burst<'m>) {
        haul.bring();
        haul.add_to(burst, self.port.counters());
    }

    fn settle(&self, ring: &mut Option<TxRing>, haul: &Haul, burst: &Burst<'_>) -> u32 {
        ring.as_mut().map_or(0, |ring| ring.settle(haul, burst, self.port.counters()))
    }

    fn take_back(&self, ring: &mut Option<TxRing>, haul: Haul) {
        if let Some(ring) = ring {
            ring.give_back(haul);
        }
    }

    fn release(&self, ring: &mut Option<TxRing>, token: u64, why: DropReason) {
        let status = match why {
            DropReason::TxStopped => Status::Dropped,
            _ => Status::Okay,
        };
        if let Some(ring) = ring {
            ring.release(token, status);
        }
    }

    fn in_ring(&self, ring: &mut Option<TxRing>, _parked: usize) -> u32 {
        ring.as_mut().map_or(0, |ring| ring.back.ring().available() + ring.back.ring().unanswered())
    }

    fn has_more(&self, ring: &mut Option<TxRing>) -> Result<bool, Stopped> {
        Ok(ring.as_mut().is_some_and(TxRing::peek))
    }
}

/// Takes a ring out of service: answers every request, and notifies the guest.
pub(crate) fn stop(queue: &TxQueue, source: &Sending<'_>) -> Option<TxRing> {
    let (mut tx, _) = queue.stop(source, DropReason::TxStopped);
    if let Some(ring) = tx.queue.as_mut() {
        ring.answer();
    }
    let tx = &mut *tx;
    tx.calls.call(source.index, &mut tx.queue, source.port.counters());
    tx.queue.take()
}
