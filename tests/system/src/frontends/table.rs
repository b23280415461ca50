//! The results of the cells: a table on the terminal, `target/frontends/report.md`, and the number of cells that work
//! in `target/bench/report.json`.

use std::{fmt, fs, path::PathBuf, time::Duration};

use comfy_table::{Table, TableStyle};
use weir_bed::{
    compatibility,
    error::{Error, Result},
    process::run,
    report,
    workspace::Workspace,
};

use super::{
    Cell,
    record::{Found, Record, Step, Verdict},
};

/// A cell that was tried.
#[derive(Debug)]
pub struct Row<'c> {
    /// The front end.
    pub cell: &'c Cell,
    /// The cell's steps.
    pub record: Record,
    /// The cell's result.
    pub verdict: Verdict,
    /// The cell's duration.
    pub took: Duration,
}

impl Row<'_> {
    /// A word for the table on a step. A longer text is a note below the table.
    fn short(&self, step: Step) -> &str {
        match self.record.of(step) {
            Some(Found::Held(word)) if step == Step::Drops && word != "0" => "explained",
            Some(Found::Held(word)) => word,
            Some(Found::LeftOut(_)) => "-",
            Some(Found::Failed) => "FAILED",
            None => "",
        }
    }

    /// The notes below the table.
    fn notes(&self) -> Vec<String> {
        let name = self.cell.name();
        let steps = Step::ALL.into_iter().filter_map(|step| match self.record.of(step)? {
            Found::LeftOut(why) => Some(format!("{name}: no {}: {why}", step.name())),
            Found::Held(word) if step == Step::Drops && word != "0" => {
                Some(format!("{name}: dropped {word}"))
            }
            Found::Held(_) | Found::Failed => None,
        });
        let why = self.verdict.why().map(|why| format!("{name}: {}: {why}", self.verdict.word()));
        steps.chain(why).collect()
    }
}

impl fmt::Display for Row<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, took) = (self.cell.name(), self.took.as_secs_f32());
        write!(out, "front end {name} ... {} ({took:.1} s)", self.verdict.word())
    }
}

fn working(rows: &[Row<'_>]) -> usize {
    rows.iter().filter(|row| row.verdict == Verdict::Works).count()
}

fn summary(rows: &[Row<'_>]) -> String {
    let count = |word| rows.iter().filter(|row| row.verdict.word() == word).count();
    let [refused, skipped, failed] = ["refused", "skipped", "FAILED"].map(count);
    format!(
        "{} of {} cells work, {refused} refused as they should be, {skipped} skipped, {failed} failed",
        working(rows),
        rows.len()
    )
}

/// The table in columns, with the notes below.
pub fn for_terminal(rows: &[Row<'_>]) -> String {
    let heads = ["FRONT END", "OPTIONS"].into_iter().map(str::to_owned);
    let steps = Step::ALL.map(|step| step.name().to_uppercase());
    let mut table = Table::new();
    table.load_style(TableStyle::new()).set_header(heads.chain(steps).chain(["RESULT".to_owned()]));
    for row in rows {
        let words = [row.cell.front_end, row.cell.options].into_iter();
        let steps = Step::ALL.into_iter().map(|step| row.short(step));
        table.add_row(words.chain(steps).chain([row.verdict.word()]));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let mut text = table.trim_fmt() + "\n";
    for note in rows.iter().flat_map(Row::notes) {
        text += &format!("{note}\n");
    }
    text + &summary(rows) + "\n"
}

fn to_markdown(rows: &[Row<'_>]) -> String {
    let mut text = String::from(
        "# Front ends\n\n`make frontends` writes this page.\n\n| front end | options |",
    );
    for step in Step::ALL {
        text += &format!(" {} |", step.name());
    }
    text += " result |\n|---|---|---|---|---|---|---|---|---|\n";
    for row in rows {
        text += &format!("| {} | {} |", row.cell.front_end, row.cell.options);
        for step in Step::ALL {
            text += &format!(" {} |", row.short(step));
        }
        text += &format!(" {} |\n", row.verdict.word());
    }
    text.push('\n');
    for note in rows.iter().flat_map(Row::notes) {
        text += &format!("- {note}\n");
    }
    text + "\n" + &summary(rows) + ".\n"
}

/// Leaves the rows for `docs/compatibility.md`.
pub fn leave(workspace: &Workspace, rows: &[Row<'_>]) -> Result<()> {
    let path = workspace.target("frontends")?.join("cells.tsv");
    let date = run(&["date", "+%F"])?.trim().to_owned();
    let of = |row: &Row<'_>| compatibility::Row {
        what: row.cell.front_end.into(),
        version: row.record.version.clone().unwrap_or_else(|| "-".into()),
        tried: row.cell.options.into(),
        verdict: row.verdict.word().into(),
        date: date.clone(),
        why: row.verdict.why().unwrap_or_default().into(),
    };
    compatibility::leave(&path, rows.iter().map(of).collect())
}

/// Writes `report.md`, and the counts into the benchmark's `report.json`. Returns both paths.
pub fn write(workspace: &Workspace, rows: &[Row<'_>]) -> Result<[PathBuf; 2]> {
    let path = workspace.target("frontends")?.join("report.md");
    fs::write(&path, to_markdown(rows)).map_err(Error::io("write", &path))?;
    let count = |count: usize| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
    let counts =
        [("frontends_working", count(working(rows))), ("frontends_cells", count(rows.len()))];
    Ok([path, report::merge(workspace, &counts)?])
}
