//! Short digests of an experiment's results. They show cheaply whether a page of verdicts is up to
//! date.

use weir_lab::estimate;
use weir_lab::host::run_within;
use weir_lab::scenario::Scenario;
use weir_limits::LAB_EVENTS_MAX;

use crate::experiment::{Experiment, name_of};
use crate::{LabError, runs};

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
