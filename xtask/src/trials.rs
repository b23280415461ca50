//! The programs of `tests/attack` and `tests/life` against weir as it ships: `make attack`, `make survive`, `make
//! soak`, and the short forms of attacks and soak in `make test`.

use weir_bed::{
    error::{Result, Tally},
    packages,
    workspace::{Programs, Workspace},
};

use crate::steps::{Selection, checked, shown};

/// Measures the effect of attacks on other guests. True if all bars are met.
pub fn measured(workspace: &Workspace, selection: &Selection) -> Result<bool> {
    let only: Vec<_> = selection.only.iter().flat_map(|only| ["--only", only]).collect();
    run_attack(workspace, selection, &only, |_| ())
}

/// Runs each attack once, and counts those that are survived.
pub fn survived(workspace: &Workspace, selection: &Selection) -> Result<Tally> {
    let mut tally = Tally::default();
    let passed = run_attack(workspace, selection, &["--short"], |line| see(line, &mut tally))?;
    if !passed && tally.failed == 0 {
        tally += Tally::failed("attacks that could not be tried");
    }
    Ok(tally)
}

fn run_attack(
    workspace: &Workspace,
    selection: &Selection,
    more: &[&str],
    see: impl FnMut(&str),
) -> Result<bool> {
    let programs = Programs::build(workspace)?;
    let weir = selection.weir.clone().unwrap_or_else(|| programs.weir());
    let weir = weir.to_string_lossy();
    let args = [&["run", "--weir", &weir], more].concat();
    shown(workspace, programs.attack().as_os_str(), &args, &[], see)
}

/// Counts the results in a line of the program's output.
fn see(line: &str, tally: &mut Tally) {
    if let Some(what) = line.strip_prefix("failed: ") {
        *tally += Tally::failed(what);
    } else if line.starts_with("skipped test: ") {
        *tally += Tally::skipped();
    } else if let Some((passed, _)) = line.split_once(" attacks passed, ") {
        tally.passed += passed.parse::<u32>().unwrap_or(0);
    }
}

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
    run_life(workspace, selection, "survive", &args)
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
    run_life(workspace, selection, "soak", &args)
}

/// Runs the soak for about a minute.
pub fn soak_short(workspace: &Workspace, selection: &Selection) -> Result<Tally> {
    if !packages::is_root() {
        println!("skipped: needs root: a soak with real guests");
        return Ok(Tally::skipped());
    }
    let args = ["--short", "--hours", SHORT_HOURS, "--seed", SHORT_SEED].map(String::from);
    Ok(checked("soak", run_life(workspace, selection, "soak", &args)?))
}

fn run_life(
    workspace: &Workspace,
    selection: &Selection,
    task: &str,
    more: &[String],
) -> Result<bool> {
    let programs = Programs::build(workspace)?;
    let weir = selection.weir.clone().unwrap_or_else(|| programs.weir());
    let weir = weir.to_string_lossy();
    let more: Vec<_> = more.iter().map(String::as_str).collect();
    let args = [&[task, "--weir", &weir], &more[..]].concat();
    shown(workspace, programs.life().as_os_str(), &args, &[], |_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_attack_counts_one_way() {
        let mut tally = Tally::default();
        for line in [
            "attack        pps    p99",
            "rings::a                -  ok",
            "skipped test: control::b: needs root, to be another user",
            "rings::c                -  FAILED: 2 descriptors are left",
            "failed: rings::c: 2 descriptors are left",
            "7 attacks passed, 1 failed",
        ] {
            see(line, &mut tally);
        }
        assert_eq!((tally.passed, tally.failed, tally.skipped), (7, 1, 1));
        assert_eq!(tally.failures, ["rings::c: 2 descriptors are left"]);
    }
}
