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
