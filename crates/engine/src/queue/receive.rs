//! A receive queue: several workers put frames into it at a time, and the guest sees them in the order of placing.
//!
//! ```text
//! place()    under the queue's lock   chains for every frame; bytes at hand are written
//! begin()    under the lock           a place in the order, if bytes are left to copy; otherwise show()
//! copy       no lock                  the rest, so that several workers fill one queue at a time
//! finish()   under the lock           one index write, in the order of begin(); the call
//! ```
//!
//! The port writes and copies. This module orders, counts, and decides when the guest is notified.

use std::sync::{Mutex, MutexGuard};

use weir_policy::moderation::{Batch, Moderation};

use super::fill::{FillOrder, Place};
use crate::calls::{CallPolicy, ReceiveCalls, ReceiveRing};
use crate::frames::port::Delivered;
use crate::frames::stats::PortCounters;
use crate::threads::lock::lock_settled;

/// A receive queue.
#[derive(Debug)]
pub struct ReceiveQueue<R> {
    /// The port's part of the queue.
    pub queue: R,
    /// The calls to the guest.
    pub calls: ReceiveCalls,
    /// Batches that workers are copying.
    order: FillOrder<Filled>,
    /// Chains placed in rings that have stopped.
    placed_before: u64,
    /// True if the ring must stop: no new batch begins, so that those under way come to an end.
    closing: bool,
}

/// Frames that one worker fills in at a time.
#[derive(Debug, Clone, Copy)]
#[must_use = "its chains are never shown"]
pub struct Filled {
    chains: u16,
    batch: Batch,
    /// True if at least one of the frames waited for buffers before.
    parked: bool,
}

/// The part of a list of frames that a port has written.
#[derive(Debug, Clone, Copy)]
pub struct Written {
    /// The result for the list.
    pub dealt_with: Delivered,
    /// True if some frames of the list are not done.
    pub full: bool,
    /// Frames of the list that were put in.
    pub batch: Batch,
    /// The number of chains that these frames use.
    pub chains: u16,
    /// Packets that were merged from several frames' segments.
    pub merged: u64,
    /// True if at least one of the frames waited for buffers before.
    pub waited: bool,
}

impl<R: ReceiveRing> ReceiveQueue<R> {
    /// A queue without placed frames.
    pub fn new(queue: R, calls: &CallPolicy) -> Self {
        Self {
            queue,
            calls: ReceiveCalls::new(calls),
            order: FillOrder::default(),
            placed_before: 0,
            closing: false,
        }
    }

    /// True if frames can be placed, as far as the queue itself decides. The ring must allow it too.
    #[inline]
    pub fn is_open(&self) -> bool {
        !self.closing
    }

    /// True if no worker copies into the ring.
    #[inline]
    pub fn is_settled(&self) -> bool {
        self.order.is_idle()
    }

    /// The number of chains of all frames ever placed, in all rings of the queue so far.
    pub fn placed(&self) -> u64 {
        self.placed_before + self.queue.placed()
    }

    /// Counts the frames that a worker has `written`. Returns the result for the worker's list, and the frames: they are
    /// [shown](Self::show), or [begun](Self::begin) if some of their bytes are still to be copied.
    ///
    /// # Errors
    /// The guest broke a rule.
    #[inline(always)]
    pub fn place(
        &mut self,
        index: usize,
        written: Written,
        counters: &PortCounters,
    ) -> Result<(Delivered, Filled), R::Error> {
        let Written { dealt_with, full, batch, chains, merged, waited: parked } = written;
        let worth_waiting = self.calls.note_full(full, batch.frames > 0);
        // The request for a kick is made under the same lock as the check that found too few buffers. In between,
        // another worker could take the buffers that the kick announces.
        let again = full && worth_waiting && self.queue.arm(index)?;
        counters.rx[index].frames.add_alone(batch.frames.into());
        counters.rx[index].bytes.add_alone(batch.bytes);
        counters.merged(merged);
        Ok((Delivered { worth_waiting, again, ..dealt_with }, Filled { chains, batch, parked }))
    }

    /// Gives frames that are about to be copied their place in the order.
    pub fn begin(&mut self, filled: Filled) -> Place {
        self.order.begin(filled.chains, filled)
    }

