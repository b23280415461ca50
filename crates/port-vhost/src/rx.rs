//! Receive queues: from a burst into a guest's ring, with the one copy, and the guest's call.
//!
//! ```text
//! place()    under the queue's lock   chains for every frame; headers and fronts are written
//! copy()     no lock                  the rest, so that several workers fill one queue at a time
//! finish()   under the lock           one index write, in the order of place(); the call
//! ```
//!
//! [`weir_engine::queue`] orders frames and decides when the guest is notified. If no frame is longer than its front,
//! nothing is left to copy, and `place` finishes.

mod container;
mod logged;
pub(crate) mod room;
pub(crate) mod unseen;

use std::mem::take;
use std::slice;
use std::sync::Arc;

use weir_engine::burst::{Burst, Frame};
use weir_engine::egress::{Packet, Put};
use weir_engine::gro::{EgressList, Plain, PlainRow};
use weir_engine::guest::ReceiveRing;
use weir_engine::queue::{ReceiveQueue, Written};
use weir_engine::stages::{self, Stage};
use weir_engine::{Delivered, DropReason, Outgoing, PortCounters};
use weir_guestmem::{GuestMemory, Loan, Slice, WriteLog, fault_count};
use weir_limits::{IOTLB_AHEAD_MAX, RX_MERGE_MAX};
use weir_policy::moderation::Batch;
use weir_policy::steering::Mark;
use weir_ring::{DeviceRing, Direction, RingError, Taken};
use weir_wire::VnetHdr;

use self::room::Reserved;
use self::unseen::{Open, Unseen};
use crate::error::{Fault, StopReason};
use crate::queue::{Queue, Ring};

pub(crate) type RxQueue = ReceiveQueue<Queue>;

/// Bytes to prefetch of the next copy's buffer: its cache lines are in the guest's core, and a copy would wait for each
/// in turn. The constant covers a frame of 1500 bytes; the CPU prefetches the rest of larger ones itself.
const FETCHED_AHEAD: usize = 2048;

/// Copies to be made without the queue's lock, and then to be [finished](finish).
pub(crate) struct Copies<'m> {
    /// The place to copy from, and the place to copy to.
    slices: Slices<'m>,
    place: weir_engine::queue::Place,
}

impl Copies<'_> {
    /// Copies from the senders' memory into the receiver's.
    pub(crate) fn copy(&self) {
        for two in self.slices.windows(2) {
            if let [[from, to], [_, next]] = two {
                next.prefetch_write(FETCHED_AHEAD);
                from.copy_to(to);
            }
        }
        if let Some([from, to]) = self.slices.last() {
            from.copy_to(to);
        }
    }
}

/// See [`weir_policy::steering::Receiver`].
pub(crate) fn mark(rx: &RxQueue) -> Mark {
    let ring = rx.queue.ring.as_ref();
    Mark { placed: rx.placed(), event: ring.and_then(|ring| ring.device.call_event()) }
}

/// See [`weir_policy::steering::Receiver`]. A ring can continue where another stopped, and then holds that ring's
/// frames. Without a ring nobody can take anything.
pub(crate) fn has_taken(rx: &RxQueue, placed: u64, before: Mark) -> bool {
    let Some(ring) = rx.queue.ring.as_ref().map(|ring| &ring.device) else { return true };
    let now = mark(rx);
    let lap = u64::from(ring.config().size);
    let event_is_fresh = now.event != before.event && now.placed - before.placed < lap;
    now.placed.saturating_sub(ring.untaken_max(event_is_fresh)) >= placed
}

/// The memory of the queue's ring; `None` while the guest cannot receive.
pub(crate) fn memory(rx: &RxQueue) -> Option<Arc<GuestMemory>> {
    (rx.queue.is_ready() && rx.is_open())
        .then(|| Some(Arc::clone(&rx.queue.ring.as_ref()?.memory)))?
}

/// True if frames for a ring whose place is not known yet may wait for it; `None` for any other that cannot be filled.
pub(crate) fn worth_waiting(rx: &mut RxQueue) -> Option<bool> {
    (rx.queue.late.is_some() && rx.queue.enabled && rx.is_open())
        .then(|| rx.calls.note_full(true, false))
}

