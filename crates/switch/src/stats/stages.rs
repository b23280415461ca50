//! What the stages of a packet's way cost, while that is measured.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use weir_engine::stages::{self, Stage, StageCosts};
use weir_text::{Table, ratio};

/// What the stages of one worker have cost, see [`weir_engine::stages`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageStats {
    /// The worker's number.
    pub worker: u32,
    /// Bursts that were measured.
    pub bursts: u64,
    /// Frames in them.
    pub frames: u64,
    /// What costs are counted in.
    pub unit: String,
    /// Cost of all those bursts, by the stage's name.
    pub cost: BTreeMap<String, u64>,
}

impl StageStats {
    /// Those of all workers of this process, if stages are being measured.
    pub fn of_this_process() -> Vec<Self> {
        if stages::is_on() { stages::costs().map(Self::from).collect() } else { Vec::new() }
    }
}

/// From a worker's number and what it has measured.
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

/// What the stages cost for each frame; nothing where nothing was measured.
pub(super) fn table(f: &mut fmt::Formatter<'_>, stages: &[StageStats]) -> fmt::Result {
    let Some(StageStats { unit, .. }) = stages.first() else { return Ok(()) };
    let headers = ["WORKER", "TAKE", "CLASSIFY", "COPY", "PUBLISH", "CALL", "FRAMES/BURST"];
    let mut table = Table::new(&headers);
    for StageStats { worker, bursts, frames, cost, .. } in stages {
        let per_frame = |stage: &Stage| match (cost.get(stage.as_str()), *frames) {
            (None, _) | (_, 0) => "-".into(),
            (Some(ticks), frames) => format!("{:.1}", *ticks as f64 / frames as f64),
        };
        let mut cells = vec![worker.to_string()];
        cells.extend(Stage::ALL.iter().map(per_frame));
        cells.push(ratio(*frames, *bursts));
        table.row(cells);
    }
    write!(f, "\n{unit} for each frame, by stage:\n{table}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{PortKind, PortStats, SwitchStats};

    fn sample(stages: Vec<StageStats>) -> SwitchStats {
        let port = PortStats::new("web0".parse().unwrap(), PortKind::Vif);
        SwitchStats { stages, ports: vec![port], ..SwitchStats::default() }
    }

    #[test]
    fn stages_are_a_table_of_their_own_while_they_are_measured() {
        let costs = StageCosts { bursts: 4, frames: 10, ticks: [1_310, 135, 872, 0, 3] };
        let unit = "cycles".into();
        let measured = StageStats { unit, ..StageStats::from((7, costs)) };
        let with = sample(vec![measured, StageStats::default()]);
        let without = sample(Vec::new());
        let (text, rest) = (with.to_string(), without.to_string());
        insta::assert_snapshot!(text.strip_prefix(&rest).unwrap(), @r#"

        cycles for each frame, by stage:
        WORKER   TAKE  CLASSIFY  COPY  PUBLISH  CALL  FRAMES/BURST
             7  131.0      13.5  87.2      0.0   0.3         2.500
             0      -         -     -        -     -             -
        "#);
        let json = serde_json::to_string(&with).unwrap();
        assert_eq!(serde_json::from_str::<SwitchStats>(&json).unwrap(), with);
        assert!(!serde_json::to_string(&without).unwrap().contains("stages"));
    }
}
