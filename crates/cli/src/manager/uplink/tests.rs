//! Interfaces played by files. A real one, and a weir that is killed: `cli/tests/killed.rs`.

use super::*;

const SETTINGS: [&str; 2] = [FLUSH_TIMEOUT, DEFER_HARD_IRQS];

fn packet() -> UplinkKind {
    let queues = 1.try_into().unwrap();
    UplinkKind::AfPacket { interface: "eth7".parse().unwrap(), queues }
}

fn sys() -> tempfile::TempDir {
    let sys = tempfile::tempdir().unwrap();
    fs::create_dir(sys.path().join("eth7")).unwrap();
    fs::write(sys.path().join("eth7").join(IFINDEX), "4\n").unwrap();
    write(sys.path(), [20_000, 0]);
    sys
}

/// A control socket beside the played interfaces.
fn control(sys: &Path) -> SocketPath {
    sys.join("run/control.sock").to_str().unwrap().parse().unwrap()
}

fn uplink(sys: &Path) -> UplinkInterface {
    UplinkInterface::in_sys(sys, &packet(), &control(sys))
}

/// How many files there are of what was found.
fn kept(sys: &Path) -> usize {
    fs::read_dir(sys.join("run")).map_or(0, Iterator::count)
}

fn write(sys: &Path, values: [u64; 2]) {
    for (name, value) in SETTINGS.into_iter().zip(values) {
        fs::write(sys.join("eth7").join(name), format!("{value}\n")).unwrap();
    }
}

fn read(sys: &Path) -> [u64; 2] {
    SETTINGS.map(|name| {
        let text = fs::read_to_string(sys.join("eth7").join(name)).unwrap();
        text.trim().parse().unwrap()
    })
}

#[test]
fn an_interface_gathers_and_is_left_as_it_was_found() {
    let sys = sys();
    let mut uplink = uplink(sys.path());
    uplink.set(300_000);
    assert_eq!(read(sys.path()), [300_000, EMPTY_POLLS]);
    uplink.set(200_000);
    assert_eq!(read(sys.path()), [200_000, EMPTY_POLLS]);
    uplink.set(0);
    assert_eq!((read(sys.path()), uplink.layer()), ([20_000, 0], &UplinkLayer::AsFound));
    uplink.set(100_000);
    drop(uplink);
    assert_eq!(read(sys.path()), [20_000, 0]);
}

#[test]
fn what_is_never_set_is_never_written() {
    let sys = sys();
    let mut uplink = uplink(sys.path());
    uplink.set(0);
    write(sys.path(), [5, 6]);
    drop(uplink);
    assert_eq!(read(sys.path()), [5, 6]);
}

#[test]
fn a_refusal_is_told_and_half_a_setting_is_undone() {
    let sys = sys();
    let mut uplink = uplink(sys.path());
    uplink.set(100_000);
    fs::remove_file(sys.path().join("eth7").join(SETTINGS[1])).unwrap();
    fs::create_dir(sys.path().join("eth7").join(SETTINGS[1])).unwrap();
    uplink.set(300_000);
    assert!(matches!(uplink.layer(), UplinkLayer::Refused { .. }), "{:?}", uplink.layer());
    assert!(!uplink.is_settable());
    let interval = fs::read_to_string(sys.path().join("eth7").join(SETTINGS[0])).unwrap();
    assert_eq!(interval, "20000");
}

#[test]
fn a_tap_has_no_interval() {
    let sys = sys();
    let kind =
        UplinkKind::Tap { interface: "weir0".parse().unwrap(), queues: 1.try_into().unwrap() };
    let mut uplink = UplinkInterface::in_sys(sys.path(), &kind, &control(sys.path()));
    uplink.set(100_000);
    assert_eq!((uplink.layer(), uplink.is_settable()), (&UplinkLayer::WorkerOnly, false));
}

#[test]
fn what_was_found_is_kept_while_it_is_changed() {
    let sys = sys();
    let mut uplink = uplink(sys.path());
    assert_eq!(kept(sys.path()), 0);
    uplink.set(300_000);
    assert_eq!(kept(sys.path()), 1);
    uplink.set(0);
    assert_eq!(kept(sys.path()), 0);
    uplink.set(300_000);
    drop(uplink);
    assert_eq!((kept(sys.path()), read(sys.path())), (0, [20_000, 0]));
}

/// As a process that is killed: nothing is restored, and the lock is the kernel's to give back.
fn kill(mut uplink: UplinkInterface) {
    uplink.found = None;
}

#[test]
fn the_next_weir_restores_what_one_that_was_killed_has_changed() {
    let sys = sys();
    let mut killed = uplink(sys.path());
    killed.set(300_000);
    restore_left_over_in(sys.path(), &control(sys.path()));
    assert_eq!(read(sys.path()), [300_000, EMPTY_POLLS], "it still runs");
    kill(killed);
    assert_eq!(read(sys.path()), [300_000, EMPTY_POLLS]);
    restore_left_over_in(sys.path(), &control(sys.path()));
    assert_eq!((kept(sys.path()), read(sys.path())), (0, [20_000, 0]));
    // What somebody sets from now on stays.
    write(sys.path(), [7, 8]);
    restore_left_over_in(sys.path(), &control(sys.path()));
    assert_eq!(read(sys.path()), [7, 8]);
}

#[test]
fn another_interface_of_the_same_name_is_left_alone() {
    let sys = sys();
    let mut killed = uplink(sys.path());
    killed.set(300_000);
    kill(killed);
    fs::write(sys.path().join("eth7").join(IFINDEX), "5\n").unwrap();
    write(sys.path(), [7, 8]);
    restore_left_over_in(sys.path(), &control(sys.path()));
    assert_eq!((kept(sys.path()), read(sys.path())), (0, [7, 8]));
}

#[test]
fn what_cannot_be_restored_stays_for_the_next_start_and_nothing_more_is_changed() {
    let sys = sys();
    let mut killed = uplink(sys.path());
    killed.set(300_000);
    kill(killed);
    let polls = sys.path().join("eth7").join(DEFER_HARD_IRQS);
    fs::remove_file(&polls).unwrap();
    fs::create_dir(&polls).unwrap();
    restore_left_over_in(sys.path(), &control(sys.path()));
    assert_eq!(kept(sys.path()), 1);
    fs::remove_dir(&polls).unwrap();
    write(sys.path(), [300_000, EMPTY_POLLS]);
    let mut next = uplink(sys.path());
    next.set(100_000);
    assert!(matches!(next.layer(), UplinkLayer::Refused { .. }), "{:?}", next.layer());
    drop(next);
    assert_eq!(read(sys.path()), [300_000, EMPTY_POLLS], "or what was found would be lost");
    restore_left_over_in(sys.path(), &control(sys.path()));
    assert_eq!((kept(sys.path()), read(sys.path())), (0, [20_000, 0]));
}

#[test]
fn nothing_is_changed_where_what_was_found_cannot_be_kept() {
    let sys = sys();
    fs::write(sys.path().join("run"), "no directory").unwrap();
    let mut uplink = uplink(sys.path());
    uplink.set(300_000);
    assert!(matches!(uplink.layer(), UplinkLayer::Refused { .. }), "{:?}", uplink.layer());
    assert_eq!(read(sys.path()), [20_000, 0]);
}
