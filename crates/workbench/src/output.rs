//! Results of an experiment, for people and as JSON.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use weir_text::Table;

use super::experiment::{Experiment, name_of};
use super::file::{At, ClaimFile, ExperimentFile, Figure, MeasuredFile, Statement};
use super::profile::Machine;
use super::runs::Measured;
use super::verdict::{self, Judged, Verdict, judge};

/// Results of an experiment. They are equal to the byte for the same experiment and seeds.
#[derive(Debug, Serialize)]
pub struct Outcome {
    pub(super) name: String,
    pub(super) title: String,
    pub(super) paper: Option<String>,
    machine: String,
    /// Fitted costs of the machine, each with the claim that it was fitted to.
    fitted: BTreeMap<String, String>,
    pub(super) seeds: Vec<u64>,
    pub(super) events: u64,
    pub(super) points: Vec<Point>,
    pub(super) claims: Vec<Judged>,
    /// Measurements on an actual host, from this experiment's file or by `--measured`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    measured: Vec<MeasuredFile>,
    /// Points that `--measured` could not measure, with the reasons.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) not_measured: Vec<(String, String)>,
}

/// A point of the sweeps.
#[derive(Debug, Serialize)]
pub struct Point {
    /// The values of the sweeps.
    pub at: At,
    /// Figures by [`Figure::as_str`].
    pub figures: BTreeMap<&'static str, Measured>,
    /// Number of starts, each with a seed.
    pub starts: usize,
    /// Figures by seed.
    #[serde(skip)]
    pub seeds: BTreeMap<&'static str, Vec<f64>>,
    /// Events of all starts.
    #[serde(skip)]
    pub events: u64,
}

/// Returns the figures of the plot and of the claims.
pub fn figures(file: &ExperimentFile) -> Vec<Figure> {
    let claimed = file.claims.iter().map(|claim| claim.y);
    let measured = file.measured.iter().map(|measured| measured.y);
    let within = file.claims.iter().filter(|claim| matches!(claim.is, Statement::Within { .. }));
    let within = within.map(|_| Figure::PacketsPerS);
    let plotted = file.plot.y.iter().copied();
    let mut all: Vec<_> = plotted.chain(claimed).chain(measured).chain(within).collect();
    all.sort_unstable();
    all.dedup();
    all
}

impl Outcome {
    /// Judges the claims by the results at each point.
    pub fn new(experiment: &Experiment, points: Vec<Point>, events: u64) -> Self {
        let file = &experiment.file;
        let x = file.points_of(&file.plot.x);
        let point = |at: &At| points.iter().find(|point| point.at == *at);
        let mean = |figure: Figure, at: &At| {
            point(at).and_then(|it| it.figures.get(figure.as_str())).map_or(f64::NAN, |it| it.mean)
        };
        let judged = |claim: &ClaimFile| {
            let x = (file.plot.x.as_str(), x);
            let within_spread =
                !verdict::unknown(claim, x, &|figure, at| starts(&points, figure, at)).is_empty();
            Judged { within_spread, ..judge(claim, x, mean) }
        };
        let claims = file.claims.iter().map(judged).collect();
        Self {
            name: experiment.name.clone(),
            title: file.title.clone(),
            paper: file.paper.clone(),
            machine: experiment.machine(),
            fitted: experiment.machines.iter().enumerate().flat_map(fitted).collect(),
            seeds: points
                .iter()
                .map(|it| it.starts)
                .max()
                .map_or_else(Vec::new, |most| experiment.seeds(most)),
            events,
            points,
            claims,
            measured: file.measured.clone(),
            not_measured: Vec::new(),
        }
    }
}

/// Returns a figure's values at a point, one for each start.
fn starts<'p>(points: &'p [Point], figure: Figure, at: &At) -> &'p [f64] {
    let point = points.iter().find(|point| point.at == *at);
    point.and_then(|it| it.seeds.get(figure.as_str())).map_or(&[], Vec::as_slice)
}

/// Returns whether a point needs more starts, for each point: a claim's verdict hangs on them.
pub fn unknown(file: &ExperimentFile, points: &[Point]) -> Vec<bool> {
    let x = (file.plot.x.as_str(), file.points_of(&file.plot.x));
    let of = |claim| verdict::unknown(claim, x, &|figure, at| starts(points, figure, at));
    let wanting: Vec<At> = file.claims.iter().flat_map(of).collect();
    points.iter().map(|point| wanting.contains(&point.at)).collect()
}

