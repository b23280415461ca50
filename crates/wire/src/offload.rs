//! The checked offloads of a `virtio_net_hdr`, and the capabilities of receivers.

use std::fmt;
use std::ops::BitOr;

use crate::ethernet::{Ethernet, HEADER_LEN, ParseError, ethertype};
use crate::layers::{
    IPV4_HEADER_LEN_MIN, IPV6_HEADER_LEN, Layers, Network, TCP_HEADER_LEN_MIN, Transport, protocol,
};
use crate::vlan::TAG_LEN;
use crate::vnet::{self, VnetHdr};

/// Bytes of a tag, in the type of offsets.
const TAG: u16 = TAG_LEN as u16;
/// The offset of the checksum in a TCP header.
pub(crate) const TCP_CSUM_OFFSET: u16 = 16;
/// The offset of the checksum in a UDP header.
pub(crate) const UDP_CSUM_OFFSET: u16 = 6;

/// A checksum that is left to the receiver. Its field holds the pseudo-header's folded sum, so that
/// the complement of the sum from `start` to the frame's end is the checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CsumPartial {
    /// The offset at which the sum starts, from the frame's first byte.
    pub start: u16,
    /// The offset of the checksum field, from `start`.
    pub offset: u16,
}

impl CsumPartial {
    /// The offset of the checksum field, from the frame's first byte.
    pub fn field(&self) -> usize {
        usize::from(self.start) + usize::from(self.offset)
    }
}

/// The kind of a GSO frame's segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GsoKind {
    /// TCP over IPv4 (`VIRTIO_NET_HDR_GSO_TCPV4`).
    Tcp4,
    /// TCP over IPv6 (`VIRTIO_NET_HDR_GSO_TCPV6`).
    Tcp6,
    /// UDP datagrams over IPv4 or IPv6 (`VIRTIO_NET_HDR_GSO_UDP_L4`).
    Udp,
}

/// The parameters for cutting a GSO frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gso {
    /// The kind of the frame's segments.
    pub kind: GsoKind,
    /// True if CWR belongs on the first segment only.
    pub ecn: bool,
    /// Payload bytes of each segment except the last (MSS), at least 1. If the payload is no longer than this, the
    /// frame is one segment.
    pub size: u16,
    /// Bytes of all headers, including a tag, as found in the headers.
    pub hdr_len: u16,
}

/// The offloads that a frame needs from its receiver. Values made by [`Offload::from_vnet`] lie within the frame
/// against which they were checked, and agree with its headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    csum: Option<CsumPartial>,
    gso: Option<Gso>,
    data_valid: bool,
}

/// The reason why a header is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OffloadError {
    /// There is no Ethernet header.
    #[error(transparent)]
    Headers(#[from] ParseError),
    /// The checksum field is beyond the frame, or its start is so high (65532 or more) that a tag would overflow it.
    #[error(
        "csum_start {start} + csum_offset {offset} is beyond the frame of {frame_len} bytes or \
         beyond what a start can be"
    )]
    CsumBeyondFrame {
        /// `csum_start`.
        start: u16,
        /// `csum_offset`.
        offset: u16,
        /// Bytes of the frame.
        frame_len: u32,
    },
    /// The checksum could overwrite addresses that were already checked.
    #[error(
        "csum_start {start} is inside the Ethernet and IP headers of at least {headers_len} bytes"
    )]
    CsumInHeaders {
        /// `csum_start`.
        start: u16,
        /// The smallest length of the headers, which the checksum must not cover.
        headers_len: u16,
    },
    /// A GSO type that does not exist or that weir does not offer, UFO among them.
    #[error("gso_type {gso_type:#04x} was not offered")]
    GsoType {
        /// `gso_type` with its ECN bit.
        gso_type: u8,
    },
    /// GSO without `NEEDS_CSUM` (§5.1.6.2.1).
    #[error("gso_type {gso_type:#04x} without NEEDS_CSUM")]
    GsoWithoutCsum {
        /// `gso_type`.
        gso_type: u8,
    },
    /// A segment size of zero.
    #[error("gso_size is 0")]
    GsoSizeZero,
    /// The frame's headers do not fit the GSO type.
    #[error("gso_type {gso_type:#04x} on a frame with other headers, or a fragment")]
    GsoProtocol {
        /// `gso_type`.
        gso_type: u8,
    },
    /// The checksum of a GSO frame is not that of its transport header.
    #[error(
        "csum_start {start} and csum_offset {offset} of a GSO frame are not those of its transport \
         header, {need_start} and {need_offset}"
    )]
    GsoCsum {
        /// `csum_start`.
        start: u16,
        /// `csum_offset`.
        offset: u16,
        /// The offset of the transport header.
        need_start: u16,
        /// The offset of the transport header's checksum.
        need_offset: u16,
    },
    /// A GSO frame that ends with its headers, or inside them.
    #[error(
        "a GSO frame of {frame_len} bytes has {hdr_len} bytes of headers, so it has no payload"
    )]
    GsoWithoutPayload {
        /// Bytes of the headers.
        hdr_len: u16,
        /// Bytes of the frame.
        frame_len: u32,
    },
}

