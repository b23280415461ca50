//! Places workers, and with permission guests' virtual processors, on processors (Guo 2009).
//!
//! Ring entries and packets move between a worker's core and those of the virtual processors it
//! serves: at little cost within a last-level cache, at high cost between caches and nodes. The
//! policy `static` puts workers once on cores of their own that share a cache with the processors
//! their guests may use (Guo's static onloading). The policy `dynamic` follows traffic and the
//! processors where the virtual ones last ran.
//!
//! | file | contents |
//! |---|---|
//! | `cost.rs` | the cost of a place for a worker |
//! | `placer.rs` | the plan, and when it replaces the one in force |
//! | `guests.rs` | averages of the looks: load and places; places of virtual processors |
//!
//! Docs: `docs/design/workers.md#0016`.

use std::collections::{BTreeMap, BTreeSet};

mod cost;
mod guests;
mod placer;
#[cfg(test)]
mod tests;

pub use placer::{GAIN_MIN, Placer, SETTLE_NS, STAY_NS};

/// A processor of the machine. Cores, caches and nodes are known by number only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// The processor's number.
    pub id: u16,
    /// Number of the core; processors with the same core are its threads.
    pub core: u16,
    /// Number of the last-level cache.
    pub cache: u16,
    /// Number of the NUMA node.
    pub node: u16,
    /// Set for the slower kind of core, on a machine with two kinds.
    pub efficiency: bool,
}

/// The rule that places workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Places workers by the processors where virtual ones may run. A worker always has its own
    /// core.
    Static,
    /// Places workers by the processors where virtual ones run, load and traffic. A worker has a
    /// core where that pays.
    Dynamic,
}

/// The state at one moment.
#[derive(Clone, Debug)]
pub struct Look<'a> {
    /// Time of a monotonic clock (ns).
    pub now_ns: u64,
    /// The machine's processors that are online, by number.
    pub cpus: &'a [Cpu],
    /// Processors on which workers may run.
    pub allowed: &'a BTreeSet<u16>,
    /// Each worker, by number.
    pub workers: &'a [WorkerLook],
    /// Each guest whose virtual processors are known, with or without traffic.
    pub guests: &'a [GuestLook],
}

/// A worker since the last look.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkerLook {
    /// Share of a processor's time, 0 to 1.
    pub load: f64,
    /// Traffic carried for each guest whose queues the worker serves, in any unit.
    pub traffic: BTreeMap<GuestId, f64>,
}

/// A guest, by the process of its VM monitor.
pub type GuestId = u32;

/// A guest's virtual processors.
#[derive(Clone, Debug, PartialEq)]
pub struct GuestLook {
    /// The guest.
    pub id: GuestId,
    /// Threads of the guest's virtual processors.
    pub threads: Vec<VcpuLook>,
}

/// A virtual processor's thread since the last look.
#[derive(Clone, Debug, PartialEq)]
pub struct VcpuLook {
    /// The processor on which it last ran.
    pub last_cpu: u16,
    /// Share of a processor's time, 0 to 1.
    pub load: f64,
    /// Processors where the thread may run, without weir's own restriction.
    pub may_run: BTreeSet<u16>,
    /// Certainly a virtual processor, which weir may place.
    pub movable: bool,
}

/// A plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Each worker's place, by number.
    pub workers: Vec<Place>,
    /// Each guest's place; empty without permission to move virtual processors.
    pub guests: BTreeMap<GuestId, GuestPlace>,
    /// Beginning (ns) and gain ([`GAIN_MIN`]) of a better plan that waits to replace this one.
    pub settling: Option<(u64, f64)>,
}

/// A worker's place.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// The processor; `None` where the kernel chooses.
    pub cpu: Option<u16>,
    /// Cost of the place, in fetches of a line within one cache; 0 if it is not known.
    pub cost: f64,
    /// Reason for the place.
    pub reason: Reason,
    /// Best alternatives: in this cache first, then in others, cheapest first.
    pub rejected: Vec<Rejected>,
}

/// Reason for a worker's place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reason {
    /// There are too few processors to reserve one for a worker.
    FewCpus {
        /// Number of processors that weir may use.
        cpus: usize,
    },
    /// A core for each worker would leave none for guests.
    FewCores {
        /// Number of cores that weir may use.
        cores: usize,
    },
    /// The virtual processors of the served guests are unknown.
    NothingKnown,
    /// The kernel's choice costs no more.
    KernelAsGood,
    /// A core of its own, with nothing known of guests.
    OwnCore,
    /// In the cache of virtual processors that the worker serves.
    NearVcpus {
        /// Share of the worker's traffic that goes to this cache, 0 to 1.
        share: f64,
    },
}

/// A place that was not taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rejected {
    /// The processor.
    pub cpu: u16,
    /// Cost of the place.
    pub cost: f64,
    /// Largest part of the difference.
    pub why: Why,
}

/// Reason against a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The place is not in the virtual processors' cache.
    FarFromVcpus,
    /// Virtual processors run there, or on the other threads of its core.
    VcpusRunThere,
    /// Another worker has that core.
    OtherWorker,
    /// The processor is of the slower kind of core.
    EfficiencyCore,
    /// No reason: the place is as good.
    AsGood,
}

/// Place of a guest's virtual processors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestPlace {
    /// The processors; `None` where weir leaves them alone.
    pub cpus: Option<BTreeSet<u16>>,
    /// Reason for the place.
    pub reason: GuestReason,
}

/// Reason for a guest's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestReason {
    /// The place is in the cache of this worker, on cores without workers.
    BesideWorker(usize),
    /// No worker that serves it has a place.
    NoWorkerPlaced,
    /// No thread of the guest is certainly a virtual processor.
    NoneNamed,
    /// The worker and the guest's memory are on different nodes.
    OtherNode,
    /// The worker's cache has too few processors on which the guest may run.
    NoRoom {
        /// Number of the guest's threads.
        threads: usize,
        /// Number of processors for these threads.
        cpus: usize,
    },
}
