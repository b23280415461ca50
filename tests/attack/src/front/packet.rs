//! Packets of IPv4, and datagrams of IPv6, in frames, as bytes.

use super::frame::{Mac, frame};

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

/// The IPv4 packet from its header on, with a valid checksum of the header.
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
fn tcp(from: End, to: End, flags: u8, payload: &[u8]) -> Vec<u8> {
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
    framed(from, to, &ipv4(from, to, TCP, &tcp(from, to, flags, payload)))
}

/// A frame with a UDP datagram.
pub fn datagram(from: End, to: End, payload: &[u8]) -> Vec<u8> {
    framed(from, to, &ipv4(from, to, UDP, &udp(from, to, payload)))
}

/// A frame with a fragment of a datagram: `payload` begins there, in units of 8 bytes.
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
    ipv4(from, to, TCP, &tcp(from, to, flags, &[]))
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
