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

/// Declares why frames are dropped. Each reason is listed under the port that counts it, with its counter's name. The
/// reasons of another crate come first, and count at the sender.
macro_rules! drop_reasons {
    (
        $(#[$doc:meta])* pub enum $name:ident { $(#[$others_doc:meta])* $others:ident($inner:ty) }
        sender { $($(#[$sent_doc:meta])* $sent:ident = $sent_counter:literal,)+ }
        receiver { $($(#[$got_doc:meta])* $got:ident = $got_counter:literal,)+ }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $(#[$others_doc])*
            $others($inner),
            $($(#[$sent_doc])* $sent,)+
            $($(#[$got_doc])* $got,)+
        }

        weir_fabric::reasons! {
            enum Own { $($sent = $sent_counter,)+ $($got = $got_counter,)+ }
        }

        impl $name {
            const COUNT: usize = <$inner>::COUNT + Own::COUNT;
            const OWN: [Self; Own::COUNT] = [$(Self::$sent,)+ $(Self::$got),+];

            /// The reason's index in [`all`](Self::all).
            pub(crate) const fn index(self) -> usize {
                match self {
                    Self::$others(reason) => reason.index(),
                    $(Self::$sent => <$inner>::COUNT + Own::$sent.index(),)+
                    $(Self::$got => <$inner>::COUNT + Own::$got.index(),)+
                }
            }

            /// True if the receiver counts the drop.
            pub(crate) const fn is_receivers(self) -> bool {
                matches!(self, $(Self::$got)|+)
            }

            /// The counter's name.
            pub const fn as_str(self) -> &'static str {
                match self {
                    Self::$others(reason) => reason.as_str(),
                    $(Self::$sent => $sent_counter,)+
                    $(Self::$got => $got_counter,)+
                }
            }
        }
    };
}

drop_reasons! {
    /// The reasons for which frames are dropped, each with a named counter.
    pub enum DropReason {
        /// The switch's rules refuse the frame.
        Fabric(weir_fabric::DropReason)
    }
    sender {
        /// The frame is shorter than an Ethernet header.
        FrameTooShort = "frame_too_short",
        /// The frame is longer than any frame that weir moves.
        FrameTooLong = "frame_too_long",
        /// weir cannot parse the headers of a GSO frame.
        GsoHeaders = "gso_headers",
        /// A filter of the sender refuses the frame.
        FilteredTx = "filtered_tx",
        /// The sender's security groups do not allow the frame.
        GroupOut = "group_out",
        /// The frame is longer than its sender's MTU allows.
        OverMtuTx = "over_mtu_tx",
        /// The sender has exceeded its limit of flooded broadcasts.
        StormBroadcast = "storm_broadcast",
        /// The sender has exceeded its limit of flooded multicasts.
        StormMulticast = "storm_multicast",
        /// The sender has exceeded its limit of flooded frames for unknown stations.
        StormUnknown = "storm_unknown",
        /// The frame is for an unknown station, and no port can receive the flooded frame.
        UnknownUnicast = "unknown_unicast",
        /// The sender's transmit queue is disabled: its frames are drained, not forwarded.
        TxDisabled = "tx_disabled",
        /// The receiver had no buffers for as long as a frame may wait.
        RxWaitedTooLong = "rx_waited_too_long",
        /// The sender's transmit queue stopped while the frame waited for its receiver.
        TxStopped = "tx_stopped",
        /// A Xen guest's transmit request breaks the guest's protocol.
        BadRequest = "bad_request",
        /// The datagram came to an overlay without a header that weir knows, or with an invalid inner frame.
        BadEncapsulation = "bad_encapsulation",
        /// The frame was marked as congested on its way from another host, and its sender ignores marks (RFC 6040
        /// §4.2).
        MarkedNotEct = "marked_not_ect",
        /// The frame came for a network that the overlay does not serve.
        NetworkUnknown = "network_unknown",
        /// The frame came from a host that is no member of the frame's network.
        RemoteUnknown = "remote_unknown",
    }
    receiver {
        /// The receiver's queue is stopped or disabled.
        RxNotReady = "rx_not_ready",
        /// A filter of the receiver refuses the frame.
        FilteredRx = "filtered_rx",
        /// The receiver's security groups do not allow the frame.
        GroupIn = "group_in",
        /// The frame is longer than its receiver's MTU allows.
        OverMtuRx = "over_mtu_rx",
        /// The receiver's limit on received traffic is exceeded.
        PolicedRx = "policed_rx",
        /// The receiver had no buffers, and the frame could not wait.
        RxRingFull = "rx_ring_full",
        /// The receiver's buffer is smaller than the frame, and buffers cannot be merged.
        RxBufferTooSmall = "rx_buffer_too_small",
        /// The receiver lacks an offload, and weir cannot do the work for this frame.
        OffloadUnsupported = "offload_unsupported",
        /// The frame has no room for the VLAN tag that it must get.
        NoRoomForTag = "no_room_for_tag",
        /// The host's network device refused the frame.
        DeviceError = "device_error",
        /// The receiver, a Xen guest, has not asked for frames to this multicast address.
        MulticastUnwanted = "multicast_unwanted",
        /// The network has exceeded its limit of flooded frames.
        FloodBudget = "flood_budget",
        /// The frame is longer than the path to its remote allows, and cannot be cut.
        OverPathMtu = "over_path_mtu",
        /// There is no route to the frame's remote.
        RemoteUnreachable = "remote_unreachable",
        /// Too many answers in a second. The dropped frame is weir's own answer to a guest's request, or its message to
        /// a guest that a packet is too long.
        AnswerBudget = "answer_budget",
        /// Xen did not copy the frame: a page was not granted (counted at its guest), or the sender's memory was
        /// removed.
        CopyFailed = "copy_failed",
        /// A copy for a mirror found no room; counted at the mirror's port.
        MirrorLost = "mirror_lost",
    }
}

impl DropReason {
    /// Every reason.
    pub fn all() -> impl Iterator<Item = Self> {
        weir_fabric::DropReason::ALL.into_iter().map(Self::Fabric).chain(Self::OWN)
    }
}

impl From<weir_fabric::DropReason> for DropReason {
    fn from(reason: weir_fabric::DropReason) -> Self {
        Self::Fabric(reason)
    }
}

weir_fabric::reasons! {
    /// The reasons for late notifications of a receiver, each with a named counter.
    pub enum BreachReason {
        /// The worker was off its CPU for as long as the call was late: the CPU ran another thread or machine.
        NoCpu = "no_cpu",
        /// Switching alone took longer than the budget, and the call was not held: the worker had too much to do.
        ForwardedLate = "forwarded_late",
        /// The call was held, and the worker came back to it too late: it had too much to do.
        AskedLate = "asked_late",
        /// The policy's deadline was later than the budget allows: a bug in weir.
        Policy = "policy",
    }
}

/// A counter to which one thread at a time adds, and which any thread reads.
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
    /// Bytes of the moved frames, from the Ethernet header to the end of the payload.
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
    /// The counters of each transmit queue.
    pub tx: [QueueCounters; QUEUE_PAIRS_MAX],
    /// The counters of each receive queue.
    pub rx: [QueueCounters; QUEUE_PAIRS_MAX],
    /// Frames that waited in the sender's memory for a receiver; counted at the sender.
    pub parked: Counter,
    /// Packets merged from TCP segments for this receiver; the segments count as frames.
    pub gro: Counter,
    /// Worker time that was charged to this port as a sender (ns).
    pub worker_ns: Counter,
    /// Calls of this guest that took more than `CALL_NS_USUAL_MAX` of the caller's time.
    pub dear_calls: Counter,
    /// Time beyond `CALL_NS_USUAL_MAX` that those calls took (ns). It is charged to this port, and also in `worker_ns`.
    pub dear_call_ns: Counter,
    /// Times that a queue with frames to send had to wait for its port's rate.
    pub rate_waits: Counter,
    /// Number of times that kicks of one of the port's rings were ignored for a while, since they brought no frames.
    pub kick_pauses: Counter,
    /// Windows of turns (`weir_policy::schedule::Window`) with more late turns than allowed.
    pub window_violations: Counter,
    drops: [Counter; DropReason::COUNT],
    breaches: [Counter; BreachReason::COUNT],
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

    /// Charges this port for a burst that it sent.
    #[inline]
    pub(crate) fn charge(&self, cost: Cost) {
        self.worker_ns.add(cost.worker_ns);
        if cost.violations > 0 {
            self.window_violations.add(cost.violations);
        }
    }

    /// Charges this port the excess of an expensive call (ns) that another port's burst made to it.
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
        self.breaches[reason.index()].add(1);
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
    fn the_guide_has_each_drop_reason_at_the_port_that_counts_it() {
        let guide = include_str!("../../../docs/guide/counters.md");
        let (_, drops) = guide.split_once("\n## Drops\n").unwrap();
        let (sender, receiver) = drops.split_once("\nCounted at the **receiver**").unwrap();
        for reason in DropReason::all() {
            let rows = if reason.is_receivers() { receiver } else { sender };
            let name = format!("`{}`", reason.as_str());
            let is_row = |line: &str| {
                line.strip_prefix("| ")
                    .is_some_and(|row| row.split(" | ").next().unwrap().contains(&name))
            };
            assert!(rows.lines().any(is_row), "{name}");
        }
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
