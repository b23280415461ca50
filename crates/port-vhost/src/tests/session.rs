//! The rules of a session, by name.

use std::io::Write;
use std::path::Path;
use weir_engine::guest::GuestPort;
use weir_fabric::{Vid, VlanMode, VlanSet};
use weir_foreign::place::Links;
use weir_foreign::{Party, reach};
use weir_limits::ANNOUNCED_VLANS_MAX;

use super::*;
use weir_vhost_user::VHOST_USER_PROTOCOL_F_INBAND_NOTIFICATIONS;

#[test]
fn rings_start_on_kick_and_stop_on_get_vring_base() {
    for format in formats() {
        let switch = Switch::new();
        let mut other = switch.guest(2, format);
        let (port, stream) = switch.port();
        let mut guest = Guest::new(port, stream, 1, format);
        guest.set_up().unwrap();
        assert_eq!(guest.port.info().state, State::Connected, "complete, but nobody has kicked");

        // A frame that is in the ring before the kick stays there.
        let hello = frame(&guest, None, 60, 1);
        guest.offer(0, &VnetHdr::default(), &hello);
        guest.tx.publish();
        guest.post(SIZE);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(guest.tx.take(), None);

        guest.kick(1);
        assert_eq!(other.wait_received().1, hello);
        guest.reap();
        guest.kick(0);
        let port = Arc::clone(&guest.port);
        eventually("the receive ring starts", || port.info().state == State::Running);

        let packed = format & RING_PACKED != 0;
        let bases = if packed { [0x8000_8000, 0x8001_8001] } else { [0, 1] };
        assert_eq!(guest.front.get_vring_base(0).unwrap(), bases[0], "no buffer was used");
        assert_eq!(guest.front.get_vring_base(1).unwrap(), bases[1], "one frame was taken");
        guest.offer(1, &VnetHdr::default(), &hello);
        guest.tx.publish();
        guest.kick(1);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(guest.tx.take(), None, "a stopped ring is not touched, kick or no kick");
        assert_eq!(guest.port.info().state, State::Halted);
    }
}

/// QEMU stops each ring of a VM that is paused, or whose link is taken down, and sets status 0; QEMU 7.2 does both in
/// the opposite order. If a driver resets its device, QEMU 10 and 11 send `RESET_DEVICE` as well.
#[test]
fn a_device_that_ran_and_was_stopped_is_halted_until_it_runs_again_or_is_reset() {
    let switch = Switch::new();
    let mut guest = switch.guest(1, modern());
    let state = |guest: &mut Guest| {
        guest.front.get_features().unwrap();
        guest.port.info().state
    };
    let stop = |guest: &mut Guest| {
        for ring in 0..2 {
            guest.front.get_vring_base(ring).unwrap();
        }
        guest.front.set_status(0).unwrap();
    };
    guest.front.get_vring_base(1).unwrap();
    assert_eq!(state(&mut guest), State::Running, "a ring is left");
    stop(&mut guest);
    assert_eq!(state(&mut guest), State::Halted);
    guest.set_up().unwrap();
    guest.kick(0);
    let port = Arc::clone(&guest.port);
    eventually("it goes on", || port.info().state == State::Running);
    guest.front.set_status(0).unwrap();
    stop(&mut guest);
    assert_eq!(state(&mut guest), State::Halted);
    guest.front.reset_device().unwrap();
    assert_eq!(state(&mut guest), State::Connected, "its driver has gone");
    // A device that has never run is only connected, whatever is asked of its rings.
    stop(&mut guest);
    assert_eq!(state(&mut guest), State::Connected);
    drop(guest);
    eventually("the session ends", || port.info().state == State::Waiting);
}

#[test]
fn a_disabled_ring_still_drains_tx() {
    let switch = Switch::new();
    let (mut a, mut b) = (switch.guest(1, modern()), switch.guest(2, modern()));
    introduce(&mut a, &mut b);
    a.front.set_vring_enable(1, false).unwrap();
    a.front.get_features().unwrap(); // the request before has been served when this is answered
    a.send(&frame(&a, Some(&b), 60, 7)); // waits for its buffer: it comes back
    assert_eq!(b.received(), None, "but the frame goes nowhere");
    assert_eq!(drops(&a.port, "tx_disabled"), 1);
    a.front.set_vring_enable(1, true).unwrap();
    a.front.get_features().unwrap();
    let again = frame(&a, Some(&b), 60, 8);
    a.send(&again);
    assert_eq!(b.wait_received().1, again);
}

