//! `docs/figures.md`, `docs/bench.svg` and the table of README.md: templates with prose and goals, filled in with
//! recorded figures.
//!
//! In a template, `{epyc}` is the first figure that the row names, with its spread, from the record
//! `docs/figures/epyc.json`; `{epyc NAME}` is the median of another figure. A cell `>= 2` or `<= 2` is the row's
//! goal. A line `{runs}` is replaced by the rows about machines and runs, a line `{front}` by the tables of requests at
//! many rates, which docs/front.svg draws.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
};

use serde::{Deserialize, Serialize};
use weir_bed::{
    error::{Error, Result},
    process::{run, run_in},
    report::{
        Goal, OTHERS,
        chart::{self, Bar, Panel},
    },
    workspace::Workspace,
};
use weir_testing::document::in_lines;

/// The record that the chart shows.
const CHARTED: &str = "epyc";

/// The markers around README.md's table.
const MARKERS: [&str; 2] =
    ["<!-- figures: written by `cargo run -p xtask -- figures` -->\n", "<!-- end of figures -->"];

/// The runs of a machine. If several runs have a figure, the first one's value is shown.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    machine: String,
    runs: Vec<Run>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Run {
    commit: String,
    date: String,
    /// The command, or the source of transcribed figures.
    by: String,
    figures: BTreeMap<String, Figure>,
}

/// Median, smallest and largest; or the one value that there is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Figure {
    Spread([f64; 3]),
    One(f64),
}

/// Endings of a figure's smallest and largest value in a report, where each is a figure of its own.
const ENDS: [&str; 2] = ["_min", "_max"];

type Records = BTreeMap<String, Record>;

/// The goal in a row, if a cell has one.
fn goal(line: &str) -> Option<Goal> {
    line.split('|').find_map(|cell| cell.trim().parse().ok())
}

impl Record {
    fn run(&self, name: &str) -> Option<&Run> {
        self.runs.iter().find(|run| run.figures.contains_key(name))
    }

    /// The median, the smallest and the largest value.
    fn values(&self, name: &str) -> Option<[f64; 3]> {
        Some(match *self.run(name)?.figures.get(name)? {
            Figure::Spread(values) => values,
            Figure::One(value) => [value; 3],
        })
    }

    /// The text of a cell. `*` marks a run other than the largest, and ✗ a missed goal.
    fn cell(&self, name: &str, spread: bool, goal: Option<Goal>) -> Option<String> {
        let [median, min, max] = self.values(name)?;
        let mut text = number(median);
        if spread && number(min) != number(max) {
            text += &format!(" ({} to {})", number(min), number(max));
        }
        let largest = self.runs.iter().map(|run| run.figures.len()).max();
        if self.run(name).map(|run| run.figures.len()) != largest {
            text += "\\*";
        }
        if goal.is_some_and(|goal| !goal.reached_by(median)) {
            text += " ✗";
        }
        Some(text)
    }
}

