//! The receive half of a queue pair.
//!
//! Every ring entry is one buffer. A frame spans as many buffers as its header says
//! (`VIRTIO_NET_F_MRG_RXBUF`). Callers see the frame in place, and its buffers return to the device
//! in batches. The driver checks every value from the device. An invalid used element or header
//! costs the content of its buffers, counts as a device error, and has no other effect.
//!
//! If negotiated, a buffer may hold a container of several frames. Callers get the frames one by
//! one, and the buffer returns after the last.

use std::sync::Arc;

use weir_guestmem::{GuestMemory, Slice, recycle};
use weir_limits::{FRAME_LEN_MIN, RX_MERGE_MAX};
use weir_ring::{Buffer, DriverRing};
use weir_wire::VnetHdr;
use weir_wire::container::{ContainerError, F_CONTAINER, RECORD_LEN, Record, parse};

use crate::counters::{Event, PairCounters};
use crate::lro::{Part, Taken};
use crate::memory::{Plan, Slots, own};

/// Most buffers kept back before they are offered again with one index write and perhaps one kick.
/// Never more than a quarter of the ring.
const REFILL_BATCH_MAX: usize = 32;

/// A received frame in place. The device may still write there, so read a value once if you rely on
/// it.
#[derive(Debug)]
pub struct Frame<'f> {
    /// The virtio header, as the device wrote it.
    pub header: VnetHdr,
    /// Length of the frame (bytes).
    pub len: usize,
    /// Bytes of the frame, in order; no piece is empty.
    pub pieces: &'f [Slice<'f>],
}

impl Frame<'_> {
    /// Copies the front of the frame. Returns the number of bytes.
    pub fn read(&self, out: &mut [u8]) -> usize {
        let mut at = 0;
        for piece in self.pieces {
            if at == out.len() {
                break;
            }
            at += piece.read(&mut out[at..]);
        }
        at
    }

    /// Copies the whole frame into `out`, whose content it replaces.
    pub fn copy_to(&self, out: &mut Vec<u8>) {
        // Existing bytes need not be zeroed again.
        out.resize(self.len, 0);
        self.read(out);
    }
}

/// A frame that was copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// The virtio header, as the device wrote it.
    pub header: VnetHdr,
    /// Length of the frame (bytes).
    pub len: usize,
}

/// The next frame.
#[derive(Debug, Clone, Copy)]
enum Found {
    /// A record of the container that is open.
    Record(Unloaded),
    /// A frame in the used buffers, with this header.
    Buffers(VnetHdr),
}

#[derive(Debug, Clone, Copy)]
struct UsedBuffer {
    slot: u32,
    written: u32,
}

/// Rules for the device's use of receive buffers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Format {
    /// A frame may span several buffers.
    pub(crate) mergeable: bool,
    /// A buffer may hold a container.
    pub(crate) containers: bool,
}

/// The receive half of a queue pair.
#[derive(Debug)]
pub(crate) struct Receive {
    memory: Arc<GuestMemory>,
    ring: DriverRing,
    buffers: Slots,
    format: Format,
    kick: Event,
    pub(crate) call: Event,
    /// Slot offered at each descriptor.
    slot_of: Vec<u32>,
    /// Slots that are not with the device.
    idle: Vec<u32>,
    /// Number of idle slots that triggers a refill.
    refill_at: usize,
    /// Buffers of the present frame.
    used: Vec<UsedBuffer>,
    /// The vector is kept for its allocation.
    pieces: Vec<Slice<'static>>,
    unloader: Unloader,
}

impl Receive {
    /// Reserves one buffer for each of `queue_size` entries.
    pub(crate) fn plan(plan: &mut Plan, queue_size: u16, buffer_bytes: [u32; 2]) -> Slots {
        plan.slots(buffer_bytes, u32::from(queue_size))
    }

    pub(crate) fn new(
        memory: Arc<GuestMemory>,
        ring: DriverRing,
        format: Format,
        buffers: Slots,
        kick: Event,
        call: Event,
    ) -> Self {
        let entries = usize::from(ring.free());
        let mut receive = Self {
            memory,
            ring,
            buffers,
            format,
            kick,
            call,
            slot_of: vec![0; entries],
            idle: (0..buffers.count()).collect(),
            refill_at: (entries / 4).min(REFILL_BATCH_MAX),
            used: Vec::with_capacity(RX_MERGE_MAX),
            pieces: Vec::with_capacity(RX_MERGE_MAX),
            unloader: Unloader::default(),
        };
        receive.suppress_calls();
        receive
    }

