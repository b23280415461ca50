//! Receive queues: from a burst into a guest's pages, by one grant copy, and the guest's event. A writer assigns the
//! bytes of the burst to pages.
//!
//! ```text
//! place()    under the queue's lock   requests for every frame, and responses that nobody sees yet
//! copy()     no lock                  one grant copy, so that several workers fill one queue at a time
//! finish()   under the lock           errors of grants into the responses; one index write, in the order of place();
//!                                     the event
//! ```
//!
//! [`weir_engine::queue`] orders frames and decides when the guest gets its event.

use std::any::Any;
use std::fmt;
use std::mem::take;
use std::sync::Arc;

use weir_engine::burst::Burst;
use weir_engine::egress::{Packet, Put, filled};
use weir_engine::gro::EgressList;
use weir_engine::guest::{GuestRing, ReceiveRing};
use weir_engine::queue::{Place, ReceiveQueue, Written};
use weir_engine::stages::{self, Stage};
use weir_engine::{Delivered, DropReason, Outgoing, PortCounters, lock};
use weir_guestmem::{MappedPages, Slice, recycle};
use weir_limits::XEN_PAGE_LEN;
use weir_netif::{HashState, RingError, RxBack, RxMeta, RxSegment, Segment, copies};
use weir_policy::moderation::Batch;
use weir_wire::head::HEAD_CAPACITY;
use weir_wire::{Head, Mac, OffloadCaps};
use weir_xen::{CopySegment, CopyStatus, Grant, GrantRef, Hypervisor};

use crate::control::{Groups, of_frame};
use crate::link::{Link, StopReason, Stopped};
use crate::port::{Pair, XenPort};
use crate::tx::{Haul, emptied};

pub(crate) use crate::tx::Context;

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

/// Features of a front end, as announced in xenstore.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Takes {
    /// Offloads that the front end takes.
    pub(crate) caps: OffloadCaps,
    /// A packet may span several pages.
    pub(crate) sg: bool,
}

/// Origin of a copy.
#[derive(Debug, Clone, Copy)]
pub(super) struct Owner {
    /// Index of the target page among the segments.
    pub(super) segment: u32,
    /// Number of the packet.
    pub(super) packet: u32,
    /// The buffer of the sender's pool that stands for the source, if the source is another guest's
    /// page.
    pub(super) buffer: Option<u16>,
}

/// Places packets in a ring, in order, and notes the copies that fill them.
pub(super) struct Writer<'r, 'm> {
    pub(super) back: &'r mut RxBack,
    pub(super) link: &'r Link,
    pub(super) takes: Takes,
    pub(super) groups: &'r Groups,
    /// The hash that the guest has set up.
    pub(super) hash: Option<&'r HashState>,
    /// Memory for the fronts of as many packets as the ring has entries. A grant copy needs memory
    /// with an address for the kernel.
    pub(super) fronts: &'m MappedPages,
    /// The senders' grants, for payload that is still in another guest's pages.
    pub(super) haul: Option<&'m Haul>,
    pub(super) pieces: Vec<Slice<'m>>,
    pub(super) segments: Vec<RxSegment>,
    pub(super) copies: Vec<CopySegment<'m>>,
    pub(super) owners: Vec<Owner>,
    pub(super) packets: u32,
    pub(super) bytes: u64,
    pub(super) broken: Option<RingError>,
    /// Reason for the last refused packet.
    pub(super) refused: Option<DropReason>,
}

/// Returns the frames of a burst that weir must read for a guest's ring (bit i: frame i): packets
/// with a checksum to fill in that netif cannot express.
pub(super) fn to_be_summed(burst: &Burst<'_>, frames: &[Outgoing]) -> u64 {
    let wanted = frames.iter().filter(|to| {
        burst.frames().get(usize::from(to.frame)).is_some_and(|frame| {
            !frame.offload.is_none()
                && frame.offload.gso().is_none()
                && RxMeta::new(&frame.offload, frame.head.as_slice()).is_none()
        })
    });
    wanted.fold(0, |bits, to| bits | 1 << to.frame)
}

/// Returns the length of the memory for the fronts of `packets` packets (bytes).
pub(super) fn fronts_len(packets: u32) -> usize {
    packets as usize * HEAD_CAPACITY
}

