//! Receive queues: from a burst into a guest's ring, with the one copy, and the guest's call.
//!
//! ```text
//! place()    under the queue's lock   chains for every frame; headers and fronts are written
//! copy()     no lock                  the rest, so that several workers fill one queue at a time
//! finish()   under the lock           one index write, in the order of place(); the call
//! ```
//!
//! [`weir_engine::queue`] orders frames and decides when the guest is told. If no frame is longer than its front,
//! nothing is left to copy, and `place` finishes.

mod container;
mod logged;

use std::mem::take;
use std::ops::Range;
use std::sync::Arc;

use weir_engine::burst::Burst;
use weir_engine::egress::{Packet, Put};
use weir_engine::gro::{EgressList, Plain, PlainFrames};
use weir_engine::guest::ReceiveRing;
use weir_engine::queue::{ReceiveQueue, Written};
use weir_engine::stages::{self, Stage};
use weir_engine::{Delivered, DropReason, Outgoing, PortCounters};
use weir_guestmem::{GuestMemory, Slice, WriteLog, recycle};
use weir_limits::RX_MERGE_MAX;
use weir_policy::moderation::Batch;
use weir_policy::steering::Mark;
use weir_ring::{Chain, DeviceRing, Direction, RingError, Taken};
use weir_wire::VnetHdr;

use self::container::Open;
use crate::error::StopReason;
use crate::queue::Queue;

pub(crate) type RxQueue = ReceiveQueue<Queue>;

/// Room that is kept between bursts.
#[derive(Debug, Default)]
pub(crate) struct Room {
    buffers: Vec<Slice<'static>>,
    chains: Vec<Reserved>,
    copies: Vec<Slice<'static>>,
}

/// Bytes to prefetch of the next copy's buffer: the guest's core has its lines, and a copy would wait for each in
/// turn. The constant covers a frame of 1500 bytes; of larger ones the CPU foresees the rest.
const FETCHED_AHEAD: usize = 2048;

/// A batch that was placed in a ring.
#[must_use]
pub(crate) struct Placed<'m> {
    pub(crate) delivered: Delivered,
    /// What is left to do.
    pub(crate) rest: Option<Copies<'m>>,
}

/// Copies to be done without the queue's lock, then to be [finished](finish).
pub(crate) struct Copies<'m> {
    /// From, to, from, to.
    slices: Vec<Slice<'m>>,
    place: weir_engine::queue::Place,
}

impl Copies<'_> {
    /// The copy from senders' memory into the receiver's.
    pub(crate) fn copy(&self) {
        let mut next = self.slices.chunks_exact(2).skip(1);
        for pair in self.slices.chunks_exact(2) {
            if let Some(next) = next.next() {
                next[1].prefetch_write(FETCHED_AHEAD);
            }
            pair[0].copy_to(&pair[1]);
        }
    }
}

/// See [`weir_policy::steering::Receiver`].
pub(crate) fn mark(rx: &RxQueue) -> Mark {
    let ring = rx.queue.ring.as_ref();
    Mark { placed: rx.placed(), event: ring.and_then(|ring| ring.device.call_event()) }
}

/// See [`weir_policy::steering::Receiver`]. A ring may go on where another stopped, and holds what that
/// held; with none there is nobody who could take a thing.
pub(crate) fn has_taken(rx: &RxQueue, placed: u64, before: Mark) -> bool {
    let Some(ring) = rx.queue.ring.as_ref().map(|ring| &ring.device) else { return true };
    let now = mark(rx);
    let lap = u64::from(ring.config().size);
    let event_is_fresh = now.event != before.event && now.placed - before.placed < lap;
    now.placed.saturating_sub(ring.untaken_max(event_is_fresh)) >= placed
}

/// The memory that its ring is in; `None` while the guest cannot receive.
pub(crate) fn memory(rx: &RxQueue) -> Option<Arc<GuestMemory>> {
    (rx.queue.is_ready() && rx.is_open())
        .then(|| Some(Arc::clone(&rx.queue.ring.as_ref()?.memory)))?
}

