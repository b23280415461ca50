//! The fate of frames: too many drops, and calls that are too late.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use weir_config::{Direction, PortName};
use weir_switch::capture::Seen;
use weir_switch::explain::{Explanation, USUAL_DROPS, drops_all, stops_all};
use weir_switch::stats::{PortKind, PortState, PortStats};
use weir_wire::{Ethernet, Layers, Mac, Neighbour, Network};

use super::attach::RECENT_S;
use crate::facts::{Facts, Finding, finding, note};

/// One drop in this many frames, or one late call in this many calls, is a fault.
const ONE_OF: u64 = 100;
/// Number of drops or late calls below which there is no fault: every guest has a few, for example while it boots.
const FEW: u64 = 10;
/// Number of late calls below which none is worth a note once they have ended: a host that starts its guests has as many.
const FEW_LATE: u64 = 100;

/// The number of drops or late calls, and the number of all frames or calls.
#[derive(Clone, Copy)]
struct Share {
    some: u64,
    all: u64,
}

impl Share {
    fn is_much(self) -> bool {
        self.some > 0 && self.some.saturating_mul(ONE_OF) >= self.all
    }
}

/// A port's counts: since it was added, and just now.
struct Counted {
    ever: Share,
    now: Share,
    quiet_s: u64,
}

impl Counted {
    /// The counts of a port; `None` if the drops or late calls are few, as at nearly every port.
    /// Nothing more is looked up then.
    fn of(
        facts: &Facts,
        port: &PortStats,
        some: impl Fn(&PortStats) -> u64,
        all: impl Fn(&PortStats) -> u64,
    ) -> Option<Self> {
        let ever = Share { some: some(port), all: all(port) };
        if ever.some < FEW {
            return None;
        }
        let since = |now: u64, counter: &dyn Fn(&PortStats) -> u64| {
            now.saturating_sub(facts.before(port, counter))
        };
        let now = Share { some: since(ever.some, &some), all: since(ever.all, &all) };
        Some(Self { ever, now, quiet_s: port.quiet_s })
    }

    /// The finding for these counts: an error if the fault continues, and for a while a note if it is over.
    fn judged(
        &self,
        as_wrong: impl FnOnce(String) -> Finding,
        what: &str,
        of: &str,
    ) -> Option<Finding> {
        let Self { ever, now, quiet_s } = self;
        if !(now.is_much() || ever.is_much() && *quiet_s < RECENT_S) {
            return None;
        }
        let known_by = format!(
            "{what}: {} just now beside {} {of}, {} beside {} since the port was added",
            now.some, now.all, ever.some, ever.all
        );
        let found = as_wrong(known_by);
        Some(if now.is_much() { found } else { note(found) })
    }
}

/// Reports a port if too many of the frames that it sends, or receives, are dropped for one of `reasons`.
fn dropped(
    facts: &Facts,
    found: &mut Vec<Finding>,
    reasons: &[&str],
    tell: impl Fn(&PortStats, &str) -> (String, String),
) {
    dropped_by(facts, found, reasons, tell, |many| many);
}

/// Like [`dropped`], but `weigh` adjusts the findings about ports at which other frames have
/// passed.
fn dropped_by(
    facts: &Facts,
    found: &mut Vec<Finding>,
    reasons: &[&str],
    tell: impl Fn(&PortStats, &str) -> (String, String),
    weigh: impl Fn(Finding) -> Finding,
) {
    for port in facts.ports() {
        for reason in reasons {
            let drops = |port: &PortStats| port.drops.get(*reason).copied().unwrap_or(0);
            // A frame that is dropped on its way to the port does not count as received; one that the port sent counts
            // as sent.
            let moved = |port: &PortStats| port.rx.frames.max(port.tx.frames);
            let as_wrong = |known_by| {
                let (what, mend) = tell(port, reason);
                finding(&port.name, what, known_by, mend)
            };
            let (rx, tx) = (port.rx.frames, port.tx.frames);
            let stops = stops_all(reason, drops(port), rx, tx);
            if let Some(direction) = stops.filter(|_| port.state == PortState::Running) {
                let what = match direction {
                    Direction::Tx => "that the port has sent",
                    Direction::Rx => "that came for the port",
                };
                found.push(as_wrong(format!("{reason}: all {} frames {what}", drops(port))));
                continue;
            }
            let counted = Counted::of(facts, port, drops, moved);
            let judged =
                counted.and_then(|it| it.judged(as_wrong, reason, "frames that were moved"));
            found.extend(judged.map(&weigh));
        }
    }
}

