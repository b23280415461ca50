//! The output of `weir stats` and `weir filter list`.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use weir_config::VlanMode;
use weir_engine::stages::Stage;
use weir_limits::LIMIT_SHOWN_PERCENT;
use weir_switch::stats::{
    BlockStats, Limit, Limits, OnDemandStats, PanickedThread, PlacementStats, PortKind, PortStats,
    QueuePairNumbers, RuleStats, SessionStats, Silence, SilentRing, StageStats, StillThread,
    SwitchStats, Unclosed,
};
use weir_text::{Table, ago, bytes, count, decimal, ratio, time, uptime};

/// The columns that a narrow terminal can do without, the least important first.
const DISPENSABLE: [usize; 9] = [4, 6, 8, 12, 9, 13, 11, 10, 2];

/// The table of `weir stats`, in lines of at most `width` characters if there is a width.
pub(super) fn stats(f: &mut String, it: &SwitchStats, width: Option<usize>) -> fmt::Result {
    let wakeups: u64 = it.workers.iter().map(|worker| worker.wakeups).sum();
    let cpu: u64 = it.workers.iter().map(|worker| worker.cpu_ns).sum();
    writeln!(
        f,
        "weir {}, up {}, workers {}, wake-ups {}, CPU {}",
        it.version,
        uptime(it.uptime_s),
        it.workers.len(),
        decimal(wakeups),
        time(cpu),
    )?;
    if let Some(seconds) = it.over_s {
        writeln!(f, "counted for {}; percentiles are upper bounds", uptime(seconds))?;
    }
    placement_line(f, &it.placement)?;
    if let Some(near) = nearly_reached(&it.limits, |limit| it.greatest_as_words(limit)) {
        writeln!(f, "nearly at their limits: {near}")?;
    }
    for PanickedThread { name, panics, ended } in &it.panicked {
        let end = if *ended { "and does nothing any more" } else { "and began anew" };
        writeln!(f, "{name} panicked {panics} times {end}: see the log, and report it")?;
    }
    for StillThread { name, does, port, party, seconds, kernel } in &it.still {
        let port = port.as_ref().map_or(String::new(), |port| format!(" of {port}"));
        let party = party.as_ref().map_or(String::new(), |party| format!(" for {party}"));
        writeln!(f, "{name} stands still for {seconds:.0} s: it {does}{port}{party}; {kernel}")?;
    }
    for Unclosed { party, descriptors, seconds } in &it.unclosed {
        let number = count(*descriptors as usize, "descriptor");
        writeln!(
            f,
            "{party}: {number} sent here wait to be closed, for {seconds:.0} s: its service stands still"
        )?;
    }
    for OnDemandStats { pattern, interfaces, refused, refused_total, error } in &it.on_demand {
        if let Some(error) = error {
            writeln!(f, "on-demand:{pattern} gets no interfaces: {error}")?;
        }
        if *refused_total > 0 {
            let Limit { used, max } = interfaces;
            let some = refused.join("; ");
            writeln!(
                f,
                "on-demand:{pattern} has {used} of {max} interfaces, and none for {refused_total} files: {some}"
            )?;
        }
    }
    if it.ports.is_empty() {
        return writeln!(f, "no ports; add one with `weir vif add NAME`");
    }
    let mut table = Table::new(&[
        "<PORT",
        "<STATE",
        "<VLAN",
        "RX FRAMES",
        "RX BYTES",
        "TX FRAMES",
        "TX BYTES",
        "DROPS",
        "WORKER",
        "CALLS/FRAME",
        "HOLD P50",
        "P99",
        "MAX",
        "BUDGET",
    ]);
    for port in &it.ports {
        table.row(port_cells(port));
    }
    let hidden = width.map_or_else(Vec::new, |width| table.fit(width, &DISPENSABLE));
    write!(f, "\n{table}")?;
    if !hidden.is_empty() {
        writeln!(f, "a wider terminal has: {}", hidden.join(", "))?;
    }
    for port in &it.ports {
        notes(f, port)?;
    }
    rules(f, of_ports(&it.ports))?;
    stages(f, &it.stages)
}

fn limit(it: &Limit) -> String {
    format!("{} of {} ({}%)", decimal(it.used), decimal(it.max), it.percent())
}

/// The counters of placement on one line, unless all are zero.
fn placement_line(f: &mut String, it: &PlacementStats) -> fmt::Result {
    if *it == PlacementStats::default() {
        return Ok(());
    }
    let PlacementStats { moves, vcpu_moves, refused } = *it;
    let [moves, vcpu_moves, refused] = [moves, vcpu_moves, refused].map(decimal);
    writeln!(f, "placement: worker moves {moves}, vCPU moves {vcpu_moves}, refused {refused}")
}

