//! Counters of a port. Directions are the guest's, as in virtio: *tx* went into the switch, *rx* came out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use weir_limits::QUEUE_PAIRS_MAX;

use crate::burst::Burst;
use crate::capture::Looks;
use crate::run_queue::Cost;

mod times;

pub use times::{TIME_BOUNDS_NS, Times, TimesSummary};

/// Why a frame was dropped: one named counter each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The switch's rules refuse it; counted at the sender.
    Fabric(weir_fabric::DropReason),
    /// Shorter than an Ethernet header; counted at the sender.
    FrameTooShort,
    /// Longer than any frame weir moves; counted at the sender.
    FrameTooLong,
    /// A GSO frame whose headers weir cannot follow; counted at the sender.
    GsoHeaders,
    /// A filter of the sender's; counted at the sender.
    FilteredTx,
    /// Longer than its sender's MTU allows; counted at the sender.
    OverMtuTx,
    /// More broadcasts than its sender may have flooded; counted at the sender, as the next two.
    StormBroadcast,
    /// More multicasts.
    StormMulticast,
    /// More frames for stations that nobody knows.
    StormUnknown,
    /// For a station that nobody knows, and of the ports that there are none can have it; counted at the sender.
    UnknownUnicast,
    /// The sender's transmit queue is disabled: its frames are drained, not forwarded.
    TxDisabled,
    /// The receiver had no buffers for as long as a frame may wait; counted at the sender.
    RxWaitedTooLong,
    /// The sender's transmit queue stopped while the frame waited for its receiver; counted at the sender.
    TxStopped,
    /// The receiver's queue is stopped or disabled; counted at the receiver, as all that follow.
    RxNotReady,
    /// A filter of the receiver's.
    FilteredRx,
    /// Longer than its receiver's MTU allows.
    OverMtuRx,
    /// More than the receiver may get in a second.
    PolicedRx,
    /// The receiver had no buffers, and the frame could not wait.
    RxRingFull,
    /// The receiver's buffer is smaller than the frame and buffers cannot be merged.
    RxBufferTooSmall,
    /// The receiver lacks an offload and weir cannot do the work for this frame.
    OffloadUnsupported,
    /// The frame has no room for the VLAN tag it must get.
    NoRoomForTag,
    /// The host's network device refused it.
    DeviceError,
    /// A multicast address that the receiver, a Xen guest, has not asked for.
    MulticastUnwanted,
    /// A transmit request of a Xen guest that its protocol does not allow; counted at the sender.
    BadRequest,
    /// Xen did not copy it: a page was not granted (counted at its guest), or the sender's memory has gone.
    CopyFailed,
    /// It came to an overlay without a header that weir knows, or with a frame that is none; counted at the overlay, as
    /// all that follow.
    BadEncapsulation,
    /// Its way from another host was marked as congested, and its sender heeds no mark (RFC 6040 §4.2).
    MarkedNotEct,
    /// It came for a network that the overlay does not serve.
    NetworkUnknown,
    /// It came from a host that is no member of its network.
    RemoteUnknown,
    /// More than its network may flood in a second.
    FloodBudget,
    /// Longer than the way to its remote takes, where nothing is cut.
    OverPathMtu,
    /// There is no way to its remote.
    RemoteUnreachable,
    /// A guest asked what weir answers itself, or was to be told that its packet is too long, and there were too many such
    /// answers.
    AnswerBudget,
    /// A copy for a mirror found no room; counted at the mirror's port.
    MirrorLost,
}

impl DropReason {
    const OWN: [Self; 33] = [
        Self::FrameTooShort,
        Self::FrameTooLong,
        Self::GsoHeaders,
        Self::FilteredTx,
        Self::OverMtuTx,
        Self::StormBroadcast,
        Self::StormMulticast,
        Self::StormUnknown,
        Self::UnknownUnicast,
        Self::TxDisabled,
        Self::RxWaitedTooLong,
        Self::TxStopped,
        Self::RxNotReady,
        Self::FilteredRx,
        Self::OverMtuRx,
        Self::PolicedRx,
        Self::RxRingFull,
        Self::RxBufferTooSmall,
        Self::OffloadUnsupported,
        Self::NoRoomForTag,
        Self::DeviceError,
        Self::MulticastUnwanted,
        Self::BadRequest,
        Self::BadEncapsulation,
        Self::MarkedNotEct,
        Self::NetworkUnknown,
        Self::RemoteUnknown,
        Self::FloodBudget,
        Self::OverPathMtu,
        Self::RemoteUnreachable,
        Self::AnswerBudget,
        Self::CopyFailed,
        Self::MirrorLost,
    ];
    const COUNT: usize = weir_fabric::DropReason::COUNT + Self::OWN.len();

    /// Every reason.
    pub fn all() -> impl Iterator<Item = Self> {
        weir_fabric::DropReason::ALL.into_iter().map(Self::Fabric).chain(Self::OWN)
    }

