//! The command line of `weir-bench`.

use clap::{Args, Parser, Subcommand};

/// Measures weir on this machine with built-in guests; needs no VM and no root
#[derive(Debug, Parser)]
#[command(name = "weir-bench", version, args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// Something other than to measure.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// What to measure.
    #[command(flatten)]
    pub bench: BenchArgs,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Switch traffic between built-in guests and show live figures
    Demo(DemoArgs),
}

/// `weir demo`
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// How long to run
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub seconds: u32,
    /// No live display, only lines of text (as where there is no terminal)
    #[arg(long)]
    pub plain: bool,
    /// The figures at the end as JSON, and no live display
    #[arg(long, conflicts_with = "plain")]
    pub json: bool,
}

/// `weir bench`
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("cores").conflicts_with_all(["policies", "filter_cost", "sharing"]))]
pub struct BenchArgs {
    /// How long to measure each kind of traffic; the kinds alternate in slices
    #[arg(long, value_name = "SECONDS", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub seconds: u32,
    /// As JSON
    #[arg(long)]
    pub json: bool,
    /// Only measurements whose name, or one of whose figures, contains TEXT
    #[arg(long, value_name = "TEXT")]
    pub filter: Option<String>,
    /// Compare moderation policies instead, each under the same loads
    ///
    /// Compares `auto` with the best fixed hold, load by load. Also shows the gain of containers with
    /// their adaptive timeout, and counts breaches of latency budgets by cause.
    #[arg(long)]
    pub policies: bool,
    /// Compare small packets with and without a packet filter of ten terms instead
    #[arg(long, conflicts_with_all = ["policies", "filter"])]
    pub filter_cost: bool,
    /// Measure how senders share a worker instead, and what a flood does to its neighbour
    ///
    /// Shows worker time by weight, and a victim's packets beside a flood of small ones. Senders and
    /// receivers are simulated, so the worker is the bottleneck.
    #[arg(long, conflicts_with_all = ["policies", "filter_cost"])]
    pub sharing: bool,
    /// Compare two workers with one instead
    ///
    /// Measures packets per second of worker CPU time for four pairs of guests, then packets per second
    /// with simulated senders and receivers, then one queue that the second worker helps with.
    #[arg(long, group = "cores")]
    pub two_workers: bool,
    /// Send packets of many flows while queues and flows keep moving instead, and count packets out
    /// of order
    #[arg(long, group = "cores")]
    pub reorder: bool,
    /// How many packets `--reorder` sends
    #[arg(long, value_name = "N", default_value_t = 10_000_000, requires = "reorder")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=100_000_000_000))]
    pub packets: u64,
    /// Measure round trips and throughput of 1 to 32 interfaces instead, with workers that sleep and
    /// workers that poll
    #[arg(long, group = "cores")]
    pub vifs: bool,
    /// Measure the round trip between two cores instead, polling and sleeping
    #[arg(long, group = "cores")]
    pub ping_pong: bool,
    /// Create and destroy interfaces under traffic instead, and count what is left behind
    #[arg(long, group = "cores")]
    pub attach_detach: bool,
    /// How many interfaces `--attach-detach` creates and destroys, in each execution model
    #[arg(long, value_name = "N", default_value_t = 10_000, requires = "attach_detach")]
    #[arg(value_parser = clap::value_parser!(u32).range(50..=10_000_000))]
    pub cycles: u32,
}
