//! weir's CPU time for traffic between two `vif` guests: the cost of 1 Gbit/s, and the rate of large segments on one
//! core. Throughput of plain copies by one core is the upper limit of a switch that copies once.

use std::{
    hint::black_box,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use weir_bed::{
    error::{Error, Result, check},
    report::{Figure, Goal, Report, Samples},
    weir::{Setup, Vif, Weir},
};

use super::{Bench, CLIENT_CPU, SWITCH_CPU, pin, relay};
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
        let sleeping = relay::cores(SWITCH_CPU, CLIENT_CPU, default.wakeups, default.calls)?;
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
    let load = bench.programs()?.paced(
        &sockets,
        FRAMES_PER_SECOND,
        FRAME_BYTES,
        1 + SECONDS,
        CLIENT_CPU,
    )?;
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
        let load = bench.programs()?.stream(&sockets, 1 + SECONDS, buffer_bytes, CLIENT_CPU)?;
        let Measured { figure: gbit, cores, .. } = measure(&weir, load)?;
        check(gbit > 0.0, || String::from("nothing arrived"))?;
        Ok::<_, Error>((gbit, cores))
    };
    let rounds = bench.rounds(|round| {
        let (gbit, cores) = stream(BUFFER_BYTES as u32)?; // 2 KiB
        let (gbit_large, cores_large) = stream(LARGE_BUFFER_BYTES)?;
        let copied = gbit_per_second(SWITCH_CPU, SEGMENT_BYTES)?;
        let in_buffers = gbit_per_second(SWITCH_CPU, BUFFER_BYTES)?;
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

/// Length of each copy (bytes), like a large segment's.
const SEGMENT_BYTES: usize = 64 << 10;

/// Size of a receive buffer of `vif` (bytes).
const BUFFER_BYTES: usize = 2 << 10;

/// Size of the source and target areas, which copies traverse in a circle (bytes). It is like a stream's window and a
/// ring's buffers.
const AREA_BYTES: usize = 2 << 20;

/// Duration of the count, after an equal warm-up.
const TIME: Duration = Duration::from_millis(300);

/// Length of the header in a guest's first buffer (bytes).
const HEADER_BYTES: usize = 12;

/// Measures the throughput of a thread on CPU `cpu` (Gbit/s), with copies of at most `piece_bytes`.
fn gbit_per_second(cpu: usize, piece_bytes: usize) -> Result<f64> {
    let copying = thread::spawn(move || {
        pin(cpu)?;
        // The pages are written: untouched pages of zeros may all be the same page.
        let (from, mut to) = (vec![1_u8; AREA_BYTES], vec![2_u8; AREA_BYTES]);
        copy_for(TIME, piece_bytes, &from, &mut to);
        Ok(copy_for(TIME, piece_bytes, &from, &mut to))
    });
    copying.join().map_err(|_| Error::Check("the copying thread panicked".into()))?
}

fn copy_for(time: Duration, piece_bytes: usize, from: &[u8], to: &mut [u8]) -> f64 {
    let start = Instant::now();
    let mut bytes = 0;
    while start.elapsed() < time {
        for (from, to) in from.chunks(SEGMENT_BYTES).zip(to.chunks_mut(SEGMENT_BYTES)) {
            // As in a guest's buffers, a header precedes the frame, and each buffer holds a piece.
            let whole = piece_bytes >= SEGMENT_BYTES;
            let to = if whole { to } else { &mut to[HEADER_BYTES..] };
            for (from, to) in from.chunks(piece_bytes).zip(to.chunks_mut(piece_bytes)) {
                let len = from.len().min(to.len());
                black_box(&mut to[..len]).copy_from_slice(black_box(&from[..len]));
                bytes += len;
            }
        }
    }
    bytes as f64 * 8.0 / start.elapsed().as_secs_f64() / 1e9
}

pub(super) fn lookups(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let rounds = bench.rounds(|_| {
        let mut measuring = bench.programs()?.lookup(SWITCH_CPU)?;
        let few: [f64; 3] = numbers(&measuring.line()?)?;
        let many: [f64; 4] = numbers(&measuring.line()?)?;
        let [_, few, few_read] = few;
        let [_, many, many_read, bytes] = many;
        Ok([few, many, (few + many_read - few_read) / few, bytes])
    })?;
    let of = |which: usize| rounds.iter().map(|round| round[which]).collect::<Samples>();
    let [few, many, limit, bytes] = [0, 1, 2, 3].map(of);
    let what = "a lookup in the forwarding table with 100,000 addresses, over one with 100";
    let ratio = many.ratio_to(&few);
    report.add(Figure::ratio("fdb_lookup_100k_vs_100", what, ratio).goal(Some(Goal::AtMost(1.5))));
    report.add(Figure::new("fdb_lookup_100_ns", "ns", "the same: the lookup among 100", few));
    report.add(Figure::new("fdb_lookup_100k_ns", "ns", "and among 100,000", many));
    let what = "the same if a lookup among 100,000 took one among 100, and one read of memory as large as the table more";
    report.add(Figure::ratio("fdb_lookup_100k_vs_100_limit", what, limit));
    let what = "a forwarding table of 262,144 entries, for each of 100,000 addresses in it";
    let figure = Figure::new("fdb_100k_bytes_per_entry", "B", what, bytes);
    report.add(figure.goal(Some(Goal::AtMost(128.0))));
    Ok(())
}

/// Returns the numbers among the words of a line.
fn numbers<const N: usize>(line: &str) -> Result<[f64; N]> {
    let numbers: Vec<_> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    numbers.try_into().map_err(|_| Error::parse("what lookups cost", line.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_line_are_read() {
        let line = "100 addresses: 12.10 ns a lookup, 1.20 ns a read";
        assert_eq!(numbers(line).unwrap(), [100.0, 12.1, 1.2]);
        assert!(numbers::<4>(line).is_err());
    }
}
