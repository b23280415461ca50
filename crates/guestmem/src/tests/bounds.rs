//! Bounds of a front end's mappings, and their unmapping.

use std::time::{Duration, Instant};

use weir_limits::{
    MEM_REGIONS_FLOOR, MEM_REGIONS_TOTAL_MAX, MEM_SLOTS_MAX, MEM_TABLES_MAX, MEMORY_FLOOR,
    MEMORY_MAX_DEFAULT, MEMORY_MAX_MAX, MEMORY_MAX_MIN, MEMORY_TOTAL_MAX, PORTS_MAX,
};

use super::*;
use crate::account::{Charge, Total};
use crate::ticks::thread_cpu_ns;

/// A total for one test, since other tests in this process use the shared one.
fn total(bytes: u64, regions: usize) -> &'static Total {
    Box::leak(Box::new(Total::with_floors((bytes, 0), (regions as u64, 0))))
}

fn bound_of(result: Result<impl Sized, MemoryError>) -> Bound {
    match result {
        Err(MemoryError::Map(MapError::Bound { bound, .. })) => bound,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it was mapped"),
    }
}

/// Returns the bytes of this process's address space in mappings of memfds called `name`.
fn mapped_bytes_of(name: &str) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let lens = maps.lines().filter(|line| line.contains(name)).map(|line| {
        let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
        u64::from_str_radix(to, 16).unwrap() - u64::from_str_radix(from, 16).unwrap()
    });
    lens.sum()
}

fn named(name: &str, len: u64) -> File {
    let fd = memfd_create(name, MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, len).unwrap();
    File::from(fd)
}

#[test]
fn a_sparse_file_does_not_fill_the_address_space() {
    let mut memory = GuestMemory::default();
    let file = named("weir-sparse", 1 << 50);
    let error = memory.add(spec(0, 1 << 46), &file).unwrap_err();
    let max = MEMORY_MAX_DEFAULT;
    let text = format!(
        "the regions have {} bytes in all; `memory_max` of this interface allows {max}",
        1_u64 << 46
    );
    assert!(error.to_string().ends_with(&text), "{error}");
    assert_eq!(bound_of(Err::<(), _>(error)), Bound::Memory { bytes: 1 << 46, max });
    assert_eq!(mapped_bytes_of("weir-sparse"), 0, "refused before it is mapped");
}

#[test]
fn a_table_has_memory_max_and_no_byte_more() {
    let account = Arc::new(Account::within(MEMORY_MAX_MIN, total(u64::MAX, usize::MAX)));
    let mut memory = GuestMemory::new(Arc::clone(&account));
    memory.add(spec(0, MEMORY_MAX_MIN - 0x1000), &memfd(MEMORY_MAX_MIN)).unwrap();
    memory.add(spec(1 << 40, 1), &memfd(0x1000)).unwrap();
    // A single byte of it takes a page.
    assert_eq!(account.mapped(), Mapped { bytes: MEMORY_MAX_MIN, regions: 2 });
    let (bytes, max) = (MEMORY_MAX_MIN + 0x1000, MEMORY_MAX_MIN);
    let one_more = memory.add(spec(1 << 41, 1), &memfd(0x1000));
    assert_eq!(bound_of(one_more), Bound::Memory { bytes, max });
    account.set_max_bytes(2 * MEMORY_MAX_MIN);
    memory.add(spec(1 << 41, 1), &memfd(0x1000)).unwrap();
    assert_eq!(account.mapped(), Mapped { bytes, regions: 3 });
    drop(memory);
    assert_eq!(account.mapped(), Mapped::default());
}

#[test]
fn what_is_refused_is_not_counted() {
    let account = Arc::new(Account::within(MEMORY_MAX_MIN, total(u64::MAX, usize::MAX)));
    let mut memory = GuestMemory::new(Arc::clone(&account));
    memory.add(spec(0, 0x1000), &memfd(0x1000)).unwrap();
    assert!(memory.add(spec(0x800, 0x1000), &memfd(0x1000)).is_err());
    assert!(memory.add(spec(0x2000, 0x2000), &memfd(0x1000)).is_err());
    // mmap itself refuses a file that is not open for writing.
    let path = format!("/dev/shm/weir-read-only-{}", std::process::id());
    std::fs::write(&path, [0; 0x1000]).unwrap();
    let read_only = File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(
        memory.add(spec(0x2000, 0x1000), &read_only),
        Err(MemoryError::Map(MapError::Os { call: "mmap", .. }))
    ));
    assert_eq!(account.mapped(), Mapped { bytes: 0x1000, regions: 1 });
}

