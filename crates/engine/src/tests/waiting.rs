//! Frames that wait for receivers without buffers: the workers that are notified of buffers, and the cost.

use super::*;

fn kick_receiver(engine: &Engine, receiver: &FakePort) {
    engine.nudge(QueueRef { port: receiver.id, queue: 0, side: Side::Rx });
}

/// Two receivers without buffers, known to the others.
fn full_receivers(engine: &Engine) -> (Arc<FakePort>, Arc<FakePort>) {
    let (x, y) = (add(engine, |_| {}), add(engine, |_| {}));
    for (number, receiver) in [(8, &x), (9, &y)] {
        send(engine, receiver, [frame(number, 0xff, 0)]);
    }
    eventually("they are known", || numbers(&x) == [0] && numbers(&y) == [0]);
    x.room.store(0, Ordering::SeqCst);
    y.room.store(0, Ordering::SeqCst);
    (x, y)
}

fn waits(port: &FakePort) -> usize {
    port.waiting.lock().unwrap().len()
}

#[test]
fn a_receivers_kick_has_no_frames_tried_but_those_that_wait_for_it() {
    for workers in [1, 2, 3] {
        let options = Options { workers, realization: Realization::Shared, ..Options::default() };
        let engine = Engine::start_with(options).unwrap();
        let (x, y) = full_receivers(&engine);
        let senders: Vec<_> = (1..=6).map(|_| add(&engine, |_| {})).collect();
        // The first sender sends to both, interleaved; the others only to the second.
        send(&engine, &senders[0], (1..=20).map(|n| frame(1, 8 + n % 2, n)));
        for (number, sender) in senders.iter().enumerate().skip(1) {
            send(&engine, sender, [frame(number as u8 + 1, 9, 50)]);
        }
        eventually("all wait", || senders.iter().map(|sender| waits(sender)).sum::<usize>() == 25);
        x.room.store(100, Ordering::SeqCst);
        kick_receiver(&engine, &x);
        eventually("what is for it arrives", || numbers(&x).len() == 11);
        let even = (0..=20).filter(|n| n % 2 == 0).collect::<Vec<_>>();
        assert_eq!(numbers(&x), even);
        let tried = |sender: &FakePort| sender.tried_for.lock().unwrap().clone();
        eventually("it is said", || !tried(&senders[0]).is_empty());
        assert_eq!(tried(&senders[0]), [(Some(x.id), 10)], "{workers} workers");
        assert!(senders[1..].iter().all(|sender| tried(sender).is_empty()), "at their cost");

        y.room.store(100, Ordering::SeqCst);
        kick_receiver(&engine, &y);
        eventually("the others arrive", || senders.iter().all(|sender| waits(sender) == 0));
        let odd: Vec<_> = numbers(&y).into_iter().filter(|n| *n < 50).collect();
        assert_eq!(odd, [0].into_iter().chain((1..=20).filter(|n| n % 2 == 1)).collect::<Vec<_>>());
        eventually("it is said", || tried(&senders[5]) == [(Some(y.id), 1)]);
    }
}

/// More frames than are tried at once wait for one receiver, interleaved with frames for another that never has room.
/// At whatever point the receiver was last found full, its next kick retries its frames from the first on.
#[test]
fn no_kick_is_missed_while_frames_for_others_wait_among_those_for_its_receiver() {
    for kick_at in 0..6 {
        let engine = Arc::new(Engine::start(1).unwrap());
        let (x, y) = full_receivers(&engine);
        let a = add(&engine, |port| port.tries = 5);
        send(&engine, &a, (1..=40).map(|n| frame(1, 8 + n % 2, n)));
        eventually("all wait", || waits(&a) == 40);
        // Three buffers come; then buffers for all while the first frames are tried, or a little later.
        let (receiver, later) = (Arc::clone(&x), Arc::downgrade(&engine));
        let refill = move || {
            receiver.room.store(100, Ordering::SeqCst);
            kick_receiver(&later.upgrade().unwrap(), &receiver);
        };
        hook(&a, kick_at, Box::new(refill));
        x.room.store(3, Ordering::SeqCst);
        kick_receiver(&engine, &x);
        // A kick of the other receiver in between has no effect.
        kick_receiver(&engine, &y);
        for n in 0..kick_at {
            // Each kick causes at least one retry, which the hook counts, unless nothing is left to try.
            let before = a.tried_for.lock().unwrap().len();
            kick_receiver(&engine, if n % 2 == 0 { &y } else { &x });
            let tried = || a.tried_for.lock().unwrap().len() > before;
            eventually("a try", || tried() || (n % 2 == 1 && numbers(&x).len() == 21));
        }
        eventually("all arrive", || numbers(&x).len() == 21);
        assert_eq!(numbers(&x), (0..=40).filter(|n| n % 2 == 0).collect::<Vec<_>>());
        assert_eq!(waits(&a), 20, "the others wait");
    }
}