impl Outcome {
    /// Describes the seeds in words.
    pub(super) fn seeds_in_words(&self) -> String {
        let least = self.points.iter().map(|it| it.starts).min().unwrap_or(0);
        let (first, further) = self.seeds.split_at(least.min(self.seeds.len()));
        let first: Vec<_> = first.iter().map(ToString::to_string).collect();
        match further.last() {
            Some(last) => {
                format!("{}, and up to {last} for verdicts that hang on them", first.join(", "))
            }
            None => first.join(", "),
        }
    }

    /// Returns how many seeds a point has.
    pub(super) fn starts_in_words(&self) -> String {
        let least = self.points.iter().map(|it| it.starts).min().unwrap_or(0);
        match self.seeds.len() {
            most if most > least => format!("{least} to {most}"),
            most => most.to_string(),
        }
    }

    /// Writes the measurements beside the results.
    fn write_measured(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table =
            Table::new(&["<POINT", "<FIGURE", "SIMULATED", "MEASURED", "LEAST", "MOST", "<WHERE"]);
        for it in &self.measured {
            let point = self.points.iter().find(|point| point.at == it.at);
            let simulated = point.and_then(|point| point.figures.get(it.y.as_str()));
            table.row(vec![
                name_of(&it.at),
                it.y.as_str().to_owned(),
                simulated.map_or_else(String::new, |it| format!("{:.1}", it.mean)),
                format!("{:.1}", it.mean),
                format!("{:.1}", it.min.unwrap_or(it.mean)),
                format!("{:.1}", it.max.unwrap_or(it.mean)),
                it.source.clone(),
            ]);
        }
        if !self.measured.is_empty() {
            writeln!(f, "{table}")?;
        }
        for (point, why) in &self.not_measured {
            writeln!(f, "{point}: not measured: {why}")?;
        }
        Ok(())
    }
}

/// Iterates over fitted costs and their claims. The names of further machines' costs contain the machine's title.
fn fitted((number, machine): (usize, &Machine)) -> impl Iterator<Item = (String, String)> {
    machine.fitted().map(move |cost| {
        let name = match number {
            0 => cost.name.to_owned(),
            _ => format!("{} ({})", cost.name, machine.title),
        };
        (name, cost.text.clone())
    })
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, title, machine, events, .. } = self;
        writeln!(f, "{name}: {title}")?;
        if let Some(paper) = &self.paper {
            writeln!(f, "{paper}")?;
        }
        writeln!(f, "machine: {machine}; seeds {}; {events} events\n", self.seeds_in_words())?;
        let mut table = Table::new(&["<POINT", "<FIGURE", "MEAN", "MIN", "MAX"]);
        for point in &self.points {
            for (number, (figure, it)) in point.figures.iter().enumerate() {
                table.row(vec![
                    if number == 0 { name_of(&point.at) } else { String::new() },
                    (*figure).to_owned(),
                    format!("{:.1}", it.mean),
                    format!("{:.1}", it.min),
                    format!("{:.1}", it.max),
                ]);
            }
        }
        writeln!(f, "{table}")?;
        self.write_measured(f)?;
        let mut table = Table::new(&["<PAPER", "<SAYS", "<USED TO", "<THERE", "<HERE", "<VERDICT"]);
        for claim in &self.claims {
            table.row(vec![
                claim.figure.clone(),
                claim.says.clone(),
                claim.used.as_str().to_owned(),
                claim.paper.clone(),
                claim.ours.clone(),
                claim.words(),
            ]);
        }
        if !self.claims.is_empty() {
            write!(f, "{table}")?;
        }
        for claim in &self.claims {
            if let Some(reason) = &claim.reason {
                let verdict = match claim.verdict {
                    Verdict::DirectionOnly => "only the direction",
                    _ => "not",
                };
                writeln!(f, "{}, {}: {verdict}, since {reason}", claim.figure, claim.says)?;
            }
        }
        for (cost, to) in &self.fitted {
            writeln!(f, "fitted: {cost}, to {to}")?;
        }
        Ok(())
    }
}
