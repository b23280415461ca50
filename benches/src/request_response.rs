//! Requests and answers at a rate that leaves a switch idle most of the time: how long they take, and what they cost.

use std::{path::PathBuf, time::Instant};

use weir_bed::{
    error::{Error, Result, check},
    report::{Figure, Goal, Report, Samples},
    switch::Switch,
};

use super::{Bench, CLIENT_CPU, Contender, SWITCH_CPU, load_cost, vif_programs::EverySecond};

const REQUESTS_PER_SECOND: u32 = 10_000;
const SECONDS: u32 = 4;

/// How often guests try to come.
const ATTEMPTS: u32 = 3;

/// Of what was asked for, what has to be asked and answered.
const SHARE_MIN: f64 = 0.98;

/// What was measured of a switch.
#[derive(Clone, Copy, Debug)]
struct Run {
    times: RoundTrips,
    /// CPU time of all its threads per time.
    cores: f64,
}

/// What `ask` says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RoundTrips {
    pub(super) asked: f64,
    pub(super) answered: f64,
    /// Microseconds at the median, the 99th percentile and the 99.9th.
    pub(super) us: [f64; 3],
}

impl RoundTrips {
    /// Of `9 asked  8 answered  p50 1.0 us  p99 2.0 us  p99.9 3.0 us`.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let words: Vec<_> = line.split_whitespace().collect();
        let before = |unit: &str| -> Option<f64> {
            words.get(words.iter().position(|word| *word == unit)?.checked_sub(1)?)?.parse().ok()
        };
        let after = |name: &str| -> Option<f64> {
            words.get(words.iter().position(|word| *word == name)? + 1)?.parse().ok()
        };
        let us = [after("p50")?, after("p99")?, after("p99.9")?];
        Some(Self { asked: before("asked")?, answered: before("answered")?, us })
    }
}

pub(super) fn measure(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let contenders = [Contender::Weir, Contender::OvsDpdk];
    let found =
        bench.interleaved("us (p99)", contenders, |it| run(bench, it), |it| it.times.us[1])?;
    let of = |runs: &Vec<Run>, value: fn(&Run) -> f64| runs.iter().map(value).collect::<Samples>();
    let mut ratio = |name, what, value: fn(&Run) -> f64, bound: Option<f64>| {
        let [weir, ovs] = [of(&found[0], value), of(&found[1], value)];
        let figure = Figure::ratio(name, what, weir.ratio_to(&ovs));
        report.add(figure.goal(bound.map(Goal::AtMost)));
    };
    let what = "10,000 requests of 64 B a second between vif guests that sleep: round trips, 99th percentile";
    ratio("rr_p99_vs_ovs", what, |run| run.times.us[1], Some(1.0));
    ratio("rr_p50_vs_ovs", "the same: median", |run| run.times.us[0], None);
    ratio("rr_p999_vs_ovs", "the same: 99.9th percentile", |run| run.times.us[2], None);
    ratio("rr_cpu_vs_ovs", "the same: CPU time of the switch", |run| run.cores, Some(0.3));
    let names = [
        ["rr_p50_weir", "rr_p99_weir", "rr_p999_weir", "rr_cpu_weir"],
        ["rr_p50_ovs", "rr_p99_ovs", "rr_p999_ovs", "rr_cpu_ovs"],
    ];
    for (runs, [p50, p99, p999, cpu]) in found.iter().zip(names) {
        report.add(Figure::new(p50, "us", "round trips, median", of(runs, |run| run.times.us[0])));
        report.add(Figure::new(p99, "us", "99th percentile", of(runs, |run| run.times.us[1])));
        report.add(Figure::new(p999, "us", "99.9th percentile", of(runs, |run| run.times.us[2])));
        report.add(Figure::new(cpu, "cores", "of the switch", of(runs, |run| run.cores)));
    }
    Ok(())
}

fn run(bench: &Bench<'_>, contender: Contender) -> Result<Run> {
    // weir takes frames from these guests' own addresses only.
    let switch: Box<dyn Switch> = match contender {
        Contender::Weir => Box::new(load_cost::start(bench, None)?.0),
        other => other.start(bench.lab, Some(SWITCH_CPU))?,
    };
    let sockets = [switch.link(0)?.socket, switch.link(1)?.socket];
    let mut load = warm_load(bench, contender, &sockets)?;
    let (begin, before) = (Instant::now(), switch.cpu_time()?);
    let line = load.line()?;
    let spent = switch.cpu_time()?.saturating_sub(before);
    let cores = spent.as_secs_f64() / begin.elapsed().as_secs_f64();
    let times = RoundTrips::parse(&line).ok_or_else(|| Error::parse("round trips", &*line))?;
    println!("{}: {line}, {cores:.3} of a core", contender.name());
    let wanted = SHARE_MIN * f64::from(REQUESTS_PER_SECOND * SECONDS);
    check(times.asked >= wanted && times.answered >= wanted, || line)?;
    Ok(Run { times, cores })
}

/// The load, warmed up.
///
/// Open vSwitch makes the buffers of a port when its first guest comes, and answers the next one after that: on a busy
/// machine later than a vif guest waits. Then they are there.
fn warm_load(
    bench: &Bench<'_>,
    contender: Contender,
    sockets: &[PathBuf; 2],
) -> Result<EverySecond> {
    let mut said = String::new();
    for _ in 0..ATTEMPTS {
        let mut load = bench.programs.ask(sockets, REQUESTS_PER_SECOND, SECONDS, CLIENT_CPU)?;
        said = load.line()?;
        if said == "warm" {
            return Ok(load);
        }
    }
    Err(Error::Check(format!("{}: {said}", contender.name())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_are_read() {
        let line = "40000 asked  39999 answered  p50 31.2 us  p99 88.0 us  p99.9 120.5 us";
        let times = RoundTrips { asked: 40_000.0, answered: 39_999.0, us: [31.2, 88.0, 120.5] };
        assert_eq!(RoundTrips::parse(line), Some(times));
        assert_eq!(RoundTrips::parse("warm"), None);
        assert_eq!(RoundTrips::parse("asked p99"), None);
    }
}
