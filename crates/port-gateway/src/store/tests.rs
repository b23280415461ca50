//! Saved leases are read again, in whatever state the file is.

use std::os::unix::fs::FileExt;

use super::*;

fn some_leases() -> Leases {
    let mut leases = Leases::default();
    for n in 1..=9_u8 {
        let client = Client {
            vif: format!("web{n}"),
            mac: Mac([0x52, 0x54, 0, 0, 0, n]),
            id: (n % 2 == 0).then(|| vec![n, 255, 0]),
        };
        let hold = if n == 9 { Hold::Declined } else { Hold::Bound };
        let lease = Lease { client, hold, until_secs: 1000 * u32::from(n) };
        leases.put(Ipv4Addr::new(192, 168, 77, n), lease, 0);
    }
    leases
}

fn store() -> (Store, File) {
    let file = tempfile::tempfile().unwrap();
    (Store::new(file.try_clone().unwrap()), file)
}

#[test]
fn what_is_saved_is_loaded_with_the_time_that_is_left() {
    let (mut store, file) = store();
    let leases = some_leases();
    store.save(&leases, 500).unwrap();
    // A machine that was started anew begins to count at 0.
    let loaded = Store::new(file).load(0, 100_000).unwrap();
    for ((address, before), (again, after)) in leases.iter().zip(loaded.iter()) {
        assert_eq!((address, &before.client, before.hold), (again, &after.client, after.hold));
        let left = before.until_secs - 500;
        assert!(after.until_secs.abs_diff(left) <= 2, "{left} {}", after.until_secs);
    }
    assert_eq!(loaded.iter().count(), 9);
}

#[test]
fn no_lease_is_longer_than_leases_are() {
    let (mut store, file) = store();
    store.save(&some_leases(), 0).unwrap();
    let loaded = Store::new(file).load(0, 600).unwrap();
    assert!(loaded.iter().all(|(_, lease)| lease.until_secs <= 600));
}

#[test]
fn an_offer_is_not_saved() {
    let (mut store, file) = store();
    let mut leases = some_leases();
    let client = Client { vif: "db0".into(), mac: Mac([2; 6]), id: None };
    let offer = Lease { client, hold: Hold::Offered, until_secs: 60 };
    leases.put(Ipv4Addr::new(192, 168, 77, 77), offer, 0);
    store.save(&leases, 0).unwrap();
    assert_eq!(Store::new(file).load(0, 600).unwrap().iter().count(), 9);
}

#[test]
fn a_save_that_is_cut_anywhere_leaves_what_was_saved_before() {
    let mut leases = some_leases();
    for cut in [0, 1, 8, 16, 31, 32, 33, 200, 700] {
        let (mut store, file) = store();
        store.save(&leases, 0).unwrap();
        let mut whole = Vec::new();
        (&file).seek(SeekFrom::Start(0)).unwrap();
        (&file).read_to_end(&mut whole).unwrap();
        leases.forget(Ipv4Addr::new(192, 168, 77, 1));
        store.save(&leases, 0).unwrap();
        // The second save is at the start of the file, and only so many bytes of it were written.
        let mut second = vec![0; cut];
        file.read_exact_at(&mut second, 0).unwrap();
        file.set_len(0).unwrap();
        file.write_all_at(&whole, 0).unwrap();
        file.write_all_at(&second, 0).unwrap();
        let loaded = Store::new(file).load(0, 600).unwrap();
        assert_eq!(loaded.iter().count(), 9, "cut at {cut}");
        leases = some_leases();
    }
}

#[test]
fn after_a_load_the_next_save_counts() {
    let (mut store, file) = store();
    let mut leases = some_leases();
    for _ in 0..3 {
        store.save(&leases, 0).unwrap();
    }
    let mut again = Store::new(file.try_clone().unwrap());
    again.load(0, 600).unwrap();
    leases.forget(Ipv4Addr::new(192, 168, 77, 1));
    again.save(&leases, 0).unwrap();
    assert_eq!(Store::new(file).load(0, 600).unwrap().iter().count(), 8);
}

