//! A plan for people, as JSON and as `weir.toml`. It is equal to the byte for the same file and seeds.

use std::fmt;
use std::fmt::Write;

use serde::Serialize;
use weir_config::{Execution, PlacementMode, Realization};
use weir_text::Table;

use super::candidate::{Candidate, Skipped};
use super::host::Host;
use super::play::Played;
use super::play::{Miss, best, least_cpus, percent, time, why_not};

/// A plan with its alternatives.
#[derive(Debug, Serialize)]
pub struct Plan {
    name: String,
    title: String,
    machine: String,
    seeds: Vec<u64>,
    events: u64,
    /// True if the best candidate meets every limit.
    pub good: bool,
    /// The recommended settings, or the nearest ones if none is good.
    pub best: Alternative,
    pub rejected: Vec<Alternative>,
    skipped: Vec<Skipped>,
    /// The configuration, if the plan is good.
    pub weir_toml: Option<String>,
}

/// A simulated candidate.
#[derive(Debug, Serialize)]
pub struct Alternative {
    execution: Execution,
    realization: Option<Realization>,
    pub workers: usize,
    pub placement: PlacementMode,
    pin_vcpus: bool,
    /// The host's number of each worker's CPU, if workers are pinned.
    worker_cpus: Option<Vec<usize>>,
    weir_cpus: f64,
    guest_cpus: f64,
    groups: Vec<GroupFigures>,
    /// Missed limits, or the reasons why another candidate is better. Empty for the chosen plan if it meets
    /// every limit.
    pub why_not: Vec<String>,
}

#[derive(Debug, Serialize)]
struct GroupFigures {
    name: String,
    vms: usize,
    cpus: f64,
    mbit_per_s: f64,
    packets_per_s: f64,
    lost_percent: f64,
    late_percent: f64,
    p99_us: Option<f64>,
    p99_target_us: Option<f64>,
}

impl Plan {
    /// Chooses the best of `all`.
    ///
    /// # Panics
    /// If `all` is empty.
    pub fn of(host: &Host, all: &[(Played, Vec<Miss>)], skipped: Vec<Skipped>) -> Self {
        let at = best(all).expect("there is always something to play");
        let (chosen, misses) = &all[at];
        let least = least_cpus(all).unwrap_or(0.0);
        let reasons = |played: &Played, misses: &[Miss]| match misses.is_empty() {
            true => vec![why_not(played, chosen, least)],
            false => texts(misses),
        };
        let mut others: Vec<_> =
            all.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, it)| it).collect();
        // Good candidates come first, in the order of their CPU time. The others follow in the
        // order of their settings.
        others.sort_by(|(a, a_misses), (b, b_misses)| {
            let order = a_misses.is_empty().cmp(&b_misses.is_empty()).reverse();
            let by_cpus = match a_misses.is_empty() && b_misses.is_empty() {
                true => a.cpus().total_cmp(&b.cpus()),
                false => std::cmp::Ordering::Equal,
            };
            order.then(by_cpus)
        });
        let rejected = others
            .into_iter()
            .map(|(played, misses)| Alternative::new(host, played, reasons(played, misses)));
        let good = misses.is_empty();
        Self {
            name: host.name.clone(),
            title: host.file.title.clone(),
            machine: host.machine.title.clone(),
            seeds: host.file.seeds.clone(),
            events: all.iter().map(|(played, _)| played.events).sum(),
            good,
            best: Alternative::new(host, chosen, texts(misses)),
            rejected: rejected.collect(),
            skipped,
            weir_toml: good.then(|| weir_toml(host, &chosen.candidate)),
        }
    }
}

fn texts(misses: &[Miss]) -> Vec<String> {
    misses.iter().map(|miss| miss.text.clone()).collect()
}

impl Alternative {
    fn new(host: &Host, played: &Played, why_not: Vec<String>) -> Self {
        let Candidate { execution, realization, workers, placement, pin_vcpus } = played.candidate;
        let groups = host.groups.iter().zip(&played.groups).map(|(group, it)| GroupFigures {
            name: group.name.clone(),
            vms: group.guests.len(),
            cpus: it.cpus,
            mbit_per_s: it.mbit_per_s,
            packets_per_s: it.packets_per_s,
            lost_percent: 100.0 * it.lost,
            late_percent: 100.0 * it.late,
            p99_us: it.p99_ns.map(us),
            p99_target_us: group.p99_ns.map(us),
        });
        let cpus = played.worker_cpus.iter().map(|cpu| cpu.map(|cpu| host.cpus.number(cpu)));
        Self {
            execution,
            realization,
            workers,
            placement,
            pin_vcpus,
            worker_cpus: match placement {
                PlacementMode::Static => cpus.collect(),
                PlacementMode::Off | PlacementMode::Dynamic => None,
            },
            weir_cpus: played.weir_cpus,
            guest_cpus: played.guest_cpus,
            groups: groups.collect(),
            why_not,
        }
    }

    /// Returns the worst p99 of the groups.
    pub fn p99_us(&self) -> Option<f64> {
        self.groups.iter().filter_map(|group| group.p99_us).max_by(f64::total_cmp)
    }

