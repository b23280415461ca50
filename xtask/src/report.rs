//! What a benchmark found: a table for people and `target/bench/report.json` for programs.

use std::{collections::BTreeMap, fs, path::PathBuf};

use crate::{
    error::{Error, Result},
    workspace::Workspace,
};

/// The same figure, measured once a round.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    values: Vec<f64>,
}

impl Samples {
    /// No rounds yet.
    pub const fn new() -> Self {
        Self { values: Vec::new() }
    }

    /// Adds one round's value.
    pub fn push(&mut self, value: f64) {
        self.values.push(value);
    }

    /// Round by round, these over `others`: what changes from one round to the next for both, as a
    /// machine's other load does, cancels out.
    pub fn ratio_to(&self, others: &Self) -> Self {
        let values = self.values.iter().zip(&others.values).map(|(this, other)| this / other);
        Self { values: values.collect() }
    }

    /// The middle value; the mean of the two middle ones of an even number; 0 of none.
    pub fn median(&self) -> f64 {
        let mut sorted = self.values.clone();
        sorted.sort_by(f64::total_cmp);
        let upper = sorted.get(sorted.len() / 2).copied().unwrap_or(0.0);
        if sorted.len() % 2 == 1 {
            return upper;
        }
        let lower = (sorted.len() / 2).checked_sub(1).and_then(|at| sorted.get(at));
        f64::midpoint(lower.copied().unwrap_or(upper), upper)
    }

    /// The smallest and the largest value.
    pub fn spread(&self) -> (f64, f64) {
        let min = self.values.iter().copied().fold(f64::INFINITY, f64::min);
        let max = self.values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        (min, max)
    }
}

/// One figure of a report.
#[derive(Clone, Debug)]
struct Figure {
    name: &'static str,
    unit: &'static str,
    samples: Samples,
    goal: Option<Goal>,
}

/// What a figure is to reach.
#[derive(Clone, Copy, Debug)]
pub enum Goal {
    /// At least this.
    AtLeast(f64),
    /// At most this.
    AtMost(f64),
}

impl Goal {
    fn reached_by(self, value: f64) -> bool {
        match self {
            Self::AtLeast(bound) => value >= bound,
            Self::AtMost(bound) => value <= bound,
        }
    }
}

/// Everything one benchmark run found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    figures: Vec<Figure>,
}

impl Report {
    /// Adds a figure. `unit` is for the table; a ratio's is `x`.
    pub fn add(
        &mut self,
        name: &'static str,
        unit: &'static str,
        samples: Samples,
        goal: Option<Goal>,
    ) {
        self.figures.push(Figure { name, unit, samples, goal });
    }

    /// The table: median, spread over the rounds, and the goal where there is one.
    pub fn table(&self) -> String {
        let mut text =
            format!("{:<28}{:>14}{:>14}{:>14}  {}\n", "figure", "median", "min", "max", "unit");
        for Figure { name, unit, samples, goal } in &self.figures {
            let (median, (min, max)) = (samples.median(), samples.spread());
            let [median_text, min, max] = [median, min, max].map(significant);
            let goal = goal.map_or(String::new(), |goal| {
                let verdict = if goal.reached_by(median) { "reached" } else { "MISSED" };
                match goal {
                    Goal::AtLeast(bound) => format!("  (goal >= {bound}: {verdict})"),
                    Goal::AtMost(bound) => format!("  (goal <= {bound}: {verdict})"),
                }
            });
            text += &format!("{name:<28}{median_text:>14}{min:>14}{max:>14}  {unit}{goal}\n");
        }
        text
    }

    /// `NAME` is the median; `NAME_min` and `NAME_max` the spread.
    pub fn to_json(&self) -> String {
        let mut numbers = BTreeMap::new();
        for Figure { name, samples, .. } in &self.figures {
            let (min, max) = samples.spread();
            numbers.insert((*name).to_owned(), samples.median());
            numbers.insert(format!("{name}_min"), min);
            numbers.insert(format!("{name}_max"), max);
        }
        format!("{:#}\n", serde_json::json!(numbers))
    }

    /// Writes `target/bench/report.json` and returns its path.
    pub fn write(&self, workspace: &Workspace) -> Result<PathBuf> {
        let path = workspace.target("bench")?.join("report.json");
        fs::write(&path, self.to_json()).map_err(Error::io("write", &path))?;
        Ok(path)
    }
}

/// Three or more significant digits, without a fraction where it says nothing.
fn significant(value: f64) -> String {
    if value.abs() >= 1000.0 { format!("{value:.0}") } else { format!("{value:.3}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(values: &[f64]) -> Samples {
        Samples { values: values.to_vec() }
    }

    #[test]
    fn median_is_the_middle_value_in_any_order() {
        assert_eq!(samples(&[9.0, 1.0, 4.0]).median(), 4.0);
        assert_eq!(samples(&[4.0, 1.0]).median(), 2.5);
        assert_eq!(samples(&[]).median(), 0.0);
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        let ratio = samples(&[2.0, 30.0]).ratio_to(&samples(&[1.0, 10.0]));
        assert_eq!(ratio.spread(), (2.0, 3.0));
    }

    #[test]
    fn json_is_flat_and_table_says_whether_a_goal_is_reached() {
        let mut report = Report::default();
        report.add("fast", "x", samples(&[2.0]), Some(Goal::AtLeast(1.0)));
        report.add("idle", "/s", samples(&[2.0]), Some(Goal::AtMost(1.0)));
        let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
        assert_eq!(json["fast"], 2.0);
        assert_eq!(json["idle_max"], 2.0);
        let table = report.table();
        assert!(table.contains("(goal >= 1: reached)"), "{table}");
        assert!(table.contains("(goal <= 1: MISSED)"), "{table}");
    }
}
