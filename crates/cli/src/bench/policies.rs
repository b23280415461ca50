//! `weir bench --policies`: loads under every policy, and what `auto` loses to the best of those with
//! a fixed hold.
//!
//! A fixed hold suits some loads and ruins others. For each load the best is chosen with hindsight: of
//! the fixed ones with which most packets arrive, the one that takes the least CPU for each. `auto`
//! does not know the load, and is compared with that.

use std::fmt;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Serialize;
use weir_policy::moderation::Kind;
use weir_vif::load::{bulk, pingpong, small};

use super::plan::{LARGE_FRAME_BYTES, Measurement, RETRANSMIT_TIMEOUT, SMALL_FRAME_BYTES, WINDOW};
use super::report::{median_and_spread, significant};
use super::slice::Slice;
use super::{BenchError, SLICES, progress};
use crate::args::BenchArgs;
use crate::config::{LatencyBudget, Moderation, RxFrames, RxUsecs};
use crate::rig::{self, Load};
use crate::stats::{CallSettings, Table};

/// The budget that the policies may spend.
const BUDGET: &str = "1ms";
/// Fixed holds, in microseconds.
const RX_USECS: [u32; 5] = [50, 100, 250, 500, 1000];
/// A threshold of frames, as VPP has one by default.
const RX_FRAMES: u16 = 32;
/// A fixed setting with which fewer packets arrive than this share of the most is not among the best.
const PACKETS_SHARE_MIN: f64 = 0.98;
/// What a policy may take to find out how long to hold.
const WARM_UP: Duration = Duration::from_millis(700);
/// A core that is busy for less than this is idle.
const IDLE_CORES: f64 = 0.005;

/// A policy with its settings.
#[derive(Debug, Clone)]
struct Setting {
    name: String,
    calls: CallSettings,
}

/// A load.
#[derive(Debug, Clone, Copy)]
struct Cell {
    name: &'static str,
    load: Load,
}

/// A load under each setting, `auto` last.
struct Measured {
    cell: Cell,
    /// By setting, one for each round.
    slices: Vec<Vec<Slice>>,
}

/// Measures, and prints the result.
pub(super) fn run(args: &BenchArgs, out: &mut dyn Write) -> Result<(), BenchError> {
    let filter = args.filter.as_deref().unwrap_or_default();
    let cells: Vec<_> = cells().into_iter().filter(|cell| cell.name.contains(filter)).collect();
    if cells.is_empty() {
        let help = self::cells().map(|cell| cell.name).join(", ");
        return Err(BenchError::NoSuchFigure { filter: filter.into(), help });
    }
    let stop = rig::catch_signals()?;
    let dir = rig::temp_dir()?;
    let settings = settings();
    let time = Duration::from_secs(args.seconds.into()) / SLICES;
    let empty = vec![Vec::new(); settings.len()];
    let mut measured: Vec<_> =
        cells.into_iter().map(|cell| Measured { cell, slices: empty.clone() }).collect();
    measure(&mut measured, &settings, time, dir.path(), &stop)?;
    measured.retain(|measured| measured.slices.iter().all(|slices| !slices.is_empty()));
    if measured.is_empty() {
        return Err(BenchError::Interrupted);
    }
    let report = Report::new(&measured, &settings);
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &report).map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else {
        write!(out, "{report}")?;
    }
    out.flush()?;
    Ok(())
}

/// The policies with a fixed hold, then `auto`.
fn settings() -> Vec<Setting> {
    let calls = |kind| CallSettings { moderation: Moderation(kind), ..CallSettings::default() };
    let immediate = Setting { name: "immediate".into(), calls: calls(Kind::Immediate) };
    let held = RX_USECS.map(|usecs| Setting {
        name: format!("backend {usecs} us"),
        calls: CallSettings {
            rx_usecs: RxUsecs::try_from(u64::from(usecs)).ok(),
            ..calls(Kind::Backend)
        },
    });
    let counted = Setting {
        name: format!("backend {RX_FRAMES} frames"),
        calls: CallSettings {
            rx_frames: RxFrames::try_from(u64::from(RX_FRAMES)).ok(),
            ..calls(Kind::Backend)
        },
    };
    let auto = Setting { name: "auto".into(), calls: calls(Kind::Auto) };
    [immediate].into_iter().chain(held).chain([counted, auto]).collect()
}

