//! Multicast snooping, while frames pass through the switch.

use etherparse::PacketBuilder;
use weir_fabric::{Snooping, Vid};

use super::*;

/// A message of IGMP for `group`, padded.
fn igmp(from: u8, to: [u8; 4], kind: u8, code: u8, group: [u8; 4]) -> Vec<u8> {
    let mut message = [&[kind, code, 0, 0][..], &group].concat();
    let mut sum = weir_wire::Sum::new();
    sum.add(&message);
    message[2..4].copy_from_slice(&sum.finish().to_be_bytes());
    ip(from, to, 2, &message)
}

/// An IPv4 packet for a group, with the number in its last byte.
fn ip(from: u8, to: [u8; 4], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mac = [0x01, 0x00, 0x5e, to[1] & 0x7f, to[2], to[3]];
    let builder =
        PacketBuilder::ethernet2([2, 0, 0, 0, 0, from], mac).ipv4([10, 0, 0, from], to, 1);
    let mut frame = Vec::new();
    builder.write(&mut frame, protocol.into(), payload).unwrap();
    frame
}

/// The last byte of each frame that the port got.
fn numbers(port: &FakePort) -> Vec<u8> {
    port.got.lock().unwrap().iter().filter_map(|(_, frame)| frame.last().copied()).collect()
}

#[test]
fn a_group_goes_to_its_members_and_a_forged_query_to_nobody() {
    const GROUP: [u8; 4] = [239, 1, 2, 3];
    let engine = Engine::start(1).unwrap();
    engine.fabric().snoop(Snooping::new([Vid::DEFAULT].into_iter()).unwrap());
    let open = PortConfig { mac_check: MacCheck::Off, ..PortConfig::vif() };
    let router = PortConfig { multicast_router: true, ..open.clone() };
    let mut all_counters = Vec::new();
    let ports = [router, open.clone(), open.clone(), open].map(|config| {
        let make = |id, counters| {
            all_counters.push(counters);
            Arc::new(FakePort::new(id))
        };
        let (id, port) = engine.add_port(config, make).unwrap();
        engine.fabric().set_active(id, true).unwrap();
        port
    });
    // The worker serves receivers in this order: once the member has a frame, the others have it too.
    let [router, other, guest, member] = &ports;
    let number = |number: u8| ip(1, GROUP, 17, &[0, 0, 0, 0, 0, 8, 0, 0, number]);
    let last = |port: &FakePort| numbers(port).last().copied();
    // A query that gives 0.1 s for answers: the switch waits for the rest of this second and one more.
    send(&engine, router, [igmp(1, [224, 0, 0, 1], 0x11, 1, [0; 4])]);
    eventually("the query is for all", || ports[1..].iter().all(|port| numbers(port).len() == 1));
    send(&engine, member, [igmp(2, GROUP, 0x16, 0, GROUP)]);
    eventually("the report is for the router", || numbers(router).len() == 1);
    eventually("who has not answered gets nothing any more", || {
        let [before, had] = [other, member].map(|port| numbers(port).len());
        send(&engine, router, [number(7)]);
        eventually("the member gets it", || numbers(member).len() > had);
        send(&engine, member, [igmp(2, GROUP, 0x16, 0, GROUP)]);
        numbers(other).len() == before
    });
    let (of_other, of_guest) = (numbers(other).len(), numbers(guest).len());
    send(&engine, router, [number(8)]);
    eventually("the member gets it", || last(member) == Some(8));
    let thought = engine.trace(router.id, &number(9));
    assert!(thought.iter().any(|step| matches!(step, crate::trace::Step::Members { ports: 1 })));
    // A guest would like to be a router.
    send(&engine, guest, [igmp(4, [224, 0, 0, 1], 0x11, 1, [0; 4])]);
    eventually("its query is dropped", || {
        all_counters[2].drops().collect::<Vec<_>>() == [("multicast_query", 1)]
    });
    let drops = engine.trace(guest.id, &igmp(4, [224, 0, 0, 1], 0x11, 1, [0; 4]));
    let dropped = |step: &crate::trace::Step| matches!(step, crate::trace::Step::Dropped { .. });
    assert!(drops.iter().any(dropped));
    // A frame for all stations still goes to all: this is the first frame since then that the other ports get.
    send(&engine, router, [ip(1, [224, 0, 0, 251], 17, &[0, 0, 0, 0, 0, 8, 0, 0, 10])]);
    for port in [member, other, guest] {
        eventually("it arrives", || last(port) == Some(10));
    }
    assert_eq!(numbers(other).len(), of_other + 1);
    assert_eq!(numbers(guest).len(), of_guest + 1);
}
