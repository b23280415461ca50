//! Malicious guests and front ends. Each loses its own port, with a named reason; a neighbour's traffic continues.

use proptest::prelude::*;
use weir_engine::guest::GuestPort;

use super::session::{drops, stopped_with};
use super::*;
use weir_wire::vnet;

/// Two guests that must still exchange frames after any attack by a third one.
struct Neighbours {
    switch: Switch,
    a: Guest,
    b: Guest,
}

impl Neighbours {
    fn new() -> Self {
        let switch = Switch::new();
        let (mut a, mut b) = (switch.guest(1, modern()), switch.guest(2, modern()));
        introduce(&mut a, &mut b);
        a.post(1);
        b.post(1);
        Self { switch, a, b }
    }

    /// A third guest, whose greetings the others have taken already.
    fn third(&self) -> Guest {
        self.switch.guest(3, modern())
    }

    fn still_talk(&mut self) {
        let sent = frame(&self.a, Some(&self.b), 1000, 42);
        self.a.send(&sent);
        loop {
            // Frames that the third guest managed to send come first.
            let (vnet, arrived) = self.b.wait_received();
            self.b.post(vnet.num_buffers);
            if arrived == sent {
                break;
            }
        }
    }
}

#[test]
fn a_ring_full_of_garbage_stops_its_port_only() {
    let mut neighbours = Neighbours::new();
    let guest = neighbours.third();
    let ring = ring_at(1);
    let raw = guest.raw();
    let at = |address: u64| (address - USER) as usize;
    raw.store_release(at(ring.driver) + 2, 30_000);
    guest.kick(1);
    stopped_with(&guest.port, "ring 1: available index jumped from 0 to 30000");
    assert_eq!(guest.port.info().state, State::Stopped);
    neighbours.still_talk();
}

#[test]
fn a_packed_ring_full_of_garbage_stops_its_port_only() {
    let mut neighbours = Neighbours::new();
    let guest = neighbours.switch.guest(3, modern() | RING_PACKED);
    let at = (ring_at(1).descriptor - USER) as usize;
    for slot in 0..usize::from(SIZE) {
        // Each descriptor is available, and chained to the next slot.
        guest.raw().write(at + 16 * slot, [1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0x81, 0]);
    }
    guest.kick(1);
    stopped_with(&guest.port, "ring 1: slot 0 of 64 was made available again before it was used");
    neighbours.still_talk();
}

#[test]
fn garbage_in_a_receive_ring_stops_its_port_only() {
    let mut neighbours = Neighbours::new();
    let mut guest = neighbours.third();
    // Descriptor 0 becomes readable, so the device must not write it.
    guest.raw().store((ring_at(0).descriptor - USER) as usize + 12, 0);
    let hello = frame(&neighbours.a, None, 60, 1);
    neighbours.a.send(&hello);
    stopped_with(&guest.port, "ring 0: descriptor chain from 0 of a receive queue");
    assert_eq!(guest.received(), None);
    neighbours.b.wait_received();
    neighbours.b.post(1);
    neighbours.still_talk();
}

#[test]
fn headers_that_lie_stop_the_port() {
    let lies = [
        (
            "is beyond the frame",
            VnetHdr { flags: vnet::F_NEEDS_CSUM, csum_start: 60, ..VnetHdr::default() },
        ),
        (
            "is inside the Ethernet",
            VnetHdr { flags: vnet::F_NEEDS_CSUM, csum_start: 6, ..VnetHdr::default() },
        ),
        ("was not offered", VnetHdr { gso_type: vnet::GSO_UDP, ..VnetHdr::default() }),
        (
            "without NEEDS_CSUM",
            VnetHdr { gso_type: vnet::GSO_TCPV4, gso_size: 100, ..VnetHdr::default() },
        ),
    ];
    let mut neighbours = Neighbours::new();
    for (reason, vnet) in lies {
        let mut guest = neighbours.third();
        let sent = frame(&guest, None, 60, 1);
        guest.offer(0, &vnet, &sent);
        guest.send_now();
        stopped_with(&guest.port, reason);
        neighbours.still_talk();
    }
}

#[test]
fn frames_too_short_or_too_long_are_dropped_and_counted() {
    let switch = Switch::new();
    let mut a = switch.guest(1, modern());
    for len in [0u32, 1, 11, 12, 25] {
        if len > 0 {
            a.tx.offer(&[Buffer { address: TX_BUFFERS, len, writable: false }]).unwrap();
            a.send_now();
            a.reap();
        }
    }
    assert_eq!(drops(&a.port, "frame_too_short"), 4);
    a.tx.offer(&[Buffer { address: TX_BUFFERS, len: 70_000, writable: false }]).unwrap();
    a.send_now();
    a.reap();
    assert_eq!(drops(&a.port, "frame_too_long"), 1);
    assert_eq!(a.port.info().state, State::Running);
}

#[test]
fn memory_that_is_truncated_stops_its_port_only() {
    let mut neighbours = Neighbours::new();
    let mut guest = neighbours.third();
    let sent = frame(&guest, None, 60, 1);
    guest.offer(0, &VnetHdr::default(), &sent);
    guest.tx.publish();
    ftruncate(&guest.memfd, 0).unwrap();
    guest.kick(1);
    stopped_with(&guest.port, "truncated");
    neighbours.still_talk();
}