/// Asks for the translations of the next buffers, so that frames which cannot wait for them find some.
pub(crate) fn look_ahead(queue: &mut Queue) {
    let Some(ring) = queue.ring.as_mut().filter(|ring| ring.is_started()) else { return };
    let (memory, mut pieces, mut chains) = (Arc::clone(&ring.memory), Vec::new(), Vec::new());
    let (to, max) = (Direction::Writable, IOTLB_AHEAD_MAX);
    if ring.device.refill().is_ok() {
        // An error shows again when a frame needs the chain.
        let token = |taken: Taken<'_>| taken.chain.token;
        let _ = ring.device.take_burst(to, max, &memory, &mut pieces, &mut chains, token);
        ring.device.give_back(chains.into_iter());
    }
}

/// Places frames in the ring, whose memory is `memory`, and writes what became of them to
/// `delivered`: see [`weir_engine::Port::deliver`]. `index` is the queue pair. Returns the
/// remaining copies; `None` if there are none, and the batch is finished. The function is longer
/// than a screen: half of it sets up the writer and takes its results.
pub(crate) fn place<'m>(
    rx: &mut RxQueue,
    index: usize,
    memory: &'m GuestMemory,
    burst: &'m Burst<'m>,
    frames: &'m [Outgoing],
    counters: &PortCounters,
    delivered: &mut Delivered,
) -> Result<Option<Copies<'m>>, Fault> {
    let (withholds, settled) = (rx.calls.withholds(), rx.is_settled());
    let Queue { ring: Some(ring), room, armed, .. } = &mut rx.queue else {
        *delivered = Delivered::default();
        return Ok(None);
    };
    if !*armed {
        ring.device.suppress_kicks();
    }
    let (caps, vnet_len) = (ring.caps, ring.features.vnet_len());
    let (packs, waited) = (ring.containers && withholds, burst.waited);
    let row = if packs { None } else { PlainRow::of(burst, frames, caps) };
    let row = row.filter(|_| vnet_len == VnetHdr::LEN);
    let (batch, chains, slices) = match row.and_then(|row| place_one(ring, row, memory)) {
        Some(batch) => (batch, 1, None),
        None => {
            let can_show = settled && !withholds && ring.logging.is_none();
            let shows = can_show.then_some((frames.len(), ring.faults));
            let mut room = Filling {
                device: &mut ring.device,
                memory,
                buffers: room.buffers.lend(),
                chains: room.chains.lend(),
                copies: room.copies.lend(),
                next: 0,
                completed: 0,
                bytes: 0,
                shows,
                log: ring.logging.as_ref().and_then(|logging| logging.data.as_ref()),
            };
            let placed = match row {
                Some(row) => room.place_row(row),
                None if packs => 0,
                None => room.reserve(frames.len()),
            };
            let Some(row) = row.filter(|_| placed == frames.len()) else {
                let writer = Writer {
                    room,
                    vnet_len,
                    mergeable: ring.features.mergeable(),
                    packs,
                    container: None,
                    counters,
                    broken: None,
                    packets: 0,
                };
                let list = EgressList::new(burst, frames, caps);
                let last = (&mut ring.unseen, settled);
                let placed = place_any(writer, last, list, frames.len(), (row, placed), waited);
                let (written, slices) = placed.map_err(|error| {
                    StopReason::Ring { ring: 2 * index, error }.unless_truncated(memory)
                })?;
                return settle_rest(rx, index, written, slices, counters, delivered);
            };
            let Run { frames, arrived_ns } = Run::of_row(row, placed);
            room.finish();
            let batch = Batch { frames, bytes: room.bytes, arrived_ns };
            (batch, room.completed, room.take_copies())
        }
    };
    let dealt_with = Delivered { frames: frames.len(), ..Delivered::default() };
    let written = Written { dealt_with, full: false, batch, chains, merged: 0, waited };
    settle(rx, index, written, slices, counters, delivered)
}

/// Places a row of one frame without a body, if the ring's next chain is one buffer with room for it, and no write is
/// logged. Otherwise nothing is done.
#[inline(always)]
fn place_one(ring: &mut Ring, row: PlainRow<'_>, memory: &GuestMemory) -> Option<Batch> {
    let frame = row.only().filter(|_| ring.logging.is_none())?;
    let (token, front) = ring.device.take_plain(Direction::Writable, memory)?;
    let Some(written) = write_front(&front, frame) else {
        ring.device.give_back([token].into_iter());
        return None;
    };
    ring.device.complete(token, written);
    Some(Batch { frames: 1, bytes: frame.len.into(), arrived_ns: row.since_ns(1) })
}

