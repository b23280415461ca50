//! A weir with a keeper that is killed repeatedly while guests exchange frames: no front end reconnects, each chain
//! comes back once, and frames continue (`docs/design/restarts.md#0033`). Without a keeper front ends reconnect, and
//! the number of frames that are delivered again stays within its limit. `WEIR_KILLS=300` kills weir more often.

mod settings;
mod uplink;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept, bind, listen, socket_with,
};
use rustix::process::{Pid, Signal, kill_process};
use weir_limits::{BURST_MAX, KEPT_STATE_BYTES_MAX};
use weir_testing::{Running, SetAtEnd, eventually};
use weir_vhost_user::FrontEnd;
use weir_vif::{Features, Health, Options, QueuePair, SendError, Vif, WaitFor};
use weir_wire::{Mac, Offload};

const KILLS: usize = 5;
/// Frames to the fast guest that may be in flight.
const FAST_WINDOW: u64 = 100;
const SLOW_PAUSE: Duration = Duration::from_micros(400);
const SENDER: Mac = Mac([0x52, 0x54, 0, 0, 0, 1]);
/// The slow guest's buffers run out all the time, so frames for it wait.
const SLOW: Mac = Mac([0x52, 0x54, 0, 0, 0, 2]);
const FAST: Mac = Mac([0x52, 0x54, 0, 0, 0, 3]);

fn quiet(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// weir and its keeper, with an interface for each guest.
struct Weir {
    dir: PathBuf,
    keeper: Running,
    process: Running,
    /// The number of the process that has replaced the first weir.
    later: Option<u32>,
}

impl Drop for Weir {
    fn drop(&mut self) {
        if let Some(process) = self.later {
            kill_process(pid(process), Signal::KILL).ok();
        }
    }
}

fn pid(process: u32) -> Pid {
    Pid::from_raw(process.try_into().unwrap()).unwrap()
}

impl Weir {
    fn start(dir: &Path) -> Self {
        Self::configure(dir, &format!("keeper = {:?}\n", dir.join("keeper.sock")));
        let keeper = Self::keeper(dir);
        Self { keeper, process: Self::run(dir), later: None, dir: dir.into() }
    }

    /// Writes the file, with further keys of the switch, and puts the program beside it.
    fn configure(dir: &Path, keys: &str) {
        let vif = |(name, mac): (&str, Mac)| {
            let socket = dir.join(format!("{name}.sock"));
            format!("[vif.{name}]\nsocket = {socket:?}\nmac = \"{mac}\"\nqueues = 2\n")
        };
        let vifs: String = [("sender", SENDER), ("slow", SLOW), ("fast", FAST)].map(vif).concat();
        let control = dir.join("control.sock");
        let switch = format!("[switch]\ncontrol = {control:?}\n{keys}workers = 2\n");
        fs::write(dir.join("weir.toml"), format!("{switch}{vifs}")).unwrap();
        Self::install(dir, |file| symlink(env!("CARGO_BIN_EXE_weir"), file).unwrap());
    }

    fn keeper(dir: &Path) -> Running {
        let socket = dir.join("keeper.sock");
        let mut command = quiet(env!("CARGO_BIN_EXE_weir-keeper"));
        let keeper = Running(command.arg(&socket).spawn().unwrap());
        eventually("the keeper listens", || weir_keeper::connect(&socket).ok());
        keeper
    }

    /// Runs weir from its own file in `dir`, which a test replaces.
    fn run(dir: &Path) -> Running {
        let log = fs::File::options().append(true).create(true).open(dir.join("log")).unwrap();
        let mut command = quiet(dir.join("weir"));
        command.arg("run").arg(dir.join("weir.toml")).stderr(log);
        Running(command.spawn().unwrap())
    }

    /// Replaces the program that is run and that the next upgrade starts.
    fn install(dir: &Path, program: impl FnOnce(&Path)) {
        let new = dir.join("weir.new");
        program(&new);
        fs::rename(new, dir.join("weir")).unwrap();
    }

    /// Runs `weir upgrade`; returns its output.
    fn upgrade(&mut self) -> Result<String, String> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.arg("--control").arg(self.dir.join("control.sock")).arg("upgrade");
        let output = command.output().unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        if let Some((_, rest)) = said.split_once("process ") {
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            match self.later.replace(digits.parse().unwrap()) {
                None => assert!(self.process.0.wait().unwrap().success(), "{}", self.log()),
                Some(before) => eventually("the one before ends", || {
                    rustix::process::test_kill_process(pid(before)).is_err().then_some(())
                }),
            }
        }
        if output.status.success() { Ok(said) } else { Err(said) }
    }

    /// Kills weir with SIGKILL, and starts the next one.
    fn kill(&mut self) {
        self.process.kill();
        self.process = Self::run(&self.dir);
    }

    /// Ends weir with SIGUSR2, and starts the next one.
    fn restart(&mut self) {
        let refused = |log: String| log.matches("not left to the next weir").count();
        let mut before = refused(self.log());
        self.signal(Signal::USR2);
        let ended = eventually("weir ends", || {
            // If a thread had no CPU for a second, weir refuses to leave, and continues until it is
            // asked again.
            if refused(self.log()) > before {
                before += 1;
                self.signal(Signal::USR2);
            }
            self.process.0.try_wait().unwrap()
        });
        assert!(ended.success(), "{}", self.log());
        self.process = Self::run(&self.dir);
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.process.0);
        kill_process(pid, signal).unwrap();
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.sock"))
    }

    fn log(&self) -> String {
        let mut log = String::new();
        fs::File::open(self.dir.join("log")).unwrap().read_to_string(&mut log).unwrap();
        log
    }
}

