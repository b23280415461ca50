//! Moderation policies side by side: the figures of `weir bench --policies`.
//!
//! Guests are weir's own, in its process. Each setting of a load takes its turn in each round; ratios are taken
//! within a round.

use weir_bed::{
    error::Result,
    report::{Goal, Report},
};

use super::{Bench, weir_bench::WeirBench};

/// `auto` and the settings with a fixed hold, over the grid of loads.
pub(super) fn grid(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    WeirBench {
        args: &["--policies", "--filter", "auto_vs_best_static"],
        seconds: Some(5),
        goals: &[("auto_vs_best_static", Goal::AtLeast(0.95))],
    }
    .measure(bench, report)
}

/// Request-response under `auto` and under `immediate`.
pub(super) fn request_response(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    WeirBench {
        args: &["--policies", "--filter", "rr_latency"],
        seconds: Some(5),
        goals: &[("rr_latency_vs_immediate", Goal::AtMost(1.05))],
    }
    .measure(bench, report)
}

/// Packets in containers and packets by themselves.
pub(super) fn aggregate(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    WeirBench {
        args: &["--policies", "--filter", "aggregate_pps"],
        seconds: Some(4),
        goals: &[("aggregate_pps_vs_single", Goal::AtLeast(1.5))],
    }
    .measure(bench, report)
}

/// Containers whose timeout follows the traffic, and those with a fixed one.
pub(super) fn adaptive(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    WeirBench {
        args: &["--policies", "--filter", "adaptive_"],
        seconds: Some(4),
        goals: &[
            ("adaptive_delay_vs_fixed", Goal::AtMost(0.3)),
            ("adaptive_jitter_vs_fixed", Goal::AtMost(0.3)),
            ("adaptive_pps_vs_fixed", Goal::AtLeast(0.98)),
        ],
    }
    .measure(bench, report)
}

/// What guests are told later than their budgets allow.
pub(super) fn breaches(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    WeirBench {
        args: &["--policies", "--filter", "budget_breaches"],
        seconds: Some(5),
        goals: &[("budget_breaches_per_million", Goal::AtMost(10.0))],
    }
    .measure(bench, report)
}
