//! Estimates the cost of a call or an uplink wake-up while traffic flows.
//!
//! No counter shows C_v or C_p of Eq. 4 ([`crate::budget`]). Counters show CPU times, and numbers
//! of calls or wake-ups and of frames. [`Regression`] finds the costs that explain the CPU times
//! best: cpu = a events + b frames + c elapsed. Bytes are left out: at one frame size they are a
//! multiple of the frames, and the two costs could not be separated.

use crate::budget::{COST_NS_MAX, COST_NS_MIN};
use crate::law::LAW;

/// Number of estimated costs: of an event, of a frame, of a ns that passes (a share of a CPU).
const COSTS: usize = 3;
/// Uncertainty at the start, in units of [`SCALE`] squared.
const UNCERTAIN: f64 = 1e4;
/// Units in which a cost is about one: ns of CPU for an event, for a frame; share of a CPU.
const SCALE: [f64; COSTS] = [1e4, 1e3, 1.0];
/// Largest CPU time, in CPUs, and largest rate, in events or frames a second, that a sample may
/// claim.
const CPUS_MAX: f64 = 64.0;
const RATE_MAX: f64 = 1e9;
/// Longest sample (ns).
const SAMPLE_NS_MAX: f64 = 1e10;
/// Differences between two reads of the counters.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// CPU time used (ns), of the guest's vCPUs, as the guest's agent reports it, or of the worker.
    pub cpu_ns: u64,
    /// Calls given, or uplink wake-ups.
    pub events: u64,
    /// Frames moved.
    pub frames: u64,
    /// Time between the looks (ns).
    pub elapsed_ns: u64,
}

/// An estimate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// ns of CPU for one event, within [`COST_NS_MIN`] and [`COST_NS_MAX`].
    pub ns: f64,
    /// Standard error of `ns` (ns).
    pub error_ns: f64,
}

/// Recursive least squares with forgetting over [`Sample`]s. The estimate is C_v if events are
/// calls, C_p if they are uplink wake-ups.
///
/// There is no estimate until the ratio of events to frames has varied. Before, their costs cannot
/// be separated, and the error stays as large as at the start. Each sample is bounded, so that a
/// lying agent moves the estimate only within its bounds. A guest's samples affect only that
/// guest's queues.
#[derive(Clone, Copy, Debug)]
pub struct Regression {
    /// Costs, in units of [`SCALE`].
    costs: [f64; COSTS],
    /// Covariance of the costs, divided by the noise's variance.
    covariance: [[f64; COSTS]; COSTS],
    /// The noise's variance (shares of a CPU, squared), smoothed.
    noise: f64,
    samples: u32,
}

impl Default for Regression {
    fn default() -> Self {
        let mut covariance = [[0.0; COSTS]; COSTS];
        for (at, row) in covariance.iter_mut().enumerate() {
            row[at] = UNCERTAIN;
        }
        Self { costs: [0.0; COSTS], covariance, noise: 0.0, samples: 0 }
    }
}

impl Regression {
    /// Takes the differences since the last sample. Ignores an empty sample, and one that claims
    /// the impossible.
    pub fn add(&mut self, sample: Sample) {
        let elapsed_ns = sample.elapsed_ns as f64;
        if !(1.0..=SAMPLE_NS_MAX).contains(&elapsed_ns) {
            return;
        }
        let [cpus, events, frames] =
            [sample.cpu_ns, sample.events, sample.frames].map(|count| count as f64 / elapsed_ns);
        if cpus > CPUS_MAX || events.max(frames) > RATE_MAX / 1e9 {
            return;
        }
        self.learn([events * SCALE[0], frames * SCALE[1], SCALE[2]], cpus);
    }

