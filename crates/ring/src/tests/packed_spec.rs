//! Requirements of virtio 1.2 §2.8 for a packed ring, by clause.

use super::pair::{buffer, formats, pair};
use super::*;
use crate::layout::*;

fn packed(size: u16) -> RingConfig {
    RingConfig { packed: true, ..config(size) }
}

fn raw(memory: &Arc<GuestMemory>) -> Window {
    memory.window(0, MEMORY as usize).unwrap()
}

fn flags(memory: &Arc<GuestMemory>, slot: usize) -> u16 {
    raw(memory).load(slot * DESC_BYTES + PACKED_FLAGS)
}

fn take(device: &mut DeviceRing, memory: &GuestMemory) -> Chain {
    device.refill().unwrap();
    device.take(Direction::Readable, memory, &mut Vec::new()).unwrap().unwrap()
}

#[test]
fn spec_2_8_1_wrap_counters_flip_at_the_end_of_the_ring() {
    let (memory, mut driver, mut device) = pair(packed(2));
    let both = PACKED_F_AVAIL | PACKED_F_USED;
    for (available, used) in [(PACKED_F_AVAIL, both), (PACKED_F_USED, 0)] {
        for slot in 0..2 {
            driver.offer(&[buffer(0, 1, false)]).unwrap();
            driver.publish();
            assert_eq!(flags(&memory, slot) & both, available);
            let chain = take(&mut device, &memory);
            device.complete(chain.token, 0);
            device.publish();
            assert_eq!(flags(&memory, slot) & both, used);
            assert!(driver.take().is_some());
        }
    }
}

#[test]
fn spec_2_8_10_1_a_packed_ring_of_any_size_goes_around() {
    for size in [1, 3, 5, 7, 48, 100, 255] {
        let (memory, mut driver, mut device) = pair(packed(size));
        let both = PACKED_F_AVAIL | PACKED_F_USED;
        for nth in 0..5 * size {
            let (lap, slot) = (nth / size, usize::from(nth % size));
            let id = driver.offer(&[buffer(0, 1, false)]).unwrap();
            driver.publish();
            let available = if lap % 2 == 0 { PACKED_F_AVAIL } else { PACKED_F_USED };
            assert_eq!(flags(&memory, slot) & both, available, "slot {slot} of {size}, lap {lap}");
            let chain = take(&mut device, &memory);
            device.complete(chain.token, 0);
            device.publish();
            let used = if lap % 2 == 0 { both } else { 0 };
            assert_eq!(flags(&memory, slot) & both, used, "slot {slot} of {size}, lap {lap}");
            assert_eq!(driver.take(), Some(Used { head: id, written: 0 }));
        }
    }
}

#[test]
fn spec_2_8_10_1_the_largest_packed_rings_can_be_full() {
    for size in [32_767, 32_768] {
        let memory = memory();
        let at = Addresses { descriptor: 0, driver: 0xf_0000, device: 0xf_1000 };
        let config = packed(size);
        let mut driver = DriverRing::new(&memory, config, &at).unwrap();
        let mut device = DeviceRing::new(&memory, config, &at, config.fresh_base()).unwrap();
        for _ in 0..3 {
            while driver.offer(&[buffer(0, 1, false)]).is_some() {}
            assert_eq!(driver.in_flight(), size);
            driver.publish();
            let taken: Vec<_> = (0..size).map(|_| take(&mut device, &memory)).collect();
            device.refill().unwrap();
            assert_eq!(
                device.take(Direction::Readable, &memory, &mut Vec::new()),
                Ok(None),
                "{size}"
            );
            taken.iter().for_each(|chain| device.complete(chain.token, 0));
            assert_eq!(device.publish(), size);
            assert_eq!(std::iter::from_fn(|| driver.take()).count(), size.into());
        }
        assert_eq!(device.base(), 0x0000_0000, "an odd number of laps");
    }
}

