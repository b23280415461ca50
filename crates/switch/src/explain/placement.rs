//! The placement of workers and virtual processors, with reasons.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_config::{PlacementMode, PortName};

/// The answer of `weir explain placement`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlacementExplanation {
    /// `placement`, as configured.
    pub mode: PlacementMode,
    /// `pin_vcpus`, as configured.
    pub pin_vcpus: bool,
    /// The processors; none if they are not known.
    pub machine: Option<MachineSummary>,
    /// The reason why they are not known.
    pub problem: Option<String>,
    /// Each worker; none before the first look.
    pub workers: Vec<WorkerPlacement>,
    /// Each guest.
    pub guests: Vec<GuestPlacement>,
    /// A better plan that is not followed yet.
    pub settling: Option<String>,
    /// Moves of a worker to other CPUs.
    pub moves: u64,
    /// Moves of a virtual processor to other CPUs.
    pub vcpu_moves: u64,
    /// Moves that the kernel refused.
    pub refused: u64,
}

/// The machine's processors. Lists are as the kernel writes them: `0-3,8`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MachineSummary {
    /// Online processors.
    pub cpus: usize,
    /// Physical cores of these processors.
    pub cores: usize,
    /// The processors of each last-level cache.
    pub caches: Vec<String>,
    /// True if the kernel reports which processors share a cache; otherwise processors of one package and node count
    /// as sharing a cache.
    pub caches_known: bool,
    /// NUMA nodes.
    pub nodes: usize,
    /// True if the kernel reports which processors belong to a node; otherwise all count as one node.
    pub nodes_known: bool,
    /// Processors on efficiency cores.
    pub efficiency: String,
    /// Processors on which weir can run.
    pub allowed: String,
}

/// The placement of a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WorkerPlacement {
    /// The worker's number.
    pub worker: usize,
    /// The processor to which it is assigned; none if the kernel chooses.
    pub cpu: Option<u16>,
    /// The worker's fraction of a processor's time between the last two looks, 0 to 1.
    pub load: f64,
    /// Moves of the worker to other CPUs.
    pub moves: u64,
    /// The ports whose queues it serves.
    pub ports: Vec<PortName>,
    /// The reason for the place.
    pub reason: String,
    /// Places that were rejected, with reasons.
    pub rejected: Vec<String>,
    /// The reason why the kernel refused the place, if it did.
    pub refused: Option<String>,
}

/// The placement of a guest's virtual processors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GuestPlacement {
    /// The process of the guest's VM monitor.
    pub process: u32,
    /// The guest's interfaces.
    pub ports: Vec<PortName>,
    /// Known virtual processors of the guest.
    pub vcpus: usize,
    /// The processors on which they last ran.
    pub last_ran: String,
    /// The processors to which they are assigned; none if weir does not place them.
    pub cpus: Option<String>,
    /// The reason for the place.
    pub reason: String,
    /// The reason why the kernel refused to move one of them, if it did.
    pub refused: Option<String>,
}
