//! Tests of the memory table, its slices, and the end of a file under them.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;

use proptest::prelude::*;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::*;

mod bounds;
mod datagrams;
mod log;
mod truncated;

fn memfd(len: u64) -> File {
    let fd = memfd_create("weir-test", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, len).unwrap();
    File::from(fd)
}

fn spec(guest_address: u64, size: u64) -> RegionSpec {
    RegionSpec {
        guest_address,
        size,
        user_address: guest_address + 0x7000_0000_0000,
        mmap_offset: 0,
    }
}

#[test]
fn a_buffer_over_many_regions_is_refused_before_it_costs_anything() {
    const PAGE: u64 = 4096;
    let file = File::from(memfd_create("pages", MemfdFlags::CLOEXEC).unwrap());
    ftruncate(&file, 16 * PAGE).unwrap();
    let region = |page: u64| RegionSpec {
        guest_address: page * PAGE,
        size: PAGE,
        user_address: (page + 100) * PAGE,
        mmap_offset: page * PAGE,
    };
    let pages: Vec<_> = (0..16).map(|page| (region(page), file.try_clone().unwrap())).collect();
    let memory = GuestMemory::map(&pages).unwrap();
    let most = weir_limits::BUFFER_PIECES_MAX;
    let mut pieces = Vec::new();
    assert!(memory.pieces(0, most as u32 * PAGE as u32, &mut pieces));
    assert_eq!(pieces.len(), most);
    assert!(!memory.pieces(0, most as u32 * PAGE as u32 + 1, &mut pieces));
    assert_eq!(pieces.len(), most, "nothing is left of it");
}

#[test]
fn slices_read_back_what_was_written_and_stay_in_their_region() {
    let memory = GuestMemory::map(&[(spec(0x1000, 0x2000), memfd(0x2000))]).unwrap();
    let slice = memory.slice(0x2ff0, 16).unwrap();
    assert_eq!(slice.write(b"0123456789abcdef-beyond"), 16);
    let mut back = [0; 16];
    assert_eq!(slice.skip(4).first(8).read(&mut back), 8);
    assert_eq!(&back[..8], b"456789ab");
    assert!(memory.slice(0x2ff0, 17).is_none(), "one byte beyond the region");
    assert!(memory.slice(0xfff, 1).is_none(), "one byte before the region");
    assert!(memory.slice(u64::MAX, 2).is_none());
    assert!(memory.slice(0x2fff, u32::MAX).is_none());
    assert!(slice.skip(100).is_empty());
}

#[test]
fn a_buffer_across_touching_regions_comes_in_pieces_and_across_a_gap_not_at_all() {
    let memory = GuestMemory::map(&[
        (spec(0x2000, 0x1000), memfd(0x1000)),
        (spec(0x1000, 0x1000), memfd(0x1000)),
        (spec(0x4000, 0x1000), memfd(0x1000)),
    ])
    .unwrap();
    let mut pieces = Vec::new();
    assert!(memory.pieces(0x1ff0, 0x20, &mut pieces));
    assert_eq!(pieces.iter().map(Slice::len).collect::<Vec<_>>(), [0x10, 0x10]);
    assert!(!memory.pieces(0x2ff0, 0x20, &mut pieces), "0x3000 is in no region");
    assert_eq!(pieces.len(), 2, "a refused buffer leaves nothing behind");
}

#[test]
fn the_two_largest_regions_are_found_at_once_and_no_other() {
    let map = |regions: &[(u64, u64)]| {
        let regions: Vec<_> =
            regions.iter().map(|(at, size)| (spec(*at, *size), memfd(*size))).collect();
        GuestMemory::map(&regions).unwrap()
    };
    assert!(map(&[]).main().slice(0, 1).is_none());
    let memory = map(&[(0, 0x2000)]);
    assert!(memory.main().slice(0x1000, 1).is_some() && memory.main().slice(0x2000, 1).is_none());
    let memory = map(&[(0, 0x2000), (0x4000, 0x1000), (0x8000, 0x3000)]);
    for (address, len, found) in [
        (0, 0x2000, true),
        (0, 0x2001, false),
        (0, 0, false),
        (0x2000, 1, false),
        (0x4000, 1, false),
        (0x8000, 0x3000, true),
        (0xafff, 2, false),
        (u64::MAX, 1, false),
    ] {
        assert_eq!(memory.main().slice(address, len).is_some(), found, "{len} at {address:#x}");
    }
}

