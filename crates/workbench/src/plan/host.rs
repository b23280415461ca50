//! Converts a host's TOML to a scenario without workers, which the plan adds.

use std::collections::BTreeMap;
use std::ops::Range;

use weir_config::{InterfaceName, LatencyBudget, PortName, ValueError};
use weir_lab::cpus::{Class, WEIGHT_USUAL};
use weir_lab::realization::Realization;
use weir_lab::scenario::{
    Calls, Endpoint, Guest, Load, LoadKind, Scenario, ScenarioError, Thread, Uplink,
};
use weir_limits::{LAB_FLOWS_MAX, PORTS_MAX};
use weir_policy::moderation::Kind;

use super::file::{GroupFile, GroupLoad, HostCpus, HostFile, UplinkKind};
use crate::error::{LabError, Problem, Source};
use crate::experiment::{span, traffic};
use crate::file::TrafficFile;
use crate::profile::Machine;

/// Name of the uplink in a group's loads. No group may have it.
const UPLINK: &str = "uplink";

/// A host to plan.
#[derive(Debug)]
pub struct Host {
    /// Name of the host's file.
    pub name: String,
    /// Content of the file, with seeds and limits.
    pub file: HostFile,
    /// Costs of the host's machine.
    pub machine: Machine,
    /// The machine's CPUs.
    pub cpus: HostCpus,
    /// The scenario, with an unpinned worker as a placeholder.
    pub scenario: Scenario,
    /// Groups in the order of their names.
    pub groups: Vec<Group>,
    /// Uplinks in the order of their names.
    pub uplinks: Vec<UplinkPort>,
}

/// A group of equal VMs.
#[derive(Debug)]
pub struct Group {
    /// The group's name.
    pub name: String,
    /// The group's guests.
    pub guests: Range<usize>,
    /// Longest hold of the guests' frames.
    pub latency_budget: LatencyBudget,
    /// Policy of calls to the guests.
    pub moderation: Kind,
    /// Largest p99 of datagrams and requests (ns).
    pub p99_ns: Option<u64>,
    /// The group's loads.
    pub loads: Vec<GroupLoads>,
}

/// A load of each VM of a group.
#[derive(Debug)]
pub struct GroupLoads {
    /// Indices of these loads in the scenario.
    pub loads: Range<usize>,
    /// Least number of frames per second and VM.
    pub at_least: Option<f64>,
}

/// An uplink for weir.toml.
#[derive(Debug)]
pub struct UplinkPort {
    /// The uplink's name.
    pub name: PortName,
    /// The uplink's kind.
    pub kind: UplinkKind,
    /// Interface of the host.
    pub interface: InterfaceName,
}

impl Group {
    /// Returns the name of the VM with this number (from 1), which is also its interface's name.
    pub fn vm(&self, number: usize) -> String {
        vm(&self.name, number)
    }
}

fn vm(group: &str, number: usize) -> String {
    format!("{group}-{number}")
}

impl Host {
    /// Reads a host. `machine` returns the profile that it names.
    ///
    /// # Errors
    /// The first problem, with its place; or sysfs cannot be read.
    pub fn parse(
        source: Source<'_>,
        seed: Option<u64>,
        machine: impl Fn(&str) -> Result<Option<Machine>, LabError>,
    ) -> Result<Self, LabError> {
        let mut file: HostFile =
            toml::from_str(source.text).map_err(|error| source.toml(&error))?;
        let shown =
            |problem: Problem| source.invalid(&problem.message, span(source.text, &problem.path));
        if let Some(seed) = seed {
            file.seeds = vec![seed];
        }
        if file.seeds.is_empty() {
            return Err(shown(Problem::new("seeds", "there is no seed")));
        }
        let Some(machine) = machine(&file.profile)? else {
            let known: Vec<_> = weir_lab::scenarios::PROFILES.iter().map(|it| it.0).collect();
            let known = known.join(", ");
            let message = format!(
                "unknown profile `{}`, expected a .toml file or one of {known}",
                file.profile
            );
            return Err(shown(Problem::new("profile", message)));
        };
        let cpus = HostCpus::of(&file.topology)?.map_err(shown)?;
        let mut building = Building::new(&file, &cpus, &machine);
        building.all(&file).map_err(shown)?;
        let Building { scenario, groups, uplinks, .. } = building;
        Ok(Self { name: source.name.to_owned(), file, machine, cpus, scenario, groups, uplinks })
    }
}

