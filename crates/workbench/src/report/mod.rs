//! `weir lab report`: experiments as a page with plots, and as Markdown.
//!
//! | file | contents |
//! |---|---|
//! | `chart.rs` | the data of a plot: simulated, claimed by the paper, measured |
//! | `svg.rs` | draws a plot; `axis.rs`: scales, `legend.rs`: its legend, `text.rs`: its text |
//! | `moves.rs` | plots of verdicts under varied fitted costs |
//! | `html.rs` | the self-contained page |
//! | `markdown.rs` | the report as Markdown, with plots as files; the verdicts alone, for a repository |
//! | `digest.rs` | digests that show whether a repository's page of verdicts is up to date |
//! | `style.rs`, `*.css` | colours, light and dark |
//!
//! All content comes from an experiment's `[plot]` and claims, so that a new experiment needs no code. The same
//! experiments and seeds give the same bytes.

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tempfile::{Builder, NamedTempFile};

use super::experiment::Experiment;
use super::measure::measure_each;
use super::output::Outcome;
use super::papers::Standings;
use super::sensitivity::{self, PERCENTS, Sensitivity};
use super::verdict::{Judged, Verdict};
use super::{LabError, MEASURED_ROUNDS, progress, run_each, selected};
use crate::args::LabReportArgs;

mod axis;
mod chart;
mod digest;
mod html;
mod legend;
mod markdown;
mod moves;
mod style;
mod svg;
mod text;

use chart::{Chart, slug};

/// Default file of the page.
const HTML_DEFAULT: &str = "lab-report.html";

/// Runs the experiments and writes the page, the Markdown, or both. Prints the names of the written files to `out`.
///
/// # Errors
/// [`LabError`]: nothing is written unless every experiment has finished.
pub fn run(args: &LabReportArgs, out: &mut dyn Write) -> Result<(), LabError> {
    let mut experiments = selected(&args.names, args.seed, args.profile.as_deref())?;
    check_names(&experiments)?;
    let other = args.markdown.is_some() || args.verdicts.is_some();
    let html = match &args.html {
        None if other => None,
        None => Some(PathBuf::from(HTML_DEFAULT)),
        Some(path) => Some(path.clone()),
    };
    // Unwritable files are found before the experiments run.
    let begun = |path: PathBuf| begin(&path).map(|file| (file, path));
    let html = html.map(begun).transpose()?;
    let verdicts = args.verdicts.clone().map(begun).transpose()?;
    if let Some(folder) = &args.markdown {
        fs::create_dir_all(folder)
            .map_err(|source| LabError::Write { path: folder.clone(), source })?;
    }
    if args.measured {
        let refused = measure_each(&mut experiments, MEASURED_ROUNDS)?;
        for (experiment, refused) in experiments.iter().zip(refused) {
            for (point, why) in refused {
                writeln!(out, "{}, {point}: not measured: {why}", experiment.name)?;
            }
        }
    }
    let varied = if args.sensitivity { sensitivity::runs(&experiments)? } else { 0 };
    let bar = progress(experiments.iter().map(Experiment::runs).sum::<usize>() + varied);
    let outcomes = run_each(&experiments, &bar)?;
    let varied = if args.sensitivity { sensitivity::of(&experiments, &bar)? } else { Vec::new() };
    bar.finish_and_clear();
    let report = Report::new(&experiments, &outcomes, &varied);
    if let Some((file, path)) = html {
        finish(file, &path, &html::page(&report))?;
        writeln!(out, "{}", path.display())?;
    }
    if let Some(folder) = &args.markdown {
        for (name, text) in markdown::files(&report) {
            let path = folder.join(name);
            finish(begin(&path)?, &path, &text)?;
        }
        writeln!(out, "{}", folder.join(markdown::INDEX).display())?;
    }
    if let Some((file, path)) = verdicts {
        finish(file, &path, &markdown::verdicts(&report, &digest::beginnings(&experiments)?))?;
        writeln!(out, "{}", path.display())?;
    }
    Ok(())
}

/// Starts a file for `path`. An existing file stays until [`finish`].
fn begin(path: &Path) -> Result<NamedTempFile, LabError> {
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    let mut builder = Builder::new();
    // As for any new file, the umask applies.
    builder.permissions(Permissions::from_mode(0o666));
    let file = builder.tempfile_in(folder.unwrap_or(Path::new(".")));
    file.map_err(|source| LabError::Write { path: path.to_owned(), source })
}

fn finish(mut file: NamedTempFile, path: &Path, text: &str) -> Result<(), LabError> {
    let failed = |source| LabError::Write { path: path.to_owned(), source };
    file.write_all(text.as_bytes()).map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    Ok(())
}

