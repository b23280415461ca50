//! `weir bench` and `weir demo` on the command line.

use clap::Args;

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
}

/// `weir bench`
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("cores").conflicts_with_all(["policies", "filter_cost", "sharing"]))]
pub struct BenchArgs {
    /// How long to measure each kind of traffic, in slices that alternate
    #[arg(long, value_name = "SECONDS", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub seconds: u32,
    /// As JSON
    #[arg(long)]
    pub json: bool,
    /// Only measurements whose name, or a figure of which, contains TEXT
    #[arg(long, value_name = "TEXT")]
    pub filter: Option<String>,
    /// Compare moderation policies instead, each under the same loads
    ///
    /// How `auto` does against the best of those with a fixed hold, load by load; what containers and
    /// their adaptive timeout gain; and how often a latency budget is exceeded, and why.
    #[arg(long)]
    pub policies: bool,
    /// Compare small packets with a packet filter of ten terms and without one instead
    #[arg(long, conflicts_with_all = ["policies", "filter"])]
    pub filter_cost: bool,
    /// Measure how senders share a worker instead, and what a flood does to its neighbour
    ///
    /// Worker time by weight, and a victim's packets beside a flood of small ones. Senders and receivers are
    /// played, so that the worker is what there is too little of.
    #[arg(long, conflicts_with_all = ["policies", "filter_cost"])]
    pub sharing: bool,
    /// Measure what two workers do against one instead
    ///
    /// Four pairs of guests, packets for each second of the workers' CPU time; and the same with senders and
    /// receivers that are played, by the clock; and one queue that the second worker helps with.
    #[arg(long, group = "cores")]
    pub two_workers: bool,
    /// Send packets of many flows while queues and flows move all the time instead, and count those out
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
    /// Measure how fast two cores answer each other instead, polling and woken
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
