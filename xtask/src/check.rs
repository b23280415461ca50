//! `make check`: format, lints and unit tests of the crates that changed since `origin/main`, and a check that the
//! crates that use them compile. Also `cargo deny`.

use std::{
    collections::BTreeSet,
    env,
    path::{Path, PathBuf},
};

use weir_bed::{
    error::{Error, Result, Tally},
    process::{self, run_in},
    workspace::Workspace,
};

use crate::steps;

/// A crate of the workspace.
#[derive(Debug)]
struct Member {
    name: String,
    /// The directory, relative to the workspace's root.
    dir: PathBuf,
    /// `--lib` and `--bins` as needed: cargo fails for a kind of target that no crate has.
    unit_tests: BTreeSet<&'static str>,
}

/// Checks the differences from the last commit of `origin/main`, or from `HEAD` if there is no such branch.
pub fn run(workspace: &Workspace) -> Result<Tally> {
    let members = members(workspace)?;
    let changed = changed(workspace)?;
    let touched = touched(&members, &changed);
    let names: Vec<_> = touched.iter().flat_map(|member| ["-p", member.name.as_str()]).collect();
    let mut tally =
        steps::timed("fmt", &|| steps::check(workspace, "fmt", &["fmt", "--all", "--check"]));
    if touched.is_empty() {
        println!("{} files changed, none of a crate", changed.len());
        return Ok(tally);
    }
    tally += steps::timed("clippy", &|| {
        let args = [&["clippy"], &*names, &["--all-targets", "--", "-D", "warnings"]].concat();
        steps::check(workspace, "clippy", &args)
    });
    // The crates that use the changed ones are checked, too.
    tally += steps::timed("users", &|| steps::check(workspace, "users", &["check", "--workspace"]));
    tally += steps::timed("unit", &|| {
        let kinds: BTreeSet<_> = touched.iter().flat_map(|member| &member.unit_tests).collect();
        let kinds: Vec<_> = kinds.into_iter().copied().collect();
        steps::tests(workspace, &[&*names, &*kinds].concat(), &[])
    });
    Ok(tally)
}

/// Files that were changed or added since that commit, relative to the root.
fn changed(workspace: &Workspace) -> Result<Vec<PathBuf>> {
    let git = |args: &[&str]| run_in(&[&["git"], args].concat(), &workspace.root, &[]);
    let base = git(&["merge-base", "HEAD", "origin/main"]);
    let base = base.as_deref().map_or("HEAD", str::trim);
    let tracked = git(&["diff", "--name-only", "--no-renames", base])?;
    let new = git(&["ls-files", "--others", "--exclude-standard"])?;
    Ok(tracked.lines().chain(new.lines()).map(PathBuf::from).collect())
}

fn members(workspace: &Workspace) -> Result<Vec<Member>> {
    let metadata = workspace.metadata()?;
    let package = |package: &serde_json::Value| {
        let dir = Path::new(package["manifest_path"].as_str()?).parent()?;
        let kinds = package["targets"].as_array()?.iter().filter_map(|it| it["kind"][0].as_str());
        let unit_tests = kinds.filter_map(|kind| match kind {
            "lib" => Some("--lib"),
            "bin" => Some("--bins"),
            _ => None,
        });
        Some(Member {
            name: package["name"].as_str()?.to_owned(),
            dir: dir.strip_prefix(&workspace.root).ok()?.to_owned(),
            unit_tests: unit_tests.collect(),
        })
    };
    let packages = metadata["packages"].as_array();
    packages
        .and_then(|packages| packages.iter().map(package).collect())
        .ok_or_else(|| Error::parse("packages", metadata.to_string()))
}

/// The crates of the changed files. Documents belong to xtask, whose tests read them.
fn touched<'m>(members: &'m [Member], changed: &[PathBuf]) -> Vec<&'m Member> {
    let of = |member: &&Member, path: &Path| {
        let document = path.extension().is_some_and(|extension| extension == "md");
        path.starts_with(&member.dir) || (document && member.name == "xtask")
    };
    members.iter().filter(|member| changed.iter().any(|path| of(member, path))).collect()
}

/// The version of cargo-deny for which `deny.toml` is written.
const DENY_VERSION: &str = "0.20.2";

/// Longest time to fetch the database of advisories (s).
const FETCH_S: &str = "60";

/// `cargo deny`: licences, sources and duplicates of weir's dependencies, and advisories about them, as `deny.toml`
/// says. Runs two checks: one without the network, and one with the database of advisories if it can be fetched.
pub fn deny(workspace: &Workspace) -> Result<Tally> {
    let program = match deny_program(workspace) {
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

/// The cargo-deny in `PATH` if it has that version, or else one in cargo's home, which is built once for all checkouts.
fn deny_program(workspace: &Workspace) -> Result<PathBuf> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(env::home_dir()?.join(".cargo")));
    let root = home.map_or_else(|| workspace.target("tools"), |home| Ok(home.join("weir")))?;
    let own = root.join("bin/cargo-deny");
    for program in [PathBuf::from("cargo-deny"), own.clone()] {
        let version = process::run(&[program.as_os_str(), "--version".as_ref()]);
        if version.is_ok_and(|version| version.trim_end().ends_with(DENY_VERSION)) {
            return Ok(program);
        }
    }
    println!("building cargo-deny {DENY_VERSION}, once");
    let cargo = Workspace::cargo();
    // The dev profile takes a second for a check, and is much faster to build.
    let install = "install cargo-deny --locked --profile dev --force --quiet";
    let root = root.to_string_lossy();
    let which = ["--root", &root, "--version", DENY_VERSION];
    let argv: Vec<_> = [&*cargo].into_iter().chain(install.split(' ')).chain(which).collect();
    run_in(&argv, &workspace.root, &[("CARGO_PROFILE_DEV_DEBUG", "0".as_ref())])?;
    Ok(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_file_touches_its_crate_and_a_document_the_tests_of_documents() {
        let member = |name: &str, dir: &str| {
            let (name, dir) = (name.to_owned(), PathBuf::from(dir));
            Member { name, dir, unit_tests: BTreeSet::new() }
        };
        let members = [
            member("weir-ring", "crates/ring"),
            member("weir", "crates/cli"),
            member("xtask", "xtask"),
        ];
        let touched = |path: &str| {
            let touched = touched(&members, &[PathBuf::from(path)]);
            touched.iter().map(|member| member.name.as_str()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(touched("crates/ring/src/lib.rs"), "weir-ring");
        assert_eq!(touched("crates/ring2/src/lib.rs"), "");
        assert_eq!(touched("docs/glossary.md"), "xtask");
        assert_eq!(touched("crates/cli/README.md"), "weir xtask");
    }

    #[test]
    fn every_crate_has_unit_tests_of_some_kind() {
        let members = members(&Workspace::find().unwrap()).unwrap();
        assert!(members.len() > 20, "{members:?}");
        let xtask = members.iter().find(|member| member.name == "xtask").unwrap();
        assert_eq!((xtask.dir.as_path(), xtask.unit_tests.len()), (Path::new("xtask"), 1));
        assert!(members.iter().all(|member| !member.unit_tests.is_empty()), "{members:?}");
    }
}
