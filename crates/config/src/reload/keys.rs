//! The keys of each table with their values as text, as the file would say them.

use super::super::{
    ApiConfig, FilterRule, Guarding, NetworkConfig, NetworkKind, OverlayConfig, OverlayNetwork,
    PlacementConfig, Receiving, Sharing, StormControl, SwitchConfig, UplinkConfig, VifConfig,
    VlanMode, Workers, XenConfig,
};

/// Each key of a table; without a value where the file need not name it.
pub(super) type Keys = Vec<(&'static str, Option<String>)>;

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

fn vlans(vlan: &VlanMode) -> Option<String> {
    (*vlan != VlanMode::Unset).then(|| vlan.to_string())
}

fn rules(filter: &[FilterRule]) -> Option<String> {
    list(filter, "; ")
}

/// Those of `[switch]`.
pub(super) fn switch(switch: &SwitchConfig) -> Keys {
    let SwitchConfig {
        execution,
        realization,
        workers,
        latency_budget,
        schedule,
        fdb_entries,
        control,
        placement: PlacementConfig { mode, pin_vcpus },
        user,
        keeper,
        allow_symlinks,
        api: ApiConfig { group, admins, listen, token_file },
    } = switch;
    let workers = match workers {
        Workers::Auto => "auto".to_owned(),
        Workers::Count(number) => number.to_string(),
    };
    vec![
        ("execution", is(execution)),
        ("realization", is(realization)),
        ("workers", is(workers)),
        ("latency_budget", is(latency_budget)),
        ("schedule", is(schedule)),
        ("fdb_entries", is(fdb_entries)),
        ("control", is(control)),
        ("placement", is(mode)),
        ("pin_vcpus", is(pin_vcpus)),
        ("user", may(user)),
        ("keeper", may(keeper)),
        ("allow_symlinks", is(allow_symlinks)),
        ("group", may(group)),
        ("admin", list(admins.as_slice(), ", ")),
        ("api_listen", may(listen)),
        ("api_token_file", may(token_file)),
    ]
}

/// Those of `[overlay]`.
pub(super) fn overlay(overlay: &OverlayConfig) -> Keys {
    let OverlayConfig { local, interface, port, mtu, queues, dscp, evpn } = overlay;
    vec![
        ("local", is(local)),
        ("interface", may(interface)),
        ("port", is(port)),
        ("mtu", is(mtu)),
        ("queues", is(queues)),
        ("dscp", is(dscp)),
        ("evpn", is(evpn)),
    ]
}

/// Those of `[network.NAME]`.
pub(super) fn network(network: &NetworkConfig) -> Keys {
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
        ("vlan", vlan),
        ("vni", vni),
        ("peers", listed),
        ("flood_per_second", flood),
        ("neigh_suppress", suppress),
        ("isolated", network.isolated.then(|| true.to_string())),
        ("address", gateway.and_then(|it| list(&it.addresses, ", "))),
        ("dhcp", gateway.map(|_| dhcp.is_some().to_string())),
        ("nat", gateway.map(|it| it.nat.is_some().to_string())),
        ("interface", nat.map(|it| it.interface.to_string())),
        ("forward", nat.and_then(|it| list(&it.forward, ", "))),
        ("range", dhcp.map(|it| it.range.to_string())),
        ("router", dhcp.and_then(|it| may(&it.router))),
        ("ra", gateway.map(|it| it.ra.to_string())),
        ("dns", gateway.and_then(|it| list(&it.dns, ", "))),
        ("domain", dhcp.and_then(|it| may(&it.domain))),
        ("lease_time", dhcp.map(|it| it.lease_time.to_string())),
        ("fixed", dhcp.and_then(|it| list(&it.fixed, ", "))),
    ]
}

