//! A TCP-like stream: real TCP/IPv4 segments, a sliding window, cumulative acknowledgements, and
//! go-back-N after a timeout. No connection set-up and no congestion control: the window is all
//! there is in flight.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use weir_wire::{Offload, OffloadCaps, Sum};

use super::frames::{
    Checksum, Flow, Rejected, Segment, TCP_HEADERS_LEN, TCP_OVERHEAD, segment, tcp_csum, tcp_gso,
    tcp_headers,
};
use super::{BURST, End, LoadError, LoadStats, STOP_POLL, sent, stopped};
use crate::pair::{QueuePair, WaitFor};
use crate::receive::Frame;
use crate::transmit::Body;

/// Byte `n` of the stream is `n % PATTERN_LEN`: the receiver knows what any segment must hold,
/// wherever it begins. Odd, so that it does not repeat with the frames.
const PATTERN_LEN: usize = 251;
/// Most bytes of an IPv4 packet.
const IPV4_PACKET_MAX: usize = 65_535;
/// Smallest MTU (RFC 791: every host takes a datagram of 576 bytes).
const MTU_MIN: usize = 576;

/// How the stream is to be; both ends are given the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Most bytes in flight; a segment at least.
    pub window_bytes: u64,
    /// MTU that the segments fit: 576 to 65535. With `HOST_TSO4` the frames that are sent are of
    /// up to 64 KiB all the same.
    pub mtu: u16,
    /// After so long without an acknowledgement everything in flight is sent again.
    pub retransmit_timeout: Duration,
    /// The receiver acknowledges after so many segments, and when it has seen all there are.
    pub ack_every: u32,
    /// Whether the receiver compares every byte of payload.
    pub verify_payload: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            window_bytes: 2 << 20,
            mtu: 1500,
            retransmit_timeout: Duration::from_millis(20),
            ack_every: 4,
            verify_payload: false,
        }
    }
}

impl Options {
    /// Bytes of payload of a segment.
    fn mss(&self) -> Result<u16, LoadError> {
        let mtu = usize::from(self.mtu);
        if mtu < MTU_MIN {
            return Err(LoadError::Size {
                what: "MTU",
                bytes: mtu,
                min: MTU_MIN,
                max: IPV4_PACKET_MAX,
            });
        }
        Ok(self.mtu - TCP_OVERHEAD as u16)
    }
}

/// `len` bytes of the stream from an offset that is a multiple of [`PATTERN_LEN`].
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n % PATTERN_LEN) as u8).collect()
}

/// Where the byte at `offset` of the stream is in a [`pattern`].
fn in_pattern(offset: u64) -> usize {
    (offset % PATTERN_LEN as u64) as usize
}

/// How far `number`, a TCP sequence number, is ahead of the stream's `offset`; negative: behind.
fn ahead(offset: u64, number: u32) -> i64 {
    i64::from(number.wrapping_sub(offset as u32) as i32)
}

/// Sends the stream until `stop`. Its latencies are those from a frame to its acknowledgement.
pub fn send(end: End<'_>, options: &Options) -> Result<(), LoadError> {
    let End { pair, flow, stats, stop } = end.announce()?;
    let mut sender = Sender::new(pair, flow, options, stats)?;
    while !stopped(stop) {
        sender.go_on(STOP_POLL)?;
    }
    Ok(())
}

pub(super) struct Sender<'s> {
    pub(super) pair: &'s mut QueuePair,
    flow: &'s Flow,
    stats: &'s LoadStats,
    window_bytes: u64,
    retransmit_timeout: Duration,
    /// Bytes of payload of a frame.
    frame_payload: usize,
    /// The payload, in the pair's memory and here.
    body: Body,
    pattern: Vec<u8>,
    offload: Offload,
    /// Offset of the first byte that is not acknowledged.
    una: u64,
    /// Offset of the next byte to send.
    next: u64,
    /// Highest `next` there was: what is sent below it is sent again.
    sent_max: u64,
    /// When `una` moved, or everything was sent again.
    progress: Instant,
    /// Ends of frames that were sent once, and when.
    sent_at: VecDeque<(u64, Instant)>,
    scratch: Vec<u8>,
}

