//! A weir that is killed repeatedly while guests exchange frames: each chain comes back once, and the number of
//! frames that are delivered again stays within its limit (`docs/design/0028-inflight.md`). `WEIR_KILLS=300` kills it
//! more often.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use weir_limits::BURST_MAX;
use weir_testing::eventually;
use weir_vif::{Features, Options, QueuePair, Vif};
use weir_wire::Mac;

use super::{FAST, Received, Running, SENDER, SLOW, SLOW_PAUSE, kills, quiet, send_some};

/// weir, with an interface for each guest.
struct Weir {
    config: PathBuf,
    process: Running,
}

impl Weir {
    fn start(dir: &Path) -> Self {
        let config = dir.join("weir.toml");
        let vif = |(name, mac): (&str, Mac)| {
            let socket = dir.join(format!("{name}.sock"));
            format!("[vif.{name}]\nsocket = {socket:?}\nmac = \"{mac}\"\n")
        };
        let vifs: String = [("sender", SENDER), ("slow", SLOW), ("fast", FAST)].map(vif).concat();
        let control = dir.join("control.sock");
        fs::write(&config, format!("[switch]\ncontrol = {control:?}\nworkers = 2\n{vifs}"))
            .unwrap();
        Self { process: Self::run(&config), config }
    }

    fn run(config: &Path) -> Running {
        let mut command = quiet(env!("CARGO_BIN_EXE_weir"));
        Running(command.arg("run").arg(config).stderr(Stdio::null()).spawn().unwrap())
    }

    /// Kills weir with SIGKILL, and starts the next one.
    fn kill(&mut self) {
        self.process.kill();
        self.process = Self::run(&self.config);
    }
}

/// Sends to both guests in turn until it is stopped; returns the number of frames.
fn send(pair: &mut QueuePair, stop: &AtomicBool) -> u64 {
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        send_some(pair, &mut number);
    }
    number
}

/// Runs traffic under a weir that is killed `kills` times, with guests whose rings have this format.
fn survive(format: Features, kills: usize) {
    let dir = tempfile::tempdir().unwrap();
    let mut weir = Weir::start(dir.path());
    let socket = |name: &str| dir.path().join(format!("{name}.sock"));
    let connect = |name: &str, mac, queue_size| {
        let plain = Options::new(mac);
        let features = plain.features | format;
        let options = Options { queue_size, features, required: plain.required | format, ..plain };
        eventually("weir serves", || Vif::connect(socket(name), &options).ok())
    };
    let mut vifs =
        [connect("slow", SLOW, 16), connect("fast", FAST, 256), connect("sender", SENDER, 256)];
    let [mut slow, mut fast, mut sender] = vifs.each_mut().map(|vif| vif.queue_pairs().remove(0));
    let (to_slow, to_fast) = (Received::default(), Received::default());
    let (stop_sending, stop) = (AtomicBool::new(false), AtomicBool::new(false));

    let (sent, waited) = std::thread::scope(|scope| {
        scope.spawn(|| to_slow.receive(&mut slow, SLOW, &stop, SLOW_PAUSE));
        scope.spawn(|| to_fast.receive(&mut fast, FAST, &stop, Duration::ZERO));
        let sending = scope.spawn(|| {
            let sent = send(&mut sender, &stop_sending);
            let started = Instant::now();
            eventually("all that was sent comes back", || {
                sender.flush();
                (sender.in_flight() == 0).then_some(())
            });
            (sent, started.elapsed())
        });
        let flows = || {
            let before = [&to_slow, &to_fast].map(Received::count);
            eventually("frames flow", || {
                let now = [&to_slow, &to_fast].map(Received::count);
                (now[0] > before[0] + 20 && now[1] > before[1] + 100).then_some(())
            });
        };
        flows();
        for kill in 0..kills {
            // The kill comes at a different moment each time.
            std::thread::sleep(Duration::from_micros(7_919 * kill as u64 % 10_007));
            weir.kill();
            // The receivers reconnect first.
            for (vif, name) in vifs.iter_mut().zip(["slow", "fast", "sender"]) {
                eventually("it connects again", || {
                    vif.reconnect(UnixStream::connect(socket(name)).ok()?).ok()
                });
            }
            flows();
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
    let lost = sent.div_ceil(2) - to_fast.distinct();
    println!(
        "{format:?}: {kills} kills, {sent} frames, {repeated} repeated, {lost} lost to who is fast, {waited:?}"
    );
    assert!(repeated <= (kills * BURST_MAX) as u64, "{repeated} frames came again");
}

#[test]
fn with_split_rings_each_chain_comes_back_once() {
    survive(Features::NONE, kills());
    survive(Features::IN_ORDER, kills());
}

#[test]
fn with_packed_rings_each_chain_comes_back_once() {
    survive(Features::RING_PACKED, kills());
    survive(Features::RING_PACKED | Features::IN_ORDER, kills());
}