/// Three significant digits, without trailing zeros of a fraction.
fn number(value: f64) -> String {
    let magnitude = value.abs().max(1e-9).log10().floor();
    if magnitude < 3.0 {
        let text = format!("{value:.*}", (2.0 - magnitude).clamp(0.0, 3.0) as usize);
        let is_fraction = text.contains('.');
        return if is_fraction {
            text.trim_end_matches('0').trim_end_matches('.').into()
        } else {
            text
        };
    }
    let unit = 10_f64.powf(magnitude - 2.0);
    let digits = format!("{:.0}", (value / unit).round() * unit);
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

fn fill(template: &str, records: &Records) -> Result<String> {
    let mut text = String::new();
    for line in template.lines() {
        let filled = match line {
            "{runs}" => runs(records),
            "{front}" => front_tables(records),
            _ => fill_line(line, records)?,
        };
        text += filled.trim_end();
        text.push('\n');
    }
    Ok(text)
}

fn fill_line(line: &str, records: &Records) -> Result<String> {
    let wrong = |what| Error::parse(what, line.to_owned());
    let mut parts = line.split('{');
    let mut text = parts.next().unwrap_or_default().to_owned();
    let mut found = !line.contains('{');
    for part in parts {
        let (token, rest) = part.split_once('}').ok_or_else(|| wrong("a closing brace"))?;
        let of_row = line.split('`').nth(1).unwrap_or_default();
        let (name, spread) =
            token.split_once(' ').map_or((of_row, true), |(_, name)| (name, false));
        let record = token.split(' ').next().and_then(|record| records.get(record));
        let record = record.ok_or_else(|| wrong("a record of docs/figures"))?;
        let cell = record.cell(name, spread, goal(line));
        found |= cell.is_some();
        text += &cell.unwrap_or_default();
        text += rest;
    }
    if found { Ok(text) } else { Err(wrong("a figure that a record has")) }
}

fn runs(records: &Records) -> String {
    let all = records
        .iter()
        .flat_map(|(name, record)| record.runs.iter().map(move |run| (name, record, run)));
    let row = |(name, Record { machine, .. }, Run { commit, date, by, figures }): (
        &String,
        &Record,
        &Run,
    )| {
        let count = figures.len();
        format!("| {name} | {machine} | {commit} | {date} | {count} | {by} |\n")
    };
    all.map(row).collect()
}

/// The ratios of `template` with a goal, as bars.
fn chart(template: &str, record: &Record) -> String {
    let bars = template.lines().filter_map(|line| {
        let name = line.split('`').nth(1).filter(|name| name.contains("_vs_"))?;
        let (goal, [median, min, max]) = (goal(line)?, record.values(name)?);
        Some(Bar { name, median, min, max, goal })
    });
    chart::draw(&bars.collect::<Vec<_>>())
}

/// Values of requests at many rates, by the words in the names of their figures, with their units.
const FRONT: [(&str, &str); 3] =
    [("p50", "median, us"), ("p99", "99th percentile, us"), ("cpu", "CPUs")];

/// The values of requests by their rate, for each way that has them: figures
/// `rr_front_VALUE_WAY_RATE`.
fn front<'r>(record: &'r Record, value: &str) -> BTreeMap<&'r str, BTreeMap<u32, f64>> {
    let mut ways = BTreeMap::<_, BTreeMap<_, _>>::new();
    for name in record.runs.iter().flat_map(|run| run.figures.keys()) {
        let of_value = name.strip_prefix("rr_front_").and_then(|rest| rest.strip_prefix(value));
        let way_and_rate = of_value.and_then(|rest| rest.strip_prefix('_')?.rsplit_once('_'));
        if let Some((way, rate)) = way_and_rate
            && let (Ok(rate), Some([median, ..])) = (rate.parse(), record.values(name))
        {
            ways.entry(way).or_default().insert(rate, median);
        }
    }
    ways
}

/// The tables of all records, and their picture; a note if no record has any.
fn front_tables(records: &Records) -> String {
    let tables: String = records.values().map(front_table).collect();
    match tables.is_empty() {
        true => "No machine has been measured yet.".into(),
        false => tables + "![Round trips and CPU time over the load](front.svg)",
    }
}

/// The table of requests at many rates; empty if the record has none.
fn front_table(record: &Record) -> String {
    let mut text = String::new();
    for (value, unit) in FRONT {
        let ways = front(record, value);
        let rates: BTreeSet<_> = ways.values().flat_map(BTreeMap::keys).copied().collect();
        if rates.is_empty() {
            continue;
        }
        let row = |first: &str, cells: &mut dyn Iterator<Item = String>| {
            format!("| {first} | {} |\n", cells.collect::<Vec<_>>().join(" | "))
        };
        let head = format!("{}: {unit}", record.machine);
        text += &row(&head, &mut rates.iter().map(|rate| format!("{}/s", number((*rate).into()))));
        text += &row("---", &mut rates.iter().map(|_| String::from("---")));
        for (way, found) in &ways {
            let cell = |rate: &u32| found.get(rate).map(|value| number(*value)).unwrap_or_default();
            text += &row(&format!("`{way}`"), &mut rates.iter().map(cell));
        }
        text.push('\n');
    }
    text
}

/// The same requests as a chart of lines, if the record has them.
fn front_chart(record: &Record) -> Option<String> {
    let panels = FRONT.map(|(value, name)| {
        let points = |found: BTreeMap<u32, f64>| {
            found.into_iter().map(|(rate, value)| (f64::from(rate), value)).collect()
        };
        let ways = front(record, value);
        Panel { name, series: ways.into_iter().map(|(way, found)| (way, points(found))).collect() }
    });
    let texts = [
        "requests at many rates",
        "Requests of 64 bytes at many rates, between two guests that sleep",
        "round trips; CPU time of switch and guests together",
    ];
    let is_there = panels.iter().all(|panel| !panel.series.is_empty());
    is_there.then(|| chart::draw_lines(texts, &panels))
}

/// Every record by its name.
fn records(workspace: &Workspace) -> Result<Records> {
    let dir = workspace.root.join("docs/figures");
    let paths =
        fs::read_dir(&dir).map_err(Error::io("list", &dir))?.flatten().map(|entry| entry.path());
    let of = |path: PathBuf| -> Result<(String, Record)> {
        let text = read(&path)?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok((
            name,
            serde_json::from_str(&text)
                .map_err(|error| Error::parse("a record", error.to_string()))?,
        ))
    };
    paths
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .map(of)
        .collect()
}

