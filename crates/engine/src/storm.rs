//! Storm control: how many packets a second a sender may flood, each of which costs a copy for every port of the
//! VLAN.

use weir_policy::policing::Gcra;
use weir_wire::Mac;

use crate::burst::Frame;
use crate::share::Rate;
use crate::stats::DropReason;

/// Packets that a port may have flooded, by why they are: a GSO frame counts as its segments. One of more segments than
/// the burst is never flooded: it alone would exceed what a second may bring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StormLimit {
    /// For everybody.
    pub broadcast: Option<Rate>,
    /// For a group.
    pub multicast: Option<Rate>,
    /// For one station that nobody knows.
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
    /// `None` where nothing is limited.
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

    /// What a frame for `dst` that is flooded counts as.
    fn bucket(&self, dst: Mac) -> (&Option<Gcra>, DropReason) {
        if dst == Mac::BROADCAST {
            (&self.broadcast, DropReason::StormBroadcast)
        } else if dst.is_multicast() {
            (&self.multicast, DropReason::StormMulticast)
        } else {
            (&self.unknown, DropReason::StormUnknown)
        }
    }

    /// What [`refuses`](Self::refuses) would say; nothing is paid.
    pub(crate) fn would_refuse(&self, dst: Mac, frame: &Frame, now_ns: u64) -> Option<DropReason> {
        let (bucket, reason) = self.bucket(dst);
        let packets = frame.on_wire().packets;
        let passes = bucket.as_ref()?.would_pass_within_burst(now_ns, packets);
        (!passes).then_some(reason)
    }

    /// Why a frame for `dst` is not flooded now, if so; else it is paid for.
    #[cold]
    pub(crate) fn refuses(&self, dst: Mac, frame: &Frame, now_ns: u64) -> Option<DropReason> {
        let (bucket, reason) = self.bucket(dst);
        let passes = bucket.as_ref()?.pass_within_burst(now_ns, frame.on_wire().packets);
        (!passes).then_some(reason)
    }
}
