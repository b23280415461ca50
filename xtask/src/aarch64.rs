//! `make aarch64`: weir on aarch64. The compiler checks all crates. Unit tests run under QEMU's user-mode emulation,
//! except for those that need more than it supports.

use std::path::Path;

use weir_bed::{
    error::{Result, Tally},
    packages,
    workspace::Workspace,
};

use crate::steps::{check, tests};

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
pub fn run(workspace: &Workspace) -> Result<Tally> {
    let all = ["check", "--workspace", "--all-targets", "--target", TRIPLE];
    let mut tally = check(workspace, "cargo check", &all)?;
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
