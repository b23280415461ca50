//! Moderation policies side by side: what `weir bench --policies` finds.
//!
//! Its guests are weir's own, in its own process, and its rounds are interleaved as those here are: each
//! setting of a load in turn. Ratios are taken within a round.

use serde_json::Value;

use super::Bench;
use crate::{
    error::{Error, Result, check},
    process::run,
    report::{Figure, Goal, Report},
};

/// `auto` and the settings with a fixed hold, over the grid of loads.
pub(super) fn grid(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    Contests {
        filter: "auto_vs_best_static",
        seconds: 1,
        goals: &[("auto_vs_best_static", Goal::AtLeast(0.95))],
    }
    .measure(bench, report)
}

/// Request-response under `auto` and under `immediate`.
pub(super) fn request_response(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    Contests {
        filter: "rr_latency",
        seconds: 5,
        goals: &[("rr_latency_vs_immediate", Goal::AtMost(1.05))],
    }
    .measure(bench, report)
}

/// Packets in containers and packets by themselves.
pub(super) fn aggregate(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    Contests {
        filter: "aggregate_pps",
        seconds: 4,
        goals: &[("aggregate_pps_vs_single", Goal::AtLeast(1.5))],
    }
    .measure(bench, report)
}

/// Containers whose timeout follows the traffic, and those with a fixed one.
pub(super) fn adaptive(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    Contests {
        filter: "adaptive_",
        seconds: 4,
        goals: &[
            ("adaptive_delay_vs_fixed", Goal::AtMost(0.3)),
            ("adaptive_jitter_vs_fixed", Goal::AtMost(0.3)),
            ("adaptive_pps_vs_fixed", Goal::AtLeast(0.98)),
        ],
    }
    .measure(bench, report)
}

/// What guests are told later than their budgets allow.
pub(super) fn breaches(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    Contests {
        filter: "budget_breaches",
        seconds: 5,
        goals: &[("budget_breaches_per_million", Goal::AtMost(10.0))],
    }
    .measure(bench, report)
}

/// Some of the contests of `weir bench --policies`.
struct Contests {
    /// What the names of those have in them.
    filter: &'static str,
    /// How long each setting is measured in all.
    seconds: u32,
    /// What figures are to reach, by name; those that are not among them are shown.
    goals: &'static [(&'static str, Goal)],
}

impl Contests {
    fn measure(&self, bench: &Bench<'_>, report: &mut Report) -> Result<()> {
        bench.note_other_load()?;
        let (weir, seconds) = (bench.lab.weir.to_string_lossy(), self.seconds.to_string());
        let argv = [&*weir, "bench", "--policies", "--json", "--filter", self.filter];
        let json = run(&[&argv[..], &["--seconds", &seconds]].concat())?;
        let found = figures(&json)
            .ok_or_else(|| Error::parse("the figures of weir bench --policies", &*json))?;
        for (name, _) in self.goals {
            check(found.iter().any(|figure| figure.name == *name), || {
                format!("weir bench --policies has no {name}")
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

/// One entry of its JSON's `figures`.
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
