//! A plot of one figure: results at each x for each series, the paper's numbers, and measurements.

use super::axis;
use crate::experiment::{Experiment, name_of};
use crate::file::{At, ClaimFile, ExperimentFile, Figure, MeasuredFile, Sign, Statement};
use crate::output::{self, Outcome};
use crate::runs::Measured;
use crate::verdict::{best_but, settings, share_within};

/// Name of the series if x is the only sweep.
const ONLY_SERIES: &str = "simulated";

/// A plot.
#[derive(Clone, Debug)]
pub struct Chart {
    /// ID for links and file names.
    pub id: String,
    /// The figure, in words.
    pub title: String,
    /// Values of the sweeps other than x and series. Empty if there are none.
    pub at: String,
    /// The sweep along x.
    pub x_name: String,
    /// Names of the points along x.
    pub x: Vec<String>,
    /// One series per point of the sweep that `series` names.
    pub series: Vec<Series>,
    /// Statements of the paper.
    pub marks: Vec<Mark>,
    /// Number of seeds of each result, in words.
    pub seeds: String,
}

/// Results and measurements at each point of x.
#[derive(Clone, Debug)]
pub struct Series {
    /// The series' name.
    pub name: String,
    /// Simulated results; `None` if there is no number.
    pub simulated: Vec<Option<Measured>>,
    /// Measurements on an actual host.
    pub measured: Vec<Option<Measured>>,
}

/// A paper's statement about a point.
#[derive(Clone, Debug)]
pub struct Mark {
    /// Index of the series.
    pub series: usize,
    /// Index of the point of x.
    pub x: usize,
    /// The way to draw it.
    pub kind: MarkKind,
    /// The text, with the figure's name.
    pub says: String,
}

/// Ways to draw a paper's statement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MarkKind {
    /// The paper's number.
    Value(f64),
    /// A number derived from our result at another point by the paper's change or ratio.
    FromOurs(f64),
    /// A larger value than at another point, without a number.
    Up,
    /// A smaller value than at another point, without a number.
    Down,
    /// The rank in its series, from the least: 1, 2, and so on.
    Least(usize),
}

impl Chart {
    /// Returns the title with the values of the other sweeps.
    pub fn heading(&self) -> String {
        if self.at.is_empty() { self.title.clone() } else { format!("{}, {}", self.title, self.at) }
    }

    /// Describes a mark in words.
    pub fn says(&self, mark: &Mark) -> String {
        let what = match mark.kind {
            MarkKind::Value(value) => format!("{value:.1}"),
            MarkKind::FromOurs(value) => format!("{value:.1} from ours"),
            MarkKind::Up => "up".into(),
            MarkKind::Down => "down".into(),
            MarkKind::Least(1) => "least".into(),
            MarkKind::Least(rank) => format!("number {rank} from the least"),
        };
        let series = self.series.get(mark.series).map_or("", |series| &series.name);
        format!("{series}: {what} ({})", mark.says)
    }
}

/// Returns all plots of an experiment, by figure. The paper's figures come first.
pub fn all(experiment: &Experiment, outcome: &Outcome) -> Vec<Chart> {
    let file = &experiment.file;
    let mut figures = output::figures(file);
    figures.sort_by_key(|figure| {
        let shown = file.plot.y.iter().position(|it| it == figure);
        (file.claims.iter().all(|claim| claim.y != *figure), shown.unwrap_or(usize::MAX))
    });
    let mut charts = Vec::new();
    for figure in figures {
        let others = others(file);
        for (number, at) in others.iter().enumerate() {
            let suffix = if others.len() > 1 { format!("-{}", number + 1) } else { String::new() };
            let id = format!("{}-{}{suffix}", slug(&experiment.name), figure.as_str());
            charts.push(chart(file, outcome, figure, at, id));
        }
    }
    charts
}

/// Returns each point of the sweeps other than x and series.
fn others(file: &ExperimentFile) -> Vec<At> {
    let is_other = |name: &String| *name != file.plot.x && Some(name) != file.plot.series.as_ref();
    let mut all = vec![At::new()];
    for sweep in file.sweeps.iter().filter(|sweep| is_other(&sweep.name)) {
        let with = |at: &At, point: &String| {
            let mut at = at.clone();
            at.insert(sweep.name.clone(), point.clone());
            at
        };
        all = all.iter().flat_map(|at| sweep.points.iter().map(|point| with(at, point))).collect();
    }
    all
}