#[test]
fn a_ring_that_reads_as_broken_in_truncated_memory_is_not_what_its_port_stops_for() {
    let mut neighbours = Neighbours::new();
    let mut guest = neighbours.third();
    let sent = frame(&guest, None, 60, 1);
    guest.offer(0, &VnetHdr::default(), &sent);
    guest.tx.publish();
    guest.kick(1);
    assert_eq!(neighbours.b.wait_received().1, sent);
    neighbours.b.post(1);
    // The available index falls from 1 to 0, which alone would be a jump.
    ftruncate(&guest.memfd, 0).unwrap();
    guest.kick(1);
    stopped_with(&guest.port, "truncated");
    neighbours.still_talk();
}

#[test]
fn a_stopped_port_starts_afresh_with_a_reset() {
    let neighbours = Neighbours::new();
    let mut guest = neighbours.third();
    guest.raw().store_release((ring_at(1).driver - USER) as usize + 2, 30_000);
    guest.kick(1);
    let port = Arc::clone(&guest.port);
    eventually("stops", || port.info().state == State::Stopped);
    guest.front.set_status(0).unwrap();
    guest.front.get_status().unwrap();
    assert_eq!(port.info().state, State::Halted);
    assert!(port.info().stop_reason.is_some(), "the reason is still to be seen");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Garbage anywhere in the rings and their buffers, with kicks in between.
    #[test]
    fn garbage_in_guest_memory_harms_nobody_else(
        writes in proptest::collection::vec((0usize..0x8000, any::<u64>(), any::<bool>()), 1..60),
        avail in any::<u16>(),
    ) {
        let mut neighbours = Neighbours::new();
        let mut guest = neighbours.third();
        let raw = guest.raw();
        for (i, (at, word, small)) in writes.iter().enumerate() {
            let word = if *small { word & 0x0003_0007_0000_ffff } else { *word };
            raw.write(at & !7, word.to_le_bytes());
            if i % 8 == 0 {
                raw.store_release((ring_at(1).driver - USER) as usize + 2, avail % 80);
                guest.kick(1);
                guest.kick(0);
            }
        }
        neighbours.still_talk();
        // The session still answers, or is over; its thread runs in any case.
        let _ = guest.front.get_features();
        let mut next = neighbours.switch.guest(4, modern());
        next.front.get_features().unwrap();
    }

    /// A front end that sends any requests, in any order, and disconnects at any point.
    #[test]
    fn any_sequence_of_requests_harms_nobody_else(
        requests in proptest::collection::vec((0u8..14, 0u32..6, any::<u16>()), 1..40),
    ) {
        let mut neighbours = Neighbours::new();
        let (port, stream) = neighbours.switch.port();
        let mut guest = Guest::new(port, stream, 3, modern());
        guest.front.set_timeout(Duration::from_millis(200));
        for (request, index, value) in requests {
            let front = &mut guest.front;
            let kick = guest.kicks[0].as_fd();
            let done = match request {
                0 => front.set_features(if value % 2 == 0 { modern() } else { modern() & !F_PROTOCOL }),
                1 => front.set_protocol_features(if value % 2 == 0 { REPLY_ACK } else { 0 }),
                2 => front.set_mem_table(&[(Guest::region(), guest.memfd.as_fd())]),
                3 => front.set_vring_num(index, 1 << (value % 17)),
                4 => front.set_vring_base(index, value.into()),
                5 => {
                    let at = ring_at(u64::from(value % 4));
                    front.set_vring_addr(VringAddr {
                        index, flags: 0, descriptor: at.descriptor, used: at.device,
                        available: at.driver, log: 0,
                    })
                }
                6 => front.set_vring_kick(index, Some(kick)),
                7 => front.set_vring_call(index, Some(guest.calls[0].as_fd())),
                8 => front.set_vring_enable(index, value % 2 == 0),
                9 => front.get_vring_base(index).map(drop),
                10 => front.set_status(u64::from(value) & 0xff),
                11 => front.reset_device(),
                12 => front.rem_mem_reg(Guest::region()),
                _ => front.raw_send(&value.to_le_bytes(), &[]),
            };
            guest.kick(0);
            if done.is_err() {
                break;
            }
        }
        drop(guest);
        neighbours.still_talk();
    }
}

#[test]
fn a_front_end_that_shares_more_than_it_may_loses_its_session_only() {
    let mut neighbours = Neighbours::new();
    let guest = neighbours.third();
    let max = weir_limits::MEMORY_MAX_DEFAULT;
    assert_eq!(guest.port.memory().mapped().bytes, MEMORY);
    let sparse = memfd_create("sparse", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&sparse, 1 << 46).unwrap();
    let mut region = Guest::region();
    (region.guest_address, region.user_address, region.size) = (1 << 47, 1 << 48, 1 << 46);
    let mut guest = guest;
    let _ = guest.front.add_mem_reg(region, sparse.as_fd());
    let bytes = MEMORY + (1 << 46);
    let why = "region at guest address 0x800000000000:";
    let bound = format!(
        "the regions have {bytes} bytes in all; `memory_max` of this interface allows {max}"
    );
    stopped_with(&guest.port, &format!("ADD_MEM_REG: {why} {bound}"));
    assert_eq!(guest.port.memory().mapped().regions, 0, "what it had is unmapped");
    neighbours.still_talk();
}
