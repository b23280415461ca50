//! A host's CPUs by the lab's numbers and by Linux's.
//!
//! The lab numbers CPUs by caches and cores, with siblings adjacent. Linux takes the firmware's order. Files with
//! `topology = "this"`, and the output for them, have Linux's numbers.

use std::collections::BTreeMap;
use std::path::Path;

use weir_lab::topology::{CpuId, Topology};

use super::file::HostTopology;
use crate::error::{LabError, Problem};

/// Path of sysfs.
const SYSFS: &str = "/sys";

/// The CPUs of a host.
#[derive(Debug)]
pub struct HostCpus {
    /// Topology in the lab.
    pub topology: Topology,
    /// The host's number of each CPU, by the lab's number. Empty if both are the same.
    numbers: Vec<u16>,
}

impl HostCpus {
    /// Returns the CPUs of a file. The inner error is a fault of the CPUs in the file.
    ///
    /// # Errors
    /// sysfs cannot be read.
    pub fn of(file: &HostTopology) -> Result<Result<Self, Problem>, LabError> {
        Ok(match file {
            HostTopology::Written(it) => {
                let topology = Topology {
                    sockets: it.sockets,
                    llcs_per_socket: it.llcs_per_socket,
                    cores_per_llc: it.cores_per_llc,
                    threads_per_core: it.threads_per_core,
                };
                Ok(Self { topology, numbers: Vec::new() })
            }
            HostTopology::This => Self::regular(&weir_topology::Topology::read(Path::new(SYSFS))?),
        })
    }

    /// Returns the CPUs of a regular machine, whose caches have equal numbers of cores, and so on for all levels.
    pub fn regular(machine: &weir_topology::Topology) -> Result<Self, Problem> {
        let mut cpus = machine.cpus.clone();
        cpus.sort_by_key(|cpu| (cpu.node, cpu.cache, cpu.core, cpu.id));
        if cpus.windows(2).any(|two| two[0].efficiency != two[1].efficiency) {
            return Err(not_regular("has two kinds of cores"));
        }
        let nodes = each(cpus.iter().map(|cpu| (0, cpu.node)));
        let caches = each(cpus.iter().map(|cpu| (cpu.node, cpu.cache)));
        let cores = each(cpus.iter().map(|cpu| (cpu.cache, cpu.core)));
        let threads = each(cpus.iter().map(|cpu| (cpu.core, cpu.id)));
        match (nodes, caches, cores, threads) {
            (Some(sockets), Some(llcs), Some(cores), Some(threads)) => {
                let topology = Topology {
                    sockets,
                    llcs_per_socket: llcs,
                    cores_per_llc: cores,
                    threads_per_core: threads,
                };
                Ok(Self { topology, numbers: cpus.iter().map(|cpu| cpu.id).collect() })
            }
            (_, None, ..) => Err(not_regular("has nodes with more last-level caches than others")),
            (_, _, None, _) => Err(not_regular("has caches with more cores than others")),
            _ => Err(not_regular("has cores with more threads than others")),
        }
    }

    /// Returns the host's number of a CPU of the lab.
    pub fn number(&self, cpu: CpuId) -> usize {
        self.numbers.get(cpu).map_or(cpu, |number| (*number).into())
    }

    /// Returns the lab's CPU with the host's `number`.
    pub fn cpu(&self, number: usize) -> Option<CpuId> {
        let cpus = 0..self.topology.cpus().unwrap_or(0);
        cpus.into_iter().find(|cpu| self.number(*cpu) == number)
    }
}

fn not_regular(what: &str) -> Problem {
    let message = format!(
        "this machine {what}, which the lab cannot play; expected a table with `sockets`, `llcs_per_socket`, \
         `cores_per_llc` and `threads_per_core` of a host like it"
    );
    Problem::new("topology", message)
}

/// Returns the number of different parts of a whole, if it is the same for all wholes.
fn each(of: impl Iterator<Item = (u16, u16)>) -> Option<usize> {
    let mut parts: BTreeMap<u16, Vec<u16>> = BTreeMap::new();
    for (whole, part) in of {
        let parts = parts.entry(whole).or_default();
        if !parts.contains(&part) {
            parts.push(part);
        }
    }
    let mut counts = parts.values().map(Vec::len);
    let first = counts.next()?;
    counts.all(|count| count == first).then_some(first)
}
