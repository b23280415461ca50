//! `cargo deny`: licences, sources and duplicates of what weir depends on, and advisories about it, by
//! `deny.toml`.

use std::path::PathBuf;

use weir_bed::{
    error::Result,
    process::{run, run_in},
    tally::Tally,
    workspace::Workspace,
};

use crate::steps;

/// The version that `deny.toml` is written for.
const VERSION: &str = "0.20.2";

/// How long the database of advisories may take to come (s).
const FETCH_S: &str = "60";

/// Two checks: what can be seen here, and what the database of advisories says, where it can be had.
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

/// The one in `PATH` if it has that version; else the one below `target`, which is built once.
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
    // Unoptimised, it takes a second for a check and a fraction of the time to build.
    let install =
        "install cargo-deny --locked --profile dev --force --quiet --root target/tools --version";
    let argv: Vec<_> = [&*cargo].into_iter().chain(install.split(' ')).chain([VERSION]).collect();
    run_in(&argv, &workspace.root, &[("CARGO_PROFILE_DEV_DEBUG", "0".as_ref())])?;
    Ok(own)
}