impl CsumPartial {
    /// The partial checksum of the same frame after its tag was removed.
    pub fn tag_stripped(self) -> CsumPartial {
        CsumPartial { start: self.start.saturating_sub(TAG), ..self }
    }

    /// True if it belongs to TCP or UDP over IPv4 without a tag, options and fragments, as most do.
    #[inline]
    fn is_of_plain_ipv4(self, head: &[u8]) -> bool {
        const L4: usize = HEADER_LEN + IPV4_HEADER_LEN_MIN as usize;
        let Some(head) = head.first_chunk::<{ L4 + TCP_HEADER_LEN_MIN as usize }>() else {
            return false;
        };
        let [.., t0, t1, version, _, _, _, _, _, frag0, frag1, _, protocol] =
            head.first_chunk::<{ HEADER_LEN + 10 }>().copied().unwrap_or_default();
        let offset = match protocol {
            protocol::TCP if head[L4 + 12] >= 0x50 => TCP_CSUM_OFFSET,
            protocol::UDP => UDP_CSUM_OFFSET,
            _ => return false,
        };
        [t0, t1] == ethertype::IPV4.to_be_bytes()
            && (version, [frag0 & 0x3f, frag1]) == (0x45, [0, 0])
            && (usize::from(self.start), self.offset) == (L4, offset)
    }

    #[inline(never)]
    fn is_of_transport(self, head: &[u8]) -> bool {
        Layers::parse(head).is_ok_and(|layers| transport_csum(&layers) == Some(self))
    }

    fn checked(hdr: &VnetHdr, head: &[u8], frame_len: u32) -> Result<CsumPartial, OffloadError> {
        let csum = CsumPartial { start: hdr.csum_start, offset: hdr.csum_offset };
        let end = u32::from(csum.start) + u32::from(csum.offset) + 2;
        if end > frame_len || csum.start > u16::MAX - TAG {
            return Err(OffloadError::CsumBeyondFrame {
                start: csum.start,
                offset: csum.offset,
                frame_len,
            });
        }
        let ethernet = Ethernet::parse(head)?;
        let headers_len = ethernet.header_len
            + match ethernet.ethertype {
                ethertype::IPV4 => IPV4_HEADER_LEN_MIN,
                ethertype::IPV6 => IPV6_HEADER_LEN,
                _ => 0,
            };
        if csum.start < headers_len {
            return Err(OffloadError::CsumInHeaders { start: csum.start, headers_len });
        }
        Ok(csum)
    }
}

impl GsoKind {
    /// True if the headers fit this kind of frame.
    pub fn agrees_with(self, layers: &Layers) -> bool {
        matches!(
            (self, layers.network, layers.transport),
            (GsoKind::Tcp4, Network::Ipv4(_), Transport::Tcp { .. })
                | (GsoKind::Tcp6, Network::Ipv6(_), Transport::Tcp { .. })
                | (GsoKind::Udp, Network::Ipv4(_) | Network::Ipv6(_), Transport::Udp { .. })
        )
    }

