//! A TCP-like stream: real TCP/IPv4 segments, a sliding window, cumulative acknowledgements, and
//! go-back-N after a timeout. There is no connection set-up and no congestion control: only the
//! window limits the data in flight.

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

/// Period of the stream: byte `n` is `n % PATTERN_LEN`, so that the receiver knows the content of
/// any segment. The period is odd, so that it does not repeat with the frames.
const PATTERN_LEN: usize = 251;
/// Most bytes of an IPv4 packet.
const IPV4_PACKET_MAX: usize = 65_535;
/// Smallest MTU (RFC 791: every host takes a datagram of 576 bytes).
const MTU_MIN: usize = 576;

/// Options of the stream, the same for both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Most bytes in flight; at least one segment.
    pub window_bytes: u64,
    /// MTU of the segments, 576 to 65535. With `HOST_TSO4` the sender still hands over frames of up to 64 KiB.
    pub mtu: u16,
    /// Time without an acknowledgement after which everything in flight is sent again.
    pub retransmit_timeout: Duration,
    /// Number of segments per acknowledgement. The receiver also acknowledges when no more segments
    /// wait.
    pub ack_every: u32,
    /// Makes the receiver compare every byte of payload.
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
    /// Returns the payload of a segment (bytes).
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

/// Returns `len` bytes of the stream from an offset that is a multiple of [`PATTERN_LEN`].
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n % PATTERN_LEN) as u8).collect()
}

/// Returns the position in a [`pattern`] of the byte at `offset` of the stream.
fn in_pattern(offset: u64) -> usize {
    (offset % PATTERN_LEN as u64) as usize
}

/// Returns the distance of `number`, a TCP sequence number, ahead of the stream's `offset` (bytes); negative if it is
/// behind.
fn ahead(offset: u64, number: u32) -> i64 {
    i64::from(number.wrapping_sub(offset as u32) as i32)
}

/// Sends the stream until `stop`. Latencies are from a frame to its acknowledgement.
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
    /// Payload of a frame (bytes).
    frame_payload: usize,
    /// The payload in the pair's memory, and a copy.
    body: Body,
    pattern: Vec<u8>,
    offload: Offload,
    /// Offset of the first byte without an acknowledgement.
    una: u64,
    /// Offset of the next byte to send.
    next: u64,
    /// Highest `next` so far; bytes below it are retransmissions.
    sent_max: u64,
    /// Time of the last advance of `una`, or of the last retransmission.
    progress: Instant,
    /// End and time of each frame that was sent once.
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

    /// Sends as much as allowed, then sleeps until there is work, for `time` at most.
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
                    // An acknowledgement of bytes that were never sent is a lie or a leftover.
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

    /// Goes back to the first unacknowledged byte after a timeout.
    fn check_timeout(&mut self) {
        if self.next > self.una && self.progress.elapsed() >= self.retransmit_timeout {
            self.next = self.una;
            self.progress = Instant::now();
            // The sender cannot know which of two transmissions an acknowledgement means (RFC 6298
            // §3).
            self.sent_at.clear();
            self.stats.counters.timeouts.add(1);
        }
    }

    /// Sends as much as the window allows; returns `false` if the ring fills up before.
    fn fill_window(&mut self) -> Result<bool, LoadError> {
        let mut unflushed = 0;
        while self.next - self.una + self.frame_payload as u64 <= self.window_bytes {
            if !self.send_frame()? {
                return Ok(false);
            }
            unflushed += self.frame_payload;
            if unflushed >= IPV4_PACKET_MAX / 2 {
                // The device may begin while this thread continues.
                self.pair.flush();
                unflushed = 0;
            }
        }
        Ok(true)
    }

    /// Sends the next frame; returns `false` if the ring is full.
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

/// Receives the stream until `stop`, and acknowledges it. Sender and receiver must begin together.
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
    /// Expected payload, if the receiver compares it.
    expected: Option<Vec<u8>>,
    /// Offset of the next byte of the stream.
    next: u64,
    /// Position of the gap that was counted last.
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

    /// Takes at most one burst of frames, acknowledges the segments, and sleeps if no frame is
    /// left. Frames that are no valid segments of the stream go to `other`.
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
                // The next acknowledgement is immediate, to tell the sender the stream's position.
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

    /// Acknowledges the received segments; returns `false` if the ring is full.
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
