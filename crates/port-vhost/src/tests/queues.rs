//! Several workers that send from one queue, or fill one, and interfaces that get more queue pairs or fewer.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;

use weir_engine::burst::{Pieces, Scratch, TakenChain};
use weir_engine::guest::GuestPort;
use weir_engine::{Delivered, Outgoing, Port, Take, clock};
use weir_guestmem::HostBuffer;
use weir_vif::{Options, Vif};
use weir_wire::Mac;

use super::*;
use crate::rx;

/// Frames that are sent before all of them must have arrived.
const WINDOW: u8 = 48;
/// Frames are offered in groups of this size, so that there is something for both workers.
const AT_ONCE: u8 = 4;
/// At times the receiver has so few buffers left that frames must wait for it; half a ring of frames may wait.
const FEW: u16 = 20;

/// A frame of the first length is copied with its front. A frame of the second length takes another copy.
const LENGTHS: [usize; 2] = [60, 1500];

/// Sends a window of frames and checks that they arrive once and in order, except those that have waited too long for
/// the receiver. `owed` counts buffers that the receiver holds back.
fn send_and_receive(a: &mut Guest, b: &mut Guest, first: u8, owed: &mut u16) {
    let (a_port, b_port) = (Arc::clone(&a.port), Arc::clone(&b.port));
    let lost = || lost([&a_port, &b_port]);
    let (start, lost_before) = (Instant::now(), lost());
    for slot in 0..WINDOW {
        let number = first.wrapping_add(slot);
        let sent = frame(a, Some(b), LENGTHS[usize::from(number / 16) % 2], number);
        a.offer(slot.into(), &VnetHdr::default(), &sent);
        if (slot + 1) % AT_ONCE == 0 {
            a.send_now();
        }
    }
    let (mut next, mut arrived) = (0, 0);
    eventually("each frame has its end", || {
        loop {
            // If the test held back buffers that frames wait for, it would wait for ever.
            if *owed >= SIZE - FEW {
                b.post(std::mem::take(owed));
            }
            let Some((vnet, bytes)) = b.received() else { break };
            let (number, slot) = (bytes[14], bytes[14].wrapping_sub(first));
            assert!((next..WINDOW).contains(&slot), "{slot} behind {next}");
            assert_eq!(vnet.num_buffers, 1);
            assert!(bytes[15..].iter().all(|byte| *byte == number), "another frame's bytes");
            next = slot + 1;
            arrived += 1;
            *owed += 1;
        }
        arrived + lost() - lost_before == u64::from(WINDOW)
    });
    a.reap();
    if lost() > lost_before {
        assert_has_waited(start);
    }
}

#[test]
fn frames_stay_in_order_while_helpers_come_and_go() {
    for format in formats() {
        let switch = Switch::with_workers(2);
        let (mut a, mut b) = (switch.guest(1, format), switch.guest(2, format));
        introduce(&mut a, &mut b);
        let (stop, mut owed) = (AtomicBool::new(false), 1);
        let stops = weir_testing::SetAtEnd(&stop);
        let (engine, a_id) = (&switch.engine, a.port.id());
        let counters = Arc::clone(&a.port);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let helper = [Some(1), None, Some(0), Some(1)][n % 4];
                    assert!(engine.set_helper(a_id, 0, helper));
                    engine.assign(a_id, 0, n / 8 % 2).unwrap();
                    std::thread::sleep(Duration::from_micros(n as u64 % 7 * 50));
                }
            });
            let stops = stops;
            for round in 0..400_u32 {
                send_and_receive(&mut a, &mut b, (round * u32::from(WINDOW)) as u8, &mut owed);
            }
            drop(stops);
        });
        let waited = counters.counters().parked.get();
        assert!(waited > 0, "or it was not tried whether frames that wait are overtaken");
    }
}

