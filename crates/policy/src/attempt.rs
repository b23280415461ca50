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

use crate::hold_off::HoldOff;
use crate::law::{LAW, Law};
use crate::trial::{Finding, Passed, Trial};

#[cfg(test)]
mod tests;

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
