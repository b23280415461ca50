//! Guests that lie: each loses at most its own vif.

use weir_engine::guest::GuestPort;
use weir_netif::message::tx_flags;
use weir_netif::{RingError, Segment};

use super::*;

/// Asserts that the guest has lost its vif for this reason, and that others have theirs.
fn assert_lost(bench: &Bench, domain: u16, front: &mut Netfront, reason: &str) {
    assert_closed(bench, domain, front, reason);
    let info = bench.port(domain).info();
    let told = info.stop_reason.unwrap_or_default();
    assert!(told.contains(reason), "{told:?} says nothing of {reason:?}");
}

/// Asserts that the guest gets this reason, and that only the other guest's rings are mapped.
fn assert_closed(bench: &Bench, domain: u16, front: &mut Netfront, reason: &str) {
    eventually("the vif is closed", || front.back_state() == Some(XenbusState::Closing));
    let path = format!("/local/domain/0/error/backend/vif/{domain}/0/error");
    let node = bench.host.client().read(&path).unwrap().expect("an error node");
    let node = String::from_utf8(node).unwrap();
    assert!(node.contains(reason), "{node:?} says nothing of {reason:?}");
    assert_eq!((bench.host.mapped(), bench.host.bound()), (2, 2), "that of the other guest");
}

fn assert_others_go_on(bench: &Bench, two: &mut Netfront) {
    let mut three = bench.guest(3, Connect::default());
    assert!(three.send(0, &frame(3, 2, b"still here")));
    assert_eq!(receive(two, 0).frame, frame(3, 2, b"still here"));
}

#[test]
fn a_producer_that_jumps_costs_the_vif() {
    let bench = Bench::new();
    let (mut one, mut two) = bench.pair(Connect::default());
    let ring = one.guest.page(0).unwrap();
    ring.store_release(0, 100_000);
    one.queues[0].tx_events.notify().unwrap();
    let to = 100_000;
    let error = RingError::RequestProducer { from: 0, to, size: 256 };
    assert_lost(&bench, 1, &mut one, &format!("queue 0: transmit ring: {error}"));
    assert_eq!(bench.port(1).info().state, State::Stopped);
    assert_others_go_on(&bench, &mut two);
}

#[test]
fn a_receive_producer_that_jumps_costs_the_vif() {
    let bench = Bench::new();
    let (mut two, mut one) = bench.pair(Connect::default());
    let ring = one.guest.page(1).unwrap();
    ring.store_release(0, 100_000);
    assert!(two.send(0, &frame(1, 2, b"x")));
    assert_lost(&bench, 2, &mut one, "queue 0: receive ring: request producer");
}

#[test]
fn a_control_ring_whose_producer_jumps_costs_the_vif() {
    let bench = Bench::new();
    let mut two = bench.guest(2, Connect::default());
    let mut one = bench.guest(1, Connect { ctrl: true, ..Connect::default() });
    let ring = one.guest.page(crate::testing::PAGES - 2).unwrap();
    ring.store_release(0, 100_000);
    one.ctrl.as_ref().unwrap().events.notify().unwrap();
    let error = RingError::RequestProducer { from: 0, to: 100_000, size: 128 };
    assert_lost(&bench, 1, &mut one, &format!("control ring: {error}"));
    assert_others_go_on(&bench, &mut two);
}

#[test]
fn a_control_ring_that_is_none_is_refused_and_leaves_nothing_mapped() {
    let bench = Bench::new();
    let mut two = bench.guest(2, Connect::default());
    let mut one = bench.attached(1);
    let ring = one.guest.grant(5, DomainId(0), false).0.to_string();
    let mut refused = |keys: &[(&str, &str)], reason: &str| {
        eventually("ready", || one.back_state() == Some(XenbusState::InitWait));
        for (key, value) in keys {
            one.set(key, value);
        }
        one.connect(Connect::default());
        assert_closed(&bench, 1, &mut one, reason);
        assert!(one.release());
        one.state(XenbusState::Closed);
        one.state(XenbusState::Initialising);
    };
    refused(&[("ctrl-ring-ref", &ring)], "event-channel-ctrl is missing");
    refused(&[("event-channel-ctrl", "4000")], "control ring: cannot bind event channel 4000");
    refused(&[("ctrl-ring-ref", "77777")], "control ring: cannot map grant 77777");
    refused(&[("ctrl-ring-ref", "-1")], "ctrl-ring-ref is \"-1\", not a number");
    assert_others_go_on(&bench, &mut two);
}

#[test]
fn a_packet_without_an_end_costs_the_vif_and_a_new_start_brings_it_back() {
    let bench = Bench::new();
    let (mut one, mut two) = bench.pair(Connect::default());
    assert!(one.send_slots(0, &frame(1, 2, b"x"), 4096, tx_flags::MORE_DATA, &[]));
    assert_lost(&bench, 1, &mut one, "has no end");
    assert!(one.release(), "its pages are its own again");
    one.state(XenbusState::Closed);
    one.state(XenbusState::Initialising);
    bench.connect(&mut one, 1, Connect::default());
    assert!(one.send(0, &frame(1, 2, b"better")));
    assert_eq!(receive(&mut two, 0).frame, frame(1, 2, b"better"));
}

#[test]
fn a_grant_that_is_none_costs_its_packet_only() {
    let bench = Bench::new();
    let (mut one, mut two) = bench.pair(Connect::default());
    let bad = Segment { gref: 1_000_000, offset: 0, len: 60 };
    assert!(one.queues[0].tx.send(&[(bad, 9)], 0, &[]));
    assert!(one.send(0, &frame(1, 2, b"good")));
    assert_eq!(receive(&mut two, 0).frame, frame(1, 2, b"good"));
    assert_eq!(bench.dropped(1, "copy_failed"), 1);
    let mut answers = Vec::new();
    eventually("both are answered", || {
        answers.extend(one.queues[0].answers());
        answers.len() == 2
    });
    assert_eq!((answers[0].id, answers[0].status), (9, weir_netif::Status::Error as i16));
    assert_eq!(answers[1].status, weir_netif::Status::Okay as i16);
}

