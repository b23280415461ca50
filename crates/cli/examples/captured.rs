//! The cost of a capture: frames of 64 bytes from one guest to another, in turns without a capture and with a capture
//! of all frames that the first guest sends.
//!
//! A rate is frames per second of the worker's time, as weir charges it to the sender. It is the throughput if the
//! worker has a processor of its own and sets the pace. Frames per second of elapsed time are printed too. They are
//! fewer if guests, worker and the capture's thread share processors. The writing thread's time for a frame is in no
//! rate, and is printed separately. The sender has no more frames in flight than the receiver has buffers, so that none
//! is dropped.
//!
//! ```sh
//! cargo run --release -p weir --example captured -- ROUNDS SECONDS
//! ```

use std::error::Error;
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use weir_config::{Config, Defaults, SocketPath};
use weir_switch::Switch;
use weir_switch::capture::{CaptureRequest, Recorded};
use weir_vif::{Options, Vif};
use weir_wire::{Mac, Offload};

const MACS: [Mac; 2] = [Mac([0x52, 0x54, 0, 0, 0, 1]), Mac([0x52, 0x54, 0, 0, 0, 2])];
const FRAME_BYTES: usize = 64;
const SNAP_LEN: u32 = 128;
/// Frames that are sent with one kick.
const BURST: u64 = 32;
/// Frames that may be in flight.
const WINDOW: u64 = 4 * BURST;
/// The longest flight of a frame before it counts as lost.
const PATIENCE: Duration = Duration::from_millis(100);
/// The time that a started burst gets to end.
const SETTLE: Duration = Duration::from_millis(10);

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let [rounds, seconds] = args.as_slice() else {
        return Err("usage: captured ROUNDS SECONDS".into());
    };
    let (rounds, seconds) = (rounds.parse::<u32>()?, seconds.parse()?);
    let dir = tempfile::tempdir()?;
    let control = SocketPath::try_from(dir.path().join("control.sock").as_path())?;
    let defaults = Defaults { control, control_named: true, keeper: None };
    let config =
        Config::from_toml("weir.toml", "[switch]\nworkers = 1\n[vif.a]\n[vif.b]\n", &defaults)?;
    let switch = Switch::start(&config)?;
    let join = |name: &str, mac| Vif::connect(dir.path().join(name), &Options::new(mac));
    let (mut a, mut b) = (join("a.sock", MACS[0])?, join("b.sock", MACS[1])?);
    let (mut tx, mut rx) = (a.queue_pairs().remove(0), b.queue_pairs().remove(0));
    let (stop, got) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            let hello = frame(MACS[1], Mac::BROADCAST);
            while !stop.load(Ordering::Relaxed) {
                let mut frames = 0;
                while rx.recv(|frame| frame.len).is_some() {
                    frames += 1;
                }
                if frames == 0 {
                    thread::yield_now();
                }
                if got.fetch_add(frames, Ordering::Relaxed) == 0
                    && rx.send(&hello, &Offload::NONE).is_ok()
                {
                    rx.flush();
                }
            }
        });
        scope.spawn(|| {
            let frame = frame(MACS[0], MACS[1]);
            let (mut sent, mut moved) = (0, Instant::now());
            while !stop.load(Ordering::Relaxed) {
                let arrived = got.load(Ordering::Relaxed);
                if sent + BURST <= arrived + WINDOW {
                    sent += (0..BURST).filter(|_| tx.send(&frame, &Offload::NONE).is_ok()).count()
                        as u64;
                    tx.flush();
                    moved = Instant::now();
                } else if moved.elapsed() > PATIENCE {
                    sent = arrived;
                } else {
                    thread::yield_now();
                }
            }
        });
        let measured = measure(&switch, rounds, Duration::from_secs(seconds));
        stop.store(true, Ordering::Relaxed);
        measured
    })
}

/// The first guest's sent frames, and the worker's time for them, at one moment.
#[derive(Clone, Copy)]
struct Sent {
    at: Instant,
    frames: u64,
    worker_ns: u64,
}

impl Sent {
    fn of(switch: &Switch) -> Result<Self, Box<dyn Error>> {
        let stats = switch.stats();
        let port = stats.ports.iter().find(|port| port.name.as_str() == "a").ok_or("no port")?;
        Ok(Self { at: Instant::now(), frames: port.tx.frames, worker_ns: port.worker_ns })
    }

    /// Frames since `before`, per second of elapsed time.
    fn by_the_clock(self, before: Self) -> f64 {
        self.frames.saturating_sub(before.frames) as f64 / (self.at - before.at).as_secs_f64()
    }

    /// Frames since `before`, per second of the worker's time.
    fn rate(self, before: Self) -> f64 {
        let ns = self.worker_ns.saturating_sub(before.worker_ns).max(1);
        1e9 * self.frames.saturating_sub(before.frames) as f64 / ns as f64
    }
}

fn measure(switch: &Switch, rounds: u32, time: Duration) -> Result<(), Box<dyn Error>> {
    thread::sleep(Duration::from_secs(1));
    let mut ratios = Vec::new();
    for round in 1..=rounds {
        let before = Sent::of(switch)?;
        thread::sleep(time);
        let outer = Sent::of(switch)?;
        let (off, off_by_clock) = (outer.rate(before), outer.by_the_clock(before));
        let recording = switch.capture(CaptureRequest {
            ports: vec!["a".parse()?],
            direction: Some("tx".parse()?),
            drops: false,
            filter: "".parse()?,
            snap_len: Some(SNAP_LEN),
            frames_max: None,
        })?;
        let goes_on = AtomicBool::new(true);
        let (inner, [on, on_by_clock], (recorded, writer)) = thread::scope(|scope| {
            let writing = scope.spawn(|| {
                let out = File::create("/dev/null")?;
                let recorded = recording.write_to(out, || goes_on.load(Ordering::Relaxed))?;
                let time = clock_gettime(ClockId::ThreadCPUTime);
                Ok::<_, std::io::Error>((recorded, time.tv_sec * 1_000_000_000 + time.tv_nsec))
            });
            thread::sleep(SETTLE);
            let before = Sent::of(switch)?;
            thread::sleep(time);
            let after = Sent::of(switch)?;
            thread::sleep(SETTLE);
            goes_on.store(false, Ordering::Relaxed);
            let recorded = writing.join().map_err(|_| "the writer panicked")??;
            let rates = [after.rate(before), after.by_the_clock(before)];
            Ok::<_, Box<dyn Error>>((after.frames - before.frames, rates, recorded))
        })?;
        thread::sleep(SETTLE);
        let outer = Sent::of(switch)?.frames - outer.frames;
        let Recorded { written, lost } = recorded;
        if !(inner..=outer).contains(&(written + lost)) {
            let told = written + lost;
            return Err(format!("of {inner} to {outer} frames the capture tells of {told}").into());
        }
        println!(
            "{round:2}  off {off:10.0}/s  on {on:10.0}/s  by the clock {:.3}  writer {:.0} ns  {:.3}  \
             written {written}, lost {lost}",
            on_by_clock / off_by_clock,
            writer as f64 / written.max(1) as f64,
            on / off
        );
        ratios.push(on / off);
    }
    ratios.sort_by(f64::total_cmp);
    println!("capture_on_pps {:.3}", ratios.get(ratios.len() / 2).copied().unwrap_or(0.0));
    Ok(())
}

fn frame(src: Mac, dst: Mac) -> Vec<u8> {
    let mut frame = [&dst.0[..], &src.0, &[0x88, 0xb5]].concat();
    frame.resize(FRAME_BYTES, 0);
    frame
}
