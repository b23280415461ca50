//! Software GSO: a large TCP or UDP frame cut into frames that a receiver without the offload takes.

use weir_limits::GSO_SEGMENTS_MAX;

use crate::bytes::{be16_at, be32_at, put, u8_at};
use crate::checksum::{IPV4_CSUM_OFFSET, Sum, ipv4_header_checksum};
use crate::ethernet::ParseError;
use crate::head::Head;
use crate::layers::{IPV6_HEADER_LEN, Layers, Network, Transport};
use crate::offload::{CsumPartial, Offload, transport_csum};

pub(crate) const IPV4_TOTAL_LEN_OFFSET: usize = 2;
pub(crate) const IPV4_ID_OFFSET: usize = 4;
pub(crate) const IPV6_PAYLOAD_LEN_OFFSET: usize = 4;
pub(crate) const TCP_SEQ_OFFSET: usize = 4;
pub(crate) const TCP_FLAGS_OFFSET: usize = 13;
const UDP_LEN_OFFSET: usize = 4;

const TCP_FIN: u8 = 0x01;
pub(crate) const TCP_PSH: u8 = 0x08;
const TCP_CWR: u8 = 0x80;

/// A frame cut from a GSO frame: its own headers, and a part of the original's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// All headers, and nothing else.
    pub head: Head,
    /// The offset of the payload in the original's payload, which begins behind the original's headers.
    pub payload_offset: u32,
    /// Bytes of payload, at least 1.
    pub payload_len: u32,
    /// The checksum that is left to the receiver; its field holds the pseudo-header's sum.
    pub csum: CsumPartial,
}

impl Segment {
    /// The segment's offload: a checksum.
    pub const fn offload(&self) -> Offload {
        Offload::with_csum(self.csum)
    }
}

/// The reason why a frame cannot be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GsoError {
    /// The offload does not describe a GSO frame.
    #[error("the frame is not a GSO frame")]
    NotGso,
    /// There is no Ethernet header.
    #[error(transparent)]
    Headers(#[from] ParseError),
    /// The offload was checked against another head.
    #[error("the headers changed after the offload was checked")]
    OtherHeaders,
    /// The headers do not fit in a head, as with many IPv6 extension headers.
    #[error("headers of {hdr_len} bytes do not fit in a head of {head_len}")]
    HeadersExceedHead {
        /// Bytes of the headers.
        hdr_len: u16,
        /// Bytes in the head.
        head_len: usize,
    },
    /// The frame ends with its headers.
    #[error("a frame of {frame_len} bytes has no payload after {hdr_len} bytes of headers")]
    NoPayload {
        /// Bytes of the headers.
        hdr_len: u16,
        /// Bytes of the frame.
        frame_len: u32,
    },
    /// A segment is longer than IP's length field allows.
    #[error("a segment's IP length of {len} exceeds 65535")]
    SegmentTooLong {
        /// IPv4's total or IPv6's payload length of a full segment.
        len: u32,
    },
    /// The segments are so small that one frame would become too many of them.
    #[error("{segments} segments of one frame exceed {GSO_SEGMENTS_MAX}")]
    TooManySegments {
        /// The number of segments.
        segments: u32,
    },
}

/// An iterator that cuts one GSO frame into segments, in order. It gives their headers only: the caller moves the
/// payload.
#[derive(Clone, Debug)]
pub struct Segmenter {
    /// The original's headers.
    template: Head,
    network: L3,
    transport: L4,
    /// The offset of the transport header, and of its checksum.
    csum: CsumPartial,
    /// The pseudo-header's sum without a length.
    pseudo: Sum,
    /// Bytes of the original's payload.
    payload_len: u32,
    /// Most bytes of payload in a segment.
    mss: u32,
    /// Bytes of payload in the segments so far.
    done: u32,
    /// The number of segments so far.
    index: u16,
}

