//! `weir explain`: the present decisions of an interface's policies with their reasons, an uplink's state, and the
//! placement of workers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_config::{Moderation, PortName};

use crate::stats::{
    BlockStats, CallSettings, GuardExplanation, PortState, QueuePairNumbers, RingSizes, RuleStats,
    SilentRing, Times,
};

mod groups;
mod manager;
mod overlay;
mod traffic;
mod workers;

pub use groups::{GroupsExplanation, RefusalExplanation};
pub use manager::{
    AgentExplanation, AgentState, BelowExplanation, CostExplanation, CostSource, Gatherer,
    InterruptPlace, InterruptPlaces, SplitExplanation, UplinkExplanation, UplinkLayer,
    WishExplanation,
};
pub use overlay::{HostExplanation, HostHeard, OverlayExplanation, OverlayNetworkExplanation};
pub use traffic::{Passes, TrafficExplanation, USUAL_DROPS, Verdict, drops_all, stops_all};
pub use workers::{
    DispatchExplanation, MoveExplanation, MovedPair, SteeringExplanation, SteeringQueue,
};
pub use workers::{GuestPlacement, MachineSummary, PlacementExplanation, WorkerPlacement};
pub use workers::{PortShare, ReceivingExplanation, SharingExplanation};

/// The answer of `weir explain`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Explanation {
    /// A guest's interface.
    Vif(Box<VifExplanation>),
    /// An uplink.
    Uplink(Box<UplinkExplanation>),
    /// The placement of workers.
    Placement(Box<PlacementExplanation>),
    /// The overlay.
    Overlay(Box<OverlayExplanation>),
}

impl Explanation {
    /// True if the explanation has counters that are compared between two moments.
    #[must_use]
    pub fn counts(&self) -> bool {
        matches!(self, Self::Vif(_) | Self::Uplink(_))
    }

    /// Counts from `before` on, see [`VifExplanation::since`].
    #[must_use]
    pub fn since(self, before: &Self) -> Self {
        match (self, before) {
            (Self::Vif(now), Self::Vif(before)) => Self::Vif(Box::new(now.since(before))),
            (Self::Uplink(mut now), Self::Uplink(before)) => {
                now.traffic.since(&before.traffic);
                Self::Uplink(now)
            }
            (now, _) => now,
        }
    }
}

/// An interface's policies at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VifExplanation {
    /// The interface.
    pub name: PortName,
    /// The port's state.
    pub state: PortState,
    /// Set if the interface is blocked: nothing passes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked: Option<BlockStats>,
    /// The longest total time for which a frame can be held, in nanoseconds.
    pub latency_budget_ns: u64,
    /// The configured settings of calls to the guest.
    pub calls: CallSettings,
    /// Notifications of the guest that came later than the budget allows, by reason, since the interface was added.
    pub budget_breaches: BTreeMap<String, u64>,
    /// Numbers of queue pairs.
    #[serde(default)]
    pub queue_pairs: QueuePairNumbers,
    /// Sizes of the rings.
    #[serde(default)]
    pub rings: RingSizes,
    /// Each receive queue.
    pub queues: Vec<QueueExplanation>,
    /// The manager's split of the budget; none for a policy that takes no part in the split.
    pub split: Option<SplitExplanation>,
    /// The agent in the guest; none if none is configured.
    pub agent: Option<AgentExplanation>,
    /// The interface's filter rules, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filter: Vec<RuleStats>,
    /// The workers that serve the interface's queues.
    #[serde(default)]
    pub dispatch: DispatchExplanation,
    /// The interface's share of the workers' time, and its limits as a sender.
    #[serde(default)]
    pub sharing: SharingExplanation,
    /// The limits on received traffic, and the frames dropped because of them.
    #[serde(default)]
    pub receiving: ReceivingExplanation,
    /// The source guard of the guest's addresses; none if it is off.
    pub guard: Option<GuardExplanation>,
    /// The interface's security groups, and the frames that they refused; none without groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<GroupsExplanation>,
    /// The spread of flows over several receive queues; none if only one is in use.
    pub steering: Option<SteeringExplanation>,
    /// The split of budgets with other weir hosts of the interface's network.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<HostExplanation>,
    /// Rings in service that carry no frames.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub silent: Vec<SilentRing>,
    /// Facts that show whether traffic passes.
    #[serde(default)]
    pub traffic: TrafficExplanation,
}

/// The policy of one receive queue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct QueueExplanation {
    /// The queue's number.
    pub queue: usize,
    /// The policy.
    pub moderation: Moderation,
    /// The hold that it would choose for a frame that arrived now, in nanoseconds.
    pub hold_ns: u64,
    /// The limit of the hold, which is the part of the latency budget left for it, in nanoseconds.
    pub hold_ns_max: u64,
    /// The reason for the hold.
    pub reason: String,
    /// Received frames.
    pub frames: u64,
    /// Interrupts sent to the guest.
    pub calls: u64,
    /// Interrupts that were not sent because the guest had disabled them: it was polling.
    pub calls_suppressed: u64,
    /// Hold times of calls, since the interface was added.
    pub held_ns: Times,
    /// The mean difference between the delays of two notifications in a row (RFC 3550, smoothed over 16).
    #[serde(default)]
    pub jitter_ns: u64,
}

impl VifExplanation {
    /// Counts frames and calls from `before` on.
    #[must_use]
    pub fn since(mut self, before: &Self) -> Self {
        for (now, before) in self.queues.iter_mut().zip(&before.queues) {
            now.frames = now.frames.saturating_sub(before.frames);
            now.calls = now.calls.saturating_sub(before.calls);
            now.calls_suppressed = now.calls_suppressed.saturating_sub(before.calls_suppressed);
        }
        self.sharing.since(&before.sharing);
        self.receiving.since(&before.receiving);
        self.traffic.since(&before.traffic);
        self
    }

    /// The verdict on whether traffic passes, with reasons.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let (name, blocked) = (self.name.as_str(), self.blocked.as_ref());
        let mut verdict = self.traffic.verdict(name, true, &self.filter, &self.silent, blocked);
        let refused: u64 = self.groups.as_ref().map_or(0, GroupsExplanation::refused_lately);
        if refused > 0 {
            // Nothing else keeps frames, and none has passed.
            if verdict.passes == Passes::Idle {
                (verdict.passes, verdict.because) = (Passes::No, Vec::new());
            }
            let says =
                format!("its security groups refused frames within the last minute: {refused}");
            verdict.because.push(says);
        }
        verdict
    }
}