fn read(path: &PathBuf) -> Result<String> {
    fs::read_to_string(path).map_err(Error::io("read", path))
}

/// The generated files, each with its text.
fn generated(workspace: &Workspace) -> Result<Vec<(PathBuf, String)>> {
    let (root, records) = (&workspace.root, records(workspace)?);
    let page = read(&root.join("docs/figures/page.md.in"))?;
    let table = fill(&read(&root.join("docs/figures/readme.md.in"))?, &records)?;
    let (readme, [begin, end]) = (root.join("README.md"), MARKERS);
    let text = read(&readme)?;
    let parts =
        text.split_once(begin).and_then(|(front, rest)| Some((front, rest.split_once(end)?.1)));
    let (front, back) = parts.ok_or_else(|| Error::parse("markers of figures", text.clone()))?;
    let charted = records.get(CHARTED).ok_or_else(|| Error::parse("records", CHARTED))?;
    let drawn =
        records.values().find_map(front_chart).map(|svg| (root.join("docs/front.svg"), svg));
    let files = [
        (root.join("docs/figures.md"), fill(&page, &records)?),
        (readme, format!("{front}{begin}\n{table}\n{end}{back}")),
        (root.join("docs/bench.svg"), chart(&page, charted)),
    ];
    Ok(files.into_iter().chain(drawn).collect())
}

/// Writes the generated files.
pub fn write(workspace: &Workspace) -> Result<()> {
    for (path, text) in generated(workspace)? {
        fs::write(&path, text).map_err(Error::io("write", &path))?;
        println!("written: {}", path.display());
    }
    Ok(())
}

/// The command of a run with all figures of the report.
const WHOLE: &str = "make bench";

/// Adds `target/bench/report.json` to the record `name` as its newest run, by the command `by` or [`WHOLE`]. Older
/// runs keep figures that it lacks. If `only` is not empty, only figures whose names begin with one of its texts are
/// added.
pub fn record(workspace: &Workspace, name: &str, by: Option<&str>, only: &[String]) -> Result<()> {
    let report = workspace.target("bench")?.join("report.json");
    let path = workspace.root.join("docs/figures").join(name).with_extension("json");
    // A figure without measurements has no value.
    let found: BTreeMap<String, Option<f64>> = serde_json::from_str(&read(&report)?)
        .map_err(|error| Error::parse("a report", error.to_string()))?;
    let begins = |name: &str, with: &[&str]| with.iter().any(|it| name.starts_with(it));
    let only: Vec<_> = only.iter().map(String::as_str).collect();
    let is_taken =
        |name: &str| if only.is_empty() { !begins(name, &OTHERS) } else { begins(name, &only) };
    let taken = found.into_iter().filter(|(name, _)| is_taken(name));
    let figures = taken.filter_map(|(name, value)| Some((name, recorded(value?)))).collect();
    let figures = with_spread(figures);
    let mut record = match records(workspace)?.remove(name) {
        Some(record) => record,
        None => Record { machine: processor(), runs: Vec::new() },
    };
    let commit =
        run_in(&["git", "rev-parse", "--short=7", "HEAD"], &workspace.root, &[])?.trim().into();
    let date = run(&["date", "-r", &report.to_string_lossy(), "+%F"])?.trim().into();
    let by = format!("`{}`", by.unwrap_or(WHOLE));
    add(&mut record, Run { commit, date, by, figures });
    fs::write(&path, written(&record)).map_err(Error::io("write", &path))
}

/// Rounds to six digits. No two runs agree in more digits.
fn recorded(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

/// A record. Figures share lines of up to 118 columns.
fn written(record: &Record) -> String {
    const FIGURE: &str = "        \"";
    let mut lines = Vec::<String>::new();
    for line in in_lines(&serde_json::json!(record), 4).lines() {
        let figure = line.starts_with(FIGURE).then(|| &line[FIGURE.len() - 2..]);
        match (figure, lines.last_mut()) {
            (Some(figure), Some(last))
                if last.starts_with(FIGURE) && last.len() + figure.len() <= 118 =>
            {
                last.push_str(figure);
            }
            _ => lines.push(line.into()),
        }
    }
    lines.join("\n") + "\n"
}

/// A report's figures, each with its smallest and largest value.
fn with_spread(mut found: BTreeMap<String, f64>) -> BTreeMap<String, Figure> {
    let mut figures = BTreeMap::new();
    while let Some((name, median)) = found.pop_first() {
        let ends = ENDS.map(|end| format!("{name}{end}"));
        let figure = match ends.each_ref().map(|end| found.remove(end)) {
            [None, None] => Figure::One(median),
            [min, max] => Figure::Spread([median, min.unwrap_or(median), max.unwrap_or(median)]),
        };
        figures.insert(name, figure);
    }
    figures
}

/// The kernel's name for the machine's first CPU.
fn processor() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    model.map_or("unknown", |(_, model)| model).into()
}

