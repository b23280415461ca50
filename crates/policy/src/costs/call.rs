//! What a call costs, found out where the load does not show it.
//!
//! Under a steady load calls and frames come at steady rates, and no regression can tell their costs apart.
//! Calls are given as often as holds end, though, and holds are the manager's: shortened at random for some
//! looks they make calls vary while frames do not. A hold is only ever shortened, so the latency budget
//! holds; what it costs is calls, for some seconds in ten minutes.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};

use super::{Cost, Regression, Sample};
use crate::hold_off::HoldOff;

/// Looks in a turn: 10 seconds at 10 Hz. Holds are varied for whole turns, or not at all.
const LOOKS: u32 = 100;
/// A cost is asked for once its standard error is more than this share of it: before it is too large to be
/// told at all,
const ERROR_ASKED: f64 = 0.15;
/// and after so many turns, about ten minutes, in any case: that it has changed does not show either.
const TURNS_UNASKED: u32 = 60;
/// A hold is shortened to one part in so many.
const SHORTER: u64 = 2;

/// What a call to one interface costs, and how long its calls are to be held so that it shows.
#[derive(Clone, Debug)]
pub struct CallCost {
    known: Regression,
    /// Of this turn's samples alone, while holds are varied: what was learned before may hold no longer.
    fresh: Regression,
    /// Looks of this turn that went by.
    look: u32,
    /// Holds are varied in this turn.
    varies: bool,
    /// Turns since they were.
    unasked: u32,
    /// Turns to let go by after one that told nothing: the load's calls may not follow its holds.
    hold_off: HoldOff,
    random: SplitMix64,
}

impl CallCost {
    /// Nothing is known. Each interface has a `seed` of its own, since two that vary together could not be
    /// told apart.
    pub fn new(seed: u32) -> Self {
        Self {
            known: Regression::default(),
            fresh: Regression::default(),
            look: 0,
            varies: false,
            unasked: 0,
            hold_off: HoldOff::default(),
            random: SplitMix64::seed_from_u64(seed.into()),
        }
    }

    /// Takes what happened since the last look.
    pub fn add(&mut self, sample: Sample) {
        self.known.add(sample);
        if self.varies {
            self.fresh.add(sample);
        }
    }

    /// What a call costs, if that is known, see [`Regression::cost`].
    pub fn cost(&self) -> Option<Cost> {
        self.known.cost()
    }

    /// How long to hold until the next look (ns), where `hold_ns` is the limit: to be asked at each look at
    /// which there was traffic.
    pub fn hold_ns(&mut self, hold_ns: u64) -> u64 {
        if self.look == 0 {
            self.begin_turn();
        }
        self.look = (self.look + 1) % LOOKS;
        if self.varies && self.draw() { hold_ns / SHORTER } else { hold_ns }
    }

    /// Whether holds are being varied.
    pub fn varies(&self) -> bool {
        self.varies
    }

    fn begin_turn(&mut self) {
        if self.varies && self.fresh.cost().is_some() {
            self.known = self.fresh;
        }
        let known = is_known(self.known.cost());
        match (self.varies, known) {
            (_, true) => self.hold_off.forget(),
            (true, false) => self.hold_off.failed(),
            (false, false) => self.hold_off.tick(),
        }
        self.unasked = if self.varies { 1 } else { self.unasked.saturating_add(1) };
        self.varies = self.hold_off.left == 0 && (!known || self.unasked > TURNS_UNASKED);
        if self.varies {
            self.fresh = Regression::default();
        }
    }

    /// One of two.
    fn draw(&mut self) -> bool {
        self.random.next_u64() >> 63 == 1
    }
}

fn is_known(cost: Option<Cost>) -> bool {
    cost.is_some_and(|cost| cost.error_ns <= ERROR_ASKED * cost.ns)
}

#[cfg(test)]
mod tests {
    use rand::RngExt as _;

    use super::*;

    const LOOK_NS: u64 = 100_000_000;
    const HOLD_NS: u64 = 500_000;

