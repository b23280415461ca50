//! A guest sends, and weir takes the chains, asks for kicks, checks once more and sleeps. Around a ring that is too
//! short, each side sleeps when it waits for the other.

use std::sync::Arc;

use weir_guestmem::Weakness;
use weir_ring::{DriverRing, RingConfig};

use crate::rig::*;

/// The way in which a device that is awake looks for chains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kicks {
    /// Without kicks, like weir's workers.
    Suppressed,
    /// Kicks stay enabled as they were when the device fell asleep.
    Left,
}

/// `Worker::serve_next`: a burst, then `arm_tx`, then `epoll_wait`.
fn transmit(config: RingConfig, before: u16, kicks: Kicks, weak: Sides) {
    const CHAINS: u16 = 2;
    let set_up = move || {
        let (driver, device) = rings(config, before);
        let kick = Event::new();
        ((driver, Arc::clone(&kick)), (device, kick))
    };
    let driver = |(mut driver, kick): (DriverRing, Arc<Event>)| {
        for nth in 0..CHAINS {
            driver.offer(&[buffer(nth, false)]).unwrap();
            if driver.publish() {
                kick.give();
            }
        }
    };
    let device = move |(mut device, kick): (Device, Arc<Event>)| {
        let mut taken = 0;
        loop {
            if kicks == Kicks::Suppressed {
                device.ring.suppress_kicks();
            }
            device.ring.refill().unwrap();
            while let Some(chain) = device.take_readable() {
                assert_eq!(chain.len, buffer(taken, false).len);
                device.ring.complete(chain.token, 0);
                taken += 1;
            }
            device.ring.publish();
            if taken == CHAINS {
                return;
            }
            if device.ring.enable_kicks().unwrap() == 0 {
                kick.wait();
            }
        }
    };
    interleave(4, weak, set_up, driver, device);
}

#[test]
fn no_kick_is_lost_and_chains_arrive_whole() {
    for config in formats() {
        for before in [0, 1] {
            transmit(config, before, Kicks::Suppressed, SOUND);
            transmit(config, before, Kicks::Left, SOUND);
        }
    }
}

#[test]
fn without_the_fence_of_either_side_a_kick_is_lost() {
    for config in formats() {
        for weak in each_side(Weakness::NoFence) {
            let failure = failure(move || transmit(config, 0, Kicks::Suppressed, weak));
            assert!(is_lost_wakeup(&failure), "{config:?}, {weak:?}: {failure:?}");
        }
    }
}

#[test]
fn without_release_or_acquire_a_chain_arrives_torn() {
    let weak = [
        Sides { driver: Weakness::RelaxedStores, ..SOUND },
        Sides { device: Weakness::RelaxedLoads, ..SOUND },
    ];
    for config in formats() {
        for weak in weak {
            let failure = failure(move || transmit(config, 0, Kicks::Suppressed, weak));
            assert!(is_wrong_value(&failure), "{config:?}, {weak:?}: {failure:?}");
        }
    }
}

/// Rings the other side's eventfd, and waits for its own.
struct Line {
    theirs: Arc<Event>,
    own: Arc<Event>,
}

fn both_ways(config: RingConfig, weak: Sides) {
    const CHAINS: u16 = 3;
    let set_up = move || {
        let (driver, device) = rings(config, 0);
        let (kick, call) = (Event::new(), Event::new());
        let guest = Line { theirs: Arc::clone(&kick), own: Arc::clone(&call) };
        ((driver, guest), (device, Line { theirs: call, own: kick }))
    };
    let driver = |(mut driver, line): (DriverRing, Line)| {
        let (mut offered, mut back) = (0, 0);
        loop {
            driver.suppress_calls();
            while driver.take().is_some() {
                back += 1;
            }
            while offered < CHAINS && driver.offer(&[buffer(offered, false)]).is_some() {
                offered += 1;
            }
            if driver.publish() {
                line.theirs.give();
            }
            if back == CHAINS {
                return;
            }
            if !driver.enable_calls() {
                line.own.wait();
            }
        }
    };
    let device = |(mut device, line): (Device, Line)| {
        let mut taken = 0;
        loop {
            device.ring.suppress_kicks();
            device.ring.refill().unwrap();
            while let Some(chain) = device.take_readable() {
                assert_eq!(chain.len, buffer(taken, false).len);
                device.ring.complete(chain.token, 0);
                taken += 1;
            }
            device.ring.publish();
            if device.ring.needs_call() {
                line.theirs.give();
            }
            if taken == CHAINS {
                return;
            }
            if device.ring.enable_kicks().unwrap() == 0 {
                line.own.wait();
            }
        }
    };
    interleave(3, weak, set_up, driver, device);
}

#[test]
fn both_sides_sleep_and_all_chains_come_back() {
    for config in formats() {
        both_ways(config, SOUND);
        both_ways(RingConfig { in_order: true, ..config }, SOUND);
    }
}

#[test]
fn without_the_fence_of_either_side_both_sleep_for_ever() {
    for config in formats() {
        for weak in each_side(Weakness::NoFence) {
            let failure = failure(move || both_ways(config, weak));
            assert!(is_lost_wakeup(&failure), "{config:?}, {weak:?}: {failure:?}");
        }
    }
}
