//! Decides when a container of frames is due (Thakur 2014, after Bourguiba 2012).
//!
//! Frames for one guest gather in a *container* that is handed over as a whole: one publication,
//! one call, and for a guest that unpacks them itself one buffer. [`Container`] counts its frames
//! and knows when size or timeout make it due; [`Playout`] estimates whether it is worth waiting
//! for more. The policies `aggregate` and `aggregate-adaptive` of [`crate::moderation`] use both.

mod container;

pub use container::{Container, Limits, Playout};

#[cfg(test)]
mod tests {
    //! Compares the aggregating policies with each other and with no aggregation, on simulated
    //! arrivals.

    use rand::{RngExt as _, SeedableRng as _};
    use rand_xoshiro::SplitMix64;

    use crate::moderation::{Batch, Delivery, Kind, Settings, Verdict};

    /// The container's timeout. Gaps are stated as parts of it.
    const TIMEOUT_NS: u64 = 1_000_000;
    const FRAME_BYTES: u64 = 64;

    /// Draws the next gap of a Poisson process (ns).
    fn random_gap_ns(random: &mut SplitMix64, mean_ns: f64) -> u64 {
        (-(1.0 - random.random::<f64>()).ln() * mean_ns) as u64
    }

    /// Times at which frames arrive, `mean_ns` apart on average.
    fn poisson(count: usize, mean_ns: f64) -> Vec<u64> {
        let mut random = SplitMix64::seed_from_u64(1);
        let mut now_ns = 0;
        let next = || {
            now_ns += random_gap_ns(&mut random, mean_ns);
            now_ns
        };
        std::iter::repeat_with(next).take(count).collect()
    }

    /// Bursts of `len` frames with `gap_ns` between them, the beginnings of the bursts `pause_ns` apart on
    /// average.
    fn bursts(count: usize, len: u64, gap_ns: u64, pause_ns: f64) -> Vec<u64> {
        let mut random = SplitMix64::seed_from_u64(2);
        let mut begin_ns = 0;
        let mut times = Vec::new();
        for _ in 0..count {
            begin_ns += len * gap_ns + random_gap_ns(&mut random, pause_ns);
            times.extend((0..len).map(|i| begin_ns + i * gap_ns));
        }
        times
    }

    /// The result of a run.
    #[derive(Debug)]
    struct Outcome {
        /// Mean time from a frame's arrival to its release (ns).
        delay_ns: f64,
        /// Mean difference between the delays of two frames in a row (ns; RFC 3550 §6.4.1, unsmoothed).
        jitter_ns: f64,
        containers_per_frame: f64,
    }

    /// A policy and the frames that wait for it.
    struct Run {
        policy: Box<dyn crate::moderation::Moderation>,
        waiting: Vec<u64>,
        due_ns: Option<u64>,
        delays: Vec<u64>,
        containers: u64,
    }

    impl Run {
        fn new(kind: Kind) -> Self {
            let policy = kind.build(Settings::within(TIMEOUT_NS));
            Self { policy, waiting: Vec::new(), due_ns: None, delays: Vec::new(), containers: 0 }
        }

        fn act(&mut self, now_ns: u64, verdict: Verdict) {
            match verdict {
                Verdict::HoldUntil(due_ns) => self.due_ns = Some(due_ns),
                Verdict::Call => {
                    self.delays
                        .extend(self.waiting.drain(..).map(|arrived_ns| now_ns - arrived_ns));
                    self.containers += 1;
                    self.due_ns = None;
                    self.policy.delivered(now_ns, Delivery::Called);
                }
            }
        }

        /// Plays every event that is due by `until_ns`.
        fn advance(&mut self, until_ns: u64) {
            while let Some(due_ns) = self.due_ns.filter(|due_ns| *due_ns <= until_ns) {
                let verdict = self.policy.expired(due_ns);
                self.act(due_ns, verdict);
            }
        }

        fn arrive(&mut self, now_ns: u64) {
            self.advance(now_ns);
            self.waiting.push(now_ns);
            let batch = Batch { frames: 1, bytes: FRAME_BYTES, arrived_ns: now_ns };
            let verdict = self.policy.published(now_ns, batch);
            self.act(now_ns, verdict);
        }

        /// Releases the remaining frames. The first tenth of the frames does not count in the delays,
        /// since estimates settle meanwhile.
        fn finish(mut self) -> Outcome {
            self.advance(u64::MAX);
            assert!(self.waiting.is_empty());
            let settled = &self.delays[self.delays.len() / 10..];
            let differences = settled.windows(2).map(|pair| pair[0].abs_diff(pair[1]));
            Outcome {
                delay_ns: settled.iter().sum::<u64>() as f64 / settled.len() as f64,
                jitter_ns: differences.sum::<u64>() as f64 / settled.len() as f64,
                containers_per_frame: self.containers as f64 / self.delays.len() as f64,
            }
        }
    }

    fn run(kind: Kind, arrivals: &[u64]) -> Outcome {
        let mut run = Run::new(kind);
        arrivals.iter().for_each(|now_ns| run.arrive(*now_ns));
        run.finish()
    }

    /// Plays the same arrivals under a fixed timeout and under the adaptive one.
    fn fixed_and_adaptive(arrivals: &[u64]) -> (Outcome, Outcome) {
        let both = (run(Kind::Aggregate, arrivals), run(Kind::AggregateAdaptive, arrivals));
        println!("fixed {:?}, adaptive {:?}", both.0, both.1);
        both
    }

