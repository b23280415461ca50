//! Frames: a length, a place in a flow, and times.

use crate::topology::CpuId;

/// Which way a load's frame goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Way {
    /// From the load's `from` to its `to`.
    #[default]
    Forth,
    /// Back.
    Back,
}

/// What a frame is to those at its ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Content {
    /// A datagram, or a request.
    #[default]
    Message,
    /// The answer to a request that was sent at this time (ns).
    Answer(u64),
    /// The TCP segment with this number.
    Segment(u64),
    /// All TCP segments below this number have come.
    Ack(u64),
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Frame {
    pub(crate) load: usize,
    pub(crate) way: Way,
    /// Its number among those that went this way: later ones arrive later.
    pub(crate) number: u64,
    /// Ethernet header to the end of the payload.
    pub(crate) bytes: u32,
    pub(crate) content: Content,
    /// When its writer wrote it (ns).
    pub(crate) sent_ns: u64,
    /// The earliest time at which it may have reached weir (ns).
    pub(crate) arrived_ns: u64,
    /// When it came into its guest's ring (ns).
    pub(crate) offered_ns: u64,
    /// It has waited for a receiver that was full.
    pub(crate) parked: bool,
    /// Who wrote it last; `None` for a device.
    pub(crate) cpu: Option<CpuId>,
}

/// Why a frame was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DropReason {
    /// The sending guest's queue before its full ring was full (Linux: the interface's qdisc).
    SenderQueueFull,
    /// The receiving guest had no buffers, and the frame could not wait.
    RxRingFull,
    /// The frame waited for buffers as long as frames may.
    RxWaitedTooLong,
    /// The queue of an uplink's link to or from the host was full.
    LinkQueueFull,
    /// The host's queue of an uplink was full: workers are too slow.
    UplinkRingFull,
    /// The uplink was down.
    LinkDown,
}

impl DropReason {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::SenderQueueFull,
        Self::RxRingFull,
        Self::RxWaitedTooLong,
        Self::LinkQueueFull,
        Self::UplinkRingFull,
        Self::LinkDown,
    ];

    /// The name in reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SenderQueueFull => "sender_queue_full",
            Self::RxRingFull => "rx_ring_full",
            Self::RxWaitedTooLong => "rx_waited_too_long",
            Self::LinkQueueFull => "link_queue_full",
            Self::UplinkRingFull => "uplink_ring_full",
            Self::LinkDown => "link_down",
        }
    }
}
