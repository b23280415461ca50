//! The manager's split of the latency budget, and its knowledge of the guests' agents.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_config::{PortName, SocketPath};

use super::{DispatchExplanation, Passes, SteeringExplanation, TrafficExplanation, Verdict};
use crate::stats::{BlockStats, BondStats, RuleStats};

/// The split of an interface's budget between the uplinks and its calls (Dong 2011 Eq. 4), with the numbers from
/// which it follows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SplitExplanation {
    /// T_p: the time that uplinks can gather frames, in nanoseconds.
    pub uplink_ns: u64,
    /// T_v: the time that calls can be held, in nanoseconds.
    pub vif_ns: u64,
    /// Time since T_p or T_v last changed, in nanoseconds.
    pub stands_for_ns: u64,
    /// The reason for the uplinks' share.
    pub reason: String,
    /// n: interfaces with traffic.
    pub vifs: u32,
    /// C_p: the cost of an uplink's wake-up.
    pub uplink_cost: CostExplanation,
    /// C_v: the cost of a call.
    pub call_cost: CostExplanation,
}

/// The cost of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CostExplanation {
    /// CPU time, in nanoseconds.
    pub ns: u64,
    /// The standard error, in nanoseconds, if the cost is weir's estimate.
    pub error_ns: Option<u64>,
    /// The source of the cost.
    pub source: CostSource,
}

/// The source of a cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CostSource {
    /// The agent in the guest.
    Agent,
    /// Least squares over CPU times and counts.
    Regression,
    /// No source yet: a default.
    Default,
}

/// The agent of the virtual machine that an interface belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AgentExplanation {
    /// The socket on which weir listens for the agent.
    pub socket: SocketPath,
    /// The agent's state.
    pub state: AgentState,
    /// The agent's release, while it is connected.
    pub version: Option<String>,
    /// The polling interval that weir has requested, in nanoseconds.
    pub asked_poll_ns: Option<u64>,
    /// The guest's polling interval as the agent reports it, in nanoseconds.
    pub poll_ns: Option<u64>,
    /// Interrupts of the interface per second, as the agent reports them.
    pub interrupts_per_s: Option<u64>,
    /// Under `auto`: the reason why the guest polls or does not.
    pub why: Option<String>,
    /// What the guest wishes, if it wishes anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wishes: Option<WishExplanation>,
    /// The last error.
    pub error: Option<String>,
}

/// What a guest wishes, and what is in force: the lesser of its wish and the host's setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WishExplanation {
    /// The latency budget that the guest wishes, in nanoseconds.
    pub budget_ns: Option<u64>,
    /// The weight that the guest wishes.
    pub weight: Option<u16>,
    /// The latency budget that holds are limited to, in nanoseconds.
    pub has_budget_ns: u64,
    /// The weight in force.
    pub has_weight: u16,
}

/// The state of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AgentState {
    /// The virtual machine has not opened the socket.
    Waiting,
    /// The virtual machine has opened the socket, but no agent has spoken.
    Silent,
    /// An agent is connected, but does not know this interface.
    Elsewhere,
    /// An agent is connected.
    Connected,
}

/// The treatment of frames that come in on an uplink.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UplinkExplanation {
    /// The uplink.
    pub name: PortName,
    /// The interface of the host, or the socket of a stream.
    pub interface: String,
    /// Set if the uplink is blocked: nothing passes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked: Option<BlockStats>,
    /// The gathering of frames at the uplink.
    pub layer: UplinkLayer,
    /// The processors of its card's interrupts.
    #[serde(default, skip_serializing_if = "InterruptPlaces::are_as_found")]
    pub interrupts: InterruptPlaces,
    /// The weir below, if this one runs in a guest and speaks with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub below: Option<BelowExplanation>,
    /// C_p: the cost of a wake-up by the uplink.
    pub cost: CostExplanation,
    /// The workers that serve the uplink's queues.
    #[serde(default)]
    pub dispatch: DispatchExplanation,
    /// The spread of flows over the uplink's queues; none if it has only one.
    pub steering: Option<SteeringExplanation>,
    /// Facts that show whether traffic passes.
    #[serde(default)]
    pub traffic: TrafficExplanation,
    /// The uplink's filter rules, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filter: Vec<RuleStats>,
    /// The uplinks of a bond.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bond: Option<BondStats>,
    /// The uplink's bond, which is the switch's port in place of the uplink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_bond: Option<PortName>,
}

impl UplinkExplanation {
    /// The verdict on whether traffic passes, with reasons.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        if let Some(bond) = &self.in_bond {
            let because =
                vec![format!("it is an uplink of {bond}, which is the port: weir explain {bond}")];
            return Verdict { passes: Passes::Idle, because };
        }
        let (name, blocked) = (self.name.as_str(), self.blocked.as_ref());
        self.traffic.verdict(name, false, &self.filter, &[], blocked)
    }
}

/// The weir below a weir in a guest, and its part of a latency budget for this one's layers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BelowExplanation {
    /// The port to it.
    pub port: String,
    /// The time that it leaves for all holds here, in nanoseconds, if it does.
    pub given_ns: Option<u64>,
    /// The cost of all layers here as one, in nanoseconds, as it is told.
    pub cost_ns: u64,
    /// The reason why it was not heard lately.
    pub error: Option<String>,
}

/// The gathering of frames at an uplink.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum UplinkLayer {
    /// A TAP has no interval to set: frames wait for a worker only.
    WorkerOnly,
    /// The uplink gathers as the host had set it.
    AsFound,
    /// The uplink gathers for T_p, which weir has set.
    Gathers {
        /// T_p, in nanoseconds, or the value to which the card's driver rounded it, which is no greater.
        uplink_ns: u64,
        /// The device that gathers.
        by: Gatherer,
    },
    /// The gathering time cannot be set.
    Refused {
        /// The reason.
        reason: String,
    },
}

/// The processors to which the interrupts of an uplink's card come.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum InterruptPlaces {
    /// weir is not configured to move interrupts.
    #[default]
    AsFound,
    /// The interrupt of each queue comes to the processor of the worker that serves the queue.
    Follow {
        /// The queues' interrupts.
        queues: Vec<InterruptPlace>,
    },
    /// weir moves no interrupts.
    LeftAlone {
        /// The reason.
        reason: String,
    },
}

/// The processor of a queue's interrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InterruptPlace {
    /// The queue.
    pub queue: u16,
    /// The processor.
    pub cpu: u16,
}

impl InterruptPlaces {
    fn are_as_found(&self) -> bool {
        *self == Self::AsFound
    }
}

/// The device that makes frames wait at an uplink.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Gatherer {
    /// The network card.
    RxUsecs {
        /// The original value, in microseconds, which weir restores.
        found_usecs: u32,
    },
    /// The kernel's timer of the interface.
    NapiTimer {
        /// The reason why the card is not used.
        why: String,
    },
}
