//! The results of a benchmark: tables for people, `target/bench/report.json` for programs.

pub mod chart;

use std::{
    borrow::Cow,
    collections::BTreeMap,
    fmt, fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    str::FromStr,
};

use crate::{
    error::{Error, Result},
    workspace::Workspace,
};

/// The values of one figure, one per round.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    values: Vec<f64>,
}

impl Samples {
    /// No rounds yet.
    pub const fn new() -> Self {
        Self { values: Vec::new() }
    }

    /// The value of a single measurement.
    pub fn one(value: f64) -> Self {
        Self { values: vec![value] }
    }

    /// Adds one round's value.
    pub fn push(&mut self, value: f64) {
        self.values.push(value);
    }

    /// Adds one round's value, if there is one.
    pub fn extend(&mut self, value: Option<f64>) {
        self.values.extend(value);
    }

    /// The values by round.
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// True if there are no values.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The ratio of these values to `others`, round by round. Effects on both, such as other load of the machine,
    /// cancel out.
    pub fn ratio_to(&self, others: &Self) -> Self {
        let values = self.values.iter().zip(&others.values).map(|(this, other)| this / other);
        Self { values: values.collect() }
    }

    /// The median: the mean of the two middle values if their number is even, 0 if there are none.
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
    fn spread(&self) -> (f64, f64) {
        let min = self.values.iter().copied().fold(f64::INFINITY, f64::min);
        let max = self.values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        (min, max)
    }

    /// Median, smallest and largest value.
    fn summary(&self) -> [f64; 3] {
        let (min, max) = self.spread();
        [self.median(), min, max]
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        Self { values: values.into_iter().collect() }
    }
}

/// A figure's text, mostly a constant.
type Text = Cow<'static, str>;

/// One figure of a report.
#[derive(Clone, Debug)]
pub struct Figure {
    name: Text,
    unit: Text,
    what: Text,
    samples: Samples,
    goal: Option<Goal>,
}

impl Figure {
    /// A figure in `unit`. `what` names the measured quantity.
    pub fn new(
        name: impl Into<Text>,
        unit: impl Into<Text>,
        what: impl Into<Text>,
        samples: Samples,
    ) -> Self {
        let (name, unit, what) = (name.into(), unit.into(), what.into());
        Self { name, unit, what, samples, goal: None }
    }

    /// The ratio of weir to a peer or to a limit.
    pub fn ratio(name: impl Into<Text>, what: impl Into<Text>, samples: Samples) -> Self {
        Self::new(name, RATIO, what, samples)
    }

    /// Sets the goal, if there is one.
    pub fn goal(self, goal: Option<Goal>) -> Self {
        Self { goal, ..self }
    }

    /// True if the median reaches the goal; `None` without a goal.
    fn reached(&self) -> Option<bool> {
        self.goal.map(|goal| goal.reached_by(self.samples.median()))
    }

    /// The goal and the result, as in `>= 2: missed`; empty without a goal.
    fn verdict(&self) -> String {
        let Some((goal, reached)) = self.goal.zip(self.reached()) else {
            return String::new();
        };
        let verdict = if reached { "reached" } else { "missed" };
        format!("{goal}: {verdict}")
    }
}

/// The prefixes of figures of other tasks: `make attack`, `make frontends`, `make survive`, `make soak`, `make test`.
pub const OTHERS: [&str; 13] = [
    "attack",
    "frontends",
    "killed",
    "reload",
    "upgrade",
    "group_lost",
    "dirty_log",
    "migration",
    "fabric_migration",
    "network",
    "soak",
    "loop",
    "bond",
];

const RATIO: &str = "x";

/// The goal of a figure.
#[derive(Clone, Copy, Debug)]
pub enum Goal {
    /// The median must be at least this.
    AtLeast(f64),
    /// The median may be at most this.
    AtMost(f64),
}

impl Goal {
    /// The least or the largest value that reaches the goal.
    pub fn bound(self) -> f64 {
        match self {
            Self::AtLeast(bound) | Self::AtMost(bound) => bound,
        }
    }

    /// True if `value` reaches the goal.
    pub fn reached_by(self, value: f64) -> bool {
        match self {
            Self::AtLeast(bound) => value >= bound,
            Self::AtMost(bound) => value <= bound,
        }
    }
}

/// Parses the displayed form: `>= 2`.
impl FromStr for Goal {
    type Err = ();

    fn from_str(text: &str) -> std::result::Result<Self, ()> {
        let (kind, bound) = text.split_once(' ').ok_or(())?;
        let bound = bound.parse().map_err(drop)?;
        match kind {
            ">=" => Ok(Self::AtLeast(bound)),
            "<=" => Ok(Self::AtMost(bound)),
            _ => Err(()),
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(bound) => write!(out, ">= {bound}"),
            Self::AtMost(bound) => write!(out, "<= {bound}"),
        }
    }
}

