//! Rings that run and are never served are reported.

use weir_engine::guest::{GuestPort, PortInfo, Silence, SilentRing};

use super::*;

/// A guest that is set up, before its first kick.
fn quiet_guest(switch: &Switch, features: u64) -> Guest {
    let (port, stream) = switch.port();
    let mut guest = Guest::new(port, stream, 1, features);
    guest.set_up().unwrap();
    guest
}

fn eventually_silent(guest: &Guest, silent: &[SilentRing]) {
    eventually("it is seen what is odd", || guest.port.info().silent == silent);
}

#[test]
fn kicks_that_find_no_buffers_where_weir_looks_are_seen() {
    for format in formats() {
        let switch = Switch::new();
        let mut guest = quiet_guest(&switch, format);
        guest.start();
        // A front end whose base or wrap counter differs from its driver's behaves like this.
        for _ in 0..20 {
            let kicks = guest.port.counters().tx[0].kicks.get();
            guest.kick(1);
            eventually("the kick is seen", || guest.port.counters().tx[0].kicks.get() > kicks);
        }
        let silent = |info: &PortInfo| match info.silent[..] {
            [SilentRing { ring: 1, why: Silence::KicksWithoutBuffers(kicks) }] => kicks >= 20,
            _ => false,
        };
        eventually("it is seen what is odd", || silent(&guest.port.info()));
        // A frame comes, and the report ends.
        let hello = frame(&guest, None, 60, 0);
        guest.send(&hello);
        assert_eq!(guest.port.info().silent, []);
    }
}

#[test]
fn a_wrong_wrap_counter_of_a_packed_ring_is_refused() {
    let switch = Switch::new();
    let mut guest = quiet_guest(&switch, modern() | RING_PACKED);
    // A front end that takes the wrap counter for 0 in the middle of the first lap states this base.
    guest.front.get_vring_base(1).unwrap();
    guest.front.set_vring_base(1, 3).unwrap();
    assert!(guest.front.set_vring_kick(1, Some(guest.kicks[1].as_fd())).is_err());
    let reason = || guest.port.info().stop_reason.unwrap_or_default();
    eventually("it is said", || reason().contains("said to go on at slot 3"));
}

#[test]
fn buffers_behind_a_kick_descriptor_that_never_signals_are_seen() {
    for format in formats() {
        let switch = Switch::new();
        let mut guest = quiet_guest(&switch, format);
        let hello = frame(&guest, None, 60, 0);
        guest.offer(0, &VnetHdr::default(), &hello);
        guest.tx.publish();
        let silent = [SilentRing { ring: 1, why: Silence::BuffersWithoutKick }];
        eventually_silent(&guest, &silent);
        guest.kick(1);
        guest.reap();
        assert_eq!(guest.port.info().silent, []);
    }
}

#[test]
fn a_missing_call_descriptor_is_seen_where_the_driver_waits_for_calls() {
    for format in formats() {
        let switch = Switch::new();
        let mut other = switch.guest(2, modern());
        let mut guest = quiet_guest(&switch, format);
        guest.front.set_vring_call(0, None).unwrap();
        guest.rx.enable_calls();
        guest.start();
        introduce(&mut other, &mut guest);
        eventually_silent(&guest, &[SilentRing { ring: 0, why: Silence::NoCallDescriptor }]);
        guest.front.set_vring_call(0, Some(guest.calls[0].as_fd())).unwrap();
        assert_eq!(guest.port.info().silent, []);
    }
}

#[test]
fn rings_that_wait_for_traffic_are_not_called_silent() {
    for format in formats() {
        let switch = Switch::new();
        let (mut a, mut b) = (switch.guest(1, format), switch.guest(2, format));
        let idle = switch.guest(3, format);
        std::thread::sleep(Duration::from_nanos(weir_limits::SILENT_NS_MIN));
        assert_eq!(idle.port.info().silent, []);
        introduce(&mut a, &mut b);
        for guest in [&a, &b, &idle] {
            assert_eq!(guest.port.info().silent, []);
        }
    }
}

#[test]
fn a_driver_that_kicks_only_when_asked_to_is_served_from_its_first_frame_on() {
    for format in formats() {
        for event_idx in [0, 1 << 29] {
            let switch = Switch::new();
            let mut neighbour = switch.guest(2, modern());
            let mut guest = quiet_guest(&switch, format & !(1 << 29) | event_idx);
            let hello = frame(&guest, None, 60, 7);
            guest.offer(0, &VnetHdr::default(), &hello);
            assert!(guest.tx.publish(), "weir asks for the first kick");
            guest.kick(1);
            assert_eq!(neighbour.wait_received().1, hello);
        }
    }
}
