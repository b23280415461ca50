//! The protocols between workers and threads that change ports, under the model checker `loom`, which tries every
//! interleaving and every stale value that the memory model permits: `docs/design/proofs.md#0008`.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p weir-engine --test model --profile model --target-dir target/loom
//! ```
//!
//! The engine's files are the production ones, with the checker's locks and atomics in place of `sync.rs`.
#![cfg(loom)]

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
    pub(crate) use loom::sync::{Mutex, MutexGuard};

    /// Like `threads::sync::pause`: lets other threads run first.
    pub(crate) fn pause(_: &mut u32) {
        loom::thread::yield_now();
    }
}

/// These modules have the same place as in the engine.
mod threads {
    pub(crate) use crate::{lock, sync};
}

#[path = "../src/threads/lock.rs"]
mod lock;
#[path = "../src/queue/under_way.rs"]
mod under_way;
#[path = "../src/switching/waiters.rs"]
mod waiters_of;

/// A worker whose frames wait for a receiver is notified when the receiver has buffers: `Forwarder::serve`,
/// `Worker::take_up_kicks` and `WorkerHandle::tell` around the real [`Waiters`].
mod waiters {
    use std::sync::Arc;

    use loom::sync::{Condvar, Mutex};
    use loom::thread;

    use crate::waiters_of::Waiters;

    /// The check of a worker for a refill between its delivery and its note that it waits.
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Looks {
        Again,
        Never,
    }

    #[derive(Default)]
    struct Receiver {
        has_room: Mutex<bool>,
        waiters: Waiters,
    }

    /// The notification of a worker, and the means to wake it.
    #[derive(Default)]
    struct Told(Mutex<bool>, Condvar);

    impl Told {
        fn tell(&self) {
            *self.0.lock().unwrap() = true;
            self.1.notify_one();
        }

        fn wait(&self) {
            let mut told = self.0.lock().unwrap();
            while !*told {
                told = self.1.wait(told).unwrap();
            }
            *told = false;
        }
    }

    /// Delivers one frame, however long that takes.
    fn deliver(worker: usize, looks: Looks, receiver: &Receiver, told: &Told) {
        loop {
            let seen = receiver.waiters.refills();
            if *receiver.has_room.lock().unwrap() {
                return;
            }
            let refilled = receiver.waiters.wait(worker, seen);
            if !refilled || looks == Looks::Never {
                told.wait();
            }
        }
    }

    /// Each worker has a frame for a receiver, whose kick another worker takes.
    fn a_frame_waits(looks: Looks, workers: usize) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let receiver = Arc::new(Receiver::default());
            let told: Vec<_> = (0..workers).map(|_| Arc::new(Told::default())).collect();
            let threads: Vec<_> = told
                .iter()
                .enumerate()
                .map(|(worker, told)| {
                    let (receiver, told) = (Arc::clone(&receiver), Arc::clone(told));
                    thread::spawn(move || deliver(worker, looks, &receiver, &told))
                })
                .collect();
            *receiver.has_room.lock().unwrap() = true;
            let waiting = receiver.waiters.refilled();
            for (worker, told) in told.iter().enumerate() {
                if waiting >> worker & 1 != 0 {
                    told.tell();
                }
            }
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }

    #[test]
    fn whoever_waits_for_a_receiver_hears_of_its_buffers() {
        a_frame_waits(Looks::Again, 1);
        a_frame_waits(Looks::Again, 2);
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn without_a_second_look_a_kick_is_missed() {
        a_frame_waits(Looks::Never, 1);
    }
}

/// Queues that start at the same time are all counted, and none of a port that fails: `VhostPort::kicked`,
/// `count_ready` and `stop` around the real [`ReadyQueues`].
mod ready {
    use loom::sync::atomic::{AtomicBool, Ordering};
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    use crate::lock::ReadyQueues;

    #[derive(Default)]
    struct Port {
        started: [Mutex<bool>; 2],
        ready: ReadyQueues,
        failed: AtomicBool,
    }

    impl Port {
        fn started(&self) -> usize {
            self.started.iter().take_while(|started| *started.lock().unwrap()).count()
        }

        /// Starts a queue by its first kick.
        fn kicked(&self, queue: usize, in_turn: bool) {
            *self.started[queue].lock().unwrap() = true;
            let failed = || self.failed.load(Ordering::SeqCst);
            if in_turn {
                self.ready.count(failed, || self.started(), |_| ());
            } else {
                self.ready.set(failed, || self.started());
            }
        }

        fn stop(&self) {
            self.failed.store(true, Ordering::SeqCst);
            self.ready.none();
        }
    }

    fn two_first_kicks(in_turn: bool) {
        loom::model(move || {
            let port = Arc::new(Port::default());
            let other = {
                let port = Arc::clone(&port);
                thread::spawn(move || port.kicked(1, in_turn))
            };
            port.kicked(0, in_turn);
            other.join().unwrap();
            assert_eq!(port.ready.get(), 2, "queues can receive");
        });
    }

    #[test]
    fn two_first_kicks_at_once_make_two_queues_ready() {
        two_first_kicks(true);
    }

    #[test]
    #[should_panic(expected = "queues can receive")]
    fn without_a_turn_for_each_a_queue_is_not_counted() {
        two_first_kicks(false);
    }

    #[test]
    fn a_port_that_fails_while_its_queues_are_counted_has_none() {
        loom::model(|| {
            let port = Arc::new(Port::default());
            let other = {
                let port = Arc::clone(&port);
                thread::spawn(move || port.kicked(0, true))
            };
            port.stop();
            other.join().unwrap();
            assert_eq!(port.ready.get(), 0);
        });
    }
}

/// A ring stops when all taken frames are settled, and nothing new begins: `TransmitQueue::take_turn` of a worker and
/// `stop` of a session around the real [`UnderWay`] and [`lock_settled`].
mod closing {
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    use crate::lock::{lock, lock_settled, lock_when};
    use crate::under_way::UnderWay;

    /// A mistake that is put into the side that stops the ring.
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
            let settled =
                |queue: &Queue| weakness == Weakness::NotSettled || queue.bursts.is_settled();
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
}
