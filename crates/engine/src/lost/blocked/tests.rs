use super::*;
use crate::frames::burst::{Pieces, Scratch, TakenChain};

fn port(number: u16) -> PortId {
    PortId::new(number).unwrap()
}

fn worker() -> Arc<Shared> {
    let (touches, watch_until_ns) = (0.into(), u64::MAX.into());
    let (certain_until_ns, found) = (0.into(), Mutex::default());
    Arc::new(Shared { thread: 1, touches, watch_until_ns, certain_until_ns, found })
}

fn found(worker: &Shared) -> Vec<PortId> {
    lock(&worker.found).iter().map(|(port, _)| *port).collect()
}

/// Checks until `ns` have passed.
fn look_for(looks: &mut Looks, worker: &Arc<Shared>, ns: u64, waits: bool) {
    for _ in 0..ns / LOOK_NS {
        let now_ns = looks.looked_ns + LOOK_NS;
        looks.look(std::slice::from_ref(worker), now_ns, |_| waits);
    }
}

#[test]
fn whose_memory_keeps_a_worker_waiting_is_found_and_nobody_else() {
    let (worker, mut looks) = (worker(), Looks::default());
    let touches = |touch: Touch| worker.touches.store(touch.0, Ordering::Relaxed);
    touches(Touch::new(1, port(1), true));
    look_for(&mut looks, &worker, 10 * BLOCKED_NS_MAX, false);
    assert!(found(&worker).is_empty(), "it is busy, or waits for a lock");
    assert!(worker.certain_until_ns.load(Ordering::Relaxed) == 0);
    touches(Touch::new(2, port(2), false));
    look_for(&mut looks, &worker, 10 * BLOCKED_NS_MAX, true);
    assert!(found(&worker).is_empty(), "it may be the sender's memory");
    assert!(worker.certain_until_ns.load(Ordering::Relaxed) > looks.looked_ns);
    touches(Touch::new(3, port(3), true));
    look_for(&mut looks, &worker, BLOCKED_NS_MAX / 2, true);
    assert!(found(&worker).is_empty(), "no more than it may");
    look_for(&mut looks, &worker, BLOCKED_NS_MAX, true);
    assert_eq!(found(&worker), [port(3)]);
    let ns = lock(&worker.found)[0].1;
    assert!((BLOCKED_NS_MAX..3 * BLOCKED_NS_MAX / 2).contains(&ns), "all of it counts: {ns}");
}

#[test]
fn operations_that_are_over_by_the_next_look_are_not_looked_at() {
    let (worker, mut looks) = (worker(), Looks::default());
    for count in 1..100 {
        worker.touches.store(Touch::new(count, port(1), true).0, Ordering::Relaxed);
        let now_ns = looks.looked_ns + LOOK_NS;
        looks.look(std::slice::from_ref(&worker), now_ns, |_| unreachable!("another operation"));
    }
}

#[test]
fn short_waits_count_until_their_share_of_time_has_passed() {
    let mut looks = Looks::default();
    let (each_ns, every_ns) = (BLOCKED_NS_MAX / 2, BLOCKED_NS_MAX / 2 * BLOCKED_SHARE);
    for turn in 0..100 {
        assert!(looks.waited(port(1), each_ns, turn * every_ns).is_none(), "its share, {turn}");
    }
    let now_ns = 100 * every_ns;
    assert!(looks.waited(port(1), each_ns, now_ns).is_none());
    assert!(looks.waited(port(2), each_ns, now_ns).is_none(), "another one's");
    assert!(looks.waited(port(1), each_ns, now_ns).is_none(), "no more than it may");
    assert_eq!(looks.waited(port(1), 1, now_ns), Some(BLOCKED_NS_MAX + 1));
}

/// The memory that this worker's thread has marked as touched.
fn says() -> Touch {
    THIS.with_borrow(|this| Touch(this.as_ref().unwrap().shared.touches.load(Ordering::Relaxed)))
}

#[test]
fn a_worker_that_was_away_says_for_a_while_whose_memory_it_touches() {
    let watcher = Watcher::start().unwrap();
    watcher.enter();
    touching(port(1), || assert_eq!(says(), Touch::NONE, "nobody watches"));
    away(SUSPECT_NS, 1);
    touching(port(1), || {
        assert_eq!(says().port(), Some(port(1)));
        let outer = says();
        delivering(port(2), || assert!(says() != outer && says().port().is_none(), "whose?"));
        assert_eq!(says(), outer, "the sender's again");
        let panics = || delivering(port(2), || panic!("of a receiver"));
        assert!(std::panic::catch_unwind(panics).is_err());
        assert_eq!(says(), outer);
    });
    assert_eq!(says(), Touch::NONE);
    THIS.with_borrow(|this| {
        this.as_ref().unwrap().shared.certain_until_ns.store(u64::MAX, Ordering::Relaxed);
    });
    delivering(port(2), || assert_eq!(says().port(), Some(port(2)), "the payload was brought in"));
    away(0, 1 + WATCH_NS);
    touching(port(1), || assert_eq!(says(), Touch::NONE, "the watch has ended"));
}

#[test]
fn payload_is_brought_in_while_a_worker_takes_care() {
    let watcher = Watcher::start().unwrap();
    watcher.enter();
    let (guest, mut scratch) = (HostBuffer::new(1000), Scratch::default());
    guest.slice(12, 988).unwrap().write(&[7; 988]);
    let mut burst = scratch.lend();
    burst.pieces.push(guest.slice(0, 600).unwrap());
    burst.pieces.push(guest.slice(600, 400).unwrap());
    let chain = TakenChain { token: 0, len: 1000, pieces: Pieces::Among(0, 2) };
    burst.add(chain, 12, 0).unwrap();
    bring_in(&mut burst);
    let starts = |burst: &Burst<'_>| burst.pieces[1].address();
    assert_eq!(starts(&burst), guest.slice(600, 1).unwrap().address(), "nobody watches");
    away(SUSPECT_NS, 1);
    THIS.with_borrow(|this| {
        this.as_ref().unwrap().shared.certain_until_ns.store(u64::MAX, Ordering::Relaxed);
    });
    bring_in(&mut burst);
    guest.slice(0, 1000).unwrap().write(&[9; 1000]);
    let payload = burst.payload(&burst.frames()[0]);
    assert!(!payload.is_empty());
    for piece in payload {
        let mut bytes = vec![0; piece.len()];
        piece.read(&mut bytes);
        assert!(bytes.iter().all(|byte| *byte == 7), "of weir's own copy");
    }
}

#[test]
fn the_kernel_says_where_a_thread_waits() {
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let (tell, told) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        tell.send(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()).unwrap();
        let _ = stopped.recv();
    });
    let id = told.recv().unwrap();
    std::thread::sleep(Duration::from_millis(20));
    let read = std::fs::read_to_string(format!("/proc/self/task/{id}/wchan")).unwrap();
    assert!(read.starts_with("futex"), "{read}: without this no hole is found");
    assert!(!waits_for_hole(id));
    drop(stop);
    thread.join().unwrap();
}
