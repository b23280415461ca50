//! The results: figures, and the tables behind them.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use weir_engine::stats::BreachReason;
use weir_text::{Table, decimal};

use super::super::figures::{FigureRow, figures_table};
use super::super::report::significant;
use super::super::slice::Slice;
use super::contests::{Contest, Measured, Purpose, Setting};
use super::grid::{self, LoadRow};
use super::pairs::{PairRow, Pauses};

/// The result. Its JSON is the output of `weir bench --policies --json`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Report {
    figures: Vec<FigureRow>,
    loads: Vec<LoadRow>,
    pairs: Vec<PairRow>,
    breaches: Vec<BreachRow>,
}

impl Report {
    pub(super) fn new(measured: &[Measured], pauses: &Pauses) -> Self {
        let mut report = Self::default();
        for Measured { contest, slices } in measured {
            match contest.purpose {
                Purpose::Grid => {
                    let (load, figure) = LoadRow::new(contest, slices);
                    report.loads.push(load);
                    report.figures.push(figure);
                }
                Purpose::Pair(comparisons) => {
                    for (figure, pair) in
                        comparisons.iter().filter_map(|figure| figure.rows(contest, slices))
                    {
                        report.figures.push(figure);
                        report.pairs.push(pair);
                    }
                }
                Purpose::Breaches => {
                    let settings = contest.settings.iter().zip(slices);
                    report.breaches.extend(
                        settings.map(|(setting, slices)| BreachRow::new(contest, setting, slices)),
                    );
                }
            }
        }
        let worst = grid::worst(&report.figures[..report.loads.len()]);
        let in_vain = grid::held_in_vain(&report.loads);
        report.figures.splice(0..0, worst.into_iter().chain(in_vain));
        report.figures.extend(figures(&report.breaches));
        let contests = measured.iter().map(|measured| &measured.contest);
        report.figures.extend(pauses.figures(contests));
        report
    }

    fn grid(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers =
            ["<LOAD", "<POLICY", "PACKETS/S", "CPU US/PACKET", "CORES", "P50 US", "LATE", "<"];
        let mut table = Table::new(&headers);
        for load in &self.loads {
            let turns = grid::most_turns(&load.policies);
            for policy in &load.policies {
                let note = match policy.name.as_str() {
                    name if name == load.best_static => "best fixed".into(),
                    "auto" => format!("{:.2} of the best fixed", load.auto_vs_best_static),
                    _ if policy.turns < turns => "far off, not measured further".into(),
                    _ => String::new(),
                };
                table.row(vec![
                    load.name.into(),
                    policy.name.clone(),
                    significant(policy.packets_per_s),
                    significant(policy.cpu_us_per_packet),
                    format!("{:.3}", policy.cores),
                    policy.p50_us.map_or_else(|| "-".into(), significant),
                    policy.breaches.to_string(),
                    note,
                ]);
            }
        }
        writeln!(f, "{table}")?;
        writeln!(
            f,
            "CPU is the worker's and the guests'. The best fixed setting takes the least of it for \
             a packet among\nthose with which most packets arrive; LATE counts guests told later than \
             the budget allows.\n"
        )
    }

    fn pairs(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table =
            Table::new(&["<COMPARED", "<LOAD", "<POLICY", "VALUE", "<AGAINST", "VALUE", "<UNIT"]);
        for pair in &self.pairs {
            table.row(vec![
                pair.name.into(),
                pair.load.into(),
                pair.policy.clone(),
                significant(pair.value),
                pair.against.clone(),
                significant(pair.against_value),
                pair.unit.into(),
            ]);
        }
        writeln!(f, "{table}")
    }