    #[test]
    fn without_aggregation_every_frame_goes_at_once() {
        let outcome = run(Kind::Immediate, &poisson(1000, TIMEOUT_NS as f64 / 10.0));
        assert_eq!(
            (outcome.delay_ns, outcome.jitter_ns, outcome.containers_per_frame),
            (0.0, 0.0, 1.0)
        );
    }

    #[test]
    fn at_a_low_rate_adaptive_delay_and_jitter_are_a_small_part_of_those_of_a_fixed_timeout() {
        for gaps in [1.0, 2.0, 10.0, 100.0] {
            let (fixed, adaptive) = fixed_and_adaptive(&poisson(5000, gaps * TIMEOUT_NS as f64));
            assert!(fixed.delay_ns > 0.5 * TIMEOUT_NS as f64);
            assert!(adaptive.delay_ns <= 0.1 * fixed.delay_ns, "{gaps}");
            assert!(
                adaptive.jitter_ns <= 0.1 * fixed.jitter_ns.max(TIMEOUT_NS as f64 / 10.0),
                "{gaps}"
            );
        }
    }

    #[test]
    fn at_a_high_rate_adaptive_containers_are_as_full_as_with_a_fixed_timeout() {
        for frames_per_timeout in [64.0, 100.0, 1000.0, 10_000.0] {
            let arrivals = poisson(50_000, TIMEOUT_NS as f64 / frames_per_timeout);
            let (fixed, adaptive) = fixed_and_adaptive(&arrivals);
            assert!(fixed.containers_per_frame <= 1.0 / 50.0);
            assert!(adaptive.containers_per_frame <= 1.01 * fixed.containers_per_frame);
            assert!(adaptive.delay_ns <= 1.01 * fixed.delay_ns);
        }
    }

    #[test]
    fn at_a_medium_rate_adaptive_trades_a_few_containers_for_delay() {
        for frames_per_timeout in [8.0, 16.0, 32.0] {
            let arrivals = poisson(50_000, TIMEOUT_NS as f64 / frames_per_timeout);
            let (fixed, adaptive) = fixed_and_adaptive(&arrivals);
            assert!(adaptive.containers_per_frame <= 1.3 * fixed.containers_per_frame);
            assert!(adaptive.delay_ns <= 1.01 * fixed.delay_ns);
            let none = run(Kind::Immediate, &arrivals);
            assert!(adaptive.containers_per_frame <= 0.3 * none.containers_per_frame);
        }
    }

    #[test]
    fn a_burst_is_one_container_that_does_not_wait_for_the_next_burst() {
        let arrivals = bursts(2000, 40, 1000, 10.0 * TIMEOUT_NS as f64);
        let (fixed, adaptive) = fixed_and_adaptive(&arrivals);
        assert!(adaptive.delay_ns <= 0.6 * fixed.delay_ns);
        assert!(adaptive.containers_per_frame <= 1.1 * fixed.containers_per_frame);
    }

    /// If the pauses between short bursts were learned like other gaps, each frame would go at once.
    #[test]
    fn a_short_burst_is_one_container_too() {
        let arrivals = bursts(2000, 4, 1000, 10.0 * TIMEOUT_NS as f64);
        let (fixed, adaptive) = fixed_and_adaptive(&arrivals);
        assert!(adaptive.delay_ns <= 0.35 * fixed.delay_ns);
        assert!(adaptive.containers_per_frame <= 1.15 * fixed.containers_per_frame);
    }

    #[test]
    fn the_release_time_follows_a_rate_that_changes() {
        let mut arrivals = Vec::new();
        let mut now_ns = 0;
        for round in 0..20u64 {
            for i in 0..4000u64 {
                // Slow stretches have fewer frames, so that all stretches last about equally long.
                let slow = round.is_multiple_of(2);
                if slow && i >= 100 {
                    break;
                }
                now_ns += if slow { 4 * TIMEOUT_NS } else { TIMEOUT_NS / 100 };
                arrivals.push(now_ns);
            }
        }
        let (fixed, adaptive) = fixed_and_adaptive(&arrivals);
        // After each rise of the rate a few hundred frames go at once, until the policy believes the
        // new rate.
        let learning = 10.0 * 250.0 / arrivals.len() as f64;
        assert!(adaptive.containers_per_frame <= fixed.containers_per_frame + learning);
        assert!(adaptive.delay_ns <= fixed.delay_ns);
    }

    /// Plays a sender that waits for the answer to each frame. The answer comes `round_trip_ns` after
    /// the frame's release.
    fn requests(kind: Kind, count: usize, round_trip_ns: u64) -> Outcome {
        let mut run = Run::new(kind);
        let mut now_ns = 0;
        for _ in 0..count {
            run.arrive(now_ns);
            now_ns = run.due_ns.unwrap_or(now_ns) + round_trip_ns;
        }
        run.finish()
    }

    #[test]
    fn a_sender_that_waits_for_answers_is_held_up_for_a_small_part_of_the_timeout() {
        for round_trip_ns in [TIMEOUT_NS / 50, TIMEOUT_NS / 10, TIMEOUT_NS / 2] {
            let fixed = requests(Kind::Aggregate, 20_000, round_trip_ns);
            let adaptive = requests(Kind::AggregateAdaptive, 20_000, round_trip_ns);
            println!("fixed {fixed:?}, adaptive {adaptive:?}");
            assert!(adaptive.delay_ns <= 0.15 * fixed.delay_ns);
        }
    }
}