/// Places frames in the ring, whose memory is `memory`: see [`weir_engine::Port::deliver`].
/// `index` is the queue pair. Longer than a screen: half of it is what the writer begins with and leaves.
pub(crate) fn place<'m>(
    rx: &mut RxQueue,
    index: usize,
    memory: &'m GuestMemory,
    burst: &'m Burst<'m>,
    frames: &'m [Outgoing],
    counters: &PortCounters,
) -> Result<Placed<'m>, StopReason> {
    let Queue { ring: Some(ring), room, armed, .. } = &mut rx.queue else {
        return Ok(Placed { delivered: Delivered::default(), rest: None });
    };
    let caps = ring.features.receive_caps();
    // A burst of one frame has nothing to be packed with.
    let packs = ring.containers && rx.calls.withholds() && frames.len() > 1;
    let mut writer = Writer {
        device: &mut ring.device,
        memory,
        vnet_len: ring.features.vnet_len(),
        mergeable: ring.features.mergeable(),
        buffers: recycle(take(&mut room.buffers)),
        chains: take(&mut room.chains),
        copies: recycle(take(&mut room.copies)),
        next: 0,
        packs,
        container: None,
        completed: 0,
        log: ring.logging.as_ref().and_then(|logging| logging.data.as_ref()),
        counters,
        broken: None,
        packets: 0,
        bytes: 0,
    };
    if !*armed {
        writer.device.suppress_kicks();
    }
    writer.reserve(if packs { 1 } else { frames.len() });
    let mut list = EgressList::new(burst, frames, caps);
    let mut delivered_frames = 0;
    let mut arrived_ns = u64::MAX;
    loop {
        let plain = list.plain();
        let run = if packs { writer.pack_plain(plain) } else { writer.place_plain(plain) };
        list.plain_done(run.frames as usize);
        delivered_frames += run.frames;
        arrived_ns = arrived_ns.min(run.arrived_ns);
        let before = writer.packets;
        let Some(sent) = list.emit_next(|packet| writer.put(&packet)) else { break };
        if !sent.settle(counters) {
            break;
        }
        if writer.packets > before {
            delivered_frames += sent.frames;
            arrived_ns = arrived_ns.min(sent.arrived_ns);
        }
    }
    let dealt_with = list.delivered();
    let Finished { buffers, chains, copies: slices, completed, broken, bytes } = writer.finish();
    (room.buffers, room.chains) = (buffers, chains);
    if let Some(error) = broken {
        return Err(StopReason::Ring { ring: 2 * index, error }.unless_truncated(memory));
    }
    let written = Written {
        dealt_with,
        full: dealt_with.frames < frames.len(),
        batch: Batch { frames: delivered_frames, bytes, arrived_ns },
        chains: completed,
        merged: list.merged(),
        waited: burst.waited,
    };
    let (mut delivered, place) = rx.place(index, written, counters)?;
    if !slices.is_empty() {
        return Ok(Placed { delivered, rest: Some(Copies { slices, place }) });
    }
    delivered.hold_until = finish(rx, index, Copies { slices, place }, counters)?;
    Ok(Placed { delivered, rest: None })
}

/// What was placed is copied: see [`ReceiveQueue::finish`].
pub(crate) fn finish(
    rx: &mut RxQueue,
    index: usize,
    copies: Copies<'_>,
    counters: &PortCounters,
) -> Result<Option<u64>, StopReason> {
    // The log that there is now: it may have come after the copies began.
    let logging = rx.queue.ring.as_ref().and_then(|ring| ring.logging.as_ref());
    if let Some(log) = logging.and_then(|logging| logging.data.as_ref()) {
        logged::mark_copies(log, &copies.slices);
    }
    rx.queue.room.copies = recycle(copies.slices);
    stages::lap(Stage::Copy);
    let hold_until = rx.finish(index, copies.place, counters)?;
    rx.queue.signal_log();
    Ok(hold_until)
}

/// A chain that is taken and not written to yet.
#[derive(Debug, Clone, Copy)]
struct Reserved {
    /// Its length is what was put into it, once it is used.
    chain: Chain,
    /// Its pieces in the writer's buffers: the first, and the one after the last.
    pieces: (u32, u32),
}

impl Reserved {
    fn pieces(&self) -> Range<usize> {
        self.pieces.0 as usize..self.pieces.1 as usize
    }
}

/// Frames that were written one after the other.
struct Run {
    frames: u32,
    /// When the first of them was taken (ns).
    arrived_ns: u64,
}