/// Writes the virtio-net header of a frame that needs no changes, and its front, into the first buffer of a chain.
/// Returns the bytes of the whole frame with its header; `None`, without a write, if the buffer is too small for them.
#[inline(always)]
fn write_front(to: &Slice<'_>, frame: &Frame) -> Option<u32> {
    let need = VnetHdr::LEN + frame.len as usize;
    if to.len() < need || !to.write_at(VnetHdr::LEN, frame.head.as_slice()) {
        return None;
    }
    to.write_array(PLAIN_VNET);
    Some(need as u32) // a frame is shorter than 2^17
}

/// Writes the `frames` frames of `list`, of which the first ones are placed if they are in a row.
/// Continues the ring's last container, unless others fill the ring too.
#[inline(never)]
fn place_any<'m>(
    mut writer: Writer<'_, 'm>,
    (last, settled): (&mut Option<Unseen>, bool),
    list: EgressList<'m>,
    frames: usize,
    (row, placed): (Option<PlainRow<'m>>, usize),
    waited: bool,
) -> Result<(Written, Option<Slices<'m>>), RingError> {
    if writer.packs {
        writer.go_on(last.take().filter(|_| settled));
    }
    let (run, dealt_with, merged) = writer.place_rest(list, row, placed);
    if writer.packs {
        *last = writer.end_container();
    }
    let Writer { mut room, broken, .. } = writer;
    room.finish();
    let (chains, slices) = (room.completed, room.take_copies());
    // A buffer that cannot be translated yet does not count for now.
    if let Some(error) = broken.filter(|error| !error.is_untranslated()) {
        return Err(error);
    }
    let batch = Batch { frames: run.frames, bytes: room.bytes, arrived_ns: run.arrived_ns };
    let full = dealt_with.frames < frames;
    Ok((Written { dealt_with, full, batch, chains, merged, waited }, slices))
}

/// Copies that were put off, each as its source and its target.
type Slices<'m> = Vec<[Slice<'m>; 2]>;

/// Shows what was written, unless `slices` are still to be copied.
#[inline(always)]
fn settle<'m>(
    rx: &mut RxQueue,
    index: usize,
    written: Written,
    slices: Option<Slices<'m>>,
    counters: &PortCounters,
    delivered: &mut Delivered,
) -> Result<Option<Copies<'m>>, Fault> {
    let (placed, filled) = rx.place(index, written, counters)?;
    *delivered = placed;
    if let Some(slices) = slices {
        return Ok(Some(Copies { slices, place: rx.begin(filled) }));
    }
    stages::lap(Stage::Copy);
    delivered.hold_until = rx.show(index, filled, counters)?;
    rx.queue.signal_log();
    Ok(None)
}

/// As [`settle`], for a list of any frames.
// The usual list has a copy of `settle` in which most of `written` is constant.
#[inline(never)]
fn settle_rest<'m>(
    rx: &mut RxQueue,
    index: usize,
    written: Written,
    slices: Option<Slices<'m>>,
    counters: &PortCounters,
    delivered: &mut Delivered,
) -> Result<Option<Copies<'m>>, Fault> {
    settle(rx, index, written, slices, counters, delivered)
}

/// Finishes a batch whose copies are made: see [`ReceiveQueue::finish`].
pub(crate) fn finish(
    rx: &mut RxQueue,
    index: usize,
    copies: Copies<'_>,
    counters: &PortCounters,
) -> Result<Option<u64>, Fault> {
    let Copies { slices, place } = copies;
    // The present log counts: it may have come after the copies began.
    let logging = rx.queue.ring.as_ref().and_then(|ring| ring.logging.as_ref());
    if let Some(log) = logging.and_then(|logging| logging.data.as_ref()) {
        logged::mark_copies(log, &slices);
    }
    *rx.queue.room.copies.lend() = slices;
    stages::lap(Stage::Copy);
    let hold_until = rx.finish(index, place, counters)?;
    rx.queue.signal_log();
    Ok(hold_until)
}

/// Frames that were written one after the other.
struct Run {
    frames: u32,
    /// The time at which the first of the frames was taken (ns).
    arrived_ns: u64,
}

impl Run {
    #[inline(always)]
    fn of_row(row: PlainRow<'_>, placed: usize) -> Self {
        let arrived_ns = if placed > 0 { row.since_ns(placed) } else { u64::MAX };
        Self { frames: placed as u32, arrived_ns } // a burst
    }

