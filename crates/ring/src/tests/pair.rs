//! Our driver against our device.

use std::collections::{HashMap, VecDeque};

use proptest::prelude::*;

use super::*;

pub(super) fn pair(config: RingConfig) -> (Arc<GuestMemory>, DriverRing, DeviceRing) {
    let memory = memory();
    let driver = DriverRing::new(&memory, config, &AT).unwrap();
    let device = DeviceRing::new(&memory, config, &AT, config.fresh_base()).unwrap();
    (memory, driver, device)
}

/// Every format of rings, and each way of asking for calls and kicks.
fn with_and_without_event_idx(size: u16) -> impl Iterator<Item = RingConfig> {
    let event_idx = |config| [false, true].map(|event_idx| RingConfig { event_idx, ..config });
    formats(size).into_iter().flat_map(event_idx)
}

/// Every format of rings.
pub(super) fn formats(size: u16) -> [RingConfig; 4] {
    [(false, false), (true, false), (false, true), (true, true)]
        .map(|(packed, in_order)| RingConfig { packed, in_order, ..config(size) })
}

pub(super) fn buffer(i: u64, len: u32, writable: bool) -> Buffer {
    Buffer { address: BUFFERS + i * 0x1000, len, writable }
}

#[test]
fn spec_2_7_13_used_index_published_after_elements() {
    let (memory, mut driver, mut device) = pair(config(8));
    let head = driver.offer(&[buffer(0, 100, false)]).unwrap();
    driver.publish();
    device.refill().unwrap();
    let chain = device.take(Direction::Readable, &memory, &mut Vec::new()).unwrap().unwrap();
    device.complete(chain.token, 0);
    assert_eq!(driver.take(), None, "completed, but not published");
    assert_eq!(device.publish(), 1);
    assert_eq!(driver.take(), Some(Used { head, written: 0 }));
    assert_eq!(device.publish(), 0);
}

#[test]
fn the_last_chain_can_have_more_bytes_until_it_is_published() {
    for config in formats(8) {
        let (memory, mut driver, mut device) = pair(config);
        let heads = [0, 1].map(|i| driver.offer(&[buffer(i, 100, true)]).unwrap());
        driver.publish();
        assert!(!device.has_unpublished());
        device.refill().unwrap();
        let mut pieces = Vec::new();
        let tokens = [10, 20].map(|written| {
            let chain = device.take(Direction::Writable, &memory, &mut pieces).unwrap().unwrap();
            device.complete(chain.token, written);
            chain.token
        });
        assert!(device.has_unpublished());
        device.amend_last(tokens[1], 60);
        assert_eq!((driver.take(), device.completed_total()), (None, 2));
        assert_eq!(device.publish(), 2);
        assert!(!device.has_unpublished());
        assert_eq!(driver.take(), Some(Used { head: heads[0], written: 10 }));
        assert_eq!(driver.take(), Some(Used { head: heads[1], written: 60 }));
    }
}

#[test]
fn spec_2_7_10_event_idx_calls_once_per_request() {
    let (memory, mut driver, mut device) = pair(config(8));
    assert!(!driver.enable_calls());
    let mut pass = |driver: &mut DriverRing| {
        driver.offer(&[buffer(0, 1, true)]).unwrap();
        driver.publish();
        device.refill().unwrap();
        let chain = device.take(Direction::Writable, &memory, &mut Vec::new()).unwrap().unwrap();
        device.complete(chain.token, 1);
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
        let chain = device.take(Direction::Readable, &memory, &mut Vec::new()).unwrap().unwrap();
        device.complete(chain.token, 0);
        device.publish();
        assert_eq!(device.needs_call(), !suppressed);
        assert!(!device.needs_call(), "nothing new since the last look");
        while driver.take().is_some() {}
    }
}

