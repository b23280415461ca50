//! How large a fabric under BGP EVPN may be before one of its hosts has too much to do.
//!
//! Hosts are alike, so one is played: what it must remember, what comes to it, and, in virtual time, how long a change
//! takes on its way through `bgpd`, `zebra` and weir, each of which serves in order. What a route costs was measured in
//! fabrics of two and three hosts; five hosts were predicted ([`MEASURED`]).

use std::fmt::Write as _;

use weir_limits::{
    EVPN_BATCH, EVPN_PAUSE_NS, FDB_ENTRIES_DEFAULT, FDB_ENTRIES_MAX, OVERLAY_PEERS_MAX,
};

use crate::random::{Distribution, Random, Sampler};
use crate::stats::Times;

/// What a route takes of a host that hears of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Processor time (ns) of `bgpd`, `zebra` and weir.
    pub ns: [f64; 3],
    /// Their memory (bytes).
    pub bytes: [f64; 3],
}

/// By numbers of hosts: `cargo run -p xtask -- bench --only evpn_route`, 10,000 routes, FRR 8.4.4 on an EPYC.
pub const MEASURED: [(u32, Costs); 3] = [
    (2, Costs { ns: [5_266.0, 12_693.0, 3_575.0], bytes: [1_993.0, 395.0, 138.0] }),
    (3, Costs { ns: [8_422.0, 16_737.0, 4_894.0], bytes: [1_973.0, 446.0, 152.0] }),
    (5, Costs { ns: [5_574.0, 15_738.0, 4_262.0], bytes: [1_972.0, 435.0, 159.0] }),
];

/// What does not grow with what there is to do (ns): a single address's way through FRR of two hosts
/// (`evpn_reachable_frr_ms`).
const FRR_DELAY_NS: u64 = 62_000_000;

impl Costs {
    /// The mean of what was measured with two and with three hosts.
    pub fn fitted() -> Self {
        let [(_, two), (_, three), _] = MEASURED;
        let mean = |a: [f64; 3], b: [f64; 3]| [0, 1, 2].map(|at: usize| (a[at] + b[at]) / 2.0);
        Self { ns: mean(two.ns, three.ns), bytes: mean(two.bytes, three.bytes) }
    }
}

/// A fabric.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Hosts.
    pub hosts: u32,
    /// Guests on each.
    pub guests_per_host: u32,
    /// Guests of each network, spread over hosts by chance.
    pub network: u32,
    /// How often each guest starts, ends or moves in an hour.
    pub changes_per_hour: f64,
    /// Frames for all of its network that each guest sends in a second.
    pub floods_per_s: f64,
}

/// What that is for one host.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Addresses behind other hosts in its forwarding table.
    pub addresses: f64,
    /// Other hosts with guests of one of its networks.
    pub peers: f64,
    /// The `fdb_entries` that it needs.
    pub fdb_entries: f64,
    /// Memory (bytes) of `bgpd`, `zebra` and weir for all that.
    pub bytes: [f64; 3],
    /// From its start until it knows all (ns).
    pub start_ns: u64,
    /// Changes that come to it in a second.
    pub changes_per_s: f64,
    /// How long 95 of 100 changes take to get through, at most (ns).
    pub change_ns: u64,
    /// The part of a processor that its busiest program takes for them.
    pub busiest: f64,
    /// Frames for all that come to it in a second.
    pub floods_in: f64,
    /// Copies of its own guests' that it sends in a second.
    pub floods_out: f64,
}

impl Outcome {
    /// Whether no network has guests on more hosts than weir takes.
    pub fn has_few_peers(&self) -> bool {
        self.peers <= OVERLAY_PEERS_MAX as f64
    }

    /// Whether weir's forwarding table can be as large.
    pub fn fits(&self) -> bool {
        self.fdb_entries <= FDB_ENTRIES_MAX as f64
    }
}

/// Plays one host of a fabric.
pub fn play(shape: &Shape, costs: &Costs, seed: u64) -> Outcome {
    let hosts = f64::from(shape.hosts);
    let here = f64::from(shape.guests_per_host);
    let size = f64::from(shape.network);
    let guests = hosts * here;
    let all_networks = (guests / size).max(1.0);
    // Balls and bins: how many different ones are met.
    let met = |bins: f64, balls: f64| bins * (1.0 - libm::pow(1.0 - 1.0 / bins, balls));
    let networks = met(all_networks, here);
    let addresses = (networks * size - here).max(0.0);
    let peers = met((hosts - 1.0).max(1.0), size - 1.0);
    // Half of the table is for other hosts, and a sixteenth for one network (`weir_fabric::Fdb`).
    let fdb_entries = (2.0 * addresses).max(16.0 * size).max(FDB_ENTRIES_DEFAULT as f64);
    let [bgpd, zebra, weir] = costs.bytes;
    let mut pipe = Pipe::new(costs);
    // All of a fabric's routes are sent to each host, which takes those of its networks.
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
        changes_per_s,
        change_ns: times.quantile_ns(0.95),
        busiest: busy.into_iter().fold(0.0, f64::max),
        floods_in: networks * size * shape.floods_per_s,
        floods_out: here * shape.floods_per_s * peers.min(OVERLAY_PEERS_MAX as f64),
    }
}

/// Changes that are played.
const CHANGES: u32 = 20_000;

/// Three programs, each of which serves what comes in order. weir takes what is there, up to a batch, and pauses.
struct Pipe {
    ns: [u64; 3],
    free_ns: [u64; 3],
    /// When weir's batch under way began, and how many it has.
    batch: (u64, usize),
}

impl Pipe {
    fn new(costs: &Costs) -> Self {
        Self { ns: costs.ns.map(|ns| ns as u64), free_ns: [0; 3], batch: (0, 0) }
    }

    /// A route that comes at a time (ns), and is of one of the host's networks or not; when it is through.
    fn pass(&mut self, at_ns: u64, is_taken: bool) -> u64 {
        let mut at_ns = self.serve(0, at_ns);
        if !is_taken {
            return at_ns;
        }
        at_ns = self.serve(1, at_ns);
        let (began_ns, taken) = self.batch;
        if at_ns > began_ns || taken == EVPN_BATCH {
            // The next one, after a pause.
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

/// The fabrics of the page.
const SHAPES: [(u32, u32); 5] =
    [(10, 100), (100, 100), (1_000, 100), (10_000, 100), (1_000, 1_000)];
const NETWORKS: [u32; 3] = [20, 200, 1_000];

/// The table of `docs/guide/fabric-scale.md`.
pub fn table() -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

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
        // As fast as weir: a batch, and a pause.
        let mut pipe = Pipe::new(&COSTS);
        let routes = 100 * EVPN_BATCH as u64;
        let last_ns = (0..routes).map(|_| pipe.pass(0, true)).last().unwrap();
        let batches_ns = 100 * (EVPN_PAUSE_NS + EVPN_BATCH as u64 * 3_000);
        assert!(last_ns.abs_diff(batches_ns) < batches_ns / 20, "{last_ns} {batches_ns}");
        // As fast as zebra, where that is slower.
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
        let page = include_str!("../../../docs/guide/fabric-scale.md");
        let table = table();
        assert!(page.contains(&table), "docs/guide/fabric-scale.md is to have:\n{table}");
    }
}
