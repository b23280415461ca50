//! Which workers serve an interface and on which processors they run, with reasons, and each port's share of their
//! time.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_config::{PlacementMode, PortName, Receiving};
use weir_engine::Moved;
use weir_policy::dispatch::CORE;

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

/// The workers of an interface's queue pairs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DispatchExplanation {
    /// The worker of each pair; none for a pair that is made when the first guest connects.
    pub workers: Vec<Option<usize>>,
    /// The last moves of the interface's pairs to other workers, the latest first.
    pub moves: Vec<MovedPair>,
}

/// A move of a queue pair to another worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MovedPair {
    /// Time since the move, in nanoseconds.
    pub ago_ns: u64,
    /// The pair's number.
    pub queue: usize,
    /// The old worker.
    pub from: usize,
    /// The new worker.
    pub to: usize,
    /// The load of the pair on its old worker, as a fraction of a core.
    pub load: f64,
    /// The reason for the move.
    pub reason: String,
}

impl MovedPair {
    /// The move, as seen at `now_ns`.
    pub(crate) fn new(moved: &Moved, now_ns: u64) -> Self {
        Self {
            ago_ns: now_ns.saturating_sub(moved.at_ns),
            queue: moved.queue,
            from: moved.from,
            to: moved.to,
            load: f64::from(moved.load) / f64::from(CORE),
            reason: moved.reason.into(),
        }
    }
}

/// The indirection table of a port with several receive queues.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SteeringExplanation {
    /// True if entries move by load (`rss_rebalance`).
    pub rebalances: bool,
    /// True if the guest has set its own table and hash; no entry moves by load then.
    pub given: bool,
    /// Moves of entries since the port was added.
    pub moved_entries: u64,
    /// Each receive queue.
    pub queues: Vec<SteeringQueue>,
    /// The latest moves, newest first, including pending ones.
    pub moves: Vec<MoveExplanation>,
}

/// One receive queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SteeringQueue {
    /// Entries of the table that point to this queue.
    pub entries: usize,
    /// Entries among these that leave the queue as soon as the move reorders no frames.
    pub moving: usize,
    /// The queue's load, with pending moves counted as done.
    pub frames_per_s: u64,
}

/// A move of an entry, with its reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MoveExplanation {
    /// Time since the move began, in nanoseconds.
    pub ago_ns: u64,
    /// The entry's number.
    pub entry: usize,
    /// The old queue.
    pub from: usize,
    /// The new queue.
    pub to: usize,
    /// The entry's load.
    pub frames_per_s: u64,
    /// The old queue's load, including the entry.
    pub from_frames_per_s: u64,
    /// The new queue's load, without the entry.
    pub to_frames_per_s: u64,
}

/// A port's share of the workers' time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PortShare {
    /// The port's weight, relative to the weights of the others.
    pub weight: u16,
    /// Worker time that was charged to the port, in nanoseconds.
    pub worker_ns: u64,
}

/// An interface as a sender that shares the workers with others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SharingExplanation {
    /// The interface.
    pub own: PortShare,
    /// All other ports, by name.
    pub others: BTreeMap<PortName, PortShare>,
    /// The number of workers.
    pub workers: u64,
    /// The time of this look, in nanoseconds. In a difference of two looks it is the time between
    /// them.
    pub elapsed_ns: u64,
    /// Times that its queues waited for its rate limit.
    pub rate_waits: u64,
    /// Late turns beyond the number that the interface's window allows.
    pub window_violations: u64,
    /// Frames that waited for a receiver without buffers.
    pub parked: u64,
}

impl SharingExplanation {
    /// Counts from `before` on.
    pub fn since(&mut self, before: &Self) {
        let others = self.others.iter_mut().map(|(name, now)| (now, before.others.get(name)));
        for (now, before) in others.chain([(&mut self.own, Some(&before.own))]) {
            let before = before.map_or(0, |before| before.worker_ns);
            now.worker_ns = now.worker_ns.saturating_sub(before);
        }
        let Self { elapsed_ns, rate_waits, window_violations, parked, .. } = self;
        for (now, before) in [
            (elapsed_ns, before.elapsed_ns),
            (rate_waits, before.rate_waits),
            (window_violations, before.window_violations),
            (parked, before.parked),
        ] {
            *now = now.saturating_sub(before);
        }
    }
}

/// Limits on received traffic, and the frames dropped because of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReceivingExplanation {
    /// The configured limits.
    pub limits: Receiving,
    /// Frames dropped because of the limits.
    pub policed: u64,
    /// The time of this look, in nanoseconds. In a difference of two looks it is the time between
    /// them.
    pub elapsed_ns: u64,
}

impl ReceivingExplanation {
    /// Counts from `before` on.
    pub fn since(&mut self, before: &Self) {
        self.policed = self.policed.saturating_sub(before.policed);
        self.elapsed_ns = self.elapsed_ns.saturating_sub(before.elapsed_ns);
    }
}
