//! Frames of multicast: messages of IGMP and MLD, and frames for a group. All come from one station.

use std::net::Ipv6Addr;

use weir_wire::Sum;
use weir_wire::layers::protocol;

/// The groups of routers that get messages of IGMPv2 and IGMPv3.
const ROUTERS: [u8; 4] = [224, 0, 0, 2];
const V3_ROUTERS: [u8; 4] = [224, 0, 0, 22];
/// The station of IGMP and MLD messages.
const STATION: [u8; 4] = [10, 0, 0, 9];
const STATION6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

/// A frame of IPv4 for `to`, with a router alert as IGMP has it.
pub fn ipv4(from: [u8; 4], to: [u8; 4], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x01, 0x00, 0x5e, to[1] & 0x7f, to[2], to[3], 2, 0, 0, 0, 0, 1, 8, 0];
    let [a, b] = (24 + payload.len() as u16).to_be_bytes(); // a test sends short frames
    let mut header = vec![0x46, 0xc0, a, b, 0, 0, 0x40, 0, 1, protocol, 0, 0];
    header.extend([from, to].concat());
    header.extend([0x94, 4, 0, 0]);
    let mut sum = Sum::new();
    sum.add(&header);
    header[10..12].copy_from_slice(&sum.finish().to_be_bytes());
    frame.extend(header);
    frame.extend(payload);
    // Short frames are padded.
    frame.resize(frame.len().max(60), 0);
    frame
}

/// The message with its checksum, of which `sum` is the part that is not in the message.
pub fn summed(mut message: Vec<u8>, mut sum: Sum) -> Vec<u8> {
    sum.add(&message);
    message[2..4].copy_from_slice(&sum.finish().to_be_bytes());
    message
}

/// A message of IGMP: its type, its second byte, and what follows the checksum.
pub fn igmp(kind: u8, code: u8, rest: &[u8]) -> Vec<u8> {
    summed([&[kind, code, 0, 0], rest].concat(), Sum::new())
}

/// A general query of IGMPv2 that gives a second for answers, or of a group.
pub fn query(from: [u8; 4], group: [u8; 4]) -> Vec<u8> {
    let to = if group == [0; 4] { [224, 0, 0, 1] } else { group };
    ipv4(from, to, protocol::IGMP, &igmp(0x11, 10, &group))
}

/// A report of IGMPv2.
pub fn v2_report(group: [u8; 4]) -> Vec<u8> {
    ipv4(STATION, group, protocol::IGMP, &igmp(0x16, 0, &group))
}

/// A leave of IGMPv2.
pub fn v2_leave(group: [u8; 4]) -> Vec<u8> {
    ipv4(STATION, ROUTERS, protocol::IGMP, &igmp(0x17, 0, &group))
}

/// A report of IGMPv3: records as (type, sources, group).
pub fn v3_report(records: &[(u8, u16, [u8; 4])]) -> Vec<u8> {
    let mut rest = vec![0, 0];
    rest.extend((records.len() as u16).to_be_bytes()); // a test sends few records
    for (kind, sources, group) in records {
        rest.extend([*kind, 0]);
        rest.extend(sources.to_be_bytes());
        rest.extend(group);
        (0..*sources).for_each(|_| rest.extend([192, 0, 2, 7]));
    }
    ipv4([0; 4], V3_ROUTERS, protocol::IGMP, &igmp(0x22, 0, &rest))
}

/// A frame of UDP for a group.
pub fn data(group: [u8; 4]) -> Vec<u8> {
    ipv4([10, 0, 0, 1], group, 17, &[0; 16])
}

/// A frame of IPv6 for `to`: its payload follows a hop-by-hop header with a router alert, or is UDP.
pub fn ipv6(to: Ipv6Addr, message: Option<&[u8]>) -> Vec<u8> {
    let mut frame = vec![0x33, 0x33];
    frame.extend(&to.octets()[12..]);
    frame.extend([2, 0, 0, 0, 0, 1, 0x86, 0xdd, 0x60, 0, 0, 0]);
    let payload = match message {
        None => vec![0; 16],
        Some(message) => [&[protocol::ICMPV6, 0, 5, 2, 0, 0, 1, 0], message].concat(),
    };
    frame.extend((payload.len() as u16).to_be_bytes()); // a test sends short frames
    frame.extend([if message.is_some() { protocol::HOP_BY_HOP } else { 17 }, 1]);
    frame.extend(STATION6.octets());
    frame.extend(to.octets());
    frame.extend(payload);
    frame
}

/// A message of MLD: its destination, type and response time, and what follows the reserved field.
pub fn mld(to: Ipv6Addr, kind: u8, code: u16, rest: &[u8]) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0];
    message.extend(code.to_be_bytes());
    message.extend(rest);
    let mut sum = Sum::new();
    sum.add(&STATION6.octets());
    sum.add(&to.octets());
    sum.add_u32(message.len() as u32 + u32::from(protocol::ICMPV6)); // a test sends short frames
    ipv6(to, Some(&summed(message, sum)))
}

/// A general query of MLDv1 that gives a second for answers, or of a group.
pub fn mld_query(group: Ipv6Addr) -> Vec<u8> {
    let all = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let to = if group.is_unspecified() { all } else { group };
    mld(to, 130, 1000, &[&[0, 0][..], &group.octets()].concat())
}

/// A report of MLDv1.
pub fn mld_report(group: Ipv6Addr) -> Vec<u8> {
    mld(group, 131, 0, &[&[0, 0][..], &group.octets()].concat())
}

/// A done of MLDv1.
pub fn mld_done(group: Ipv6Addr) -> Vec<u8> {
    let routers = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
    mld(routers, 132, 0, &[&[0, 0][..], &group.octets()].concat())
}

/// A report of MLDv2 with one record, of this type and with this number of sources.
pub fn mld2_report(kind: u8, sources: u16, group: Ipv6Addr) -> Vec<u8> {
    let routers = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
    let mut record = [&[0, 1, kind, 0], &sources.to_be_bytes()[..], &group.octets()].concat();
    (0..sources).for_each(|_| record.extend(STATION6.octets()));
    mld(routers, 143, 0, &record)
}