#[test]
fn both_workers_send_from_the_queue() {
    let switch = Switch::with_workers(2);
    let (mut a, mut b) = (switch.guest(1, modern()), switch.guest(2, modern()));
    introduce(&mut a, &mut b);
    // The second worker must not be busy with the other pairs of queues.
    for port in [a.port.id(), b.port.id()] {
        switch.engine.assign(port, 0, 0).unwrap();
    }
    let bursts = || switch.engine.workers().iter().map(|worker| worker.bursts).collect::<Vec<_>>();
    let mut owed = 1;
    send_and_receive(&mut a, &mut b, 0, &mut owed);
    let before = bursts();
    send_and_receive(&mut a, &mut b, 0, &mut owed);
    assert_eq!(bursts()[1], before[1], "nobody helps yet");

    assert!(switch.engine.set_helper(a.port.id(), 0, Some(1)));
    let mut rounds = 0;
    eventually("the second has its part", || {
        switch.engine.set_helper(a.port.id(), 0, Some(1));
        send_and_receive(&mut a, &mut b, 0, &mut owed);
        rounds += 1;
        let both = bursts();
        both.iter().zip(&before).all(|(now, before)| now - before >= 50)
    });
    assert!(switch.engine.set_helper(a.port.id(), 0, None));
    eventually("nobody helps any more", || {
        let before = bursts();
        send_and_receive(&mut a, &mut b, 0, &mut owed);
        bursts()[1] == before[1]
    });
}

#[test]
fn while_one_worker_places_its_frames_the_next_takes_and_waits_for_its_turn() {
    // The workers sleep, and are notified of nothing: this test serves the ring.
    let switch = Switch::new();
    let (mut a, b) = (switch.guest(1, modern()), switch.guest(2, modern()));
    let (port, receiver) = (Arc::clone(&a.port), b.port.id());
    assert!(port.share_tx(0, true));
    a.tx.suppress_calls();
    let mut offer = |number: u8| {
        let sent = frame(&a, Some(&b), 60, number);
        a.offer(number.into(), &VnetHdr::default(), &sent);
        a.tx.publish();
    };
    let (told, hears) = mpsc::channel();
    let take = |what: Take, parks: bool, go_on: mpsc::Receiver<()>| {
        let (told, port) = (told.clone(), &port);
        move || {
            port.take(0, what.at(clock::now_ns()), &mut Scratch::default(), &mut |burst| {
                told.send((burst.frames()[0].head.as_slice()[14], burst.room.blocked.clone()))
                    .unwrap();
                go_on.recv().unwrap();
                assert!(!parks || burst.park(0, receiver));
            })
        }
    };
    offer(1);
    std::thread::scope(|scope| {
        let ((first_may, first_waits), (second_may, second_waits)) =
            (mpsc::channel(), mpsc::channel());
        let first = scope.spawn(take(Take::New, true, first_waits));
        assert_eq!(hears.recv().unwrap(), (1, vec![]));
        offer(2);
        assert!(port.peek_tx(0));
        let second = scope.spawn(take(Take::New, false, second_waits));
        // While the second waits for its turn the queue is not locked; a burst of newer frames has a later turn.
        eventually("the second takes", || !port.peek_tx(0));
        assert!(hears.try_recv().is_err(), "the first still has its turn");
        first_may.send(()).unwrap();
        let blocked = vec![receiver];
        assert_eq!(hears.recv().unwrap(), (2, blocked), "a frame of the first waits for it");
        second_may.send(()).unwrap();
        let (first, second) = (first.join().unwrap(), second.join().unwrap());
        assert_eq!((first.frames, first.parked, second.frames), (1, 1, 1));
    });
    let (may, waits) = mpsc::channel();
    may.send(()).unwrap();
    assert_eq!(take(Take::Parked(None), false, waits)().frames, 1);
    assert_eq!(hears.recv().unwrap(), (1, vec![]));
    a.reap();
}

#[test]
fn a_transmit_ring_that_stops_amid_two_workers_has_sent_all_that_it_took() {
    for format in formats() {
        let switch = Switch::with_workers(2);
        let (mut a, mut b) = (switch.guest(1, format), switch.guest(2, format));
        introduce(&mut a, &mut b);
        assert!(switch.engine.set_helper(a.port.id(), 0, Some(1)));
        for round in 0..50_u8 {
            for slot in 0..WINDOW {
                let sent = frame(&a, Some(&b), 1500, slot);
                a.offer(slot.into(), &VnetHdr::default(), &sent);
            }
            a.send_now();
            let base = a.front.get_vring_base(1).unwrap();
            a.front.set_vring_base(1, base).unwrap();
            a.front.set_vring_kick(1, Some(a.kicks[1].as_fd())).unwrap();
            a.kick(1);
            switch.engine.set_helper(a.port.id(), 0, Some(usize::from(round % 2)));
            for slot in 0..WINDOW {
                let (vnet, bytes) = b.wait_received();
                assert_eq!(bytes[14], slot);
                b.post(vnet.num_buffers);
            }
            a.reap();
        }
    }
}

