//! A burst: frames from one queue. Their fronts are copied out and checked, and their payload is still in the sender's
//! memory.

use std::cell::RefCell;

use weir_fabric::PortId;
use weir_guestmem::{Slice, recycle};
use weir_limits::{BURST_MAX, FILTER_WINDOW_LEN, FRAME_LEN_MAX, FRAME_LEN_MIN, HEAD_LEN};
use weir_wire::checksum::nonzero;
use weir_wire::vlan::TAG_LEN;
use weir_wire::{
    CsumPartial, Ethernet, Head, Offload, OffloadError, Sum, TagProtocol, Tci, VnetHdr,
};

use crate::egress::add_slices;
use crate::fronts::Fronts;
use crate::queue::Turn;
use crate::remote::Away;
use crate::stats::{DropReason, PortCounters};

/// One frame. Plain data: its payload lies in the burst's [`pieces`](Burst::pieces).
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// The frame's front without its VLAN tag, delivered from this copy: the receiver gets exactly the checked
    /// bytes.
    pub head: Head,
    /// The frame's VLAN tag as received.
    pub tag: Option<Tci>,
    /// The work that the sender left to others, with offsets in the untagged frame.
    pub offload: Offload,
    /// Bytes of the untagged frame.
    pub len: u32,
    /// The sending ring's name for the frame (its descriptor chain).
    pub token: u64,
    /// The time at which the frame was first taken (ns).
    pub arrived_ns: u64,
    first_piece: u32,
    end_piece: u32,
}

impl Frame {
    const EMPTY: Self = Self {
        head: Head::EMPTY,
        tag: None,
        offload: Offload::NONE,
        len: 0,
        token: 0,
        arrived_ns: 0,
        first_piece: 0,
        end_piece: 0,
    };
}

impl Frame {
    /// The frame's packets and bytes on a wire.
    #[inline]
    pub fn on_wire(&self) -> OnWire {
        let Some(gso) = self.offload.gso() else { return OnWire { packets: 1, bytes: self.len } };
        let packets = gso.segments(self.len);
        // No overflow: see the assertion below.
        OnWire { packets, bytes: self.len + (packets - 1) * u32::from(gso.hdr_len) }
    }

    fn make_plain(&mut self) {
        (self.tag, self.offload) = (None, Offload::NONE);
    }

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

/// A frame as limits count it: a GSO frame counts as its segments, each with headers of its own, even if its receiver
/// gets the frame whole. VLAN tags do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnWire {
    /// Packets, at least 1.
    pub packets: u32,
    /// Bytes of all the packets, each from its Ethernet header to the end of its payload.
    pub bytes: u32,
}

// Each segment has at least one byte of payload, and headers that were parsed.
const _: () = assert!(FRAME_LEN_MAX as u64 * (1 + FILTER_WINDOW_LEN as u64) * 8 < u32::MAX as u64);

/// The reason for which a frame was refused. A frame of the wrong length is dropped and counted. A header that
/// contradicts its own frame stops the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The frame is shorter than an Ethernet header (or the chain is shorter than the virtio header).
    #[error("frame of {0} bytes, shorter than an Ethernet header")]
    TooShort(u32),
    /// The frame is longer than any frame that weir moves.
    #[error("frame of {0} bytes, longer than {FRAME_LEN_MAX}")]
    TooLong(u32),
    /// The virtio-net header contradicts the frame.
    #[error("virtio-net header: {0}")]
    Header(#[from] OffloadError),
}

impl FrameError {
    /// The counter for a dropped frame; `None` for a false header, which an honest driver does not write.
    pub fn drop_reason(&self) -> Option<DropReason> {
        match self {
            Self::TooShort(_) => Some(DropReason::FrameTooShort),
            Self::TooLong(_) => Some(DropReason::FrameTooLong),
            // The header is not necessarily false: the frame can have a second tag, or a header that weir does not
            // parse.
            Self::Header(OffloadError::GsoProtocol { .. } | OffloadError::Headers(_)) => {
                Some(DropReason::GsoHeaders)
            }
            Self::Header(_) => None,
        }
    }
}

/// A frame that stays with its sender for now.
#[derive(Clone, Copy, Debug)]
pub struct Parked {
    /// Index of the frame in the burst.
    pub frame: u16,
    /// The receiver that had no buffers.
    pub port: PortId,
}

