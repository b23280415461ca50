//! `Forwarder::serve`, `Worker::take_up_kicks` and `WorkerHandle::tell` around the real [`Waiters`].

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
