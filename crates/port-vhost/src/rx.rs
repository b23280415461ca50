//! Receive queues: from a burst into a guest's ring, with the one copy, and the guest's call.

use std::mem::take;

use weir_engine::burst::Burst;
use weir_engine::egress::{Emitted, Packet, Put, emit};
use weir_engine::stats::Times;
use weir_engine::{Delivered, DropReason, Outgoing, PortCounters, clock};
use weir_guestmem::{GuestMemory, Slice, recycle};
use weir_limits::{PARKED_NS_MAX, RX_MERGE_MAX};
use weir_policy::moderation::{Batch, Delivery, Moderation, Verdict};
use weir_ring::{Chain, DeviceRing, RingError};
use weir_wire::{Offload, VnetHdr};

use crate::error::StopReason;
use crate::features::Features;
use crate::queue::Queue;

/// A receive queue.
#[derive(Debug)]
pub(crate) struct RxQueue {
    pub(crate) queue: Queue,
    moderation: Box<dyn Moderation>,
    /// When the earliest batch was published that the guest has not been told of.
    pending_since: Option<u64>,
    /// The deadline that the policy gave.
    hold_until: Option<u64>,
    /// Hold times: from a batch's publication to the guest being told of it.
    pub(crate) hold: Times,
    /// Since when the guest has offered too few buffers.
    full_since: Option<u64>,
    /// Room of the ring in use; kept between bursts.
    buffers: Vec<Slice<'static>>,
    chains: Vec<Reserved>,
}

impl RxQueue {
    pub(crate) fn new(moderation: Box<dyn Moderation>) -> Self {
        Self {
            queue: Queue::default(),
            moderation,
            pending_since: None,
            hold_until: None,
            hold: Times::default(),
            full_since: None,
            buffers: Vec::new(),
            chains: Vec::new(),
        }
    }

    /// The guest can receive.
    pub(crate) fn is_ready(&self) -> bool {
        self.queue.enabled && self.queue.ring.as_ref().is_some_and(|ring| ring.started)
    }

    /// See [`weir_engine::Port::deliver`]. `index` is the queue pair.
    pub(crate) fn deliver(
        &mut self,
        index: usize,
        burst: &Burst<'_>,
        frames: &[Outgoing],
        now_ns: u64,
        counters: &PortCounters,
    ) -> Result<Delivered, StopReason> {
        if !self.is_ready() {
            counters.dropped(DropReason::RxNotReady, frames.len() as u64);
            return Ok(Delivered { frames: frames.len(), ..Delivered::default() });
        }
        let Some(ring) = self.queue.ring.as_mut() else { return Ok(Delivered::default()) };
        let caps = ring.features.receive_caps();
        let mut writer = Writer {
            device: &mut ring.device,
            memory: &ring.memory,
            features: ring.features,
            buffers: recycle(take(&mut self.buffers)),
            chains: take(&mut self.chains),
            next: 0,
            counters,
            broken: None,
            packets: 0,
            bytes: 0,
        };
        writer.device.suppress_kicks();
        writer.reserve(frames.len());
        let mut done = 0;
        let mut delivered_frames = 0;
        let mut arrived_ns = u64::MAX;
        for outgoing in frames {
            let frame = &burst.frames()[usize::from(outgoing.frame)];
            let before = writer.packets;
            let emitted = emit(burst, frame, outgoing.tag, caps, |packet| writer.put(&packet));
            match emitted {
                Ok(Emitted::Done { lost }) => {
                    counters.dropped(DropReason::RxRingFull, lost.into());
                }
                Ok(Emitted::Full) => break,
                Err(reason) => counters.dropped(reason, 1),
            }
            done += 1;
            if writer.packets > before {
                delivered_frames += 1;
                arrived_ns = arrived_ns.min(frame.arrived_ns);
            }
        }
        let Finished { buffers, chains, broken, bytes } = writer.finish();
        let gone = ring.memory_gone();
        (self.buffers, self.chains) = (buffers, chains);
        if let Some(error) = broken {
            return Err(StopReason::Ring { ring: 2 * index, error });
        }
        if gone {
            return Err(StopReason::MemoryTruncated);
        }

        let worth_waiting = self.note_full(done < frames.len(), delivered_frames > 0, now_ns);
        counters.rx[index].frames.add(delivered_frames.into());
        counters.rx[index].bytes.add(bytes);
        let batch = Batch { frames: delivered_frames, bytes, arrived_ns };
        let hold_until = self.publish(index, batch, counters);
        Ok(Delivered { frames: done, worth_waiting, hold_until })
    }

