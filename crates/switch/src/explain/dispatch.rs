//! Which workers serve an interface, and why they do.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_engine::Moved;
use weir_policy::dispatch::CORE;

/// The workers of an interface's queue pairs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DispatchExplanation {
    /// By pair: the number of the worker that serves it; none where it is made with the first guest.
    pub workers: Vec<Option<usize>>,
    /// The last moves of its pairs to other workers, the latest first.
    pub moves: Vec<MovedPair>,
}

/// A queue pair that was given to another worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MovedPair {
    /// How long ago, in nanoseconds.
    pub ago_ns: u64,
    /// The pair's number.
    pub queue: usize,
    /// The worker it had.
    pub from: usize,
    /// The worker it got.
    pub to: usize,
    /// How busy it kept the one it had, of a core.
    pub load: f64,
    /// Why it moved.
    pub reason: String,
}

impl MovedPair {
    /// As of `now_ns`.
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
