//! The output of `weir explain` for an interface and for an uplink.

use std::fmt::{self, Write as _};
use std::net::IpAddr;

use weir_config::{Receiving, SecurityGroup, TO_A_GROUP};
use weir_switch::explain::{
    DispatchExplanation, GroupsExplanation, HostExplanation, InterruptPlace, InterruptPlaces,
    MovedPair, OverlayExplanation, OverlayNetworkExplanation, Passes, PortShare,
    ReceivingExplanation, RefusalExplanation, SharingExplanation, SteeringExplanation,
    UplinkExplanation, UplinkLayer, Verdict, VifExplanation,
};
use weir_switch::stats::{
    BlockStats, BondStats, BondUplinkStats, CallSettings, GuardExplanation, LeaseExplanation,
    RingSizes,
};
use weir_text::{Table, decimal, ratio, time};

use super::manager::{agent, cost, gatherer, split};
use super::stats::{advice, blocked, by_reason, queue_pairs, rules, silent};

/// Workers that were busy for this part of the time (%) had no time left.
const FULL_PERCENT: u64 = 90;

/// The verdict on whether traffic passes, with reasons.
pub(super) fn verdict(f: &mut String, name: &str, it: &Verdict) -> fmt::Result {
    let passes = match it.passes {
        Passes::Yes => "traffic passes",
        Passes::Idle => "traffic can pass",
        Passes::No => "traffic does not pass",
    };
    writeln!(f, "{name}: {passes}: {}", it.because.join("; "))
}

/// IDs of groups that mean other groups on another host.
fn disputed(host: IpAddr, ids: &[u16]) -> String {
    let ids = ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    format!("{host} has other groups for {ids} in [group-ids]: from there these count as no group")
}

/// The networks that span hosts, and the other hosts that weir hears from.
pub(super) fn overlay(f: &mut String, it: &OverlayExplanation) -> fmt::Result {
    let OverlayExplanation { name, local, udp_port, mtu, networks } = it;
    writeln!(f, "{name}: this host is {local}, UDP port {udp_port}, MTU {mtu} in its networks")?;
    let mut table = Table::new(&["<NETWORK", "VNI", "<HOST", "<HEARD", "STATIONS", "LAST"]);
    for OverlayNetworkExplanation { name, vni, evpn, hosts } in networks {
        if hosts.is_empty() {
            let who = if *evpn { "FRR names none" } else { "none" };
            let vni = vni.to_string();
            table.row([name.as_str(), &vni, who, "-", "0", "-"].map(String::from).into());
        }
        for host in hosts {
            let heard = match (host.is_unheard(), host.has_weir) {
                (true, _) => "not heard",
                (false, true) => "its weir answers",
                (false, false) if host.stations > 0 => "yes",
                (false, false) => "nothing yet",
            };
            let last = host.heard_s.map(|age_s| time(u64::from(age_s) * 1_000_000_000));
            table.row(vec![
                name.to_string(),
                vni.to_string(),
                host.host.to_string(),
                heard.into(),
                host.stations.to_string(),
                last.unwrap_or_else(|| "-".into()),
            ]);
        }
    }
    write!(f, "\n{table}")?;
    let unheard = networks.iter().flat_map(|it| it.hosts.iter().map(move |host| (it, host)));
    for (network, host) in unheard.filter(|(_, host)| host.is_unheard() || host.is_silent()) {
        let is = if host.is_unheard() { "comes" } else { "has come so far" };
        let (host, network) = (host.host, &network.name);
        writeln!(
            f,
            "nothing {is} from {host}: ping {host}; UDP port {udp_port} open on both hosts; {local} among its peers \
             of {network}"
        )?;
    }
    for (host, ids) in it.disputed() {
        writeln!(f, "{}", disputed(host, &ids))?;
    }
    Ok(())
}

