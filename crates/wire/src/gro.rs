//! Software GRO: merges TCP segments of one flow into one packet for a receiver that takes TSO packets. It is the
//! inverse of [`Segmenter`](crate::Segmenter): cutting the packet restores the segments byte for byte.
//!
//! Only segments that can be restored merge. The rules are Linux's (`inet_gro_receive`, `ipv6_gro_receive`,
//! `tcp_gro_receive`), and stricter where Linux keeps marks that `virtio_net_hdr` lacks. One field is not restored:
//! an IPv4 identification that the sender kept constant. Such segments merge only if fragmentation is forbidden,
//! which makes the field meaningless (RFC 6864 §4.1).

use std::ops::Range;

use weir_limits::GRO_LEN_MAX;

use crate::bytes::{be16_at, be32_at, put, u8_at};
use crate::checksum::{IPV4_CSUM_OFFSET, Sum, ipv4_header_checksum};
use crate::ethernet::{ETHERTYPE_OFFSET, HEADER_LEN, ethertype};
use crate::gso::{
    IPV4_ID_OFFSET, IPV4_TOTAL_LEN_OFFSET, IPV6_PAYLOAD_LEN_OFFSET, TCP_FLAGS_OFFSET, TCP_PSH,
    TCP_SEQ_OFFSET,
};
use crate::head::Head;
use crate::layers::{IPV4_HEADER_LEN_MIN, IPV6_HEADER_LEN, TCP_HEADER_LEN_MIN, protocol};
use crate::offload::{CsumPartial, Gso, GsoKind, Offload, TCP_CSUM_OFFSET};

/// The offset of the network header: a head has no tag when frames are merged.
const L3: usize = HEADER_LEN;
/// The offset of TCP behind an IPv4 header without options, and behind an IPv6 header.
const L4_IPV4: usize = L3 + IPV4_HEADER_LEN_MIN as usize;
const L4_IPV6: usize = L3 + IPV6_HEADER_LEN as usize;

/// Version and length of an IPv4 header without options.
const IPV4_PLAIN: u8 = 0x45;
const IPV4_FRAGMENT_OFFSET: usize = 6;
const IPV4_PROTOCOL_OFFSET: usize = 9;
const IPV4_ADDRESSES: Range<usize> = L3 + 12..L4_IPV4;
/// The flag "don't fragment", and the mask of bits that make a packet a fragment.
const IPV4_DF: u16 = 0x4000;
const IPV4_FRAGMENT: u16 = 0x3fff;
const IPV6_NEXT_HEADER_OFFSET: usize = 6;
const IPV6_ADDRESSES: Range<usize> = L3 + 8..L4_IPV6;

const TCP_DATA_OFFSET: usize = 12;
const TCP_ACK: u8 = 0x10;

/// A TCP segment that can be part of a merged packet. It has no IP options or extension headers, no flags except ACK
/// and PSH, consistent lengths, and a correct IPv4 header checksum.
#[derive(Clone, Copy, Debug)]
pub struct TcpSegment<'h> {
    head: &'h [u8],
    kind: GsoKind,
    l4: usize,
    hdr_len: usize,
    payload_len: u32,
    /// True if the TCP checksum is partial, or a device found it correct.
    checksum_known: bool,
}

impl<'h> TcpSegment<'h> {
    /// True if the frame of `frame_len` bytes that starts with `head`, without a tag, looks like TCP with payload. The
    /// check is a few comparisons, for a caller with many other frames.
    #[inline]
    pub fn is_likely(head: &Head, frame_len: u32) -> bool {
        let head = head.as_slice();
        let l4 = match Self::kind_of(head) {
            Some(GsoKind::Tcp4) => L4_IPV4,
            Some(_) => L4_IPV6,
            None => return false,
        };
        let data_offset = head.get(l4 + TCP_DATA_OFFSET).copied().unwrap_or(0);
        frame_len > l4 as u32 + u32::from(data_offset >> 4) * 4
    }

    #[inline]
    fn kind_of(head: &[u8]) -> Option<GsoKind> {
        let front = head.first_chunk::<{ L3 + IPV4_PROTOCOL_OFFSET + 1 }>()?;
        match u16::from_be_bytes([front[ETHERTYPE_OFFSET], front[ETHERTYPE_OFFSET + 1]]) {
            ethertype::IPV4 if front[L3 + IPV4_PROTOCOL_OFFSET] == protocol::TCP => {
                Some(GsoKind::Tcp4)
            }
            ethertype::IPV6 if front[L3 + IPV6_NEXT_HEADER_OFFSET] == protocol::TCP => {
                Some(GsoKind::Tcp6)
            }
            _ => None,
        }
    }

