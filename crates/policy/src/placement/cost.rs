//! The cost of a place for a worker, in units of a cache line fetched from another core of the same
//! last-level cache. The weights are orders of magnitude; only their order matters.

use std::collections::BTreeMap;

use super::{Cpu, Why};

/// A line from another core of the same last-level cache.
const SAME_CACHE: f64 = 1.0;
/// A line from another last-level cache of the node.
const OTHER_CACHE: f64 = 3.0;
/// A line from another node.
const OTHER_NODE: f64 = 6.0;
/// Cost of a processor that virtual processors keep fully busy: they take turns with the worker.
const VCPU_ON_CPU: f64 = 12.0;
/// Cost of another thread of such a processor's core: the threads share the core's first caches and units.
const VCPU_ON_CORE: f64 = 2.0;
/// The slower kind of core.
const EFFICIENCY: f64 = 2.0;
/// Another worker's core, or its very processor. The cost exceeds all others together, so that only
/// a lack of other places leads there.
const WORKER_ON_CORE: f64 = 100.0;
const WORKER_ON_CPU: f64 = 1000.0;
/// Cost of each other worker in the same cache. If nothing else matters, workers spread over caches.
const WORKER_IN_CACHE: f64 = 0.05;
/// The core of processor 0, which serves all work without a placement.
const FIRST_CORE: f64 = 0.01;

const _: () = {
    assert!(SAME_CACHE < OTHER_CACHE && OTHER_CACHE < OTHER_NODE && OTHER_NODE < VCPU_ON_CPU);
    // The most expensive place otherwise: a far node, a core with eight busy threads, the slow
    // kind.
    assert!(OTHER_NODE + VCPU_ON_CPU + 7.0 * VCPU_ON_CORE + EFFICIENCY < WORKER_ON_CORE);
    // The sum counts all of weir's workers in the cache.
    assert!(WORKER_IN_CACHE * (weir_limits::WORKERS_MAX as f64) < OTHER_NODE);
};

/// The machine's processors by number.
pub(super) struct Machine<'a>(pub(super) &'a [Cpu]);

impl<'a> Machine<'a> {
    pub(super) fn get(&self, id: u16) -> Option<&'a Cpu> {
        let index = self.0.binary_search_by_key(&id, |cpu| cpu.id).ok()?;
        self.0.get(index)
    }
}

/// Positions of the peers of a worker's traffic: shares by cache and node, which add up to 1. Empty without traffic.
pub(super) struct Near(Vec<(u16, u16, f64)>);

impl Near {
    /// Builds the shares from shares by processor.
    pub(super) fn new(machine: &Machine<'_>, parts: &BTreeMap<u16, f64>) -> Self {
        let mut groups: BTreeMap<(u16, u16), f64> = BTreeMap::new();
        let known = parts.iter().filter_map(|(cpu, part)| Some((machine.get(*cpu)?, part)));
        for (cpu, part) in known {
            *groups.entry((cpu.cache, cpu.node)).or_default() += part;
        }
        let all: f64 = groups.values().sum();
        let share = |((cache, node), part): ((u16, u16), f64)| (cache, node, part / all);
        Self(if all > 0.0 { groups.into_iter().map(share).collect() } else { Vec::new() })
    }

    /// Returns whether no share is known.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the share of the traffic in `cpu`'s cache.
    pub(super) fn share_in_cache(&self, cpu: &Cpu) -> f64 {
        self.0.iter().filter(|(cache, ..)| *cache == cpu.cache).map(|(.., part)| part).sum()
    }

    fn distance(&self, cpu: &Cpu) -> f64 {
        let part = |(cache, node, part): &(u16, u16, f64)| {
            part * if *cache == cpu.cache {
                SAME_CACHE
            } else if *node == cpu.node {
                OTHER_CACHE
            } else {
                OTHER_NODE
            }
        };
        self.0.iter().map(part).sum()
    }
}

