//! `make survive`, `make soak`, and the short form of the latter in `make test`: the program of `tests/life`.

use weir_bed::{
    error::{Result, Tally},
    packages,
    workspace::{Programs, Workspace},
};

use crate::steps::{Selection, checked, shown};

/// Duration of the short form (h), which fits into `make test`.
const SHORT_HOURS: &str = "0.015";
/// A fixed seed: a new failure then has its cause in a change.
const SHORT_SEED: &str = "29";

/// Measures the effect of kills, reloads, upgrades and migrations on guests. True if all bars are met.
pub fn survive(
    workspace: &Workspace,
    selection: &Selection,
    scale: f64,
    seed: Option<u64>,
) -> Result<bool> {
    let mut args = vec![String::from("--scale"), scale.to_string()];
    args.extend(selection.only.iter().flat_map(|only| [String::from("--only"), only.clone()]));
    args.extend(seed.iter().flat_map(|seed| [String::from("--seed"), seed.to_string()]));
    run(workspace, selection, "survive", &args)
}

/// Runs random events for `hours`. True if all bars are met.
pub fn soak(
    workspace: &Workspace,
    selection: &Selection,
    hours: f64,
    seed: Option<u64>,
) -> Result<bool> {
    let mut args = vec![String::from("--hours"), hours.to_string()];
    args.extend(seed.iter().flat_map(|seed| [String::from("--seed"), seed.to_string()]));
    run(workspace, selection, "soak", &args)
}

/// Runs the soak for about a minute.
pub fn soak_short(workspace: &Workspace, selection: &Selection) -> Result<Tally> {
    if !packages::is_root() {
        println!("skipped: needs root: a soak with real guests");
        return Ok(Tally::skipped());
    }
    let args = ["--short", "--hours", SHORT_HOURS, "--seed", SHORT_SEED].map(String::from);
    Ok(checked("soak", run(workspace, selection, "soak", &args)?))
}

fn run(workspace: &Workspace, selection: &Selection, task: &str, more: &[String]) -> Result<bool> {
    let programs = Programs::build(workspace)?;
    let weir = selection.weir.clone().unwrap_or_else(|| programs.weir());
    let weir = weir.to_string_lossy();
    let more: Vec<_> = more.iter().map(String::as_str).collect();
    let args = [&[task, "--weir", &weir], &more[..]].concat();
    shown(workspace, programs.life().as_os_str(), &args, &[], |_| ())
}
