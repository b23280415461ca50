//! Figures that `weir bench` measures, with guests in its own process.

use serde_json::Value;
use weir_bed::{
    error::{Error, Result, check},
    process::run,
    report::{Figure, Goal, Report},
};

use super::Bench;

pub(super) struct WeirBench {
    /// Name of the row's main figure.
    pub(super) name: &'static str,
    /// Arguments of `weir bench`.
    args: &'static [&'static str],
    /// Total time of each part (s); `None` if it ends by itself.
    seconds: Option<u32>,
    /// Goals of figures, by name; other figures are only shown.
    goals: &'static [(&'static str, Goal)],
}

/// All rows in their order. The guests are in weir's process. Each setting of a load has its turn in each round.
/// Ratios are within a round.
pub(super) const ROWS: &[WeirBench] = &[
    // `auto` and the policies with a fixed hold, over a grid of loads.
    WeirBench {
        name: "auto_vs_best_static",
        args: &["--policies", "--filter", "auto_vs_best_static"],
        seconds: Some(5),
        goals: &[
            ("auto_vs_best_static", Goal::AtLeast(0.95)),
            ("auto_hold_without_saving", Goal::AtMost(0.0)),
        ],
    },
    // Request-response under `auto` and under `immediate`.
    WeirBench {
        name: "rr_latency_vs_immediate",
        args: &["--policies", "--filter", "rr_latency"],
        seconds: Some(5),
        goals: &[("rr_latency_vs_immediate", Goal::AtMost(1.05))],
    },
    // Calls to guests that came later than the guests' budgets allow.
    WeirBench {
        name: "budget_breaches_per_million",
        args: &["--policies", "--filter", "budget_breaches"],
        seconds: Some(5),
        goals: &[("budget_breaches_per_million", Goal::AtMost(10.0))],
    },
    // Packets in containers and single packets.
    WeirBench {
        name: "aggregate_pps_vs_single",
        args: &["--policies", "--filter", "aggregate_pps"],
        seconds: Some(4),
        goals: &[("aggregate_pps_vs_single", Goal::AtLeast(1.5))],
    },
    // Containers with an adaptive timeout, and those with a fixed one.
    WeirBench {
        name: "adaptive_delay_vs_fixed",
        args: &["--policies", "--filter", "adaptive_"],
        seconds: Some(4),
        goals: &[
            ("adaptive_delay_vs_fixed", Goal::AtMost(0.3)),
            ("adaptive_jitter_vs_fixed", Goal::AtMost(0.3)),
            ("adaptive_pps_vs_fixed", Goal::AtLeast(0.98)),
        ],
    },
    // Four pairs of guests served by two workers and by one.
    WeirBench {
        name: "two_workers_vs_one",
        args: &["--two-workers"],
        seconds: Some(3),
        goals: &[("two_workers_vs_one", Goal::AtLeast(1.8))],
    },
    // Packets of many flows while queues and flows keep moving.
    WeirBench {
        name: "reordered_packets",
        args: &["--reorder", "--packets", "20000000"],
        seconds: None,
        goals: &[
            ("reordered_packets", Goal::AtMost(0.0)),
            ("reordered_packets_lost", Goal::AtMost(0.0)),
        ],
    },
    // Round trips and throughput of 1 to 32 interfaces, workers polling and sleeping.
    WeirBench {
        name: "dedicated_rtt_vs_shared",
        args: &["--vifs"],
        seconds: Some(1),
        goals: &[
            ("dedicated_rtt_vs_shared_1", Goal::AtMost(0.5)),
            ("dedicated_rtt_vs_shared_8", Goal::AtMost(0.5)),
        ],
    },
    // Two cores that answer each other.
    WeirBench { name: "ping_pong", args: &["--ping-pong"], seconds: Some(1), goals: &[] },
    // Senders that share a worker, and the effect of a flood on its neighbour.
    WeirBench {
        name: "sharing",
        args: &["--sharing"],
        seconds: Some(4),
        goals: &[
            ("victim_p99_vs_alone", Goal::AtMost(2.0)),
            ("victim_throughput_vs_fair_share", Goal::AtLeast(0.95)),
            ("jain_index", Goal::AtLeast(0.99)),
            ("weight_error", Goal::AtMost(0.03)),
        ],
    },
    // Packets with and without a filter of ten terms.
    WeirBench {
        name: "filter_cost",
        args: &["--filter-cost"],
        seconds: Some(5),
        goals: &[("filter_cost", Goal::AtLeast(0.85))],
    },
    // Interfaces that come and go under traffic.
    WeirBench {
        name: "attach_detach",
        args: &["--attach-detach", "--cycles", "10000"],
        seconds: None,
        goals: &[
            ("attach_detach", Goal::AtMost(0.0)),
            ("attach_detach_threads", Goal::AtMost(0.0)),
        ],
    },
];

impl WeirBench {
    /// Measures, and adds all figures to `report`.
    pub(super) fn measure(&self, bench: &Bench<'_>, report: &mut Report) -> Result<()> {
        bench.note_other_load()?;
        let weir = bench.lab.weir.to_string_lossy();
        let seconds = self.seconds.map(|seconds| seconds.to_string());
        let mut argv = [&[&*weir, "bench", "--json"], self.args].concat();
        argv.extend(seconds.iter().flat_map(|seconds| ["--seconds", seconds]));
        let json = run(&argv)?;
        bench.machine.look()?;
        let found =
            figures(&json).ok_or_else(|| Error::parse("the figures of weir bench", &*json))?;
        for (name, _) in self.goals {
            check(found.iter().any(|figure| figure.name == *name), || {
                format!("weir bench {} has no {name}", self.args.join(" "))
            })?;
        }
        for FoundFigure { name, unit, says, rounds } in found {
            let goal = self.goals.iter().find(|(goal, _)| *goal == name).map(|(_, goal)| *goal);
            println!("{name}: {rounds:.3?} {unit}");
            report.add(Figure::new(name, unit, says, rounds.into_iter().collect()).goal(goal));
        }
        Ok(())
    }
}

/// One entry of `figures` in the JSON of `weir bench`.
#[derive(Debug, PartialEq)]
struct FoundFigure {
    name: String,
    unit: String,
    says: String,
    rounds: Vec<f64>,
}

fn figures(json: &str) -> Option<Vec<FoundFigure>> {
    let report: Value = serde_json::from_str(json).ok()?;
    let figure = |figure: &Value| {
        let text = |key: &str| Some(figure[key].as_str()?.to_owned());
        let rounds = figure["rounds"].as_array()?.iter().map(Value::as_f64);
        Some(FoundFigure {
            name: text("name")?,
            unit: text("unit")?,
            says: text("says")?,
            rounds: rounds.collect::<Option<_>>()?,
        })
    };
    report["figures"].as_array()?.iter().map(figure).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_with_all_rounds() {
        let json = r#"{"figures": [{"name": "a", "unit": "x", "median": 2.0, "rounds": [1.0, 2.0, 3],
            "says": "b / c"}], "loads": []}"#;
        let [name, unit, says] = ["a", "x", "b / c"].map(str::to_owned);
        let found = FoundFigure { name, unit, says, rounds: vec![1.0, 2.0, 3.0] };
        assert_eq!(figures(json), Some(vec![found]));
        assert_eq!(figures("{}"), None);
        assert_eq!(figures("error"), None);
    }
}
