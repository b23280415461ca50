//! Simulates candidates, chooses the best plan, and explains why the others were not chosen.
//!
//! 1. Every load gets through: losses stay within `lost`, and streams and requests reach their `at_least`.
//! 2. Every group keeps its p99, or else its latency budget, and weir uses only the CPUs that it may use.
//! 3. Among the remaining plans, those in which weir and guests together use the least CPU win.
//! 4. Among plans within one percent, or 0.01 CPU, of the best, the fewest workers win, and then the plan nearest to
//!    weir's defaults.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::{panic, thread};

use indicatif::ProgressBar;
use weir_lab::host::run_within;
use weir_lab::report::Report;
use weir_lab::scenario::{LoadKind, Scenario};
use weir_lab::stats::Times;
use weir_lab::topology::CpuId;
use weir_limits::{BURST_MAX, LAB_EVENTS_MAX};
use weir_text::count;

use super::candidate::Candidate;
use super::host::{Group, Host};
use crate::error::LabError;

/// Results of a candidate: for CPU and throughput the mean over the seeds, for all other figures the worst.
#[derive(Clone, Debug)]
pub struct Played {
    /// The candidate.
    pub candidate: Candidate,
    /// Number of CPUs that weir kept busy.
    pub weir_cpus: f64,
    /// Number of CPUs that all guests kept busy.
    pub guest_cpus: f64,
    /// Last CPU of each worker, for the first seed.
    pub worker_cpus: Vec<Option<CpuId>>,
    /// Events of all seeds together.
    pub events: u64,
    /// Results by group.
    pub groups: Vec<GroupPlayed>,
}

/// Results of a group's loads, for all its VMs together.
#[derive(Clone, Debug, Default)]
pub struct GroupPlayed {
    /// Number of CPUs that its guests kept busy.
    pub cpus: f64,
    /// Throughput in the forward direction of the loads.
    pub mbit_per_s: f64,
    /// Frames in both directions.
    pub packets_per_s: f64,
    /// Share of datagrams and requests that did not arrive.
    pub lost: f64,
    /// Share of interrupts that were later than the latency budget.
    pub late: f64,
    /// p99 of datagrams from writer to reader, and of requests until the answer (ns); `None` if there are none.
    pub p99_ns: Option<u64>,
    /// Frames per second and VM that got through, by load.
    pub forth_per_s: Vec<f64>,
}

impl Played {
    /// Returns the number of CPUs that weir and the guests kept busy.
    pub fn cpus(&self) -> f64 {
        self.weir_cpus + self.guest_cpus
    }

    /// Summarises the reports, one per seed and at least one.
    fn of(host: &Host, candidate: Candidate, reports: &[Report]) -> Self {
        let mean = |of: &dyn Fn(&Report) -> f64| {
            reports.iter().map(of).sum::<f64>() / reports.len().max(1) as f64
        };
        let workers = |it: &Report| it.workers.iter().map(|worker| worker.cpu_ns).sum();
        let guests = |it: &Report| it.guests.iter().map(|guest| guest.cpu_ns).sum();
        let last = |it: &Report| it.workers.iter().map(|worker| worker.last_cpu).collect();
        let groups = host.groups.iter().map(|group| {
            let of_seeds: Vec<_> =
                reports.iter().map(|it| GroupPlayed::of(host, group, it)).collect();
            GroupPlayed::together(&of_seeds)
        });
        Self {
            candidate,
            weir_cpus: mean(&|it| it.cpus(workers(it))),
            guest_cpus: mean(&|it| it.cpus(guests(it))),
            worker_cpus: reports.first().map(last).unwrap_or_default(),
            events: reports.iter().map(|it| it.events).sum(),
            groups: groups.collect(),
        }
    }
}

impl GroupPlayed {
    fn of(host: &Host, group: &Group, report: &Report) -> Self {
        let vms = group.guests.len().max(1) as f64;
        let guests = &report.guests[group.guests.clone()];
        let mut this = Self {
            cpus: report.cpus(guests.iter().map(|guest| guest.cpu_ns).sum()),
            ..Self::default()
        };
        let calls: u64 = guests.iter().map(|guest| guest.rx_calls).sum();
        let late: u64 = guests.iter().map(|guest| guest.late).sum();
        this.late = late as f64 / calls.max(1) as f64;
        let (mut latency, mut lost, mut sent) = (Times::default(), 0u64, 0u64);
        for loads in &group.loads {
            let mut forth = 0.0;
            for (load, spec) in report.loads[loads.loads.clone()]
                .iter()
                .zip(&host.scenario.loads[loads.loads.clone()])
            {
                this.mbit_per_s += 8e-6 * report.per_s(load.bytes);
                this.packets_per_s += report.per_s(load.received);
                forth += match &spec.kind {
                    LoadKind::Datagrams { bytes, .. } => {
                        report.per_s(load.bytes) / bytes.mean().max(1.0)
                    }
                    LoadKind::Requests { request_bytes: bytes, .. }
                    | LoadKind::Stream { segment_bytes: bytes, .. }
                    | LoadKind::Socket { bytes, .. } => {
                        report.per_s(load.bytes) / f64::from((*bytes).max(1))
                    }
                };
                // TCP loses segments by design, and waits for its own window.
                if !matches!(spec.kind, LoadKind::Stream { .. }) {
                    latency.merge(&load.latency);
                    // If workers keep up, at most one burst is in flight at the end.
                    let behind = load.sent.saturating_sub(load.received + BURST_MAX as u64);
                    lost += behind.max(load.dropped);
                    sent += load.sent;
                }
            }
            this.forth_per_s.push(forth / vms);
        }
        this.lost = lost as f64 / sent.max(1) as f64;
        this.p99_ns = (latency.count() > 0).then(|| latency.quantile_ns(0.99));
        this
    }

