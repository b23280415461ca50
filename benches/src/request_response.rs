//! Times and costs of requests and answers: at a rate that leaves a switch idle most of the time, and at many rates.

use std::{
    path::PathBuf,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use rustix::time::{ClockId, clock_gettime};
use serde_json::Value as Json;
use weir_bed::{
    error::{Error, Result, check},
    report::{Figure, Goal, Report, Samples},
    switch::Switch,
    weir::{self, Vif, Weir},
};
use weir_guestmem::ticks;

use super::{
    Bench, CLIENT_CPU, Contender, SWITCH_CPU, load_cost, peers::tap_bridge::tap, relay,
    vif_programs::EverySecond,
};

const REQUESTS_PER_SECOND: u32 = 10_000;
const SECONDS: u32 = 4;

/// Requests a second in the table of many rates, and the time of each of its cells.
const RATES: [u32; 5] = [100, 1_000, 10_000, 50_000, 200_000];
const CELL_SECONDS: u32 = 2;

/// The kernel releases Open vSwitch's huge pages after its end. A switch that was started at once stalled for 34 ms
/// of the four counted seconds.
const AFTERMATH: Duration = Duration::from_secs(3);

/// Number of attempts to connect guests.
const ATTEMPTS: u32 = 3;

/// Smallest share of the requests that must be sent and answered.
const SHARE_MIN: f64 = 0.98;

/// Results for a switch.
#[derive(Clone, Copy, Debug)]
struct Run {
    times: RoundTrips,
    /// CPU time of all threads per second.
    cores: f64,
    /// The same with the guests' threads.
    all_cores: f64,
}

/// Output of `ask`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RoundTrips {
    pub(super) asked: f64,
    pub(super) answered: f64,
    /// Median, 99th and 99.9th percentile (us).
    pub(super) us: [f64; 3],
}

