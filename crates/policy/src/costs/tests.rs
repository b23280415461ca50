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
    (1_000.0..30_000.0, 200.0..3_000.0, 0.0..0.3, 0.0..0.02)
        .prop_map(|(event_ns, frame_ns, idle, noise)| Machine { event_ns, frame_ns, idle, noise })
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

const MACHINE: Machine = Machine { event_ns: 4_000.0, frame_ns: 900.0, idle: 0.05, noise: 0.01 };

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
        regression.add(MACHINE.sample(100 + 300 * (at % 7), 5_000 + 3_000 * (at % 5), random(at)));
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
