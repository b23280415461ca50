//! Xen's shared ring under the model checker `loom`, which tries every interleaving of front and back
//! end and every stale value that the memory model permits: `docs/design/proofs.md#0008`.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p weir-netif --test model --profile model --target-dir target/loom
//! ```
#![cfg(loom)]

use std::fs::File;
use std::sync::{Arc, LazyLock};

use loom::sync::{Condvar, Mutex};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use weir_guestmem::{GuestMemory, RegionSpec, Weakness, weaken};
use weir_netif::{BackRing, FrontRing};

/// A header and two entries of 8 bytes.
const RING_LEN: usize = 64 + 2 * 8;

static MEMORY: LazyLock<Arc<GuestMemory>> = LazyLock::new(|| {
    let fd = memfd_create("netif-model", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, 4096).unwrap();
    let spec = RegionSpec { guest_address: 0, size: 4096, user_address: 0, mmap_offset: 0 };
    Arc::new(GuestMemory::map(&[(spec, File::from(fd))]).unwrap())
});

/// An event channel. An event before the wait counts.
#[derive(Debug)]
struct Event {
    given: Mutex<bool>,
    changed: Condvar,
}

impl Event {
    fn new() -> Arc<Self> {
        Arc::new(Self { given: Mutex::new(false), changed: Condvar::new() })
    }

    fn give(&self) {
        *self.given.lock().unwrap() = true;
        self.changed.notify_one();
    }

    /// `loom` reports a deadlock if no event can come any more.
    fn wait(&self) {
        let mut given = self.given.lock().unwrap();
        while !*given {
            given = self.changed.wait(given).unwrap();
        }
        *given = false;
    }
}

/// The side that omits a step.
#[derive(Debug, Clone, Copy)]
struct Weak {
    front: Weakness,
    back: Weakness,
}

const SOUND: Weak = Weak { front: Weakness::None, back: Weakness::None };

fn each_side(weakness: Weakness) -> [Weak; 2] {
    [Weak { front: weakness, ..SOUND }, Weak { back: weakness, ..SOUND }]
}

/// More requests than entries, so that each side has to wait for the other.
const REQUESTS: u16 = 3;

/// Returns the content of the n-th request or response, which memory did not hold before.
fn content(nth: u16, response: bool) -> [u8; 8] {
    let nth = nth as u8 + 1;
    [nth, u8::from(response), nth, 0, nth, 0, nth, 9]
}

fn front_end(mut ring: FrontRing<8>, event: &Event, to_back: &Event) {
    let (mut sent, mut back) = (0, 0);
    loop {
        while sent < REQUESTS && ring.request(content(sent, false)).is_some() {
            sent += 1;
        }
        if ring.push() {
            to_back.give();
        }
        if ring.final_check().unwrap() == 0 {
            event.wait();
        }
        ring.refill().unwrap();
        while let Some((_, bytes)) = ring.response() {
            assert_eq!(bytes, content(back, true));
            back += 1;
        }
        if back == REQUESTS {
            return;
        }
    }
}

fn back_end(mut ring: BackRing<8>, event: &Event, to_front: &Event) {
    let mut taken = 0;
    loop {
        ring.refill().unwrap();
        while let Some(bytes) = ring.request() {
            assert_eq!(bytes, content(taken, false));
            ring.respond(content(taken, true));
            taken += 1;
        }
        ring.push();
        if ring.needs_notify() {
            to_front.give();
        }
        if taken == REQUESTS {
            return;
        }
        if ring.final_check().unwrap() == 0 {
            event.wait();
        }
    }
}

fn model(weak: Weak) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = model.preemption_bound.or(Some(5));
    model.check(move || {
        let window = || MEMORY.window(0, RING_LEN).unwrap();
        let front = FrontRing::init(window()).unwrap();
        let back = BackRing::attach(window()).unwrap();
        let (to_back, to_front) = (Event::new(), Event::new());
        let events = (Arc::clone(&to_front), Arc::clone(&to_back));
        let thread = loom::thread::spawn(move || {
            weaken(weak.front);
            front_end(front, &events.0, &events.1);
        });
        weaken(weak.back);
        back_end(back, &to_back, &to_front);
        thread.join().unwrap();
    });
}

/// Returns the failure of a model that does not hold.
fn failure(weak: Weak) -> String {
    // A separate thread, since `loom` leaves a failed model's state behind.
    let panic = std::thread::spawn(move || model(weak)).join().expect_err("the model holds");
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default()
}

#[test]
fn no_event_is_lost_and_everything_arrives_whole() {
    model(SOUND);
}

#[test]
fn without_the_fence_of_either_side_both_sleep_for_ever() {
    for weak in each_side(Weakness::NoFence) {
        let failure = failure(weak);
        assert!(failure.starts_with("deadlock"), "{weak:?}: {failure}");
    }
}

#[test]
fn without_release_or_acquire_of_either_side_something_arrives_that_was_not_sent() {
    for weakness in [Weakness::RelaxedStores, Weakness::RelaxedLoads] {
        for weak in each_side(weakness) {
            let failure = failure(weak);
            assert!(!failure.starts_with("deadlock"), "{weak:?}: {failure}");
        }
    }
}
