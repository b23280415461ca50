//! The workers that serve an interface, with reasons.

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