    fn add(&mut self, frames: u32, arrived_ns: u64) {
        self.frames += frames;
        self.arrived_ns = self.arrived_ns.min(arrived_ns);
    }
}

/// A ring that is being filled, with the room for it.
struct Filling<'r, 'm> {
    device: &'r mut DeviceRing,
    memory: &'m GuestMemory,
    buffers: Loan<'r, Slice<'m>>,
    /// Chains taken ahead; those from `next` on are free.
    chains: Loan<'r, Reserved<'m>>,
    next: usize,
    /// Copies that are put off, each as its source and its target.
    copies: Loan<'r, [Slice<'m>; 2]>,
    completed: u16,
    bytes: u64,
    /// The number of all frames of the list, and the [`fault_count`] of whole memory. The frames
    /// can be shown if all are placed at once and nothing is left to copy. `None` if they cannot be
    /// shown.
    shows: Option<(usize, u64)>,
    log: Option<&'r WriteLog>,
}

/// Writes packets of any kind into a ring, one after the other.
struct Writer<'r, 'm> {
    room: Filling<'r, 'm>,
    vnet_len: usize,
    mergeable: bool,
    /// Frames are packed into containers.
    packs: bool,
    container: Option<Open<'m>>,
    counters: &'r PortCounters,
    broken: Option<RingError>,
    packets: u32,
}

/// Notes a chain that was taken ahead and prefetches its front for writing.
#[inline(always)]
fn reserved<'m>(taken: Taken<'m>) -> Reserved<'m> {
    let Taken { chain, front, pieces } = taken;
    front.prefetch_front_write();
    Reserved { chain, front, pieces }
}

impl<'m> Filling<'_, 'm> {
    /// Takes chains ahead, one per coming packet, so that the CPU fetches all while the first are written. Places
    /// nothing: the result is 0.
    #[inline(never)]
    fn reserve(&mut self, packets: usize) -> usize {
        self.reserve_ahead(packets);
        0
    }

    /// Takes chains ahead for the frames of `row`, and [places](Self::place_each) them. Returns how many fit.
    // The function is kept out of line, so that its loops have all registers.
    #[inline(never)]
    fn place_row(&mut self, row: PlainRow<'m>) -> usize {
        self.reserve_ahead(row.iter().len());
        self.place_each(row.iter())
    }

    #[inline(always)]
    fn reserve_ahead(&mut self, packets: usize) {
        // A packed ring has no number of available chains, and each is looked at when it is taken.
        let is_short =
            !self.device.config().packed && usize::from(self.device.available()) < packets;
        if is_short && self.device.refill().is_err() {
            return;
        }
        let packets = packets as u16; // a burst
        let Self { device, memory, buffers, chains, .. } = self;
        // An error shows again when a packet needs the chain.
        let _ = device.take_burst(Direction::Writable, packets, memory, buffers, chains, reserved);
    }

    /// Takes up to `count` chains more; `false` when there is none.
    #[inline(never)]
    fn reserve_more(&mut self, count: u16) -> Result<bool, RingError> {
        let before = self.chains.len();
        let Self { device, memory, buffers, chains, .. } = self;
        let taken =
            device.take_burst(Direction::Writable, count, memory, buffers, chains, reserved);
        // An error behind other chains shows again when a packet needs the chain.
        if chains.len() > before { Ok(true) } else { taken.map(|()| false) }
    }

    /// Places `frames`, which need no changes, each into the first buffer of a next chain. Ends at the first frame that
    /// does not fit, and writes nothing of it. Returns how many fit.
    #[inline(always)]
    fn place_each(&mut self, frames: impl Iterator<Item = Plain<'m>> + Clone) -> usize {
        let Self { chains, next, copies, device, shows, .. } = self;
        let free = chains.get_mut(*next..).unwrap_or_default();
        let (mut placed, mut all, mut heads) = (0, 0, 0);
        for (Reserved { chain, front, .. }, Plain { frame, .. }) in
            free.iter_mut().zip(frames.clone())
        {
            // These are local copies, which need not be read again after the write.
            let (front, head_len) = (*front, frame.head.len());
            let Some(written) = write_front(&front, frame) else { break };
            chain.len = written;
            all += u64::from(written);
            heads += head_len;
            placed += 1;
        }
        let bytes = all - (placed * VnetHdr::LEN) as u64;
        let used = free.get(..placed).unwrap_or_default();
        if bytes > heads as u64 {
            for (Reserved { front, .. }, plain) in used.iter().zip(frames) {
                let mut to = front.skip(VnetHdr::LEN + plain.frame.head.len());
                for from in plain.body() {
                    copies.push([*from, to.first(from.len())]);
                    to = to.skip(from.len());
                }
            }
        }
        let of = |reserved: &Reserved<'_>| (reserved.chain.token, reserved.chain.len);
        let can_show = bytes == heads as u64 && *shows == Some((placed, fault_count()));
        if !can_show || !device.show_all(used, of) {
            device.complete_all(used.iter().map(of));
        }
        self.next += placed;
        self.completed += placed as u16; // a burst
        self.bytes += bytes;
        placed
    }

    /// Takes the copies that were put off; `None` without any.
    #[inline(always)]
    fn take_copies(&mut self) -> Option<Slices<'m>> {
        if self.copies.is_empty() { None } else { Some(take(&mut *self.copies)) }
    }

    /// Gives back the chains that were taken ahead and not used.
    #[inline(always)]
    fn finish(&mut self) {
        if let Some(log) = self.log {
            self.mark_fronts(log);
        }
        if self.next < self.chains.len() {
            let unused = &self.chains[self.next..];
            self.device.give_back(unused.iter().map(|reserved| reserved.chain.token));
        }
    }
}

