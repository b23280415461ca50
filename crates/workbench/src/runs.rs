//! Experiments by name, and their runs: parallel on all CPUs. Runs are independent, and results keep the order of the
//! runs.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::num::NonZero;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use indicatif::ProgressBar;
use serde::Serialize;
use weir_lab::host::run_within;
use weir_lab::report::{LoadReport, Report};
use weir_lab::scenario::Scenario;
use weir_lab::scenarios::{EXPERIMENTS, PROFILES, REALITY};
use weir_lab::stats::Times;
use weir_limits::{CONFIG_BYTES_MAX, LAB_EVENTS_MAX};

use super::error::{LabError, Source};
use super::experiment::{Experiment, name_of};
use super::file::{At, Figure};
use super::output::{self, Outcome, Point};
use super::profile::Machine;

pub(super) const MEASURED_ROUNDS: usize = 5;
/// Most starts of a point whose verdicts hang on them.
const STARTS_MAX: usize = 100;

/// Returns the experiments of these names and files, or all experiments that come with weir.
pub(super) fn selected(
    names: &[String],
    seed: Option<u64>,
    profile: Option<&Path>,
) -> Result<Vec<Experiment>, LabError> {
    // `all` excludes the machine's own experiment, which belongs to no paper.
    let known = || EXPERIMENTS.iter().chain([&REALITY]);
    let built_in = |name: &str| known().find(|it| it.0 == name).map(|it| it.1);
    if names.is_empty() {
        let all = EXPERIMENTS.iter();
        return all.map(|(name, text)| parse(Source { name, text }, seed, profile)).collect();
    }
    let mut experiments = Vec::new();
    for name in names {
        let text = match built_in(name) {
            Some(text) => text.to_owned(),
            None if name.ends_with(".toml") => read(Path::new(name))?,
            None => return Err(LabError::Unknown { name: name.clone() }),
        };
        experiments.push(parse(Source { name, text: &text }, seed, profile)?);
    }
    Ok(experiments)
}

/// Returns a progress bar on standard error, visible only on a terminal.
pub(super) fn progress(runs: usize) -> ProgressBar {
    weir_bench::progress_of(runs as u64)
}

pub(super) fn run_each(
    experiments: &[Experiment],
    bar: &ProgressBar,
) -> Result<Vec<Outcome>, LabError> {
    let one = |experiment: &Experiment| {
        bar.set_message(experiment.name.clone());
        run_one(experiment, bar)
    };
    experiments.iter().map(one).collect()
}

/// Runs each point with each seed, and those points with more seeds on which verdicts hang that are not known.
pub(super) fn run_one(experiment: &Experiment, bar: &ProgressBar) -> Result<Outcome, LabError> {
    let events = AtomicU64::new(0);
    let first = &experiment.file.seeds;
    let mut points = in_parallel(&experiment.points, |(at, scenario)| {
        run_point(experiment, at, scenario, first, &events, bar)
    })?;
    let seeds = experiment.seeds(STARTS_MAX);
    // A scenario with one seed leaves nothing to chance, or somebody wants this seed.
    while first.len() > 1 {
        let unknown = output::unknown(&experiment.file, &points);
        let more: Vec<_> = (0..points.len())
            .filter(|number| unknown[*number])
            .map(|number| (number, points[number].starts))
            .map(|(number, starts)| (number, starts..(2 * starts).min(seeds.len())))
            .filter(|(_, more)| !more.is_empty())
            .collect();
        let expected = more.iter().map(|(number, more)| {
            points[*number].events / points[*number].starts as u64 * more.len() as u64
        });
        // The other seeds may take twice as long as the first one did.
        let most = events.load(Ordering::Relaxed).saturating_add(2 * expected.sum::<u64>());
        if more.is_empty() || most > LAB_EVENTS_MAX {
            break;
        }
        bar.inc_length(more.iter().map(|(_, more)| more.len() as u64).sum());
        let further = in_parallel(&more, |(number, more)| {
            let (at, scenario) = &experiment.points[*number];
            run_point(experiment, at, scenario, &seeds[more.clone()], &events, bar)
        })?;
        for ((number, _), further) in more.into_iter().zip(further) {
            points[number].add(further);
        }
    }
    Ok(Outcome::new(experiment, points, events.into_inner()))
}