#[test]
fn old_tables_count_for_as_long_as_somebody_uses_them() {
    let account = Arc::new(Account::within(MEMORY_MAX_MIN, total(u64::MAX, usize::MAX)));
    let region = || (spec(0, MEMORY_MAX_MIN), memfd(MEMORY_MAX_MIN));
    let first = GuestMemory::new(Arc::clone(&account)).replaced_by(&[region()]).unwrap();
    let in_a_burst = first.clone();
    let second = first.replaced_by(&[region()]).unwrap();
    drop(first);
    assert_eq!(account.mapped(), Mapped { bytes: 2 * MEMORY_MAX_MIN, regions: 2 });
    assert_eq!(bound_of(second.replaced_by(&[region()])), Bound::Tables { max: MEMORY_MAX_MIN });
    drop(in_a_burst);
    let third = second.replaced_by(&[region()]).unwrap();
    assert_eq!(account.mapped(), Mapped { bytes: 2 * MEMORY_MAX_MIN, regions: 2 });
    drop((second, third));
    assert_eq!(account.mapped(), Mapped::default());
}

#[test]
fn regions_of_old_tables_count_too() {
    let account = Arc::new(Account::within(1 << 30, total(u64::MAX, usize::MAX)));
    let file = memfd((MEM_SLOTS_MAX as u64) << 12);
    let mut tables = Vec::new();
    for _ in 0..MEM_TABLES_MAX {
        let mut memory = GuestMemory::new(Arc::clone(&account));
        for slot in 0..MEM_SLOTS_MAX as u64 {
            let region = RegionSpec { mmap_offset: slot << 12, ..spec(slot << 20, 0x1000) };
            memory.add(region, &file).unwrap();
        }
        tables.push(memory);
    }
    let mut memory = GuestMemory::new(account);
    assert_eq!(bound_of(memory.add(spec(0, 0x1000), &file)), Bound::Regions);
    tables.pop();
    memory.add(spec(0, 0x1000), &file).unwrap();
}

#[test]
fn all_front_ends_together_have_a_bound() {
    let both = total(3 * MEMORY_MAX_MIN, 3);
    let account = || Arc::new(Account::within(2 * MEMORY_MAX_MIN, both));
    let (first, second) = (account(), account());
    let mut greedy = GuestMemory::new(Arc::clone(&first));
    greedy.add(spec(0, 2 * MEMORY_MAX_MIN), &memfd(2 * MEMORY_MAX_MIN)).unwrap();
    let mut other = GuestMemory::new(Arc::clone(&second));
    let too_much = other.add(spec(0, MEMORY_MAX_MIN + 1), &memfd(2 * MEMORY_MAX_MIN));
    assert_eq!(bound_of(too_much), Bound::TotalMemory { share: 3 * MEMORY_MAX_MIN / 4 });
    assert_eq!(second.mapped(), Mapped::default());
    other.add(spec(0, 0x1000), &memfd(0x1000)).unwrap();
    other.add(spec(0x1000, 0x1000), &memfd(0x1000)).unwrap();
    let too_many = other.add(spec(0x2000, 0x1000), &memfd(0x1000));
    assert_eq!(bound_of(too_many), Bound::TotalRegions { share: 0 });
    drop(greedy);
    other.add(spec(0x2000, 0x1000), &memfd(0x1000)).unwrap();
}

/// Returns a switch with the real bounds.
fn real_total() -> &'static Total {
    Box::leak(Box::new(Total::new(MEMORY_TOTAL_MAX, MEM_REGIONS_TOTAL_MAX)))
}

/// Lets `accounts` charge for regions of `len` bytes in turns until nobody gets one more.
fn grab(accounts: &[Arc<Account>], len: u64) -> Vec<Charge> {
    let mut charges = Vec::new();
    for account in accounts {
        while let Ok(charge) = account.charge(len, 0) {
            charges.push(charge);
        }
    }
    charges
}

