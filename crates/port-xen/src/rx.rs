//! Receive queues: from a burst into a guest's pages, by one grant copy, and the guest's event.
//!
//! The queue's lock is held during the copy: whether the guest's grants are good is known after it, and
//! said in the responses before they are shown.
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
use weir_engine::{Delivered, DropReason, Outgoing, PortCounters};
use weir_guestmem::{HostPages, Slice, recycle};
use weir_netif::{RxBack, RxSegment};
use weir_policy::moderation::{Batch, Moderation};
use weir_policy::steering::Mark;
use weir_xen::{CopySegment, CopyStatus};

pub(crate) use self::writer::Takes;
use self::writer::{Owner, Writer, fronts_len, to_be_summed};
use crate::connect::Link;
use crate::error::StopReason;
pub(crate) use crate::tx::Context;
use crate::tx::{Pool, emptied};

/// A ring in service.
pub(crate) struct RxRing {
    back: RxBack,
    pub(crate) link: Link,
    takes: Takes,
    fronts: Arc<HostPages>,
    /// Responses written since it is in service.
    placed: u64,
    /// Room that is kept between bursts.
    segments: Vec<RxSegment>,
    owners: Vec<Owner>,
    copies: Vec<CopySegment<'static>>,
    pieces: Vec<Slice<'static>>,
}

impl RxRing {
    /// A ring with nothing under way.
    ///
    /// # Errors
    /// There is no memory.
    pub(crate) fn new(mut back: RxBack, link: Link, takes: Takes) -> std::io::Result<Self> {
        let size = back.ring().size();
        Ok(Self {
            back,
            link,
            takes,
            fronts: Arc::new(HostPages::new(fronts_len(size))?),
            placed: 0,
            segments: Vec::with_capacity(size as usize),
            owners: Vec::new(),
            copies: Vec::new(),
            pieces: Vec::new(),
        })
    }

    /// Says in the responses which copies failed. Such a packet is its receiver's loss, unless it is its sender's
    /// page that Xen refuses to read.
    #[cold]
    fn note_failed(
        &mut self,
        copies: &[CopySegment<'_>],
        known: bool,
        pool: Option<&Pool>,
        counters: &PortCounters,
    ) {
        let has_failed =
            |(copy, _): &(&CopySegment<'_>, &Owner)| !known || copy.status() != CopyStatus::Done;
        let failed = || copies.iter().zip(&self.owners).filter(has_failed);
        let blamed = |owner: &Owner| owner.buffer.zip(pool);
        if let Some(pool) = pool.filter(|_| known) {
            pool.blame(failed().filter_map(|(_, owner)| owner.buffer));
        }
        let mut counted = None;
        for (_, owner) in failed() {
            if let Some(segment) = self.segments.get(owner.segment as usize) {
                self.back.copy_failed(segment);
            }
            let sender = blamed(owner).is_some_and(|(buffer, pool)| pool.is_bad(buffer));
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
    /// All that there is: what is withheld is shown together.
    fn show(&mut self, _chains: u16) {
        self.back.ring().push();
    }
}

/// A receive queue.
pub(crate) struct RxQueue {
    pub(crate) ring: Option<RxRing>,
    pub(crate) calls: ReceiveCalls,
    /// The guest polls on a timer of its own: it may have taken by itself what an event is held for.
    guest_polls: bool,
    /// Responses in rings that have stopped.
    placed_before: u64,
}

impl RxQueue {
    pub(crate) fn new(calls: &CallPolicy) -> Self {
        let calls = ReceiveCalls::new(calls);
        Self { ring: None, calls, guest_polls: false, placed_before: 0 }
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

    /// Memory of the ring's fronts, for as long as a batch borrows it.
    pub(crate) fn fronts(&self) -> Option<Arc<HostPages>> {
        self.ring.as_ref().map(|ring| Arc::clone(&ring.fronts))
    }

    /// See [`weir_engine::Port::deliver`]. `fronts` is the queue's [memory](Self::fronts).
    pub(crate) fn deliver<'m>(
        &mut self,
        context: Context<'_>,
        fronts: &'m HostPages,
        burst: &'m Burst<'m>,
        frames: &'m [Outgoing],
        now_ns: u64,
    ) -> Result<Delivered, StopReason> {
        let Context { index, groups, hash, counters } = context;
        let Some(ring) = self.ring.as_mut() else { return Ok(Delivered::default()) };
        let pool = burst.remote().and_then(|remote| (remote as &dyn Any).downcast_ref::<Pool>());
        if pool.is_some() {
            burst.fetch(to_be_summed(burst, frames));
        } else {
            // Of another kind, if there is one.
            burst.fetch(u64::MAX);
        }
        ring.segments.clear();
        ring.owners.clear();
        let hash = hash.load();
        let unpushed = ring.back.ring().next_index();
        let mut writer = Writer {
            back: &mut ring.back,
            link: &ring.link,
            takes: ring.takes,
            groups,
            hash: hash.as_ref().and_then(|hash| hash.as_deref()),
            fronts,
            pool,
            pieces: recycle(take(&mut ring.pieces)),
            segments: &mut ring.segments,
            copies: emptied(take(&mut ring.copies)),
            owners: &mut ring.owners,
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
        let Writer { pieces, mut copies, bytes, broken, .. } = writer;
        if let Some(error) = broken {
            return Err(StopReason::rx(index)(error));
        }
        let known = copies.is_empty() || ring.link.copy(&mut copies);
        let all_done = copies.iter().all(|copy| copy.status() == CopyStatus::Done);
        if !(known && all_done) {
            ring.note_failed(&copies, known, pool, counters);
        }
        (ring.pieces, ring.copies) = (recycle(pieces), emptied(copies));
        stages::lap(Stage::Copy);
        let responses = ring.back.ring().next_index().wrapping_sub(unpushed);
        ring.placed += u64::from(responses);

        let full = dealt_with.frames < frames.len();
        let worth_waiting = self.calls.note_full(full, delivered_frames > 0, now_ns);
        // Under the same lock as the look that found too little.
        let again = full && worth_waiting && self.arm(index)?;
        counters.rx[index].frames.add(delivered_frames.into());
        counters.rx[index].bytes.add(bytes);
        let batch = Batch { frames: delivered_frames, bytes, arrived_ns };
        if self.guest_polls && batch.frames > 0 {
            self.note_poll(index, counters);
        }
        let Self { calls, ring, .. } = self;
        let responses = u16::try_from(responses).unwrap_or(u16::MAX);
        let hold_until = calls.complete(index, ring, responses, batch, burst.waited, counters);
        Ok(Delivered { worth_waiting, again, hold_until, ..dealt_with })
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

    /// Takes the ring out of service, with nothing held.
    pub(crate) fn stop(&mut self, index: usize, counters: &PortCounters) -> Option<RxRing> {
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
        self.calls.set_guest_poll_ns(poll_ns);
    }
}
