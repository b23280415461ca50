use std::net::Ipv4Addr;

use etherparse::{LaxNetSlice, LaxSlicedPacket, TransportSlice};
use proptest::prelude::*;
use weir_limits::HEAD_LEN;

use super::*;

const MAC: Mac = Mac([0x52, 0x54, 0, 0, 0, 1]);
const OTHER_MAC: Mac = Mac([0x52, 0x54, 0, 0, 0, 2]);
const OWN4: [u8; 4] = [10, 0, 0, 5];
const OTHER4: [u8; 4] = [10, 0, 0, 6];
const ALL4: [u8; 4] = [255; 4];

fn own6() -> [u8; 16] {
    "fd00::5".parse::<Ipv6Addr>().unwrap().octets()
}

fn other6() -> [u8; 16] {
    "fd00::6".parse::<Ipv6Addr>().unwrap().octets()
}

/// The link-local address that Linux makes of [`MAC`].
fn link6() -> [u8; 16] {
    "fe80::5054:ff:fe00:1".parse::<Ipv6Addr>().unwrap().octets()
}

const NONE6: [u8; 16] = [0; 16];

fn guard_of(router: bool) -> SourceGuard {
    let addresses = ["10.0.0.5/32", "10.9.0.0/24", "fd00::5/128", "fd09::/64"];
    SourceGuard::new(addresses.map(|prefix| prefix.parse().unwrap()), router)
}

fn judge(guard: &SourceGuard, frame: &[u8]) -> Result<(), DropReason> {
    judge_before_fill(guard, frame, None)
}

fn judge_before_fill(
    guard: &SourceGuard,
    frame: &[u8],
    csum_at: Option<usize>,
) -> Result<(), DropReason> {
    guard.check(&frame[..frame.len().min(HEAD_LEN)], frame.len() as u32, csum_at, 0)
}

fn passes(frame: &[u8]) -> bool {
    judge(&guard_of(false), frame).is_ok()
}

fn reason(frame: &[u8]) -> &'static str {
    judge(&guard_of(false), frame).map_or_else(DropReason::as_str, |()| "passes")
}

fn ethernet(ethertype: u16, payload: &[u8]) -> Vec<u8> {
    [&[0xff; 6][..], &MAC.0, &ethertype.to_be_bytes(), payload].concat()
}

fn ipv4(src: [u8; 4], dst: [u8; 4], protocol: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
    let [len, fragment] = [20 + payload.len() as u16, fragment].map(u16::to_be_bytes);
    let head = [&[0x45, 0], &len[..], &[0, 0], &fragment, &[64, protocol, 0, 0], &src, &dst];
    ethernet(ethertype::IPV4, &[&head.concat()[..], payload].concat())
}

fn udp(ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
    let words = [ports.0, ports.1, 8 + payload.len() as u16, 0].map(u16::to_be_bytes);
    [&words.concat()[..], payload].concat()
}

/// A DHCP client's message in which `mac` is the client.
fn question(mac: Mac) -> Vec<u8> {
    let mut message = vec![0; 300];
    message[..3].copy_from_slice(&[1, 1, 6]);
    message[28..34].copy_from_slice(&mac.0);
    message
}

fn ipv6(src: [u8; 16], next: u8, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u16).to_be_bytes();
    let dst = "ff02::1".parse::<Ipv6Addr>().unwrap().octets();
    let head = [&[0x60, 0, 0, 0][..], &len, &[next, 255], &src, &dst];
    ethernet(ethertype::IPV6, &[&head.concat()[..], payload].concat())
}

/// A message of neighbour discovery, with a target if its kind has one, and options.
fn nd(kind: u8, target: Option<[u8; 16]>, options: &[u8]) -> Vec<u8> {
    let target = target.as_ref().map_or(&[][..], |target| target);
    [&[kind, 0, 0, 0, 0, 0, 0, 0][..], target, options].concat()
}

fn link_layer(option: u8, mac: Mac) -> Vec<u8> {
    [&[option, 1][..], &mac.0].concat()
}

