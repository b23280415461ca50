//! Chooses a queue's level of hold, and when to try another.

use crate::attempt::HoldOff;
use crate::law::Law;
use crate::trial::{Finding, Passed, Trial};

/// Fraction bits of [`Arrivals::gap`], so that small gaps do not round away.
const FRACTION: u32 = 4;
/// Longest gap that counts (ns). It also keeps the arithmetic far from overflow.
const GAP_NS_MAX: u64 = weir_limits::LATENCY_BUDGET_NS_MAX * 4;

/// The usual time between two publications, smoothed.
///
/// Batches are counted, not frames, since a hold saves calls, and a batch costs one call.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Arrivals {
    /// Smoothed gap (ns times 2^[`FRACTION`]). Zero before the second batch.
    gap: u64,
    last_ns: Option<u64>,
}

impl Arrivals {
    /// Notes a batch. Returns the time since the batch before (ns).
    ///
    /// A gap longer than `gap_ns_max` is an interruption of the load, and counts as `gap_ns_max`.
    pub(super) fn batch(&mut self, law: &Law, now_ns: u64, gap_ns_max: u64) -> u64 {
        let Some(last_ns) = self.last_ns.replace(now_ns) else { return 0 };
        let gap_ns = now_ns.saturating_sub(last_ns);
        let sample = gap_ns.min(gap_ns_max).min(GAP_NS_MAX) << FRACTION;
        self.gap = if self.gap == 0 {
            sample
        } else {
            self.gap - (self.gap >> law.step) + (sample >> law.step)
        };
        gap_ns
    }

    /// Returns the usual gap (ns).
    pub(super) fn gap_ns(&self) -> u64 {
        self.gap >> FRACTION
    }

    /// Returns the time of the last batch (ns).
    pub(super) fn last_ns(&self) -> u64 {
        self.last_ns.unwrap_or(0)
    }

    /// Returns whether to expect `batches` more batches within `within_ns`. Expects none before the
    /// usual gap is known.
    pub(super) fn promise(&self, batches: u64, within_ns: u64) -> bool {
        self.gap != 0 && self.gap.saturating_mul(batches) <= within_ns.saturating_mul(1 << FRACTION)
    }
}

/// Detects that nearly all batches (at least eight of nine) that come with nothing pending are
/// large enough for a call by themselves.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Full {
    /// The number of full batches minus eight times the number of other batches, at least 0.
    more: u32,
    are: bool,
}

impl Full {
    /// Notes a batch that has come with nothing pending. Returns whether the answer has changed.
    pub(super) fn batch(&mut self, law: &Law, full: bool) -> bool {
        let most = law.in_a_row * law.in_a_row;
        self.more = match full {
            true => (self.more + 1).min(most),
            false => self.more.saturating_sub(law.in_a_row),
        };
        let are = self.more == most || (self.are && self.more > 0);
        are != std::mem::replace(&mut self.are, are)
    }

    /// Returns whether nearly all batches are full.
    pub(super) fn are(&self) -> bool {
        self.are
    }
}

/// The ladder's input after a stretch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stretch {
    pub(super) passed: Passed,
    /// Most recent holds ended early because frames stopped coming.
    pub(super) quiet: bool,
    /// The load's pauses grew much longer during the stretch.
    pub(super) odd: bool,
}

/// Reason why the level is not higher.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Why {
    /// A higher level has not been tried yet.
    #[default]
    Untried,
    /// Frames came slower.
    Slower,
    /// Holds gathered nothing.
    Lonely,
}

/// One queue's search for its level.
///
/// A level is used once a trial has found it harmless. The ladder finds the highest such level by
/// bisection, from the top: under a load that nothing slows down one trial suffices.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ladder {
    law: &'static Law,
    /// The highest level.
    top: usize,
    /// The highest level found harmless.
    level: usize,
    /// The lowest level above `level` that was found harmful, or one above the top.
    ceiling: usize,
    /// Every level in between that would pay has been tried; `climb` counts down to a retry at the
    /// ceiling.
    searched: bool,
    /// The ceiling has been raised to see whether the level is still harmful.
    retrying: bool,
    trial: Option<Trial>,
    why: Why,
    /// Back-off before the ceiling is raised.
    climb: HoldOff,
    /// Back-off before the level is doubted once more.
    doubt: HoldOff,
    /// Frames a second at the level, smoothed.
    usual: f64,
}

impl Ladder {
    /// Returns a ladder that knows nothing. Level 0 is no hold; the others begin at the smallest
    /// step of the limit and double up to all of it.
    pub(super) fn new(law: &'static Law) -> Self {
        let levels = law.levels();
        Self {
            law,
            top: levels,
            level: 0,
            ceiling: levels + 1,
            searched: false,
            retrying: false,
            trial: None,
            why: Why::default(),
            climb: HoldOff::default(),
            doubt: HoldOff::default(),
            usual: 0.0,
        }
    }

