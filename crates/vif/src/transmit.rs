//! The transmit half of a queue pair.
//!
//! A frame is copied into segments of a pool, behind its virtio header. One segment takes one
//! descriptor; several take a chain, or an indirect table if negotiated. A [`Body`] is written once
//! and sent behind any number of heads without a copy, as a kernel sends page fragments behind a
//! linear head.

use std::ops::Range;
use std::sync::Arc;

use weir_guestmem::GuestMemory;
use weir_limits::{FRAME_LEN_MAX, FRAME_LEN_MIN};
use weir_ring::{Buffer, DriverRing};
use weir_wire::VnetHdr;

use crate::counters::{Event, PairCounters};
use crate::error::SendError;
use crate::features::CHAIN_DESCRIPTORS_MAX;
use crate::memory::{Plan, Slots, own};

/// Length of a segment (bytes): a large frame takes few descriptors, like a kernel's page
/// fragments.
const SEGMENT_BYTES: u32 = 16 * 1024;
/// Most segments of a copied frame.
const FRAME_SEGMENTS_MAX: usize =
    (FRAME_LEN_MAX as usize + VnetHdr::LEN).div_ceil(SEGMENT_BYTES as usize);
/// Length of a descriptor in an indirect table (bytes; virtio 1.2 §2.7.5).
const DESCRIPTOR_BYTES: usize = 16;
/// `VIRTQ_DESC_F_NEXT` of a split ring.
const DESC_F_NEXT: u16 = 1;

const _: () = assert!(FRAME_SEGMENTS_MAX + 2 <= CHAIN_DESCRIPTORS_MAX);

/// Bytes that were written into a queue pair's memory once, to be sent many times; see
/// [`QueuePair::add_body`](crate::QueuePair::add_body). A body belongs to the pair that made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Body {
    index: usize,
}

/// The transmit half's part of the memory layout.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TransmitPlan {
    segments: Slots,
    /// Indirect tables, one per segment: a frame uses the table of its first segment.
    tables: Slots,
}

impl TransmitPlan {
    pub(crate) fn new(plan: &mut Plan, queue_size: u16) -> Self {
        // There are twice as many entries, so that large frames do not use up the segments.
        let count = 2 * u32::from(queue_size);
        let table_bytes = CHAIN_DESCRIPTORS_MAX * DESCRIPTOR_BYTES;
        Self {
            tables: plan.slots([table_bytes as u32; 2], count),
            segments: plan.slots([SEGMENT_BYTES; 2], count),
        }
    }
}

/// The segments of a chain in flight.
#[derive(Debug, Clone, Copy, Default)]
struct Owned {
    segments: [u32; FRAME_SEGMENTS_MAX],
    count: usize,
}

impl Owned {
    fn as_slice(&self) -> &[u32] {
        &self.segments[..self.count]
    }
}

/// State after a frame found no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    /// No frame was refused, or the caller has learned of the new room.
    None,
    /// There is still no room.
    Standing,
    /// There is room again.
    Over,
}

/// The transmit half of a queue pair.
#[derive(Debug)]
pub(crate) struct Transmit {
    memory: Arc<GuestMemory>,
    ring: DriverRing,
    indirect: bool,
    plan: TransmitPlan,
    kick: Event,
    pub(crate) call: Event,
    /// Free segments. The last one freed is used first, while it is in the cache.
    free: Vec<u32>,
    /// Segments of the chain that begins at each descriptor.
    owned: Vec<Owned>,
    bodies: Vec<(Vec<u32>, usize)>,
    /// The chain under construction.
    chain: Vec<Buffer>,
    refusal: Refusal,
}

impl Transmit {
    pub(crate) fn new(
        memory: Arc<GuestMemory>,
        ring: DriverRing,
        indirect: bool,
        plan: TransmitPlan,
        kick: Event,
        call: Event,
    ) -> Self {
        let entries = usize::from(ring.free());
        let mut transmit = Self {
            memory,
            ring,
            indirect,
            plan,
            kick,
            call,
            free: (0..plan.segments.count()).rev().collect(),
            owned: vec![Owned::default(); entries],
            bodies: Vec::new(),
            chain: Vec::with_capacity(CHAIN_DESCRIPTORS_MAX),
            refusal: Refusal::None,
        };
        transmit.suppress_calls();
        transmit
    }

