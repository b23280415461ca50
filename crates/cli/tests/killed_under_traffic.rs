//! A weir that is killed repeatedly while guests exchange frames: each chain comes back once, and the number of
//! frames that are delivered again stays within its limit (`docs/design/0028-inflight.md`). `WEIR_KILLS=300` kills it
//! more often.

use std::collections::HashMap;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use weir_limits::BURST_MAX;
use weir_testing::eventually;
use weir_vif::{Features, Options, QueuePair, SendError, Vif, WaitFor};
use weir_wire::{Mac, Offload};

const KILLS: usize = 5;
const SLOW_PAUSE: Duration = Duration::from_micros(400);
const SENDER: Mac = Mac([0x52, 0x54, 0, 0, 0, 1]);
/// The slow guest's buffers run out all the time, so frames for it wait.
const SLOW: Mac = Mac([0x52, 0x54, 0, 0, 0, 2]);
const FAST: Mac = Mac([0x52, 0x54, 0, 0, 0, 3]);

/// weir, with an interface for each guest.
struct Weir {
    config: PathBuf,
    process: Child,
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

    fn run(config: &Path) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.arg("run").arg(config).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(Stdio::null()).spawn().unwrap()
    }

    /// Kills weir with SIGKILL, and starts the next one.
    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.process = Self::run(&self.config);
    }
}

impl Drop for Weir {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn frame(to: Mac, number: u64) -> Vec<u8> {
    [&to.0[..], &SENDER.0, &[0x88, 0xb5], &number.to_be_bytes(), &[0; 40]].concat()
}

/// The count of each frame that a guest received.
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

    fn repeated(&self) -> u64 {
        self.times.lock().unwrap().values().map(|times| u64::from(*times) - 1).sum()
    }
}

/// Sends to both guests in turn until it is stopped; returns the number of frames.
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
        // The pause leaves the sender some frames that do not wait for the slow guest.
        std::thread::sleep(Duration::from_micros(300));
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
            let before = [&to_slow, &to_fast].map(|to| to.frames.load(Ordering::Relaxed));
            eventually("frames flow", || {
                let now = [&to_slow, &to_fast].map(|to| to.frames.load(Ordering::Relaxed));
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
    let lost = sent.div_ceil(2) - to_fast.times.lock().unwrap().len() as u64;
    println!(
        "{format:?}: {kills} kills, {sent} frames, {repeated} repeated, {lost} lost to who is fast, {waited:?}"
    );
    assert!(repeated <= (kills * BURST_MAX) as u64, "{repeated} frames came again");
}

fn kills() -> usize {
    std::env::var("WEIR_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(KILLS)
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
