//! Two workers that send from one queue.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;

use weir_engine::burst::Scratch;
use weir_engine::guest::GuestPort;
use weir_engine::{Port, Take, clock};

use super::*;

/// Frames that are sent before all of them must have arrived.
const WINDOW: u8 = 48;
/// Frames are offered in groups of this size, so that there is something for both workers.
const AT_ONCE: u8 = 4;
/// At times the receiver has so few buffers left that frames must wait for it; half a ring of frames may wait.
const FEW: u16 = 20;

/// The first length needs no copy besides the front; the second length does.
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
            // Holding back buffers that frames wait for would wait for ever.
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
                // Only its copies are left, so the next burst has its turn.
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
