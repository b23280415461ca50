//! `weir bench --sharing`: how senders share a worker, and the effect of a flood on its neighbour.
//!
//! Ports are simulated in this process, so that the worker is the bottleneck: actual guests on the same cores would
//! be slower than the worker. All code between the ports is weir's own, copies included. Worker time is the time that
//! weir charges. The ports count the victim's times and frames.

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use weir_engine::burst::{Burst, Pieces, Scratch, TakenChain};
use weir_engine::egress::{Packet, Put};
use weir_engine::gro::EgressList;
use weir_engine::stats::{Times, TimesSummary};
use weir_engine::{
    Ask, Delivered, Engine, Forward, Options, Outgoing, Port, PortCounters, QueueRef, Side, Take,
    Taken, clock,
};
use weir_fabric::{MacCheck, PortConfig, PortError, PortId};
use weir_guestmem::HostBuffer;
use weir_limits::FRAME_LEN_MAX;
use weir_policy::schedule::{Kind, Share};
use weir_policy::steering::Receiver;
use weir_wire::{Mac, OffloadCaps};

use super::figures::{FigureRow, Figures};
use super::plan::{LARGE_FRAME_BYTES, SMALL_FRAME_BYTES};
use crate::args::BenchArgs;
use crate::rig;
use crate::steps::{BenchError, SLICES, progress, wait_for};

/// Frame lengths of eight senders, from the smallest to the largest that weir moves (bytes).
const UNEQUAL_BYTES: [usize; 8] = [64, 128, 256, 512, 1024, 1514, 9014, 65_000];
/// Frame lengths and weights of senders.
const WEIGHTED: [(usize, u16); 3] = [(1514, 1), (64, 2), (9014, 4)];
/// More frames than any sender can send.
pub(super) const ENDLESS: u64 = u64::MAX / 2;
/// Time before counting.
const WARM_UP: Duration = Duration::from_millis(50);
/// Pause between two timed packets of the victim.
const VICTIM_PAUSE: Duration = Duration::from_micros(100);

/// A figure of one slice, by name.
struct Figure {
    name: &'static str,
    unit: &'static str,
    says: &'static str,
    of: fn(Duration) -> Result<f64, BenchError>,
}

const FIGURES: [Figure; 6] = [
    Figure {
        name: "jain_index",
        unit: "index",
        says: "8 senders of 64 B to 64 KiB, equal weights, by worker time",
        of: |time| jain_index_under(Kind::Drr, time),
    },
    Figure {
        name: "jain_index_round_robin",
        unit: "index",
        says: "the same with one burst each in turn",
        of: |time| jain_index_under(Kind::RoundRobin, time),
    },
    Figure {
        name: "weight_error",
        unit: "of the share",
        says: "weights 1:2:4, the largest error of a share",
        of: weight_error,
    },
    Figure {
        name: "victim_p50_vs_alone",
        unit: "x",
        says: "a packet each 100 us, beside a flood of 64 B packets, against alone",
        of: |time| victim_time_vs_alone(|times| times.p50, time),
    },
    Figure {
        name: "victim_p99_vs_alone",
        unit: "x",
        says: "the same, where the kernel's other threads count as well",
        of: |time| victim_time_vs_alone(|times| times.p99, time),
    },
    Figure {
        name: "victim_throughput_vs_fair_share",
        unit: "x",
        says: "1500 B as fast as they go beside that flood, against half of alone",
        of: victim_throughput_vs_fair_share,
    },
];

/// Measures and prints the result.
pub(super) fn run(args: &BenchArgs, out: &mut dyn Write) -> Result<(), BenchError> {
    let filter = args.filter.as_deref().unwrap_or_default();
    let figures: Vec<_> = FIGURES.iter().filter(|figure| figure.name.contains(filter)).collect();
    if figures.is_empty() {
        let help = format!("there are {}", FIGURES.map(|figure| figure.name).join(", "));
        return Err(BenchError::NoSuchFigure { filter: filter.into(), help });
    }
    let stop = rig::catch_signals()?;
    let time = Duration::from_secs(args.seconds.into()) / SLICES;
    let figures = measure(&figures, time, &stop)?;
    Figures { title: "how senders share one worker", figures, notes: Vec::new() }.print(args, out)
}

