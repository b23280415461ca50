//! Two well-behaved guests that exchange frames, and one that connects again and again: the time until it is served.

use std::{
    os::fd::AsFd,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use weir_vif::{Options, QueuePair, Vif, WaitFor};
use weir_wire::{Mac, Offload};

use super::switch::{ADDRESSES, Switch};
use crate::front::{
    Strike,
    guest::{Guest, Plan},
    link::request,
};

/// The guests' load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Each guest sends [`RATE`] frames per second. A guest that wants less than its share must get all of it under
    /// any attack. Every lost or late frame shows, and none waits in the guest's own queue.
    Steady,
    /// Each guest sends as fast as frames are used: shares show only if the guests want more.
    Greedy,
}

/// Frames that each guest sends per second: 20,000 together.
const RATE: u32 = 10_000;
/// Frames that are sent together.
const TOGETHER: u32 = 4;
/// Most frames that a guest sends late after it was kept from its CPU.
const BEHIND_MAX: u32 = 64;
const FRAME_LEN: usize = 128;
/// The ethertype that marks the guests' frames.
const MARK: [u8; 2] = [0x88, 0xb6];
const DELAY_NS_MAX: u64 = 10_000_000_000;

#[derive(Debug)]
struct Meter {
    received: AtomicU64,
    delays: Mutex<Histogram<u64>>,
    stop: AtomicBool,
    began: Instant,
}

/// The measurements of a window.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Frames that arrived per second at both guests.
    pub pps: f64,
    /// The 99th percentile of the time from a frame's sending to its arrival (ns).
    pub p99_ns: f64,
}

/// Two guests that exchange frames until dropped.
#[derive(Debug)]
pub struct Victims {
    meter: Arc<Meter>,
    threads: Vec<JoinHandle<()>>,
    _vifs: Vec<Vif>,
}

impl Victims {
    /// Connects the guests and starts their load.
    pub fn start(switch: &Switch, load: Load) -> Result<Self, String> {
        let delays = Histogram::new_with_max(DELAY_NS_MAX, 3).map_err(|error| error.to_string())?;
        let meter = Arc::new(Meter {
            received: AtomicU64::new(0),
            delays: Mutex::new(delays),
            stop: AtomicBool::new(false),
            began: Instant::now(),
        });
        let [a, b, _] = ADDRESSES;
        let mut vifs = [join(&switch.socket("a"), a)?, join(&switch.socket("b"), b)?];
        let pairs = vifs.iter_mut().map(|vif| vif.queue_pairs().remove(0)).collect::<Vec<_>>();
        let threads = pairs.into_iter().zip([b, a]).map(|(pair, to)| {
            let meter = Arc::clone(&meter);
            std::thread::spawn(move || talk(pair, to, load, &meter))
        });
        Ok(Self { threads: threads.collect(), meter, _vifs: vifs.into() })
    }

    /// The measurements while `during` runs.
    pub fn window(&self, during: impl FnOnce()) -> Window {
        let lock = || self.meter.delays.lock().unwrap_or_else(PoisonError::into_inner);
        let (began, before) = (Instant::now(), self.received());
        lock().reset();
        during();
        let (seconds, frames) = (began.elapsed().as_secs_f64(), self.received() - before);
        let delays = lock();
        // Without any frame, the latency was at least the window's length.
        let p99_ns =
            if delays.is_empty() { seconds * 1e9 } else { delays.value_at_quantile(0.99) as f64 };
        Window { pps: frames as f64 / seconds, p99_ns }
    }

    /// Number of frames so far.
    pub fn received(&self) -> u64 {
        self.meter.received.load(Ordering::Relaxed)
    }
}

