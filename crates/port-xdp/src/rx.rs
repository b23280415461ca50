//! One queue's frames to the interface: they are copied into chunks, and offered to the kernel together.

use rustix::io::Errno;
use rustix::net::xdp::{XdpDesc, XdpDescOptions};
use weir_engine::egress::Packet;
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
    /// Frames ever put.
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

    /// Frames ever put.
    pub(crate) fn put_total(&self) -> u64 {
        self.put
    }

    /// The number of these that were sent, as far as was [reclaimed](Self::reclaim).
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

    /// Copies a packet, which fits into a chunk, into a free chunk, for the next [`announce`](Self::announce); `false`
    /// if no chunk is free.
    pub(crate) fn put(&mut self, socket: &XdpSocket, packet: &Packet<'_, '_>) -> bool {
        let Some(address) = self.free_chunk(socket) else { return false };
        let len = packet.len() as u32; // fits a chunk
        let Some(chunk) = socket.umem.slice(address, len) else { return false };
        let mut at = chunk.write(packet.head.as_slice());
        for piece in packet.body() {
            at += piece.copy_to(&chunk.skip(at));
        }
        // The ring has an entry for each chunk.
        self.transmit.push(XdpDesc { addr: address, len, options: XdpDescOptions::empty() });
        self.unannounced += 1;
        self.put += 1;
        true
    }

    /// A free chunk. If there is none the kernel is notified early, and asked for the chunks that it has finished.
    fn free_chunk(&mut self, socket: &XdpSocket) -> Option<u64> {
        if self.free.is_empty() {
            self.reclaim();
        }
        if self.free.is_empty() {
            // A fault shows again at the end of the burst.
            self.announce(socket);
            self.reclaim();
        }
        self.free.pop()
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