/// A host under construction.
struct Building<'f> {
    cpus: &'f HostCpus,
    scenario: Scenario,
    groups: Vec<Group>,
    uplinks: Vec<UplinkPort>,
    /// The place in the file of each name in the scenario.
    places: BTreeMap<String, String>,
}

impl<'f> Building<'f> {
    fn new(file: &HostFile, cpus: &'f HostCpus, machine: &Machine) -> Self {
        let scenario = Scenario {
            seed: file.seeds.first().copied().unwrap_or(1),
            topology: cpus.topology,
            profile: machine.profile,
            workers: vec![Thread { cpus: Vec::new(), class: Class::Fair { weight: WEIGHT_USUAL } }],
            first_worker: None,
            dispatch: None,
            guests: Vec::new(),
            uplinks: Vec::new(),
            rivals: Vec::new(),
            realization: Realization::default(),
            loads: Vec::new(),
            start_ns: file.start.0,
            warm_up_ns: file.warm_up.0,
            run_ns: file.run.0,
            law: &weir_policy::law::LAW,
            check_each_event: false,
        };
        let (groups, uplinks) = (Vec::new(), Vec::new());
        Self { cpus, scenario, groups, uplinks, places: BTreeMap::new() }
    }

    fn all(&mut self, file: &HostFile) -> Result<(), Problem> {
        limits(file)?;
        for name in file.uplinks.keys() {
            self.uplink(name, file)?;
        }
        for (name, group) in &file.groups {
            self.group(name, group, file)?;
        }
        for (at, (name, group)) in file.groups.iter().enumerate() {
            for (number, load) in group.loads.iter().enumerate() {
                let problem =
                    |message: String| Problem::new(format!("group.{name}.load.{number}"), message);
                self.load(at, load, number).map_err(problem)?;
            }
        }
        if self.scenario.loads.is_empty() {
            return Err(Problem::new("group", "no group has a `load`"));
        }
        self.scenario.check().map_err(|error| self.place(&error))?;
        self.links()
    }

    fn uplink(&mut self, name: &str, file: &HostFile) -> Result<(), Problem> {
        let Some(it) = file.uplinks.get(name) else { return Ok(()) };
        let place = format!("uplink.{name}");
        let problem = |message: String| Problem::new(&place, message);
        let port = plain(name, UPLINK)?;
        let interface = match &it.interface {
            Some(interface) => interface.clone(),
            None => name.parse().map_err(|_| {
                problem(format!("no interface can be called `{name}`, expected `interface` here"))
            })?,
        };
        if self.uplinks.iter().any(|other| other.interface == interface) {
            return Err(problem(format!(
                "another uplink has the interface `{}`",
                interface.as_str()
            )));
        }
        self.scenario.uplinks.push(Uplink {
            name: name.to_owned(),
            bits_per_s: it.rate.0,
            delay_ns: it.delay.0,
            queue_max: it.queue,
            ring: it.ring,
            hold_ns: it.hold.0,
        });
        self.uplinks.push(UplinkPort { name: port, kind: it.kind, interface });
        self.places.insert(name.to_owned(), place);
        Ok(())
    }

