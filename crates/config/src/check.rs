//! The rule-book: the rules for a configuration, whether it comes from a file, a command or a
//! request.

use std::collections::BTreeMap;

use weir_limits::{PORTS_MAX, QUEUE_PAIRS_MAX};
use weir_text::count;

use super::error::{Fault, HEADER};
use super::group::{Groups, NoSuchGroup};
use super::mirror::check_mirrors;
use super::overlay::{NetworkError, Networks};
use super::sharing::Sharing;
use super::template::{NoSuchTemplate, Templates};
use super::values::{LatencyBudget, Schedule, SocketPath, SocketRole};
use super::{Behind, UplinkConfig, VifConfig, XenConfig};

/// The name by which commands ask where workers run: no port has it.
pub const PLACEMENT: &str = "placement";

/// A rule that a table of the configuration breaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableFault {
    /// The table, such as `vif.web0`.
    pub table: String,
    /// The fault of the table.
    pub fault: Fault,
    /// The fault for a reader who sees the text beside it; `None` if `fault` says all.
    pub(super) shown: Option<Shown>,
}

/// A fault with its places in the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shown {
    pub message: String,
    /// Tables and keys, with words for each.
    pub labels: Vec<(String, &'static str, String)>,
    pub help: String,
}

/// A whole configuration: the present one, or the one after a change.
#[derive(Debug, Clone)]
pub struct Whole<'a> {
    /// The control socket.
    pub control: &'a SocketPath,
    /// The keeper's socket.
    pub keeper: Option<&'a SocketPath>,
    /// The budget of interfaces without one of their own.
    pub latency_budget: LatencyBudget,
    /// The rule by which workers give turns.
    pub schedule: Schedule,
    /// Its security groups.
    pub groups: &'a Groups,
    /// Its templates.
    pub templates: &'a Templates,
    /// Its networks.
    pub networks: &'a Networks,
    /// Its uplinks, in the order in which they came.
    pub uplinks: Vec<&'a UplinkConfig>,
    /// Its interfaces, in the order in which they came.
    pub vifs: Vec<&'a VifConfig>,
    /// The rules for Xen guests.
    pub xen: Option<&'a XenConfig>,
}

const MAC: &str = "MAC address";