/// An interface, with the frames and calls of one second.
pub(super) fn vif(f: &mut String, it: &VifExplanation) -> fmt::Result {
    let CallSettings { moderation, rx_usecs, rx_frames, container_bytes } = it.calls;
    let budget = time(it.latency_budget_ns);
    write!(f, "{}: {}, moderation {moderation}, budget {budget}", it.name, it.state)?;
    let set = [
        rx_usecs.map(|it| format!(", rx_usecs {it}")),
        rx_frames.map(|it| format!(", rx_frames {it}")),
        container_bytes.map(|it| format!(", container_bytes {it}")),
    ];
    f.extend(set.into_iter().flatten());
    if let Some(block) = &it.blocked {
        write!(f, "\n{}", blocked(block))?;
    }
    let mut table = Table::new(&[
        "QUEUE",
        "HOLDS",
        "LIMIT",
        "FRAMES/S",
        "CALLS/S",
        "UNWANTED/S",
        "FRAMES/CALL",
        "HELD P50",
        "P99",
        "MAX",
        "JITTER",
        "<BECAUSE",
    ]);
    for queue in &it.queues {
        table.row(vec![
            queue.queue.to_string(),
            time(queue.hold_ns),
            time(queue.hold_ns_max),
            decimal(queue.frames),
            decimal(queue.calls),
            decimal(queue.calls_suppressed),
            ratio(queue.frames, queue.calls),
            time(queue.held_ns.p50),
            time(queue.held_ns.p99),
            time(queue.held_ns.max),
            time(queue.jitter_ns),
            queue.reason.clone(),
        ]);
    }
    write!(f, "\n\n{table}")?;
    queue_pairs(f, &it.queue_pairs)?;
    rings(f, &it.rings)?;
    dispatch(f, &it.dispatch)?;
    sharing(f, &it.sharing)?;
    receiving(f, &it.receiving)?;
    for ring in &it.silent {
        writeln!(f, "{}; {}", silent(ring), advice(ring))?;
    }
    if let Some(it) = &it.guard {
        guard(f, it)?;
    }
    if let Some(it) = &it.groups {
        groups(f, it)?;
    }
    if let Some(it) = &it.steering {
        steering(f, it)?;
    }
    if let Some(it) = &it.split {
        split(f, it)?;
    }
    for host in &it.hosts {
        other_host(f, host)?;
    }
    match &it.agent {
        Some(it) => agent(f, it)?,
        None => writeln!(f, "agent: none is configured")?,
    }
    let breaches = by_reason(&it.budget_breaches);
    if !breaches.is_empty() {
        writeln!(f, "told too late: {breaches}")?;
    }
    rules(f, [(it.name.as_str(), it.filter.as_slice())])
}

/// The sizes of the rings in service.
fn rings(f: &mut String, it: &RingSizes) -> fmt::Result {
    let side = |(side, _, sizes): (&str, _, &[u32])| {
        let mut sizes = sizes.to_vec();
        sizes.dedup();
        let sizes: Vec<_> = sizes.iter().map(u32::to_string).collect();
        (!sizes.is_empty()).then(|| format!("{side} {}", sizes.join(", ")))
    };
    let sides: Vec<_> = it.sides().into_iter().filter_map(side).collect();
    if sides.is_empty() {
        return Ok(());
    }
    write!(f, "entries of a ring: {}", sides.join("; "))?;
    match it.note() {
        Some(note) => writeln!(f, "; {note}"),
        None => writeln!(f),
    }
}

/// The security groups, and the frames that they refused.
fn groups(f: &mut String, it: &GroupsExplanation) -> fmt::Result {
    let names = |groups: &[SecurityGroup]| {
        groups.iter().map(SecurityGroup::as_str).collect::<Vec<_>>().join(", ")
    };
    write!(f, "groups: {}", names(&it.groups))?;
    let said = [("in closed by", &it.close_in), ("out closed by", &it.close_out)];
    for (what, groups) in said.into_iter().chain([("logged by", &it.log)]) {
        if !groups.is_empty() {
            write!(f, "; {what} {}", names(groups))?;
        }
    }
    if let Some(id) = it.id {
        write!(f, "; for other hosts {id}")?;
    }
    for (direction, refused) in [("in", &it.refused_in), ("out", &it.refused_out)] {
        let refused = by_reason(refused);
        if !refused.is_empty() {
            write!(f, "; refused {direction}: {refused}")?;
        }
    }
    writeln!(f)?;
    if !it.to_groups_here.is_empty() {
        writeln!(f, "  rules `to` a group, of {}: {TO_A_GROUP}", names(&it.to_groups_here))?;
    }
    it.refused.iter().try_for_each(|it| writeln!(f, "  {}", refusal(it)))
}

fn refusal(it: &RefusalExplanation) -> String {
    let protocol = it.protocol.as_deref().unwrap_or("no IP packet");
    let ends = match (&it.from, &it.to) {
        (Some(from), Some(to)) => format!(" {from} to {to}"),
        _ => String::new(),
    };
    let port = it.port.map_or_else(String::new, |port| format!(" port {port}"));
    let kind = it.icmp_type.map_or_else(String::new, |kind| format!(" type {kind}"));
    let vlan = it.vlan.map_or_else(String::new, |vlan| format!(" VLAN {vlan}"));
    let (direction, reason, frames) = (it.direction, &it.reason, decimal(it.frames));
    let ago = time(it.ago_ms.saturating_mul(1_000_000));
    format!(
        "{direction} {protocol}{ends}{port}{kind}{vlan}: {reason}, frames: {frames}, last {ago} ago"
    )
}

