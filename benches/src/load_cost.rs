//! weir's CPU time for traffic between two `vif` guests: the cost of 1 Gbit/s, and the rate of large segments on one
//! core.

use std::{path::PathBuf, time::Instant};

use weir_bed::{
    error::{Error, Result, check},
    report::{Figure, Goal, Report, Samples},
    weir::{Setup, Vif, Weir},
};

use super::{Bench, CLIENT_CPU, SWITCH_CPU, memcpy, sleeps};
use crate::vif_programs::{EverySecond, MACS};

/// Length of a frame with an IP packet of 1500 bytes, without check sequence.
const FRAME_BYTES: u32 = 1514;

/// Number of frames of this length per second at 1 Gbit/s, check sequences included.
const FRAMES_PER_SECOND: u32 = 1_000_000_000 / ((FRAME_BYTES + 4) * 8);

/// Smallest share of the load that must arrive.
const ARRIVED_MIN: f64 = 0.99;

/// Duration of the count (s), after a second to warm up.
const SECONDS: u32 = 3;

/// Size of a guest's receive buffers (bytes), so that a large segment needs few of them.
const LARGE_BUFFER_BYTES: u32 = 32 << 10;

/// Measures the CPU of all of weir's threads while 1 Gbit/s crosses it, with the default latency
/// budget and with one four times as long.
pub(super) fn paced(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let rounds = bench.rounds(|_| {
        let (weir, default) = paced_run(bench, None)?;
        drop(weir);
        let sleeping = sleeps::cores(SWITCH_CPU, CLIENT_CPU, default.wakeups, default.calls)?;
        let (_, long) = paced_run(bench, Some(super::vm_coalescing::BUDGET))?;
        Ok([default.cores, long.cores, default.wakeups, sleeping])
    })?;
    let of = |which: usize| rounds.iter().map(|round| round[which]).collect::<Samples>();
    let [default, long, wakeups, limit] = [0, 1, 2, 3].map(of);
    let share = default.ratio_to(&limit);
    let what = "1 Gbit/s of UDP in 1518 B frames, vif to vif, evenly paced: CPU of all \
                threads";
    let figure = Figure::new("cpu_at_1gbps_1500B", "cores", what, default);
    report.add(figure.goal(Some(Goal::AtMost(0.15))));
    let what = "a thread that sleeps by a timer and calls a sleeping one as often as weir did, and does nothing else";
    report.add(Figure::new("cpu_at_1gbps_sleeps", "cores", what, limit));
    report.add(Figure::ratio("cpu_at_1gbps_vs_sleeps", "weir's CPU to that thread's", share));
    let what = "how often weir's workers woke up in these runs";
    report.add(Figure::new("cpu_at_1gbps_wakeups", "/s", what, wakeups));
    let what = "the same with a latency budget of 1 ms";
    report.add(Figure::new("cpu_at_1gbps_1500B_1ms", "cores", what, long));
    Ok(())
}

/// Runs 1 Gbit/s under one latency budget.
fn paced_run(bench: &Bench<'_>, latency_budget: Option<&'static str>) -> Result<(Weir, Measured)> {
    let (weir, sockets) = start(bench, latency_budget)?;
    let load =
        bench.programs.paced(&sockets, FRAMES_PER_SECOND, FRAME_BYTES, 1 + SECONDS, CLIENT_CPU)?;
    let run = measure(&weir, load)?;
    let (frames, used) = (run.figure, run.cores);
    check(frames >= ARRIVED_MIN * f64::from(FRAMES_PER_SECOND), || {
        format!("only {frames:.0} of {FRAMES_PER_SECOND} frames a second arrived")
    })?;
    let budget = latency_budget.unwrap_or("as it comes");
    println!("budget {budget}: {frames:.0} frames/s, {used:.3} of a core");
    Ok((weir, run))
}