pub(super) fn src_mac(facts: &Facts, found: &mut Vec<Finding>) {
    dropped(facts, found, &["src_mac_spoofed", "src_mac_owned"], |port, reason| {
        let name = &port.name;
        match reason {
            "src_mac_owned" if port.kind == PortKind::Vif => (
                "the guest sends from an address that somebody else has: an interface, or behind an uplink".into(),
                format!("weir addresses says where; `mac` for one, and its VM anew: $(weir qemu-args {name})"),
            ),
            "src_mac_owned" => (
                "a station behind it sends from the address of a guest".into(),
                "weir addresses says of which; another address for one of them".into(),
            ),
            _ => (
                "the guest sends from another address than the one it is held to".into(),
                format!("weir vif set {name} mac=..., or mac_check=false for a guest that bridges"),
            ),
        }
    });
}

pub(super) fn vlan(facts: &Facts, found: &mut Vec<Finding>) {
    let reasons = [
        "vlan_tagged_on_access",
        "vlan_untagged_on_trunk",
        "vlan_not_allowed",
        "vlan_still_tagged",
    ];
    dropped(facts, found, &reasons, |port, _| {
        let what = "frames come in with a VLAN tag, or without one, that the port does not take";
        let mend = format!("weir vif set {} vlan=N, or trunk=[...] native=N", port.name);
        (what.into(), mend)
    });
    found.retain(|it| !is_of_mirror(facts, it));
}

/// A guest that runs and is alone in its VLAN.
pub(super) fn vlan_alone(facts: &Facts, found: &mut Vec<Finding>) {
    let others = facts.ports().count() > 1;
    for (name, explained) in &facts.explained {
        let Explanation::Vif(vif) = explained else { continue };
        let it = &vif.traffic;
        let is_alone = it.reaches + it.silent + it.isolated == 0;
        if it.state != PortState::Running || it.is_mirror || !is_alone {
            continue;
        }
        let alone = finding(
            name,
            "the guest reaches nobody: no other port is in its VLAN or network",
            format!("{name} is in {}, and no other port is", it.vlan),
            format!("weir vif set {name} vlan=N, or an uplink or a guest in that VLAN"),
        );
        found.push(if others { alone } else { note(alone) });
    }
}

/// Rules that let nothing through.
pub(super) fn filter_all(facts: &Facts, found: &mut Vec<Finding>) {
    for port in facts.ports() {
        for direction in drops_all(&port.filter) {
            let does = match direction {
                Direction::Tx => "sends",
                Direction::Rx => "is to receive",
            };
            let what = format!("a packet filter drops each frame that the port {does}");
            let dropped = port.filter.iter().filter(|it| it.rule.direction == direction);
            let frames: u64 = dropped.map(|it| it.packets).sum();
            let known_by = format!(
                "filtered_{direction}: the rules have dropped {frames} frames, and let none through"
            );
            let mend = format!("weir filter list {0}; weir filter clear {0}", port.name);
            found.push(finding(&port.name, what, known_by, mend));
        }
    }
}

