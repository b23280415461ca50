//! One queue's frames to the interface: they are copied into chunks, and offered to the kernel together.

use rustix::io::Errno;
use rustix::net::xdp::{XdpDesc, XdpDescOptions};
use weir_engine::egress::Packet;
use weir_guestmem::Slice;
use weir_limits::XDP_FRAMES;

use crate::ring::{Consumer, Producer};
use crate::socket::XdpSocket;

/// A receive queue. Every chunk is in `free`, or the kernel's: in the TX ring, on its way, or in the
/// completion ring.
pub(crate) struct RxQueue {
    transmit: Producer<XdpDesc>,
    completed: Consumer<u64>,
    /// The addresses of free chunks. The last one freed is used first: it is still in the CPU's cache.
    free: Vec<u64>,
    chunks: usize,
    /// Chunks ever put.
    put: u64,
    /// Entries of the TX ring for which no doorbell was rung.
    unannounced: u32,
    /// The engine was asked to come back for frames that the kernel did not take.
    pub(crate) retrying: bool,
}

/// The result of a doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// The kernel has all frames, or takes them without another doorbell.
    All,
    /// The doorbell has to be rung again later.
    Later,
    /// The link is down: frames wait in the ring until it is up, as in a NIC's.
    LinkDown,
    /// The interface was removed.
    Gone(Errno),
}

impl RxQueue {
    /// The queue of a socket whose chunks for frames to the interface are all free.
    pub(crate) fn new(
        transmit: Producer<XdpDesc>,
        completed: Consumer<u64>,
        chunks: impl Iterator<Item = u64>,
    ) -> Self {
        let mut free = Vec::with_capacity(XDP_FRAMES as usize);
        free.extend(chunks);
        let chunks = free.len();
        Self { transmit, completed, free, chunks, put: 0, unannounced: 0, retrying: false }
    }

    /// Chunks ever put.
    pub(crate) fn put_total(&self) -> u64 {
        self.put
    }

    /// Chunks that were put, sent and [reclaimed](Self::reclaim).
    pub(crate) fn sent_total(&self) -> u64 {
        self.put - (self.chunks - self.free.len()) as u64
    }

    /// Frees the chunks of frames that were sent.
    pub(crate) fn reclaim(&mut self) {
        while let Some(address) = self.completed.pop() {
            self.free.push(address);
        }
        self.completed.release();
    }

    /// Copies a packet of no more than [`XDP_CHUNKS_MAX`](weir_limits::XDP_CHUNKS_MAX) chunks into free chunks, for the
    /// next [`announce`](Self::announce); `false` if too few are free.
    pub(crate) fn put(&mut self, socket: &XdpSocket, packet: &Packet<'_, '_>) -> bool {
        let mut left = packet.len() as u32; // a few chunks
        if !self.has_free(socket, left.div_ceil(socket.umem.chunk_len()) as usize) {
            return false;
        }
        let Some(mut room) = self.push_chunk(socket, &mut left) else { return false };
        // A front is shorter than a chunk.
        room = room.skip(room.write(packet.head.as_slice()));
        for mut piece in packet.body() {
            loop {
                let copied = piece.copy_to(&room);
                (piece, room) = (piece.skip(copied), room.skip(copied));
                if piece.is_empty() {
                    break;
                }
                let Some(next) = self.push_chunk(socket, &mut left) else { break };
                room = next;
            }
        }
        true
    }

    /// Puts a free chunk into the ring, for as many of the `left` bytes of a packet as it has room for.
    #[inline]
    fn push_chunk<'s>(&mut self, socket: &'s XdpSocket, left: &mut u32) -> Option<Slice<'s>> {
        let (address, len) = (self.free.pop()?, socket.umem.chunk_len().min(*left));
        let chunk = socket.umem.slice(address, len)?;
        *left -= len;
        let mut options = XdpDescOptions::empty();
        options.set(XdpDescOptions::XDP_PKT_CONTD, *left > 0);
        // The ring has an entry for each chunk.
        self.transmit.push(XdpDesc { addr: address, len, options });
        self.unannounced += 1;
        self.put += 1;
        Some(chunk)
    }

    /// True if this number of chunks are free. If they are not, the kernel is notified early, and
    /// asked for the chunks that it has finished.
    fn has_free(&mut self, socket: &XdpSocket, chunks: usize) -> bool {
        if self.free.len() < chunks {
            self.reclaim();
        }
        if self.free.len() < chunks {
            // A fault shows again at the end of the burst.
            self.announce(socket);
            self.reclaim();
        }
        self.free.len() >= chunks
    }

    /// Notifies the kernel of all frames that were put.
    pub(crate) fn announce(&mut self, socket: &XdpSocket) -> Sent {
        self.transmit.publish();
        self.unannounced = 0;
        self.ring_doorbell(socket)
    }

    /// True if the kernel was not notified of all frames that were put.
    pub(crate) fn has_unannounced(&self) -> bool {
        self.unannounced > 0
    }

    /// Rings the doorbell. In copy mode one call sends no more than 32 frames (`TX_BATCH_SIZE` in `net/xdp/xsk.c`) and
    /// fails with `EAGAIN` for the rest, as it does without memory.
    fn ring_doorbell(&mut self, socket: &XdpSocket) -> Sent {
        // With no chunk left the kernel is asked in any case: it then reports whether the interface was removed.
        while self.transmit.needs_wakeup() || self.free.is_empty() {
            let before = self.transmit.left();
            match socket.send() {
                Ok(()) => return Sent::All,
                Err(Errno::NETDOWN) => return Sent::LinkDown,
                Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR) => {
                    let left = self.transmit.left();
                    if left == 0 {
                        return Sent::All;
                    }
                    if left == before {
                        return Sent::Later;
                    }
                }
                Err(error) => return Sent::Gone(error),
            }
        }
        Sent::All
    }
}
