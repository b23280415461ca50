//! A guest of this process: one thread per queue pair, which sends and receives.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use weir_bed::{
    error::{Error, Result, check},
    process::wait_until,
};
use weir_vif::{Features, Health, Options, QueuePair, SendError, Vif, WaitFor};
use weir_wire::{Mac, Offload};

use super::flow::{self, Flow, Read};

/// Longest time until weir has a socket and answers at it.
const PATIENCE: Duration = Duration::from_secs(30);
/// Most frames received before the sender's turn.
const TURN: usize = 256;

/// Options of a guest.
#[derive(Clone, Debug)]
pub struct Build {
    /// weir's socket for the guest.
    pub socket: PathBuf,
    /// The guest's address.
    pub mac: Mac,
    /// Queue pairs.
    pub queues: usize,
    /// Entries of each ring.
    pub queue_size: u16,
    /// `RING_PACKED`, `IN_ORDER`, both or none.
    pub format: Features,
    /// Delay for each received frame.
    pub dawdle: Duration,
    /// Time between two turns of sending.
    pub tick: Duration,
}

/// The report of a thread on its queue pair.
#[derive(Debug, Default)]
struct Told {
    in_flight: AtomicU16,
    errors: AtomicU64,
    turns: AtomicU64,
}

/// A guest with its traffic.
pub struct Station {
    vif: Vif,
    stop: Arc<AtomicBool>,
    told: Vec<Arc<Told>>,
    threads: Vec<JoinHandle<std::result::Result<(), String>>>,
}

impl Station {
    /// Connects and starts the traffic. `sends` are the guest's own flows, distributed over its queue pairs in turn.
    /// `all` are the flows of all guests, by number.
    pub fn begin(build: &Build, sends: &[Arc<Flow>], all: &Arc<Vec<Arc<Flow>>>) -> Result<Self> {
        let plain = Options::new(build.mac);
        let options = Options {
            queues: build.queues,
            queue_size: build.queue_size,
            features: plain.features | build.format,
            required: plain.required | build.format,
            ..plain
        };
        let mut connected = None;
        wait_until(&format!("weir to serve {}", build.socket.display()), PATIENCE, || {
            connected = Vif::connect(&build.socket, &options).ok();
            Ok(connected.is_some())
        })?;
        let mut vif = connected.ok_or_else(|| Error::Check("no session".into()))?;
        let stop = Arc::new(AtomicBool::default());
        let (mut told, mut threads) = (Vec::new(), Vec::new());
        for (nth, pair) in vif.queue_pairs().into_iter().enumerate() {
            let own: Vec<_> = sends.iter().skip(nth).step_by(build.queues).cloned().collect();
            let tells = Arc::new(Told::default());
            told.push(Arc::clone(&tells));
            let mut thread = Thread {
                pair,
                own,
                all: Arc::clone(all),
                build: build.clone(),
                stop: Arc::clone(&stop),
                tells,
            };
            threads.push(std::thread::spawn(move || thread.run()));
        }
        Ok(Self { vif, stop, told, threads })
    }

    /// Returns the station's MAC address.
    pub fn mac(&self) -> Mac {
        self.vif.mac()
    }

    /// Returns the number of chains that are available or in use by the device.
    pub fn in_flight(&self) -> u64 {
        self.told.iter().map(|told| u64::from(told.in_flight.load(Relaxed))).sum()
    }

    /// Returns the number of reports of each thread.
    pub fn turns(&self) -> Vec<u64> {
        self.told.iter().map(|told| told.turns.load(Relaxed)).collect()
    }

    /// Returns the number of returned chains that the guest had not made available.
    pub fn errors(&self) -> u64 {
        self.told.iter().map(|told| told.errors.load(Relaxed)).sum()
    }

    /// Fails if the session or a thread has ended.
    pub fn check_alive(&self) -> Result<()> {
        let health = self
            .vif
            .health()
            .map_err(|source| Error::Io { what: "look at a session".into(), source })?;
        check(health == Health::Connected, || format!("a guest's session is {health:?}"))?;
        let ended = self.threads.iter().any(JoinHandle::is_finished);
        check(!ended, || "a guest's thread has ended".into())
    }

    /// Ends the guest in order.
    pub fn end(mut self) -> Result<()> {
        self.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            thread
                .join()
                .unwrap_or_else(|_| Err("a guest's thread panicked".into()))
                .map_err(Error::Check)?;
        }
        Ok(())
    }
}

impl Drop for Station {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

struct Thread {
    pair: QueuePair,
    own: Vec<Arc<Flow>>,
    all: Arc<Vec<Arc<Flow>>>,
    build: Build,
    stop: Arc<AtomicBool>,
    tells: Arc<Told>,
}

impl Thread {
    fn run(&mut self) -> std::result::Result<(), String> {
        let (mut frame, mut expected) = (Vec::new(), Vec::new());
        let mut turn = Instant::now();
        while !self.stop.load(Relaxed) {
            for _ in 0..TURN {
                if self.pair.recv_into(&mut frame).is_none() {
                    break;
                }
                self.take(&frame, &mut expected);
            }
            let now = Instant::now();
            if now >= turn {
                turn = now + self.build.tick;
                self.send(&mut frame)?;
            }
            let left = turn.saturating_duration_since(now).max(Duration::from_micros(50));
            self.pair.wait(WaitFor::Receive, left).map_err(|error| error.to_string())?;
            self.pair.flush();
            self.tells.in_flight.store(self.pair.in_flight(), Relaxed);
            self.tells.errors.store(self.pair.stats().device_errors, Relaxed);
            self.tells.turns.fetch_add(1, Relaxed);
        }
        Ok(())
    }

    fn take(&self, frame: &[u8], expected: &mut Vec<u8>) {
        match flow::read(frame, self.build.mac, expected) {
            Read::Numbered { flow, number } => {
                if let Some(flow) = self.all.get(usize::from(flow)) {
                    flow.enter(number);
                }
            }
            // The flow of a corrupt frame is unknown.
            Read::Corrupt => self.all.first().into_iter().for_each(|flow| flow.corrupted()),
            Read::Other => return,
        }
        if !self.build.dawdle.is_zero() {
            std::thread::sleep(self.build.dawdle);
        }
    }

    fn send(&mut self, frame: &mut Vec<u8>) -> std::result::Result<(), String> {
        for flow in &self.own {
            flow.give_up();
            for _ in 0..flow.due() {
                flow::write(frame, flow.from, flow.to, flow.id, flow.sent());
                match self.pair.send(frame, &Offload::NONE) {
                    Ok(()) => flow.has_sent(),
                    Err(SendError::Full) => break,
                    Err(error) => return Err(error.to_string()),
                }
            }
        }
        self.pair.flush();
        Ok(())
    }
}
