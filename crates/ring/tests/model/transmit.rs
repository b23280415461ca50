//! A guest sends; weir takes the chains, asks for kicks, checks once more and sleeps.

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
