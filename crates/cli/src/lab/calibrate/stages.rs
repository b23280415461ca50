//! What a small packet costs on its way through weir, stage by stage.

use std::thread;
use std::time::{Duration, Instant};

use weir_engine::stages::{self, Stage, StageCosts};
use weir_guestmem::ticks;
use weir_vif::load::small;

use super::super::LabError;
use super::Cost;
use crate::config::{LatencyBudget, WorkerCount, Workers};
use crate::rig::{self, Load, Rig, Setup};
use crate::stats::CallSettings;

/// Before the first round.
const WARM_UP: Duration = Duration::from_millis(200);
/// Time of a round.
const ROUND: Duration = Duration::from_millis(200);
/// Bytes of a packet: all of it is in the part that weir reads anyway, so that no copy is counted.
const FRAME_BYTES: usize = 64;
/// Packets in flight: half a ring.
const WINDOW: u32 = 512;

/// The stages whose cost is one of a profile's.
const FIELDS: [(Stage, &str); 4] = [
    (Stage::Take, "take_ns"),
    (Stage::Classify, "classify_ns"),
    (Stage::Copy, "place_ns"),
    (Stage::Publish, "publish_ns"),
];

/// All of them, with a rig of its own.
pub(super) fn measure(rounds: usize) -> Result<Vec<Cost>, LabError> {
    let dir = rig::temp_dir()?;
    let rate = small::Rate::Window(WINDOW);
    let load =
        Load::Small(small::Options { frame_bytes: FRAME_BYTES, rate, ..small::Options::default() });
    let setup = Setup {
        load,
        calls: CallSettings::default(),
        sender_calls: None,
        latency_budget: LatencyBudget::DEFAULT,
        workers: Workers::Count(WorkerCount::try_from(1).expect("one worker is possible")),
        packed: false,
        containers: false,
        filter: &[],
    };
    let rig = Rig::start(&setup, dir.path())?;
    stages::set_on(true);
    thread::sleep(WARM_UP);
    let mut each = FIELDS.map(|_| Vec::new());
    for _ in 0..rounds {
        let (before, start, ticks_before) = (worker(), Instant::now(), ticks::now());
        thread::sleep(ROUND);
        let ns = start.elapsed().as_nanos() as f64;
        let ns_per_tick = ns / ticks::now().saturating_sub(ticks_before).max(1) as f64;
        let costs = worker().since(&before);
        for (rounds, (stage, _)) in each.iter_mut().zip(FIELDS) {
            // A round without a frame says nothing.
            rounds.extend(costs.per_frame(stage).map(|ticks| ticks * ns_per_tick));
        }
    }
    stages::set_on(false);
    rig.finish()?;
    let costs = FIELDS.into_iter().zip(each).filter(|(_, rounds)| !rounds.is_empty());
    Ok(costs
        .map(|((stage, field), rounds)| {
            let how = format!("stage `{}` of packets of 64 bytes", stage.as_str());
            Cost::new(field, how, rounds)
        })
        .collect())
}

/// What the rig's one worker has measured.
fn worker() -> StageCosts {
    stages::costs().map(|(_, costs)| costs).next().unwrap_or_default()
}
