//! Counters of a port. Directions are the guest's, as in virtio: *tx* is traffic into the switch, *rx* out of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use weir_limits::QUEUE_PAIRS_MAX;

use crate::burst::Burst;
use crate::capture::Looks;
use crate::run_queue::Cost;

mod times;

pub use times::{TIME_BOUNDS_NS, Times, TimesSummary};

/// The reasons for which frames are dropped, each with a named counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The switch's rules refused it; counted at the sender.
    Fabric(weir_fabric::DropReason),
    /// Shorter than an Ethernet header; counted at the sender.
    FrameTooShort,
    /// Longer than any frame weir moves; counted at the sender.
    FrameTooLong,
    /// A GSO frame whose headers weir cannot parse; counted at the sender.
    GsoHeaders,
    /// Refused by a filter of the sender; counted at the sender.
    FilteredTx,
    /// Longer than its sender's MTU allows; counted at the sender.
    OverMtuTx,
    /// More broadcasts than its sender can have flooded; counted at the sender, like the next two.
    StormBroadcast,
    /// More multicasts.
    StormMulticast,
    /// More frames for unknown stations.
    StormUnknown,
    /// For an unknown station, and no port can receive the flooded frame; counted at the sender.
    UnknownUnicast,
    /// The sender's transmit queue is disabled: its frames are drained, not forwarded.
    TxDisabled,
    /// The receiver had no buffers for as long as a frame may wait; counted at the sender.
    RxWaitedTooLong,
    /// The sender's transmit queue stopped while the frame waited for its receiver; counted at the sender.
    TxStopped,
    /// The receiver's queue is stopped or disabled; counted at the receiver, like all that follow.
    RxNotReady,
    /// Refused by a filter of the receiver.
    FilteredRx,
    /// Longer than its receiver's MTU allows.
    OverMtuRx,
    /// More than the receiver is allowed to receive in a second.
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
    /// Xen did not copy it: a page was not granted (counted at its guest), or the sender's memory was removed.
    CopyFailed,
    /// It came to an overlay without a header that weir knows, or with an invalid inner frame; counted at the overlay,
    /// like all that follow.
    BadEncapsulation,
    /// It was marked as congested on its way from another host, and its sender ignores marks (RFC 6040 §4.2).
    MarkedNotEct,
    /// It came for a network that the overlay does not serve.
    NetworkUnknown,
    /// It came from a host that is no member of its network.
    RemoteUnknown,
    /// More than its network may flood in a second.
    FloodBudget,
    /// Longer than the path to its remote allows, and it cannot be cut.
    OverPathMtu,
    /// There is no route to its remote.
    RemoteUnreachable,
    /// Too many answers in a second: weir's own answer to a guest's request, or the message to a guest that its packet
    /// is too long.
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

    /// Its index in [`all`](Self::all).
    pub(crate) fn index(self) -> usize {
        match self {
            Self::Fabric(reason) => reason.index(),
            own => {
                let at = Self::OWN.iter().position(|r| *r == own);
                weir_fabric::DropReason::COUNT + at.unwrap_or(0)
            }
        }
    }

    /// True if it is counted at the receiver.
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

/// The reasons for which a receiver was notified of a frame later than its latency budget allows, each with a named
/// counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreachReason {
    /// The worker was off its CPU for as long as the call was late: the CPU served another thread or machine.
    NoCpu,
    /// Switching alone took longer than the budget, and the call was not held: the worker had too much to do.
    ForwardedLate,
    /// Its call was held, and the worker came back too late: it had too much to do.
    AskedLate,
    /// The policy's deadline was past the budget: a bug in weir.
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
    /// Adds `n`.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// The value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters of one queue in one direction.
#[derive(Debug, Default)]
pub struct QueueCounters {
    /// Frames moved. A GSO frame counts once.
    pub frames: Counter,
    /// Their bytes, Ethernet header to the end of the payload.
    pub bytes: Counter,
    /// Calls (virtual interrupts) made.
    pub calls: Counter,
    /// Calls that the guest had suppressed.
    pub calls_suppressed: Counter,
    /// Kicks received.
    pub kicks: Counter,
}

/// The counters of a port.
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
    /// Calls of this guest that took more than `CALL_NS_USUAL_MAX` of the caller's time.
    pub dear_calls: Counter,
    /// The excess of these calls, charged to this port (ns); also in `worker_ns`.
    pub dear_call_ns: Counter,
    /// Times that a queue with frames to send had to wait for its port's rate.
    pub rate_waits: Counter,
    /// Times that kicks of one of its rings were ignored for a while, since they brought no frames.
    pub kick_pauses: Counter,
    /// Windows of turns (`weir_policy::schedule::Window`) with more late turns than allowed.
    pub window_violations: Counter,
    drops: [Counter; DropReason::COUNT],
    breaches: [Counter; BreachReason::ALL.len()],
    /// The observers that copy dropped frames.
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
    /// Counts dropped frames that no longer exist; [`dropped_of`](Self::dropped_of) counts frames of a burst.
    #[inline]
    pub fn dropped(&self, reason: impl Into<DropReason>, frames: u64) {
        if frames > 0 {
            self.note_dropped(reason.into(), frames, None);
        }
    }

    /// Counts the frames of `burst` in `frames` (bit i: frame i) as dropped, and passes them to captures of drops.
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

    /// Sets the observers of dropped frames.
    pub(crate) fn set_looks(&self, looks: Option<Arc<Looks>>) {
        self.looks.store(looks);
    }

    /// Counts the cost of a burst that this port sent.
    #[inline]
    pub(crate) fn charge(&self, cost: Cost) {
        self.worker_ns.add(cost.worker_ns);
        if cost.violations > 0 {
            self.window_violations.add(cost.violations);
        }
    }

    /// Counts the excess of a call of this port, which another port's burst made (ns).
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

    /// Counts a late notification of this receiver about its frames.
    #[cold]
    pub fn breached(&self, reason: BreachReason) {
        self.breaches[reason as usize].add(1);
    }

    /// The reasons for which this receiver was notified too late, with their counts.
    pub fn breaches(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counted = BreachReason::ALL.iter().zip(&self.breaches);
        counted
            .map(|(reason, counter)| (reason.as_str(), counter.get()))
            .filter(|(_, count)| *count > 0)
    }

    /// The number of frames that were dropped for one reason.
    pub fn dropped_for(&self, reason: DropReason) -> u64 {
        self.drops[reason.index()].get()
    }

    /// The reasons for which frames were dropped, with the number of frames.
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
