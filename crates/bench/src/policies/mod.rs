//! `weir bench --policies`: moderation policies side by side, under the same loads.
//!
//! A [`Contest`] is a load under several settings, which take turns between the same two guests, since guests differ
//! from one start to the next. Each round starts two new guests.
//!
//! | file | contents |
//! |---|---|
//! | `contests.rs` | a contest, and all contests: loads and settings |
//! | `grid.rs` | a grid of loads: `auto` against the best fixed hold |
//! | `pairs.rs` | one policy against another that it should beat; pauses of this machine by itself |
//! | `report.rs` | figures and tables; how often a guest is notified later than its budget allows |

use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::figures::print;
use super::slice::{self, Slice};
use crate::args::BenchArgs;
use crate::rig::{self, Rig};
use crate::steps::{BenchError, SLICES, progress};

mod contests;
mod grid;
mod pairs;
mod report;

use contests::{Contest, Measured, Purpose, Setting};
use pairs::Pauses;
use report::Report;

/// Measures and prints the result.
pub(super) fn run(args: &BenchArgs, out: &mut dyn Write) -> Result<(), BenchError> {
    let contests = select(contests::all(), args.filter.as_deref().unwrap_or_default())?;
    let stop = rig::catch_signals()?;
    let dir = rig::temp_dir()?;
    let time = Duration::from_secs(args.seconds.into()) / SLICES;
    let mut measured: Vec<_> = contests
        .into_iter()
        .map(|contest| Measured { slices: vec![Vec::new(); contest.settings.len()], contest })
        .collect();
    let mut pauses = Pauses::default();
    measure(&mut measured, &mut pauses, time, dir.path(), &stop)?;
    measured.retain(|measured| measured.slices.iter().all(|slices| !slices.is_empty()));
    if measured.is_empty() {
        return Err(BenchError::Interrupted);
    }
    let report = Report::new(&measured, &pauses);
    Ok(print(&report, args.json, out)?)
}

/// Returns the contests that match `filter`, at least one.
fn select(all: Vec<Contest>, filter: &str) -> Result<Vec<Contest>, BenchError> {
    let names: Vec<_> = all.iter().map(|contest| contest.name.clone()).collect();
    let selected: Vec<_> = all.into_iter().filter(|contest| contest.is_meant_by(filter)).collect();
    if selected.is_empty() {
        let help = names.join(", ");
        return Err(BenchError::NoSuchFigure { filter: filter.into(), help });
    }
    Ok(selected)
}

/// Measures a round of each contest, repeatedly. Ends early if `stop` is set.
fn measure(
    measured: &mut [Measured],
    pauses: &mut Pauses,
    time: Duration,
    dir: &Path,
    stop: &AtomicBool,
) -> Result<(), BenchError> {
    let turns = |contest: &Contest| contest.purpose.turns() as usize;
    let progress = progress(measured.iter().map(|m| m.slices.len() * turns(&m.contest)).sum());
    for _ in 0..SLICES {
        for measured in &mut *measured {
            progress.set_message(measured.contest.name.clone());
            measure_round(measured, time, dir, stop, &|| progress.inc(1))?;
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
        }
        // Pauses are observed as long as the longest contest with a breach count takes.
        let breaches = measured.iter().filter(|of| matches!(of.contest.purpose, Purpose::Breaches));
        if let Some(longer) = breaches.map(|of| of.contest.longer).max() {
            pauses.watch(time * longer, stop);
        }
    }
    Ok(())
}

/// Measures all settings in turn, repeatedly, between the same two guests. Calls `measured`
/// after each slice.
fn measure_round(
    of: &mut Measured,
    time: Duration,
    dir: &Path,
    stop: &AtomicBool,
    measured: &dyn Fn(),
) -> Result<(), BenchError> {
    let Measured { contest, slices } = of;
    let turns = contest.purpose.turns();
    let given_up = match contest.purpose {
        Purpose::Grid => grid::given_up(contest, slices),
        Purpose::Pair(_) | Purpose::Breaches => vec![false; contest.settings.len()],
    };
    let time = time * contest.longer / turns;
    let rig = Rig::start(&slice::setup(&contest.measurement()), dir)?;
    for _ in 0..turns {
        // The order rotates, so that no setting always follows the same one.
        let first = slices.iter().map(Vec::len).max().unwrap_or(0);
        let mut turn = Vec::new();
        for index in (first..).map(|n| n % slices.len()).take(slices.len()) {
            if !given_up[index] {
                let Setting { calls, warm_up, .. } = contest.settings[index];
                rig.set_calls(calls, contest.sender_calls)?;
                let slice = Slice::count(&rig, contest.load, warm_up, time, stop);
                if stop.load(Ordering::Relaxed) {
                    return Ok(());
                }
                if rig.has_failed() {
                    return Ok(rig.finish()?);
                }
                slice.check(contest.load_name, contest.load, stop)?;
                turn.push((index, slice));
            }
            measured();
        }
        for (index, slice) in turn {
            slices[index].push(slice);
        }
    }
    Ok(rig.finish()?)
}

