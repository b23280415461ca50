//! `weir explain`: present decisions of an interface's policies, with reasons; an uplink's state; where workers
//! run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_config::{Moderation, PortName};

use crate::stats::{
    BlockStats, CallSettings, GuardExplanation, PortState, QueuePairNumbers, RuleStats, SilentRing,
    Times,
};

mod dispatch;
mod hosts;
mod manager;
mod overlay;
mod placement;
mod receiving;
mod sharing;
mod steering;
mod traffic;

pub use dispatch::{DispatchExplanation, MovedPair};
pub use hosts::HostExplanation;
pub use manager::{
    AgentExplanation, AgentState, CostExplanation, CostSource, Gatherer, SplitExplanation,
    UplinkExplanation, UplinkLayer,
};
pub use overlay::{HostHeard, OverlayExplanation, OverlayNetworkExplanation};
pub use placement::{GuestPlacement, MachineSummary, PlacementExplanation, WorkerPlacement};
pub use receiving::ReceivingExplanation;
pub use sharing::{PortShare, SharingExplanation};
pub use steering::{MoveExplanation, SteeringExplanation, SteeringQueue};
pub use traffic::{Passes, TrafficExplanation, USUAL_DROPS, Verdict, drops_all};

/// What a command explains.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Explanation {
    /// Of a guest's interface.
    Vif(Box<VifExplanation>),
    /// Of an uplink.
    Uplink(Box<UplinkExplanation>),
    /// Of where workers run.
    Placement(Box<PlacementExplanation>),
    /// Of the overlay.
    Overlay(Box<OverlayExplanation>),
}

impl Explanation {
    /// Whether it counts something from one moment to another.
    #[must_use]
    pub fn counts(&self) -> bool {
        matches!(self, Self::Vif(_) | Self::Uplink(_))
    }

    /// As [`VifExplanation::since`].
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
    /// How far it has come.
    pub state: PortState,
    /// It is blocked: nothing goes through it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked: Option<BlockStats>,
    /// The longest time that a frame may be held in all, in nanoseconds.
    pub latency_budget_ns: u64,
    /// When the guest is called, as it is configured.
    pub calls: CallSettings,
    /// How often the guest was notified later than the budget allows, by reason, since the interface was added.
    pub budget_breaches: BTreeMap<String, u64>,
    /// How many queue pairs it has.
    #[serde(default)]
    pub queue_pairs: QueuePairNumbers,
    /// Each receive queue.
    pub queues: Vec<QueueExplanation>,
    /// What the manager makes of the budget; none for a policy that takes no part in the split.
    #[serde(default)]
    pub split: Option<SplitExplanation>,
    /// The agent in the guest; none where none is configured.
    #[serde(default)]
    pub agent: Option<AgentExplanation>,
    /// Its filter rules, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filter: Vec<RuleStats>,
    /// Which workers serve its queues.
    #[serde(default)]
    pub dispatch: DispatchExplanation,
    /// Its share of the workers' time, and what limits it as a sender.
    #[serde(default)]
    pub sharing: SharingExplanation,
    /// What it may receive, and what was dropped beyond that.
    #[serde(default)]
    pub receiving: ReceivingExplanation,
    /// From which addresses its guest may send; none where nobody asks.
    #[serde(default)]
    pub guard: Option<GuardExplanation>,
    /// How flows are spread over several receive queues; none where one is in use.
    #[serde(default)]
    pub steering: Option<SteeringExplanation>,
    /// How budgets are split with other hosts of its network that have a weir.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<HostExplanation>,
    /// Rings in service that serve nobody.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub silent: Vec<SilentRing>,
    /// What says whether traffic passes.
    #[serde(default)]
    pub traffic: TrafficExplanation,
}

/// The policy of one receive queue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct QueueExplanation {
    /// Its number.
    pub queue: usize,
    /// The policy.
    pub moderation: Moderation,
    /// How long it would hold a frame that came now, in nanoseconds.
    pub hold_ns: u64,
    /// The limit of that: what the latency budget leaves for it, in nanoseconds.
    pub hold_ns_max: u64,
    /// Why so long.
    pub reason: String,
    /// Frames received.
    pub frames: u64,
    /// Interrupts given.
    pub calls: u64,
    /// Interrupts that the guest did not want: it was looking anyway.
    pub calls_suppressed: u64,
    /// How long calls were held, since the interface was added.
    pub held_ns: Times,
}

impl VifExplanation {
    /// Counts frames and calls from `before` on instead of from the beginning.
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

    /// Whether traffic passes, and if not, why.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let (name, blocked) = (self.name.as_str(), self.blocked.as_ref());
        self.traffic.verdict(name, true, &self.filter, &self.silent, blocked)
    }
}