fn frame(to: Mac, number: u64) -> Vec<u8> {
    [&to.0[..], &SENDER.0, &[0x88, 0xb5], &number.to_be_bytes(), &[0; 40]].concat()
}

/// The frames that a guest received: the count of each frame, and the time without any.
#[derive(Default)]
struct Received {
    frames: AtomicU64,
    times: Mutex<HashMap<u64, u32>>,
}

impl Received {
    fn receive(&self, pair: &mut QueuePair, mac: Mac, stop: &AtomicBool, pause: Duration) {
        let mut frame = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            while pair.recv_into(&mut frame).is_some() {
                if frame[..6] != mac.0 || frame[12..14] != [0x88, 0xb5] {
                    continue;
                }
                let number = u64::from_be_bytes(frame[14..22].try_into().unwrap());
                *self.times.lock().unwrap().entry(number).or_default() += 1;
                self.frames.fetch_add(1, Ordering::Relaxed);
                if !pause.is_zero() {
                    std::thread::sleep(pause);
                }
            }
            pair.wait(WaitFor::Receive, Duration::from_millis(2)).unwrap();
        }
    }

    fn count(&self) -> u64 {
        self.frames.load(Ordering::Relaxed)
    }

    fn distinct(&self) -> u64 {
        self.times.lock().unwrap().len() as u64
    }

    fn repeated(&self) -> u64 {
        self.times.lock().unwrap().values().map(|times| u64::from(*times) - 1).sum()
    }

    /// Waits for a frame; returns the time.
    fn next(&self) -> Duration {
        let (before, start) = (self.count(), Instant::now());
        eventually("a frame comes", || (self.count() > before).then_some(()));
        start.elapsed()
    }
}

/// Sends to both guests in turn, and then pauses.
fn send_some(pair: &mut QueuePair, number: &mut u64) {
    for _ in 0..24 {
        let to = if number.is_multiple_of(2) { FAST } else { SLOW };
        match pair.send(&frame(to, *number), &Offload::NONE) {
            Ok(()) => *number += 1,
            Err(SendError::Full) => {
                pair.wait(WaitFor::Transmit, Duration::from_millis(2)).unwrap();
            }
            Err(error) => panic!("{error}"),
        }
    }
    pair.flush();
    // The pause leaves the sender some frames that do not wait for the slow guest.
    std::thread::sleep(Duration::from_micros(300));
}

/// Sends to both guests in turn until it is stopped; returns the number of frames. At most `window` frames are on their
/// way to the fast guest.
fn send(pair: &mut QueuePair, to_fast: &Received, window: u64, stop: &AtomicBool) -> u64 {
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        // Frames that were delivered again have used up the window.
        if number / 2 > to_fast.distinct().saturating_add(window) {
            std::thread::sleep(Duration::from_micros(100));
            continue;
        }
        send_some(pair, &mut number);
    }
    number
}

/// Guests whose weir was killed, and their frames.
struct Survivors {
    vifs: [Vif; 3],
    sent: u64,
    /// Frames that came again.
    repeated: u64,
    /// Frames that the fast guest did not get.
    missing: u64,
}

/// Runs traffic under the weir of `dir`, which `kill` kills `kills` times, with guests whose rings have this format.
fn traffic(
    dir: &Path,
    format: Features,
    window: u64,
    kills: usize,
    mut kill: impl FnMut(&mut [Vif; 3], usize),
) -> Survivors {
    let connect = |name: &str, mac, queue_size| {
        let plain = Options::new(mac);
        let features = plain.features | format;
        let options = Options { queue_size, features, required: plain.required | format, ..plain };
        let socket = dir.join(format!("{name}.sock"));
        eventually("weir serves", || Vif::connect(&socket, &options).ok())
    };
    let mut vifs =
        [connect("slow", SLOW, 16), connect("fast", FAST, 256), connect("sender", SENDER, 256)];
    let [mut slow, mut fast, mut sender] = vifs.each_mut().map(|vif| vif.queue_pairs().remove(0));
    let (to_slow, to_fast) = (Received::default(), Received::default());
    let (stop_sending, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut gaps = Vec::new();

    let sent = std::thread::scope(|scope| {
        let (stops, stops_sending) = (SetAtEnd(&stop), SetAtEnd(&stop_sending));
        scope.spawn(|| to_slow.receive(&mut slow, SLOW, &stop, SLOW_PAUSE));
        scope.spawn(|| to_fast.receive(&mut fast, FAST, &stop, Duration::ZERO));
        let sending = scope.spawn(|| {
            let sent = send(&mut sender, &to_fast, window, &stop_sending);
            eventually("all that was sent comes back", || {
                sender.flush();
                (sender.in_flight() == 0).then_some(())
            });
            sent
        });
        let flows = || {
            let before = [&to_slow, &to_fast].map(Received::count);
            eventually("frames flow", || {
                let now = [&to_slow, &to_fast].map(Received::count);
                (now[0] > before[0] + 20 && now[1] > before[1] + 100).then_some(())
            });
        };
        flows();
        for nth in 0..kills {
            // The kill comes at a different moment each time.
            std::thread::sleep(Duration::from_micros(7_919 * nth as u64 % 10_007));
            kill(&mut vifs, nth);
            gaps.push(to_fast.next());
            flows();
        }
        drop(stops_sending);
        let sent = sending.join();
        // Without a window frames are lost. On a busy machine, the receiver may be late by more than a pause.
        let end = Instant::now() + Duration::from_secs(if window == u64::MAX { 0 } else { 60 });
        let arrived = |sent: &u64| to_fast.distinct() == sent.div_ceil(2);
        while !sent.as_ref().is_ok_and(arrived) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(50));
        drop(stops);
        sent.unwrap()
    });

    let errors = [&slow, &fast, &sender].map(|pair| pair.stats().device_errors);
    assert_eq!(errors, [0; 3], "{format:?}: chains came back that were not in flight");
    let repeated = to_slow.repeated() + to_fast.repeated();
    let missing = sent.div_ceil(2) - to_fast.distinct();
    gaps.sort();
    let (median, longest) = (gaps.get(kills / 2), gaps.last());
    println!(
        "{format:?}: {kills} kills, {sent} frames, {repeated} repeated, {missing} missing, gap {median:?}, at most {longest:?}"
    );
    assert!(repeated <= (kills * BURST_MAX) as u64, "{repeated} frames came again");
    Survivors { vifs, sent, repeated, missing }
}