#[test]
fn interfaces_that_take_all_they_get_leave_each_other_one_its_share() {
    let total = real_total();
    let accounts = |count| -> Vec<_> {
        let account = || Arc::new(Account::within(MEMORY_MAX_DEFAULT, total));
        std::iter::repeat_with(account).take(count).collect()
    };
    let (greedy, last) = (accounts(99), accounts(1));
    let _charges = grab(&greedy, 1 << 30);
    // Half of the amount for a hundred accounts, in a hundred parts.
    let for_all = MEMORY_TOTAL_MAX - (PORTS_MAX as u64 - 100) * MEMORY_FLOOR;
    let share = for_all / 2 / 100;
    assert!(share > 80 << 30);
    let got: Vec<_> = grab(&last, 1 << 30);
    assert!(got.len() as u64 >= share >> 30, "{} GiB of {share}", got.len());
    // An account that is added later has the floor.
    let later = accounts(PORTS_MAX - 100);
    let _later: Vec<_> =
        later.iter().map(|account| account.charge(MEMORY_FLOOR, 0).unwrap()).collect();
}

#[test]
fn regions_are_shared_as_memory_is() {
    let total = real_total();
    let account = || Arc::new(Account::within(MEMORY_MAX_DEFAULT, total));
    let greedy: Vec<_> = std::iter::repeat_with(account).take(99).collect();
    let last = [account()];
    let _charges = grab(&greedy, 0x1000);
    let got = grab(&last, 0x1000);
    assert!(got.len() >= 86, "{}", got.len());
    let mut later = Vec::new();
    for _ in 100..PORTS_MAX {
        let account = account();
        let charges = (0..MEM_REGIONS_FLOOR).map(|_| account.charge(0x1000, 0).unwrap());
        later.extend(charges.collect::<Vec<_>>());
    }
}

#[test]
fn an_interface_alone_may_have_the_largest_table_twice() {
    let account = Arc::new(Account::within(MEMORY_MAX_MAX, real_total()));
    let _tables = [(); MEM_TABLES_MAX].map(|()| account.charge(MEMORY_MAX_MAX, 0).unwrap());
    assert_eq!(bound_of_charge(account.charge(1, 0)), Bound::Tables { max: MEMORY_MAX_MAX });
}

#[test]
fn what_an_interface_gave_back_and_one_that_is_gone_are_for_the_others() {
    let total = real_total();
    let account = || Arc::new(Account::within(MEMORY_MAX_MAX, total));
    let (first, second) = (account(), account());
    let most = grab(std::slice::from_ref(&first), 1 << 40);
    let share = total.share().bytes;
    let refused = bound_of_charge(first.charge(1 << 40, 0));
    assert_eq!(refused, Bound::TotalMemory { share });
    drop(second);
    let more = first.charge(1 << 40, 0).unwrap();
    drop((most, more));
    assert_eq!(first.mapped(), Mapped::default());
    assert_eq!(total.share().bytes, (MEMORY_TOTAL_MAX - (PORTS_MAX as u64 - 1) * MEMORY_FLOOR) / 2);
}

fn bound_of_charge(result: Result<Charge, Bound>) -> Bound {
    result.map(drop).unwrap_err()
}

#[test]
fn guests_memory_is_not_in_core_dumps() {
    let file = named("weir-dumped", 0x20_0000);
    let memory = GuestMemory::map(&[(spec(0, 0x20_0000), file)]).unwrap();
    let at = memory.slice(0, 1).unwrap().address();
    let pages = MappedPages::new(0x20_0000).unwrap();
    let shared = named("weir-shared", 0x20_0000);
    let shared = MappedPages::map(shared.as_fd(), 0, 0x20_0000).unwrap();
    for at in [at, pages.address(), shared.slice(0, 1).unwrap().address()] {
        assert!(flags_at(at).contains(&"dd".to_owned()), "{:?}", flags_at(at));
    }
}

