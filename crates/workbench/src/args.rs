//! `weir lab` on the command line.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// `weir lab`
#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// List the experiments
    List,
    /// Run experiments; for one seed the output is the same on every machine
    Run(LabRunArgs),
    /// Run experiments and write a page with their plots, verdicts and costs
    Report(LabReportArgs),
    /// Play what weir could be told on a host, and say which is best for it, with its weir.toml
    Plan(LabPlanArgs),
    /// Measure this machine and print a profile of it; takes some seconds, and wants an idle machine
    ///
    /// As root it keeps the CPUs from their idle states meanwhile, and other threads from the CPUs.
    Calibrate {
        /// What the CPUs may do meanwhile
        #[command(flatten)]
        quiet: QuietArgs,
    },
    /// Measure this machine, predict from that what a switch with guests does on it, and measure that, too
    ///
    /// Takes about a minute, and wants an idle machine with two CPUs, which it has to itself as root, without their idle states.
    /// It fails where half of the predictions are more than 15 percent off, or one is more than 35.
    Validate(LabValidateArgs),
    /// Let things go wrong on hosts drawn by chance, until an invariant does not hold
    Soak(LabSoakArgs),
    /// Check an experiment of your own and say what it would run
    Check {
        /// The experiment
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// The profile of the machine, where the experiment names another
        #[arg(long, value_name = "FILE")]
        profile: Option<PathBuf>,
    },
}

/// `weir lab run`
#[derive(Debug, Args)]
pub struct LabRunArgs {
    /// An experiment that `weir lab list` lists, or a file
    #[arg(value_name = "NAME", required_unless_present = "all")]
    pub name: Option<String>,
    /// All experiments that `weir lab list` lists
    #[arg(long, conflicts_with = "name")]
    pub all: bool,
    /// The seed, in place of those of the experiment
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// As JSON
    #[arg(long)]
    pub json: bool,
    /// Vary each fitted cost of the machine by 10, 25 and 50 percent, and show what the claims come to
    #[arg(long)]
    pub sensitivity: bool,
    /// Also measure, on a switch with built-in guests, what can be measured here
    #[arg(long, conflicts_with = "sensitivity")]
    pub measured: bool,
    /// The profile of the machine, in place of the experiment's
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
}

/// `weir lab plan`
#[derive(Debug, Args)]
#[command(
    after_help = "Exit code 1: nothing that was played does all that the file asks for; the nearest is shown."
)]
pub struct LabPlanArgs {
    /// The host, its groups of VMs and their loads: docs/guide/lab.md; or `example`, which comes with weir
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The seed, in place of those of the file
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// As JSON
    #[arg(long)]
    pub json: bool,
    /// The profile of the machine, in place of the file's
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
}

/// Of what is measured.
#[derive(Debug, Default, Args)]
pub struct QuietArgs {
    /// Leave CPUs that have nothing to do to their idle states: what that costs differs from one second to the next
    #[arg(long)]
    pub idle_states: bool,
    /// Leave what is measured among all other threads: what they take differs, too
    #[arg(long)]
    pub fair: bool,
}

/// `weir lab validate`
#[derive(Debug, Args)]
pub struct LabValidateArgs {
    /// What the CPUs may do meanwhile
    #[command(flatten)]
    pub quiet: QuietArgs,
    /// An experiment in place of the one that comes with weir
    #[arg(value_name = "FILE")]
    pub experiment: Option<PathBuf>,
    /// The profile of this machine; it is measured first without one
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// How often each setting is measured; the median counts
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = rounds)]
    pub rounds: usize,
    /// The seed, in place of those of the experiment
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

/// How often something is measured.
fn rounds(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(rounds @ 1..=100) => Ok(rounds),
        _ => Err("expected 1 to 100".into()),
    }
}

/// `weir lab soak`
#[derive(Debug, Args)]
pub struct LabSoakArgs {
    /// End after so long; without it, at Ctrl-C
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    pub seconds: Option<u64>,
    /// The first seed; without it, one by the clock
    #[arg(long, value_name = "N")]
    pub from: Option<u64>,
    /// Play this seed and no other
    #[arg(long, value_name = "N", conflicts_with_all = ["seconds", "from"])]
    pub seed: Option<u64>,
}

/// `weir lab report`
#[derive(Debug, Args)]
pub struct LabReportArgs {
    /// Experiments that `weir lab list` lists, or files
    #[arg(value_name = "NAME", required_unless_present = "all")]
    pub names: Vec<String>,
    /// All experiments that `weir lab list` lists
    #[arg(long, conflicts_with = "names")]
    pub all: bool,
    /// The page: one file that needs no other [default: lab-report.html, without --markdown]
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// A folder for the same as Markdown with plots as SVG files
    #[arg(long, value_name = "FOLDER")]
    pub markdown: Option<PathBuf>,
    /// Also vary each fitted cost of the machines by 10, 25 and 50 percent; takes some 25 times as long
    #[arg(long)]
    pub sensitivity: bool,
    /// Also measure, on a switch with built-in guests, what can be measured here, and draw it as crosses
    #[arg(long)]
    pub measured: bool,
    /// The seed, in place of those of the experiments
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// The profile of the machine, in place of those of the experiments
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
}