    /// Reads the headers of a frame of `frame_len` bytes that starts with `head`, without a tag. `None` for any frame
    /// that must pass unchanged.
    pub fn read(head: &'h Head, offload: &Offload, frame_len: u32) -> Option<Self> {
        let head = head.as_slice();
        let kind = Self::kind_of(head)?;
        let l4 = match kind {
            GsoKind::Tcp6 => L4_IPV6,
            _ => L4_IPV4,
        };
        // The four bits behind the data offset are reserved, or flags of accurate ECN.
        let data_offset = u8_at(head, l4 + TCP_DATA_OFFSET)?;
        let flags = u8_at(head, l4 + TCP_FLAGS_OFFSET)?;
        let tcp_len = usize::from(data_offset >> 4) * 4;
        let hdr_len = l4 + tcp_len;
        let payload_len = frame_len.checked_sub(hdr_len as u32)?; // at most 114
        if payload_len == 0
            || flags & !TCP_PSH != TCP_ACK
            || data_offset & 0xf != 0
            || tcp_len < usize::from(TCP_HEADER_LEN_MIN)
            || hdr_len > head.len()
            || !is_plain_ip(head, kind, frame_len)?
        {
            return None;
        }
        let mut segment = Self { head, kind, l4, hdr_len, payload_len, checksum_known: false };
        segment.checksum_known = segment.is_checksum_known(offload)?;
        Some(segment)
    }

    /// True if the checksum is known to be correct; `None` if the sender asks for an offload that a segment cannot
    /// have, or if a partial checksum is already wrong.
    fn is_checksum_known(&self, offload: &Offload) -> Option<bool> {
        match (offload.gso(), offload.csum()) {
            (None, None) => Some(offload.data_valid()),
            (None, Some(csum)) => {
                let field = be16_at(self.head, csum.field())?;
                let right = csum == self.csum() && field == self.pseudo(self.payload_len).folded();
                right.then_some(true)
            }
            (Some(_), _) => None,
        }
    }

    /// True if the checksum must be [verified](Self::verify) before the segment is merged.
    pub fn needs_verifying(&self) -> bool {
        !self.checksum_known
    }

    /// True if the checksum is correct. `rest` is the sum of the frame's bytes after the head, summed as if they began
    /// at an even position, as in [`fill_checksum`](crate::fill_checksum).
    pub fn verify(&self, rest: Sum) -> bool {
        let mut sum = self.pseudo(self.payload_len);
        sum.add(self.head.get(self.l4..).unwrap_or_default());
        sum.add_partial(rest.folded(), 0);
        sum.folded() == 0xffff
    }

    /// Length of all headers in bytes.
    pub fn hdr_len(&self) -> usize {
        self.hdr_len
    }

    fn csum(&self) -> CsumPartial {
        CsumPartial { start: self.l4 as u16, offset: TCP_CSUM_OFFSET } // 34 or 54
    }

    /// The pseudo-header's sum for a segment of these addresses with `payload_len` bytes of payload.
    fn pseudo(&self, payload_len: u32) -> Sum {
        let addresses = match self.kind {
            GsoKind::Tcp6 => IPV6_ADDRESSES,
            _ => IPV4_ADDRESSES,
        };
        let mut sum = Sum::new();
        sum.add(self.head.get(addresses).unwrap_or_default());
        sum.add_u32(u32::from(protocol::TCP));
        sum.add_u32((self.hdr_len - self.l4) as u32 + payload_len);
        sum
    }

    fn seq(&self) -> Option<u32> {
        be32_at(self.head, self.l4 + TCP_SEQ_OFFSET)
    }

    fn has_psh(&self) -> bool {
        u8_at(self.head, self.l4 + TCP_FLAGS_OFFSET).is_some_and(|flags| flags & TCP_PSH != 0)
    }

    /// True if a frame that starts with `other` is certainly of another flow. This flow's next segments can then
    /// overtake it. False for a frame without visible ports (a fragment, extension headers).
    fn is_of_another_flow(&self, other: &[u8]) -> bool {
        // The ranges and arrays have lengths known to the compiler, since this runs for many frames.
        const PORTS_LEN: usize = 4;
        match self.kind {
            GsoKind::Tcp6 => {
                const LEN: usize = L4_IPV6 + PORTS_LEN;
                let (Some(mine), Some(other)) =
                    (self.head.first_chunk::<LEN>(), other.first_chunk::<LEN>())
                else {
                    return false;
                };
                let next_header = other[L3 + IPV6_NEXT_HEADER_OFFSET];
                mine[ETHERTYPE_OFFSET..HEADER_LEN] != other[ETHERTYPE_OFFSET..HEADER_LEN]
                    || mine[IPV6_ADDRESSES] != other[IPV6_ADDRESSES]
                    || next_header == protocol::UDP
                    || next_header == protocol::TCP && mine[L4_IPV6..] != other[L4_IPV6..]
            }
            _ => {
                const LEN: usize = L4_IPV4 + PORTS_LEN;
                let (Some(mine), Some(other)) =
                    (self.head.first_chunk::<LEN>(), other.first_chunk::<LEN>())
                else {
                    return false;
                };
                let fragment = L3 + IPV4_FRAGMENT_OFFSET;
                let fragment = u16::from_be_bytes([other[fragment], other[fragment + 1]]);
                let plain = other[L3] == IPV4_PLAIN && fragment & IPV4_FRAGMENT == 0;
                let same_ports = other[L3 + IPV4_PROTOCOL_OFFSET] == protocol::TCP
                    && mine[L4_IPV4..] == other[L4_IPV4..];
                mine[ETHERTYPE_OFFSET..HEADER_LEN] != other[ETHERTYPE_OFFSET..HEADER_LEN]
                    || mine[IPV4_ADDRESSES] != other[IPV4_ADDRESSES]
                    || plain && !same_ports
            }
        }
    }