/// Runs traffic under a weir with a keeper. Returns the number of frames that came again.
fn survive(format: Features, kills: usize, kill: impl Fn(&mut Weir, usize)) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    let mut weir = Weir::start(dir.path());
    // The fast guest has buffers for all frames in flight to it, so that none is dropped for lack of them.
    let Survivors { vifs, sent, repeated, missing } =
        traffic(dir.path(), format, FAST_WINDOW, kills, |_, nth| kill(&mut weir, nth));
    for vif in &vifs {
        assert_eq!(vif.health().unwrap(), Health::Connected, "{format:?}: {}", weir.log());
    }
    let connected = weir.log().matches("front end connected").count();
    assert_eq!(connected, 3, "{format:?}: a front end has connected again: {}", weir.log());
    // Frames of the slow guest may have waited for too long and been dropped.
    let dropped = || {
        let mut stats = Command::new(env!("CARGO_BIN_EXE_weir"));
        let control = dir.path().join("control.sock");
        let output = stats.arg("--control").arg(control).args(["stats", "--json"]).output();
        String::from_utf8_lossy(&output.unwrap().stdout).into_owned()
    };
    assert_eq!(missing, 0, "{format:?}: of {sent} frames: {} {}", weir.log(), dropped());
    repeated
}

/// Runs traffic under a weir without a keeper, whose guests connect again (`docs/design/restarts.md#0028`).
fn survive_without_keeper(format: Features) {
    let dir = tempfile::tempdir().unwrap();
    Weir::configure(dir.path(), "");
    let mut weir = Weir::run(dir.path());
    // Each kill loses the frames in flight to the fast guest, so the traffic has no window.
    traffic(dir.path(), format, u64::MAX, kills(), |vifs, _| {
        weir.kill();
        weir = Weir::run(dir.path());
        // The receivers reconnect first.
        for (vif, name) in vifs.iter_mut().zip(["slow", "fast", "sender"]) {
            eventually("it connects again", || {
                let socket = dir.path().join(format!("{name}.sock"));
                vif.reconnect(UnixStream::connect(socket).ok()?).ok()
            });
        }
    });
}

#[test]
fn with_split_rings_each_chain_comes_back_once() {
    survive_without_keeper(Features::NONE);
    survive_without_keeper(Features::IN_ORDER);
}

#[test]
fn with_packed_rings_each_chain_comes_back_once() {
    survive_without_keeper(Features::RING_PACKED);
    survive_without_keeper(Features::RING_PACKED | Features::IN_ORDER);
}