fn arp(operation: u16, sender: (Mac, [u8; 4]), target: (Mac, [u8; 4])) -> Vec<u8> {
    let ethertype = if operation == 3 { ethertype::RARP } else { ethertype::ARP };
    let operation = operation.to_be_bytes();
    let parts =
        [&[0, 1, 8, 0, 6, 4][..], &operation, &sender.0.0, &sender.1, &target.0.0, &target.1];
    ethernet(ethertype, &parts.concat())
}

#[test]
fn ipv4_comes_from_the_guests_addresses_only() {
    assert!(passes(&ipv4(OWN4, OTHER4, 6, 0, &[0; 20])));
    assert!(passes(&ipv4([10, 9, 0, 77], OTHER4, 1, 0, &[0; 20])), "a prefix");
    assert!(passes(&ipv4(OWN4, OTHER4, 17, 0x2000, &udp((9, 9), &[0; 64]))), "a fragment");
    assert!(passes(&ipv4(OWN4, OTHER4, 17, 100, &[0; 3])), "and one that follows");
    for frame in [
        ipv4(OTHER4, OWN4, 6, 0, &[0; 20]),
        ipv4([10, 9, 1, 0], OWN4, 6, 0, &[0; 20]),
        ipv4([0; 4], OTHER4, 6, 0, &[0; 20]),
        ipv4(OTHER4, OWN4, 17, 100, &[0; 20]),
        ethernet(ethertype::IPV4, &[0x45; 19]),
        ethernet(ethertype::IPV4, &[0x55; 40]),
        ethernet(ethertype::IPV4, &[0x44; 40]),
    ] {
        assert_eq!(reason(&frame), "source_guard_ip");
    }
}

#[test]
fn a_guest_without_an_address_can_ask_dhcp_for_one_and_nothing_else() {
    let asks = udp(dhcp::PORTS, &question(MAC));
    assert!(passes(&ipv4([0; 4], ALL4, 17, 0, &asks)));
    assert!(passes(&ipv4(OWN4, OTHER4, 17, 0, &asks)), "and renew it");
    for frame in [
        ipv4([0; 4], OTHER4, 17, 0, &asks),
        ipv4([0; 4], ALL4, 17, 0x2000, &asks),
        ipv4([0; 4], ALL4, 17, 0, &udp((68, 69), &question(MAC))),
        // These messages ask in another guest's name, and so for its address.
        ipv4([0; 4], ALL4, 17, 0, &udp(dhcp::PORTS, &question(OTHER_MAC))),
        ipv4(OWN4, OTHER4, 17, 0, &udp(dhcp::PORTS, &question(OTHER_MAC))),
        ipv4([0; 4], ALL4, 17, 0, &udp(dhcp::PORTS, &question(MAC)[..30])),
    ] {
        assert_eq!(reason(&frame), "source_guard_ip");
    }
}

#[test]
fn only_a_router_answers_dhcp_and_advertises_itself() {
    let answers = [
        ipv4(OWN4, ALL4, 17, 0, &udp((67, 68), &[0; 300])),
        ipv4(OWN4, ALL4, 17, 0x2000, &udp((67, 68), &[0; 304])),
        ipv6(own6(), 17, &udp((547, 546), &[0; 60])),
    ];
    let advertises = [
        ipv6(link6(), 58, &nd(134, None, &[0; 8])),
        ipv6(link6(), 58, &nd(137, Some(own6()), &own6())),
    ];
    for frame in &answers {
        assert_eq!(reason(frame), "source_guard_ip");
    }
    for frame in &advertises {
        assert_eq!(reason(frame), "source_guard_nd");
    }
    for frame in answers.iter().chain(&advertises) {
        assert_eq!(judge(&guard_of(true), frame), Ok(()));
    }
    let forged = ipv6(other6(), 58, &nd(134, None, &[0; 8]));
    assert!(judge(&guard_of(true), &forged).is_err(), "not in another's name");
}

