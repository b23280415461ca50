//! Vifs that are attached and detached, and the frames of guests.

use weir_engine::guest::GuestPort;
use weir_limits::LOG_LINES_MAX;
use weir_netif::Status;
use weir_netif::message::{Extra, GSO_TCPV4, rx_flags, tx_flags};

use super::copies::{fill, say_where};
use super::*;

/// Builds a TCP segment from domain 1 to domain 2 with a payload, and its pseudo-header's sum as
/// checksum.
pub(super) fn tcp(payload: usize) -> Vec<u8> {
    let total = (20 + 20 + payload) as u16;
    let mut bytes = frame(1, 2, &[]);
    bytes[12..14].copy_from_slice(&[8, 0]);
    bytes.extend([0x45, 0]);
    bytes.extend(total.to_be_bytes());
    bytes.extend([0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    let sum = bytes[14..34].chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    bytes[24..26].copy_from_slice(&fold(sum).to_be_bytes());
    bytes.extend([0x30, 0x39, 0, 80, 0, 0, 0, 1, 0, 0, 0, 2, 5 << 4, 0x10, 0x20, 0, 0, 0, 0, 0]);
    let pseudo = 2 * (10 << 8) + 1 + 2 + 6 + u32::from(total - 20);
    bytes[50..52].copy_from_slice(&(!fold(pseudo)).to_be_bytes());
    bytes.extend((0..payload).map(|i| i as u8));
    bytes
}

pub(super) fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[test]
fn frames_of_every_size_arrive_as_they_were_sent() {
    let bench = Bench::new();
    let (mut one, mut two) = bench.pair(Connect::default());
    for len in [14, 15, 60, 128, 129, 1514, 4096, 4097, 8192, 9000, 65_535] {
        let payload: Vec<u8> = (0..len - 14).map(|i| (i * 7) as u8).collect();
        let sent = frame(1, 2, &payload);
        assert!(one.send(0, &sent), "{len}");
        let got = receive(&mut two, 0);
        assert!(!got.packet.damaged && got.frame == sent, "{len} bytes became {}", got.frame.len());
    }
    all_is_answered(&mut one);
    assert!(two.send(0, &frame(2, 1, b"back")));
    assert_eq!(receive(&mut one, 0).frame, frame(2, 1, b"back"));
}

#[test]
fn a_packet_in_many_slots_is_one_frame() {
    let bench = Bench::new();
    let (mut one, mut two) = bench.pair(Connect::default());
    let sent = frame(1, 2, &[7; 1000]);
    for slot_len in [14, 20, 63, 64, 100, 1000] {
        if sent.len().div_ceil(slot_len) <= 19 {
            assert!(one.send_slots(0, &sent, slot_len, 0, &[]));
            assert_eq!(receive(&mut two, 0).frame, sent, "slots of {slot_len}");
        }
    }
}

#[test]
fn one_channel_for_both_rings_wakes_both() {
    let bench = Bench::new();
    let how = Connect { split: false, ..Connect::default() };
    let (mut one, mut two) = bench.pair(how);
    for n in 0..200_u8 {
        assert!(one.send(0, &frame(1, 2, &[n])));
        assert_eq!(receive(&mut two, 0).frame, frame(1, 2, &[n]));
        assert!(two.send(0, &frame(2, 1, &[n])));
        assert_eq!(receive(&mut one, 0).frame, frame(2, 1, &[n]));
    }
}

#[test]
fn a_blank_checksum_and_gso_reach_a_guest_that_takes_them() {
    let bench = Bench::new();
    let (mut one, mut two) = bench.pair(Connect::default());
    let sent = tcp(100);
    assert!(one.send_slots(0, &sent, 4096, tx_flags::CSUM_BLANK, &[]));
    let got = receive(&mut two, 0);
    assert_eq!((got.frame, got.packet.extras.len()), (sent, 0));
    assert_ne!(got.packet.flags & rx_flags::CSUM_BLANK, 0);

    let big = tcp(20_000);
    let gso = Extra::Gso { size: 1448, kind: GSO_TCPV4 };
    assert!(one.send_slots(0, &big, 4096, tx_flags::CSUM_BLANK, &[gso]));
    let got = receive(&mut two, 0);
    assert_eq!((got.frame, got.packet.extras), (big, vec![gso]));
}

#[test]
fn a_guest_without_scatter_gather_gets_a_big_packet_cut_and_summed() {
    let bench = Bench::new();
    let mut one = bench.guest(1, Connect::default());
    let mut two = bench.guest(2, Connect { sg: false, ..Connect::default() });
    let gso = Extra::Gso { size: 1000, kind: GSO_TCPV4 };
    assert!(one.send_slots(0, &tcp(2500), 4096, tx_flags::CSUM_BLANK, &[gso]));
    let lens = [0, 1, 2].map(|_| receive(&mut two, 0).frame.len());
    assert_eq!(lens, [1054, 1054, 554]);
    assert!(one.send(0, &frame(1, 2, &[0; 5000])));
    eventually("counted", || bench.dropped(2, "rx_buffer_too_small") == 1);
}

#[test]
fn frames_wait_for_a_guest_without_buffers_and_keep_their_order() {
    while_frames_wait(|bench| {
        let (mut one, mut two) = bench.pair(Connect::default());
        // The switch learns the address: floods do not wait.
        assert!(two.send(0, &frame(2, 1, b"here")));
        receive(&mut one, 0);
        let buffers = crate::testing::BUFFERS as u8;
        for n in 0..buffers + 20 {
            eventually("it is sent", || one.send(0, &frame(1, 2, &[n])));
        }
        eventually("20 wait", || bench.port(1).counters().parked.get() == 20);
        for n in 0..buffers + 20 {
            assert_eq!(receive(&mut two, 0).frame, frame(1, 2, &[n]));
        }
        all_is_answered(&mut one);
    });
}

#[test]
fn answers_keep_the_order_of_requests_so_that_a_ring_says_where_to_go_on() {
    while_frames_wait(|bench| {
        let (mut one, mut two) = bench.pair(Connect::default());
        let mut three = bench.guest(3, Connect::default());
        // The switch learns first one's address, then the others': frames to known addresses are not flooded.
        assert!(one.send(0, &frame(1, 0xff, b"here")));
        for (front, domain) in [(&mut two, 2), (&mut three, 3)] {
            receive(front, 0);
            assert!(front.send(0, &frame(domain, 1, b"here")));
            receive(&mut one, 0);
        }
        for n in 0..crate::testing::BUFFERS as u8 {
            assert!(one.send(0, &frame(1, 2, &[n])));
        }
        let came = || bench.port(2).counters().rx[0].frames.get();
        eventually("two is full", || came() >= crate::testing::BUFFERS);
        // The answers to earlier frames may be on their way, and must be taken first.
        all_is_answered(&mut one);
        assert!(one.send(0, &frame(1, 2, b"waits")));
        eventually("it waits", || bench.port(1).counters().parked.get() == 1);
        assert!(one.send(0, &frame(1, 3, b"does not")));
        assert_eq!(receive(&mut three, 0).frame, frame(1, 3, b"does not"));
        assert_eq!(one.queues[0].answers(), []);
        receive(&mut two, 0);
        let mut ids = Vec::new();
        eventually("both are answered", || {
            ids.extend(one.queues[0].answers().iter().map(|answer| answer.id));
            ids.len() == 2
        });
        assert!(ids.is_sorted(), "{ids:?}");
    });
}

#[test]
fn what_is_no_frame_is_answered_in_its_turn() {
    while_frames_wait(|bench| {
        let mut one = bench.guest(1, Connect { multicast: true, ..Connect::default() });
        let mut two = bench.guest(2, Connect::default());
        say_where(&mut two, 2, &mut one, 1);
        fill(bench, &mut one);
        assert!(one.send(0, &frame(1, 2, b"waits")));
        eventually("it waits", || bench.port(1).counters().parked.get() == 1);
        let join = Extra::McastAdd(weir_wire::Mac([1, 0, 0x5e, 0, 0, 9]));
        assert!(one.send_slots(0, &[0; 14], 4096, 0, &[join]));
        assert!(one.send(0, &[0; 13]));
        eventually("it is refused", || bench.dropped(1, "frame_too_short") == 1);
        receive(&mut two, 0);
        let mut answers = Vec::new();
        eventually("all are answered", || {
            answers.extend(one.queues[0].answers());
            answers.len() == 3
        });
        assert!(answers.is_sorted_by_key(|answer| answer.id), "{answers:?}");
        let statuses = [Status::Okay, Status::Okay, Status::Error].map(|status| status as i16);
        assert!(answers.iter().map(|answer| answer.status).eq(statuses), "{answers:?}");
    });
}

#[test]
fn held_events_come_with_the_last_frames_before_the_ring_is_short() {
    let calls = CallPolicy { rx_ns: None, ..CallPolicy::within(Kind::Backend, LONG_NS) };
    for kind in [Kind::Backend, Kind::Aggregate] {
        let bench = Bench::with(CallPolicy { kind, ..calls });
        let (mut one, mut two) = bench.pair(Connect::default());
        let port = bench.port(2);
        // The guest asks for an event at the next frame.
        two.queues[0].rx.ring().final_check().unwrap();
        let before = port.counters().rx[0].calls.get();
        for n in 0..40 {
            assert!(one.send(0, &frame(1, 2, &[n; 20])));
        }
        eventually("all came", || port.counters().rx[0].frames.get() == 40);
        let calls = port.counters().rx[0].calls.get() - before;
        assert!(calls < 40, "{kind}: {calls} events for 40 frames");
        for n in 0..40 {
            assert_eq!(receive(&mut two, 0).frame, frame(1, 2, &[n; 20]), "{kind}");
        }
        assert!(port.interface().decisions()[0].hold_ns_max > 0);
    }
}

#[test]
fn a_policy_changes_while_frames_are_withheld() {
    let bench = Bench::with(CallPolicy::within(Kind::Aggregate, LONG_NS));
    let (mut one, mut two) = bench.pair(Connect::default());
    assert!(one.send(0, &frame(1, 2, b"held")));
    let port = bench.port(2);
    eventually("it came", || port.counters().rx[0].frames.get() == 1);
    port.interface().set_moderation(&CallPolicy::within(Kind::Immediate, 250_000));
    assert_eq!(receive(&mut two, 0).frame, frame(1, 2, b"held"));
}

#[test]
fn every_queue_carries_frames_and_no_flow_is_reordered() {
    let bench = Bench::new();
    let how = Connect { queues: 3, ..Connect::default() };
    let (mut one, mut two) = bench.pair(how);
    assert_eq!(bench.port(2).guest.rx_queues(), 3);
    for n in 0..60_u8 {
        assert!(one.send(usize::from(n % 3), &frame(1, 2, &[n])));
    }
    let mut came: [Vec<u8>; 3] = Default::default();
    eventually("all come", || {
        for queue in 0..3 {
            while let Some(got) = two.receive(queue) {
                let n = got.frame[14];
                came[usize::from(n % 3)].push(n);
            }
        }
        came.iter().map(Vec::len).sum::<usize>() == 60
    });
    for from in &came {
        assert!(from.is_sorted(), "{from:?}");
    }
}

#[test]
fn a_guest_that_names_its_groups_gets_no_others() {
    let bench = Bench::new();
    let mut one = bench.guest(1, Connect::default());
    let mut two = bench.guest(2, Connect { multicast: true, ..Connect::default() });
    let group = [1, 0, 0x5e, 0, 0, 9];
    let to_group = |payload: &[u8]| {
        let mut frame = frame(1, 2, payload);
        frame[..6].copy_from_slice(&group);
        frame
    };
    assert!(one.send(0, &to_group(b"not asked for")));
    eventually("counted", || bench.dropped(2, "multicast_unwanted") == 1);
    let join = Extra::McastAdd(weir_wire::Mac(group));
    assert!(two.send_slots(0, &[0; 14], 4096, 0, &[join]));
    eventually("joined", || !two.queues[0].answers().is_empty());
    assert!(one.send(0, &to_group(b"asked for")));
    assert_eq!(receive(&mut two, 0).frame, to_group(b"asked for"));
}

#[test]
fn a_guest_that_polls_in_time_gets_no_event_and_one_that_does_not_gets_it_then() {
    let bench = Bench::with(CallPolicy::within(Kind::Frontend, LONG_NS));
    let (mut one, mut two) = bench.pair(Connect::default());
    let port = bench.port(2);
    let events = || port.counters().rx[0].calls.get();
    // A driver asks for an event at the end of each poll, netfront even while it polls on a timer.
    let polls = |two: &mut Netfront, n: u8| {
        assert_eq!(receive(two, 0).frame, frame(1, 2, &[n]));
        assert!(two.receive(0).is_none());
    };
    let sends = |one: &mut Netfront, n| assert!(one.send(0, &frame(1, 2, &[n])));
    assert!(two.receive(0).is_none());
    for n in 0..10 {
        sends(&mut one, n);
        polls(&mut two, n);
    }
    let before = events();
    assert!(before > 0, "its agent has not said that it polls");
    port.set_guest_poll_ns(Some(LONG_NS));
    for n in 0..50 {
        sends(&mut one, n);
        polls(&mut two, n);
    }
    // Some events may have been due while this thread had to wait.
    assert!(events() - before < 10, "{} events for 50 frames", events() - before);
    assert!(port.counters().rx[0].calls_suppressed.get() >= 40);

    port.set_guest_poll_ns(Some(1));
    port.interface().set_hold_ns_max(None, LONG_NS);
    eventually("what is held is due", || {
        // The worker may be too slow for all frames to fit in.
        one.send(0, &frame(1, 2, &[99]));
        while two.receive(0).is_some() {}
        events() > before
    });
    port.set_guest_poll_ns(None);
    // The guest takes all frames, and asks for an event at the next one.
    all_is_answered(&mut one);
    while two.receive(0).is_some() {}
    let before = events();
    sends(&mut one, 100);
    eventually("an event comes at once", || events() > before);
}

fn detach(bench: &Bench, front: &mut Netfront, domain: u16) {
    bench.host.ask_to_detach(DomainId(domain), 0);
    front.state(XenbusState::Closed);
    eventually("weir has let go", || front.back_state() == Some(XenbusState::Closed));
    bench.host.remove(DomainId(domain), 0);
    eventually("the port is gone", || !bench.ports.lock().unwrap().contains_key(&vif(domain)));
}

#[test]
fn a_thousand_attachments_leave_nothing_mapped() {
    let bench = Bench::new();
    let mut other = bench.guest(2, Connect::default());
    let (mapped, bound) = (bench.host.mapped(), bench.host.bound());
    let mut front = Netfront::new(&bench.host, vif(1));
    for n in 0..1000_u16 {
        bench.host.attach(DomainId(1), 0, "02:00:00:00:00:01", "br0");
        bench.connect(&mut front, 1, Connect { split: n % 2 == 0, ..Connect::default() });
        // Frames are under way each time.
        front.send(0, &frame(1, 2, &n.to_be_bytes()));
        other.send(0, &frame(2, 1, &n.to_be_bytes()));
        while other.receive(0).is_some() {}
        detach(&bench, &mut front, 1);
        assert_eq!((bench.host.mapped(), bench.host.bound()), (mapped, bound));
        assert!(front.release(), "a page is mapped still");
    }
}

#[test]
fn weir_that_ends_and_starts_again_serves_a_guest_that_noticed_nothing() {
    let calls = CallPolicy::within(Kind::Immediate, 250_000);
    let mut bench = Bench::with(calls);
    let (mut one, mut two) = bench.pair(Connect { queues: 2, ..Connect::default() });
    for n in 0..5_u8 {
        for _ in 0..3 {
            assert!(one.send(usize::from(n % 2), &frame(1, 2, &[n])));
            let queue = || (0..2).find_map(|queue| two.receive(queue));
            let mut queue = queue;
            let mut got = None;
            eventually("it comes", || {
                got = queue();
                got.is_some()
            });
            assert_eq!(got.unwrap().frame, frame(1, 2, &[n]));
        }
        drop(bench.manager.take());
        assert_eq!((bench.host.mapped(), bench.host.bound()), (0, 0));
        // The frame is for an unknown address, whose station may answer later.
        assert!(one.send(0, &frame(1, 2, b"meanwhile")));
        bench = Bench::on(bench.host.clone(), calls);
        for domain in [1, 2] {
            let port = bench.port(domain);
            eventually("connected again", || port.info().state == State::Running);
        }
        bench.settle();
        while two.receive(0).is_some() || two.receive(1).is_some() {}
        // The frame's delivery depends on the order of connections. The frame is answered in any case.
        eventually("answered", || {
            one.queues[0].answers();
            one.queues[0].tx.ring().free() == one.queues[0].tx.ring().size()
        });
        while two.receive(0).is_some() || two.receive(1).is_some() {}
    }
}

#[test]
fn a_front_end_that_starts_anew_is_served_again() {
    let bench = Bench::new();
    let (mut one, mut two) = bench.pair(Connect::default());
    // kexec starts the driver again without closing the vif.
    one.state(XenbusState::Initialising);
    eventually("weir has let go", || one.back_state() == Some(XenbusState::InitWait));
    assert!(one.release());
    bench.connect(&mut one, 1, Connect { queues: 2, ..Connect::default() });
    assert!(one.send(1, &frame(1, 2, b"again")));
    assert_eq!(receive(&mut two, 0).frame, frame(1, 2, b"again"));
    let info = bench.port(1).info();
    assert_eq!((info.opened, info.closed, info.failed), (2, 1, 0));
}

#[test]
fn a_front_end_that_starts_anew_again_and_again_is_logged_a_few_times() {
    let bench = Bench::new();
    let (mut one, _two) = bench.pair(Connect::default());
    for _ in 0..=LOG_LINES_MAX {
        one.state(XenbusState::Initialising);
        eventually("weir has let go", || one.back_state() == Some(XenbusState::InitWait));
        assert!(one.release());
        bench.connect(&mut one, 1, Connect::default());
    }
    // The limit of all parties together may leave out more.
    assert!(bench.port(1).info().log_lines_unsaid >= 2);
}

#[test]
fn a_guest_that_dies_with_frames_under_way_leaves_nothing_mapped() {
    let bench = Bench::new();
    let (mut one, two) = bench.pair(Connect::default());
    for n in 0..80_u8 {
        one.send(0, &frame(1, 2, &[n]));
    }
    let Netfront { guest, queues, .. } = two;
    drop(queues);
    guest.destroy();
    eventually("weir has let go", || (bench.host.mapped(), bench.host.bound()) == (2, 2));
    // The answers to earlier frames may be on their way.
    eventually("it is sent", || one.send(0, &frame(1, 2, b"to nobody")));
    all_is_answered(&mut one);
}

#[test]
fn xenstore_that_breaks_ends_no_vif_and_those_that_come_or_go_meanwhile_are_seen_later() {
    let bench = Bench::new();
    let (mut one, mut two) = bench.pair(Connect::default());
    let mut third = Netfront::new(&bench.host, vif(3));
    for n in 0..3_u8 {
        bench.host.break_clients();
        assert!(one.send(0, &frame(1, 2, &[n])));
        assert_eq!(receive(&mut two, 0).frame, frame(1, 2, &[n]));
        // This vif breaks off within its handshake sooner or later.
        bench.host.attach(DomainId(3), 0, "02:00:00:00:00:03", "br0");
        std::thread::sleep(std::time::Duration::from_millis(u64::from(n) * 300));
        bench.host.break_clients();
        bench.connect(&mut third, 3, Connect::default());
        bench.host.break_clients();
        detach(&bench, &mut third, 3);
        assert!(third.release());
    }
    assert_eq!(bench.port(1).info().closed, 0, "it was not let go of");
}