    fn gso_type(self) -> u8 {
        match self {
            GsoKind::Tcp4 => vnet::GSO_TCPV4,
            GsoKind::Tcp6 => vnet::GSO_TCPV6,
            GsoKind::Udp => vnet::GSO_UDP_L4,
        }
    }
}

impl Gso {
    /// The number of packets that a frame of `frame_len` bytes becomes on a wire, at least 1.
    pub fn segments(&self, frame_len: u32) -> u32 {
        let payload = frame_len.saturating_sub(self.hdr_len.into());
        payload.div_ceil(u32::from(self.size).max(1)).max(1)
    }

    fn checked(
        hdr: &VnetHdr,
        csum: Option<CsumPartial>,
        head: &[u8],
        frame_len: u32,
    ) -> Result<Gso, OffloadError> {
        let gso_type = hdr.gso_type;
        let ecn = gso_type & vnet::GSO_ECN != 0;
        let kind = match (gso_type & !vnet::GSO_ECN, ecn) {
            (vnet::GSO_TCPV4, _) => GsoKind::Tcp4,
            (vnet::GSO_TCPV6, _) => GsoKind::Tcp6,
            (vnet::GSO_UDP_L4, false) => GsoKind::Udp,
            _ => return Err(OffloadError::GsoType { gso_type }),
        };
        let csum = csum.ok_or(OffloadError::GsoWithoutCsum { gso_type })?;
        if hdr.gso_size == 0 {
            return Err(OffloadError::GsoSizeZero);
        }
        let layers = Layers::parse(head)?;
        let (need, hdr_len) = match (transport_csum(&layers), layers.headers_len()) {
            (Some(need), Some(hdr_len)) if kind.agrees_with(&layers) => (need, hdr_len),
            _ => return Err(OffloadError::GsoProtocol { gso_type }),
        };
        if csum != need {
            return Err(OffloadError::GsoCsum {
                start: csum.start,
                offset: csum.offset,
                need_start: need.start,
                need_offset: need.offset,
            });
        }
        if u32::from(hdr_len) >= frame_len {
            return Err(OffloadError::GsoWithoutPayload { hdr_len, frame_len });
        }
        Ok(Gso { kind, ecn, size: hdr.gso_size, hdr_len })
    }
}

/// The place of the TCP or UDP checksum in a frame with these headers.
pub fn transport_csum(layers: &Layers) -> Option<CsumPartial> {
    match layers.transport {
        Transport::Tcp { offset, .. } => {
            Some(CsumPartial { start: offset, offset: TCP_CSUM_OFFSET })
        }
        Transport::Udp { offset, .. } => {
            Some(CsumPartial { start: offset, offset: UDP_CSUM_OFFSET })
        }
        Transport::Other => None,
    }
}

impl Offload {
    /// No offload: every header field and checksum has its final value.
    pub const NONE: Offload = Offload { csum: None, gso: None, data_valid: false };

    /// Checks the header in front of a frame of `frame_len` bytes that starts with `head`. A frame without offloads
    /// costs two comparisons; IP and TCP/UDP headers are parsed only for GSO.
    ///
    /// `hdr_len` is ignored (§5.1.6.2.2 calls it a hint), and so are unknown flags, as §5.1.6.2.2 demands.
    /// `DATA_VALID` is trusted. A *driver* must not set it: [`Offload::without_data_valid`]. The caller
    /// continues with [`Offload::take_early`].
    ///
    /// # Errors
    /// [`OffloadError`], which names the wrong field.
    pub fn from_vnet(hdr: &VnetHdr, head: &[u8], frame_len: u32) -> Result<Offload, OffloadError> {
        let csum = match hdr.flags & vnet::F_NEEDS_CSUM {
            0 => None,
            _ => Some(CsumPartial::checked(hdr, head, frame_len)?),
        };
        let gso = match hdr.gso_type {
            vnet::GSO_NONE => None,
            _ => Some(Gso::checked(hdr, csum, head, frame_len)?),
        };
        let data_valid = csum.is_none() && hdr.flags & vnet::F_DATA_VALID != 0;
        Ok(Offload { csum, gso, data_valid })
    }

