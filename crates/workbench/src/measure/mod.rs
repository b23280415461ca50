//! `--measured` runs experiments on a switch with built-in guests, beside the simulation. `weir lab validate`
//! compares the two.
//!
//! | file | contents |
//! |---|---|
//! | `setting.rs` | the part of an experiment that this machine can measure, and the reasons against the rest |
//! | `host.rs` | the switch and its guests |
//! | `validate.rs` | predicted and measured side by side |
//!
//! Each round measures all points in turn, so that a disturbance of the machine affects all points equally. A figure
//! is the median of its rounds, printed with the least and the largest value. A point whose worker had to wait for
//! its CPU is measured again.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use hdrhistogram::Histogram;
use indicatif::ProgressBar;
use weir_bench::rig;

use super::LabError;
use super::experiment::{Experiment, name_of};
use super::file::{At, Figure, MeasuredFile};
use super::output;
use super::quiet::{Quiet, aside};
use super::runs::progress;
use crate::args::QuietArgs;

mod host;
mod setting;
mod validate;

pub(super) use host::{Counts, GuestCounts, Host};
pub(super) use setting::{Flow, Setting};
pub(super) use validate::run as validate;
pub(super) use weir_bench::rig::{pin, usable_cpus};

/// Largest wait of a worker for its CPU (percent of the time). A worker alone on its CPU waits about a microsecond
/// for the scheduler after each sleep. A longer wait shows that it shares the CPU.
const WAITED_MAX_PERCENT: f64 = 5.0;
/// Largest number of attempts to measure a point in one round.
const TRIES_MAX: usize = 3;

/// Parts of a run. Each has its own latencies.
const PARTS: u32 = 10;

/// A point under measurement, with the rounds so far.
struct Rounds<'e> {
    at: &'e At,
    setting: Setting,
    /// Figures with one value per round.
    values: Vec<(Figure, Vec<f64>)>,
    /// The worker's wait for its CPU in each round (percent).
    waited: Vec<f64>,
}

/// Points that cannot be measured, with the reasons.
pub(super) type Refused = Vec<(String, String)>;

/// Points whose worker shared its CPU in the median round, with the wait (percent).
pub(super) type Disturbed = Vec<(String, f64)>;

/// Measures the measurable points of each experiment. Returns the other points, with the reasons.
///
/// # Errors
/// The only experiment cannot be measured at all; others as [`measure`].
pub(super) fn measure_each(
    experiments: &mut [Experiment],
    rounds: usize,
) -> Result<Vec<Refused>, LabError> {
    let stop = rig::catch_signals()?;
    let _quiet = Quiet::unless(&QuietArgs::default());
    let bar = progress(0);
    let alone = experiments.len() == 1;
    let one = |experiment| match measure(experiment, rounds, &bar, &stop) {
        Err(LabError::NotMeasured { why, .. }) if !alone => Ok(vec![("every point".into(), why)]),
        result => result,
    };
    let refused = experiments.iter_mut().map(one).collect();
    bar.finish_and_clear();
    refused
}

/// Measures the measurable points of `experiment`, and adds them to its `[[measured]]`. Returns the
/// other points, with the reasons.
///
/// # Errors
/// No point is measurable here; a switch is not available; the measurement was interrupted.
pub(super) fn measure(
    experiment: &mut Experiment,
    rounds: usize,
    bar: &ProgressBar,
    stop: &AtomicBool,
) -> Result<Refused, LabError> {
    measure_between(experiment, rounds, bar, stop, || Ok(())).map(|(refused, _)| refused)
}

