//! Interfaces simulated by files, with simulated cards. `cli/tests/kept/uplink.rs` tests a real interface and a killed
//! weir, and the system test of an e1000e tests a driver that has `rx-usecs`.

use std::path::Path;
use std::sync::{Arc, Mutex};

use super::*;

const SETTINGS: [&str; 2] = [FLUSH_TIMEOUT, DEFER_HARD_IRQS];

fn sys() -> tempfile::TempDir {
    let sys = tempfile::tempdir().unwrap();
    fs::create_dir(sys.path().join("eth7")).unwrap();
    fs::write(sys.path().join("eth7").join(IFINDEX), "4\n").unwrap();
    write(sys.path(), [20_000, 0]);
    sys
}

/// A control socket beside the simulated interfaces.
fn control(sys: &Path) -> SocketPath {
    sys.join("run/control.sock").to_str().unwrap().parse().unwrap()
}

/// A simulated network card.
#[derive(Debug, Clone, Default)]
struct Card(Arc<Mutex<Played>>);

/// The card's state. By default there is no card.
#[derive(Debug, Default)]
struct Played {
    now: Option<Coalescing>,
    /// An interval is rounded up to a multiple of this (us).
    step: u32,
    /// The result of each attempt to change a setting, if it fails.
    refuses: Option<Errno>,
    asked: Vec<u32>,
    /// NAPI instances that somebody has set by themselves.
    napis: Vec<Napi>,
    restored: Vec<Napi>,
}

impl Card {
    fn new(rx_usecs: u32) -> Self {
        let now = Some(Coalescing { rx_usecs, adaptive: false });
        Self(Arc::new(Mutex::new(Played { now, step: 1, ..Played::default() })))
    }

    fn play<T>(&self, play: impl FnOnce(&mut Played) -> T) -> T {
        play(&mut self.0.lock().unwrap())
    }

    fn usecs(&self) -> u32 {
        self.play(|card| card.now.unwrap().rx_usecs)
    }
}

impl Nic for Card {
    fn coalescing(&self, interface: &InterfaceName) -> io::Result<Option<Coalescing>> {
        assert_eq!(interface.as_str(), "eth7");
        self.play(|card| card.now.map(Some).ok_or(Errno::OPNOTSUPP.into()))
    }

    fn set_rx_usecs(&self, _: &InterfaceName, usecs: u32) -> io::Result<()> {
        self.play(|card| {
            card.asked.push(usecs);
            let now = card.now.as_mut().unwrap();
            match card.refuses {
                Some(errno) => Err(errno.into()),
                None => {
                    now.rx_usecs = usecs.next_multiple_of(card.step);
                    Ok(())
                }
            }
        })
    }

    fn napis_set_alone(&self, ifindex: u32, _: u64, _: u64) -> Vec<Napi> {
        assert_eq!(ifindex, 4);
        self.play(|card| card.napis.clone())
    }

    fn restore_napis(&self, all: &[Napi]) -> io::Result<()> {
        self.play(|card| card.restored = all.to_vec());
        Ok(())
    }
}

/// The host with the interfaces that `sys` and `card` simulate.
fn host(sys: &Path, card: &Card) -> Host {
    Host { sys: sys.to_owned(), proc: sys.join("proc"), nic: Box::new(card.clone()) }
}

fn uplink(sys: &Path) -> UplinkInterface {
    with_card(sys, &Card::default())
}

fn with_card(sys: &Path, card: &Card) -> UplinkInterface {
    let eth7 = "eth7".parse().unwrap();
    UplinkInterface::on(host(sys, card), UplinkKind::AfPacket, eth7, &control(sys))
}

fn restore_left_over_in(sys: &Path) {
    restore_left_over_on(&host(sys, &Card::default()), &control(sys));
}

/// The layer in `weir explain` while the card gathers.
fn by_card(uplink_us: u64, found_usecs: u32) -> UplinkLayer {
    let uplink_ns = uplink_us * NS_PER_US;
    UplinkLayer::Gathers { uplink_ns, by: Gatherer::RxUsecs { found_usecs } }
}

