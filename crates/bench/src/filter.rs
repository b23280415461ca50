//! `weir bench --filter-cost`: throughput with a filter compared with throughput without one.

use std::fmt;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Serialize;
use weir_text::Table;
use weir_vif::load::small;

use super::figures::{FigureRow, print};
use super::plan::{Measurement, SMALL_FRAME_BYTES, WINDOW};
use super::report::{median_and_spread, significant};
use super::slice::Slice;
use crate::args::BenchArgs;
use crate::rig::{self, Load};
use crate::steps::{BenchError, SLICES, progress};

/// The sender's rules: an expression of ten terms. The traffic (UDP from 10.0.0.0/24) needs all of them for its
/// verdict, and no other traffic passes.
const RULES: &[&str] = &[
    "tx accept ip and udp and src net 10.0.0.0/8 \
     and not (dst port 53 or 67 or 68 or 123 or 161 or 514 or 1900)",
    "tx drop",
];

/// A slice without the filter, directly followed by a slice with it.
struct Pair {
    none: Slice,
    filtered: Slice,
}

/// Measures and prints the result.
pub(super) fn run(args: &BenchArgs, out: &mut dyn Write) -> Result<(), BenchError> {
    let stop = rig::catch_signals()?;
    let dir = rig::temp_dir()?;
    let time = Duration::from_secs(args.seconds.into()) / SLICES;
    let pairs = measure(time, dir.path(), &stop)?;
    let report = Report::new(&pairs).ok_or(BenchError::Interrupted)?;
    Ok(print(&report, args.json, out)?)
}

/// Measures pairs of slices. Ends early if `stop` is set.
fn measure(time: Duration, dir: &Path, stop: &AtomicBool) -> Result<Vec<Pair>, BenchError> {
    let load = Load::Small(small::Options {
        frame_bytes: SMALL_FRAME_BYTES,
        rate: small::Rate::Window(WINDOW),
        ..small::Options::default()
    });
    let progress = progress(2);
    let mut pairs = Vec::new();
    for _ in 0..SLICES {
        let slice = |name, filter| {
            progress.set_message(name);
            let measurement = Measurement { filter, ..Measurement::new(name, load, &[]) };
            let slice = Slice::measure(&measurement, time, dir, stop)?;
            progress.inc(1);
            Ok::<_, BenchError>(slice)
        };
        let (none, filtered) = (slice("no filter", &[])?, slice("filter", RULES)?);
        if stop.load(Ordering::Relaxed) {
            break;
        }
        pairs.push(Pair { none, filtered });
    }
    Ok(pairs)
}

/// The result. Its JSON is the output of `weir bench --filter-cost --json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Report {
    /// The sender's rules.
    rules: &'static [&'static str],
    figures: Vec<FigureRow>,
    rows: Vec<Row>,
}

/// A figure without and with the filter: medians of the slices.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Row {
    name: &'static str,
    says: &'static str,
    none: f64,
    filtered: f64,
    /// Ratio of each pair of slices.
    #[serde(skip)]
    ratios: Vec<f64>,
}

impl Row {
    /// Summarises the pairs; `None` if no pair has the figure.
    fn new(
        name: &'static str,
        says: &'static str,
        pairs: &[Pair],
        of: fn(&Slice) -> Option<f64>,
    ) -> Option<Self> {
        let figures = pairs.iter().filter_map(|pair| Some((of(&pair.none)?, of(&pair.filtered)?)));
        let median = |of: fn((f64, f64)) -> f64| {
            Some(median_and_spread(figures.clone().map(of).collect())?.0)
        };
        Some(Self {
            name,
            says,
            none: median(|(none, _)| none)?,
            filtered: median(|(_, filtered)| filtered)?,
            ratios: figures.clone().map(|(none, filtered)| filtered / none).collect(),
        })
    }
}

impl Report {
    /// Builds the report; `None` without a complete pair.
    fn new(pairs: &[Pair]) -> Option<Self> {
        let rows = vec![
            Row::new("filter_cost", "64 B one way, 512 in flight", pairs, Slice::packets_per_s)?,
            Row::new(
                "filter_cost_per_core",
                "the same for a second of the worker's CPU time",
                pairs,
                Slice::packets_per_cpu_s,
            )?,
        ];
        let figure = |row: &Row| FigureRow::new(row.name, "x", row.says, row.ratios.clone());
        Some(Self { rules: RULES, figures: rows.iter().filter_map(figure).collect(), rows })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "packets/s without a filter and with one of ten terms, at the sender:\n")?;
        for rule in self.rules {
            writeln!(f, "  {rule}")?;
        }
        let mut table = Table::new(&["<FIGURE", "RATIO", "NONE", "FILTER", "<WHAT IT SAYS"]);
        for (Row { name, says, none, filtered, .. }, FigureRow { median, .. }) in
            self.rows.iter().zip(&self.figures)
        {
            let [none, filtered] = [none, filtered].map(|rate| significant(*rate));
            table.row(vec![(*name).into(), format!("{median:.3}"), none, filtered, (*says).into()]);
        }
        write!(f, "\n{table}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_config::{Direction, FilterRule};

    #[test]
    fn the_rules_are_good_and_of_the_direction_that_is_measured() {
        let rules: Vec<FilterRule> = RULES.iter().map(|rule| rule.parse().unwrap()).collect();
        assert!(rules.iter().all(|rule| rule.direction == Direction::Tx));
        let terms = rules[0].expression.to_string();
        assert_eq!(terms.split(" and ").count() + terms.split(" or ").count() - 1, 10);
    }

    #[test]
    fn pairs_are_compared_one_by_one() {
        let slice = |received| Slice {
            seconds: 1.0,
            received,
            switched: received,
            switch_cpu_s: 0.5,
            ..Slice::default()
        };
        let pair = |none, filtered| Pair { none: slice(none), filtered: slice(filtered) };
        let report = Report::new(&[pair(1000, 900), pair(100, 95), pair(2000, 1000)]).unwrap();
        insta::assert_snapshot!(report.to_string(), @r#"
        packets/s without a filter and with one of ten terms, at the sender:

          tx accept ip and udp and src net 10.0.0.0/8 and not (dst port 53 or 67 or 68 or 123 or 161 or 514 or 1900)
          tx drop

        FIGURE                RATIO   NONE  FILTER  WHAT IT SAYS
        filter_cost           0.900  1,000     900  64 B one way, 512 in flight
        filter_cost_per_core  0.900  2,000   1,800  the same for a second of the worker's CPU time
        "#);
        assert_eq!(Report::new(&[]), None);
    }
}