#[cfg(test)]
mod tests {
    //! Results for given slices.

    use std::collections::BTreeMap;

    use weir_config::LatencyBudget;

    use super::grid::{PolicyRow, against, best};
    use super::*;

    /// Returns a slice of one second with `packets` packets. Each packet takes the worker and the receiver `cpu_us` of
    /// CPU time each (us).
    fn slice(packets: u64, cpu_us: f64) -> Slice {
        Slice {
            seconds: 1.0,
            received: packets,
            switched: packets,
            switch_cpu_s: packets as f64 * cpu_us / 1e6,
            guests_cpu_s: packets as f64 * cpu_us / 1e6,
            receiver_cpu_s: packets as f64 * cpu_us / 1e6,
            ..Slice::default()
        }
    }

    fn policy(name: &str, packets_per_s: f64, cpu_us_per_packet: f64) -> PolicyRow {
        let cores = packets_per_s * cpu_us_per_packet / 1e6;
        let name = name.into();
        PolicyRow {
            name,
            turns: 1,
            packets_per_s,
            cpu_us_per_packet,
            cores,
            p50_us: None,
            breaches: 0,
        }
    }

    /// Returns the contest of this name, with the same slices in `rounds` rounds by setting.
    fn measured(name: &str, rounds: usize, of_setting: impl Fn(usize) -> Slice) -> Measured {
        let mut all = contests::all();
        let at = all.iter().position(|contest| contest.name == name).expect("its name");
        let contest = all.swap_remove(at);
        let slices =
            (0..contest.settings.len()).map(|index| vec![of_setting(index); rounds]).collect();
        Measured { contest, slices }
    }

    fn figure(report: &serde_json::Value, name: &str) -> f64 {
        let figures = report["figures"].as_array().unwrap();
        let found = figures.iter().find(|figure| figure["name"] == name);
        found.unwrap_or_else(|| panic!("{name} in {report:#}"))["median"].as_f64().unwrap()
    }

    fn json(measured: &[Measured]) -> serde_json::Value {
        serde_json::to_value(Report::new(measured, &Pauses::default())).unwrap()
    }

    #[test]
    fn the_best_takes_the_least_cpu_where_packets_arrive() {
        let policies = [
            policy("late", 500.0, 0.5),
            policy("costly", 1_000.0, 2.0),
            policy("good", 990.0, 1.5),
        ];
        assert_eq!(best(&policies), 2);
        assert_eq!(best(&[policy("idle", 0.0, 0.0)]), 0);
    }

    #[test]
    fn a_setting_that_is_far_off_is_given_up_and_cannot_be_the_best() {
        let auto = contests::grid_settings().len() - 1;
        let of_setting = |index| match index {
            0 => slice(1_000, 2.0),
            1 => slice(800, 0.5),
            _ if index == auto => slice(500, 9.0),
            _ => slice(990, 1.3),
        };
        let mut bulk = measured("auto_vs_best_static_bulk", 3, of_setting);
        let given_up = |bulk: &Measured| grid::given_up(&bulk.contest, &bulk.slices);
        let far_off: Vec<_> = (0..=auto).map(|index| index < 2).collect();
        assert_eq!(given_up(&bulk), far_off);
        // Settings that are measured further have fewer packets than the setting that was given up.
        for (index, slices) in bulk.slices.iter_mut().enumerate().filter(|(index, _)| *index > 1) {
            slices.extend([of_setting(index), of_setting(index), of_setting(index)]);
        }
        assert_eq!(given_up(&bulk), far_off);
        let report = json(&[bulk]);
        assert_eq!(report["loads"][0]["best_static"], "backend 100 us");
        assert!((figure(&report, "auto_vs_best_static") - 1.3 / 9.0).abs() < 1e-9);
    }