/// Frames of one queue on their way through the switch.
#[derive(Debug)]
pub struct Burst<'m> {
    /// The room that the burst uses. It borrows nothing from the guest.
    pub room: &'m mut Room,
    /// Bytes that weir writes into its frames.
    pub(crate) fronts: &'m Fronts,
    /// The number of the burst's frames, which are the first in the room.
    count: usize,
    /// Chains that the port has taken. All are taken before the first is read: by then, the CPU has prefetched them.
    pub chains: Vec<TakenChain<'m>>,
    /// Payload of all frames and, while frames are being added, whole chains of several pieces.
    pub pieces: Vec<Slice<'m>>,
    /// Most frames that the port may put in; fewer than [`BURST_MAX`] if its rate is limited.
    pub frames_max: usize,
    /// Further frames that may wait in the sending queue; 0 for a port whose frames cannot wait.
    pub park_room: usize,
    /// The sender is a device, whose `DATA_VALID` counts; drivers must not set it (virtio 1.2 §5.1.6.2.1).
    pub from_device: bool,
    /// True if the burst's frames have waited in their sender's memory for receivers without buffers.
    pub waited: bool,
    /// Bytes of all frames.
    bytes: u64,
    /// The packets on a wire beyond one for each frame, and the bytes beyond `bytes`.
    segments: Segments,
    /// The turn of a queue that several workers serve. It is given back when all frames have their places.
    pub turn: Option<&'m RefCell<Option<Turn>>>,
    /// Frames, by index, that have a second tag behind the one that was removed. Before [`Burst::settle_tags`], the set
    /// also has the frames whose removed tag was a provider's.
    pub(crate) still_tagged: u64,
    /// Payload that is still with its sender.
    pub(crate) away: Option<Away<'m>>,
    /// True while the last receive queue is being served.
    pub(crate) at_last: bool,
}

/// Packets and bytes that segments of GSO frames add to a burst.
#[derive(Clone, Copy, Debug, Default)]
struct Segments {
    packets: u64,
    bytes: u64,
}

/// Room that one burst after the other uses: the loop allocates it once, and moves nothing.
#[derive(Debug)]
pub struct Scratch {
    /// [`Burst::frames_max`] of the next burst.
    pub(crate) frames_max: usize,
    room: Room,
    fronts: Fronts,
}

/// The part of the room that only one burst uses at a time.
#[derive(Debug, Default)]
pub struct Room {
    /// Slots for frames. The vector never shrinks: a frame of 200 bytes is too large to build and move.
    slots: Vec<Frame>,
    /// Frames, by index, that have an offload or a tag. Slots behind the burst's last frame have neither.
    special: u64,
    /// The memory of [`Burst::chains`] and [`Burst::pieces`] between two bursts.
    chains: Vec<TakenChain<'static>>,
    pieces: Vec<Slice<'static>>,
    /// Receivers that older frames of this queue wait for: newer ones must not overtake them.
    pub blocked: Vec<PortId>,
    /// Frames that the switch could not deliver yet. Those for one receiver are in the sender's order.
    pub parked: Vec<Parked>,
}

impl Default for Scratch {
    fn default() -> Self {
        Self { frames_max: BURST_MAX, room: Room::default(), fronts: Fronts::default() }
    }
}

impl Scratch {
    /// Lends the room to an empty burst.
    #[inline(always)]
    pub fn lend(&mut self) -> Burst<'_> {
        let Self { room, fronts, frames_max } = self;
        if room.slots.is_empty() || room.special != 0 {
            room.prepare();
        }
        room.blocked.clear();
        room.parked.clear();
        Burst {
            count: 0,
            chains: recycle(std::mem::take(&mut room.chains)),
            pieces: recycle(std::mem::take(&mut room.pieces)),
            frames_max: *frames_max,
            park_room: 0,
            from_device: false,
            waited: false,
            bytes: 0,
            segments: Segments::default(),
            turn: None,
            still_tagged: 0,
            away: None,
            at_last: false,
            room,
            fronts,
        }
    }
}