/// Measures as [`measure`] does, and calls `between` before each round over all points and after the last.
///
/// # Errors
/// As [`measure`], and those of `between`.
fn measure_between(
    experiment: &mut Experiment,
    rounds: usize,
    bar: &ProgressBar,
    stop: &AtomicBool,
    mut between: impl FnMut() -> Result<(), LabError>,
) -> Result<(Refused, Disturbed), LabError> {
    let usable = usable_cpus();
    let wanted = output::figures(&experiment.file);
    let (mut points, mut refused) = (Vec::new(), Refused::new());
    for (at, scenario) in &experiment.points {
        match Setting::of(scenario, &usable) {
            Ok(setting) => {
                let values = wanted.iter().map(|figure| (*figure, Vec::new())).collect();
                points.push(Rounds { at, setting, values, waited: Vec::new() });
            }
            Err(why) => refused.push((name_of(at), why.to_string())),
        }
    }
    if points.is_empty() {
        let why = refused.into_iter().next().map(|it| it.1).unwrap_or_default();
        return Err(LabError::NotMeasured { experiment: experiment.name.clone(), why });
    }
    bar.set_length((points.len() * rounds) as u64);
    let dir = rig::temp_dir()?;
    for _ in 0..rounds {
        between()?;
        for point in &mut points {
            bar.set_message(name_of(point.at));
            point.round(dir.path(), stop)?;
            bar.inc(1);
        }
    }
    between()?;
    let waited = points.iter().map(|point| (name_of(point.at), median(point.waited.clone())));
    let disturbed = waited.filter(|(_, percent)| *percent > WAITED_MAX_PERCENT).collect();
    let source = format!("this machine, median of {rounds} rounds");
    let measured: Vec<_> = points.into_iter().flat_map(|point| point.measured(&source)).collect();
    experiment.file.measured.extend(measured);
    Ok((refused, disturbed))
}

impl Rounds<'_> {
    /// Adds a round: the first attempt in which the worker had its CPU alone, or the attempt with the least wait.
    fn round(&mut self, dir: &Path, stop: &AtomicBool) -> Result<(), LabError> {
        let mut best: Option<(f64, Vec<Counts>)> = None;
        for _ in 0..TRIES_MAX {
            let counts = self.measured_once(dir, stop)?;
            let percent = waited_percent(&counts);
            if best.as_ref().is_none_or(|(least, _)| percent < *least) {
                best = Some((percent, counts));
            }
            if percent <= WAITED_MAX_PERCENT {
                break;
            }
        }
        let Some((percent, counts)) = best else { return Ok(()) };
        self.waited.push(percent);
        for (figure, values) in &mut self.values {
            values.extend(value(*figure, &self.setting, &counts));
        }
        Ok(())
    }

    /// Returns the counters at the start and at the end of each part.
    fn measured_once(&self, dir: &Path, stop: &AtomicBool) -> Result<Vec<Counts>, LabError> {
        let host = Host::start(&self.setting, dir)?;
        let counts = aside(|| {
            rig::wait(self.setting.warm_up, stop, || host.has_failed());
            let mut counts = vec![host.counts()];
            for _ in 0..PARTS {
                rig::wait(self.setting.run / PARTS, stop, || host.has_failed());
                counts.push(host.counts());
            }
            counts
        });
        host.finish()?;
        match stop.load(Ordering::Relaxed) {
            true => Err(LabError::Interrupted),
            false => Ok(counts),
        }
    }

    /// Returns the measurements in the form of an experiment's file.
    fn measured(self, source: &str) -> Vec<MeasuredFile> {
        let at = self.at;
        let one = |(y, mut values): (Figure, Vec<f64>)| {
            values.sort_by(f64::total_cmp);
            let [min, mean, max] = [values.first(), values.get(values.len() / 2), values.last()];
            let (at, source) = (at.clone(), source.to_owned());
            Some(MeasuredFile { at, y, mean: *mean?, min: min.copied(), max: max.copied(), source })
        };
        self.values.into_iter().filter_map(one).collect()
    }
}

/// Returns the worker's time ready without a CPU from the first count to the last (percent of the time).
fn waited_percent(counts: &[Counts]) -> f64 {
    let [before, .., after] = counts else { return 0.0 };
    let ns = after.at.saturating_duration_since(before.at).as_nanos() as f64;
    100.0 * after.worker_waited_ns.saturating_sub(before.worker_waited_ns) as f64 / ns
}

