//! `weir lab`: the papers' experiments in virtual time, beside the papers' results.
//!
//! | file | contents |
//! |---|---|
//! | [`args`] | the command line |
//! | `file.rs` | the form of an experiment's TOML; `units.rs`: its quantities |
//! | `experiment.rs` | an experiment's scenarios, checked, within bounds |
//! | `check.rs` | refuses settings without effect, and names of nothing |
//! | `profile.rs` | a machine's costs, each with its origin |
//! | `figures.rs` | figures of a run |
//! | `verdict.rs` | the paper's numbers beside ours |
//! | `papers.rs` | a verdict on each figure of a paper |
//! | `parallel.rs` | runs on all CPUs |
//! | `output.rs` | the table, and JSON |
//! | `sensitivity.rs` | results with each fitted cost varied |
//! | `report/` | results as a page with plots |
//! | `calibrate/` | this machine's costs, as a profile |
//! | `plan/` | the best settings for a given host |
//! | `measure/` | experiments on a real switch, and their distance from the simulation |
//! | `ablation.rs` | the worth of each mechanism of the law of control |
//! | `soak.rs` | random hosts with faults |
//!
//! Runs use `weir_lab::host`; the papers' experiments are in `crates/lab/scenarios`.

#![forbid(unsafe_code)]

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use indicatif::ProgressBar;
use serde::Serialize;
use weir_lab::host::run_within;
use weir_lab::scenario::Scenario;
use weir_lab::scenarios::{EXPERIMENTS, PROFILES, REALITY};
use weir_limits::{CONFIG_BYTES_MAX, LAB_EVENTS_MAX};
use weir_text::{Table, count};

mod ablation;
pub mod args;
mod calibrate;
mod check;
mod error;
mod experiment;
mod figures;
mod file;
mod measure;
mod output;
mod papers;
mod parallel;
mod plan;
mod profile;
mod quiet;
mod realization;
mod report;
mod sensitivity;
mod soak;
mod units;
mod verdict;

use args::{LabCommand, LabRunArgs};
pub use error::LabError;
use error::Source;
use experiment::{Experiment, name_of};
use figures::Measured;
use file::At;
use output::{Outcome, Point};
use papers::Standings;
use profile::Machine;

const MEASURED_ROUNDS: usize = 5;

/// Runs a `weir lab` command.
pub fn run(command: &LabCommand, out: &mut dyn Write) -> Result<(), LabError> {
    match command {
        LabCommand::List { json } => list(*json, out),
        LabCommand::Calibrate { quiet } => calibrate::run(quiet, out),
        LabCommand::Run(args) => run_experiments(args, out),
        LabCommand::Plan(args) => plan::run(args, out),
        LabCommand::Validate(args) => measure::validate(args, out),
        LabCommand::Ablation(args) => ablation::run(args, out),
        LabCommand::Soak(args) => soak::run(args, out),
        LabCommand::Report(args) => report::run(args, out),
        LabCommand::Check { file, profile } => {
            let text = read(file)?;
            let name = file.display().to_string();
            let experiment = parse(Source { name: &name, text: &text }, None, profile.as_deref())?;
            writeln!(
                out,
                "{name}: good: {}, {}, about {} events at most",
                count(experiment.points.len(), "point"),
                count(experiment.file.seeds.len(), "seed"),
                experiment.events_expected(),
            )?;
            Ok(())
        }
    }
}

/// An experiment that comes with weir.
#[derive(Serialize)]
struct Listed {
    name: &'static str,
    points: usize,
    claims: usize,
    paper: Option<String>,
    title: String,
}

fn list(json: bool, out: &mut dyn Write) -> Result<(), LabError> {
    let listed = EXPERIMENTS.iter().map(|(name, text)| {
        let Experiment { file, points, .. } = parse(Source { name, text }, None, None)?;
        let (points, claims) = (points.len(), file.claims.len());
        Ok(Listed { name, points, claims, paper: file.paper, title: file.title })
    });
    let listed = listed.collect::<Result<Vec<_>, LabError>>()?;
    if json {
        serde_json::to_writer_pretty(&mut *out, &listed).map_err(io::Error::from)?;
        writeln!(out)?;
        return Ok(());
    }
    let mut table = Table::new(&["<NAME", "POINTS", "CLAIMS", "<PAPER", "<TITLE"]);
    for it in listed {
        let numbers = [it.points, it.claims].map(|number| number.to_string());
        let [points, claims] = numbers;
        let paper = it.paper.unwrap_or_default();
        table.row(vec![it.name.to_owned(), points, claims, paper, it.title]);
    }
    write!(out, "{table}")?;
    Ok(())
}

