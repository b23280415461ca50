//! The dirty log.

use std::collections::BTreeSet;

use super::*;

const PAGES: u64 = 96;

fn log(bytes: u64) -> Arc<DirtyLog> {
    Arc::new(DirtyLog::map(bytes, 0, &memfd(bytes), &Arc::default()).unwrap())
}

fn taken(log: &DirtyLog) -> BTreeSet<u64> {
    let mut pages = BTreeSet::new();
    log.take(|page| assert!(pages.insert(page)));
    pages
}

proptest! {
    #[test]
    fn the_pages_of_what_was_written_are_marked_and_no_others(
        writes in prop::collection::vec((0..PAGES * LOG_PAGE_BYTES, 0..0x8000u64), 0..12)
    ) {
        let log = log(PAGES / 8);
        let mut expected = BTreeSet::new();
        let mut beyond = false;
        for (at, len) in writes {
            log.after_writes().at(at, len);
            let pages = at / LOG_PAGE_BYTES..(at + len).div_ceil(LOG_PAGE_BYTES);
            match len > 0 && pages.end > PAGES {
                true => beyond = true,
                false if len > 0 => expected.extend(pages),
                false => {}
            }
        }
        prop_assert_eq!(log.take_news(), !expected.is_empty());
        prop_assert!(!log.take_news());
        prop_assert_eq!(taken(&log), expected);
        prop_assert_eq!(log.is_overrun(), beyond);
        prop_assert!(taken(&log).is_empty(), "what was taken is gone");
    }
}

#[test]
fn a_slice_is_marked_by_the_guest_address_of_its_region() {
    let regions = [(0x4_0000, 0x3000), (0, 0x2000), (0x10_0000, 0x1000)]
        .map(|(at, size)| (spec(at, size), memfd(size)));
    let memory = GuestMemory::map(&regions).unwrap();
    let log = log(64);
    let writes = WriteLog::new(Arc::clone(&log), &memory).unwrap();
    let slice = |at, len| memory.slice(at, len).unwrap();
    writes.after_writes().slice(&slice(0x4_1ffe, 4));
    writes.after_writes().slice(&slice(0x1fff, 1));
    writes.after_writes().slice(&slice(0x10_0000, 0x1000));
    assert_eq!(taken(&log), [0x1, 0x41, 0x42, 0x100].into());
    assert!(!log.is_overrun());
    let other = GuestMemory::map(&[(spec(0, 0x1000), memfd(0x1000))]).unwrap();
    writes.after_writes().slice(&other.slice(0, 1).unwrap());
    assert!(log.is_overrun(), "nobody knows where that is");
}

#[test]
fn a_log_without_a_bit_for_every_address_is_refused() {
    let memory = |size| GuestMemory::map(&[(spec(0x8000, size), memfd(size))]).unwrap();
    // Two bytes: sixteen pages.
    WriteLog::new(log(2), &memory(0x8000)).unwrap();
    let refused = WriteLog::new(log(2), &memory(0x8001)).unwrap_err();
    assert!(matches!(refused, LogError::TooShort { bytes: 2, guest_address: 0x1_0000 }));
    // A word that is half set does not count.
    assert!(WriteLog::new(log(1), &memory(0x1000)).is_err());
    assert!(log(8).check(u64::MAX, u64::MAX).is_err());
}

#[test]
fn a_log_that_cannot_be_is_refused_by_name() {
    let refused = |size, offset, file: &File| {
        let account = Arc::new(Account::new(weir_limits::MEMORY_MAX_MIN, &[]));
        DirtyLog::map(size, offset, file, &account).unwrap_err().to_string()
    };
    let file = memfd(0x1000);
    assert!(refused(0, 0, &file).contains("is empty"));
    assert!(refused(0x1001, 0, &file).contains("needs 0x1001 bytes of its file, which has 0x1000"));
    assert!(refused(8, 4, &file).contains("0x4 of its file, which is no multiple of 8"));
    assert!(refused(8, u64::MAX - 7, &file).contains("beyond 2^64"));
    let huge = memfd(1 << 40);
    assert!(refused(1 << 40, 0, &huge).contains("`memory_max`"));
    let read_only = File::open("/proc/self/exe").unwrap();
    assert!(refused(8, 0, &read_only).contains("file system"));
    let sealed = memfd_create("sealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&sealed, 0x1000).unwrap();
    rustix::fs::fcntl_add_seals(&sealed, rustix::fs::SealFlags::WRITE).unwrap();
    assert!(refused(8, 0, &sealed.into()).contains("mmap failed"));
}

#[test]
fn a_log_that_is_truncated_poisons_itself_only() {
    let file = memfd(0x1000);
    let log = DirtyLog::map(0x1000, 0, &file, &Arc::default()).unwrap();
    let bystander = DirtyLog::map(8, 0, &memfd(0x1000), &Arc::default()).unwrap();
    let before = fault_count();
    ftruncate(&file, 0).unwrap();
    log.after_writes().at(0x5000, 1);
    assert!(log.is_poisoned() && fault_count() > before);
    bystander.after_writes().at(0x5000, 1);
    assert!(!bystander.is_poisoned());
}

#[test]
fn a_log_counts_as_memory_for_as_long_as_it_is_mapped() {
    let account = Arc::new(Account::default());
    let log = DirtyLog::map(0x1800, 0, &memfd(0x1800), &account).unwrap();
    assert_eq!(account.mapped(), Mapped { bytes: 0x2000, regions: 1 });
    drop(log);
    assert_eq!(account.mapped(), Mapped::default());
}

#[test]
fn nothing_is_lost_to_whoever_takes_bits_while_pages_are_written() {
    let memory = GuestMemory::map(&[(spec(0, 0x4000), memfd(0x4000))]).unwrap();
    let log = log(2);
    let writes = WriteLog::new(Arc::clone(&log), &memory).unwrap();
    let mut copies = [0u32; 4];
    let value = |page: u64| {
        let bytes = memory.slice(page * LOG_PAGE_BYTES, 4).unwrap().read_array().unwrap();
        u32::from_le_bytes(bytes)
    };
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for round in 1..200_000u32 {
                let slice = memory.slice(u64::from(round % 4) * LOG_PAGE_BYTES, 4).unwrap();
                slice.write(&round.to_le_bytes());
                writes.after_writes().slice(&slice);
            }
        });
        while !writer.is_finished() {
            log.take(|page| copies[page as usize] = value(page));
        }
    });
    log.take(|page| copies[page as usize] = value(page));
    assert_eq!(copies, [0, 1, 2, 3].map(value));
}
