//! Frames, and the links that carry them.

use std::collections::VecDeque;

use crate::topology::CpuId;

/// A link of one direction, or any other server that serves in order, one item at a time.
///
/// The caller calls [`Self::served`] at the times that [`Self::send`] and `served` return, and
/// [`Self::arrived`] when a served item has come to the other end.
#[derive(Debug)]
pub struct Link<T> {
    /// Time per byte (ps).
    ps_per_byte: u64,
    delay_ns: u64,
    /// Most items that wait, without the one being served.
    queue_max: usize,
    queue: VecDeque<(u64, T)>,
    serving: Option<T>,
    on_the_way: VecDeque<T>,
}

impl<T> Link<T> {
    /// Returns a link of `bits_per_s`, at least 1. A served item arrives `delay_ns` later. At most
    /// `queue_max` items wait.
    pub fn new(bits_per_s: u64, delay_ns: u64, queue_max: usize) -> Self {
        let ps_per_byte = 8_000_000_000_000 / bits_per_s.max(1);
        let (queue, on_the_way) = (VecDeque::new(), VecDeque::new());
        Self { ps_per_byte, delay_ns, queue_max, queue, serving: None, on_the_way }
    }

    fn ns(&self, bytes: u64) -> u64 {
        bytes.saturating_mul(self.ps_per_byte).saturating_add(500) / 1_000
    }

    /// Sends an item of `bytes` on the wire. If the link was idle, returns when the item is served
    /// (ns).
    ///
    /// # Errors
    /// The item, if the queue is full.
    pub fn send(&mut self, now_ns: u64, bytes: u64, item: T) -> Result<Option<u64>, T> {
        if self.serving.is_none() {
            self.serving = Some(item);
            return Ok(Some(now_ns.saturating_add(self.ns(bytes))));
        }
        if self.queue.len() >= self.queue_max {
            return Err(item);
        }
        self.queue.push_back((bytes, item));
        Ok(None)
    }

    /// Ends the present item's service. Returns when it arrives, and when the next item is served
    /// (ns).
    pub fn served(&mut self, now_ns: u64) -> (u64, Option<u64>) {
        self.on_the_way.extend(self.serving.take());
        let next_ns = self.queue.pop_front().map(|(bytes, item)| {
            self.serving = Some(item);
            now_ns.saturating_add(self.ns(bytes))
        });
        (now_ns.saturating_add(self.delay_ns), next_ns)
    }

    /// Returns the item that was served last, if it is on the way.
    pub fn last(&self) -> Option<&T> {
        self.on_the_way.back()
    }

    /// Returns the first item on the way, which has arrived.
    pub fn arrived(&mut self) -> Option<T> {
        self.on_the_way.pop_front()
    }

    /// Iterates over items that wait, are served or are on the way.
    pub fn items(&self) -> impl Iterator<Item = &T> {
        let waiting = self.queue.iter().map(|(_, item)| item);
        waiting.chain(&self.serving).chain(&self.on_the_way)
    }
}

/// Direction of a load's frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Way {
    /// The frame goes from the load's `from` to its `to`.
    #[default]
    Forth,
    /// The frame goes from the load's `to` to its `from`.
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
    /// Time of arrival in its sender's ring, or at its uplink (ns).
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_pass_in_order_at_the_rate_and_arrive_after_the_delay() {
        let mut link = Link::new(1_000_000_000, 50, 1);
        assert_eq!(link.send(100, 1_000, 'a'), Ok(Some(8_100)));
        assert_eq!(link.send(101, 500, 'b'), Ok(None));
        assert_eq!(link.send(102, 500, 'c'), Err('c'), "one may wait");
        assert_eq!(link.served(8_100), (8_150, Some(12_100)));
        assert_eq!((link.arrived(), link.items().count()), (Some('a'), 1));
        assert_eq!(link.served(12_100), (12_150, None));
        assert_eq!((link.arrived(), link.items().count()), (Some('b'), 0));
    }
}