#[test]
fn regions_that_overlap_are_refused() {
    let first = || (spec(0x1000, 0x2000), memfd(0x2000));
    let guest = (spec(0x2fff, 0x1000), memfd(0x1000));
    assert!(matches!(GuestMemory::map(&[first(), guest]), Err(MemoryError::Overlap { .. })));
    let mut user = spec(0x10_0000, 0x1000);
    user.user_address = spec(0x1000, 0).user_address + 0x1fff;
    assert!(matches!(
        GuestMemory::map(&[first(), (user, memfd(0x1000))]),
        Err(MemoryError::Overlap { .. })
    ));
}

/// Else a small file could be a terabyte, whose pages take seconds to unmap once they are touched.
#[test]
fn bytes_of_a_file_are_in_two_regions_at_most() {
    let (file, other) = (memfd(0x4000), memfd(0x4000));
    let mut memory = GuestMemory::default();
    let mut add = |slot: u64, offset: u64, size: u64, file: &File| {
        memory.add(RegionSpec { mmap_offset: offset, ..spec(slot << 20, size) }, file)
    };
    add(0, 0, 0x4000, &file).unwrap();
    add(1, 0x1000, 0x1000, &file).unwrap();
    let refused = add(2, 0x1fff, 0x1000, &file).unwrap_err();
    assert!(matches!(refused, MemoryError::Thrice { first: 0x10_0000, second: 0x20_0000 }));
    add(3, 0x2000, 0x2000, &file).unwrap();
    add(4, 0, 0x4000, &other).unwrap();
}

#[test]
fn a_region_longer_than_its_file_is_refused() {
    let error = GuestMemory::map(&[(spec(0, 0x2001), memfd(0x2000))]).unwrap_err();
    assert!(matches!(error, MemoryError::Map(MapError::FileTooShort { needed: 0x2001, .. })));
    let mut offset = spec(0, 0x1000);
    offset.mmap_offset = 0x1001;
    let error = GuestMemory::map(&[(offset, memfd(0x2000))]).unwrap_err();
    assert!(matches!(error, MemoryError::Map(MapError::FileTooShort { .. })));
}

#[test]
fn empty_wrapping_and_unmappable_regions_are_refused() {
    let map = |spec, file| match GuestMemory::map(&[(spec, file)]).unwrap_err() {
        MemoryError::Map(error) => error,
        other => panic!("{other}"),
    };
    assert!(matches!(map(spec(0, 0), memfd(0x1000)), MapError::Empty { .. }));
    let end = RegionSpec {
        guest_address: u64::MAX - 0xfff,
        size: 0x2000,
        user_address: 0,
        mmap_offset: 0,
    };
    assert!(matches!(map(end, memfd(0x2000)), MapError::Wraps { .. }));
    let end = RegionSpec { guest_address: 0, size: 0x2000, user_address: u64::MAX, mmap_offset: 0 };
    assert!(matches!(map(end, memfd(0x2000)), MapError::Wraps { .. }));
    let end = RegionSpec { guest_address: 0, size: 2, user_address: 0, mmap_offset: u64::MAX };
    assert!(matches!(map(end, memfd(0x2000)), MapError::Wraps { .. }));
    let null = File::open("/dev/null").unwrap();
    assert!(matches!(map(spec(0, 0x1000), null), MapError::FileSystem { .. }));
}

#[test]
fn an_offset_inside_a_page_finds_the_right_bytes() {
    use std::os::unix::fs::FileExt;
    let file = memfd(0x3000);
    file.write_all_at(b"here", 0x1234).unwrap();
    let region = RegionSpec { guest_address: 0, size: 0x100, user_address: 0, mmap_offset: 0x1234 };
    let memory = GuestMemory::map(&[(region, file)]).unwrap();
    let mut back = [0; 4];
    memory.slice(0, 4).unwrap().read(&mut back);
    assert_eq!(&back, b"here");
}