/// The results of a benchmark run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    figures: Vec<Figure>,
    /// Rows without figures, and the reason.
    missing: Vec<(&'static str, String)>,
    failures: u32,
}

impl Report {
    /// Adds a figure.
    pub fn add(&mut self, figure: Figure) {
        self.figures.push(figure);
    }

    /// Number of figures.
    pub fn len(&self) -> usize {
        self.figures.len()
    }

    /// True if there are no figures.
    pub fn is_empty(&self) -> bool {
        self.figures.is_empty()
    }

    /// Adds a figure `NAME_KIND` for each ratio `NAME` from figure number `first` on, and for each kind of round.
    /// `kinds` has the kind of each round.
    pub fn split_ratios(&mut self, first: usize, kinds: &[&'static str]) {
        let mut known: Vec<_> = kinds.to_vec();
        known.sort_unstable();
        known.dedup();
        let ratios: Vec<_> = self.figures.iter().skip(first).cloned().collect();
        let complete = |it: &&Figure| it.unit == RATIO && it.samples.values.len() == kinds.len();
        for figure in ratios.iter().filter(complete) {
            for kind in &known {
                let rounds = figure.samples.values.iter().zip(kinds);
                let samples = rounds.filter(|(_, of)| *of == kind).map(|(value, _)| *value);
                let Figure { name, unit, what, goal, .. } = figure.clone();
                let (name, what) = (format!("{name}_{kind}"), format!("{what}; CPUs {kind}"));
                self.add(Figure::new(name, unit, what, samples.collect()).goal(goal));
            }
        }
    }

    /// Records that the row `name` has no figures, for a reason that is no failure.
    pub fn leave_out(&mut self, name: &'static str, why: String) {
        self.missing.push((name, why));
    }

    /// Records that the row `name` has failed. It is no failure of weir if a peer does not run on this machine.
    pub fn fail(&mut self, name: &'static str, error: &Error) {
        let text = error.to_string();
        let first_line = text.lines().next().unwrap_or_default();
        if matches!(error, Error::Absent { .. }) {
            return self.leave_out(name, format!("left out: {first_line}"));
        }
        self.missing.push((name, format!("could not be measured: {first_line}")));
        self.failures += 1;
    }

    /// Rows that could not be measured.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// The table: median, spread over the rounds, and the goal if there is one.
    pub fn table(&self) -> String {
        let mut text =
            format!("{:<44}{:>14}{:>14}{:>14}  {}\n", "figure", "median", "min", "max", "unit");
        for figure in &self.figures {
            let Figure { name, unit, .. } = figure;
            let [median, min, max] = figure.samples.summary().map(significant);
            let goal = match figure.verdict() {
                verdict if verdict.is_empty() => verdict,
                verdict => format!("  (goal {verdict})"),
            };
            text += &format!("{name:<44}{median:>14}{min:>14}{max:>14}  {unit}{goal}\n");
        }
        for (name, why) in &self.missing {
            text += &format!("{name:<44}  {why}\n");
        }
        text
    }

    /// The table as Markdown, with the measured quantity of each row.
    fn to_markdown(&self) -> String {
        let mut text = String::from(
            "| figure | median | min to max | unit | goal | what was measured |\n\
             |---|--:|--:|---|---|---|\n",
        );
        for figure in &self.figures {
            let Figure { name, unit, what, .. } = figure;
            let [median, min, max] = figure.samples.summary().map(significant);
            let verdict = figure.verdict();
            text += &format!(
                "| `{name}` | {median} | {min} to {max} | {unit} | {verdict} | {what} |\n"
            );
        }
        for (name, why) in &self.missing {
            text += &format!("| `{name}` | | | | | {why} |\n");
        }
        text
    }

    /// `NAME` is the median; `NAME_min` and `NAME_max` the spread.
    fn numbers(&self) -> Numbers {
        let mut numbers = Numbers::new();
        for Figure { name, samples, .. } in &self.figures {
            let [median, min, max] = samples.summary();
            numbers.insert(name.clone().into_owned(), median.into());
            numbers.insert(format!("{name}_min"), min.into());
            numbers.insert(format!("{name}_max"), max.into());
        }
        numbers
    }

    /// The results merged with those of other tasks in the file at `path`.
    fn merged(&self, path: &Path) -> Result<String> {
        let mut all = read(path)?;
        all.retain(|name, _| OTHERS.iter().any(|other| name.starts_with(other)));
        all.extend(self.numbers());
        Ok(json(&all))
    }

    /// Writes `report.json` and `report.md` in `target/bench`. Returns their paths.
    pub fn write(&self, workspace: &Workspace) -> Result<[PathBuf; 2]> {
        let dir = workspace.target("bench")?;
        let paths = [dir.join("report.json"), dir.join("report.md")];
        let texts = [self.merged(&paths[0])?, self.to_markdown()];
        for (path, text) in paths.iter().zip(texts) {
            fs::write(path, text).map_err(Error::io("write", path))?;
        }
        Ok(paths)
    }
}

/// Sets `numbers` in `target/bench/report.json`, and keeps all others. Returns the path.
pub fn merge(workspace: &Workspace, numbers: &[(&str, f64)]) -> Result<PathBuf> {
    let path = workspace.target("bench")?.join("report.json");
    let mut all = read(&path)?;
    all.extend(numbers.iter().map(|(name, value)| (String::from(*name), (*value).into())));
    fs::write(&path, json(&all)).map_err(Error::io("write", &path))?;
    Ok(path)
}

/// The content of `report.json` by name.
type Numbers = BTreeMap<String, serde_json::Value>;

/// The content of the file at `path`; empty if there is no file.
fn read(path: &Path) -> Result<Numbers> {
    match fs::read_to_string(path) {
        Ok(text) => serde_json::from_str(&text).map_err(|_| Error::parse("a report", text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Numbers::new()),
        Err(error) => Err(Error::io("read", path)(error)),
    }
}

fn json(numbers: &Numbers) -> String {
    format!("{:#}\n", serde_json::json!(numbers))
}

/// Three or more significant digits, without a fraction from 1000 on.
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

    fn report() -> Report {
        let mut report = Report::default();
        let fast = Figure::ratio("fast", "speed", samples(&[2.0, 2.5, 1.5]));
        report.add(fast.goal(Some(Goal::AtLeast(1.0))));
        let idle = Figure::new("idle", "/s", "rest", samples(&[2.0]));
        report.add(idle.goal(Some(Goal::AtMost(1.0))));
        report.leave_out("packed", "not supported".into());
        report
    }

    #[test]
    fn json_is_flat_and_without_what_was_left_out() {
        let json: serde_json::Value = serde_json::from_str(&json(&report().numbers())).unwrap();
        assert_eq!(json["fast"], 2.0);
        assert_eq!(json["fast_min"], 1.5);
        assert_eq!(json["idle_max"], 2.0);
        assert_eq!(json.as_object().unwrap().len(), 6);
    }

    #[test]
    fn a_peer_that_does_not_run_is_left_out_and_no_failure() {
        let mut report = Report::default();
        let error = Error::absent("a peer")(Error::Check("no such program\nlog".into()));
        report.fail("row", &error);
        report.fail("other", &Error::Check("broken".into()));
        assert_eq!(report.failures(), 1);
        assert!(report.numbers().is_empty());
        let table = report.table();
        assert!(table.contains("left out: a peer does not run here: no such program\n"), "{table}");
    }

    #[test]
    fn ratios_are_split_by_the_kind_of_their_rounds() {
        let mut report = report();
        report.add(Figure::ratio("other", "one round", samples(&[1.0])));
        report.split_ratios(0, &["near", "far", "near"]);
        let numbers = report.numbers();
        assert_eq!((&numbers["fast_near"], &numbers["fast_far"]), (&1.75.into(), &2.5.into()));
        assert_eq!(report.len(), 5);
        report.split_ratios(3, &["near", "near", "near"]);
        assert_eq!(report.len(), 5);
    }

    #[test]
    fn what_other_tasks_wrote_stays() {
        let path = tempfile::NamedTempFile::new().unwrap();
        fs::write(&path, r#"{"attacks_total": 181, "gone": 1, "fast": 9}"#).unwrap();
        let json: serde_json::Value =
            serde_json::from_str(&report().merged(path.path()).unwrap()).unwrap();
        assert_eq!(
            (json["attacks_total"].as_f64(), json["fast"].as_f64()),
            (Some(181.0), Some(2.0))
        );
        assert!(json["gone"].is_null());
    }

    #[test]
    fn a_report_that_is_none_is_not_written_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.json");
        assert_eq!(report().merged(&path).unwrap(), json(&report().numbers()));
        fs::write(&path, r#"{"attacks_total": 181"#).unwrap();
        report().merged(&path).unwrap_err();
    }

    #[test]
    fn tables_say_whether_a_goal_is_reached_and_what_is_missing() {
        let table = report().table();
        assert!(table.contains("(goal >= 1: reached)"), "{table}");
        assert!(table.contains("(goal <= 1: missed)"), "{table}");
        assert!(table.contains("not supported"), "{table}");
        let markdown = report().to_markdown();
        let row = "| `fast` | 2.000 | 1.500 to 2.500 | x | >= 1: reached | speed |";
        assert!(markdown.contains(row), "{markdown}");
        assert!(markdown.contains("| `packed` | | | | | not supported |"), "{markdown}");
    }

    #[test]
    fn a_row_that_fails_is_counted_and_named() {
        let mut report = report();
        report.fail("slow", &Error::Check("no such luck\nand more".into()));
        assert_eq!(report.failures(), 1);
        assert!(report.table().contains("could not be measured: no such luck\n"));
    }
}