impl<'s> Sender<'s> {
    pub(super) fn new(
        pair: &'s mut QueuePair,
        flow: &'s Flow,
        options: &Options,
        stats: &'s LoadStats,
    ) -> Result<Self, LoadError> {
        let mss = options.mss()?;
        let caps = pair.transmit_caps();
        let (frame_payload, offload) = if caps.contains(OffloadCaps::TSO4 | OffloadCaps::CSUM) {
            let segments = (IPV4_PACKET_MAX - TCP_OVERHEAD) / usize::from(mss);
            let payload = segments * usize::from(mss);
            let head = tcp_headers(flow, 0, 0, payload, Checksum::Partial);
            let len = (TCP_HEADERS_LEN + payload) as u32;
            (payload, Offload::from_vnet(&tcp_gso(mss), &head, len)?)
        } else if caps.contains(OffloadCaps::CSUM) {
            (mss.into(), tcp_csum())
        } else {
            (mss.into(), Offload::NONE)
        };
        let pattern = pattern(frame_payload + PATTERN_LEN);
        let bytes = pattern.len();
        let body = pair.add_body(&pattern).ok_or(LoadError::Body { bytes })?;
        Ok(Self {
            pair,
            flow,
            stats,
            window_bytes: options.window_bytes.max(frame_payload as u64),
            retransmit_timeout: options.retransmit_timeout,
            frame_payload,
            body,
            pattern,
            offload,
            una: 0,
            next: 0,
            sent_max: 0,
            progress: Instant::now(),
            sent_at: VecDeque::new(),
            scratch: Vec::new(),
        })
    }

    /// Sends what it may, then sleeps until there is something to do, and for `time` at most.
    pub(super) fn go_on(&mut self, time: Duration) -> Result<(), LoadError> {
        self.take_acks();
        self.check_timeout();
        let full = !self.fill_window()?;
        let what = if full { WaitFor::Any } else { WaitFor::Receive };
        let timeout = self.timeout_left().min(time);
        self.pair.wait(what, timeout)?;
        Ok(())
    }

    fn take_acks(&mut self) {
        let mut una = self.una;
        loop {
            let (flow, scratch) = (self.flow, &mut self.scratch);
            let Some(seen) = self.pair.recv(|frame| segment(frame, flow, scratch)) else {
                break;
            };
            match seen {
                Ok(Segment { ack, .. }) => {
                    self.stats.counters.rx_frames.add(1);
                    let acked = una.saturating_add_signed(ahead(una, ack).max(0));
                    // An acknowledgement of what was never sent is a lie or a leftover.
                    if acked <= self.sent_max {
                        una = acked;
                    }
                }
                Err(rejected) => self.stats.reject(rejected),
            }
        }
        if una > self.una {
            self.una = una;
            self.next = self.next.max(una);
            self.progress = Instant::now();
            self.record_latencies();
        }
    }

    fn record_latencies(&mut self) {
        let mut latencies = self.stats.latencies();
        while let Some((end, at)) = self.sent_at.front() {
            if *end > self.una {
                break;
            }
            let ns = self.progress.saturating_duration_since(*at).as_nanos();
            latencies.saturating_record(u64::try_from(ns).unwrap_or(u64::MAX));
            self.sent_at.pop_front();
        }
    }

    fn timeout_left(&self) -> Duration {
        if self.next == self.una {
            return STOP_POLL;
        }
        self.retransmit_timeout.saturating_sub(self.progress.elapsed())
    }

    /// Goes back to the first byte that is not acknowledged if that takes too long.
    fn check_timeout(&mut self) {
        if self.next > self.una && self.progress.elapsed() >= self.retransmit_timeout {
            self.next = self.una;
            self.progress = Instant::now();
            // Which of two transmissions is acknowledged is not to be known (RFC 6298 §3).
            self.sent_at.clear();
            self.stats.counters.timeouts.add(1);
        }
    }

    /// Sends what the window allows; `false` when the ring is full before.
    fn fill_window(&mut self) -> Result<bool, LoadError> {
        let mut unflushed = 0;
        while self.next - self.una + self.frame_payload as u64 <= self.window_bytes {
            if !self.send_frame()? {
                return Ok(false);
            }
            unflushed += self.frame_payload;
            if unflushed >= IPV4_PACKET_MAX / 2 {
                // The device may begin while this side goes on.
                self.pair.flush();
                unflushed = 0;
            }
        }
        Ok(true)
    }

    /// Sends the next frame; `false` when the ring is full.
    fn send_frame(&mut self) -> Result<bool, LoadError> {
        if self.next == self.una {
            self.progress = Instant::now();
        }
        let len = self.frame_payload;
        let start = in_pattern(self.next);
        let range = start..start + len;
        let checksum = if self.offload.csum().is_some() {
            Checksum::Partial
        } else {
            let mut sum = Sum::new();
            sum.add(&self.pattern[range.clone()]);
            Checksum::Complete(sum)
        };
        // A TCP sequence number is the offset modulo 2^32.
        let head = tcp_headers(self.flow, self.next as u32, 0, len, checksum);
        let result = self.pair.send_with_body(&head, self.body, range, &self.offload);
        if !sent(result)? {
            return Ok(false);
        }
        let counters = &self.stats.counters;
        counters.tx_frames.add(1);
        counters.tx_bytes.add(len as u64);
        let again = self.next < self.sent_max;
        self.next += len as u64;
        self.sent_max = self.sent_max.max(self.next);
        if again {
            counters.retransmitted.add(1);
        } else {
            self.sent_at.push_back((self.next, Instant::now()));
        }
        Ok(true)
    }
}