    #[test]
    fn what_is_worse_counts_round_by_round() {
        let best = [&slice(1_000, 1.0), &slice(2_000, 1.0)];
        assert_eq!(against(&[slice(900, 1.0), slice(1_800, 1.0)], &best), [0.9, 0.9]);
        assert_eq!(against(&[slice(1_000, 2.0), slice(2_000, 2.0)], &best), [0.5, 0.5]);
    }

    #[test]
    fn a_silent_load_is_compared_by_cores_and_idle_is_idle() {
        let idle = |cores| Slice { seconds: 1.0, switch_cpu_s: cores, ..Slice::default() };
        assert_eq!(against(&[idle(0.004)], &[&idle(0.0)]), [1.0]);
        assert_eq!(against(&[idle(0.01)], &[&idle(0.0)]), [0.5]);
    }

    #[test]
    fn a_setting_that_was_lucky_once_is_not_the_best_in_that_round() {
        let mut lucky = measured("auto_vs_best_static_bulk", 3, |_| slice(1_000, 1.0));
        for (round, slices) in lucky.slices.iter_mut().take(3).enumerate() {
            slices[round] = slice(1_000, 0.5);
        }
        // Each round favours another setting, so that none of them is better than `auto`.
        assert_eq!(figure(&json(&[lucky]), "auto_vs_best_static"), 1.0);
    }

    #[test]
    fn a_setting_that_is_better_in_most_rounds_is_the_best_in_all() {
        let auto = contests::grid_settings().len() - 1;
        let mut best = measured("auto_vs_best_static_bulk", 3, |index| {
            slice(1_000, if index == auto { 1.25 } else { 2.0 })
        });
        best.slices[4] = vec![slice(1_000, 1.0), slice(1_000, 1.0), slice(1_000, 0.625)];
        assert_eq!(figure(&json(&[best]), "auto_vs_best_static"), 0.8);
    }

    #[test]
    fn the_worst_load_stands_for_the_grid() {
        let auto = contests::grid_settings().len() - 1;
        let good = measured("auto_vs_best_static_64B-1k", 3, |_| slice(1_000, 1.0));
        let poor = measured("auto_vs_best_static_bulk", 3, |index| {
            slice(1_000, if index == auto { 1.25 } else { 1.0 })
        });
        let report = json(&[good, poor]);
        assert_eq!(figure(&report, "auto_vs_best_static"), 0.8);
        assert_eq!(figure(&report, "auto_vs_best_static_bulk"), 0.8);
        assert_eq!(figure(&report, "auto_vs_best_static_64B-1k"), 1.0);
        assert_eq!(report["loads"][1]["best_static"], "immediate");
    }

    #[test]
    fn a_load_that_auto_makes_later_without_saving_a_tenth_counts() {
        let auto = contests::grid_settings().len() - 1;
        let load = |p50_ns, cpu_us| {
            measured("auto_vs_best_static_64B-10k", 3, |index| {
                let (p50_ns, cpu_us) = if index == auto { (p50_ns, cpu_us) } else { (100, 1.0) };
                let latency = super::super::slice::Latency { mean_ns: 0.0, p50_ns, p99_ns: 0 };
                Slice { latency: Some(latency), ..slice(1_000, cpu_us) }
            })
        };
        let count = |loads: &[Measured]| figure(&json(loads), "auto_hold_without_saving");
        assert_eq!(count(&[load(106, 0.91), load(106, 0.89), load(104, 1.0)]), 1.0);
        assert_eq!(count(&[load(200, 0.5), load(50, 2.0)]), 0.0);
    }

    #[test]
    fn pairs_are_ratios_of_the_first_policy_to_the_second() {
        let contest = measured("aggregate_pps_64B-max", 2, |index| {
            slice(1_000, if index == 0 { 1.0 } else { 2.0 })
        });
        let report = json(&[contest]);
        assert_eq!(figure(&report, "aggregate_pps_vs_single"), 2.0);
        assert_eq!(figure(&report, "aggregate_path_pps_vs_single"), 2.0);
        assert_eq!(figure(&report, "aggregate_arrived_vs_single"), 1.0);
        assert_eq!(report["pairs"][0]["policy"], "aggregate");
        assert_eq!(report["pairs"][0]["against"], "immediate");
    }

