//! How a port's flows are spread over its receive queues.

use std::fmt;

use serde::{Deserialize, Serialize};
use weir_text::{Table, decimal, time};

/// The indirection table of a port with several receive queues.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SteeringQueue {
    /// Entries of the table that are this queue.
    pub entries: usize,
    /// Of these, how many leave it as soon as that reorders nothing.
    pub moving: usize,
    /// Its load, pending moves counted as made.
    pub frames_per_s: u64,
}

/// A move of an entry, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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

impl fmt::Display for SteeringExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = match (self.given, self.rebalances) {
            (true, _) => "the guest's own",
            (false, true) => "rebalanced by load",
            (false, false) => "left as it is",
        };
        writeln!(f, "indirection table: {whose}, entries moved: {}", decimal(self.moved_entries))?;
        let mut table = Table::new(&["QUEUE", "ENTRIES", "LEAVING", "FRAMES/S"]);
        for (queue, now) in self.queues.iter().enumerate() {
            let counts = [queue, now.entries, now.moving].map(|count| count.to_string());
            table.row([&counts[..], &[decimal(now.frames_per_s)]].concat());
        }
        write!(f, "{table}")?;
        for made in &self.moves {
            writeln!(
                f,
                "{} ago: entry {} with {} frames/s from queue {} ({}) to {} ({})",
                time(made.ago_ns),
                made.entry,
                decimal(made.frames_per_s),
                made.from,
                decimal(made.from_frames_per_s),
                made.to,
                decimal(made.to_frames_per_s),
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steering_for_people() {
        let queue = |entries, moving, frames_per_s| SteeringQueue { entries, moving, frames_per_s };
        let made = MoveExplanation {
            ago_ns: 300_000_000,
            entry: 17,
            from: 0,
            to: 1,
            frames_per_s: 4_000,
            from_frames_per_s: 120_000,
            to_frames_per_s: 40_000,
        };
        let explanation = SteeringExplanation {
            rebalances: true,
            given: false,
            moved_entries: 1_037,
            queues: vec![queue(60, 2, 118_000), queue(68, 0, 117_500)],
            moves: vec![made],
        };
        insta::assert_snapshot!(explanation.to_string(), @r"
        indirection table: rebalanced by load, entries moved: 1,037
        QUEUE  ENTRIES  LEAVING  FRAMES/S
            0       60        2   118,000
            1       68        0   117,500
        300 ms ago: entry 17 with 4,000 frames/s from queue 0 (120,000) to 1 (40,000)
        ");
    }
}