    /// True if all header fields that a merged packet has only once equal those of `other`.
    fn has_headers_of(&self, other: &TcpSegment<'_>) -> bool {
        let same = |range: Range<usize>| self.head.get(range.clone()) == other.head.get(range);
        // IP's length, and IPv4's identification and checksum, are not compared.
        let network = match self.kind {
            GsoKind::Tcp6 => {
                let len = L3 + IPV6_PAYLOAD_LEN_OFFSET;
                same(0..len) && same(len + 2..self.l4)
            }
            _ => {
                let csum = L3 + IPV4_CSUM_OFFSET;
                same(0..L3 + IPV4_TOTAL_LEN_OFFSET)
                    && same(L3 + IPV4_FRAGMENT_OFFSET..csum)
                    && same(csum + 2..self.l4)
            }
        };
        // TCP's sequence number, flags (ACK, and PSH or not) and checksum are not compared either.
        let (seq, flags) = (self.l4 + TCP_SEQ_OFFSET, self.l4 + TCP_FLAGS_OFFSET);
        let csum = self.l4 + usize::from(TCP_CSUM_OFFSET);
        self.kind == other.kind
            && self.hdr_len == other.hdr_len
            && network
            && same(self.l4..seq)
            && same(seq + 4..flags)
            && same(flags + 1..csum)
            && same(csum + 2..self.hdr_len)
    }
}

/// True if the IP header has no options, is not a fragment's, ends where the frame of `frame_len` bytes does and, for
/// IPv4, has a correct checksum; `None` if the head ends before the IP header does.
fn is_plain_ip(head: &[u8], kind: GsoKind, frame_len: u32) -> Option<bool> {
    let (plain, end) = match kind {
        GsoKind::Tcp6 => {
            let payload_len = usize::from(be16_at(head, L3 + IPV6_PAYLOAD_LEN_OFFSET)?);
            (u8_at(head, L3)? >> 4 == 6, L4_IPV6 + payload_len)
        }
        _ => {
            let total_len = usize::from(be16_at(head, L3 + IPV4_TOTAL_LEN_OFFSET)?);
            let plain = u8_at(head, L3)? == IPV4_PLAIN
                && be16_at(head, L3 + IPV4_FRAGMENT_OFFSET)? & IPV4_FRAGMENT == 0
                && be16_at(head, L3 + IPV4_CSUM_OFFSET)?
                    == ipv4_header_checksum(head.get(L3..L4_IPV4)?);
            (plain, L3 + total_len)
        }
    };
    Some(plain && u32::try_from(end) == Ok(frame_len))
}

/// The relation of a frame to the packet merged from the frames before it.
#[derive(Clone, Copy, Debug)]
pub enum Next<'h> {
    /// The frame is certainly of another flow: more segments of this flow can follow.
    OtherFlow,
    /// The frame may be of this flow and cannot be part of the packet, so the packet ends here.
    Ends,
    /// The frame is the packet's next segment, if its checksum is correct.
    Follows(TcpSegment<'h>),
}

/// Segments of one flow that become one packet.
#[derive(Clone, Copy, Debug)]
pub struct Merge<'h> {
    first: TcpSegment<'h>,
    count: u32,
    /// The number of payload bytes in all segments.
    payload_len: u32,
    /// The step of IPv4's identification from segment to segment; `None` while there is one segment.
    id_step: Option<u16>,
    /// True if the last segment has PSH; no earlier one has it.
    psh: bool,
}

impl<'h> Merge<'h> {
    /// Begins with one segment.
    pub fn new(first: TcpSegment<'h>) -> Self {
        let (payload_len, psh) = (first.payload_len, first.has_psh());
        Self { first, count: 1, payload_len, id_step: None, psh }
    }