impl Whole<'_> {
    /// Each rule that the configuration breaks.
    pub fn faults(&self) -> Vec<TableFault> {
        let ports = self.uplinks.len() + self.vifs.len() + self.networks.own_ports();
        if ports > PORTS_MAX {
            // Ports are compared with each other. If there are too many, only their number is
            // reported.
            return vec![too_many(ports)];
        }
        let mut faults = Vec::new();
        self.each_by_itself(&mut faults);
        let of_patterns = self.templates.faults(self.control);
        faults.extend(of_patterns.map(|(table, fault)| TableFault::of(&table, fault)));
        self.bonds(&mut faults);
        self.names(&mut faults);
        self.sockets(&mut faults);
        let sockets = self.vifs.iter().map(|vif| (vif.socket.to_string(), table_of(vif)));
        repeated("socket", "socket", sockets, &mut faults);
        self.macs(&mut faults);
        let devices = |is: fn(Behind) -> bool| {
            let those = self.uplinks.iter().filter(move |it| is(it.kind.behind()));
            those.map(|it| (it.device(), it.table()))
        };
        let interfaces = devices(|it| matches!(it, Behind::Made | Behind::Card));
        repeated("interface", "name", interfaces, &mut faults);
        repeated("socket", "path", devices(|it| it == Behind::Socket), &mut faults);
        faults
    }

    /// Each rule that the configuration breaks and that `before` kept.
    pub fn faults_since(&self, before: &Self) -> Vec<TableFault> {
        let mut faults = self.faults();
        if !faults.is_empty() {
            let old = before.faults();
            faults.retain(|fault| !old.contains(fault));
        }
        faults
    }

    /// The faults that `vif` would add to the configuration.
    pub fn faults_with(&self, vif: &VifConfig) -> Vec<TableFault> {
        Whole { vifs: self.vifs.iter().copied().chain([vif]).collect(), ..self.clone() }
            .faults_since(self)
    }

    fn each_by_itself(&self, faults: &mut Vec<TableFault>) {
        for uplink in &self.uplinks {
            let table = uplink.table();
            let network = self.networks.check_uplink(uplink).err().map(Fault::from);
            let of_uplink = uplink.faults(self.schedule).into_iter().chain(network);
            faults.extend(of_uplink.map(|fault| TableFault::of(&table, fault)));
        }
        let xen = self.xen.iter().flat_map(|xen| xen.tables());
        for (table, vif) in self.vifs.iter().map(|vif| (table_of(vif), *vif)).chain(xen) {
            let budget = vif.latency_budget.unwrap_or(self.latency_budget);
            let network = self.networks.check_vif(vif).err().map(Fault::from);
            let group = self.groups.check(&vif.groups).err().map(Fault::from);
            let template = vif.template.as_ref().and_then(|it| self.templates.get(it).err());
            let template = template.map(Fault::from);
            let of_vif = vif.faults(budget, Some(self.schedule)).into_iter();
            let of_vif = of_vif.chain(network).chain(group).chain(template);
            faults.extend(of_vif.map(|fault| TableFault::of(&table, fault)));
        }
    }

    /// Bonds, and the uplinks that they name.
    fn bonds(&self, faults: &mut Vec<TableFault>) {
        let mut bond_of = BTreeMap::new();
        for bond in self.uplinks.iter().filter(|it| it.is_bond()) {
            let mut refuse = |reason: String, help: &str| {
                let fault = Fault { keys: ["uplinks", HEADER], reason, help: help.to_owned() };
                faults.push(TableFault::of(&bond.table(), fault));
            };
            let mut queues = 0;
            for name in bond.members() {
                let member = self.uplinks.iter().find(|it| it.name == *name);
                let Some(member) = member else {
                    refuse(
                        format!("there is no uplink {name}"),
                        "write a table for it: [uplink.NAME]",
                    );
                    continue;
                };
                queues += usize::from(member.queues.get());
                if !member.kind.has_interface() {
                    let kind = member.kind;
                    refuse(format!("{name} is a {kind}"), "name uplinks with an interface");
                }
                if let Some(other) = bond_of.insert(name, &bond.name) {
                    refuse(format!("{name} is in bond.{other} already"), "name it in one bond");
                }
            }
            if queues > QUEUE_PAIRS_MAX {
                let reason =
                    format!("{queues} queues in all, and a bond has up to {QUEUE_PAIRS_MAX}");
                refuse(reason, "give its uplinks fewer `queues`");
            }
        }
        for (name, bond) in bond_of {
            let member = self.uplinks.iter().find(|it| it.name == *name);
            if let Some((member, key)) = member.and_then(|it| Some((it, it.key_of_a_whole_port()?)))
            {
                let reason = format!("{name} is in bond.{bond}, which is the port");
                let help = format!("say `{key}` in [bond.{bond}]");
                let fault = Fault { keys: [key, HEADER], reason, help };
                faults.push(TableFault::of(&member.table(), fault));
            }
        }
    }

    fn names(&self, faults: &mut Vec<TableFault>) {
        let uplinks = self.uplinks.iter().map(|it| (&it.name, &it.vlan, it.table()));
        let vifs = self.vifs.iter().map(|it| (&it.name, &it.vlan, table_of(it)));
        let ports: Vec<_> = uplinks.chain(vifs).collect();
        let names = ports.iter().map(|(name, _, table)| (name.to_string(), table.clone()));
        repeated("port name", HEADER, names, faults);
        for (name, _, table) in &ports {
            if name.as_str() == PLACEMENT {
                let reason = format!("{name} is what `weir explain {name}` shows");
                let message = format!("no port is called `{name}`");
                let label = format!("`weir explain {name}` shows where workers run");
                let labels = vec![(table.clone(), HEADER, label)];
                let help = "choose another name";
                faults.push(TableFault::shown(table, HEADER, reason, help, message, labels));
            }
            if let Some(whose) = self.networks.owner_of(name) {
                let reason = format!("a port called {name} exists already");
                let message = format!("no other port is called `{name}`");
                let labels = vec![(table.clone(), HEADER, whose)];
                let help = "choose another name";
                faults.push(TableFault::shown(table, HEADER, reason, help, message, labels));
            }
        }
        let pairs: Vec<_> = ports.iter().map(|(name, vlan, _)| (*name, *vlan)).collect();
        if let Err(error) = check_mirrors(&pairs) {
            let table = ports.iter().find(|(name, ..)| *name == error.port());
            let table = table.map_or(String::new(), |(.., table)| table.clone());
            let shown = Shown {
                message: error.to_string(),
                labels: vec![(table.clone(), HEADER, "has `mirror`".to_owned())],
                help: "have it mirror ports that are no mirrors".to_owned(),
            };
            let fault =
                Fault { keys: ["mirror", HEADER], reason: error.to_string(), help: error.help() };
            faults.push(TableFault { table, fault, shown: Some(shown) });
        }
    }

    fn sockets(&self, faults: &mut Vec<TableFault>) {
        let owners: BTreeMap<_, _> =
            self.vifs.iter().map(|vif| (vif.socket.as_path(), &vif.name)).collect();
        let control = self.control;
        self.long_paths(faults);
        for vif in &self.vifs {
            let table = table_of(vif);
            if vif.socket == *control {
                let reason = format!("{control} is the control socket");
                let message = format!("`{table}` uses the control socket");
                let labels = vec![(table.clone(), "socket", format!("{control} is weir's own"))];
                let help = "give the interface another `socket`, or the switch another `control`";
                faults.push(TableFault::shown(&table, "socket", reason, help, message, labels));
            }
            // Interfaces of one virtual machine share an agent; the agent shares its socket with nothing else.
            let Some(agent) = &vif.agent else { continue };
            let (reason, owner) = match owners.get(agent.as_path()) {
                _ if agent == control => (
                    format!("{agent} is the control socket"),
                    "weir's own control socket".to_owned(),
                ),
                Some(owner) if **owner == vif.name => (
                    format!("{agent} cannot be both the interface's socket and its agent's"),
                    format!("the socket of `vif.{owner}`"),
                ),
                Some(owner) => (
                    format!("the socket {agent} is already used by {owner}"),
                    format!("the socket of `vif.{owner}`"),
                ),
                None => continue,
            };
            let message = format!("`{table}` has no socket for its agent");
            let labels = vec![(table.clone(), "agent", format!("{agent} is {owner}"))];
            let help = "give the agent another path, such as \"/run/weir/NAME.agent\"";
            faults.push(TableFault::shown(&table, "agent", reason, help, message, labels));
        }
        self.keeper_socket(faults);
    }

    /// Paths of sockets that weir, its keeper or a guest's monitor listens on, and that the kernel does not take.
    fn long_paths(&self, faults: &mut Vec<TableFault>) {
        let of_switch = [("control", Some(self.control)), ("keeper", self.keeper)];
        let of_switch = of_switch.into_iter().map(|(key, path)| ("switch".to_owned(), key, path));
        let of_vifs = self.vifs.iter().flat_map(|vif| {
            let socket = (vif.mode == SocketRole::Server).then_some(&vif.socket);
            [("socket", socket), ("agent", vif.agent.as_ref())]
                .map(|(key, path)| (table_of(vif), key, path))
        });
        for (table, key, path) in of_switch.chain(of_vifs) {
            let Some(Err(error)) = path.map(SocketPath::check_to_listen) else { continue };
            let fault = Fault {
                keys: [key, HEADER],
                reason: error.to_string(),
                help: error.help().unwrap_or_default(),
            };
            faults.push(TableFault::of(&table, fault));
        }
    }

    /// Reports interfaces with the same MAC address in a VLAN or network.
    fn macs(&self, faults: &mut Vec<TableFault>) {
        let mut owners: BTreeMap<_, Vec<&VifConfig>> = BTreeMap::new();
        for vif in &self.vifs {
            if let Some(mac) = vif.mac {
                owners.entry(mac.to_string()).or_default().push(vif);
            }
        }
        for (mac, vifs) in owners {
            let meets_another = |nth: usize| {
                let mut others = vifs.iter().enumerate().filter(|(other, _)| *other != nth);
                others.any(|(_, other)| vifs[nth].shares_mac_with(other, self.networks))
            };
            let sharing = (0..vifs.len()).filter(|nth| meets_another(*nth));
            repeated(MAC, "mac", sharing.map(|nth| (mac.clone(), table_of(vifs[nth]))), faults);
        }
    }

    /// Reports a keeper's socket that is also another socket. The keeper is another process.
    fn keeper_socket(&self, faults: &mut Vec<TableFault>) {
        let Some(keeper) = self.keeper else { return };
        let uses = |vif: &&&VifConfig| vif.socket == *keeper || vif.agent.as_ref() == Some(keeper);
        let owner = match self.vifs.iter().find(uses) {
            _ if keeper == self.control => "weir's own control socket".to_owned(),
            Some(vif) => format!("a socket of `vif.{}`", vif.name),
            None => return,
        };
        let reason = format!("{keeper} is the keeper's socket, and {owner}");
        let message = "`switch.keeper` is no socket of a keeper".to_owned();
        let labels = vec![("switch".to_owned(), "keeper", format!("{keeper} is {owner}"))];
        let help = "name the socket that weir-keeper listens on, such as \"/run/weir/keeper.sock\"";
        faults.push(TableFault::shown("switch", "keeper", reason, help, message, labels));
    }
}

