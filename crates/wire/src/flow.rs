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
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::layers::Layers;
    use crate::testing::{L4, Net, Spec, specs};

    /// The key with which both directions of a flow have the same hash (Woo & Park 2012, "Scalable TCP session monitoring
    /// with symmetric receive-side scaling"). It repeats every 16 bits, so the hash depends only on the XOR of the input's
    /// 16-bit words.
    const SYMMETRIC_KEY: [u8; KEY_LEN] = {
        let mut key = [0; KEY_LEN];
        let mut at = 0;
        while at < KEY_LEN {
            key[at] = if at % 2 == 0 { 0x6d } else { 0x5a };
            at += 1;
        }
        key
    };

    /// Microsoft "Verifying the RSS hash calculation": destination, source, hash of addresses, of addresses and ports.
    const V4: [(&str, u16, &str, u16, u32, u32); 5] = [
        ("161.142.100.80", 1766, "66.9.149.187", 2794, 0x323e_8fc2, 0x51cc_c178),
        ("65.69.140.83", 4739, "199.92.111.2", 14230, 0xd718_262a, 0xc626_b0ea),
        ("12.22.207.184", 38024, "24.19.198.95", 12898, 0xd2d0_a5de, 0x5c2b_394a),
        ("209.142.163.6", 2217, "38.27.205.30", 48228, 0x8298_9176, 0xafc7_327f),
        ("202.188.127.2", 1303, "153.39.163.191", 44251, 0x5d18_09c5, 0x10e8_28a2),
    ];
    const V6: [(&str, u16, &str, u16, u32, u32); 3] = [
        ("3ffe:2501:200:3::1", 1766, "3ffe:2501:200:1fff::7", 2794, 0x2cc1_8cd5, 0x4020_7d3d),
        ("ff02::1", 4739, "3ffe:501:8::260:97ff:fe40:efab", 14230, 0x0f0c_461c, 0xdde5_1bbf),
        (
            "fe80::200:f8ff:fe21:67cf",
            38024,
            "3ffe:1900:4545:3:200:f8ff:fe21:67cf",
            44251,
            0x4b61_e985,
            0x02d1_feef,
        ),
    ];

    #[test]
    fn microsoft_vectors_ipv4() {
        for (dst, dst_port, src, src_port, two, four) in V4 {
            let (src, dst) = (src.parse().unwrap(), dst.parse().unwrap());
            let ports = Ports { src: src_port, dst: dst_port };
            assert_eq!(DEFAULT.hash_v4(src, dst, None), two, "{src}");
            assert_eq!(DEFAULT.hash_v4(src, dst, Some(ports)), four, "{src}");
        }
    }

    #[test]
    fn microsoft_vectors_ipv6() {
        for (dst, dst_port, src, src_port, two, four) in V6 {
            let (src, dst) = (src.parse().unwrap(), dst.parse().unwrap());
            let ports = Ports { src: src_port, dst: dst_port };
            assert_eq!(DEFAULT.hash_v6(src, dst, None), two, "{src}");
            assert_eq!(DEFAULT.hash_v6(src, dst, Some(ports)), four, "{src}");
        }
    }

    #[test]
    fn frame_hashes_by_its_headers() {
        let (dst, dst_port, src, src_port, two, four) = V4[0];
        let mut spec = Spec { ports: [src_port, dst_port], ..Spec::default() };
        for (address, text) in spec.addresses.iter_mut().zip([src, dst]) {
            address[..4].copy_from_slice(&text.parse::<Ipv4Addr>().unwrap().octets());
        }
        for transport in [L4::Udp, L4::Tcp { seq: 0, flags: 0, options: 3 }] {
            let spec = Spec { transport, tag: Some(7), ..spec.clone() };
            let mut frame = spec.frame();
            assert_eq!(flow_hash(&Layers::parse(&frame).unwrap()), Some(four));
            frame[18 + 6] |= 0x20;
            assert_eq!(
                flow_hash(&Layers::parse(&frame).unwrap()),
                Some(two),
                "a fragment has no ports"
            );
        }
        let mut arp = spec.frame();
        arp[12..14].copy_from_slice(&crate::ethertype::ARP.to_be_bytes());
        assert_eq!(flow_hash(&Layers::parse(&arp).unwrap()), None);
    }

    #[test]
    fn tag_and_extension_headers_do_not_change_the_hash() {
        let plain = Spec { network: Net::V6 { extensions: vec![] }, ..Spec::default() };
        let dressed = Spec {
            tag: Some(5),
            network: Net::V6 { extensions: vec![(crate::layers::protocol::HOP_BY_HOP, 1)] },
            ..plain.clone()
        };
        let hash = |spec: &Spec| flow_hash(&Layers::parse(&spec.frame()).unwrap());
        assert_eq!(hash(&plain), hash(&dressed));
        assert!(hash(&plain).is_some());
    }

    proptest! {
        #[test]
        fn table_gives_what_the_definition_gives(
            key in any::<[[u8; 20]; 2]>(),
            input in proptest::collection::vec(any::<u8>(), 0..64),
        ) {
            let mut whole = [0; KEY_LEN];
            whole[..20].copy_from_slice(&key[0]);
            whole[20..].copy_from_slice(&key[1]);
            prop_assert_eq!(Toeplitz::new(&whole).hash(&input), toeplitz(&whole, &input));
        }

        #[test]
        fn hash_is_that_of_addresses_and_ports_in_order(spec in specs(1)) {
            let [src, dst] = spec.addresses;
            let len = if matches!(spec.network, Net::V4 { .. }) { 4 } else { 16 };
            let mut input = [&src[..len], &dst[..len]].concat();
            input.extend(spec.ports.iter().flat_map(|port| port.to_be_bytes()));
            let layers = Layers::parse(&spec.frame()).unwrap();
            prop_assert_eq!(flow_hash(&layers), Some(toeplitz(&DEFAULT_KEY, &input)));
        }

        #[test]
        fn symmetric_key_hashes_both_directions_alike(
            v4 in any::<[u32; 2]>(),
            v6 in any::<[u128; 2]>(),
            ports in any::<Option<[u16; 2]>>(),
        ) {
            let symmetric = Toeplitz::new(&SYMMETRIC_KEY);
            let there = ports.map(|[src, dst]| Ports { src, dst });
            let back = ports.map(|[src, dst]| Ports { src: dst, dst: src });
            let [a, b] = v4.map(Ipv4Addr::from_bits);
            prop_assert_eq!(symmetric.hash_v4(a, b, there), symmetric.hash_v4(b, a, back));
            let [a, b] = v6.map(Ipv6Addr::from_bits);
            prop_assert_eq!(symmetric.hash_v6(a, b, there), symmetric.hash_v6(b, a, back));
        }

        #[test]
        fn symmetric_key_sees_nothing_but_the_xor_of_words(words in any::<[u16; 18]>()) {
            let symmetric = Toeplitz::new(&SYMMETRIC_KEY);
            let input: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
            let folded = words.iter().fold(0, |folded, word| folded ^ word);
            prop_assert_eq!(symmetric.hash(&input), symmetric.hash(&folded.to_be_bytes()));
        }
    }
}