/// An uplink, with its treatment of frames that come in on it.
pub(super) fn uplink(f: &mut String, it: &UplinkExplanation) -> fmt::Result {
    if let Some(it_is) = &it.bond {
        writeln!(f, "{}: {}", it.name, bond(it_is))?;
        return blocked_line(f, it.blocked.as_ref());
    }
    // A name of an interface has no slash.
    let is_socket = it.interface.contains('/');
    let what = if is_socket { "socket" } else { "interface" };
    write!(f, "{}: {what} {}, ", it.name, it.interface)?;
    match &it.layer {
        UplinkLayer::WorkerOnly if is_socket => {
            writeln!(f, "frames wait for a worker only, no interval can be set")?;
        }
        UplinkLayer::WorkerOnly => {
            writeln!(f, "a TAP: frames wait for a worker only, no interval can be set")?;
        }
        UplinkLayer::AsFound => writeln!(f, "interrupts as the host has them set")?,
        UplinkLayer::Gathers { uplink_ns, by } => {
            writeln!(f, "gathers frames for {} ({})", time(*uplink_ns), gatherer(by))?;
        }
        UplinkLayer::Refused { reason } => writeln!(f, "no interval can be set: {reason}")?,
    }
    match &it.interrupts {
        InterruptPlaces::AsFound => {}
        InterruptPlaces::Follow { queues } => {
            let place = |it: &InterruptPlace| format!("{} on {}", it.queue, it.cpu);
            let places: Vec<_> = queues.iter().map(place).collect();
            writeln!(f, "interrupts come to the workers' processors: queue {}", places.join(", "))?;
        }
        InterruptPlaces::LeftAlone { reason } => writeln!(f, "interrupts stay: {reason}")?,
    }
    if let Some(below) = &it.below {
        let given = below.given_ns.map_or("nothing".into(), time);
        let error = below.error.as_ref().map(|error| format!(" ({error})")).unwrap_or_default();
        let cost = time(below.cost_ns);
        writeln!(f, "below: leaves {given} to layers of {cost}, by {}{error}", below.port)?;
    }
    if let Some(bond) = &it.in_bond {
        writeln!(f, "in bond {bond}, which is the port")?;
    }
    blocked_line(f, it.blocked.as_ref())?;
    writeln!(f, "costs: wake-up {}", cost(&it.cost))?;
    dispatch(f, &it.dispatch)?;
    it.steering.as_ref().map_or(Ok(()), |it| steering(f, it))
}

fn blocked_line(f: &mut String, block: Option<&BlockStats>) -> fmt::Result {
    block.map_or(Ok(()), |block| writeln!(f, "{}", blocked(block)))
}

/// A bond, with the state of each uplink.
pub(super) fn bond(it: &BondStats) -> String {
    let uplink = |uplink: &BondUplinkStats| {
        let state = match (uplink.has_carrier, uplink.carries) {
            (false, _) => "no carrier",
            (true, true) => "carries frames",
            (true, false) => "stands by",
        };
        match &uplink.partner {
            Some(partner) => format!("{} {state}, to {partner}", uplink.name),
            None => format!("{} {state}", uplink.name),
        }
    };
    let uplinks: Vec<_> = it.uplinks.iter().map(uplink).collect();
    format!("{}: {}; {} changes", it.mode, uplinks.join(", "), it.changes)
}

/// The workers of the queues, with the last moves.
fn dispatch(f: &mut String, it: &DispatchExplanation) -> fmt::Result {
    let name = |worker: &Option<usize>| worker.map_or("none yet".into(), |n| n.to_string());
    let workers: Vec<_> = it.workers.iter().map(name).collect();
    writeln!(f, "workers, by queue: {}", workers.join(", "))?;
    for moved in &it.moves {
        let MovedPair { ago_ns, queue, from, to, load, reason } = moved;
        writeln!(
            f,
            "{} ago: queue {queue}, {:.0}% of a core, from worker {from} to {to}: {reason}",
            time(*ago_ns),
            100.0 * load,
        )?;
    }
    Ok(())
}

/// The split of budgets with another host, and the late frames on both hosts.
fn other_host(f: &mut String, it: &HostExplanation) -> fmt::Result {
    let [from, budget] = [it.from_ns, it.budget_there_ns].map(time);
    let to = match it.to_ns.map(time) {
        Some(to) => format!("frames to it may wait {to} here, of {budget}"),
        None => "frames to it wait here as local budgets allow, since it has given no share".into(),
    };
    let late = [it.left_late_there, it.left_late_here, it.told_late_there].map(decimal);
    let [left_there, left_here, told_there] = late;
    writeln!(
        f,
        "host {}: frames from it may wait {from} there (later: {left_there}); {to} (later: {left_here}; told too late \
         there: {told_there})",
        it.host,
    )
}

