//! A burst: frames taken from one queue, their fronts copied out and checked, the rest of each
//! still where the sender put it.

use weir_fabric::PortId;
use weir_guestmem::{Slice, recycle};
use weir_limits::{BURST_MAX, FRAME_LEN_MAX, FRAME_LEN_MIN, HEAD_LEN};
use weir_wire::{Ethernet, Head, Offload, OffloadError, Tci, VnetHdr};

/// One frame. Plain data: its payload lies in the burst's [`pieces`](Burst::pieces).
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// The frame's front without its VLAN tag. It is delivered from this copy: what was checked is
    /// what arrives, whatever the sender writes into its memory meanwhile.
    pub head: Head,
    /// Addresses and type, read from `head`.
    pub ethernet: Ethernet,
    /// The tag that the frame came with.
    pub tag: Option<Tci>,
    /// What the sender left to be done, relative to the untagged frame.
    pub offload: Offload,
    /// Bytes of the untagged frame.
    pub len: u32,
    /// The sending ring's name for the frame (its descriptor chain).
    pub token: u16,
    /// When it was first taken (ns).
    pub arrived_ns: u64,
    first_piece: u32,
    end_piece: u32,
}

/// Why a frame was refused. The first two are dropped with a counter; a header that contradicts
/// its own frame stops the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Shorter than an Ethernet header (or than the virtio header before it).
    #[error("frame of {0} bytes, shorter than an Ethernet header")]
    TooShort(u32),
    /// Longer than any frame weir moves.
    #[error("frame of {0} bytes, longer than {FRAME_LEN_MAX}")]
    TooLong(u32),
    /// The virtio-net header lies about the frame.
    #[error("virtio-net header: {0}")]
    Header(#[from] OffloadError),
}

/// Why a frame stays with its sender for now.
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
    /// The frames, in the sender's order.
    pub frames: Vec<Frame>,
    /// Payload of all frames, and while a frame is being added its whole chain.
    pub pieces: Vec<Slice<'m>>,
    /// Receivers that older frames of this queue wait for: newer ones must not overtake them.
    pub blocked: Vec<PortId>,
    /// Frames that the switch could not deliver yet, in the sender's order per receiver.
    pub parked: Vec<Parked>,
    /// How many more frames the sending queue lets wait; 0 for a port that cannot.
    pub park_room: usize,
    /// The sender is a device, whose `DATA_VALID` counts; a driver must not set it (virtio 1.2
    /// §5.1.6.2.1).
    pub from_device: bool,
}

/// The vectors of a burst between two bursts: the loop allocates once.
#[derive(Debug, Default)]
pub struct Scratch {
    frames: Vec<Frame>,
    pieces: Vec<Slice<'static>>,
    blocked: Vec<PortId>,
    parked: Vec<Parked>,
}

impl Scratch {
    /// An empty burst with this scratch's room.
    #[inline]
    pub fn lend<'m>(&mut self) -> Burst<'m> {
        Burst {
            frames: std::mem::take(&mut self.frames),
            pieces: recycle(std::mem::take(&mut self.pieces)),
            blocked: std::mem::take(&mut self.blocked),
            parked: std::mem::take(&mut self.parked),
            park_room: 0,
            from_device: false,
        }
    }

    /// Takes the room back.
    #[inline]
    pub fn give_back(&mut self, mut burst: Burst<'_>) {
        burst.frames.clear();
        burst.blocked.clear();
        burst.parked.clear();
        self.frames = burst.frames;
        self.pieces = recycle(burst.pieces);
        self.blocked = burst.blocked;
        self.parked = burst.parked;
    }
}

impl<'m> Burst<'m> {
    /// No room for another frame.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.frames.len() >= BURST_MAX
    }

    /// Payload of `frame`: what follows its head.
    #[inline]
    pub fn payload(&self, frame: &Frame) -> &[Slice<'m>] {
        &self.pieces[frame.first_piece as usize..frame.end_piece as usize]
    }

    /// Adds the frame whose chain was just appended to `pieces`, from index `first` on: a virtio-net
    /// header of `vnet_len` (10 or 12) bytes and the frame, `chain_len` bytes in all.
    ///
    /// After an error the chain's pieces are gone and the burst is as it was.
    pub fn add(
        &mut self,
        first: usize,
        vnet_len: usize,
        chain_len: u32,
        token: u16,
        arrived_ns: u64,
    ) -> Result<(), FrameError> {
        let frame = self.build(first, vnet_len, chain_len, token, arrived_ns);
        match frame {
            Ok(frame) => {
                self.frames.push(frame);
                Ok(())
            }
            Err(error) => {
                self.pieces.truncate(first);
                Err(error)
            }
        }
    }

    /// Adds a whole frame of weir's own, at most [`HEAD_LEN`] bytes, that no ring knows of. The
    /// port that adds it leaves it out when it completes its chains.
    pub fn add_own(&mut self, frame: &[u8], now_ns: u64) {
        let head = Head::copy_of(frame);
        let Ok(ethernet) = Ethernet::parse(head.as_slice()) else {
            return;
        };
        let end = self.pieces.len() as u32;
        self.frames.push(Frame {
            head,
            ethernet,
            tag: None,
            offload: Offload::NONE,
            len: head.len() as u32,
            token: 0,
            arrived_ns: now_ns,
            first_piece: end,
            end_piece: end,
        });
    }

    fn build(
        &mut self,
        first: usize,
        vnet_len: usize,
        chain_len: u32,
        token: u16,
        arrived_ns: u64,
    ) -> Result<Frame, FrameError> {
        let len = chain_len.saturating_sub(vnet_len as u32);
        if len < FRAME_LEN_MIN {
            return Err(FrameError::TooShort(len));
        }
        if len > FRAME_LEN_MAX {
            return Err(FrameError::TooLong(len));
        }
        let mut vnet = [0; VnetHdr::LEN];
        let mut head = Head::zeroed(HEAD_LEN.min(len as usize));
        let mut cursor = first;
        self.consume(&mut cursor, &mut vnet[..vnet_len]);
        self.consume(&mut cursor, head.as_mut_slice());
        let vnet = VnetHdr::from_bytes(&vnet);
        let mut offload = Offload::from_vnet(&vnet, head.as_slice(), len)?;
        if !self.from_device {
            offload = offload.without_data_valid();
        }
        let mut frame_len = len;
        let tag = head.strip_vlan();
        if tag.is_some() {
            offload = offload.tag_stripped();
            frame_len -= 4;
        }
        let ethernet =
            Ethernet::parse(head.as_slice()).map_err(|_| FrameError::TooShort(frame_len))?;
        Ok(Frame {
            head,
            ethernet,
            tag,
            offload,
            len: frame_len,
            token,
            arrived_ns,
            first_piece: cursor as u32,
            end_piece: self.pieces.len() as u32,
        })
    }

    /// Copies bytes out of the pieces from `cursor` on and shortens those by what was copied.
    #[inline]
    fn consume(&mut self, cursor: &mut usize, mut out: &mut [u8]) {
        while !out.is_empty() {
            let Some(piece) = self.pieces.get_mut(*cursor) else {
                return;
            };
            let copied = piece.read(out);
            *piece = piece.skip(copied);
            if piece.is_empty() {
                *cursor += 1;
            }
            out = &mut out[copied..];
        }
    }

    /// Leaves a frame with its sender until `port` has buffers again; `false` when no more may wait.
    pub fn park(&mut self, frame: u16, port: PortId) -> bool {
        if self.park_room == 0 {
            return false;
        }
        self.park_room -= 1;
        self.parked.push(Parked { frame, port });
        true
    }
}