/// Runs a point with each of `seeds`. `events` is the number of the experiment's events so far.
pub(super) fn run_point(
    experiment: &Experiment,
    at: &At,
    scenario: &Scenario,
    seeds: &[u64],
    events: &AtomicU64,
    bar: &ProgressBar,
) -> Result<Point, LabError> {
    let wanted = output::figures(&experiment.file);
    let mut values = vec![Vec::new(); wanted.len()];
    let mut passed = 0;
    for seed in seeds {
        let scenario = Scenario { seed: *seed, ..scenario.clone() };
        let left = LAB_EVENTS_MAX.saturating_sub(events.load(Ordering::Relaxed));
        let report = run_within(&scenario, left).map_err(|source| LabError::Run {
            experiment: experiment.name.clone(),
            point: name_of(at),
            seed: *seed,
            source: Box::new(source),
        })?;
        events.fetch_add(report.events, Ordering::Relaxed);
        passed += report.events;
        for (values, figure) in values.iter_mut().zip(&wanted) {
            values.push(figure.of(&report));
        }
        bar.inc(1);
    }
    let names = wanted.iter().map(|figure| figure.as_str());
    Ok(Point::new(at.clone(), names.zip(values).collect(), passed))
}

impl Point {
    /// Returns a point with the figures of each start.
    pub(super) fn new(at: At, seeds: BTreeMap<&'static str, Vec<f64>>, events: u64) -> Self {
        let starts = seeds.values().next().map_or(0, Vec::len);
        let figures = seeds.iter().map(|(figure, values)| (*figure, Measured::of(values)));
        Self { at, figures: figures.collect(), starts, seeds, events }
    }

    /// Adds further starts.
    fn add(&mut self, further: Self) {
        for (figure, values) in further.seeds {
            self.seeds.entry(figure).or_default().extend(values);
        }
        let seeds = std::mem::take(&mut self.seeds);
        *self = Self::new(std::mem::take(&mut self.at), seeds, self.events + further.events);
    }
}

/// Reads an experiment with the profile at the path `profile`, or else with the profile that it names.
pub(super) fn parse(
    source: Source<'_>,
    seed: Option<u64>,
    profile: Option<&Path>,
) -> Result<Experiment, LabError> {
    Experiment::parse(source, seed, |named| {
        if let Some(path) = profile {
            let name = path.display().to_string();
            return Machine::parse(Source { name: &name, text: &read(path)? }).map(Some);
        }
        let found = PROFILES.iter().find(|(name, _)| *name == named);
        found.map(|(name, text)| Machine::parse(Source { name, text })).transpose()
    })
}

pub(super) fn read(path: &Path) -> Result<String, LabError> {
    let failed = |source| LabError::Read { path: path.to_owned(), source };
    let mut text = String::new();
    let file = File::open(path).map_err(failed)?;
    file.take(CONFIG_BYTES_MAX + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > CONFIG_BYTES_MAX {
        return Err(LabError::TooLarge { path: path.to_owned() });
    }
    Ok(text)
}

/// Maps `items` with `run` and keeps their order.
///
/// # Errors
/// The error of the first failed item, in the order of `items`, among those that had begun.
pub fn in_parallel<I: Sync, T: Send>(
    items: &[I],
    run: impl Fn(&I) -> Result<T, LabError> + Sync,
) -> Result<Vec<T>, LabError> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(items.len());
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let done = Mutex::new(Vec::with_capacity(items.len()));
    let work = || {
        while !failed.load(Ordering::Relaxed) {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { break };
            let result = run(item);
            failed.fetch_or(result.is_err(), Ordering::Relaxed);
            done.lock().unwrap_or_else(PoisonError::into_inner).push((at, result));
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|it| it.0);
    done.into_iter().map(|it| it.1).collect()
}

/// A figure over the seeds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// Mean.
    pub mean: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
}