fn kills() -> usize {
    std::env::var("WEIR_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(KILLS)
}

const FORMATS: [Features; 2] = [Features::NONE, Features::RING_PACKED];

#[test]
fn a_weir_that_is_killed_loses_no_front_end_and_no_chain() {
    for format in FORMATS {
        let _ = survive(format, kills(), |weir, _| weir.kill());
    }
}

#[test]
fn a_weir_that_is_killed_loses_no_front_end_with_rings_in_order() {
    for format in FORMATS {
        let _ = survive(format | Features::IN_ORDER, kills(), |weir, _| weir.kill());
    }
}

#[test]
fn a_weir_that_ends_for_the_next_one_loses_no_frame_and_repeats_none() {
    for format in [Features::NONE, Features::RING_PACKED | Features::IN_ORDER] {
        let repeated = survive(format, kills(), |weir, _| weir.restart());
        assert_eq!(repeated, 0, "{format:?}");
    }
}

#[test]
fn an_upgrade_loses_no_frame_and_repeats_none() {
    for format in [Features::NONE, Features::RING_PACKED | Features::IN_ORDER] {
        let repeated = survive(format, kills(), |weir, _| print!("{}", weir.upgrade().unwrap()));
        assert_eq!(repeated, 0, "{format:?}");
    }
}

#[test]
fn a_mirror_goes_on_after_an_upgrade_and_gets_no_copy_twice() {
    let dir = tempfile::tempdir().unwrap();
    let mut weir = Weir::start(dir.path());
    let connect = |name: &str, mac| {
        let options = Options::new(mac);
        eventually("weir serves", || Vif::connect(weir.socket(name), &options).ok())
    };
    let mut vifs = [connect("slow", SLOW), connect("fast", FAST), connect("sender", SENDER)];
    let [mut mirror, mut fast, mut sender] = vifs.each_mut().map(|vif| vif.queue_pairs().remove(0));
    // The next weir has the interface as a mirror, so each later one takes over the mirror of the one before.
    let file = dir.path().join("weir.toml");
    let header = "[vif.slow]\n";
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace(header, &format!("{header}mirror = [\"fast\"]\n"))).unwrap();
    weir.upgrade().unwrap();
    let (copies, to_fast, stop) =
        (Received::default(), Received::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _stops = SetAtEnd(&stop);
        scope.spawn(|| copies.receive(&mut mirror, FAST, &stop, Duration::ZERO));
        scope.spawn(|| to_fast.receive(&mut fast, FAST, &stop, Duration::ZERO));
        scope.spawn(|| {
            for number in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let _ = sender.send(&frame(FAST, number), &Offload::NONE);
                sender.flush();
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        for _ in 0..2 {
            copies.next();
            weir.upgrade().unwrap();
            to_fast.next();
        }
        copies.next();
    });
    assert_eq!((copies.repeated(), to_fast.repeated()), (0, 0));
    assert!(copies.distinct() > 100);
    assert_eq!(mirror.stats().device_errors, 0, "chains came back that were not in flight");
    for vif in &vifs {
        assert_eq!(vif.health().unwrap(), Health::Connected, "{}", weir.log());
    }
}

/// The output of a `weir` command to the running weir.
fn asked(dir: &Path, arguments: &[&str]) -> Option<String> {
    let mut command = quiet(env!("CARGO_BIN_EXE_weir"));
    command.arg("--control").arg(dir.join("control.sock")).args(arguments);
    let output = command.stdout(Stdio::piped()).stderr(Stdio::null()).output().unwrap();
    output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
}

#[test]
fn interfaces_that_were_added_and_addresses_that_were_learned_outlive_weir() {
    let dir = tempfile::tempdir().unwrap();
    let mut weir = Weir::start(dir.path());
    let late = weir.socket("late");
    let socket = format!("socket={}", late.display());
    eventually("weir serves", || asked(dir.path(), &["vif", "add", "late", &socket]));
    let guest = eventually("it is served", || Vif::connect(&late, &Options::new(SLOW)).ok());
    let mut guest = guest;
    let mut pair = guest.queue_pairs().remove(0);
    pair.send(&frame(FAST, 1), &Offload::NONE).unwrap();
    let learned = |dir: &Path| {
        let stats: serde_json::Value =
            serde_json::from_str(&asked(dir, &["stats", "--json"])?).unwrap();
        let late = stats["ports"].as_array()?.iter().find(|vif| vif["name"] == "late")?;
        late["limits"]["addresses"]["used"].as_u64()
    };
    // The frame's source is the sender's address, which this guest uses for the first time.
    pair.flush();
    eventually("it is learned", || learned(dir.path()).filter(|&used| used == 1));
    type End = fn(&mut Weir);
    let ends: [End; 2] = [Weir::restart, |weir| drop(weir.upgrade().unwrap())];
    for end in ends {
        end(&mut weir);
        let used = eventually("the next one says", || learned(dir.path()));
        assert_eq!(used, 1, "{}", weir.log());
        assert!(asked(dir.path(), &["vif", "list"]).unwrap().contains("late"));
        assert_eq!(guest.health().unwrap(), Health::Connected, "{}", weir.log());
    }
    let connected = weir.log().matches("front end connected").count();
    assert_eq!(connected, 1, "{}", weir.log());
    // The interface is removed like any other, and does not come back.
    asked(dir.path(), &["vif", "del", "late"]).unwrap();
    weir.upgrade().unwrap();
    assert!(!asked(dir.path(), &["vif", "list"]).unwrap().contains("late"));
}

/// Installs a script that is no weir, or that ends too soon.
fn install_script(weir: &Weir, text: &str) {
    Weir::install(&weir.dir, |file| {
        fs::write(file, text).unwrap();
        fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
    });
}

#[test]
fn where_the_new_weir_does_not_come_up_the_old_one_goes_on() {
    let repeated = survive(Features::NONE, 4, |weir, nth| {
        let config = weir.dir.join("weir.toml");
        let good = fs::read_to_string(&config).unwrap();
        let reason = match nth {
            0 => {
                fs::write(&config, format!("{good}nonsense = 1\n")).unwrap();
                "unknown key `nonsense`"
            }
            1 => {
                install_script(weir, "#!/bin/sh\nexit 7\n");
                "exit status: 7"
            }
            2 => {
                install_script(weir, "no program");
                "cannot start"
            }
            _ => {
                // The script reports that it is ready, gets the message that the old weir has stopped, and ends.
                install_script(
                    weir,
                    "#!/usr/bin/perl\nopen(my $old, '+<&=', 0) or die;\n\
                     syswrite($old, '\"Prepared\"'); sysread($old, my $go, 99); exit 9;\n",
                );
                "the old program goes on"
            }
        };
        let said = weir.upgrade().unwrap_err();
        assert!(said.contains(reason), "{said}");
        // weir kills a new weir that has refused. The kill is not the reason that weir gives.
        assert!(nth != 0 || said.contains("weir check") && !said.contains("SIGKILL"), "{said}");
        assert!(nth != 0 || weir.log().contains("line ") && weir.log().contains(reason));
        assert_eq!(weir.later.is_some(), nth == 3, "{said}");
        fs::write(&config, good).unwrap();
        Weir::install(&weir.dir, |file| symlink(env!("CARGO_BIN_EXE_weir"), file).unwrap());
    });
    assert_eq!(repeated, 0);
}

/// A session's state in the format of a later release.
fn state_of_version(version: u32) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("weir-state", flags).unwrap();
    ftruncate(&file, (64 << 10) + 2 * KEPT_STATE_BYTES_MAX as u64).unwrap();
    rustix::io::write(&file, &version.to_ne_bytes()).unwrap();
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    file
}

