//! The report as Markdown: a page for each experiment, its plots as SVG files, and an index; or the
//! verdicts alone.

use std::fmt::{self, Write as _};

use super::content::{Entry, Report, Tally, moves, numbers};
use super::moves as drawn;
use super::{content, svg};
use crate::papers::Standings;
use crate::profile::Machine;
use crate::sensitivity::Sensitivity;
use crate::verdict::Judged;

/// File name of the index.
pub const INDEX: &str = "README.md";
/// File name of the page on fitted costs, without its extension.
const SENSITIVITY: &str = "sensitivity";

/// Returns the names and texts of the files.
pub fn files(report: &Report<'_>) -> Vec<(String, String)> {
    let mut files = vec![(INDEX.to_owned(), index(report))];
    files.extend(report.entries.iter().flat_map(pages));
    if !report.varied.is_empty() {
        let ids = report.varied.iter().enumerate().map(|(number, it)| (drawn::id(number, it), it));
        files.push((format!("{SENSITIVITY}.md"), sensitivity(ids.clone())));
        files.extend(ids.map(|(id, it)| (format!("{id}.svg"), drawn::file(&id, it))));
    }
    files
}

/// Returns an experiment's plots and its page.
fn pages(entry: &Entry<'_>) -> Vec<(String, String)> {
    let plots = entry.charts.iter();
    let plots = plots.map(|chart| (format!("{}.svg", chart.id), svg::file(chart)));
    plots.chain([(format!("{}.md", entry.id), experiment(entry))]).collect()
}

/// Returns one page with all verdicts. For each experiment, the page has a digest of the beginnings of its
/// points, and one of its plots and page.
pub fn verdicts(report: &Report<'_>, beginnings: &[u64]) -> String {
    let mut text = judged(report, |entry| Cell(&entry.id).to_string());
    text += "What the verdicts mean, and how each experiment's page and plots are written, is in the \
             [guide](guide/lab.md).\n\n## Digests\n\n\
             Hashes over the beginning of each experiment's points, and over its page and plots.\n\n";
    let rows = report.entries.iter().zip(beginnings).map(|(entry, beginnings)| {
        let pages = content::pages(&pages(entry));
        let title = Cell(&entry.outcome.title).to_string();
        vec![entry.id.clone(), title, format!("{beginnings:016x}"), format!("{pages:016x}")]
    });
    text + &table(&["experiment", "title", "beginnings", "page"].map(str::to_owned), rows)
}

fn sensitivity<'s>(all: impl Iterator<Item = (String, &'s Sensitivity)>) -> String {
    let mut text = "# What hangs on the fitted numbers\n\nEach fitted cost is varied alone, and the claims of all \
                    experiments on that machine are judged again, by their first seed.\n\n"
        .to_owned();
    for (id, it) in all {
        text += &figure(&drawn::heading(it), &id, moves(it));
    }
    text
}

/// Returns a plot, and a table with the same numbers below it.
fn figure(heading: &str, id: &str, (head, rows): (Vec<String>, Vec<Vec<String>>)) -> String {
    let heading = Cell(heading);
    let cells =
        |row: &[String]| -> Vec<String> { row.iter().map(|cell| Cell(cell).to_string()).collect() };
    let table = table(&cells(&head), rows.iter().map(|row| cells(row)));
    format!(
        "## {heading}\n\n![{heading}]({id}.svg)\n\n<details><summary>Numbers</summary>\n\n{table}\n\
         </details>\n\n"
    )
}

/// Text of a cell, with all markup escaped.
struct Cell<'t>(&'t str);

impl fmt::Display for Cell<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for letter in self.0.chars() {
            match letter {
                '|' | '*' | '_' | '`' | '[' | ']' | '\\' | '<' | '>' | '#' | '&' => {
                    write!(f, "\\{letter}")?
                }
                _ if letter.is_control() => f.write_str(" ")?,
                _ => write!(f, "{letter}")?,
            }
        }
        Ok(())
    }
}