    fn breaches(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers = ["BUDGET", "<LOAD", "<POLICY", "PACKETS", "LATE PER MILLION", "<REASONS"];
        let mut table = Table::new(&headers);
        for row in &self.breaches {
            let reasons = row.by_reason.iter().map(|(reason, count)| format!("{reason} {count}"));
            table.row(vec![
                row.latency_budget.into(),
                row.load.into(),
                row.policy.clone(),
                decimal(row.packets),
                significant(row.per_million),
                reasons.collect::<Vec<_>>().join(", "),
            ]);
        }
        writeln!(f, "{table}")
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.loads.is_empty() {
            self.grid(f)?;
        }
        if !self.pairs.is_empty() {
            self.pairs(f)?;
        }
        if !self.breaches.is_empty() {
            self.breaches(f)?;
        }
        write!(f, "{}", figures_table(&self.figures))
    }
}

/// A load under a policy and a budget, over all rounds.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct BreachRow {
    pub(super) latency_budget: &'static str,
    pub(super) load: &'static str,
    pub(super) policy: String,
    /// Packets that the guests received.
    pub(super) packets: u64,
    /// Number of late calls, by reason.
    pub(super) by_reason: BTreeMap<String, u64>,
    /// Late calls per million packets, without those at which the worker did not have its CPU.
    pub(super) per_million: f64,
}

impl BreachRow {
    pub(super) fn new(contest: &Contest, setting: &Setting, slices: &[Slice]) -> Self {
        let mut by_reason = BTreeMap::new();
        for (reason, count) in slices.iter().flat_map(|slice| &slice.breaches) {
            *by_reason.entry(reason.clone()).or_default() += count;
        }
        let packets = slices.iter().map(|slice| slice.switched).sum();
        Self {
            latency_budget: contest.budget,
            load: contest.load_name,
            policy: setting.name.clone(),
            packets,
            per_million: per_million(kept(&by_reason), packets),
            by_reason,
        }
    }

    /// Returns the cell's name, for people.
    pub(super) fn cell(&self) -> String {
        format!("{} under {} with {}", self.load, self.policy, self.latency_budget)
    }
}

/// Returns the number of breaches, without those for which a missing CPU is the reason.
fn kept<K: Ord + Borrow<str>>(by_reason: &BTreeMap<K, u64>) -> u64 {
    by_reason.values().sum::<u64>() - by_reason.get(BreachReason::NoCpu.as_str()).unwrap_or(&0)
}

fn per_million(count: u64, packets: u64) -> f64 {
    if packets == 0 { 0.0 } else { 1e6 * count as f64 / packets as f64 }
}

/// Returns the figures of the worst cell, of all cells together, and of all cells by reason.
///
/// Each figure is one value over all rounds: breaches are rare, so their median over a few rounds would be 0.
fn figures(rows: &[BreachRow]) -> Vec<FigureRow> {
    let by_rate = |a: &&BreachRow, b: &&BreachRow| a.per_million.total_cmp(&b.per_million);
    let Some(worst) = rows.iter().max_by(by_rate) else { return Vec::new() };
    let packets = rows.iter().map(|row| row.packets).sum();
    let mut by_reason = BTreeMap::<&str, u64>::new();
    for (reason, count) in rows.iter().flat_map(|row| &row.by_reason) {
        *by_reason.entry(reason).or_default() += count;
    }
    let figure = |name: String, says: String, value| {
        FigureRow::new(name, "per million packets", says, vec![value])
    };
    let name = "budget_breaches_per_million";
    let worst = figure(
        name.into(),
        format!(
            "guests told later than the budget allows though the worker had its CPU; the worst of {} \
             cells: {}",
            rows.len(),
            worst.cell()
        ),
        worst.per_million,
    );
    let all = kept(&by_reason);
    let all = figure(
        format!("{name}_all"),
        format!("the same over all cells, {} packets", decimal(packets)),
        per_million(all, packets),
    );
    let reasons = by_reason.iter().map(|(reason, count)| {
        let says = format!("those of the reason {reason}, over all cells");
        figure(format!("{name}_{reason}"), says, per_million(*count, packets))
    });
    [worst, all].into_iter().chain(reasons).flatten().collect()
}