impl Room {
    /// Makes slots for frames, and clears those that the last burst left with an offload or a tag.
    #[inline(never)]
    fn prepare(&mut self) {
        self.slots.resize(BURST_MAX, Frame::EMPTY);
        while self.special != 0 {
            self.slots[self.special.trailing_zeros() as usize].make_plain();
            self.special &= self.special - 1;
        }
    }
}

/// A chain that a port took from a queue.
#[derive(Clone, Copy, Debug)]
pub struct TakenChain<'m> {
    /// The port's name for the chain.
    pub token: u64,
    /// Bytes of the chain, including the virtio-net header.
    pub len: u32,
    /// The chain's memory.
    pub pieces: Pieces<'m>,
}

/// The bytes of a chain.
#[derive(Clone, Copy, Debug)]
pub enum Pieces<'m> {
    /// The only piece, which is not among the burst's pieces.
    Only(Slice<'m>),
    /// A range of the burst's pieces: from the first index up to, but without, the second.
    Among(u32, u32),
}

impl<'m> Burst<'m> {
    /// Returns the burst's room. A burst that is dropped instead loses some of it.
    #[inline(always)]
    pub fn give_back(self) {
        let Self { room, chains, pieces, .. } = self;
        (room.chains, room.pieces) = (recycle(chains), recycle(pieces));
    }

