//! One queue's frames from the interface. They stay in the chunks into which the kernel has put them until their
//! receivers have copied them, or, if these were full, have had room again. A long frame takes several chunks.

use rustix::net::xdp::{XdpDesc, XdpDescOptions};
use weir_engine::DropReason;
use weir_engine::burst::{Burst, Pieces, TakenChain};
use weir_limits::{BURST_MAX, XDP_CHUNKS_MAX, XDP_FRAMES, XDP_PARKED_MAX};
use weir_port_tap::{DeviceFrames, Service, Uncalled};
use weir_wire::VnetHdr;

use crate::ring::{Consumer, Producer};
use crate::socket::XdpSocket;

/// Each chunk for frames from the interface is the kernel's (in the fill ring, or on its way to the RX ring), or holds
/// a frame that was taken.
pub(crate) struct Chunks {
    fill: Producer<u64>,
    received: Consumer<XdpDesc>,
    /// The next piece of the frame in each chunk.
    behind: Box<[Option<Piece>]>,
}

/// A piece of a frame, in its own chunk.
#[derive(Clone, Copy)]
struct Piece {
    /// All chunks for arrivals are below 4 GiB.
    address: u32,
    len: u32,
}

impl Chunks {
    pub(crate) fn new(fill: Producer<u64>, received: Consumer<XdpDesc>) -> Self {
        Self { fill, received, behind: vec![None; XDP_FRAMES as usize].into() }
    }

    /// Takes the pieces of a frame that follow `first`. `false`, with the first pieces noted, if there are too many or
    /// one is missing.
    #[cold]
    fn gather(&mut self, socket: &XdpSocket, first: XdpDesc) -> bool {
        let (mut last, mut pieces, mut whole) = (first, 1, true);
        while last.options.contains(XdpDescOptions::XDP_PKT_CONTD) {
            let Some(next) = self.received.pop() else { return false };
            pieces += 1;
            let chunks = [last.addr, next.addr].map(|address| socket.umem.arrival_at(address));
            whole &= pieces <= XDP_CHUNKS_MAX;
            match chunks {
                [Some(chunk), Some(_)] if whole => {
                    let piece = Piece { address: next.addr as u32, len: next.len };
                    self.behind[usize::from(chunk)] = Some(piece);
                }
                [_, next] => {
                    whole = false;
                    next.into_iter().for_each(|chunk| self.free(socket, chunk));
                }
            }
            last = next;
        }
        whole
    }

    /// The piece behind the one at `address`.
    #[inline]
    fn behind(&self, socket: &XdpSocket, address: u64) -> Option<Piece> {
        *self.behind.get(usize::from(socket.umem.arrival_at(address)?))?
    }

    /// Gives a chunk back to the kernel, from the next [`publish`](Self::publish) on.
    fn free(&mut self, socket: &XdpSocket, chunk: u16) {
        // The ring has an entry for each chunk.
        self.fill.push(socket.umem.address(chunk));
    }

    /// Frees the chunks of the frame with this token.
    fn free_frame(&mut self, socket: &XdpSocket, token: u64) {
        let mut address = Some(token as u32);
        while let Some(at) = address.take()
            && let Some(chunk) = socket.umem.arrival_at(at.into())
        {
            let behind = self.behind.get_mut(usize::from(chunk)).and_then(Option::take);
            address = behind.map(|piece| piece.address);
            self.free(socket, chunk);
        }
    }

    /// Shows the kernel the free chunks.
    fn publish(&mut self, socket: &XdpSocket) {
        self.fill.publish();
        if self.fill.needs_wakeup() {
            socket.refill();
        }
    }
}

/// The places of a transmit queue.
pub(crate) type Places = Uncalled<Chunks>;

/// A queue of an interface: its socket, with the memory of its frames. A frame's token has the place of its first piece,
/// and that piece's length.
pub(crate) struct SocketQueue<'s> {
    pub(crate) service: &'s Service,
    /// The index of the queue.
    pub(crate) index: usize,
    pub(crate) socket: &'s XdpSocket,
}

const LEN_SHIFT: u32 = u32::BITS;

