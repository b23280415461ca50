use proptest::prelude::*;

use super::*;
use crate::checksum::Sum;

const A: Mac = Mac([2, 0, 0, 0, 0, 1]);
const B: Mac = Mac([2, 0, 0, 0, 0, 2]);

const OWNER: Owner = Owner { mac: B, is_router: false };

fn v4(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

fn v6(last: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last)
}

fn arp(dst: Mac, operation: u8, sender: (Mac, u8), target: u8) -> Vec<u8> {
    let packet = [&[0, 1, 8, 0, 6, 4, 0, operation][..], &sender.0.0, &[10, 0, 0, sender.1]];
    let packet = [&packet.concat()[..], &[0; 6], &[10, 0, 0, target]].concat();
    [&dst.0[..], &A.0, &[8, 6], &packet, &[0; 18]].concat()
}

fn discovery(
    dst: Mac,
    src: Ipv6Addr,
    kind: u8,
    target: Ipv6Addr,
    option: Option<(u8, Mac)>,
) -> Vec<u8> {
    let mut message = [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &target.octets()].concat();
    if let Some((kind, mac)) = option {
        message.extend([kind, 1]);
        message.extend(mac.0);
    }
    let header = [&[0x60, 0, 0, 0, 0, message.len() as u8, 58, 255][..], &src.octets()].concat();
    [&dst.0[..], &A.0, &[0x86, 0xdd], &header, &[0xff; 16], &message].concat()
}

const GROUP: Mac = Mac([0x33, 0x33, 0xff, 0, 0, 2]);

#[test]
fn a_request_claims_and_asks_and_a_probe_asks_only() {
    let said = |frame: &[u8]| Neighbour::read(frame).map(|it| (it.claims, it.asks));
    let broadcast = Mac::BROADCAST;
    assert_eq!(said(&arp(broadcast, 1, (A, 1), 2)), Some((Some(v4(1)), Some(v4(2)))));
    let mut probe = arp(broadcast, 1, (A, 1), 2);
    probe[28..32].fill(0);
    assert_eq!(said(&probe), Some((None, Some(v4(2)))));
    assert_eq!(said(&arp(broadcast, 1, (A, 1), 1)), Some((Some(v4(1)), None)), "an announcement");
    assert_eq!(said(&arp(B, 1, (A, 1), 2)), Some((Some(v4(1)), None)), "asked directly");
    assert_eq!(said(&arp(B, 2, (A, 1), 2)), Some((Some(v4(1)), None)), "a reply");
    assert_eq!(said(&arp(broadcast, 1, (B, 1), 2)), None, "in another's name");
    assert_eq!(said(&arp(broadcast, 3, (A, 1), 2)), None);
    assert_eq!(said(&arp(broadcast, 1, (A, 1), 2)[..41]), None, "not whole");
}

#[test]
fn solicitations_and_advertisements_claim_what_their_options_confirm() {
    let said = |frame: &[u8]| Neighbour::read(frame).map(|it| (it.claims, it.asks));
    let (one, two) = (IpAddr::from(v6(1)), IpAddr::from(v6(2)));
    let solicit = |src, option| discovery(GROUP, src, 135, v6(2), option);
    assert_eq!(said(&solicit(v6(1), Some((1, A)))), Some((Some(one), Some(two))));
    assert_eq!(said(&solicit(v6(1), Some((1, B)))), Some((None, Some(two))), "another's");
    assert_eq!(said(&solicit(v6(1), None)), Some((None, Some(two))));
    assert_eq!(said(&solicit(Ipv6Addr::UNSPECIFIED, None)), Some((None, Some(two))), "is it free?");
    assert_eq!(said(&discovery(B, v6(1), 135, v6(2), Some((1, A)))), Some((Some(one), None)));
    let advertise = |option| discovery(GROUP, v6(1), 136, v6(2), option);
    assert_eq!(said(&advertise(Some((2, A)))), Some((Some(two), None)));
    assert_eq!(said(&advertise(Some((2, B)))), Some((None, None)));
    let mut routed = solicit(v6(1), Some((1, A)));
    routed[14 + 7] = 254;
    assert_eq!(said(&routed), None, "it came by a router");
}

#[test]
fn an_answer_is_what_its_owner_would_say() {
    let answer = Answer::to(&arp(Mac::BROADCAST, 1, (A, 1), 2), OWNER).unwrap();
    let owner = Neighbour::read(answer.as_slice()).unwrap();
    assert_eq!((owner.mac, owner.claims), (B, Some(v4(2))));
    assert_eq!(answer.as_slice()[..6], A.0);
    assert_eq!(answer.as_slice()[32..42], [&A.0[..], &[10, 0, 0, 1]].concat());
    assert_eq!(answer.as_slice().len(), 60);
    assert_eq!(Answer::to(&arp(Mac::BROADCAST, 2, (A, 1), 2), OWNER), None);

    for (src, flags, to) in [
        (v6(1), 0x60, v6(1)),
        (Ipv6Addr::UNSPECIFIED, 0x20, Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1)),
    ] {
        for is_router in [false, true] {
            let asked = discovery(GROUP, src, 135, v6(2), Some((1, A)));
            let answer = Answer::to(&asked, Owner { is_router, ..OWNER }).unwrap();
            let bytes = answer.as_slice();
            let owner = Neighbour::read(bytes).unwrap();
            assert_eq!((owner.mac, owner.claims), (B, Some(v6(2).into())));
            assert_eq!(bytes[ICMP_AT + 4], flags | u8::from(is_router) << 7);
            assert_eq!(bytes[38..54], to.octets());
            // The answer's checksum, which includes the pseudo-header, is right (RFC 4443 §2.3).
            let mut sum = Sum::new();
            sum.add(&bytes[22..54]);
            sum.add_u32((bytes.len() - ICMP_AT) as u32);
            sum.add_u32(58);
            sum.add(&bytes[ICMP_AT..]);
            assert_eq!(sum.finish(), 0);
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_harm(kind in 0..3, bytes in prop::collection::vec(any::<u8>(), 0..140)) {
        let mut frame = bytes;
        if let Some(place) = frame.get_mut(12..14) {
            place.copy_from_slice([&[8, 6], &[0x86, 0xdd], &[8, 0]][kind as usize]);
        }
        let may_be = Neighbour::may_be(&frame);
        if let Some(said) = Neighbour::read(&frame) {
            prop_assert!(may_be && !said.mac.is_multicast());
            let answer = Answer::to(&frame, OWNER);
            prop_assert_eq!(answer.is_some(), said.asks.is_some());
        }
    }

    #[test]
    fn any_discovery_is_read_without_harm(change in 0..94usize, to: u8, cut in 0..94usize) {
        let mut frame = discovery(GROUP, v6(1), 135, v6(2), Some((1, A)));
        if let Some(byte) = frame.get_mut(change) {
            *byte = to;
        }
        frame.truncate(cut);
        if let Some(said) = Neighbour::read(&frame) {
            prop_assert_eq!(Answer::to(&frame, OWNER).is_some(), said.asks.is_some());
        }
    }
}
