use etherparse::{LinkExtHeader, NetHeaders, PacketHeaders, TransportHeader};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::testing::{L4, Net, Spec, specs};
use crate::vlan::Tci;

fn ipv6_udp(extensions: &[(u8, u8)]) -> Spec {
    let network = Net::V6 { extensions: extensions.to_vec() };
    Spec { network, transport: L4::Udp, payload: vec![1, 2, 3], ..Spec::default() }
}

#[test]
fn what_is_cut_deeper_than_ethernet_is_other() {
    let frame = Spec { network: Net::V4 { id: 1, options: 2 }, ..Spec::default() }.frame();
    let (l4, end) = (14 + 28, 14 + 28 + 20);
    for len in 14..=end {
        let layers = Layers::parse(&frame[..len]).unwrap();
        assert_eq!(layers.network == Network::Other, len < 34, "{len}");
        assert_eq!(layers.transport == Transport::Other, len < end, "{len}");
        assert_eq!(layers.headers_len().is_some(), len == end);
    }
    assert!(Layers::parse(&frame[..13]).is_err());
    assert!(matches!(
        Layers::parse(&frame[..end]).unwrap().transport,
        Transport::Tcp { offset, header_len: 20, ports: Ports { src: 40000, dst: 443 } }
            if usize::from(offset) == l4
    ));
}

#[test]
fn garbled_headers_are_other() {
    let good = Spec::default().frame();
    let network = |at: usize, byte: u8| {
        let mut frame = good.clone();
        frame[at] = byte;
        Layers::parse(&frame).unwrap()
    };
    assert_eq!(network(14, 0x55).network, Network::Other, "version");
    assert_eq!(network(14, 0x44).network, Network::Other, "header shorter than 20 bytes");
    assert_eq!(network(23, 1).transport, Transport::Other, "ICMP");
    assert_eq!(
        network(34 + 12, 0x4f).transport,
        Transport::Other,
        "TCP header shorter than 20 bytes"
    );
    assert_eq!(network(12, 0x86).network, Network::Other, "ethertype");
}

#[test]
fn fragments_have_no_transport_header() {
    for (flags, fragment) in
        [(0x2000, true), (0x0001, true), (0x1fff, true), (0x4000, false), (0x8000, false)]
    {
        let mut frame = Spec::default().frame();
        frame[20..22].copy_from_slice(&u16::to_be_bytes(flags));
        let layers = Layers::parse(&frame).unwrap();
        assert!(
            matches!(layers.network, Network::Ipv4(ip) if ip.fragment == fragment),
            "{flags:#x}"
        );
        assert_eq!(layers.transport == Transport::Other, fragment, "{flags:#x}");
    }
}

#[test]
fn rfc_6946_atomic_fragment_is_whole() {
    let spec = ipv6_udp(&[(protocol::FRAGMENT, 1)]);
    for (offset_and_more, fragment) in
        [(0, false), (1, true), (8, true), (0xfff8, true), (6, false)]
    {
        let mut frame = spec.frame();
        frame[56..58].copy_from_slice(&u16::to_be_bytes(offset_and_more));
        let layers = Layers::parse(&frame).unwrap();
        assert!(matches!(layers.network, Network::Ipv6(ip) if ip.fragment == fragment));
        assert_eq!(layers.transport == Transport::Other, fragment, "{offset_and_more}");
    }
}

#[test]
fn extension_headers_are_walked_up_to_the_bound() {
    let walked = ipv6_udp(&[(protocol::DESTINATION_OPTIONS, 1); IPV6_EXT_HEADERS_MAX]).frame();
    let layers = Layers::parse(&walked).unwrap();
    assert!(matches!(layers.transport, Transport::Udp { offset: 118, .. }));

    let longer = ipv6_udp(&[(protocol::DESTINATION_OPTIONS, 1); IPV6_EXT_HEADERS_MAX + 1]).frame();
    let layers = Layers::parse(&longer).unwrap();
    assert!(
        matches!(layers.network, Network::Ipv6(ip) if ip.protocol == protocol::DESTINATION_OPTIONS)
    );
    assert_eq!(layers.transport, Transport::Other);
}