#[test]
fn a_disabled_receive_ring_gets_nothing() {
    let switch = Switch::new();
    let (mut a, mut b) = (switch.guest(1, modern()), switch.guest(2, modern()));
    introduce(&mut a, &mut b);
    b.front.set_vring_enable(0, false).unwrap();
    b.front.get_features().unwrap();
    a.send(&frame(&a, Some(&b), 60, 7));
    assert_eq!(b.received(), None);
    assert_eq!(drops(&b.port, "rx_not_ready"), 1);
}

#[test]
fn without_protocol_features_rings_start_enabled() {
    let switch = Switch::new();
    let (mut a, mut b) =
        (switch.guest(1, modern() & !F_PROTOCOL), switch.guest(2, modern() & !F_PROTOCOL));
    introduce(&mut a, &mut b);
}

#[test]
fn with_protocol_features_rings_start_disabled() {
    let switch = Switch::new();
    let (port, stream) = switch.port();
    let mut guest = Guest::new(port, stream, 1, modern());
    guest.negotiate().unwrap();
    guest.front.set_mem_table(&[(Guest::region(), guest.memfd.as_fd())]).unwrap();
    guest.vring(1).unwrap();
    guest.front.set_vring_kick(1, Some(guest.kicks[1].as_fd())).unwrap();
    guest.kick(1);
    guest.send(&frame(&guest, None, 60, 1));
    assert_eq!(drops(&guest.port, "tx_disabled"), 1);
}

#[test]
fn the_inband_notification_bit_is_never_acked() {
    let switch = Switch::new();
    let (port, stream) = switch.port();
    let mut guest = Guest::new(port, stream, 1, modern());
    let bit = 1 << VHOST_USER_PROTOCOL_F_INBAND_NOTIFICATIONS;
    assert_eq!(guest.front.get_protocol_features().unwrap() & bit, 0);
    guest.front.set_protocol_features(bit).unwrap();
    assert!(guest.front.get_features().is_err(), "the session is over");
    let port = guest.port;
    eventually("a reason", || {
        port.info().stop_reason.is_some_and(|r| r.contains("were not offered"))
    });
}

/// QEMU with `in_order=on` takes these chains while its back end is away.
#[test]
fn what_a_front_end_took_and_never_returned_is_served_in_order() {
    for (format, new) in formats().into_iter().flat_map(|format| [(format, false), (format, true)])
    {
        let switch = Switch::new();
        let (mut a, mut b) = (switch.guest(1, format), switch.guest(2, format));
        if new {
            // No chain of its transmit ring has come back yet.
            let hello = frame(&b, None, 60, 0);
            b.send(&hello);
            a.wait_received();
        } else {
            introduce(&mut a, &mut b);
        }
        let bases = [0, 1].map(|ring| a.front.get_vring_base(ring).unwrap());
        let fd = || eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
        // The guest's driver has kicked before, and need not kick again.
        a.kicks = [fd(), fd()];
        let posted = a.rx.in_flight();
        let late: Vec<_> = (0..3).map(|number| frame(&a, Some(&b), 60, number)).collect();
        for (number, late) in (0..).zip(&late) {
            a.offer(number, &VnetHdr::default(), late);
        }
        a.tx.publish();
        for ring in 0..2 {
            // Two chains are missing; for a packed ring the lower half states this.
            a.front.set_vring_base(ring, bases[ring as usize] + 2).unwrap();
            a.front.set_vring_kick(ring, Some(a.kicks[ring as usize].as_fd())).unwrap();
        }
        for late in &late {
            assert_eq!(&b.wait_received().1, late, "{format:#x}");
        }
        a.reap();
        assert_eq!((a.tx.in_flight(), a.tx.skipped()), (0, 0), "{format:#x}");
        // All of the guest's buffers are filled: none is lost.
        for number in 0..posted {
            let back = frame(&b, Some(&a), 60, number as u8);
            b.send(&back);
            assert_eq!(a.wait_received().1, back, "{format:#x}: {number} of {posted}");
        }
        assert_eq!((a.rx.in_flight(), a.rx.skipped()), (0, 0), "{format:#x}");
    }
}