    /// Takes the next frame, if there is one, and recycles its buffers after `look`.
    pub(crate) fn recv<R>(
        &mut self,
        counters: &PairCounters,
        look: impl FnOnce(&Frame<'_>) -> R,
    ) -> Option<R> {
        let result = self.next(counters).map(|found| match found {
            Found::Record(unloaded) => self.show_record(unloaded, look),
            Found::Buffers(header) => self.show_buffers(header, look),
        });
        self.refill_batch(counters);
        result
    }

    /// Takes the next frame into `taken`, whose content it replaces, and leaves the bytes in their buffers. Returns
    /// `false` if there is none. The caller must [give the buffers back](Self::give_back).
    pub(crate) fn take_frame(&mut self, taken: &mut Taken, counters: &PairCounters) -> bool {
        taken.parts.clear();
        let idle_before = self.idle.len();
        match self.next(counters) {
            None => return false,
            Some(Found::Record(unloaded)) => {
                taken.header = self.record_header(unloaded);
                taken.parts.push(self.record_part(unloaded));
            }
            Some(Found::Buffers(header)) => {
                taken.header = header;
                taken.parts.extend(self.used.iter().enumerate().filter_map(|(i, used)| {
                    let skip = if i == 0 { VnetHdr::LEN as u32 } else { 0 };
                    let address = self.buffers.address(used.slot) + u64::from(skip);
                    let len = used.written.saturating_sub(skip);
                    (len > 0).then_some(Part { address, len })
                }));
            }
        }
        taken.slots.extend(self.idle.drain(idle_before..));
        true
    }

    /// Takes back buffers of frames.
    pub(crate) fn give_back(&mut self, slots: &mut Vec<u32>, counters: &PairCounters) {
        self.idle.append(slots);
        self.refill_batch(counters);
    }

    /// Returns the bytes of a part of a taken frame.
    pub(crate) fn slice(&self, part: Part) -> Slice<'_> {
        own(&self.memory, part.address, part.len)
    }

    /// Finds the next frame and counts it. Its buffers become idle, to be offered after the
    /// caller's look.
    #[inline]
    fn next(&mut self, counters: &PairCounters) -> Option<Found> {
        loop {
            if let Some(unloaded) = self.unloader.next() {
                if unloaded.last {
                    self.idle.push(unloaded.slot);
                }
                counters.rx_frames.add(1);
                counters.rx_bytes.add(unloaded.record.len.into());
                return Some(Found::Record(unloaded));
            }
            let first = self.take(counters)?;
            let Some(header) = self.collect(first, counters) else {
                counters.device_errors.add(1);
                continue;
            };
            if self.format.containers && header.flags & F_CONTAINER != 0 {
                self.open_container(first, &header, counters);
                continue;
            }
            let len: u64 = self.used.iter().map(|used| u64::from(used.written)).sum();
            counters.rx_frames.add(1);
            counters.rx_bytes.add(len - VnetHdr::LEN as u64);
            return Some(Found::Buffers(header));
        }
    }

