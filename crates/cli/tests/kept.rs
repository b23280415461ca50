//! A weir with a keeper that is killed again and again while guests talk: no front end connects again, each chain
//! comes back once, and frames go on (`docs/design/0033-keeper.md`). `WEIR_KILLS=300` kills it more often.

use std::collections::HashMap;
use std::fs;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use weir_limits::BURST_MAX;
use weir_testing::eventually;
use weir_vhost_user::FrontEnd;
use weir_vif::{Features, Health, Options, QueuePair, SendError, Vif, WaitFor};
use weir_wire::{Mac, Offload};

const KILLS: usize = 5;
const SLOW_PAUSE: Duration = Duration::from_micros(400);
const SENDER: Mac = Mac([0x52, 0x54, 0, 0, 0, 1]);
/// Its buffers run out all the time, so that frames for it wait.
const SLOW: Mac = Mac([0x52, 0x54, 0, 0, 0, 2]);
const FAST: Mac = Mac([0x52, 0x54, 0, 0, 0, 3]);

fn quiet(program: &str) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// A process that is killed when this is dropped.
struct Running(Child);

impl Running {
    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// weir and its keeper, with an interface for each guest.
struct Weir {
    dir: PathBuf,
    keeper: Running,
    process: Running,
}

impl Weir {
    fn start(dir: &Path) -> Self {
        let vif = |(name, mac): (&str, Mac)| {
            let socket = dir.join(format!("{name}.sock"));
            format!("[vif.{name}]\nsocket = {socket:?}\nmac = \"{mac}\"\nqueues = 2\n")
        };
        let vifs: String = [("sender", SENDER), ("slow", SLOW), ("fast", FAST)].map(vif).concat();
        let (control, socket) = (dir.join("control.sock"), dir.join("keeper.sock"));
        let switch = format!("[switch]\ncontrol = {control:?}\nkeeper = {socket:?}\nworkers = 2\n");
        fs::write(dir.join("weir.toml"), format!("{switch}{vifs}")).unwrap();
        let keeper = Self::keeper(dir);
        Self { keeper, process: Self::run(dir), dir: dir.into() }
    }

    fn keeper(dir: &Path) -> Running {
        let socket = dir.join("keeper.sock");
        let mut command = quiet(env!("CARGO_BIN_EXE_weir-keeper"));
        let keeper = Running(command.arg(&socket).spawn().unwrap());
        eventually("the keeper listens", || weir_keeper::connect(&socket).ok());
        keeper
    }

    fn run(dir: &Path) -> Running {
        let log = fs::File::options().append(true).create(true).open(dir.join("log")).unwrap();
        let mut command = quiet(env!("CARGO_BIN_EXE_weir"));
        command.arg("run").arg(dir.join("weir.toml")).stderr(log);
        Running(command.spawn().unwrap())
    }

