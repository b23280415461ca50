//! Attacks by the descriptors that a front end gives for calls, kicks that bring nothing, and rings that are never
//! served.

use std::io::Read;
use std::os::unix::net::UnixStream;

use rustix::event::{EventfdFlags, epoll, eventfd};
use weir_engine::Port as _;
use weir_engine::guest::{GuestPort, PortInfo, Silence, SilentRing};
use weir_limits::{CALL_DEBT_NS_MAX, VAIN_KICKS_MAX};

use super::*;

/// The highest value that writing gives a call descriptor's counter.
const FULL: u64 = u64::MAX - 1;

/// An eventfd that blocks its writers until this value is dropped, so that a failing test ends too.
struct Blocking(OwnedFd);

impl Blocking {
    fn new(fd: &OwnedFd) -> Self {
        let _ = rustix::io::read(fd, &mut [0; 8]);
        rustix::io::ioctl_fionbio(fd, false).unwrap();
        rustix::io::write(fd, &FULL.to_ne_bytes()).unwrap();
        Self(fd.try_clone().unwrap())
    }
}

impl Drop for Blocking {
    fn drop(&mut self) {
        rustix::io::ioctl_fionbio(&self.0, true).unwrap();
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

/// `a` sends some frames to `b`, which need not take them.
fn send_some(a: &mut Guest, b: &Guest) {
    for number in 0..8_u8 {
        let frame = frame(a, Some(b), 60, number);
        a.offer(number.into(), &VnetHdr::default(), &frame);
    }
    a.send_now();
}

#[test]
fn a_full_call_counter_that_blocks_stops_no_worker() {
    let switch = Switch::new();
    let [mut a, mut b, mut hostile] = [1, 2, 3].map(|mac| switch.guest(mac, modern()));
    introduce(&mut a, &mut b);
    introduce(&mut a, &mut hostile);
    hostile.rx.enable_calls();
    hostile.tx.enable_calls();
    let blocking = Blocking::new(&hostile.calls[0]);
    let blocking_tx = Blocking::new(&hostile.calls[1]);
    send_some(&mut a, &hostile);
    let own = frame(&hostile, None, 60, 7);
    hostile.offer(0, &VnetHdr::default(), &own);
    hostile.send_now();
    a.reap();
    for number in 0..10 {
        let hello = frame(&a, Some(&b), 60, number);
        a.send(&hello);
        while b.wait_received().1 != hello {}
        b.post(1);
    }
    // Neither the session nor the interface waits for the blocked descriptor.
    hostile.front.get_vring_base(0).unwrap();
    hostile.front.get_vring_base(1).unwrap();
    drop((blocking, blocking_tx));
}

/// Guests that shared an identifier of signals would be woken for each other's frames.
#[test]
fn a_call_wakes_its_guest_and_no_other() {
    let switch = Switch::new();
    let [mut a, mut b, mut other] = [1, 2, 3].map(|mac| switch.guest(mac, modern()));
    introduce(&mut a, &mut b);
    other.rx.enable_calls();
    let mut called = 0;
    for number in 0..50 {
        b.rx.enable_calls();
        let frame = frame(&a, Some(&b), 60, number);
        a.send(&frame);
        assert_eq!(b.wait_received().1, frame);
        b.post(1);
        eventually("the receiver is called", || {
            called += b.calls(0);
            called > number.into()
        });
    }
    let flooded = std::iter::from_fn(|| other.received()).count();
    assert!(flooded <= 2 && other.calls(0) <= flooded as u64, "{flooded} frames");
}

/// Asks for a call at the next frame, once the frames that are there have been taken.
fn ask(guest: &mut Guest) {
    while guest.rx.enable_calls() {
        if guest.received().is_some() {
            guest.post(1);
        }
    }
}

/// Raj & Schwan 2006 §4.3.1: interfaces share an identifier of signals. The front end finds out
/// from the rings for which interface a signal is, and looks at the other's ring in vain.
#[test]
fn interfaces_that_share_a_signal_are_told_apart_by_their_rings() {
    let switch = Switch::new();
    let [mut a, mut b] = [1, 2].map(|mac| switch.guest(mac, modern()));
    let (port, stream) = switch.port();
    let mut c = Guest::new(port, stream, 3, modern());
    c.calls[0] = b.calls[0].try_clone().unwrap();
    c.set_up().unwrap();
    c.start();
    introduce(&mut a, &mut b);
    introduce(&mut a, &mut c);
    for number in 1..=50 {
        for guest in [&mut b, &mut c] {
            ask(guest);
        }
        b.calls(0);
        let to = usize::from(number % 2);
        let frame = frame(&a, Some([&b, &c][to]), 60, number);
        a.send(&frame);
        eventually("the signal", || b.calls(0) > 0);
        let mut found = [&mut b, &mut c].map(|guest| guest.received().map(|(_, bytes)| bytes));
        assert_eq!(found[to].take(), Some(frame));
        assert_eq!(found, [None, None]);
        [&mut b, &mut c][to].post(1);
    }
}

#[test]
fn an_err_descriptor_that_blocks_stops_no_worker() {
    let switch = Switch::new();
    let [mut a, mut b, mut hostile] = [1, 2, 3].map(|mac| switch.guest(mac, modern()));
    introduce(&mut a, &mut b);
    let err = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    hostile.front.set_vring_err(1, Some(err.as_fd())).unwrap();
    let blocking = Blocking::new(&err);
    // The ring breaks: its available index jumps.
    hostile.raw().store_release((ring_at(1).driver - USER) as usize + 2, 30_000);
    hostile.kick(1);
    let port = Arc::clone(&hostile.port);
    eventually("the port stops", || port.info().state == State::Stopped);
    let hello = frame(&a, Some(&b), 60, 9);
    a.send(&hello);
    assert_eq!(b.wait_received().1, hello);
    drop(blocking);
}

/// Makes each signal of `fd` wake `sets` times `copies` watchers, with only `sets` plus `copies`
/// descriptors.
fn make_dear(fd: &OwnedFd, sets: usize, copies: usize) -> Vec<OwnedFd> {
    let copies: Vec<_> = (0..copies).map(|_| fd.try_clone().unwrap()).collect();
    let sets = (0..sets).map(|_| {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        for copy in &copies {
            let data = epoll::EventData::new_u64(0);
            epoll::add(&set, copy, data, epoll::EventFlags::IN).unwrap();
        }
        set
    });
    let sets: Vec<_> = sets.collect();
    sets.into_iter().chain(copies).collect()
}

#[test]
fn dear_calls_are_their_receivers_cost_and_stop_it() {
    let switch = Switch::new();
    let [mut a, mut b, mut hostile] = [1, 2, 3].map(|mac| switch.guest(mac, modern()));
    introduce(&mut a, &mut b);
    introduce(&mut a, &mut hostile);
    let dear = make_dear(&hostile.calls[0], 100, 200);
    let port = Arc::clone(&hostile.port);
    let before_ns = a.port.counters().worker_ns.get();
    let mut sent = 0;
    eventually("the port stops", || {
        while hostile.received().is_some() {
            hostile.post(1);
        }
        hostile.rx.enable_calls();
        let hello = frame(&a, Some(&hostile), 60, 1);
        a.send(&hello);
        sent += 1;
        port.info().state == State::Stopped
    });
    let reason = port.info().stop_reason.unwrap();
    assert!(reason.contains("ring 0: each call takes more than 100 us"), "{reason}");
    let [others_ns, own_ns] =
        [a.port.counters().worker_ns.get() - before_ns, port.counters().dear_call_ns.get()];
    assert!(own_ns >= CALL_DEBT_NS_MAX / 2, "{own_ns} ns");
    assert!(port.counters().worker_ns.get() >= own_ns);
    // The receiver's part is two thirds of the time, whatever else the sender's bursts take in a
    // test's build.
    assert!(
        own_ns > 2 * others_ns,
        "{others_ns} ns of {sent} bursts are the sender's, {own_ns} its receiver's"
    );
    // A fresh start does not help at once.
    port.clear_failure();
    assert_eq!(port.info().state, State::Stopped);
    drop(hostile);
    drop(dear);
    let hello = frame(&a, Some(&b), 60, 2);
    a.send(&hello);
    while b.wait_received().1 != hello {}
}

#[test]
fn user_mode_linux_is_called_by_a_socket() {
    let switch = Switch::new();
    let [mut a, mut b] = [1, 2].map(|mac| switch.guest(mac, modern()));
    introduce(&mut a, &mut b);
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(PATIENCE)).unwrap();
    b.front.set_vring_call(0, Some(theirs.as_fd())).unwrap();
    // Requests are handled in order: with this answer the descriptor was taken over.
    b.front.get_features().unwrap();
    drop(theirs);
    for number in 0..3 {
        let hello = frame(&a, Some(&b), 60, number);
        b.rx.enable_calls();
        a.send(&hello);
        let mut call = [0; 8];
        ours.read_exact(&mut call).unwrap();
        assert_eq!(u64::from_ne_bytes(call), 1);
        assert_eq!(b.wait_received().1, hello);
        b.post(1);
    }
    // The session's end closes the descriptor.
    drop(b);
    assert_eq!(ours.read(&mut [0; 8]).unwrap(), 0);
}

#[test]
fn what_cannot_be_called_ends_the_session_and_is_named() {
    let switch = Switch::new();
    let null = File::open("/dev/null").unwrap();
    for set in [FrontEnd::set_vring_call, FrontEnd::set_vring_err] {
        let mut guest = switch.guest(1, modern());
        let port = Arc::clone(&guest.port);
        let _ = set(&mut guest.front, 0, Some(null.as_fd()));
        eventually("the session ends", || port.info().failed == 1);
        let reason = port.info().stop_reason.unwrap();
        assert!(reason.contains("/dev/null cannot be called"), "{reason}");
    }
}

#[test]
fn a_port_whose_memory_blocks_stops_for_a_hundred_times_as_long() {
    let switch = Switch::new();
    let guest = switch.guest(1, modern());
    guest.port.blocks(3_000_000);
    let reason = guest.port.info().stop_reason.unwrap();
    assert!(reason.contains("keeps a worker waiting, the last time for 3 ms"), "{reason}");
    let stopped = Instant::now();
    guest.port.clear_failure();
    assert_eq!(guest.port.info().state, State::Stopped);
    eventually("service may begin again", || {
        guest.port.clear_failure();
        guest.port.info().state != State::Stopped
    });
    assert!(stopped.elapsed() >= Duration::from_millis(250));
}

#[test]
fn a_guest_that_kicks_in_vain_is_ignored_for_a_while_and_then_served() {
    for format in formats() {
        let switch = Switch::new();
        let (mut a, mut b) = (switch.guest(1, format), switch.guest(2, format));
        introduce(&mut a, &mut b);
        let pauses = || b.port.counters().kick_pauses.get();
        for ring in [0, 1] {
            let before = pauses();
            eventually("its kicks are ignored", || {
                b.kick(ring);
                pauses() > before
            });
            // Each pause ends with one poll of the rings, which also finds nothing.
            let kicks = b.port.counters().rx[0].kicks.get() + b.port.counters().tx[0].kicks.get();
            let paused = pauses();
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(50) {
                b.kick(ring);
            }
            let seen =
                b.port.counters().rx[0].kicks.get() + b.port.counters().tx[0].kicks.get() - kicks;
            let looks = pauses() - paused + 1;
            assert!(seen <= looks + u64::from(VAIN_KICKS_MAX), "{seen} kicks, {looks} pauses");
        }
        let sent = frame(&b, Some(&a), 60, 7);
        a.post(1);
        b.send(&sent);
        assert_eq!(a.wait_received().1, sent);
        let sent = frame(&a, Some(&b), 60, 8);
        b.post(1);
        a.send(&sent);
        assert_eq!(b.wait_received().1, sent);
        assert_eq!(a.port.counters().kick_pauses.get(), 0, "it kicks for what it sends");
    }
}

/// The drivers of OVMF and SLOF poll, and kick their receive ring 900 times a second for nothing.
#[test]
fn firmware_that_kicks_its_receive_ring_for_nothing_is_ignored_for_a_while_and_gets_all_frames() {
    for format in formats() {
        let switch = Switch::new();
        let (mut a, mut b) = (switch.guest(1, format), switch.guest(2, format));
        introduce(&mut a, &mut b);
        let pauses = || b.port.counters().kick_pauses.get();
        assert_eq!(pauses(), 0);
        for kick in 0..4 * u64::from(VAIN_KICKS_MAX) {
            std::thread::sleep(Duration::from_micros(1100));
            b.kick(0);
            if kick % 16 == 0 {
                let sent = frame(&a, Some(&b), 60, kick as u8);
                a.send(&sent);
                assert_eq!(b.wait_received().1, sent, "{format:#x}");
                b.post(1);
            }
        }
        assert!(b.port.counters().kick_pauses.get() > 0, "{format:#x}");
        assert_eq!((lost([&a.port, &b.port]), b.port.info().stop_reason), (0, None));
    }
}

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