/// Measures all slices, of each figure in turn.
fn measure(
    figures: &[&Figure],
    time: Duration,
    stop: &AtomicBool,
) -> Result<Vec<FigureRow>, BenchError> {
    let progress = progress(figures.len());
    let mut values = vec![Vec::new(); figures.len()];
    for _ in 0..SLICES {
        for (figure, values) in figures.iter().zip(&mut values) {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            progress.set_message(figure.name);
            values.push((figure.of)(time)?);
            progress.inc(1);
        }
    }
    let row = |(figure, values): (&&Figure, Vec<f64>)| {
        FigureRow::new(figure.name, figure.unit, figure.says, values)
    };
    Ok(figures.iter().zip(values).filter_map(row).collect())
}

/// A switch with one worker, a sink, and senders to the sink.
struct Bench {
    engine: Arc<Engine>,
    sink: Arc<PlayedPort>,
    senders: Vec<Arc<PlayedPort>>,
}

impl Bench {
    fn start(schedule: Kind) -> Result<Self, BenchError> {
        let engine = Engine::start_with(Options { schedule, workers: 1, ..Options::default() })?;
        let announces = Sends { from: mac(0), to: Mac::BROADCAST, len: SMALL_FRAME_BYTES };
        let sink = PlayedPort::add(&engine, announces)?;
        Ok(Self { engine, sink, senders: Vec::new() })
    }

    /// Adds a sender of frames of `len` bytes to the sink, with a weight.
    fn sender(&mut self, len: usize, weight: u16) -> Result<Arc<PlayedPort>, BenchError> {
        let sends = Sends { from: mac(self.senders.len() + 1), to: mac(0), len };
        let port = PlayedPort::add(&self.engine, sends)?;
        self.engine
            .change_settings(port.id(), |settings| settings.share = Share { weight, window: None });
        self.senders.push(Arc::clone(&port));
        // Frames to the sink are flooded until the switch knows its address.
        self.sink.send(&self.engine, 1);
        wait_for("the sink's place", || port.received() > 0)?;
        Ok(port)
    }

    /// Lets senders send without end for `time`. Returns the worker time of each (ns).
    fn shares(&self, time: Duration) -> Result<Vec<f64>, BenchError> {
        let read = || self.senders.iter().map(|port| port.worker_ns()).collect::<Vec<_>>();
        let idle = read();
        self.senders.iter().for_each(|port| port.send(&self.engine, ENDLESS));
        thread::sleep(WARM_UP);
        let all_sent = |before: &[u64]| read().iter().zip(before).all(|(now, then)| now > then);
        wait_for("every sender's first frame", || all_sent(&idle))?;
        let before = read();
        thread::sleep(time);
        wait_for("every sender's next frame", || all_sent(&before))?;
        let used = read().into_iter().zip(before).map(|(now, before)| (now - before) as f64);
        Ok(used.collect())
    }

    /// Returns the times of single packets of `victim` while no other port sends to the sink.
    fn times(&self, victim: &PlayedPort, time: Duration) -> Result<TimesSummary, BenchError> {
        thread::sleep(WARM_UP);
        self.sink.take_times();
        let start = Instant::now();
        let mut received = self.sink.received();
        while start.elapsed() < time {
            self.sink.time_next();
            victim.send(&self.engine, 1);
            wait_for("the victim's packet", || self.sink.received() > received)?;
            received = self.sink.received();
            thread::sleep(VICTIM_PAUSE);
        }
        Ok(self.sink.take_times().summary())
    }
}

fn mac(number: usize) -> Mac {
    Mac([0x52, 0x54, 0, 0, 0, number as u8])
}

/// Returns Jain's index (sum x)^2 / (n sum x^2), which is 1 if all are equal (Jain, Chiu & Hawe 1984).
fn jain_index(used: &[f64]) -> f64 {
    let (sum, squares) = used.iter().fold((0.0, 0.0), |(s, q), t| (s + t, q + t * t));
    sum * sum / (used.len() as f64 * squares)
}

fn jain_index_under(schedule: Kind, time: Duration) -> Result<f64, BenchError> {
    let mut bench = Bench::start(schedule)?;
    for len in UNEQUAL_BYTES {
        bench.sender(len, 1)?;
    }
    Ok(jain_index(&bench.shares(time)?))
}

