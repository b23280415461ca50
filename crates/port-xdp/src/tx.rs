//! One queue's frames from the interface: they stay in the chunks that the kernel put them into until
//! their receivers have copied them, or have had room again for those that found them full.

use std::collections::VecDeque;

use rustix::net::xdp::XdpDesc;
use weir_engine::burst::{Burst, Scratch, TakenChain};
use weir_engine::{DropReason, PortCounters, Taken};
use weir_fabric::PortId;
use weir_limits::{BURST_MAX, PARKED_NS_MAX, XDP_PARKED_MAX};
use weir_wire::VnetHdr;

use crate::ring::{Consumer, Producer};
use crate::socket::XdpSocket;
use crate::umem::Umem;

// `settle` notes in one word which frames of a burst wait.
const _: () = assert!(BURST_MAX <= u64::BITS as usize);

/// A frame that waits for a receiver that was full.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// Where it lies.
    at: XdpDesc,
    port: PortId,
    since_ns: u64,
}

/// A transmit queue. Every chunk is in the kernel's hands (the fill ring, or on its way to the RX
/// ring), in `waiting`, or that of a frame of the burst that is under way.
pub(crate) struct TxQueue {
    fill: Producer<u64>,
    received: Consumer<XdpDesc>,
    /// In the order of arrival.
    waiting: VecDeque<Waiting>,
    /// Where the frames of the burst under way lie, by the order in which they were taken: what their
    /// tokens count.
    taken: Vec<XdpDesc>,
}

impl TxQueue {
    pub(crate) fn new(fill: Producer<u64>, received: Consumer<XdpDesc>) -> Self {
        let waiting = VecDeque::with_capacity(XDP_PARKED_MAX);
        Self { fill, received, waiting, taken: Vec::with_capacity(BURST_MAX) }
    }

    /// Whether no frame is there.
    pub(crate) fn is_empty(&self) -> bool {
        self.received.is_empty()
    }

    /// Takes at most a burst of new frames and has them forwarded.
    pub(crate) fn take_new(
        &mut self,
        socket: &XdpSocket,
        now_ns: u64,
        counters: &PortCounters,
        scratch: &mut Scratch,
        forward: &mut dyn FnMut(&mut Burst<'_>),
    ) -> Taken {
        let mut burst = scratch.lend();
        burst.from_device = true;
        burst.park_room = XDP_PARKED_MAX.saturating_sub(self.waiting.len());
        for waiting in &self.waiting {
            if !burst.blocked.contains(&waiting.port) {
                burst.blocked.push(waiting.port);
            }
        }
        while self.taken.len() < BURST_MAX
            && let Some(at) = self.received.pop()
        {
            self.gather(&mut burst, &socket.umem, at);
        }
        self.received.release();
        let frames = self.taken.len();
        for chain in 0..burst.chains.len() {
            let chain = burst.chains[chain];
            add(&mut burst, chain, now_ns, counters);
        }
        if !burst.frames().is_empty() {
            forward(&mut burst);
        }
        counters.parked.add(burst.parked.len() as u64);
        self.settle(&burst, socket);
        scratch.give_back(burst);
        self.summary(frames)
    }

    /// Has all frames that wait forwarded again, but for those that have waited too long.
    pub(crate) fn take_parked(
        &mut self,
        socket: &XdpSocket,
        now_ns: u64,
        counters: &PortCounters,
        scratch: &mut Scratch,
        forward: &mut dyn FnMut(&mut Burst<'_>),
    ) -> Taken {
        let mut burst = scratch.lend();
        burst.from_device = true;
        burst.waited = true;
        burst.park_room = XDP_PARKED_MAX;
        let frames = self.waiting.len();
        for _ in 0..frames {
            let Some(Waiting { at, since_ns, .. }) = self.waiting.pop_front() else { break };
            let before = burst.chains.len();
            self.gather(&mut burst, &socket.umem, at);
            if since_ns.saturating_add(PARKED_NS_MAX) <= now_ns {
                counters.dropped(DropReason::RxWaitedTooLong, 1);
            } else if let Some(chain) = burst.chains.get(before).copied() {
                add(&mut burst, chain, since_ns, counters);
            }
        }
        if !burst.frames().is_empty() {
            forward(&mut burst);
        }
        self.settle(&burst, socket);
        scratch.give_back(burst);
        self.summary(frames)
    }

    /// Drops what waits: the port has stopped.
    pub(crate) fn abandon_waiting(&mut self, counters: &PortCounters) {
        counters.dropped(DropReason::TxDisabled, self.waiting.len() as u64);
        self.waiting.clear();
    }

    /// Notes a frame and has the processor fetch it: by the time the last one of a burst is noted, the
    /// first is there.
    fn gather<'m>(&mut self, burst: &mut Burst<'m>, umem: &'m Umem, at: XdpDesc) {
        let token = self.taken.len() as u64;
        self.taken.push(at);
        let first = burst.pieces.len() as u32;
        let slice = umem.frame(at.addr, at.len);
        slice.inspect(|slice| slice.skip(VnetHdr::LEN).prefetch());
        let len = slice.map_or(0, |slice| slice.len()) as u32; // a chunk's at most
        burst.pieces.extend(slice);
        let pieces = (first, burst.pieces.len() as u32);
        burst.chains.push(TakenChain { token, len, pieces });
    }

    /// After a burst: its frames wait, or their chunks are the kernel's again.
    fn settle(&mut self, burst: &Burst<'_>, socket: &XdpSocket) {
        let mut waits = 0u64;
        for parked in &burst.parked {
            let Some(frame) = burst.frames().get(usize::from(parked.frame)) else { continue };
            let Some(at) = self.taken.get(frame.token as usize).copied() else { continue };
            waits |= 1 << frame.token;
            let (port, since_ns) = (parked.port, frame.arrived_ns);
            self.waiting.push_back(Waiting { at, port, since_ns });
        }
        for (token, at) in self.taken.drain(..).enumerate() {
            if waits & 1 << token == 0
                && let Some(chunk) = socket.umem.arrival_at(at.addr)
            {
                // There is an entry for each chunk.
                self.fill.push(socket.umem.address(chunk));
            }
        }
        self.fill.publish();
        if self.fill.needs_wakeup() {
            socket.refill();
        }
    }

    fn summary(&self, frames: usize) -> Taken {
        let oldest = self.waiting.iter().map(|waiting| waiting.since_ns).min();
        Taken {
            frames,
            more: !self.is_empty(),
            peek: true,
            parked: self.waiting.len(),
            parked_more: false, // all of them are tried in one burst
            parked_until: oldest.map(|since_ns| since_ns.saturating_add(PARKED_NS_MAX)),
            hold_until: None,
        }
    }
}

/// Adds a frame to the burst, or counts why not.
fn add(burst: &mut Burst<'_>, chain: TakenChain, arrived_ns: u64, counters: &PortCounters) {
    let result = if chain.pieces.0 == chain.pieces.1 {
        // Not in the memory that the kernel was given.
        Err(DropReason::DeviceError)
    } else {
        let added = burst.add(chain, VnetHdr::LEN, arrived_ns);
        added.map_err(|error| error.drop_reason().unwrap_or(DropReason::DeviceError))
    };
    if let Err(reason) = result {
        counters.dropped(reason, 1);
    }
}