    /// Copies `bytes` into segments that stay. Returns `None` if there are not enough, or if
    /// `bytes` are longer than a frame.
    pub(crate) fn add_body(&mut self, bytes: &[u8]) -> Option<Body> {
        let count = bytes.len().div_ceil(SEGMENT_BYTES as usize);
        // Half of the segments stay free for heads.
        let left = self.free.len().checked_sub(count)?;
        if bytes.len() > FRAME_LEN_MAX as usize || left < self.plan.segments.count() as usize / 2 {
            return None;
        }
        let segments = self.free.split_off(left);
        for (segment, bytes) in segments.iter().zip(bytes.chunks(SEGMENT_BYTES as usize)) {
            let address = self.plan.segments.address(*segment);
            own(&self.memory, address, SEGMENT_BYTES).write(bytes);
        }
        self.bodies.push((segments, bytes.len()));
        Some(Body { index: self.bodies.len() - 1 })
    }

    /// Offers a frame: copies `head`, but not the `range` of `body`.
    pub(crate) fn send(
        &mut self,
        header: &VnetHdr,
        head: &[u8],
        body: Option<(Body, Range<usize>)>,
        counters: &PairCounters,
    ) -> Result<(), SendError> {
        let body_len = body.as_ref().map_or(0, |(_, range)| range.len());
        let len = head.len().saturating_add(body_len);
        if len < FRAME_LEN_MIN as usize || len > FRAME_LEN_MAX as usize {
            return Err(SendError::Length { len });
        }
        let owned_count = (VnetHdr::LEN + head.len()).div_ceil(SEGMENT_BYTES as usize);
        if !self.plan_chain(owned_count, head.len(), &body)? {
            self.reclaim(counters);
            // The plan names segments that were free before.
            if !self.plan_chain(owned_count, head.len(), &body)? {
                self.refusal = Refusal::Standing;
                counters.tx_full.add(1);
                return Err(SendError::Full);
            }
        }
        self.refusal = Refusal::None;
        self.write_head(owned_count, header, head);
        self.offer(owned_count);
        counters.tx_frames.add(1);
        counters.tx_bytes.add(len as u64);
        Ok(())
    }

    /// Plans the chain: the last `owned_count` free segments for header and head, then the body.
    /// Returns `false` if segments or descriptors are lacking. The plan takes nothing before
    /// [`offer`](Self::offer).
    fn plan_chain(
        &mut self,
        owned_count: usize,
        head_len: usize,
        body: &Option<(Body, Range<usize>)>,
    ) -> Result<bool, SendError> {
        self.chain.clear();
        let Some(first) = self.free.len().checked_sub(owned_count) else {
            return Ok(false);
        };
        let mut left = VnetHdr::LEN + head_len;
        for segment in &self.free[first..] {
            let len = left.min(SEGMENT_BYTES as usize);
            self.chain.push(Buffer {
                address: self.plan.segments.address(*segment),
                len: len as u32,
                writable: false,
            });
            left -= len;
        }
        if let Some((body, range)) = body {
            self.push_body(*body, range)?;
        }
        Ok(self.has_descriptors())
    }

    fn push_body(&mut self, body: Body, range: &Range<usize>) -> Result<(), SendError> {
        let Range { start, end } = *range;
        let missing = SendError::Body { start, end };
        let (segments, len) = self.bodies.get(body.index).ok_or(missing)?;
        if start > end || end > *len {
            return Err(missing);
        }
        let segment_bytes = SEGMENT_BYTES as usize;
        let mut at = start;
        while at < end {
            let within = at % segment_bytes;
            let len = (segment_bytes - within).min(end - at);
            let segment = segments[at / segment_bytes];
            self.chain.push(Buffer {
                address: self.plan.segments.address(segment) + within as u64,
                len: len as u32,
                writable: false,
            });
            at += len;
        }
        Ok(())
    }

    /// Returns true if the ring has room for the chain.
    fn has_descriptors(&self) -> bool {
        let needed = if self.is_indirect() { 1 } else { self.chain.len() };
        usize::from(self.ring.free()) >= needed
    }

    /// One buffer needs no table.
    fn is_indirect(&self) -> bool {
        self.indirect && self.chain.len() > 1
    }

