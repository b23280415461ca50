//! `make survive`, `make soak`, and the short form of the latter in `make test`: the program of `tests/life`.

use weir_bed::{error::Result, packages, release::Programs, tally::Tally, workspace::Workspace};

use crate::steps::{Selection, checked, shown};

/// What `make test` has time for.
const SHORT_HOURS: &str = "0.015";
/// The same each time: what passed fails only where something changed.
const SHORT_SEED: &str = "29";

/// What kills, reloads, upgrades and migrations cost guests; whether all bars are held.
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

/// Everything by chance for so many hours; whether all bars are held.
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

/// A minute of it.
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