fn weight_error(time: Duration) -> Result<f64, BenchError> {
    let mut bench = Bench::start(Kind::Drr)?;
    for (len, weight) in WEIGHTED {
        bench.sender(len, weight)?;
    }
    let weights: f64 = WEIGHTED.iter().map(|(_, weight)| f64::from(*weight)).sum();
    let used = bench.shares(time)?;
    let all: f64 = used.iter().sum();
    let errors = used.iter().zip(WEIGHTED).map(|(used, (_, weight))| {
        let wanted = f64::from(weight) / weights;
        (used / all / wanted - 1.0).abs()
    });
    Ok(errors.fold(0.0, f64::max))
}

/// Adds a flood of the smallest frames to a separate receiver.
fn flood(bench: &Bench) -> Result<(), BenchError> {
    let [target, source] = [100, 101].map(mac);
    let announces = Sends { from: target, to: Mac::BROADCAST, len: SMALL_FRAME_BYTES };
    let receiver = PlayedPort::add(&bench.engine, announces)?;
    let sends = Sends { from: source, to: target, len: SMALL_FRAME_BYTES };
    let sender = PlayedPort::add(&bench.engine, sends)?;
    receiver.send(&bench.engine, 1);
    wait_for("the flood's receiver", || sender.received() > 0)?;
    sender.send(&bench.engine, ENDLESS);
    Ok(())
}

fn victim_time_vs_alone(of: fn(TimesSummary) -> u64, time: Duration) -> Result<f64, BenchError> {
    let mut bench = Bench::start(Kind::Drr)?;
    let victim = bench.sender(SMALL_FRAME_BYTES, 1)?;
    let alone = bench.times(&victim, time / 2)?;
    flood(&bench)?;
    let beside = bench.times(&victim, time / 2)?;
    Ok(of(beside) as f64 / of(alone).max(1) as f64)
}

fn victim_throughput_vs_fair_share(time: Duration) -> Result<f64, BenchError> {
    let mut bench = Bench::start(Kind::Drr)?;
    let victim = bench.sender(LARGE_FRAME_BYTES, 1)?;
    victim.send(&bench.engine, ENDLESS);
    let per_s = |time| {
        thread::sleep(WARM_UP);
        let (start, before) = (Instant::now(), bench.sink.received());
        thread::sleep(time);
        wait_for("the victim's next frame", || bench.sink.received() > before)?;
        let received = (bench.sink.received() - before) as f64;
        Ok::<_, BenchError>(received / start.elapsed().as_secs_f64())
    };
    let alone = per_s(time / 2)?;
    flood(&bench)?;
    let beside = per_s(time / 2)?;
    Ok(beside / (alone / 2.0))
}

/// Frames of a full burst.
const BURST: usize = 32;
/// Length of an empty virtio-net header before each frame.
const VNET_LEN: usize = 12;
/// Local experimental ethertype (IEEE 802).
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];

/// A simulated port.
pub(crate) struct PlayedPort {
    id: PortId,
    counters: Arc<PortCounters>,
    frame: HostBuffer,
    /// Frames left to send.
    left: AtomicU64,
    /// Buffer for received frames.
    inbox: HostBuffer,
    /// Time at which the next received frame was sent (ns), if it is timed.
    asked_ns: AtomicU64,
    /// Times of timed frames.
    times: Mutex<Times>,
}

/// Addresses and length of frames.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sends {
    pub(crate) from: Mac,
    pub(crate) to: Mac,
    /// Length of a frame (bytes).
    pub(crate) len: usize,
}

impl PlayedPort {
    /// Adds a port to `engine`. It sends nothing yet.
    pub(crate) fn add(engine: &Engine, sends: Sends) -> Result<Arc<Self>, PortError> {
        let config = PortConfig { mac_check: MacCheck::Off, ..PortConfig::vif() };
        let make = |id, counters| {
            let frame = HostBuffer::new(VNET_LEN + sends.len);
            if let Some(slice) = frame.slice(VNET_LEN, sends.len) {
                slice.write(&[&sends.to.0[..], &sends.from.0, &ETHERTYPE].concat());
            }
            Arc::new(Self {
                id,
                counters,
                frame,
                left: AtomicU64::new(0),
                inbox: HostBuffer::new(FRAME_LEN_MAX as usize),
                asked_ns: AtomicU64::new(0),
                times: Mutex::default(),
            })
        };
        let (id, port) = engine.add_port(config, make)?;
        engine.fabric().set_active(id, true)?;
        Ok(port)
    }

