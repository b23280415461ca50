//! Workers: how often they were moved to other CPUs, and the costs of the stages of a packet's path.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_engine::stages::{self, Stage, StageCosts};

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

/// Costs of the stages in one worker, see [`weir_engine::stages`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StageStats {
    /// The worker's number.
    pub worker: u32,
    /// Bursts that were measured.
    pub bursts: u64,
    /// Frames in these bursts.
    pub frames: u64,
    /// The unit of the costs.
    pub unit: String,
    /// Total cost of these bursts, by the stage's name.
    pub cost: BTreeMap<String, u64>,
}

impl StageStats {
    /// The costs of all workers of this process, if stages are being measured.
    pub fn of_this_process() -> Vec<Self> {
        if stages::is_on() { stages::costs().map(Self::from).collect() } else { Vec::new() }
    }
}

/// Built from a worker's number and its costs.
impl From<(usize, StageCosts)> for StageStats {
    fn from((worker, costs): (usize, StageCosts)) -> Self {
        let cost = Stage::ALL.iter().zip(costs.ticks);
        Self {
            worker: u32::try_from(worker).unwrap_or(u32::MAX),
            bursts: costs.bursts,
            frames: costs.frames,
            unit: stages::UNIT.into(),
            cost: cost.map(|(stage, ticks)| (stage.as_str().to_owned(), ticks)).collect(),
        }
    }
}
