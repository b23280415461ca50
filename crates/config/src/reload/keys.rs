//! The keys of each table, with their values as text in the form of the file.

use crate::keys::{Key, NEEDS_A_RESTART, Rows};
use crate::{GroupConfig, NetworkConfig, NetworkKind, OverlayNetwork};

/// A key that changes only with a restart.
fn fixed(name: &'static str, value: Option<String>) -> (Key, Option<String>) {
    (Key::new(name, "").fixed(NEEDS_A_RESTART), value)
}

/// A key that can change while weir runs.
fn alive(name: &'static str, value: Option<String>) -> (Key, Option<String>) {
    (Key::new(name, ""), value)
}

fn is(value: impl ToString) -> Option<String> {
    Some(value.to_string())
}

fn may<T: ToString>(value: &Option<T>) -> Option<String> {
    value.as_ref().map(T::to_string)
}

fn list<T: ToString>(values: impl IntoIterator<Item = T>, between: &str) -> Option<String> {
    let texts: Vec<_> = values.into_iter().map(|value| value.to_string()).collect();
    (!texts.is_empty()).then(|| texts.join(between))
}

/// The keys of `[network.NAME]`.
pub(super) fn network(network: &NetworkConfig) -> Rows {
    let (mut vlan, mut vni, mut listed, mut flood, mut suppress) = Default::default();
    match &network.kind {
        NetworkKind::Vlan(vid) => vlan = is(vid),
        NetworkKind::Overlay(of) => {
            let OverlayNetwork { vni: number, peers, flood_per_second, neigh_suppress } = of;
            (vni, listed, flood) = (is(number), list(peers, ", "), is(flood_per_second));
            suppress = of.by_evpn().then(|| neigh_suppress.to_string());
        }
    }
    let gateway = network.gateway.as_ref();
    let dhcp = gateway.and_then(|gateway| gateway.dhcp.as_ref());
    let nat = gateway.and_then(|gateway| gateway.nat.as_ref());
    vec![
        fixed("vlan", vlan),
        fixed("vni", vni),
        fixed("peers", listed),
        fixed("flood_per_second", flood),
        fixed("neigh_suppress", suppress),
        fixed("isolated", network.isolated.then(|| true.to_string())),
        fixed("multicast_snooping", network.multicast_snooping.then(|| true.to_string())),
        fixed("address", gateway.and_then(|it| list(&it.addresses, ", "))),
        fixed("dhcp", gateway.map(|_| dhcp.is_some().to_string())),
        fixed("nat", gateway.map(|it| it.nat.is_some().to_string())),
        fixed("interface", nat.map(|it| it.interface.to_string())),
        fixed("forward", nat.and_then(|it| list(&it.forward, ", "))),
        fixed("range", dhcp.map(|it| it.range.to_string())),
        fixed("router", dhcp.and_then(|it| may(&it.router))),
        fixed("ra", gateway.map(|it| it.ra.to_string())),
        fixed("dns", gateway.and_then(|it| list(&it.dns, ", "))),
        fixed("domain", dhcp.and_then(|it| may(&it.domain))),
        fixed("lease_time", dhcp.map(|it| it.lease_time.to_string())),
        fixed("fixed", dhcp.and_then(|it| list(&it.fixed, ", "))),
    ]
}

/// The keys of `[group.NAME]`.
pub(super) fn group(group: &GroupConfig) -> Rows {
    let GroupConfig { name: _, default_in, default_out, rules } = group;
    vec![
        alive("default_in", is(default_in)),
        alive("default_out", is(default_out)),
        alive("rules", list(rules, "; ")),
    ]
}