#[test]
fn as_many_regions_as_memory_slots_and_no_more() {
    let file = memfd((weir_limits::MEM_SLOTS_MAX as u64) << 12);
    let mut memory = GuestMemory::default();
    for slot in 0..weir_limits::MEM_SLOTS_MAX as u64 {
        let region = RegionSpec { mmap_offset: slot << 12, ..spec(slot << 20, 0x1000) };
        memory.add(region, &file).unwrap();
    }
    let one_more = spec(1 << 40, 0x1000);
    assert!(matches!(memory.add(one_more, &file), Err(MemoryError::TooMany)));
    assert_eq!(memory.len(), 509);
    for slot in 0..weir_limits::MEM_SLOTS_MAX as u64 {
        assert!(memory.slice(slot << 20, 0x1000).is_some());
    }
}

#[test]
fn removing_a_region_unmaps_only_that_one() {
    let mut memory = GuestMemory::map(&[
        (spec(0, 0x1000), memfd(0x1000)),
        (spec(0x1000, 0x1000), memfd(0x1000)),
    ])
    .unwrap();
    let old = memory.clone();
    assert!(matches!(memory.remove(&spec(0, 0x800)), Err(MemoryError::NoSuchRegion { .. })));
    memory.remove(&spec(0, 0x1000)).unwrap();
    assert!(memory.slice(0, 1).is_none());
    assert!(memory.slice(0x1000, 1).is_some());
    assert!(old.slice(0, 1).is_some(), "a burst in flight keeps what it started with");
}

#[test]
fn a_run_of_elements_ends_at_the_last_one() {
    let memory = Arc::new(GuestMemory::map(&[(spec(0, 0x1000), memfd(0x1000))]).unwrap());
    let window = memory.window(spec(0, 0).user_address, 0x100).unwrap();
    let elements = window.elements::<16>(0x20, 4).unwrap();
    for (first, max, count) in [(0, 9, 4), (1, 2, 2), (3, 2, 1), (4, 1, 0), (900, 1, 0)] {
        assert_eq!(elements.run(first, max).count(), count, "{first} {max}");
    }
    for (element, word) in elements.run(2, 2).zip([0x8000_0000_0000_0001, 2]) {
        element.write_second(word);
    }
    let words_at = elements.word_reader();
    assert_eq!((words_at(3), words_at(4)), (Some((0, 2, 0)), None));
    assert_eq!(words_at(2), Some((0, 1, 0x8000_0000)));
    assert_eq!(window.read::<8>(0x48), [1, 0, 0, 0, 0, 0, 0, 0x80], "the third's second half");
    let third = elements.get(2);
    assert_eq!(third.load_second_acquire(|flags| flags == 0x8000), Some(0x8000_0000_0000_0001));
    assert_eq!(third.load_second_acquire(|flags| flags == 0), None);
    assert_eq!(third.read_first(), 0);
}

#[test]
fn a_window_keeps_its_memory_mapped() {
    let memory = Arc::new(GuestMemory::map(&[(spec(0, 0x1000), memfd(0x1000))]).unwrap());
    let user = spec(0, 0).user_address;
    let window = memory.window(user + 0x800, 0x100).unwrap();
    assert!(memory.window(user + 0xff0, 0x11).is_none());
    assert!(memory.window(user - 1, 1).is_none());
    drop(memory);
    window.store_release(2, 0xbeef);
    assert_eq!(window.load_acquire(2), 0xbeef);
    assert_eq!(window.read::<2>(2), [0xef, 0xbe], "virtio 1.2 §1.4: fields are little-endian");
    window.store32_release(8, 0x1234_5678);
    window.store32(12, 9);
    assert_eq!((window.load32_acquire(8), window.load32(12)), (0x1234_5678, 9));
    assert_eq!(window.read::<8>(8), [0x78, 0x56, 0x34, 0x12, 9, 0, 0, 0]);
}

#[test]
fn recycling_keeps_the_allocation() {
    let buffer = HostBuffer::new(16);
    let mut pieces = Vec::with_capacity(100);
    pieces.push(buffer.slice(0, 16).unwrap());
    let place = pieces.as_ptr();
    let again: Vec<Slice<'_>> = recycle(pieces);
    assert!(again.is_empty() && again.capacity() == 100);
    assert_eq!(again.as_ptr(), place);
}

