//! Ethernet frames, as bytes.

/// An address.
pub type Mac = [u8; 6];

/// Everybody.
pub const BROADCAST: Mac = [0xff; 6];
/// IEEE's number for experiments.
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

/// The same behind tags, each an ethertype and a VLAN id.
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

/// TCP over IPv4 with a payload, `len` bytes in all.
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
    /// Bytes of headers, as the driver says.
    pub header_len: u16,
    /// Bytes of a segment's payload.
    pub gso_size: u16,
    /// Where the checksum begins.
    pub csum_start: u16,
    /// Where it goes, from there on.
    pub csum_offset: u16,
}

impl Header {
    /// Of [`tcp`], to be cut into segments of `gso_size` bytes.
    pub fn tso(gso_size: u16) -> Self {
        Self { flags: 1, gso: 1, header_len: 54, gso_size, csum_start: 34, csum_offset: 16 }
    }

    /// Its bytes.
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
