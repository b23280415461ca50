//! Assigns the bytes of a burst to the guest's pages.

use weir_engine::burst::Burst;
use weir_engine::egress::{Packet, Put, filled};
use weir_engine::{DropReason, Outgoing};
use weir_guestmem::{MappedPages, Slice};
use weir_limits::XEN_PAGE_LEN;
use weir_netif::{HashState, RingError, RxBack, RxMeta, RxSegment, Segment, copies};
use weir_wire::head::HEAD_CAPACITY;
use weir_wire::{Head, Mac, OffloadCaps};
use weir_xen::{CopySegment, Grant, GrantRef};

use crate::control::of_frame;
use crate::link::Link;
use crate::multicast::Groups;
use crate::tx::Haul;

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
