//! Frames: a length, a position in a flow, and times.

use crate::topology::CpuId;

/// Direction of a load's frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Way {
    /// From the load's `from` to its `to`.
    #[default]
    Forth,
    /// From the load's `to` to its `from`.
    Back,
}

/// Meaning of a frame to its ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Content {
    /// A datagram, or a request.
    #[default]
    Message,
    /// The answer to a request that was sent at this time (ns).
    Answer(u64),
    /// The TCP segment with this number.
    Segment(u64),
    /// The acknowledgement of all TCP segments below this number.
    Ack(u64),
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Frame {
    pub(crate) load: usize,
    pub(crate) way: Way,
    /// Number in this direction: later frames arrive later.
    pub(crate) number: u64,
    /// Length from the Ethernet header to the end of the payload (bytes).
    pub(crate) bytes: u32,
    pub(crate) content: Content,
    /// Time of writing (ns).
    pub(crate) sent_ns: u64,
    /// Earliest time at which the frame may have reached weir (ns).
    pub(crate) arrived_ns: u64,
    /// Time of arrival in its guest's ring (ns).
    pub(crate) offered_ns: u64,
    /// Set if the frame has waited for a full receiver.
    pub(crate) parked: bool,
    /// CPU that wrote the frame last; `None` for a device.
    pub(crate) cpu: Option<CpuId>,
}

/// Reason why a frame was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DropReason {
    /// The sending guest's queue in front of its full ring was full (Linux: the interface's qdisc).
    SenderQueueFull,
    /// The receiving guest had no buffers, and the frame could not wait.
    RxRingFull,
    /// The frame waited for buffers for the longest time allowed.
    RxWaitedTooLong,
    /// The queue of an uplink's link to or from the host was full.
    LinkQueueFull,
    /// The host's queue of an uplink was full: workers are too slow.
    UplinkRingFull,
    /// The uplink was down.
    LinkDown,
}

impl DropReason {
    /// All reasons.
    pub const ALL: [Self; 6] = [
        Self::SenderQueueFull,
        Self::RxRingFull,
        Self::RxWaitedTooLong,
        Self::LinkQueueFull,
        Self::UplinkRingFull,
        Self::LinkDown,
    ];

    /// Returns the name in reports.
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
