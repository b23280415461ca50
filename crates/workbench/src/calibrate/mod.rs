//! `weir lab calibrate`: measures the costs of this machine and writes a profile.
//!
//! | file | contents |
//! |---|---|
//! | `cost.rs` | a cost with its rounds, and the profile of all |
//! | `machine.rs` | costs without a switch: calls, wake-ups, timers, copies, caches |
//! | `stages.rs` | datapath stages, by the marks of `weir_engine::stages`, and the guests' costs |
//! | `played.rs` | costs that cannot be measured alone, fitted so that simulation meets measurement |
//!
//! Each cost is the median of several rounds and is printed with their spread. A cost whose measurement needs a
//! virtual machine stays as in [`Profile::example`], and the output says so.

use std::io::Write;
use std::thread;

use indicatif::ProgressBar;

use super::LabError;
use super::measure::usable_cpus;
use super::quiet::{How, Quiet};
use crate::args::QuietArgs;

mod cost;
mod machine;
mod played;
mod stages;

use cost::{Cost, medians, profile};
use played::Packet;

const ROUNDS: usize = 9;

/// Number of successive measurements: costs without a switch, and three kinds of packets.
const PARTS: u64 = 4;

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

#[cfg(test)]
mod tests {
    use weir_lab::profile::Profile;

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
