//! Frames of tests. Checksums are left out: nobody here looks at them.

use std::net::IpAddr;

pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const RST: u8 = 4;
pub(crate) const ACK: u8 = 16;

pub(crate) fn ip(src: &str, dst: &str, protocol: u8, hops: u8, payload: &[u8]) -> Vec<u8> {
    let (src, dst): (IpAddr, IpAddr) = (src.parse().unwrap(), dst.parse().unwrap());
    let mut frame = vec![2; 12];
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let len = (20 + payload.len() as u16).to_be_bytes();
            frame.extend([8, 0, 0x45, 0, len[0], len[1], 0, 7, 0, 0, hops, protocol, 0, 0]);
            frame.extend(src.octets().iter().chain(&dst.octets()));
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let len = (payload.len() as u16).to_be_bytes();
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, len[0], len[1], protocol, hops]);
            frame.extend(src.octets().iter().chain(&dst.octets()));
        }
        _ => panic!("two families"),
    }
    frame.extend(payload);
    frame
}

pub(crate) fn tcp(src: &str, dst: &str, sport: u16, dport: u16, flags: u8) -> Vec<u8> {
    let mut segment = vec![0; 20];
    segment[..2].copy_from_slice(&sport.to_be_bytes());
    segment[2..4].copy_from_slice(&dport.to_be_bytes());
    (segment[12], segment[13]) = (0x50, flags);
    ip(src, dst, 6, 64, &segment)
}

pub(crate) fn udp(src: &str, dst: &str, sport: u16, dport: u16) -> Vec<u8> {
    let mut datagram = vec![0; 20];
    datagram[..2].copy_from_slice(&sport.to_be_bytes());
    datagram[2..4].copy_from_slice(&dport.to_be_bytes());
    ip(src, dst, 17, 64, &datagram)
}

fn is_v6(address: &str) -> bool {
    address.contains(':')
}

pub(crate) fn ping(src: &str, dst: &str, id: u16, asks: bool) -> Vec<u8> {
    let (protocol, kind) = match (is_v6(src), asks) {
        (false, true) => (1, 8),
        (false, false) => (1, 0),
        (true, true) => (58, 128),
        (true, false) => (58, 129),
    };
    let [id0, id1] = id.to_be_bytes();
    ip(src, dst, protocol, 64, &[kind, 0, 0, 0, id0, id1, 0, 1])
}

pub(crate) fn icmp6(src: &str, dst: &str, kind: u8, hops: u8) -> Vec<u8> {
    ip(src, dst, 58, hops, &[kind, 0, 0, 0, 0, 0, 0, 0])
}

/// An error about a frame's packet, which is quoted with as little as RFC 792 asks for.
pub(crate) fn icmp_error(src: &str, dst: &str, about: &[u8]) -> Vec<u8> {
    let (protocol, kind, quoted) = if is_v6(src) { (58, 1, 48) } else { (1, 3, 28) };
    let mut message = vec![kind, 0, 0, 0, 0, 0, 0, 0];
    message.extend(&about[14..14 + quoted]);
    ip(src, dst, protocol, 64, &message)
}

/// A frame with a packet that may be changed.
pub(crate) struct Packet(pub Vec<u8>);

impl Packet {
    fn header_len(&self) -> usize {
        if self.0[12] == 8 { 34 } else { 54 }
    }

    fn set_len(&mut self) {
        let v4 = self.0[12] == 8;
        let len = (self.0.len() - if v4 { 14 } else { 54 }) as u16;
        let at = if v4 { 16 } else { 18 };
        self.0[at..at + 2].copy_from_slice(&len.to_be_bytes());
    }

    /// The packet with this number of bytes behind the IP header.
    pub fn padded(mut self, len: usize) -> Self {
        self.0.resize(self.header_len() + len, 0);
        self.set_len();
        self
    }

    /// An IPv6 packet with hop-by-hop and destination options.
    pub fn extended(mut self) -> Self {
        let next = std::mem::replace(&mut self.0[20], 0);
        let options = [[60, 0, 1, 4, 0, 0, 0, 0], [next, 0, 1, 4, 0, 0, 0, 0]].concat();
        self.0.splice(54..54, options);
        self.set_len();
        self
    }

    /// The packet's bytes `from..to` as a fragment.
    pub fn fragment(&self, id: u8, from: usize, to: usize, more: bool) -> Self {
        let header_len = self.header_len();
        let mut frame = self.0[..header_len].to_vec();
        let mut payload = self.0[header_len..].to_vec();
        payload.resize(payload.len().max(to), 0);
        if header_len == 34 {
            let field = ((from as u16 / 8) | (u16::from(more) << 13)).to_be_bytes();
            frame[18..22].copy_from_slice(&[0, id, field[0], field[1]]);
        } else {
            let field = (from as u16 | u16::from(more)).to_be_bytes();
            let next = std::mem::replace(&mut frame[20], 44);
            frame.extend([next, 0, field[0], field[1], 0, 0, 0, id]);
        }
        frame.extend(&payload[from..to]);
        let mut part = Self(frame);
        part.set_len();
        part
    }
}