/// Receives the stream until `stop`, and acknowledges it. Its sender must begin anew when this
/// does.
pub fn receive(end: End<'_>, options: &Options) -> Result<(), LoadError> {
    let End { pair, flow, stats, stop } = end.announce()?;
    let mut receiver = Receiver::new(pair, flow, options, stats);
    while !stopped(stop) {
        let other = |_: &Frame<'_>, rejected| stats.reject(rejected);
        receiver.take_burst(pair, other)?;
    }
    Ok(())
}

pub(super) struct Receiver<'r> {
    flow: &'r Flow,
    stats: &'r LoadStats,
    /// What the payload must be, if that is to be compared.
    expected: Option<Vec<u8>>,
    /// Offset of the next byte of the stream.
    next: u64,
    /// Where the gap is that was counted last.
    gap_at: Option<u64>,
    /// Segments since the last acknowledgement.
    unacked: u32,
    ack_every: u32,
    partial: bool,
    scratch: Vec<u8>,
}

impl<'r> Receiver<'r> {
    pub(super) fn new(
        pair: &QueuePair,
        flow: &'r Flow,
        options: &Options,
        stats: &'r LoadStats,
    ) -> Self {
        Self {
            flow,
            stats,
            expected: options.verify_payload.then(|| {
                let longest = IPV4_PACKET_MAX + PATTERN_LEN;
                pattern(longest)
            }),
            next: 0,
            gap_at: None,
            unacked: 0,
            ack_every: options.ack_every.max(1),
            partial: pair.transmit_caps().contains(OffloadCaps::CSUM),
            scratch: Vec::new(),
        }
    }

    /// Takes at most one burst of frames, acknowledges what came, and sleeps where there is nothing
    /// more; frames that are no right segments of the stream go to `other`.
    pub(super) fn take_burst(
        &mut self,
        pair: &mut QueuePair,
        mut other: impl FnMut(&Frame<'_>, Rejected),
    ) -> Result<(), LoadError> {
        let mut acked = true;
        for _ in 0..BURST {
            let took = pair.recv(|frame| {
                if let Err(rejected) = self.take(frame) {
                    other(frame, rejected);
                }
            });
            if took.is_none() {
                break;
            }
            if self.unacked >= self.ack_every {
                acked = self.ack(pair)?;
            }
        }
        if self.unacked > 0 {
            acked = self.ack(pair)?;
        }
        // wait() flushes, and does not sleep while there are frames.
        let what = if acked { WaitFor::Receive } else { WaitFor::Any };
        pair.wait(what, STOP_POLL)?;
        Ok(())
    }

    fn take(&mut self, frame: &Frame<'_>) -> Result<(), Rejected> {
        let segment = segment(frame, self.flow, &mut self.scratch)?;
        let counters = &self.stats.counters;
        match ahead(self.next, segment.seq) {
            0 if self.payload_is_right(frame, &segment) => {
                counters.rx_frames.add(1);
                counters.rx_bytes.add(segment.payload_len as u64);
                self.next += segment.payload_len as u64;
                self.unacked += 1;
            }
            0 => counters.invalid.add(1),
            distance => {
                if distance > 0 && self.gap_at != Some(self.next) {
                    self.gap_at = Some(self.next);
                    counters.lost.add(1);
                }
                counters.reordered.add(1);
                // Says at once where the stream is.
                self.unacked = self.ack_every;
            }
        }
        Ok(())
    }

    fn payload_is_right(&mut self, frame: &Frame<'_>, segment: &Segment) -> bool {
        let Some(expected) = &self.expected else {
            return true;
        };
        frame.copy_to(&mut self.scratch);
        let Segment { payload_at, payload_len, .. } = *segment;
        let payload = self.scratch.get(payload_at..payload_at + payload_len);
        let from = in_pattern(self.next);
        payload.is_some() && payload == expected.get(from..from + payload_len)
    }

    /// Acknowledges what came; `false` when the ring is full.
    fn ack(&mut self, pair: &mut QueuePair) -> Result<bool, LoadError> {
        let (checksum, offload) = if self.partial {
            (Checksum::Partial, tcp_csum())
        } else {
            (Checksum::Complete(Sum::new()), Offload::NONE)
        };
        let frame = tcp_headers(self.flow, 0, self.next as u32, 0, checksum);
        if !sent(pair.send(&frame, &offload))? {
            return Ok(false);
        }
        pair.flush();
        self.unacked = 0;
        self.stats.counters.tx_frames.add(1);
        Ok(true)
    }
}
