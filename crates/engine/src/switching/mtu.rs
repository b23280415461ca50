//! Limits on the length of a port's frames. A guest knows its MTU: a longer frame from it breaks the rule, and a longer
//! frame for it finds no buffer.

use weir_wire::TagProtocol;
use weir_wire::ethernet::HEADER_LEN;
use weir_wire::vlan::TAG_LEN;

use crate::frames::burst::{Burst, Frame};
use crate::frames::port::Outgoing;

/// Most bytes of a port's frames, without VLAN tags: up to two tags do not count, as in a Linux bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameLenMax(u32);

impl FrameLenMax {
    /// No limit except weir's own.
    pub(crate) const NONE: Self = Self(u32::MAX);

    /// An Ethernet header and `mtu` bytes after it.
    pub(crate) fn of_mtu(mtu: Option<u16>) -> Self {
        mtu.map_or(Self::NONE, |mtu| Self(u32::from(mtu) + HEADER_LEN as u32))
    }

    /// The most bytes; `None` without a limit.
    pub(crate) fn get(self) -> Option<u32> {
        (self != Self::NONE).then_some(self.0)
    }

    /// Bytes behind the Ethernet header; `None` without a limit.
    pub(crate) fn mtu(self) -> Option<u16> {
        u16::try_from(self.get()? - HEADER_LEN as u32).ok()
    }

    /// Frames of a burst that are longer, by their index.
    pub(crate) fn exceeded_by(self, burst: &Burst<'_>) -> u64 {
        let bits = burst.frames().iter().zip(0_u32..);
        bits.fold(0, |over, (frame, index)| over | u64::from(self.is_exceeded_by(frame)) << index)
    }

    /// Frames in `list` that are longer than the limit (bit i: frame i of the burst).
    pub(crate) fn exceeded_in(self, list: &[Outgoing], burst: &Burst<'_>) -> u64 {
        let frames = list
            .iter()
            .map(|outgoing| (outgoing.frame, burst.frames().get(usize::from(outgoing.frame))));
        frames.fold(0, |over, (index, frame)| {
            over | u64::from(frame.is_some_and(|frame| self.is_exceeded_by(frame))) << index
        })
    }

    #[inline]
    fn is_exceeded_by(self, frame: &Frame) -> bool {
        frame.len > self.0 && segment_len(frame) - second_tag_len(frame) > self.0
    }
}

/// Bytes of the tag that a frame begins with behind the removed one.
fn second_tag_len(frame: &Frame) -> u32 {
    TagProtocol::of_ethertype(frame.head.ethertype()).map_or(0, |_| TAG_LEN as u32)
}

/// Bytes of the longest frame on the wire after this one was cut, if it must be.
fn segment_len(frame: &Frame) -> u32 {
    frame
        .offload
        .gso()
        .map_or(frame.len, |gso| frame.len.min(u32::from(gso.hdr_len) + u32::from(gso.size)))
}
