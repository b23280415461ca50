//! Frames that ports add to a burst: each front is copied out and checked.

use weir_guestmem::Slice;
use weir_limits::{FILTER_WINDOW_LEN, FRAME_LEN_MAX, FRAME_LEN_MIN, HEAD_LEN};
use weir_wire::checksum::nonzero;
use weir_wire::vlan::TAG_LEN;
use weir_wire::{
    CsumPartial, Ethernet, Head, Offload, OffloadError, Sum, TagProtocol, Tci, VnetHdr,
};

use super::{Burst, Frame, FrameError, OnWire, Pieces, TakenChain};
use crate::frames::drop_reason::DropReason;
use crate::frames::egress::add_slices;
use crate::frames::stats::PortCounters;

impl<'m> Burst<'m> {
    /// Adds the frame of a chain whose pieces are in `pieces`: a virtio-net header of `vnet_len` (10 or 12) bytes, and
    /// the frame. An error leaves the frames of the burst as they were.
    #[inline(never)]
    pub fn add(
        &mut self,
        chain: TakenChain<'m>,
        vnet_len: usize,
        arrived_ns: u64,
    ) -> Result<(), FrameError> {
        let len = chain.len.wrapping_sub(vnet_len as u32);
        if !(FRAME_LEN_MIN..=FRAME_LEN_MAX).contains(&len) {
            return Err(wrong_len(chain.len.saturating_sub(vnet_len as u32)));
        }
        let Some(frame) = self.room.slots.get_mut(self.count) else {
            unreachable!("the caller asks `is_full` first")
        };
        let (first, end) = match chain.pieces {
            Pieces::Among(first, end) => (first, end),
            Pieces::Only(piece) => push(&mut self.pieces, piece),
        };
        let head = frame.head.refill(len as usize);
        let (vnet, rest) = match take_front(&mut self.pieces, first, vnet_len, head) {
            Some(front) => front,
            None => take_front_of_several(&mut self.pieces, (first, end), vnet_len, head),
        };
        frame.first_piece = if len as usize > HEAD_LEN { rest } else { end };
        frame.end_piece = end;
        frame.len = len;
        frame.token = chain.token;
        frame.arrived_ns = arrived_ns;
        if !vnet.is_plain() || frame.head.is_tagged() {
            let vnet = vnet.parse();
            let mut looked_at = frame.look_closer(&vnet, self.from_device);
            if looked_at == Err(OffloadError::GsoProtocol { gso_type: vnet.gso_type }.into()) {
                let payload = frame.first_piece as usize..frame.end_piece as usize;
                looked_at = frame.look_further(&vnet, &self.pieces[payload]).map(|()| None);
            }
            let early = looked_at.inspect_err(|_| frame.make_plain())?;
            if let Some(csum) = early {
                let own = |bytes: &[u8]| self.fronts.checksum(self.count, bytes);
                fill_in(frame, csum, &mut self.pieces, own);
            }
            self.room.special |= 1 << self.count;
            let is_of_provider = frame.tag.is_some_and(|tag| tag.protocol() == TagProtocol::Dot1ad);
            self.still_tagged |= u64::from(is_of_provider || frame.head.is_tagged()) << self.count;
            let OnWire { packets, bytes } = frame.on_wire();
            self.segments.packets += u64::from(packets - 1);
            self.segments.bytes += u64::from(bytes - frame.len);
        }
        self.bytes += u64::from(frame.len);
        self.count += 1;
        Ok(())
    }

    /// Assigns the last added frame to the network `number`, which takes the place of a VLAN tag
    /// ([`VlanMode::Networks`](weir_fabric::VlanMode::Networks)).
    pub fn name_network(&mut self, number: u16) {
        if let Some(frame) = self.room.slots[..self.count].last_mut() {
            frame.tag = Some(Tci::from_bits(number));
            self.room.special |= 1 << (self.count - 1);
        }
    }