    /// The first segment.
    pub fn first(&self) -> &TcpSegment<'h> {
        &self.first
    }

    /// The GSO type of the merged packet.
    pub fn kind(&self) -> GsoKind {
        self.first.kind
    }

    /// True if no segment can follow: the last one was shorter than the first, or has PSH.
    pub fn is_complete(&self) -> bool {
        self.psh || self.payload_len != self.count * self.first.payload_len
    }

    /// The relation of a frame to this packet. The frame has `frame_len` bytes, and starts with `head`, without a tag.
    pub fn next<'n>(&self, head: &'n Head, offload: &Offload, frame_len: u32) -> Next<'n> {
        if self.first.is_of_another_flow(head.as_slice()) {
            return Next::OtherFlow;
        }
        match TcpSegment::read(head, offload, frame_len) {
            Some(segment) if self.is_followed_by(&segment) => Next::Follows(segment),
            _ => Next::Ends,
        }
    }

    fn is_followed_by(&self, next: &TcpSegment<'_>) -> bool {
        let expected = self.first.seq().map(|seq| seq.wrapping_add(self.payload_len));
        let len = self.first.hdr_len as u32 + self.payload_len + next.payload_len;
        !self.is_complete()
            && next.payload_len <= self.first.payload_len
            && len <= GRO_LEN_MAX
            && next.seq() == expected
            && self.first.has_headers_of(next)
            && self.id_step_to(next).is_some()
    }

    /// The step of IPv4's identification if `next` follows; `None` if it must not. Cutting increments the
    /// identification by one; if fragmentation is forbidden, it may also stay the same.
    fn id_step_to(&self, next: &TcpSegment<'_>) -> Option<u16> {
        if self.first.kind == GsoKind::Tcp6 {
            return Some(1);
        }
        let id = |segment: &TcpSegment<'_>| be16_at(segment.head, L3 + IPV4_ID_OFFSET);
        let grown = id(next)?.wrapping_sub(id(&self.first)?);
        let df = be16_at(self.first.head, L3 + IPV4_FRAGMENT_OFFSET)? & IPV4_DF != 0;
        let step = if grown == 0 && df { 0 } else { 1 };
        // At most 65535 segments fit in a packet.
        let counts = grown == step * self.count as u16;
        (counts && self.id_step.is_none_or(|before| before == step)).then_some(step)
    }

    /// Adds a segment for which [`next`](Self::next) returned [`Next::Follows`].
    pub fn push(&mut self, next: &TcpSegment<'_>) {
        self.id_step = self.id_step_to(next);
        self.psh = next.has_psh();
        self.payload_len += next.payload_len;
        self.count += 1;
    }

    /// The packet of the first `count` segments, at least 1 and at most all. Its head is the first segment's, including
    /// the part of the payload behind the headers.
    pub fn packet(&self, count: u32) -> MergedPacket {
        let first = &self.first;
        let all = count >= self.count;
        let payload_len = if all { self.payload_len } else { count * first.payload_len };
        let mut head = Head::copy_of(first.head);
        // Each field lies in the head, since it was read there.
        let _ = self.write_headers(head.as_mut_slice(), payload_len, all && self.psh);
        let gso = Gso {
            kind: first.kind,
            ecn: false,
            size: first.payload_len as u16, // a part of GRO_LEN_MAX bytes
            hdr_len: first.hdr_len as u16,
        };
        MergedPacket {
            head,
            offload: Offload::with_gso(first.csum(), gso),
            len: first.hdr_len as u32 + payload_len,
        }
    }

    fn write_headers(&self, head: &mut [u8], payload_len: u32, psh: bool) -> Option<()> {
        let TcpSegment { l4, hdr_len, kind, .. } = self.first;
        let ip_payload_len = (hdr_len - l4) as u32 + payload_len;
        match kind {
            GsoKind::Tcp6 => {
                let len = u16::try_from(ip_payload_len).ok()?;
                put(head, L3 + IPV6_PAYLOAD_LEN_OFFSET, len.to_be_bytes())?;
            }
            _ => {
                let len = u16::try_from((l4 - L3) as u32 + ip_payload_len).ok()?;
                put(head, L3 + IPV4_TOTAL_LEN_OFFSET, len.to_be_bytes())?;
                let sum = ipv4_header_checksum(head.get(L3..l4)?);
                put(head, L3 + IPV4_CSUM_OFFSET, sum.to_be_bytes())?;
            }
        }
        put(head, l4 + TCP_FLAGS_OFFSET, [if psh { TCP_ACK | TCP_PSH } else { TCP_ACK }])?;
        let partial = self.first.pseudo(payload_len).folded();
        put(head, self.first.csum().field(), partial.to_be_bytes())
    }
}

/// A packet merged from segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergedPacket {
    /// The packet's headers, and the part of its payload that was in the first segment's head.
    pub head: Head,
    /// The offload that cuts the packet again; its checksum is partial.
    pub offload: Offload,
    /// Bytes of the packet.
    pub len: u32,
}

#[cfg(test)]
mod tests;