    /// Whether frames may wait for this receiver: not when it has taken nothing for so long that
    /// they would be dropped anyway.
    fn note_full(&mut self, full: bool, progress: bool, now_ns: u64) -> bool {
        if progress || !full {
            self.full_since = None;
        }
        if !full {
            return true;
        }
        let since = *self.full_since.get_or_insert(now_ns);
        now_ns.saturating_sub(since) < PARKED_NS_MAX
    }

    /// One index write for the burst, and the policy's verdict on the call.
    fn publish(&mut self, index: usize, batch: Batch, counters: &PortCounters) -> Option<u64> {
        let ring = self.queue.ring.as_mut()?;
        if ring.device.publish() == 0 || batch.frames == 0 {
            return None;
        }
        let now_ns = clock::now_ns();
        self.pending_since.get_or_insert(now_ns);
        let verdict = self.moderation.published(now_ns, batch);
        self.act(index, verdict, counters)
    }

    fn act(&mut self, index: usize, verdict: Verdict, counters: &PortCounters) -> Option<u64> {
        match verdict {
            Verdict::Call => {
                self.announce(index, counters);
                None
            }
            Verdict::HoldUntil(until_ns) => {
                self.hold_until = Some(until_ns);
                Some(until_ns)
            }
        }
    }

    /// Tells the guest of everything published.
    fn announce(&mut self, index: usize, counters: &PortCounters) {
        let called = self.queue.call_if_wanted();
        let now_ns = clock::now_ns();
        let how = if called == Some(true) {
            counters.rx[index].calls.add(1);
            Delivery::Called
        } else {
            counters.rx[index].calls_suppressed.add(1);
            Delivery::Suppressed
        };
        if let Some(since) = self.pending_since.take() {
            self.hold.record(now_ns.saturating_sub(since));
        }
        self.hold_until = None;
        self.moderation.delivered(now_ns, how);
    }

    /// See [`weir_engine::Port::expired`].
    pub(crate) fn expired(
        &mut self,
        index: usize,
        now_ns: u64,
        counters: &PortCounters,
    ) -> Option<u64> {
        let until = self.hold_until?;
        if until > now_ns {
            // Another worker's delivery moved the deadline.
            return Some(until);
        }
        let verdict = self.moderation.expired(now_ns);
        self.act(index, verdict, counters)
    }

    /// Gives a held call now, before the ring stops or the policy changes.
    pub(crate) fn flush(&mut self, index: usize, counters: &PortCounters) {
        if self.pending_since.is_some() {
            self.announce(index, counters);
        }
    }

    /// The ring has stopped: nothing is pending any more.
    pub(crate) fn reset(&mut self) {
        self.pending_since = None;
        self.hold_until = None;
        self.full_since = None;
        self.moderation.reset();
    }

    /// Replaces the policy; gives back the old one.
    pub(crate) fn set_moderation(
        &mut self,
        index: usize,
        moderation: Box<dyn Moderation>,
        counters: &PortCounters,
    ) -> Box<dyn Moderation> {
        self.flush(index, counters);
        std::mem::replace(&mut self.moderation, moderation)
    }
}

/// A chain that is taken and not written to yet.
#[derive(Debug, Clone, Copy)]
struct Reserved {
    chain: Chain,
    /// Its pieces in the writer's buffers: the first, and the one after the last.
    pieces: (usize, usize),
}

/// Writes packets into a ring, one after the other.
struct Writer<'r> {
    device: &'r mut DeviceRing,
    memory: &'r GuestMemory,
    features: Features,
    buffers: Vec<Slice<'r>>,
    /// Chains taken ahead; those from `next` on are free.
    chains: Vec<Reserved>,
    next: usize,
    counters: &'r PortCounters,
    broken: Option<RingError>,
    packets: u32,
    bytes: u64,
}

/// What is left of a [`Writer`].
struct Finished {
    buffers: Vec<Slice<'static>>,
    chains: Vec<Reserved>,
    broken: Option<RingError>,
    bytes: u64,
}

impl<'r> Writer<'r> {
    /// Takes chains ahead, one per packet to come, so that the processor fetches all of them while
    /// the first are written. What goes wrong shows when a packet needs the chain.
    fn reserve(&mut self, packets: usize) {
        if usize::from(self.device.available()) < packets && self.device.refill().is_err() {
            return;
        }
        for _ in 0..packets {
            if !matches!(self.reserve_one(), Ok(true)) {
                return;
            }
        }
    }

