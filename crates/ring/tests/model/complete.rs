//! Weir completes chains; the guest takes them back, asks for calls, checks once more and sleeps.

use std::sync::Arc;

use weir_guestmem::Weakness;
use weir_ring::{DriverRing, RingConfig, Token, Used};

use crate::rig::*;

/// The time at which the device decides about a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Calls {
    /// The device decides after each publication.
    Each,
    /// The device decides once after two of them, like a moderation policy that holds calls.
    Held,
}

/// Two receive chains come back, the second one first unless the driver asked for order.
fn complete(config: RingConfig, before: u16, calls: Calls, weak: Sides) {
    let set_up = move || {
        let (mut driver, mut device) = rings(config, before);
        let heads = [0, 1].map(|nth| driver.offer(&[buffer(nth, true)]).unwrap());
        driver.publish();
        device.ring.refill().unwrap();
        let chains = [0, 1].map(|_| device.take_writable().unwrap().token);
        let call = Event::new();
        let order = if config.in_order { [0, 1] } else { [1, 0] };
        let used = order.map(|nth| Used { head: heads[nth], written: 1 + nth as u32 });
        let completions = order.map(|nth| (chains[nth], 1 + nth as u32));
        ((driver, used, Arc::clone(&call)), (device, completions, call))
    };
    let driver = |(mut driver, expected, call): (DriverRing, [Used; 2], Arc<Event>)| {
        let mut seen = Vec::new();
        loop {
            driver.suppress_calls();
            while let Some(used) = driver.take() {
                seen.push(used);
                assert_eq!(seen, expected[..seen.len()]);
            }
            assert_eq!(driver.skipped(), 0);
            if seen.len() == expected.len() {
                return;
            }
            if !driver.enable_calls() {
                call.wait();
            }
        }
    };
    let device = move |(mut device, completions, call): (Device, [(Token, u32); 2], Arc<Event>)| {
        for (i, (head, written)) in completions.into_iter().enumerate() {
            device.ring.complete(head, written);
            device.ring.publish();
            if (calls == Calls::Each || i == 1) && device.ring.needs_call() {
                call.give();
            }
        }
    };
    interleave(4, weak, set_up, driver, device);
}

/// The configuration without and with `VIRTIO_F_IN_ORDER`.
fn orders(config: RingConfig) -> [RingConfig; 2] {
    [config, RingConfig { in_order: true, ..config }]
}

#[test]
fn no_call_is_lost_and_completions_arrive_whole_and_in_order() {
    for config in formats().flat_map(orders) {
        for before in [0, 1] {
            complete(config, before, Calls::Each, SOUND);
            complete(config, before, Calls::Held, SOUND);
        }
    }
}

#[test]
fn without_the_fence_of_either_side_a_call_is_lost() {
    for config in formats() {
        for weak in each_side(Weakness::NoFence) {
            // A new ring is excluded: its first check always finds that a call is needed.
            let failure = failure(move || complete(config, 1, Calls::Held, weak));
            assert!(is_lost_wakeup(&failure), "{config:?}, {weak:?}: {failure:?}");
        }
    }
}

#[test]
fn without_release_or_acquire_a_completion_arrives_torn() {
    let weak = [
        Sides { device: Weakness::RelaxedStores, ..SOUND },
        Sides { driver: Weakness::RelaxedLoads, ..SOUND },
    ];
    for config in formats() {
        for weak in weak {
            let failure = failure(move || complete(config, 0, Calls::Each, weak));
            assert!(is_wrong_value(&failure), "{config:?}, {weak:?}: {failure:?}");
        }
    }
}