#[test]
fn a_state_of_a_later_release_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let mut weir = Weir::start(dir.path());
    weir.process.kill();
    let socket = dir.path().join("keeper.sock");
    let dial = move || weir_keeper::connect(&socket);
    let (later, _) = weir_keeper::Keeper::take(Box::new(dial)).unwrap();
    later.store("fast/state", Arc::new(state_of_version(99)));

    let (old, new) = UnixStream::pair().unwrap();
    let mut command = quiet(dir.path().join("weir"));
    command.arg("run").arg(dir.path().join("weir.toml")).arg("--take-over");
    let mut process =
        Running(command.stdin(OwnedFd::from(new)).stderr(Stdio::null()).spawn().unwrap());
    drop(command);
    let mut said = String::new();
    (&old).read_to_string(&mut said).unwrap();
    assert!(said.contains("fast has state of version 99"), "{said}");
    assert!(!process.0.wait().unwrap().success());
}

#[test]
fn a_keeper_that_is_killed_is_missed_by_nobody_and_the_next_one_is_filled() {
    let _ = survive(Features::NONE, 4, |weir, nth| {
        if nth % 2 == 1 {
            return weir.kill();
        }
        weir.keeper.kill();
        weir.keeper = Weir::keeper(&weir.dir);
        let filled = nth / 2 + 1;
        eventually("it is filled", || {
            (weir.log().matches("a keeper is there").count() == filled).then_some(())
        });
    });
}

#[test]
fn a_weir_whose_directory_has_become_another_ones_leaves_the_keeper_to_that_one() {
    let root = tempfile::tempdir().unwrap();
    let (dir, gone) = (root.path().join("weir"), root.path().join("gone"));
    let start = || {
        fs::create_dir(&dir).unwrap();
        let weir = Weir::start(&dir);
        eventually("it serves", || weir.log().contains("ready").then_some(()));
        weir
    };
    let mut first = start();
    first.keeper.kill();
    fs::rename(&dir, &gone).unwrap();
    first.dir = gone;
    fs::create_dir(&dir).unwrap();
    let keeper = Weir::keeper(&dir);
    eventually("it finds no way to itself", || {
        first.log().contains("it takes no other keeper").then_some(())
    });
    drop(keeper);
    fs::remove_dir_all(&dir).unwrap();
    let second = start();
    assert!(!second.log().contains("nothing is kept"), "{}", second.log());

    // No other weir can take the keeper of a running weir. Whoever tries is told the process of the
    // running weir.
    let (control, other) = (dir.join("other.sock"), dir.join("other.toml"));
    fs::write(
        &other,
        format!("[switch]\ncontrol = {control:?}\nkeeper = {:?}\n", dir.join("keeper.sock")),
    )
    .unwrap();
    let refused =
        quiet(dir.join("weir")).arg("run").arg(other).env("COLUMNS", "500").output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    let named = format!("another weir (process {}) uses this keeper", second.process.0.id());
    assert!(!refused.status.success() && said.contains(&named), "{said}");
}

#[test]
fn a_signal_ends_a_weir_that_waits_for_its_keeper() {
    for signal in [Signal::TERM, Signal::INT] {
        let dir = tempfile::tempdir().unwrap();
        let (control, keeper) = (dir.path().join("control.sock"), dir.path().join("keeper.sock"));
        let file = dir.path().join("weir.toml");
        fs::write(&file, format!("[switch]\ncontrol = {control:?}\nkeeper = {keeper:?}\n"))
            .unwrap();
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let mute = socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
        bind(&mute, &SocketAddrUnix::new(&keeper).unwrap()).unwrap();
        listen(&mute, 1).unwrap();
        let mut weir =
            Running(quiet(env!("CARGO_BIN_EXE_weir")).arg("run").arg(&file).spawn().unwrap());
        let asks = accept(&mute).unwrap();
        let mut word = [0; 64];
        assert!(rustix::io::read(&asks, &mut word).unwrap() > 0);
        kill_process(Pid::from_child(&weir.0), signal).unwrap();
        // A weir that does not hear the signal ends too, after its patience, and with an error.
        let status = weir.0.wait().unwrap();
        assert!(status.success(), "{signal:?}: {status}");
    }
}