    /// Makes one step of recursive least squares: `inputs` are the rates, `cpus` the CPUs in use.
    fn learn(&mut self, inputs: [f64; COSTS], cpus: f64) {
        let gains = self.covariance.map(|row| dot(row, inputs));
        let spread = dot(gains, inputs);
        let error = cpus - dot(self.costs, inputs);
        // Expected deviation: the noise plus the estimate's own uncertainty.
        let variance = self.noise * (1.0 + spread);
        let settled = self.samples >= LAW.samples_min() && variance > 0.0;
        let most = if settled { f64::from(LAW.errors) * variance.sqrt() } else { f64::INFINITY };
        let error = error.clamp(-most, most);
        let kept_share = 1.0 - 1.0 / f64::from(LAW.samples());
        let divisor = kept_share + spread;
        let mut next = *self;
        for at in 0..COSTS {
            next.costs[at] += gains[at] * error / divisor;
            for to in 0..COSTS {
                let kept = self.covariance[at][to] - gains[at] * gains[to] / divisor;
                next.covariance[at][to] = kept / kept_share;
            }
        }
        // While nothing varies, forgetting makes the estimate ever less certain. The initial
        // uncertainty is the limit.
        let widest = (0..COSTS).map(|at| next.covariance[at][at]).fold(0.0, f64::max);
        if widest > UNCERTAIN {
            next.covariance = next.covariance.map(|row| row.map(|x| x * UNCERTAIN / widest));
        }
        let share = 1.0 / f64::from(self.samples.saturating_add(1).min(LAW.samples()));
        next.noise += share * (error * error / (1.0 + spread) - self.noise);
        next.samples = self.samples.saturating_add(1);
        let finite = next.costs.iter().chain(next.covariance.as_flattened()).all(|x| x.is_finite());
        *self = if finite && widest > 0.0 { next } else { Self::default() };
    }

    /// Returns the cost of an event, once it exceeds what chance alone could show.
    pub fn cost(&self) -> Option<Cost> {
        if self.samples < LAW.samples_min() {
            return None;
        }
        let ns = self.costs[0] * SCALE[0];
        let error_ns = (self.noise * self.covariance[0][0].max(0.0)).sqrt() * SCALE[0];
        let known = error_ns.is_finite()
            && (COST_NS_MIN..=COST_NS_MAX).contains(&ns)
            && error_ns * f64::from(LAW.errors) <= ns
            && self.covariance[0][0] < UNCERTAIN / 2.0;
        known.then_some(Cost { ns, error_ns })
    }
}

