//! Receive queues: from a burst into a guest's pages, by one grant copy, and the guest's event.
//!
//! ```text
//! place()    under the queue's lock   requests for every frame, and responses that nobody sees yet
//! copy()     no lock                  one grant copy, so that several workers fill one queue at a time
//! finish()   under the lock           which grants were none, said in the responses; one index write, in the order
//!                                     of place(); the event
//! ```
//!
//! When the guest gets its event: [`weir_engine::guest`].

mod writer;

use std::any::Any;
use std::fmt;
use std::mem::take;
use std::sync::Arc;

use weir_engine::burst::Burst;
use weir_engine::egress::Emitted;
use weir_engine::gro::EgressList;
use weir_engine::guest::{CallPolicy, GuestRing, ReceiveCalls, ReceiveRing};
use weir_engine::stages::{self, Stage};
use weir_engine::{Delivered, DropReason, Outgoing, PortCounters, lock, lock_settled};
use weir_guestmem::{HostPages, Slice, recycle};
use weir_netif::{RxBack, RxSegment};
use weir_policy::moderation::{Batch, GuestPoll, Moderation};
use weir_policy::steering::Mark;
use weir_ring::{FillOrder, Place};
use weir_xen::{CopySegment, CopyStatus, Hypervisor};

pub(crate) use self::writer::Takes;
use self::writer::{Owner, Writer, fronts_len, to_be_summed};
use crate::connect::Link;
use crate::error::StopReason;
use crate::port::{Pair, XenPort};
pub(crate) use crate::tx::Context;
use crate::tx::{Haul, emptied};

/// A ring in service.
pub(crate) struct RxRing {
    back: RxBack,
    pub(crate) link: Link,
    takes: Takes,
    /// Responses written since it is in service.
    placed: u64,
    /// Batches that workers are copying.
    order: FillOrder<Filled>,
    /// Room for batches: for as many as were copied at a time.
    rooms: Vec<Room>,
}

/// Frames that one worker fills in at a time.
#[derive(Debug, Clone, Copy)]
struct Filled {
    batch: Batch,
    /// One of them waited for buffers before.
    parked: bool,
}

/// Room for a batch.
pub(crate) struct Room {
    /// Memory for fronts.
    fronts: Arc<HostPages>,
    segments: Vec<RxSegment>,
    owners: Vec<Owner>,
    copies: Vec<CopySegment<'static>>,
    pieces: Vec<Slice<'static>>,
}

impl Room {
    fn new(ring_size: u32) -> std::io::Result<Self> {
        Ok(Self {
            fronts: Arc::new(HostPages::new(fronts_len(ring_size))?),
            segments: Vec::with_capacity(ring_size as usize),
            owners: Vec::new(),
            copies: Vec::new(),
            pieces: Vec::new(),
        })
    }

    /// Memory of the fronts, for as long as a batch borrows it.
    pub(crate) fn fronts(&self) -> Arc<HostPages> {
        Arc::clone(&self.fronts)
    }
}

/// A batch that was placed: to be copied without the queue's lock, then to be [finished](RxQueue::finish).
pub(crate) struct Copies<'m> {
    /// What is kept between batches; the copies are in `segments`.
    room: Room,
    segments: Vec<CopySegment<'m>>,
    /// The system call did what it says of each.
    known: bool,
    /// Who knows of senders' grants.
    haul: Option<&'m Haul>,
    place: Place,
    /// [`RxQueue::stopped`] when it was placed.
    stopped: u64,
}

impl Copies<'_> {
    /// The copy into the guest's pages.
    pub(crate) fn copy(&mut self, hypervisor: &dyn Hypervisor) {
        self.known = self.segments.is_empty() || hypervisor.copy(&mut self.segments).is_ok();
        stages::lap(Stage::Copy);
    }

    fn failed(&self) -> impl Iterator<Item = &Owner> {
        let copies = self.segments.iter().zip(&self.room.owners);
        let failed = copies.filter(|(copy, _)| !self.known || copy.status() != CopyStatus::Done);
        failed.map(|(_, owner)| owner)
    }
}