/// Two workers follow one another without end: one of them always has a burst under way.
#[test]
fn a_ring_that_two_workers_never_let_settle_stops_soon() {
    /// The time that a burst waits for the next one to be under way.
    const OVERLAP: Duration = Duration::from_millis(500);
    // The workers sleep, and are notified of nothing: this test serves the ring.
    let switch = Switch::new();
    let (mut a, b) = (switch.guest(1, modern()), switch.guest(2, modern()));
    let port = Arc::clone(&a.port);
    assert!(port.share_tx(0, true));
    a.tx.suppress_calls();
    let (begun, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let stops = weir_testing::SetAtEnd(&over);
    let is_over = || over.load(Ordering::SeqCst);
    let worker = || {
        while !is_over() {
            let mut scratch = Scratch::default();
            port.take(0, Take::New.at(clock::now_ns()), &mut scratch, &mut |burst| {
                // Only the burst's copies are left, so it is the next burst's turn.
                drop(burst.turn.and_then(RefCell::take));
                let mine = begun.fetch_add(1, Ordering::SeqCst) + 1;
                let start = Instant::now();
                let alone = || begun.load(Ordering::SeqCst) == mine;
                while alone() && !is_over() && start.elapsed() < OVERLAP {
                    std::thread::yield_now();
                }
            });
            std::thread::yield_now();
        }
    };
    std::thread::scope(|scope| {
        let stops = stops;
        scope.spawn(worker);
        scope.spawn(worker);
        scope.spawn(|| {
            while !is_over() {
                while a.tx.take().is_some() {}
                if a.tx.in_flight() < SIZE / 2 {
                    let sent = frame(&a, Some(&b), 60, 1);
                    a.offer(0, &VnetHdr::default(), &sent);
                    a.tx.publish();
                }
                std::thread::yield_now();
            }
        });
        eventually("both are at it", || begun.load(Ordering::SeqCst) > 10);
        let stopped = scope.spawn(|| port.stop_ring(1).is_some());
        let end = Instant::now() + PATIENCE / 4;
        while !stopped.is_finished() && Instant::now() < end {
            std::thread::yield_now();
        }
        let in_time = stopped.is_finished();
        drop(stops);
        assert!(stopped.join().unwrap() && in_time, "it waits for both to pause at once");
    });
}

/// Frames that a sender has under way; each needs five of the receiver's buffers.
const TOGETHER: u64 = 6;
const LEN: usize = 9_000;

/// Lets the switch learn where the receiver is.
fn hello(receiver: &mut Guest, senders: &mut [Guest]) {
    let hello = frame(receiver, None, 60, 0);
    receiver.send(&hello);
    for sender in senders {
        assert_eq!(sender.wait_received().1, hello);
    }
}

#[test]
fn what_was_placed_first_is_seen_first_whoever_copies_faster() {
    for format in formats() {
        let switch = Switch::new();
        let (sender, mut receiver) = (switch.guest(1, format), switch.guest(2, format));
        // The last frame is wholly in its front: no byte of it is copied later.
        let frames = [(LEN, 1), (LEN, 2), (60, 3)]
            .map(|(len, number)| frame(&sender, Some(&receiver), len, number));
        let memory = rx::memory(&receiver.port.first_rx()).unwrap();
        let buffers = frames.each_ref().map(|frame| {
            let buffer = HostBuffer::new(VnetHdr::LEN + frame.len());
            buffer.slice(VnetHdr::LEN, frame.len()).unwrap().write(frame);
            buffer
        });
        let mut scratches = [(); 3].map(|()| Scratch::default());
        let mut bursts = scratches.each_mut().map(Scratch::lend);
        for (burst, buffer) in bursts.iter_mut().zip(&buffers) {
            let whole = buffer.slice(0, buffer.len()).unwrap();
            let pieces = Pieces::Only(whole);
            let chain = TakenChain { token: 0, len: whole.len() as u32, pieces };
            burst.add(chain, VnetHdr::LEN, 0).unwrap();
        }
        let out = [Outgoing::untagged(0)];
        let counters = receiver.port.counters();
        let place = |burst| {
            let (mut queue, mut delivered) = (receiver.port.first_rx(), Delivered::default());
            rx::place(&mut queue, 0, &memory, burst, &out, counters, &mut delivered).unwrap()
        };
        let [first, second, third] = bursts.each_ref().map(place);
        let [first, second] = [first, second].map(|copies| copies.expect("something to copy"));
        assert!(third.is_none(), "nothing to copy");
        second.copy();
        rx::finish(&mut receiver.port.first_rx(), 0, second, counters).unwrap();
        let nothing = receiver.rx.take();
        assert_eq!(nothing, None, "the first is not copied yet");
        first.copy();
        rx::finish(&mut receiver.port.first_rx(), 0, first, counters).unwrap();
        for frame in &frames {
            assert!(receiver.received().unwrap().1 == *frame);
        }
    }
}

#[test]
fn workers_that_fill_one_ring_together_keep_each_senders_order() {
    let kinds = [Kind::Immediate, Kind::Aggregate, Kind::Backend, Kind::Aggregate];
    for (format, kind) in formats().into_iter().zip(kinds) {
        let switch = Switch::with_workers(2);
        // Ports are numbered in the order in which they are made, and are assigned to workers by number.
        let mut senders = [switch.guest(1, format), switch.guest(2, format)];
        let mut receiver = switch.guest(3, format);
        hello(&mut receiver, &mut senders);
        receiver.port.interface().set_moderation(&CallPolicy::within(kind, 200_000));
        let mut sent = [0u8; 2];
        let mut got = [0u8; 2];
        for _ in 0..200 {
            for (sender, number) in senders.iter_mut().zip(&mut sent) {
                for slot in 0..TOGETHER {
                    let frame = frame(sender, Some(&receiver), LEN, *number);
                    sender.offer(slot, &VnetHdr::default(), &frame);
                    *number = number.wrapping_add(1);
                }
            }
            senders.iter_mut().for_each(Guest::send_now);
            for _ in 0..2 * TOGETHER {
                let (vnet, arrived) = receiver.wait_received();
                let from = senders.iter().position(|sender| arrived[6..12] == sender.mac).unwrap();
                assert!(arrived == frame(&senders[from], Some(&receiver), LEN, got[from]));
                got[from] = got[from].wrapping_add(1);
                receiver.post(vnet.num_buffers);
            }
            senders.iter_mut().for_each(Guest::reap);
        }
    }
}

#[test]
fn a_ring_that_stops_amid_traffic_is_left_alone() {
    let switch = Switch::with_workers(2);
    let mut senders = [switch.guest(1, modern()), switch.guest(2, modern())];
    let mut receiver = switch.guest(3, modern());
    hello(&mut receiver, &mut senders);
    for round in 0..50 {
        for sender in &mut senders {
            for slot in 0..TOGETHER {
                let frame = frame(sender, Some(&receiver), 65_000, round);
                sender.offer(slot, &VnetHdr::default(), &frame);
            }
            sender.send_now();
        }
        let base = receiver.front.get_vring_base(0).unwrap();
        let mut taken = 0;
        while let Some((vnet, arrived)) = receiver.received() {
            assert!(
                arrived[14..].iter().all(|byte| *byte == round),
                "published before it was copied"
            );
            taken += vnet.num_buffers;
        }
        // From here on the buffers are the guest's.
        let mark = receiver.memory.slice(RX_BUFFERS, BUFFER as u32 * u32::from(SIZE)).unwrap();
        let pattern = vec![0xee; mark.len()];
        mark.write(&pattern);
        senders.iter_mut().for_each(Guest::reap);
        let mut now = vec![0; mark.len()];
        mark.read(&mut now);
        assert!(now == pattern, "written after GET_VRING_BASE");
        receiver.post(taken);
        receiver.front.set_vring_base(0, base).unwrap();
        receiver.front.set_vring_kick(0, Some(receiver.kicks[0].as_fd())).unwrap();
        receiver.kick(0);
        let port = Arc::clone(&receiver.port);
        eventually("the ring runs again", || weir_engine::Port::rx_queues(&*port) == 1);
    }
}

#[test]
fn workers_of_two_rings_of_one_guest_count_their_bursts_apart() {
    let switch = Switch::new();
    let guest = switch.guest(1, modern());
    let receives = rx::memory(&guest.port.first_rx()).unwrap();
    let transmits = guest.port.stop_ring(1).unwrap().memory;
    assert!(!Arc::ptr_eq(&receives, &transmits));
}

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
    // This session cannot get the ring, although the ring exists now.
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
    // The kind changes on all queues.
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
            port.with_queue(2 * queue, |queue| {
                queue.ring.as_mut().unwrap().holds.set(crate::queue::Holds::KICK, true);
            });
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
