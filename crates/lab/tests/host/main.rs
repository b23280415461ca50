//! The host model: invariants of any run, and known results of simple ones.

mod fabric;
mod guests;
mod realization;
mod workers;

use weir_lab::cpus::{Class, WEIGHT_USUAL};
use weir_lab::host::run;
use weir_lab::profile::Profile;
use weir_lab::random::Distribution;
use weir_lab::realization::Realization;
use weir_lab::report::Report;
use weir_lab::scenario::{Calls, Endpoint, Guest, Load, LoadKind, Scenario, Thread, Uplink};
use weir_lab::topology::Topology;
use weir_policy::moderation::Kind;

const MS: u64 = 1_000_000;
const FAIR: Class = Class::Fair { weight: WEIGHT_USUAL };
const A: Endpoint = Endpoint::Guest(0);
const B: Endpoint = Endpoint::Guest(1);
const PEER: Endpoint = Endpoint::Peer(0);
/// The uplink's delay (ns).
const DELAY_NS: u64 = 10_000;

fn calls(kind: Kind) -> Calls {
    Calls { kind, latency_budget_ns: 250_000, rx_ns: None, rx_frames: None }
}

/// Builds a worker, two guests and an uplink of 10 Gbit/s, each thread on its own core.
fn host(kind: Kind, loads: Vec<Load>) -> Scenario {
    Scenario {
        seed: 1,
        topology: Topology::flat(3),
        profile: Profile::example(),
        workers: vec![Thread { cpus: vec![0], class: FAIR }],
        guests: vec![Guest::new("a", &[1], calls(kind)), Guest::new("b", &[2], calls(kind))],
        uplinks: vec![Uplink {
            name: "lan".to_owned(),
            bits_per_s: 10_000_000_000,
            delay_ns: DELAY_NS,
            queue_max: 1_000,
            ring: 512,
            hold_ns: 0,
        }],
        first_worker: None,
        dispatch: None,
        rivals: Vec::new(),
        realization: Realization::default(),
        loads,
        start_ns: 0,
        warm_up_ns: 20 * MS,
        run_ns: 50 * MS,
        law: &weir_policy::law::LAW,
        check_each_event: false,
    }
}

fn load(from: Endpoint, to: Endpoint, kind: LoadKind) -> Load {
    Load { name: format!("{from:?} to {to:?}"), from, to, kind }
}

/// Builds a load of 64-byte frames.
fn datagrams(from: Endpoint, to: Endpoint, gap: Distribution) -> Load {
    let bytes = Distribution::Constant(64);
    load(from, to, LoadKind::Datagrams { bytes, gap, on_off: None })
}

fn every(gap_ns: u64) -> Distribution {
    Distribution::Constant(gap_ns)
}

fn requests(from: Endpoint, to: Endpoint, outstanding: u32) -> Load {
    let think = Distribution::Uniform { min: 0, max: 200 };
    let (request_bytes, answer_bytes, serve_ns) = (64, 64, 1_000);
    let kind = LoadKind::Requests { outstanding, request_bytes, answer_bytes, think, serve_ns };
    load(from, to, kind)
}

fn stream(from: Endpoint, to: Endpoint, window: u32) -> Load {
    load(from, to, LoadKind::Stream { segment_bytes: 1_514, window })
}

#[track_caller]
fn report(scenario: &Scenario) -> Report {
    match run(scenario) {
        Ok(report) => report,
        Err(error) => panic!("{error}"),
    }
}

/// Asserts that `got` differs from `expected` by at most `share` of it.
#[track_caller]
fn about(got: f64, expected: f64, share: f64) {
    assert!((got / expected - 1.0).abs() <= share, "{got} is not about {expected}");
}
