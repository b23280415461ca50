//! Reloads and upgrades under traffic: the losses of interfaces that a reload does not change, and the gaps and losses
//! of `weir upgrade`.

use std::{thread, time::Duration};

use weir_bed::{
    error::{Result, check},
    lab::Lab,
    process::run as run_command,
    report::Goal,
    weir::{Setup, Vif},
};

use crate::{
    bars::{Bars, quantile},
    random::Random,
    scene::{SHAPES, Scene},
};

const RELOAD_PAUSE: Duration = Duration::from_millis(30);

/// Adds, changes and removes other interfaces by `reloads` reloads.
pub fn reload(lab: &Lab, reloads: u32, seed: u64, bars: &mut Bars) -> Result<()> {
    let mut random = Random::new(seed);
    let (mut lost, mut all) = (0, 0);
    for shape in [SHAPES[1], SHAPES[2]] {
        let mut scene = Scene::begin(lab, shape, &[])?;
        let guests = scene.setup.vifs.clone();
        for _ in 0..reloads.div_ceil(2) {
            thread::sleep(random.pause(RELOAD_PAUSE));
            let others = (0..1 + random.below(6)).map(|_| other(&mut random));
            let vifs = guests.iter().cloned().chain(others).collect();
            scene.weir.reload(&Setup { vifs, ..scene.setup.clone() })?;
        }
        scene.resume()?;
        let settled = scene.settle()?;
        let (sent, repeated) = scene.traffic.sent_and_repeated();
        check(settled.stuck == 0 && repeated == 0, || {
            format!("{} chains are lost, {repeated} frames came twice", settled.stuck)
        })?;
        println!(
            "{}: {} of {sent} frames lost; dropped: {}",
            shape.name,
            settled.missing,
            scene.reasons()
        );
        lost += settled.missing;
        all += sent;
        scene.traffic.end()?;
        scene.weir.stop()?;
    }
    bars.add("reload_packets", all as f64, None);
    bars.add("reload_lost_packets", lost as f64, Some(Goal::AtMost(0.0)));
    Ok(())
}

fn other(random: &mut Random) -> Vif {
    Vif {
        queues: [None, Some(2), Some(4)][random.below(3) as usize],
        vlan: [None, Some(7), Some(8)][random.below(3) as usize],
        moderation: [None, Some("immediate")][random.below(2) as usize],
        latency_budget: [None, Some("100us"), Some("1ms")][random.below(3) as usize],
        ..Vif::default()
    }
}

const UPGRADE_PAUSE: Duration = Duration::from_millis(40);

/// Returns true if this weir has the command.
pub fn has_upgrade(lab: &Lab) -> bool {
    run_command(&[lab.weir.as_os_str(), "upgrade".as_ref(), "--help".as_ref()]).is_ok()
}

/// Upgrades weir `upgrades` times.
pub fn upgrade(lab: &Lab, upgrades: u32, seed: u64, bars: &mut Bars) -> Result<()> {
    if !has_upgrade(lab) {
        println!("skipped: this weir has no `upgrade`");
        return Ok(());
    }
    let mut random = Random::new(seed);
    let (mut gaps_ms, mut lost, mut repeated) = (Vec::new(), 0, 0);
    for shape in SHAPES {
        let mut scene = Scene::begin(lab, shape, &[])?;
        for _ in 0..upgrades.div_ceil(SHAPES.len() as u32) {
            thread::sleep(random.pause(UPGRADE_PAUSE));
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
