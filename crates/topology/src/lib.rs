//! The CPUs of a machine, from sysfs: SMT siblings, shared last-level caches, NUMA nodes and
//! efficiency cores.
//!
//! [`Topology::read`] takes the mount point of sysfs, so it can read another machine's tree.
//! Containers and some virtual machines show less than the kernel knows. Without files about
//! caches, the CPUs of one package and node count as sharing one; without nodes there is one
//! ([`Topology::caches_known`], [`Topology::nodes_known`]).
//!
//! | file | contents |
//! |---|---|
//! | `cpu_list.rs` | lists of CPUs, such as `0-3,8` |
//! | `sysfs.rs` | reading one file, strictly and bounded |
//! | `read.rs` | the tree |
//! | `fixtures.rs` | trees of real machines, for tests |
#![forbid(unsafe_code)]

mod cpu_list;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
mod read;
mod sysfs;
#[cfg(test)]
mod tests;

pub use cpu_list::{CpuListError, cpu_list, parse_cpu_list};
pub use sysfs::TopologyError;

use weir_policy::placement::Cpu;

/// The processors of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// Online processors, by number. A group has the number of its lowest processor.
    pub cpus: Vec<Cpu>,
    /// The kernel reports which processors share a cache.
    pub caches_known: bool,
    /// The kernel reports the nodes of processors.
    pub nodes_known: bool,
}