impl RoundTrips {
    /// Parses `9 asked  8 answered  p50 1.0 us  p99 2.0 us  p99.9 3.0 us`.
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

/// A path of requests and answers.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// weir with defaults: budgets of 250 us.
    Weir,
    WeirWithBudget(&'static str),
    /// Calls that are never held.
    WeirImmediate,
    /// weir that busy-polls like Open vSwitch.
    WeirDedicated,
    /// The same, with calls that are never held.
    WeirDedicatedImmediate,
    Ovs,
    /// A kernel bridge between two TAPs, which the guests read and write.
    Bridge,
    /// A thread that is woken and wakes others, without a switch.
    Relay,
}

/// All paths, with the suffixes of their figures' names. The first path is the one with which the others are compared.
const WAYS: [(Way, &str); 7] = [
    (Way::Ovs, "ovs"),
    (Way::Weir, ""),
    (Way::WeirWithBudget("50us"), "_50us"),
    (Way::WeirImmediate, "_immediate"),
    (Way::WeirDedicated, "_dedicated"),
    (Way::WeirDedicatedImmediate, "_dedicated_immediate"),
    (Way::Relay, "_limit"),
];

/// The paths of the table of many rates, with their figures' names.
const FRONT: [(Way, &str); 8] = [
    (Way::WeirImmediate, "immediate"),
    (Way::WeirWithBudget("50us"), "auto_50us"),
    (Way::WeirWithBudget("250us"), "auto_250us"),
    (Way::WeirWithBudget("1ms"), "auto_1ms"),
    (Way::WeirDedicated, "dedicated"),
    (Way::WeirDedicatedImmediate, "dedicated_immediate"),
    (Way::Ovs, "ovs_dpdk"),
    (Way::Bridge, "tap_bridge"),
];

/// A value compared between the paths.
struct Value {
    name: &'static str,
    what: &'static str,
    read: fn(&Run) -> f64,
}

/// Returns the goal of a value and a way, given the ends of their figures' names: the largest
/// permitted ratio to Open vSwitch.
fn goal(value: &str, way: &str) -> Option<Goal> {
    let most = match (value, way) {
        ("cpu", "") => 0.3,
        ("p99", "") | ("p50", "_dedicated_immediate") => 1.0,
        ("p99", "_dedicated_immediate") => 1.1,
        ("p50" | "p99", "_dedicated") => 1.5,
        _ => return None,
    };
    Some(Goal::AtMost(most))
}

const VALUES: [Value; 4] = [
    Value { name: "p99", what: "round trips, 99th percentile", read: |run| run.times.us[1] },
    Value { name: "p50", what: "round trips, median", read: |run| run.times.us[0] },
    Value { name: "p999", what: "round trips, 99.9th percentile", read: |run| run.times.us[2] },
    Value { name: "cpu", what: "CPU time of the switch", read: |run| run.cores },
];

pub(super) fn measure(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let rounds = bench.rounds(|round| {
        let mut runs = Vec::new();
        for (way, name) in WAYS {
            let found = run(bench, way)?;
            let RoundTrips { us: [p50, p99, p999], .. } = found.times;
            let name = name.trim_start_matches('_');
            println!(
                "round {round}/{}: {name:<10} p50 {p50:.1} us  p99 {p99:.1} us  p99.9 {p999:.1} us, {:.3} of a core",
                bench.rounds, found.cores
            );
            runs.push(found);
            if matches!(way, Way::Ovs) {
                thread::sleep(AFTERMATH);
            }
        }
        Ok(runs)
    })?;
    let of = |way: usize, value: fn(&Run) -> f64| {
        rounds.iter().map(|runs| value(&runs[way])).collect::<Samples>()
    };
    for Value { name: value, what, read } in VALUES {
        let ovs = of(0, read);
        for (way, (kind, name)) in WAYS.into_iter().enumerate().skip(1) {
            let what = format!(
                "10,000 requests of 64 B a second between vif guests that sleep: {what}; {}",
                kind.says()
            );
            let ratio = of(way, read).ratio_to(&ovs);
            let figure = Figure::ratio(format!("rr_{value}_vs_ovs{name}"), what, ratio);
            report.add(figure.goal(goal(value, name)));
        }
        let unit = if value == "cpu" { "cores" } else { "us" };
        report.add(Figure::new(format!("rr_{value}_weir"), unit, what, of(1, read)));
        report.add(Figure::new(format!("rr_{value}_ovs"), unit, what, ovs));
    }
    let p999 = |way| of(way, |run| run.times.us[2]);
    let what = "the 99.9th percentile of weir as it comes against a thread that passes wake-ups on";
    let ratio = p999(1).ratio_to(&p999(WAYS.len() - 1));
    report.add(Figure::ratio("rr_p999_vs_wakeups", what, ratio).goal(Some(Goal::AtMost(1.1))));
    Ok(())
}

/// Measures many rates: the CPU time and the round trips of each way of weir's and of each peer. A
/// peer that does not start and a rate that a way does not answer have no figures.
pub(super) fn front(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let rounds = bench.rounds(|round| {
        let mut cells = Vec::new();
        for (way, name) in FRONT {
            bench.note_other_load()?;
            let switch = start(bench, way);
            for rate in RATES {
                let run = match &switch {
                    Ok(switch) => run_on(bench, way, switch.as_ref(), rate, CELL_SECONDS),
                    Err(error) => Err(Error::Check(error.to_string())),
                };
                match &run {
                    Ok(Run { times: RoundTrips { us: [p50, p99, _], .. }, all_cores, .. }) => println!(
                        "round {round}/{}: {name:<19} {rate:>7}/s  p50 {p50:.1} us  p99 {p99:.1} us, {all_cores:.3} \
                         of a core",
                        bench.rounds
                    ),
                    Err(error) => println!("{name} {rate}/s: {error}"),
                }
                cells.push(run.ok());
            }
            drop(switch);
            if matches!(way, Way::Ovs) {
                thread::sleep(AFTERMATH);
            }
        }
        Ok(cells)
    })?;
    // In these values, `what` is the unit.
    let values = [
        Value { name: "p50", what: "us", read: |run| run.times.us[0] },
        Value { name: "p99", what: "us", read: |run| run.times.us[1] },
        Value { name: "cpu", what: "cores", read: |run| run.all_cores },
    ];
    let cells = FRONT.iter().flat_map(|way| RATES.map(|rate| (way, rate)));
    for (cell, ((way, name), rate)) in cells.enumerate() {
        let runs: Vec<_> = rounds.iter().filter_map(|cells| cells[cell].as_ref()).collect();
        let of_way = way.says();
        for Value { name: value, what: unit, read } in values.iter().filter(|_| !runs.is_empty()) {
            let what =
                format!("{rate} requests of 64 B a second; {of_way}; CPU time is the guests', too");
            let found: Samples = runs.iter().map(|run| read(run)).collect();
            report.add(Figure::new(format!("rr_front_{value}_{name}_{rate}"), *unit, what, found));
        }
    }
    Ok(())
}

/// Parts of a frame's way with a worker that polls, in their order. The stages that weir measures itself have their
/// names in its statistics.
const STAGES: [(&str, Option<&str>, &str); 8] = [
    ("seen", None, "from the sender's time stamp until the worker reads its ring; median"),
    ("taken", Some("take"), "the ring is read, and the header checked; mean"),
    ("classified", Some("classify"), "the receiver is found; mean"),
    ("copied", Some("copy"), "the receiver's buffer is filled; mean"),
    ("published", Some("publish"), "used indices are written; mean"),
    ("called", Some("call"), "it is decided when the guest is called, and a call is made; mean"),
    (
        "held",
        None,
        "from the frame's publication until the guest is called, without `called`; median",
    ),
    (
        "guest",
        None,
        "the rest of half a round trip: the guest's thread wakes up, and takes the frame",
    ),
];

/// The ways whose stages are shown: settings of `moderation`, with the suffixes of their figures' names.
const STAGED: [(Option<&str>, &str); 2] =
    [(None, "dedicated"), (Some("immediate"), "dedicated_immediate")];

/// The number of requests that are followed for their first stage: a tenth of a second of them.
const FOLLOWED: &str = "1000";

/// Measures where a frame's time goes with a worker that polls.
pub(super) fn stages(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let rounds = bench.rounds(|round| {
        let mut found = Vec::new();
        for (moderation, name) in STAGED {
            let us = by_stage(bench, moderation)?;
            let said = STAGES.iter().zip(us).map(|((stage, ..), us)| format!("  {stage} {us:.2}"));
            println!("round {round}/{}: {name}:{} us", bench.rounds, said.collect::<String>());
            found.push(us);
        }
        Ok(found)
    })?;
    for (way, (_, name)) in STAGED.iter().enumerate() {
        for (nth, (stage, _, what)) in STAGES.iter().enumerate() {
            let us: Samples = rounds.iter().map(|ways| ways[way][nth]).collect();
            let what = format!("10,000 requests of 64 B a second, a worker that polls: {what}");
            report.add(Figure::new(format!("rr_stages_{stage}_{name}"), "us", what, us));
        }
    }
    Ok(())
}

/// Returns the time of each of [`STAGES`] (us).
fn by_stage(bench: &Bench<'_>, moderation: Option<&'static str>) -> Result<[f64; STAGES.len()]> {
    let vif = Vif { moderation, ..Vif::default() };
    let (weir, sockets) = load_cost::start_with(bench, &vif, true)?;
    let ask = || warm_load(bench, Way::WeirDedicated, &sockets, REQUESTS_PER_SECOND, SECONDS);
    let mut load = ask()?;
    weir.control(&["stats", "--stages", "on"])?;
    let (begin, ticks_before) = (Instant::now(), ticks::now());
    let line = load.line()?;
    let ticks = ticks::now().saturating_sub(ticks_before) as f64;
    let ticks_per_us = ticks / (begin.elapsed().as_secs_f64() * 1e6);
    let stats = weir.stats()?;
    weir.control(&["stats", "--stages", "off"])?;
    drop(load);
    let times = RoundTrips::parse(&line).ok_or_else(|| Error::parse("round trips", &*line))?;
    let run = Run { times, cores: f64::NAN, all_cores: f64::NAN };
    let way = checked(run, REQUESTS_PER_SECOND * SECONDS)?.times.us[0] / 2.0;
    // Requests are followed in a run of their own, since following takes time.
    let mut load = ask()?;
    let seen = until_seen(&weir)?;
    load.line()?;
    let ports = [0_u8, 1].map(|index| stats.hold_ns(&weir::name(index)));
    let [here, there] = ports;
    let held = (here? + there?) as f64 / 2_000.0;
    let mut us = [0.0; STAGES.len()];
    for (us, (stage, own, _)) in us.iter_mut().zip(STAGES) {
        *us = match own {
            Some(own) => stats.ticks_per_frame(own)? / ticks_per_us,
            None if stage == "seen" => seen,
            None if stage == "held" => held,
            None => 0.0,
        };
    }
    // A call counts as made when it has returned.
    let [.., called, held, _] = &mut us;
    *held = (*held - *called).max(0.0);
    let rest = way - us.iter().sum::<f64>();
    if let Some(last) = us.last_mut() {
        *last = rest;
    }
    Ok(us)
}

/// Follows requests, and returns the median time until the worker begins to read the ring that has one (us).
fn until_seen(weir: &Weir) -> Result<f64> {
    let follow = ["trace", "vif0", "--live", "--json", "-f", "udp", "-c", FOLLOWED];
    let followed = weir.control(&follow)?;
    let monotonic = clock_gettime(ClockId::Monotonic);
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let epoch = unix as i128
        - (i128::from(monotonic.tv_sec) * 1_000_000_000)
        - i128::from(monotonic.tv_nsec);
    let mut all: Vec<f64> = Vec::new();
    for line in followed.lines() {
        let us =
            time_until_read(line, epoch).ok_or_else(|| Error::parse("a followed frame", line))?;
        all.push(us);
    }
    all.sort_by(f64::total_cmp);
    let median = all.get(all.len() / 2).copied();
    median.ok_or_else(|| Error::Check("no request was followed".into()))
}

/// The place of a request's time stamp (ns of the monotonic clock) in its frame.
const STAMP: std::ops::Range<usize> = 50..58;

/// Returns the time from a request's time stamp until a worker read its ring (us). `epoch` is the time since 1970 at
/// which the monotonic clock began (ns).
fn time_until_read(line: &str, epoch: i128) -> Option<f64> {
    let frame: Json = serde_json::from_str(line).ok()?;
    let digits = frame["front"].as_str()?.get(2 * STAMP.start..2 * STAMP.end)?;
    let stamp = u64::from_str_radix(digits, 16).ok()?;
    let read = i128::from(frame["at_ns"].as_u64()?);
    // A worker may begin to read just before the request is there.
    Some((read - epoch - i128::from(stamp)).max(0) as f64 / 1_000.0)
}

impl Way {
    fn says(self) -> String {
        match self {
            Self::Weir => "weir as it comes".into(),
            Self::WeirWithBudget(budget) => format!("weir with budgets of {budget}"),
            Self::WeirImmediate => "weir under `immediate`".into(),
            Self::WeirDedicated => "weir with a worker that polls".into(),
            Self::WeirDedicatedImmediate => {
                "weir with a worker that polls, under `immediate`".into()
            }
            Self::Ovs => "OVS-DPDK".into(),
            Self::Bridge => "the kernel's bridge and TAPs".into(),
            Self::Relay => "a thread that passes wake-ups on and does nothing else".into(),
        }
    }
}

fn run(bench: &Bench<'_>, way: Way) -> Result<Run> {
    if matches!(way, Way::Relay) {
        bench.note_other_load()?;
        let (times, cores) =
            relay::round_trips(SWITCH_CPU, CLIENT_CPU, REQUESTS_PER_SECOND, SECONDS)?;
        let run = Run { times, cores, all_cores: f64::NAN };
        return checked(run, REQUESTS_PER_SECOND * SECONDS);
    }
    run_on(bench, way, start(bench, way)?.as_ref(), REQUESTS_PER_SECOND, SECONDS)
}

/// Starts a switch with two ports.
fn start(bench: &Bench<'_>, way: Way) -> Result<Box<dyn Switch>> {
    let vif = Vif::default();
    // weir accepts only frames with these guests' own addresses.
    let weir = |vif: &Vif, dedicated| Ok(load_cost::start_with(bench, vif, dedicated)?.0);
    Ok(match way {
        Way::Weir => Box::new(weir(&vif, false)?),
        Way::WeirWithBudget(budget) => {
            Box::new(weir(&Vif { latency_budget: Some(budget), ..vif }, false)?)
        }
        Way::WeirImmediate => Box::new(weir(&Vif { moderation: Some("immediate"), ..vif }, false)?),
        Way::WeirDedicated => Box::new(weir(&vif, true)?),
        Way::WeirDedicatedImmediate => {
            Box::new(weir(&Vif { moderation: Some("immediate"), ..vif }, true)?)
        }
        Way::Ovs => {
            bench.note_other_load()?;
            Contender::OvsDpdk.start(bench.lab, Some(SWITCH_CPU))?
        }
        Way::Bridge => Contender::TapBridge.start(bench.lab, None)?,
        Way::Relay => return Err(Error::Check("a relay is no switch".into())),
    })
}

/// Measures `rate` requests a second for `seconds`.
fn run_on(
    bench: &Bench<'_>,
    way: Way,
    switch: &dyn Switch,
    rate: u32,
    seconds: u32,
) -> Result<Run> {
    let mut load = match way {
        Way::Bridge => {
            let mut placement = switch.plug(0)?.placement;
            placement.cpu = Some(CLIENT_CPU);
            let mut load =
                bench.programs()?.ask_taps([0, 1].map(tap), rate, seconds, &placement)?;
            load.line()?;
            load
        }
        _ => {
            let sockets = [switch.link(0)?.socket, switch.link(1)?.socket];
            warm_load(bench, way, &sockets, rate, seconds)?
        }
    };
    let guests = load.usage();
    // The kernel's part is included in the guests' threads.
    let spent = |switch: &dyn Switch| match way {
        Way::Bridge => Ok(Duration::ZERO),
        _ => switch.cpu_time(),
    };
    let (begin, before, guests_before) = (Instant::now(), spent(switch)?, guests.cpu_time()?);
    thread::sleep(Duration::from_secs(seconds.into()));
    let (now, guests_now) = (spent(switch)?, guests.cpu_time()?);
    let [switch_s, guests_s] = [(before, now), (guests_before, guests_now)]
        .map(|(before, now)| now.saturating_sub(before).as_secs_f64());
    let time = begin.elapsed().as_secs_f64();
    let line = load.line()?;
    let times = RoundTrips::parse(&line).ok_or_else(|| Error::parse("round trips", &*line))?;
    let (cores, all_cores) = (switch_s / time, (switch_s + guests_s) / time);
    checked(Run { times, cores, all_cores }, rate * seconds)
}

/// Checks that enough requests were sent and answered.
fn checked(run: Run, requests: u32) -> Result<Run> {
    let wanted = SHARE_MIN * f64::from(requests);
    let RoundTrips { asked, answered, .. } = run.times;
    check(asked >= wanted && answered >= wanted, || {
        format!("{asked} asked, {answered} answered; {wanted} of each are wanted")
    })?;
    Ok(run)
}

/// Starts the load and warms it up.
///
/// Open vSwitch makes the buffers of a port when its first guest connects, and answers the next guest only
/// afterwards. On a busy machine that is later than a vif guest waits. A further attempt finds the buffers.
fn warm_load(
    bench: &Bench<'_>,
    way: Way,
    sockets: &[PathBuf; 2],
    rate: u32,
    seconds: u32,
) -> Result<EverySecond> {
    let mut said = String::new();
    for _ in 0..ATTEMPTS {
        let mut load = bench.programs()?.ask(sockets, rate, seconds, CLIENT_CPU)?;
        said = load.line()?;
        if said == "warm" {
            return Ok(load);
        }
    }
    Err(Error::Check(format!("{}: {said}", way.says())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_after_its_time_stamp() {
        let line = |at_ns: u64| {
            let front = format!("{}{:016x}", "ab".repeat(STAMP.start), 5_000);
            format!("{{\"at_ns\":{at_ns},\"front\":\"{front}\",\"steps\":[]}}")
        };
        assert_eq!(time_until_read(&line(1_007_500), 1_000_000), Some(2.5));
        assert_eq!(time_until_read(&line(1_004_000), 1_000_000), Some(0.0));
        assert_eq!(time_until_read("{}", 0), None);
    }

    #[test]
    fn round_trips_are_read() {
        let line = "40000 asked  39999 answered  p50 31.2 us  p99 88.0 us  p99.9 120.5 us";
        let times = RoundTrips { asked: 40_000.0, answered: 39_999.0, us: [31.2, 88.0, 120.5] };
        assert_eq!(RoundTrips::parse(line), Some(times));
        assert_eq!(RoundTrips::parse("warm"), None);
        assert_eq!(RoundTrips::parse("asked p99"), None);
    }
}