/// Those of `[uplink.NAME]`.
pub(super) fn uplink(uplink: &UplinkConfig) -> Keys {
    let UplinkConfig {
        name: _,
        kind,
        interface,
        queues,
        vlan,
        tag_protocol,
        mtu,
        filter,
        rss_rebalance,
        weight,
    } = uplink;
    vec![
        ("kind", is(kind)),
        ("name", is(interface)),
        ("queues", is(queues)),
        ("vlan", vlans(vlan)),
        ("tag_protocol", is(tag_protocol)),
        ("mtu", may(mtu)),
        ("filter", rules(filter)),
        ("rss_rebalance", is(rss_rebalance)),
        ("weight", may(weight)),
    ]
}

/// Those of `[vif.NAME]`.
pub(super) fn vif(vif: &VifConfig) -> Keys {
    let VifConfig {
        name: _,
        socket,
        mode,
        socket_mode,
        queues,
        latency_budget,
        moderation,
        rx_usecs,
        rx_frames,
        container_bytes,
        agent,
        mac,
        by,
        mac_check,
        isolated,
        rss_rebalance,
        vlan,
        tag_protocol,
        mtu,
        access_platform,
        memory_max,
        storm,
        guarding,
        filter,
        sharing,
    } = vif;
    let mut keys = vec![
        ("socket", is(socket)),
        ("mode", is(mode)),
        ("socket_mode", may(socket_mode)),
        ("queues", is(queues)),
        ("latency_budget", may(latency_budget)),
        ("moderation", is(moderation)),
        ("rx_usecs", may(rx_usecs)),
        ("rx_frames", may(rx_frames)),
        ("container_bytes", may(container_bytes)),
        ("agent", may(agent)),
        ("mac", may(mac)),
        ("by", may(by)),
        ("mac_check", is(mac_check)),
        ("isolated", may(isolated)),
        ("rss_rebalance", is(rss_rebalance)),
        ("vlan", vlans(vlan)),
        ("tag_protocol", is(tag_protocol)),
        ("mtu", may(mtu)),
        ("access_platform", is(access_platform)),
        ("memory_max", is(memory_max)),
        ("filter", rules(filter)),
    ];
    keys.extend(storm_keys(storm).into_iter().chain(guarding_keys(guarding)));
    keys.extend(sharing_keys(sharing));
    keys
}

fn storm_keys(storm: &StormControl) -> Keys {
    let StormControl { broadcasts_per_second, multicasts_per_second, unknown_per_second } = storm;
    vec![
        ("broadcasts_per_second", may(broadcasts_per_second)),
        ("multicasts_per_second", may(multicasts_per_second)),
        ("unknown_per_second", may(unknown_per_second)),
    ]
}

fn guarding_keys(guarding: &Guarding) -> Keys {
    let Guarding { mode, addresses, router } = guarding;
    let addresses = addresses.to_string();
    vec![
        ("source_guard", is(mode)),
        ("addresses", Some(addresses).filter(|text| !text.is_empty())),
        ("router", is(router)),
    ]
}

fn sharing_keys(sharing: &Sharing) -> Keys {
    let Sharing { weight, window, period, rate, burst, packets_per_second, packet_burst, receive } =
        sharing;
    let Receiving {
        rate: rx_rate,
        burst: rx_burst,
        packets_per_second: rx_packets_per_second,
        packet_burst: rx_packet_burst,
    } = receive;
    vec![
        ("weight", may(weight)),
        ("window", may(window)),
        ("period", may(period)),
        ("rate", may(rate)),
        ("burst", may(burst)),
        ("packets_per_second", may(packets_per_second)),
        ("packet_burst", may(packet_burst)),
        ("rx_rate", may(rx_rate)),
        ("rx_burst", may(rx_burst)),
        ("rx_packets_per_second", may(rx_packets_per_second)),
        ("rx_packet_burst", may(rx_packet_burst)),
    ]
}

/// Those of `[xen]`.
pub(super) fn xen(xen: &XenConfig) -> Keys {
    let XenConfig { bridges, agent_channel, split_event_channels, vif: template } = xen;
    let mut keys = vec![
        ("bridges", bridges.as_ref().and_then(|bridges| list(bridges, ", "))),
        ("agent_channel", may(agent_channel)),
        ("split_event_channels", is(split_event_channels)),
    ];
    keys.extend(vif(template).into_iter().filter(|(key, _)| *key != "socket"));
    keys
}