/// The token of a frame of `len` bytes at `address`, which is in one of the chunks for arrivals, below 4 GiB.
fn token(address: u64, len: u32) -> u64 {
    u64::from(len) << LEN_SHIFT | address
}

impl SocketQueue<'_> {
    /// Notes a frame and prefetches it: when the last one of a burst is noted, the first is in the cache. `false` if it
    /// is not in the memory that the kernel was given.
    fn note<'m>(&'m self, chunks: &Chunks, burst: &mut Burst<'m>, address: u64, len: u32) -> bool {
        let Some(slice) = self.socket.umem.frame(address, len) else { return false };
        slice.skip(VnetHdr::LEN).prefetch();
        let token = token(address, len);
        let len = slice.len() as u32; // a chunk's at most
        let (len, pieces) = match chunks.behind(self.socket, address) {
            None => (len, Pieces::Only(slice)),
            Some(second) => {
                let from = burst.pieces.len();
                burst.pieces.push(slice);
                let Some(behind) = self.note_behind(chunks, burst, second) else {
                    burst.pieces.truncate(from);
                    return false;
                };
                // A burst has few frames, and a frame few pieces.
                (len + behind, Pieces::Among(from as u32, burst.pieces.len() as u32))
            }
        };
        burst.chains.push(TakenChain { token, len, pieces });
        true
    }

    /// Notes the pieces of a frame behind the first. Returns their length, if all are in the memory that the kernel was
    /// given.
    #[cold]
    fn note_behind<'m>(
        &'m self,
        chunks: &Chunks,
        burst: &mut Burst<'m>,
        second: Piece,
    ) -> Option<u32> {
        let (mut next, mut len) = (Some(second), 0);
        while let Some(Piece { address, len: piece_len }) = next {
            burst.pieces.push(self.socket.umem.slice(address.into(), piece_len)?);
            len += piece_len;
            next = chunks.behind(self.socket, address.into());
        }
        Some(len)
    }
}

impl DeviceFrames for SocketQueue<'_> {
    type Places = Chunks;

    const PEEK: bool = true;
    const PARKED_MAX: usize = XDP_PARKED_MAX;

    fn queue(&self) -> (&Service, usize) {
        (self.service, self.index)
    }

    fn read<'m>(&'m self, chunks: &mut Chunks, now_ns: u64, burst: &mut Burst<'m>) -> usize {
        let mut frames = 0;
        while frames < BURST_MAX
            && let Some(first @ XdpDesc { addr, len, options }) = chunks.received.pop()
        {
            frames += 1;
            let is_one = !options.contains(XdpDescOptions::XDP_PKT_CONTD);
            let is_whole = is_one || chunks.gather(self.socket, first);
            let is_ours = self.socket.umem.arrival_at(addr).is_some();
            if !(is_whole && is_ours && self.note(chunks, burst, addr, len)) {
                self.service.counters().dropped(DropReason::DeviceError, 1);
                chunks.free_frame(self.socket, token(addr, len));
            }
        }
        chunks.received.release();
        for chain in 0..burst.chains.len() {
            let chain = burst.chains[chain];
            burst.add_of_device(chain, VnetHdr::LEN, now_ns, self.service.counters());
        }
        frames
    }

    fn read_again<'m>(
        &'m self,
        chunks: &mut Chunks,
        token: u64,
        arrived_ns: u64,
        burst: &mut Burst<'m>,
    ) {
        let (address, len) = (token as u32, token >> LEN_SHIFT);
        // The frame was in this memory before.
        if self.note(chunks, burst, address.into(), len as u32)
            && let Some(chain) = burst.chains.last().copied()
        {
            burst.add_of_device(chain, VnetHdr::LEN, arrived_ns, self.service.counters());
        }
    }

    fn free(&self, chunks: &mut Chunks, tokens: impl Iterator<Item = u64>) {
        tokens.for_each(|token| chunks.free_frame(self.socket, token));
        chunks.publish(self.socket);
    }

    fn has_more(&self, chunks: &Chunks) -> bool {
        !chunks.received.is_empty()
    }
}
