//! Where workers and virtual processors run, and why.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_config::{PlacementMode, PortName};

/// What `weir explain placement` says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlacementExplanation {
    /// `placement`, as it is configured.
    pub mode: PlacementMode,
    /// `pin_vcpus`, as it is configured.
    pub pin_vcpus: bool,
    /// The processors; none where they are not known.
    pub machine: Option<MachineSummary>,
    /// Why they are not known.
    pub problem: Option<String>,
    /// Each worker; none before the first look.
    pub workers: Vec<WorkerPlacement>,
    /// Each guest.
    pub guests: Vec<GuestPlacement>,
    /// A better plan that is not followed yet.
    pub settling: Option<String>,
    /// Times that a worker was told to run elsewhere.
    pub moves: u64,
    /// Times that a virtual processor was.
    pub vcpu_moves: u64,
    /// Times that the kernel refused either.
    pub refused: u64,
}

/// The machine's processors. Lists are as the kernel writes them: `0-3,8`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MachineSummary {
    /// How many are online.
    pub cpus: usize,
    /// How many cores these are threads of.
    pub cores: usize,
    /// The processors of each last-level cache.
    pub caches: Vec<String>,
    /// Whether the kernel says which share a cache; else those of a package and node count as sharing one.
    pub caches_known: bool,
    /// How many NUMA nodes there are.
    pub nodes: usize,
    /// Whether the kernel says which are of one node; else all are.
    pub nodes_known: bool,
    /// Those on efficiency cores.
    pub efficiency: String,
    /// Those on which weir may run.
    pub allowed: String,
}

/// Where a worker runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WorkerPlacement {
    /// Its number.
    pub worker: usize,
    /// The processor it is to run on; none where the kernel chooses.
    pub cpu: Option<u16>,
    /// Its part of a processor's time between the last looks, 0 to 1.
    pub load: f64,
    /// Times that it was told to run elsewhere.
    pub moves: u64,
    /// The ports whose queues it serves.
    pub ports: Vec<PortName>,
    /// Why there.
    pub reason: String,
    /// Places that were not taken, and why.
    pub rejected: Vec<String>,
    /// Why it does not run there all the same.
    pub refused: Option<String>,
}

/// Where a guest's virtual processors run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GuestPlacement {
    /// The process of its VM monitor.
    pub process: u32,
    /// Its interfaces.
    pub ports: Vec<PortName>,
    /// How many of its virtual processors are known.
    pub vcpus: usize,
    /// The processors on which they last ran.
    pub last_ran: String,
    /// The processors they are to run on; none where they are left alone.
    pub cpus: Option<String>,
    /// Why there.
    pub reason: String,
    /// Why one of them does not run there all the same.
    pub refused: Option<String>,
}
