//! Ethernet frames, as bytes.

/// An Ethernet address.
pub type Mac = [u8; 6];

/// The broadcast address.
pub const BROADCAST: Mac = [0xff; 6];
/// IEEE's ethertype for experiments.
pub const EXPERIMENTAL: u16 = 0x88b5;
/// Bytes of the virtio-net header.
pub const HEADER_LEN: usize = 12;

/// A frame of `len` bytes from the Ethernet header on.
pub fn frame(to: Mac, from: Mac, ethertype: u16, len: usize) -> Vec<u8> {
    let mut bytes = to.to_vec();
    bytes.extend(from);
    bytes.extend(ethertype.to_be_bytes());
    bytes.resize(len, 0x5a);
    bytes
}

/// A frame with tags, each an ethertype and a VLAN ID.
pub fn tagged(to: Mac, from: Mac, tags: &[(u16, u16)], len: usize) -> Vec<u8> {
    let mut bytes = to.to_vec();
    bytes.extend(from);
    for (ethertype, id) in tags {
        bytes.extend(ethertype.to_be_bytes());
        bytes.extend(id.to_be_bytes());
    }
    bytes.extend(EXPERIMENTAL.to_be_bytes());
    bytes.resize(len, 0x5a);
    bytes
}

/// A frame with TCP over IPv4 and a payload, `len` bytes in all.
pub fn tcp(to: Mac, from: Mac, len: usize) -> Vec<u8> {
    let mut bytes = frame(to, from, 0x0800, 14);
    let ip_len = u16::try_from(len.saturating_sub(14)).unwrap_or(u16::MAX);
    bytes.extend([0x45, 0]);
    bytes.extend(ip_len.to_be_bytes());
    bytes.extend([0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes.extend([0x13, 0x88, 0x13, 0x89, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0x20, 0, 0, 0, 0, 0]);
    bytes.resize(len, 0x5a);
    bytes
}

/// A virtio-net header (virtio 1.2 §5.1.6).
#[derive(Clone, Copy, Debug, Default)]
pub struct Header {
    /// `VIRTIO_NET_HDR_F_*`
    pub flags: u8,
    /// `VIRTIO_NET_HDR_GSO_*`
    pub gso: u8,
    /// Bytes of headers, as declared by the driver.
    pub header_len: u16,
    /// Bytes of a segment's payload.
    pub gso_size: u16,
    /// The offset at which the checksummed part begins.
    pub csum_start: u16,
    /// The offset of the checksum field, from `csum_start` on.
    pub csum_offset: u16,
}

impl Header {
    /// The header of a packet of [`tcp`] that must be cut into segments of `gso_size` bytes.
    pub fn tso(gso_size: u16) -> Self {
        Self { flags: 1, gso: 1, header_len: 54, gso_size, csum_start: 34, csum_offset: 16 }
    }

    /// The header as bytes.
    pub fn bytes(self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        (bytes[0], bytes[1]) = (self.flags, self.gso);
        let words = [self.header_len, self.gso_size, self.csum_start, self.csum_offset];
        for (at, word) in words.into_iter().enumerate() {
            bytes[2 + 2 * at..4 + 2 * at].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}
