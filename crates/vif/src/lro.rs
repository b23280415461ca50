//! Large receive offload (Zhang 2010: LRO in the front end): the application gets adjacent TCP
//! segments of one flow in the ring as one packet.
//!
//! [`weir_wire::gro`] decides which segments may merge. Only headers are copied, and no segment
//! waits for another. The buffers of a packet go back to the device together.

use std::fmt;

use weir_guestmem::{HostBuffer, Slice, recycle};
use weir_limits::{BURST_MAX, HEAD_LEN};
use weir_wire::{Head, Merge, MergedPacket, Next, Offload, Sum, TcpSegment, VnetHdr};

use crate::counters::PairCounters;
use crate::receive::{Frame, Receive};

/// Part of a frame: bytes of the interface's memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    /// Guest-physical address.
    pub(crate) address: u64,
    pub(crate) len: u32,
}

/// A frame taken out of the ring, or several merged frames.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    /// The virtio header, as the device wrote it.
    pub(crate) header: VnetHdr,
    /// The frame's bytes, in order.
    pub(crate) parts: Vec<Part>,
    /// Buffers that return to the device with the frame.
    pub(crate) slots: Vec<u32>,
}

impl Taken {
    fn len(&self) -> u32 {
        self.parts.iter().map(|part| part.len).sum()
    }

    fn slices<'r>(&self, rx: &'r Receive) -> impl Iterator<Item = Slice<'r>> {
        self.parts.iter().map(|part| rx.slice(*part))
    }

    /// Copies the front of the frame.
    fn head(&self, rx: &Receive) -> Head {
        let mut head = Head::zeroed(self.len() as usize);
        let mut out = head.as_mut_slice();
        for slice in self.slices(rx) {
            let read = slice.read(out);
            out = &mut out[read..];
        }
        head
    }

    /// Returns the sum of the bytes behind the front.
    fn sum_behind_head(&self, rx: &Receive) -> Sum {
        let mut skip = HEAD_LEN;
        let mut sum = Sum::new();
        let mut chunk = [0; 1024];
        for slice in self.slices(rx) {
            let mut rest = slice.skip(skip);
            skip = skip.saturating_sub(slice.len());
            while !rest.is_empty() {
                let read = rest.read(&mut chunk);
                sum.add(&chunk[..read]);
                rest = rest.skip(read);
            }
        }
        sum
    }

    /// Drops the first `bytes` bytes.
    fn cut(&mut self, bytes: usize) {
        let mut left = bytes as u32; // the length of headers
        for part in &mut self.parts {
            let cut = left.min(part.len);
            part.address += u64::from(cut);
            part.len -= cut;
            left -= cut;
        }
        self.parts.retain(|part| part.len > 0);
    }

    /// Returns true if the checksum of this segment is right.
    fn is_sound(&self, segment: &TcpSegment<'_>, rx: &Receive) -> bool {
        !segment.needs_verifying() || segment.verify(self.sum_behind_head(rx))
    }
}

/// Merges the frames of a receive ring.
pub(crate) struct Lro {
    /// The packet under construction.
    run: Taken,
    /// The next frame, if it was examined and does not belong to the packet.
    ahead: Taken,
    has_ahead: bool,
    /// Most buffers of one packet, since the device needs the others meanwhile.
    slots_max: usize,
    /// Headers of the merged packet.
    room: HostBuffer,
    /// The vector is kept for its allocation.
    pieces: Vec<Slice<'static>>,
}

impl Lro {
    /// Returns a merger for a ring of `queue_size` entries.
    pub(crate) fn new(queue_size: u16) -> Self {
        Self {
            run: Taken::default(),
            ahead: Taken::default(),
            has_ahead: false,
            slots_max: usize::from(queue_size / 2),
            room: HostBuffer::new(HEAD_LEN),
            pieces: Vec::new(),
        }
    }

    /// Returns true if a frame was taken out of the ring and not shown yet.
    pub(crate) fn has_ahead(&self) -> bool {
        self.has_ahead
    }

    /// Takes the next packet, if there is one, and recycles its buffers after `look`.
    pub(crate) fn recv<R>(
        &mut self,
        rx: &mut Receive,
        counters: &PairCounters,
        look: impl FnOnce(&Frame<'_>) -> R,
    ) -> Option<R> {
        if self.has_ahead {
            std::mem::swap(&mut self.run, &mut self.ahead);
            self.has_ahead = false;
        } else if !rx.take_frame(&mut self.run, counters) {
            rx.refill_batch(counters);
            return None;
        }
        let merged = self.gather(rx, counters);
        let mut pieces = recycle(std::mem::take(&mut self.pieces));
        let mut header = self.run.header;
        if let Some(packet) = merged {
            header = packet.offload.to_vnet(1);
            counters.rx_merged.add(1);
            if let Some(head) = self.room.slice(0, packet.head.len()) {
                head.write(packet.head.as_slice());
                pieces.push(head);
            }
        }
        pieces.extend(self.run.slices(rx));
        let len = pieces.iter().map(Slice::len).sum();
        let result = look(&Frame { header, len, pieces: &pieces });
        self.pieces = recycle(pieces);
        rx.give_back(&mut self.run.slots, counters);
        Some(result)
    }

    /// Merges the following frames into `run`, as long as they belong to the packet. Afterwards
    /// `run` holds the bytes behind the packet's head.
    fn gather(&mut self, rx: &mut Receive, counters: &PairCounters) -> Option<MergedPacket> {
        let (head, len) = (self.run.head(rx), self.run.len());
        if !TcpSegment::is_likely(&head, len) {
            return None;
        }
        let offload = Offload::from_vnet(&self.run.header, head.as_slice(), len).ok()?;
        let first = TcpSegment::read(&head, &offload, len)?;
        let mut merge = Merge::new(first);
        let mut count = 1;
        while count < BURST_MAX as u32
            && self.run.slots.len() < self.slots_max
            && !merge.is_complete()
            && rx.take_frame(&mut self.ahead, counters)
        {
            self.has_ahead = true;
            let (next_head, next_len) = (self.ahead.head(rx), self.ahead.len());
            let header = &self.ahead.header;
            let Ok(offload) = Offload::from_vnet(header, next_head.as_slice(), next_len) else {
                break;
            };
            let Next::Follows(segment) = merge.next(&next_head, &offload, next_len) else { break };
            let first_is_sound = count > 1 || self.run.is_sound(&first, rx);
            if !first_is_sound || !self.ahead.is_sound(&segment, rx) {
                break;
            }
            if count == 1 {
                self.run.cut(head.len());
            }
            self.ahead.cut(segment.hdr_len());
            self.run.parts.append(&mut self.ahead.parts);
            self.run.slots.append(&mut self.ahead.slots);
            self.has_ahead = false;
            merge.push(&segment);
            count += 1;
        }
        (count > 1).then(|| merge.packet(count))
    }
}

impl fmt::Debug for Lro {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Lro").field("ahead", &self.has_ahead).finish_non_exhaustive()
    }
}