    #[inline]
    fn show_buffers<R>(&mut self, header: VnetHdr, look: impl FnOnce(&Frame<'_>) -> R) -> R {
        let mut pieces = recycle(std::mem::take(&mut self.pieces));
        let written = self.used.iter().map(|used| self.written(*used));
        pieces.extend(written.enumerate().filter_map(|(i, piece)| {
            let piece = if i == 0 { piece.skip(VnetHdr::LEN) } else { piece };
            (!piece.is_empty()).then_some(piece)
        }));
        let len = pieces.iter().map(Slice::len).sum();
        let result = look(&Frame { header, len, pieces: &pieces });
        self.pieces = recycle(pieces);
        result
    }

    #[inline]
    fn show_record<R>(&self, unloaded: Unloaded, look: impl FnOnce(&Frame<'_>) -> R) -> R {
        let header = self.record_header(unloaded);
        let piece = self.slice(self.record_part(unloaded));
        look(&Frame { header, len: piece.len(), pieces: &[piece] })
    }

    fn open_container(&mut self, buffer: UsedBuffer, header: &VnetHdr, counters: &PairCounters) {
        let bytes = own(&self.memory, self.buffers.address(buffer.slot), buffer.written);
        // Another core wrote the records, and each record's position depends on the one before.
        bytes.prefetch_all();
        if self.unloader.open(buffer.slot, header, bytes).is_ok() {
            // The container's last frame gives its buffer back. A container is one buffer, or its
            // header would have been refused, so it is the slot that became idle last.
            self.idle.pop();
            counters.rx_containers.add(1);
        } else {
            counters.device_errors.add(1);
        }
    }

    /// Returns the position of a record in the used bytes of its buffer.
    #[inline]
    fn record_part(&self, Unloaded { slot, record, .. }: Unloaded) -> Part {
        let address = self.buffers.address(slot) + u64::from(record.at);
        Part { address, len: record.len.into() }
    }

    /// Returns a record's own virtio header, or that of a frame without offloads.
    #[inline]
    fn record_header(&self, unloaded: Unloaded) -> VnetHdr {
        let own_header = unloaded.record.has_vnet.then(|| {
            let frame = self.record_part(unloaded).address;
            let len = VnetHdr::LEN as u32;
            self.slice(Part { address: frame - u64::from(len), len }).read_array()
        });
        match own_header.flatten() {
            Some(bytes) => VnetHdr::from_bytes(&bytes),
            None => VnetHdr { num_buffers: 1, ..VnetHdr::default() },
        }
    }

    /// Takes the next used buffer.
    fn take(&mut self, counters: &PairCounters) -> Option<UsedBuffer> {
        let used = self.ring.take();
        let skipped = self.ring.skipped();
        if skipped > 0 {
            counters.device_errors.add(skipped);
        }
        let used = used?;
        let slot = self.slot_of[usize::from(used.head)];
        self.idle.push(slot);
        Some(UsedBuffer { slot, written: used.written })
    }

    /// Returns the bytes that the device wrote to a buffer. [`collect`](Self::collect) has checked
    /// their number.
    fn written(&self, used: UsedBuffer) -> Slice<'_> {
        own(&self.memory, self.buffers.address(used.slot), used.written)
    }

    /// Collects in `used` the buffers of the frame that begins in `first`. Returns `None` if they
    /// form no frame; the buffers that seem to belong to it are dropped with it.
    fn collect(&mut self, first: UsedBuffer, counters: &PairCounters) -> Option<VnetHdr> {
        self.used.clear();
        self.used.push(first);
        if first.written > self.buffers.bytes(first.slot) {
            return None;
        }
        let mut header = [0; VnetHdr::LEN];
        if self.written(first).read(&mut header) < VnetHdr::LEN {
            return None;
        }
        let header = VnetHdr::from_bytes(&header);
        // Without MRG_RXBUF the field is 1, and the driver must ignore it (virtio 1.2 §5.1.6.4.2).
        let more = match (self.format.mergeable, usize::from(header.num_buffers)) {
            (false, _) => 0,
            (true, count) if count <= RX_MERGE_MAX => count.checked_sub(1)?,
            (true, _) => return None,
        };
        for _ in 0..more {
            // The device must not publish a frame in parts (virtio 1.2 §5.1.6.4.1). The driver
            // drops such a part, as Linux does.
            let used = self.take(counters)?;
            self.used.push(used);
        }
        let fit = |used: &UsedBuffer| used.written <= self.buffers.bytes(used.slot);
        let len: usize = self.used.iter().map(|used| used.written as usize).sum();
        let is_frame = len >= VnetHdr::LEN + FRAME_LEN_MIN as usize;
        (is_frame && self.used.iter().all(fit)).then_some(header)
    }

    /// Offers idle buffers again, if there are enough of them.
    #[inline]
    pub(crate) fn refill_batch(&mut self, counters: &PairCounters) {
        if self.idle.len() >= self.refill_at {
            self.refill(counters);
        }
    }

    /// Offers idle buffers again, and kicks if the device wants that.
    pub(crate) fn refill(&mut self, counters: &PairCounters) {
        while let Some(slot) = self.idle.pop() {
            let buffer = Buffer {
                address: self.buffers.address(slot),
                len: self.buffers.bytes(slot),
                writable: true,
            };
            let Some(head) = self.ring.offer(&[buffer]) else {
                // The ring has an entry for every buffer, so it is not full.
                unreachable!("a receive ring has fewer entries than buffers");
            };
            self.slot_of[usize::from(head)] = slot;
        }
        if self.ring.publish() {
            self.kick(counters);
        }
    }

    pub(crate) fn kick(&self, counters: &PairCounters) {
        self.kick.signal();
        counters.kicks.add(1);
    }

    /// Asks for a call at the next frame. Returns true if a frame is there now.
    pub(crate) fn enable_calls(&mut self) -> bool {
        self.ring.enable_calls() || self.unloader.is_open()
    }

    /// Returns true if a frame can be received; asks the device for nothing.
    pub(crate) fn is_ready(&self) -> bool {
        self.unloader.is_open() || self.ring.has_used()
    }

    pub(crate) fn suppress_calls(&mut self) {
        self.ring.suppress_calls();
    }

    /// Returns the eventfd of this ring's kicks.
    pub(crate) fn kick_event(&self) -> &Event {
        &self.kick
    }
}

/// The remaining frames of a container, and their buffer, which the device gets back only after the last of them.
#[derive(Debug, Default)]
pub(crate) struct Unloader {
    /// The vector is kept for its allocation.
    records: Vec<Record>,
    /// Index of the next record to hand out.
    next: usize,
    slot: u32,
}

/// A frame of a container.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unloaded {
    /// The frame's buffer.
    pub(crate) slot: u32,
    pub(crate) record: Record,
    /// Last frame of its container: the buffer is free after it.
    pub(crate) last: bool,
}

impl Unloader {
    /// Opens the container in a buffer. `bytes` are the device's, beginning with `vnet`. The
    /// previous container must be finished.
    pub(crate) fn open(
        &mut self,
        slot: u32,
        vnet: &VnetHdr,
        bytes: Slice<'_>,
    ) -> Result<(), ContainerError> {
        let read = |at: usize| bytes.skip(at).read_array::<RECORD_LEN>();
        self.next = 0;
        self.slot = slot;
        parse(vnet, bytes.len(), read, &mut self.records)
    }

    #[inline]
    pub(crate) fn next(&mut self) -> Option<Unloaded> {
        let record = *self.records.get(self.next)?;
        self.next += 1;
        Some(Unloaded { slot: self.slot, record, last: self.next == self.records.len() })
    }

    /// Returns true if frames are left.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.next < self.records.len()
    }
}
