//! A frame needs more receive chains than are available; weir asks for a kick at the next chain, checks once more and
//! sleeps.

use std::sync::Arc;

use weir_guestmem::Weakness;
use weir_ring::{DriverRing, RingConfig};

use crate::rig::*;

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
