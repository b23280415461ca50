//! Traffic between two interfaces, with every frame checked where it arrives.
//!
//! | module | traffic | figures |
//! |---|---|---|
//! | [`bulk`] | a TCP-like stream, sliding window, go-back-N | throughput |
//! | [`small`] | small UDP packets at a rate, or within a window | packets per second, one-way latency |
//! | [`pingpong`] | UDP requests and their responses, one at a time or at a rate | round-trip time |
//! | [`mixed`] | a stream and small packets on the same queues | the effect of one on the other |
//!
//! Each endpoint is a function over an [`End`]. It runs in a thread of its own until a flag stops it, and sleeps in
//! [`QueuePair::wait`] without work. Meanwhile any thread may read its [`LoadStats`], and the
//! [counters](QueuePair::counters) of its queue pair for calls and kicks.
//!
//! Sequence numbers and time stamps are real, so losses and delays show. Times are of the monotonic clock: both
//! endpoints may be in different processes of one machine.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};
use weir_wire::{Offload, OffloadError};

use crate::counters::counters;
use crate::error::SendError;
use crate::pair::QueuePair;

pub mod bulk;
mod frames;
pub mod mixed;
pub mod pingpong;
mod schedule;
pub mod small;

pub use frames::{Flow, Station};

/// How often a sleeping endpoint looks whether it is to stop.
const STOP_POLL: Duration = Duration::from_millis(50);
/// Largest latency that is recorded as it is, ns; longer ones count as this.
const LATENCY_NS_MAX: u64 = 60_000_000_000;
/// Significant decimal digits of recorded latencies.
const LATENCY_DIGITS: u8 = 3;
/// Frames that are handled before the endpoint publishes, kicks and looks at the clock.
const BURST: usize = 32;

counters! {
    /// Live counters of an endpoint; see [`LoadSnapshot`] for what they mean.
    LoadCounters,
    /// Counters of an endpoint at one moment. Bytes are payload: what TCP or UDP carries.
    LoadSnapshot {
        /// Frames of the traffic sent; a GSO frame counts once.
        tx_frames,
        /// Bytes of payload sent, again where they were sent again.
        tx_bytes,
        /// Frames of the traffic received and found right.
        rx_frames,
        /// Bytes of payload received; of a stream, in order and once.
        rx_bytes,
        /// Frames that did not come; of a stream, gaps that the receiver saw.
        lost,
        /// Frames that came after a later one; of a stream, those that were not next in turn.
        reordered,
        /// Frames sent again.
        retransmitted,
        /// Times that the other side did not answer in time.
        timeouts,
        /// Frames of the traffic with wrong lengths, checksums, headers or payload.
        invalid,
        /// Other frames: broadcasts, floods.
        unrelated,
        /// Differences between the delays of successive packets, whichever of them is the longer: their
        /// sum, ns. For each packet it is the jitter (RFC 3550 §6.4.1), not smoothed.
        delay_change_ns,
    }
}

/// What an endpoint measures, shared with whoever displays it.
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
    /// All counters, each as it is now.
    pub fn snapshot(&self) -> LoadSnapshot {
        self.counters.snapshot()
    }

    /// A copy of the latencies recorded until now, ns.
    pub fn latency(&self) -> Histogram<u64> {
        self.latencies().clone()
    }

    /// The latencies, to record a burst of them under one lock.
    fn latencies(&self) -> MutexGuard<'_, Histogram<u64>> {
        self.latency.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a frame that is not of the traffic, or not as it should be.
    fn reject(&self, rejected: frames::Rejected) {
        match rejected {
            frames::Rejected::Unrelated => self.counters.unrelated.add(1),
            frames::Rejected::Invalid => self.counters.invalid.add(1),
        }
    }
}

/// Why an endpoint gave up.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Sleeping failed.
    #[error("cannot wait for the device: {0}")]
    Wait(#[from] io::Error),
    /// A frame was refused for another reason than a full ring.
    #[error("cannot send: {0}")]
    Send(SendError),
    /// The payload does not fit the transmit buffers.
    #[error("a payload of {bytes} bytes does not fit the queue pair's transmit buffers")]
    Body {
        /// Bytes.
        bytes: usize,
    },
    /// A frame size that is none.
    #[error("{what} of {bytes} bytes: not {min} to {max}")]
    Size {
        /// What has that size.
        what: &'static str,
        /// Bytes asked for.
        bytes: usize,
        /// Fewest.
        min: usize,
        /// Most.
        max: usize,
    },
    /// The headers that were made don't agree with their offload.
    #[error("cannot build a GSO frame: {0}")]
    Offload(#[from] OffloadError),
}

/// Whether the frame was sent; `false` when the ring is full.
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
    /// The queue pair that the end's thread works with.
    pub pair: &'e mut QueuePair,
    /// The flow, as seen from this end.
    pub flow: &'e Flow,
    /// What the end measures.
    pub stats: &'e LoadStats,
    /// Set by another thread to end the traffic.
    pub stop: &'e AtomicBool,
}

impl End<'_> {
    /// Tells the switch, by a gratuitous ARP, where the station is: frames to it are not flooded.
    fn announce(self) -> Result<Self, LoadError> {
        // A full ring at this point is no reason to fail: traffic tells the switch as well.
        sent(self.pair.send(&self.flow.local.announcement(), &Offload::NONE))?;
        self.pair.flush();
        Ok(self)
    }
}

fn stopped(stop: &AtomicBool) -> bool {
    stop.load(Ordering::Relaxed)
}

/// The monotonic clock, ns.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}
