//! The format of a host's TOML. `docs/guide/lab.md` explains the keys.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use weir_config::{Execution, InterfaceName, LatencyBudget, PlacementMode, Realization};
use weir_lab::topology::{CpuId, Topology};
use weir_policy::moderation::Kind;

use crate::error::{LabError, Problem};
use crate::file::{TopologyFile, TrafficFile, kind, one, one_seed, queue, ring};
use crate::profile::{BitRate, Permille, Rate, Time};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostFile {
    pub title: String,
    /// A profile that comes with weir, or a file relative to this file's directory.
    pub profile: String,
    #[serde(default = "one_seed")]
    pub seeds: Vec<u64>,
    #[serde(default = "start")]
    pub start: Time,
    #[serde(default = "warm_up")]
    pub warm_up: Time,
    #[serde(default = "run")]
    pub run: Time,
    pub topology: HostTopology,
    #[serde(default)]
    pub limits: LimitsFile,
    #[serde(default, rename = "uplink")]
    pub uplinks: BTreeMap<String, UplinkFile>,
    #[serde(rename = "group")]
    pub groups: BTreeMap<String, GroupFile>,
}

fn start() -> Time {
    Time(10_000_000)
}

/// Returns a time in which queues find their workers and `auto` tries its holds.
fn warm_up() -> Time {
    Time(500_000_000)
}

fn run() -> Time {
    Time(200_000_000)
}

/// The host's CPUs.
#[derive(Debug)]
pub enum HostTopology {
    /// `"this"`: the CPUs of the machine that runs the command.
    This,
    /// A topology, written as in an experiment.
    Written(TopologyFile),
}

impl<'de> Deserialize<'de> for HostTopology {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = HostTopology;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"this\", or a table with `sockets`, `llcs_per_socket`, `cores_per_llc` and `threads_per_core`")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<HostTopology, E> {
                match text {
                    "this" => Ok(HostTopology::This),
                    _ => Err(E::invalid_value(serde::de::Unexpected::Str(text), &self)),
                }
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<HostTopology, A::Error> {
                TopologyFile::deserialize(MapAccessDeserializer::new(map))
                    .map(HostTopology::Written)
            }
        }
        from.deserialize_any(Either)
    }
}

/// Limits of a plan, and the settings to simulate.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitsFile {
    /// Number of CPUs that weir may use. It also bounds the workers.
    pub cpus: Option<usize>,
    /// Default p99 of groups.
    pub p99: Option<Time>,
    /// Largest share of a group's packets that may be lost. The default is none.
    pub lost: Option<Permille>,
    pub execution: Option<Vec<Execution>>,
    pub realization: Option<Vec<Realization>>,
    pub placement: Option<Vec<PlacementMode>>,
    /// True if placements also move vCPUs.
    #[serde(default)]
    pub pin_vcpus: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UplinkFile {
    pub rate: BitRate,
    #[serde(default)]
    pub kind: UplinkKind,
    /// Interface of the host. The default is the uplink's name.
    pub interface: Option<InterfaceName>,
    #[serde(default = "delay")]
    pub delay: Time,
    #[serde(default = "hold")]
    pub hold: Time,
    #[serde(default = "queue")]
    pub queue: usize,
    #[serde(default = "ring")]
    pub ring: usize,
}

fn delay() -> Time {
    Time(20_000)
}

fn hold() -> Time {
    Time(0)
}

/// Kind of the uplink in weir.toml. All kinds have the same cost in the lab.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UplinkKind {
    Tap,
    #[default]
    AfPacket,
    AfXdp,
}

impl UplinkKind {
    /// Returns the word in files.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tap => "tap",
            Self::AfPacket => "af_packet",
            Self::AfXdp => "af_xdp",
        }
    }
}

/// A group of equal VMs.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupFile {
    #[serde(default = "one")]
    pub count: usize,
    /// CPUs of the vCPUs that get the interfaces' interrupts, in turn. Empty is any CPU.
    #[serde(default)]
    pub cpus: Vec<usize>,
    /// Number of further vCPUs per VM that compute all the time, on the same CPUs.
    #[serde(default)]
    pub busy_vcpus: usize,
    #[serde(default = "budget")]
    pub latency_budget: LatencyBudget,
    #[serde(default = "auto", deserialize_with = "kind")]
    pub moderation: Kind,
    pub rx_ring: Option<u16>,
    pub p99: Option<Time>,
    #[serde(default, rename = "load")]
    pub loads: Vec<GroupLoad>,
}

fn budget() -> LatencyBudget {
    LatencyBudget::DEFAULT
}

fn auto() -> Kind {
    Kind::Auto
}

/// A load from or to each VM of a group.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupLoad {
    /// The source: `"uplink"` or a group.
    pub from: Option<String>,
    pub to: Option<String>,
    #[serde(default = "one")]
    pub flows: usize,
    /// Least throughput per VM, for traffic without its own rate.
    pub at_least: Option<Rate>,
    pub traffic: TrafficFile,
}

/// Path of sysfs.
const SYSFS: &str = "/sys";

/// The CPUs of a host, by the lab's numbers and by Linux's.
///
/// The lab numbers CPUs by caches and cores, with siblings adjacent. Linux takes the firmware's order. Files with
/// `topology = "this"`, and the output for them, have Linux's numbers.
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

/// Takes pairs of a whole and a part. Returns the number of different parts of each whole, if it is the same for all.
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
