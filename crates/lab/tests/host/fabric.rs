//! Estimates how large a fabric under BGP EVPN may be before one of its hosts is overloaded.
//!
//! Hosts are alike, so one is simulated: its memory, its incoming traffic and, in virtual time, the
//! way of a change through `bgpd`, `zebra` and weir, each of which serves in order. The cost of a
//! route was measured in fabrics of two and three hosts; five hosts were predicted ([`MEASURED`]).

use std::fmt::Write as _;

use weir_lab::random::{Distribution, Random, Sampler};
use weir_lab::stats::Times;
use weir_limits::{
    EVPN_BATCH, EVPN_PAUSE_NS, FDB_ENTRIES_DEFAULT, FDB_ENTRIES_MAX, OVERLAY_PEERS_MAX,
};

/// Costs of a route at a host that learns it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Costs {
    /// Processor time (ns) of `bgpd`, `zebra` and weir.
    ns: [f64; 3],
    /// Memory of `bgpd`, `zebra` and weir (bytes).
    bytes: [f64; 3],
}

/// Costs by number of hosts: `cargo run -p xtask -- bench --only evpn_route`, 10,000 routes, FRR
/// 8.4.4 on an EPYC.
const MEASURED: [(u32, Costs); 3] = [
    (2, Costs { ns: [5_266.0, 12_693.0, 3_575.0], bytes: [1_993.0, 395.0, 138.0] }),
    (3, Costs { ns: [8_422.0, 16_737.0, 4_894.0], bytes: [1_973.0, 446.0, 152.0] }),
    (5, Costs { ns: [5_574.0, 15_738.0, 4_262.0], bytes: [1_972.0, 435.0, 159.0] }),
];

/// Constant delay (ns): a single address's way through FRR between two hosts
/// (`evpn_reachable_frr_ms`).
const FRR_DELAY_NS: u64 = 62_000_000;

impl Costs {
    /// Returns the mean of the costs measured with two and with three hosts.
    fn fitted() -> Self {
        let [(_, two), (_, three), _] = MEASURED;
        let mean = |a: [f64; 3], b: [f64; 3]| [0, 1, 2].map(|at: usize| (a[at] + b[at]) / 2.0);
        Self { ns: mean(two.ns, three.ns), bytes: mean(two.bytes, three.bytes) }
    }
}

/// A fabric.
#[derive(Clone, Copy, Debug)]
struct Shape {
    /// Number of hosts.
    hosts: u32,
    /// Number of guests on each host.
    guests_per_host: u32,
    /// Number of guests in each network, spread over hosts at random.
    network: u32,
    /// Starts, ends and moves of each guest per hour.
    changes_per_hour: f64,
    /// Frames per second that each guest sends to its whole network.
    floods_per_s: f64,
}

/// Load of one host.
#[derive(Clone, Debug)]
struct Outcome {
    /// Addresses behind other hosts in the host's forwarding table.
    addresses: f64,
    /// Other hosts with guests of one of the host's networks.
    peers: f64,
    /// The `fdb_entries` that the host needs.
    fdb_entries: f64,
    /// Memory of `bgpd`, `zebra` and weir for these routes (bytes).
    bytes: [f64; 3],
    /// Time from the host's start until it knows every route (ns).
    start_ns: u64,
    /// 95th percentile of a change's time on its way (ns).
    change_ns: u64,
    /// Share of a processor that the busiest program takes for changes.
    busiest: f64,
    /// Flooded frames that arrive per second.
    floods_in: f64,
    /// Copies per second that the host sends of floods by its own guests.
    floods_out: f64,
}

impl Outcome {
    /// Returns whether every network has guests on no more hosts than weir takes.
    fn has_few_peers(&self) -> bool {
        self.peers <= OVERLAY_PEERS_MAX as f64
    }

    /// Returns whether weir's forwarding table can be large enough.
    fn fits(&self) -> bool {
        self.fdb_entries <= FDB_ENTRIES_MAX as f64
    }
}

