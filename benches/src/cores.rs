//! Several workers and many interfaces: what `weir bench` finds of dispatch, realizations, sharing and
//! filters.

use weir_bed::{
    error::Result,
    report::{Goal, Report},
};

use super::{Bench, weir_bench::WeirBench};

/// Four pairs of guests served by two workers and by one.
pub(super) fn two_workers(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    WeirBench {
        args: &["--two-workers"],
        seconds: Some(3),
        goals: &[("two_workers_vs_one", Goal::AtLeast(1.8))],
    }
    .measure(bench, report)
}

/// Packets of many flows while queues and flows move all the time.
pub(super) fn reorder(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    WeirBench {
        args: &["--reorder", "--packets", "20000000"],
        seconds: None,
        goals: &[
            ("reordered_packets", Goal::AtMost(0.0)),
            ("reordered_packets_lost", Goal::AtMost(0.0)),
        ],
    }
    .measure(bench, report)
}

/// Round trips and throughput of 1 to 32 interfaces, workers polling and sleeping.
pub(super) fn vifs(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    WeirBench {
        args: &["--vifs"],
        seconds: Some(1),
        goals: &[
            ("dedicated_rtt_vs_shared_1", Goal::AtMost(0.5)),
            ("dedicated_rtt_vs_shared_8", Goal::AtMost(0.5)),
        ],
    }
    .measure(bench, report)
}

/// Two cores that answer each other.
pub(super) fn ping_pong(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    WeirBench { args: &["--ping-pong"], seconds: Some(1), goals: &[] }.measure(bench, report)
}

/// How senders share a worker, and what a flood does to its neighbour.
pub(super) fn sharing(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    WeirBench {
        args: &["--sharing"],
        seconds: Some(4),
        goals: &[
            ("victim_p99_vs_alone", Goal::AtMost(2.0)),
            ("victim_throughput_vs_fair_share", Goal::AtLeast(0.95)),
            ("jain_index", Goal::AtLeast(0.99)),
            ("weight_error", Goal::AtMost(0.03)),
        ],
    }
    .measure(bench, report)
}

/// Packets with a filter of ten terms and without.
pub(super) fn filter_cost(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    WeirBench {
        args: &["--filter-cost"],
        seconds: Some(5),
        goals: &[("filter_cost", Goal::AtLeast(0.85))],
    }
    .measure(bench, report)
}

/// Interfaces that come and go under traffic.
pub(super) fn attach_detach(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    WeirBench {
        args: &["--attach-detach", "--cycles", "10000"],
        seconds: None,
        goals: &[
            ("attach_detach", Goal::AtMost(0.0)),
            ("attach_detach_threads", Goal::AtMost(0.0)),
        ],
    }
    .measure(bench, report)
}
