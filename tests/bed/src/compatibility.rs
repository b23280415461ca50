//! `docs/compatibility.md`: the software of others that was tried with weir, with version, verdict and date.
//!
//! `docs/compatibility.tsv` has its rows. Each run writes its trials to files of the same form
//! below `target`. [`take`] replaces older rows about the same trials with them.

use std::{
    collections::BTreeMap,
    fmt, fs,
    path::{Path, PathBuf},
};

use crate::{
    error::{Error, Result, check},
    workspace::Workspace,
};

/// Folders below `target` with files of rows.
const FOLDERS: [&str; 3] = ["frontends", "distros", "fabric"];

/// Width of the documents.
const COLUMNS: usize = 120;

/// The head of the page, above the table.
const HEAD: &str = "\
# Compatibility

What was tried with weir, as `docs/compatibility.tsv` records it. `make frontends`, `make fabric` and `make distros`
leave their results below `target`; `cargo run -p xtask -- compatibility` takes them into the record and writes this
page. The [front ends](guide/frontends.md) have needs of their own. WORKS

| front end or system | version | tried | verdict | date |
|---|---|---|---|---|
";

/// A trial and its latest result. No field contains a tab or a newline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The front end or the distribution.
    pub what: String,
    /// The software's version; `-` if unknown.
    pub version: String,
    /// The options, or the steps.
    pub tried: String,
    /// The verdict in one word, such as `works`.
    pub verdict: String,
    /// Year, month and day.
    pub date: String,
    /// The reason, for any verdict but `works`.
    pub why: String,
}

impl Row {
    fn parse(line: &str) -> Result<Self> {
        let fields: Vec<_> = line.split('\t').map(str::to_owned).collect();
        let [what, version, tried, verdict, date, why] =
            fields.try_into().map_err(|_| Error::parse("six columns of a trial", line))?;
        Ok(Self { what, version, tried, verdict, date, why })
    }

    /// The program and the trial. A newer result for both replaces an older one.
    fn trial(&self) -> (&str, &str) {
        (&self.what, &self.tried)
    }
}

/// A line of the record.
impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields = [&self.what, &self.version, &self.tried, &self.verdict, &self.date, &self.why];
        let fields = fields.map(|field| field.replace(['\t', '\n'], " "));
        write!(f, "{}", fields.join("\t"))
    }
}

fn parse(text: &str) -> Result<Vec<Row>> {
    text.lines().map(Row::parse).collect()
}

fn lines(rows: &[Row]) -> String {
    rows.iter().map(|row| format!("{row}\n")).collect()
}

/// Writes `rows` for [`take`]. Rows of that file about other trials stay.
pub fn leave(path: &Path, rows: Vec<Row>) -> Result<()> {
    let mut all = if path.exists() { read(path)? } else { Vec::new() };
    merge(&mut all, rows);
    fs::write(path, lines(&all)).map_err(Error::io("write", path))
}

fn read(path: &Path) -> Result<Vec<Row>> {
    parse(&fs::read_to_string(path).map_err(Error::io("read", path))?)
}

/// A known trial keeps its place in the list. A trial that could not be made keeps its earlier
/// result.
fn merge(rows: &mut Vec<Row>, new: Vec<Row>) {
    for row in new {
        match rows.iter_mut().find(|old| old.trial() == row.trial()) {
            Some(old) if row.verdict != "skipped" || old.verdict == "skipped" => *old = row,
            Some(_) => {}
            None => rows.push(row),
        }
    }
}

/// The page; notes below the table give the reason of each verdict but `works`. Trials of one program, version, verdict
/// and day share a line, as far as they fit.
fn page(rows: &[Row]) -> Result<String> {
    let works = rows.iter().filter(|row| row.verdict == "works").count();
    let mut text = HEAD.replace("WORKS", &format!("{works} of {} trials work.", rows.len()));
    let mut notes = String::new();
    let mut shared: BTreeMap<_, Vec<String>> = BTreeMap::new();
    for Row { what, version, tried, verdict, date, why } in rows {
        let explained = (verdict == "works") == why.is_empty();
        check(explained, || format!("{what}: {tried}: {verdict} and the reason `{why}`"))?;
        let around = [what, version, verdict, date].map(|cell| cell.chars().count() + 3);
        let room = COLUMNS.saturating_sub(around.iter().sum::<usize>() + 4);
        let lines = shared.entry((what, version, verdict, date)).or_default();
        match lines
            .last_mut()
            .filter(|line| line.chars().count() + 2 + tried.chars().count() <= room)
        {
            Some(line) => *line += &format!("; {tried}"),
            None => lines.push(tried.clone()),
        }
        if !why.is_empty() {
            notes += &wrapped(&format!("- {what}, {tried}: {verdict}: {why}"));
        }
    }
    for ((what, version, verdict, date), lines) in shared {
        for tried in lines {
            text += &format!("| {what} | {version} | {tried} | {verdict} | {date} |\n");
        }
    }
    Ok(if notes.is_empty() { text } else { text + "\n" + &notes })
}