/// Writes packets into a ring, one after the other.
struct Writer<'r, 'm> {
    device: &'r mut DeviceRing,
    memory: &'m GuestMemory,
    vnet_len: usize,
    mergeable: bool,
    buffers: Vec<Slice<'m>>,
    /// Chains taken ahead; those from `next` on are free.
    chains: Vec<Reserved>,
    next: usize,
    /// Frames are packed into containers.
    packs: bool,
    container: Option<Open<'m>>,
    /// Copies that are put off: from, to, from, to.
    copies: Vec<Slice<'m>>,
    completed: u16,
    log: Option<&'r WriteLog>,
    counters: &'r PortCounters,
    broken: Option<RingError>,
    packets: u32,
    bytes: u64,
}

/// A chain that was taken ahead; its front is fetched to be written.
#[inline(always)]
fn reserved(taken: &Taken<'_>) -> Reserved {
    let Taken { chain, front, pieces } = taken;
    front.prefetch_front_write();
    Reserved { chain: *chain, pieces: *pieces }
}

/// What is left of a [`Writer`].
struct Finished<'m> {
    buffers: Vec<Slice<'static>>,
    chains: Vec<Reserved>,
    copies: Vec<Slice<'m>>,
    /// Chains.
    completed: u16,
    broken: Option<RingError>,
    bytes: u64,
}

impl<'m> Writer<'_, 'm> {
    /// Takes chains ahead, one per coming packet, so that the CPU fetches all while the first are written. A
    /// function of its own, so that its loop has all registers.
    #[inline(never)]
    fn reserve(&mut self, packets: usize) {
        if usize::from(self.device.available()) < packets && self.device.refill().is_err() {
            return;
        }
        let packets = packets as u16; // a burst
        let Self { device, memory, buffers, chains, .. } = self;
        // An error shows again when a packet needs the chain.
        let _ = device.take_burst(Direction::Writable, packets, memory, buffers, |taken| {
            chains.push(reserved(&taken));
        });
    }

    /// Takes one chain more; `false` when there is none.
    #[cold]
    fn reserve_one(&mut self) -> Result<bool, RingError> {
        let before = self.chains.len();
        let Self { device, memory, buffers, chains, .. } = self;
        device.take_burst(Direction::Writable, 1, memory, buffers, |taken| {
            chains.push(reserved(&taken));
        })?;
        Ok(chains.len() > before)
    }

    #[inline(never)]
    fn put(&mut self, packet: &Packet<'_, 'm>) -> Put {
        let packed = self.packs && self.pack_packet(packet);
        match if packed { Ok(Put::Done) } else { self.place(packet) } {
            Ok(Put::Done) => {
                self.packets += 1;
                self.bytes += packet.frames_len() as u64;
                Put::Done
            }
            // Frames that are too large together are not so each by itself.
            Ok(Put::Refused) if packet.frames > 1 => Put::Full,
            Ok(Put::Refused) => {
                self.counters.dropped(DropReason::RxBufferTooSmall, 1);
                Put::Refused
            }
            Ok(Put::Full) => Put::Full,
            Err(error) => {
                self.broken = Some(error);
                Put::Full
            }
        }
    }

    /// The usual case: frames without changes, each into a next chain whose first buffer has room for it. It ends at the
    /// first that is not so, of which nothing is written.
    // By itself: its loop has all registers.
    #[inline(never)]
    fn place_plain(&mut self, frames: PlainFrames<'m>) -> Run {
        let mut run = Run { frames: 0, arrived_ns: u64::MAX };
        if self.vnet_len != VnetHdr::LEN {
            return run;
        }
        let Self { buffers, chains, next, copies, device, .. } = self;
        let free = chains.get_mut(*next..).unwrap_or_default();
        let (mut bytes, mut bodies) = (0, 0);
        for (Reserved { chain, pieces }, Plain { frame, .. }) in free.iter_mut().zip(frames.clone())
        {
            let need = VnetHdr::LEN + frame.len as usize;
            let head = frame.head.as_slice();
            let Some(&buffer) = buffers.get(pieces.0 as usize) else { break };
            if buffer.len() < need || !buffer.write_at(VnetHdr::LEN, head) {
                break;
            }
            buffer.write_array(PLAIN_VNET);
            chain.len = need as u32; // a frame is shorter than 2^17
            bytes += u64::from(frame.len);
            bodies += frame.len as usize - head.len();
            run.frames += 1;
            run.arrived_ns = run.arrived_ns.min(frame.arrived_ns);
        }
        let used = free.get(..run.frames as usize).unwrap_or_default();
        if bodies > 0 {
            for (Reserved { pieces, .. }, plain) in used.iter().zip(frames) {
                let mut to = buffers[pieces.0 as usize].skip(VnetHdr::LEN + plain.frame.head.len());
                for from in plain.body() {
                    copies.extend([*from, to.first(from.len())]);
                    to = to.skip(from.len());
                }
            }
        }
        device.complete_all(used.iter().map(|reserved| (reserved.chain.token, reserved.chain.len)));
        self.next += run.frames as usize;
        self.completed += run.frames as u16; // a burst
        self.bytes += bytes;
        run
    }

    /// Writes the packet into as many chains as it needs and completes them. Nothing is written, and
    /// no chain is used, unless the whole packet fits.
    #[inline(never)]
    fn place(&mut self, packet: &Packet<'_, 'm>) -> Result<Put, RingError> {
        let need = self.vnet_len + packet.len();
        let ring_size = usize::from(self.device.config().size);
        let chains_max = if self.mergeable { RX_MERGE_MAX.min(ring_size) } else { 1 };
        let first = self.next;
        let mut end = first;
        let mut room = 0u64;
        while room < need as u64 {
            if end - first == chains_max {
                return Ok(Put::Refused);
            }
            if end == self.chains.len() {
                let found = self.reserve_one()?;
                if !found && (self.device.refill()? == 0 || !self.reserve_one()?) {
                    return Ok(Put::Full);
                }
            }
            room += u64::from(self.chains[end].chain.len);
            end += 1;
        }
        self.next = end;

        let chains = &self.chains[first..end];
        let (from, to) = (chains[0].pieces().start, chains[end - 1 - first].pieces().end);
        let mut cursor = Cursor { pieces: &self.buffers[from..to], skip: 0 };
        // virtio 1.2 §5.1.6.4: num_buffers is the number of chains.
        cursor.write(&packet.offload.to_vnet(chains.len() as u16).to_bytes()[..self.vnet_len]);
        cursor.write(packet.head.as_slice());
        for slice in packet.body() {
            cursor.put_off(slice, &mut self.copies);
        }
        let mut left = need as u32; // a packet is shorter than 2^17
        for Reserved { chain, .. } in chains {
            let written = chain.len.min(left);
            self.device.complete(chain.token, written);
            self.completed += 1;
            left -= written;
        }
        if chains.len() > 1 {
            self.device.join();
        }
        Ok(Put::Done)
    }

    /// Gives back what was taken ahead and not used.
    fn finish(mut self) -> Finished<'m> {
        if self.packs {
            self.close_container();
        }
        if let Some(log) = self.log {
            self.mark_fronts(log);
        }
        let unused = &self.chains[self.next..];
        self.device.give_back(unused.iter().map(|reserved| reserved.chain.token));
        self.chains.clear();
        let Self { buffers, chains, copies, completed, broken, bytes, .. } = self;
        Finished { buffers: recycle(buffers), chains, copies, completed, broken, bytes }
    }
}