#[test]
fn spec_2_7_a_split_ring_keeps_to_powers_of_two() {
    for size in [0, 3, 48, 32_769] {
        assert_eq!(ring_size(size, false), Err(SetupError::Size(size)));
    }
    assert_eq!((ring_size(48, true), ring_size(64, false)), (Ok(48), Ok(64)));
}

#[test]
fn spec_2_8_14_a_call_is_not_lost_where_more_than_two_laps_go_by_between_two_looks() {
    for size in 1..=5 {
        let (memory, mut driver, mut device) = pair(packed(size));
        driver.enable_calls();
        assert!(device.unannounced() > 0 && !driver.has_used());
        device.needs_call();
        for slots in 1..=6 * size {
            driver.offer(&[buffer(0, 1, false)]).unwrap();
            driver.publish();
            let chain = take(&mut device, &memory);
            device.complete(chain.token, 0);
            device.publish();
            driver.take().unwrap();
            assert_eq!(device.unannounced(), slots, "of {size}");
        }
        // The driver requests a call at the next descriptor, and gets none for those that it has taken.
        driver.enable_calls();
        assert!(!device.needs_call());
    }
}

#[test]
fn spec_2_8_22_a_batch_is_seen_at_once() {
    let (memory, mut driver, mut device) = pair(packed(8));
    for _ in 0..3 {
        driver.offer(&[buffer(0, 1, false)]).unwrap();
    }
    assert_eq!(device.refill(), Ok(0), "offered, but not published");
    driver.publish();
    for _ in 0..3 {
        let chain = take(&mut device, &memory);
        device.complete(chain.token, 7);
    }
    assert_eq!(driver.take(), None, "completed, but not published");
    assert_eq!(device.publish(), 3);
    assert_eq!(std::iter::from_fn(|| driver.take()).count(), 3);
    assert_eq!(device.publish(), 0);
}

#[test]
fn spec_2_8_6_a_list_is_used_by_one_descriptor_that_skips_its_slots() {
    let (memory, mut driver, mut device) = pair(packed(8));
    let id = driver.offer(&[buffer(0, 1, false), buffer(1, 2, false), buffer(2, 3, false)]);
    let next = driver.offer(&[buffer(3, 4, false)]);
    driver.publish();
    // Only the id of the last descriptor of a list counts.
    raw(&memory).write(12, [0xaa, 0xaa]);
    let (first, second) = (take(&mut device, &memory), take(&mut device, &memory));
    assert_eq!((first.len, second.len), (6, 4));
    device.complete(first.token, 0);
    device.complete(second.token, 0);
    device.publish();
    let used = |slot| flags(&memory, slot) & PACKED_F_USED != 0;
    assert_eq!([0, 1, 2, 3].map(used), [true, false, false, true]);
    assert_eq!([driver.take(), driver.take()].map(|used| used.map(|u| u.head)), [id, next]);
}

#[test]
fn spec_2_8_3_the_write_flag_says_whether_the_length_counts() {
    let (memory, mut driver, mut device) = pair(packed(8));
    for _ in 0..2 {
        driver.offer(&[buffer(0, 1, false)]).unwrap();
    }
    driver.publish();
    for written in 0..2 {
        let chain = take(&mut device, &memory);
        device.complete(chain.token, written);
    }
    device.publish();
    assert_eq!([0, 1].map(|slot| flags(&memory, slot) & DESC_F_WRITE), [0, DESC_F_WRITE]);
}

#[test]
fn spec_2_8_7_of_an_indirect_table_all_entries_are_buffers_and_only_write_counts() {
    let (memory, mut driver, mut device) = pair(packed(8));
    let raw = raw(&memory);
    for i in 0..3 {
        let at = BUFFERS as usize + i * DESC_BYTES;
        raw.write(at, (BUFFERS + 0x1000).to_le_bytes());
        raw.write(at + 8, 5u32.to_le_bytes());
        raw.write(at + PACKED_FLAGS, (DESC_F_NEXT | PACKED_F_AVAIL).to_le_bytes());
    }
    let id = driver.offer_indirect(BUFFERS, 3 * DESC_BYTES as u32).unwrap();
    driver.publish();
    let chain = take(&mut device, &memory);
    assert_eq!(chain.len, 15);
    device.complete(chain.token, 0);
    device.publish();
    assert_eq!(driver.take(), Some(Used { head: id, written: 0 }));
    assert_eq!(driver.free(), 8);
}

