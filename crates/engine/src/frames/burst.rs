//! A burst: frames from one queue. Their fronts are copied out and checked, and their payload is still in the sender's
//! memory.
//!
//! A port can take frames without payload, if other ports can get the bytes later without weir's memory: Xen copies
//! from grant to grant. The slices of such frames are the memory for the bytes if weir has to read them, and hold other
//! frames' bytes until then. So a reader first fetches all that it will read, with one call:
//! [`Forwarder`](crate::switching::switch::Forwarder) for a port that does not [copy from
//! there](crate::Port::copies_remote), filters that read beyond the front, and
//! [`EgressList`](crate::frames::gro::EgressList) for checksums, segments and merging.

use std::any::Any;
use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::fmt::Debug;

use weir_fabric::PortId;
use weir_guestmem::{HostBuffer, Loan, OfMemory, Reused, Slice};
use weir_limits::{BURST_MAX, FILTER_WINDOW_LEN, FRAME_LEN_MAX, HEAD_LEN};
use weir_wire::vlan::TAG_LEN;
use weir_wire::{Head, Offload, OffloadError, TagProtocol, Tci};

use crate::frames::drop_reason::DropReason;
use crate::frames::turn::Turn;

mod add;

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
}

/// A frame as limits count it: a GSO frame counts as its segments, each with its own headers, even
/// if its receiver gets the frame whole. VLAN tags do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnWire {
    /// Packets, at least 1.
    pub packets: u32,
    /// Bytes of all the packets, each from its Ethernet header to the end of its payload.
    pub bytes: u32,
}

// Each segment has at least one byte of payload, and headers that were parsed.
const _: () = assert!(FRAME_LEN_MAX as u64 * (1 + FILTER_WINDOW_LEN as u64) * 8 < u32::MAX as u64);

/// The reason why a frame was refused. A frame of the wrong length is dropped and counted. A header that
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
    pub chains: Loan<'m, TakenChain<'m>>,
    /// Payload of all frames and, while frames are being added, whole chains of several pieces.
    pub pieces: Loan<'m, Slice<'m>>,
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
    /// The ID of the sender's groups as a set, for other hosts; 0 without one.
    pub set_id: u16,
    /// True if other hosts are told that the sender is isolated.
    pub isolated: bool,
    /// True if all frames for the current receive queue leave without a tag.
    pub(crate) is_untagged: bool,
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
    /// The memory of [`Burst::chains`] and [`Burst::pieces`].
    chains: Reused<TakenChain<'static>>,
    pieces: Reused<Slice<'static>>,
}

/// The part of the room that only one burst uses at a time.
#[derive(Debug, Default)]
pub struct Room {
    /// Slots for frames. The vector never shrinks: a frame of 200 bytes is too large to build and move.
    slots: Vec<Frame>,
    /// Frames, by index, that have an offload or a tag. Slots behind the burst's last frame have neither.
    special: u64,
    /// Receivers that older frames of this queue wait for: newer ones must not overtake them.
    pub blocked: Vec<PortId>,
    /// Frames that the switch could not deliver yet. Those for one receiver are in the sender's order.
    pub parked: Vec<Parked>,
}

impl Default for Scratch {
    fn default() -> Self {
        let (room, fronts, chains, pieces) = Default::default();
        Self { frames_max: BURST_MAX, room, fronts, chains, pieces }
    }
}

impl Scratch {
    /// Lends the room to an empty burst.
    #[inline(always)]
    pub fn lend(&mut self) -> Burst<'_> {
        let Self { room, fronts, frames_max, chains, pieces } = self;
        if room.slots.is_empty() || room.special != 0 {
            room.prepare();
        }
        room.blocked.clear();
        room.parked.clear();
        Burst {
            count: 0,
            chains: chains.lend(),
            pieces: pieces.lend(),
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
            set_id: 0,
            isolated: false,
            is_untagged: false,
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

impl OfMemory for TakenChain<'_> {
    type For<'m> = TakenChain<'m>;
}

/// The bytes of a chain.
#[derive(Clone, Copy, Debug)]
pub enum Pieces<'m> {
    /// The only piece, which is not among the burst's pieces.
    Only(Slice<'m>),
    /// A range of the burst's pieces: from the first index up to, but not including, the second.
    Among(u32, u32),
}

impl<'m> Burst<'m> {
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

