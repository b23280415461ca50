//! Receive queues: from a burst into a guest's pages, by one grant copy, and the guest's event.
//!
//! ```text
//! place()    under the queue's lock   requests for every frame, and responses that nobody sees yet
//! copy()     no lock                  one grant copy, so that several workers fill one queue at a time
//! finish()   under the lock           errors of grants into the responses; one index write, in the order of place(); the event
//! ```
//!
//! [`weir_engine::queue`] orders frames and decides when the guest gets its event.

mod writer;

use std::any::Any;
use std::fmt;
use std::mem::take;
use std::sync::Arc;

use weir_engine::burst::Burst;
use weir_engine::gro::EgressList;
use weir_engine::guest::{GuestRing, ReceiveRing};
use weir_engine::queue::{Place, ReceiveQueue, Written};
use weir_engine::stages::{self, Stage};
use weir_engine::{Delivered, DropReason, Outgoing, PortCounters, lock};
use weir_guestmem::{MappedPages, Slice, recycle};
use weir_netif::{RxBack, RxSegment};
use weir_policy::moderation::Batch;
use weir_xen::{CopySegment, CopyStatus, Hypervisor};

pub(crate) use self::writer::Takes;
use self::writer::{Owner, Writer, fronts_len, to_be_summed};
use crate::link::Link;
use crate::link::{StopReason, Stopped};
use crate::port::{Pair, XenPort};
pub(crate) use crate::tx::Context;
use crate::tx::{Haul, emptied};

pub(crate) struct RxRing {
    back: RxBack,
    pub(crate) link: Link,
    takes: Takes,
    /// Total of responses written since the ring went into service.
    placed: u64,
    /// Memory for batches: one for each concurrent copy.
    rooms: Vec<Room>,
}

/// Reusable memory of a batch.
pub(crate) struct Room {
    /// Memory for packets' fronts.
    fronts: Arc<MappedPages>,
    segments: Vec<RxSegment>,
    owners: Vec<Owner>,
    copies: Vec<CopySegment<'static>>,
    pieces: Vec<Slice<'static>>,
}

impl Room {
    fn new(ring_size: u32) -> std::io::Result<Self> {
        Ok(Self {
            fronts: Arc::new(MappedPages::new(fronts_len(ring_size))?),
            segments: Vec::with_capacity(ring_size as usize),
            owners: Vec::new(),
            copies: Vec::new(),
            pieces: Vec::new(),
        })
    }

    /// Returns the memory of the fronts, for as long as a batch borrows it.
    pub(crate) fn fronts(&self) -> Arc<MappedPages> {
        Arc::clone(&self.fronts)
    }
}

/// A placed batch, to be copied without the queue's lock, then to be [finished](finish).
pub(crate) struct Copies<'m> {
    /// Memory that is kept between batches; the copies are in `segments`.
    room: Room,
    segments: Vec<CopySegment<'m>>,
    /// The system call has set each segment's status.
    known: bool,
    /// The burst's grants, if the senders are Xen guests.
    haul: Option<&'m Haul>,
    place: Place,
}

impl Copies<'_> {
    /// Copies the bytes into the guest's pages.
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
    /// Returns a ring without batches under way.
    pub(crate) fn new(mut back: RxBack, link: Link, takes: Takes) -> std::io::Result<Self> {
        let rooms = vec![Room::new(back.ring().size())?];
        Ok(Self { back, link, takes, placed: 0, rooms })
    }

    /// Marks failed copies in the responses. Such a packet is its receiver's loss, unless Xen
    /// refuses to read its sender's page.
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
    type Error = StopReason;

    fn is_ready(&self) -> bool {
        true
    }

    fn show(&mut self, chains: u16) {
        self.back.ring().push_first(chains.into());
    }

    fn arm(&mut self, index: usize) -> Result<bool, StopReason> {
        let seen = self.back.ring().available();
        let now = self.back.ring().final_check().map_err(StopReason::rx(index))?;
        Ok(now > seen)
    }

    fn placed(&self) -> u64 {
        self.placed
    }

    fn has_polled(&mut self) -> bool {
        let has_polled = !self.back.ring().wants_notify();
        if has_polled {
            // From here on the next check concerns only later responses.
            self.back.ring().needs_notify();
        }
        has_polled
    }
}

pub(crate) type RxQueue = ReceiveQueue<Option<RxRing>>;