    fn together(of_seeds: &[Self]) -> Self {
        let mean = |of: &dyn Fn(&Self) -> f64| {
            of_seeds.iter().map(of).sum::<f64>() / of_seeds.len().max(1) as f64
        };
        let most = |of: &dyn Fn(&Self) -> f64| of_seeds.iter().map(of).fold(0.0, f64::max);
        let loads = of_seeds.first().map_or(0, |it| it.forth_per_s.len());
        Self {
            cpus: mean(&|it| it.cpus),
            mbit_per_s: mean(&|it| it.mbit_per_s),
            packets_per_s: mean(&|it| it.packets_per_s),
            lost: most(&|it| it.lost),
            late: most(&|it| it.late),
            p99_ns: of_seeds.iter().filter_map(|it| it.p99_ns).max(),
            forth_per_s: (0..loads)
                .map(|load| mean(&|it| it.forth_per_s.get(load).copied().unwrap_or(0.0)))
                .collect(),
        }
    }
}

/// Simulates each candidate with each seed, in parallel on all CPUs.
///
/// # Errors
/// The error of the first candidate that failed.
pub fn all(
    host: &Host,
    candidates: &[Candidate],
    bar: &ProgressBar,
) -> Result<Vec<Played>, LabError> {
    let seeds = &host.file.seeds;
    let runs: Vec<(Candidate, u64)> = candidates
        .iter()
        .flat_map(|candidate| seeds.iter().map(move |seed| (*candidate, *seed)))
        .collect();
    let threads = thread::available_parallelism().map_or(1, usize::from).min(runs.len());
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some((candidate, seed)) = runs.get(at) else { return done };
            done.push((at, run(host, *candidate, *seed)));
            bar.inc(1);
        }
    };
    let mut done = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        // A thread's panic is resumed here.
        joined
            .flat_map(|done| done.unwrap_or_else(|it| panic::resume_unwind(it)))
            .collect::<Vec<_>>()
    });
    // The order is that of the candidates, and not of the threads' ends.
    done.sort_by_key(|(at, _)| *at);
    let reports = done.into_iter().map(|(_, report)| report).collect::<Result<Vec<_>, _>>()?;
    let of_each = candidates.iter().zip(reports.chunks(seeds.len().max(1)));
    Ok(of_each.map(|(candidate, reports)| Played::of(host, *candidate, reports)).collect())
}

fn run(host: &Host, candidate: Candidate, seed: u64) -> Result<Report, LabError> {
    let scenario = Scenario { seed, ..candidate.scenario(&host.scenario) };
    run_within(&scenario, LAB_EVENTS_MAX).map_err(|source| LabError::Run {
        experiment: host.name.clone(),
        point: candidate.to_string(),
        seed,
        source: Box::new(source),
    })
}

/// Largest relative difference of CPU times that counts as none. The lab does not resolve smaller ones.
const SAME: f64 = 0.01;
/// The absolute difference that counts as none (CPUs).
const SAME_CPUS: f64 = 0.01;
/// Largest share of late interrupts at which a budget counts as kept, as for a p99.
const LATE_MAX: f64 = 0.01;

/// A limit that a candidate does not meet.
#[derive(Clone, Debug)]
pub struct Miss {
    /// Description in words.
    pub text: String,
    /// The distance: the missing part of the load, or the excess over a bound.
    by: By,
}

#[derive(Clone, Copy, Debug)]
enum By {
    Load(f64),
    Bound(f64),
}

/// Returns the limits that a candidate does not meet.
pub fn misses(host: &Host, played: &Played) -> Vec<Miss> {
    let groups = host.groups.iter().zip(&played.groups);
    let mut misses: Vec<_> = groups.flat_map(|(group, it)| of_group(host, group, it)).collect();
    if let Some(cpus) = host.file.limits.cpus.map(|cpus| cpus as f64)
        && played.weir_cpus > cpus
    {
        misses.push(Miss {
            text: format!("weir takes {:.2} CPUs of {cpus}", played.weir_cpus),
            by: By::Bound(played.weir_cpus / cpus - 1.0),
        });
    }
    misses
}