/// A front end repeatedly sets its session up while weir is killed.
#[test]
fn a_session_that_is_being_set_up_goes_on_under_the_next_weir() {
    let dir = tempfile::tempdir().unwrap();
    let mut weir = Weir::start(dir.path());
    let socket = weir.socket("fast");
    // A socket's file exists a moment before it accepts connections.
    drop(eventually("weir serves", || Vif::connect(&socket, &Options::new(FAST)).ok()));
    let (stop, sessions) = (AtomicBool::new(false), AtomicU64::new(0));
    let failed = std::thread::scope(|scope| {
        let stops = SetAtEnd(&stop);
        let connecting = scope.spawn(|| {
            let mut failed = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                match Vif::connect(&socket, &Options::new(FAST)) {
                    Ok(_) => drop(sessions.fetch_add(1, Ordering::Relaxed)),
                    Err(error) => failed.push(format!("{error:?}")),
                }
            }
            failed
        });
        for nth in 0..4 * kills() as u64 {
            let before = sessions.load(Ordering::Relaxed);
            eventually("a session begins", || {
                (sessions.load(Ordering::Relaxed) > before).then_some(())
            });
            std::thread::sleep(Duration::from_micros(7_919 * nth % 30_011));
            weir.kill();
        }
        drop(stops);
        connecting.join().unwrap()
    });
    let taken_over = weir.log().matches("taken over").count();
    println!(
        "{} sessions, {taken_over} taken over, {} connections lost",
        sessions.load(Ordering::Relaxed),
        failed.len()
    );
    // A connection that weir has just accepted is not yet with the keeper. From the first answer on, nothing is lost.
    let at_first = |error: &String| error.contains("GetFeatures") && error.contains("Closed");
    assert!(failed.iter().all(at_first), "{failed:?}: {}", weir.log());
    assert!(taken_over > 0, "{}", weir.log());
}

/// The number of descriptors of a process.
fn descriptors(process: &Running) -> usize {
    fs::read_dir(format!("/proc/{}/fd", process.0.id())).unwrap().count()
}

/// A keeper of two sessions has 27 descriptors, including the program's own. Two for each of four rings can be in
/// flight.
const KEPT_MAX: u32 = 35;

#[test]
fn a_front_end_that_never_pauses_fills_no_keeper_and_takes_nobodys_room() {
    let dir = tempfile::tempdir().unwrap();
    let mut weir = Weir::start(dir.path());
    let fast =
        eventually("weir serves", || Vif::connect(weir.socket("fast"), &Options::new(FAST)).ok());
    let stream = UnixStream::connect(weir.socket("slow")).unwrap();
    let mut greedy = FrontEnd::new(stream);
    let (mut sent, start) = (0, Instant::now());
    while start.elapsed() < Duration::from_millis(500) || sent < 4 * KEPT_MAX {
        let call = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        greedy.set_vring_call(sent % 4, Some(call.as_fd())).unwrap();
        sent += 1;
    }
    // All requests have been handled.
    greedy.set_timeout(Duration::from_secs(60));
    greedy.get_features().unwrap();
    eventually("one call a ring is kept", || {
        (descriptors(&weir.keeper) <= KEPT_MAX as usize).then_some(())
    });
    weir.kill();
    eventually("both go on", || (weir.log().matches("taken over").count() == 2).then_some(()));
    assert_eq!(fast.health().unwrap(), Health::Connected);
    greedy.get_features().unwrap();
}

#[test]
fn an_orderly_end_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let mut weir = Weir::start(dir.path());
    let fast =
        eventually("weir serves", || Vif::connect(weir.socket("fast"), &Options::new(FAST)).ok());
    weir.signal(Signal::TERM);
    assert!(weir.process.0.wait().unwrap().success(), "{}", weir.log());
    assert_eq!(fast.health().unwrap(), Health::Disconnected);
    assert!(!weir.socket("fast").exists());
    weir.process = Weir::run(&weir.dir);
    eventually("the next one serves", || {
        Vif::connect(weir.socket("fast"), &Options::new(FAST)).ok()
    });
    assert!(!weir.log().contains("taken over"), "{}", weir.log());
}

/// A network namespace, which ends when the value is dropped.
struct Network(Running);

impl Network {
    fn new() -> Self {
        let mut command = quiet("unshare");
        command.args(["--net", "sh", "-c", "echo ready && exec sleep 600"]);
        let mut holder = Running(command.stdout(Stdio::piped()).spawn().unwrap());
        let mut line = [0; 6];
        holder.0.stdout.take().unwrap().read_exact(&mut line).unwrap();
        Self(holder)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = quiet("nsenter");
        command.args(["-t", &self.0.0.id().to_string(), "--net", program]);
        command
    }

    fn ip(&self, arguments: &str) -> String {
        let output = self.command("ip").args(arguments.split(' ')).stdout(Stdio::piped()).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    }
}

#[test]
fn root_a_tap_that_weir_made_outlives_it_and_ends_with_it_in_order() {
    if !weir_testing::is_root("a TAP in a network namespace") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (control, keeper) = (dir.path().join("control.sock"), dir.path().join("keeper.sock"));
    let switch = format!("[switch]\ncontrol = {control:?}\nkeeper = {keeper:?}\n");
    let uplink = "[uplink.lan]\nkind = \"tap\"\nname = \"weir0\"\nqueues = 2\n";
    let config = dir.path().join("weir.toml");
    fs::write(&config, format!("{switch}{uplink}")).unwrap();
    let (network, _keeper) = (Network::new(), Weir::keeper(dir.path()));
    let run = || {
        let mut command = network.command(env!("CARGO_BIN_EXE_weir"));
        let weir = command.arg("run").arg(&config).stderr(Stdio::null()).spawn();
        let weir = Running(weir.unwrap());
        eventually("weir serves", || UnixStream::connect(&control).ok());
        weir
    };
    let mut weir = run();
    network.ip("address add 10.0.0.1/24 dev weir0");
    for _ in 0..3 {
        weir.kill();
        assert!(network.ip("address show dev weir0").contains("10.0.0.1/24"), "nobody is there");
        weir = run();
        assert!(network.ip("address show dev weir0").contains("10.0.0.1/24"), "the next one is");
    }
    let pid = Pid::from_child(&weir.0);
    kill_process(pid, Signal::TERM).unwrap();
    assert!(weir.0.wait().unwrap().success());
    eventually("the TAP is gone", || network.ip("link show dev weir0").is_empty().then_some(()));
}

