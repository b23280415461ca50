//! `weir lab plan`: finds the best settings for a host by simulation of candidates.
//!
//! | file | contents |
//! |---|---|
//! | `file.rs` | the form of a host's TOML; its CPUs, written or this machine's |
//! | `host.rs` | a host's scenario, without workers |
//! | `candidate.rs` | the settings to play, and those to skip |
//! | `play.rs` | the results of each |
//! | `output.rs` | the tables, JSON, and the configuration of the plan |

use std::io::Write;
use std::path::Path;

use indicatif::ProgressBar;
use weir_config::PlacementMode;
use weir_lab::estimate;
use weir_lab::scenarios::{HOSTS, PROFILES};
use weir_limits::{LAB_PLAN_EVENTS_MAX, LAB_RUNS_MAX};

use super::error::{LabError, Source};
use super::profile::Machine;
use super::runs::{progress, read};
use crate::args::LabPlanArgs;

mod candidate;
mod file;
mod host;
mod output;
mod play;

use candidate::{Candidate, Candidates};
use host::Host;
use output::Plan;
use play::{best, misses};

/// Runs `weir lab plan`.
///
/// # Errors
/// [`LabError`]; [`LabError::NoPlan`] after the nearest plan has been written.
pub fn run(args: &LabPlanArgs, out: &mut dyn Write) -> Result<(), LabError> {
    let host = host(args)?;
    let candidates = Candidates::of(&host);
    check_bounds(&host, &candidates)?;
    let runs = candidates.first.len() + usize::from(candidates.dynamic);
    let bar = progress(runs * host.file.seeds.len());
    let plan = plan(&host, candidates, &bar)?;
    bar.finish_and_clear();
    weir_bench::print(&plan, args.json, out)?;
    match plan.good {
        true => Ok(()),
        false => Err(LabError::NoPlan { host: host.name, nearest: plan.best.why_not.join("; ") }),
    }
}

/// Returns the host of a file, or the host of that name that comes with weir.
fn host(args: &LabPlanArgs) -> Result<Host, LabError> {
    let name = args.file.display().to_string();
    let text = match HOSTS.iter().find(|(built_in, _)| *built_in == name) {
        Some((_, text)) => (*text).to_owned(),
        None => read(&args.file)?,
    };
    let folder = args.file.parent().unwrap_or(Path::new(""));
    Host::parse(Source { name: &name, text: &text }, args.seed, |named| {
        machine(named, args.profile.as_deref(), folder)
    })
}

/// Returns the profile `instead`, or the one that a host's file in `folder` names.
fn machine(
    named: &str,
    instead: Option<&Path>,
    folder: &Path,
) -> Result<Option<Machine>, LabError> {
    let path = match instead {
        Some(path) => path.to_owned(),
        None if named.ends_with(".toml") => folder.join(named),
        None => {
            let found = PROFILES.iter().find(|(name, _)| *name == named);
            return found.map(|(name, text)| Machine::parse(Source { name, text })).transpose();
        }
    };
    let name = path.display().to_string();
    Machine::parse(Source { name: &name, text: &read(&path)? }).map(Some)
}

/// Checks that the simulations end within bounds.
///
/// # Errors
/// The simulations would take too long.
fn check_bounds(host: &Host, candidates: &Candidates) -> Result<(), LabError> {
    let events = |candidate: &Candidate| estimate::events(&candidate.scenario(&host.scenario));
    let first = candidates.first.iter().map(events).fold(0, u64::saturating_add);
    // The best candidate is not known yet, so the most expensive one is counted.
    let dynamic = candidates.first.iter().filter(|_| candidates.dynamic);
    let dynamic = dynamic.map(|it| events(&it.placed(PlacementMode::Dynamic, it.pin_vcpus)));
    let seeds = host.file.seeds.len();
    let events = first.saturating_add(dynamic.max().unwrap_or(0)).saturating_mul(seeds as u64);
    let runs = (candidates.first.len() + 1).saturating_mul(seeds);
    let too_long = |what, max| Err(LabError::PlanTooLong { host: host.name.clone(), what, max });
    if runs > LAB_RUNS_MAX {
        return too_long(format!("{runs} runs"), LAB_RUNS_MAX as u64);
    }
    match events > LAB_PLAN_EVENTS_MAX {
        true => too_long(format!("{events} events"), LAB_PLAN_EVENTS_MAX),
        false => Ok(()),
    }
}

/// Simulates all candidates, and then the best with the dynamic placement if the file asks for it.
fn plan(host: &Host, candidates: Candidates, bar: &ProgressBar) -> Result<Plan, LabError> {
    let Candidates { first, dynamic, mut skipped } = candidates;
    let judged = |played: Vec<play::Played>| {
        played.into_iter().map(|played| {
            let misses = misses(host, &played);
            (played, misses)
        })
    };
    let mut all: Vec<_> = judged(play::all(host, &first, bar)?).collect();
    if let Some((played, _)) = best(&all).filter(|_| dynamic).and_then(|at| all.get(at)) {
        let pin_vcpus = host.file.limits.pin_vcpus;
        let placed = played.candidate.placed(PlacementMode::Dynamic, pin_vcpus);
        all.extend(judged(play::all(host, &[placed], bar)?));
        skipped.push(candidate::Skipped {
            what: "dynamic placement with other settings".into(),
            why: "it takes seconds to settle, and was played with the best of the others".into(),
        });
    }
    Ok(Plan::of(host, &all, skipped))
}

#[cfg(test)]
mod tests;
