//! Decides by trial whether to hold frames in ways that no single queue can judge.
//!
//! A queue under `auto` finds out by itself how long its calls may be held
//! ([`crate::moderation::Auto`]). Three questions are beyond it:
//!
//! - A hold at an uplink delays everybody's frames, so no queue may ask for it alone.
//! - Among streams that share a link, a held stream loses its share to the others. Each stream
//!   alone finds that holding slows it down. If all are held, none loses anything.
//! - A guest that polls on a timer polls all queues of its interface, including transmit queues.
//!
//! So the manager, which reads the counters regularly, tries such a hold for all interfaces or for one: it compares
//! intervals with the hold and intervals without it.
//!
//! No request may have to wait because of a trial. There is no trial while an interface has so little traffic that only
//! a few frames come within a budget. A hold that slows all interfaces together, or one of them much, is not used.

use std::collections::BTreeMap;

use crate::law::{LAW, Law};
use crate::trial::{Finding, Passed, Trial};

/// A number of turns to skip, which grows with every failure: 1, 3, 7 and so on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HoldOff {
    /// Turns that are left to skip.
    pub(crate) left: u32,
    last: u32,
}

impl HoldOff {
    /// A back-off without failures.
    pub(crate) const NONE: Self = Self { left: 0, last: 0 };

    pub(crate) fn failed(&mut self, law: &Law) {
        self.last = (2 * self.last + 1).min(law.memory);
        self.left = self.last;
    }

    /// Counts one turn.
    pub(crate) fn tick(&mut self) {
        self.left = self.left.saturating_sub(1);
    }

    /// Notes a success: the last failure counts for half.
    pub(crate) fn ease(&mut self) {
        self.last /= 2;
        self.left = 0;
    }

    /// Forgets all failures.
    pub(crate) fn forget(&mut self) {
        *self = Self::NONE;
    }
}

/// Level of a trial with the hold.
const WITH: usize = 1;
const WITHOUT: usize = 0;

/// Traffic of an interface between two looks, in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// The interface's number.
    pub vif: u32,
    /// Frames.
    pub frames: u64,
    /// Bytes of these frames.
    pub bytes: u64,
}

/// The input of one look.
#[derive(Clone, Copy, Debug)]
pub struct Look<'t> {
    /// Time since the look before (ns).
    pub elapsed_ns: u64,
    /// Smallest latency budget of the frames that may be held (ns).
    pub budget_ns: u64,
    /// Every interface that has traffic, or had some lately, ordered by number.
    pub traffic: &'t [Traffic],
}

/// Reason for holding or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The load is too new.
    Settles,
    /// This interface has so little traffic that its frames would wait alone.
    Light(u32),
    /// A trial is under way.
    Tried,
    /// The hold slows no interface down.
    Harmless,
    /// The hold slowed the load down.
    Slower,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// No hold for `left` more looks.
    Without { left: u32, why: Why },
    /// A trial of all interfaces together.
    Tried(Trial),
    /// A hold that has lasted `looks` looks so far, with `usual` frames a second (0 before the first).
    With { looks: u32, usual: f64 },
}

/// The decision for several interfaces, or one.
#[derive(Clone, Debug)]
pub struct Attempt {
    law: &'static Law,
    phase: Phase,
    /// A trial for each interface, over the same looks as the trial for all.
    each: BTreeMap<u32, Trial>,
    /// Back-off after failures, in trials that could have been made.
    failed: HoldOff,
}

impl Default for Attempt {
    fn default() -> Self {
        Self::under(&LAW)
    }
}

impl Attempt {
    /// Returns a decision that knows no load yet.
    pub fn under(law: &'static Law) -> Self {
        // Each queue first decides for itself.
        let phase = Phase::Without { left: law.in_a_row, why: Why::Settles };
        Self { law, phase, each: BTreeMap::new(), failed: HoldOff::NONE }
    }

    /// Processes a look. Returns true if frames are held until the next one.
    pub fn look(&mut self, look: &Look<'_>) -> bool {
        // A shorter interval shows nothing.
        if look.elapsed_ns < self.law.look_ns >> self.law.part {
            return self.is_on();
        }
        let known = look.traffic.iter().map(|it| &it.vif).eq(self.each.keys());
        let light = look.traffic.iter().find(|it| {
            let within = u128::from(it.frames) * u128::from(look.budget_ns);
            within < u128::from(self.law.frames_worth()) * u128::from(look.elapsed_ns)
        });
        if look.traffic.is_empty() {
            // A new interface has few frames at first.
            self.stop(Why::Settles);
        } else if let Some(light) = light {
            self.too_few(light.vif);
        } else if !known {
            // Interfaces were added or removed: earlier results do not apply to the present set.
            match self.phase {
                Phase::Without { .. } => {}
                Phase::Tried(_) | Phase::With { .. } => self.phase = Phase::Tried(trial()),
            }
        } else {
            self.known(look);
        }
        if !known {
            self.try_each(look);
        }
        self.is_on()
    }

