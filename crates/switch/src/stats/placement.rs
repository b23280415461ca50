//! Counts of how often workers and virtual processors were moved to other CPUs.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::manager::PlacementCounts;

/// Counters of placement, since the switch started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlacementStats {
    /// Moves of a worker to other CPUs.
    pub moves: u64,
    /// Moves of a virtual processor to other CPUs.
    pub vcpu_moves: u64,
    /// Moves that the kernel refused.
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