/// The reason why the NAPI timer gathers in place of the card.
fn why_by_timer(uplink: &UplinkInterface) -> String {
    match uplink.layer() {
        UplinkLayer::Gathers { by: Gatherer::NapiTimer { why }, .. } => why.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_napi_instance_that_was_set_by_itself_is_set_again() {
    let sys = sys();
    let napi = Napi { id: 513, napi_defer_hard_irqs: 1, gro_flush_timeout: 9 };
    for killed in [false, true] {
        let card = Card::default();
        card.play(|card| card.napis = vec![napi]);
        let mut uplink = with_card(sys.path(), &card);
        uplink.set(100_000);
        // A later reading would find what weir has set.
        card.play(|card| card.napis.clear());
        uplink.set(200_000);
        match killed {
            false => uplink.set(0),
            true => {
                // Nothing is restored, as after a SIGKILL; the file's lock ends with its process.
                drop(uplink.found.take());
                restore_left_over_on(&host(sys.path(), &card), &control(sys.path()));
            }
        }
        assert_eq!(card.play(|card| card.restored.clone()), [napi], "killed: {killed}");
        assert_eq!(kept(sys.path()), 0);
    }
}

/// The number of files with original settings.
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
    let (kind, name) = (UplinkKind::Tap, "weir0".parse().unwrap());
    let card = Card::new(50);
    let mut uplink = UplinkInterface::on(host(sys.path(), &card), kind, name, &control(sys.path()));
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

/// Drops an uplink like a killed process: nothing is restored, and the kernel releases the lock.
fn kill(mut uplink: UplinkInterface) {
    (uplink.found, uplink.interrupts.found) = (None, None);
}

#[test]
fn the_next_weir_restores_what_one_that_was_killed_has_changed() {
    let sys = sys();
    let mut killed = uplink(sys.path());
    killed.set(300_000);
    restore_left_over_in(sys.path());
    assert_eq!(read(sys.path()), [300_000, EMPTY_POLLS], "it still runs");
    kill(killed);
    assert_eq!(read(sys.path()), [300_000, EMPTY_POLLS]);
    restore_left_over_in(sys.path());
    assert_eq!((kept(sys.path()), read(sys.path())), (0, [20_000, 0]));
    // Settings made by others from now on stay.
    write(sys.path(), [7, 8]);
    restore_left_over_in(sys.path());
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
    restore_left_over_in(sys.path());
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
    restore_left_over_in(sys.path());
    assert_eq!(kept(sys.path()), 1);
    fs::remove_dir(&polls).unwrap();
    write(sys.path(), [300_000, EMPTY_POLLS]);
    let mut next = uplink(sys.path());
    next.set(100_000);
    assert!(matches!(next.layer(), UplinkLayer::Refused { .. }), "{:?}", next.layer());
    drop(next);
    assert_eq!(read(sys.path()), [300_000, EMPTY_POLLS], "or what was found would be lost");
    restore_left_over_in(sys.path());
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

#[test]
fn a_card_gathers_by_its_rx_usecs_and_is_left_as_it_was_found() {
    let (sys, card) = (sys(), Card::new(50));
    let mut uplink = with_card(sys.path(), &card);
    assert_eq!(uplink.found_ns(), 50_000);
    uplink.set(300_999);
    assert_eq!((card.usecs(), uplink.layer()), (300, &by_card(300, 50)));
    assert_eq!((kept(sys.path()), read(sys.path())), (1, [20_000, 0]), "its timer is left alone");
    uplink.set(200_000);
    assert_eq!((card.usecs(), uplink.found_ns()), (200, 50_000));
    uplink.set(0);
    assert_eq!((card.usecs(), uplink.layer()), (50, &UplinkLayer::AsFound));
    assert_eq!(kept(sys.path()), 0);
    uplink.set(100_000);
    assert_eq!(card.usecs(), 100);
    drop(uplink);
    assert_eq!((card.usecs(), kept(sys.path())), (50, 0));
}

#[test]
fn a_card_never_gathers_for_longer_than_it_was_asked_to() {
    let steps =
        [(7, 300, 294), (64, 300, 256), (128, 300, 256), (100, 300, 300), (100, 4_999, 4_800)];
    for (step, asked_us, becomes) in steps {
        let (sys, card) = (sys(), Card::new(0));
        card.play(|card| card.step = step);
        let mut uplink = with_card(sys.path(), &card);
        uplink.set(asked_us * NS_PER_US);
        assert_eq!(uplink.layer(), &by_card(becomes, 0), "steps of {step} us");
        assert_eq!(u64::from(card.usecs()), becomes);
    }
}

#[test]
fn a_card_that_cannot_gather_for_so_little_leaves_it_to_the_timer() {
    let (sys, card) = (sys(), Card::new(0));
    card.play(|card| card.step = 512);
    let mut uplink = with_card(sys.path(), &card);
    uplink.set(300_000);
    assert_eq!((card.usecs(), uplink.layer()), (0, &UplinkLayer::AsFound));
    uplink.set(300_000);
    assert_eq!(read(sys.path()), [300_000, EMPTY_POLLS]);
    assert!(why_by_timer(&uplink).contains("became 512 us"), "{}", why_by_timer(&uplink));
    assert_eq!(card.play(|card| card.asked.clone()), [300, 88, 0], "the last is what was found");
    drop(uplink);
    assert_eq!((card.usecs(), read(sys.path()), kept(sys.path())), (0, [20_000, 0], 0));
}

#[test]
fn drivers_make_something_else_of_a_few_microseconds_so_these_are_not_asked_for() {
    let (sys, card) = (sys(), Card::new(50));
    let mut uplink = with_card(sys.path(), &card);
    uplink.set(300_000);
    uplink.set(9_999);
    assert_eq!((card.usecs(), uplink.layer()), (50, &UplinkLayer::AsFound));
    uplink.set(10_000);
    assert_eq!(uplink.layer(), &by_card(10, 50));
}

#[test]
fn where_a_driver_refuses_the_timer_gathers_after_the_next_look() {
    for errno in [Errno::OPNOTSUPP, Errno::INVAL, Errno::PERM] {
        let (sys, card) = (sys(), Card::new(50));
        card.play(|card| card.refuses = Some(errno));
        let mut uplink = with_card(sys.path(), &card);
        uplink.set(300_000);
        // The share was decided from the card's gathering time, and the timer adds to that.
        assert_eq!((read(sys.path()), uplink.layer()), ([20_000, 0], &UplinkLayer::AsFound));
        assert_eq!((uplink.found_ns(), kept(sys.path())), (0, 0));
        uplink.set(300_000);
        assert_eq!(read(sys.path()), [300_000, EMPTY_POLLS]);
        let why = io::Error::from(errno).to_string();
        assert_eq!(why_by_timer(&uplink), format!("rx-usecs: {why}"));
        drop(uplink);
        assert_eq!((card.usecs(), read(sys.path()), kept(sys.path())), (50, [20_000, 0], 0));
        assert_eq!(card.play(|card| card.asked.clone()), [300], "and is asked once");
    }
}

#[test]
fn a_card_that_is_not_weirs_to_set_is_left_alone_and_the_timer_gathers() {
    let timers = [("adaptive-rx", true, [20_000, 0]), (DEFER_HARD_IRQS, false, [20_000, 1])];
    for (why, adaptive, timer) in timers {
        let (sys, card) = (sys(), Card::new(50));
        card.play(|card| card.now.as_mut().unwrap().adaptive = adaptive);
        write(sys.path(), timer);
        let mut uplink = with_card(sys.path(), &card);
        assert_eq!(uplink.found_ns(), 0);
        uplink.set(300_000);
        assert_eq!((read(sys.path()), card.usecs()), ([300_000, EMPTY_POLLS], 50));
        assert!(why_by_timer(&uplink).contains(why), "{}", why_by_timer(&uplink));
        drop(uplink);
        assert_eq!(read(sys.path()), timer);
        assert!(card.play(|card| card.asked.is_empty()));
    }
}

#[test]
fn what_somebody_has_changed_meanwhile_is_what_is_restored() {
    let (sys, card) = (sys(), Card::new(250));
    let mut uplink = with_card(sys.path(), &card);
    card.play(|card| card.now.as_mut().unwrap().rx_usecs = 20);
    uplink.set(300_000);
    // The shares count 250 us as the card's own time, which is 20 now.
    assert_eq!((card.usecs(), uplink.layer()), (20, &UplinkLayer::AsFound));
    assert_eq!(uplink.found_ns(), 20_000);
    uplink.set(100_000);
    assert_eq!(uplink.layer(), &by_card(100, 20));
    uplink.set(0);
    assert_eq!(card.usecs(), 20);
    card.play(|card| card.now.as_mut().unwrap().adaptive = true);
    uplink.set(100_000);
    uplink.set(100_000);
    assert_eq!((card.usecs(), read(sys.path())), (20, [100_000, EMPTY_POLLS]));
}

#[test]
fn the_next_weir_restores_the_card_of_one_that_was_killed() {
    let (sys, card) = (sys(), Card::new(50));
    let mut killed = with_card(sys.path(), &card);
    killed.set(300_000);
    kill(killed);
    assert_eq!((card.usecs(), kept(sys.path())), (300, 1));
    restore_left_over_on(&host(sys.path(), &card), &control(sys.path()));
    assert_eq!((card.usecs(), kept(sys.path()), read(sys.path())), (50, 0, [20_000, 0]));
}

#[test]
fn a_card_that_cannot_be_restored_stays_for_the_next_start() {
    let (sys, card) = (sys(), Card::new(50));
    let mut uplink = with_card(sys.path(), &card);
    uplink.set(300_000);
    card.play(|card| card.refuses = Some(Errno::IO));
    drop(uplink);
    assert_eq!((card.usecs(), kept(sys.path())), (300, 1));
    card.play(|card| card.refuses = None);
    restore_left_over_on(&host(sys.path(), &card), &control(sys.path()));
    assert_eq!((card.usecs(), kept(sys.path())), (50, 0));
}

const IRQS: [(u32, &str); 4] =
    [(40, "eth7-TxRx-0"), (41, "eth7-TxRx-1"), (42, "eth7-tx-1"), (43, "eth7")];

fn irq(sys: &Path, number: u32) -> PathBuf {
    sys.join("proc/irq").join(number.to_string())
}

/// An interface whose card has an interrupt for each of two queues, and two more. All may come to any processor.
fn sys_with_interrupts() -> tempfile::TempDir {
    let sys = sys();
    let numbers = sys.path().join("eth7/device/msi_irqs");
    fs::create_dir_all(&numbers).unwrap();
    for (number, name) in IRQS {
        fs::write(numbers.join(number.to_string()), "msix\n").unwrap();
        let dir = irq(sys.path(), number);
        fs::create_dir_all(dir.join(name)).unwrap();
        fs::write(dir.join("affinity_hint"), "0\n").unwrap();
        fs::write(dir.join("smp_affinity_list"), "0-3\n").unwrap();
    }
    fs::write(sys.path().join("proc/irq/default_smp_affinity"), "f\n").unwrap();
    sys
}

/// The processors of all interrupts.
fn places(sys: &Path) -> [String; 4] {
    IRQS.map(|(number, _)| {
        let text = fs::read_to_string(irq(sys, number).join("smp_affinity_list")).unwrap();
        text.trim().to_owned()
    })
}

const AS_FOUND: [&str; 4] = ["0-3"; 4];

fn follow(uplink: &mut UplinkInterface, cpus: &[(u16, u16)]) -> InterruptPlaces {
    uplink.follow(&cpus.iter().copied().collect());
    uplink.interrupts().clone()
}

fn left_alone(places: InterruptPlaces) -> String {
    match places {
        InterruptPlaces::LeftAlone { reason } => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn interrupts_follow_their_workers_and_are_left_as_they_were_found() {
    let sys = sys_with_interrupts();
    let mut uplink = uplink(sys.path());
    // There is no third queue.
    let places_now = follow(&mut uplink, &[(0, 2), (1, 3), (2, 0)]);
    let queues = [(0, 2), (1, 3)].map(|(queue, cpu)| InterruptPlace { queue, cpu }).into();
    assert_eq!(places_now, InterruptPlaces::Follow { queues });
    assert_eq!(places(sys.path()), ["2", "3", "0-3", "0-3"]);
    follow(&mut uplink, &[(0, 1), (1, 3)]);
    assert_eq!(
        (places(sys.path()), kept(sys.path())),
        (["1", "3", "0-3", "0-3"].map(Into::into), 1)
    );
    follow(&mut uplink, &[(1, 2)]);
    assert_eq!(places(sys.path()), ["0-3", "2", "0-3", "0-3"]);
    assert_eq!(follow(&mut uplink, &[]), InterruptPlaces::AsFound);
    assert_eq!((places(sys.path()), kept(sys.path())), (AS_FOUND.map(Into::into), 0));
    // A queue comes later.
    follow(&mut uplink, &[(1, 2)]);
    follow(&mut uplink, &[(0, 1), (1, 2)]);
    assert_eq!(places(sys.path()), ["1", "2", "0-3", "0-3"]);
    drop(uplink);
    assert_eq!((places(sys.path()), kept(sys.path())), (AS_FOUND.map(Into::into), 0));
}

#[test]
fn the_next_weir_gives_back_interrupts_that_one_that_was_killed_has_moved() {
    let sys = sys_with_interrupts();
    let mut killed = uplink(sys.path());
    killed.set(300_000);
    follow(&mut killed, &[(0, 2), (1, 3)]);
    assert_eq!(kept(sys.path()), 2, "one is for the interval");
    kill(killed);
    // The second interrupt's number has become another's.
    fs::rename(irq(sys.path(), 41).join("eth7-TxRx-1"), irq(sys.path(), 41).join("nvme0q1"))
        .unwrap();
    restore_left_over_in(sys.path());
    assert_eq!(places(sys.path()), ["0-3", "3", "0-3", "0-3"]);
    assert_eq!((kept(sys.path()), read(sys.path())), (0, [20_000, 0]));
}

#[test]
fn interrupts_that_others_rule_are_left_alone() {
    let sys = sys_with_interrupts();
    fs::write(irq(sys.path(), 41).join("smp_affinity_list"), "2\n").unwrap();
    let ruled = |wanted: &[(u16, u16)]| left_alone(follow(&mut uplink(sys.path()), wanted));
    let reason = ruled(&[(0, 1), (1, 3)]);
    assert_eq!(reason, "the host has eth7-TxRx-1 on processors 2");
    assert_eq!((places(sys.path())[0].as_str(), kept(sys.path())), ("0-3", 0));

    // The driver's own proposal is not a setting of an administrator.
    fs::write(irq(sys.path(), 41).join("affinity_hint"), "00000000,00000004\n").unwrap();
    let mut moved = uplink(sys.path());
    follow(&mut moved, &[(0, 1), (1, 3)]);
    assert_eq!(places(sys.path()), ["1", "3", "0-3", "0-3"]);
    drop(moved);
    assert_eq!(places(sys.path()), ["0-3", "2", "0-3", "0-3"]);

    let balancer = sys.path().join("proc/77");
    fs::create_dir(&balancer).unwrap();
    fs::write(balancer.join("comm"), "irqbalance\n").unwrap();
    assert_eq!(ruled(&[(0, 1)]), "irqbalance moves them");
    fs::remove_dir_all(&balancer).unwrap();
    assert_eq!(ruled(&[(5, 1)]), "no queue has an interrupt of its own");
    assert_eq!((places(sys.path())[0].as_str(), kept(sys.path())), ("0-3", 0));
}
