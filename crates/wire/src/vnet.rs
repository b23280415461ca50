//! `struct virtio_net_hdr`, the header in front of every frame of a virtio-net ring (virtio 1.2 §5.1.6).

/// `flags`: the checksum from `csum_start` on is left to the receiver (`VIRTIO_NET_HDR_F_NEEDS_CSUM`).
pub const F_NEEDS_CSUM: u8 = 1;
/// `flags`: the checksum was found right (`VIRTIO_NET_HDR_F_DATA_VALID`); only a device may set it.
pub const F_DATA_VALID: u8 = 2;

/// `gso_type`: not a GSO frame.
pub const GSO_NONE: u8 = 0;
/// `gso_type`: TCP over IPv4.
pub const GSO_TCPV4: u8 = 1;
/// `gso_type`: UDP to be fragmented by IP (UFO). weir never offers it.
pub const GSO_UDP: u8 = 3;
/// `gso_type`: TCP over IPv6.
pub const GSO_TCPV6: u8 = 4;
/// `gso_type`: UDP to be cut into datagrams (USO), over IPv4 or IPv6.
pub const GSO_UDP_L4: u8 = 5;
/// Bit of `gso_type`: the TCP segment has ECN set (CWR on the first segment only).
pub const GSO_ECN: u8 = 0x80;

/// `struct virtio_net_hdr_v1` as the peer wrote it, unchecked.
///
/// The header's `num_buffers` is always there, because weir requires `VIRTIO_F_VERSION_1` (§5.1.6.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VnetHdr {
    /// `F_*` bits.
    pub flags: u8,
    /// One of `GSO_*`, possibly with [`GSO_ECN`].
    pub gso_type: u8,
    /// Bytes of all headers of a GSO frame; a hint only (§5.1.6.2.2).
    pub hdr_len: u16,
    /// Payload bytes of each segment of a GSO frame.
    pub gso_size: u16,
    /// The offset at which the sum starts, from the frame's first byte.
    pub csum_start: u16,
    /// The offset of the checksum field, from `csum_start`.
    pub csum_offset: u16,
    /// Descriptor chains the frame spans; only from device to driver with `VIRTIO_NET_F_MRG_RXBUF`.
    pub num_buffers: u16,
}

impl VnetHdr {
    /// Bytes of the header in a ring.
    pub const LEN: usize = 12;

    /// Reads the little-endian header of a ring.
    pub const fn from_bytes(bytes: &[u8; VnetHdr::LEN]) -> VnetHdr {
        let [flags, gso_type, h0, h1, g0, g1, s0, s1, o0, o1, n0, n1] = *bytes;
        VnetHdr {
            flags,
            gso_type,
            hdr_len: u16::from_le_bytes([h0, h1]),
            gso_size: u16::from_le_bytes([g0, g1]),
            csum_start: u16::from_le_bytes([s0, s1]),
            csum_offset: u16::from_le_bytes([o0, o1]),
            num_buffers: u16::from_le_bytes([n0, n1]),
        }
    }

    /// The little-endian header of a ring.
    pub const fn to_bytes(&self) -> [u8; VnetHdr::LEN] {
        let [h0, h1] = self.hdr_len.to_le_bytes();
        let [g0, g1] = self.gso_size.to_le_bytes();
        let [s0, s1] = self.csum_start.to_le_bytes();
        let [o0, o1] = self.csum_offset.to_le_bytes();
        let [n0, n1] = self.num_buffers.to_le_bytes();
        [self.flags, self.gso_type, h0, h1, g0, g1, s0, s1, o0, o1, n0, n1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use virtio_bindings::virtio_net as linux;

    #[test]
    fn spec_5_1_6_fields_are_little_endian_and_in_order() {
        let bytes = [1, 0x81, 0x36, 0x01, 0xb4, 0x05, 0x22, 0x02, 0x10, 0x03, 0x02, 0x04];
        let hdr = VnetHdr::from_bytes(&bytes);
        assert_eq!(
            hdr,
            VnetHdr {
                flags: F_NEEDS_CSUM,
                gso_type: GSO_TCPV4 | GSO_ECN,
                hdr_len: 0x136,
                gso_size: 1460,
                csum_start: 0x222,
                csum_offset: 0x310,
                num_buffers: 0x402,
            }
        );
        assert_eq!(hdr.to_bytes(), bytes);
    }

    #[test]
    fn constants_are_those_of_linux() {
        assert_eq!(u32::from(F_NEEDS_CSUM), linux::VIRTIO_NET_HDR_F_NEEDS_CSUM);
        assert_eq!(u32::from(F_DATA_VALID), linux::VIRTIO_NET_HDR_F_DATA_VALID);
        assert_eq!(u32::from(GSO_NONE), linux::VIRTIO_NET_HDR_GSO_NONE);
        assert_eq!(u32::from(GSO_TCPV4), linux::VIRTIO_NET_HDR_GSO_TCPV4);
        assert_eq!(u32::from(GSO_UDP), linux::VIRTIO_NET_HDR_GSO_UDP);
        assert_eq!(u32::from(GSO_TCPV6), linux::VIRTIO_NET_HDR_GSO_TCPV6);
        assert_eq!(u32::from(GSO_UDP_L4), linux::VIRTIO_NET_HDR_GSO_UDP_L4);
        assert_eq!(u32::from(GSO_ECN), linux::VIRTIO_NET_HDR_GSO_ECN);
        assert_eq!(VnetHdr::LEN, size_of::<linux::virtio_net_hdr_v1>());
    }
}
