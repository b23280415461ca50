//! Traffic between two interfaces, with every frame checked where it arrives.
//!
//! | module | traffic | figures |
//! |---|---|---|
//! | [`bulk`] | a TCP-like stream, sliding window, go-back-N | throughput |
//! | [`small`] | small UDP packets at a rate, or within a window | packets per second, one-way latency |
//! | [`pingpong`] | UDP requests and their responses, one at a time or at a rate | round-trip time |
//! | [`mixed`] | a stream and small packets on the same queues | the effect of one on the other |
//!
//! Each endpoint is a function over an [`End`]. It runs in a thread of its own until a flag stops
//! it, and sleeps in [`QueuePair::wait`] without work. Meanwhile any thread may read its
//! [`LoadStats`], and the [counters](QueuePair::counters) of its queue pair for calls and kicks.
//!
//! Sequence numbers and time stamps show losses and delays. Times are of the monotonic clock, so
//! both endpoints may be in different processes of one machine.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};
use weir_guestmem::ticks::now_ns;
use weir_wire::{Offload, OffloadError};

use crate::counters::counters;
use crate::error::SendError;
use crate::pair::QueuePair;

pub mod bulk;
mod frames;
pub mod mixed;
pub mod pingpong;
pub mod small;

pub use frames::{Flow, Station};

/// Interval at which a sleeping endpoint checks its stop flag.
const STOP_POLL: Duration = Duration::from_millis(50);
/// Largest latency recorded (ns); longer ones count as this.
const LATENCY_NS_MAX: u64 = 60_000_000_000;
/// Significant decimal digits of recorded latencies.
const LATENCY_DIGITS: u8 = 3;
/// Frames after which the counts are published, the other side is kicked and the clock is read.
const BURST: usize = 32;

counters! {
    /// Live counters of an endpoint; [`LoadSnapshot`] explains them.
    LoadCounters,
    /// Counters of an endpoint at one moment. Bytes are payload of TCP or UDP.
    LoadSnapshot {
        /// Frames of the traffic sent; a GSO frame counts once.
        tx_frames,
        /// Payload sent (bytes), including retransmissions.
        tx_bytes,
        /// Valid frames of the traffic received.
        rx_frames,
        /// Payload received (bytes); of a stream, only in order and once.
        rx_bytes,
        /// Frames that did not arrive; of a stream, gaps that the receiver saw.
        lost,
        /// Frames that arrived after a later one; of a stream, frames out of order.
        reordered,
        /// Retransmitted frames.
        retransmitted,
        /// Timeouts of the other side's answers.
        timeouts,
        /// Frames of the traffic with wrong lengths, checksums, headers or payload.
        invalid,
        /// Other frames: broadcasts, floods.
        unrelated,
        /// Sum of the absolute differences between the delays of successive packets (ns). Divided
        /// by packets it is the jitter (RFC 3550 §6.4.1), not smoothed.
        delay_change_ns,
    }
}

/// Measurements of an endpoint, shared with their reader.
#[derive(Debug)]
pub struct LoadStats {
    counters: LoadCounters,
    latency: Mutex<Histogram<u64>>,
}

impl Default for LoadStats {
    fn default() -> Self {
        let Ok(latency) = Histogram::new_with_bounds(1, LATENCY_NS_MAX, LATENCY_DIGITS) else {
            unreachable!("constant bounds that make no histogram");
        };
        Self { counters: LoadCounters::default(), latency: Mutex::new(latency) }
    }
}

impl LoadStats {
    /// Returns the present value of every counter.
    pub fn snapshot(&self) -> LoadSnapshot {
        self.counters.snapshot()
    }

    /// Returns a copy of the latencies recorded until now (ns).
    pub fn latency(&self) -> Histogram<u64> {
        self.latencies().clone()
    }

    /// Locks the latencies, to record a burst of them.
    fn latencies(&self) -> MutexGuard<'_, Histogram<u64>> {
        self.latency.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a frame that is unrelated or invalid.
    fn reject(&self, rejected: frames::Rejected) {
        match rejected {
            frames::Rejected::Unrelated => self.counters.unrelated.add(1),
            frames::Rejected::Invalid => self.counters.invalid.add(1),
        }
    }
}