fn of_group(host: &Host, group: &Group, it: &GroupPlayed) -> Vec<Miss> {
    let name = &group.name;
    let mut misses = Vec::new();
    let lost_max = host.file.limits.lost.map_or(0.0, |lost| lost.0 as f64 / 1e3);
    if it.lost > lost_max {
        let text = format!("{name} loses {} of its packets", percent(it.lost));
        misses.push(Miss { text, by: By::Load(it.lost) });
    }
    for (loads, got) in group.loads.iter().zip(&it.forth_per_s) {
        if let Some(wanted) = loads.at_least.filter(|wanted| got < wanted) {
            let part = 1.0 - got / wanted;
            let text = format!("{name} gets {} less than it needs", percent(part));
            misses.push(Miss { text, by: By::Load(part) });
        }
    }
    match (group.p99_ns, it.p99_ns) {
        (Some(wanted), Some(got)) if got > wanted => {
            let text = format!("{name}: p99 {} over the target {}", time(got), time(wanted));
            misses.push(Miss { text, by: By::Bound(got as f64 / wanted.max(1) as f64 - 1.0) });
        }
        (None, _) if it.late > LATE_MAX => {
            let (late, budget) = (percent(it.late), group.latency_budget);
            let text = format!("{name}: {late} of its interrupts come later than {budget}");
            misses.push(Miss { text, by: By::Bound(it.late) });
        }
        _ => {}
    }
    misses
}

/// Returns the index of the best candidate. If every candidate misses a limit, the nearest candidate's. `None` if
/// nothing was simulated.
pub fn best(all: &[(Played, Vec<Miss>)]) -> Option<usize> {
    let Some(least) = least_cpus(all) else { return nearest(all) };
    let rank = |played: &Played| (played.candidate.workers, played.candidate.oddness());
    all.iter()
        .enumerate()
        .filter(|(_, (played, misses))| misses.is_empty() && same(played.cpus(), least))
        .min_by(|(_, (a, _)), (_, (b, _))| {
            rank(a).cmp(&rank(b)).then(a.cpus().total_cmp(&b.cpus()))
        })
        .map(|(at, _)| at)
}

/// Returns the least CPU among candidates that meet every limit; `None` if none does.
pub fn least_cpus(all: &[(Played, Vec<Miss>)]) -> Option<f64> {
    let good = all.iter().filter(|(_, misses)| misses.is_empty());
    good.map(|(played, _)| played.cpus()).min_by(f64::total_cmp)
}

/// Returns the candidate with the least missing load, and among equal ones with the smallest excess over a bound.
fn nearest(all: &[(Played, Vec<Miss>)]) -> Option<usize> {
    let worst = |misses: &[Miss], of: fn(By) -> f64| {
        misses.iter().map(|miss| of(miss.by)).fold(0.0, f64::max)
    };
    let load = |by| if let By::Load(part) = by { part } else { 0.0 };
    let bound = |by| if let By::Bound(part) = by { part } else { 0.0 };
    let distance = |misses: &[Miss]| (worst(misses, load), worst(misses, bound));
    let order = all.iter().enumerate().min_by(|(_, (_, a)), (_, (_, b))| {
        let (a, b) = (distance(a), distance(b));
        a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1))
    });
    order.map(|(at, _)| at)
}

fn same(cpus: f64, least: f64) -> bool {
    cpus <= least + (least * SAME).max(SAME_CPUS)
}

/// Explains why `played`, which meets every limit, was not chosen. For `least` see [`least_cpus`].
pub fn why_not(played: &Played, chosen: &Played, least: f64) -> String {
    if !same(played.cpus(), least) {
        let more = (played.cpus() - chosen.cpus()).max(SAME_CPUS);
        return format!("{more:.2} CPUs more");
    }
    let (workers, fewest) = (played.candidate.workers, chosen.candidate.workers);
    match workers > fewest {
        true => format!("as much CPU, and {} more", count(workers - fewest, "worker")),
        false => "as much CPU and as many workers, and further from the defaults".into(),
    }
}

/// Formats a time for people: in ms from 1 ms on, or else in us.
pub fn time(ns: u64) -> String {
    match ns {
        0..1_000_000 => format!("{:.0} us", ns as f64 / 1e3),
        _ => format!("{:.1} ms", ns as f64 / 1e6),
    }
}

/// Formats a share for people.
pub fn percent(part: f64) -> String {
    if part > 0.0 && part < 0.001 {
        return "less than 0.1 %".into();
    }
    format!("{:.1} %", 100.0 * part)
}
