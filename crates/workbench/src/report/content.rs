//! The content of a page, and tables of the numbers of its plots.

use weir_lab::estimate;
use weir_lab::host::run_within;
use weir_lab::scenario::Scenario;
use weir_limits::LAB_EVENTS_MAX;

use super::chart::{self, Chart, slug};
use crate::LabError;
use crate::experiment::{Experiment, name_of};
use crate::output::Outcome;
use crate::papers::Standings;
use crate::runs;
use crate::runs::Measured;
use crate::sensitivity::{PERCENTS, Sensitivity};
use crate::verdict::{Judged, Verdict};

/// The content of a page.
pub(super) struct Report<'r> {
    pub(super) entries: Vec<Entry<'r>>,
    /// A verdict for each figure of the papers.
    pub(super) figures: Standings,
    pub(super) varied: &'r [Sensitivity],
}

/// An experiment with its results.
pub(super) struct Entry<'r> {
    pub(super) experiment: &'r Experiment,
    pub(super) outcome: &'r Outcome,
    /// The name in links and file names.
    pub(super) id: String,
    pub(super) charts: Vec<Chart>,
}

impl Entry<'_> {
    pub(super) fn measured(&self) -> Vec<&str> {
        let mut sources: Vec<&str> = Vec::new();
        for measured in &self.experiment.file.measured {
            if !sources.contains(&measured.source.as_str()) {
                sources.push(&measured.source);
            }
        }
        sources
    }
}

impl<'r> Report<'r> {
    pub(super) fn new(
        experiments: &'r [Experiment],
        outcomes: &'r [Outcome],
        varied: &'r [Sensitivity],
    ) -> Self {
        let entry = |(experiment, outcome): (&'r Experiment, &'r Outcome)| {
            let charts = chart::all(experiment, outcome);
            Entry { experiment, outcome, id: slug(&experiment.name), charts }
        };
        Self {
            entries: experiments.iter().zip(outcomes).map(entry).collect(),
            figures: Standings::of(outcomes),
            varied,
        }
    }

    pub(super) fn claims(&self) -> impl Iterator<Item = &'r Judged> + Clone {
        self.entries.iter().flat_map(|entry| &entry.outcome.claims)
    }
}

/// Number of claims by verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) reproduced: usize,
    pub(super) direction_only: usize,
    pub(super) not: usize,
}

impl Tally {
    pub(super) fn of<'j>(claims: impl Iterator<Item = &'j Judged>) -> Self {
        let mut tally = Self::default();
        for claim in claims {
            *match claim.verdict {
                Verdict::Reproduced => &mut tally.reproduced,
                Verdict::DirectionOnly => &mut tally.direction_only,
                Verdict::Not => &mut tally.not,
            } += 1;
        }
        tally
    }

    pub(super) fn all(self) -> usize {
        self.reproduced + self.direction_only + self.not
    }

    pub(super) fn words(self) -> String {
        let Self { reproduced, direction_only, not } = self;
        format!("{reproduced} reproduced, {direction_only} direction only, {not} not")
    }
}

/// Returns a table of a plot's numbers: its head, and a row for each point of x.
pub(super) fn numbers(chart: &Chart) -> (Vec<String>, Vec<Vec<String>>) {
    let mut head = vec![chart.x_name.clone()];
    for series in &chart.series {
        head.push(series.name.clone());
        if series.measured.iter().any(Option::is_some) {
            head.push(format!("{}, measured", series.name));
        }
    }
    if !chart.marks.is_empty() {
        head.push("paper".into());
    }
    let rows = chart.x.iter().enumerate().map(|(x, name)| {
        let mut row = vec![name.clone()];
        for series in &chart.series {
            let value = |values: &[Option<Measured>]| {
                let Some(it) = values.get(x).copied().flatten() else { return "-".to_owned() };
                if it.max > it.min {
                    format!("{:.1} ({:.1} to {:.1})", it.mean, it.min, it.max)
                } else {
                    format!("{:.1}", it.mean)
                }
            };
            row.push(value(&series.simulated));
            if series.measured.iter().any(Option::is_some) {
                row.push(value(&series.measured));
            }
        }
        if !chart.marks.is_empty() {
            let here = chart.marks.iter().filter(|mark| mark.x == x);
            let words: Vec<_> = here.map(|mark| chart.says(mark)).collect();
            row.push(words.join("; "));
        }
        row
    });
    (head, rows.collect())
}

/// Returns a table of a sensitivity plot.
pub(super) fn moves(it: &Sensitivity) -> (Vec<String>, Vec<Vec<String>>) {
    let mut head = ["claim", "used to", "paper"].map(str::to_owned).to_vec();
    head.extend(PERCENTS.map(|(_, words)| words.to_owned()));
    let rows = it.claims.iter().map(|claim| {
        let words = format!("{}: {}", claim.figure, claim.says);
        let mut row = vec![words, claim.used.as_str().to_owned(), claim.paper.clone()];
        row.extend(claim.at.iter().map(|at| format!("{} {}", at.ours, at.verdict.sign())));
        row
    });
    (head, rows.collect())
}

/// Target of the estimated events for the beginning of a run, which has only a part of them.
const EVENTS: u64 = 200_000;

/// Returns for each experiment a hash over its text and the start of each of its points.
///
/// The hash misses late effects, such as a queue that moves after 50 ms or a vCPU that is placed after seconds.
///
/// # Errors
/// A run failed.
pub fn beginnings(experiments: &[Experiment]) -> Result<Vec<u64>, LabError> {
    runs::in_parallel(experiments, beginning_of)
}

/// Returns a hash over an experiment's page and plots, each a name and a text.
pub fn pages(files: &[(String, String)]) -> u64 {
    files.iter().fold(FNV_OFFSET, |hash, (name, text)| fnv1a(fnv1a(hash, name), text))
}

fn beginning_of(experiment: &Experiment) -> Result<u64, LabError> {
    let mut hash = fnv1a(FNV_OFFSET, &format!("{experiment:?}"));
    for (at, scenario) in &experiment.points {
        let scenario = beginning(scenario);
        let report = run_within(&scenario, LAB_EVENTS_MAX).map_err(|source| LabError::Run {
            experiment: experiment.name.clone(),
            point: name_of(at),
            seed: scenario.seed,
            source: Box::new(source),
        })?;
        hash = fnv1a(hash, &report.to_string());
    }
    Ok(hash)
}

/// Shortens a scenario to about [`EVENTS`] events.
fn beginning(scenario: &Scenario) -> Scenario {
    let ns = scenario.warm_up_ns.saturating_add(scenario.run_ns);
    let share = u128::from(ns) * u128::from(EVENTS) / u128::from(estimate::events(scenario).max(1));
    let run_ns = ns.min(u64::try_from(share).unwrap_or(ns)).max(1);
    Scenario { warm_up_ns: 0, run_ns, ..scenario.clone() }
}

/// FNV-1a, whose result does not depend on the machine or on the version of Rust. It need not resist attacks.
const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;

fn fnv1a(hash: u64, text: &str) -> u64 {
    const PRIME: u64 = 0x100_0000_01b3;
    text.bytes().fold(hash, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_one_that_is_published() {
        assert_eq!(fnv1a(FNV_OFFSET, ""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(FNV_OFFSET, "foobar"), 0x8594_4171_f739_67e8);
    }
}