fn cells() -> [Cell; 11] {
    let small = |name, frame_bytes, rate| Cell {
        name,
        load: Load::Small(small::Options { frame_bytes, rate }),
    };
    let (at, most) = (small::Rate::PerSecond, small::Rate::Window(WINDOW));
    let stream =
        bulk::Options { retransmit_timeout: RETRANSMIT_TIMEOUT, ..bulk::Options::default() };
    [
        Cell { name: "idle", load: Load::Silence },
        small("64B-1k", SMALL_FRAME_BYTES, at(1_000)),
        small("64B-10k", SMALL_FRAME_BYTES, at(10_000)),
        small("64B-100k", SMALL_FRAME_BYTES, at(100_000)),
        small("64B-max", SMALL_FRAME_BYTES, most),
        small("1500B-1k", LARGE_FRAME_BYTES, at(1_000)),
        small("1500B-10k", LARGE_FRAME_BYTES, at(10_000)),
        small("1500B-100k", LARGE_FRAME_BYTES, at(100_000)),
        small("1500B-max", LARGE_FRAME_BYTES, most),
        Cell { name: "bulk", load: Load::Bulk(stream) },
        Cell {
            name: "request-response",
            load: Load::RequestResponse(pingpong::Options::default()),
        },
    ]
}

/// All settings of a load in turn, load by load, and again. Ends early when `stop` is set.
fn measure(
    measured: &mut [Measured],
    settings: &[Setting],
    time: Duration,
    dir: &Path,
    stop: &AtomicBool,
) -> Result<(), BenchError> {
    let budget: LatencyBudget = BUDGET.parse().expect("a constant that is a valid budget");
    let progress = progress(measured.len() * settings.len());
    for _ in 0..SLICES {
        for Measured { cell, slices } in &mut *measured {
            progress.set_message(cell.name);
            for (setting, slices) in settings.iter().zip(slices) {
                let measurement = Measurement {
                    calls: setting.calls,
                    latency_budget: budget,
                    warm_up: WARM_UP,
                    ..Measurement::new(cell.name, cell.load, &[])
                };
                let slice = Slice::measure(&measurement, time, dir, stop)?;
                if stop.load(Ordering::Relaxed) {
                    return Ok(());
                }
                slices.push(slice);
                progress.inc(1);
            }
        }
    }
    Ok(())
}

/// What was found. Its JSON is what `weir bench --policies --json` prints.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Report {
    /// The budget, as the configuration says it.
    latency_budget: &'static str,
    /// The worst load's.
    auto_vs_best_static: f64,
    loads: Vec<LoadRow>,
}

/// A load.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct LoadRow {
    name: &'static str,
    /// The best setting with a fixed hold.
    best_static: String,
    /// `auto` against it: the lesser of the ratio of packets that arrived and that of CPU time per packet.
    auto_vs_best_static: f64,
    policies: Vec<PolicyRow>,
}

/// A load under a policy: medians.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct PolicyRow {
    name: String,
    packets_per_s: f64,
    /// CPU time of the worker and the guests for each packet.
    cpu_us_per_packet: f64,
    /// Cores busy, worker and guests.
    cores: f64,
    /// The median time of a packet or, if the load has them, of a round trip.
    p50_us: Option<f64>,
    /// Times that a guest was told later than the budget allows.
    breaches: u64,
}

impl PolicyRow {
    fn new(setting: &Setting, slices: &[Slice]) -> Self {
        let median = |of: &dyn Fn(&Slice) -> Option<f64>| {
            median_and_spread(slices.iter().filter_map(of).collect()).map(|(median, ..)| median)
        };
        Self {
            name: setting.name.clone(),
            packets_per_s: median(&Slice::packets_per_s).unwrap_or(0.0),
            cpu_us_per_packet: median(&Slice::all_cpu_us_per_packet).unwrap_or(0.0),
            cores: median(&|slice| Some(slice.switch_cores() + slice.guests_cores()))
                .unwrap_or(0.0),
            p50_us: median(&|slice| slice.latency_us(|latency| latency.p50_ns)),
            breaches: slices.iter().map(|slice| slice.breaches).sum(),
        }
    }

    /// Its share of what another reaches: packets, or CPU for each, whichever is worse.
    fn against(&self, other: &Self) -> f64 {
        if other.packets_per_s == 0.0 {
            return (other.cores.max(IDLE_CORES) / self.cores.max(IDLE_CORES)).min(1.0);
        }
        let packets = self.packets_per_s / other.packets_per_s;
        packets.min(other.cpu_us_per_packet / self.cpu_us_per_packet)
    }
}