/// Groups that let a guest open no connection and get none. Groups that close one direction are usual.
pub(super) fn group_all(facts: &Facts, found: &mut Vec<Finding>) {
    let known = || facts.switch.iter().flat_map(|switch| &switch.groups);
    for (name, explained) in &facts.explained {
        let Explanation::Vif(vif) = explained else { continue };
        let Some(groups) = &vif.groups else { continue };
        let has_rule = known()
            .filter(|known| groups.groups.iter().any(|it| it.as_str() == known.name))
            .any(|known| !known.rules.is_empty());
        let refused: u64 = groups.refused_in.values().chain(groups.refused_out.values()).sum();
        if has_rule || groups.close_in.is_empty() || groups.close_out.is_empty() || refused == 0 {
            continue;
        }
        let all: Vec<_> = groups.groups.iter().map(ToString::to_string).collect();
        found.push(finding(
            name,
            "its security groups allow no connection: they close both directions and have no rule",
            format!("groups {}: {refused} frames were refused", all.join(", ")),
            format!("a rule in [group.{}], then weir reload; weir explain {name}", all[0]),
        ));
    }
}

/// Hosts of the overlay to which frames go and from which none comes. A host from which no frame has ever come may have
/// no guest.
pub(super) fn overlay_host(facts: &Facts, found: &mut Vec<Finding>) {
    for (name, explained) in &facts.explained {
        let Explanation::Overlay(overlay) = explained else { continue };
        let sent = facts.ports().any(|port| port.name == *name && port.rx.frames > 0);
        let mut unheard = BTreeMap::<_, (bool, Vec<_>)>::new();
        for network in &overlay.networks {
            for host in &network.hosts {
                if host.is_unheard() || sent && host.is_silent() {
                    let (wrong, networks) = unheard.entry(host.host).or_default();
                    *wrong |= host.is_unheard();
                    networks.push(network.name.as_str());
                }
            }
        }
        for (host, ids) in overlay.disputed() {
            let ids = ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let what = format!("host {host} has other groups for {ids} in [group-ids]");
            let mend = "the same [group-ids] on all hosts; weir reload";
            found.push(finding(name, what, format!("weir explain {name}"), mend));
        }
        for (host, (wrong, networks)) in unheard {
            let (local, port) = (overlay.local, overlay.udp_port);
            let networks = networks.join(", ");
            let comes = if wrong { "comes" } else { "has come so far" };
            let silent = finding(
                name,
                format!(
                    "nothing {comes} from host {host}: neither frames of its guests nor an answer of its weir"
                ),
                format!("weir explain {name}: networks {networks}"),
                format!(
                    "ping {host}; UDP port {port} open on both hosts; {local} among its `peers`; weir doctor there"
                ),
            );
            found.push(if wrong { silent } else { note(silent) });
        }
    }
}

/// Guests whose requests for neighbours do not fit their network. A guest may know better.
pub(super) fn guest_address(facts: &Facts, found: &mut Vec<Finding>) {
    for (name, explained) in &facts.explained {
        let Explanation::Vif(vif) = explained else { continue };
        let Some(astray) = &vif.traffic.astray else { continue };
        let mend = format!("in the guest: ip addr, ip route; weir capture {name} arp");
        let known_by = "its requests for neighbours (ARP)";
        found.push(note(finding(name, astray, known_by, mend)));
    }
    neighbours(facts, found);
}

/// The VLAN or network of a frame that came in by a port, and the frame without its tag.
fn segment(facts: &Facts, port: &PortName, frame: &[u8]) -> (String, Vec<u8>) {
    let tag = Ethernet::parse(frame).ok().and_then(|it| it.tag);
    if let Some(vid) = tag.map(|tag| tag.vid()).filter(|vid| *vid != 0) {
        return (format!("VLAN {vid}"), [&frame[..12], &frame[16..]].concat());
    }
    let words = facts.traffic(port).map_or("", |it| it.vlan.as_str());
    let native = words.rsplit_once(" native ").map(|(_, vid)| format!("VLAN {vid}"));
    let of_port = native.unwrap_or_else(|| words.replace("its VLANs", "VLAN 1"));
    (of_port, frame.to_vec())
}