    pub(crate) fn id(&self) -> PortId {
        self.id
    }

    /// Starts sending `frames` frames.
    pub(crate) fn send(&self, engine: &Engine, frames: u64) {
        self.left.store(frames, Ordering::SeqCst);
        engine.nudge(QueueRef { port: self.id, queue: 0, side: Side::Tx });
    }

    /// Returns the worker time charged to the port (ns).
    pub(crate) fn worker_ns(&self) -> u64 {
        self.counters.worker_ns.get()
    }

    /// Returns the number of received frames.
    pub(crate) fn received(&self) -> u64 {
        self.counters.rx[0].frames.get()
    }

    /// Starts the timer for the next received frame.
    pub(crate) fn time_next(&self) {
        self.asked_ns.store(clock::now_ns(), Ordering::SeqCst);
    }

    /// Takes the collected times.
    pub(crate) fn take_times(&self) -> Times {
        std::mem::take(&mut *self.times.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn receive(&self, packet: &Packet<'_, '_>) {
        let mut at = packet.head.len();
        for slice in packet.body() {
            if let Some(place) = self.inbox.slice(at, slice.len()) {
                slice.copy_to(&place);
            }
            at += slice.len();
        }
    }
}

impl Receiver for PlayedPort {}

impl Port for PlayedPort {
    fn take(&self, queue: usize, ask: Ask, scratch: &mut Scratch, forward: Forward<'_>) -> Taken {
        let Ask { what, now_ns } = ask;
        let (Take::New, Some(slice)) = (what, self.frame.slice(0, self.frame.len())) else {
            return Taken::default();
        };
        let mut burst = scratch.lend();
        let frames = BURST.min(burst.frames_max) as u64;
        let frames = frames.min(self.left.load(Ordering::SeqCst));
        self.left.fetch_sub(frames, Ordering::SeqCst);
        for token in 0..frames {
            let pieces = Pieces::Only(slice);
            let chain = TakenChain { token, len: slice.len() as u32, pieces };
            // The frame is valid, and there is space for a burst.
            let _ = burst.add(chain, VNET_LEN, now_ns);
        }
        if frames > 0 {
            forward(&mut burst);
        }
        let tx = &self.counters.tx[queue];
        tx.frames.add(frames);
        tx.bytes.add(frames * (slice.len() - VNET_LEN) as u64);
        let more = self.left.load(Ordering::SeqCst) > 0;
        Taken { frames: frames as usize, more, peek: true, ..Taken::default() }
    }

    fn deliver(&self, queue: usize, burst: &Burst<'_>, frames: &[Outgoing]) -> Delivered {
        let mut list = EgressList::new(burst, frames, OffloadCaps::NONE);
        let put = |packet: Packet<'_, '_>| {
            self.receive(&packet);
            Put::Done
        };
        while list.emit_next(put).is_some() {}
        self.counters.rx[queue].frames.add(frames.len() as u64);
        match self.asked_ns.swap(0, Ordering::SeqCst) {
            0 => {}
            asked_ns => {
                let took_ns = clock::now_ns().saturating_sub(asked_ns);
                self.times.lock().unwrap_or_else(PoisonError::into_inner).record(took_ns);
            }
        }
        list.delivered()
    }

    fn arm_tx(&self, _queue: usize) -> bool {
        self.left.load(Ordering::SeqCst) > 0
    }

    fn rx_queues(&self) -> usize {
        1
    }

    fn fail(&self, reason: &str) {
        tracing::error!(port = %self.id, reason, "a simulated port failed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jains_index_is_1_for_equals_and_1_of_n_for_one_who_has_all() {
        assert_eq!(jain_index(&[3.0; 8]), 1.0);
        assert_eq!(jain_index(&[8.0, 0.0, 0.0, 0.0]), 0.25);
    }

    #[test]
    fn every_figure_has_a_value() {
        let figures: Vec<_> = FIGURES.iter().collect();
        let stop = AtomicBool::new(false);
        let rows = measure(&figures, Duration::from_millis(20), &stop).unwrap();
        assert_eq!(rows.len(), FIGURES.len());
        assert!(rows.iter().all(|row| row.median.is_finite() && row.median >= 0.0), "{rows:?}");
    }
}
