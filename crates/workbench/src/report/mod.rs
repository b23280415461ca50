//! `weir lab report`: experiments as a page with plots, and as Markdown.
//!
//! | file | contents |
//! |---|---|
//! | `chart.rs` | the data of a plot: simulated, claimed by the paper, measured |
//! | `svg.rs` | draws a plot; `axis.rs`: its scales and its legend, `text.rs`: its text |
//! | `moves.rs` | plots of verdicts under varied fitted costs |
//! | `content.rs` | the content of both pages, tables of the numbers of plots, and digests for a repository's page |
//! | `html.rs` | the self-contained page |
//! | `markdown.rs` | the report as Markdown, with plots as files; the verdicts alone, for a repository |
//! | `text.rs`, `*.css` | escaped text; colours, light and dark |
//!
//! All content comes from an experiment's `[plot]` and claims, so that a new experiment needs no code. The same
//! experiments and seeds give the same bytes.

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tempfile::{Builder, NamedTempFile};

use super::LabError;
use super::experiment::Experiment;
use super::measure::measure_each;
use super::runs::{MEASURED_ROUNDS, progress, run_each, selected};
use super::sensitivity;
use crate::args::LabReportArgs;

mod axis;
mod chart;
mod content;
mod html;
mod markdown;
mod moves;
mod svg;

use chart::slug;
use content::Report;

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
        finish(file, &path, &markdown::verdicts(&report, &content::beginnings(&experiments)?))?;
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

#[cfg(test)]
mod tests;