fn run_experiments(args: &LabRunArgs, out: &mut dyn Write) -> Result<(), LabError> {
    let mut experiments = selected(args.name.as_slice(), args.seed, args.profile.as_deref())?;
    if args.sensitivity {
        let bar = progress(sensitivity::runs(&experiments)?);
        let all = sensitivity::of(&experiments, &bar)?;
        bar.finish_and_clear();
        if all.is_empty() && !args.json {
            writeln!(
                out,
                "nothing to vary: no cost of the machine is fitted, or there is no claim"
            )?;
        }
        return show(&all, args.json, out);
    }
    let refused = match args.measured {
        true => measure::measure_each(&mut experiments, MEASURED_ROUNDS)?,
        false => Vec::new(),
    };
    let bar = progress(experiments.iter().map(Experiment::runs).sum());
    let mut outcomes = run_each(&experiments, &bar)?;
    bar.finish_and_clear();
    for (outcome, refused) in outcomes.iter_mut().zip(refused) {
        outcome.not_measured = refused;
    }
    show(&outcomes, args.json, out)?;
    if args.all && !args.json {
        write!(out, "\n{}", Standings::of(&outcomes))?;
    }
    Ok(())
}

/// Prints all results one after the other, or as JSON.
fn show(all: &[impl Display + Serialize], json: bool, out: &mut dyn Write) -> Result<(), LabError> {
    if json {
        serde_json::to_writer_pretty(&mut *out, all).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        for (number, one) in all.iter().enumerate() {
            let gap = if number > 0 { "\n" } else { "" };
            write!(out, "{gap}{one}")?;
        }
    }
    Ok(())
}

/// Returns the experiments of these names and files, or all experiments that come with weir.
fn selected(
    names: &[String],
    seed: Option<u64>,
    profile: Option<&Path>,
) -> Result<Vec<Experiment>, LabError> {
    // `all` excludes the machine's own experiment, which belongs to no paper.
    let known = || EXPERIMENTS.iter().chain([&REALITY]);
    let built_in = |name: &str| known().find(|it| it.0 == name).map(|it| it.1);
    if names.is_empty() {
        let all = EXPERIMENTS.iter();
        return all.map(|(name, text)| parse(Source { name, text }, seed, profile)).collect();
    }
    let mut experiments = Vec::new();
    for name in names {
        let text = match built_in(name) {
            Some(text) => text.to_owned(),
            None if name.ends_with(".toml") => read(Path::new(name))?,
            None => return Err(LabError::Unknown { name: name.clone() }),
        };
        experiments.push(parse(Source { name, text: &text }, seed, profile)?);
    }
    Ok(experiments)
}

/// Returns a progress bar on standard error, visible only on a terminal.
fn progress(runs: usize) -> ProgressBar {
    weir_bench::progress_of(runs as u64)
}

fn run_each(experiments: &[Experiment], bar: &ProgressBar) -> Result<Vec<Outcome>, LabError> {
    let one = |experiment: &Experiment| {
        bar.set_message(experiment.name.clone());
        run_one(experiment, bar)
    };
    experiments.iter().map(one).collect()
}

/// Runs each point with each seed.
fn run_one(experiment: &Experiment, bar: &ProgressBar) -> Result<Outcome, LabError> {
    let events = AtomicU64::new(0);
    let seeds = &experiment.file.seeds;
    let points = parallel::map(&experiment.points, |(at, scenario)| {
        run_point(experiment, at, scenario, seeds, &events, bar)
    })?;
    Ok(Outcome::new(experiment, points, events.into_inner()))
}

/// Runs a point with each of `seeds`. `events` is the number of the experiment's events so far.
fn run_point(
    experiment: &Experiment,
    at: &At,
    scenario: &Scenario,
    seeds: &[u64],
    events: &AtomicU64,
    bar: &ProgressBar,
) -> Result<Point, LabError> {
    let wanted = output::figures(&experiment.file);
    let mut values = vec![Vec::new(); wanted.len()];
    for seed in seeds {
        let scenario = Scenario { seed: *seed, ..scenario.clone() };
        let left = LAB_EVENTS_MAX.saturating_sub(events.load(Ordering::Relaxed));
        let report = run_within(&scenario, left).map_err(|source| LabError::Run {
            experiment: experiment.name.clone(),
            point: name_of(at),
            seed: *seed,
            source: Box::new(source),
        })?;
        events.fetch_add(report.events, Ordering::Relaxed);
        for (values, figure) in values.iter_mut().zip(&wanted) {
            values.push(figure.of(&report));
        }
        bar.inc(1);
    }
    let names = || wanted.iter().map(|figure| figure.as_str());
    let figures = names().zip(values.iter().map(|values| Measured::of(values))).collect();
    Ok(Point { at: at.clone(), figures, seeds: names().zip(values).collect() })
}

/// Reads an experiment with the profile at the path `profile`, or else with the profile that it names.
fn parse(
    source: Source<'_>,
    seed: Option<u64>,
    profile: Option<&Path>,
) -> Result<Experiment, LabError> {
    Experiment::parse(source, seed, |named| {
        if let Some(path) = profile {
            let name = path.display().to_string();
            return Machine::parse(Source { name: &name, text: &read(path)? }).map(Some);
        }
        let found = PROFILES.iter().find(|(name, _)| *name == named);
        found.map(|(name, text)| Machine::parse(Source { name, text })).transpose()
    })
}

fn read(path: &Path) -> Result<String, LabError> {
    let failed = |source| LabError::Read { path: path.to_owned(), source };
    let mut text = String::new();
    let file = File::open(path).map_err(failed)?;
    file.take(CONFIG_BYTES_MAX + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > CONFIG_BYTES_MAX {
        return Err(LabError::TooLarge { path: path.to_owned() });
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