#[test]
fn spec_2_8_8_in_order_one_used_descriptor_stands_for_a_batch() {
    let (memory, mut driver, mut device) = pair(RingConfig { in_order: true, ..packed(8) });
    let ids: Vec<_> = (0..3).map(|i| driver.offer(&[buffer(i, 1, false)]).unwrap()).collect();
    driver.publish();
    for _ in 0..3 {
        let chain = take(&mut device, &memory);
        device.complete(chain.token, 0);
    }
    device.publish();
    let used = |slot| flags(&memory, slot) & PACKED_F_USED != 0;
    assert_eq!([0, 1, 2].map(used), [true, false, false]);
    let back: Vec<_> = std::iter::from_fn(|| driver.take()).map(|used| used.head).collect();
    assert_eq!(back, ids);
}

#[test]
fn spec_2_7_9_a_split_driver_takes_a_batch_that_one_element_stands_for() {
    let split = RingConfig { in_order: true, ..config(8) };
    let (memory, mut driver, _device) = pair(split);
    let ids: Vec<_> = (0..3).map(|i| driver.offer(&[buffer(i, 1, true)]).unwrap()).collect();
    driver.publish();
    let raw = raw(&memory);
    let element = u64::from(ids[2]) | 9 << 32;
    raw.write(AT.device as usize + used_entry(0), element.to_le_bytes());
    raw.store_release(AT.device as usize + IDX, 3);
    let back: Vec<_> = std::iter::from_fn(|| driver.take()).collect();
    let expected = [(ids[0], 0), (ids[1], 0), (ids[2], 9)];
    assert_eq!(back, expected.map(|(head, written)| Used { head, written }));
    assert_eq!(driver.free(), 8);
}

#[test]
fn spec_2_7_9_in_order_one_used_element_stands_for_a_batch() {
    let split = RingConfig { in_order: true, ..config(8) };
    let (memory, mut driver, mut device) = pair(split);
    let ids: Vec<_> = (0..4).map(|i| driver.offer(&[buffer(i, 1, i == 2)]).unwrap()).collect();
    driver.publish();
    let element = |nth| raw(&memory).read::<8>(AT.device as usize + used_entry(nth));
    let untouched = element(1);
    for written in [0, 0] {
        let chain = take(&mut device, &memory);
        device.complete(chain.token, written);
    }
    let chain = device.take(Direction::Writable, &memory, &mut Vec::new()).unwrap().unwrap();
    device.complete(chain.token, 1);
    let chain = take(&mut device, &memory);
    device.complete(chain.token, 0);
    assert_eq!(device.publish(), 4);
    assert_eq!(element(0), u64::from(ids[1]).to_le_bytes(), "the last of the batch");
    assert_eq!(element(1), untouched);
    let back: Vec<_> = std::iter::from_fn(|| driver.take()).collect();
    let expected = [(ids[0], 0), (ids[1], 0), (ids[2], 1), (ids[3], 0)];
    assert_eq!(back, expected.map(|(head, written)| Used { head, written }));
}

#[test]
fn in_order_completions_wait_for_their_turn() {
    for config in formats(8).into_iter().filter(|config| config.in_order) {
        let (memory, mut driver, mut device) = pair(config);
        let ids: Vec<_> = (0..3).map(|i| driver.offer(&[buffer(i, 1, false)]).unwrap()).collect();
        driver.publish();
        let heads: Vec<_> = (0..3).map(|_| take(&mut device, &memory).token).collect();
        device.keep(heads[0]);
        device.complete(heads[1], 0);
        device.complete(heads[2], 0);
        assert_eq!(device.publish(), 0);
        assert_eq!(driver.take(), None);
        device.complete_kept(heads[0], 0);
        assert_eq!(device.publish(), 3);
        let back: Vec<_> = std::iter::from_fn(|| driver.take()).map(|used| used.head).collect();
        assert_eq!(back, ids);
    }
}

