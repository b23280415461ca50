//! Reloads under traffic, and the losses of interfaces that they do not change.

use std::{thread, time::Duration};

use weir_bed::{
    error::{Result, check},
    lab::Lab,
    report::Goal,
    weir::{Setup, Vif},
};

use crate::{
    bars::Bars,
    random::Random,
    scene::{SHAPES, Scene},
};

const PAUSE: Duration = Duration::from_millis(30);

/// Adds, changes and removes other interfaces by `reloads` reloads.
pub fn run(lab: &Lab, reloads: u32, seed: u64, bars: &mut Bars) -> Result<()> {
    let mut random = Random::new(seed);
    let (mut lost, mut all) = (0, 0);
    for shape in [SHAPES[1], SHAPES[2]] {
        let mut scene = Scene::begin(lab, shape, &[])?;
        let guests = scene.setup.vifs.clone();
        for _ in 0..reloads.div_ceil(2) {
            thread::sleep(random.pause(PAUSE));
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
