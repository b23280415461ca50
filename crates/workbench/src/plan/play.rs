//! Simulates candidates, and collects their results.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::{panic, thread};

use indicatif::ProgressBar;
use weir_lab::host::run_within;
use weir_lab::report::Report;
use weir_lab::scenario::{LoadKind, Scenario};
use weir_lab::stats::Times;
use weir_lab::topology::CpuId;
use weir_limits::{BURST_MAX, LAB_EVENTS_MAX};

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
                    | LoadKind::Stream { segment_bytes: bytes, .. } => {
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