/// Plays one host of a fabric.
fn play(shape: &Shape, costs: &Costs, seed: u64) -> Outcome {
    let hosts = f64::from(shape.hosts);
    let here = f64::from(shape.guests_per_host);
    let size = f64::from(shape.network);
    let guests = hosts * here;
    let all_networks = (guests / size).max(1.0);
    // Balls and bins: the expected number of non-empty bins.
    let met = |bins: f64, balls: f64| bins * (1.0 - libm::pow(1.0 - 1.0 / bins, balls));
    let networks = met(all_networks, here);
    let addresses = (networks * size - here).max(0.0);
    let peers = met((hosts - 1.0).max(1.0), size - 1.0);
    // Half of the table is for other hosts, and a sixteenth for one network (`weir_fabric::Fdb`).
    let fdb_entries = (2.0 * addresses).max(16.0 * size).max(FDB_ENTRIES_DEFAULT as f64);
    let [bgpd, zebra, weir] = costs.bytes;
    let mut pipe = Pipe::new(costs);
    // Each host receives all routes of the fabric, and takes those of its networks.
    let taken = (addresses / guests).min(1.0);
    let mut chance = Random::stream(seed, 0);
    let mut start_ns = 0;
    for _ in 0..guests as u64 {
        start_ns = pipe.pass(0, chance.unit() <= taken);
    }
    let changes_per_s = guests * shape.changes_per_hour / 3600.0;
    let (mut pipe, mut times, mut now_ns) = (Pipe::new(costs), Times::default(), 0);
    let gap = Distribution::Exponential { mean: (1e9 / changes_per_s) as u64 };
    let mut gaps = Sampler::new(gap, Random::stream(seed, 1));
    for _ in 0..CHANGES {
        now_ns += gaps.draw();
        let is_taken = chance.unit() <= taken;
        let done_ns = pipe.pass(now_ns, is_taken);
        if is_taken {
            times.record(done_ns - now_ns + FRR_DELAY_NS);
        }
    }
    let per_s = [changes_per_s, changes_per_s * taken, changes_per_s * taken];
    let busy = [0, 1, 2].map(|at: usize| per_s[at] * costs.ns[at] / 1e9);
    Outcome {
        addresses,
        peers,
        fdb_entries,
        bytes: [bgpd * guests, zebra * addresses, weir * addresses],
        start_ns: start_ns + FRR_DELAY_NS,
        change_ns: times.quantile_ns(0.95),
        busiest: busy.into_iter().fold(0.0, f64::max),
        floods_in: networks * size * shape.floods_per_s,
        floods_out: here * shape.floods_per_s * peers.min(OVERLAY_PEERS_MAX as f64),
    }
}

/// Number of simulated changes.
const CHANGES: u32 = 20_000;

/// Three programs, each of which serves in order. weir takes waiting changes, up to a batch, and
/// pauses.
struct Pipe {
    ns: [u64; 3],
    free_ns: [u64; 3],
    /// Beginning of weir's present batch, and its size.
    batch: (u64, usize),
}

impl Pipe {
    fn new(costs: &Costs) -> Self {
        Self { ns: costs.ns.map(|ns| ns as u64), free_ns: [0; 3], batch: (0, 0) }
    }

    /// Passes a route that comes at `at_ns` and may belong to the host's networks. Returns the time
    /// of its end.
    fn pass(&mut self, at_ns: u64, is_taken: bool) -> u64 {
        let mut at_ns = self.serve(0, at_ns);
        if !is_taken {
            return at_ns;
        }
        at_ns = self.serve(1, at_ns);
        let (began_ns, taken) = self.batch;
        if at_ns > began_ns || taken == EVPN_BATCH {
            // The next batch, after a pause.
            let began_ns = at_ns.max(self.free_ns[2] + EVPN_PAUSE_NS);
            self.free_ns[2] = began_ns;
            self.batch = (began_ns, 0);
        }
        self.batch.1 += 1;
        self.free_ns[2] += self.ns[2];
        self.free_ns[2]
    }

    fn serve(&mut self, program: usize, at_ns: u64) -> u64 {
        self.free_ns[program] = self.free_ns[program].max(at_ns) + self.ns[program];
        self.free_ns[program]
    }
}

/// The fabrics in the document.
const SHAPES: [(u32, u32); 5] =
    [(10, 100), (100, 100), (1_000, 100), (10_000, 100), (1_000, 1_000)];
const NETWORKS: [u32; 3] = [20, 200, 1_000];