    fn write_head(&self, owned_count: usize, header: &VnetHdr, head: &[u8]) {
        let mut rest = head;
        for (i, buffer) in self.chain[..owned_count].iter().enumerate() {
            let mut room = own(&self.memory, buffer.address, buffer.len);
            if i == 0 {
                room = room.skip(room.write(&header.to_bytes()));
            }
            rest = &rest[room.write(rest)..];
        }
    }

    /// Gives the chain to the device. The caller has checked the room.
    fn offer(&mut self, owned_count: usize) {
        let segments = self.free.split_off(self.free.len() - owned_count);
        let head = if self.is_indirect() {
            let (address, len) = self.write_table(segments[0]);
            self.ring.offer_indirect(address, len)
        } else {
            self.ring.offer(&self.chain)
        };
        let Some(head) = head else {
            unreachable!("a ring with room for the chain refused it");
        };
        let mut owned = Owned { count: owned_count, ..Owned::default() };
        owned.segments[..owned_count].copy_from_slice(&segments);
        self.owned[usize::from(head)] = owned;
    }

    /// Writes the chain as an indirect table. Returns the table's address and length (bytes).
    fn write_table(&self, slot: u32) -> (u64, u32) {
        let mut table = [0; CHAIN_DESCRIPTORS_MAX * DESCRIPTOR_BYTES];
        let count = self.chain.len();
        for (i, (entry, buffer)) in
            table.chunks_exact_mut(DESCRIPTOR_BYTES).zip(&self.chain).enumerate()
        {
            let next = i + 1;
            // A packed ring's tables have neither chains nor this flag (virtio 1.2 §2.8.7).
            let more = next < count && !self.ring.is_packed();
            let (flags, next) = if more { (DESC_F_NEXT, next) } else { (0, 0) };
            let [flags_at, next_at] = if self.ring.is_packed() { [14, 12] } else { [12, 14] };
            entry[..8].copy_from_slice(&buffer.address.to_le_bytes());
            entry[8..12].copy_from_slice(&buffer.len.to_le_bytes());
            entry[flags_at..flags_at + 2].copy_from_slice(&flags.to_le_bytes());
            entry[next_at..next_at + 2].copy_from_slice(&(next as u16).to_le_bytes());
        }
        let address = self.plan.tables.address(slot);
        let bytes = &table[..count * DESCRIPTOR_BYTES];
        own(&self.memory, address, self.plan.tables.bytes(slot)).write(bytes);
        (address, bytes.len() as u32)
    }

    /// Takes back frames that the device has sent.
    fn reclaim(&mut self, counters: &PairCounters) {
        let mut freed = false;
        while let Some(used) = self.ring.take() {
            let owned = std::mem::take(&mut self.owned[usize::from(used.head)]);
            self.free.extend_from_slice(owned.as_slice());
            freed = true;
        }
        let skipped = self.ring.skipped();
        if skipped > 0 {
            counters.device_errors.add(skipped);
        }
        if freed && self.refusal == Refusal::Standing {
            self.refusal = Refusal::Over;
        }
    }

    /// Returns the number of frames that the device has, or has returned unseen.
    pub(crate) fn in_flight(&self) -> u16 {
        self.ring.in_flight()
    }

    /// Returns true once if there is room again since a frame was last refused.
    pub(crate) fn room_again(&mut self) -> bool {
        let again = self.refusal == Refusal::Over;
        if again {
            self.refusal = Refusal::None;
        }
        again
    }

    /// Publishes the offered frames, and kicks the device if it wants that.
    pub(crate) fn flush(&mut self, counters: &PairCounters) {
        if self.ring.publish() {
            self.kick(counters);
        }
        self.reclaim(counters);
    }

    pub(crate) fn kick(&self, counters: &PairCounters) {
        self.kick.signal();
        counters.kicks.add(1);
    }

    /// Asks for a call at the next sent frame. Returns true if a frame can be reclaimed now.
    pub(crate) fn enable_calls(&mut self) -> bool {
        self.ring.enable_calls()
    }

    pub(crate) fn suppress_calls(&mut self) {
        self.ring.suppress_calls();
    }

    /// Returns the eventfd of this ring's kicks.
    pub(crate) fn kick_event(&self) -> &Event {
        &self.kick
    }
}