/// The fields of the network header that differ between segments. `offset` is the header's own.
#[derive(Clone, Copy, Debug)]
enum L3 {
    Ipv4 { offset: usize, header_len: usize, id: u16 },
    Ipv6 { offset: usize },
}

/// The kind of the transport header, with its offset.
#[derive(Clone, Copy, Debug)]
enum L4 {
    Tcp { offset: usize, seq: u32, flags: u8 },
    Udp { offset: usize },
}

const _: () = assert!(GSO_SEGMENTS_MAX <= u16::MAX as u32);

impl Segmenter {
    /// Prepares to cut the frame of `frame_len` bytes that starts with `head`. The length in its IP header is ignored:
    /// some drivers leave that field to the device.
    ///
    /// # Errors
    /// [`GsoError`] if `offload` does not describe the frame, if its headers do not fit in `head`, or if its segments
    /// would be too long or too many.
    pub fn new(head: &Head, offload: &Offload, frame_len: u32) -> Result<Segmenter, GsoError> {
        let gso = offload.gso().ok_or(GsoError::NotGso)?;
        let layers = Layers::parse(head.as_slice())?;
        let (csum, hdr_len) = match (transport_csum(&layers), layers.headers_len()) {
            (Some(csum), Some(hdr_len)) if gso.kind.agrees_with(&layers) => (csum, hdr_len),
            _ => return Err(GsoError::OtherHeaders),
        };
        if hdr_len != gso.hdr_len || offload.csum() != Some(csum) {
            return Err(GsoError::OtherHeaders);
        }
        if usize::from(hdr_len) > head.len() {
            return Err(GsoError::HeadersExceedHead { hdr_len, head_len: head.len() });
        }
        let payload_len = frame_len
            .checked_sub(u32::from(hdr_len))
            .filter(|len| *len > 0)
            .ok_or(GsoError::NoPayload { hdr_len, frame_len })?;
        let mss = u32::from(gso.size.max(1));
        let segments = gso.segments(frame_len);
        if segments > GSO_SEGMENTS_MAX {
            return Err(GsoError::TooManySegments { segments });
        }

        let mut template = *head;
        template.truncate(usize::from(hdr_len));
        let bytes = template.as_slice();
        let network = L3::read(&layers, bytes).ok_or(GsoError::OtherHeaders)?;
        let transport = L4::read(&layers, bytes).ok_or(GsoError::OtherHeaders)?;
        let field = be16_at(bytes, csum.field()).ok_or(GsoError::OtherHeaders)?;
        let segmenter = Segmenter {
            pseudo: without_len(field, frame_len - u32::from(csum.start)),
            template,
            network,
            transport,
            csum,
            payload_len,
            mss,
            done: 0,
            index: 0,
        };
        segmenter
            .network
            .len_field(hdr_len, mss.min(payload_len))
            .map_err(|len| GsoError::SegmentTooLong { len })?;
        Ok(segmenter)
    }

    /// The number of segments of the frame, at least 1 and at most [`GSO_SEGMENTS_MAX`].
    pub fn segments(&self) -> u32 {
        self.payload_len.div_ceil(self.mss)
    }

