//! `weir bench` measures weir on this machine with this program alone. [`demo`] is `weir demo`.
//!
//! Each slice of a measurement has its own [rig]: a switch with one worker, two built-in guests, and traffic. Slices
//! of the measurements alternate, so that a disturbance of the machine affects all. A figure is the median over its
//! slices, with its spread.
//!
//! | file | contents |
//! |---|---|
//! | `plan.rs` | the measurements: their traffic and figures |
//! | `slice.rs` | one slice of a measurement, and the cost of a plain copy |
//! | `report.rs` | medians, the table, and JSON |
//! | `policies/` | `--policies`: moderation policies side by side |
//! | `filter.rs` | `--filter-cost`: packets with and without a filter |
//! | `sharing.rs` | `--sharing`: how senders share a worker |
//! | `cores/` | several workers and many interfaces |
//! | `figures.rs` | figures with a value of each round |
//! | `rig/` | the switch and the guests of `weir bench`, `weir demo` and `weir lab` |
//! | `demo/` | `weir demo` |
//! | `steps.rs` | waits, the progress bar, and the reasons why there is no result |
//! | `args.rs` | the command line of both |

#![forbid(unsafe_code)]

use std::io::Write;
use std::num::NonZero;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use args::BenchArgs;

pub mod args;
mod cores;
pub mod demo;
mod figures;
mod filter;
mod plan;
mod policies;
mod report;
pub mod rig;
mod sharing;
mod slice;
mod steps;

pub use figures::print;
use plan::Measurement;
use report::{Measured, Report};
use slice::Slice;
pub use steps::{BenchError, progress_of};
use steps::{SLICES, progress};

/// Measures and prints the result. Progress goes to standard error if that is a terminal.
pub fn run(args: &BenchArgs, out: &mut dyn Write) -> Result<(), BenchError> {
    if args.policies {
        return policies::run(args, out);
    }
    if args.filter_cost {
        return filter::run(args, out);
    }
    if args.sharing {
        return sharing::run(args, out);
    }
    if let Some(measurement) = cores::asked_for(args) {
        return measurement(args, out);
    }
    let plan = select(plan::all(), args.filter.as_deref())?;
    let stop = rig::catch_signals()?;
    let dir = rig::temp_dir()?;
    let time = Duration::from_secs(args.seconds.into()) / SLICES;
    let mut measured: Vec<_> =
        plan.into_iter().map(|m| Measured { measurement: m, slices: Vec::new() }).collect();
    measure(&mut measured, time, dir.path(), &stop)?;
    // After an interruption, measurements that have not begun have no result.
    measured.retain(|measured| !measured.slices.is_empty());
    if measured.is_empty() {
        return Err(BenchError::Interrupted);
    }
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    Ok(print(&Report::new(&measured, time, cores), args.json, out)?)
}

/// Returns the measurements that match `filter`, at least one.
fn select(all: Vec<Measurement>, filter: Option<&str>) -> Result<Vec<Measurement>, BenchError> {
    let Some(filter) = filter else { return Ok(all) };
    let names: Vec<_> = all.iter().map(|measurement| measurement.name).collect();
    let help = format!("there are {}, and their figures", names.join(", "));
    let selected: Vec<_> = all.into_iter().filter(|m| m.is_meant_by(filter)).collect();
    if selected.is_empty() {
        return Err(BenchError::NoSuchFigure { filter: filter.into(), help });
    }
    Ok(selected)
}