    #[test]
    fn breaches_are_counted_over_all_rounds_and_by_reason() {
        let late = |name: &str, count| Slice {
            breaches: BTreeMap::from([(name.to_owned(), count)]),
            ..slice(500_000, 1.0)
        };
        let one = measured("budget_breaches_100us_64B-max", 2, |index| {
            if index == 0 { late("asked_late", 3) } else { slice(500_000, 1.0) }
        });
        let other = measured("budget_breaches_1ms_64B-max", 2, |_| late("forwarded_late", 1));
        let report = json(&[one, other]);
        assert_eq!(figure(&report, "budget_breaches_per_million"), 6.0);
        assert_eq!(figure(&report, "budget_breaches_per_million_all"), 2.5);
        assert_eq!(figure(&report, "budget_breaches_per_million_asked_late"), 1.5);
        assert_eq!(figure(&report, "budget_breaches_per_million_forwarded_late"), 1.0);
        assert_eq!(report["breaches"][0]["by_reason"]["asked_late"], 6);
    }

    #[test]
    fn every_setting_is_one_that_the_configuration_takes() {
        let settings = contests::grid_settings();
        assert!(settings.len() >= 8);
        let held = settings.iter().filter(|setting| setting.calls.rx_usecs.is_some());
        assert_eq!(held.count(), contests::RX_USECS.len());
        assert!(settings.iter().any(|setting| setting.calls.rx_frames.is_some()));
        for contest in contests::all() {
            contest.budget.parse::<LatencyBudget>().unwrap();
        }
    }

    #[test]
    fn contests_are_found_by_a_part_of_their_or_their_figures_names() {
        let names = |filter| -> Vec<_> {
            let selected = select(contests::all(), filter).ok().unwrap();
            selected.into_iter().map(|contest| contest.name).collect()
        };
        assert_eq!(names("auto_vs_best_static").len(), 12);
        assert_eq!(names("budget_breaches").len(), 9);
        assert_eq!(names("adaptive_jitter"), ["adaptive_delay_64B-random-1k"]);
        assert!(select(contests::all(), "nonsense").is_err());
    }

    #[test]
    fn what_a_missing_processor_explains_is_shown_and_not_counted() {
        let breaches = measured("budget_breaches_1ms_64B-max", 1, |_| Slice {
            breaches: BTreeMap::from([("no_cpu".to_owned(), 7), ("asked_late".to_owned(), 2)]),
            ..slice(1_000_000, 1.0)
        });
        let report = Report::new(&[breaches], &Pauses::default()).to_string();
        assert!(report.contains("2.000  asked_late 2, no_cpu 7"), "{report}");
    }

    #[test]
    fn tables_for_people() {
        let contest = measured("rr_latency_request-response", 1, |_| Slice {
            latency: Some(super::super::slice::Latency {
                mean_ns: 20_000.0,
                p50_ns: 12_500,
                p99_ns: 90_000,
            }),
            ..slice(1_000, 1.0)
        });
        let breaches = measured("budget_breaches_1ms_64B-max", 1, |_| Slice {
            breaches: BTreeMap::from([("asked_late".to_owned(), 2)]),
            ..slice(1_000_000, 1.0)
        });
        insta::assert_snapshot!(Report::new(&[contest, breaches], &Pauses::default()).to_string(), @r"
    COMPARED                 LOAD              POLICY  VALUE  AGAINST    VALUE  UNIT
    rr_latency_vs_immediate  request-response  auto     12.5  immediate   12.5  us

    BUDGET  LOAD     POLICY     PACKETS  LATE PER MILLION  REASONS
       1ms  64B-max  auto     1,000,000             2.000  asked_late 2
       1ms  64B-max  backend  1,000,000             2.000  asked_late 2

    FIGURE                                  MEDIAN    MIN    MAX  UNIT                 WHAT IT SAYS
    rr_latency_vs_immediate                  1.000  1.000  1.000  x                    median round trip, 64 B, one request at a time: auto / immediate
    budget_breaches_per_million              2.000  2.000  2.000  per million packets  guests told later than the budget allows though the worker had its CPU; the worst of 2 cells: 64B-max under backend with 1ms
    budget_breaches_per_million_all          2.000  2.000  2.000  per million packets  the same over all cells, 2,000,000 packets
    budget_breaches_per_million_asked_late   2.000  2.000  2.000  per million packets  those of the reason asked_late, over all cells
    ");
    }
}
