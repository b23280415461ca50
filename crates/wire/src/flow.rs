//! The RSS hash of a flow: Toeplitz over addresses and ports (virtio 1.2 §5.1.6.4.3, Microsoft
//! "RSS hashing functions").

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::layers::{Layers, Network, Ports, Transport};

/// Bytes of a key: 32 bits more than the longest input has.
pub const KEY_LEN: usize = 40;
/// Bytes of the longest input: two IPv6 addresses and two ports.
pub const INPUT_LEN_MAX: usize = 36;

const _: () = assert!(KEY_LEN == INPUT_LEN_MAX + 4);

/// The key of Microsoft's "Verifying the RSS hash calculation", the default of most NIC drivers.
pub const DEFAULT_KEY: [u8; KEY_LEN] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
    0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
    0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];

static DEFAULT: Toeplitz = Toeplitz::new(&DEFAULT_KEY);

/// The hash of a flow with [`DEFAULT_KEY`]; see [`Toeplitz::flow_hash`].
pub fn flow_hash(layers: &Layers) -> Option<u32> {
    DEFAULT.flow_hash(layers)
}

/// The Toeplitz hash of `input`, bit by bit; [`Toeplitz`] computes the same faster. The key has no bits for input
/// beyond [`INPUT_LEN_MAX`] bytes, so further input does not count.
pub fn toeplitz(key: &[u8; KEY_LEN], input: &[u8]) -> u32 {
    let mut hash = 0;
    for (index, byte) in input.iter().enumerate().take(INPUT_LEN_MAX) {
        for bit in 0..8 {
            if byte & (0x80 >> bit) != 0 {
                hash ^= window(key, index * 8 + bit);
            }
        }
    }
    hash
}

/// The key's 32 bits from `bit` on; past its end are zeros.
const fn window(key: &[u8; KEY_LEN], bit: usize) -> u32 {
    let mut bytes: u64 = 0;
    let mut at = bit / 8;
    while at < bit / 8 + 5 {
        bytes = bytes << 8 | if at < KEY_LEN { key[at] as u64 } else { 0 };
        at += 1;
    }
    (bytes >> (8 - bit % 8)) as u32
}

/// A key's hash function as a table per half byte of input: one look-up instead of four steps, in
/// 4.5 KiB.
#[derive(Clone)]
pub struct Toeplitz {
    /// The hash of the high half and of the low half of each input byte.
    table: [[[u32; 16]; 2]; INPUT_LEN_MAX],
}

impl Toeplitz {
    /// Prepares the table of `key`.
    pub const fn new(key: &[u8; KEY_LEN]) -> Toeplitz {
        let mut table = [[[0; 16]; 2]; INPUT_LEN_MAX];
        let mut half = 0;
        while half < INPUT_LEN_MAX * 2 {
            let mut value = 0;
            while value < 16 {
                let mut bit = 0;
                while bit < 4 {
                    if value & (8 >> bit) != 0 {
                        table[half / 2][half % 2][value] ^= window(key, half * 4 + bit);
                    }
                    bit += 1;
                }
                value += 1;
            }
            half += 1;
        }
        Toeplitz { table }
    }

    /// The hash of `input`; only the first [`INPUT_LEN_MAX`] bytes count.
    pub fn hash(&self, input: &[u8]) -> u32 {
        input.iter().zip(&self.table).fold(0, |hash, (byte, [high, low])| {
            hash ^ high[usize::from(byte >> 4)] ^ low[usize::from(byte & 0xf)]
        })
    }

    /// The hash of a frame's flow: addresses and ports for TCP and UDP, addresses for other IP and for fragments,
    /// `None` for frames that are not IP. The two directions of a flow differ.
    pub fn flow_hash(&self, layers: &Layers) -> Option<u32> {
        let ports = match layers.transport {
            Transport::Tcp { ports, .. } | Transport::Udp { ports, .. } => Some(ports),
            Transport::Other => None,
        };
        match layers.network {
            Network::Ipv4(ip) => Some(self.hash_v4(ip.src, ip.dst, ports)),
            Network::Ipv6(ip) => Some(self.hash_v6(ip.src, ip.dst, ports)),
            Network::Other => None,
        }
    }

    /// The hash of an IPv4 flow, with or without its ports.
    pub fn hash_v4(&self, src: Ipv4Addr, dst: Ipv4Addr, ports: Option<Ports>) -> u32 {
        let [s0, s1, s2, s3] = src.octets();
        let [d0, d1, d2, d3] = dst.octets();
        let addresses = [s0, s1, s2, s3, d0, d1, d2, d3];
        let Some(ports) = ports else {
            return self.hash(&addresses);
        };
        let mut input = [0; 12];
        input[..8].copy_from_slice(&addresses);
        input[8..].copy_from_slice(&ports_input(ports));
        self.hash(&input)
    }

    /// The hash of an IPv6 flow, with or without its ports.
    pub fn hash_v6(&self, src: Ipv6Addr, dst: Ipv6Addr, ports: Option<Ports>) -> u32 {
        let mut input = [0; INPUT_LEN_MAX];
        input[..16].copy_from_slice(&src.octets());
        input[16..32].copy_from_slice(&dst.octets());
        // Zero bytes add nothing, so no ports and ports of zero have the same hash.
        if let Some(ports) = ports {
            input[32..].copy_from_slice(&ports_input(ports));
        }
        self.hash(&input)
    }
}

fn ports_input(ports: Ports) -> [u8; 4] {
    let [s0, s1] = ports.src.to_be_bytes();
    let [d0, d1] = ports.dst.to_be_bytes();
    [s0, s1, d0, d1]
}

#[cfg(test)]
mod tests;