    /// Does the same as [`add`](Self::add) for a frame of a device; returns true if the frame is in the burst. A kernel
    /// does not lie about its frames: a refused frame is counted as dropped, and the port does not stop.
    #[inline]
    pub fn add_of_device(
        &mut self,
        chain: TakenChain<'m>,
        vnet_len: usize,
        arrived_ns: u64,
        counters: &PortCounters,
    ) -> bool {
        let added = self.add(chain, vnet_len, arrived_ns);
        if let Err(error) = added {
            counters.dropped(error.drop_reason().unwrap_or(DropReason::DeviceError), 1);
        }
        added.is_ok()
    }

    /// Adds the frames of all `chains`, as [`add`](Self::add) does. `refused` decides whether a refused frame ends the
    /// call.
    #[inline(always)]
    pub fn add_chains<E>(
        &mut self,
        vnet_len: usize,
        arrived_ns: u64,
        mut refused: impl FnMut(FrameError) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut next = 0;
        loop {
            next += self.add_plain(next, vnet_len, arrived_ns);
            let Some(&chain) = self.chains.get(next) else { return Ok(()) };
            next += 1;
            self.add(chain, vnet_len, arrived_ns).or_else(&mut refused)?;
        }
    }

    /// Adds the frames of the chains from `next` on, up to the first unusual one: nearly all have one piece, and
    /// neither an offload nor a tag. It does not add or judge the unusual one. Returns how many it has added.
    #[inline(always)]
    fn add_plain(&mut self, next: usize, vnet_len: usize, arrived_ns: u64) -> usize {
        if vnet_len != VnetHdr::LEN {
            return 0;
        }
        let Self { room, chains, pieces, .. } = self;
        let chains = chains.get(next..).unwrap_or_default();
        let room = room.slots.get_mut(self.count..).unwrap_or_default();
        let (mut added, mut bytes) = (0, 0);
        for (frame, chain) in room.iter_mut().zip(chains) {
            let Pieces::Only(piece) = chain.pieces else { break };
            let len = chain.len.wrapping_sub(VnetHdr::LEN as u32);
            if !(FRAME_LEN_MIN..=FRAME_LEN_MAX).contains(&len) {
                break;
            }
            let has_body = len as usize > HEAD_LEN;
            // The first copy has a length that is known at compile time. The second one needs no
            // choice of the lesser length.
            let has_head = match has_body {
                true => piece.read_at(VnetHdr::LEN, frame.head.refill(HEAD_LEN)),
                false => piece.read_at(VnetHdr::LEN, frame.head.refill(len as usize)),
            };
            if !has_head {
                break;
            }
            let vnet = RawVnet(u64::from_le_bytes(piece.read_array().unwrap_or_default()), 0);
            if !vnet.is_plain() || frame.head.is_tagged() {
                break;
            }
            (frame.first_piece, frame.end_piece) = (0, 0);
            if has_body {
                (frame.first_piece, frame.end_piece) =
                    push(pieces, piece.skip(VnetHdr::LEN + HEAD_LEN));
            }
            frame.len = len;
            frame.token = chain.token;
            frame.arrived_ns = arrived_ns;
            bytes += u64::from(len);
            added += 1;
        }
        self.count += added;
        self.bytes += bytes;
        added
    }

    /// Adds a whole frame of weir's own, of at most [`HEAD_LEN`] bytes, which is in no ring; `false` if there is no
    /// room, and a later burst must take the frame. Bytes that are no frame are skipped for good. The port that adds a
    /// frame must skip it when it completes its chains. `tag` is not in `bytes`.
    pub fn add_own(&mut self, bytes: &[u8], tag: Option<Tci>, now_ns: u64) -> bool {
        let Some(frame) = self.room.slots.get_mut(self.count) else { return false };
        let head = Head::copy_of(bytes);
        if Ethernet::parse(head.as_slice()).is_err() {
            return true;
        }
        let len = head.len() as u32;
        *frame = Frame { head, len, tag, arrived_ns: now_ns, ..Frame::EMPTY };
        self.room.special |= u64::from(tag.is_some()) << self.count;
        self.bytes += u64::from(len);
        self.count += 1;
        true
    }
}

