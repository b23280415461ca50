//! Limits of a port, whatever the sender: bits and packets that it receives in a second, packets that it floods in a
//! second (storm control), and the length of its frames. Frames beyond a limit are dropped.

use weir_policy::policing::{Gcra, Passed};
use weir_wire::ethernet::HEADER_LEN;
use weir_wire::vlan::TAG_LEN;
use weir_wire::{Mac, TagProtocol};

use crate::frames::burst::{Burst, Frame, OnWire};
use crate::frames::drop_reason::DropReason;
use crate::frames::port::Outgoing;
use crate::frames::stats::PortCounters;

/// The buckets of one receiver, shared by all workers that deliver to it.
#[derive(Debug)]
pub(crate) struct Police {
    bits: Option<Gcra>,
    packets: Option<Gcra>,
}

/// The cost of some frames for their receiver, before it is known whether they get there.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Charge {
    /// Frames of the burst that exceed the rate, by their index in the burst.
    pub(crate) refused: u64,
    bits: Option<Passed>,
    packets: Option<Passed>,
}

impl Police {
    /// `None` where nothing is limited.
    pub(crate) fn new(limit: RateLimit) -> Option<Self> {
        let bucket = |rate: Rate| Gcra::new(rate.per_s, rate.burst);
        let limited = limit != RateLimit::NONE;
        limited.then(|| Self { bits: limit.bits.map(bucket), packets: limit.packets.map(bucket) })
    }

    /// True if a frame would exceed the rate now; nothing is charged.
    pub(crate) fn would_refuse(&self, frame: &Frame, now_ns: u64) -> bool {
        let exceeds = |bucket: &Option<Gcra>, tokens| {
            bucket.as_ref().is_some_and(|bucket| !bucket.would_pass(now_ns, tokens))
        };
        let OnWire { packets, bytes } = frame.on_wire();
        exceeds(&self.bits, 8 * bytes) || exceeds(&self.packets, packets)
    }

    /// Charges for the frames of `list` within the rate, and counts the others.
    #[inline(never)]
    pub(crate) fn charge(
        &self,
        list: &[Outgoing],
        burst: &Burst<'_>,
        now_ns: u64,
        counters: &PortCounters,
    ) -> Charge {
        let bits_of = |outgoing: &Outgoing| bits(burst, outgoing.frame);
        let mut passing = u64::MAX;
        let bits = self.bits.as_ref().map(|bucket| {
            let passed = bucket.pass(now_ns, passing, list.iter().map(bits_of));
            passing = passed.frames;
            passed
        });
        let packets = self.packets.as_ref().map(|bucket| {
            let packets_of = |outgoing: &Outgoing| packets(burst, outgoing.frame);
            let passed = bucket.pass(now_ns, passing, list.iter().map(packets_of));
            if let (Some(bucket), Some(bits)) = (&self.bits, &bits) {
                let refused = passing & !passed.frames;
                let places = list.iter().enumerate();
                let only = places.filter(|(place, _)| refused >> place & 1 != 0);
                bucket.give_back(now_ns, bits, only.map(|(_, outgoing)| bits_of(outgoing)));
            }
            passing = passed.frames;
            passed
        });
        let mut refused = 0;
        for (place, outgoing) in list.iter().enumerate() {
            refused |= (!passing >> place & 1) << outgoing.frame;
        }
        counters.dropped_of(DropReason::PolicedRx, burst, refused);
        Charge { refused, bits, packets }
    }

    /// Refunds the frames of the burst in `undelivered` (by bit): they were charged, but their receiver was full.
    #[cold]
    pub(crate) fn give_back(
        &self,
        charge: &Charge,
        burst: &Burst<'_>,
        undelivered: u64,
        now_ns: u64,
    ) {
        let frames = (0..).take(burst.frames().len()).filter(|n: &u16| undelivered >> n & 1 != 0);
        if let (Some(bucket), Some(passed)) = (&self.bits, &charge.bits) {
            bucket.give_back(now_ns, passed, frames.clone().map(|frame| bits(burst, frame)));
        }
        if let (Some(bucket), Some(passed)) = (&self.packets, &charge.packets) {
            bucket.give_back(now_ns, passed, frames.map(|frame| packets(burst, frame)));
        }
    }
}

/// Bits of a frame on a wire, as its sender's rate counts them.
fn bits(burst: &Burst<'_>, frame: u16) -> u32 {
    8 * burst.frames()[usize::from(frame)].on_wire().bytes
}

/// Packets of a frame on a wire.
fn packets(burst: &Burst<'_>, frame: u16) -> u32 {
    burst.frames()[usize::from(frame)].on_wire().packets
}

/// A rate, and a burst beyond it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// The number of bits or packets in a second.
    pub per_s: u64,
    /// The number of bits or packets that may come at once, after a pause.
    pub burst: u64,
}

/// The limits on a port's traffic in one direction, over all its queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateLimit {
    /// Limit in bits, from the Ethernet header to the end of the payload: each segment of a GSO frame has its own
    /// headers, as Linux's `tc` counts them.
    pub bits: Option<Rate>,
    /// Limit in packets: a GSO frame counts as its segments.
    pub packets: Option<Rate>,
}