fn chart(file: &ExperimentFile, outcome: &Outcome, figure: Figure, at: &At, id: String) -> Chart {
    let plot = Plot { file, outcome, figure, at };
    let x = file.points_of(&file.plot.x);
    let names: Vec<Option<&String>> = match &file.plot.series {
        Some(sweep) => file.points_of(sweep).iter().map(Some).collect(),
        None => vec![None],
    };
    // A numeric name gets the sweep's name as a prefix ("guests 3"), others do not ("BVIC").
    let sweep = file.plot.series.as_deref().unwrap_or_default();
    let called = |point: &String| {
        if axis::number(point).is_some() { format!("{sweep} {point}") } else { point.clone() }
    };
    let series = names.into_iter().map(|name| Series {
        name: name.map_or(ONLY_SERIES.to_owned(), called),
        simulated: x.iter().map(|x| plot.simulated(&plot.at(x, name))).collect(),
        measured: x.iter().map(|x| plot.measured(&plot.at(x, name))).collect(),
    });
    Chart {
        id,
        title: title(figure.as_str()),
        at: if at.is_empty() { String::new() } else { name_of(at) },
        x_name: file.plot.x.clone(),
        x: x.to_vec(),
        series: series.collect(),
        marks: file.claims.iter().flat_map(|claim| plot.marks(claim)).collect(),
        seeds: outcome.starts_in_words(),
    }
}

/// A figure of an experiment, at a point of the other sweeps.
struct Plot<'e> {
    file: &'e ExperimentFile,
    outcome: &'e Outcome,
    figure: Figure,
    at: &'e At,
}