impl<'m> Writer<'_, 'm> {
    /// Writes the next frames of `list` that need no changes.
    #[inline(always)]
    fn place_all_plain(&mut self, list: &EgressList<'m>) -> Run {
        if self.packs { self.pack_plain(list.plain()) } else { self.place_plain(list) }
    }

    /// Writes the rest of `list` after the first `placed` frames, which are those of `row`. Returns
    /// the run of all frames that were put in, the result for the list, and the number of merged
    /// packets.
    #[inline(never)]
    fn place_rest(
        &mut self,
        mut list: EgressList<'m>,
        row: Option<PlainRow<'m>>,
        placed: usize,
    ) -> (Run, Delivered, u64) {
        let mut run = match row {
            Some(row) => Run::of_row(row, placed),
            None => self.place_all_plain(&list),
        };
        list.plain_done(run.frames as usize);
        while !list.is_done() && self.emit_next(&mut list, &mut run) {
            let plain = self.place_all_plain(&list);
            list.plain_done(plain.frames as usize);
            run.add(plain.frames, plain.arrived_ns);
        }
        (run, list.delivered(), list.merged())
    }

    /// Writes the next packet of `list`, whatever it is, and adds its frames to `run`. `false` where there is none, or no
    /// room for it.
    #[inline(never)]
    fn emit_next(&mut self, list: &mut EgressList<'m>, run: &mut Run) -> bool {
        let before = self.packets;
        let sent = list.emit_next(|packet| self.put(&packet));
        let Some(sent) = sent.filter(|sent| sent.settle(self.counters)) else { return false };
        if self.packets > before {
            run.add(sent.frames, sent.arrived_ns);
        }
        true
    }

    #[inline(never)]
    fn put(&mut self, packet: &Packet<'_, 'm>) -> Put {
        let packed = self.packs && self.pack_packet(packet);
        match if packed { Ok(Put::Done) } else { self.place(packet) } {
            Ok(Put::Done) => {
                self.packets += 1;
                self.room.bytes += packet.frames_len() as u64;
                Put::Done
            }
            // Frames that are too large together may fit one by one.
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

    /// Places the next frames of `list` in the usual case, in which they need no changes.
    #[inline(never)]
    fn place_plain(&mut self, list: &EgressList<'m>) -> Run {
        let placed = match list.plain_in_a_row() {
            _ if self.vnet_len != VnetHdr::LEN => 0,
            Some(row) => self.room.place_each(row.iter()),
            None => self.room.place_each(list.plain()),
        };
        let arrived_ns = if placed > 0 { list.plain_since_ns(placed) } else { u64::MAX };
        Run { frames: placed as u32, arrived_ns } // a burst
    }

    /// Writes the packet into as many chains as it needs and completes them. Nothing is written, and
    /// no chain is used, unless the whole packet fits.
    #[inline(never)]
    fn place(&mut self, packet: &Packet<'_, 'm>) -> Result<Put, RingError> {
        let need = self.vnet_len + packet.len();
        let ring_size = usize::from(self.room.device.config().size);
        let chains_max = if self.mergeable { RX_MERGE_MAX.min(ring_size) } else { 1 };
        let first = self.room.next;
        let mut end = first;
        let (mut room, mut last) = (0, need);
        loop {
            let free = self.room.chains.get(end..).unwrap_or_default();
            for Reserved { chain, .. } in free.iter().take(chains_max - (end - first)) {
                if room >= need {
                    break;
                }
                last = chain.len as usize;
                room += last;
                end += 1;
            }
            if room >= need {
                break;
            }
            if end - first == chains_max {
                return Ok(Put::Refused);
            }
            // Buffers have the same size, or nearly, so few are taken in vain.
            let more = (need - room).div_ceil(last).min(chains_max - (end - first)) as u16; // a ring's size at most
            let found = self.room.reserve_more(more)?;
            if !found && (self.room.device.refill()? == 0 || !self.room.reserve_more(more)?) {
                return Ok(Put::Full);
            }
        }
        self.room.next = end;

        let chains = &self.room.chains[first..end];
        let mut cursor = Cursor::new(chains, &self.room.buffers);
        // virtio 1.2 §5.1.6.4: num_buffers is the number of chains.
        cursor.write(&packet.offload.to_vnet(chains.len() as u16).to_bytes()[..self.vnet_len]);
        cursor.write(packet.head.as_slice());
        for slice in packet.body() {
            cursor.put_off(slice, &mut self.room.copies);
        }
        let mut left = need as u32; // a packet is shorter than 2^17
        self.room.device.complete_all(chains.iter().map(|Reserved { chain, .. }| {
            let written = chain.len.min(left);
            left -= written;
            (chain.token, written)
        }));
        self.room.completed += chains.len() as u16; // at most a ring's size
        if chains.len() > 1 {
            self.room.device.join();
        }
        Ok(Put::Done)
    }
}

/// The virtio-net header of a frame in one buffer without offloads. It is written in whole words that were never in
/// memory: a load across several smaller stores would wait for every earlier store to lines that the guest's core
/// holds.
const PLAIN_VNET: [u8; VnetHdr::LEN] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0];