    /// Forbids the hold, whatever the load is.
    pub fn refuse(&mut self) {
        self.stop(Why::Settles);
    }

    /// Ends the hold, since this interface has too few frames for it.
    pub fn too_few(&mut self, vif: u32) {
        if matches!(self.phase, Phase::Tried(_)) && self.is_on() {
            // The interface had enough frames without the hold.
            self.fail();
        } else {
            self.stop(Why::Light(vif));
        }
    }

    /// Returns whether frames are held until the next look.
    pub fn is_on(&self) -> bool {
        match &self.phase {
            Phase::Without { .. } => false,
            Phase::Tried(trial) => trial.level() == WITH,
            Phase::With { .. } => true,
        }
    }

    /// Returns the reason for the present decision.
    pub fn why(&self) -> Why {
        match self.phase {
            Phase::Without { why, .. } => why,
            Phase::Tried(_) => Why::Tried,
            Phase::With { .. } => Why::Harmless,
        }
    }

    /// Ends the hold and keeps the record of failures.
    fn stop(&mut self, why: Why) {
        let left = match self.phase {
            Phase::Without { left, .. } => left.max(self.law.in_a_row),
            Phase::Tried(_) | Phase::With { .. } => self.law.in_a_row,
        };
        self.phase = Phase::Without { left, why };
    }

    fn begin(&mut self, look: &Look<'_>) {
        self.phase = Phase::Tried(trial());
        self.try_each(look);
    }

    fn try_each(&mut self, look: &Look<'_>) {
        self.each = look.traffic.iter().map(|it| (it.vif, trial())).collect();
    }

    /// Processes a look with the same interfaces as the previous one.
    fn known(&mut self, look: &Look<'_>) {
        let passed =
            |it: &Traffic| Passed { frames: it.frames, bytes: it.bytes, ns: look.elapsed_ns };
        let all = look.traffic.iter().map(passed).fold(
            Passed { ns: look.elapsed_ns, ..Passed::default() },
            |sum, it| Passed {
                frames: sum.frames.saturating_add(it.frames),
                bytes: sum.bytes.saturating_add(it.bytes),
                ns: sum.ns,
            },
        );
        match &mut self.phase {
            Phase::Without { left, .. } => {
                *left = left.saturating_sub(1);
                if *left == 0 {
                    self.begin(look);
                }
            }
            Phase::Tried(trial) => {
                let finding = trial.stretch(self.law, all, false);
                let mut slower = false;
                for (trial, it) in self.each.values_mut().zip(look.traffic) {
                    let _ = trial.stretch(self.law, passed(it), false);
                    slower |= trial.always_slower(self.law);
                }
                match finding {
                    Finding::Harmful => self.fail(),
                    Finding::Harmless if slower => self.fail(),
                    Finding::Harmless => {
                        self.failed.ease();
                        self.phase = Phase::With { looks: 0, usual: 0.0 };
                    }
                    Finding::Unclear => {}
                }
            }
            Phase::With { looks, usual } => {
                *looks += 1;
                let rate = all.frame_rate();
                if *looks >= self.law.memory || rate < *usual * self.law.fell() {
                    self.begin(look);
                } else {
                    let moved = (rate - *usual) * self.law.weight();
                    *usual = if *usual > 0.0 { *usual + moved } else { rate };
                }
            }
        }
    }

    fn fail(&mut self) {
        self.failed.failed(self.law);
        // A first failure may come from a load that has just begun: its back-off is twice the
        // longest trial.
        let most = self.law.memory.saturating_mul(2 * self.law.pairs_min);
        let left = self.failed.left.saturating_mul(self.law.periods()).min(most);
        self.phase = Phase::Without { left, why: Why::Slower };
    }
}

fn trial() -> Trial {
    Trial::new(WITH, WITHOUT)
}

#[cfg(test)]
mod tests {
    //! Simulated switches with ten looks a second.

    use super::*;

    const LOOK_NS: u64 = 100_000_000;
    const BUDGET_NS: u64 = 1_000_000;