impl Plot<'_> {
    /// Returns the values of all sweeps at a point.
    fn at(&self, x: &str, series: Option<&String>) -> At {
        let mut at = self.at.clone();
        at.insert(self.file.plot.x.clone(), x.to_owned());
        if let (Some(sweep), Some(point)) = (&self.file.plot.series, series) {
            at.insert(sweep.clone(), point.clone());
        }
        at
    }

    fn simulated(&self, at: &At) -> Option<Measured> {
        let point = self.outcome.points.iter().find(|point| point.at == *at)?;
        let value = point.figures.get(self.figure.as_str()).copied();
        value.filter(|it| [it.mean, it.min, it.max].iter().all(|it| it.is_finite()))
    }

    fn measured(&self, at: &At) -> Option<Measured> {
        let found = self.file.measured.iter().find(|it| it.y == self.figure && it.at == *at);
        found.map(|MeasuredFile { mean, min, max, .. }| Measured {
            mean: *mean,
            min: min.unwrap_or(*mean),
            max: max.unwrap_or(*mean),
        })
    }

    /// Returns the series and the x of a point, if it is in this plot.
    fn place(&self, at: &At) -> Option<(usize, usize)> {
        let plot = &self.file.plot;
        if self.at.iter().any(|(sweep, point)| at.get(sweep) != Some(point)) {
            return None;
        }
        let number = |sweep: &String| {
            let point = at.get(sweep)?;
            self.file.points_of(sweep).iter().position(|it| it == point)
        };
        Some((plot.series.as_ref().map_or(Some(0), number)?, number(&plot.x)?))
    }

    /// Returns the marks of a claim in this plot.
    fn marks(&self, claim: &ClaimFile) -> Vec<Mark> {
        if claim.y != self.figure {
            return Vec::new();
        }
        let ours = |at: &At| self.simulated(at).map(|it| it.mean);
        let found: Vec<(At, MarkKind)> = match &claim.is {
            Statement::Value { at, value } => vec![(at.clone(), MarkKind::Value(*value))],
            Statement::Ratio { from, to, value } => ours(from)
                .map(|from| (to.clone(), MarkKind::FromOurs(from * value)))
                .into_iter()
                .collect(),
            Statement::Change { from, to, by, percent, sign, .. } => {
                let change = |from: f64| by.or(percent.map(|percent| from * percent / 100.0));
                let mark = match sign {
                    Some(Sign::Up) => Some(MarkKind::Up),
                    Some(Sign::Down) => Some(MarkKind::Down),
                    None => {
                        ours(from).and_then(|from| Some(MarkKind::FromOurs(from + change(from)?)))
                    }
                };
                mark.map(|mark| (to.clone(), mark)).into_iter().collect()
            }
            Statement::More { to, than, .. } => {
                let up = ours(&than.to).zip(ours(&than.from)).map(|(to, from)| to > from);
                let mark = up.map(|up| if up { MarkKind::Up } else { MarkKind::Down });
                mark.map(|mark| (to.clone(), mark)).into_iter().collect()
            }
            Statement::Least { at, points } => {
                let ranked = points.iter().zip(1..).map(|(point, rank)| {
                    let mut at = at.clone();
                    at.insert(self.file.plot.x.clone(), point.clone());
                    (at, MarkKind::Least(rank))
                });
                ranked.collect()
            }
            Statement::Within { at, point, percent } => {
                let x = &self.file.plot.x;
                let value = |figure: Figure, at: &At| {
                    let point = self.outcome.points.iter().find(|point| point.at == *at);
                    let found = point.and_then(|point| point.figures.get(figure.as_str()));
                    found.map_or(f64::NAN, |it| it.mean)
                };
                let all = settings(claim.y, at, (x, self.file.points_of(x)), value);
                let best = best_but(point, &all);
                let mut at = at.clone();
                at.insert(x.clone(), point.clone());
                let most = best.map(|best| best.y / share_within(*percent));
                most.map(|most| (at, MarkKind::FromOurs(most))).into_iter().collect()
            }
        };
        let drawn = |(at, kind): (At, MarkKind)| {
            let finite = match kind {
                MarkKind::Value(value) | MarkKind::FromOurs(value) => value.is_finite(),
                MarkKind::Up | MarkKind::Down | MarkKind::Least(_) => true,
            };
            let (series, x) = self.place(&at).filter(|_| finite)?;
            Some(Mark { series, x, kind, says: format!("{}: {}", claim.figure, claim.says) })
        };
        found.into_iter().filter_map(drawn).collect()
    }
}

/// Returns a figure's name in words with its unit: `latency_p99_us` becomes "Latency p99 (us)".
fn title(figure: &str) -> String {
    const UNITS: &[(&str, &str)] =
        &[("_percent", "%"), ("_us", "us"), ("_ns", "ns"), ("_ms", "ms")];
    let (name, unit) = UNITS
        .iter()
        .find_map(|(suffix, unit)| Some((figure.strip_suffix(suffix)?, format!(" ({unit})"))))
        .unwrap_or((figure, String::new()));
    let (name, per_s) = name.strip_suffix("_per_s").map_or((name, ""), |name| (name, "/s"));
    let words = name.replace('_', " ").replace("cpu", "CPU");
    let mut letters = words.chars();
    let first = letters.next().map(|first| first.to_ascii_uppercase());
    format!("{}{}{per_s}{unit}", first.map(String::from).unwrap_or_default(), letters.as_str())
}

/// Returns a name for links and file names. For a path, it is derived from the file's name.
pub fn slug(name: &str) -> String {
    let file = name.rsplit('/').next().unwrap_or(name);
    let stem = file.strip_suffix(".toml").unwrap_or(file);
    let plain = |letter: char| {
        if letter.is_ascii_alphanumeric() || "-_".contains(letter) { letter } else { '-' }
    };
    stem.chars().map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_titled_with_its_unit() {
        assert_eq!(title("worker_cpu_percent"), "Worker CPU (%)");
        assert_eq!(title("latency_p99_us"), "Latency p99 (us)");
        assert_eq!(title("mbit_per_s"), "Mbit/s");
        assert_eq!(title(""), "");
    }

    #[test]
    fn a_file_is_named_without_its_path() {
        assert_eq!(slug("dong-fig11"), "dong-fig11");
        assert_eq!(slug("../my host's.toml"), "my-host-s");
    }
}