#[test]
fn a_receive_buffer_that_is_not_granted_costs_its_frame_only() {
    let bench = Bench::new();
    let mut one = bench.guest(1, Connect::default());
    let mut two = bench.attached(2);
    eventually("ready", || two.back_state() == Some(XenbusState::InitWait));
    two.connect(Connect::default());
    let first = {
        let page = two.guest.page(1).unwrap();
        // The second word of the first request is its grant reference, here a read-only grant.
        let read_only = two.guest.grant(5, DomainId(0), true);
        page.store_release(64 + 4, read_only.0);
        read_only
    };
    eventually("connected", || two.back_state() == Some(XenbusState::Connected));
    for n in 0..3 {
        assert!(one.send(0, &frame(1, 2, &[n])));
    }
    let got = [0, 1, 2].map(|_| receive(&mut two, 0));
    assert!(got[0].packet.damaged && got[0].frame.is_empty(), "{first:?}");
    assert_eq!(got[1].frame, frame(1, 2, &[1]));
    assert_eq!(got[2].frame, frame(1, 2, &[2]));
    assert_eq!(bench.dropped(2, "copy_failed"), 1);
}

#[test]
fn rings_that_are_not_granted_are_refused_and_leave_nothing_mapped() {
    let bench = Bench::new();
    let mut two = bench.guest(2, Connect::default());
    let mut one = bench.attached(1);
    eventually("ready", || one.back_state() == Some(XenbusState::InitWait));
    let queue = |front: &mut Netfront, rx: u32, port: u32| {
        let tx = front.guest.grant(0, DomainId(0), false);
        front.set("tx-ring-ref", &tx.0.to_string());
        front.set("rx-ring-ref", &rx.to_string());
        front.set("event-channel", &port.to_string());
        front.set("request-rx-copy", "1");
        front.state(XenbusState::Connected);
    };
    let (port, _events) = one.guest.allocate(DomainId(0)).unwrap();
    queue(&mut one, 77_777, port.0);
    assert_lost(&bench, 1, &mut one, "queue 0: receive ring: cannot map grant 77777");
    one.state(XenbusState::Closed);
    one.state(XenbusState::Initialising);
    eventually("again", || one.back_state() == Some(XenbusState::InitWait));
    let good = one.guest.grant(1, DomainId(0), false);
    queue(&mut one, good.0, 4_000);
    assert_lost(&bench, 1, &mut one, "queue 0: transmit ring: cannot bind event channel 4000");
    assert_others_go_on(&bench, &mut two);
}

/// A system call that fails as a whole leaves the state of its burst unknown. None of its frames
/// counts as arrived, and later frames are not affected.
#[test]
fn a_copy_that_fails_as_a_whole_costs_its_frames_only() {
    let bench = Bench::new();
    let (mut one, mut two) = bench.pair(Connect::default());
    bench.host.fail_copies(true);
    let sent = frame(1, 2, &[7; 5000]);
    assert!(one.send(0, &sent) && one.send(0, &frame(1, 2, b"x")));
    let mut answers = Vec::new();
    eventually("all is answered", || {
        answers.extend(one.queues[0].answers());
        answers.len() == 3
    });
    let failed = weir_netif::Status::Error as i16;
    assert!(answers.iter().all(|answer| answer.status == failed), "{answers:?}");
    assert_eq!(bench.dropped(1, "copy_failed"), 2);
    bench.host.fail_copies(false);
    assert!(one.send(0, &sent));
    assert_eq!(receive(&mut two, 0).frame, sent);
    assert_eq!(bench.port(1).info().state, State::Running);
}

#[test]
fn a_delivery_that_fails_as_a_whole_is_no_frame_for_the_guest() {
    while_frames_wait(|bench| {
        let (mut one, mut two) = bench.pair(Connect::default());
        // The switch learns the address of two, without buffers for a flood.
        assert!(two.send(0, &frame(2, 1, b"here")));
        receive(&mut one, 0);
        for n in 0..crate::testing::BUFFERS as u8 {
            assert!(one.send(0, &frame(1, 2, &[n])));
        }
        let came = || bench.port(2).counters().rx[0].frames.get();
        eventually("two is full", || came() >= crate::testing::BUFFERS);
        all_is_answered(&mut one);
        // The frame waits in weir's memory, and is delivered when there is room.
        let sent = frame(1, 2, &[9; 5000]);
        assert!(one.send(0, &sent));
        eventually("it waits", || bench.port(1).counters().parked.get() == 1);
        bench.host.fail_copies(true);
        for _ in 0..crate::testing::BUFFERS {
            receive(&mut two, 0);
        }
        let damaged = receive(&mut two, 0);
        assert!(damaged.packet.damaged, "{:?}", damaged.packet);
        assert_eq!(bench.dropped(2, "copy_failed"), 1);
        bench.host.fail_copies(false);
        assert!(one.send(0, &sent));
        assert_eq!(receive(&mut two, 0).frame, sent);
        assert_eq!(bench.port(2).info().state, State::Running);
    });
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(60))]

    /// The property of the fuzz target `xen_front`, with less patience.
    #[test]
    fn whatever_a_front_end_writes_harms_nobody_else(
        input in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..3000)
    ) {
        crate::testing::hostile::attack(&input);
    }
}
