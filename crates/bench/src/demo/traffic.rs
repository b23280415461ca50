//! The kinds of traffic that the demo shows.

use std::time::Duration;

use weir_text::decimal;
use weir_vif::load::{bulk, pingpong, small};

use crate::rig::Load;

/// Length of small frames (bytes).
const SMALL_FRAME_BYTES: usize = 64;
/// Small packets in flight at full speed: half a guest's ring, so that no packet is lost for lack of buffers.
const FLOOD_WINDOW: u32 = 512;
/// Retransmission timeout of a stream: Linux's `TCP_RTO_MIN`, longer than a guest waits for a CPU.
const BULK_RETRANSMIT_TIMEOUT: Duration = Duration::from_millis(200);
/// Packets per second of the paced traffic.
const PACED_PER_S: u64 = 10_000;

/// A kind of traffic, from one guest to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Traffic {
    /// A TCP-like stream.
    Bulk,
    /// Small packets at full speed.
    Flood,
    /// Small packets at a modest rate.
    Paced,
    /// One request at a time.
    RequestResponse,
}

impl Traffic {
    /// All kinds, in the order of display.
    pub(super) const ALL: [Self; 4] = [Self::Bulk, Self::Flood, Self::Paced, Self::RequestResponse];

    /// Returns the name, which heads a column.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Bulk => "bulk TCP",
            Self::Flood => "64-byte flood",
            Self::Paced => "64-byte paced",
            Self::RequestResponse => "request-reply",
        }
    }

    pub(super) fn about(self) -> String {
        match self {
            Self::Bulk => "a TCP-like stream, TSO frames of up to 64 KiB".into(),
            Self::Flood => format!("UDP as fast as it goes, at most {FLOOD_WINDOW} in flight"),
            Self::Paced => format!("UDP, {} packets each second", decimal(PACED_PER_S)),
            Self::RequestResponse => {
                format!("one {SMALL_FRAME_BYTES}-byte UDP request at a time, and its reply")
            }
        }
    }

    pub(super) fn latency(self) -> &'static str {
        match self {
            Self::Bulk => "frame to ACK",
            Self::Flood | Self::Paced => "one way",
            Self::RequestResponse => "round trip",
        }
    }

    /// Returns the share of the demo's time, relative to the other kinds.
    pub(super) fn share(self) -> u32 {
        match self {
            Self::Bulk | Self::Flood => 3,
            Self::Paced | Self::RequestResponse => 2,
        }
    }

    /// Returns the guests' load.
    pub(super) fn load(self) -> Load {
        let frame_bytes = SMALL_FRAME_BYTES;
        let small = |rate| Load::Small(small::Options { frame_bytes, rate, ..Default::default() });
        match self {
            Self::Bulk => Load::Bulk(bulk::Options {
                retransmit_timeout: BULK_RETRANSMIT_TIMEOUT,
                ..Default::default()
            }),
            Self::Flood => small(small::Rate::Window(FLOOD_WINDOW)),
            Self::Paced => small(small::Rate::PerSecond(PACED_PER_S)),
            Self::RequestResponse => {
                Load::RequestResponse(pingpong::Options { frame_bytes, ..Default::default() })
            }
        }
    }
}
