//! `TransmitQueue::take_turn` of a worker and `stop` of a session around the real [`UnderWay`] and [`lock_settled`].

use loom::sync::{Arc, Mutex};
use loom::thread;

use crate::lock::{lock, lock_settled, lock_when};
use crate::under_way::UnderWay;

/// The part that is removed from the side that stops the ring.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Weakness {
    None,
    /// Closing does not prevent new bursts.
    NotClosed,
    /// Closing does not wait for bursts under way.
    NotSettled,
}

#[derive(Default)]
struct Queue {
    bursts: UnderWay,
    /// Completed bursts of the ring; `None` once it has stopped.
    ring: Option<u64>,
    /// The session has asked for the stop.
    asked: bool,
}

/// Takes two bursts, as far as allowed.
fn worker(queue: &Mutex<Queue>) {
    for _ in 0..2 {
        let mut locked = lock(queue);
        if locked.ring.is_none() || locked.bursts.is_closing() {
            return;
        }
        assert!(!locked.asked, "a burst begins although the ring is to stop");
        let number = locked.bursts.begin();
        drop(locked);
        // Here the burst's frames would be placed and copied.
        let may_settle = |queue: &Queue| queue.bursts.may_settle(number) != Some(false);
        let Some(mut locked) = lock_when(queue, || false, may_settle) else { return };
        if locked.bursts.may_settle(number).is_none() {
            return;
        }
        *locked.ring.as_mut().expect("a ring that waits for it") += 1;
        locked.bursts.settle();
    }
}

fn a_ring_stops(weakness: Weakness) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let queue = Arc::new(Mutex::new(Queue { ring: Some(0), ..Queue::default() }));
        let taker = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || worker(&queue))
        };
        let close = |queue: &mut Queue| {
            queue.asked = true;
            if weakness != Weakness::NotClosed {
                queue.bursts.close();
            }
        };
        let settled = |queue: &Queue| weakness == Weakness::NotSettled || queue.bursts.is_settled();
        let mut locked = lock_settled(&queue, || false, close, settled);
        assert!(locked.bursts.is_settled(), "a burst is under way");
        locked.bursts.abandon();
        locked.ring = None;
        drop(locked);
        taker.join().unwrap();
    });
}

#[test]
fn a_ring_stops_when_what_is_under_way_is_settled_and_nothing_new_begins() {
    a_ring_stops(Weakness::None);
}

#[test]
#[should_panic(expected = "although the ring is to stop")]
fn without_closing_bursts_go_on_and_on() {
    a_ring_stops(Weakness::NotClosed);
}

#[test]
#[should_panic(expected = "a burst is under way")]
fn without_a_wait_a_ring_goes_with_a_burst_under_way() {
    a_ring_stops(Weakness::NotSettled);
}
