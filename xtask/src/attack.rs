//! `make attack`, and its short form in `make test`: the program of `tests/attack` against weir as it ships.

use weir_bed::{
    error::{Result, Tally},
    workspace::{Programs, Workspace},
};

use crate::steps::{Selection, shown};

/// Measures the effect of attacks on other guests. True if all bars are met.
pub fn measured(workspace: &Workspace, selection: &Selection) -> Result<bool> {
    let only: Vec<_> = selection.only.iter().flat_map(|only| ["--only", only]).collect();
    run(workspace, selection, &only, |_| ())
}

/// Runs each attack once, and counts those that are survived.
pub fn survived(workspace: &Workspace, selection: &Selection) -> Result<Tally> {
    let mut tally = Tally::default();
    let passed = run(workspace, selection, &["--short"], |line| see(line, &mut tally))?;
    if !passed && tally.failed == 0 {
        tally += Tally::failed("attacks that could not be tried");
    }
    Ok(tally)
}

fn run(
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