#[test]
fn extension_header_longer_than_the_frame_ends_the_walk() {
    let mut frame = ipv6_udp(&[(protocol::HOP_BY_HOP, 1)]).frame();
    frame[55] = 255;
    let layers = Layers::parse(&frame).unwrap();
    assert!(matches!(layers.network, Network::Ipv6(ip) if ip.header_len == 40 + 2048));
    assert_eq!(layers.transport, Transport::Other);
}

#[test]
fn only_the_outer_tag_is_looked_behind() {
    let mut frame = Spec { tag: Some(5), ..Spec::default() }.frame();
    let inner = frame[12..16].to_vec();
    frame.splice(12..12, inner);
    let layers = Layers::parse(&frame).unwrap();
    assert_eq!(layers.ethernet.ethertype, ethertype::VLAN);
    assert_eq!(layers.network, Network::Other);
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..200)) {
        let _ = Layers::parse(&bytes);
    }

    /// Arbitrary bytes seldom pass the ethertype; this gets deeper.
    #[test]
    fn arbitrary_damage_never_panics(
        spec in specs(8),
        damage in vec((0usize..160, any::<u8>()), 0..6),
        len in 0usize..160,
    ) {
        let mut frame = spec.frame();
        for (at, byte) in damage {
            if let Some(hit) = frame.get_mut(at) {
                *hit = byte;
            }
        }
        frame.truncate(len);
        if let Ok(layers) = Layers::parse(&frame)
            && let Transport::Tcp { offset, .. } | Transport::Udp { offset, .. } = layers.transport
        {
            prop_assert!(usize::from(offset) + 8 <= frame.len());
            prop_assert!(layers.headers_len().unwrap() > offset);
        }
    }

    #[test]
    fn layers_are_those_of_etherparse(spec in specs(8)) {
        let frame = spec.frame();
        let layers = Layers::parse(&frame).unwrap();
        let oracle = PacketHeaders::from_ethernet_slice(&frame).unwrap();

        prop_assert_eq!(usize::from(layers.headers_len().unwrap()), spec.hdr_len());
        let link = oracle.link.unwrap().ethernet2().unwrap();
        prop_assert_eq!(layers.ethernet.src.0, link.source);
        prop_assert_eq!(layers.ethernet.dst.0, link.destination);
        let tag = oracle.link_exts.first().map(|ext| match ext {
            LinkExtHeader::Vlan(vlan) => {
                Tci::new(vlan.vlan_id.value(), vlan.pcp.value(), vlan.drop_eligible_indicator).unwrap()
            }
            LinkExtHeader::Macsec(_) => unreachable!(),
        });
        prop_assert_eq!(layers.ethernet.tag, tag);

        match (layers.network, oracle.net.unwrap()) {
            (Network::Ipv4(ip), NetHeaders::Ipv4(expected, _)) => {
                prop_assert_eq!(ip.src.octets(), expected.source);
                prop_assert_eq!(ip.dst.octets(), expected.destination);
                prop_assert_eq!(usize::from(ip.header_len), expected.header_len());
                prop_assert_eq!(ip.protocol, expected.protocol.0);
                prop_assert_eq!(ip.total_len, expected.total_len);
                prop_assert!(!ip.fragment);
            }
            (Network::Ipv6(ip), NetHeaders::Ipv6(expected, extensions)) => {
                prop_assert_eq!(ip.src.octets(), expected.source);
                prop_assert_eq!(ip.dst.octets(), expected.destination);
                prop_assert_eq!(usize::from(ip.header_len), 40 + extensions.header_len());
                prop_assert_eq!(ip.payload_len, expected.payload_length);
                prop_assert_eq!(ip.protocol, spec.protocol());
            }
            other => prop_assert!(false, "{:?}", other),
        }
        match (layers.transport, oracle.transport.unwrap()) {
            (Transport::Tcp { header_len, ports, .. }, TransportHeader::Tcp(expected)) => {
                prop_assert_eq!(usize::from(header_len), expected.header_len());
                prop_assert_eq!([ports.src, ports.dst], [expected.source_port, expected.destination_port]);
            }
            (Transport::Udp { ports, .. }, TransportHeader::Udp(expected)) => {
                prop_assert_eq!([ports.src, ports.dst], [expected.source_port, expected.destination_port]);
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }
}