    /// A frame, not GSO, whose checksum is left to the receiver.
    pub const fn with_csum(csum: CsumPartial) -> Offload {
        Offload { csum: Some(csum), gso: None, data_valid: false }
    }

    /// A GSO frame whose `gso` and `csum` agree with its headers.
    pub(crate) const fn with_gso(csum: CsumPartial, gso: Gso) -> Offload {
        Offload { csum: Some(csum), gso: Some(gso), data_valid: false }
    }

    /// True if there is no offload, as in [`Offload::NONE`]: the header in front is all zero except for `num_buffers`.
    #[inline]
    pub const fn is_none(&self) -> bool {
        self.csum.is_none() && self.gso.is_none() && !self.data_valid
    }

    /// The checksum that is left to the receiver.
    pub const fn csum(&self) -> Option<CsumPartial> {
        self.csum
    }

    /// The parameters for cutting the frame; [`Offload::csum`] is then that of TCP or UDP.
    pub const fn gso(&self) -> Option<Gso> {
        self.gso
    }

    /// True if the receiver need not verify the checksum.
    pub const fn data_valid(&self) -> bool {
        self.data_valid
    }

    /// Without `DATA_VALID`, which only a device may set (§5.1.6.2.1).
    pub const fn without_data_valid(self) -> Offload {
        Offload { data_valid: false, ..self }
    }

    /// Takes out the checksum if it must be filled in before filters and guards see the frame that starts with `head`:
    /// a checksum that does not belong to the frame's own TCP or UDP header in `head`. Its field may lie in bytes that
    /// they read.
    #[inline]
    pub fn take_early(&mut self, head: &[u8]) -> Option<CsumPartial> {
        // `Gso::checked` has compared that of a GSO frame.
        let csum = self.csum.filter(|_| self.gso.is_none())?;
        if csum.is_of_plain_ipv4(head) || csum.is_of_transport(head) {
            return None;
        }
        self.csum.take()
    }

    /// The header to put in front of the frame. `num_buffers` is 1 unless the frame spans several chains
    /// (`VIRTIO_NET_F_MRG_RXBUF`), and 0 toward a device.
    pub fn to_vnet(&self, num_buffers: u16) -> VnetHdr {
        let mut hdr = VnetHdr { num_buffers, ..VnetHdr::default() };
        if let Some(csum) = self.csum {
            hdr.flags = vnet::F_NEEDS_CSUM;
            hdr.csum_start = csum.start;
            hdr.csum_offset = csum.offset;
        } else if self.data_valid {
            hdr.flags = vnet::F_DATA_VALID;
        }
        if let Some(gso) = self.gso {
            hdr.gso_type = gso.kind.gso_type() | if gso.ecn { vnet::GSO_ECN } else { 0 };
            hdr.gso_size = gso.size;
            hdr.hdr_len = gso.hdr_len;
        }
        hdr
    }

    /// The offload of the same frame after a tag was inserted in front of the network header.
    pub fn tag_inserted(self) -> Offload {
        self.moved(|offset| offset.saturating_add(TAG))
    }

    /// The offload of the same frame after its tag was removed.
    pub fn tag_stripped(self) -> Offload {
        self.moved(|offset| offset.saturating_sub(TAG))
    }

    fn moved(self, shift: impl Fn(u16) -> u16) -> Offload {
        Offload {
            csum: self.csum.map(|csum| CsumPartial { start: shift(csum.start), ..csum }),
            gso: self.gso.map(|gso| Gso { hdr_len: shift(gso.hdr_len), ..gso }),
            data_valid: self.data_valid,
        }
    }
}

/// The offloads that a receiver does itself: the `VIRTIO_NET_F_GUEST_*` features a driver has acknowledged, or the
/// `TUN_F_*` flags of a TAP.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct OffloadCaps(u8);

