//! On which processors workers, and with permission guests' virtual processors, run (Guo 2009).
//!
//! Ring entries and packets move between a worker's core and those of the virtual processors it serves:
//! cheaply within a last-level cache, dearly between caches and nodes. `static` puts workers once on
//! cores of their own that share a cache with the processors their guests may use (Guo's static onloading);
//! `dynamic` follows where the virtual processors last ran, and traffic.
//!
//! | file | what |
//! |---|---|
//! | `cost.rs` | what a place costs a worker |
//! | `sight.rs` | what a look says, averaged: who is where |
//! | `placer.rs` | the plan, and when it replaces the one in force |
//! | `guests.rs` | where virtual processors are put |
//!
//! Docs: `docs/design/0016-placement.md`.

use std::collections::{BTreeMap, BTreeSet};

mod cost;
mod guests;
mod placer;
mod sight;
#[cfg(test)]
mod tests;

pub use placer::{GAIN_MIN, Placer, SETTLE_NS, STAY_NS};

/// A processor of the machine. Groups are told apart by their numbers only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// Its number.
    pub id: u16,
    /// Its core; processors with the same one are threads of it.
    pub core: u16,
    /// Its last-level cache.
    pub cache: u16,
    /// Its NUMA node.
    pub node: u16,
    /// It is of the slower kind, on a machine with two.
    pub efficiency: bool,
}

/// How workers are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// By where virtual processors may run; a worker has a core of its own always.
    Static,
    /// By where virtual processors run, load and traffic; a worker has a core where that pays.
    Dynamic,
}

/// What is known at one moment.
#[derive(Clone, Debug)]
pub struct Look<'a> {
    /// Of a monotonic clock.
    pub now_ns: u64,
    /// The machine's processors that are online, by number.
    pub cpus: &'a [Cpu],
    /// Those on which workers may run.
    pub allowed: &'a BTreeSet<u16>,
    /// Each worker, by number.
    pub workers: &'a [WorkerLook],
    /// Each guest with traffic or without, whose virtual processors are known.
    pub guests: &'a [GuestLook],
}

/// A worker since the last look.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkerLook {
    /// Its part of a processor's time, 0 to 1.
    pub load: f64,
    /// How much it carries for each guest whose queues it serves, in any unit.
    pub traffic: BTreeMap<GuestId, f64>,
}

/// A guest, by the process of its VM monitor.
pub type GuestId = u32;

/// A guest's virtual processors.
#[derive(Clone, Debug, PartialEq)]
pub struct GuestLook {
    /// Which guest.
    pub id: GuestId,
    /// Its virtual processors' threads.
    pub threads: Vec<VcpuLook>,
}

/// A virtual processor's thread since the last look.
#[derive(Clone, Debug, PartialEq)]
pub struct VcpuLook {
    /// The processor on which it last ran.
    pub last_cpu: u16,
    /// Its part of a processor's time, 0 to 1.
    pub load: f64,
    /// Where it may run, apart from what was decided here.
    pub may_run: BTreeSet<u16>,
    /// It is certainly a virtual processor, and may be told where to run.
    pub movable: bool,
}

/// What was decided.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Each worker's place, by number.
    pub workers: Vec<Place>,
    /// Each guest's place; empty without permission to move virtual processors.
    pub guests: BTreeMap<GuestId, GuestPlace>,
    /// A better plan is there: since when, and what it gains ([`GAIN_MIN`]).
    pub settling: Option<(u64, f64)>,
}

/// Where a worker is to run.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// On this processor; `None` where the kernel chooses.
    pub cpu: Option<u16>,
    /// What that costs, in lines fetched within a cache; 0 where nothing is known.
    pub cost: f64,
    /// Why there.
    pub reason: Reason,
    /// What would have been next best in other places: in this cache first, then in others, cheapest first.
    pub rejected: Vec<Rejected>,
}

/// Why a worker runs where it runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reason {
    /// There are too few processors to keep one for a worker.
    FewCpus {
        /// How many weir may use.
        cpus: usize,
    },
    /// With a core for each worker there would be none for guests.
    FewCores {
        /// How many weir may use.
        cores: usize,
    },
    /// Nothing is known of the virtual processors of those it serves.
    NothingKnown,
    /// The kernel's choice costs no more.
    KernelAsGood,
    /// A core of its own, with nothing known of guests.
    OwnCore,
    /// In the cache of virtual processors that it serves.
    NearVcpus {
        /// The part of its traffic that is for those in this cache, 0 to 1.
        share: f64,
    },
}

/// A place that was not taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rejected {
    /// The place.
    pub cpu: u16,
    /// What it would cost.
    pub cost: f64,
    /// What makes most of the difference.
    pub why: Why,
}

/// What speaks against a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Its cache is not that of the virtual processors.
    FarFromVcpus,
    /// Virtual processors run there, or on the other threads of its core.
    VcpusRunThere,
    /// Another worker has that core.
    OtherWorker,
    /// It is the slower kind of core.
    EfficiencyCore,
    /// Nothing: it is as good.
    AsGood,
}

/// Where a guest's virtual processors are to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestPlace {
    /// On these processors; `None` where they are left alone.
    pub cpus: Option<BTreeSet<u16>>,
    /// Why there.
    pub reason: GuestReason,
}

/// Why a guest's virtual processors run where they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestReason {
    /// In the cache of this worker, off workers' cores.
    BesideWorker(usize),
    /// No worker that serves it has a place.
    NoWorkerPlaced,
    /// No thread of it is certainly a virtual processor.
    NoneNamed,
    /// The worker is on another node than its memory.
    OtherNode,
    /// There is no room for all of them in the worker's cache, as far as they may run there.
    NoRoom {
        /// How many they are.
        threads: usize,
        /// How many processors there are for them.
        cpus: usize,
    },
}
