//! Numbered frames from one guest to another, and their arrivals.
//!
//! Frames are UDP over IPv4, so that flows spread over queues. Their content shows any wrong byte.

use std::{
    collections::BTreeSet,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use weir_wire::{Mac, checksum::ipv4_header_checksum};

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

const ETHERNET: usize = 14;
const UDP: usize = ETHERNET + 20;
const PAYLOAD: usize = UDP + 8;
/// "weir"; the flow and the number follow.
const MARK: [u8; 4] = *b"weir";
const FLOW: usize = PAYLOAD + 4;
const NUMBER: usize = FLOW + 2;
const FILL: usize = NUMBER + 8;
/// Upper bound of all frames' lengths.
const LONGEST: usize = 1514;

/// Writes frame `number` of `flow` into `out`, whose content it replaces.
pub fn write(out: &mut Vec<u8>, from: Mac, to: Mac, flow: u16, number: u64) {
    // All lengths occur equally often.
    let len = 60 + (number.wrapping_mul(0x9e37_79b9) >> 7) as usize % (LONGEST - 60);
    out.clear();
    out.resize(len, number as u8);
    out[..6].copy_from_slice(&to.0);
    out[6..12].copy_from_slice(&from.0);
    out[12..14].copy_from_slice(&[8, 0]);
    let ip = &mut out[ETHERNET..UDP];
    ip.fill(0);
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&((len - ETHERNET) as u16).to_be_bytes());
    ip[8..10].copy_from_slice(&[64, 17]);
    ip[12..16].copy_from_slice(&[10, 78, from.0[4], from.0[5]]);
    ip[16..20].copy_from_slice(&[10, 78, to.0[4], to.0[5]]);
    let checksum = ipv4_header_checksum(ip);
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    let udp = &mut out[UDP..PAYLOAD];
    udp[..2].copy_from_slice(&(1024 + flow).to_be_bytes());
    udp[2..4].copy_from_slice(&9_u16.to_be_bytes());
    udp[4..6].copy_from_slice(&((len - UDP) as u16).to_be_bytes());
    udp[6..].fill(0);
    out[PAYLOAD..FLOW].copy_from_slice(&MARK);
    out[FLOW..NUMBER].copy_from_slice(&flow.to_be_bytes());
    out[NUMBER..FILL].copy_from_slice(&number.to_be_bytes());
}

/// Content of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// Frame `number` of flow `flow`.
    Numbered {
        /// Number of the flow.
        flow: u16,
        /// Number of the frame.
        number: u64,
    },
    /// A numbered frame whose bytes were changed.
    Corrupt,
    /// Another program's frame, or one for another guest.
    Other,
}

/// Reads `frame`, received by `to`.
pub fn read(frame: &[u8], to: Mac, expected: &mut Vec<u8>) -> Read {
    if frame.len() < FILL || frame[PAYLOAD..FLOW] != MARK || frame[..6] != to.0 {
        return Read::Other;
    }
    let flow = u16::from_be_bytes([frame[FLOW], frame[FLOW + 1]]);
    let number = frame[NUMBER..FILL].try_into().map_or(0, u64::from_be_bytes);
    let from = frame[6..12].try_into().map_or(Mac([0; 6]), Mac);
    write(expected, from, to, flow, number);
    if expected == frame { Read::Numbered { flow, number } } else { Read::Corrupt }
}

/// The numbers that have arrived, from 0. The size is bounded by the frames in flight.
#[derive(Debug, Default)]
pub struct Ledger {
    /// All numbers below have arrived or are written off.
    floor: u64,
    /// Larger numbers that have arrived.
    beyond: BTreeSet<u64>,
    written_off: u64,
    repeated: u64,
}

impl Ledger {
    /// Records an arrival. Returns true if it is the number's first.
    pub fn enter(&mut self, number: u64) -> bool {
        if number < self.floor || !self.beyond.insert(number) {
            self.repeated += 1;
            return false;
        }
        while self.beyond.remove(&self.floor) {
            self.floor += 1;
        }
        true
    }

    /// Returns the number of frames that have arrived.
    pub fn come(&self) -> u64 {
        self.floor - self.written_off + self.beyond.len() as u64
    }

    /// Returns the number of repeated frames.
    pub fn repeated(&self) -> u64 {
        self.repeated
    }

    /// Writes off the missing numbers below `end`. Returns their count.
    pub fn write_off(&mut self, end: u64) -> u64 {
        let missing = end.saturating_sub(self.floor) - self.beyond.range(..end).count() as u64;
        self.written_off += missing;
        self.floor = self.floor.max(end);
        self.beyond = self.beyond.split_off(&end);
        missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_read_as_it_was_written_and_any_other_byte_is_seen() {
        let (from, to) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
        let (mut frame, mut scratch) = (Vec::new(), Vec::new());
        for number in [0, 1, 255, 70_000, u64::MAX] {
            write(&mut frame, from, to, 7, number);
            assert!((60..LONGEST).contains(&frame.len()));
            assert_eq!(read(&frame, to, &mut scratch), Read::Numbered { flow: 7, number });
            assert_eq!(read(&frame, from, &mut scratch), Read::Other);
            let last = frame.len() - 1;
            for at in [13, 30, FILL, last] {
                frame[at] ^= 1;
                assert_eq!(read(&frame, to, &mut scratch), Read::Corrupt, "byte {at}");
                frame[at] ^= 1;
            }
        }
    }

    #[test]
    fn each_number_counts_once_in_whatever_order() {
        let mut ledger = Ledger::default();
        assert!([2, 0, 1, 5].into_iter().all(|number| ledger.enter(number)));
        assert!(!ledger.enter(1) && !ledger.enter(5));
        assert_eq!((ledger.come(), ledger.repeated()), (4, 2));
    }

    #[test]
    fn what_does_not_come_is_written_off_once() {
        let mut ledger = Ledger::default();
        [0, 1, 3, 6].into_iter().for_each(|number| assert!(ledger.enter(number)));
        assert_eq!(ledger.write_off(6), 3);
        assert_eq!((ledger.come(), ledger.write_off(6)), (4, 0));
        assert_eq!(ledger.write_off(7), 0);
        // The late arrival of a frame that is written off counts as a repetition.
        assert!(!ledger.enter(4));
        assert_eq!((ledger.come(), ledger.repeated()), (4, 1));
    }
}