/// Returns `VmFlags` of the mapping at an address (proc_pid_smaps(5)).
fn flags_at(address: usize) -> Vec<String> {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let is_here = |line: &&str| {
        let range = line.split(' ').next().unwrap().split_once('-');
        let hex = |text| usize::from_str_radix(text, 16).ok();
        range.is_some_and(|(from, to)| hex(from) <= Some(address) && Some(address) < hex(to))
    };
    let mut lines = smaps.lines().skip_while(|line| !is_here(line));
    let flags = lines.find_map(|line| line.strip_prefix("VmFlags:")).unwrap();
    flags.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn a_worker_that_is_the_last_to_use_memory_leaves_the_unmapping_to_another_thread() {
    let account = Arc::new(Account::default());
    for is_over in [false, true] {
        let mut memory = GuestMemory::new(Arc::clone(&account));
        memory.add(spec(0, 0x1000), &named("weir-last", 0x1000)).unwrap();
        assert_eq!(account.take_unmapping_ns(), [0, 0]);
        let end_session = is_over.then(|| Arc::clone(&account));
        let worker = std::thread::spawn(move || {
            leave_unmapping_to_others();
            // The other thread unmaps nothing until this was checked.
            let unmapped = crate::reaper::hold_up(|| {
                drop(memory);
                end_session.into_iter().for_each(|account| account.end_session());
                mapped_bytes_of("weir-last") == 0
            });
            assert!(!unmapped, "the worker has unmapped it itself");
        });
        worker.join().unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        // The time is noted, and taken once. It is the session's own while that is there.
        let took = loop {
            let [own, left] = account.take_unmapping_ns();
            if own + left > 0 {
                break [own > 0, left > 0];
            }
            assert!(Instant::now() < end, "nobody has unmapped it");
            std::thread::yield_now();
        };
        assert_eq!(took, [!is_over, is_over]);
        assert_eq!((mapped_bytes_of("weir-last"), account.take_unmapping_ns()), (0, [0, 0]));
    }
}

#[test]
fn what_another_thread_has_unmapped_and_no_session_has_taken_is_left_by_the_one_that_ends() {
    let account = Arc::new(Account::default());
    let [first, second] = [1, 2].map(|_| account.charge_pieces(1).unwrap().unmapped());
    first(3);
    account.end_session();
    let third = account.charge_pieces(1).unwrap().unmapped();
    second(4);
    third(8);
    assert_eq!(account.take_unmapping_ns(), [8, 7]);
}

/// The attack `sparse_files_by_20_front_ends` measures the time that this case takes.
#[test]
fn a_region_of_any_length_is_unmapped_whole() {
    for len in [0x1000, 2 << 20, (2 << 20) + 0x1000, (200 << 20) + 0x3000, MEMORY_MAX_DEFAULT] {
        let mut memory = GuestMemory::default();
        let file = named("weir-whole", len);
        memory.add(spec(0, len), &file).unwrap();
        assert_eq!(mapped_bytes_of("weir-whole"), len);
        drop(memory);
        assert_eq!(mapped_bytes_of("weir-whole"), 0, "{len} bytes");
    }
}

/// `cargo test --release -p weir-guestmem --lib -- --ignored --nocapture what_unmapping_costs`
#[test]
#[ignore = "a measurement"]
fn what_unmapping_costs() {
    const LEN: u64 = 2 << 30;
    let ms = |from_ns: u64, to_ns: u64| (to_ns - from_ns) as f64 / 1e6;
    for (what, step) in [("no page", LEN), ("a page in 2 MiB", 2 << 20), ("each page", 0x1000)] {
        let file = named("weir-touched", LEN);
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, LEN).unwrap();
        let mut memory = GuestMemory::default();
        memory.add(spec(0, LEN), &file).unwrap();
        let before_ns = thread_cpu_ns();
        for at in (0..LEN).step_by(step as usize).take_while(|_| step < LEN) {
            memory.slice(at, 1).unwrap().read(&mut [0]);
        }
        let touched_ns = thread_cpu_ns();
        drop(memory);
        let (touching, unmapping) = (ms(before_ns, touched_ns), ms(touched_ns, thread_cpu_ns()));
        println!("{what} of 2 GiB touched: {touching:.2} ms, and unmapped: {unmapping:.2} ms");
    }
}