fn table_of(vif: &VifConfig) -> String {
    format!("vif.{}", vif.name)
}

fn too_many(ports: usize) -> TableFault {
    let fault = Fault {
        keys: [HEADER; 2],
        reason: format!("{} are more than {PORTS_MAX}, the maximum", count(ports, "port")),
        help: "run a second weir for the rest and join them with an uplink".into(),
    };
    TableFault { table: String::new(), fault, shown: None }
}

/// Reports every value that more than one table has in `key`.
fn repeated(
    what: &str,
    key: &'static str,
    values: impl Iterator<Item = (String, String)>,
    faults: &mut Vec<TableFault>,
) {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (value, table) in values {
        places.entry(value).or_default().push(table);
    }
    for (value, tables) in places {
        let [first, .., last] = tables.as_slice() else { continue };
        let owner = first.split_once('.').map_or(first.as_str(), |(_, name)| name);
        let reason = match key {
            HEADER => format!("a port called {value} exists already"),
            _ => format!("the {what} {value} is already used by {owner}"),
        };
        let help = match what {
            MAC => {
                format!("choose another {what}: it belongs to one interface of a VLAN or network")
            }
            _ => format!("choose another {what}"),
        };
        let words = |nth| if nth == 0 { "first used here" } else { "and here" };
        let labels = tables
            .iter()
            .enumerate()
            .map(|(nth, table)| (table.clone(), key, words(nth).to_owned()));
        let shown = Shown {
            message: format!("the {what} {value} is used {} times", tables.len()),
            labels: labels.collect(),
            help: help.clone(),
        };
        let fault = Fault { keys: [key, HEADER], reason, help };
        faults.push(TableFault { table: last.clone(), fault, shown: Some(shown) });
    }
}