/// Judges the words of stations to their neighbours while the doctor watched.
fn neighbours(facts: &Facts, found: &mut Vec<Finding>) {
    let station = |ip: IpAddr| format!("several stations with the address {ip}");
    let (mut has, mut asks) = (BTreeMap::<_, BTreeSet<_>>::new(), BTreeMap::<_, u32>::new());
    for Seen { port, frame } in &facts.seen {
        let (segment, frame) = segment(facts, port, frame);
        let mut say =
            |what, who| has.entry((segment.clone(), what)).or_default().insert((port, who));
        if let Some(Neighbour { mac, claims: Some(own), asks: ip }) = Neighbour::read(&frame) {
            *asks.entry((port, segment.clone(), ip)).or_default() += 1;
            say(station(own), mac.to_string());
        } else if let Ok(Layers { network: Network::Ipv4(ip), .. }) = Layers::parse(&frame) {
            // The filter lets no other IPv4 through than a station's own ICMP, and DHCP servers' answers.
            let mac =
                frame.get(6..12).and_then(|it| it.try_into().ok()).map_or_else(Mac::default, Mac);
            match ip.protocol {
                weir_wire::layers::protocol::ICMP => say(station(ip.src.into()), mac.to_string()),
                _ => say("several DHCP servers".into(), ip.src.to_string()),
            };
        }
    }
    let is_vif = |name: &PortName| matches!(facts.explained.get(name), Some(Explanation::Vif(_)));
    let known_by = "what was said in these seconds (ARP, neighbour discovery, DHCP)";
    for ((segment, what), who) in &has {
        let several = who.iter().map(|(_, who)| who).collect::<BTreeSet<_>>().len() > 1;
        let Some((first, _)) = who.iter().find(|(port, _)| is_vif(port) && several) else {
            continue;
        };
        let who: Vec<_> = who.iter().map(|(port, who)| format!("{who} at {port}")).collect();
        let what = format!("{what} are in {segment}: {}", who.join(", "));
        let mend = "end or change the one that is not meant; clones need a machine-id of their own, for DHCP";
        found.push(note(finding(first, what, known_by, mend)));
    }
    let isolated = |name: &PortName| facts.traffic(name).is_some_and(|it| it.isolated > 0);
    for ((port, segment, ip), _) in asks.iter().filter(|(_, times)| **times > 1) {
        let told = found.iter().any(|it| it.check.is_empty() && it.subject == port.as_str());
        let Some(ip) = ip.filter(|_| is_vif(port) && !told) else { continue };
        let answers = has.get(&(segment.clone(), station(ip))).and_then(first);
        let mut others = has.iter().filter(|((_, what), _)| *what == station(ip));
        let elsewhere = others.find_map(|((segment, _), who)| Some((segment, first(who)?)));
        let host = facts.host.addresses.iter().find(|(_, has)| *has == ip);
        let (why, mend) = match (answers, elsewhere, host) {
            (Some(who), ..) if isolated(port) && isolated(who) => (
                format!("{who} has it, and both are isolated"),
                format!("weir vif set {who} isolated=false, if they are to meet"),
            ),
            (Some(_), ..) => continue,
            (_, Some((other, who)), _) => (
                format!("{who} has it, in {other}"),
                format!("one VLAN for both, as by weir vif set {port} vlan=N; or a router"),
            ),
            (.., Some((card, _))) => (
                format!("the host has it on {card}, and hears no frames of {segment} there"),
                format!(
                    "a TAP as uplink (weir uplink bridge {card}), `native`, or ip link ... type vlan"
                ),
            ),
            _ => {
                let mend = "in the guest: ip addr, ip route; else VLANs, bridges and firewalls";
                ("nobody answers".into(), mend.into())
            }
        };
        let what = format!("its guest asks for {ip} in {segment} again and again, in vain: {why}");
        found.push(note(finding(port, what, known_by, mend)));
    }
}

