//! Live migration between two hosts of a fabric under BGP EVPN, there and back, with connections to guests of both.

use std::{thread, time::Duration};

use weir_bed::{error::Result, lab::Lab, report::Goal};
use weir_system_tests::guests::fabric::Scene;

use crate::bars::{Bars, quantile};

/// Time between two moves.
const TRAFFIC: Duration = Duration::from_secs(1);

/// Moves a guest `moves` times.
pub fn run(lab: &Lab, moves: u32, _: u64, bars: &mut Bars) -> Result<()> {
    let mut scene = Scene::begin(lab)?;
    let (mut lost, mut reachable_ms, mut answered_ms) = (0, Vec::new(), Vec::new());
    for nth in 1..=moves {
        thread::sleep(TRAFFIC);
        let moved = scene.move_over()?;
        lost += moved.lost_connections;
        println!(
            "move {nth}: stood still for {} ms, answered {:.0} ms later at its new host and {:.0} ms at the old one, {} \
             connections lost",
            moved.downtime_ms, moved.answered_ms, moved.reached_ms, moved.lost_connections
        );
        reachable_ms.push((moved.reached_ms - moved.answered_ms).max(0.0));
        answered_ms.push(moved.answered_ms);
    }
    bars.add("fabric_migration_moves", f64::from(moves), None);
    bars.add("fabric_migration_lost_connections", f64::from(lost), Some(Goal::AtMost(0.0)));
    let reachable_ms = quantile(&mut reachable_ms, 0.95);
    bars.add("fabric_migration_reachable_ms", reachable_ms, Some(Goal::AtMost(200.0)));
    bars.add("fabric_migration_answered_ms", quantile(&mut answered_ms, 0.95), None);
    Ok(())
}