impl RateLimit {
    /// No limits.
    pub const NONE: Self = Self { bits: None, packets: None };
}

/// Limits on flooded packets of a port, by the kind of destination: a GSO frame counts as its segments. A frame with
/// more segments than the burst is never flooded: it alone would exceed the rate of a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StormLimit {
    /// Broadcasts.
    pub broadcast: Option<Rate>,
    /// Multicasts.
    pub multicast: Option<Rate>,
    /// Frames for one unknown station.
    pub unknown: Option<Rate>,
}

/// The buckets of one sender, shared by all workers.
#[derive(Debug)]
pub(crate) struct Storm {
    broadcast: Option<Gcra>,
    multicast: Option<Gcra>,
    unknown: Option<Gcra>,
}

impl Storm {
    /// `None` if nothing is limited.
    pub(crate) fn new(limit: StormLimit) -> Option<Self> {
        let bucket = |rate: Rate| Gcra::new(rate.per_s, rate.burst);
        let StormLimit { broadcast, multicast, unknown } = limit;
        let limited = limit != StormLimit::default();
        limited.then(|| Self {
            broadcast: broadcast.map(bucket),
            multicast: multicast.map(bucket),
            unknown: unknown.map(bucket),
        })
    }

    /// The bucket and the drop reason for a flooded frame to `dst`.
    fn bucket(&self, dst: Mac) -> (&Option<Gcra>, DropReason) {
        if dst == Mac::BROADCAST {
            (&self.broadcast, DropReason::StormBroadcast)
        } else if dst.is_multicast() {
            (&self.multicast, DropReason::StormMulticast)
        } else {
            (&self.unknown, DropReason::StormUnknown)
        }
    }

    /// The result that [`refuses`](Self::refuses) would return; nothing is charged.
    pub(crate) fn would_refuse(&self, dst: Mac, frame: &Frame, now_ns: u64) -> Option<DropReason> {
        let (bucket, reason) = self.bucket(dst);
        let packets = frame.on_wire().packets;
        let passes = bucket.as_ref()?.would_pass_within_burst(now_ns, packets);
        (!passes).then_some(reason)
    }

    /// The reason why a frame for `dst` is not flooded now, if there is one. Otherwise the frame
    /// uses up a part of the limit.
    #[cold]
    pub(crate) fn refuses(&self, dst: Mac, frame: &Frame, now_ns: u64) -> Option<DropReason> {
        let (bucket, reason) = self.bucket(dst);
        let passes = bucket.as_ref()?.pass_within_burst(now_ns, frame.on_wire().packets);
        (!passes).then_some(reason)
    }
}

/// Most bytes of a port's frames, without VLAN tags: up to two tags do not count, as in a Linux bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameLenMax(u32);

impl FrameLenMax {
    /// No limit except weir's own.
    pub(crate) const NONE: Self = Self(u32::MAX);

    /// An Ethernet header and `mtu` bytes after it.
    pub(crate) fn of_mtu(mtu: Option<u16>) -> Self {
        mtu.map_or(Self::NONE, |mtu| Self(u32::from(mtu) + HEADER_LEN as u32))
    }

    /// The most bytes; `None` without a limit.
    pub(crate) fn get(self) -> Option<u32> {
        (self != Self::NONE).then_some(self.0)
    }

    /// Bytes behind the Ethernet header; `None` without a limit.
    pub(crate) fn mtu(self) -> Option<u16> {
        u16::try_from(self.get()? - HEADER_LEN as u32).ok()
    }

    /// Frames of a burst that are longer, by their index.
    pub(crate) fn exceeded_by(self, burst: &Burst<'_>) -> u64 {
        let bits = burst.frames().iter().zip(0_u32..);
        bits.fold(0, |over, (frame, index)| over | u64::from(self.is_exceeded_by(frame)) << index)
    }

    /// Frames in `list` that are longer than the limit (bit i: frame i of the burst).
    pub(crate) fn exceeded_in(self, list: &[Outgoing], burst: &Burst<'_>) -> u64 {
        let frames = list
            .iter()
            .map(|outgoing| (outgoing.frame, burst.frames().get(usize::from(outgoing.frame))));
        frames.fold(0, |over, (index, frame)| {
            over | u64::from(frame.is_some_and(|frame| self.is_exceeded_by(frame))) << index
        })
    }

    #[inline]
    fn is_exceeded_by(self, frame: &Frame) -> bool {
        frame.len > self.0 && segment_len(frame) - second_tag_len(frame) > self.0
    }
}

/// Bytes of the tag that a frame begins with behind the removed one.
fn second_tag_len(frame: &Frame) -> u32 {
    TagProtocol::of_ethertype(frame.head.ethertype()).map_or(0, |_| TAG_LEN as u32)
}

/// Bytes of the longest frame on the wire after this one was cut, if it must be.
fn segment_len(frame: &Frame) -> u32 {
    frame
        .offload
        .gso()
        .map_or(frame.len, |gso| frame.len.min(u32::from(gso.hdr_len) + u32::from(gso.size)))
}
