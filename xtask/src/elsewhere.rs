//! weir's tests on other systems: `make fabric`, networks under BGP EVPN with each installed FRR, and `make aarch64`.
//! There the compiler checks all crates, and unit tests run under QEMU's user-mode emulation, except those that need
//! more than it supports.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use weir_bed::{
    compatibility::{self, Row},
    error::{Error, Result, Tally, check},
    fabric::{FRR_ROOT, Frr},
    packages,
    process::run as output,
    workspace::Workspace,
};

use crate::steps::{self, tests};

/// Modules of the overlay's system tests in which FRR runs.
const FRR_TESTS: [&str; 2] = ["evpn::", "suppress::"];

/// Runs the tests with this system's FRR and with the FRR of each root in [`FRR_ROOT`], a list separated by colons.
pub fn frr(workspace: &Workspace) -> Result<()> {
    let (mut tried, mut failed) = (Vec::new(), Vec::new());
    let results = workspace.target("fabric")?.join("frr.tsv");
    let date = output(&["date", "+%F"])?.trim().to_owned();
    for root in roots(env::var_os(FRR_ROOT).unwrap_or_default().to_string_lossy().as_ref()) {
        let Some(version) = Frr::version_in(&root) else {
            println!("skipped: no FRR in {}", root.display());
            continue;
        };
        println!("{version} in {}", root.display());
        let mut command = Command::new(env::var("CARGO").unwrap_or_else(|_| "cargo".into()));
        command.args(["test", "-p", "weir", "--test", "overlay", "--"]).args(FRR_TESTS);
        command.current_dir(&workspace.root).env_remove(FRR_ROOT);
        if root != Path::new("/") {
            command.env(FRR_ROOT, &root);
        }
        let status = command.status().map_err(Error::io("run cargo in", &workspace.root))?;
        let (verdict, why) = match status.success() {
            true => ("works", ""),
            false => ("FAILED", "a system test of networks under FRR"),
        };
        let row = Row {
            what: format!("FRR of Debian {}", release(&root)),
            version: version.rsplit(' ').next().unwrap_or("-").into(),
            tried: "networks under BGP EVPN: the system tests with FRR".into(),
            verdict: verdict.into(),
            date: date.clone(),
            why: why.into(),
        };
        compatibility::leave(&results, vec![row])?;
        if !status.success() {
            failed.push(version.clone());
        }
        tried.push(version);
    }
    check(!tried.is_empty(), || {
        format!("no FRR: apt-get install frr, or name a root that has it in {FRR_ROOT}")
    })?;
    println!("tried: {}", tried.join(", "));
    check(failed.is_empty(), || format!("failed: {}", failed.join(", ")))
}

/// The release of the Debian at `root`.
fn release(root: &Path) -> String {
    let text = fs::read_to_string(root.join("etc/os-release")).unwrap_or_default();
    let id = text.lines().find_map(|line| line.strip_prefix("VERSION_ID="));
    id.map_or_else(|| "sid".into(), |id| id.trim_matches('"').into())
}

/// The root of this system, and then the other roots, each once.
fn roots(named: &str) -> Vec<PathBuf> {
    let mut all = vec![PathBuf::from("/")];
    for root in named.split(':').filter(|root| !root.is_empty()).map(PathBuf::from) {
        if !all.contains(&root) {
            all.push(root);
        }
    }
    all
}

const TRIPLE: &str = "aarch64-unknown-linux-gnu";

/// Crates whose tests need no libpcap for aarch64, and are not too slow under emulation.
const TESTED: &[&str] = &[
    "weir-agent",
    "weir-evpn",
    "weir-fabric",
    "weir-guestmem",
    "weir-netif",
    "weir-ring",
    "weir-text",
    "weir-topology",
    "weir-wire",
];

/// Tests of kernel features that QEMU's user-mode emulation lacks: terminals, netlink, core dumps, SIGBUS.
const NOT_EMULATED: &[&str] = &[
    "a_terminal_carries_lines_as_they_are",
    "guests_memory_is_not_in_core_dumps",
    "root_changes_that_are_lost_are_found_by_reading_all",
    "root_who_",
    "truncated_memory_is_repaired",
];

/// The linker and the emulator for aarch64, from Debian's packages, with the path of their libraries.
const LINKER: &str = "aarch64-linux-gnu-gcc";
const RUNNER: &str = "qemu-aarch64 -L /usr/aarch64-linux-gnu";

/// Checks all crates, and runs tests of some.
pub fn aarch64(workspace: &Workspace) -> Result<Tally> {
    let all = ["check", "--workspace", "--all-targets", "--target", TRIPLE];
    let mut tally = steps::check(workspace, "cargo check", &all)?;
    if let Err(error) = packages::ensure_for_aarch64(workspace) {
        println!("{error}");
    }
    let is_installed = |program: &&str| Path::new("/usr/bin").join(program).exists();
    if ![LINKER, "qemu-aarch64"].iter().all(is_installed) {
        println!("skipped: {LINKER} and qemu-aarch64 are not installed: unit tests of {TRIPLE}");
        tally += Tally::skipped();
        return Ok(tally);
    }
    let mut args = vec!["--lib", "--bins", "--target", TRIPLE];
    args.extend(TESTED.iter().flat_map(|name| ["-p", *name]));
    args.push("--");
    args.extend(NOT_EMULATED.iter().flat_map(|name| ["--skip", *name]));
    let environment = [
        ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER),
        ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", RUNNER),
    ];
    tally += tests(workspace, &args, &environment)?;
    Ok(tally)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_root_is_tried_once_and_this_system_first() {
        let of = |named| roots(named).iter().map(|it| it.display().to_string()).collect::<Vec<_>>();
        assert_eq!(of(""), ["/"]);
        assert_eq!(of("/a::/b:/a:/"), ["/", "/a", "/b"]);
    }

    #[test]
    fn the_tests_with_frr_are_there() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/cli/tests/overlay");
        for module in FRR_TESTS {
            let file = dir.join(module.replace("::", ".rs"));
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            assert!(text.contains("has_frr()"), "{}", file.display());
        }
    }
}