#[test]
fn a_ring_that_comes_with_a_base_is_served_without_a_kick() {
    for format in formats() {
        let switch = Switch::new();
        let (mut a, mut b) = (switch.guest(1, format), switch.guest(2, format));
        introduce(&mut a, &mut b);
        // The switch goes away. The guest's rings stay as they are, and a frame is put in unnoticed.
        let bases = [0, 1].map(|ring| a.front.get_vring_base(ring).unwrap());
        let late = frame(&a, Some(&b), 60, 9);
        a.offer(0, &VnetHdr::default(), &late);
        a.tx.publish();
        // A front end that reconnects states where the rings stood.
        for ring in 0..2 {
            a.front.set_vring_base(ring, bases[ring as usize]).unwrap();
            a.front.set_vring_kick(ring, Some(a.kicks[ring as usize].as_fd())).unwrap();
        }
        assert_eq!(b.wait_received().1, late);
    }
}

#[test]
fn numbers_of_queues_and_memory_slots_are_answered() {
    let switch = Switch::new();
    let (_port, stream) = switch.port();
    let mut front = FrontEnd::new(stream);
    assert_eq!(front.get_features().unwrap(), OFFERED);
    assert_eq!(front.get_queue_num().unwrap(), 4);
    assert_eq!(front.get_max_mem_slots().unwrap(), 509);
}

#[test]
fn status_is_kept_and_zero_resets_the_device() {
    let switch = Switch::new();
    let mut guest = switch.guest(1, modern());
    guest.front.set_status(0xf).unwrap();
    assert_eq!(guest.front.get_status().unwrap(), 0xf);
    assert_eq!(guest.port.info().state, State::Running);
    guest.front.set_status(0).unwrap();
    assert_eq!(guest.front.get_status().unwrap(), 0);
    assert_eq!(guest.port.info().state, State::Halted);
}

#[test]
fn reset_device_stops_and_disables_all_rings() {
    let switch = Switch::new();
    let mut guest = switch.guest(1, modern());
    guest.front.reset_device().unwrap();
    guest.front.get_features().unwrap();
    assert_eq!(guest.port.info().state, State::Connected);
    assert_eq!(guest.port.info().features, modern());
}

#[test]
fn mtu_is_noted_and_a_senseless_one_refused() {
    let switch = Switch::new();
    let mut guest = switch.guest(1, modern());
    guest.front.net_set_mtu(9000).unwrap();
    assert_eq!(guest.port.info().mtu, Some(9000));
    assert!(matches!(guest.front.net_set_mtu(67), Err(FrontEndError::Refused { .. })));
}

#[test]
fn send_rarp_tells_everybody_where_the_guest_is() {
    let switch = Switch::new();
    let (mut a, mut b) = (switch.guest(1, modern()), switch.guest(2, modern()));
    introduce(&mut a, &mut b);
    a.front.send_rarp(a.mac).unwrap();
    let (_, rarp) = b.wait_received();
    assert_eq!(rarp[..6], [0xff; 6]);
    assert_eq!(rarp[6..12], a.mac);
    assert_eq!(rarp[12..14], [0x80, 0x35]);
    assert_eq!(rarp[20..22], [0, 3], "request reverse");
    assert_eq!(rarp[32..38], a.mac, "who am I");
}

/// The VLANs in which the next `number` frames of a trunk announce `mac`; 0 stands for no tag.
fn announced(guest: &mut Guest, mac: [u8; 6], number: usize) -> Vec<u16> {
    let mut vids: Vec<_> = (0..number)
        .map(|_| {
            let (_, mut rarp) = guest.wait_received();
            let vid = match rarp[12..14] {
                [0x81, 0] => u16::from_be_bytes([rarp[14], rarp[15]]),
                _ => 0,
            };
            if vid != 0 {
                rarp.drain(12..16);
            }
            assert_eq!((&rarp[6..12], &rarp[12..14]), (&mac[..], &[0x80, 0x35][..]));
            vid
        })
        .collect();
    vids.sort_unstable();
    vids
}