    /// Its place among [`all`](Self::all).
    pub(crate) fn index(self) -> usize {
        match self {
            Self::Fabric(reason) => reason.index(),
            own => {
                let at = Self::OWN.iter().position(|r| *r == own);
                weir_fabric::DropReason::COUNT + at.unwrap_or(0)
            }
        }
    }

    /// Whether it is counted at the receiver.
    pub(crate) fn is_receivers(self) -> bool {
        matches!(
            self,
            Self::RxNotReady
                | Self::FilteredRx
                | Self::OverMtuRx
                | Self::PolicedRx
                | Self::RxRingFull
                | Self::RxBufferTooSmall
                | Self::OffloadUnsupported
                | Self::NoRoomForTag
                | Self::DeviceError
                | Self::MulticastUnwanted
                | Self::MirrorLost
        )
    }

    /// The counter's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fabric(reason) => reason.as_str(),
            Self::FrameTooShort => "frame_too_short",
            Self::FrameTooLong => "frame_too_long",
            Self::GsoHeaders => "gso_headers",
            Self::FilteredTx => "filtered_tx",
            Self::OverMtuTx => "over_mtu_tx",
            Self::OverMtuRx => "over_mtu_rx",
            Self::StormBroadcast => "storm_broadcast",
            Self::StormMulticast => "storm_multicast",
            Self::StormUnknown => "storm_unknown",
            Self::UnknownUnicast => "unknown_unicast",
            Self::FilteredRx => "filtered_rx",
            Self::PolicedRx => "policed_rx",
            Self::TxDisabled => "tx_disabled",
            Self::TxStopped => "tx_stopped",
            Self::RxNotReady => "rx_not_ready",
            Self::RxRingFull => "rx_ring_full",
            Self::RxWaitedTooLong => "rx_waited_too_long",
            Self::RxBufferTooSmall => "rx_buffer_too_small",
            Self::OffloadUnsupported => "offload_unsupported",
            Self::NoRoomForTag => "no_room_for_tag",
            Self::DeviceError => "device_error",
            Self::MulticastUnwanted => "multicast_unwanted",
            Self::BadRequest => "bad_request",
            Self::BadEncapsulation => "bad_encapsulation",
            Self::MarkedNotEct => "marked_not_ect",
            Self::NetworkUnknown => "network_unknown",
            Self::RemoteUnknown => "remote_unknown",
            Self::FloodBudget => "flood_budget",
            Self::OverPathMtu => "over_path_mtu",
            Self::RemoteUnreachable => "remote_unreachable",
            Self::CopyFailed => "copy_failed",
            Self::AnswerBudget => "answer_budget",
            Self::MirrorLost => "mirror_lost",
        }
    }
}

impl From<weir_fabric::DropReason> for DropReason {
    fn from(reason: weir_fabric::DropReason) -> Self {
        Self::Fabric(reason)
    }
}

/// Why a receiver was told of a frame later than its latency budget allows: one named counter each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreachReason {
    /// The worker was off its CPU for as long as the call was late: the CPU served another thread or machine.
    NoCpu,
    /// Switching alone took longer than the budget, and the call was not held: the worker had too much to do.
    ForwardedLate,
    /// Its call was held, and the worker came back too late: it had too much to do.
    AskedLate,
    /// The policy's deadline was past the budget: a mistake of weir's.
    Policy,
}

impl BreachReason {
    /// Every reason, in the order of their counters.
    pub const ALL: [Self; 4] = [Self::NoCpu, Self::ForwardedLate, Self::AskedLate, Self::Policy];

    /// The counter's name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoCpu => "no_cpu",
            Self::ForwardedLate => "forwarded_late",
            Self::AskedLate => "asked_late",
            Self::Policy => "policy",
        }
    }
}

/// A counter that one thread at a time adds to and any thread reads.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// The value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// One queue, one direction.
#[derive(Debug, Default)]
pub struct QueueCounters {
    /// Frames moved. A GSO frame counts once.
    pub frames: Counter,
    /// Their bytes, Ethernet header to the end of the payload.
    pub bytes: Counter,
    /// Calls (virtual interrupts) given.
    pub calls: Counter,
    /// Calls that the guest had asked not to get.
    pub calls_suppressed: Counter,
    /// Kicks received.
    pub kicks: Counter,
}

/// Everything a port counts.
#[derive(Debug)]
pub struct PortCounters {
    /// Per transmit queue.
    pub tx: [QueueCounters; QUEUE_PAIRS_MAX],
    /// Per receive queue.
    pub rx: [QueueCounters; QUEUE_PAIRS_MAX],
    /// Frames that waited in the sender's memory for a receiver; counted at the sender.
    pub parked: Counter,
    /// Packets merged from TCP segments for this receiver; the segments count as frames.
    pub gro: Counter,
    /// Worker time that was charged to this port as a sender (ns).
    pub worker_ns: Counter,
    /// Calls of this guest that took more than `CALL_NS_USUAL_MAX` of whoever called.
    pub dear_calls: Counter,
    /// What they took beyond, charged to this port (ns); in `worker_ns`, too.
    pub dear_call_ns: Counter,
    /// Times that a queue with frames to send had to wait for its port's rate.
    pub rate_waits: Counter,
    /// Times that kicks of one of its rings were ignored for a while, since they brought nothing.
    pub kick_pauses: Counter,
    /// Windows of turns (`weir_policy::schedule::Window`) in which more were late than may be.
    pub window_violations: Counter,
    drops: [Counter; DropReason::COUNT],
    breaches: [Counter; BreachReason::ALL.len()],
    /// Who copies what is dropped.
    looks: ArcSwapOption<Looks>,
}