/// Reason why an endpoint gave up.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Sleeping failed.
    #[error("cannot wait for the device: {0}")]
    Wait(#[from] io::Error),
    /// A send failed, and not because of a full ring.
    #[error("cannot send: {0}")]
    Send(SendError),
    /// The payload does not fit the transmit buffers.
    #[error("a payload of {bytes} bytes does not fit the queue pair's transmit buffers")]
    Body {
        /// Length of the payload.
        bytes: usize,
    },
    /// A frame size is out of bounds.
    #[error("{what} of {bytes} bytes: not {min} to {max}")]
    Size {
        /// The object with that size.
        what: &'static str,
        /// The size requested.
        bytes: usize,
        /// The least size.
        min: usize,
        /// The largest size.
        max: usize,
    },
    /// The generated headers contradict their offload.
    #[error("cannot build a GSO frame: {0}")]
    Offload(#[from] OffloadError),
}

/// Returns true if the frame was sent; `false` means a full ring.
fn sent(result: Result<(), SendError>) -> Result<bool, LoadError> {
    match result {
        Ok(()) => Ok(true),
        Err(SendError::Full) => Ok(false),
        Err(error) => Err(LoadError::Send(error)),
    }
}

/// One end of the traffic.
#[derive(Debug)]
pub struct End<'e> {
    /// The queue pair of the end's thread.
    pub pair: &'e mut QueuePair,
    /// The flow, as seen from this end.
    pub flow: &'e Flow,
    /// The end's measurements.
    pub stats: &'e LoadStats,
    /// Stop flag, set by another thread.
    pub stop: &'e AtomicBool,
}

impl End<'_> {
    /// Announces the station to the switch, by a gratuitous ARP, so that frames to it are not
    /// flooded.
    fn announce(self) -> Result<Self, LoadError> {
        // A full ring is no failure here: traffic announces the station as well.
        sent(self.pair.send(&self.flow.local.announcement(), &Offload::NONE))?;
        self.pair.flush();
        Ok(self)
    }
}

fn stopped(stop: &AtomicBool) -> bool {
    stop.load(Ordering::Relaxed)
}

/// Shortest mean gap (s): no sender keeps up with more than a packet each nanosecond.
const GAP_S_MIN: f64 = 1e-9;

/// Distribution of the gaps between packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gaps {
    /// Equal gaps.
    Even,
    /// Exponentially distributed gaps (a Poisson process), the same ones in each run.
    Random,
}

/// The number of packets due, as a function of time.
#[derive(Debug)]
struct Schedule {
    gaps: Gaps,
    mean_gap_s: f64,
    random: SplitMix64,
    due: u64,
    /// Due time of the next packet (s).
    next_at_s: f64,
}

impl Schedule {
    /// Returns a schedule of `rate` packets a second, at least one.
    fn new(rate: u64, gaps: Gaps) -> Self {
        let mean_gap_s = (1.0 / rate.max(1) as f64).max(GAP_S_MIN);
        let mut schedule =
            Self { gaps, mean_gap_s, random: SplitMix64::seed_from_u64(0), due: 0, next_at_s: 0.0 };
        schedule.next_at_s = schedule.gap_s();
        schedule
    }

    /// Returns the number of packets due `elapsed` after the beginning. `elapsed` must not
    /// decrease.
    fn due(&mut self, elapsed: Duration) -> u64 {
        let elapsed_s = elapsed.as_secs_f64();
        while self.next_at_s <= elapsed_s {
            self.due += 1;
            self.next_at_s += self.gap_s();
        }
        self.due
    }

    /// Returns the due time of the next packet, from the beginning.
    fn next_at(&self) -> Duration {
        Duration::from_secs_f64(self.next_at_s)
    }

    fn gap_s(&mut self) -> f64 {
        match self.gaps {
            Gaps::Even => self.mean_gap_s,
            Gaps::Random => -self.mean_gap_s * unit(&mut self.random).ln(),
        }
    }
}

/// Returns a number above 0, and at most 1.
fn unit(random: &mut SplitMix64) -> f64 {
    // 53 bits fill the fraction.
    ((random.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_packets_are_due_one_gap_after_the_other() {
        let mut schedule = Schedule::new(1000, Gaps::Even);
        assert_eq!(schedule.due(Duration::from_micros(999)), 0);
        assert_eq!(schedule.next_at(), Duration::from_millis(1));
        assert_eq!(schedule.due(Duration::from_micros(2500)), 2);
        assert_eq!(schedule.due(Duration::from_micros(10_500)), 10);
    }

    #[test]
    fn random_packets_have_the_rate_and_gaps_of_a_poisson_process() {
        let mut schedule = Schedule::new(1000, Gaps::Random);
        let mut gaps = Vec::new();
        let mut last = Duration::ZERO;
        for _ in 0..100_000 {
            let at = schedule.next_at();
            gaps.push((at - last).as_secs_f64());
            last = at;
            // The schedule rounds to nanoseconds.
            schedule.due(at + Duration::from_nanos(1));
        }
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        assert!((mean / 1e-3 - 1.0).abs() < 0.02, "{mean}");
        // Of exponential gaps, a share of 1 / e is longer than the mean.
        let longer = gaps.iter().filter(|gap| **gap > 1e-3).count() as f64 / gaps.len() as f64;
        assert!((longer - (-1.0_f64).exp()).abs() < 0.01, "{longer}");
    }

    #[test]
    fn no_rate_is_too_high_for_the_schedule_to_end() {
        let mut schedule = Schedule::new(u64::MAX, Gaps::Even);
        assert!(schedule.due(Duration::from_micros(1)) <= 1001);
        assert_eq!(Schedule::new(0, Gaps::Even).next_at(), Duration::from_secs(1));
    }
}