#[test]
fn arp_speaks_for_the_guest_only() {
    let target = (Mac([0; 6]), OTHER4);
    assert!(passes(&arp(1, (MAC, OWN4), target)));
    assert!(passes(&arp(1, (MAC, OWN4), (MAC, OWN4))), "an announcement");
    assert!(passes(&arp(1, (MAC, [0; 4]), target)), "a probe");
    assert!(passes(&arp(2, (MAC, OWN4), (OTHER_MAC, OTHER4))));
    assert!(passes(&arp(3, (MAC, [0; 4]), (MAC, [0; 4]))), "a guest that has moved");
    let mut other_kind = arp(1, (MAC, OWN4), target);
    other_kind[15] = 6;
    for frame in [
        arp(1, (MAC, OTHER4), target),
        arp(2, (MAC, OTHER4), target),
        arp(2, (MAC, [0; 4]), target),
        arp(2, (OTHER_MAC, OWN4), target),
        arp(1, (OTHER_MAC, OWN4), target),
        arp(8, (MAC, OWN4), target),
        arp(3, (MAC, [0; 4]), (OTHER_MAC, [0; 4])),
        arp(3, (OTHER_MAC, [0; 4]), (OTHER_MAC, [0; 4])),
        arp(3, (MAC, OTHER4), (MAC, [0; 4])),
        arp(1, (MAC, OWN4), target)[..30].to_vec(),
        other_kind,
    ] {
        assert_eq!(reason(&frame), "source_guard_arp");
    }
}

#[test]
fn ipv6_comes_from_the_guests_addresses_and_that_of_its_link() {
    assert!(passes(&ipv6(own6(), 6, &[0; 20])));
    assert!(passes(&ipv6(link6(), 17, &udp((546, 547), &[0; 60]))));
    assert!(passes(&ipv6(NONE6, 58, &[143, 0, 0, 0, 0, 0, 0, 0])), "what it listens to");
    assert!(passes(&ipv6(own6(), 58, &[128, 0, 0, 0, 0, 1, 0, 1])), "ping");
    let mut other_link = link6();
    other_link[15] = 2;
    for frame in [
        ipv6(other6(), 6, &[0; 20]),
        ipv6(other_link, 6, &[0; 20]),
        ipv6(NONE6, 6, &[0; 20]),
        ipv6(NONE6, 17, &udp((546, 547), &[0; 60])),
        ipv6(NONE6, 58, &[128, 0, 0, 0, 0, 1, 0, 1]),
        ethernet(ethertype::IPV6, &[0x60; 39]),
        ethernet(ethertype::IPV6, &[0x40; 60]),
    ] {
        assert_eq!(reason(&frame), "source_guard_ip");
    }
}

#[test]
fn neighbour_discovery_speaks_for_the_guest_only() {
    let own = Some(own6());
    let (source, target) = (link_layer(1, MAC), link_layer(2, MAC));
    let nonce = [14, 1, 1, 2, 3, 4, 5, 6];
    assert!(passes(&ipv6(NONE6, 58, &nd(133, None, &[]))));
    assert!(passes(&ipv6(link6(), 58, &nd(133, None, &source))));
    assert!(passes(&ipv6(NONE6, 58, &nd(135, own, &nonce))), "may I have it");
    assert!(passes(&ipv6(NONE6, 58, &nd(135, Some(link6()), &[]))));
    assert!(passes(&ipv6(own6(), 58, &nd(135, Some(other6()), &source))));
    assert!(passes(&ipv6(own6(), 58, &nd(136, own, &target))));
    assert!(passes(&ipv6(link6(), 58, &nd(136, own, &[]))));
    for (src, message) in [
        // These messages are about another guest's address, or contain another guest's link-layer address.
        (own6(), nd(136, Some(other6()), &target)),
        (own6(), nd(136, own, &link_layer(2, OTHER_MAC))),
        (own6(), nd(136, own, &[target.clone(), link_layer(2, OTHER_MAC)].concat())),
        (own6(), nd(136, own, &link_layer(1, OTHER_MAC))),
        (NONE6, nd(136, own, &target)),
        (own6(), nd(135, Some(other6()), &link_layer(1, OTHER_MAC))),
        (link6(), nd(133, None, &link_layer(1, OTHER_MAC))),
        // This message would keep others from getting the address.
        (NONE6, nd(135, Some(other6()), &[])),
        // The options of these messages have no length, no end, or a wrong length.
        (own6(), nd(136, own, &[2, 0, 0, 0, 0, 0, 0, 0])),
        (own6(), nd(136, own, &[9, 2, 0, 0, 0, 0, 0, 0])),
        (own6(), nd(136, own, &[2, 1, 0x52, 0x54])),
        (own6(), nd(136, own, &[&[2, 2][..], &MAC.0, &[0; 8]].concat())),
        (own6(), nd(136, own, &[])[..20].to_vec()),
        // The options of these messages lie behind the copied front.
        (own6(), nd(136, own, &[&[9, 8][..], &[0; 62], &link_layer(2, OTHER_MAC)].concat())),
        (own6(), nd(141, None, &source)),
    ] {
        assert_eq!(reason(&ipv6(src, 58, &message)), "source_guard_nd", "{message:x?}");
    }
    // This message is longer than its frame.
    let mut cut = ipv6(own6(), 58, &nd(136, own, &target));
    cut.truncate(cut.len() - 8);
    assert_eq!(reason(&cut), "source_guard_nd");
}