impl LoadRow {
    fn new(measured: &Measured, settings: &[Setting]) -> Self {
        let policies: Vec<_> = settings
            .iter()
            .zip(&measured.slices)
            .map(|(setting, slices)| PolicyRow::new(setting, slices))
            .collect();
        let (auto, fixed) = policies.split_last().expect("there are settings");
        let best = best(fixed);
        Self {
            name: measured.cell.name,
            best_static: best.name.clone(),
            auto_vs_best_static: auto.against(best),
            policies,
        }
    }
}

/// The best of policies, of which there is one at least.
fn best(policies: &[PolicyRow]) -> &PolicyRow {
    let most = policies.iter().map(|policy| policy.packets_per_s).fold(0.0, f64::max);
    let enough = |policy: &&PolicyRow| policy.packets_per_s >= PACKETS_SHARE_MIN * most;
    let cost = |policy: &PolicyRow| match most {
        0.0 => policy.cores,
        _ => policy.cpu_us_per_packet,
    };
    let by_cost = |a: &&PolicyRow, b: &&PolicyRow| cost(a).total_cmp(&cost(b));
    policies.iter().filter(enough).min_by(by_cost).expect("one has the most")
}

impl Report {
    fn new(measured: &[Measured], settings: &[Setting]) -> Self {
        let loads: Vec<_> = measured.iter().map(|load| LoadRow::new(load, settings)).collect();
        let worst = loads.iter().map(|load| load.auto_vs_best_static).fold(f64::INFINITY, f64::min);
        Self { latency_budget: BUDGET, auto_vs_best_static: worst, loads }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "moderation policies within a latency budget of {}", self.latency_budget)?;
        let headers =
            ["<LOAD", "<POLICY", "PACKETS/S", "CPU US/PACKET", "CORES", "P50 US", "LATE", "<"];
        let mut table = Table::new(&headers);
        for load in &self.loads {
            for policy in &load.policies {
                let note = match policy.name.as_str() {
                    name if name == load.best_static => "best fixed".into(),
                    "auto" => format!("{:.2} of the best fixed", load.auto_vs_best_static),
                    _ => String::new(),
                };
                table.row(vec![
                    load.name.into(),
                    policy.name.clone(),
                    significant(policy.packets_per_s),
                    significant(policy.cpu_us_per_packet),
                    format!("{:.3}", policy.cores),
                    policy.p50_us.map_or_else(|| "-".into(), significant),
                    policy.breaches.to_string(),
                    note,
                ]);
            }
        }
        write!(f, "\n{table}")?;
        writeln!(
            f,
            "\nCPU is the worker's and the guests'. The best fixed setting takes the least of it for \
             a packet among\nthose with which most packets arrive; LATE counts guests told later than \
             the budget allows.\n\nauto_vs_best_static  {:.3}",
            self.auto_vs_best_static
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(name: &str, packets_per_s: f64, cpu_us_per_packet: f64) -> PolicyRow {
        let cores = packets_per_s * cpu_us_per_packet / 1e6;
        let name = name.into();
        PolicyRow { name, packets_per_s, cpu_us_per_packet, cores, p50_us: None, breaches: 0 }
    }

    #[test]
    fn the_best_takes_the_least_cpu_where_packets_arrive() {
        let policies = [
            policy("late", 500.0, 0.5),
            policy("costly", 1_000.0, 2.0),
            policy("good", 990.0, 1.5),
        ];
        assert_eq!(best(&policies).name, "good");
        assert_eq!(best(&[policy("idle", 0.0, 0.0)]).name, "idle");
    }

    #[test]
    fn what_is_worse_counts() {
        let best = policy("best", 1_000.0, 1.0);
        assert_eq!(policy("auto", 900.0, 1.0).against(&best), 0.9);
        assert_eq!(policy("auto", 1_000.0, 2.0).against(&best), 0.5);
        let idle = policy("idle", 0.0, 0.0);
        assert_eq!(idle.against(&idle), 1.0);
    }

    #[test]
    fn every_setting_is_one_that_the_configuration_takes() {
        let settings = settings();
        assert!(settings.len() >= 8);
        let held = settings.iter().filter(|setting| setting.calls.rx_usecs.is_some());
        assert_eq!(held.count(), RX_USECS.len());
        assert!(settings.iter().any(|setting| setting.calls.rx_frames.is_some()));
    }
}