/// Returns a run's figure from several counts, the first at its start; `None` if built-in guests cannot measure it.
///
/// A latency is the median over the slices between counts: a pause of the whole machine for some milliseconds affects
/// few packets, but easily one in a hundred.
fn value(figure: Figure, setting: &Setting, counts: &[Counts]) -> Option<f64> {
    let (before, after) = (counts.first()?, counts.last()?);
    let ns = after.at.saturating_duration_since(before.at).as_nanos() as f64;
    let per_s = |count: u64| count as f64 * 1e9 / ns;
    let percent = |cpu_ns: u64| 100.0 * cpu_ns as f64 / ns;
    let guests = |count: fn(&GuestCounts) -> u64| -> u64 {
        let pairs = after.guests.iter().zip(&before.guests);
        pairs.map(|(after, before)| count(after).saturating_sub(count(before))).sum()
    };
    let worker_ns = after.worker_cpu_ns.saturating_sub(before.worker_cpu_ns);
    let guests_ns = guests(|guest| guest.cpu_ns);
    let latency = |of: fn(&Histogram<u64>) -> f64| {
        let parts = counts.iter().zip(counts.iter().skip(1));
        let parts: Vec<_> = parts.filter_map(|(before, after)| latencies(before, after)).collect();
        (!parts.is_empty()).then(|| median(parts.iter().map(|part| of(part) / 1e3).collect()))
    };
    match figure {
        Figure::CpuPercent => Some(percent(worker_ns + guests_ns)),
        Figure::WorkerCpuPercent => Some(percent(worker_ns)),
        Figure::GuestCpuPercent => Some(percent(guests_ns)),
        Figure::MbitPerS => {
            let ends = after.guests.chunks_exact(2).zip(before.guests.chunks_exact(2));
            let bytes = ends.zip(&setting.flows).map(|((after, before), flow)| {
                let frames = |ends: &[GuestCounts]| ends.last().map_or(0, |it| it.load.rx_frames);
                frames(after).saturating_sub(frames(before)) * u64::from(flow.frame_bytes)
            });
            Some(8e-6 * per_s(bytes.sum()))
        }
        Figure::PacketsPerS => Some(per_s(guests(|guest| guest.load.rx_frames))),
        Figure::CpuUsPerPacket => {
            let received = guests(|guest| guest.load.rx_frames);
            (received > 0).then(|| (worker_ns + guests_ns) as f64 / 1e3 / received as f64)
        }
        Figure::CallsPerS => Some(per_s(after.calls.saturating_sub(before.calls))),
        Figure::InterruptsPerS => Some(per_s(guests(|guest| guest.pair.wakeups))),
        Figure::LatencyMeanUs => latency(|it| it.mean()),
        Figure::LatencyMedianUs => latency(|it| it.value_at_quantile(0.5) as f64),
        Figure::LatencyP99Us => latency(|it| it.value_at_quantile(0.99) as f64),
        Figure::JitterUs => latency(|it| {
            it.value_at_quantile(0.75).saturating_sub(it.value_at_quantile(0.25)) as f64
        }),
        // weir has no counters for these.
        Figure::SignalUs | Figure::RingWaitUs | Figure::IngressUs => None,
    }
}

/// Returns the latencies between two counts, if there are any.
fn latencies(before: &Counts, after: &Counts) -> Option<Histogram<u64>> {
    let mut latency = after.latency.clone()?;
    if let Some(before) = &before.latency {
        // `subtract` cannot fail: the later histogram includes the earlier one.
        let _ = latency.subtract(before);
    }
    (!latency.is_empty()).then_some(latency)
}

/// Returns the median: the mean of the two middle values if their number is even.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = |at: usize| values.get(at).copied();
    let (low, high) = (middle(values.len().saturating_sub(1) / 2), middle(values.len() / 2));
    low.zip(high).map_or(f64::NAN, |(low, high)| (low + high) / 2.0)
}

#[cfg(test)]
mod tests {
    use weir_lab::scenarios::{EXPERIMENTS, REALITY};

    use super::super::error::Source;
    use super::super::runs::parse;
    use super::*;

    fn experiment(text: &str) -> Experiment {
        parse(Source { name: "mine.toml", text }, None, None).unwrap()
    }

    fn measured(text: &str) -> (Experiment, Result<Refused, LabError>) {
        let mut experiment = experiment(text);
        // Two rounds: on a busy machine one may have no packets.
        let result = measure(&mut experiment, 2, &progress(0), &AtomicBool::new(false));
        (experiment, result)
    }

    /// The experiment that comes with weir, on this process's CPUs, and short.
    fn here(text: &str) -> String {
        let usable = usable_cpus();
        let (first, last) = (usable[0], usable[usable.len() - 1]);
        let all = format!("cores_per_llc = {}", last + 1);
        text.replace("cores_per_llc = 2", &all)
            .replace("cpus = [1]", &format!("cpus = [{last}]"))
            .replace("cpus = [0]", &format!("cpus = [{first}]"))
            .replace("warm_up = \"150ms\"", "warm_up = \"50ms\"")
            .replace("run = \"500ms\"", "run = \"100ms\"")
    }

