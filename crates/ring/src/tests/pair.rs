//! Our driver against our device.

use std::collections::{HashMap, VecDeque};

use proptest::prelude::*;

use super::*;

fn pair(config: RingConfig) -> (Arc<GuestMemory>, SplitDriver, SplitDevice) {
    let memory = memory();
    let driver = SplitDriver::new(&memory, config, &AT).unwrap();
    let device = SplitDevice::new(&memory, config, &AT, 0).unwrap();
    (memory, driver, device)
}

fn buffer(i: u64, len: u32, writable: bool) -> Buffer {
    Buffer { address: BUFFERS + i * 0x1000, len, writable }
}

#[test]
fn spec_2_7_13_used_index_published_after_elements() {
    let (memory, mut driver, mut device) = pair(config(8));
    driver.offer(&[buffer(0, 100, false)]).unwrap();
    driver.publish();
    device.refill().unwrap();
    let chain = device.take_readable(&memory, &mut Vec::new()).unwrap().unwrap();
    device.complete(chain.head, 0);
    assert_eq!(driver.take(), None, "completed, but not published");
    assert_eq!(device.publish(), 1);
    assert_eq!(driver.take(), Some(Used { head: chain.head, written: 0 }));
    assert_eq!(device.publish(), 0);
}

#[test]
fn spec_2_7_10_event_idx_calls_once_per_request() {
    let (memory, mut driver, mut device) = pair(config(8));
    assert!(!driver.enable_calls());
    let mut pass = |driver: &mut SplitDriver| {
        driver.offer(&[buffer(0, 1, true)]).unwrap();
        driver.publish();
        device.refill().unwrap();
        let chain = device.take_writable(&memory, &mut Vec::new()).unwrap().unwrap();
        device.complete(chain.head, 1);
        device.publish();
        device.needs_call()
    };
    assert!(pass(&mut driver), "the driver waits for element 0");
    assert!(!pass(&mut driver), "it has not asked for element 1");
    while driver.take().is_some() {}
    assert!(!driver.enable_calls());
    assert!(pass(&mut driver));
    while driver.take().is_some() {}
    driver.suppress_calls();
    assert!(!pass(&mut driver));
}

#[test]
fn spec_2_7_7_flags_suppress_calls_without_event_idx() {
    let (memory, mut driver, mut device) = pair(RingConfig { event_idx: false, ..config(8) });
    for suppressed in [false, true, false] {
        if suppressed {
            driver.suppress_calls();
        } else {
            driver.enable_calls();
        }
        driver.offer(&[buffer(0, 1, false)]).unwrap();
        driver.publish();
        device.refill().unwrap();
        let chain = device.take_readable(&memory, &mut Vec::new()).unwrap().unwrap();
        device.complete(chain.head, 0);
        device.publish();
        assert_eq!(device.needs_call(), !suppressed);
        assert!(!device.needs_call(), "nothing new since the last look");
        while driver.take().is_some() {}
    }
}

#[test]
fn kicks_are_asked_for_only_while_weir_sleeps() {
    for event_idx in [false, true] {
        let (memory, mut driver, mut device) = pair(RingConfig { event_idx, ..config(8) });
        driver.offer(&[buffer(0, 1, false)]).unwrap();
        assert_eq!(device.enable_kicks(), Ok(0));
        assert!(driver.publish(), "weir sleeps: event_idx {event_idx}");
        device.suppress_kicks();
        driver.offer(&[buffer(1, 1, false)]).unwrap();
        assert!(!driver.publish(), "weir is awake: event_idx {event_idx}");
        assert_eq!(device.enable_kicks(), Ok(2), "what came before is seen before sleep");
        while device.take_readable(&memory, &mut Vec::new()).unwrap().is_some() {}
    }
}

#[test]
fn a_kick_comes_for_more_buffers_even_if_some_are_there_already() {
    for event_idx in [false, true] {
        let (_memory, mut driver, mut device) = pair(RingConfig { event_idx, ..config(8) });
        driver.offer(&[buffer(0, 1, true)]).unwrap();
        driver.publish();
        assert_eq!(device.refill(), Ok(1));
        // One buffer is too few for the next frame: weir waits for another one.
        assert_eq!(device.enable_kicks(), Ok(1), "none came since");
        driver.offer(&[buffer(1, 1, true)]).unwrap();
        assert!(driver.publish(), "event_idx {event_idx}");
    }
}

