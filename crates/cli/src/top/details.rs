//! One port, in lines.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use weir_switch::explain::{Explanation, QueueExplanation};
use weir_switch::stats::{PortKind, PortStats, SessionStats, Times};
use weir_text::plain::plain_short;
use weir_text::{Table, decimal, time};

use super::columns::number;
use super::rates::PortRates;

/// The details of a port.
pub(super) fn details(
    port: &PortStats,
    rates: &PortRates,
    explained: Option<&Explanation>,
) -> String {
    let mut text = String::new();
    write(&mut text, port, rates, explained).expect("writing to a string cannot fail");
    text
}

fn write(
    f: &mut String,
    port: &PortStats,
    rates: &PortRates,
    explained: Option<&Explanation>,
) -> fmt::Result {
    flows(f, port, rates)?;
    if port.kind == PortKind::Vif {
        calls(f, port, rates)?;
    }
    // The explanation may still be that of the port that was shown before.
    if let Some(Explanation::Vif(explained)) = explained
        && explained.name == port.name
    {
        queues(f, &explained.queues)?;
    }
    reasons(f, "dropped", &port.drops, |reason| rates.drops_per_s.get(reason).copied())?;
    reasons(f, "notified too late", &port.budget_breaches, |_| None)?;
    if let Some(reason) = &port.stopped_reason {
        writeln!(f, "\nstopped: {}", plain_short(reason))?;
    }
    let SessionStats { opened, failed, last_error, .. } = &port.sessions;
    if *failed > 0 {
        let error = plain_short(last_error.as_deref().unwrap_or("unknown"));
        writeln!(f, "\nfront ends: {opened} came, {failed} failed; the last error: {error}")?;
    }
    for (name, limit) in &port.limits {
        let (used, max) = (decimal(limit.used), decimal(limit.max));
        writeln!(f, "limit {name}: {used} of {max} ({}%)", limit.percent())?;
    }
    let name = &port.name;
    writeln!(f, "\nmore: weir explain {name}; weir capture {name}; weir capture {name} --drops")
}

fn flows(f: &mut String, port: &PortStats, rates: &PortRates) -> fmt::Result {
    let mut table = Table::new(&["<", "PACKETS/S", "BIT/S", "PACKETS", "BYTES"]);
    for (what, flow, sum) in [("receives", rates.rx, port.rx), ("sends", rates.tx, port.tx)] {
        table.row(vec![
            what.into(),
            number(flow.packets_per_s),
            number(flow.bits_per_s),
            decimal(sum.frames),
            weir_text::bytes(sum.bytes),
        ]);
    }
    write!(f, "{table}")?;
    let cpu = rates.cpu_percent;
    writeln!(f, "worker time for what it sends: {cpu:.1} % of a core, {}", time(port.worker_ns))
}

fn calls(f: &mut String, port: &PortStats, rates: &PortRates) -> fmt::Result {
    if let Some(calls) = port.calls {
        writeln!(f, "\nmoderation {}, budget {}", calls.moderation, time(port.latency_budget_ns))?;
    }
    if let Some(decision) = &port.decision {
        writeln!(f, "holds for {} now: {}", time(decision.hold_ns), decision.reason)?;
    }
    let mut table = Table::new(&["<", "NOW", "P50", "P99", "MAX", "SAMPLES"]);
    for (what, now, all) in [
        ("hold", rates.hold_ns, port.hold_ns),
        ("arrival to interrupt", rates.latency_ns, port.latency_ns),
    ] {
        let Times { count, p50, p99, max, .. } = all;
        let mut cells = vec![what.to_owned(), now.map_or_else(|| "-".into(), time)];
        cells.extend([p50, p99, max].map(time));
        cells.push(decimal(count));
        table.row(cells);
    }
    write!(f, "{table}")?;
    writeln!(f, "interrupts/s: {}, jitter {}", number(rates.calls_per_s), time(port.jitter_ns))
}

fn queues(f: &mut String, queues: &[QueueExplanation]) -> fmt::Result {
    let mut table = Table::new(&["QUEUE", "HOLDS", "LIMIT", "HELD P99", "FRAMES", "<BECAUSE"]);
    for queue in queues {
        table.row(vec![
            queue.queue.to_string(),
            time(queue.hold_ns),
            time(queue.hold_ns_max),
            time(queue.held_ns.p99),
            decimal(queue.frames),
            queue.reason.clone(),
        ]);
    }
    write!(f, "\n{table}")
}

/// Counts by reason, those that are not zero.
fn reasons(
    f: &mut String,
    what: &str,
    counts: &BTreeMap<String, u64>,
    rate: impl Fn(&str) -> Option<f64>,
) -> fmt::Result {
    let counted = || counts.iter().filter(|(_, count)| **count > 0);
    if counted().next().is_none() {
        return writeln!(f, "\n{what}: none");
    }
    writeln!(f, "\n{what}:")?;
    for (reason, count) in counted() {
        let rate = rate(reason).map_or(String::new(), |rate| format!(", {}/s now", number(rate)));
        writeln!(f, "  {reason}: {}{rate}", decimal(*count))?;
    }
    Ok(())
}
