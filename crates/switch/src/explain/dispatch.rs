//! The workers that serve an interface, with reasons, and the spread of its flows over its receive queues.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_engine::Moved;
use weir_policy::dispatch::CORE;

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
