//! Figures that `weir bench` finds by itself, with guests of its own in its own process.

use serde_json::Value;
use weir_bed::{
    error::{Error, Result, check},
    process::run,
    report::{Figure, Goal, Report},
};

use super::Bench;

pub(super) struct WeirBench {
    pub(super) args: &'static [&'static str],
    /// How long each of its parts is measured in all; `None` for one that ends by itself.
    pub(super) seconds: Option<u32>,
    /// What figures are to reach, by name; those that are not among them are shown.
    pub(super) goals: &'static [(&'static str, Goal)],
}

impl WeirBench {
    /// Measures, and adds all figures to `report`.
    pub(super) fn measure(&self, bench: &Bench<'_>, report: &mut Report) -> Result<()> {
        bench.note_other_load()?;
        let weir = bench.lab.weir.to_string_lossy();
        let seconds = self.seconds.map(|seconds| seconds.to_string());
        let mut argv = [&[&*weir, "bench", "--json"], self.args].concat();
        argv.extend(seconds.iter().flat_map(|seconds| ["--seconds", seconds]));
        let json = run(&argv)?;
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
