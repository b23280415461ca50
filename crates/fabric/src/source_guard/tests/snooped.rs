//! Addresses that a guest gets by DHCP, and guests that must not act as a router or a server.

use weir_limits::{DHCP_QUESTIONS_MAX, SNOOPED_LEASES_MAX};

use super::*;
use crate::PortId;

const LAN: u16 = 7;
const XID: [u8; 4] = [9, 8, 7, 6];
const GIVEN4: [u8; 4] = [10, 5, 0, 1];
/// The offset of a DHCP message in a frame over IPv4.
const MESSAGE: usize = 14 + 20 + 8;

fn origin(vid: u16) -> Origin {
    Origin { port: PortId::new(LAN).unwrap(), vid }
}

/// A message of type `kind` from a guest that has the address `has`, or none.
fn asks(kind: u8, has: [u8; 4]) -> Vec<u8> {
    let mut message = question(MAC);
    message[4..8].copy_from_slice(&XID);
    message[12..16].copy_from_slice(&has);
    message[236..244].copy_from_slice(&[99, 130, 83, 99, 53, 1, kind, 255]);
    let dst = if has == [0; 4] { ALL4 } else { OTHER4 };
    ipv4(has, dst, 17, 0, &udp(dhcp::PORTS, &message))
}

/// A server's answer: an address for `secs` seconds.
fn gives(mac: Mac, address: [u8; 4], secs: u32) -> Vec<u8> {
    let mut message = question(mac);
    message[0] = 2;
    message[4..8].copy_from_slice(&XID);
    message[16..20].copy_from_slice(&address);
    let options = [&[99, 130, 83, 99, 0, 53, 1, 5, 51, 4][..], &secs.to_be_bytes(), &[255]];
    message.splice(236.., options.concat());
    let mut frame = ipv4(OTHER4, ALL4, 17, 0, &udp((67, 68), &message));
    frame[6..12].copy_from_slice(&OTHER_MAC.0);
    frame
}

fn snooping() -> SourceGuard {
    SourceGuard::new([], false).snooping(None)
}

fn passes_at(guard: &SourceGuard, frame: &[u8], now_secs: u32) -> bool {
    let head = &frame[..frame.len().min(HEAD_LEN)];
    let passes = guard.check(head, frame.len() as u32, None, now_secs).is_ok();
    if passes && guard.may_be_question(head) {
        guard.snoop_question(frame, now_secs);
    }
    passes
}

#[test]
fn an_address_is_the_guests_from_the_answer_to_its_question_until_it_ends() {
    let guard = snooping();
    let sends = ipv4(GIVEN4, OTHER4, 6, 0, &[0; 20]);
    let says = arp(2, (MAC, GIVEN4), (OTHER_MAC, OTHER4));
    let learn = |frame: &[u8], now| guard.snoop(frame, origin(0), now, |_| true);
    learn(&gives(MAC, GIVEN4, 100), 1000);
    assert!(!passes_at(&guard, &sends, 1000), "it has not asked");
    assert!(passes_at(&guard, &asks(3, [0; 4]), 1000));
    assert!(guard.may_be_question(&asks(3, [0; 4])[..HEAD_LEN]));
    let answer = gives(MAC, GIVEN4, 100);
    assert!(SourceGuard::may_be_answer(&answer[..HEAD_LEN]));
    let changed = |at: usize, byte: u8| {
        let mut frame = answer.clone();
        frame[MESSAGE + at] = byte;
        frame
    };
    learn(&gives(OTHER_MAC, GIVEN4, 100), 1000);
    learn(&gives(MAC, [224, 0, 0, 1], 100), 1000);
    learn(&changed(4, 1), 1000); // another question's
    learn(&changed(0, 1), 1000); // a question itself
    learn(&changed(243, 2), 1000); // an offer
    learn(&answer[..answer.len() - 3], 1000);
    learn(&answer, 1000 + 65);
    assert_eq!(guard.leases(1000).collect::<Vec<_>>(), []);
    learn(&answer, 1001);
    assert!(passes_at(&guard, &sends, 1001) && passes_at(&guard, &says, 1100));
    assert!(!passes_at(&guard, &sends, 1101) && !passes_at(&guard, &says, 1101));
    // The guest renews from the address itself, even if weir does not know the address any more.
    assert!(passes_at(&guard, &asks(3, GIVEN4), 1101));
    learn(&gives(MAC, GIVEN4, u32::MAX), 1101);
    assert!(passes_at(&guard, &sends, u32::MAX - 1));
    // Another guard of the same guest takes the address over, and the guest gives it back.
    let next = SourceGuard::new([], false).snooping(Some(&guard));
    assert!(passes_at(&next, &sends, 1200));
    next.snoop_question(&asks(3, GIVEN4), 1200);
    assert!(passes_at(&next, &sends, 1200));
    next.snoop_question(&asks(7, GIVEN4), 1200);
    assert!(!passes_at(&next, &sends, 1200));
}

