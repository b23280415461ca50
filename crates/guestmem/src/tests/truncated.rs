//! Files that end before their mapped memory.

use std::process::Command;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::*;

#[test]
fn truncated_memory_reads_as_zero_and_poisons_only_its_owner() {
    let file = memfd(0x4000);
    let memory = GuestMemory::map(&[(spec(0, 0x4000), file.try_clone().unwrap())]).unwrap();
    let bystander = GuestMemory::map(&[(spec(0, 0x1000), memfd(0x1000))]).unwrap();
    let slice = memory.slice(0x2000, 0x1000).unwrap();
    slice.write(&[0xaa; 64]);
    let before = fault_count();
    ftruncate(&file, 0).unwrap();
    let mut back = [1; 64];
    slice.read(&mut back);
    assert_eq!(back, [0; 64]);
    assert!(memory.poisoned());
    assert!(fault_count() > before);
    assert!(!bystander.poisoned());
}

/// Tells a test that it is the child, and its limit.
const CHILD: &str = "WEIR_GUESTMEM_CHILD";

/// Runs the test `name` again, in its own process, with `CHILD` set to `value`.
fn in_child(name: &str, value: &str) {
    let mut child = Command::new(std::env::current_exe().unwrap());
    // Otherwise each new thread may reserve 64 MiB of addresses for its own small allocations.
    child.env("MALLOC_ARENA_MAX", "1");
    let child = child.args(["--exact", name, "--nocapture"]).env(CHILD, value);
    let out = child.output().unwrap();
    let (stdout, stderr) =
        (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(
        out.status.success() && stdout.contains("1 passed"),
        "{}: {stdout}{stderr}",
        out.status
    );
}

/// Does `work` while `resource` has no room for another large mapping. A little room is left for other threads of the
/// test.
fn allow_no_more<T>(resource: Resource, work: impl FnOnce() -> T) -> T {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let field = if resource == Resource::As { "VmSize:" } else { "VmData:" };
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    let before = getrlimit(resource);
    setrlimit(resource, Rlimit { current: Some((kib << 10) + (32 << 20)), ..before }).unwrap();
    let result = work();
    setrlimit(resource, before).unwrap();
    result
}

#[test]
fn truncated_memory_is_repaired_without_address_space_or_data_limit_to_spare() {
    const NAME: &str = "tests::truncated::truncated_memory_is_repaired_without_address_space_or_data_limit_to_spare";
    let Ok(limit) = std::env::var(CHILD) else {
        return ["as", "data"].into_iter().for_each(|limit| in_child(NAME, limit));
    };
    const LEN: u64 = 256 << 20;
    let file = memfd(LEN);
    let memory = GuestMemory::map(&[(spec(0, LEN), file.try_clone().unwrap())]).unwrap();
    let slice = memory.slice(LEN / 2, 0x2000).unwrap();
    let mut back = [1; 0x2000];
    let resource = if limit == "as" { Resource::As } else { Resource::Data };
    let refused = allow_no_more(resource, || {
        let refused = MappedPages::new(64 << 20).is_err();
        ftruncate(&file, 0).unwrap();
        slice.read(&mut back);
        slice.write(&[7; 0x2000]);
        refused
    });
    assert!(refused, "the limit is none");
    assert!(back.iter().all(|byte| *byte == 0) && memory.poisoned());
    slice.read(&mut back);
    assert!(back.iter().all(|byte| *byte == 7), "what is written stays");
}

#[test]
fn truncated_memory_is_repaired_where_no_page_is_left() {
    const NAME: &str = "tests::truncated::truncated_memory_is_repaired_where_no_page_is_left";
    if std::env::var(CHILD).is_err() {
        return in_child(NAME, "spare");
    }
    let file = memfd(0x10_0000);
    let memory = GuestMemory::map(&[(spec(0, 0x10_0000), file.try_clone().unwrap())]).unwrap();
    crate::fault::exhaust_spare();
    ftruncate(&file, 0).unwrap();
    let mut back = [1; 64];
    for at in (0..0x10_0000).step_by(0x1000) {
        let slice = memory.slice(at, 64).unwrap();
        slice.write(&[7; 64]);
        slice.read(&mut back);
        assert_eq!(back, [7; 64]);
    }
    assert!(memory.poisoned());
}

#[test]
fn what_one_guest_left_in_spare_memory_no_other_reads() {
    // Slots are reused: there are far more rounds than slots of other tests in this process.
    for round in 0..200 {
        let file = memfd(0x4000);
        let memory = GuestMemory::map(&[(spec(0, 0x4000), file.try_clone().unwrap())]).unwrap();
        let other = GuestMemory::map(&[(spec(0, 0x4000), file.try_clone().unwrap())]).unwrap();
        ftruncate(&file, 0).unwrap();
        let mut back = [1; 0x4000];
        memory.slice(0, 0x4000).unwrap().read(&mut back);
        assert_eq!(back, [0; 0x4000], "round {round}");
        memory.slice(0, 0x4000).unwrap().write(b"secret");
        other.slice(0, 0x4000).unwrap().read(&mut back);
        assert_eq!(back, [0; 0x4000], "round {round}");
    }
}

#[test]
fn many_threads_that_fault_at_once_all_go_on() {
    let file = memfd(0x10_0000);
    let memory = GuestMemory::map(&[(spec(0, 0x10_0000), file.try_clone().unwrap())]).unwrap();
    ftruncate(&file, 0).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let memory = &memory;
            scope.spawn(move || {
                for at in (0..0x10_0000).step_by(0x1000) {
                    let slice = memory.slice(at + 64 * thread, 64).unwrap();
                    assert_eq!(slice.read(&mut [0; 64]), 64);
                }
            });
        }
    });
    assert!(memory.poisoned());
}