    fn group(&mut self, name: &str, it: &GroupFile, file: &HostFile) -> Result<(), Problem> {
        let place = format!("group.{name}");
        let problem = |message: String| Problem::new(&place, message);
        if name == UPLINK {
            return Err(problem(format!("a group cannot be called `{UPLINK}`")));
        }
        plain(name, "group")?;
        let there = self.scenario.guests.len() + file.uplinks.len();
        if !(1..=PORTS_MAX.saturating_sub(there)).contains(&it.count) {
            let message = format!(
                "`count` is {}, expected 1 to {PORTS_MAX} for all ports together",
                it.count
            );
            return Err(Problem::new(format!("{place}.count"), message));
        }
        // The name of the last VM is the longest.
        vm(name, it.count).parse::<PortName>().map_err(|error| problem(error.to_string()))?;
        let rivals = it.busy_vcpus.saturating_mul(it.count);
        if rivals > PORTS_MAX - self.scenario.rivals.len() {
            let message = format!("expected at most {PORTS_MAX} busy vCPUs of all VMs");
            return Err(Problem::new(format!("{place}.busy_vcpus"), message));
        }
        let cpus = self.numbered(&it.cpus).map_err(|number| {
            let cpus = self.cpus.topology.cpus().unwrap_or(0);
            let message = format!("there is no CPU {number}; the host has {cpus}");
            Problem::new(format!("{place}.cpus"), message)
        })?;
        let first = self.scenario.guests.len();
        let calls = Calls {
            kind: it.moderation,
            latency_budget_ns: it.latency_budget.ns(),
            rx_ns: None,
            rx_frames: None,
        };
        for number in 1..=it.count {
            let cpu = cpus.get((number - 1) % cpus.len().max(1));
            let cpu = cpu.map_or(&[][..], std::slice::from_ref);
            let name = vm(name, number);
            if self.places.insert(name.clone(), place.clone()).is_some() {
                return Err(problem(format!("there are two ports called `{name}`")));
            }
            let usual = Guest::new(&name, cpu, calls);
            let rx_ring = it.rx_ring.unwrap_or(usual.rx_ring);
            self.scenario.guests.push(Guest { rx_ring, ..usual });
        }
        let rival = Thread { cpus, class: Class::Fair { weight: WEIGHT_USUAL } };
        self.scenario.rivals.extend(std::iter::repeat_n(rival, rivals));
        self.groups.push(Group {
            name: name.to_owned(),
            guests: first..self.scenario.guests.len(),
            latency_budget: it.latency_budget,
            moderation: it.moderation,
            p99_ns: it.p99.or(file.limits.p99).map(|time| time.0),
            loads: Vec::new(),
        });
        Ok(())
    }

    /// Converts the host's numbers of CPUs to the lab's.
    ///
    /// # Errors
    /// The first number that does not exist.
    fn numbered(&self, numbers: &[usize]) -> Result<Vec<usize>, usize> {
        numbers.iter().map(|number| self.cpus.cpu(*number).ok_or(*number)).collect()
    }

    fn load(&mut self, group: usize, it: &GroupLoad, number: usize) -> Result<(), String> {
        let guests = self.groups[group].guests.clone();
        let group_name = self.groups[group].name.clone();
        let (other, begins) = match (&it.from, &it.to) {
            (None, Some(to)) => (to, true),
            (Some(from), None) => (from, false),
            _ => return Err("expected `from` or `to`: the uplink, or a group".into()),
        };
        let kind = traffic(&it.traffic)?;
        if matches!(kind, LoadKind::Socket { .. }) {
            return Err(
                "datagrams have to come through all; expected `regular` or `poisson`".into()
            );
        }
        let at_least = it.at_least.map(|rate| match &it.traffic {
            TrafficFile::Datagrams { .. } => Err("datagrams have to come through all; expected \
                 `at_least` for streams and requests"),
            TrafficFile::Requests { request, .. } => Ok(rate.packets_per_s(*request)),
            TrafficFile::Stream { segment, .. } => Ok(rate.packets_per_s(*segment)),
        });
        let at_least = at_least.transpose()?;
        if it.flows.saturating_mul(guests.len()) > LAB_FLOWS_MAX - self.scenario.loads.len() {
            return Err(format!("there are more than {LAB_FLOWS_MAX} flows of all VMs"));
        }
        let first = self.scenario.loads.len();
        for (at, guest) in guests.clone().enumerate() {
            let there = self.other_end(other, guests.clone(), at)?;
            let (from, to) = match begins {
                true => (Endpoint::Guest(guest), there),
                false => (there, Endpoint::Guest(guest)),
            };
            for flow in 1..=it.flows {
                let name = format!("{group_name}.{number} {}.{flow}", at + 1);
                self.places.insert(name.clone(), format!("group.{group_name}.load.{number}"));
                self.scenario.loads.push(Load { name, from, to, kind: kind.clone() });
            }
        }
        let loads = first..self.scenario.loads.len();
        self.groups[group].loads.push(GroupLoads { loads, at_least });
        Ok(())
    }

