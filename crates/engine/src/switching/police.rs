//! Limits on the traffic that a port receives in a second: frames beyond it are dropped, whatever their sender.

use weir_policy::policing::{Gcra, Passed};

use crate::frames::burst::{Burst, Frame, OnWire};
use crate::frames::drop_reason::DropReason;
use crate::frames::port::Outgoing;
use crate::frames::stats::PortCounters;
use crate::switching::rate::{Rate, RateLimit};

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

    /// True if a frame would exceed the rate now; nothing is paid.
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