/// Returns the table of `docs/guide/evpn.md`.
fn table() -> String {
    let costs = Costs::fitted();
    let mut text = String::from(
        "| hosts | guests | network | peers | addresses | table | bgpd, zebra, weir MB | start s | p95 ms | floods in, out/s |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
    );
    for (hosts, guests_per_host) in SHAPES {
        for network in NETWORKS {
            let shape =
                Shape { hosts, guests_per_host, network, changes_per_hour: 1.0, floods_per_s: 0.1 };
            let it = play(&shape, &costs, 1);
            let [bgpd, zebra, weir] = it.bytes.map(|bytes| bytes / 1e6);
            let beyond = |is_beyond| if is_beyond { " ✗" } else { "" };
            let [few, fits] = [it.has_few_peers(), it.fits()].map(|holds| beyond(!holds));
            let _ = writeln!(
                text,
                "| {hosts} | {} | {network} | {:.0}{few} | {:.0} | {}{fits} | {bgpd:.0}, {zebra:.0}, {weir:.0} | {:.1} | {:.0} | \
                 {:.0}, {:.0} |",
                u64::from(hosts) * u64::from(guests_per_host),
                it.peers,
                it.addresses,
                (it.fdb_entries as u64).next_power_of_two(),
                it.start_ns as f64 / 1e9,
                it.change_ns as f64 / 1e6,
                it.floods_in,
                it.floods_out,
            );
        }
    }
    text
}

const COSTS: Costs = Costs { ns: [1_000.0, 2_000.0, 3_000.0], bytes: [1.0; 3] };

#[test]
fn what_five_hosts_took_was_told_by_two_and_three() {
    let (fitted, (hosts, five)) = (Costs::fitted(), MEASURED[2]);
    assert_eq!(hosts, 5);
    let off = |a: [f64; 3], b: [f64; 3]| [0, 1, 2].map(|at: usize| (a[at] / b[at] - 1.0).abs());
    assert!(off(fitted.ns, five.ns).into_iter().all(|off| off < 0.25));
    assert!(off(fitted.bytes, five.bytes).into_iter().all(|off| off < 0.10));
}

#[test]
fn one_route_takes_what_each_program_takes() {
    let mut pipe = Pipe::new(&COSTS);
    assert_eq!(pipe.pass(EVPN_PAUSE_NS, true), EVPN_PAUSE_NS + 6_000);
    assert_eq!(pipe.pass(2 * EVPN_PAUSE_NS, false), 2 * EVPN_PAUSE_NS + 1_000);
}

#[test]
fn many_routes_go_as_fast_as_the_slowest_program_or_weirs_batches() {
    // weir sets the pace: a batch, and a pause.
    let mut pipe = Pipe::new(&COSTS);
    let routes = 100 * EVPN_BATCH as u64;
    let last_ns = (0..routes).map(|_| pipe.pass(0, true)).last().unwrap();
    let batches_ns = 100 * (EVPN_PAUSE_NS + EVPN_BATCH as u64 * 3_000);
    assert!(last_ns.abs_diff(batches_ns) < batches_ns / 20, "{last_ns} {batches_ns}");
    // zebra sets the pace if it is slower.
    let mut pipe = Pipe::new(&Costs { ns: [1_000.0, 100_000.0, 3_000.0], ..COSTS });
    let last_ns = (0..routes).map(|_| pipe.pass(0, true)).last().unwrap();
    assert!(last_ns.abs_diff(routes * 100_000) < routes * 5_000, "{last_ns}");
}

#[test]
fn a_network_on_more_hosts_than_weir_takes_is_beyond_it() {
    let shape = |network| Shape {
        hosts: 1_000,
        guests_per_host: 10,
        network,
        changes_per_hour: 1.0,
        floods_per_s: 1.0,
    };
    let [small, large] = [20, 1_000].map(|network| play(&shape(network), &COSTS, 1));
    assert!(small.has_few_peers() && !large.has_few_peers());
    assert!(small.peers < 20.0 && large.peers > 500.0);
}

#[test]
fn changes_are_late_where_a_program_has_more_to_do_than_it_can() {
    let shape = |changes_per_hour| Shape {
        hosts: 100,
        guests_per_host: 100,
        network: 1_000,
        changes_per_hour,
        floods_per_s: 0.0,
    };
    let [calm, busy] = [1.0, 500_000.0].map(|rate| play(&shape(rate), &COSTS, 1));
    assert!(calm.busiest < 0.01 && calm.change_ns < FRR_DELAY_NS + EVPN_PAUSE_NS);
    assert!(busy.busiest > 1.0 && busy.change_ns > calm.change_ns + 300_000_000);
}

#[test]
fn the_page_has_the_table_of_this_model() {
    let page = include_str!("../../../../docs/guide/evpn.md");
    let table = table();
    assert!(page.contains(&table), "docs/guide/evpn.md is to have:\n{table}");
}