/// A list item, wrapped to the width of the documents.
fn wrapped(point: &str) -> String {
    let (mut text, mut column) = (String::new(), 0);
    for word in point.split_whitespace() {
        let width = word.chars().count();
        if column > 0 && column + 1 + width > COLUMNS {
            text += "\n ";
            column = 1;
        }
        if column > 0 {
            text.push(' ');
            column += 1;
        }
        text += word;
        column += width;
    }
    text + "\n"
}

fn paths(workspace: &Workspace) -> (PathBuf, PathBuf) {
    let docs = workspace.root.join("docs");
    (docs.join("compatibility.tsv"), docs.join("compatibility.md"))
}

/// Takes the rows that runs have left below `target` into the record, and writes the page.
pub fn take(workspace: &Workspace) -> Result<[PathBuf; 2]> {
    let (record, document) = paths(workspace);
    let mut rows = read(&record)?;
    for folder in FOLDERS {
        let folder = workspace.target(folder)?;
        let entries = fs::read_dir(&folder).map_err(Error::io("read", &folder))?;
        let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        files.retain(|path| path.extension().is_some_and(|extension| extension == "tsv"));
        files.sort();
        for file in files {
            merge(&mut rows, read(&file)?);
        }
    }
    fs::write(&record, lines(&rows)).map_err(Error::io("write", &record))?;
    fs::write(&document, page(&rows)?).map_err(Error::io("write", &document))?;
    Ok([record, document])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(tried: &str, verdict: &str, why: &str) -> Row {
        let [what, version, date] = ["QEMU", "10.0", "2026-11-28"].map(String::from);
        Row { what, version, tried: tried.into(), verdict: verdict.into(), date, why: why.into() }
    }

    #[test]
    fn the_page_is_what_the_record_says() {
        let (record, document) = paths(&Workspace::find().unwrap());
        let text = fs::read_to_string(&record).unwrap();
        let rows = parse(&text).unwrap();
        assert!(!rows.is_empty());
        assert_eq!(lines(&rows), text);
        let same = fs::read_to_string(&document).unwrap() == page(&rows).unwrap();
        assert!(same, "docs/compatibility.md is stale: cargo run -p xtask -- compatibility");
    }

    #[test]
    fn a_result_takes_the_place_of_an_older_one_and_a_skip_does_not() {
        let mut rows = vec![row("packed", "FAILED", "no link"), row("split", "works", "")];
        let split = row("split", "skipped", "not here");
        merge(
            &mut rows,
            vec![row("packed", "works", ""), split, row("q35", "skipped", "not here")],
        );
        let verdicts: Vec<_> = rows.iter().map(|row| (&*row.tried, &*row.verdict)).collect();
        assert_eq!(verdicts, [("packed", "works"), ("split", "works"), ("q35", "skipped")]);
        assert_eq!(parse(&lines(&rows)).unwrap(), rows);
    }

    #[test]
    fn each_verdict_but_works_has_its_reason_on_the_page() {
        let long = "a reason of many words ".repeat(12);
        let rows =
            [row("packed", "FAILED", &long), row("split", "works", ""), row("q35", "works", "")];
        let text = page(&rows).unwrap();
        assert!(text.contains("| QEMU | 10.0 | split; q35 | works |"), "{text}");
        assert!(text.contains("\n- QEMU, packed: FAILED: a reason"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
        page(&[row("packed", "FAILED", "")]).unwrap_err();
        Row::parse("QEMU\t10.0\tpacked").unwrap_err();
    }
}