/// The line of `weir explain` about queue pairs.
pub(super) fn queue_pairs(f: &mut String, it: &QueuePairNumbers) -> fmt::Result {
    let QueuePairNumbers { configured, session, in_use } = *it;
    write!(f, "queue pairs: {in_use} in use of {}", session.unwrap_or(configured))?;
    match it.note() {
        Some(note) => writeln!(f, "; {note}"),
        None => writeln!(f),
    }
}

/// A silent ring with its symptom.
pub(super) fn silent(it: &SilentRing) -> String {
    let SilentRing { ring, why } = it;
    let side = if ring.is_multiple_of(2) { "rx" } else { "tx" };
    let what = match why {
        Silence::KicksWithoutBuffers { kicks } => format!(
            "is never served: {} kicks came, and where weir looks there was never a buffer",
            decimal(*kicks)
        ),
        Silence::BuffersWithoutKick => {
            "is never served: there are buffers in it, and a kick never came".into()
        }
        Silence::NoCallDescriptor => {
            "is served in silence: its driver waits to be called, and there is no call descriptor"
                .into()
        }
        Silence::NoTranslation { .. } => {
            format!("waits: {}", why.unanswered().unwrap_or_default())
        }
    };
    format!("ring {ring} ({side} of queue {}) {what}", ring / 2)
}

/// The reason why nothing passes at a blocked port.
pub(super) fn blocked(it: &BlockStats) -> String {
    let BlockStats { with, vlan, seconds, retry_s, tries } = it;
    format!(
        "blocked for {seconds:.0} s, a loop with {with} in VLAN {vlan}: tried {tries} times, and again in {retry_s:.0} s"
    )
}

/// The port's VLANs. The defaults of uplinks and interfaces differ.
pub fn vlan(port: &PortStats) -> VlanMode {
    if port.kind == PortKind::Vif { port.vlan.of_vif() } else { port.vlan.clone() }
}

fn port_cells(port: &PortStats) -> Vec<String> {
    let mut cells = vec![
        port.name.to_string(),
        port.state.to_string(),
        vlan(port).to_string(),
        decimal(port.rx.frames),
        bytes(port.rx.bytes),
        decimal(port.tx.frames),
        bytes(port.tx.bytes),
        decimal(port.dropped()),
        time(port.worker_ns),
    ];
    cells.extend(match port.kind {
        PortKind::Vif => [
            ratio(port.rx.calls, port.rx.frames),
            time(port.hold_ns.p50),
            time(port.hold_ns.p99),
            time(port.hold_ns.max),
            time(port.latency_budget_ns),
        ],
        // There is no guest to interrupt.
        PortKind::Uplink | PortKind::Own => ["-", "-", "-", "-", "-"].map(String::from),
    });
    cells
}

/// The facts that do not fit the table: the reason of a stop, merged packets, drops by reason, and late calls.
fn notes(f: &mut String, port: &PortStats) -> fmt::Result {
    if let Some(reason) = &port.stopped_reason {
        writeln!(f, "{}: stopped: {reason}", port.name)?;
    } else if let Some(error) = &port.sessions.last_error {
        writeln!(f, "{}: last error{}: {error}", port.name, ago(port.sessions.last_error_s))?;
    }
    if let Some(bond) = &port.bond {
        writeln!(f, "{}: {}", port.name, super::explain::bond(bond))?;
    }
    if let Some(block) = &port.blocked {
        writeln!(f, "{}: {}", port.name, blocked(block))?;
    }
    if let Some(near) = nearly_reached(&port.limits, |_| String::new()) {
        writeln!(f, "{}: nearly at its limits: {near}", port.name)?;
    }
    for ring in &port.silent {
        writeln!(f, "{}: {}", port.name, silent(ring))?;
    }
    let SessionStats { turned_away, throttled, log_lines_unsaid, .. } = port.sessions;
    if turned_away + throttled + log_lines_unsaid > 0 {
        writeln!(
            f,
            "{}: front ends: {turned_away} turned away, {throttled} times made to pause, {log_lines_unsaid} messages not logged",
            port.name
        )?;
    }
    if let Some(note) = port.queue_pairs.and_then(|pairs| pairs.note()) {
        writeln!(f, "{}: {note}", port.name)?;
    }
    if port.gro > 0 {
        writeln!(f, "{}: received merged (GRO): {} packets", port.name, decimal(port.gro))?;
    }
    if port.rss_moved > 0 {
        writeln!(f, "{}: RSS entries moved: {}", port.name, decimal(port.rss_moved))?;
    }
    if port.dear_calls > 0 {
        let (calls, time) = (decimal(port.dear_calls), time(port.dear_call_ns));
        writeln!(f, "{}: calls that took long: {calls}, {time} beyond the usual", port.name)?;
    }
    let waits = [
        ("waited for its rate", port.rate_waits),
        ("windows missed", port.window_violations),
        ("kicks ignored for 1 ms", port.kick_pauses),
    ];
    for (what, times) in waits.into_iter().filter(|(_, times)| *times > 0) {
        writeln!(f, "{}: {what}: {} times", port.name, decimal(times))?;
    }
    for (what, counts) in [("dropped", &port.drops), ("told too late", &port.budget_breaches)] {
        let counts = by_reason(counts);
        if !counts.is_empty() {
            writeln!(f, "{}: {what}: {counts}", port.name)?;
        }
    }
    Ok(())
}

