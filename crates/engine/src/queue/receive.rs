//! A receive queue: several workers put frames into it at a time, and the guest sees them in the order of placing.
//!
//! ```text
//! place()    under the queue's lock   chains for every frame; bytes at hand are written
//! copy       no lock                  the rest, so that several workers fill one queue at a time
//! finish()   under the lock           one index write, in the order of place(); the call
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
struct Filled {
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

    /// Gives the frames that a worker has `written`, and is about to copy, their place in the order. Returns the result
    /// for the worker's list.
    ///
    /// # Errors
    /// The guest broke a rule.
    #[inline(always)]
    pub fn place(
        &mut self,
        index: usize,
        written: Written,
        counters: &PortCounters,
    ) -> Result<(Delivered, Place), R::Error> {
        let Written { dealt_with, full, batch, chains, merged, waited } = written;
        let worth_waiting = self.calls.note_full(full, batch.frames > 0);
        // The request for a kick is made under the same lock as the check that found too few buffers. In between,
        // another worker could take the buffers that the kick announces.
        let again = full && worth_waiting && self.queue.arm(index)?;
        counters.rx[index].frames.add(batch.frames.into());
        counters.rx[index].bytes.add(batch.bytes);
        counters.merged(merged);
        let place = self.order.begin(chains, Filled { batch, parked: waited });
        Ok((Delivered { worth_waiting, again, ..dealt_with }, place))
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
    #[inline(always)]
    pub fn finish(
        &mut self,
        index: usize,
        place: Place,
        counters: &PortCounters,
    ) -> Result<Option<u64>, R::Error> {
        let mut all = Batch { frames: 0, bytes: 0, arrived_ns: u64::MAX };
        let mut parked = false;
        let chains = self.order.finish(place, |filled| {
            let Filled { batch, parked: one_waited } = filled;
            all.frames += batch.frames;
            all.bytes += batch.bytes;
            all.arrived_ns = all.arrived_ns.min(batch.arrived_ns);
            parked |= one_waited;
        });
        let Self { calls, queue, .. } = self;
        queue.check()?;
        if all.frames > 0 {
            calls.look_for_poll(index, queue, counters);
        }
        Ok(calls.complete(index, queue, chains, all, parked, counters))
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
    // A worker that copies into the ring is done soon; a worker that panicked has failed the port.
    let close = |queue: &mut ReceiveQueue<R>| queue.closing = true;
    let mut queue = lock_settled(queue, has_failed, close, |queue| queue.order.is_idle());
    queue.flush(index, counters);
    queue.calls.reset();
    queue.closing = false;
    queue.placed_before = queue.placed();
    queue.order.clear();
    queue
}
