//! Whether frames may be held in a way that no queue can judge by itself.
//!
//! A queue under `auto` finds out by itself how long its calls may be held ([`crate::moderation::Auto`]). Some things it
//! cannot find out. What waits at an uplink waits for everybody, so that no queue may ask for it alone. Of streams that
//! share a link, one that is held loses to the others what they take meanwhile: alone, each finds that holding slows it
//! down, and where all are held nobody loses anything. And a guest that polls on a timer polls all that its interface has,
//! what it sent as well. So this is tried by whoever looks at the counters regularly, for all interfaces or for one: some
//! looks with it and some without, in turn.
//!
//! Nobody's requests may wait for that. It is not tried while an interface has traffic of which no more than a few frames
//! come within a budget, and what is slower for all together, or much slower for one of them, is not done.

use std::collections::BTreeMap;

use crate::hold_off::HoldOff;
use crate::law::{LAW, Law};
use crate::trial::{Finding, Passed, Trial};

#[cfg(test)]
mod tests;

/// The levels of a trial: with it, or without.
const WITH: usize = 1;
const WITHOUT: usize = 0;

/// What an interface had between two looks, in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// Which interface.
    pub vif: u32,
    /// Frames.
    pub frames: u64,
    /// Bytes of these.
    pub bytes: u64,
}

/// What was seen at a look.
#[derive(Clone, Copy, Debug)]
pub struct Look<'t> {
    /// Since the look before (ns).
    pub elapsed_ns: u64,
    /// The smallest latency budget of those that may be held (ns).
    pub budget_ns: u64,
    /// Every interface that has traffic, or had some lately, ordered by number.
    pub traffic: &'t [Traffic],
}

/// Why it is done or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The load is too new.
    Settles,
    /// This interface has so little traffic that its frames would wait alone.
    Light(u32),
    /// It is being tried.
    Tried,
    /// It slows nobody down.
    Harmless,
    /// It slowed the load down.
    Slower,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// For so many looks yet.
    Without { left: u32, why: Why },
    /// All of them together are compared.
    Tried(Trial),
    /// For so many looks, with so many frames a second (0 before the first).
    With { looks: u32, usual: f64 },
}

/// The decision for some interfaces, or one.
#[derive(Clone, Debug)]
pub struct Attempt {
    law: &'static Law,
    phase: Phase,
    /// Trials of each interface, with the looks of the one for all.
    each: BTreeMap<u32, Trial>,
    /// Counts the trials that could have been made since the last failure.
    failed: HoldOff,
}

impl Default for Attempt {
    fn default() -> Self {
        Self::under(&LAW)
    }
}

impl Attempt {
    /// Nothing is known of any load.
    pub fn under(law: &'static Law) -> Self {
        // Each queue first finds out what it can.
        let phase = Phase::Without { left: law.in_a_row, why: Why::Settles };
        Self { law, phase, each: BTreeMap::new(), failed: HoldOff::NONE }
    }

    /// Takes a look. Gives whether it is done until the next one.
    pub fn look(&mut self, look: &Look<'_>) -> bool {
        // Sooner after the look before, it says nothing.
        if look.elapsed_ns < self.law.look_ns >> self.law.part {
            return self.is_on();
        }
        let known = look.traffic.iter().map(|it| &it.vif).eq(self.each.keys());
        let light = look.traffic.iter().find(|it| {
            let within = u128::from(it.frames) * u128::from(look.budget_ns);
            within < u128::from(self.law.frames_worth()) * u128::from(look.elapsed_ns)
        });
        if look.traffic.is_empty() {
            // Whoever is first has few frames at first.
            self.stop(Why::Settles);
        } else if let Some(light) = light {
            self.too_few(light.vif);
        } else if !known {
            // Others have come or gone, or all: nothing is known of these together.
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

    /// It may not be done, whatever the load is.
    pub fn refuse(&mut self) {
        self.stop(Why::Settles);
    }

    /// It ends, since this interface has too few frames for it.
    pub fn too_few(&mut self, vif: u32) {
        if matches!(self.phase, Phase::Tried(_)) && self.is_on() {
            // It had enough without.
            self.fail();
        } else {
            self.stop(Why::Light(vif));
        }
    }

    /// Whether it is done until the next look.
    pub fn is_on(&self) -> bool {
        match &self.phase {
            Phase::Without { .. } => false,
            Phase::Tried(trial) => trial.level() == WITH,
            Phase::With { .. } => true,
        }
    }

    /// Why.
    pub fn why(&self) -> Why {
        match self.phase {
            Phase::Without { why, .. } => why,
            Phase::Tried(_) => Why::Tried,
            Phase::With { .. } => Why::Harmless,
        }
    }

    /// Ends it; what has failed stays known as such.
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

    /// A look at the interfaces of the look before.
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
        // A first failure is one of a load that may have just begun; it counts for as long as twice a trial of most pairs.
        let most = self.law.memory.saturating_mul(2 * self.law.pairs_min);
        let left = self.failed.left.saturating_mul(self.law.periods()).min(most);
        self.phase = Phase::Without { left, why: Why::Slower };
    }
}

fn trial() -> Trial {
    Trial::new(WITH, WITHOUT)
}
