//! Breaches of latency budgets: how often a guest is notified of a frame later than its budget allows, and the
//! reasons.

use std::borrow::Borrow;
use std::collections::BTreeMap;

use serde::Serialize;
use weir_engine::stats::BreachReason;
use weir_text::decimal;

use super::super::figures::FigureRow;
use super::super::slice::Slice;
use super::contest::{Contest, Setting};

/// A load under a policy and a budget, over all rounds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct BreachRow {
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
pub(super) fn figures(rows: &[BreachRow]) -> Vec<FigureRow> {
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