    /// A guest under a steady load, looked at ten times a second.
    struct Steady {
        cost: CallCost,
        call_ns: f64,
        /// Calls come as often as holds end; or as often as somebody else wants.
        calls_follow_holds: bool,
        noise: SplitMix64,
        shortened: u32,
    }

    impl Steady {
        fn new(calls_follow_holds: bool) -> Self {
            Self {
                cost: CallCost::new(3),
                call_ns: 6_000.0,
                calls_follow_holds,
                noise: SplitMix64::seed_from_u64(7),
                shortened: 0,
            }
        }

        /// One look; gives what was found out by then.
        fn look(&mut self) -> Option<Cost> {
            let hold_ns = self.cost.hold_ns(HOLD_NS);
            assert!(hold_ns <= HOLD_NS, "or the budget would not hold");
            self.shortened += u32::from(hold_ns < HOLD_NS);
            let calls = LOOK_NS / if self.calls_follow_holds { hold_ns } else { HOLD_NS };
            let frames = 2_000;
            let noise = 1.0 + 0.02 * (self.noise.random::<f64>() - 0.5);
            let cpu_ns =
                self.call_ns * calls as f64 + 900.0 * frames as f64 + 0.05 * LOOK_NS as f64;
            let cpu_ns = (cpu_ns * noise) as u64;
            self.cost.add(Sample { cpu_ns, events: calls, frames, elapsed_ns: LOOK_NS });
            self.cost.cost()
        }

        fn looks(&mut self, looks: u32) {
            for _ in 0..looks {
                let _ = self.look();
            }
        }
    }

    #[test]
    fn under_a_steady_load_the_cost_is_found_and_holds_are_left_alone_then() {
        let mut guest = Steady::new(true);
        guest.looks(LOOKS);
        let ns = guest.cost.cost().expect("found in one turn").ns;
        assert!((ns / guest.call_ns - 1.0).abs() < 0.1, "{ns}");
        guest.shortened = 0;
        let unknown = (0..20_000).filter(|_| guest.look().is_none()).count();
        assert_eq!(unknown, 0, "asked again before it is forgotten");
        assert!(guest.shortened < 500, "{} of 20,000 looks", guest.shortened);
    }

    #[test]
    fn a_cost_that_changes_under_a_steady_load_is_found_again() {
        let mut guest = Steady::new(true);
        for call_ns in [6_000.0, 12_000.0, 4_000.0] {
            guest.call_ns = call_ns;
            guest.looks(LOOKS * (TURNS_UNASKED + 3));
            let ns = guest.cost.cost().expect("known all the time").ns;
            assert!((ns / call_ns - 1.0).abs() < 0.15, "{ns} of {call_ns}");
        }
    }

    #[test]
    fn where_calls_do_not_follow_holds_it_is_never_found() {
        let mut guest = Steady::new(false);
        assert!((0..1_000).all(|_| guest.look().is_none()));
    }

    #[test]
    fn a_guest_whose_calls_do_not_follow_is_asked_ever_less() {
        let mut guest = Steady::new(false);
        let mut shortened = || {
            guest.shortened = 0;
            guest.looks(100_000);
            guest.shortened
        };
        let (first, second) = (shortened(), shortened());
        assert!(second < first && first < 1_000, "{first}, then {second}, of 100,000 looks");
    }

    #[test]
    fn two_interfaces_do_not_vary_together() {
        let lots = |seed| {
            let mut cost = CallCost::new(seed);
            (0..LOOKS).map(|_| cost.hold_ns(HOLD_NS) < HOLD_NS).collect::<Vec<_>>()
        };
        for seed in 0..20 {
            let shortened = lots(seed).iter().filter(|short| **short).count();
            assert!((25..75).contains(&shortened), "{seed}: {shortened}");
            let alike = lots(seed).iter().zip(lots(seed + 1)).filter(|(a, b)| *a == b).count();
            assert!((25..75).contains(&alike), "{seed}: {alike}");
        }
    }

    #[test]
    fn nothing_is_shortened_that_is_nothing() {
        assert_eq!(CallCost::new(1).hold_ns(0), 0);
    }
}