/// Counts that are not zero: `rx_ring_full 7, src_mac_spoofed 1`.
pub(super) fn by_reason(counts: &BTreeMap<String, u64>) -> String {
    let counted = counts.iter().filter(|(_, count)| **count > 0);
    let texts = counted.map(|(reason, count)| format!("{reason} {}", decimal(*count)));
    texts.collect::<Vec<_>>().join(", ")
}

/// The limits that are nearly reached, each with its largest user, as text; `None` if there are none.
fn nearly_reached(limits: &Limits, most: impl Fn(&str) -> String) -> Option<String> {
    let near = limits.iter().filter(|(_, limit)| limit.percent() >= LIMIT_SHOWN_PERCENT);
    let said = near.map(|(name, it)| match most(name) {
        most if most.is_empty() => format!("{name} {}", limit(it)),
        most => format!("{name} {}, most of them by {most}", limit(it)),
    });
    let near: Vec<_> = said.collect();
    (!near.is_empty()).then(|| near.join(", "))
}

/// Advice on how to repair the ring.
pub(super) fn advice(it: &SilentRing) -> &'static str {
    match it.why {
        Silence::KicksWithoutBuffers { .. } => {
            "the front end means another place than its driver: compare the base (SET_VRING_BASE, of a packed ring with both wrap counters) and the addresses that it gave (WEIR_LOG=debug shows each request); with packed=off the guest comes up where a wrap counter is wrong"
        }
        Silence::BuffersWithoutKick => {
            "the descriptor of SET_VRING_KICK is not the one that the guest's notification ends in: look at the monitor's ioeventfd"
        }
        Silence::NoCallDescriptor => {
            "the front end gave none by SET_VRING_CALL, as for a driver that polls, and this one asks for interrupts"
        }
        Silence::NoTranslation { .. } => {
            "the monitor stands still, or its guest has taken the address back: `info status` in QEMU's monitor, and \
             DMAR faults in the guest's dmesg"
        }
    }
}

/// The rules of ports as a table; empty if there are none.
pub(super) fn rules<'s>(
    f: &mut String,
    ports: impl IntoIterator<Item = (&'s str, &'s [RuleStats])>,
) -> fmt::Result {
    let mut table = Table::new(&["<PORT", "<DIRECTION", "<ACTION", "PACKETS", "BYTES", "<MATCH"]);
    let mut any = false;
    for (port, rules) in ports {
        for RuleStats { rule, packets, bytes: len } in rules {
            any = true;
            table.row(vec![
                port.into(),
                rule.direction.to_string(),
                rule.action.to_string(),
                decimal(*packets),
                bytes(*len),
                match rule.expression.to_string().as_str() {
                    "" => "everything".into(),
                    expression => expression.into(),
                },
            ]);
        }
    }
    if any { write!(f, "\nfilters, the first that matches decides:\n{table}") } else { Ok(()) }
}

/// The name and the rules of each port, for [`rules`].
pub fn of_ports(ports: &[PortStats]) -> impl Iterator<Item = (&str, &[RuleStats])> {
    ports.iter().map(|port| (port.name.as_str(), port.filter.as_slice()))
}

/// The cost of the stages for each frame; empty without a measurement.
fn stages(f: &mut String, stages: &[StageStats]) -> fmt::Result {
    let Some(StageStats { unit, .. }) = stages.first() else { return Ok(()) };
    let headers = ["WORKER", "TAKE", "CLASSIFY", "COPY", "PUBLISH", "CALL", "FRAMES/BURST"];
    let mut table = Table::new(&headers);
    for StageStats { worker, bursts, frames, cost, .. } in stages {
        let per_frame = |stage: &Stage| match (cost.get(stage.as_str()), *frames) {
            (None, _) | (_, 0) => "-".into(),
            (Some(ticks), frames) => format!("{:.1}", *ticks as f64 / frames as f64),
        };
        let mut cells = vec![worker.to_string()];
        cells.extend(Stage::ALL.iter().map(per_frame));
        cells.push(ratio(*frames, *bursts));
        table.row(cells);
    }
    write!(f, "\n{unit} for each frame, by stage:\n{table}")
}

#[cfg(test)]
mod tests;
