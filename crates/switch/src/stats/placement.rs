//! How often workers and virtual processors were told to run elsewhere.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::decimal;
use crate::manager::PlacementCounts;

/// What placement did, since the switch started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementStats {
    /// Times that a worker was told to run elsewhere.
    pub moves: u64,
    /// Times that a virtual processor was.
    pub vcpu_moves: u64,
    /// Times that the kernel refused either.
    pub refused: u64,
}

impl From<&PlacementCounts> for PlacementStats {
    fn from(counts: &PlacementCounts) -> Self {
        Self {
            moves: counts.moves.get(),
            vcpu_moves: counts.vcpu_moves.get(),
            refused: counts.refused.get(),
        }
    }
}

/// A line, if there is anything to say.
impl fmt::Display for PlacementStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::default() {
            return Ok(());
        }
        let Self { moves, vcpu_moves, refused } = *self;
        let [moves, vcpu_moves, refused] = [moves, vcpu_moves, refused].map(decimal);
        writeln!(f, "placement: worker moves {moves}, vCPU moves {vcpu_moves}, refused {refused}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_only_where_something_was_moved() {
        assert_eq!(PlacementStats::default().to_string(), "");
        let stats = PlacementStats { moves: 3, vcpu_moves: 1_200, refused: 1 };
        let line = "placement: worker moves 3, vCPU moves 1,200, refused 1\n";
        assert_eq!(stats.to_string(), line);
    }
}