#[test]
fn a_loan_is_empty_and_keeps_the_allocation() {
    let mut room = Reused::<[Slice<'static>; 2]>::default();
    let place = {
        let buffer = HostBuffer::new(16);
        let mut pieces = room.lend();
        pieces.push([buffer.slice(0, 8).unwrap(), buffer.slice(8, 8).unwrap()]);
        pieces.as_ptr() as usize
    };
    let other = HostBuffer::new(16);
    let mut again = room.lend();
    assert!(again.is_empty());
    again.push([other.slice(0, 16).unwrap(); 2]);
    assert_eq!(again.as_ptr() as usize, place);
}

#[test]
fn what_is_appended_ends_at_the_first_item_of_which_nothing_is_made() {
    let mut halves = Vec::from([7]);
    assert_eq!(append(&mut halves, [4, 6, 3, 8].into_iter(), |n| (n % 2 == 0).then_some(n / 2)), 2);
    assert_eq!(halves, [7, 2, 3]);
    assert_eq!(append(&mut halves, 0..100, |n| Some(n + 1)), 100);
    assert_eq!((halves.len(), halves[3], halves[102]), (103, 1, 100));
}

proptest! {
    /// For any request, a piece lies in a region or is refused, and lengths add up.
    #[test]
    fn pieces_cover_exactly_the_bytes_that_are_in_regions(
        starts in proptest::collection::vec(0u64..16, 1..6),
        address in 0u64..0x12000,
        len in 0u32..0x8000,
    ) {
        let mut memory = GuestMemory::default();
        let mut present = [false; 0x20];
        for page in starts {
            if memory.add(spec(page * 0x1000, 0x1000), &memfd(0x1000)).is_ok() {
                present[page as usize] = true;
            }
        }
        let inside = len > 0
            && (address..address + u64::from(len)).step_by(1).all(|a| present[(a >> 12) as usize]);
        let mut pieces = Vec::new();
        let found = memory.pieces(address, len, &mut pieces);
        if len > 0 {
            prop_assert_eq!(found, inside);
        }
        if let Some(slice) = memory.main().slice(address, len) {
            prop_assert_eq!(memory.slice(address, len).map(|it| it.address()), Some(slice.address()));
        }
        let total: usize = pieces.iter().map(Slice::len).sum();
        prop_assert_eq!(total, if found { len as usize } else { 0 });
        let mut at = address;
        for piece in &pieces {
            prop_assert_eq!(memory.address_of(piece), Some(at));
            at += piece.len() as u64;
        }
        let elsewhere = HostBuffer::new(1);
        prop_assert_eq!(memory.address_of(&elsewhere.slice(0, 1).unwrap()), None);
    }
}

/// Translations against a plain model, and the bounds of entries and questions.
mod iotlb {
    use std::collections::BTreeMap;
    use std::os::fd::OwnedFd;
    use std::time::{Duration, Instant};

    use rustix::event::{EventfdFlags, eventfd};
    use weir_limits::{IOTLB_ASK_AGAIN_NS, IOTLB_ASKS_MAX, IOTLB_ENTRIES_MAX, IOTLB_PIECES_MAX};

    use super::*;

    const PAGE: u64 = 0x1000;
    const PAGES: u64 = 16;
    const USER: u64 = 0x7000_0000_0000;

    fn memory() -> GuestMemory {
        memory_of(&Arc::default())
    }

    fn memory_of(account: &Arc<Account>) -> GuestMemory {
        let half = |guest_address| spec(guest_address, PAGES / 2 * PAGE);
        // Two regions that touch nowhere.
        let regions = [half(0), half(1 << 40)].map(|spec| (spec, memfd(PAGES / 2 * PAGE)));
        GuestMemory::new(Arc::clone(account)).replaced_by(&regions).unwrap()
    }

    /// The user address of page `number` of the memory.
    fn user(number: u64) -> u64 {
        USER + if number < PAGES / 2 {
            number * PAGE
        } else {
            (1 << 40) + (number - PAGES / 2) * PAGE
        }
    }

    fn asks() -> Arc<Asks> {
        let wake: OwnedFd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
        Arc::new(Asks::new(Arc::new(wake)))
    }

    #[derive(Debug, Clone)]
    enum Step {
        /// First page, pages, first page of memory, permission.
        Update(u64, u64, u64, u8),
        Remove(u64, u64),
        Clear,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            8 => (0..24u64, 1..5u64, 0..PAGES, 1..4u8).prop_map(|(a, b, c, d)| Step::Update(a, b, c, d)),
            3 => (0..24u64, 1..6u64).prop_map(|(at, pages)| Step::Remove(at, pages)),
            1 => Just(Step::Clear),
        ];
        prop::collection::vec(step, 1..40)
    }

    proptest! {
        /// An entry that is overlapped is forgotten as a whole. The real table may do so too, since
        /// missing translations are asked for.
        #[test]
        fn each_address_is_translated_as_the_last_entry_says_or_not_at_all(steps in steps()) {
            let memory = memory();
            let mut iotlb = Iotlb::new(memory.clone());
            let mut model: BTreeMap<u64, (u64, u64, u8)> = BTreeMap::new();
            let asks = asks();
            for step in steps {
                match step {
                    Step::Update(at, pages, to, permission) => {
                        let update = Update {
                            iova: at * PAGE,
                            size: pages * PAGE,
                            user: user(to),
                            permission,
                        };
                        let fits = to % (PAGES / 2) + pages <= PAGES / 2;
                        prop_assert_eq!(iotlb.update(update).is_ok(), fits);
                        if fits && model.get(&at) != Some(&(pages, to, permission)) {
                            model.retain(|other, (len, ..)| *other >= at + pages || other + *len <= at);
                            model.insert(at, (pages, to, permission));
                        }
                    }
                    Step::Remove(at, pages) => {
                        iotlb.remove(at * PAGE, (at + pages) * PAGE - 1);
                        model.retain(|other, (len, ..)| *other >= at + pages || other + *len <= at);
                    }
                    Step::Clear => {
                        iotlb.clear();
                        model.clear();
                    }
                }
                prop_assert_eq!(iotlb.len(), model.len());
                let tables = iotlb.tables();
                for access in [Access::Read, Access::Write] {
                    let seen = tables.of(access, &asks);
                    for page in 0..30 {
                        let expected = model.iter().find_map(|(at, (len, to, permission))| {
                            let inside = (*at..at + len).contains(&page);
                            (inside && permission & access as u8 != 0).then(|| to + page - at)
                        });
                        let found = seen.slice(page * PAGE + 5, 100).map(|slice| slice.address());
                        let place = expected.map(|to| {
                            let guest = user(to) - USER;
                            memory.slice(guest + 5, 100).unwrap().address()
                        });
                        prop_assert_eq!(found, place, "page {} to {:?}", page, access);
                        let at_once = seen.translated(page * PAGE + 5, 100);
                        prop_assert_eq!(at_once.map(|it| it.address()), place);
                        let looked = match expected {
                            Some(to) => Lookup::At(vec![Piece { address: user(to) + 5, len: 100 }]),
                            None => Lookup::Missing,
                        };
                        let mut missing = Vec::new();
                        let ask = |at| missing.push(at);
                        prop_assert_eq!(iotlb.look_up(page * PAGE + 5, 100, &[access], ask), looked);
                        let at = expected.is_none().then_some(page * PAGE + 5);
                        prop_assert_eq!(missing, at.into_iter().collect::<Vec<_>>());
                        prop_assert_eq!(seen.ask(page * PAGE + 5, 100), expected.is_none());
                    }
                }
            }
        }
    }

    #[test]
    fn the_oldest_entries_and_questions_go_first() {
        let mut iotlb = Iotlb::new(memory());
        let asks = asks();
        let most = IOTLB_ENTRIES_MAX as u64;
        for number in 0..most + 3 {
            let update = Update { iova: 2 * number * PAGE, size: PAGE, user: USER, permission: 3 };
            assert_eq!(iotlb.update(update), Ok(Updated::Added));
            assert_eq!(iotlb.update(update), Ok(Updated::Same));
        }
        assert_eq!(iotlb.len() as u64, most);
        let mut missing = Vec::new();
        let ask = |at| missing.push(at);
        // Every other page is there, up to the bound of questions.
        assert_eq!(iotlb.look_up(5 * PAGE + 9, 5 * PAGE, &[Access::Read], ask), Lookup::Missing);
        assert_eq!(missing, [5 * PAGE + 9, 7 * PAGE, 9 * PAGE]);
        let first = |iotlb: &Iotlb, at| iotlb.look_up(at, 1, &[Access::Read], |_| ());
        assert_eq!(first(&iotlb, 4 * PAGE), Lookup::Missing);
        let at = |len| Lookup::At(vec![Piece { address: USER, len }]);
        assert_eq!(first(&iotlb, 6 * PAGE), at(1));
        let asked = |asks: &Asks, now| {
            let mut asked = Vec::new();
            asks.send(now, |page, access| {
                asked.push((page, access));
                Ok::<_, ()>(Some(()))
            })
            .unwrap();
            asked
        };
        for number in 0..IOTLB_ASKS_MAX as u64 + 3 {
            asks.ask(number * PAGE + 7, Access::Read);
            asks.ask(number * PAGE + 9, Access::Read);
        }
        let now = Instant::now();
        let again = Duration::from_nanos(IOTLB_ASK_AGAIN_NS);
        assert_eq!(asks.unanswered(now, Duration::ZERO), None, "they are not asked yet");
        let first = asked(&asks, now);
        assert_eq!((first.len(), first[0]), (IOTLB_ASKS_MAX, (3 * PAGE, Access::Read)));
        assert!(asked(&asks, now).is_empty());
        assert_eq!(asked(&asks, now + again), first);
        let unanswered = asks.unanswered(now + 2 * again, again);
        assert_eq!(unanswered, Some((IOTLB_ASKS_MAX, 2 * again)), "since the first time");
        assert_eq!(asks.unanswered(now + again, 2 * again), None);
        let answer = |permission| Update { iova: 3 * PAGE, size: PAGE, user: USER, permission };
        assert!(!asks.answer(&answer(2)), "it is still unknown whether one may read");
        assert!(asks.answer(&answer(1)) && !asks.answer(&answer(3)));
    }

    #[test]
    fn entries_at_the_end_of_all_addresses_end_there() {
        let mut iotlb = Iotlb::new(memory());
        let last = Update { iova: u64::MAX - PAGE + 1, size: PAGE, user: USER, permission: 3 };
        assert_eq!(iotlb.update(last), Ok(Updated::Added));
        let seen = iotlb.tables().of(Access::Write, &asks());
        for len in [1, 0x1000] {
            assert!(
                seen.slice(last.iova, len).is_some() && seen.translated(last.iova, len).is_some()
            );
        }
        assert!(
            seen.slice(last.iova, 0x1001).is_none() && seen.translated(last.iova, 0x1001).is_none()
        );
        assert!(!seen.ask(last.iova, 0x1001), "there is nothing to ask for");
        let whole = Lookup::At(vec![Piece { address: USER, len: PAGE }]);
        assert_eq!(iotlb.look_up(last.iova, PAGE, &[Access::Read], |_| ()), whole);
        assert_eq!(iotlb.look_up(last.iova, PAGE + 1, &[Access::Read], |_| ()), Lookup::Beyond);
        assert!(iotlb.remove(u64::MAX, u64::MAX) && iotlb.is_empty());
    }

    /// Translations of pages from address 0 on, to these pages of the memory.
    fn pages(memory: &GuestMemory, to: &[u64]) -> Iotlb {
        let mut iotlb = Iotlb::new(memory.clone());
        for (page, to) in (0..).zip(to) {
            let update = Update { iova: page * PAGE, size: PAGE, user: user(*to), permission: 3 };
            assert_eq!(iotlb.update(update), Ok(Updated::Added));
        }
        iotlb
    }

    fn area(iotlb: &Iotlb, at: u64, len: u64) -> Vec<Piece> {
        match iotlb.look_up(at, len, &[Access::Read, Access::Write], |_| ()) {
            Lookup::At(pieces) => pieces,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_area_in_pieces_is_the_same_bytes_one_after_the_other() {
        let account = Arc::<Account>::default();
        let memory = memory_of(&account);
        let regions = || account.mapped().regions;
        // The pages 7 and 8 are of two regions, and 3 and 4 are one piece.
        let to = [5, 7, 8, 3, 4, 15, 0];
        let iotlb = pages(&memory, &to);
        let (at, len) = (PAGE - 100, 5 * PAGE + 200);
        let areas = [area(&iotlb, at, len), area(&iotlb, 3 * PAGE + 8, PAGE)];
        assert_eq!((areas[0].len(), areas[1].len()), (6, 1));
        let joined = Arc::new(memory.joining(&areas).unwrap());
        assert_eq!(regions(), 2 + 6, "each piece is a mapping");
        let window = joined.window(areas[0][0].address, len as usize).unwrap();
        assert!(joined.window(areas[0][0].address, len as usize + 1).is_none());
        let place = |at: u64| {
            let user = user(to[(at / PAGE) as usize]) + at % PAGE;
            memory.slice(memory.guest_address(user).unwrap(), 4).unwrap()
        };
        for nth in (0..len - 4).step_by(62) {
            place(at + nth).write(&(nth as u32).to_le_bytes());
            assert_eq!(window.read(nth as usize), (nth as u32).to_le_bytes());
            window.write(nth as usize, (!nth as u32).to_le_bytes());
            assert_eq!(place(at + nth).read_array(), Some((!nth as u32).to_le_bytes()));
        }
        let guest = memory.guest_pieces(&areas[0]);
        let starts = |pieces: &[Piece]| pieces.iter().map(|it| it.address).collect::<Vec<_>>();
        let expected = areas[0].iter().map(|it| memory.guest_address(it.address).unwrap());
        assert_eq!(starts(&guest), expected.collect::<Vec<_>>());
        assert_eq!(guest.iter().map(|it| it.len).sum::<u64>(), len);
        // The window alone keeps it.
        drop(joined);
        assert_eq!(regions(), 2 + 6);
        drop(window);
        assert_eq!(regions(), 2);
    }

    #[test]
    fn what_cannot_be_mapped_as_one_is_refused() {
        let account = Arc::<Account>::default();
        let memory = memory_of(&account);
        let refused = |areas: &[Piece]| memory.joining(&[areas.to_vec()]).unwrap_err().to_string();
        let piece = |page: u64, from: u64, len: u64| Piece { address: user(page) + from, len };
        let within = "within a page";
        assert!(refused(&[piece(0, 0, 8), piece(3, 0, PAGE)]).contains(within));
        assert!(refused(&[piece(0, 8, PAGE - 8), piece(3, 8, PAGE)]).contains(within));
        // Both are at the same place of a page.
        assert!(refused(&[piece(0, 0, 2048), piece(3, 2048, 2048)]).contains(within));
        let gone = "not shared any more";
        assert!(refused(&[piece(0, 0, PAGE), Piece { address: 0, len: PAGE }]).contains(gone));
        let apart: Vec<_> = (0..PAGES / 2).map(|page| piece(page ^ 1, 0, PAGE)).collect();
        assert_eq!(apart.len(), IOTLB_PIECES_MAX);
        assert!(memory.joining(std::slice::from_ref(&apart)).is_ok());
        let many = [&apart[..], &[piece(9, 0, 1)]].concat();
        assert!(refused(&many).contains("more than 8 pieces"));
        assert_eq!(account.mapped().regions, 2, "nothing stays");
    }

    #[test]
    fn pieces_of_huge_pages_are_refused() {
        const HUGE: u64 = 2 << 20;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        // A kernel without such pages gives no such file.
        let Ok(file) = memfd_create("huge", flags) else { return };
        ftruncate(&file, 2 * HUGE).unwrap();
        let memory = GuestMemory::map(&[(spec(0, 2 * HUGE), file.into())]).unwrap();
        let piece = |at| Piece { address: USER + at, len: PAGE };
        for pieces in [[HUGE, 0], [PAGE, HUGE + PAGE]] {
            let error = memory.joining(&[pieces.map(piece).to_vec()]).unwrap_err();
            assert!(error.to_string().contains("huge pages"), "{error}");
        }
    }

    #[test]
    fn a_truncated_file_is_noticed_by_a_second_mapping_alone() {
        let file = memfd(4 * PAGE);
        let memory = GuestMemory::map(&[(spec(0, 4 * PAGE), file.try_clone().unwrap())]).unwrap();
        let area = [2, 0].map(|page| Piece { address: USER + page * PAGE, len: PAGE });
        let joined = Arc::new(memory.joining(&[area.to_vec()]).unwrap());
        let window = joined.window(area[0].address, 2 * PAGE as usize).unwrap();
        window.write(0, [7; 8]);
        ftruncate(&file, PAGE).unwrap();
        assert_eq!((window.read(0), joined.poisoned()), ([0; 8], true));
        assert!(!memory.poisoned(), "it was not touched there");
        let mut byte = [1];
        memory.slice(2 * PAGE, 1).unwrap().read(&mut byte);
        assert!(memory.poisoned());
        assert!(memory.joining(&[area.to_vec()]).is_err(), "there is spare memory");
    }
}
