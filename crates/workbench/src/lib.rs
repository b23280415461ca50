//! `weir lab`: the papers' experiments in virtual time, beside the papers' results.
//!
//! | file | contents |
//! |---|---|
//! | [`args`] | the command line |
//! | `file.rs` | the form of an experiment's TOML |
//! | `experiment.rs` | an experiment's scenarios, checked, within bounds |
//! | `check.rs` | refuses settings without effect, and names of nothing |
//! | `profile.rs` | a machine's costs, each with its origin; quantities with units |
//! | `verdict.rs` | the paper's numbers beside ours |
//! | `papers.rs` | a verdict on each figure of a paper |
//! | `runs.rs` | experiments by name, their runs on all CPUs, and figures of a run |
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
use std::io::{self, Write};

use serde::Serialize;
use weir_lab::scenarios::EXPERIMENTS;
use weir_text::{Table, count};

mod ablation;
pub mod args;
mod calibrate;
mod check;
mod error;
mod experiment;
mod file;
mod measure;
mod output;
mod papers;
mod plan;
mod profile;
mod quiet;
mod report;
mod runs;
mod sensitivity;
mod soak;
mod verdict;

use args::{LabCommand, LabRunArgs};
pub use error::LabError;
use error::Source;
use experiment::Experiment;
use papers::Standings;
use runs::{MEASURED_ROUNDS, parse, progress, read, run_each, selected};

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
    let listed = EXPERIMENTS.iter().map(|&(name, text)| {
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

#[cfg(test)]
mod tests;
