//! Frames wait for buffers of a receive ring: `RxQueue::place`, `Port::kicked` and `Worker::retry_stalled` around the
//! real rings. One frame needs more chains than are available, and frames of two workers wait for the same ring.

use std::sync::Arc;

use loom::sync::Mutex;
use weir_guestmem::Weakness;
use weir_ring::{DriverRing, RingConfig};

use crate::rig::*;

/// The time at which a worker that found too few buffers asks for a kick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Armed {
    /// The worker asks under the same lock as its check. Kicks then stay enabled until one has
    /// come.
    AtOnce,
    /// The worker asks later, when it holds the lock again. The next worker that delivers
    /// suppresses kicks.
    Later,
}

/// The data behind the queue's lock.
struct RxQueue {
    device: Device,
    armed: bool,
    delivered: u16,
}

impl RxQueue {
    /// Delivers one frame, or finds no chain for it.
    fn place(&mut self, armed: Armed) -> bool {
        if !self.armed {
            self.device.ring.suppress_kicks();
        }
        self.device.ring.refill().unwrap();
        loop {
            if let Some(chain) = self.device.take_writable() {
                self.device.ring.complete(chain.token, 1);
                self.device.ring.publish();
                self.delivered += 1;
                return true;
            }
            if armed == Armed::Later || !self.arm() {
                return false;
            }
        }
    }

    /// Asks for a kick; returns true if chains have come.
    fn arm(&mut self) -> bool {
        self.armed = true;
        let seen = self.device.ring.available();
        self.device.ring.enable_kicks().unwrap() > seen
    }

    /// Does the same as [`arm`](Self::arm), but the next worker that delivers suppresses kicks.
    fn arm_for_a_while(&mut self) -> bool {
        let came = self.arm();
        self.armed = false;
        came
    }
}

/// Tries until the frame is delivered or a kick has to come first.
fn deliver(rx: &Mutex<RxQueue>, armed: Armed) -> bool {
    loop {
        if rx.lock().unwrap().place(armed) {
            return true;
        }
        if armed == Armed::AtOnce || !rx.lock().unwrap().arm_for_a_while() {
            return false;
        }
    }
}

/// Two workers have a frame each; the driver offers two chains at once.
fn waiting(config: RingConfig, armed: Armed) {
    type Queue = Arc<Mutex<RxQueue>>;
    let set_up = move || {
        let (driver, device) = rings(config, 0);
        let kick = Event::new();
        let rx: Queue = Arc::new(Mutex::new(RxQueue { device, armed: false, delivered: 0 }));
        ((driver, Arc::clone(&kick)), (rx, kick))
    };
    let driver = |(mut driver, kick): (DriverRing, Arc<Event>)| {
        for nth in 0..2 {
            driver.offer(&[buffer(nth, true)]).unwrap();
        }
        if driver.publish() {
            kick.give();
        }
    };
    let workers = move |(rx, kick): (Queue, Arc<Event>)| {
        let retry = Event::new();
        let second = {
            let (rx, kick, retry) = (Arc::clone(&rx), Arc::clone(&kick), Arc::clone(&retry));
            loom::thread::spawn(move || {
                while !deliver(&rx, armed) {
                    retry.wait();
                }
                if rx.lock().unwrap().delivered == 2 {
                    kick.give(); // only to end the other, which has delivered
                }
            })
        };
        // The ring's kicks go to this worker, which passes them on.
        let mut delivered = false;
        loop {
            delivered = delivered || deliver(&rx, armed);
            if rx.lock().unwrap().delivered == 2 {
                break;
            }
            kick.wait();
            rx.lock().unwrap().armed = false;
            retry.give();
        }
        second.join().unwrap();
    };
    interleave(3, SOUND, set_up, driver, workers);
}

#[test]
fn no_kick_is_lost_for_two_workers_that_wait() {
    for config in formats() {
        waiting(config, Armed::AtOnce);
    }
}

#[test]
fn when_kicks_are_asked_for_later_the_other_worker_hides_the_chains() {
    for config in formats() {
        let failure = failure(move || waiting(config, Armed::Later));
        assert!(is_lost_wakeup(&failure), "{config:?}: {failure:?}");
    }
}

/// `RxQueue::place`: one chain is available, three are needed. The chains that a try took are put back.
fn starved(config: RingConfig, before: u16, weak: Sides) {
    const NEEDED: u16 = 3;
    let config = RingConfig { size: 4, ..config };
    let set_up = move || {
        let (mut driver, device) = rings(config, before);
        driver.offer(&[buffer(0, true)]).unwrap();
        driver.publish();
        let kick = Event::new();
        ((driver, Arc::clone(&kick)), (device, kick))
    };
    let driver = |(mut driver, kick): (DriverRing, Arc<Event>)| {
        for nth in 1..NEEDED {
            driver.offer(&[buffer(nth, true)]).unwrap();
            if driver.publish() {
                kick.give();
            }
        }
    };
    let device = |(mut device, kick): (Device, Arc<Event>)| {
        loop {
            device.ring.suppress_kicks();
            device.ring.refill().unwrap();
            let mut taken = Vec::new();
            while let Some(chain) = device.take_writable() {
                assert_eq!(chain.len, buffer(taken.len() as u16, true).len);
                taken.push(chain.token);
            }
            if taken.len() == usize::from(NEEDED) {
                return;
            }
            device.ring.give_back(taken.into_iter());
            let seen = device.ring.available();
            if device.ring.enable_kicks().unwrap() <= seen {
                kick.wait();
            }
        }
    };
    interleave(4, weak, set_up, driver, device);
}

#[test]
fn no_kick_is_lost_while_some_chains_are_left() {
    for config in formats() {
        for before in [0, 2] {
            starved(config, before, SOUND);
        }
    }
}

#[test]
fn without_the_fence_of_either_side_a_starved_device_stays_asleep() {
    for config in formats() {
        for weak in each_side(Weakness::NoFence) {
            let failure = failure(move || starved(config, 0, weak));
            assert!(is_lost_wakeup(&failure), "{config:?}, {weak:?}: {failure:?}");
        }
    }
}