    /// Takes one chain more; `false` when there is none.
    #[inline]
    fn reserve_one(&mut self) -> Result<bool, RingError> {
        let first = self.buffers.len();
        let Some(chain) = self.device.take_writable(self.memory, &mut self.buffers)? else {
            return Ok(false);
        };
        self.buffers[first].prefetch_write();
        self.chains.push(Reserved { chain, pieces: (first, self.buffers.len()) });
        Ok(true)
    }

    fn put(&mut self, packet: &Packet<'_, '_>) -> Put {
        let first = self.next;
        let put = self.place(packet);
        if !matches!(put, Ok(Put::Done)) {
            self.next = first;
        }
        match put {
            Ok(Put::Done) => {
                self.packets += 1;
                self.bytes += packet.len() as u64;
                Put::Done
            }
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

    /// Writes the packet into as many chains as it needs and completes them. Nothing is written
    /// unless the whole packet fits.
    #[inline]
    fn place(&mut self, packet: &Packet<'_, '_>) -> Result<Put, RingError> {
        let vnet_len = self.features.vnet_len();
        let need = vnet_len + packet.len();
        let mergeable = self.features.mergeable();
        let ring_size = usize::from(self.device.config().size);
        let chains_max = if mergeable { RX_MERGE_MAX.min(ring_size) } else { 1 };
        let first = self.next;
        let mut room = 0u64;
        while room < need as u64 {
            if self.next - first == chains_max {
                return Ok(Put::Refused);
            }
            if self.next == self.chains.len() {
                let found = self.reserve_one()?;
                if !found && (self.device.refill()? == 0 || !self.reserve_one()?) {
                    return Ok(Put::Full);
                }
            }
            room += u64::from(self.chains[self.next].chain.len);
            self.next += 1;
        }

        let chains = &self.chains[first..self.next];
        let (from, to) = (self.chains[first].pieces.0, self.chains[self.next - 1].pieces.1);
        let mut cursor = Cursor { pieces: &self.buffers[from..to], skip: 0 };
        // virtio 1.2 §5.1.6.4: num_buffers is the number of chains.
        cursor.write_vnet(packet.offload, chains.len() as u16, vnet_len);
        cursor.write(packet.head.as_slice());
        for slice in packet.body() {
            cursor.copy(slice);
        }
        let mut left = need as u32; // a packet is shorter than 2^17
        for Reserved { chain, .. } in chains {
            let written = chain.len.min(left);
            self.device.complete(chain.head, written);
            left -= written;
        }
        Ok(Put::Done)
    }

    /// Gives back what was taken ahead and not used.
    fn finish(mut self) -> Finished {
        self.device.give_back((self.chains.len() - self.next) as u16);
        self.chains.clear();
        let Self { buffers, chains, broken, bytes, .. } = self;
        Finished { buffers: recycle(buffers), chains, broken, bytes }
    }
}

/// A position in a list of slices.
struct Cursor<'p, 'm> {
    pieces: &'p [Slice<'m>],
    skip: usize,
}

impl Cursor<'_, '_> {
    #[inline]
    fn advance(&mut self, by: usize) {
        self.skip += by;
        if self.pieces.first().is_some_and(|piece| piece.len() == self.skip) {
            self.pieces = &self.pieces[1..];
            self.skip = 0;
        }
    }

    /// The virtio-net header: all but always of nothing, and always at the front of a buffer. Its
    /// bytes go there in whole words that were never in memory before: a load that spans several
    /// smaller stores would wait until every store before it, to lines that the guest's core
    /// holds, is done.
    #[inline]
    fn write_vnet(&mut self, offload: &Offload, num_buffers: u16, vnet_len: usize) {
        if let (true, Some(first), VnetHdr::LEN) =
            (offload.is_none(), self.pieces.first(), vnet_len)
        {
            let [low, high] = num_buffers.to_le_bytes();
            if first.write_array([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, low, high]) {
                return self.advance(VnetHdr::LEN);
            }
        }
        self.write(&offload.to_vnet(num_buffers).to_bytes()[..vnet_len]);
    }

    #[inline]
    fn write(&mut self, mut bytes: &[u8]) {
        while let (Some(piece), false) = (self.pieces.first(), bytes.is_empty()) {
            let written = piece.skip(self.skip).write(bytes);
            bytes = &bytes[written..];
            self.advance(written);
        }
    }

    /// The copy from the sender's memory into the receiver's.
    #[inline]
    fn copy(&mut self, mut from: Slice<'_>) {
        while let (Some(piece), false) = (self.pieces.first(), from.is_empty()) {
            let copied = from.copy_to(&piece.skip(self.skip));
            from = from.skip(copied);
            self.advance(copied);
        }
    }
}