impl Frame {
    /// Handles a frame with an offload or a VLAN tag. Returns the checksum that must be filled in at once, if there is
    /// one.
    #[inline(never)]
    fn look_closer(
        &mut self,
        vnet: &VnetHdr,
        from_device: bool,
    ) -> Result<Option<CsumPartial>, FrameError> {
        let mut early = None;
        if vnet.flags | vnet.gso_type != 0 {
            self.offload = Offload::from_vnet(vnet, self.head.as_slice(), self.len)?;
            early = self.offload.take_early(self.head.as_slice());
            if !from_device {
                self.offload = self.offload.without_data_valid();
            }
        }
        let is_tagged = self.take_off_tag()?;
        Ok(if is_tagged { early.map(CsumPartial::tag_stripped) } else { early })
    }

    /// Handles a GSO frame with two tags, or with headers that continue behind its copied front, as with long IPv6
    /// extension headers. `payload` is the rest of the frame behind the front.
    #[cold]
    #[inline(never)]
    fn look_further(&mut self, vnet: &VnetHdr, payload: &[Slice<'_>]) -> Result<(), FrameError> {
        let tag_len = if self.take_off_tag()? { TAG_LEN as u16 } else { 0 };
        let csum_start = vnet.csum_start.saturating_sub(tag_len);
        let mut front = [0; FILTER_WINDOW_LEN];
        let head = self.head.as_slice();
        front[..head.len()].copy_from_slice(head);
        let mut filled = head.len();
        for piece in payload {
            filled += piece.read(&mut front[filled..]);
        }
        let vnet = VnetHdr { csum_start, ..*vnet };
        self.offload = Offload::from_vnet(&vnet, &front[..filled], self.len)?;
        Ok(())
    }

    /// Removes the tag, if there is one.
    #[inline]
    fn take_off_tag(&mut self) -> Result<bool, FrameError> {
        let short = |_| FrameError::TooShort(self.len);
        let is_tagged = Ethernet::parse(self.head.as_slice()).map_err(short)?.tag.is_some();
        if is_tagged {
            self.tag = self.head.strip_vlan();
            self.offload = self.offload.tag_stripped();
            self.len -= TAG_LEN as u32;
        }
        Ok(is_tagged)
    }
}

/// Completes the checksum `csum` of a frame whose payload is in `pieces`: filters and guards then see the frame that
/// its receiver gets. `own` copies bytes from behind the head to weir's memory.
#[cold]
#[inline(never)]
fn fill_in<'m>(
    frame: &mut Frame,
    csum: CsumPartial,
    pieces: &mut Vec<Slice<'m>>,
    own: impl FnOnce(&[u8]) -> Option<Slice<'m>>,
) {
    let payload = frame.first_piece as usize..frame.end_piece as usize;
    let head = frame.head.as_mut_slice();
    let (start, field, head_len) = (usize::from(csum.start), csum.field(), head.len());
    // The field itself is summed too: it holds the pseudo-header's sum.
    let mut sum = Sum::new();
    sum.add(head.get(start..).unwrap_or_default());
    let mut skip = start.saturating_sub(head_len);
    add_slices(
        &mut sum,
        pieces[payload.clone()].iter().map(|piece| {
            let covered = piece.skip(skip);
            skip = skip.saturating_sub(piece.len());
            covered
        }),
    );
    let bytes = nonzero(sum.finish()).to_be_bytes();
    let (near, far) = bytes.split_at(head_len.saturating_sub(field).min(bytes.len()));
    if let Some(place) = head.get_mut(field..field + near.len()) {
        place.copy_from_slice(near);
    }
    if far.is_empty() {
        return;
    }
    // The field lies in the sender's memory, which only the sender writes: weir's own bytes take its place.
    let Some(own) = own(far) else { return };
    let mut before = field + near.len() - head_len;
    let mut behind = before + far.len();
    frame.first_piece = pieces.len() as u32; // of a burst
    for index in payload.clone() {
        let part = pieces[index].first(before);
        before -= part.len();
        pieces.extend(Some(part).filter(|part| !part.is_empty()));
    }
    pieces.push(own);
    for index in payload {
        let piece = pieces[index];
        pieces.extend(Some(piece.skip(behind)).filter(|part| !part.is_empty()));
        behind = behind.saturating_sub(piece.len());
    }
    frame.end_piece = pieces.len() as u32;
}