impl Drop for Victims {
    fn drop(&mut self) {
        self.meter.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn join(socket: &Path, mac: [u8; 6]) -> Result<Vif, String> {
    Vif::connect(socket, &Options::new(Mac(mac))).map_err(|error| error.to_string())
}

fn talk(mut pair: QueuePair, to: [u8; 6], load: Load, meter: &Meter) {
    // A sleep of 400 us must not take 450 us.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1_000));
    let mut frame = vec![0; FRAME_LEN];
    frame[..6].copy_from_slice(&to);
    frame[6..12].copy_from_slice(&pair.mac().0);
    frame[12..14].copy_from_slice(&MARK);
    let turn = Duration::from_secs(1) * TOGETHER / RATE;
    let mut due = Instant::now();
    let (mut head, mut delays) = ([0; 22], Vec::new());
    while !meter.stop.load(Ordering::Relaxed) {
        let now = Instant::now();
        match load {
            Load::Greedy => while send(&mut pair, &mut frame, meter) {},
            Load::Steady => {
                due = due.max(now.checked_sub(turn * BEHIND_MAX / TOGETHER).unwrap_or(now));
                while due <= now {
                    for _ in 0..TOGETHER {
                        send(&mut pair, &mut frame, meter);
                    }
                    due += turn;
                }
            }
        }
        pair.flush();
        let now_ns = meter.began.elapsed().as_nanos() as u64;
        while let Some(len) = pair.recv(|frame| {
            frame.read(&mut head);
            frame.len
        }) {
            let [.., a, b, c, d, e, f, g, h] = head;
            if len == FRAME_LEN && head[12..14] == MARK {
                delays.push(now_ns.saturating_sub(u64::from_le_bytes([a, b, c, d, e, f, g, h])));
            }
        }
        meter.received.fetch_add(delays.len() as u64, Ordering::Relaxed);
        let mut all = meter.delays.lock().unwrap_or_else(PoisonError::into_inner);
        delays.drain(..).for_each(|delay| all.saturating_record(delay));
        drop(all);
        let (what, most) = match load {
            Load::Greedy => (WaitFor::Any, Duration::from_millis(1)),
            Load::Steady => (WaitFor::Receive, due.saturating_duration_since(Instant::now())),
        };
        let _ = pair.wait(what, most);
    }
}

/// Sends one frame with a time stamp. True if there was room.
fn send(pair: &mut QueuePair, frame: &mut [u8], meter: &Meter) -> bool {
    let now_ns = meter.began.elapsed().as_nanos() as u64;
    frame[14..22].copy_from_slice(&now_ns.to_le_bytes());
    pair.send(frame, &Offload::NONE).is_ok()
}

/// Pause between two visits: weir limits a socket to ten front ends a second.
const PAUSE: Duration = Duration::from_millis(125);

/// The start of a visit, and the time until its rings were ready.
#[derive(Clone, Copy, Debug)]
pub struct Visit {
    /// The time of the connection.
    pub at: Instant,
    /// Time until weir had acknowledged the last message.
    pub took: Duration,
    /// True if it was served at all.
    pub served: bool,
}

/// A guest that connects and disconnects until it is dropped.
#[derive(Debug)]
pub struct Newcomer {
    visits: Arc<Mutex<Vec<Visit>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Newcomer {
    /// Starts the visits.
    pub fn start(socket: PathBuf) -> Self {
        let (visits, stop) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (all, over) = (Arc::clone(&visits), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let visit = visit(&socket);
                all.lock().unwrap_or_else(PoisonError::into_inner).push(visit);
                std::thread::sleep(PAUSE);
            }
        });
        Self { visits, stop, thread: Some(thread) }
    }

    /// Ends the visits and returns them all.
    pub fn end(mut self) -> Vec<Visit> {
        self.join();
        std::mem::take(&mut self.visits.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn join(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Newcomer {
    fn drop(&mut self) {
        self.join();
    }
}

/// Connects and sends all messages of a front end until its rings are ready.
pub fn visit(socket: &Path) -> Visit {
    let at = Instant::now();
    let served = come(socket).is_ok();
    Visit { at, took: at.elapsed(), served }
}

fn come(socket: &Path) -> Strike {
    let plan = Plan { memory: 4 << 20, ..Plan::default() };
    let guest = Guest::negotiate(socket, plan)?;
    guest.share()?;
    for ring in 0..guest.rings() {
        guest.serve(ring)?;
    }
    let call = guest.calls.first().map(AsFd::as_fd);
    let acked = guest.link.acked(request::SET_VRING_CALL, &0_u64.to_le_bytes(), call.as_slice())?;
    if acked == 0 { Ok(()) } else { crate::front::harm("a newcomer's call descriptor is refused") }
}