/// Checks that each experiment has its own link and files.
fn check_names(experiments: &[Experiment]) -> Result<(), LabError> {
    for (number, experiment) in experiments.iter().enumerate() {
        let name = slug(&experiment.name);
        if experiments.iter().take(number).any(|other| slug(&other.name) == name) {
            return Err(LabError::SameName { name });
        }
    }
    Ok(())
}

/// The content of a page.
struct Report<'r> {
    entries: Vec<Entry<'r>>,
    /// A verdict for each figure of the papers.
    figures: Standings,
    varied: &'r [Sensitivity],
}

/// An experiment with its results.
struct Entry<'r> {
    experiment: &'r Experiment,
    outcome: &'r Outcome,
    /// The name in links and file names.
    id: String,
    charts: Vec<Chart>,
}

impl Entry<'_> {
    fn measured(&self) -> Vec<&str> {
        let mut sources: Vec<&str> = Vec::new();
        for measured in &self.experiment.file.measured {
            if !sources.contains(&measured.source.as_str()) {
                sources.push(&measured.source);
            }
        }
        sources
    }
}

impl<'r> Report<'r> {
    fn new(
        experiments: &'r [Experiment],
        outcomes: &'r [Outcome],
        varied: &'r [Sensitivity],
    ) -> Self {
        let entry = |(experiment, outcome): (&'r Experiment, &'r Outcome)| {
            let charts = chart::all(experiment, outcome);
            Entry { experiment, outcome, id: slug(&experiment.name), charts }
        };
        Self {
            entries: experiments.iter().zip(outcomes).map(entry).collect(),
            figures: Standings::of(outcomes),
            varied,
        }
    }

    fn claims(&self) -> impl Iterator<Item = &'r Judged> + Clone {
        self.entries.iter().flat_map(|entry| &entry.outcome.claims)
    }
}

/// Number of claims by verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    reproduced: usize,
    direction_only: usize,
    not: usize,
}

impl Tally {
    fn of<'j>(claims: impl Iterator<Item = &'j Judged>) -> Self {
        let mut tally = Self::default();
        for claim in claims {
            *match claim.verdict {
                Verdict::Reproduced => &mut tally.reproduced,
                Verdict::DirectionOnly => &mut tally.direction_only,
                Verdict::Not => &mut tally.not,
            } += 1;
        }
        tally
    }

    fn all(self) -> usize {
        self.reproduced + self.direction_only + self.not
    }

    fn words(self) -> String {
        let Self { reproduced, direction_only, not } = self;
        format!("{reproduced} reproduced, {direction_only} direction only, {not} not")
    }
}

/// Returns a table of a plot's numbers: its head, and a row for each point of x.
fn numbers(chart: &Chart) -> (Vec<String>, Vec<Vec<String>>) {
    let mut head = vec![chart.x_name.clone()];
    for series in &chart.series {
        head.push(series.name.clone());
        if series.measured.iter().any(Option::is_some) {
            head.push(format!("{}, measured", series.name));
        }
    }
    if !chart.marks.is_empty() {
        head.push("paper".into());
    }
    let rows = chart.x.iter().enumerate().map(|(x, name)| {
        let mut row = vec![name.clone()];
        for series in &chart.series {
            let value = |values: &[Option<super::figures::Measured>]| {
                let Some(it) = values.get(x).copied().flatten() else { return "-".to_owned() };
                if it.max > it.min {
                    format!("{:.1} ({:.1} to {:.1})", it.mean, it.min, it.max)
                } else {
                    format!("{:.1}", it.mean)
                }
            };
            row.push(value(&series.simulated));
            if series.measured.iter().any(Option::is_some) {
                row.push(value(&series.measured));
            }
        }
        if !chart.marks.is_empty() {
            let here = chart.marks.iter().filter(|mark| mark.x == x);
            let words: Vec<_> = here.map(|mark| chart.says(mark)).collect();
            row.push(words.join("; "));
        }
        row
    });
    (head, rows.collect())
}

/// Returns a table of a sensitivity plot.
fn moves(it: &Sensitivity) -> (Vec<String>, Vec<Vec<String>>) {
    let mut head = ["claim", "used to", "paper"].map(str::to_owned).to_vec();
    head.extend(PERCENTS.map(|(_, words)| words.to_owned()));
    let rows = it.claims.iter().map(|claim| {
        let words = format!("{}: {}", claim.figure, claim.says);
        let mut row = vec![words, claim.used.as_str().to_owned(), claim.paper.clone()];
        row.extend(claim.at.iter().map(|at| format!("{} {}", at.ours, at.verdict.sign())));
        row
    });
    (head, rows.collect())
}

#[cfg(test)]
mod tests;