    /// By SIGKILL; then the next one starts.
    fn kill(&mut self) {
        self.process.kill();
        self.process = Self::run(&self.dir);
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

/// What came to a guest: how often each frame, and for how long none.
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

    fn repeated(&self) -> u64 {
        self.times.lock().unwrap().values().map(|times| u64::from(*times) - 1).sum()
    }

    /// Waits for a frame; for how long.
    fn next(&self) -> Duration {
        let (before, start) = (self.count(), Instant::now());
        eventually("a frame comes", || (self.count() > before).then_some(()));
        start.elapsed()
    }
}

/// Sends to both in turn until told to stop; says how many frames.
fn send(pair: &mut QueuePair, stop: &AtomicBool) -> u64 {
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..24 {
            let to = if number % 2 == 0 { FAST } else { SLOW };
            match pair.send(&frame(to, number), &Offload::NONE) {
                Ok(()) => number += 1,
                Err(SendError::Full) => {
                    pair.wait(WaitFor::Transmit, Duration::from_millis(2)).unwrap();
                }
                Err(error) => panic!("{error}"),
            }
        }
        pair.flush();
        // Not so many that all is waiting for the slow one.
        std::thread::sleep(Duration::from_micros(300));
    }
    number
}

/// Traffic under a weir that `kill` kills so many times, by guests with rings of this format.
fn survive(format: Features, kills: usize, kill: impl Fn(&mut Weir, usize)) {
    let dir = tempfile::tempdir().unwrap();
    let mut weir = Weir::start(dir.path());
    let connect = |name: &str, mac, queue_size| {
        let plain = Options::new(mac);
        let features = plain.features | format;
        let options = Options { queue_size, features, required: plain.required | format, ..plain };
        eventually("weir serves", || Vif::connect(weir.socket(name), &options).ok())
    };
    let mut vifs =
        [connect("slow", SLOW, 16), connect("fast", FAST, 256), connect("sender", SENDER, 256)];
    let [mut slow, mut fast, mut sender] = vifs.each_mut().map(|vif| vif.queue_pairs().remove(0));
    let (to_slow, to_fast) = (Received::default(), Received::default());
    let (stop_sending, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut gaps = Vec::new();

    let sent = std::thread::scope(|scope| {
        scope.spawn(|| to_slow.receive(&mut slow, SLOW, &stop, SLOW_PAUSE));
        scope.spawn(|| to_fast.receive(&mut fast, FAST, &stop, Duration::ZERO));
        let sending = scope.spawn(|| {
            let sent = send(&mut sender, &stop_sending);
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
            // At another place each time.
            std::thread::sleep(Duration::from_micros(7_919 * nth as u64 % 10_007));
            kill(&mut weir, nth);
            gaps.push(to_fast.next());
            flows();
        }
        for vif in &vifs {
            assert_eq!(vif.health().unwrap(), Health::Connected, "{format:?}: {}", weir.log());
        }
        stop_sending.store(true, Ordering::Relaxed);
        let sent = sending.join();
        std::thread::sleep(Duration::from_millis(50));
        stop.store(true, Ordering::Relaxed);
        sent.unwrap()
    });

    let errors = [&slow, &fast, &sender].map(|pair| pair.stats().device_errors);
    assert_eq!(errors, [0; 3], "{format:?}: chains came back that were not in flight");
    let repeated = to_slow.repeated() + to_fast.repeated();
    gaps.sort();
    let (median, longest) = (gaps.get(kills / 2), gaps.last());
    println!(
        "{format:?}: {kills} kills, {sent} frames, {repeated} repeated, gap {median:?}, at most {longest:?}"
    );
    assert!(repeated <= (kills * BURST_MAX) as u64, "{repeated} frames came again");
    let connected = weir.log().matches("front end connected").count();
    assert_eq!(connected, 3, "{format:?}: a front end has connected again: {}", weir.log());
}

fn kills() -> usize {
    std::env::var("WEIR_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(KILLS)
}

const FORMATS: [Features; 2] = [Features::NONE, Features::RING_PACKED];

#[test]
fn a_weir_that_is_killed_loses_no_front_end_and_no_chain() {
    for format in FORMATS {
        survive(format, kills(), |weir, _| weir.kill());
    }
}

#[test]
fn a_weir_that_is_killed_loses_no_front_end_with_rings_in_order() {
    for format in FORMATS {
        survive(format | Features::IN_ORDER, kills(), |weir, _| weir.kill());
    }
}

#[test]
fn a_keeper_that_is_killed_is_missed_by_nobody_and_the_next_one_is_filled() {
    survive(Features::NONE, 4, |weir, nth| {
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

/// A front end that sets its session up again and again under a weir that is killed meanwhile.
#[test]
fn a_session_that_is_being_set_up_goes_on_under_the_next_weir() {
    let dir = tempfile::tempdir().unwrap();
    let mut weir = Weir::start(dir.path());
    let socket = weir.socket("fast");
    eventually("weir serves", || fs::metadata(&socket).ok());
    let (stop, sessions) = (AtomicBool::new(false), AtomicU64::new(0));
    let failed = std::thread::scope(|scope| {
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
        stop.store(true, Ordering::Relaxed);
        connecting.join().unwrap()
    });
    let taken_over = weir.log().matches("taken over").count();
    println!(
        "{} sessions, {taken_over} taken over, {} connections lost",
        sessions.load(Ordering::Relaxed),
        failed.len()
    );
    // A connection that weir has just accepted is weir's alone. From the first answer on nothing is lost.
    let at_first = |error: &String| error.contains("GetFeatures") && error.contains("Closed");
    assert!(failed.iter().all(at_first), "{failed:?}: {}", weir.log());
    assert!(taken_over > 0, "{}", weir.log());
}

/// How many descriptors a process has.
fn descriptors(process: &Running) -> usize {
    fs::read_dir(format!("/proc/{}/fd", process.0.id())).unwrap().count()
}

#[test]
fn a_front_end_that_never_pauses_fills_no_keeper_and_takes_nobodys_room() {
    let dir = tempfile::tempdir().unwrap();
    let mut weir = Weir::start(dir.path());
    let fast =
        eventually("weir serves", || Vif::connect(weir.socket("fast"), &Options::new(FAST)).ok());
    let stream = UnixStream::connect(weir.socket("slow")).unwrap();
    let mut greedy = FrontEnd::new(stream);
    let before = descriptors(&weir.keeper);
    let (mut sent, start) = (0, Instant::now());
    while start.elapsed() < Duration::from_millis(500) {
        let call = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        greedy.set_vring_call(sent % 4, Some(call.as_fd())).unwrap();
        sent += 1;
    }
    // All of it has been handled.
    greedy.set_timeout(Duration::from_secs(60));
    greedy.get_features().unwrap();
    assert!(sent > 100, "{sent}");
    eventually("one call a ring is kept", || {
        (descriptors(&weir.keeper) <= before + 8).then_some(())
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
    let pid = rustix::process::Pid::from_child(&weir.process.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(weir.process.0.wait().unwrap().success(), "{}", weir.log());
    assert_eq!(fast.health().unwrap(), Health::Disconnected);
    assert!(!weir.socket("fast").exists());
    weir.process = Weir::run(&weir.dir);
    eventually("the next one serves", || {
        Vif::connect(weir.socket("fast"), &Options::new(FAST)).ok()
    });
    assert!(!weir.log().contains("taken over"), "{}", weir.log());
}

/// A network namespace that ends with this.
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
    let pid = rustix::process::Pid::from_child(&weir.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(weir.0.wait().unwrap().success());
    eventually("the TAP is gone", || network.ip("link show dev weir0").is_empty().then_some(()));
}
