//! `weir lab calibrate`: measures the costs of this machine and writes a profile.
//!
//! | file | contents |
//! |---|---|
//! | `machine.rs` | costs without a switch: calls, wake-ups, timers, copies, caches |
//! | `stages.rs` | datapath stages, by the marks of `weir_engine::stages`, and the guests' costs |
//! | `played.rs` | costs that cannot be measured alone, fitted so that simulation meets measurement |
//!
//! Each cost is the median of several rounds and is printed with their spread. A cost whose measurement needs a
//! virtual machine stays as in [`Profile::example`], and the output says so.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::num::NonZeroU64;
use std::thread;

use indicatif::ProgressBar;
use weir_lab::profile::Profile;

use super::LabError;
use super::measure::usable_cpus;
use super::profile::{key, written};
use super::quiet::{How, Quiet};
use crate::args::QuietArgs;

mod machine;
mod played;
mod stages;

use played::Packet;

const ROUNDS: usize = 9;

/// Number of successive measurements: costs without a switch, and three kinds of packets.
const PARTS: u64 = 4;

/// Timer slack during measurements (ns), as `weir_engine` sets it for its workers.
const TIMER_SLACK_NS: u64 = 1_000;

/// Sets this thread's timer slack to a worker's. If the kernel refuses, timers are later, and the results show it.
pub(super) fn exact_timers() {
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(TIMER_SLACK_NS));
}

#[derive(Clone, Debug, PartialEq)]
struct Cost {
    field: &'static str,
    how: String,
    /// Results of the rounds, in the field's unit; at least one.
    rounds: Vec<f64>,
}

impl Cost {
    fn new(field: &'static str, how: impl Into<String>, rounds: Vec<f64>) -> Self {
        Self { field, how: how.into(), rounds }
    }
}

/// Measures and prints the profile.
///
/// # Errors
/// A switch or a thread is not available; the output cannot be written.
pub(super) fn run(args: &QuietArgs, out: &mut dyn Write) -> Result<(), LabError> {
    let quiet = Quiet::unless(args);
    let mut calibration = Calibration::default();
    let bar = weir_bench::progress_of(PARTS);
    calibration.measure(ROUNDS, &bar)?;
    bar.finish_and_clear();
    let how = quiet.how();
    drop(quiet);
    write!(out, "{}", calibration.profile(&how)?)?;
    Ok(())
}

/// Measurements of this machine so far.
#[derive(Debug, Default)]
pub(super) struct Calibration {
    costs: Vec<Cost>,
    /// Cost of isolated packets, in each round.
    alone: Vec<Packet>,
}

impl Calibration {
    /// Adds `rounds` rounds of every measurement, each on its own switch, in [`PARTS`] parts.
    ///
    /// # Errors
    /// A switch or a thread is not available.
    pub(super) fn measure(&mut self, rounds: usize, bar: &ProgressBar) -> Result<(), LabError> {
        bar.set_message("calls, sleeps, timers, copies");
        let (mut costs, sleeps) = machine::measure(rounds).map_err(LabError::Calibrate)?;
        bar.inc(1);
        let (of_packets, alone) = stages::measure(rounds, &sleeps, bar)?;
        costs.extend(of_packets);
        self.alone.extend(alone);
        for cost in costs {
            match self.costs.iter_mut().find(|known| known.field == cost.field) {
                Some(known) => known.rounds.extend(cost.rounds),
                None => self.costs.push(cost),
            }
        }
        Ok(())
    }

    /// Returns the profile's TOML. `how` describes the measurement.
    ///
    /// # Errors
    /// The measured run cannot be simulated.
    pub(super) fn profile(&self, how: &How) -> Result<String, LabError> {
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        let build = if cfg!(debug_assertions) { ", by a debug build of weir" } else { "" };
        // Threads on one shared CPU wait for each other in a different way than in the simulation.
        let set = match usable_cpus().len() > 1 && !self.alone.is_empty() {
            true => Some(played::set(medians(&self.costs, how), Packet::middle(&self.alone))?),
            false => None,
        };
        let title = format!("this machine, {cpus} CPUs{build}, {}", how.said);
        Ok(profile(&title, &self.costs, set.as_ref(), how))
    }
}

/// Returns the value of a cost that is known without measurement (ns), and the reason.
fn known(field: &str, how: &How) -> Option<(u64, &'static str)> {
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
fn medians(costs: &[Cost], how: &How) -> Profile {
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
fn whole(value: f64) -> u64 {
    (value.round() as u64).max(1)
}

/// Combines two measurements round by round with `f`.
fn paired(one: &[f64], other: &[f64], f: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    one.iter().zip(other).map(|(one, other)| f(*one, *other)).collect()
}

/// Returns the median of the rounds; 0 without rounds.
fn median(rounds: &[f64]) -> f64 {
    let mut rounds = rounds.to_vec();
    rounds.sort_by(f64::total_cmp);
    rounds.get(rounds.len() / 2).copied().unwrap_or(0.0)
}

/// Returns the TOML of a profile. Costs that were `set` afterwards are marked.
fn profile(title: &str, costs: &[Cost], set: Option<&Profile>, how: &How) -> String {
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
                let value = set.iter().find(|it| it.0 == field && played::SET.contains(&field));
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
fn in_rounds(rounds: usize, mut measure: impl FnMut() -> io::Result<f64>) -> io::Result<Vec<f64>> {
    (0..rounds).map(|_| measure()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::error::Source;
    use super::super::profile::Machine;
    use super::*;

    fn machine(text: &str) -> Profile {
        Machine::parse(Source { name: "calibrated", text }).unwrap().profile
    }

    #[test]
    fn a_cost_is_the_median_of_its_rounds_and_the_rest_is_said_to_be_assumed() {
        let costs = [
            Cost::new("call_ns", "a write", vec![900.0, 1_500.4, 1_200.0]),
            Cost::new("copy_ps_per_byte", "a copy", vec![0.2]),
        ];
        let text = profile("this one", &costs, None, &How::default());
        let call = text.lines().find(|line| line.starts_with("call ")).unwrap();
        let source = "measured: a write; 3 rounds, 900.0 to 1500.4";
        assert_eq!(call, format!("call = {{ value = \"1200ns\", source = \"{source}\" }}"));
        let expected = Profile { call_ns: 1_200, copy_ps_per_byte: 1, ..Profile::example() };
        assert_eq!(machine(&text), expected);
    }

    #[test]
    fn a_machine_can_be_measured_and_the_lab_reads_what_comes_of_it() {
        let (mut costs, sleeps) = machine::measure(1).unwrap();
        assert!(costs.iter().all(|cost| cost.rounds.iter().all(|it| *it >= 0.0)), "{costs:?}");
        costs.extend(stages::measure(1, &sleeps, &ProgressBar::hidden()).unwrap().0);
        let mut fields: Vec<_> = costs.iter().map(|cost| cost.field).collect();
        fields.sort_unstable();
        fields.dedup();
        assert_eq!(fields.len(), costs.len(), "each is measured once");
        let text = profile("this one", &costs, None, &How::default());
        assert_eq!(text.matches("measured: ").count(), costs.len());
        machine(&text);
    }
}
