//! Vifs that are attached and detached.

use super::*;
use weir_engine::guest::GuestPort;
use weir_limits::LOG_LINES_MAX;

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
