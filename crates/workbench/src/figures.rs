//! Figures of runs: the mean over the seeds, and the spread.

use serde::Serialize;
use weir_lab::report::{LoadReport, Report};
use weir_lab::stats::Times;

use super::file::Figure;

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
        }
    }
}