#[cold]
fn wrong_len(len: u32) -> FrameError {
    if len < FRAME_LEN_MIN { FrameError::TooShort(len) } else { FrameError::TooLong(len) }
}

/// Adds a piece; returns its index and the next one.
#[inline(always)]
fn push<'m>(pieces: &mut Vec<Slice<'m>>, piece: Slice<'m>) -> (u32, u32) {
    let first = pieces.len() as u32; // of a burst
    pieces.push(piece);
    (first, first + 1)
}

/// A virtio-net header as it arrived, in two words: it is parsed only if it is not plain.
struct RawVnet(u64, u32);

impl RawVnet {
    /// True if `flags` and `gso_type`, its first two bytes, are 0: then no other field counts.
    #[inline]
    fn is_plain(&self) -> bool {
        self.0 as u16 == 0
    }

    /// Adds the header's last bytes, which count only if it is not plain.
    #[inline(never)]
    fn with_rest(self, header: &Slice<'_>) -> Self {
        let high = header.skip(8).read_array().unwrap_or_default();
        Self(self.0, u32::from_le_bytes(high))
    }

    fn parse(&self) -> VnetHdr {
        let mut bytes = [0; VnetHdr::LEN];
        bytes[..8].copy_from_slice(&self.0.to_le_bytes());
        bytes[8..].copy_from_slice(&self.1.to_le_bytes());
        VnetHdr::from_bytes(&bytes)
    }
}

/// Takes the virtio-net header and the front out of a chain whose `first` piece has both, as nearly all do. Returns the
/// index of the piece with which the rest begins.
#[inline(always)]
fn take_front(
    pieces: &mut [Slice<'_>],
    first: u32,
    vnet_len: usize,
    head: &mut [u8],
) -> Option<(RawVnet, u32)> {
    let piece = pieces.get_mut(first as usize).filter(|_| vnet_len == VnetHdr::LEN)?;
    if !piece.read_at(VnetHdr::LEN, head) {
        return None;
    }
    let vnet = RawVnet(u64::from_le_bytes(piece.read_array()?), 0);
    let vnet = if vnet.is_plain() { vnet } else { vnet.with_rest(piece) };
    let mut rest = first;
    if head.len() == HEAD_LEN {
        *piece = piece.skip(VnetHdr::LEN + HEAD_LEN);
        rest += u32::from(piece.is_empty());
    }
    Some((vnet, rest))
}

/// Takes the front of a chain of any number of pieces.
#[inline(never)]
fn take_front_of_several(
    pieces: &mut [Slice<'_>],
    (first, end): (u32, u32),
    vnet_len: usize,
    head: &mut [u8],
) -> (RawVnet, u32) {
    let pieces = &mut pieces[first as usize..end as usize];
    let (mut cursor, mut low, mut high) = (0, [0; 8], [0; 4]);
    consume(pieces, &mut cursor, &mut low);
    consume(pieces, &mut cursor, &mut high[..vnet_len - 8]);
    consume(pieces, &mut cursor, head);
    (RawVnet(u64::from_le_bytes(low), u32::from_le_bytes(high)), first + cursor as u32)
}

/// Copies bytes out of the pieces from `cursor` on and shortens these pieces by the copied bytes.
#[inline]
fn consume(pieces: &mut [Slice<'_>], cursor: &mut usize, mut out: &mut [u8]) {
    while !out.is_empty() {
        let Some(piece) = pieces.get_mut(*cursor) else { return };
        let copied = piece.read(out);
        *piece = piece.skip(copied);
        *cursor += usize::from(piece.is_empty());
        out = &mut out[copied..];
    }
}