/// The first port of `who`.
fn first<'f>(who: &BTreeSet<(&'f PortName, String)>) -> Option<&'f PortName> {
    who.first().map(|(port, _)| *port)
}

/// Guests that ask weir for an address or a name and get none, or whose addresses would be forgotten.
pub(super) fn unanswered(facts: &Facts, found: &mut Vec<Finding>) {
    for port in facts.ports() {
        let of = |counter: &'static str| {
            move |port: &PortStats| port.answers.get(counter).copied().unwrap_or(0)
        };
        for (counter, answered, what, mend) in [
            (
                "dhcp_no_address",
                "dhcp_offered",
                "a guest asks for an address in vain: the network has none left",
                "a wider `range` or `address` of its [network], or a shorter lease_time; weir addresses says who has one",
            ),
            (
                "dns_failed",
                "dns_forwarded",
                "guests ask for names in vain: no resolver of the host answers",
                "the servers in /etc/resolv.conf of the host, or `dns` of the [network]",
            ),
            (
                "leases_unsaved",
                "leases_saved_late",
                "leases could not be saved: a weir that is started anew does not know them",
                "room on the file system of /var/lib/weir, or of the control socket; journalctl -u weir has the error",
            ),
        ] {
            let ever = of(counter)(port);
            let since = |counter| of(counter)(port).saturating_sub(facts.before(port, of(counter)));
            let (failed, good) = (since(counter), since(answered));
            // If weir answers others, a single question without an answer says nothing.
            if failed <= good && (ever <= of(answered)(port) || good > 0) {
                continue;
            }
            let known_by = format!("{counter} of {}: {failed} just now, {ever} in all", port.name);
            let vain = finding(&port.name, what, known_by, mend);
            found.push(if failed > 0 { vain } else { note(vain) });
        }
    }
}

/// True for drops of a mirror's frames, which are intended.
fn is_of_mirror(facts: &Facts, finding: &Finding) -> bool {
    let is_mirror = |name: &PortName| facts.traffic(name).is_some_and(|it| it.is_mirror);
    let mut mirrors = facts.explained.keys().filter(|name| is_mirror(name));
    finding.known_by.starts_with("vlan_") && mirrors.any(|name| finding.subject == name.as_str())
}

pub(super) fn receiver_not_ready(facts: &Facts, found: &mut Vec<Finding>) {
    dropped(facts, found, &["rx_not_ready"], |port, _| {
        if port.kind != PortKind::Vif {
            let what = "frames come for the host, and its interface is not there to take them";
            return (what.into(), format!("weir explain {}; systemctl restart weir", port.name));
        }
        let what = "frames come for a guest whose receive ring does not run";
        let mend = match port.state {
            PortState::Halted => "in QEMU's monitor: info status, then cont; or set_link NETDEV on",
            _ => "in the guest: ip link set eth0 up",
        };
        (what.into(), mend.into())
    });
}

pub(super) fn receiver_slow(facts: &Facts, found: &mut Vec<Finding>) {
    let reasons = ["rx_ring_full", "rx_waited_too_long", "mirror_lost"];
    dropped(facts, found, &reasons, |port, reason| match reason {
        "mirror_lost" => (
            "copies for this mirror come faster than they are delivered".into(),
            format!("mirror fewer ports: weir vif set {} mirror=...", port.name),
        ),
        _ => (
            "a guest does not post receive buffers fast enough".into(),
            "rx_queue_size=1024 for its VM, more vCPUs, or queues=N".into(),
        ),
    });
}

pub(super) fn offloads(facts: &Facts, found: &mut Vec<Finding>) {
    dropped(facts, found, &["rx_buffer_too_small", "offload_unsupported"], |_, _| {
        let what = "the guest's driver cannot take large frames: it has no mergeable buffers";
        (what.into(), "mrg_rxbuf=on for the VM's device, or update the guest's driver".into())
    });
}

