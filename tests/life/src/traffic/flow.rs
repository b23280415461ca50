//! Numbered frames from one guest to another.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use weir_wire::Mac;

use super::ledger::Ledger;

/// See [`Flow::give_up`].
const PATIENCE_NS: u64 = 20_000_000;

/// Rate of a sender.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Most frames per turn.
    pub burst: u64,
    /// Most frames in flight, if the receiver reports arrivals.
    pub window: Option<u64>,
}

/// A flow, shared by its sender, its receiver and the judge.
#[derive(Debug)]
pub struct Flow {
    /// Number of the flow, in each frame.
    pub id: u16,
    /// The sender.
    pub from: Mac,
    /// The receiver.
    pub to: Mac,
    /// Rate of sending.
    pub pace: Pace,
    paused: AtomicBool,
    sent: AtomicU64,
    come: AtomicU64,
    /// All frames below this number have arrived or are not awaited any more.
    horizon: AtomicU64,
    corrupt: AtomicU64,
    ledger: Mutex<Ledger>,
    /// Time of the last frame, and longest time between two (ns).
    last_ns: AtomicU64,
    gap_ns: AtomicU64,
    gave_up_ns: AtomicU64,
    written_off: AtomicU64,
    begun: Instant,
}

impl Flow {
    /// Returns a flow without frames.
    pub fn new(id: u16, from: Mac, to: Mac, pace: Pace) -> Self {
        Self {
            id,
            from,
            to,
            pace,
            paused: AtomicBool::default(),
            sent: AtomicU64::default(),
            come: AtomicU64::default(),
            horizon: AtomicU64::default(),
            corrupt: AtomicU64::default(),
            ledger: Mutex::default(),
            last_ns: AtomicU64::default(),
            gap_ns: AtomicU64::default(),
            gave_up_ns: AtomicU64::default(),
            written_off: AtomicU64::default(),
            begun: Instant::now(),
        }
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how many frames the sender may send now.
    pub fn due(&self) -> u64 {
        if self.paused.load(Relaxed) {
            return 0;
        }
        let on_their_way = self.sent().saturating_sub(self.horizon.load(Relaxed));
        let window = self.pace.window.unwrap_or(u64::MAX);
        self.pace.burst.min(window.saturating_sub(on_their_way))
    }

    /// Pauses or resumes sending.
    pub fn pause(&self, paused: bool) {
        self.paused.store(paused, Relaxed);
    }

    /// Notes that the next frame was sent. Only for the sender.
    pub fn has_sent(&self) {
        self.sent.store(self.sent() + 1, Relaxed);
    }

    /// Ends the wait for frames that have not arrived within 20 ms, so that a loss does not look like a pause.
    pub fn give_up(&self) {
        let now = self.begun.elapsed().as_nanos() as u64;
        let last = self.last_ns.load(Relaxed).max(self.gave_up_ns.load(Relaxed));
        if now.saturating_sub(last) > PATIENCE_NS {
            self.gave_up_ns.store(now, Relaxed);
            self.horizon.fetch_max(self.sent(), Relaxed);
        }
    }

    /// Returns how many frames were sent.
    pub fn sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }

    /// Notes the arrival of a frame.
    pub fn enter(&self, number: u64) {
        let mut ledger = self.ledger();
        ledger.enter(number);
        self.come.store(ledger.come(), Relaxed);
        self.horizon.fetch_max(number + 1, Relaxed);
        let now = self.begun.elapsed().as_nanos() as u64;
        let last = self.last_ns.swap(now, Relaxed);
        if last > 0 {
            self.gap_ns.fetch_max(now - last, Relaxed);
        }
    }

    /// Notes the arrival of a frame with wrong bytes.
    pub fn corrupted(&self) {
        self.corrupt.fetch_add(1, Relaxed);
    }

    /// Returns the number of frames with wrong bytes.
    pub fn corrupt(&self) -> u64 {
        self.corrupt.load(Relaxed)
    }

    /// Returns the number of frames that have arrived.
    pub fn come(&self) -> u64 {
        self.come.load(Relaxed)
    }

    /// Returns the number of repeated frames.
    pub fn repeated(&self) -> u64 {
        self.ledger().repeated()
    }

    /// Returns true if no frame is in flight.
    pub fn is_settled(&self) -> bool {
        self.come() + self.written_off.load(Relaxed) == self.sent()
    }

    /// Writes off missing frames. Returns their number.
    pub fn write_off(&self) -> u64 {
        let missing = self.ledger().write_off(self.sent());
        self.written_off.fetch_add(missing, Relaxed);
        missing
    }

    /// Returns the longest time between two frames since the last call, including the present gap.
    pub fn take_gap(&self) -> Duration {
        let now = self.begun.elapsed().as_nanos() as u64;
        let lasts = now.saturating_sub(self.last_ns.load(Relaxed));
        Duration::from_nanos(self.gap_ns.swap(0, Relaxed).max(lasts))
    }
}
