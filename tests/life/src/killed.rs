//! SIGKILL at any instant: losses, duplicates, and gaps in traffic.

use std::{thread, time::Duration};

use weir_bed::{
    error::{Result, check},
    lab::Lab,
    report::Goal,
};

use crate::{
    bars::{Bars, quantile},
    random::Random,
    real,
    scene::{SHAPES, Scene},
};

/// Longest time between the return of traffic and the next kill.
const PAUSE: Duration = Duration::from_millis(40);
/// Number of kills here for each kill under guests in QEMU.
const REAL_SHARE: u32 = 8;

/// Totals over all kills.
#[derive(Debug, Default)]
struct Found {
    gaps_ms: Vec<f64>,
    lost_chains: u64,
    repeated_chains: u64,
    lost_frames: u64,
    repeated_frames: u64,
    dropped_frames: u64,
}

/// Kills weir `kills` times in all formats.
pub fn run(lab: &Lab, kills: u32, seed: u64, bars: &mut Bars) -> Result<()> {
    let mut random = Random::new(seed);
    let mut found = Found::default();
    let real_kills = kills.div_ceil(REAL_SHARE);
    let each = (kills - real_kills).div_ceil(SHAPES.len() as u32);
    for shape in SHAPES {
        let mut scene = Scene::begin(lab, shape, &[])?;
        let gaps = found.gaps_ms.len();
        for _ in 0..each {
            thread::sleep(random.pause(PAUSE));
            scene.take_gap();
            scene.kill()?;
            scene.resume()?;
            found.gaps_ms.push(scene.take_gap().as_secs_f64() * 1e3);
        }
        let settled = scene.settle()?;
        let (sent, repeated) = scene.traffic.sent_and_repeated();
        let connected = scene.weir.log().matches("front end connected").count();
        check(connected == 3, || format!("3 front ends have connected {connected} times"))?;
        found.lost_chains += settled.stuck;
        found.repeated_chains += scene.traffic.errors();
        found.lost_frames += settled.missing;
        found.repeated_frames += repeated;
        found.dropped_frames += scene.dropped;
        let mut gaps: Vec<_> = found.gaps_ms[gaps..].to_vec();
        println!(
            "{}: {each} kills, {sent} frames: {} lost, {repeated} came twice, {} chains lost, {} given back twice; \
             gap {:.1} ms at the median, {:.1} at p95, {:.1} at most; dropped: {}",
            shape.name,
            settled.missing,
            settled.stuck,
            scene.traffic.errors(),
            quantile(&mut gaps, 0.5),
            quantile(&mut gaps, 0.95),
            quantile(&mut gaps, 1.0),
            scene.reasons(),
        );
        scene.traffic.end()?;
        scene.weir.stop()?;
    }
    for (queues, name) in [(1, "one queue"), (4, "four queues")] {
        let count = real_kills.div_ceil(2);
        let chains = real::killed(lab, queues, count, &mut random)?;
        println!(
            "QEMU, split and packed, {name}: {count} kills, {} echo requests: {} lost, {} came twice; \
             {} wrong chains, {} wrong lines of {}",
            chains.sent,
            chains.lost,
            chains.repeated,
            chains.wrong_chains,
            chains.wrong_lines,
            chains.lines
        );
        check(chains.wrong_lines == 0, || "a TCP connection delivered wrong bytes".into())?;
        found.repeated_chains += chains.wrong_chains;
        found.lost_frames += chains.lost;
        found.repeated_frames += chains.repeated;
    }
    bars.add("killed_kills", f64::from(each * 4 + real_kills.div_ceil(2) * 2), None);
    let none = Some(Goal::AtMost(0.0));
    bars.add("killed_lost_chains", found.lost_chains as f64, none);
    bars.add("killed_repeated_chains", found.repeated_chains as f64, none);
    bars.add("killed_lost_frames", found.lost_frames as f64, none);
    bars.add("killed_dropped_frames", found.dropped_frames as f64, None);
    bars.add("killed_repeated_frames", found.repeated_frames as f64, None);
    bars.add("killed_gap_ms", quantile(&mut found.gaps_ms, 0.95), Some(Goal::AtMost(100.0)));
    bars.add("killed_gap_median_ms", quantile(&mut found.gaps_ms, 0.5), None);
    Ok(())
}