impl Default for PortCounters {
    fn default() -> Self {
        Self {
            tx: Default::default(),
            rx: Default::default(),
            parked: Counter::default(),
            gro: Counter::default(),
            worker_ns: Counter::default(),
            dear_calls: Counter::default(),
            dear_call_ns: Counter::default(),
            rate_waits: Counter::default(),
            kick_pauses: Counter::default(),
            window_violations: Counter::default(),
            drops: std::array::from_fn(|_| Counter::default()),
            breaches: Default::default(),
            looks: ArcSwapOption::empty(),
        }
    }
}

impl PortCounters {
    /// Counts dropped frames that are not at hand; [`dropped_of`](Self::dropped_of) is for those that are.
    #[inline]
    pub fn dropped(&self, reason: impl Into<DropReason>, frames: u64) {
        if frames > 0 {
            self.note_dropped(reason.into(), frames, None);
        }
    }

    /// Counts the frames of `burst` in `frames` (bit i: frame i) as dropped, and shows them to who captures drops.
    #[inline]
    pub fn dropped_of(&self, reason: impl Into<DropReason>, burst: &Burst<'_>, frames: u64) {
        if frames != 0 {
            self.note_dropped(reason.into(), frames, Some(burst));
        }
    }

    #[inline(never)]
    fn note_dropped(&self, reason: DropReason, frames: u64, burst: Option<&Burst<'_>>) {
        let count = burst.map_or(frames, |_| frames.count_ones().into());
        self.drops[reason.index()].add(count);
        let Some(looks) = &*self.looks.load() else { return };
        for tap in looks.taps.iter() {
            match burst {
                Some(burst) => tap.dropped(burst, frames, reason),
                None => tap.dropped_unseen(count, reason),
            }
        }
        if let (Some(followed), Some(_)) = (&looks.followed, burst) {
            followed.dropped(frames, reason);
        }
    }

    /// Who looks from now on at what is dropped.
    pub(crate) fn set_looks(&self, looks: Option<Arc<Looks>>) {
        self.looks.store(looks);
    }

    /// Counts what a burst that this port sent has cost.
    #[inline]
    pub(crate) fn charge(&self, cost: Cost) {
        self.worker_ns.add(cost.worker_ns);
        if cost.violations > 0 {
            self.window_violations.add(cost.violations);
        }
    }

    /// Counts what a call of this port took beyond the usual, of somebody else's burst (ns).
    #[cold]
    pub(crate) fn charge_call(&self, ns: u64) {
        self.worker_ns.add(ns);
        self.dear_call_ns.add(ns);
    }

    /// Counts packets that were merged for this receiver.
    #[inline]
    pub fn merged(&self, packets: u64) {
        if packets > 0 {
            self.gro.add(packets);
        }
    }

    /// Counts a time at which this receiver was told too late of what it had got.
    #[cold]
    pub fn breached(&self, reason: BreachReason) {
        self.breaches[reason as usize].add(1);
    }

    /// The reasons for which this receiver was told too late, with how often.
    pub fn breaches(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counted = BreachReason::ALL.iter().zip(&self.breaches);
        counted
            .map(|(reason, counter)| (reason.as_str(), counter.get()))
            .filter(|(_, count)| *count > 0)
    }

    /// Frames that were dropped for one reason.
    pub fn dropped_for(&self, reason: DropReason) -> u64 {
        self.drops[reason.index()].get()
    }

    /// The reasons for which something was dropped, with how many frames.
    pub fn drops(&self) -> impl Iterator<Item = (&'static str, u64)> {
        DropReason::all()
            .map(|reason| (reason.as_str(), self.drops[reason.index()].get()))
            .filter(|(_, count)| *count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_drop_reason_has_a_counter_and_a_name_of_its_own() {
        let counters = PortCounters::default();
        for reason in DropReason::all() {
            counters.dropped(reason, 1);
        }
        let named: Vec<_> = counters.drops().collect();
        assert_eq!(named.len(), DropReason::COUNT);
        assert!(named.iter().all(|(_, count)| *count == 1), "two reasons share a counter");
        let names: std::collections::HashSet<_> = named.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), DropReason::COUNT);
    }

    #[test]
    fn every_breach_reason_has_a_counter_and_a_name_of_its_own() {
        for reason in BreachReason::ALL {
            let counters = PortCounters::default();
            counters.breached(reason);
            assert_eq!(counters.breaches().collect::<Vec<_>>(), [(reason.as_str(), 1)]);
        }
    }
}
