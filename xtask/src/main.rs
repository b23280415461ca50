//! The tasks of `make test`, `make bench` and the demos with machines.
//!
//! Start with [`steps`], which is `make test`. Code for actual machines is in libraries: `tests/bed` is the test bed;
//! `tests/system` tests guests, front ends and Xen; `benches` compares weir with its peers.

#![forbid(unsafe_code)]

mod check;
#[cfg(test)]
mod circles;
#[cfg(test)]
mod claims;
mod demo;
mod demo_fabric;
#[cfg(test)]
mod documents;
mod elsewhere;
mod examples;
mod figures;
mod fuzz;
mod guides;
mod lines;
#[cfg(test)]
mod package;
#[cfg(test)]
mod sources;
mod steps;
mod trials;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::{Parser, Subcommand};
use weir_bed::{compatibility, error::Result, lab::Lab, packages, workspace::Workspace};
use weir_benches::instructions;
use weir_system_tests::{frontends, xen};

use crate::steps::Selection;

/// Tests and measures weir with real machines.
#[derive(Debug, Parser)]
#[command(name = "xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Check format, lints, unit tests and, as root, weir with real guests.
    Test {
        /// Only steps (`fmt`, `clippy`, `release`, `attack`, `soak`, `lab-soak`, `doc`, `deny`, `build`, `unit`,
        /// `model`, `instructions`, `examples`, `guides`, `frontends`, `xen`) and system tests whose name contains
        /// this.
        #[arg(long, value_name = "NAME")]
        only: Option<String>,
        /// A built weir to test instead of this workspace's.
        #[arg(long, value_name = "PROGRAM")]
        weir: Option<PathBuf>,
    },
    /// Check format, lints and unit tests of the crates that changed since origin/main.
    Check,
    /// Measure weir against its peers; write target/bench/report.json and report.md, and what `figures` writes.
    /// Needs root.
    Bench {
        /// Only rows whose name contains this; nothing is then written.
        #[arg(long, value_name = "NAME")]
        only: Option<String>,
        /// How often every contender is measured.
        #[arg(long, default_value_t = 5)]
        rounds: u32,
        /// A built weir to measure instead of this workspace's; nothing is then written.
        #[arg(long, value_name = "PROGRAM")]
        weir: Option<PathBuf>,
    },
    /// Write docs/figures.md, docs/bench.svg and the table of README.md from the records in docs/figures.
    Figures {
        /// First take target/bench/report.json into docs/figures/NAME.json.
        #[arg(long, value_name = "NAME")]
        record: Option<String>,
        /// The command that has measured them.
        #[arg(long, value_name = "COMMAND", requires = "record")]
        by: Option<String>,
        /// Only figures whose names begin so.
        #[arg(long, value_name = "NAME", value_delimiter = ',', requires = "record")]
        only: Vec<String>,
    },
    /// Take what `make frontends` and `make distros` have left below target into docs/compatibility.tsv, and write
    /// docs/compatibility.md.
    Compatibility,
    /// Run every attack against a running weir and measure the effect on its other guests; write
    /// target/bench/report.json and target/attack/report.md.
    Attack {
        /// Only attacks whose class or name contains this; nothing is then written.
        #[arg(long, value_name = "NAME")]
        only: Option<String>,
        /// A built weir to attack instead of this workspace's.
        #[arg(long, value_name = "PROGRAM")]
        weir: Option<PathBuf>,
    },
    /// Count instructions per packet by callgrind and compare them with docs/instructions.toml.
    Instructions {
        /// Write the counts to that file instead.
        #[arg(long)]
        record: bool,
        /// Show where they go instead: instructions and misses of the caches by stage of a packet's way, and system
        /// calls of a burst.
        #[arg(long, conflicts_with = "record")]
        stages: bool,
    },
    /// Count lines without tests, by crate, and files in git.
    Lines,
    /// Run every fuzz target for its share of the time, from the corpus in the repository.
    Fuzz {
        /// Only targets whose name contains this.
        #[arg(long, value_name = "NAME")]
        only: Option<String>,
        /// How long all of them take together.
        #[arg(long, default_value_t = 10)]
        minutes: u64,
        /// Add inputs that reach new code to the repository's corpus.
        #[arg(long)]
        keep: bool,
    },
    /// Test weir with every installed front end; write target/frontends/report.md. Needs root.
    Frontends {
        /// Only cells whose name contains this; no report is then written.
        #[arg(long, value_name = "NAME")]
        only: Option<String>,
        /// A built weir to try instead of this workspace's; no report is then written.
        #[arg(long, value_name = "PROGRAM")]
        weir: Option<PathBuf>,
    },
    /// Kill, reload, upgrade and migrate under traffic and measure what guests notice; set the figures in
    /// target/bench/report.json. Needs root.
    Survive {
        /// Only parts (`killed`, `reload`, `upgrade`, `dirty_log`, `migration`, `fabric`) whose name contains this.
        #[arg(long, value_name = "NAME")]
        only: Option<String>,
        /// Factor of the number of events; nothing is written unless it is 1.
        #[arg(long, default_value_t = 1.0)]
        scale: f64,
        /// Seed of the events; random by default.
        #[arg(long)]
        seed: Option<u64>,
        /// A built weir to try instead of this workspace's.
        #[arg(long, value_name = "PROGRAM")]
        weir: Option<PathBuf>,
    },
    /// The events of `survive`, guests that come, go and are killed, and a host that runs out of resources, at random
    /// for hours; set the figures in target/bench/report.json. Needs root.
    Soak {
        /// Hours that the soak lasts.
        #[arg(long, default_value_t = 2.0)]
        hours: f64,
        /// Seed of the events; random by default.
        #[arg(long)]
        seed: Option<u64>,
        /// A built weir to try instead of this workspace's.
        #[arg(long, value_name = "PROGRAM")]
        weir: Option<PathBuf>,
    },
    /// Check all crates for aarch64, and run unit tests of some under qemu-user.
    Aarch64,
    /// Run all lines of the guides for the lab and for the benchmark, those that take minutes as well.
    Guides {
        /// A built weir to run instead of this workspace's.
        #[arg(long, value_name = "PROGRAM")]
        weir: Option<PathBuf>,
    },
    /// Boot two Linux guests on weir and send traffic between them. Needs root.
    DemoVm {
        /// A built weir to show instead of this workspace's.
        #[arg(long, value_name = "PROGRAM")]
        weir: Option<PathBuf>,
    },
    /// Show three hosts under BGP EVPN, with a guest that moves and a host that dies; write
    /// target/demo-fabric/report.md. Needs root.
    DemoFabric {
        /// A built weir to show instead of this workspace's, with `examples/guests` beside it.
        #[arg(long, value_name = "PROGRAM")]
        weir: Option<PathBuf>,
    },
    /// Run the system tests with FRR: the installed one, and that of each root that WEIR_FRR_ROOT names. Needs root.
    Fabric,
    /// Run weir on a real Xen, under QEMU, and compare it with the kernel's back end.
    Xen {
        /// Only scenarios whose name contains this; the comparison is called `figures`.
        #[arg(long, value_name = "NAME")]
        only: Option<String>,
        /// A built weir to test instead of this workspace's.
        #[arg(long, value_name = "PROGRAM")]
        weir: Option<PathBuf>,
        /// How often a guest's interface is attached and detached before the check for mapped grants.
        #[arg(long, default_value_t = xen::ATTACHMENTS)]
        attachments: u32,
        /// How often weir and the kernel's back end are compared.
        #[arg(long, default_value_t = xen::ROUNDS, value_parser = clap::value_parser!(u32).range(1..))]
        rounds: u32,
        /// Tie guest time to executed instructions (QEMU -icount): slower, but independent of this
        /// host's other load.
        #[arg(long)]
        icount: bool,
    },
    /// Install the packages that the other tasks need. Needs root.
    Packages {
        /// Only what building weir needs.
        #[arg(long)]
        to_build: bool,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse().task) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> Result<ExitCode> {
    let workspace = Workspace::find()?;
    packages::ensure_to_build()?;
    match task {
        Task::Test { only, weir } => {
            return Ok(steps::run(&workspace, &Selection { only, weir }).report());
        }
        Task::Check => return Ok(check::run(&workspace)?.report()),
        Task::Xen { only, weir, attachments, rounds, icount } => {
            let clock = if icount { xen::Clock::Instructions } else { xen::Clock::Host };
            let rounds = Some(rounds);
            let selection = xen::Selection { only, weir, attachments, rounds, clock };
            return Ok(xen::run(&workspace, &selection)?.report());
        }
        Task::Bench { only, rounds, weir } => {
            need_root()?;
            // A report with some rows serves `figures --record NAME --only ROWS`. Figures of another weir are not
            // written to a report.
            let (is_own, complete) = (weir.is_none(), weir.is_none() && only.is_none());
            let lab = Lab::prepare(workspace, weir)?;
            let report = weir_benches::run(&lab, rounds, only.as_deref())?;
            if is_own {
                for path in report.write(&lab.workspace)? {
                    println!("written: {}", path.display());
                }
            }
            if complete {
                figures::write(&lab.workspace)?;
                println!(
                    "`cargo run -p xtask -- figures --record NAME` takes this report into docs/figures"
                );
            }
            if report.failures() > 0 {
                return Ok(ExitCode::FAILURE);
            }
        }
        Task::Figures { record, by, only } => {
            if let Some(name) = record {
                figures::record(&workspace, &name, by.as_deref(), &only)?;
            }
            figures::write(&workspace)?;
        }
        Task::Compatibility => {
            for path in compatibility::take(&workspace)? {
                println!("written: {}", path.display());
            }
        }
        Task::Attack { only, weir } => {
            let selection = Selection { only, weir };
            if !trials::measured(&workspace, &selection)? {
                return Ok(ExitCode::FAILURE);
            }
        }
        Task::Survive { only, scale, seed, weir } => {
            need_root()?;
            let selection = Selection { only, weir };
            if !trials::survive(&workspace, &selection, scale, seed)? {
                return Ok(ExitCode::FAILURE);
            }
        }
        Task::Soak { hours, seed, weir } => {
            need_root()?;
            let selection = Selection { only: None, weir };
            if !trials::soak(&workspace, &selection, hours, seed)? {
                return Ok(ExitCode::FAILURE);
            }
        }
        Task::Instructions { stages: true, .. } => instructions::show(&workspace)?,
        Task::Instructions { record: true, .. } => {
            println!("written: {}", instructions::record(&workspace)?.display());
        }
        Task::Instructions { record: false, .. } => match instructions::compare(&workspace)? {
            instructions::Outcome::Held => {}
            instructions::Outcome::Grew => return Ok(ExitCode::FAILURE),
            instructions::Outcome::Incomparable(why) => println!("not compared: {why}"),
        },
        Task::Lines => print!("{}", lines::table(&workspace)?),
        Task::Fuzz { only, minutes, keep } => {
            let time = Duration::from_secs(60 * minutes);
            if !fuzz::run(&workspace, &fuzz::Selection { only, time, keep })? {
                return Ok(ExitCode::FAILURE);
            }
        }
        Task::Frontends { only, weir } => {
            need_root()?;
            return Ok(frontends::run(workspace, only, weir)?.report());
        }
        Task::Aarch64 => return Ok(elsewhere::aarch64(&workspace)?.report()),
        Task::Guides { weir } => {
            let selection = Selection { only: None, weir };
            return Ok(guides::check(&workspace, &selection, true)?.report());
        }
        Task::DemoVm { weir } => {
            need_root()?;
            demo::vm(&Lab::prepare(workspace, weir)?)?;
        }
        Task::DemoFabric { weir } => {
            need_root()?;
            demo_fabric::run(&Lab::prepare_fabric(workspace, weir)?)?;
        }
        Task::Fabric => {
            need_root()?;
            elsewhere::frr(&workspace)?;
        }
        // The packages to build are installed before every task.
        Task::Packages { to_build: true } => {}
        Task::Packages { to_build: false } => {
            need_root()?;
            packages::ensure(&workspace)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Only root may make namespaces and TAPs, reserve huge pages, and install packages.
fn need_root() -> Result<()> {
    weir_bed::error::check(packages::is_root(), || {
        let missing = packages::missing();
        let missing = if missing.is_empty() { String::from("none") } else { missing.join(" ") };
        format!("this needs root (missing packages: {missing})")
    })
}