/// A user and a group that nobody else has, and the sockets that the user is to try.
const STRANGER_ID: u32 = 54_321;
const GROUP: u32 = 54_322;
const STRANGER: &str = "WEIR_STRANGER";

#[test]
fn a_stranger() {
    let Ok(sockets) = std::env::var(STRANGER) else { return };
    let user = rustix::process::Uid::from_raw(STRANGER_ID);
    rustix::thread::set_thread_groups(&[]).unwrap();
    rustix::thread::set_thread_res_uid(user, user, user).unwrap();
    // The test harness has begun a line with the test's name. End it.
    println!();
    for socket in sockets.split(':') {
        println!("{} {socket}", UnixStream::connect(socket).is_ok());
    }
}

#[test]
fn root_owners_and_members_of_the_group_reach_sockets_and_nobody_else_does() {
    if !weir_testing::is_root("to become another user") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let passed = fs::Permissions::from_mode(0o711);
    fs::set_permissions(dir.path(), passed).unwrap();
    let keeper = dir.path().join("keeper.sock");
    Weir::configure(dir.path(), &format!("keeper = {keeper:?}\nsocket_group = \"{GROUP}\"\n"));
    let file = dir.path().join("weir.toml");
    let [theirs, hers] =
        ["socket_group", "socket_user"].map(|key| format!("{key} = \"{STRANGER_ID}\"\n"));
    let templates = format!(
        "[template.shut]\nsocket_mode = \"0600\"\n[template.open]\nmtu = 1400\n[template.theirs]\n{theirs}\
         [template.hers]\n{hers}"
    );
    let text = fs::read_to_string(&file).unwrap() + &templates;
    let owned = format!("[vif.own0]\n{theirs}[vif.own1]\n{hers}");
    fs::write(&file, text.clone() + &owned).unwrap();
    let keeper = Weir::keeper(dir.path());
    let process = Weir::run(dir.path());
    let mut weir = Weir { keeper, process, later: None, dir: dir.path().into() };
    let command = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.arg("--control").arg(dir.path().join("control.sock"));
        command
    };
    let add = |name: &str, template: &str| {
        let output = command().args(["vif", "add", name, "--template", template]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let reaches = |group: u32, names: &[&str]| {
        let sockets = names.iter().map(|name| dir.path().join(format!("{name}.sock")));
        let sockets: Vec<_> = sockets.map(|it| it.display().to_string()).collect();
        let mut tries = Command::new(std::env::current_exe().unwrap());
        tries.args(["--exact", "a_stranger", "--test-threads=1", "--nocapture"]).current_dir("/");
        let output = tries.env(STRANGER, sockets.join(":")).gid(group).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let of = |socket: &String| {
            let line = said.lines().find(|line| line.ends_with(socket));
            line.unwrap_or_else(|| panic!("{said}")).starts_with("true")
        };
        sockets.iter().map(of).collect::<Vec<_>>()
    };
    eventually("weir serves", || UnixStream::connect(dir.path().join("control.sock")).ok());
    add("open0", "open");
    add("shut0", "shut");
    add("theirs0", "theirs");
    let theirs = |name: &str| {
        let file = fs::metadata(dir.path().join(format!("{name}.sock"))).unwrap();
        assert_eq!((file.gid(), file.mode() & 0o777), (STRANGER_ID, 0o660));
        assert_eq!(reaches(GROUP, &[name]), [false]);
        assert_eq!(reaches(STRANGER_ID, &[name]), [true]);
    };
    let hers = |name: &str| {
        let file = fs::metadata(dir.path().join(format!("{name}.sock"))).unwrap();
        assert_eq!((file.uid(), file.gid(), file.mode() & 0o777), (STRANGER_ID, GROUP, 0o660));
        // The owner needs no group.
        assert_eq!(reaches(1, &[name]), [true]);
    };
    add("hers0", "hers");
    ["theirs0", "own0"].into_iter().for_each(theirs);
    ["hers0", "own1"].into_iter().for_each(hers);
    for (key, names) in
        [("socket_group=no-such", "no group no-such"), ("socket_user=54320", "no user 54320")]
    {
        let refused = command().args(["vif", "add", "x0", key]).output().unwrap();
        let said = String::from_utf8_lossy(&refused.stderr);
        let said = said.split_whitespace().filter(|it| *it != "│").collect::<Vec<_>>().join(" ");
        assert!(!refused.status.success() && said.contains(&format!("had {names}")), "{said}");
    }
    let check = |names: &[&str], when: &str| {
        let expected: Vec<_> =
            names.iter().map(|name| name.starts_with("open") || *name == "slow").collect();
        assert_eq!(reaches(GROUP, names), expected, "a member, {when}");
        assert_eq!(reaches(STRANGER_ID, names), vec![false; names.len()], "no member, {when}");
    };
    check(&["slow", "open0", "shut0", "control"], "at first");
    weir.upgrade().unwrap();
    add("theirs1", "theirs");
    add("hers1", "hers");
    ["theirs0", "theirs1", "own0"].into_iter().for_each(theirs);
    ["hers0", "hers1", "own1"].into_iter().for_each(hers);
    add("open1", "open");
    check(&["slow", "open0", "shut0", "open1", "control"], "after an upgrade");
    // The keys leave the file, and the sockets their owners.
    fs::write(&file, text + "[vif.own0]\n[vif.own1]\n").unwrap();
    weir.upgrade().unwrap();
    for name in ["own0", "own1"] {
        let file = fs::metadata(dir.path().join(format!("{name}.sock"))).unwrap();
        assert_eq!((file.uid(), file.gid(), file.mode() & 0o777), (0, GROUP, 0o660), "{name}");
    }
    ["theirs0", "theirs1"].into_iter().for_each(theirs);
}

#[test]
fn a_socket_that_another_program_has_put_in_the_way_ends_no_guest_at_an_upgrade() {
    let dir = tempfile::tempdir().unwrap();
    let mut weir = Weir::start(dir.path());
    let fast =
        eventually("weir serves", || Vif::connect(weir.socket("fast"), &Options::new(FAST)).ok());
    // One replaces an interface's socket, and one is where an interface gets its first socket.
    fs::remove_file(weir.socket("fast")).unwrap();
    let theirs = ["fast", "late"].map(|name| UnixListener::bind(weir.socket(name)).unwrap());
    let file = dir.path().join("weir.toml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text + "[vif.late]\n").unwrap();
    weir.upgrade().unwrap();
    let log = weir.log();
    for said in ["vif=fast", "goes on with the socket", "vif=late", "not taken up"] {
        assert!(log.contains(said), "{said}: {log}");
    }
    assert_eq!((log.matches("taken over").count(), fast.health().unwrap()), (1, Health::Connected));
    for (listener, name) in theirs.iter().zip(["fast", "late"]) {
        listener.set_nonblocking(true).unwrap();
        while listener.accept().is_ok() {}
        let _front_end = UnixStream::connect(weir.socket(name)).unwrap();
        assert!(listener.accept().is_ok(), "{name} is theirs");
    }
    drop(theirs);
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.arg("--control").arg(dir.path().join("control.sock"));
    let reloaded = command.arg("reload").output().unwrap();
    assert!(reloaded.status.success(), "{}", String::from_utf8_lossy(&reloaded.stderr));
    Vif::connect(weir.socket("late"), &Options::new(SLOW)).unwrap();
}

#[test]
fn root_an_uplink_that_another_file_has_added_outlives_weir_and_one_that_it_has_removed_stays_away()
{
    if !weir_testing::is_root("a TAP in a network namespace") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let (control, keeper) = (path("control.sock"), path("keeper.sock"));
    let switch = format!("[switch]\nworkers = 1\ncontrol = {control:?}\nkeeper = {keeper:?}\n");
    let tap = |name: &str| format!("[uplink.{name}]\nkind = \"tap\"\nname = \"tap-{name}\"\n");
    fs::write(path("weir.toml"), format!("{switch}{}", tap("old"))).unwrap();
    fs::write(path("other.toml"), format!("{switch}{}vlan = 7\n", tap("new"))).unwrap();
    let (network, _keeper) = (Network::new(), Weir::keeper(dir.path()));
    let does = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        let output = command.arg("--control").arg(&control).args(args).output().unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(output.status.success(), "{args:?}: {said}");
        said
    };
    let run = || {
        let mut command = network.command(env!("CARGO_BIN_EXE_weir"));
        let weir = command.args(["run", "--no-sandbox"]).arg(path("weir.toml"));
        let weir = Running(weir.stderr(Stdio::null()).spawn().unwrap());
        eventually("weir serves", || UnixStream::connect(&control).ok());
        weir
    };
    let holds = |when: &str| {
        let stats: serde_json::Value = serde_json::from_str(&does(&["stats", "--json"])).unwrap();
        let unsaved = serde_json::json!(["uplink.new (added)", "uplink.old (removed)"]);
        assert_eq!(stats["unsaved"], unsaved, "{when}");
        let difference = does(&["diff", path("other.toml").to_str().unwrap()]);
        assert!(difference.contains("weir runs as the file says"), "{when}: {difference}");
        let links = network.ip("link show");
        assert!(links.contains("tap-new") && !links.contains("tap-old"), "{when}: {links}");
    };
    let mut weir = run();
    does(&["reload", path("other.toml").to_str().unwrap()]);
    holds("after the reload");
    for _ in 0..2 {
        weir.kill();
        weir = run();
        holds("after SIGKILL");
    }
    let said = does(&["upgrade"]);
    let (_, later) = said.split_once("process ").unwrap();
    let digits: String = later.chars().take_while(char::is_ascii_digit).collect();
    assert!(weir.0.wait().unwrap().success());
    holds("after an upgrade");
    // Nothing of the second file is left once the first file is in force again.
    does(&["reload"]);
    kill_process(pid(digits.parse().unwrap()), Signal::KILL).unwrap();
    let _weir = run();
    let links = network.ip("link show");
    assert!(links.contains("tap-old") && !links.contains("tap-new"), "{links}");
}