/// The source guard of a guest's addresses, and the frames that it dropped.
fn guard(f: &mut String, it: &GuardExplanation) -> fmt::Result {
    write!(f, "source guard: {}", it.mode)?;
    if !it.addresses.as_slice().is_empty() {
        write!(f, ": {}", it.addresses)?;
    }
    for LeaseExplanation { address, seconds_left } in &it.leases {
        write!(f, ", {address} for {seconds_left} s")?;
    }
    if it.router {
        write!(f, "; a router")?;
    }
    let drops = by_reason(&it.drops);
    if !drops.is_empty() {
        write!(f, "; dropped: {drops}")?;
    }
    writeln!(f)
}

/// The limits on received traffic, if any, and the frames dropped because of them.
fn receiving(f: &mut String, it: &ReceivingExplanation) -> fmt::Result {
    let Receiving { rate, packets_per_second, .. } = it.limits;
    let rate = rate.map(|rate| rate.to_string());
    let packets =
        packets_per_second.map(|rate| format!("{} packets/s", decimal(rate.get().into())));
    let limits: Vec<_> = rate.into_iter().chain(packets).collect();
    if limits.is_empty() {
        return Ok(());
    }
    let (most, policed, elapsed) = (limits.join(" and "), decimal(it.policed), time(it.elapsed_ns));
    writeln!(f, "receives at most {most}: {policed} frames beyond that dropped in {elapsed}")
}

/// The interface's use of the workers' time, its entitlement and its limits.
fn sharing(f: &mut String, it: &SharingExplanation) -> fmt::Result {
    let PortShare { weight, worker_ns } = it.own;
    if worker_ns == 0 {
        return writeln!(f, "share: weight {weight}; it sent nothing");
    }
    let all_ns: u64 = senders(it).map(|share| share.worker_ns).sum();
    let weights: u64 = senders(it).map(|share| u64::from(share.weight)).sum();
    let percent = |part: u64, of: u64| 100.0 * part as f64 / of.max(1) as f64;
    let limits = kept_by(it);
    let limits = if limits.is_empty() { "nothing".into() } else { limits.join(", ") };
    writeln!(
        f,
        "share: {:.0}% of the workers' time ({}), entitled to {:.0}% (weight {weight} of {weights} of those \
         that sent); limited by {limits}",
        percent(worker_ns, all_ns),
        time(worker_ns),
        percent(weight.into(), weights),
    )
}

/// The spread of flows over receive queues.
fn steering(f: &mut String, it: &SteeringExplanation) -> fmt::Result {
    let whose = match (it.given, it.rebalances) {
        (true, _) => "the guest's own",
        (false, true) => "rebalanced by load",
        (false, false) => "left as it is",
    };
    writeln!(f, "indirection table: {whose}, entries moved: {}", decimal(it.moved_entries))?;
    let mut table = Table::new(&["QUEUE", "ENTRIES", "LEAVING", "FRAMES/S"]);
    for (queue, now) in it.queues.iter().enumerate() {
        let counts = [queue, now.entries, now.moving].map(|count| count.to_string());
        table.row([&counts[..], &[decimal(now.frames_per_s)]].concat());
    }
    write!(f, "{table}")?;
    for made in &it.moves {
        let rates = [made.frames_per_s, made.from_frames_per_s, made.to_frames_per_s].map(decimal);
        let ([all, of_from, of_to], ago) = (rates, time(made.ago_ns));
        write!(f, "{ago} ago: entry {} with {all} frames/s from queue ", made.entry)?;
        writeln!(f, "{} ({of_from}) to {} ({of_to})", made.from, made.to)?;
    }
    Ok(())
}

/// The ports that sent, including the interface itself.
fn senders(it: &SharingExplanation) -> impl Iterator<Item = &PortShare> {
    it.others.values().chain([&it.own]).filter(|share| share.worker_ns > 0)
}

/// The limits that kept the interface from sending more.
fn kept_by(it: &SharingExplanation) -> Vec<String> {
    let counted = |what: &str, n: u64| (n > 0).then(|| format!("{what}: {})", decimal(n)));
    let busy_ns: u64 = senders(it).map(|share| share.worker_ns).sum();
    let there_was_ns = it.elapsed_ns.saturating_mul(it.workers);
    let full = busy_ns / FULL_PERCENT >= there_was_ns / 100 && busy_ns > 0;
    let limits = [
        counted("its rate (waits", it.rate_waits),
        counted("full receivers (frames that waited", it.parked),
        full.then(|| "the schedule (the workers had no time left)".into()),
        counted("the schedule (turns too late", it.window_violations),
    ];
    limits.into_iter().flatten().collect()
}

#[cfg(test)]
pub(crate) mod tests;
