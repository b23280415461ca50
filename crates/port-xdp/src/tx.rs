//! One queue's frames from the interface. They stay in the chunks into which the kernel has put them until their
//! receivers have copied them, or, if these were full, have had room again.

use rustix::net::xdp::XdpDesc;
use weir_engine::DropReason;
use weir_engine::burst::{Burst, Pieces, TakenChain};
use weir_limits::{BURST_MAX, XDP_PARKED_MAX};
use weir_port_tap::{DeviceFrames, Service, Uncalled};
use weir_wire::VnetHdr;

use crate::ring::{Consumer, Producer};
use crate::socket::XdpSocket;

/// Each chunk for frames from the interface is the kernel's (in the fill ring, or on its way to the RX ring), or holds
/// a frame that was taken.
pub(crate) struct Chunks {
    fill: Producer<u64>,
    received: Consumer<XdpDesc>,
}

impl Chunks {
    pub(crate) fn new(fill: Producer<u64>, received: Consumer<XdpDesc>) -> Self {
        Self { fill, received }
    }

    /// Gives a chunk back to the kernel, from the next [`publish`](Self::publish) on.
    fn free(&mut self, socket: &XdpSocket, chunk: u16) {
        // The ring has an entry for each chunk.
        self.fill.push(socket.umem.address(chunk));
    }

    /// Frees the chunk of the frame with this token.
    fn free_frame(&mut self, socket: &XdpSocket, token: u64) {
        let address = token as u32;
        if let Some(chunk) = socket.umem.arrival_at(address.into()) {
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

/// A queue of an interface: its socket, with the memory of its frames. A frame's token has its place and its length.
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
    fn note<'m>(&'m self, burst: &mut Burst<'m>, address: u64, len: u32) -> bool {
        let Some(slice) = self.socket.umem.frame(address, len) else { return false };
        slice.skip(VnetHdr::LEN).prefetch();
        let token = token(address, len);
        let len = slice.len() as u32; // a chunk's at most
        burst.chains.push(TakenChain { token, len, pieces: Pieces::Only(slice) });
        true
    }
}

impl DeviceFrames for SocketQueue<'_> {
    type Places = Chunks;

    const PEEK: bool = true;
    const PARKED_MAX: usize = XDP_PARKED_MAX;

    fn service(&self) -> &Service {
        self.service
    }

    fn index(&self) -> usize {
        self.index
    }

    fn read<'m>(&'m self, chunks: &mut Chunks, now_ns: u64, burst: &mut Burst<'m>) -> usize {
        let mut frames = 0;
        while frames < BURST_MAX
            && let Some(XdpDesc { addr, len, .. }) = chunks.received.pop()
        {
            frames += 1;
            let chunk = self.socket.umem.arrival_at(addr);
            if chunk.is_none() || !self.note(burst, addr, len) {
                self.service.counters().dropped(DropReason::DeviceError, 1);
                if let Some(chunk) = chunk {
                    chunks.free(self.socket, chunk);
                }
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
        _: &mut Chunks,
        token: u64,
        arrived_ns: u64,
        burst: &mut Burst<'m>,
    ) {
        let (address, len) = (token as u32, token >> LEN_SHIFT);
        // The frame was in this memory before.
        if self.note(burst, address.into(), len as u32)
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