#[test]
fn send_rarp_tells_each_vlan_of_a_trunk_where_its_guest_is() {
    let switch = Switch::new();
    let (mut a, mut b) =
        (switch.guest(1, modern()), switch.guest_with_rings(2, modern(), SIZE_MAX));
    let trunk = |guest: &Guest, vlan| {
        let config = PortConfig { vlan, ..PortConfig::vif() };
        switch.engine.fabric().update_port(guest.port.id(), config).unwrap();
    };
    let native = Some(Vid::DEFAULT);
    trunk(&b, VlanMode::Trunk { native, allowed: VlanSet::All });
    // The announcement takes one frame more than a burst has.
    let vids = 100..100 + ANNOUNCED_VLANS_MAX as u16;
    let allowed = VlanSet::Only(vids.clone().map(|vid| Vid::new(vid).unwrap()).collect());
    trunk(&a, VlanMode::Trunk { native, allowed });
    a.front.send_rarp(a.mac).unwrap();
    let mac = a.mac;
    let expected: Vec<_> = std::iter::once(0).chain(vids).collect();
    assert_eq!(announced(&mut b, mac, expected.len()), expected);

    // With all VLANs allowed, the announcement goes to those in which the guest's frames were seen.
    trunk(&a, VlanMode::Trunk { native: None, allowed: VlanSet::All });
    for vid in [7u16, 4094] {
        let mut tagged = frame(&a, None, 60, 1);
        tagged.splice(12..12, [0x81, 0, (vid >> 8) as u8, vid as u8]);
        a.send(&tagged);
        b.wait_received();
    }
    a.front.send_rarp(a.mac).unwrap();
    assert_eq!(announced(&mut b, mac, 2), [7, 4094]);
    a.front.send_rarp(a.mac).unwrap();
    assert_eq!(announced(&mut b, mac, 2), [7, 4094], "and in no others");
    let dropped: u64 = a.port.counters().drops().map(|(_, number)| number).sum();
    assert_eq!(dropped, 0);
}

#[test]
fn send_rarp_without_end_costs_nothing_and_ends_with_its_session() {
    let switch = Switch::new();
    let (port, stream) = switch.port();
    let mut guest = Guest::new(port, stream, 1, modern());
    guest.negotiate().unwrap();
    for _ in 0..1000 {
        guest.front.send_rarp(guest.mac).unwrap();
    }
    assert!(guest.port.has_injected(), "it waits for the ring to start");
    let port = Arc::clone(&guest.port);
    drop(guest);
    eventually("the session ends", || port.info().closed == 1);
    assert!(!port.has_injected(), "the next guest does not send it");
}

#[test]
fn memory_is_added_and_removed_while_rings_run() {
    let switch = Switch::new();
    let (mut a, mut b) = (switch.guest(1, modern()), switch.guest(2, modern()));
    introduce(&mut a, &mut b);
    let extra = memfd_create("extra", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&extra, 1 << 20).unwrap();
    let far = 1 << 32;
    let region =
        MemoryRegion { guest_address: far, size: 1 << 20, user_address: USER * 2, mmap_offset: 0 };
    a.front.add_mem_reg(region, extra.as_fd()).unwrap();

    // This frame lies in the new memory.
    let whole = frame(&a, Some(&b), 60, 5);
    let mut bytes = VnetHdr::default().to_bytes().to_vec();
    bytes.extend(&whole);
    File::from(extra.try_clone().unwrap()).write_all(&bytes).unwrap();
    let buffer = Buffer { address: far, len: bytes.len() as u32, writable: false };
    a.tx.offer(&[buffer]).unwrap();
    a.send_now();
    a.reap();
    assert_eq!(b.wait_received().1, whole);

    a.front.rem_mem_reg(region).unwrap();
    a.send(&frame(&a, Some(&b), 60, 6));
    assert_eq!(b.wait_received().1[14], 6, "the rings go on in the old memory");
    a.tx.offer(&[buffer]).unwrap();
    a.send_now();
    stopped_with(&a.port, "is not in shared memory");
}