/// Share of the processors' time that virtual processors take.
pub(super) struct Busy<'a> {
    cpus: &'a BTreeMap<u16, f64>,
    cores: BTreeMap<u16, f64>,
}

impl<'a> Busy<'a> {
    /// Builds the table from shares of each processor's time.
    pub(super) fn new(machine: &Machine<'_>, cpus: &'a BTreeMap<u16, f64>) -> Self {
        let mut busy = Self { cpus, cores: BTreeMap::new() };
        for cpu in cpus.keys().filter_map(|cpu| machine.get(*cpu)) {
            *busy.cores.entry(cpu.core).or_default() += busy.at(cpu.id);
        }
        busy
    }

    /// Returns the share of a processor's time that is used, at most 1: more threads than it has time for make it no
    /// busier.
    fn at(&self, cpu: u16) -> f64 {
        self.cpus.get(&cpu).copied().unwrap_or(0.0).min(1.0)
    }

    /// Returns the sum over a core's threads.
    fn of_core(&self, core: u16) -> f64 {
        self.cores.get(&core).copied().unwrap_or(0.0)
    }
}

/// The cost of a place, by component.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cost {
    distance: f64,
    vcpus: f64,
    workers: f64,
    kind: f64,
    /// Tie-breaker between equally good places.
    tie: f64,
}

impl Cost {
    /// Returns the cost of `cpu`, where virtual processors keep processors `busy` and other workers
    /// are on `others`.
    pub(super) fn of(
        machine: &Machine<'_>,
        cpu: &Cpu,
        near: &Near,
        busy: &Busy<'_>,
        others: &[&Cpu],
    ) -> Self {
        let here = busy.at(cpu.id);
        let siblings = (busy.of_core(cpu.core) - here).max(0.0);
        let worker = |other: &&Cpu| {
            if other.id == cpu.id {
                WORKER_ON_CPU
            } else if other.core == cpu.core {
                WORKER_ON_CORE
            } else {
                0.0
            }
        };
        let beside = others.iter().filter(|other| other.cache == cpu.cache).count() as f64;
        let first = machine.get(0).is_some_and(|first| first.core == cpu.core);
        Self {
            distance: near.distance(cpu),
            vcpus: VCPU_ON_CPU * here + VCPU_ON_CORE * siblings,
            workers: others.iter().map(worker).sum(),
            kind: if cpu.efficiency { EFFICIENCY } else { 0.0 },
            tie: WORKER_IN_CACHE * beside + if first { FIRST_CORE } else { 0.0 },
        }
    }

    /// Returns the cost where the kernel chooses among `cpus`, by load and not by cache.
    pub(super) fn of_any<'c>(cpus: impl Iterator<Item = &'c Cpu>, near: &Near) -> Self {
        let mut sum = Self::default();
        let mut count = 0.0;
        for cpu in cpus {
            sum.distance += near.distance(cpu);
            sum.kind += if cpu.efficiency { EFFICIENCY } else { 0.0 };
            count += 1.0;
        }
        if count > 0.0 {
            sum.distance /= count;
            sum.kind /= count;
        }
        sum
    }

    pub(super) fn total(&self) -> f64 {
        self.distance + self.vcpus + self.workers + self.kind + self.tie
    }

    /// Returns the main reason why this cost exceeds `other`.
    pub(super) fn why_more_than(&self, other: &Self) -> Why {
        let parts = [
            (self.distance - other.distance, Why::FarFromVcpus),
            (self.vcpus - other.vcpus, Why::VcpusRunThere),
            (self.workers - other.workers, Why::OtherWorker),
            (self.kind - other.kind, Why::EfficiencyCore),
        ];
        let most = parts.into_iter().max_by(|a, b| a.0.total_cmp(&b.0));
        most.filter(|(more, _)| *more > WORKER_IN_CACHE).map_or(Why::AsGood, |(_, why)| why)
    }
}