#[test]
fn kicks_are_asked_for_only_while_weir_sleeps() {
    for config in with_and_without_event_idx(8) {
        let (memory, mut driver, mut device) = pair(config);
        driver.offer(&[buffer(0, 1, false)]).unwrap();
        assert_eq!(device.enable_kicks(), Ok(0));
        assert!(driver.publish(), "weir sleeps: {config:?}");
        device.suppress_kicks();
        driver.offer(&[buffer(1, 1, false)]).unwrap();
        assert!(!driver.publish(), "weir is awake: {config:?}");
        assert!(device.enable_kicks().unwrap() > 0, "what came before is seen before sleep");
        while device.take(Direction::Readable, &memory, &mut Vec::new()).unwrap().is_some() {}
    }
}

#[test]
fn a_kick_comes_for_more_buffers_even_if_some_are_there_already() {
    for config in with_and_without_event_idx(8) {
        let (_memory, mut driver, mut device) = pair(config);
        driver.offer(&[buffer(0, 1, true)]).unwrap();
        driver.publish();
        assert_eq!(device.refill(), Ok(1));
        // One buffer is too few for the next frame: weir waits for another one.
        assert_eq!(device.enable_kicks(), Ok(1), "none came since");
        driver.offer(&[buffer(1, 1, true)]).unwrap();
        assert!(driver.publish(), "{config:?}");
    }
}

#[test]
fn chains_given_back_are_taken_again() {
    for config in formats(8) {
        let (memory, mut driver, mut device) = pair(config);
        driver.offer(&[buffer(0, 1, true)]).unwrap();
        driver.offer(&[buffer(1, 1, true), buffer(2, 1, true)]).unwrap();
        driver.publish();
        device.refill().unwrap();
        let take = |device: &mut DeviceRing| {
            device.take(Direction::Writable, &memory, &mut Vec::new()).unwrap().unwrap()
        };
        let (first, second) = (take(&mut device), take(&mut device));
        assert_eq!((first.len, second.len), (1, 2));
        device.give_back([second.token].into_iter());
        assert!(device.has_more());
        assert_eq!(take(&mut device), second);
    }
}

#[test]
fn a_plain_chain_taken_by_itself_is_that_of_a_burst_and_any_other_stays() {
    for config in formats(8) {
        let (memory, mut driver, mut device) = pair(config);
        let mut twin = DeviceRing::new(&memory, config, &AT, config.fresh_base()).unwrap();
        for round in 0..50 {
            let plain = round % 3 > 0;
            let buffers = [buffer(1, 100, true), buffer(2, 50, true)];
            driver.offer(&buffers[usize::from(plain)..]).unwrap();
            driver.publish();
            assert_eq!(device.refill(), twin.refill());
            let expected =
                twin.take(Direction::Writable, &memory, &mut Vec::new()).unwrap().unwrap();
            assert!(device.take_plain(Direction::Readable, &memory).is_none());
            for again in [true, false] {
                let token = match device.take_plain(Direction::Writable, &memory) {
                    Some((token, buffer)) => {
                        assert!(plain && buffer.len() == 50);
                        assert_eq!(memory.address_of(&buffer), Some(buffers[1].address));
                        token
                    }
                    None => {
                        assert!(!plain, "round {round} of {config:?}");
                        let mut pieces = Vec::new();
                        device
                            .take(Direction::Writable, &memory, &mut pieces)
                            .unwrap()
                            .unwrap()
                            .token
                    }
                };
                assert_eq!(token, expected.token);
                assert!(!device.has_more());
                assert!(device.take_plain(Direction::Writable, &memory).is_none());
                if again {
                    device.give_back([token].into_iter());
                    assert!(device.has_more());
                }
            }
            for ring in [&mut device, &mut twin] {
                ring.complete(expected.token, 1);
                ring.publish();
            }
            assert_eq!(driver.take().map(|used| used.written), Some(1));
        }
    }
}