    /// Puts removed tags that are not of the sender's `own` kind back into their frames. After that, `still_tagged`
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

    /// Puts the removed tag back into one frame, unless the tag is of the kind `own`.
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

/// The lowest `count` bits, at most as many as a burst has frames.
#[inline(always)]
pub(crate) fn ones(count: u16) -> u64 {
    u64::MAX.checked_shr(u64::BITS - u32::from(count)).unwrap_or(0)
}

/// The fronts of merged frames, which weir has copied out, and checksums that it has filled in behind a front, as
/// slices like the foreign memory of these frames. The memory is allocated at the first use.
///
/// Each frame of a burst has its own place, so that its bytes stay until the burst ends: receivers may postpone the
/// copy until they have the whole list.
#[derive(Default)]
pub(crate) struct Fronts(OnceCell<HostBuffer>);

impl Fronts {
    /// A copy of `front`, which belongs to frame number `frame` of the burst and is no longer than a head; `None` for
    /// any other.
    pub(crate) fn copy_of(&self, frame: u16, front: &[u8]) -> Option<Slice<'_>> {
        self.copy_to(usize::from(frame) * HEAD_LEN, front)
    }

    /// A copy of the last one or two bytes of the checksum of frame number `frame`.
    pub(crate) fn checksum(&self, frame: usize, bytes: &[u8]) -> Option<Slice<'_>> {
        self.copy_to(BURST_MAX * HEAD_LEN + frame * CHECKSUM_LEN, bytes)
    }

    fn copy_to(&self, at: usize, bytes: &[u8]) -> Option<Slice<'_>> {
        let room = self.0.get_or_init(|| HostBuffer::new(BURST_MAX * (HEAD_LEN + CHECKSUM_LEN)));
        let copy = room.slice(at, bytes.len())?;
        copy.write(bytes);
        Some(copy)
    }
}

const CHECKSUM_LEN: usize = 2;

impl fmt::Debug for Fronts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("Fronts").field(&self.0.get().map(HostBuffer::len)).finish()
    }
}

/// The owner of frames' payload: the sending port's queue.
pub trait Remote: Any + Debug {
    /// Copies the payload of `frames` (bit i: frame i of `burst`) to their slices with one system call. Returns the
    /// frames for which that failed.
    fn fetch(&self, burst: &Burst<'_>, frames: u64) -> u64;
}

/// The part of a burst that is still with its sender.
#[derive(Debug, Clone)]
pub(crate) struct Away<'m> {
    remote: &'m (dyn Remote + 'static),
    /// Bit i: the payload of frame i is with the sender.
    frames: Cell<u64>,
    /// Bit i: the payload of frame i could not be fetched, so the frame is dropped.
    lost: Cell<u64>,
}

impl<'m> Burst<'m> {
    /// Notes that the payload of `frames` (bit i: frame i) is with `remote`.
    pub fn leave_with(&mut self, remote: &'m (dyn Remote + 'static), frames: u64) {
        self.away = Some(Away { remote, frames: frames.into(), lost: 0.into() });
    }

    /// The owner of this burst's payload, for ports that copy from there.
    #[inline]
    pub fn remote(&self) -> Option<&'m (dyn Remote + 'static)> {
        self.away.as_ref().map(|away| away.remote)
    }

    /// Makes the payload of `frames` readable, except for frames that are [`lost`](Self::lost) afterwards.
    pub fn fetch(&self, frames: u64) {
        let Some(away) = &self.away else { return };
        let wanted = frames & away.frames.get();
        if wanted != 0 {
            let lost = away.remote.fetch(self, wanted);
            away.frames.set(away.frames.get() & !wanted);
            away.lost.set(away.lost.get() | lost);
        }
    }

    /// Frames whose payload could not be fetched (bit i: frame i). They are not delivered; their taker counts them.
    #[inline]
    pub fn lost(&self) -> u64 {
        self.away.as_ref().map_or(0, |away| away.lost.get())
    }
}

#[cfg(test)]
pub(crate) mod tests;
