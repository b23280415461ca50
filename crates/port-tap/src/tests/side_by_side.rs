//! Several workers that take from one queue.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};

use super::*;

/// The frames that a test's receivers have got, in order, and the receivers that are full now.
#[derive(Default)]
struct Receivers {
    arrived: [Vec<u16>; 3],
    dropped: usize,
    /// A bit for each full receiver, and the number of bursts until the bits change.
    full: u16,
    bursts: u16,
}

impl Receivers {
    /// Places a burst. The remainder of a frame's number gives its receiver.
    fn place(&mut self, burst: &mut Burst<'_>) {
        self.bursts += 1;
        if self.bursts.is_multiple_of(4) {
            self.full = self.bursts / 4 % 8;
        }
        let numbers: Vec<_> =
            burst.frames().iter().map(|frame| number(frame.head.as_slice())).collect();
        for (index, number) in (0..).zip(numbers) {
            let to = number % 3;
            if self.full & 1 << to == 0 && !burst.room.blocked.contains(&port_id(to)) {
                self.arrived[usize::from(to)].push(number);
            } else if !burst.park(index, port_id(to)) {
                self.dropped += 1;
            }
        }
    }
}

#[test]
fn several_workers_lose_and_reorder_nothing_while_they_come_and_go() {
    const FRAMES: u16 = 3000;
    let rig = Rig::new(1);
    let (port, receivers) = (&rig.port, Mutex::new(Receivers::default()));
    let (done, taking, together) =
        (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let worker = |share: bool| {
        let mut scratch = Scratch::default();
        while !done.load(Ordering::Relaxed) {
            for what in [Take::New, Take::Parked(None), Take::New] {
                port.take(0, what.at(0), &mut scratch, &mut |burst| {
                    together
                        .fetch_max(taking.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                    receivers.lock().unwrap().place(burst);
                    if let (true, Some(turn)) = (burst.room.parked.is_empty(), burst.turn) {
                        turn.take();
                        // Bytes that are copied after the turn are still there.
                        std::thread::sleep(Duration::from_micros(200));
                    }
                    for bytes in contents(burst) {
                        assert_eq!(bytes, frame(number(&bytes), 200));
                    }
                    taking.fetch_sub(1, Ordering::Relaxed);
                });
            }
            if share {
                // If one worker serves the queue, a burst is placed with the queue's lock held.
                let bursts = receivers.lock().unwrap().bursts;
                port.share_tx(0, bursts % 32 < 24);
            }
        }
    };
    assert!(rig.port.share_tx(0, true));
    let mut sent = 0;
    std::thread::scope(|scope| {
        let _stops = weir_testing::SetAtEnd(&done);
        scope.spawn(|| worker(true));
        scope.spawn(|| worker(false));
        scope.spawn(|| worker(false));
        // More frames are sent until both workers have met.
        while sent < FRAMES || (together.load(Ordering::Relaxed) < 2 && sent < u16::MAX) {
            while rustix::io::write(
                &rig.host[0],
                &[&VnetHdr::default().to_bytes(), &frame(sent, 200)[..]].concat(),
            )
            .is_err()
            {
                std::thread::yield_now();
            }
            sent += 1;
        }
        let end = Instant::now() + PATIENCE;
        loop {
            let receivers = receivers.lock().unwrap();
            let arrived: usize = receivers.arrived.iter().map(Vec::len).sum();
            if arrived + receivers.dropped == usize::from(sent) || Instant::now() > end {
                break;
            }
            drop(receivers);
            std::thread::yield_now();
        }
    });
    let receivers = receivers.into_inner().unwrap();
    for frames in &receivers.arrived {
        assert!(frames.is_sorted_by(|a, b| a < b), "{frames:?}");
    }
    let arrived: usize = receivers.arrived.iter().map(Vec::len).sum();
    assert_eq!(arrived + receivers.dropped, usize::from(sent));
    assert_eq!(rig.port.free_slots(0), TAP_SLOTS);
    assert!(together.into_inner() > 1, "or it was not tried");
    assert!(
        rig.counters.parked.get() > 0,
        "or it was not tried whether frames that wait are overtaken"
    );
}

#[test]
fn a_burst_that_waits_for_its_turn_learns_whom_the_one_before_parked_frames_for() {
    let rig = Rig::new(1);
    assert!(rig.port.share_tx(0, true));
    rig.send(&frame(1, 60));
    let (told, hears) = mpsc::channel();
    std::thread::scope(|scope| {
        let take = |parks: bool, go_on: mpsc::Receiver<()>| {
            let (told, port) = (told.clone(), &rig.port);
            move || {
                port.take(0, Take::New.at(0), &mut Scratch::default(), &mut |burst| {
                    let first = number(burst.frames()[0].head.as_slice());
                    told.send((first, burst.room.blocked.clone())).unwrap();
                    go_on.recv().unwrap();
                    assert!(!parks || burst.park(0, port_id(7)));
                })
            }
        };
        let ((first_may, first_waits), (second_may, second_waits)) =
            (mpsc::channel(), mpsc::channel());
        let first = scope.spawn(take(true, first_waits));
        assert_eq!(hears.recv().unwrap(), (1, vec![]));
        rig.send(&frame(2, 60));
        let second = scope.spawn(take(false, second_waits));
        let end = Instant::now() + PATIENCE;
        // The first worker has a buffer already.
        while rig.port.free_slots(0) > TAP_SLOTS - 2 {
            assert!(Instant::now() < end, "the second takes");
            std::thread::yield_now();
        }
        assert!(hears.try_recv().is_err(), "the first still has its turn");
        first_may.send(()).unwrap();
        assert_eq!(hears.recv().unwrap(), (2, vec![port_id(7)]));
        second_may.send(()).unwrap();
        let (first, second) = (first.join().unwrap(), second.join().unwrap());
        assert_eq!((first.frames, first.parked, second.frames, second.parked), (1, 1, 1, 1));
    });
}

#[test]
fn an_uplink_with_one_queue_is_helped_and_keeps_its_order() {
    let engine = Engine::start(2).unwrap();
    let (_, [a, b], ports) = switch_on(&engine, [ALL, ALL]);
    let bursts = || engine.workers().iter().map(|worker| worker.bursts).min();
    let before = bursts();
    let end = Instant::now() + PATIENCE;
    let mut round = 0_u16;
    while round < 200 || bursts() < before.map(|before| before + 20) {
        assert!(Instant::now() < end, "the second worker has its part");
        let helper = [Some(1), Some(0), None, Some(1)][usize::from(round % 4)];
        assert!(engine.set_helper(ports[0], 0, helper));
        (0..40).for_each(|n| send(&a[0], &VnetHdr::default(), &frame(n, 60)));
        assert!(engine.set_helper(ports[0], 0, helper));
        for n in 0..40 {
            assert_eq!(receive_soon(&b[0]), Some((VnetHdr::default(), frame(n, 60))));
        }
        round += 1;
    }
}

#[test]
fn a_port_that_fails_amid_two_bursts_holds_nobody_up() {
    let rig = Rig::new(1);
    let port = &rig.port;
    assert!(port.share_tx(0, true));
    (0..2 * TAP_BURST_MAX as u16).for_each(|n| rig.send(&frame(n, 60)));
    let taken = std::thread::scope(|scope| {
        let take = || {
            port.take(0, Take::New.at(0), &mut Scratch::default(), &mut |burst| match number(
                burst.frames()[0].head.as_slice(),
            ) {
                0 => panic!("with the turn"),
                _ => port.fail("the other one panicked"),
            })
        };
        // The second worker waits for its turn; the frames that the first has taken are never settled.
        let workers = [scope.spawn(take), scope.spawn(take)];
        workers.map(|worker| worker.join().ok())
    });
    assert_eq!(taken.iter().flatten().collect::<Vec<_>>(), [&Taken::default()]);
}
