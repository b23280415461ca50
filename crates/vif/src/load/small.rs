//! Small UDP packets with sequence numbers and time stamps, one way.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use weir_wire::OffloadCaps;

use super::frames::{
    Flow, PROBE_FRAME_MAX, PROBE_FRAME_MIN, Probe, ProbeFrame, probe, sequence_number,
};
use super::{BURST, End, LoadError, LoadStats, STOP_POLL, now_ns, sent, stopped};
use super::{Gaps, Schedule};
use crate::pair::{QueuePair, WaitFor};

/// Shortest frame of this traffic, and of requests.
pub const FRAME_BYTES_MIN: usize = PROBE_FRAME_MIN;
/// Longest frame of this traffic, and of requests.
pub const FRAME_BYTES_MAX: usize = PROBE_FRAME_MAX;
/// Time without feedback after which the packets in flight are given up.
const FEEDBACK_TIMEOUT: Duration = Duration::from_millis(10);

/// Number of packets to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rate {
    /// Packets a second, evenly spaced, whether they arrive or not.
    PerSecond(u64),
    /// Packets a second at random times (a Poisson process), like those of many senders together.
    Random(u64),
    /// As many packets as possible, with at most this number in flight.
    Window(u32),
}

/// Options of the packets, the same for both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Length of a frame (bytes), 58 to 1514.
    pub frame_bytes: usize,
    /// Rate of the packets.
    pub rate: Rate,
    /// Leaves the checksum to the device, if the device supports that. Otherwise the sender
    /// completes it, and frames need no offload.
    pub partial_checksum: bool,
    /// Makes the receiver check each packet and record its latency. Otherwise the receiver reads only sequence numbers,
    /// so that a measurement shows the cost of the transport alone.
    pub verify: bool,
}

impl Default for Options {
    /// 64 bytes with a partial checksum, at most 256 in flight.
    fn default() -> Self {
        Self { frame_bytes: 64, rate: Rate::Window(256), partial_checksum: true, verify: true }
    }
}

impl Options {
    /// Builds a packet over `flow`.
    fn frame(&self, pair: &QueuePair, flow: &Flow) -> Result<ProbeFrame, LoadError> {
        probe_frame(pair, flow, self.frame_bytes, self.partial_checksum)
    }
}

/// Builds a frame of `len` bytes over `flow`. The device completes its checksum if `partial` and
/// negotiated.
pub(super) fn probe_frame(
    pair: &QueuePair,
    flow: &Flow,
    len: usize,
    partial: bool,
) -> Result<ProbeFrame, LoadError> {
    if !(PROBE_FRAME_MIN..=PROBE_FRAME_MAX).contains(&len) {
        return Err(LoadError::Size {
            what: "UDP frame",
            bytes: len,
            min: PROBE_FRAME_MIN,
            max: PROBE_FRAME_MAX,
        });
    }
    let partial = partial && pair.transmit_caps().contains(OffloadCaps::CSUM);
    Ok(ProbeFrame::new(flow, len, partial))
}

/// Sends packets until `stop`.
pub fn send(end: End<'_>, options: &Options) -> Result<(), LoadError> {
    let End { pair, flow, stats, stop } = end.announce()?;
    let frame = options.frame(pair, flow)?;
    let mut sender = Sender { pair, flow, stats, frame, next: 0, scratch: Vec::new() };
    match options.rate {
        Rate::PerSecond(rate) => sender.at_rate(Schedule::new(rate, Gaps::Even), stop),
        Rate::Random(rate) => sender.at_rate(Schedule::new(rate, Gaps::Random), stop),
        Rate::Window(window) => sender.in_window(u64::from(window.max(1)), stop),
    }
}

struct Sender<'s> {
    pair: &'s mut QueuePair,
    flow: &'s Flow,
    stats: &'s LoadStats,
    frame: ProbeFrame,
    /// Sequence number of the next packet.
    next: u64,
    scratch: Vec<u8>,
}

impl Sender<'_> {
    fn at_rate(&mut self, mut schedule: Schedule, stop: &AtomicBool) -> Result<(), LoadError> {
        let start = Instant::now();
        while !stopped(stop) {
            let due = schedule.due(start.elapsed());
            let full = !self.burst(due.saturating_sub(self.next))?;
            self.feedback();
            if full {
                self.pair.wait(WaitFor::Transmit, STOP_POLL)?;
            } else if self.next >= due {
                let left = schedule.next_at().saturating_sub(start.elapsed());
                self.pair.wait(WaitFor::Receive, left.min(STOP_POLL))?;
            }
        }
        Ok(())
    }

    fn in_window(&mut self, window: u64, stop: &AtomicBool) -> Result<(), LoadError> {
        let mut acked = 0;
        let mut progress = Instant::now();
        while !stopped(stop) {
            if let Some(seq) = self.feedback()
                && (acked + 1..=self.next).contains(&seq)
            {
                acked = seq;
                progress = Instant::now();
            }
            if self.next > acked && progress.elapsed() >= FEEDBACK_TIMEOUT {
                acked = self.next;
                self.stats.counters.timeouts.add(1);
            }
            let room = window.saturating_sub(self.next - acked);
            if self.next == acked {
                progress = Instant::now();
            }
            let full = !self.burst(room)?;
            if full {
                self.pair.wait(WaitFor::Any, FEEDBACK_TIMEOUT)?;
            } else if room <= BURST as u64 {
                self.pair.wait(WaitFor::Receive, FEEDBACK_TIMEOUT)?;
            }
        }
        Ok(())
    }

    /// Sends at most `count` packets, and at most one burst; returns `false` if the ring is full.
    fn burst(&mut self, count: u64) -> Result<bool, LoadError> {
        let count = count.min(BURST as u64);
        let mut room = true;
        for _ in 0..count {
            let (frame, offload) = self.frame.with(Probe { seq: self.next, time_ns: now_ns() });
            room = sent(self.pair.send(frame, offload))?;
            if !room {
                break;
            }
            self.next += 1;
            let counters = &self.stats.counters;
            counters.tx_frames.add(1);
            counters.tx_bytes.add(self.frame.payload_len());
        }
        if count > 0 {
            self.pair.flush();
        }
        Ok(room)
    }

    /// Returns the highest sequence number in the receiver's feedback, if there was any.
    fn feedback(&mut self) -> Option<u64> {
        let mut highest = None;
        loop {
            let (flow, scratch) = (self.flow, &mut self.scratch);
            match self.pair.recv(|frame| probe(frame, flow, scratch)) {
                Some(Ok((probe, _))) => {
                    self.stats.counters.rx_frames.add(1);
                    highest = highest.max(Some(probe.seq));
                }
                Some(Err(rejected)) => self.stats.reject(rejected),
                None => return highest,
            }
        }
    }
}

