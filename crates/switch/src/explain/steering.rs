//! How a port's flows are spread over its receive queues.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The indirection table of a port with several receive queues.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SteeringExplanation {
    /// Entries move by load (`rss_rebalance`).
    pub rebalances: bool,
    /// The guest has given its own, for a hash of its own: nothing moves by load.
    pub given: bool,
    /// How often one has moved since the port was added.
    pub moved_entries: u64,
    /// Each receive queue.
    pub queues: Vec<SteeringQueue>,
    /// The last moves that were begun, the latest first.
    pub moves: Vec<MoveExplanation>,
}

/// One receive queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SteeringQueue {
    /// Entries of the table that are this queue.
    pub entries: usize,
    /// Of these, how many leave it as soon as that reorders nothing.
    pub moving: usize,
    /// Its load, pending moves counted as made.
    pub frames_per_s: u64,
}

/// A move of an entry, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MoveExplanation {
    /// How long ago it was begun, in nanoseconds.
    pub ago_ns: u64,
    /// The entry's number.
    pub entry: usize,
    /// Its queue before.
    pub from: usize,
    /// Its queue afterwards.
    pub to: usize,
    /// What it steered.
    pub frames_per_s: u64,
    /// Load of the queue before, with it.
    pub from_frames_per_s: u64,
    /// Load of the queue afterwards, without it.
    pub to_frames_per_s: u64,
}
