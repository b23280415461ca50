//! A cost with its rounds, and the profile of all costs.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::io;

use weir_lab::profile::Profile;

use super::super::profile::{key, written};
use super::super::quiet::How;

/// Costs that are fitted by simulation.
pub(super) const SET: [&str; 7] = [
    "sleep_ns",
    "settle_ns",
    "interrupt_ns",
    "interrupt_busy_ns",
    "poll_end_ns",
    "poll_end_busy_ns",
    "kick_ns",
];

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cost {
    pub(super) field: &'static str,
    pub(super) how: String,
    /// Results of the rounds, in the field's unit; at least one.
    pub(super) rounds: Vec<f64>,
}

impl Cost {
    pub(super) fn new(field: &'static str, how: impl Into<String>, rounds: Vec<f64>) -> Self {
        Self { field, how: how.into(), rounds }
    }
}

/// Returns the value of a cost that is known without measurement (ns), and the reason.
pub(super) fn known(field: &str, how: &How) -> Option<(u64, &'static str)> {
    match field {
        "slice_ns" | "granularity_ns" if how.is_first => {
            Some((1_000_000_000, "threads with real-time priority have a CPU until they sleep"))
        }
        "wakeup_latency_p99_ns" | "timer_late_p99_ns" => {
            Some((0, "the tail beyond one in ten is that of what interrupts a CPU (tick)"))
        }
        _ => None,
    }
}

/// Returns the profile with the median of each cost, or else its known value, or else the example's.
pub(super) fn medians(costs: &[Cost], how: &How) -> Profile {
    let example = Profile::example().fields();
    let value = |field| {
        let of_example = example.iter().find(|it| it.0 == field).map_or(0, |it| it.1);
        let of_example = known(field, how).map_or(of_example, |it| it.0);
        let measured = costs.iter().find(|cost| cost.field == field);
        Ok::<_, Infallible>(measured.map_or(of_example, |cost| whole(median(&cost.rounds))))
    };
    let Ok(profile) = Profile::from_fields(value);
    profile
}

/// Rounds a cost to whole units, at least one for a positive cost.
pub(super) fn whole(value: f64) -> u64 {
    (value.round() as u64).max(1)
}

/// Combines two measurements round by round with `f`.
pub(super) fn paired(one: &[f64], other: &[f64], f: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    one.iter().zip(other).map(|(one, other)| f(*one, *other)).collect()
}

/// Returns the median of the rounds; 0 without rounds.
pub(super) fn median(rounds: &[f64]) -> f64 {
    let mut rounds = rounds.to_vec();
    rounds.sort_by(f64::total_cmp);
    rounds.get(rounds.len() / 2).copied().unwrap_or(0.0)
}

/// Returns the TOML of a profile. Costs that were `set` afterwards are marked.
pub(super) fn profile(title: &str, costs: &[Cost], set: Option<&Profile>, how: &How) -> String {
    let mut text = format!("title = \"{title}\"\n\n[costs]\n");
    let set = set.map(Profile::fields).unwrap_or_default();
    for (field, example) in Profile::example().fields() {
        let (value, from) = match costs.iter().find(|cost| cost.field == field) {
            Some(Cost { how, rounds, .. }) => {
                let mut rounds = rounds.clone();
                rounds.sort_by(f64::total_cmp);
                let [least, median, most] = [0, rounds.len() / 2, rounds.len().saturating_sub(1)]
                    .map(|at| rounds.get(at).copied().unwrap_or(0.0));
                let count = rounds.len();
                let spread = format!("{count} rounds, {least:.1} to {most:.1}");
                let value = set.iter().find(|it| it.0 == field && SET.contains(&field));
                let (value, played) = match value {
                    Some((_, value)) => (*value, format!("; {median:.1} before it was played")),
                    None => (whole(median), String::new()),
                };
                (value, format!("source = \"measured: {how}; {spread}{played}\""))
            }
            None => match known(field, how) {
                Some((value, why)) => (value, format!("source = \"{why}\"")),
                None => (example, "assumed = \"not measured; as in weir's example\"".to_owned()),
            },
        };
        let value = written(field, value);
        let _ = writeln!(text, "{} = {{ value = \"{value}\", {from} }}", key(field).0);
    }
    text
}

/// Measures `rounds` times.
pub(super) fn in_rounds(
    rounds: usize,
    mut measure: impl FnMut() -> io::Result<f64>,
) -> io::Result<Vec<f64>> {
    (0..rounds).map(|_| measure()).collect()
}