    /// Returns the hold of the present stretch (ns).
    pub(super) fn hold_ns(&self, hold_ns_max: u64) -> u64 {
        self.share(self.trial.map_or(self.level, |trial| trial.level()), hold_ns_max)
    }

    /// Returns the hold of the level that was found harmless (ns).
    pub(super) fn settled_ns(&self, hold_ns_max: u64) -> u64 {
        self.share(self.level, hold_ns_max)
    }

    /// Returns the longer hold of a trial, or the level's (ns).
    pub(super) fn longest_ns(&self, hold_ns_max: u64) -> u64 {
        self.share(self.trial.map_or(self.level, |trial| trial.upper), hold_ns_max)
    }

    pub(super) fn why(&self) -> Why {
        self.why
    }

    pub(super) fn at_top(&self) -> bool {
        self.level == self.top
    }

    /// Notes that holds gather nothing, so that the sender waits for the answer.
    pub(super) fn lonely(&mut self) {
        (self.level, self.ceiling) = (0, 1);
        self.why = Why::Lonely;
        self.compared();
    }

    /// Takes the result of a stretch. `pays` says whether a hold (ns) can be expected to gather a
    /// few batches.
    pub(super) fn stretch(
        &mut self,
        stretch: Stretch,
        hold_ns_max: u64,
        pays: impl Fn(u64) -> bool,
    ) {
        let Some(trial) = &mut self.trial else {
            return self.settled(stretch, hold_ns_max, pays);
        };
        let finding = trial.stretch(self.law, stretch.passed, stretch.odd);
        let upper = trial.upper;
        match finding {
            Finding::Unclear => {}
            Finding::Harmless => self.harmless(upper),
            Finding::Harmful => self.harmful(upper),
        }
    }

    fn compared(&mut self) {
        self.trial = None;
        (self.searched, self.retrying) = (false, false);
        self.usual = 0.0;
    }

    fn harmless(&mut self, upper: usize) {
        if upper > self.level {
            self.level = upper;
            self.doubt.left = self.doubt.left.max(2 * self.law.in_a_row);
            if self.retrying {
                self.ceiling = self.top + 1;
                self.climb.ease();
            }
            if self.ceiling > self.top {
                self.why = Why::Untried;
            }
        }
        self.compared();
    }

    fn harmful(&mut self, upper: usize) {
        self.why = Why::Slower;
        if upper <= self.level {
            // The load differs from the one for which the level was harmless, and the doubt was
            // right.
            self.level = 0;
            self.doubt = HoldOff::default();
        }
        self.ceiling = upper;
        self.compared();
    }

    fn settled(&mut self, stretch: Stretch, hold_ns_max: u64, pays: impl Fn(u64) -> bool) {
        self.climb.tick();
        self.doubt.tick();
        let rate = stretch.passed.frame_rate();
        let frames = stretch.passed.frames as f64;
        let expected = self.usual * (stretch.passed.ns as f64 / 1e9);
        let fell = frames < self.law.fell() * expected
            && frames < expected - f64::from(self.law.errors) * expected.sqrt();
        // A rate that differs by a factor of two means another load, so earlier failures may be
        // retried soon.
        if self.usual > 0.0 && !(self.usual / 2.0..=self.usual * 2.0).contains(&rate) {
            self.climb.left = self.climb.left.min(self.law.in_a_row);
        }
        let moved = (rate - self.usual) * self.law.weight();
        self.usual = if self.usual > 0.0 { self.usual + moved } else { rate };
        if self.level > 0 && (stretch.quiet || fell) && self.doubt.left == 0 {
            self.doubt.failed(self.law);
            self.trial = Some(Trial::new(self.level, 0));
        } else if let Some(above) = self.next(hold_ns_max, pays) {
            self.trial = Some(Trial::new(above, 0));
        }
    }

    /// Returns the level to try next, if a try is due.
    fn next(&mut self, hold_ns_max: u64, pays: impl Fn(u64) -> bool) -> Option<usize> {
        if self.climb.left > 0 || self.level == self.top {
            return None;
        }
        let pays = |level: &usize| pays(self.share(*level, hold_ns_max));
        let middle = if self.ceiling > self.top {
            self.top
        } else {
            (self.level + self.ceiling).div_ceil(2)
        };
        if let Some(next) = (middle..self.ceiling).find(pays) {
            return Some(next);
        }
        // No level below the ceiling that would pay is left.
        let next = (self.ceiling..=self.top).find(pays)?;
        if !self.searched {
            self.searched = true;
            self.climb.failed(self.law);
            return None;
        }
        self.retrying = true;
        self.ceiling = next + 1;
        Some(next)
    }