    /// True if a place belongs to the ring that is in service.
    pub fn has(&self, place: &Place) -> bool {
        self.order.has(place)
    }

    /// Ends the copy of a batch: shows the guest, with one index write, all frames that are now complete up to this
    /// batch, and asks the policy about the call. Returns the time to ask again, if a timer must be set.
    ///
    /// # Errors
    /// The copied frames cannot be trusted.
    #[inline(never)]
    pub fn finish(
        &mut self,
        index: usize,
        place: Place,
        counters: &PortCounters,
    ) -> Result<Option<u64>, R::Error> {
        let batch = Batch { frames: 0, bytes: 0, arrived_ns: u64::MAX };
        let mut all = Filled { chains: 0, batch, parked: false };
        all.chains = self.order.finish(place, |Filled { batch, parked, .. }| {
            all.batch.frames += batch.frames;
            all.batch.bytes += batch.bytes;
            all.batch.arrived_ns = all.batch.arrived_ns.min(batch.arrived_ns);
            all.parked |= parked;
        });
        self.publish(index, all, counters)
    }

    /// As [`finish`](Self::finish), for frames of which nothing is left to copy.
    ///
    /// # Errors
    /// As for [`finish`](Self::finish).
    #[inline(always)]
    pub fn show(
        &mut self,
        index: usize,
        filled: Filled,
        counters: &PortCounters,
    ) -> Result<Option<u64>, R::Error> {
        if self.order.is_idle() {
            return self.publish(index, filled, counters);
        }
        let place = self.begin(filled);
        self.finish(index, place, counters)
    }

    #[inline(always)]
    fn publish(
        &mut self,
        index: usize,
        filled: Filled,
        counters: &PortCounters,
    ) -> Result<Option<u64>, R::Error> {
        let Filled { chains, batch, parked } = filled;
        let Self { calls, queue, .. } = self;
        queue.check()?;
        if batch.frames > 0 {
            calls.look_for_poll(index, queue, counters);
        }
        Ok(calls.complete(index, queue, chains, batch, parked, counters))
    }

    /// See [`Port::expired`](crate::Port::expired).
    pub fn expired(&mut self, index: usize, by_ns: u64, counters: &PortCounters) -> Option<u64> {
        self.calls.expired(index, &mut self.queue, by_ns, counters)
    }

    /// Makes a held call now.
    pub fn flush(&mut self, index: usize, counters: &PortCounters) {
        self.calls.flush(index, &mut self.queue, counters);
    }

    /// Replaces the policy; returns the old one.
    pub fn set_moderation(
        &mut self,
        index: usize,
        moderation: Box<dyn Moderation>,
        calls: &CallPolicy,
        counters: &PortCounters,
    ) -> Box<dyn Moderation> {
        let Self { calls: of_queue, queue, .. } = self;
        of_queue.set_moderation(index, queue, moderation, calls, counters)
    }
}

/// Locks a queue once workers have finished their placed frames, and no new ones come. Makes a held call. Then nothing
/// is pending, and the ring can go out of service.
pub fn stop<'q, R: ReceiveRing>(
    queue: &'q Mutex<ReceiveQueue<R>>,
    has_failed: impl Fn() -> bool,
    index: usize,
    counters: &PortCounters,
) -> MutexGuard<'q, ReceiveQueue<R>> {
    let mut queue = settle(queue, has_failed, index, counters);
    queue.calls.reset();
    queue.placed_before = queue.placed();
    queue
}

/// Like [`stop`], for a ring that goes out of service for a while and then continues.
pub fn settle<'q, R: ReceiveRing>(
    queue: &'q Mutex<ReceiveQueue<R>>,
    has_failed: impl Fn() -> bool,
    index: usize,
    counters: &PortCounters,
) -> MutexGuard<'q, ReceiveQueue<R>> {
    // A worker that copies into the ring is done soon; a worker that panicked has failed the port.
    let close = |queue: &mut ReceiveQueue<R>| queue.closing = true;
    let mut queue = lock_settled(queue, has_failed, close, |queue| queue.order.is_idle());
    queue.flush(index, counters);
    queue.closing = false;
    queue.order.clear();
    queue
}
