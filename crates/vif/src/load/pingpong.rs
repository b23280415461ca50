//! Requests and their responses, one at a time or at a rate: round-trip time.

use std::time::{Duration, Instant};

use super::frames::{Flow, PROBE_FRAME_MIN, Probe, probe};
use super::small::probe_frame;
use super::{BURST, End, LoadError, LoadStats, STOP_POLL, now_ns, sent, stopped};
use super::{Gaps, Schedule};
use crate::pair::{QueuePair, WaitFor};

/// Options of the requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Length of a request's frame (bytes), 58 to 1514.
    pub frame_bytes: usize,
    /// Pause between a response and the next request.
    pub pause: Duration,
    /// Time after which a response counts as lost.
    pub timeout: Duration,
}

impl Default for Options {
    /// 64 bytes, without a pause.
    fn default() -> Self {
        Self { frame_bytes: 64, pause: Duration::ZERO, timeout: Duration::from_secs(1) }
    }
}

/// Sends requests until `stop`, and records the round-trip time of each.
pub fn request(end: End<'_>, options: &Options) -> Result<(), LoadError> {
    let End { pair, flow, stats, stop } = end.announce()?;
    let mut frame = probe_frame(pair, flow, options.frame_bytes, true)?;
    let mut scratch = Vec::new();
    let mut seq = 0;
    while !stopped(stop) {
        let request = Probe { seq, time_ns: now_ns() };
        let (bytes, offload) = frame.with(request);
        if !sent(pair.send(bytes, offload))? {
            pair.wait(WaitFor::Transmit, STOP_POLL)?;
            continue;
        }
        pair.flush();
        stats.counters.tx_frames.add(1);
        stats.counters.tx_bytes.add(frame.payload_len());
        seq += 1;
        let start = Instant::now();
        loop {
            if let Some(payload_len) = response(pair, flow, request, stats, &mut scratch) {
                let ns = now_ns().saturating_sub(request.time_ns);
                stats.latencies().saturating_record(ns);
                stats.counters.rx_frames.add(1);
                stats.counters.rx_bytes.add(payload_len);
                break;
            }
            let left = options.timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                stats.counters.lost.add(1);
                stats.counters.timeouts.add(1);
                break;
            }
            if stopped(stop) {
                break;
            }
            pair.wait(WaitFor::Receive, left.min(STOP_POLL))?;
        }
        if !options.pause.is_zero() {
            std::thread::sleep(options.pause);
        }
    }
    Ok(())
}

/// Sends `rate` requests a second until `stop`, evenly spaced, whether or not earlier ones were
/// answered. Records the round-trip time of each response.
pub fn request_at(end: End<'_>, options: &Options, rate: u64) -> Result<(), LoadError> {
    let End { pair, flow, stats, stop } = end.announce()?;
    let mut frame = probe_frame(pair, flow, options.frame_bytes, true)?;
    let mut schedule = Schedule::new(rate, Gaps::Even);
    let (start, mut scratch, mut seq) = (Instant::now(), Vec::new(), 0);
    while !stopped(stop) {
        let due = schedule.due(start.elapsed());
        while seq < due {
            let (bytes, offload) = frame.with(Probe { seq, time_ns: now_ns() });
            seq += 1;
            // A request that finds the ring full counts as lost.
            if sent(pair.send(bytes, offload))? {
                stats.counters.tx_frames.add(1);
                stats.counters.tx_bytes.add(frame.payload_len());
            }
        }
        pair.flush();
        while let Some(seen) = pair.recv(|frame| probe(frame, flow, &mut scratch)) {
            match seen {
                Ok((request, payload_len)) => {
                    stats.latencies().saturating_record(now_ns().saturating_sub(request.time_ns));
                    stats.counters.rx_frames.add(1);
                    stats.counters.rx_bytes.add(payload_len);
                }
                Err(rejected) => stats.reject(rejected),
            }
        }
        let left = schedule.next_at().saturating_sub(start.elapsed());
        pair.wait(WaitFor::Receive, left.min(STOP_POLL))?;
    }
    Ok(())
}

/// Looks for the response to `request` among the received frames. Returns its payload (bytes).
fn response(
    pair: &mut QueuePair,
    flow: &Flow,
    request: Probe,
    stats: &LoadStats,
    scratch: &mut Vec<u8>,
) -> Option<u64> {
    loop {
        match pair.recv(|frame| probe(frame, flow, scratch))? {
            Ok((seen, payload_len)) if seen == request => return Some(payload_len),
            // The response is to a request that was given up.
            Ok(_) => stats.counters.reordered.add(1),
            Err(rejected) => stats.reject(rejected),
        }
    }
}

/// Answers requests until `stop`.
pub fn respond(end: End<'_>) -> Result<(), LoadError> {
    let End { pair, flow, stats, stop } = end.announce()?;
    let mut answer = probe_frame(pair, flow, PROBE_FRAME_MIN, true)?;
    let mut scratch = Vec::new();
    while !stopped(stop) {
        for _ in 0..BURST {
            let (request, payload_len) = match pair.recv(|frame| probe(frame, flow, &mut scratch)) {
                Some(Ok(seen)) => seen,
                Some(Err(rejected)) => {
                    stats.reject(rejected);
                    continue;
                }
                None => break,
            };
            stats.counters.rx_frames.add(1);
            stats.counters.rx_bytes.add(payload_len);
            let (frame, offload) = answer.with(request);
            // A response that finds the ring full is lost, and the other side counts it.
            if sent(pair.send(frame, offload))? {
                stats.counters.tx_frames.add(1);
                stats.counters.tx_bytes.add(answer.payload_len());
            }
        }
        pair.wait(WaitFor::Receive, STOP_POLL)?;
    }
    Ok(())
}