fn dot(a: [f64; COSTS], b: [f64; COSTS]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ELAPSED_NS: u64 = 100_000_000;

    /// A guest or worker with known costs. Readings of its CPU time have `noise` (a share).
    #[derive(Clone, Copy, Debug)]
    struct Machine {
        event_ns: f64,
        frame_ns: f64,
        /// CPUs that are busy with other work.
        idle: f64,
        noise: f64,
    }

    impl Machine {
        fn sample(self, events: u64, frames: u64, random: f64) -> Sample {
            let cpu_ns = self.event_ns * events as f64
                + self.frame_ns * frames as f64
                + self.idle * ELAPSED_NS as f64;
            let cpu_ns = (cpu_ns * (1.0 + self.noise * (2.0 * random - 1.0))) as u64;
            Sample { cpu_ns, events, frames, elapsed_ns: ELAPSED_NS }
        }
    }

    fn machine() -> impl Strategy<Value = Machine> {
        (1_000.0..30_000.0, 200.0..3_000.0, 0.0..0.3, 0.0..0.02).prop_map(
            |(event_ns, frame_ns, idle, noise)| Machine { event_ns, frame_ns, idle, noise },
        )
    }

    /// Generates rates of events and frames (per second), and a number for the noise.
    fn samples() -> impl Strategy<Value = Vec<(u64, u64, f64)>> {
        prop::collection::vec((50..4_000u64, 500..20_000u64, 0.0..1.0), 300)
    }

    proptest! {
        #[test]
        fn true_costs_are_found_under_noise(machine in machine(), samples in samples()) {
            let mut regression = Regression::default();
            for (events, frames, random) in samples {
                regression.add(machine.sample(events, frames, random));
            }
            let cost = regression.cost();
            prop_assert!(cost.is_some(), "{:?}", regression);
            let off = (cost.map_or(0.0, |cost| cost.ns) / machine.event_ns - 1.0).abs();
            prop_assert!(off < 0.1, "{} of {:?}: {:?}", off, machine, cost);
        }

        #[test]
        fn no_samples_make_an_estimate_absurd(
            samples in prop::collection::vec(
                prop_oneof![
                    (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>()),
                    (0..10_000_000_000u64, 0..100_000_000u64, 0..100_000_000u64, 0..1_000_000_000u64),
                ],
                1..200,
            ),
        ) {
            let mut regression = Regression::default();
            for (cpu_ns, events, frames, elapsed_ns) in samples {
                regression.add(Sample { cpu_ns, events, frames, elapsed_ns });
                if let Some(Cost { ns, error_ns }) = regression.cost() {
                    prop_assert!((COST_NS_MIN..=COST_NS_MAX).contains(&ns), "{}", ns);
                    prop_assert!((0.0..=ns).contains(&error_ns), "{}", error_ns);
                }
            }
        }
    }

    const MACHINE: Machine =
        Machine { event_ns: 4_000.0, frame_ns: 900.0, idle: 0.05, noise: 0.01 };

    /// Returns a number between 0 and 1 that looks random.
    fn random(at: u64) -> f64 {
        (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f64 / (1u64 << 24) as f64
    }

    #[test]
    fn nothing_is_said_while_calls_and_frames_go_together() {
        let mut regression = Regression::default();
        for at in 0..1_000 {
            regression.add(MACHINE.sample(1_000, 10_000, random(at)));
            assert_eq!(regression.cost(), None, "sample {at}");
        }
    }

    #[test]
    fn nothing_is_said_after_a_few_samples() {
        let mut regression = Regression::default();
        for at in 0..u64::from(LAW.samples_min()) - 1 {
            regression.add(MACHINE.sample(
                100 + 300 * (at % 7),
                5_000 + 3_000 * (at % 5),
                random(at),
            ));
            assert_eq!(regression.cost(), None, "sample {at}");
        }
    }

    #[test]
    fn an_estimate_follows_costs_that_change() {
        let mut regression = Regression::default();
        let dearer = Machine { event_ns: 8_000.0, ..MACHINE };
        for (machine, until) in [(MACHINE, 600), (dearer, 1_200)] {
            for at in until - 600..until {
                let (events, frames) = (100 + 300 * (at % 7), 5_000 + 1_000 * (at % 5));
                regression.add(machine.sample(events, frames, random(at)));
            }
            let ns = regression.cost().map_or(0.0, |cost| cost.ns);
            assert!((ns / machine.event_ns - 1.0).abs() < 0.1, "{ns} of {}", machine.event_ns);
        }
    }

    #[test]
    fn a_single_lie_moves_an_estimate_little() {
        let mut regression = Regression::default();
        for at in 0..600 {
            let (events, frames) = (100 + 300 * (at % 7), 5_000 + 1_000 * (at % 5));
            regression.add(MACHINE.sample(events, frames, random(at)));
        }
        let lie = Sample { cpu_ns: 60 * ELAPSED_NS, events: 1, frames: 1, elapsed_ns: ELAPSED_NS };
        regression.add(lie);
        let ns = regression.cost().map_or(0.0, |cost| cost.ns);
        assert!((ns / MACHINE.event_ns - 1.0).abs() < 0.1, "{ns}");
    }

    #[test]
    fn a_clock_that_stood_still_is_left_out() {
        let mut regression = Regression::default();
        regression.add(Sample { cpu_ns: 5, events: 5, frames: 5, elapsed_ns: 0 });
        assert_eq!(regression.samples, 0);
    }
}
