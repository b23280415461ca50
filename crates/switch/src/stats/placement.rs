//! How often workers and virtual processors were told to run elsewhere.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::manager::PlacementCounts;

/// What placement did, since the switch started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
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