pub(super) fn tx_disabled(facts: &Facts, found: &mut Vec<Finding>) {
    dropped(facts, found, &["tx_disabled"], |_, _| {
        let what = "the driver sends on a queue that it has not enabled";
        (what.into(), "in the guest: ethtool -L eth0 combined N; update its driver".into())
    });
}

pub(super) fn mtu(facts: &Facts, found: &mut Vec<Finding>) {
    dropped(facts, found, &["over_mtu_tx", "over_mtu_rx"], |port, _| {
        let what = "frames are longer than the MTU of the interface";
        (
            what.into(),
            format!(
                "one MTU for all: mtu = N in [vif.{}], then weir reload; in the guest",
                port.name
            ),
        )
    });
    // An interface of the host has a smaller MTU than the guests expect.
    for (name, explained) in &facts.explained {
        let Explanation::Uplink(uplink) = explained else { continue };
        let Some(host) = facts.host.links.get(&uplink.interface) else { continue };
        let host = &host.mtu;
        let guests =
            facts.vifs.iter().filter_map(|vif| Some((vif, u32::from(vif.config.mtu?.get()))));
        for (vif, mtu) in guests.filter(|(_, mtu)| mtu > host) {
            let (vif, interface) = (&vif.config.name, &uplink.interface);
            let what = format!("{vif} may send longer frames than the way to the host carries");
            let known_by = format!("mtu {mtu} of the interface, {host} of {interface}");
            let by_host = format!("ip link set {interface} mtu {mtu}");
            let mend = format!("mtu = {host} in [vif.{vif}], then weir reload; or {by_host}");
            found.push(finding(name, what, known_by, mend));
        }
    }
}

/// True if drops of the same port and reason are reported already.
fn is_told(found: &[Finding], drops: &Finding) -> bool {
    let reason = |it: &Finding| it.known_by.split(':').next().map(str::to_owned);
    found.iter().any(|it| it.subject == drops.subject && reason(it) == reason(drops))
}

/// Drops that no other check has reported.
pub(super) fn other_drops(facts: &Facts, found: &mut Vec<Finding>) {
    let mut others = Vec::new();
    let reasons: BTreeSet<_> = facts.ports().flat_map(|port| port.drops.keys()).collect();
    let reasons = reasons.into_iter().map(String::as_str).filter(|it| !USUAL_DROPS.contains(it));
    dropped(facts, &mut others, &reasons.collect::<Vec<_>>(), |port, reason| {
        let explained = facts.explained.get(&port.name);
        let is_guarded = !matches!(explained, Some(Explanation::Vif(vif)) if vif.guard.is_none());
        let what = match reason {
            reason if reason.starts_with("source_guard") && !is_guarded => {
                "the guest speaks as a router, as a DHCP server, or for weir's address, and may not"
            }
            reason if reason.starts_with("source_guard") => {
                "the guest sends from addresses that it does not have (source_guard)"
            }
            "network_unknown" => "another host sends in a network (VNI) that is not here",
            "remote_unknown" => "a host sends in a network of which it is no member here",
            "remote_unreachable" => "this host has no way to a host of the overlay",
            "bad_encapsulation" => "what comes is no VXLAN, or `gbp` is on at its other end alone",
            "device_error" => "the host's interface refuses frames",
            _ => "frames are dropped",
        };
        let mend = match reason {
            "device_error" => "ip link: is the interface up, and in this namespace?".into(),
            reason if reason.starts_with("source_guard") && !is_guarded => {
                format!("weir vif set {} router=true, if it is to be one", port.name)
            }
            reason if reason.starts_with("source_guard") => format!(
                "weir explain {0} has its addresses: weir vif set {0} addresses=...; for IPv6, in the guest: ip link \
                 set eth0 addrgenmode eui64",
                port.name
            ),
            "network_unknown" => "the same `vni` of the [network] on all hosts".into(),
            "remote_unknown" => "that host among the `peers` of the [network] here".into(),
            "remote_unreachable" => "ip route get PEER; `peers` of the [network]".into(),
            _ => {
                format!("weir capture {} --drops; counters.md says what {reason} means", port.name)
            }
        };
        (what.into(), mend)
    });
    others.retain(|other| !is_told(found, other) && !is_of_mirror(facts, other));
    found.extend(others);
}