    /// Plays `count` looks over interfaces whose traffic `frames` gives (whether held, number of the
    /// look, interface). Returns the number of looks that were held.
    fn looks(
        attempt: &mut Attempt,
        count: u32,
        vifs: u32,
        frames: impl Fn(bool, u32, u32) -> u64,
    ) -> u32 {
        let mut held = 0;
        for at in 0..count {
            let holds = attempt.is_on();
            held += u32::from(holds);
            let traffic = |vif| {
                let frames = frames(holds, at, vif);
                Traffic { vif, frames, bytes: 1_000 * frames }
            };
            let traffic: Vec<_> = (0..vifs).map(traffic).collect();
            attempt.look(&Look { elapsed_ns: LOOK_NS, budget_ns: BUDGET_NS, traffic: &traffic });
        }
        held
    }

    #[test]
    fn a_load_that_nothing_slows_down_is_held_after_one_trial() {
        let mut attempt = Attempt::default();
        looks(&mut attempt, 1 + LAW.in_a_row + 8, 9, |_, _, _| 1_000);
        assert!(attempt.is_on());
        assert_eq!(attempt.why(), Why::Harmless);
        assert!(looks(&mut attempt, 10_000, 9, |_, _, _| 1_000) > 9_800);
    }

    #[test]
    fn a_load_that_is_slower_for_it_is_held_ever_more_rarely() {
        let mut attempt = Attempt::default();
        let slow = |held, _, _| if held { 800 } else { 1_000 };
        assert!(looks(&mut attempt, 100, 3, slow) <= 8);
        assert_eq!(attempt.why(), Why::Slower);
        assert!(looks(&mut attempt, 10_000, 3, slow) < 50);
    }

    #[test]
    fn one_that_hardly_gets_anything_any_more_is_enough() {
        let mut attempt = Attempt::default();
        // Interface 2's loss is the others' gain.
        let robbed = |held, _, vif| match (held, vif) {
            (true, 0) => 500,
            (true, _) => 1_100,
            (false, _) => 1_000,
        };
        looks(&mut attempt, 40, 6, robbed);
        assert_eq!((attempt.is_on(), attempt.why()), (false, Why::Slower));
        let mut attempt = Attempt::default();
        looks(&mut attempt, 40, 6, |_, _, vif| if vif == 0 { 500 } else { 1_100 });
        assert!(attempt.is_on(), "it gets little anyway");
    }

    #[test]
    fn frames_of_who_has_few_wait_for_nobody() {
        let mut attempt = Attempt::default();
        // Four frames in a millisecond are 400 in a look.
        let ping = |_, at: u32, vif| if vif == 2 && at >= 30 { 399 } else { 1_000 };
        assert!(looks(&mut attempt, 30, 3, ping) > 10);
        looks(&mut attempt, 1, 3, |_, _, vif| if vif == 2 { 399 } else { 1_000 });
        assert_eq!((attempt.is_on(), attempt.why()), (false, Why::Light(2)));
        assert_eq!(looks(&mut attempt, 1_000, 3, |_, _, vif| if vif == 2 { 2 } else { 1_000 }), 0);
        assert!(looks(&mut attempt, 30, 3, |_, _, _| 1_000) > 10, "it has gone");
    }

    #[test]
    fn clients_of_whom_little_comes_when_they_are_held_are_left_alone_like_others() {
        let mut attempt = Attempt::default();
        let held = looks(&mut attempt, 1_000, 1, |held, _, _| if held { 200 } else { 480 });
        assert!(held <= 8, "{held} of 1000 looks");
    }

    #[test]
    fn another_interface_or_a_rate_that_falls_is_reason_to_compare_again() {
        let mut attempt = Attempt::default();
        looks(&mut attempt, 30, 3, |_, _, _| 1_000);
        assert_eq!(attempt.why(), Why::Harmless);
        looks(&mut attempt, 1, 4, |_, _, _| 1_000);
        assert_eq!(attempt.why(), Why::Tried);
        looks(&mut attempt, 30, 4, |_, _, _| 1_000);
        assert_eq!(attempt.why(), Why::Harmless);
        // Bulk transfers turn into clients that wait for answers.
        let waits = |held, _, _| if held { 500 } else { 1_500 };
        assert!(looks(&mut attempt, 60, 4, waits) < 8);
        assert_eq!(attempt.why(), Why::Slower);
    }

    #[test]
    fn nothing_is_held_where_it_is_refused_or_nobody_has_traffic() {
        let mut attempt = Attempt::default();
        looks(&mut attempt, 30, 2, |_, _, _| 1_000);
        attempt.refuse();
        assert!(!attempt.is_on());
        looks(&mut attempt, 30, 2, |_, _, _| 1_000);
        assert!(attempt.is_on());
        looks(&mut attempt, 1, 0, |_, _, _| 0);
        assert_eq!(looks(&mut attempt, 100, 0, |_, _, _| 0), 0);
    }
}