#[test]
fn a_new_device_goes_on_where_the_old_one_stopped() {
    for config in formats(8) {
        let (memory, mut driver, mut device) = pair(config);
        for i in 0..3 {
            driver.offer(&[buffer(i, 1, false)]).unwrap();
        }
        driver.publish();
        device.refill().unwrap();
        let chain = device.take(Direction::Readable, &memory, &mut Vec::new()).unwrap().unwrap();
        device.complete(chain.token, 0);
        device.publish();
        let mut next = DeviceRing::new(&memory, config, &AT, device.base()).unwrap();
        assert!(next.refill().unwrap() > 0);
        while let Some(chain) = next.take(Direction::Readable, &memory, &mut Vec::new()).unwrap() {
            next.complete(chain.token, 0);
        }
        next.publish();
        assert!(next.needs_call(), "a call that got lost with the old device is made up for");
        assert_eq!(std::iter::from_fn(|| driver.take()).count(), 3);
    }
}

#[test]
fn chains_that_somebody_took_and_never_gave_back_are_taken_again_in_order() {
    for config in formats(8) {
        let (memory, mut driver, mut device) = pair(config);
        let heads: Vec<_> =
            (0..4).map(|i| driver.offer(&[buffer(i, 1 + i as u32, false)]).unwrap()).collect();
        driver.publish();
        let take = |device: &mut DeviceRing| {
            device.refill().unwrap();
            device.take(Direction::Readable, &memory, &mut Vec::new()).unwrap()
        };
        let first = take(&mut device).unwrap();
        take(&mut device).unwrap();
        take(&mut device).unwrap();
        device.complete(first.token, 0);
        device.publish();
        let base = device.base();
        drop(device);
        let mut next = DeviceRing::new(&memory, config, &AT, base).unwrap();
        let mut lengths = Vec::new();
        while let Some(chain) = take(&mut next) {
            lengths.push(chain.len);
            next.complete(chain.token, 0);
        }
        next.publish();
        assert_eq!(lengths, [2, 3, 4], "{config:?}");
        let back: Vec<_> = std::iter::from_fn(|| driver.take()).map(|used| used.head).collect();
        assert_eq!((back, driver.skipped()), (heads, 0), "{config:?}");
    }
}

#[test]
fn chains_returned_at_once_are_like_chains_completed_one_by_one() {
    for config in formats(8) {
        let run = |at_once| {
            let (memory, mut driver, mut device) = pair(config);
            let (mut seen, mut kept) = (Vec::new(), None);
            for round in 0..60 {
                for nth in 0..=round % 3 {
                    let two = [buffer(nth, 1, false), buffer(nth, 2, false)];
                    driver.offer(if round % 7 == 6 { &two } else { &two[..1] }).unwrap();
                }
                driver.publish();
                let mut tokens = Vec::new();
                while device.refill().unwrap() > 0 {
                    let chain = device.take(Direction::Readable, &memory, &mut Vec::new());
                    tokens.push(chain.unwrap().unwrap().token);
                }
                if let Some(token) = kept.take() {
                    device.complete_kept(token, 0);
                }
                if round % 5 == 4 {
                    let token = tokens.remove(0);
                    device.keep(token);
                    kept = Some(token);
                }
                let published = if at_once {
                    device.return_all(&tokens, |token| *token)
                } else {
                    tokens.iter().for_each(|token| device.complete(*token, 0));
                    device.publish()
                };
                let back: Vec<_> = std::iter::from_fn(|| driver.take()).map(|it| it.head).collect();
                let (base, more) = (device.base(), device.unannounced());
                let wanted = (device.needs_call_for_more(), device.needs_call_for_more());
                seen.push((published, base, more, wanted, back, driver.skipped()));
            }
            seen
        };
        assert_eq!(run(true), run(false), "{config:?}");
    }
}