/// A position in the pieces of chains.
struct Cursor<'r, 'm> {
    /// The rest of the current slice.
    left: Option<Slice<'m>>,
    /// The next slices of the same chain.
    behind: slice::Iter<'r, Slice<'m>>,
    chains: slice::Iter<'r, Reserved<'m>>,
    buffers: &'r [Slice<'m>],
}

impl<'r, 'm> Cursor<'r, 'm> {
    fn new(chains: &'r [Reserved<'m>], buffers: &'r [Slice<'m>]) -> Self {
        let (left, behind) = (None, [].iter());
        let mut cursor = Self { left, behind, chains: chains.iter(), buffers };
        cursor.left = cursor.next();
        cursor
    }

    /// The next slice; each chain has one at least.
    #[inline]
    fn next(&mut self) -> Option<Slice<'m>> {
        if let Some(piece) = self.behind.next() {
            return Some(*piece);
        }
        let chain = self.chains.next()?;
        if !chain.is_plain() {
            self.behind = chain.pieces(self.buffers).get(1..).unwrap_or_default().iter();
        }
        Some(chain.front)
    }

    /// Moves on past the first `by` bytes of `piece`, the rest of the current slice.
    #[inline]
    fn advance(&mut self, piece: Slice<'m>, by: usize) {
        let left = piece.skip(by);
        self.left = if left.is_empty() { self.next() } else { Some(left) };
    }

    #[inline]
    fn write(&mut self, mut bytes: &[u8]) {
        while let (Some(piece), false) = (self.left, bytes.is_empty()) {
            let written = piece.write(bytes);
            bytes = &bytes[written..];
            self.advance(piece, written);
        }
    }

    /// Notes a copy from the sender's memory into the receiver's, to be made later.
    #[inline]
    fn put_off(&mut self, mut from: Slice<'m>, copies: &mut Vec<[Slice<'m>; 2]>) {
        while !from.is_empty() {
            let Some(to) = self.left else { break };
            let len = from.len().min(to.len());
            copies.push([from.first(len), to]);
            from = from.skip(len);
            self.advance(to, len);
        }
    }
}
