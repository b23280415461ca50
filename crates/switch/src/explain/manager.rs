//! What the manager makes of the latency budget, and what it knows of the guests' agents.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_config::{PortName, SocketPath};

use super::{DispatchExplanation, SteeringExplanation, TrafficExplanation, Verdict};
use crate::stats::{BlockStats, RuleStats};

/// How an interface's budget is split between the uplinks and its calls (Dong 2011 Eq. 4), and from
/// which numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SplitExplanation {
    /// T_p: how long uplinks may gather frames, in nanoseconds.
    pub uplink_ns: u64,
    /// T_v: how long calls may be held, in nanoseconds.
    pub vif_ns: u64,
    /// For how long both have been so, in nanoseconds.
    pub stands_for_ns: u64,
    /// Why the uplinks have that much.
    pub reason: String,
    /// n: interfaces with traffic.
    pub vifs: u32,
    /// C_p: what an uplink's wake-up costs.
    pub uplink_cost: CostExplanation,
    /// C_v: what a call costs.
    pub call_cost: CostExplanation,
}

/// What something costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CostExplanation {
    /// CPU time, in nanoseconds.
    pub ns: u64,
    /// The standard error of that, in nanoseconds, where it is an estimate of weir's.
    pub error_ns: Option<u64>,
    /// Who says so.
    pub source: CostSource,
}

/// Who says what something costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CostSource {
    /// The agent in the guest.
    Agent,
    /// Least squares over CPU times and counts.
    Regression,
    /// Nobody yet: a usual number.
    Default,
}

/// The agent of the virtual machine that an interface belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AgentExplanation {
    /// Where weir meets it.
    pub socket: SocketPath,
    /// Whether it is there.
    pub state: AgentState,
    /// Its release, while it is there.
    pub version: Option<String>,
    /// At what interval it has been asked to let the guest poll, in nanoseconds.
    pub asked_poll_ns: Option<u64>,
    /// At what interval the guest polls, as it says, in nanoseconds.
    pub poll_ns: Option<u64>,
    /// Interrupts of the interface in a second, as it says.
    pub interrupts_per_s: Option<u64>,
    /// Under `auto`: why the guest polls or does not.
    #[serde(default)]
    pub why: Option<String>,
    /// What went wrong last.
    pub error: Option<String>,
}

/// Whether an agent is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AgentState {
    /// The virtual machine has not opened the socket.
    Waiting,
    /// It has, and no agent speaks.
    Silent,
    /// An agent is there, and knows nothing of this interface.
    Elsewhere,
    /// An agent is there.
    Connected,
}

/// What an uplink does with the frames that come in on it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UplinkExplanation {
    /// The uplink.
    pub name: PortName,
    /// The interface of the host.
    pub interface: String,
    /// It is blocked: nothing goes through it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked: Option<BlockStats>,
    /// How long frames gather at it.
    pub layer: UplinkLayer,
    /// C_p: what a wake-up by it costs.
    pub cost: CostExplanation,
    /// Which workers serve its queues.
    #[serde(default)]
    pub dispatch: DispatchExplanation,
    /// How flows to it are spread over several queues; none where it has one.
    #[serde(default)]
    pub steering: Option<SteeringExplanation>,
    /// What says whether traffic passes.
    #[serde(default)]
    pub traffic: TrafficExplanation,
    /// Its filter rules, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filter: Vec<RuleStats>,
}

impl UplinkExplanation {
    /// Whether traffic passes, and if not, why.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let (name, blocked) = (self.name.as_str(), self.blocked.as_ref());
        self.traffic.verdict(name, false, &self.filter, &[], blocked)
    }
}

/// How long frames gather at an uplink.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum UplinkLayer {
    /// A TAP has no interval to set: frames wait for a worker only.
    WorkerOnly,
    /// As the host had it set.
    AsFound,
    /// For T_p: weir has set it.
    Gathers {
        /// T_p, in nanoseconds, or what the card's driver made of it, which is no more.
        uplink_ns: u64,
        /// What of it.
        by: Gatherer,
    },
    /// It cannot be set.
    Refused {
        /// Why not.
        reason: String,
    },
}

/// What has frames wait at an uplink.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Gatherer {
    /// The network card.
    RxUsecs {
        /// What weir found, in microseconds, and restores.
        found_usecs: u32,
    },
    /// The kernel's timer of the interface.
    NapiTimer {
        /// Why not the card.
        why: String,
    },
}