/// The virtio-net header of a frame in one buffer without offloads. It is written in whole words that were never in
/// memory: a load across several smaller stores would wait for every earlier store to lines that the guest's core
/// holds.
const PLAIN_VNET: [u8; VnetHdr::LEN] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0];

/// A position in a list of slices.
struct Cursor<'p, 'm> {
    pieces: &'p [Slice<'m>],
    skip: usize,
}

impl<'m> Cursor<'_, 'm> {
    #[inline]
    fn advance(&mut self, by: usize) {
        self.skip += by;
        if self.pieces.first().is_some_and(|piece| piece.len() == self.skip) {
            self.pieces = &self.pieces[1..];
            self.skip = 0;
        }
    }

    #[inline]
    fn write(&mut self, mut bytes: &[u8]) {
        while let (Some(piece), false) = (self.pieces.first(), bytes.is_empty()) {
            let written = piece.skip(self.skip).write(bytes);
            bytes = &bytes[written..];
            self.advance(written);
        }
    }

    /// Notes the copy from the sender's memory into the receiver's.
    #[inline]
    fn put_off(&mut self, mut from: Slice<'m>, copies: &mut Vec<Slice<'m>>) {
        while let (Some(piece), false) = (self.pieces.first(), from.is_empty()) {
            let to = piece.skip(self.skip);
            let len = from.len().min(to.len());
            copies.extend([from.first(len), to]);
            from = from.skip(len);
            self.advance(len);
        }
    }
}