    /// Describes the CPUs of the workers.
    fn places(&self) -> String {
        match (self.placement, &self.worker_cpus) {
            (PlacementMode::Off, _) => "where the kernel puts them".into(),
            (PlacementMode::Dynamic, _) => "near the vCPUs with most of their traffic".into(),
            (PlacementMode::Static, None) => "on cores of their own".into(),
            (PlacementMode::Static, Some(cpus)) => {
                let cpus: Vec<_> = cpus.iter().map(ToString::to_string).collect();
                format!("on CPU {}", cpus.join(", "))
            }
        }
    }
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

/// Formats a time (us) for people.
fn shown_us(us: Option<f64>) -> String {
    // `as` saturates.
    us.map_or_else(|| "-".into(), |us| time((us * 1e3).round() as u64))
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, title, machine, seeds, events, good, best, .. } = self;
        let seeds: Vec<_> = seeds.iter().map(ToString::to_string).collect();
        writeln!(f, "{name}: {title}")?;
        writeln!(f, "machine: {machine}; seeds {}; {events} events\n", seeds.join(", "))?;
        match good {
            true => writeln!(f, "RECOMMENDED")?,
            false => writeln!(f, "NOTHING DOES ALL THAT IS ASKED FOR; THE NEAREST")?,
        }
        writeln!(f, "execution    {}", best.execution)?;
        if let Some(realization) = &best.realization {
            writeln!(f, "realization  {realization}")?;
        }
        writeln!(f, "workers      {}, {}", best.workers, best.places())?;
        let pinned = if best.pin_vcpus { ", with pin_vcpus" } else { "" };
        writeln!(f, "placement    {}{pinned}", best.placement)?;
        writeln!(
            f,
            "CPUs         {:.2} for weir, {:.2} for guests",
            best.weir_cpus, best.guest_cpus
        )?;
        for miss in &best.why_not {
            writeln!(f, "but          {miss}")?;
        }
        let mut table = Table::new(&[
            "<GROUP",
            "VMS",
            "MBIT/S",
            "PACKETS/S",
            "LOST",
            "P99",
            "TARGET",
            "LATE CALLS",
            "GUEST CPUS",
        ]);
        for group in &best.groups {
            table.row(vec![
                group.name.clone(),
                group.vms.to_string(),
                format!("{:.1}", group.mbit_per_s),
                format!("{:.0}", group.packets_per_s),
                percent(group.lost_percent / 100.0),
                shown_us(group.p99_us),
                shown_us(group.p99_target_us),
                percent(group.late_percent / 100.0),
                format!("{:.2}", group.cpus),
            ]);
        }
        writeln!(f, "\n{table}")?;
        let mut table = Table::new(&[
            "WORKERS",
            "<EXECUTION",
            "<REALIZATION",
            "<PLACEMENT",
            "WEIR CPUS",
            "GUEST CPUS",
            "WORST P99",
            "<REJECTED, SINCE",
        ]);
        for other in &self.rejected {
            table.row(vec![
                other.workers.to_string(),
                other.execution.to_string(),
                other.realization.map_or_else(|| "-".into(), |it| it.to_string()),
                other.placement.to_string(),
                format!("{:.2}", other.weir_cpus),
                format!("{:.2}", other.guest_cpus),
                shown_us(other.p99_us()),
                other.why_not.join("; "),
            ]);
        }
        if !self.rejected.is_empty() {
            writeln!(f, "{table}")?;
        }
        for Skipped { what, why } in &self.skipped {
            writeln!(f, "not played: {what}, since {why}")?;
        }
        if let Some(toml) = &self.weir_toml {
            let gap = if self.skipped.is_empty() { "" } else { "\n" };
            write!(f, "{gap}weir.toml:\n\n{toml}")?;
        }
        Ok(())
    }
}

/// Returns a complete configuration: the planned settings, the uplinks, and an interface for each VM. `weir check`
/// accepts it.
pub fn weir_toml(host: &Host, plan: &Candidate) -> String {
    let mut text = String::from("[switch]\n");
    // Writing to a string cannot fail.
    let _ = writeln!(text, "execution = \"{}\"", plan.execution);
    if let Some(realization) = plan.realization {
        let _ = writeln!(text, "realization = \"{realization}\"");
        let _ = writeln!(text, "workers = {}", plan.workers);
    }
    if plan.placement != PlacementMode::Off {
        let _ = writeln!(text, "placement = \"{}\"", plan.placement);
        if plan.pin_vcpus {
            text.push_str("pin_vcpus = true\n");
        }
    }
    for uplink in &host.uplinks {
        let (kind, interface) = (uplink.kind.as_str(), uplink.interface.as_str());
        let _ =
            write!(text, "\n[uplink.{}]\nkind = \"{kind}\"\nname = \"{interface}\"\n", uplink.name);
    }
    for group in &host.groups {
        for number in 1..=group.guests.len() {
            let _ = write!(
                text,
                "\n[vif.{}]\nlatency_budget = \"{}\"\nmoderation = \"{}\"\n",
                group.vm(number),
                group.latency_budget,
                group.moderation
            );
        }
    }
    text
}