#[test]
fn the_longest_leases_of_all_fit() {
    let (mut store, _) = store();
    let mut leases = Leases::default();
    for n in 0..LEASES_MAX as u32 {
        let client = Client {
            vif: "x".repeat(weir_limits::PORT_NAME_LEN_MAX),
            mac: Mac([255; 6]),
            id: Some(vec![255; 255]),
        };
        let lease = Lease { client, hold: Hold::Declined, until_secs: u32::MAX };
        leases.put(Ipv4Addr::from_bits(0xdfff_ff00 - n), lease, 0);
    }
    store.save(&leases, 0).unwrap();
}

#[test]
fn a_file_of_anything_else_is_no_leases() {
    let (mut store, file) = store();
    file.write_all_at(&[0x5a; 4096], 0).unwrap();
    assert_eq!(store.load(0, 600).unwrap(), Leases::default());
}

#[test]
fn each_note_is_loaded_and_all_leases_are_written_again_only_once_notes_are_full() {
    let (mut store, file) = store();
    let (mut leases, mut places) = (some_leases(), 0);
    let mut number = 0;
    for n in 0..2_000_u32 {
        let address = Ipv4Addr::new(192, 168, 77, 1 + (n % 9) as u8);
        let mut lease = leases.get(address).unwrap().clone();
        // It is given back now and then.
        lease.until_secs = if n % 7 == 0 { 0 } else { 10_000 + n };
        lease.client.id = Some(vec![n as u8; 40]);
        leases.put(address, lease, 500);
        store.note(&leases, &[address].into(), 500).unwrap();
        places += u32::from(std::mem::replace(&mut number, store.number) != store.number);
        if n % 97 == 0 {
            let loaded = Store::new(file.try_clone().unwrap()).load(500, 100_000).unwrap();
            for ((address, before), (again, after)) in leases.iter().zip(loaded.iter()) {
                assert_eq!((address, &before.client), (again, &after.client), "after {n} notes");
                assert_eq!(before.holds(500), after.holds(500), "after {n} notes");
            }
            assert_eq!(loaded.iter().count(), 9);
        }
    }
    assert!((2..=2_000 * 300 / LEASES_NOTED_BYTES_MAX as u32 + 1).contains(&places), "{places}");
    assert!(file.metadata().unwrap().len() <= NOTES_AT + LEASES_NOTED_BYTES_MAX as u64);
}

#[test]
fn a_note_that_was_cut_off_or_is_about_another_place_counts_for_nothing() {
    let (mut store, file) = store();
    let mut leases = some_leases();
    let address = Ipv4Addr::new(192, 168, 77, 1);
    let end = |leases: &mut Leases| {
        leases.end(address, 500);
        [address].into()
    };
    store.save(&leases, 500).unwrap();
    let changed = end(&mut leases);
    store.note(&leases, &changed, 500).unwrap();
    let held = || {
        let loaded = Store::new(file.try_clone().unwrap()).load(500, 100_000).unwrap();
        loaded.get(address).unwrap().holds(500)
    };
    assert!(!held());
    let len = file.metadata().unwrap().len();
    let note = (len - NOTES_AT) as usize;
    let mut bytes = vec![0; note];
    file.read_exact_at(&mut bytes, NOTES_AT).unwrap();
    for cut in 0..note {
        file.set_len(NOTES_AT + cut as u64).unwrap();
        assert!(held(), "cut at {cut}");
        file.write_all_at(&bytes, NOTES_AT).unwrap();
    }
    assert!(!held());
    store.save(&some_leases(), 500).unwrap();
    assert!(held());
}

#[test]
fn after_a_failure_all_leases_are_written() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut store = Store::new(file.reopen().unwrap());
    let leases = some_leases();
    store.save(&leases, 500).unwrap();
    // Open for reading alone, it cannot be written.
    let written = std::mem::replace(&mut store.file, File::open(file.path()).unwrap());
    let mut less = some_leases();
    less.forget(Ipv4Addr::new(192, 168, 77, 2));
    store.note(&less, &[].into(), 500).unwrap_err();
    store.file = written;
    store.note(&less, &[].into(), 500).unwrap();
    assert_eq!(Store::new(file.reopen().unwrap()).load(500, 9_000).unwrap().iter().count(), 8);
}