    /// Returns a level's part of the hold limit (ns): zero, then the smallest step, then twice as
    /// much with each level up to the whole limit.
    fn share(&self, level: usize, hold_ns_max: u64) -> u64 {
        if level == 0 { 0 } else { hold_ns_max >> self.top.saturating_sub(level) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::law::LAW;

    const LIMIT_NS: u64 = 1_600;

    /// Plays `count` stretches in which `frames` gives the number of frames under a hold (ns).
    fn stretches(ladder: &mut Ladder, count: u32, frames: impl Fn(u64) -> u64) {
        for _ in 0..count {
            let passed =
                Passed { frames: frames(ladder.hold_ns(LIMIT_NS)), bytes: 0, ns: 1_000_000 };
            ladder.stretch(Stretch { passed, quiet: false, odd: false }, LIMIT_NS, |_| true);
        }
    }

    #[test]
    fn a_load_that_nothing_slows_down_is_at_the_top_after_one_trial() {
        let mut ladder = Ladder::new(&LAW);
        stretches(&mut ladder, 1 + 8, |_| 1_000);
        assert_eq!(ladder.settled_ns(LIMIT_NS), LIMIT_NS);
        assert!(ladder.at_top());
    }

    #[test]
    fn the_highest_harmless_level_is_found_whichever_it_is() {
        for (highest, &sixteenths) in [0, 1, 2, 4, 8, 16].iter().enumerate() {
            let mut ladder = Ladder::new(&LAW);
            let harmless_ns = sixteenths * LIMIT_NS / 16;
            let slow = |hold_ns| if hold_ns > harmless_ns { 800 } else { 1_000 };
            stretches(&mut ladder, 100, slow);
            assert_eq!(ladder.settled_ns(LIMIT_NS), harmless_ns, "level {highest}");
        }
    }

    #[test]
    fn what_failed_is_tried_again_ever_more_rarely() {
        let mut ladder = Ladder::new(&LAW);
        let held = std::cell::Cell::new(0);
        let slow = |hold_ns| {
            held.set(held.get() + u32::from(hold_ns > 0));
            if hold_ns > 0 { 400 } else { 1_000 }
        };
        stretches(&mut ladder, 1_000, slow);
        let early = held.replace(0);
        stretches(&mut ladder, 10_000, slow);
        assert!(early < 50, "{early} of the first 1000");
        assert!(held.get() < 50, "{} of the next 10000", held.get());
    }

    #[test]
    fn a_load_that_does_not_mind_any_more_is_held_again() {
        let mut ladder = Ladder::new(&LAW);
        stretches(&mut ladder, 1_000, |hold_ns| if hold_ns > 0 { 400 } else { 1_000 });
        assert_eq!(ladder.settled_ns(LIMIT_NS), 0);
        stretches(&mut ladder, 2 * LAW.memory, |_| 1_000);
        assert!(ladder.at_top());
    }

    #[test]
    fn a_level_that_begins_to_harm_is_left() {
        let mut ladder = Ladder::new(&LAW);
        stretches(&mut ladder, 100, |_| 1_000);
        assert!(ladder.at_top());
        stretches(&mut ladder, 100, |hold_ns| if hold_ns > LIMIT_NS / 8 { 500 } else { 1_000 });
        assert_eq!(ladder.settled_ns(LIMIT_NS), LIMIT_NS / 8);
    }

    #[test]
    fn a_hold_that_would_gather_nothing_is_not_tried() {
        let mut ladder = Ladder::new(&LAW);
        let passed = Passed { frames: 100, bytes: 0, ns: 1_000_000 };
        for _ in 0..1_000 {
            let stretch = Stretch { passed, quiet: false, odd: false };
            ladder.stretch(stretch, LIMIT_NS, |hold_ns| hold_ns > LIMIT_NS);
            assert_eq!(ladder.hold_ns(LIMIT_NS), 0);
        }
    }

    /// Returns how often the answer changes over `batches` batches of which one in `every` is not
    /// full.
    fn changes(full: &mut Full, batches: u32, every: u32) -> u32 {
        (1..=batches).map(|batch| u32::from(full.batch(&LAW, !batch.is_multiple_of(every)))).sum()
    }

    #[test]
    fn batches_are_full_where_nearly_all_are() {
        let mut full = Full::default();
        assert_eq!((changes(&mut full, 1_000, 5), full.are()), (0, false), "four of five");
        assert_eq!((changes(&mut full, 1_000, 50), full.are()), (1, true), "49 of 50");
        assert_eq!((changes(&mut full, 1_000, 12), full.are()), (0, true), "11 of 12");
        assert_eq!((changes(&mut full, 1_000, 1), full.are()), (1, false), "none");
    }
}
