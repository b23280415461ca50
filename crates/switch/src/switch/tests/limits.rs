//! Every limit that a tenant can exhaust must be visible.

use std::collections::BTreeSet;

use weir_engine::DropReason;
use weir_limits as limits;

use super::*;
use crate::stats::{Limit, SwitchStats};

enum Shows {
    /// `limits` of the switch: the name, and the limit if it is a constant.
    Switch(&'static str, Option<u64>),
    /// `limits` of an interface: the name, and the limit if it is a constant.
    Vif(&'static str, Option<u64>),
    /// A counter of the interface: a drop's name, or a field.
    Counter(&'static str),
    /// The interface stops, or its session or agent ends, and the reason names the limit.
    Reason,
    /// `guard` of the interface lists the entries, or `multicast` of the switch the ports that have more, or `on_demand`
    /// of the switch the files without an interface.
    Listed,
    /// The limit is shown elsewhere: by the API's server (`the_connections_of_the_api_are_shown_as_a_limit` of
    /// `weir-api`), or by the port of an overlay or of a network's gateway, in `answers` or `limits` (tests of
    /// `cli/tests/overlay`).
    Elsewhere,
}

use Shows::{Counter, Elsewhere, Listed, Reason, Switch as Whole, Vif as Own};

/// Limits that a guest, a front end, a network or a client can exhaust.
const TENANTS: &[(&str, Shows)] = &[
    ("MEMORY_TOTAL_MAX", Whole("memory_mapped_bytes", Some(limits::MEMORY_TOTAL_MAX))),
    ("MEM_REGIONS_TOTAL_MAX", Whole("memory_regions", Some(limits::MEM_REGIONS_TOTAL_MAX as u64))),
    ("FDB_ENTRIES_MAX", Whole("addresses", Some(limits::FDB_ENTRIES_DEFAULT as u64))),
    ("PORTS_MAX", Whole("ports", Some(limits::PORTS_MAX as u64))),
    ("DESCRIPTORS_MAX", Whole("descriptors", None)),
    ("CONTROL_CONNECTIONS_MAX", Elsewhere),
    ("CONTROL_UNREAD_BYTES_MAX", Elsewhere),
    ("EVPN_CLAIMS_MAX", Elsewhere),
    ("EVPN_SIGHTINGS_MAX", Elsewhere),
    ("EVPN_OWNED_PART", Elsewhere),
    ("MEMORY_MAX_MAX", Own("memory_bytes", Some(limits::MEMORY_MAX_DEFAULT))),
    ("MEM_SLOTS_MAX", Own("memory_regions", None)),
    ("MEMORY_SHARED_PART", Whole("memory_mapped_bytes", None)),
    ("MEM_TABLES_MAX", Own("memory_mapped_bytes", Some(2 * limits::MEMORY_MAX_DEFAULT))),
    ("FDB_PER_VIF_MAX", Own("addresses", Some(limits::FDB_PER_VIF_MAX as u64))),
    ("GROUP_CONNECTIONS_MAX", Own("connections", Some(limits::GROUP_CONNECTIONS_MAX as u64))),
    ("GROUP_RANGES_MAX", Counter("group_in")),
    ("FDB_PER_PORT_MAX", Own("addresses", None)),
    // Limits of the overlay's port; `addresses_NAME` is the limit of each network.
    ("FDB_OVERLAY_PART", Own("addresses", None)),
    ("FDB_NETWORK_PART", Own("addresses", None)),
    ("SESSIONS_AT_ONCE_MAX", Counter("throttled")),
    ("SESSIONS_PER_SEC_MAX", Counter("throttled")),
    ("FOREIGN_CLOSES_MAX", Counter("throttled")),
    ("VAIN_KICKS_MAX", Counter("kick_pauses")),
    ("LOG_LINES_MAX", Counter("log_lines_unsaid")),
    ("LOG_LINES_AT_ONCE_MAX", Counter("log_lines_unsaid")),
    ("LOG_LINES_PER_SEC_MAX", Counter("log_lines_unsaid")),
    ("CALL_NS_USUAL_MAX", Counter("dear_calls")),
    ("PARKED_MAX", Counter("rx_ring_full")),
    ("XEN_PARKED_MAX", Counter("rx_ring_full")),
    ("PARKED_NS_MAX", Counter("rx_waited_too_long")),
    ("FRAME_LEN_MAX", Counter("frame_too_long")),
    ("IPV6_EXT_HEADERS_MAX", Counter("gso_headers")),
    ("NETIF_TX_FRAGS_MAX", Counter("frame_too_long")),
    ("XEN_MULTICAST_MAX", Counter("multicast_unwanted")),
    ("RX_MERGE_MAX", Counter("rx_ring_full")),
    ("CALL_NS_MAX", Reason),
    ("BLOCKED_NS_MAX", Reason),
    ("CALL_DEBT_NS_MAX", Reason),
    ("CHAIN_LEN_MAX", Reason),
    ("BUFFER_PIECES_MAX", Reason),
    ("GSO_SEGMENTS_MAX", Reason),
    ("NETIF_EXTRAS_MAX", Reason),
    ("QUEUE_SIZE_MAX", Reason),
    ("QUEUE_PAIRS_MAX", Reason),
    ("VRINGS_MAX", Reason),
    ("MEM_TABLE_REGIONS_MAX", Reason),
    ("VHOST_USER_BODY_MAX", Reason),
    ("VHOST_USER_FDS_MAX", Reason),
    ("VHOST_USER_OUTBOUND_BYTES_MAX", Reason),
    ("MTU_MAX", Reason),
    ("CONTROL_REQUEST_BYTES_MAX", Reason),
    ("CONTROL_HEAD_BYTES_MAX", Reason),
    ("CONTROL_HEADERS_MAX", Reason),
    ("CONTROL_ADDRESSES_MAX", Elsewhere),
    ("CONTROL_PORTS_MAX", Elsewhere),
    ("CONTROL_PORTS_TOGETHER_MAX", Elsewhere),
    ("SNOOPED_LEASES_MAX", Listed),
    ("MULTICAST_GROUPS_PER_VIF_MAX", Listed),
    ("ON_DEMAND_VIFS_MAX", Listed),
    ("ON_DEMAND_ENTRIES_MAX", Listed),
    ("ON_DEMAND_SOCKETS_MAX", Listed),
    ("DHCP_QUESTIONS_MAX", Listed),
    ("DNS_WAITING_MAX", Elsewhere),
    ("DNS_ASKED_PER_VIF_MAX", Elsewhere),
    ("DNS_ASKED_MAX", Elsewhere),
    ("DNS_STREAMS_PER_VIF_MAX", Elsewhere),
    ("DNS_STREAMS_MAX", Elsewhere),
    ("DNS_STREAM_QUESTIONS_MAX", Elsewhere),
    ("DNS_STREAM_QUESTION_BYTES_MAX", Elsewhere),
    ("DNS_STREAM_ANSWERS_BYTES_MAX", Elsewhere),
    ("DNS_CALLS_PER_VIF_MAX", Elsewhere),
    ("DNS_CALLS_MAX", Elsewhere),
    ("LEASES_PER_VIF_MAX", Elsewhere),
    ("LEASES_MAX", Elsewhere),
    ("OWN_FRAMES_WAITING_MAX", Elsewhere),
    ("OWN_FRAME_LEN_MAX", Elsewhere),
    ("OWN_ANSWERS_MAX", Elsewhere),
];

/// Limits of an administrator's settings, of weir's own steps, of files that weir reads, and of other programs.
const NOBODYS: &[&str] = &[
    // Beyond this number the oldest translation is dropped, and is asked for again.
    "IOTLB_",
    "LAB_",
    "CONFIG_",
    "AGENT_",
    "RATE_",
    "WINDOW_",
    "WEIGHT_",
    "BOND_",
    "XDP_",
    "STREAM_",
    "OVERLAY_",
    "DATAGRAM",
    "NETWORKS_",
    "GROUPS_",
    "TEMPLATES_",
    "ON_DEMAND_PATTERNS_",
    "ON_DEMAND_FORGET_",
    "ON_DEMAND_PAUSE_",
    "GROUP_RULES_",
    "GROUP_IDS_",
    "GROUP_VALUES_",
    "GROUP_CONNECTION_",
    "VIF_GROUPS_",
    "TAP_",
    "FILTER_",
    "STEERING_",
    "GRO_",
    "BURST_",
    "CONTAINER_",
    "XENSTORE_",
    "WORKER",
    "MEMORY_FILE_SYSTEMS_MAX",
    "MOUNTINFO_BYTES_MAX",
    "XEN_RING_PAGES_MAX",
    "XEN_CTRL_REQUESTS_MAX",
    "GRANT_COPY_MAX",
    "LATENCY_BUDGET_NS_MAX",
    "RX_FRAMES_MAX",
    "VHOST_USER_REPLY_NS_MAX",
    "CONTROL_RESPONSE_BYTES_MAX",
    "CONTROL_TOKEN_LEN_MAX",
    "ADMINS_MAX",
    "PROGRAM",
    "BRIDGE_",
    "EVENTS_",
    "UPLINK_FOUND_BYTES_MAX",
    "CPUS_MAX",
    "SYSFS_BYTES_MAX",
    "CACHE_INDEXES_MAX",
    "PROC_STAT_BYTES_MAX",
    "PORT_NAME_LEN_MAX",
    "OWNER_LEN_MAX",
    "IFNAME_LEN_MAX",
    "SOCKET_PATH_LEN_MAX",
    "DIALED_PATH_LEN_MAX",
    "VLAN_ID_MAX",
    "DSCP_MAX",
    "ANNOUNCED_VLANS_MAX",
    "SOURCE_ADDRESSES_MAX",
    "LOOP_",
    "MULTICAST_RESPONSE_",
    "OWN_ADDRESSES_MAX",
    "DHCP_DNS_MAX",
    "DHCP_ROUTES_MAX",
    "BOOT_FILE",
    "WAYS_OUT_MAX",
    "FORWARDS_MAX",
    "DNS_PAYLOAD_MAX",
    "DNS_SOCKETS_MAX",
    "RESOLV",
    "DOMAIN_LEN_MAX",
    "DOMAIN_VIFS_MAX",
    "DOMAIN_XML_",
    "LEASE_SECS_MAX",
    "LEASES_BYTES_MAX",
    "LEASES_NOTED_BYTES_MAX",
    "CAPTURE",
    "FOLLOWED_",
    "MIRRORS_MAX",
    "FOREIGN_CLOSE_NS_MAX",
    "HELPER_",
    "KEEPER_",
    "KEPT_",
    "THREAD_PANICS_MAX",
    "USER_NAME_LEN_MAX",
];

/// Every constant of `crates/limits` that is a limit.
fn bounds() -> BTreeSet<&'static str> {
    let sources = [
        include_str!("../../../../limits/src/lib.rs"),
        include_str!("../../../../limits/src/addresses.rs"),
    ];
    let lines = sources.into_iter().flat_map(str::lines);
    let names = lines.filter_map(|line| line.strip_prefix("pub const ")?.split_once(':'));
    let is_bound = |name: &&str| name.ends_with("_MAX") || name.ends_with("_PART");
    names.map(|(name, _)| name).filter(is_bound).collect()
}

fn stats_as_clients_see_them(bench: &Bench) -> SwitchStats {
    let ask = |request| bench.switch.handle(request);
    let Response::Stats { stats } = ask(Request::Stats) else { panic!("no counters") };
    let Response::PortNames { names } = ask(Request::PortNames) else { panic!("no names") };
    let of = |names: &[PortName]| match ask(Request::Ports(names.to_vec())) {
        Response::Ports { ports } => ports,
        other => panic!("{other:?}"),
    };
    let ports = of(&names);
    assert!(ports.iter().map(|port| &port.name).eq(&names));
    // Only the ports that are asked for are read.
    assert_eq!(of(&names[1..2]).into_iter().map(|port| port.name).collect::<Vec<_>>(), names[1..2]);
    SwitchStats { ports, ..*stats }
}

#[test]
fn every_bound_that_a_tenant_can_fill_is_shown() {
    for name in bounds() {
        let tenants = TENANTS.iter().filter(|(bound, _)| *bound == name).count();
        let nobodys = NOBODYS.iter().any(|prefix| name.starts_with(prefix));
        assert_eq!(tenants + usize::from(nobodys), 1, "{name}: say once where it shows");
    }
    let bench = Bench::with("[group.web]\n[vif.a]\ngroups = [\"web\"]\n[vif.b]\n[vif.c]\n");
    let (_guest, mut pairs) = bench.guest("a", 1, 1);
    let (_other, _pairs) = bench.guest("b", 2, 1);
    groups::put(&mut pairs[0], &groups::udp(1, 2, [1, 2]));
    eventually("a connection is known", || bench.port("a").limits["connections"].used == 1);
    send(&mut pairs[0], [0xff; 6], 1, b"hello");
    eventually("its address is known", || bench.port("a").limits["addresses"].used == 1);
    let stats = stats_as_clients_see_them(&bench);
    let port = stats.ports.iter().find(|port| port.name == name("a")).unwrap();
    let fields = serde_json::to_string(port).unwrap();
    let drops: BTreeSet<_> = DropReason::all().map(DropReason::as_str).collect();
    let is_shown = |limits: &crate::stats::Limits, key: &str, max: Option<u64>| {
        let Limit { used, max: shown } = limits[key];
        assert!(used > 0 && used < shown, "{key}: {used} of {shown}");
        assert!(max.is_none_or(|max| max == shown), "{key}: {shown}");
    };
    let known = bounds();
    for (bound, shows) in TENANTS {
        assert!(known.contains(bound), "there is no {bound}");
        match shows {
            Whole(key, max) => is_shown(&stats.limits, key, *max),
            Own(key, max) => is_shown(&port.limits, key, *max),
            Counter(name) => {
                let field = fields.contains(&format!("\"{name}\":"));
                assert!(field || drops.contains(name), "{bound}: nothing counts {name}");
            }
            Reason | Listed | Elsewhere => {}
        }
    }
    assert_eq!(stats.limits["front_ends"], Limit::new(2, limits::PORTS_MAX));
    assert_eq!(stats.limits["ports"].used, 3);
    // One interface is in a group, so its connections are the switch's.
    assert_eq!(stats.limits["connections"], port.limits["connections"]);
    let bytes = stats.limits["connection_tables_bytes"];
    let places = limits::GROUP_CONNECTIONS_MAX as u64;
    assert!((places..limits::GROUP_CONNECTION_BYTES_MAX as u64 * places).contains(&bytes.used));
    assert_eq!(bytes.max, bytes.used * limits::PORTS_MAX as u64);
    assert_eq!(bench.set("b", "groups=web"), Response::Ok);
    let stats = stats_as_clients_see_them(&bench);
    assert_eq!(stats.limits["connections"].max, 2 * places);
    assert_eq!(stats.limits["connection_tables_bytes"].used, 2 * bytes.used);
}