#[test]
fn nothing_hides_behind_headers_and_fragments() {
    let forged = nd(136, Some(other6()), &link_layer(2, MAC));
    let behind = |headers: &[(u8, Vec<u8>)], message: &[u8]| {
        let mut payload = Vec::new();
        let mut next = headers.iter().map(|(kind, _)| *kind).skip(1).chain([58]);
        for (_, body) in headers {
            payload.push(next.next().unwrap());
            payload.extend(body);
        }
        payload.extend(message);
        ipv6(own6(), headers[0].0, &payload)
    };
    let options = |units: u8| (60, [&[units][..], &vec![1; usize::from(units) * 8 + 6]].concat());
    let fragment = |field: u16| (44, [&[0][..], &field.to_be_bytes(), &[0, 0, 0, 7]].concat());
    let echo = [128, 0, 0, 0, 0, 1, 0, 1];
    let hidden = [
        behind(&[options(0)], &forged),
        behind(&[options(0), options(1)], &forged),
        behind(&[options(12)], &forged),
        behind(&vec![options(0); 9], &forged),
        behind(&[fragment(0)], &forged),
        behind(&[fragment(1)], &forged),
        behind(&[fragment(1), options(0)], &forged),
        behind(&[fragment(0x100), options(0)], &echo),
        behind(&[fragment(1), options(1)], &forged[..8]),
        behind(&[fragment(1)], &nd(136, Some(own6()), &[])),
        behind(&[(51, vec![0; 7])], &forged),
        behind(&[(135, vec![0; 7])], &forged),
        behind(&[options(12)], &echo),
        behind(&[fragment(1)], &[]),
    ];
    for frame in hidden {
        assert_eq!(reason(&frame), "source_guard_nd", "{frame:x?}");
    }
    // These packets are fragmented because of their length.
    assert!(passes(&behind(&[fragment(1)], &echo)));
    assert!(passes(&behind(&[fragment(0x100)], &echo)));
    assert!(passes(&behind(&[options(1)], &echo)));
    assert!(passes(&behind(&[options(0)], &nd(136, Some(own6()), &link_layer(2, MAC)))));
}

#[test]
fn no_checksum_is_filled_in_where_an_address_is() {
    let passes_with =
        |frame: &[u8], at| judge_before_fill(&guard_of(false), frame, Some(at)).is_ok();
    let four = ipv4(OWN4, OTHER4, 17, 0, &udp((9, 9), &[0; 200]));
    let six = ipv6(own6(), 17, &udp((9, 9), &[0; 200]));
    // The checksum is that of the packet itself, or of a packet in a tunnel.
    assert!(passes_with(&four, 40) && passes_with(&four, 100));
    assert!(passes_with(&six, 60) && passes_with(&six, 120));
    assert!(passes_with(&ipv4([0; 4], ALL4, 17, 0, &udp(dhcp::PORTS, &question(MAC))), 40));
    // A checksum at these offsets would change ports, a guest's DHCP request, an option, or an address in ARP or in an
    // advertisement.
    assert!(!passes_with(&four, 34) && !passes_with(&four, 39) && !passes_with(&six, 55));
    assert!(!passes_with(&ipv4([0; 4], ALL4, 17, 0, &udp(dhcp::PORTS, &question(MAC))), 70));
    assert!(!passes_with(
        &ipv6(own6(), 60, &[&[17, 0, 0, 0, 0, 0, 0, 0][..], &udp((9, 9), &[])].concat()),
        54
    ));
    assert!(!passes_with(&arp(1, (MAC, OWN4), (MAC, OTHER4)), 30));
    assert!(!passes_with(&ipv6(own6(), 58, &nd(136, Some(own6()), &[])), 76));
}