#[test]
fn an_address_that_another_guest_has_is_not_given_again() {
    let guard = snooping();
    let learn = |secs, free| {
        guard.snoop(&gives(MAC, GIVEN4, secs), origin(0), 1, |address| {
            assert_eq!(address, IpAddr::from(GIVEN4));
            free
        });
    };
    assert!(passes_at(&guard, &asks(3, [0; 4]), 1));
    learn(100, false);
    assert_eq!(guard.leases(1).count(), 0);
    learn(100, true);
    assert!(guard.holds(GIVEN4.into(), origin(0), 100));
    assert!(!guard.holds(GIVEN4.into(), origin(20), 100), "another VLAN's");
    assert!(!guard.holds(GIVEN4.into(), origin(0), 101));
    // The guest has the address, whoever else has it.
    learn(200, false);
    assert!(guard.holds(GIVEN4.into(), origin(0), 200));
}

#[test]
fn a_guest_has_so_many_leases_and_questions_and_no_more() {
    let guard = snooping();
    assert!(passes_at(&guard, &asks(3, [0; 4]), 1));
    let last = SNOOPED_LEASES_MAX as u8;
    for number in 0..=last {
        let lease = gives(MAC, [10, 6, 0, number], 1000 + u32::from(number));
        guard.snoop(&lease, origin(0), 1, |_| true);
    }
    let has = |number| passes_at(&guard, &ipv4([10, 6, 0, number], OTHER4, 6, 0, &[0; 20]), 1);
    assert_eq!(guard.leases(1).count(), SNOOPED_LEASES_MAX);
    assert!(!has(0) && has(1) && has(last), "the one that ends first went");
    for number in 0..DHCP_QUESTIONS_MAX as u8 {
        let mut asks = asks(3, [0; 4]);
        asks[MESSAGE + 4] = number;
        assert!(passes_at(&guard, &asks, 2));
    }
    guard.snoop(&gives(MAC, GIVEN4, 100), origin(0), 2, |_| true);
    assert!(!guard.holds(GIVEN4.into(), origin(0), 2), "the oldest question is forgotten");
}

#[test]
fn dhcpv6_gives_and_takes_back() {
    let guard = snooping();
    let given = "fd05::1".parse::<Ipv6Addr>().unwrap().octets();
    let association = |valid: u32| {
        let times = [valid.to_be_bytes(); 2].concat();
        [&[0, 3, 0, 40][..], &[0; 12], &[0, 5, 0, 24], &given, &times].concat()
    };
    let message = |kind: u8, options: &[u8]| [&[kind, 1, 2, 3], options].concat();
    let asks = ipv6(link6(), 17, &udp(dhcp::PORTS6, &message(3, &[0, 1, 0, 0])));
    let reply = |kind, options: &[u8]| {
        let mut frame = ipv6(other6(), 17, &udp((547, 546), &message(kind, options)));
        frame[..6].copy_from_slice(&MAC.0);
        frame
    };
    let sends = ipv6(given, 6, &[0; 20]);
    let learn = |frame: &[u8]| guard.snoop(frame, origin(0), 1, |_| true);
    learn(&reply(7, &association(50)));
    assert!(!passes_at(&guard, &sends, 1), "it has not asked");
    assert!(passes_at(&guard, &asks, 1));
    let mut to_other = reply(7, &association(50));
    to_other[..6].copy_from_slice(&OTHER_MAC.0);
    learn(&to_other);
    learn(&reply(2, &association(50)));
    learn(&reply(7, &association(50)[..30]));
    learn(&reply(7, &association(0)));
    assert!(!passes_at(&guard, &sends, 1));
    learn(&reply(7, &[&[0, 2, 0, 1, 9][..], &association(50)].concat()));
    assert!(passes_at(&guard, &sends, 50) && !passes_at(&guard, &sends, 51));
    learn(&reply(7, &association(0)));
    assert!(!passes_at(&guard, &sends, 2), "taken back");
    learn(&reply(7, &association(50)));
    assert!(passes_at(&guard, &sends, 2));
    let releases = message(8, &association(0));
    guard.snoop_question(&ipv6(link6(), 17, &udp(dhcp::PORTS6, &releases)), 1200);
    assert!(!passes_at(&guard, &sends, 2));
}

pub(super) fn any_message_is_read(bytes: &[u8]) {
    let guard = snooping();
    let answers = [
        ipv4(OTHER4, ALL4, 17, 0, &udp((67, 68), bytes)),
        ipv6(other6(), 17, &udp((547, 546), bytes)),
        ipv4(
            OTHER4,
            ALL4,
            17,
            0,
            &udp((67, 68), &[&gives(MAC, GIVEN4, 1)[MESSAGE..][..240], bytes].concat()),
        ),
    ];
    for frame in answers {
        guard.snoop(&frame, origin(0), 1, |_| true);
    }
    guard.snoop_question(&ipv6(link6(), 17, &udp(dhcp::PORTS6, bytes)), 1200);
    guard.snoop_question(&ipv4(GIVEN4, OTHER4, 17, 0, &udp(dhcp::PORTS, bytes)), 1200);
    assert_eq!(guard.leases(1).count(), 0);
}

