//! Ports that are connected to each other outside weir.

use weir_config::PortName;
use weir_switch::explain::Explanation;
use weir_switch::stats::{BlockStats, PortKind};

use super::machine::uplinks;
use crate::facts::{Facts, Finding, finding, note};
use crate::host::joined;

/// Reports blocked ports.
pub(super) fn found(facts: &Facts, found: &mut Vec<Finding>) {
    for port in facts.ports() {
        let Some(BlockStats { with, vlan, seconds, retry_s, tries }) = &port.blocked else {
            continue;
        };
        let name = &port.name;
        let (what, mend) = match port.kind {
            PortKind::Uplink | PortKind::Own => (
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
    // The uplinks of a bond may be in one LAN.
    let bonds = || {
        facts.explained.values().filter_map(|it| match it {
            Explanation::Uplink(uplink) => uplink.bond.as_ref(),
            _ => None,
        })
    };
    let is_further = |name: &PortName| {
        bonds().any(|bond| bond.uplinks.iter().skip(1).any(|uplink| uplink.name == *name))
    };
    let uplinks = uplinks(facts).filter(|(name, _)| !is_further(name));
    for joined in joined(uplinks, &facts.host.bridges) {
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
