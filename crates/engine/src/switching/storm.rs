//! Storm control: limits on the packets that a sender can flood in a second. Each costs a copy for every port of the
//! VLAN.

use weir_policy::policing::Gcra;
use weir_wire::Mac;

use crate::frames::burst::Frame;
use crate::frames::drop_reason::DropReason;
use crate::switching::rate::Rate;

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

    /// The result that [`refuses`](Self::refuses) would return; nothing is paid.
    pub(crate) fn would_refuse(&self, dst: Mac, frame: &Frame, now_ns: u64) -> Option<DropReason> {
        let (bucket, reason) = self.bucket(dst);
        let packets = frame.on_wire().packets;
        let passes = bucket.as_ref()?.would_pass_within_burst(now_ns, packets);
        (!passes).then_some(reason)
    }

    /// The reason for which a frame for `dst` is not flooded now, if there is one; otherwise the frame is paid for.
    #[cold]
    pub(crate) fn refuses(&self, dst: Mac, frame: &Frame, now_ns: u64) -> Option<DropReason> {
        let (bucket, reason) = self.bucket(dst);
        let passes = bucket.as_ref()?.pass_within_burst(now_ns, frame.on_wire().packets);
        (!passes).then_some(reason)
    }
}