    #[test]
    fn all_that_comes_with_weir_to_be_measured_can_be_on_two_cpus() {
        let experiment = parse(Source { name: REALITY.0, text: REALITY.1 }, None, None).unwrap();
        assert!(experiment.points.len() >= 8);
        for (at, scenario) in &experiment.points {
            let setting =
                Setting::of(scenario, &[0, 1]).unwrap_or_else(|why| panic!("{at:?}: {why}"));
            assert_eq!(2 * setting.flows.len(), scenario.guests.len());
        }
    }

    #[test]
    fn what_is_measured_stands_beside_what_is_simulated_point_by_point() {
        let (experiment, refused) = measured(&here(REALITY.1));
        assert_eq!(refused.unwrap(), []);
        let figures = &experiment.file.plot.y;
        let all = &experiment.file.measured;
        assert_eq!(all.len(), figures.len() * experiment.points.len());
        for figure in figures {
            let measured = experiment.points.iter().map(|(at, _)| {
                let of = |it: &&MeasuredFile| it.at == *at && it.y == *figure;
                let measured = all.iter().find(of).unwrap_or_else(|| panic!("{at:?} {figure:?}"));
                assert!(measured.mean >= 0.0 && measured.mean.is_finite(), "{measured:?}");
                measured.mean
            });
            // At one setting the figure may be zero, if other threads use the CPUs.
            assert!(measured.fold(0.0, f64::max) > 0.0, "{figure:?} of {all:?}");
        }
    }

    #[test]
    fn what_cannot_be_had_here_is_refused_and_says_why() {
        // Streams at all points would exceed the bound of the length.
        let text = REALITY.1.replace("run = \"500ms\"", "run = \"50ms\"");
        let why = |from: &str, to: &str| {
            assert!(text.contains(from), "{from}");
            let experiment = experiment(&text.replace(from, to));
            Setting::of(&experiment.points[0].1, &[0, 1]).unwrap_err().to_string()
        };
        // The datagrams of the first point.
        let datagrams = "{ datagrams = { bytes = 64, arrivals = { poisson = \"10kpps\" } } }";
        let says = [
            ("guests_are_threads = true\n", "", "guests_are_threads"),
            ("timers_ahead = true\n", "workers = \"dedicated\"\n", "its worker looks on"),
            ("timers_ahead = true\n", "", "`timers_ahead`"),
            ("awaits_answers = true\n", "", "`awaits_answers`"),
            ("cpus = [1]", "cpus = []", "the worker is not pinned to one CPU"),
            ("cpus = [1]", "cpus = [0, 1]", "the worker is not pinned to one CPU"),
            ("[[worker]]\ncpus = [1]", "[[worker]]\ncount = 2\ncpus = [1]", "2 workers"),
            (
                "latency_budget = \"250us\"",
                "latency_budget = \"250us\"\nrx_ring = 512",
                "512 and 256",
            ),
            ("[[1], [1], [1]", "[[1, 2], [1], [1]", "belongs to two flows"),
            (
                datagrams,
                "{ datagrams = { bytes = 40, arrivals = { regular = \"10kpps\" } } }",
                "58 to",
            ),
            (
                datagrams,
                "{ requests = { clients = 2, request = 64, answer = 58, think = \"0ns\", serve = \"0ns\" } }",
                "one client",
            ),
            (datagrams, "{ stream = { segment = 9000, window = 16 } }", "1514"),
        ];
        for (from, to, expected) in says {
            let said = why(from, to);
            assert!(said.contains(expected) && !said.contains('\n'), "{to}: {said}");
        }
        let stream = "{ stream = { segment = 1514, window = 16 } }";
        let merging = text.replace(datagrams, stream);
        let budget = "latency_budget = \"250us\"";
        let merging = merging.replace(budget, &format!("{budget}\nlro = true"));
        let said = Setting::of(&experiment(&merging).points[0].1, &[0, 1]).unwrap_err().to_string();
        assert!(said.contains("merge segments"), "{said}");
        let experiment = experiment(REALITY.1);
        let said = Setting::of(&experiment.points[0].1, &[0]).unwrap_err().to_string();
        assert_eq!(said, "it needs CPU 1, and this process may use 0");
    }

    #[test]
    fn no_experiment_of_a_paper_is_taken_for_one_that_can_be_measured() {
        for (name, text) in EXPERIMENTS.iter() {
            let (experiment, result) = measured(text);
            let error = result.unwrap_err().to_string();
            assert!(error.starts_with("mine.toml cannot be measured here: "), "{name}: {error}");
            assert!(!error.contains('\n'), "{name}: {error}");
            assert!(experiment.file.measured.iter().all(|it| !it.source.contains("rounds")));
        }
    }
}