#[test]
fn a_kept_list_survives_what_is_written_over_its_slots() {
    let (memory, mut driver, mut device) = pair(packed(4));
    let parked = driver.offer(&[buffer(0, 5, false), buffer(1, 6, false)]).unwrap();
    driver.offer(&[buffer(2, 1, false)]).unwrap();
    driver.publish();
    let (first, second) = (take(&mut device, &memory), take(&mut device, &memory));
    device.keep(first.token);
    device.complete(second.token, 0);
    device.publish();
    assert!(driver.take().is_some());
    // The rest of the ring is used for several laps.
    for _ in 0..9 {
        driver.offer(&[buffer(3, 1, false)]).unwrap();
        driver.publish();
        let chain = take(&mut device, &memory);
        device.complete(chain.token, 0);
        device.publish();
        assert!(driver.take().is_some());
    }
    let again = device.retake_readable(first.token, &memory, &mut Vec::new()).map(|it| it.chain);
    assert_eq!(again, Ok(first));
    device.complete_kept(first.token, 0);
    device.publish();
    assert_eq!(driver.take(), Some(Used { head: parked, written: 0 }));
}

#[test]
fn spec_2_8_14_descriptor_events_call_and_kick_once_per_request() {
    let (memory, mut driver, mut device) = pair(packed(4));
    let mut pass = |driver: &mut DriverRing| {
        driver.offer(&[buffer(0, 1, false)]).unwrap();
        driver.publish();
        let chain = take(&mut device, &memory);
        device.complete(chain.token, 0);
        device.publish();
        device.needs_call()
    };
    // Several laps, so that the wrap counter in the event matters.
    for _ in 0..9 {
        assert!(!driver.enable_calls());
        assert!(pass(&mut driver));
        assert!(!pass(&mut driver), "asked for once");
        while driver.take().is_some() {}
        driver.suppress_calls();
        assert!(!pass(&mut driver));
        while driver.take().is_some() {}
    }
}

#[test]
fn vhost_user_base_says_slots_and_wrap_counters_of_both_indices() {
    let (memory, mut driver, mut device) = pair(packed(4));
    assert_eq!(device.base(), 0x8000_8000);
    for (i, base) in [0x8001_8001u32, 0x8002_8002, 0x8003_8003, 0, 0x0001_0001].iter().enumerate() {
        driver.offer(&[buffer(0, 1, false)]).unwrap();
        driver.publish();
        let chain = take(&mut device, &memory);
        assert_eq!(device.base() >> 16, [0x8000, 0x8001, 0x8002, 0x8003, 0][i]);
        device.complete(chain.token, 0);
        device.publish();
        assert_eq!(device.base(), *base);
        driver.take().unwrap();
    }
    // The front end knows only the lower half.
    let half = DeviceRing::new(&memory, packed(4), &AT, 0x0001).unwrap();
    assert_eq!(half.base(), 0x0001_0001);
}

#[test]
fn a_used_descriptor_that_names_nothing_is_the_end_of_the_driver() {
    let (memory, mut driver, _device) = pair(packed(4));
    driver.offer(&[buffer(0, 1, false)]).unwrap();
    driver.publish();
    let raw = raw(&memory);
    raw.write(12, [3, 0]);
    raw.store_release(PACKED_FLAGS, PACKED_F_AVAIL | PACKED_F_USED);
    assert_eq!((driver.take(), driver.skipped()), (None, 1));
    assert_eq!((driver.take(), driver.skipped(), driver.enable_calls()), (None, 0, false));
}