#[test]
fn a_packed_base_that_the_ring_contradicts_is_refused() {
    let config = RingConfig { packed: true, ..config(4) };
    let (memory, mut driver, mut device) = pair(config);
    for nth in 0..6 {
        driver.offer(&[buffer(0, 1, false)]).unwrap();
        driver.publish();
        device.refill().unwrap();
        let chain = device.take(Direction::Readable, &memory, &mut Vec::new()).unwrap().unwrap();
        device.complete(chain.token, 0);
        device.publish();
        driver.take().unwrap();
        assert_eq!(device.base() as u16 & 0x7fff, (nth + 1) % 4);
    }
    // Slots 0 and 1 are from the second round, 2 and 3 from the first.
    let at = |base| DeviceRing::new(&memory, config, &AT, base).map(|ring| ring.base());
    assert_eq!(at(0x0002_0002), Ok(0x0002_0002));
    for (base, slot) in [(0x8002_8002, 2), (0x8003_8003, 3), (0x0000_0001, 1), (0x0001_0003, 1)] {
        assert_eq!(at(base), Err(SetupError::UsedAlready { slot }), "{base:#x}");
    }
    assert_eq!(at(0x0002_0003), Err(SetupError::NeverOffered { slot: 2 }), "nobody took it");
    driver.offer(&[buffer(0, 1, false)]).unwrap();
    driver.publish();
    assert_eq!(at(0x0002_0003), Ok(0x0002_0002), "and is taken again");
}

/// User-mode Linux sends 0 for a packed ring that has not run.
#[test]
fn a_packed_ring_is_untouched_until_its_first_round_has_brought_something_back() {
    for in_order in [false, true] {
        let config = RingConfig { packed: true, in_order, ..config(4) };
        let (memory, mut driver, mut device) = pair(config);
        let untouched = || is_untouched(&memory, &AT, 4);
        assert!(untouched());
        for _ in 0..4 {
            driver.offer(&[buffer(0, 1, false)]).unwrap();
        }
        driver.publish();
        assert!(untouched(), "offered all of it");
        device.refill().unwrap();
        while let Some(chain) = device.take(Direction::Readable, &memory, &mut Vec::new()).unwrap()
        {
            device.refill().unwrap();
            device.complete(chain.token, 0);
        }
        device.publish();
        assert_eq!(device.base(), 0, "here 0 is where it stands");
        assert!(!untouched());
        while driver.take().is_some() {}
        driver.offer(&[buffer(0, 1, false)]).unwrap();
        driver.publish();
        assert!(!untouched());
    }
    // There is one used descriptor for each batch: after three rounds slot 0 looks as in the first round.
    let config = RingConfig { packed: true, in_order: true, ..config(4) };
    let (there, mut driver, mut device) = pair(config);
    for batch in [3, 4, 4, 1] {
        for _ in 0..batch {
            driver.offer(&[buffer(0, 1, false)]).unwrap();
        }
        driver.publish();
        while device.refill().unwrap() > 0 {
            let chain = device.take(Direction::Readable, &there, &mut Vec::new()).unwrap().unwrap();
            device.complete(chain.token, 0);
        }
        device.publish();
        while driver.take().is_some() {}
    }
    assert_eq!((device.base(), is_untouched(&there, &AT, 4)), (0, false));
    let beyond = Addresses { descriptor: MEMORY - 16, ..AT };
    assert!(!is_untouched(&memory(), &beyond, 4), "there is no memory");
}

#[test]
fn a_used_element_that_names_nothing_is_skipped() {
    let (memory, mut driver, mut device) = pair(config(8));
    let head = driver.offer(&[buffer(0, 1, true)]).unwrap();
    driver.publish();
    device.refill().unwrap();
    device.complete(Token::split(7), 0);
    device.complete(Token::split(0x1234), 0);
    assert_eq!(device.base(), 0, "and nothing was taken for them");
    let chain = device.take(Direction::Writable, &memory, &mut Vec::new()).unwrap().unwrap();
    device.complete(chain.token, 1);
    device.complete(chain.token, 1);
    device.publish();
    assert_eq!(driver.take(), Some(Used { head, written: 1 }));
    assert_eq!(driver.take(), None, "completed twice, taken once");
    assert_eq!(driver.free(), 8);
}