impl RxRing {
    /// A ring with nothing under way.
    ///
    /// # Errors
    /// There is no memory.
    pub(crate) fn new(mut back: RxBack, link: Link, takes: Takes) -> std::io::Result<Self> {
        let rooms = vec![Room::new(back.ring().size())?];
        Ok(Self { back, link, takes, placed: 0, order: FillOrder::default(), rooms })
    }

    /// Says in the responses which copies failed. Such a packet is its receiver's loss, unless it is its sender's
    /// page that Xen refuses to read.
    #[cold]
    fn note_failed(&mut self, copies: &Copies<'_>, counters: &PortCounters) {
        if let Some(haul) = copies.haul.filter(|_| copies.known) {
            haul.blame(copies.failed().filter_map(|owner| owner.buffer));
        }
        let mut counted = None;
        for owner in copies.failed() {
            if let Some(segment) = copies.room.segments.get(owner.segment as usize) {
                self.back.copy_failed(segment);
            }
            let blamed = owner.buffer.zip(copies.haul);
            let sender = blamed.is_some_and(|(buffer, haul)| haul.is_bad(buffer));
            if !sender && counted.replace(owner.packet) != Some(owner.packet) {
                counters.dropped(DropReason::CopyFailed, 1);
            }
        }
    }
}

impl fmt::Debug for RxRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RxRing").field("back", &self.back).finish_non_exhaustive()
    }
}

impl GuestRing for RxRing {
    fn size(&mut self) -> u32 {
        self.back.ring().size()
    }

    fn call_if_wanted(&mut self) -> Option<bool> {
        self.link.call_if_wanted(self.back.ring())
    }
}

impl ReceiveRing for RxRing {
    fn show(&mut self, chains: u16) {
        self.back.ring().push_first(chains.into());
    }
}

/// A receive queue.
pub(crate) struct RxQueue {
    pub(crate) ring: Option<RxRing>,
    pub(crate) calls: ReceiveCalls,
    /// The guest polls on a timer of its own: it may have taken by itself what an event is held for.
    guest_polls: bool,
    /// Its ring is about to stop: nothing is placed any more.
    closing: bool,
    /// Rings that have stopped, and responses in them.
    stopped: u64,
    placed_before: u64,
}

impl RxQueue {
    pub(crate) fn new(calls: &CallPolicy) -> Self {
        let calls = ReceiveCalls::new(calls);
        Self { ring: None, calls, guest_polls: false, closing: false, stopped: 0, placed_before: 0 }
    }

    /// See [`weir_policy::steering::Receiver`].
    pub(crate) fn mark(&self) -> Mark {
        let placed = self.ring.as_ref().map_or(0, |ring| ring.placed);
        // Events tell by themselves how old they are: an index of 32 bits does not come round soon.
        Mark { placed: self.placed_before + placed, event: None }
    }

    /// See [`weir_policy::steering::Receiver`]. With no ring there is nobody who could take a thing.
    pub(crate) fn has_taken(&mut self, placed: u64) -> bool {
        let now = self.mark();
        let Some(ring) = self.ring.as_mut() else { return true };
        now.placed.saturating_sub(ring.back.ring().untaken_max().into()) >= placed
    }

    /// The guest can receive.
    pub(crate) fn is_ready(&self) -> bool {
        self.ring.is_some()
    }

    /// Room for a batch; `None` while nothing can be placed.
    ///
    /// # Errors
    /// There is no memory.
    pub(crate) fn room(&mut self) -> Result<Option<Room>, StopReason> {
        let Some(ring) = self.ring.as_mut().filter(|_| !self.closing) else { return Ok(None) };
        let size = ring.back.ring().size();
        let room = ring.rooms.pop().map_or_else(|| Room::new(size), Ok);
        room.map(Some).map_err(|error| StopReason::Internal(format!("memory for a batch: {error}")))
    }