impl Measured {
    /// Summarises at least one value.
    pub fn of(values: &[f64]) -> Self {
        let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
        let min = values.iter().copied().fold(f64::INFINITY, f64::min);
        Self { mean, min, max: values.iter().copied().fold(f64::NEG_INFINITY, f64::max) }
    }
}

fn merged<'t>(all: impl Iterator<Item = &'t Times>) -> Times {
    all.fold(Times::default(), |mut sum, times| {
        sum.merge(times);
        sum
    })
}

impl Figure {
    /// Returns the name in files and output, which ends with the unit.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::CpuPercent => "cpu_percent",
            Self::WorkerCpuPercent => "worker_cpu_percent",
            Self::GuestCpuPercent => "guest_cpu_percent",
            Self::MbitPerS => "mbit_per_s",
            Self::PacketsPerS => "packets_per_s",
            Self::CpuUsPerPacket => "cpu_us_per_packet",
            Self::CallsPerS => "calls_per_s",
            Self::InterruptsPerS => "interrupts_per_s",
            Self::LatencyMeanUs => "latency_mean_us",
            Self::LatencyMedianUs => "latency_median_us",
            Self::LatencyP99Us => "latency_p99_us",
            Self::JitterUs => "jitter_us",
            Self::SignalUs => "signal_us",
            Self::RingWaitUs => "ring_wait_us",
            Self::IngressUs => "ingress_us",
        }
    }

    /// Returns a run's value: CPU in percent of one CPU, throughput and frames of all loads, and the latency of the
    /// first load's flows.
    pub fn of(self, report: &Report) -> f64 {
        let workers = || report.workers.iter().map(|worker| worker.cpu_ns).sum::<u64>();
        let guests = || report.guests.iter().map(|guest| guest.cpu_ns).sum::<u64>();
        let loads = || report.loads.iter();
        let name = |load: &LoadReport| load.name.rsplit_once(' ').map(|it| it.0.to_owned());
        let first = report.loads.first().map(name);
        let flows = report.loads.iter().filter(|load| Some(name(load)) == first);
        let latency = || merged(flows.clone().map(|load| &load.latency));
        let quantile = |share| latency().quantile_ns(share) as f64 / 1e3;
        match self {
            Self::CpuPercent => 100.0 * report.cpus(workers() + guests()),
            Self::WorkerCpuPercent => 100.0 * report.cpus(workers()),
            Self::GuestCpuPercent => 100.0 * report.cpus(guests()),
            Self::MbitPerS => 8e-6 * report.per_s(loads().map(|load| load.bytes).sum()),
            Self::PacketsPerS => report.per_s(loads().map(|load| load.received).sum()),
            Self::CpuUsPerPacket => {
                let received: u64 = loads().map(|load| load.received).sum();
                (workers() + guests()) as f64 / 1e3 / received as f64
            }
            Self::InterruptsPerS => {
                report.per_s(report.guests.iter().map(|guest| guest.interrupts).sum())
            }
            Self::CallsPerS => report.per_s(report.guests.iter().map(|guest| guest.rx_calls).sum()),
            Self::LatencyMeanUs => latency().mean_ns() / 1e3,
            Self::LatencyMedianUs => quantile(0.5),
            Self::LatencyP99Us => quantile(0.99),
            Self::JitterUs => quantile(0.75) - quantile(0.25),
            Self::SignalUs => report.demux.mean_ns() / 1e3,
            Self::RingWaitUs => {
                merged(report.workers.iter().map(|worker| &worker.waits)).mean_ns() / 1e3
            }
            Self::IngressUs => {
                merged(report.workers.iter().map(|worker| &worker.ingress)).mean_ns() / 1e3
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_order_and_a_failure_is_told() {
        let items: Vec<usize> = (0..1_000).collect();
        assert_eq!(in_parallel(&items, |it| Ok(it * 2)).unwrap()[999], 1_998);
        assert!(in_parallel(&[] as &[usize], |it| Ok(*it)).unwrap().is_empty());
        let failed = in_parallel(&items, |it| match it {
            7 => Err(LabError::Unknown { name: it.to_string() }),
            _ => Ok(*it),
        });
        assert_eq!(failed.unwrap_err().to_string(), "there is no experiment called `7`");
    }
}