mod snooped;

#[test]
fn what_is_no_ip_and_no_arp_does_not_pass() {
    let inner = ipv4(OWN4, OTHER4, 6, 0, &[0; 20])[12..].to_vec();
    for ethertype in [0x8100, 0x88a8, 0x9100, 0x8847, 0x8864, 0x88b5, 0x0040] {
        let frame = ethernet(ethertype, &[&[0, 9][..], &inner].concat());
        assert_eq!(reason(&frame), "source_guard_other", "{ethertype:x}");
    }
    assert_eq!(reason(&[0; 13]), "source_guard_other");
}

/// Addresses that the guest has, and others.
fn any4() -> impl Strategy<Value = [u8; 4]> {
    prop_oneof![Just(OWN4), Just([10, 9, 0, 3]), Just(OTHER4), Just([0; 4]), any::<[u8; 4]>()]
}

fn any6() -> impl Strategy<Value = [u8; 16]> {
    let known = || prop_oneof![Just(own6()), Just(link6())];
    prop_oneof![4 => known(), 1 => Just(other6()), 1 => Just(NONE6), 1 => any::<[u8; 16]>()]
}

fn any_mac() -> impl Strategy<Value = Mac> {
    prop_oneof![3 => Just(MAC), 1 => Just(OTHER_MAC)]
}

fn any_extension() -> impl Strategy<Value = (u8, u8, Vec<u8>)> {
    let kind = prop_oneof![Just(0), Just(43), Just(44), Just(51), Just(60), Just(135)];
    (kind, 0..3_u8, prop::collection::vec(any::<u8>(), 6)).prop_map(|(kind, units, bytes)| {
        let (units, bytes) = match kind {
            44 => (0, bytes.iter().map(|byte| byte & 9).collect()),
            _ => (units, [&bytes[..], &vec![0; usize::from(units) * 8]].concat()),
        };
        (kind, units, bytes)
    })
}

fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let option = (prop_oneof![Just(1), Just(2), Just(14)], any_mac());
    let options = prop::collection::vec(option, 0..3).prop_map(|options| {
        options.into_iter().flat_map(|(kind, mac)| link_layer(kind, mac)).collect::<Vec<_>>()
    });
    let message = (prop_oneof![133..=137_u8, Just(128), Just(143)], any6(), options).prop_map(
        |(kind, target, options)| {
            let has_target = (135..=137).contains(&kind);
            (58, nd(kind, has_target.then_some(target), &options))
        },
    );
    let ports =
        prop_oneof![Just(dhcp::PORTS), Just((67, 68)), Just((547, 546)), any::<(u16, u16)>()];
    let datagram =
        (ports, any_mac()).prop_map(|(ports, mac)| (17, udp(ports, &question(mac)))).boxed();
    let upper = prop_oneof![message, datagram.clone(), Just((6, vec![0; 20]))];
    let six = (any6(), prop::collection::vec(any_extension(), 0..4), upper).prop_map(
        |(src, extensions, (last, message))| {
            let mut payload = Vec::new();
            for (place, (_, units, bytes)) in extensions.iter().enumerate() {
                payload.push(extensions.get(place + 1).map_or(last, |next| next.0));
                payload.push(*units);
                payload.extend(bytes);
            }
            payload.extend(message);
            ipv6(src, extensions.first().map_or(last, |first| first.0), &payload)
        },
    );
    let fragment = prop_oneof![Just(0), Just(0x2000), any::<u16>()];
    let four = (any4(), prop_oneof![Just(ALL4), Just(OTHER4)], fragment, datagram)
        .prop_map(|(src, dst, fragment, (last, it))| ipv4(src, dst, last, fragment, &it));
    let arp = (1..4_u16, (any_mac(), any4()), (any_mac(), any4()))
        .prop_map(|(operation, sender, target)| arp(operation, sender, target));
    let sound = prop_oneof![3 => six, 1 => four, 1 => arp];
    // Some frames are damaged.
    let damage = prop::option::weighted(0.3, (12..120_usize, any::<u8>()));
    (sound, damage, prop::option::weighted(0.1, 14..200_usize)).prop_map(
        |(mut frame, damage, len)| {
            if let Some((at, byte)) = damage
                && let Some(place) = frame.get_mut(at)
            {
                *place = byte;
            }
            frame.truncate(len.unwrap_or(usize::MAX));
            frame
        },
    )
}