/// Receives packets until `stop`. Counts lost and reordered ones, and records each packet's
/// latency.
pub fn receive(end: End<'_>, options: &Options) -> Result<(), LoadError> {
    let End { pair, flow, stats, stop } = end.announce()?;
    let mut answer = Options { frame_bytes: PROBE_FRAME_MIN, ..*options }.frame(pair, flow)?;
    let wants_feedback = matches!(options.rate, Rate::Window(_));
    let mut order = Order::default();
    let mut delays = Delays::default();
    let mut scratch = Vec::new();
    while !stopped(stop) {
        let came = match options.verify {
            true => receive_burst(pair, flow, stats, &mut order, &mut delays, &mut scratch),
            false => count_burst(pair, stats, &mut order),
        };
        if came > 0 && wants_feedback {
            let (frame, offload) = answer.with(Probe { seq: order.next, time_ns: now_ns() });
            // Earlier answers are still in the ring when it is full.
            if sent(pair.send(frame, offload))? {
                pair.flush();
                stats.counters.tx_frames.add(1);
            }
        }
        if came < BURST {
            pair.wait(WaitFor::Receive, STOP_POLL)?;
        }
    }
    Ok(())
}

/// Takes at most one burst. Returns the number of its frames, of whatever kind.
fn receive_burst(
    pair: &mut QueuePair,
    flow: &Flow,
    stats: &LoadStats,
    order: &mut Order,
    delays: &mut Delays,
    scratch: &mut Vec<u8>,
) -> usize {
    let mut latencies = stats.latencies();
    for came in 0..BURST {
        match pair.recv(|frame| probe(frame, flow, scratch)) {
            Some(Ok((probe, payload_len))) => {
                latencies.saturating_record(delays.take(&probe, stats));
                stats.counters.rx_frames.add(1);
                stats.counters.rx_bytes.add(payload_len);
                order.take(probe.seq, stats);
            }
            Some(Err(rejected)) => stats.reject(rejected),
            None => return came,
        }
    }
    BURST
}

/// As [`receive_burst`], but reads only the sequence numbers.
fn count_burst(pair: &mut QueuePair, stats: &LoadStats, order: &mut Order) -> usize {
    for came in 0..BURST {
        match pair.recv(sequence_number) {
            Some(Some((seq, payload_len))) => {
                stats.counters.rx_frames.add(1);
                stats.counters.rx_bytes.add(payload_len);
                order.take(seq, stats);
            }
            Some(None) => stats.counters.unrelated.add(1),
            None => return came,
        }
    }
    BURST
}

/// Delays of packets.
#[derive(Debug, Default)]
pub(super) struct Delays {
    /// Delay of the last packet (ns).
    last_ns: Option<u64>,
}

impl Delays {
    /// Returns the delay of a packet that has just arrived (ns).
    pub(super) fn take(&mut self, probe: &Probe, stats: &LoadStats) -> u64 {
        let delay_ns = now_ns().saturating_sub(probe.time_ns);
        let last_ns = self.last_ns.replace(delay_ns).unwrap_or(delay_ns);
        stats.counters.delay_change_ns.add(delay_ns.abs_diff(last_ns));
        delay_ns
    }
}

/// Tracks the order of sequence numbers.
#[derive(Debug, Default)]
struct Order {
    /// Highest number seen, plus one.
    next: u64,
    /// Numbers that were skipped and not seen later.
    missing: u64,
}

impl Order {
    /// Takes the next number. A skipped number counts as lost until it arrives, and as reordered
    /// then. A duplicate cannot be distinguished from it, and counts the same.
    fn take(&mut self, seq: u64, stats: &LoadStats) {
        let counters = &stats.counters;
        match seq.checked_sub(self.next) {
            Some(skipped) => {
                self.missing += skipped;
                self.next = seq.saturating_add(1);
            }
            None => {
                self.missing = self.missing.saturating_sub(1);
                counters.reordered.add(1);
            }
        }
        counters.lost.set(self.missing);
    }
}