/// Makes `port` run `what` after this number of further tries.
fn hook(port: &Arc<FakePort>, after: usize, what: Box<dyn FnOnce() + Send>) {
    let again = Arc::downgrade(port);
    *port.tried.lock().unwrap() = Some(match after {
        0 => what,
        _ => Box::new(move || {
            if let Some(port) = again.upgrade() {
                hook(&port, after - 1, what);
            }
        }),
    });
}

#[test]
fn frames_that_a_helper_has_parked_are_tried_by_who_serves_their_queue_then() {
    let engine = Engine::start(2).unwrap();
    let a = add(&engine, |port| port.shares = true);
    let b = add(&engine, |_| {});
    send(&engine, &b, [frame(2, 0xff, 0)]);
    eventually("a has it", || numbers(&a) == [0]);
    b.room.store(0, Ordering::SeqCst);
    let worker = engine.worker_of(a.id, 0).unwrap();
    for round in 1..=50 {
        // A different worker from the one that parks them serves the queue when the kick comes.
        assert!(engine.set_helper(a.id, 0, Some(1 - worker)));
        send(&engine, &a, [frame(1, 2, 1)]);
        eventually("it waits", || waits(&a) == 1);
        engine.set_helper(a.id, 0, None);
        engine.assign(a.id, 0, round % 2).unwrap();
        b.room.store(1, Ordering::SeqCst);
        kick_receiver(&engine, &b);
        eventually("it arrives", || numbers(&b).len() == round);
    }
}

#[test]
fn a_frame_by_itself_whose_way_is_noted_waits_and_is_not_overtaken() {
    let engine = Engine::start(1).unwrap();
    let (a, b) = (add(&engine, |_| {}), add(&engine, |_| {}));
    send(&engine, &b, [frame(2, 0xff, 0)]);
    eventually("a has it", || numbers(&a) == [0]);
    for number in 1..=20 {
        // There are buffers for two frames: the way of the first may be looked up, and the second finds it noted.
        b.room.store(2, Ordering::SeqCst);
        let before = numbers(&b).len();
        for nth in 1..=4 {
            send(&engine, &a, [frame(1, 2, 4 * number + nth)]);
            let all = || numbers(&b).len() - before + waits(&a) == usize::from(nth);
            eventually("it arrives or waits", all);
        }
        assert_eq!(waits(&a), 2);
        b.room.store(100, Ordering::SeqCst);
        kick_receiver(&engine, &b);
        eventually("all arrive", || waits(&a) == 0);
    }
    assert_eq!(numbers(&b), (5..=84).collect::<Vec<_>>());
}

#[test]
fn a_nudge_of_weirs_own_is_no_kick() {
    let engine = Engine::start(1).unwrap();
    let (a, b) = (add(&engine, |_| {}), add(&engine, |_| {}));
    for n in 1..=10 {
        send(&engine, &a, [frame(1, 0xff, n)]);
        kick_receiver(&engine, &a);
        eventually("it arrives", || numbers(&b).len() == usize::from(n));
    }
    engine.assign(a.id, 0, 0).unwrap();
    assert_eq!(a.kicks.load(Ordering::SeqCst), 0);
    let kick = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let queue = QueueRef { port: a.id, queue: 0, side: Side::Tx };
    let _watch = engine.watch(queue, kick.try_clone().unwrap()).unwrap();
    rustix::io::write(&kick, &1u64.to_ne_bytes()).unwrap();
    eventually("this is one", || a.kicks.load(Ordering::SeqCst) == 1);
}
