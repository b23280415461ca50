//! Makes a frame fit its receiver: tag, checksum, segments.
//!
//! Most frames pass unchanged. For the rest, and for every kind of port, this module adds a tag, fills in a checksum,
//! or cuts a GSO frame if the receiver cannot do so.

use weir_fabric::EgressTag;
use weir_guestmem::Slice;
use weir_wire::{Fit, Head, Offload, OffloadCaps, Segmenter, Sum, fill_checksum};

use crate::frames::burst::{Burst, Frame};
use crate::frames::drop_reason::DropReason;

/// A packet as a receiver gets it: `head`, then `body_len` bytes of `body` from `body_skip` on.
#[derive(Clone, Copy)]
pub struct Packet<'p, 'm> {
    /// The packet's front, from weir's checked copy.
    pub head: &'p Head,
    /// The offloads that are left to the receiver; they fit its capabilities.
    pub offload: &'p Offload,
    /// The number of frames that the packet stands for: more than one if frames were merged.
    pub frames: u32,
    pub(crate) body: &'p [Slice<'m>],
    pub(crate) body_skip: usize,
    pub(crate) body_len: usize,
}

impl<'p, 'm> Packet<'p, 'm> {
    /// Bytes of the packet.
    #[inline]
    pub fn len(&self) -> usize {
        self.head.len() + self.body_len
    }

    /// Bytes of the frames that the packet stands for, each with its headers.
    #[inline]
    pub fn frames_len(&self) -> usize {
        let again = match self.frames {
            1 => 0,
            frames => {
                let hdr_len = self.offload.gso().map_or(0, |gso| usize::from(gso.hdr_len));
                (frames as usize - 1) * hdr_len
            }
        };
        self.len() + again
    }

    /// A packet always has an Ethernet header.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The part of the packet behind its head, in the sender's memory.
    #[inline]
    pub fn body(&self) -> impl Iterator<Item = Slice<'m>> + use<'p, 'm> {
        let (mut skip, mut left) = (self.body_skip, self.body_len);
        self.body.iter().filter_map(move |slice| {
            let part = slice.skip(skip).first(left);
            skip = skip.saturating_sub(slice.len());
            left -= part.len();
            (!part.is_empty()).then_some(part)
        })
    }
}

/// A receiver's result for one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// The packet was put in.
    Done,
    /// The receiver has no buffers now; nothing was written.
    Full,
    /// The receiver can never take the packet; the drop was counted.
    Refused,
}

/// The result for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Emitted {
    /// The receiver has the frame, or at least some of its segments: the others are lost, as on a wire.
    Done {
        /// Segments that found no buffers.
        lost: u32,
    },
    /// The receiver has nothing of the frame, which can be retried.
    Full,
}

/// Gives `frame` to `put` in the form that a receiver with `caps` takes: once, or once per segment.
#[inline(always)]
pub fn emit<'m>(
    burst: &Burst<'m>,
    frame: &Frame,
    tag: EgressTag,
    caps: OffloadCaps,
    mut put: impl FnMut(Packet<'_, 'm>) -> Put,
) -> Result<Emitted, DropReason> {
    // Nearly all frames pass here, above all small ones, which are the most frequent.
    if frame.offload.is_none() && tag == EgressTag::Untagged {
        let body = burst.payload(frame);
        let body_len = frame.len as usize - frame.head.len();
        let (head, offload) = (&frame.head, &Offload::NONE);
        return Ok(whole(put(Packet { head, offload, frames: 1, body, body_skip: 0, body_len })));
    }
    emit_fitted(burst, frame, tag, caps, &mut put)
}

#[inline(never)]
fn emit_fitted<'m>(
    burst: &Burst<'m>,
    frame: &Frame,
    tag: EgressTag,
    caps: OffloadCaps,
    put: &mut dyn FnMut(Packet<'_, 'm>) -> Put,
) -> Result<Emitted, DropReason> {
    let body = burst.payload(frame);
    let body_len = frame.len as usize - frame.head.len();
    match caps.accepts(&frame.offload) {
        Fit::AsIs => {
            let trimmed;
            let mut offload = &frame.offload;
            if offload.data_valid() {
                trimmed = caps.trim(*offload);
                offload = &trimmed;
            }
            let packet =
                Packet { head: &frame.head, offload, frames: 1, body, body_skip: 0, body_len };
            Ok(whole(put_tagged(packet, tag, put)?))
        }
        Fit::NeedsChecksum => {
            let offload = &frame.offload;
            let packet =
                Packet { head: &frame.head, offload, frames: 1, body, body_skip: 0, body_len };
            let head = filled(&packet)?;
            let packet = Packet { head: &head, offload: &Offload::NONE, ..packet };
            Ok(whole(put_tagged(packet, tag, put)?))
        }
        Fit::NeedsSegments => emit_segments(frame, body, tag, caps, put),
    }
}

