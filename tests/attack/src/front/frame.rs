//! Ethernet frames with packets of IPv4 and datagrams of IPv6, as bytes.

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

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// The Ethernet address.
    pub mac: Mac,
    /// The IPv4 address.
    pub ip: [u8; 4],
    /// The port.
    pub port: u16,
}

impl End {
    /// The same station at another port.
    pub fn at(self, port: u16) -> Self {
        Self { port, ..self }
    }
}

/// Flags of TCP.
pub const FIN: u8 = 1;
/// See [`FIN`].
pub const SYN: u8 = 2;
/// See [`FIN`].
pub const RST: u8 = 4;
/// See [`FIN`].
pub const ACK: u8 = 16;

/// Protocols.
pub const ICMP: u8 = 1;
/// See [`ICMP`].
pub const TCP: u8 = 6;
/// See [`ICMP`].
pub const UDP: u8 = 17;

/// The IPv4 packet with its header, whose checksum is valid.
pub fn ipv4(from: End, to: End, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let len = u16::try_from(20 + payload.len()).unwrap_or(u16::MAX);
    let mut bytes = vec![0x45, 0];
    bytes.extend(len.to_be_bytes());
    bytes.extend([0, 1, 0, 0, 64, protocol, 0, 0]);
    bytes.extend(from.ip);
    bytes.extend(to.ip);
    sum(&mut bytes);
    bytes.extend(payload);
    bytes
}

/// Sets the checksum of the IPv4 header with which `bytes` begin.
fn sum(bytes: &mut [u8]) {
    bytes[10..12].fill(0);
    let words =
        bytes[..20].chunks_exact(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    bytes[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

/// A frame with a packet.
pub fn framed(from: End, to: End, packet: &[u8]) -> Vec<u8> {
    let mut bytes = frame(to.mac, from.mac, 0x0800, 14);
    bytes.extend(packet);
    bytes.resize(bytes.len().max(60), 0);
    bytes
}

/// The bytes of a TCP segment.
fn tcp_segment(from: End, to: End, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = from.port.to_be_bytes().to_vec();
    bytes.extend(to.port.to_be_bytes());
    bytes.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags, 0x20, 0, 0, 0, 0, 0]);
    bytes.extend(payload);
    bytes
}

/// The bytes of a UDP datagram, without a checksum.
pub fn udp(from: End, to: End, payload: &[u8]) -> Vec<u8> {
    let mut bytes = from.port.to_be_bytes().to_vec();
    bytes.extend(to.port.to_be_bytes());
    bytes.extend(u16::try_from(8 + payload.len()).unwrap_or(u16::MAX).to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(payload);
    bytes
}

/// A frame with a TCP segment.
pub fn segment(from: End, to: End, flags: u8, payload: &[u8]) -> Vec<u8> {
    framed(from, to, &ipv4(from, to, TCP, &tcp_segment(from, to, flags, payload)))
}

/// A frame with a UDP datagram.
pub fn datagram(from: End, to: End, payload: &[u8]) -> Vec<u8> {
    framed(from, to, &ipv4(from, to, UDP, &udp(from, to, payload)))
}

/// A frame with a fragment of a datagram: `payload` begins at this offset, in units of 8 bytes.
pub fn fragment(from: End, to: End, id: u16, at: u16, more: bool, payload: &[u8]) -> Vec<u8> {
    let mut packet = ipv4(from, to, UDP, payload);
    packet[4..6].copy_from_slice(&id.to_be_bytes());
    let place = at | if more { 0x2000 } else { 0 };
    packet[6..8].copy_from_slice(&place.to_be_bytes());
    sum(&mut packet);
    framed(from, to, &packet)
}

/// A frame with an ICMP error that quotes a packet.
pub fn error(from: End, to: End, [kind, code]: [u8; 2], quoted: &[u8]) -> Vec<u8> {
    let mut message = vec![kind, code, 0, 0, 0, 0, 5, 0xdc];
    message.extend(quoted);
    framed(from, to, &ipv4(from, to, ICMP, &message))
}

/// The front of a TCP packet, as an ICMP error quotes it.
pub fn quoted(from: End, to: End, flags: u8) -> Vec<u8> {
    ipv4(from, to, TCP, &tcp_segment(from, to, flags, &[]))
}

/// One end of datagrams of IPv6: Ethernet address, address and port.
pub type End6 = (Mac, [u8; 16], u16);

/// A frame with a UDP datagram of IPv6, with its checksum.
pub fn datagram6(from: End6, to: End6, payload: &[u8]) -> Vec<u8> {
    let len = u16::try_from(8 + payload.len()).unwrap_or(u16::MAX);
    let mut udp = [from.2, to.2, len, 0].map(u16::to_be_bytes).concat();
    udp.extend(payload);
    let pseudo = [&from.1[..], &to.1, &u32::from(len).to_be_bytes(), &[0, 0, 0, UDP]].concat();
    let words = [&pseudo[..], &udp].concat();
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    let mut sum: u32 = words.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    udp[6..8].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    let mut bytes = frame(to.0, from.0, 0x86dd, 14);
    bytes.extend([0x60, 0, 0, 0]);
    bytes.extend(len.to_be_bytes());
    bytes.extend([UDP, 64]);
    bytes.extend([from.1, to.1].concat());
    bytes.extend(udp);
    bytes
}
