//! `VhostPort::kicked`, `count_ready` and `stop` around the real [`ReadyQueues`].

use loom::sync::atomic::{AtomicBool, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

use crate::ready_queues::ReadyQueues;

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