/// Compares large segments with a plain copy of as many bytes, in turn.
pub(super) fn large_segments(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let stream = |buffer_bytes| {
        let (weir, sockets) = start(bench, None)?;
        let load = bench.programs.stream(&sockets, 1 + SECONDS, buffer_bytes, CLIENT_CPU)?;
        let Measured { figure: gbit, cores, .. } = measure(&weir, load)?;
        check(gbit > 0.0, || String::from("nothing arrived"))?;
        Ok::<_, Error>((gbit, cores))
    };
    let rounds = bench.rounds(|round| {
        let (gbit, cores) = stream(memcpy::BUFFER_BYTES as u32)?; // 2 KiB
        let (gbit_large, cores_large) = stream(LARGE_BUFFER_BYTES)?;
        let copied = memcpy::gbit_per_second(SWITCH_CPU, memcpy::SEGMENT_BYTES)?;
        let in_buffers = memcpy::gbit_per_second(SWITCH_CPU, memcpy::BUFFER_BYTES)?;
        println!(
            "round {round}/{}: {gbit:.1} Gbit/s with {cores:.3} of a core, {gbit_large:.1} with \
             {cores_large:.3} in large buffers; memcpy {copied:.1} Gbit/s, in buffers {in_buffers:.1}",
            bench.rounds
        );
        Ok([gbit, gbit / cores, gbit_large / cores_large, copied, in_buffers])
    })?;
    let of = |which: usize| rounds.iter().map(|round| round[which]).collect::<Samples>();
    let [plain, per_core, large, copies, pieces] = [0, 1, 2, 3, 4].map(of);
    let what = "TCP in 64 KiB segments, vif to vif, by weir's share of its core";
    let (ratio, in_buffers) = (per_core.ratio_to(&copies), per_core.ratio_to(&pieces));
    let ratio_large = large.ratio_to(&copies);
    let figure = Figure::new("gbps_tso_per_core", "Gbit/s", what, per_core);
    report.add(figure.goal(Some(Goal::AtLeast(100.0))));
    let what = "that against a plain copy of the same bytes";
    let figure = Figure::ratio("tso_vs_memcpy", what, ratio);
    report.add(figure.goal(Some(Goal::AtLeast(0.7))));
    let what = "the same to a guest with receive buffers of 32 KiB";
    report.add(Figure::new("gbps_tso_per_core_large_buffers", "Gbit/s", what, large));
    let what = "that against the plain copy";
    report.add(Figure::ratio("tso_vs_memcpy_large_buffers", what, ratio_large));
    let what = "the first as it arrived, both guests on the other core";
    report.add(Figure::new("gbps_tso", "Gbit/s", what, plain));
    let what = "64 KiB at a time, within 2 MiB, to 2 MiB";
    report.add(Figure::new("gbps_memcpy", "Gbit/s", what, copies));
    let what = "the same in pieces of 2 KiB, the receiver's buffers, behind a header of 12 bytes";
    report.add(Figure::new("gbps_memcpy_in_buffers", "Gbit/s", what, pieces));
    let what = "TCP in 64 KiB segments against that";
    report.add(Figure::ratio("tso_vs_memcpy_in_buffers", what, in_buffers));
    Ok(())
}

/// Starts a weir that accepts frames from the guests of the examples.
pub(super) fn start(
    bench: &Bench<'_>,
    latency_budget: Option<&'static str>,
) -> Result<(Weir, [PathBuf; 2])> {
    start_with(bench, &Vif { latency_budget, ..Vif::default() }, false)
}

/// Starts a weir with both interfaces like `vif`. Its worker may busy-poll without end.
pub(super) fn start_with(
    bench: &Bench<'_>,
    vif: &Vif,
    dedicated: bool,
) -> Result<(Weir, [PathBuf; 2])> {
    bench.note_other_load()?;
    let vifs = MACS.map(|mac| Vif { mac: Some(mac), ..vif.clone() }).to_vec();
    let setup = Setup { vifs, cpu: Some(SWITCH_CPU), dedicated, ..Setup::default() };
    let weir = Weir::start(bench.lab, &setup)?;
    let sockets = [weir.socket(0_u8)?, weir.socket(1_u8)?];
    Ok((weir, sockets))
}

/// Throughput of a load, and its cost in weir.
struct Measured {
    /// Mean over the load's seconds.
    figure: f64,
    /// CPU time per second.
    cores: f64,
    /// Wake-ups of weir's workers, and calls to guests, per second.
    wakeups: f64,
    calls: f64,
}

fn measure(weir: &Weir, mut load: EverySecond) -> Result<Measured> {
    load.next()?;
    let counted = weir.stats()?;
    let (start, before) = (Instant::now(), weir.usage().cpu_time()?);
    let mut sum = 0.0;
    for _ in 0..SECONDS {
        sum += load.next()?;
    }
    let spent = weir.usage().cpu_time()?.saturating_sub(before);
    let time = start.elapsed().as_secs_f64();
    let now = weir.stats()?;
    let rate = |before: u64, now: u64| now.saturating_sub(before) as f64 / time;
    let wakeups = rate(counted.wakeups()?, now.wakeups()?);
    let calls = rate(counted.calls()?, now.calls()?);
    let cores = spent.as_secs_f64() / time;
    Ok(Measured { figure: sum / f64::from(SECONDS), cores, wakeups, calls })
}
