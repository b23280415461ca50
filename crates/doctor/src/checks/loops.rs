//! Ports that are connected to each other outside weir.

use std::collections::BTreeMap;
use std::fmt;

use weir_config::PortName;
use weir_switch::stats::{BlockStats, PortKind};

use super::machine::uplinks;
use super::{Facts, Finding, finding, note};

/// Two uplinks whose interfaces are ports of one bridge of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined<'u> {
    /// The uplink that is named first, and its interface.
    pub first: (&'u PortName, &'u str),
    /// The other uplink, and its interface.
    pub second: (&'u PortName, &'u str),
    /// The bridge.
    pub bridge: String,
}

impl fmt::Display for Joined<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first: (first, a), second: (second, b), bridge } = self;
        write!(f, "{a} of {first} and {b} of {second} are ports of the bridge {bridge}")?;
        f.write_str(": a loop in each VLAN that both uplinks have; weir blocks the second when it finds one")
    }
}

/// The pairs among `uplinks`, by their names and interfaces. `bridges` gives the bridge of which an interface is a
/// port.
pub(crate) fn joined<'u>(
    uplinks: impl IntoIterator<Item = (&'u PortName, &'u str)>,
    bridges: &BTreeMap<String, String>,
) -> Vec<Joined<'u>> {
    let mut first_of: BTreeMap<&str, (&PortName, &str)> = BTreeMap::new();
    let mut all = Vec::new();
    for second in uplinks {
        let Some(bridge) = bridges.get(second.1) else { continue };
        match first_of.get(bridge.as_str()) {
            Some(&first) => all.push(Joined { first, second, bridge: bridge.clone() }),
            None => _ = first_of.insert(bridge, second),
        }
    }
    all
}

/// Reports blocked ports.
pub(super) fn found(facts: &Facts, found: &mut Vec<Finding>) {
    for port in facts.ports() {
        let Some(BlockStats { with, vlan, seconds, retry_s, tries }) = &port.blocked else {
            continue;
        };
        let name = &port.name;
        let (what, mend) = match port.kind {
            PortKind::Uplink => (
                format!("blocked: what leaves by {with} comes back by {name}"),
                format!("take {name} or {with} out of the LAN that both are in"),
            ),
            PortKind::Vif if with == name => (
                "blocked: the guest sends back what it receives".to_owned(),
                "in the guest, take the interface out of the bridge or program that does it".into(),
            ),
            PortKind::Vif => (
                format!("blocked: the guest passes on between {name} and {with}"),
                format!("in the guest, take {name} out of the bridge that joins it with {with}"),
            ),
        };
        let known_by = format!(
            "loop: a probe came back {seconds:.0} s ago in VLAN {vlan}, tried {tries} times since"
        );
        let mend = format!("{mend}; weir tries again in {retry_s:.0} s");
        found.push(finding("loop", name, what, known_by, mend));
    }
}

/// Reports uplinks that will form a loop.
pub(super) fn ahead(facts: &Facts, found: &mut Vec<Finding>) {
    for joined in joined(uplinks(facts), &facts.host.bridges) {
        let (second, interface) = joined.second;
        let is_blocked = facts.ports().any(|port| port.name == *second && port.blocked.is_some());
        if is_blocked {
            continue;
        }
        let known_by = format!("/sys/class/net/{interface}/master: {}", joined.bridge);
        let mend = format!("ip link set {interface} nomaster, or give the two different VLANs");
        let ahead = finding("uplinks-joined", second, joined.to_string(), known_by, mend);
        found.push(note(ahead));
    }
}