fn row(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

fn table(head: &[String], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = row(head) + &format!("|{}\n", "---|".repeat(head.len()));
    table.extend(rows.into_iter().map(|cells| row(&cells)));
    table
}

/// Returns the verdicts with a link to each experiment's page.
fn index(report: &Report<'_>) -> String {
    let mut text = judged(report, |entry| format!("[{}]({}.md)", Cell(&entry.id), entry.id));
    for entry in &report.entries {
        let _ = writeln!(text, "- [{}]({}.md)", Cell(&entry.outcome.title), entry.id);
    }
    if !report.varied.is_empty() {
        let _ = writeln!(text, "- [What hangs on the fitted numbers]({SENSITIVITY}.md)");
    }
    text
}

/// Returns the verdicts of figures and of claims; `named` names an experiment.
fn judged(report: &Report<'_>, named: impl Fn(&Entry<'_>) -> String) -> String {
    let tally = Tally::of(report.claims());
    let mut text = "# What the papers say, and what comes out here\n\n\
                    Written by `weir lab report`, in virtual time.\n\n"
        .to_owned();
    text += &figures(&report.figures);
    let claims = weir_text::count(tally.all(), "claim");
    let _ = writeln!(text, "## Claims\n\nOf {claims}: **{}**.\n", tally.words());
    let head = ["experiment", "figure", "says", "used to", "paper", "here", "verdict", "why not"];
    let rows = report.entries.iter().flat_map(|entry| {
        let name = named(entry);
        entry.outcome.claims.iter().map(move |claim| {
            let [figure, says, rest @ ..] = cells(claim);
            [name.clone(), figure, says].into_iter().chain(rest).collect()
        })
    });
    text + &table(&head.map(str::to_owned), rows) + "\n"
}

/// The cells of a claim in both tables: its figure, what the paper says, and then use, values, verdict and reason.
fn cells(claim: &Judged) -> [String; 7] {
    [
        Cell(&claim.figure).to_string(),
        Cell(&claim.says).to_string(),
        claim.used.as_str().to_owned(),
        Cell(&claim.paper).to_string(),
        Cell(&claim.ours).to_string(),
        format!("{} {}", claim.verdict.sign(), claim.words()),
        reason(claim.reason.as_deref()),
    ]
}

fn reason(of: Option<&str>) -> String {
    of.map(|it| Cell(it).to_string()).unwrap_or_default()
}

fn figures(all: &Standings) -> String {
    if all.0.is_empty() {
        return String::new();
    }
    let mut text = "## Figures\n\n".to_owned();
    for (paper, figures) in all.by_paper() {
        let _ = writeln!(text, "- {}: {}", Cell(paper), Standings::tally(figures));
    }
    let _ = writeln!(text, "- **All: {}**\n", Standings::tally(&all.0));
    let head = ["paper", "figure", "verdict", "claims reproduced", "why not"];
    let rows = all.0.iter().map(|it| {
        vec![
            Cell(&it.paper).to_string(),
            Cell(&it.figure).to_string(),
            format!("{} {}", it.verdict.sign(), it.words()),
            it.share(),
            reason(it.reason.as_deref()),
        ]
    });
    text += &table(&head.map(str::to_owned), rows);
    text + "\n"
}

fn experiment(entry: &Entry<'_>) -> String {
    let Entry { experiment, outcome, charts, .. } = entry;
    let mut text = format!(
        "# {}\n\n{}`{}`, on {}; seeds {}; {} events. Written by `weir lab report`.\n\n",
        Cell(&outcome.title),
        outcome.paper.as_ref().map(|paper| format!("{}. ", Cell(paper))).unwrap_or_default(),
        outcome.name.replace('`', ""),
        Cell(&experiment.machine()),
        outcome.seeds_in_words(),
        outcome.events,
    );
    if !outcome.claims.is_empty() {
        let head = ["figure", "says", "where", "used to", "paper", "here", "verdict", "why not"];
        let rows = outcome.claims.iter().map(|claim| {
            let [figure, says, rest @ ..] = cells(claim);
            [figure, says, Cell(&claim.source).to_string()].into_iter().chain(rest).collect()
        });
        text += &table(&head.map(str::to_owned), rows);
        text += "\n";
    }
    for chart in charts {
        text += &figure(&chart.heading(), &chart.id, numbers(chart));
    }
    for source in entry.measured() {
        let _ = writeln!(text, "Measured: {}\n", Cell(source));
    }
    text += "## What things cost on the machine\n\n";
    for machine in &experiment.machines {
        if experiment.machines.len() > 1 {
            let _ = writeln!(text, "### {}\n", Cell(&machine.title));
        }
        text += &costs(machine);
    }
    text
}

fn costs(machine: &Machine) -> String {
    let head = ["cost", "value", "is", "from"].map(str::to_owned);
    let rows = machine.costs.iter().map(|cost| {
        vec![
            format!("`{}`", cost.name),
            Cell(&cost.value).to_string(),
            cost.origin.as_str().to_owned(),
            Cell(&cost.text).to_string(),
        ]
    });
    table(&head, rows)
}