impl TableFault {
    /// The fault, in a sentence for the client that asked for a change of `table`.
    pub fn reason(&self, table: &str) -> String {
        match self.table == table || self.table.is_empty() {
            true => self.fault.reason.clone(),
            false => format!("{}: {}", self.table, self.fault.reason),
        }
    }

    fn of(table: &str, fault: Fault) -> Self {
        Self { table: table.to_owned(), fault, shown: None }
    }

    fn shown(
        table: &str,
        key: &'static str,
        reason: String,
        help: &'static str,
        message: String,
        labels: Vec<(String, &'static str, String)>,
    ) -> Self {
        let fault = Fault { keys: [key, HEADER], reason, help: help.into() };
        Self {
            table: table.to_owned(),
            fault,
            shown: Some(Shown { message, labels, help: help.to_owned() }),
        }
    }
}

impl From<NoSuchGroup> for Fault {
    fn from(error: NoSuchGroup) -> Self {
        Self { keys: ["groups", HEADER], reason: error.to_string(), help: error.help() }
    }
}

impl From<NoSuchTemplate> for Fault {
    fn from(error: NoSuchTemplate) -> Self {
        Self { keys: ["template", HEADER], reason: error.to_string(), help: error.help() }
    }
}

impl From<NetworkError> for Fault {
    fn from(error: NetworkError) -> Self {
        Self { keys: [error.key(), HEADER], reason: error.to_string(), help: error.help() }
    }
}

impl VifConfig {
    /// True if this interface and `other` want the same MAC address in a VLAN or network.
    fn shares_mac_with(&self, other: &Self, networks: &Networks) -> bool {
        let vlan = |vif: &Self| vif.port_config(networks).vlan;
        self.mac.is_some() && self.mac == other.mac && vlan(self).meets(&vlan(other))
    }

    /// True if this interface and `other` want the same name, socket or MAC address.
    pub fn shares_with(&self, other: &Self, networks: &Networks) -> bool {
        let has = |vif: &Self, agent: Option<&SocketPath>| agent == Some(&vif.socket);
        self.name == other.name
            || self.socket == other.socket
            || self.shares_mac_with(other, networks)
            || has(other, self.agent.as_ref())
            || has(self, other.agent.as_ref())
    }

    /// Settings of the interface that do not go together, under a latency budget of `budget` and the switch's
    /// `schedule`, where that is known.
    pub fn faults(&self, budget: LatencyBudget, schedule: Option<Schedule>) -> Vec<Fault> {
        let mut faults = self.call_faults(budget);
        faults.extend(self.sharing.faults(schedule));
        faults.extend(self.guarding.faults(self.mac_check));
        faults.extend(self.check_mirror().err().map(|error| Fault {
            keys: ["mirror", HEADER],
            reason: error.to_string(),
            help: error.help(),
        }));
        faults
    }
}

impl UplinkConfig {
    /// Settings of the uplink that do not go together with the switch's `schedule`.
    pub fn faults(&self, schedule: Schedule) -> Vec<Fault> {
        let mut faults =
            Sharing { weight: self.weight, ..Sharing::default() }.faults(Some(schedule));
        faults.extend(self.kind_faults());
        faults
    }
}