#[inline]
fn whole(put: Put) -> Emitted {
    match put {
        Put::Done | Put::Refused => Emitted::Done { lost: 0 },
        Put::Full => Emitted::Full,
    }
}

fn emit_segments<'m>(
    frame: &Frame,
    body: &[Slice<'m>],
    tag: EgressTag,
    caps: OffloadCaps,
    put: &mut dyn FnMut(Packet<'_, 'm>) -> Put,
) -> Result<Emitted, DropReason> {
    let mut segmenter = Segmenter::new(&frame.head, &frame.offload, frame.len)
        .map_err(|_| DropReason::OffloadUnsupported)?;
    // The head may reach beyond the headers; a segment's payload then begins in the head. Small payloads are copied
    // into the segment's own head, so that only bytes behind the original head come from the sender's memory.
    let hdr_len = frame.offload.gso().map_or(0, |gso| usize::from(gso.hdr_len));
    let in_head = frame.head.as_slice().get(hdr_len..).unwrap_or(&[]);
    let mut first = true;
    while let Some(segment) = segmenter.next() {
        let from = segment.payload_offset as usize;
        let len = segment.payload_len as usize;
        // The part of this segment's payload that lies in the original head.
        let near = in_head.get(from..in_head.len().min(from + len)).unwrap_or(&[]);
        let mut head = segment.head;
        if !near.is_empty() && !head.append(near) {
            return Err(DropReason::OffloadUnsupported);
        }
        let offload = segment.offload();
        let packet = Packet {
            head: &head,
            offload: &offload,
            frames: 1,
            body,
            body_skip: (from + near.len()).saturating_sub(in_head.len()),
            body_len: len - near.len(),
        };
        let result = if caps.accepts(&offload) == Fit::AsIs {
            put_tagged(packet, tag, put)?
        } else {
            let head = filled(&packet)?;
            put_tagged(Packet { head: &head, offload: &Offload::NONE, ..packet }, tag, put)?
        };
        match result {
            Put::Done | Put::Refused => first = false,
            Put::Full if first => return Ok(Emitted::Full),
            Put::Full => {
                let left = 1 + segmenter.count() as u32;
                return Ok(Emitted::Done { lost: left });
            }
        }
    }
    Ok(Emitted::Done { lost: 0 })
}

/// Inserts the tag, if there is one, and passes the packet on.
pub(crate) fn put_tagged<'m>(
    packet: Packet<'_, 'm>,
    tag: EgressTag,
    put: &mut dyn FnMut(Packet<'_, 'm>) -> Put,
) -> Result<Put, DropReason> {
    match tag {
        EgressTag::Untagged => Ok(put(packet)),
        EgressTag::Tagged(tci) => {
            let mut head = *packet.head;
            head.insert_vlan(tci).map_err(|_| DropReason::NoRoomForTag)?;
            let offload = packet.offload.tag_inserted();
            Ok(put(Packet { head: &head, offload: &offload, ..packet }))
        }
    }
}

/// The head of `packet` with its checksum completed. If the sender changes its memory between this sum and the copy,
/// the receiver finds the checksum wrong, which is the purpose of a checksum.
///
/// # Errors
/// [`DropReason::OffloadUnsupported`] if the checksum is not in the head.
pub fn filled(packet: &Packet<'_, '_>) -> Result<Head, DropReason> {
    let mut head = *packet.head;
    let Some(csum) = packet.offload.csum() else { return Ok(head) };
    let sum = sum_of(packet.body());
    fill_checksum(&mut head, csum, sum).map_err(|_| DropReason::OffloadUnsupported)?;
    Ok(head)
}

/// The sum of the bytes in these slices.
pub(crate) fn sum_of<'m>(slices: impl Iterator<Item = Slice<'m>>) -> Sum {
    let mut sum = Sum::new();
    add_slices(&mut sum, slices);
    sum
}

/// Adds the bytes in these slices to a sum.
pub(crate) fn add_slices<'m>(sum: &mut Sum, slices: impl Iterator<Item = Slice<'m>>) {
    let mut chunk = [0; 1024]; // larger ones cost more to clear than they save
    for mut slice in slices {
        while !slice.is_empty() {
            let read = slice.read(&mut chunk);
            sum.add(&chunk[..read]);
            slice = slice.skip(read);
        }
    }
}