    /// Places frames in the ring: see [`weir_engine::Port::deliver`]. `fronts` is the room's
    /// [memory](Room::fronts). A batch is to be copied, and then to be finished.
    pub(crate) fn place<'m>(
        &mut self,
        context: Context<'_>,
        mut room: Room,
        fronts: &'m HostPages,
        burst: &'m Burst<'m>,
        frames: &'m [Outgoing],
    ) -> Result<(Delivered, Option<Copies<'m>>), StopReason> {
        let Context { index, groups, hash, counters } = context;
        let Some(ring) = self.ring.as_mut() else { return Ok((Delivered::default(), None)) };
        let haul = burst.remote().and_then(|remote| (remote as &dyn Any).downcast_ref::<Haul>());
        room.segments.clear();
        room.owners.clear();
        let hash = hash.load();
        let unpushed = ring.back.ring().next_index();
        let mut writer = Writer {
            back: &mut ring.back,
            link: &ring.link,
            takes: ring.takes,
            groups,
            hash: hash.as_ref().and_then(|hash| hash.as_deref()),
            fronts,
            haul,
            pieces: recycle(take(&mut room.pieces)),
            segments: take(&mut room.segments),
            copies: emptied(take(&mut room.copies)),
            owners: take(&mut room.owners),
            packets: 0,
            bytes: 0,
            broken: None,
            refused: None,
        };
        let mut list = EgressList::new(burst, frames, ring.takes.caps);
        let mut delivered_frames = 0;
        let mut arrived_ns = u64::MAX;
        loop {
            let before = writer.packets;
            let Some(sent) = list.emit_next(|packet| writer.put(&packet)) else { break };
            match sent.result {
                Ok(Emitted::Done { lost }) => {
                    counters.dropped(DropReason::RxRingFull, lost.into());
                }
                Ok(Emitted::Full) => break,
                Err(reason) => counters.dropped(reason, sent.frames.into()),
            }
            if let Some(reason) = writer.refused.take() {
                counters.dropped(reason, 1);
            }
            if writer.packets > before {
                delivered_frames += sent.frames;
                arrived_ns = arrived_ns.min(sent.arrived_ns);
            }
        }
        let dealt_with = list.delivered();
        counters.merged(list.merged());
        let Writer { pieces, copies: segments, bytes, broken, .. } = writer;
        (room.segments, room.owners, room.pieces) =
            (writer.segments, writer.owners, recycle(pieces));
        if let Some(error) = broken {
            return Err(StopReason::rx(index)(error));
        }
        let responses = ring.back.ring().next_index().wrapping_sub(unpushed);
        ring.placed += u64::from(responses);

        let full = dealt_with.frames < frames.len();
        let worth_waiting = self.calls.note_full(full, delivered_frames > 0);
        // Under the same lock as the look that found too little.
        let again = full && worth_waiting && self.arm(index)?;
        counters.rx[index].frames.add(delivered_frames.into());
        counters.rx[index].bytes.add(bytes);
        let delivered = Delivered { worth_waiting, again, ..dealt_with };
        let Some(ring) = self.ring.as_mut() else { return Ok((delivered, None)) };
        let batch = Batch { frames: delivered_frames, bytes, arrived_ns };
        let filled = Filled { batch, parked: burst.waited };
        let responses = u16::try_from(responses).unwrap_or(u16::MAX);
        let place = ring.order.begin(responses, filled);
        let stopped = self.stopped;
        let copies = Copies { room, segments, known: true, haul, place, stopped };
        Ok((delivered, Some(copies)))
    }

    /// What was placed is copied: shows the guest all that is now complete up to it, with one index write, and
    /// asks the policy about the event. Says when to ask again, if a timer is to be set.
    pub(crate) fn finish(
        &mut self,
        index: usize,
        copies: Copies<'_>,
        counters: &PortCounters,
    ) -> Option<u64> {
        let ring = self.ring.as_mut().filter(|_| copies.stopped == self.stopped)?;
        if copies.failed().next().is_some() {
            ring.note_failed(&copies, counters);
        }
        let Copies { mut room, segments, place, .. } = copies;
        room.copies = emptied(segments);
        ring.rooms.push(room);
        let mut all = Batch { frames: 0, bytes: 0, arrived_ns: u64::MAX };
        let mut parked = false;
        let responses = ring.order.finish(place, |filled| {
            let Filled { batch, parked: one_waited } = filled;
            all.frames += batch.frames;
            all.bytes += batch.bytes;
            all.arrived_ns = all.arrived_ns.min(batch.arrived_ns);
            parked |= one_waited;
        });
        if self.guest_polls && all.frames > 0 {
            self.note_poll(index, counters);
        }
        let Self { calls, ring, .. } = self;
        calls.complete(index, ring, responses, all, parked, counters)
    }

    /// Ends a hold of what a guest that polls has taken by itself: what comes now is held anew.
    fn note_poll(&mut self, index: usize, counters: &PortCounters) {
        let Some(ring) = self.ring.as_mut().filter(|_| self.calls.is_pending()) else { return };
        if ring.back.ring().wants_notify() {
            return;
        }
        // So that the next look is about what is shown from now on.
        ring.back.ring().needs_notify();
        self.calls.polled(index, counters);
    }

    /// Asks for an event at the next buffer, and says whether one came since the last look.
    fn arm(&mut self, index: usize) -> Result<bool, StopReason> {
        let Some(ring) = self.ring.as_mut() else { return Ok(false) };
        let seen = ring.back.ring().available();
        let now = ring.back.ring().final_check().map_err(StopReason::rx(index))?;
        Ok(now > seen)
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

    /// Gives a held event now.
    pub(crate) fn flush(&mut self, index: usize, counters: &PortCounters) {
        self.calls.flush(index, &mut self.ring, counters);
    }

    /// Takes the ring out of service, with nothing held.
    fn stop(&mut self, index: usize, counters: &PortCounters) -> Option<RxRing> {
        self.closing = false;
        self.stopped += 1;
        self.calls.flush(index, &mut self.ring, counters);
        self.placed_before = self.mark().placed;
        self.calls.reset();
        self.ring.take()
    }

    /// Replaces the policy; gives back the old one.
    pub(crate) fn set_moderation(
        &mut self,
        index: usize,
        moderation: Box<dyn Moderation>,
        calls: &CallPolicy,
        counters: &PortCounters,
    ) -> Box<dyn Moderation> {
        let Self { calls: of_queue, ring, .. } = self;
        of_queue.set_moderation(index, ring, moderation, calls, counters)
    }

    /// The guest polls at this interval (ns), or no longer.
    pub(crate) fn set_guest_poll_ns(&mut self, poll_ns: Option<u64>) {
        self.guest_polls = poll_ns.is_some();
        // netfront asks for events while it polls.
        self.calls.set_guest_poll(poll_ns.map(|every_ns| GuestPoll { every_ns, asks: true }));
    }
}