const GATEWAY: [u8; 4] = [10, 0, 0, 254];

fn gateway6() -> [u8; 16] {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0xfe).octets()
}

fn roles() -> SourceGuard {
    let others = [IpAddr::from(GATEWAY), IpAddr::from(gateway6())];
    SourceGuard::of_roles(others)
}

fn says(frame: &[u8]) -> Result<(), DropReason> {
    judge(&roles(), frame)
}

#[test]
fn any_address_is_the_guests_but_those_of_others() {
    let data = [9; 20];
    assert_eq!(says(&ipv4(OTHER4, [10, 0, 0, 3], 6, 0, &data)), Ok(()));
    assert_eq!(says(&ipv4(GATEWAY, [10, 0, 0, 3], 6, 0, &data)), Err(DropReason::SourceGuardIp));
    assert_eq!(says(&ipv6(other6(), 6, &data)), Ok(()));
    assert_eq!(says(&ipv6(gateway6(), 6, &data)), Err(DropReason::SourceGuardIp));
    for operation in [1, 2] {
        let claims = |own| arp(operation, (MAC, own), (MAC, [10, 0, 0, 3]));
        assert_eq!(says(&claims(OTHER4)), Ok(()));
        assert_eq!(says(&claims(GATEWAY)), Err(DropReason::SourceGuardArp));
        let asks = arp(operation, (MAC, OTHER4), (MAC, GATEWAY));
        assert_eq!(says(&asks), Ok(()), "it may ask for them");
    }
    let advertises = |target| ipv6(other6(), 58, &nd(136, Some(target), &link_layer(2, MAC)));
    assert_eq!(says(&advertises(other6())), Ok(()));
    assert_eq!(says(&advertises(gateway6())), Err(DropReason::SourceGuardNd));
    let solicits = ipv6(other6(), 58, &nd(135, Some(gateway6()), &link_layer(1, MAC)));
    assert_eq!(says(&solicits), Ok(()));
    // These protocols have no such addresses.
    assert_eq!(says(&ethernet(0x88b5, &data)), Ok(()));
}

#[test]
fn it_is_no_server_and_no_router() {
    let server = ipv4(OTHER4, [255; 4], 17, 0, &udp((67, 68), &[2; 240]));
    assert_eq!(says(&server), Err(DropReason::SourceGuardIp));
    let client = ipv4([0; 4], [255; 4], 17, 0, &udp((68, 67), &[1; 240]));
    assert_eq!(says(&client), Ok(()));
    let server6 = ipv6(other6(), 17, &udp((547, 546), &[7; 40]));
    assert_eq!(says(&server6), Err(DropReason::SourceGuardIp));
    for kind in [134, 137] {
        let frame = ipv6(link6(), 58, &nd(kind, None, &[]));
        assert_eq!(says(&frame), Err(DropReason::SourceGuardNd), "{kind}");
    }
}

#[test]
fn no_role_hides_behind_fragments_headers_and_checksums() {
    // weir does not see the ports.
    let tiny = ipv4(OTHER4, [255; 4], 17, 0x2000, &[]);
    assert_eq!(says(&tiny), Err(DropReason::SourceGuardIp));
    let later = ipv4(OTHER4, [255; 4], 17, 0x2001, &[0, 67, 0, 68, 0, 0, 0, 0]);
    assert_eq!(says(&later), Ok(()), "without its first fragment it is nothing");
    let fragment = [[58, 0, 0, 1].as_slice(), &[0; 4], &nd(134, None, &[])].concat();
    assert_eq!(says(&ipv6(link6(), 44, &fragment)), Err(DropReason::SourceGuardNd));
    let options = [[58, 0].as_slice(), &[1, 4, 0, 0, 0, 0], &nd(134, None, &[])].concat();
    assert_eq!(says(&ipv6(link6(), 60, &options)), Err(DropReason::SourceGuardNd));
    // Two bytes are filled in later.
    let innocent = ipv4(OTHER4, [255; 4], 17, 0, &udp((1, 68), &[2; 240]));
    for csum_at in [14 + 12, 14 + 20] {
        let judged = judge_before_fill(&roles(), &innocent, Some(csum_at));
        assert_eq!(judged, Err(DropReason::SourceGuardIp), "{csum_at}");
    }
    let asks = arp(1, (MAC, OTHER4), (MAC, GATEWAY));
    let judged = judge_before_fill(&roles(), &asks, Some(14 + 14));
    assert_eq!(judged, Err(DropReason::SourceGuardArp));
}