/// See [`weir_policy::steering::Receiver`]. Without a ring nobody could take a frame.
pub(crate) fn has_taken(rx: &mut RxQueue, placed: u64) -> bool {
    let now = rx.placed();
    let Some(ring) = rx.queue.as_mut() else { return true };
    now.saturating_sub(ring.back.ring().untaken_max().into()) >= placed
}

/// Returns memory for a batch; `None` while nothing can be placed.
fn room(rx: &mut RxQueue) -> Result<Option<Room>, StopReason> {
    let is_open = rx.is_open();
    let Some(ring) = rx.queue.as_mut().filter(|_| is_open) else { return Ok(None) };
    let size = ring.back.ring().size();
    let room = ring.rooms.pop().map_or_else(|| Room::new(size), Ok);
    room.map(Some).map_err(|error| StopReason::Internal(format!("memory for a batch: {error}")))
}

/// Places frames in the ring: see [`weir_engine::Port::deliver`]. `fronts` is the room's
/// [memory](Room::fronts). The batch must then be copied and finished. The function exceeds a
/// screen, since half of it sets up the writer and takes its result.
fn place<'m>(
    rx: &mut RxQueue,
    context: Context<'_>,
    mut room: Room,
    fronts: &'m MappedPages,
    burst: &'m Burst<'m>,
    frames: &'m [Outgoing],
) -> Result<(Delivered, Option<Copies<'m>>), StopReason> {
    let Context { index, groups, hash, counters } = context;
    let Some(ring) = rx.queue.as_mut() else { return Ok((Delivered::default(), None)) };
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
        if !sent.settle(counters) {
            break;
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
    let merged = list.merged();
    let Writer { pieces, copies: segments, bytes, broken, .. } = writer;
    (room.segments, room.owners, room.pieces) = (writer.segments, writer.owners, recycle(pieces));
    if let Some(error) = broken {
        return Err(StopReason::rx(index)(error));
    }
    let responses = ring.back.ring().next_index().wrapping_sub(unpushed);
    ring.placed += u64::from(responses);
    let written = Written {
        dealt_with,
        full: dealt_with.frames < frames.len(),
        batch: Batch { frames: delivered_frames, bytes, arrived_ns },
        chains: u16::try_from(responses).unwrap_or(u16::MAX),
        merged,
        waited: burst.waited,
    };
    let (delivered, filled) = rx.place(index, written, counters)?;
    let place = rx.begin(filled);
    Ok((delivered, Some(Copies { room, segments, known: true, haul, place })))
}

/// Finishes a copied batch: see [`ReceiveQueue::finish`].
fn finish(
    rx: &mut RxQueue,
    index: usize,
    copies: Copies<'_>,
    counters: &PortCounters,
) -> Result<Option<u64>, StopReason> {
    let is_of_ring = rx.has(&copies.place);
    let Some(ring) = rx.queue.as_mut().filter(|_| is_of_ring) else { return Ok(None) };
    if copies.failed().next().is_some() {
        ring.note_failed(&copies, counters);
    }
    let Copies { mut room, segments, place, .. } = copies;
    room.copies = emptied(segments);
    ring.rooms.push(room);
    rx.finish(index, place, counters)
}

impl XenPort {
    /// See [`weir_engine::Port::deliver`].
    pub(crate) fn fill(
        &self,
        pair: &Pair,
        context: Context<'_>,
        burst: &Burst<'_>,
        frames: &[Outgoing],
    ) -> Result<Delivered, Stopped> {
        let stop = |reason: StopReason| self.stop(&reason);
        let Context { index, counters, .. } = context;
        // The sender may be of another kind of port.
        let is_known = burst.remote().is_some_and(|remote| (remote as &dyn Any).is::<Haul>());
        burst.fetch(if is_known { to_be_summed(burst, frames) } else { u64::MAX });
        let mut rx = lock(&pair.rx);
        // The memory is held while this worker copies without the lock.
        let Some(room) = room(&mut rx).map_err(stop)? else {
            counters.dropped(DropReason::RxNotReady, frames.len() as u64);
            return Ok(Delivered { frames: frames.len(), ..Delivered::default() });
        };
        let fronts = room.fronts();
        let placed = place(&mut rx, context, room, &fronts, burst, frames);
        let (mut delivered, copies) = placed.map_err(stop)?;
        drop(rx);
        if let Some(mut copies) = copies {
            if delivered.frames == frames.len() {
                burst.placed();
            }
            copies.copy(self.hypervisor.as_ref());
            let mut rx = lock(&pair.rx);
            delivered.hold_until = finish(&mut rx, index, copies, counters).map_err(stop)?;
        }
        Ok(delivered)
    }
}