/// Limits that were configured: worth knowing if a VM is slow.
pub(super) fn limits_of_port(facts: &Facts, found: &mut Vec<Finding>) {
    let mut limited = Vec::new();
    let reasons = [
        "policed_rx",
        "filtered_tx",
        "filtered_rx",
        "group_in",
        "group_out",
        "storm_broadcast",
        "storm_multicast",
        "storm_unknown",
    ];
    let tell = |port: &PortStats, reason: &str| {
        let name = &port.name;
        match reason {
            "policed_rx" => (
                "more comes for the guest than it may receive".into(),
                format!("weir vif set {name} rx_rate=..., rx_packets_per_second=..."),
            ),
            "group_in" | "group_out" => {
                ("security groups refuse connections".into(), "weir group list".into())
            }
            "filtered_tx" | "filtered_rx" => {
                ("a packet filter drops frames".into(), format!("weir filter list {name}"))
            }
            _ => ("storm control drops frames".into(), format!("weir explain {name}")),
        }
    };
    dropped_by(facts, &mut limited, &reasons, tell, note);
    limited.retain(|it| !is_told(found, it));
    found.extend(limited);
    for port in facts.guests() {
        let as_wrong = |known_by| {
            let mend = format!("weir vif set {} rate=... or packets_per_second=...", port.name);
            let what = "the guest sends as much as its rate allows";
            finding(&port.name, what, known_by, mend)
        };
        let counted = Counted::of(facts, port, |port| port.rate_waits, |port| port.tx.frames);
        let judged = counted.and_then(|it| it.judged(as_wrong, "waits for its rate", "frames"));
        found.extend(judged.map(note));
    }
}

/// Reports calls that came too late for one of `reasons`, if they are many.
fn late(facts: &Facts, found: &mut Vec<Finding>, reasons: &[&str], [what, mend]: [&str; 2]) {
    for port in facts.guests() {
        let late = |port: &PortStats| {
            let of = |reason: &&str| port.budget_breaches.get(*reason).copied().unwrap_or(0);
            reasons.iter().map(of).sum()
        };
        let as_wrong = |known_by| finding(&port.name, what, known_by, mend);
        let counted = Counted::of(facts, port, late, |port| port.rx.calls);
        let counted = counted.filter(|it| it.now.some >= FEW || it.ever.some >= FEW_LATE);
        let what = format!("calls after the latency budget ({})", reasons.join(", "));
        let judged = counted.as_ref().and_then(|it| it.judged(as_wrong, &what, "calls"));
        let goes_on = counted.is_some_and(|it| it.now.some >= FEW);
        found.extend(judged.map(|it| if goes_on { it } else { note(it) }));
    }
}

pub(super) fn budget_no_cpu(facts: &Facts, found: &mut Vec<Finding>) {
    let what = "the guest is told of frames too late, since weir's worker has no processor";
    let mend = "keep other load off weir's processors: placement, CPUAffinity= or execution \"rt-threads\"";
    late(facts, found, &["no_cpu"], [what, mend]);
}

pub(super) fn budget_late(facts: &Facts, found: &mut Vec<Finding>) {
    let what = "the guest is told of frames too late, since weir's worker has too much to do";
    let mend = "more workers in [switch], or a larger latency_budget";
    late(facts, found, &["forwarded_late", "asked_late"], [what, mend]);
    let what = "the guest is told of frames later than its policy may hold them: a bug in weir";
    late(facts, found, &["policy"], [what, "report it with weir explain"]);
}
