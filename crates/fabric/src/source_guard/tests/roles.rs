//! Guests that must not act as a router or a server.

use super::*;

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
    // The ports are not in sight.
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