#[test]
fn a_refused_request_is_nacked_and_ends_the_session() {
    let switch = Switch::new();
    let (port, stream) = switch.port();
    let mut guest = Guest::new(port, stream, 1, modern());
    guest.negotiate().unwrap();
    let mut overlap = Guest::region();
    overlap.guest_address = 0x1000;
    overlap.user_address = 0x1000;
    let regions = [(Guest::region(), guest.memfd.as_fd()), (overlap, guest.memfd.as_fd())];
    let refused = guest.front.set_mem_table(&regions);
    assert!(matches!(refused, Err(FrontEndError::Refused { .. })), "{refused:?}");
    stopped_with(&guest.port, "overlap");
}

#[test]
fn each_senseless_request_ends_its_session_with_a_named_reason() {
    type Case = (&'static str, fn(&mut Guest) -> Result<(), FrontEndError>);
    let cases: [Case; 13] = [
        ("were not offered", |g| g.front.set_features(1 << 63)),
        ("ring 4 does not exist", |g| g.front.set_vring_num(4, 64)),
        ("is not a power of two", |g| g.front.set_vring_num(0, 48)),
        ("is not a power of two", |g| g.front.set_vring_num(0, 1 << 16)),
        ("packed queue size 32769 is not from 1", |g| {
            g.front.set_features(modern() | RING_PACKED)?;
            g.front.set_vring_num(0, 32_769)
        }),
        ("ring base 65536", |g| g.front.set_vring_base(0, 1 << 16)),
        ("has no size or no addresses", |g| {
            g.front.set_vring_num(2, 64)?;
            let kick = g.kicks[0].try_clone().unwrap();
            g.front.set_vring_kick(2, Some(kick.as_fd()))
        }),
        ("has no kick descriptor", |g| g.front.set_vring_kick(0, None)),
        ("call descriptor: /memfd:guest (deleted) cannot be called", |g| {
            g.front.set_vring_call(0, Some(g.memfd.as_fd()))
        }),
        ("kick descriptor: /memfd:guest (deleted) cannot be watched", |g| {
            g.front.set_vring_kick(0, Some(g.memfd.as_fd()))
        }),
        ("needs 0x900000 bytes of its file", |g| {
            let region = MemoryRegion { size: 9 << 20, ..Guest::region() };
            g.front.set_mem_table(&[(region, g.memfd.as_fd())])
        }),
        ("is not in shared memory", |g| {
            g.front.set_vring_addr(VringAddr {
                index: 0,
                flags: 0,
                descriptor: 0,
                used: 0,
                available: 0,
                log: 0,
            })
        }),
        ("the log descriptor: ", |g| g.front.set_log_fd(g.memfd.as_fd())),
    ];
    let switch = Switch::new();
    let (mut a, mut b) = (switch.guest(1, modern()), switch.guest(2, modern()));
    introduce(&mut a, &mut b);
    for (reason, request) in cases {
        let mut guest = switch.guest(3, modern());
        let answer = request(&mut guest);
        assert!(matches!(answer, Err(FrontEndError::Refused { .. })), "{reason}: {answer:?}");
        stopped_with(&guest.port, reason);
        assert!(guest.front.get_features().is_err(), "{reason}: the session is over");
        // The neighbours do not notice.
        let check = frame(&a, Some(&b), 60, 1);
        a.send(&check);
        b.wait_received();
        b.post(1);
    }
}

#[test]
fn a_front_end_that_does_not_accept_keeps_nobody_waiting() {
    let switch = Switch::new();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("deaf.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    // Fill the listener's queue (at most 4096 on Linux) so that another connect would wait.
    let mut waiting = Vec::new();
    loop {
        let flags = rustix::net::SocketFlags::NONBLOCK;
        let (family, kind) = (rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM);
        let socket = rustix::net::socket_with(family, kind, flags, None).unwrap();
        let address = rustix::net::SocketAddrUnix::new(&path).unwrap();
        if rustix::net::connect(&socket, &address).is_err() {
            break;
        }
        waiting.push(socket);
    }
    let (deaf, _stream) = switch.port();
    switch.manager.remove(deaf.id()).unwrap();
    let dial = |path: &Path, party: &Party| reach::connect(Links::Own, path, party, |_| false);
    switch.manager.add(deaf, Endpoint::Connect { path, dial: Box::new(dial) }).unwrap();
    let (_port, stream) = switch.port();
    let mut front = FrontEnd::new(stream);
    front.set_timeout(PATIENCE);
    assert_eq!(front.get_features().unwrap(), OFFERED);
    drop(listener);
}

#[test]
fn a_session_that_ends_lets_go_of_everything() {
    let switch = Switch::new();
    let guest = switch.guest(1, modern());
    let port = Arc::clone(&guest.port);
    assert_eq!(port.info().memory_bytes, MEMORY);
    drop(guest);
    // The rings stop first; the end of the session is noted next.
    eventually("the session ends", || port.info().closed + port.info().failed == 1);
    eventually("nobody is connected", || port.info().state == State::Waiting);
    let info = port.info();
    assert_eq!((info.memory_bytes, info.closed, info.failed), (0, 1, 0));
}

pub(super) fn drops(port: &VhostPort, reason: &str) -> u64 {
    port.counters().drops().find(|(name, _)| *name == reason).map_or(0, |(_, count)| count)
}

pub(super) fn stopped_with(port: &VhostPort, reason: &str) {
    eventually(reason, || port.info().stop_reason.is_some_and(|found| found.contains(reason)));
}

/// Two guests whose front ends have been silent for so long that their sessions have no threads.
fn silent_guests(switch: &Switch) -> (Guest, Guest) {
    let (mut a, mut b) = (switch.guest(1, modern()), switch.guest(2, modern()));
    introduce(&mut a, &mut b);
    for guest in [&a, &b] {
        eventually("it has no thread", || switch.manager.is_silent(guest.port.id()));
    }
    (a, b)
}

/// Sends a frame from one guest to the other. The frame must arrive.
fn pass(a: &mut Guest, b: &mut Guest) {
    let check = frame(a, Some(b), 60, 1);
    a.send(&check);
    assert_eq!(b.wait_received().1, check);
    b.post(1);
}

#[test]
fn a_silent_front_end_is_served_without_a_thread_and_has_one_when_it_speaks() {
    let switch = Switch::new();
    let (mut a, mut b) = silent_guests(&switch);
    pass(&mut a, &mut b);
    for dropped in 1..3 {
        a.front.set_vring_enable(1, false).unwrap();
        a.front.get_features().unwrap(); // the request before has been served when this is answered
        a.send(&frame(&a, Some(&b), 60, 7));
        assert_eq!(drops(&a.port, "tx_disabled"), dropped);
        a.front.set_vring_enable(1, true).unwrap();
        a.front.get_features().unwrap();
        pass(&mut a, &mut b);
        eventually("it is silent again", || switch.manager.is_silent(a.port.id()));
    }
    // A session whose guest hangs up ends, and one whose interface is removed has its connection closed.
    let port = Arc::clone(&a.port);
    drop(a);
    eventually("its session ends", || port.info().state == State::Waiting);
    assert_eq!(port.info().failed, 0);
    switch.manager.remove(b.port.id()).unwrap();
    assert!(b.front.get_features().is_err());
}

#[test]
fn silent_sessions_end_with_the_switch_and_stay_in_service_when_they_are_left() {
    let switch = Switch::new();
    let (mut a, mut b) = silent_guests(&switch);
    assert_eq!(switch.manager.leave(), 0);
    pass(&mut a, &mut b);

    let switch = Switch::new();
    let (mut a, b) = silent_guests(&switch);
    assert_eq!(switch.manager.end(), 0);
    assert!(a.front.get_features().is_err());
    for guest in [a, b] {
        assert_eq!(guest.port.info().state, State::Waiting);
    }
}