    /// The headers of the segment with `len` bytes of payload from `done` on. Every field lies in the template, since
    /// `new` has read each: the result is never `None`.
    fn head(&self, len: u32) -> Option<Head> {
        let mut head = self.template;
        let hdr_len = u16::try_from(head.len()).ok()?;
        let l4_len = u32::from(hdr_len - self.csum.start) + len;
        let first = self.done == 0;
        let last = self.done + len == self.payload_len;
        let bytes = head.as_mut_slice();

        let l3_len = self.network.len_field(hdr_len, len).ok()?;
        match self.network {
            L3::Ipv4 { offset, header_len, id } => {
                put(bytes, offset + IPV4_TOTAL_LEN_OFFSET, l3_len.to_be_bytes())?;
                let id = id.wrapping_add(self.index);
                put(bytes, offset + IPV4_ID_OFFSET, id.to_be_bytes())?;
                let checksum = ipv4_header_checksum(bytes.get(offset..offset + header_len)?);
                put(bytes, offset + IPV4_CSUM_OFFSET, checksum.to_be_bytes())?;
            }
            L3::Ipv6 { offset } => {
                put(bytes, offset + IPV6_PAYLOAD_LEN_OFFSET, l3_len.to_be_bytes())?;
            }
        }
        match self.transport {
            L4::Tcp { offset, seq, flags } => {
                let seq = seq.wrapping_add(self.done);
                put(bytes, offset + TCP_SEQ_OFFSET, seq.to_be_bytes())?;
                let not_first = if first { 0 } else { TCP_CWR };
                let not_last = if last { 0 } else { TCP_FIN | TCP_PSH };
                put(bytes, offset + TCP_FLAGS_OFFSET, [flags & !not_first & !not_last])?;
            }
            L4::Udp { offset } => {
                let udp_len = u16::try_from(l4_len).ok()?;
                put(bytes, offset + UDP_LEN_OFFSET, udp_len.to_be_bytes())?;
            }
        }
        let mut pseudo = self.pseudo;
        pseudo.add_u32(l4_len);
        put(bytes, self.csum.field(), pseudo.folded().to_be_bytes())?;
        Some(head)
    }
}

impl Iterator for Segmenter {
    type Item = Segment;

    fn next(&mut self) -> Option<Segment> {
        let payload_len = self.mss.min(self.payload_len - self.done);
        if payload_len == 0 {
            return None;
        }
        let segment = Segment {
            head: self.head(payload_len)?,
            payload_offset: self.done,
            payload_len,
            csum: self.csum,
        };
        self.done += payload_len;
        self.index = self.index.wrapping_add(1);
        Some(segment)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = (self.payload_len - self.done).div_ceil(self.mss) as usize;
        (left, Some(left))
    }
}

/// The pseudo-header's sum `field` minus the length `l4_len` in it (RFC 1624: adding the complement subtracts). The
/// sender's sum, unlike the addresses, is also right behind an IPv6 routing header, where it covers the last
/// destination.
fn without_len(field: u16, l4_len: u32) -> Sum {
    let mut sum = Sum::new();
    sum.add_u16(field);
    sum.add_u32(!l4_len);
    sum
}

impl L3 {
    fn read(layers: &Layers, head: &[u8]) -> Option<L3> {
        let offset = usize::from(layers.l3_offset());
        match layers.network {
            Network::Ipv4(ip) => Some(L3::Ipv4 {
                offset,
                header_len: usize::from(ip.header_len),
                id: be16_at(head, offset + IPV4_ID_OFFSET)?,
            }),
            Network::Ipv6(_) => Some(L3::Ipv6 { offset }),
            Network::Other => None,
        }
    }

    /// The length field of a segment with `hdr_len` bytes of headers and `payload_len` of payload; the length itself as
    /// the error if it does not fit.
    fn len_field(self, hdr_len: u16, payload_len: u32) -> Result<u16, u32> {
        let not_counted = match self {
            L3::Ipv4 { offset, .. } => offset,
            L3::Ipv6 { offset } => offset + usize::from(IPV6_HEADER_LEN),
        };
        let len = u32::from(hdr_len) + payload_len - not_counted as u32;
        u16::try_from(len).map_err(|_| len)
    }
}

impl L4 {
    fn read(layers: &Layers, head: &[u8]) -> Option<L4> {
        match layers.transport {
            Transport::Tcp { offset, .. } => {
                let offset = usize::from(offset);
                Some(L4::Tcp {
                    offset,
                    seq: be32_at(head, offset + TCP_SEQ_OFFSET)?,
                    flags: u8_at(head, offset + TCP_FLAGS_OFFSET)?,
                })
            }
            Transport::Udp { offset, .. } => Some(L4::Udp { offset: usize::from(offset) }),
            Transport::Other => None,
        }
    }
}

#[cfg(test)]
mod tests;