proptest! {
    /// Any interleaving of offers, completions in any order, and reaping: every chain comes back once, with its length,
    /// in order if promised, and sleeping sides always wake up. Indices and wrap counters wrap in long runs.
    #[test]
    fn every_chain_comes_back_once_and_no_wakeup_is_lost(
        event_idx in any::<bool>(),
        packed in any::<bool>(),
        in_order in any::<bool>(),
        size in prop_oneof![Just(1u16), Just(2), Just(16), Just(256)],
        odd_size in prop_oneof![1..=9u16, 1..=257u16],
        steps in proptest::collection::vec((0u8..6, 0u8..8), 1..600),
    ) {
        let size = if packed { odd_size } else { size };
        let config = RingConfig { event_idx, packed, in_order, ..config(size) };
        let (memory, mut driver, mut device) = pair(config);
        // Chains in the order of their offers: the driver's name, and the length.
        let mut offered: VecDeque<(u16, u32)> = VecDeque::new();
        let mut written: HashMap<u16, Option<u32>> = HashMap::new();
        let mut order: VecDeque<u16> = VecDeque::new();
        // The device's name, the driver's name, and the length if the chain is kept.
        let mut taken: VecDeque<(Token, u16, Option<u32>)> = VecDeque::new();
        let (mut device_asleep, mut driver_asleep) = (false, false);
        for (step, n) in steps {
            match step {
                0 | 1 => {
                    let buffers: Vec<_> =
                        (0..=u64::from(n % 3)).map(|i| buffer(i, u32::from(n) + 1, false)).collect();
                    if let Some(head) = driver.offer(&buffers) {
                        offered.push_back((head, buffers.iter().map(|b| b.len).sum()));
                        order.push_back(head);
                        prop_assert_eq!(written.insert(head, None), None);
                    }
                    if driver.publish() {
                        device_asleep = false;
                    }
                }
                2 => {
                    device.suppress_kicks();
                    device_asleep = false;
                    device.refill().unwrap();
                    for i in 0..n {
                        match device.take(Direction::Readable, &memory, &mut Vec::new()).unwrap() {
                            Some(chain) => {
                                let (head, len) = offered.pop_front().unwrap();
                                prop_assert_eq!(len, chain.len);
                                // A chain that will be completed out of order has to be kept.
                                let kept = in_order || i % 2 == 0;
                                if kept { device.keep(chain.token) }
                                taken.push_back((chain.token, head, kept.then_some(len)));
                            }
                            None => break,
                        }
                    }
                }
                3 => {
                    for _ in 0..n {
                        // Out of order every other time.
                        let chain = if n % 2 == 0 { taken.pop_front() } else { taken.pop_back() };
                        if let Some((token, head, kept)) = chain {
                            if let Some(len) = kept {
                                let again = device.retake_readable(token, &memory, &mut Vec::new()).map(|it| it.chain);
                                prop_assert_eq!(again, Ok(Chain { token, len }));
                            }
                            let bytes = u32::from(head % 3);
                            written.insert(head, Some(bytes));
                            if kept.is_some() { device.complete_kept(token, bytes) } else { device.complete(token, bytes) }
                        }
                    }
                    device.publish();
                    if device.needs_call() {
                        driver_asleep = false;
                    }
                }
                4 => {
                    driver_asleep = false;
                    while let Some(used) = driver.take() {
                        prop_assert_eq!(written.remove(&used.head), Some(Some(used.written)));
                        if in_order { prop_assert_eq!(order.pop_front(), Some(used.head)) }
                    }
                    driver_asleep = !driver.enable_calls() || driver_asleep;
                }
                _ => device_asleep = device.enable_kicks().unwrap() == 0,
            }
            // A sleeping side has nothing to do, or a wake-up came.
            if device_asleep { prop_assert_eq!(device.refill().unwrap(), 0); }
            if driver_asleep { prop_assert_eq!(driver.take(), None); }
            prop_assert_eq!(driver.skipped(), 0);
        }
    }
}