#[test]
fn chains_given_back_are_taken_again() {
    let (memory, mut driver, mut device) = pair(config(8));
    let first = driver.offer(&[buffer(0, 1, true)]).unwrap();
    let second = driver.offer(&[buffer(1, 2, true)]).unwrap();
    driver.publish();
    device.refill().unwrap();
    let take = |device: &mut SplitDevice| {
        device.take_writable(&memory, &mut Vec::new()).unwrap().unwrap().head
    };
    assert_eq!((take(&mut device), take(&mut device)), (first, second));
    device.give_back(1);
    assert_eq!(device.available(), 1);
    assert_eq!(take(&mut device), second);
}

#[test]
fn a_new_device_goes_on_where_the_old_one_stopped() {
    let (memory, mut driver, mut device) = pair(config(8));
    for i in 0..3 {
        driver.offer(&[buffer(i, 1, false)]).unwrap();
    }
    driver.publish();
    device.refill().unwrap();
    let chain = device.take_readable(&memory, &mut Vec::new()).unwrap().unwrap();
    device.complete(chain.head, 0);
    device.publish();
    let mut next = SplitDevice::new(&memory, config(8), &AT, device.base()).unwrap();
    assert_eq!(next.refill(), Ok(2));
    while let Some(chain) = next.take_readable(&memory, &mut Vec::new()).unwrap() {
        next.complete(chain.head, 0);
    }
    next.publish();
    assert!(next.needs_call(), "a call that got lost with the old device is made up for");
    assert_eq!(std::iter::from_fn(|| driver.take()).count(), 3);
}

#[test]
fn a_used_element_that_names_nothing_is_skipped() {
    let (memory, mut driver, mut device) = pair(config(8));
    driver.offer(&[buffer(0, 1, true)]).unwrap();
    driver.publish();
    device.refill().unwrap();
    device.complete(7, 0);
    device.complete(0x1234, 0);
    assert_eq!(device.base(), 0, "and nothing was taken for them");
    let chain = device.take_writable(&memory, &mut Vec::new()).unwrap().unwrap();
    device.complete(chain.head, 1);
    device.complete(chain.head, 1);
    device.publish();
    assert_eq!(driver.take(), Some(Used { head: chain.head, written: 1 }));
    assert_eq!(driver.take(), None, "completed twice, taken once");
    assert_eq!(driver.free(), 8);
}

proptest! {
    /// Any interleaving of offers, completions in any order, and reaping: every chain comes back
    /// once, with its length, and sleeping sides are always woken. Indices wrap in long runs.
    #[test]
    fn every_chain_comes_back_once_and_no_wakeup_is_lost(
        event_idx in any::<bool>(),
        size in prop_oneof![Just(1u16), Just(2), Just(16), Just(256)],
        steps in proptest::collection::vec((0u8..6, 0u8..8), 1..600),
    ) {
        let (memory, mut driver, mut device) = pair(RingConfig { event_idx, ..config(size) });
        let mut offered: HashMap<u16, u32> = HashMap::new();
        let mut taken = VecDeque::new();
        let (mut device_asleep, mut driver_asleep) = (false, false);
        for (step, n) in steps {
            match step {
                0 | 1 => {
                    let buffers: Vec<_> =
                        (0..=u64::from(n % 3)).map(|i| buffer(i, u32::from(n) + 1, false)).collect();
                    if let Some(head) = driver.offer(&buffers) {
                        prop_assert!(offered.insert(head, buffers.iter().map(|b| b.len).sum()).is_none());
                    }
                    if driver.publish() {
                        device_asleep = false;
                    }
                }
                2 => {
                    device.suppress_kicks();
                    device_asleep = false;
                    device.refill().unwrap();
                    for _ in 0..n {
                        match device.take_readable(&memory, &mut Vec::new()).unwrap() {
                            Some(chain) => {
                                prop_assert_eq!(offered[&chain.head], chain.len);
                                taken.push_back(chain.head);
                            }
                            None => break,
                        }
                    }
                }
                3 => {
                    for _ in 0..n {
                        // Out of order every other time.
                        let head = if n % 2 == 0 { taken.pop_front() } else { taken.pop_back() };
                        if let Some(head) = head { device.complete(head, u32::from(head)) }
                    }
                    device.publish();
                    if device.needs_call() {
                        driver_asleep = false;
                    }
                }
                4 => {
                    driver_asleep = false;
                    while let Some(used) = driver.take() {
                        prop_assert!(offered.remove(&used.head).is_some());
                        prop_assert_eq!(used.written, u32::from(used.head));
                    }
                    driver_asleep = !driver.enable_calls() || driver_asleep;
                }
                _ => device_asleep = device.enable_kicks().unwrap() == 0,
            }
            // Asleep means that there is nothing to do, or that a wake-up came.
            if device_asleep { prop_assert_eq!(device.refill().unwrap(), 0); }
            if driver_asleep { prop_assert_eq!(driver.take(), None); }
        }
    }
}