impl<'m> Writer<'_, 'm> {
    pub(super) fn put(&mut self, packet: &Packet<'_, 'm>) -> Put {
        match self.place(packet) {
            Ok(Put::Done) => {
                self.packets += 1;
                self.bytes += packet.frames_len() as u64;
                Put::Done
            }
            // Frames that are too large together may fit each by itself.
            Ok(Put::Refused) if packet.frames > 1 => Put::Full,
            Ok(put) => put,
            Err(error) => {
                self.broken = Some(error);
                Put::Full
            }
        }
    }

    fn place(&mut self, packet: &Packet<'_, 'm>) -> Result<Put, RingError> {
        let mut head: &Head = packet.head;
        let to = head.as_slice().first_chunk::<6>().map_or(Mac::BROADCAST, |to| Mac(*to));
        if !self.groups.wants(to) {
            return Ok(self.refuse(DropReason::MulticastUnwanted));
        }
        let len = packet.len() as u32; // a packet is shorter than 2^17
        if !self.takes.sg && len as usize > XEN_PAGE_LEN {
            return Ok(self.refuse(DropReason::RxBufferTooSmall));
        }
        let whole;
        let meta = match RxMeta::new(packet.offload, head.as_slice()) {
            Some(meta) => meta,
            // A checksum that netif cannot express, such as one inside a tunnel.
            None if packet.offload.gso().is_none() && self.is_here(packet) => {
                match filled(packet) {
                    Ok(done) => {
                        whole = done;
                        head = &whole;
                        RxMeta::default()
                    }
                    Err(reason) => return Ok(self.refuse(reason)),
                }
            }
            None => return Ok(self.refuse(DropReason::OffloadUnsupported)),
        };
        let meta = match self.hash.and_then(|hash| of_frame(hash, head.as_slice())) {
            Some(hash) => meta.with_hash(hash),
            None => meta,
        };
        let first = self.segments.len();
        if !self.back.place(len, &meta, &mut self.segments) {
            self.back.ring().refill()?;
            if !self.back.place(len, &meta, &mut self.segments) {
                return Ok(Put::Full);
            }
        }
        self.note(packet, head, first);
        Ok(Put::Done)
    }

    /// Returns true if all of the packet's payload can be read.
    fn is_here(&self, packet: &Packet<'_, 'm>) -> bool {
        self.haul.is_none_or(|haul| packet.body().all(|piece| !haul.is_away(&piece)))
    }

    fn refuse(&mut self, reason: DropReason) -> Put {
        self.refused = Some(reason);
        Put::Refused
    }

    /// Notes the copies of a packet to the segments from `first` on.
    fn note(&mut self, packet: &Packet<'_, 'm>, head: &Head, first: usize) {
        let front = head.as_slice();
        let at = self.packets as usize * HEAD_CAPACITY;
        self.pieces.clear();
        // Each packet has room: it took at least one entry of the ring.
        if let Some(copy) = self.fronts.slice(at, front.len()) {
            copy.write(front);
            self.pieces.push(copy);
        }
        self.pieces.extend(packet.body());
        let lens = self.pieces.iter().map(|piece| u32::try_from(piece.len()).unwrap_or(u32::MAX));
        let pages = self.segments.get(first..).unwrap_or_default();
        let mut segment = first as u32; // at most as many as the ring has entries
        let before = self.copies.len();
        for copy in copies(lens, pages.iter().map(|page| page.segment)) {
            let Segment { gref: to, offset, len } = copy.to;
            // A page's copies begin at its start.
            if self.copies.len() > before && offset == 0 {
                segment += 1;
            }
            let Some(piece) = self.pieces.get(copy.piece) else { continue };
            let from = piece.skip(copy.at as usize).first(len.into());
            let reference = GrantRef(to);
            let to = Grant { domain: self.link.domain, reference, offset };
            let foreign = self.haul.and_then(|haul| haul.grant_of(&from));
            // The copy is within its page, as `copies` ensures.
            let copy = match foreign {
                Some((_, grant)) => CopySegment::between_grants(grant, to, from.len()),
                None => CopySegment::to_grant(from, to),
            };
            if let Some(copy) = copy {
                self.copies.push(copy);
                let buffer = foreign.map(|(buffer, _)| buffer);
                self.owners.push(Owner { segment, packet: self.packets, buffer });
            }
        }
    }
}