    /// True if there is no room for another frame.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.count >= BURST_MAX
    }

    /// The frames, in the sender's order.
    #[inline]
    pub fn frames(&self) -> &[Frame] {
        &self.room.slots[..self.count]
    }

    /// Bytes of all frames.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of all frames [on a wire](Frame::on_wire), and packets beyond one for each frame.
    #[inline]
    pub(crate) fn on_wire(&self) -> (u64, u64) {
        (self.bytes + self.segments.bytes, self.segments.packets)
    }

    /// Frames, by their index, with an offload or a tag.
    #[inline(always)]
    pub(crate) fn special(&self) -> u64 {
        self.room.special
    }

    /// Payload of `frame`, behind its head. Some of it may need a [fetch](Self::fetch) first.
    #[inline(always)]
    pub fn payload(&self, frame: &Frame) -> &[Slice<'m>] {
        if frame.first_piece == frame.end_piece {
            return &[];
        }
        &self.pieces[frame.first_piece as usize..frame.end_piece as usize]
    }

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
        if !vnet.is_plain() || is_tag(frame.head.ethertype()) {
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
            self.still_tagged |=
                u64::from(is_of_provider || is_tag(frame.head.ethertype())) << self.count;
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
        let chains = std::mem::take(&mut self.chains);
        let mut left = chains.as_slice();
        let result = loop {
            left = &left[self.add_plain(left, vnet_len, arrived_ns)..];
            let Some((chain, behind)) = left.split_first() else { break Ok(()) };
            left = behind;
            let added = self.add(*chain, vnet_len, arrived_ns);
            if let Err(error) = added.or_else(&mut refused) {
                break Err(error);
            }
        };
        self.chains = chains;
        result
    }

    /// Adds the frames of the first `chains`, up to the first unusual one: nearly all have one piece, and neither an
    /// offload nor a tag. It does not add or judge the unusual one. Returns how many it has added.
    // A separate function, so that the loop can use all registers.
    #[inline(never)]
    fn add_plain(&mut self, chains: &[TakenChain<'m>], vnet_len: usize, arrived_ns: u64) -> usize {
        if vnet_len != VnetHdr::LEN {
            return 0;
        }
        let Self { room, pieces, .. } = self;
        let room = room.slots.get_mut(self.count..).unwrap_or_default();
        let (mut added, mut bytes) = (0, 0);
        for (frame, chain) in room.iter_mut().zip(chains) {
            let len = chain.len.wrapping_sub(VnetHdr::LEN as u32);
            let Pieces::Only(piece) = chain.pieces else { break };
            let is_wanted = (FRAME_LEN_MIN..=FRAME_LEN_MAX).contains(&len);
            if !is_wanted || !piece.read_at(VnetHdr::LEN, frame.head.refill(len as usize)) {
                break;
            }
            let vnet = RawVnet(u64::from_le_bytes(piece.read_array().unwrap_or_default()), 0);
            if !vnet.is_plain() || is_tag(frame.head.ethertype()) {
                break;
            }
            (frame.first_piece, frame.end_piece) = match len as usize > HEAD_LEN {
                true => push(pieces, piece.skip(VnetHdr::LEN + HEAD_LEN)),
                false => (0, 0),
            };
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

    /// Puts removed tags of another kind than the sender's `own` back into their frames. After that, `still_tagged`
    /// marks the frames that begin with a tag.
    #[cold]
    #[inline(never)]
    pub(crate) fn settle_tags(&mut self, own: TagProtocol) {
        let mut left = self.still_tagged;
        self.still_tagged = 0;
        while left != 0 {
            let index = left.trailing_zeros() as u16; // a burst is short
            left &= left - 1;
            self.settle_tag(index, own);
            let is_tagged = self.begins_with(index).is_some();
            self.still_tagged |= u64::from(is_tagged) << index;
        }
    }

    /// Puts the removed tag back into one frame, if it is of another kind than `own`.
    #[cold]
    #[inline(never)]
    pub(crate) fn settle_tag(&mut self, index: u16, own: TagProtocol) {
        let Some(frame) = self.room.slots[..self.count].get_mut(usize::from(index)) else { return };
        let Some(tag) = frame.tag.filter(|tag| tag.protocol() != own) else { return };
        let before = frame.on_wire();
        // A head has room for one tag, and this tag was in it before.
        if frame.head.insert_vlan(tag).is_ok() {
            (frame.tag, frame.len) = (None, frame.len + TAG_LEN as u32);
            frame.offload = frame.offload.tag_inserted();
            self.still_tagged |= 1 << index;
            self.bytes += TAG_LEN as u64;
            let added = u64::from(frame.on_wire().bytes - before.bytes);
            self.segments.bytes += added - TAG_LEN as u64;
        }
    }

    /// The kind of the tag that follows the removed one, if there is a second tag.
    pub(crate) fn begins_with(&self, index: u16) -> Option<TagProtocol> {
        TagProtocol::of_ethertype(self.frames().get(usize::from(index))?.head.ethertype())
    }

    /// Notes that all frames for the current receive queue have places, and only copying is left. After the last
    /// receive queue, another worker may take the next burst of the sender's queue.
    #[inline]
    pub fn placed(&self) {
        if let Some(turn) = self.turn
            && self.at_last
            && self.room.parked.is_empty()
        {
            turn.take();
        }
    }

    /// A bit for each frame.
    pub(crate) fn all(&self) -> u64 {
        ones(self.count as u16) // a burst is short
    }

    /// For each frame, the receiver for which it was parked.
    pub(crate) fn waits_for(&self) -> [Option<PortId>; BURST_MAX] {
        let mut waits_for = [None; BURST_MAX];
        for parked in &self.room.parked {
            waits_for[usize::from(parked.frame)] = Some(parked.port);
        }
        waits_for
    }

    /// The chains in the order in which they were taken, each with true if its frame was parked.
    pub fn chains_and_stay(&self) -> impl Iterator<Item = (&TakenChain<'m>, bool)> {
        // Chains that were refused have no frame; the other chains have their frames in the same order.
        let mut frames = self.frames().iter().zip(self.waits_for()).peekable();
        self.chains.iter().map(move |chain| {
            let frame = frames.next_if(|(frame, _)| frame.token == chain.token);
            (chain, frame.is_some_and(|(_, waits_for)| waits_for.is_some()))
        })
    }

    /// Leaves a frame with its sender until `port` has buffers again; `false` if no more frames can wait.
    pub fn park(&mut self, frame: u16, port: PortId) -> bool {
        if self.park_room == 0 {
            return false;
        }
        self.park_room -= 1;
        self.room.parked.push(Parked { frame, port });
        true
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

/// The lowest `count` bits, at most as many as a burst has frames.
#[inline(always)]
pub(crate) fn ones(count: u16) -> u64 {
    u64::MAX.checked_shr(u64::BITS - u32::from(count)).unwrap_or(0)
}

/// True if the ethertype is that of a tag, of either kind.
#[inline]
fn is_tag(ethertype: u16) -> bool {
    TagProtocol::of_ethertype(ethertype).is_some()
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

#[cfg(test)]
pub(crate) mod tests;