impl OffloadCaps {
    /// No offloads.
    pub const NONE: OffloadCaps = OffloadCaps(0);
    /// Partial checksums, and `DATA_VALID`. Every other offload requires it.
    pub const CSUM: OffloadCaps = OffloadCaps(1);
    /// TCP over IPv4.
    pub const TSO4: OffloadCaps = OffloadCaps(1 << 1);
    /// TCP over IPv6.
    pub const TSO6: OffloadCaps = OffloadCaps(1 << 2);
    /// TCP with ECN.
    pub const TSO_ECN: OffloadCaps = OffloadCaps(1 << 3);
    /// UDP datagrams, over both IPv4 and IPv6.
    pub const USO: OffloadCaps = OffloadCaps(1 << 4);

    const NAMES: [(OffloadCaps, &'static str); 5] = [
        (OffloadCaps::CSUM, "csum"),
        (OffloadCaps::TSO4, "tso4"),
        (OffloadCaps::TSO6, "tso6"),
        (OffloadCaps::TSO_ECN, "tso-ecn"),
        (OffloadCaps::USO, "uso"),
    ];

    /// The union of both sets.
    pub const fn union(self, other: OffloadCaps) -> OffloadCaps {
        OffloadCaps(self.0 | other.0)
    }

    /// True if all of `other` is in this set.
    pub const fn contains(self, other: OffloadCaps) -> bool {
        self.0 & other.0 == other.0
    }

    /// The work on a frame before this receiver can get it.
    pub fn accepts(self, offload: &Offload) -> Fit {
        match offload.gso {
            Some(gso) if !self.contains(OffloadCaps::needed_for(gso)) => Fit::NeedsSegments,
            None if offload.csum.is_some() && !self.contains(OffloadCaps::CSUM) => {
                Fit::NeedsChecksum
            }
            _ => Fit::AsIs,
        }
    }

    /// The offload without the hint that this receiver must not see: `DATA_VALID` is only for receivers with `CSUM`
    /// (§5.1.6.4.1).
    pub fn trim(self, offload: Offload) -> Offload {
        if self.contains(OffloadCaps::CSUM) { offload } else { offload.without_data_valid() }
    }

    /// True if this receiver takes GSO frames of this kind, without ECN.
    pub const fn takes(self, kind: GsoKind) -> bool {
        self.contains(OffloadCaps::needed_for_kind(kind))
    }

    const fn needed_for_kind(kind: GsoKind) -> OffloadCaps {
        let kind = match kind {
            GsoKind::Tcp4 => OffloadCaps::TSO4,
            GsoKind::Tcp6 => OffloadCaps::TSO6,
            GsoKind::Udp => OffloadCaps::USO,
        };
        kind.union(OffloadCaps::CSUM)
    }

    fn needed_for(gso: Gso) -> OffloadCaps {
        let ecn = if gso.ecn { OffloadCaps::TSO_ECN } else { OffloadCaps::NONE };
        OffloadCaps::needed_for_kind(gso.kind) | ecn
    }
}

impl BitOr for OffloadCaps {
    type Output = OffloadCaps;

    fn bitor(self, other: OffloadCaps) -> OffloadCaps {
        self.union(other)
    }
}

impl fmt::Display for OffloadCaps {
    /// The names with `+` between them, as in `csum+tso4`; `none` if there are none.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (cap, name) in OffloadCaps::NAMES {
            if self.contains(cap) {
                write!(out, "{separator}{name}")?;
                separator = "+";
            }
        }
        if separator.is_empty() { out.write_str("none") } else { Ok(()) }
    }
}

impl fmt::Debug for OffloadCaps {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "OffloadCaps({self})")
    }
}

/// The consequence of a receiver's capabilities for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// Deliver it with its offload.
    AsIs,
    /// Complete its checksum with [`fill_checksum`](crate::fill_checksum) first.
    NeedsChecksum,
    /// Cut it with [`Segmenter`](crate::Segmenter), then ask again for the segments.
    NeedsSegments,
}

#[cfg(test)]
mod tests;
