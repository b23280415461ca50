//! The results: figures, and the tables behind them.

use std::fmt;

use serde::Serialize;
use weir_text::{Table, decimal};

use super::super::figures::{FigureRow, figures_table};
use super::super::report::significant;
use super::breaches::{self, BreachRow};
use super::contest::{Measured, Purpose};
use super::grid::{self, LoadRow};
use super::pairs::PairRow;
use super::pauses::Pauses;

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
        report.figures.splice(0..0, worst);
        report.figures.extend(breaches::figures(&report.breaches));
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