/// The number of chains of a receive ring that the driver has taken, and the number that weir can tell, after each
/// step.
fn taken_and_seen(config: RingConfig, asks_for_calls: bool, steps: &[(u8, u8)]) -> Vec<(u64, u64)> {
    let (memory, mut driver, mut device) = pair(config);
    let (mut taken, mut before) = (0, (0, None));
    let mut seen = Vec::new();
    for (step, &(offers, takes)) in steps.iter().enumerate() {
        for _ in 0..offers {
            driver.offer(&[buffer(0, 1, true)]);
        }
        driver.publish();
        let fresh = |device: &DeviceRing, before: (u64, Option<u16>)| {
            device.call_event() != before.1
                && device.completed_total() - before.0 < u64::from(config.size)
        };
        if step % 3 == 0 {
            before = (device.completed_total(), device.call_event());
        }
        device.refill().unwrap();
        while let Some(chain) = device.take(Direction::Writable, &memory, &mut Vec::new()).unwrap()
        {
            device.complete(chain.token, 1);
            device.refill().unwrap();
        }
        device.publish();
        for _ in 0..takes {
            taken += u64::from(driver.take().is_some());
        }
        if asks_for_calls {
            driver.enable_calls();
        }
        seen.push((
            taken,
            device.completed_total().saturating_sub(device.untaken_max(fresh(&device, before))),
        ));
    }
    seen
}

proptest! {
    #[test]
    fn weir_never_takes_for_taken_what_the_driver_has_not(
        steps in prop::collection::vec((0..12_u8, 0..12_u8), 1..200),
        asks_for_calls: bool,
        odd_size in 1..20_u16,
    ) {
        let odd = with_and_without_event_idx(odd_size).filter(|config| config.packed);
        for config in with_and_without_event_idx(8).chain(odd) {
            for (taken, seen) in taken_and_seen(config, asks_for_calls, &steps) {
                prop_assert!(seen <= taken, "{seen} of {taken} with {config:?}");
            }
        }
    }
}

#[test]
fn weir_sees_what_is_taken_once_the_ring_is_full_again_or_a_call_is_asked_for() {
    for config in with_and_without_event_idx(8) {
        // Everything is offered, used and taken; then everything is offered again.
        let seen = taken_and_seen(config, false, &[(8, 8), (8, 0)]);
        assert_eq!(seen, [(8, 0), (8, 8)], "{config:?}");
        if config.event_idx {
            assert_eq!(taken_and_seen(config, true, &[(3, 3), (3, 2)]), [(3, 3), (5, 5)]);
        }
    }
}

/// Whatever base a front end sends, its driver has got back the chains that the used index counts.
#[test]
fn a_split_ring_goes_on_at_its_used_index() {
    const SIZE: u16 = 8;
    let memory = memory();
    let raw = memory.window(0, MEMORY as usize).unwrap();
    let (avail, used) = (AT.driver as usize + 2, AT.device as usize + 2);
    let base = |avail_idx: u16, used_idx: u16, base: u32| {
        raw.store(avail, avail_idx);
        raw.store(used, used_idx);
        let mut device = DeviceRing::new(&memory, config(SIZE), &AT, base).unwrap();
        (device.base(), device.refill())
    };
    // DPDK's virtio-user, when it connects to a new switch with a used ring.
    assert_eq!(base(103, 100, 0), (100, Ok(3)));
    assert_eq!(base(5, 3, 0), (3, Ok(2)));
    // QEMU with in_order, which takes chains while its back end is away, and returns none.
    assert_eq!(base(118, 116, 118), (116, Ok(2)));
    assert_eq!(base(3, u16::MAX, 2), (u16::MAX.into(), Ok(4)));
    // The base is behind: these chains were given back.
    assert_eq!(base(118, 116, 110), (116, Ok(2)));
    let too_many = RingError::AvailIndexJump { from: 50, to: 103, size: SIZE };
    assert_eq!(base(103, 50, 103), (50, Err(too_many)));
}
