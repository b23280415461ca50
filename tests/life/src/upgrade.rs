//! `weir upgrade` under traffic: gaps and losses.

use std::{thread, time::Duration};

use weir_bed::{
    error::{Result, check},
    lab::Lab,
    process::run as run_command,
    report::Goal,
};

use crate::{
    bars::{Bars, quantile},
    random::Random,
    scene::{SHAPES, Scene},
};

const PAUSE: Duration = Duration::from_millis(40);

/// Returns true if this weir has the command.
pub fn is_there(lab: &Lab) -> bool {
    run_command(&[lab.weir.as_os_str(), "upgrade".as_ref(), "--help".as_ref()]).is_ok()
}

/// Upgrades weir `upgrades` times.
pub fn run(lab: &Lab, upgrades: u32, seed: u64, bars: &mut Bars) -> Result<()> {
    if !is_there(lab) {
        println!("skipped: this weir has no `upgrade`");
        return Ok(());
    }
    let mut random = Random::new(seed);
    let (mut gaps_ms, mut lost, mut repeated) = (Vec::new(), 0, 0);
    for shape in SHAPES {
        let mut scene = Scene::begin(lab, shape, &[])?;
        for _ in 0..upgrades.div_ceil(SHAPES.len() as u32) {
            thread::sleep(random.pause(PAUSE));
            scene.take_gap();
            scene.upgrade()?;
            scene.resume()?;
            gaps_ms.push(scene.take_gap().as_secs_f64() * 1e3);
        }
        let settled = scene.settle()?;
        let (sent, again) = scene.traffic.sent_and_repeated();
        check(settled.stuck == 0 && scene.traffic.errors() == 0, || {
            format!("{} chains lost, {} given back twice", settled.stuck, scene.traffic.errors())
        })?;
        println!("{}: {} of {sent} frames lost, {again} came twice", shape.name, settled.missing);
        lost += settled.missing;
        repeated += again;
        scene.traffic.end()?;
    }
    bars.add("upgrade_gap_ms", quantile(&mut gaps_ms, 0.95), Some(Goal::AtMost(10.0)));
    bars.add("upgrade_lost_frames", lost as f64, Some(Goal::AtMost(0.0)));
    bars.add("upgrade_repeated_frames", repeated as f64, None);
    Ok(())
}
