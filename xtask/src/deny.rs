//! `cargo deny`: licences, sources and duplicates of weir's dependencies, and advisories about them, as `deny.toml`
//! says.

use std::path::PathBuf;

use weir_bed::{
    error::{Result, Tally},
    process::{run, run_in},
    workspace::Workspace,
};

use crate::steps;

/// The version of cargo-deny for which `deny.toml` is written.
const VERSION: &str = "0.20.2";

/// Longest time to fetch the database of advisories (s).
const FETCH_S: &str = "60";

/// Runs two checks: one without the network, and one with the database of advisories if it can be fetched.
pub fn check(workspace: &Workspace) -> Result<Tally> {
    let program = match program(workspace) {
        Ok(program) => program,
        Err(error) => {
            println!("{error}\nskipped: cargo deny cannot be built");
            return Ok(Tally::skipped());
        }
    };
    let shown = |args: &[&str]| steps::shown(workspace, program.as_os_str(), args, &[], |_| ());
    let here = ["--all-features", "check", "--hide-inclusion-graph", "licenses", "bans", "sources"];
    let mut tally = steps::checked("deny", shown(&here)?);
    let program = program.to_string_lossy();
    if let Err(error) = run_in(&["timeout", FETCH_S, &program, "fetch", "db"], &workspace.root, &[])
    {
        println!("{error}\nskipped: advisories: their database cannot be fetched");
        tally += Tally::skipped();
        return Ok(tally);
    }
    tally += steps::checked("advisories", shown(&["--all-features", "check", "advisories"])?);
    Ok(tally)
}

/// The cargo-deny in `PATH` if it has that version, or else the one below `target`, which is built once.
fn program(workspace: &Workspace) -> Result<PathBuf> {
    let own = workspace.target("tools")?.join("bin/cargo-deny");
    for program in [PathBuf::from("cargo-deny"), own.clone()] {
        let version = run(&[program.as_os_str(), "--version".as_ref()]);
        if version.is_ok_and(|version| version.trim_end().ends_with(VERSION)) {
            return Ok(program);
        }
    }
    println!("building cargo-deny {VERSION}, once");
    let cargo = Workspace::cargo();
    // The dev profile takes a second for a check, and is much faster to build.
    let install =
        "install cargo-deny --locked --profile dev --force --quiet --root target/tools --version";
    let argv: Vec<_> = [&*cargo].into_iter().chain(install.split(' ')).chain([VERSION]).collect();
    run_in(&argv, &workspace.root, &[("CARGO_PROFILE_DEV_DEBUG", "0".as_ref())])?;
    Ok(own)
}
