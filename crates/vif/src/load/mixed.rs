//! A TCP-like stream and small packets at a rate, on the same queues. A setting that suits one of
//! them may hold up the other.

use std::time::Instant;

use super::frames::{Probe, Rejected, probe};
use super::small::{Delays, probe_frame};
use super::{BURST, End, LoadError, STOP_POLL, bulk, now_ns, sent, stopped};
use super::{Gaps, Schedule};

/// Options of the traffic, the same for both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// The stream.
    pub stream: bulk::Options,
    /// Length of a small packet's frame (bytes), 58 to 1514.
    pub frame_bytes: usize,
    /// Small packets a second, evenly spaced.
    pub packets_per_s: u64,
}

impl Default for Options {
    /// 5,000 packets of 64 bytes a second.
    fn default() -> Self {
        Self { stream: bulk::Options::default(), frame_bytes: 64, packets_per_s: 5000 }
    }
}

/// Sends stream and packets until `stop`.
pub fn send(end: End<'_>, options: &Options) -> Result<(), LoadError> {
    let End { pair, flow, stats, stop } = end.announce()?;
    let mut frame = probe_frame(pair, flow, options.frame_bytes, true)?;
    let mut stream = bulk::Sender::new(pair, flow, &options.stream, stats)?;
    let mut schedule = Schedule::new(options.packets_per_s, Gaps::Even);
    let (start, mut next) = (Instant::now(), 0);
    while !stopped(stop) {
        let due = schedule.due(start.elapsed()).min(next + BURST as u64);
        while next < due {
            let (bytes, offload) = frame.with(Probe { seq: next, time_ns: now_ns() });
            // A full ring holds the stream's frames; the packet goes at the next attempt.
            if !sent(stream.pair.send(bytes, offload))? {
                break;
            }
            next += 1;
            stats.counters.tx_frames.add(1);
            stats.counters.tx_bytes.add(frame.payload_len());
        }
        stream.go_on(schedule.next_at().saturating_sub(start.elapsed()).min(STOP_POLL))?;
    }
    Ok(())
}

/// Receives stream and packets until `stop`, acknowledges the stream, and records each small
/// packet's latency.
pub fn receive(end: End<'_>, options: &Options) -> Result<(), LoadError> {
    let End { pair, flow, stats, stop } = end.announce()?;
    let mut stream = bulk::Receiver::new(pair, flow, &options.stream, stats);
    let mut delays = Delays::default();
    let mut scratch = Vec::new();
    while !stopped(stop) {
        stream.take_burst(pair, |frame, rejected| {
            let packet = match rejected {
                Rejected::Unrelated => probe(frame, flow, &mut scratch),
                Rejected::Invalid => Err(rejected),
            };
            match packet {
                Ok((probe, payload_len)) => {
                    stats.latencies().saturating_record(delays.take(&probe, stats));
                    stats.counters.rx_frames.add(1);
                    stats.counters.rx_bytes.add(payload_len);
                }
                Err(rejected) => stats.reject(rejected),
            }
        })?;
    }
    Ok(())
}