/// Measures all slices, of each measurement in turn: A B C A B C ... Ends early if `stop` is set.
fn measure(
    measured: &mut [Measured],
    time: Duration,
    dir: &Path,
    stop: &AtomicBool,
) -> Result<(), BenchError> {
    let progress = progress(measured.len());
    for _ in 0..SLICES {
        for Measured { measurement, slices } in &mut *measured {
            progress.set_message(measurement.name);
            let slice = Slice::measure(measurement, time, dir, stop)?;
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            slices.push(slice);
            progress.inc(1);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use miette::Diagnostic as _;
    use weir_engine::stages::{self, StageCosts};

    use super::slice::Latency;
    use super::*;

    /// Returns a slice of one second with `packets` packets of 1000 bytes in each direction. The worker used half a
    /// core and the guests one and a half.
    fn slice(packets: u64) -> Slice {
        Slice {
            seconds: 1.0,
            received: packets,
            received_bytes: 1000 * packets,
            switched: 2 * packets,
            switched_bytes: 2000 * packets,
            wakeups: packets / 4,
            switch_cpu_s: 0.5,
            guests_cpu_s: 1.5,
            receiver_cpu_s: 0.5,
            latency: Some(Latency { mean_ns: 20_000.0, p50_ns: 12_340, p99_ns: 99_000 }),
            delay_change_s: 0.25,
            lost: 0,
            breaches: BTreeMap::new(),
            stages: StageCosts {
                bursts: packets / 10,
                frames: packets,
                ticks: [200 * packets, 20 * packets, 90 * packets, packets / 2, 3 * packets],
            },
            memcpy: Some(10.0),
        }
    }

    fn measured(names: &[&str], packets: &[u64]) -> Vec<Measured> {
        let plan = plan::all().into_iter().filter(|measurement| names.contains(&measurement.name));
        let slices: Vec<_> = packets.iter().map(|packets| slice(*packets)).collect();
        plan.map(|measurement| Measured { measurement, slices: slices.clone() }).collect()
    }

    fn report(measured: &[Measured]) -> Report {
        Report::new(measured, Duration::from_millis(600), 2)
    }

    #[test]
    fn tables_for_people() {
        let names = ["pps64_split", "tso", "rtt", "stages64_split"];
        let mut measured = measured(&names, &[1_000_000, 1_234_567, 500]);
        measured[1].slices[0].lost = 1_200;
        let text = report(&measured).to_string().replace(stages::UNIT, "UNITS");
        insta::assert_snapshot!(text, @r#"
    weir 0.1.0 on 2 cores: one worker, two built-in guests, slices of 600 ms in turn

    FIGURE                   MEDIAN    MIN        MAX  UNIT       SWITCH  GUESTS  WHAT IT SAYS
    pps64_split           1,000,000    500  1,234,567  packets/s     50%    150%  64 B one way, split rings, 512 in flight
    pps64_split_per_core  4,000,000  2,000  4,938,268  packets/s                  the same for a second of the worker's CPU time
    gbps_tso                  8.000  0.004      9.877  Gbit/s        50%    150%  a TCP-like stream in 64 KiB segments
    gbps_tso_per_core          32.0  0.016       39.5  Gbit/s                     the same for a second of the worker's CPU time
    gbps_memcpy                10.0   10.0       10.0  Gbit/s                     a plain copy of 64 KiB at a time, as one core does it
    tso_vs_memcpy             3.200  0.002      3.951  x                          weir's core against the copying one
    rtt_p50                    12.3   12.3       12.3  us            50%    150%  64 B request and reply, one at a time
    rtt_p99                    99.0   99.0       99.0  us                         99 of 100 take at most this

    SWITCH is the worker's CPU time, GUESTS that of the two threads which make and check the traffic.
    All share the machine's cores: where there are fewer than three, what arrives in a second is
    the guests' figure as much as weir's, and what a core does is weir's own.

    STAGES          TAKE  CLASSIFY  COPY  PUBLISH   CALL  ALL  BURST
    stages64_split   200      20.0  90.0    0.500  3.000  314   10.0

    UNITS for each packet, medians; BURST is how many packets weir took at once. Where threads are more
    than cores, a stage in which the worker lost its core has that time as well.
    tso: 1,200 packets lost or damaged
    "#);
    }

    #[test]
    fn rates_are_counts_over_time_and_over_cpu_time() {
        let slice = slice(1_000);
        assert_eq!(slice.packets_per_s(), Some(1_000.0));
        assert_eq!(slice.packets_per_cpu_s(), Some(4_000.0));
        assert_eq!(slice.gbit_per_s(), Some(0.008));
        assert_eq!(slice.gbit_per_cpu_s(), Some(0.032));
        assert_eq!(slice.stream_vs_memcpy(), Some(0.0032));
        assert_eq!(slice.cpu_us_per_packet(), Some(250.0));
        assert_eq!(slice.wakeups_per_packet(), Some(0.125));
        assert_eq!((slice.switch_cores(), slice.guests_cores()), (0.5, 1.5));
        assert_eq!(slice.packets_per_delivering_cpu_s(), Some(1_000.0));
        assert_eq!(slice.packets_per_receiver_cpu_s(), Some(2_000.0));
        assert_eq!((slice.mean_latency_us(), slice.jitter_us()), (Some(20.0), Some(250.0)));
    }

    #[test]
    fn nothing_is_divided_by_nothing() {
        let nothing = Slice::default();
        let figures = plan::all().into_iter().flat_map(|measurement| match measurement.tells {
            plan::Tells::Figures(figures) => {
                figures.iter().map(|figure| (figure.of)(&nothing)).collect()
            }
            plan::Tells::Stages => Vec::new(),
        });
        for value in figures.flatten() {
            assert_eq!(value, 0.0);
        }
    }

    #[test]
    fn a_figure_is_the_median_and_its_spread() {
        let json =
            serde_json::to_value(report(&measured(&["pps64_split"], &[3, 1, 9, 2]))).unwrap();
        let figure = &json["measurements"][0]["figures"][0];
        assert_eq!(figure["name"], "pps64_split");
        assert_eq!([&figure["median"], &figure["min"], &figure["max"]], [2.5, 1.0, 9.0]);
        assert_eq!(json["measurements"][0]["guests_cores"], 1.5);
        assert_eq!(json["cores"], 2);
    }

    #[test]
    fn stages_are_figures_of_their_own_in_json() {
        let json = serde_json::to_value(report(&measured(&["stages64_split"], &[1_000]))).unwrap();
        let figures = json["measurements"][0]["figures"].as_array().unwrap();
        let found: Vec<_> = figures
            .iter()
            .map(|figure| (figure["name"].as_str().unwrap(), figure["median"].as_f64().unwrap()))
            .collect();
        assert_eq!(
            found,
            [
                ("stages64_split_take", 200.0),
                ("stages64_split_classify", 20.0),
                ("stages64_split_copy", 90.0),
                ("stages64_split_publish", 0.5),
                ("stages64_split_call", 3.0),
                ("stages64_split_burst", 10.0),
            ]
        );
    }

    #[test]
    fn names_are_found_by_a_part_of_them() {
        let names = |filter| {
            let selected = select(plan::all(), Some(filter)).unwrap();
            selected.iter().map(|measurement| measurement.name).collect::<Vec<_>>()
        };
        assert_eq!(names("64_split"), ["pps64_split", "stages64_split"]);
        assert_eq!(names("memcpy"), ["tso"]);
        assert_eq!(names("classify").len(), 4);
        let Err(error) = select(plan::all(), Some("nonsense")) else { panic!("found") };
        assert!(error.help().unwrap().to_string().contains("pps64_split, pps64_packed"));
    }

    #[test]
    fn no_name_is_given_twice() {
        let mut names = std::collections::BTreeSet::new();
        for measurement in plan::all() {
            let figures = match measurement.tells {
                plan::Tells::Figures(figures) => figures,
                plan::Tells::Stages => &[],
            };
            for figure in figures {
                assert!(names.insert(figure.name), "{}", figure.name);
            }
        }
    }
}