/// True if the guest has the source address that another parser reads.
fn has(address: IpAddr) -> bool {
    let seen = Seen { head: &[], len: 0, src: MAC, csum_at: None, now_secs: 0 };
    guard_of(false).has(address, seen)
}

fn is_sound(frame: &[u8]) -> bool {
    let Ok(packet) = LaxSlicedPacket::from_ethernet(frame) else { return false };
    if !packet.link_exts.is_empty() {
        return false;
    }
    match packet.net {
        None => true, // an IP header that it refuses: who receives it does, too
        Some(LaxNetSlice::Ipv4(ip)) => {
            let src = ip.header().source_addr();
            let asks = || match &packet.transport {
                Some(TransportSlice::Udp(udp)) => {
                    (udp.source_port(), udp.destination_port()) == dhcp::PORTS
                }
                _ => false,
            };
            has(src.into()) || src.is_unspecified() && asks()
        }
        Some(LaxNetSlice::Ipv6(ip)) => {
            let src = ip.header().source_addr();
            let message = match &packet.transport {
                Some(TransportSlice::Icmpv6(message)) => Some(message),
                _ => None,
            };
            let target = message.filter(|it| (135..=136).contains(&it.type_u8()));
            let target = target.and_then(|it| it.payload().first_chunk::<16>());
            let own_target = target.is_some_and(|target| has(Ipv6Addr::from(*target).into()));
            match message.map(|message| message.type_u8()) {
                Some(134 | 137) => false,
                Some(136) => has(src.into()) && own_target,
                Some(135) if src.is_unspecified() => own_target,
                Some(133 | 143) if src.is_unspecified() => true,
                // The other parser refuses the rest, as the receiver does.
                None if src.is_unspecified() => packet.stop_err.is_some(),
                _ => has(src.into()),
            }
        }
        Some(LaxNetSlice::Arp(arp)) => {
            let sender = <[u8; 4]>::try_from(arp.sender_protocol_addr()).unwrap();
            let probes = arp.operation().0 == 1 && sender == [0; 4];
            let hardware = arp.sender_hw_addr() == MAC.0;
            hardware && (probes || has(Ipv4Addr::from(sender).into()))
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// In a frame that passes, another parser also reads a source that the guest has.
    #[test]
    fn what_passes_is_from_the_guest_as_another_parser_reads_it(frame in any_frame()) {
        if passes(&frame) && frame[12..14] != ethertype::RARP.to_be_bytes() {
            prop_assert!(is_sound(&frame), "{frame:x?}");
        }
    }

    #[test]
    fn what_passes_stays_so_when_its_checksum_is_filled_in(
        mut frame in any_frame(),
        at in 14..150_usize,
        sum in any::<[u8; 2]>(),
    ) {
        let guard = guard_of(false);
        let rarp = frame.get(12..14) == Some(&ethertype::RARP.to_be_bytes());
        if !rarp && judge_before_fill(&guard, &frame, Some(at)).is_ok() {
            if let Some(field) = frame.get_mut(at..at + 2) {
                field.copy_from_slice(&sum);
            }
            prop_assert!(is_sound(&frame), "{frame:x?}");
        }
    }

    #[test]
    fn any_bytes_are_judged(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = judge(&guard_of(true), &bytes);
        let _ = passes(&ethernet(ethertype::IPV6, &bytes));
        snooped::any_message_is_read(&bytes);
        let _ = passes(&ethernet(ethertype::IPV4, &bytes));
    }
}
