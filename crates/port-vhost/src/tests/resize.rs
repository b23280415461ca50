//! An interface gets more queue pairs, or fewer, while its guest and others talk.

use weir_engine::Port;
use weir_engine::guest::GuestPort;
use weir_vif::{Options, Vif};
use weir_wire::Mac;

use super::*;

const SENT: u32 = 20_000;

fn calls() -> CallPolicy {
    CallPolicy::within(Kind::Immediate, 250_000)
}

fn connect(switch: &Switch, port: &Arc<VhostPort>, queues: usize) -> Vif {
    let (ours, theirs) = UnixStream::pair().unwrap();
    switch.manager.remove(port.id()).unwrap();
    switch.manager.add(Arc::clone(port), Endpoint::Connected(ours)).unwrap();
    let options = Options { queues, ..Options::new(Mac([0x52, 0x54, 0, 0, 0, 9])) };
    Vif::over(theirs, &options).unwrap()
}

#[test]
fn a_session_keeps_the_number_of_queue_pairs_that_it_was_told() {
    let switch = Switch::new();
    let mut guest = switch.guest(1, modern());
    assert_eq!(guest.front.get_queue_num().unwrap(), 4);
    for (set, made) in [(8, 8), (1, 8), (3, 8)] {
        guest.port.set_queue_pairs(set, &calls());
        assert_eq!(
            (guest.port.offered_queue_pairs(), guest.port.interface().queue_pairs()),
            (set, made)
        );
        assert_eq!(guest.front.get_queue_num().unwrap(), 4);
        assert_eq!(guest.port.info().session_queue_pairs, Some(2));
    }
    // Even a ring that exists now cannot be had in this session.
    guest.front.set_vring_num(3, 64).unwrap();
    assert!(matches!(guest.front.set_vring_num(4, 64), Err(FrontEndError::Refused { .. })));
    eventually("the session ends", || guest.port.info().session_queue_pairs.is_none());
}

#[test]
fn a_number_out_of_bounds_is_brought_within() {
    let switch = Switch::new();
    let (port, _stream) = switch.port();
    for (set, offered) in [(0, 1), (usize::MAX, 8)] {
        port.set_queue_pairs(set, &calls());
        assert_eq!(port.offered_queue_pairs(), offered);
    }
}

#[test]
fn a_guest_comes_back_with_more_queue_pairs_and_others_lose_nothing() {
    let switch = Switch::with_workers(2);
    let (mut a, mut b) = (switch.guest(1, modern()), switch.guest(2, modern()));
    introduce(&mut a, &mut b);
    let (resized, _stream) = switch.port();
    let talking = [Arc::clone(&a.port), Arc::clone(&b.port)];
    std::thread::scope(|scope| {
        let talk = scope.spawn(move || {
            for number in 0..SENT {
                let sent = frame(&a, Some(&b), 60 + number as usize % 1400, number as u8);
                a.send(&sent);
                let received = loop {
                    let (_, received) = b.wait_received();
                    b.post(1);
                    if received[..6] == b.mac {
                        break received;
                    }
                };
                assert_eq!(received, sent, "frame {number}");
            }
        });
        for queues in [2, 4, 8, 3, 1, 8] {
            // The guests that exchange frames are resized too: their sessions continue.
            for port in talking.iter().chain([&resized]) {
                port.set_queue_pairs(queues, &calls());
            }
            let mut vif = connect(&switch, &resized, queues);
            let mut pairs = vif.queue_pairs();
            eventually("all rings start", || resized.rx_queues() == queues);
            // The guest is heard on each of the queues.
            let before: Vec<_> =
                resized.counters().tx.iter().map(|queue| queue.frames.get()).collect();
            for pair in &mut pairs {
                let mut hello = vec![0xff; 6];
                hello.extend([0x52, 0x54, 0, 0, 0, 9, 0x88, 0xb5]);
                hello.resize(60, 0);
                pair.send(&hello, &Offload::NONE).unwrap();
                pair.flush();
            }
            eventually("each queue is served", || {
                let now = resized.counters().tx.iter().zip(&before);
                now.filter(|(queue, before)| queue.frames.get() > **before).count() == queues
            });
        }
        talk.join().unwrap();
    });
}

#[test]
fn a_pair_that_is_made_later_calls_as_the_others_do() {
    let switch = Switch::new();
    let (port, _stream) = switch.port();
    let calls = CallPolicy::within(Kind::Backend, 1_000_000);
    port.interface().set_moderation(&calls);
    port.set_queue_pairs(4, &calls);
    let decisions = port.interface().decisions();
    assert_eq!(decisions.len(), 4);
    for decision in &decisions {
        assert_eq!(decision.kind, Kind::Backend);
        assert_eq!(decision.hold_ns_max, decisions[0].hold_ns_max);
    }
    // The kind changes on all of them.
    port.interface().set_moderation(&CallPolicy::within(Kind::Immediate, 250_000));
    assert!(port.interface().decisions().iter().all(|decision| decision.kind == Kind::Immediate));
}

/// Each first kick counts the queues that can receive. The count of one must not replace a later count of another.
#[test]
fn two_first_kicks_at_once_make_two_queues_ready() {
    use weir_engine::Side;

    let switch = Switch::new();
    let (port, _stream) = switch.port();
    let _vif = connect(&switch, &port, 2);
    eventually("both queues are ready", || port.rx_queues() == 2);
    let barrier = std::sync::Barrier::new(2);
    let first_kick = |queue: usize| {
        for round in 0..20_000 {
            port.with_queue(2 * queue, |queue| queue.ring.as_mut().unwrap().started = false);
            barrier.wait();
            port.kicked(queue, Side::Rx);
            barrier.wait();
            assert_eq!(port.rx_queues(), 2, "round {round}");
            barrier.wait();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| first_kick(1));
        first_kick(0);
    });
}