    fn other_end(&self, name: &str, guests: Range<usize>, at: usize) -> Result<Endpoint, String> {
        let guest = guests.start + at;
        if name == UPLINK {
            return match guest.checked_rem(self.uplinks.len()) {
                Some(uplink) => Ok(Endpoint::Peer(uplink)),
                None => Err("there is no uplink, expected an `[uplink.NAME]`".into()),
            };
        }
        let Some(group) = self.groups.iter().find(|group| group.name == name) else {
            let known: Vec<_> = self.groups.iter().map(|group| group.name.as_str()).collect();
            let known = known.join(", ");
            return Err(format!("there is no group `{name}`, expected `uplink` or one of {known}"));
        };
        if group.guests != guests {
            return Ok(Endpoint::Guest(group.guests.start + at % group.guests.len()));
        }
        // Each VM of a group has the next one as its peer.
        match guests.len() {
            1 => {
                Err(format!("`{name}` has no other VM, expected `count` above 1 or another group"))
            }
            len => Ok(Endpoint::Guest(guests.start + (at + 1) % len)),
        }
    }

    /// Checks that links have the capacity for their loads.
    fn links(&self) -> Result<(), Problem> {
        let mut bits = vec![[0.0; 2]; self.scenario.uplinks.len()];
        for load in &self.scenario.loads {
            if let LoadKind::Datagrams { bytes, gap, .. } = &load.kind {
                let rate = 8e9 * bytes.mean() / gap.mean();
                for (end, way) in [(load.from, 0), (load.to, 1)] {
                    if let Endpoint::Peer(uplink) = end {
                        bits[uplink][way] += rate;
                    }
                }
            }
        }
        for (uplink, bits) in self.scenario.uplinks.iter().zip(bits) {
            for (bits, way) in bits.into_iter().zip(["in", "out"]) {
                let max = uplink.bits_per_s as f64;
                if bits > max {
                    let message = format!(
                        "the datagrams {way} by `{}` are {:.1} Mbit/s, and its `rate` is {:.1} Mbit/s",
                        uplink.name,
                        bits / 1e6,
                        max / 1e6
                    );
                    return Err(Problem::new(format!("uplink.{}", uplink.name), message));
                }
            }
        }
        Ok(())
    }

    /// Converts an error of the scenario to a problem at its cause in the file.
    fn place(&self, error: &ScenarioError) -> Problem {
        let by_name = |name: &str| self.places.get(name).cloned();
        let path = match error {
            ScenarioError::Cpus => Some("topology".into()),
            ScenarioError::Value { what: "`run_ns`", .. } => Some("run".into()),
            ScenarioError::Value { what: "`warm_up_ns`", .. } => Some("warm_up".into()),
            ScenarioError::Value { what: "`start_ns`", .. } => Some("start".into()),
            ScenarioError::Value { of, .. } if of == "the profile" => Some("profile".into()),
            ScenarioError::Value { of, .. } => by_name(of),
            ScenarioError::SameEndpoint { load }
            | ScenarioError::NoSuchEndpoint { load, .. }
            | ScenarioError::Distribution { load, .. } => by_name(load),
            _ => None,
        };
        Problem::new(path.unwrap_or_default(), error.to_string())
    }
}

fn limits(file: &HostFile) -> Result<(), Problem> {
    let limits = &file.limits;
    if limits.cpus == Some(0) {
        return Err(Problem::new("limits.cpus", "`cpus` is 0, expected at least one for weir"));
    }
    let empty = [
        ("execution", limits.execution.as_ref().is_some_and(Vec::is_empty)),
        ("realization", limits.realization.as_ref().is_some_and(Vec::is_empty)),
        ("placement", limits.placement.as_ref().is_some_and(Vec::is_empty)),
    ];
    match empty.into_iter().find(|(_, empty)| *empty) {
        Some((key, _)) => {
            let message = format!("`{key}` is empty, expected at least one value");
            Err(Problem::new(format!("limits.{key}"), message))
        }
        None => Ok(()),
    }
}

/// Checks the name of a port or a group. A name has no dots, which would look like keys. `table` contains the name.
fn plain(name: &str, table: &str) -> Result<PortName, Problem> {
    if name.contains('.') {
        let message = format!("`{name}` has a dot in it, expected a name out of a-z, 0-9, - and _");
        return Err(Problem::new(table, message));
    }
    let problem = |error: ValueError| Problem::new(format!("{table}.{name}"), error.to_string());
    name.parse().map_err(problem)
}