fn add(record: &mut Record, run: Run) {
    for old in &mut record.runs {
        old.figures.retain(|name, _| !run.figures.contains_key(name));
    }
    record.runs.retain(|run| !run.figures.is_empty());
    record.runs.insert(0, run);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(figures: &[(&str, f64)]) -> Run {
        let found = figures.iter().map(|(name, value)| (String::from(*name), *value)).collect();
        let figures = with_spread(found);
        Run { commit: "c".into(), date: "d".into(), by: "b".into(), figures }
    }

    fn records() -> Records {
        let whole =
            run(&[("a_vs_b", 1.5), ("a_vs_b_min", 1.0), ("a_vs_b_max", 24_561.0), ("n", 0.0)]);
        let runs = vec![run(&[("late", 2.0)]), whole];
        BTreeMap::from([("m".into(), Record { machine: "M".into(), runs })])
    }

    #[test]
    fn requests_at_many_rates_have_a_table_and_a_chart() {
        let names = ["rr_front_p50_a_b_100", "rr_front_p99_a_b_100", "rr_front_cpu_a_b_100"];
        let figures = names.map(|name| (name, 12.5));
        let record = Record { machine: "M".into(), runs: vec![run(&figures)] };
        assert!(
            front_table(&record)
                .contains("| M: median, us | 100/s |\n| --- | --- |\n| `a_b` | 12.5 |\n")
        );
        assert!(front_chart(&record).is_some_and(|svg| svg.contains(">a_b<")));
        assert!(front_table(&records()["m"]).is_empty() && front_chart(&records()["m"]).is_none());
    }

    #[test]
    fn generated_documents_are_what_the_command_writes() {
        for (path, text) in generated(&Workspace::find().unwrap()).unwrap() {
            let same = read(&path).unwrap() == text;
            assert!(same, "{} is stale: cargo run -p xtask -- figures", path.display());
        }
    }

    #[test]
    fn records_stand_as_the_command_writes_them() {
        let workspace = Workspace::find().unwrap();
        for (name, mut record) in super::records(&workspace).unwrap() {
            for figure in record.runs.iter_mut().flat_map(|run| run.figures.values_mut()) {
                match figure {
                    Figure::One(value) => *value = recorded(*value),
                    Figure::Spread(values) => *values = values.map(recorded),
                }
            }
            let path = workspace.root.join("docs/figures").join(&name).with_extension("json");
            let text = read(&path).unwrap();
            for (line, again) in text.lines().zip(written(&record).lines()) {
                assert_eq!(line, again, "{name}");
            }
            assert_eq!(text.lines().count(), written(&record).lines().count(), "{name}");
        }
    }

    #[test]
    fn a_row_has_its_figure_with_spread_mark_and_run() {
        let filled = |line| fill_line(line, &records()).unwrap();
        assert_eq!(
            filled("| `a_vs_b` | {m} | >= 2.0 |"),
            "| `a_vs_b` | 1.5 (1 to 24,600) ✗ | >= 2.0 |"
        );
        assert_eq!(filled("| `late` | {m} | {m none} | <= 2 |"), "| `late` | 2\\* |  | <= 2 |");
        assert_eq!(filled("it is {m n}."), "it is 0.");
        fill_line("| `none` | {m} |", &records()).unwrap_err();
        fill_line("| `n` | {other} |", &records()).unwrap_err();
        assert!(fill("{runs}", &records()).unwrap().contains("| m | M | c | d | 2 | b |"));
    }

    #[test]
    fn the_chart_has_ratios_with_a_goal() {
        let svg = chart("| `a_vs_b` | <= 2 |\n| `n` | <= 2 |\n| `a_vs_c` | |", &records()["m"]);
        assert!(
            svg.contains(">a_vs_b<") && svg.contains("\"reached\" x") && !svg.contains(">n<"),
            "{svg}"
        );
    }

    #[test]
    fn a_new_run_replaces_what_it_has_of_older_ones() {
        let mut record = records().remove("m").unwrap();
        add(&mut record, run(&[("a_vs_b", 3.0), ("late", 1.0)]));
        assert_eq!((record.runs.len(), record.runs[1].figures.len()), (2, 1));
        assert_eq!(record.runs[0].figures["late"], Figure::One(1.0));
        assert_eq!((record.values("a_vs_b"), record.values("n")), (Some([3.0; 3]), Some([0.0; 3])));
    }
}