impl XenPort {
    /// See [`weir_engine::Port::deliver`].
    pub(crate) fn fill(
        &self,
        pair: &Pair,
        context: Context<'_>,
        burst: &Burst<'_>,
        frames: &[Outgoing],
    ) -> Result<Delivered, StopReason> {
        let Context { index, counters, .. } = context;
        // Of another kind than this port's, if there is one.
        let is_known = burst.remote().is_some_and(|remote| (remote as &dyn Any).is::<Haul>());
        burst.fetch(if is_known { to_be_summed(burst, frames) } else { u64::MAX });
        let mut rx = lock(&pair.rx);
        // Kept while this worker copies without the lock.
        let Some(room) = rx.room()? else {
            counters.dropped(DropReason::RxNotReady, frames.len() as u64);
            return Ok(Delivered { frames: frames.len(), ..Delivered::default() });
        };
        let fronts = room.fronts();
        let (mut delivered, copies) = rx.place(context, room, &fronts, burst, frames)?;
        drop(rx);
        if let Some(mut copies) = copies {
            if delivered.frames == frames.len() {
                burst.placed();
            }
            copies.copy(self.hypervisor.as_ref());
            delivered.hold_until = lock(&pair.rx).finish(index, copies, counters);
        }
        Ok(delivered)
    }

    /// Takes a receive ring out of service, when workers have finished what they had placed.
    pub(crate) fn stop_rx(&self, index: usize, pair: &Pair) -> Option<RxRing> {
        let is_idle = |rx: &RxQueue| rx.ring.as_ref().is_none_or(|ring| ring.order.is_idle());
        // Nothing is copied that counts once the port has failed.
        let close = |rx: &mut RxQueue| rx.closing = true;
        let mut rx = lock_settled(&pair.rx, || self.has_failed(), close, is_idle);
        rx.stop(index, self.counters())
    }
}
