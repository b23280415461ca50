//! The command line of `weir-lab`.

use std::path::PathBuf;

use clap::{Args, Parser};

/// Default number of seeds of `weir lab ablation`.
const ABLATION_SEEDS: u64 = 3;

/// Runs the papers' experiments in virtual time and compares the figures
#[derive(Debug, Parser)]
#[command(name = "weir-lab", version)]
pub enum LabCommand {
    /// List the experiments
    List {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Run experiments; for one seed the output is the same on every machine
    Run(LabRunArgs),
    /// Run experiments and write a page with their plots, verdicts and costs
    Report(LabReportArgs),
    /// Simulate settings of weir on a host, and print the best one with its weir.toml
    Plan(LabPlanArgs),
    /// Measure this machine for some seconds and print its profile; the machine should be idle
    ///
    /// As root, it disables CPU idle states and keeps other threads off the CPUs meanwhile.
    Calibrate {
        /// How quiet the CPUs are meanwhile
        #[command(flatten)]
        quiet: QuietArgs,
    },
    /// Measure this machine, predict how a switch with guests performs on it, and check by measurement
    ///
    /// Takes about a minute on an idle machine with two CPUs. As root, it disables idle states and keeps other threads off the CPUs.
    /// Fails if half of the predictions are off by more than 15 percent, or one by more than 35.
    Validate(LabValidateArgs),
    /// Play `auto` without each mechanism of the law of control, and show what that loses
    Ablation(LabAblationArgs),
    /// Inject faults into random hosts until an invariant breaks
    Soak(LabSoakArgs),
    /// Check an experiment file and show what it would run
    Check {
        /// The experiment
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// The machine's profile, in place of the experiment's
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
    /// Vary each fitted cost of the machine by 10, 25 and 50 percent, and show the verdict on each claim
    #[arg(long)]
    pub sensitivity: bool,
    /// Also measure on a switch with built-in guests, where this machine allows
    #[arg(long, conflicts_with = "sensitivity")]
    pub measured: bool,
    /// The profile of the machine, in place of the experiment's
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
}

/// `weir lab plan`
#[derive(Debug, Args)]
#[command(
    after_help = "Exit code 1: no simulated setting meets every limit of the file; the nearest is shown."
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

/// How quiet the measured CPUs are.
#[derive(Debug, Default, Args)]
pub struct QuietArgs {
    /// Leave idle states of the CPUs enabled; their cost differs from one second to the next
    #[arg(long)]
    pub idle_states: bool,
    /// Let other threads run on the measured CPUs; results vary more
    #[arg(long)]
    pub fair: bool,
}

/// `weir lab ablation`
#[derive(Debug, Args)]
#[command(
    after_help = "A cell is the largest loss of a point in percent, of breaches the increase a million; - is none of 3 percent or more beyond the spread of the seeds."
)]
pub struct LabAblationArgs {
    /// Experiments that `weir lab list` lists, or files; those of `auto` without any
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// How many seeds each point is played with
    #[arg(long, value_name = "N", default_value_t = ABLATION_SEEDS, value_parser = clap::value_parser!(u64).range(1..=100))]
    pub seeds: u64,
    /// As JSON
    #[arg(long, conflicts_with = "markdown")]
    pub json: bool,
    /// As a table in Markdown
    #[arg(long)]
    pub markdown: bool,
}

/// `weir lab validate`
#[derive(Debug, Args)]
pub struct LabValidateArgs {
    /// How quiet the CPUs are meanwhile
    #[command(flatten)]
    pub quiet: QuietArgs,
    /// An experiment in place of the one that comes with weir
    #[arg(value_name = "FILE")]
    pub experiment: Option<PathBuf>,
    /// This machine's profile; by default it is measured first
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

/// Parses a number of rounds.
fn rounds(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(rounds @ 1..=100) => Ok(rounds),
        _ => Err("expected 1 to 100".into()),
    }
}

/// `weir lab soak`
#[derive(Debug, Args)]
pub struct LabSoakArgs {
    /// Stop after this time; by default at Ctrl-C
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    pub seconds: Option<u64>,
    /// The first seed; by default taken from the clock
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
    /// Write a self-contained page to this file [default: lab-report.html, without --markdown and --verdicts]
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write the report as Markdown, with plots as SVG files, to this folder
    #[arg(long, value_name = "FOLDER")]
    pub markdown: Option<PathBuf>,
    /// Write the verdicts alone, as one page of Markdown with digests of the results, to this file
    #[arg(long, value_name = "FILE")]
    pub verdicts: Option<PathBuf>,
    /// Also vary each fitted cost of the machines by 10, 25 and 50 percent; takes about 25 times as long
    #[arg(long)]
    pub sensitivity: bool,
    /// Also measure on a switch with built-in guests, where this machine allows, and draw it as crosses
    #[arg(long)]
    pub measured: bool,
    /// The seed, in place of those of the experiments
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// The profile of the machine, in place of those of the experiments
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
}
