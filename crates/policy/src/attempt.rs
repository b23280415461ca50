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

use crate::trial::{Finding, Passed, Trial};

#[cfg(test)]
mod tests;

/// Frames in both directions within a budget, of which half are answers: with fewer, a frame waits for others that
/// do not come.
const FRAMES_MIN: u64 = 4;
/// A look sooner after the one before (ns) says nothing.
const LOOK_NS_MIN: u64 = 20_000_000;
/// Looks at a load before anything is tried, so that each queue has found out what it can.
const SETTLES: u32 = 5;
/// The first failure is not tried again for so many looks (5 s at 10 Hz), each further one for twice as many,
const FAILED_MIN: u32 = 50;
/// and none for more than so many.
const FAILED_MAX: u32 = 6_400;
/// Looks after which what was found harmless is compared again.
const CHECK_EVERY: u32 = 512;
/// Frames that come at less than this share of their usual rate are a reason to compare at once.
const RATE_FELL: f64 = 0.75;
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
    phase: Phase,
    /// Trials of each interface, with the looks of the one for all.
    each: BTreeMap<u32, Trial>,
    /// Looks for which the last failure counted.
    failed: u32,
}

impl Default for Attempt {
    fn default() -> Self {
        let phase = Phase::Without { left: SETTLES, why: Why::Settles };
        Self { phase, each: BTreeMap::new(), failed: 0 }
    }
}

impl Attempt {
    /// Takes a look. Gives whether it is done until the next one.
    pub fn look(&mut self, look: &Look<'_>) -> bool {
        if look.elapsed_ns < LOOK_NS_MIN {
            return self.is_on();
        }
        let known = look.traffic.iter().map(|it| &it.vif).eq(self.each.keys());
        let light = look.traffic.iter().find(|it| {
            let within = u128::from(it.frames) * u128::from(look.budget_ns);
            within < u128::from(FRAMES_MIN) * u128::from(look.elapsed_ns)
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
            Phase::Without { left, .. } => left.max(SETTLES),
            Phase::Tried(_) | Phase::With { .. } => SETTLES,
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
                let finding = trial.stretch(all, false);
                let mut slower = false;
                for (trial, it) in self.each.values_mut().zip(look.traffic) {
                    let _ = trial.stretch(passed(it), false);
                    slower |= trial.always_slower();
                }
                match finding {
                    Finding::Harmful => self.fail(),
                    Finding::Harmless if slower => self.fail(),
                    Finding::Harmless => {
                        self.failed /= 2;
                        self.phase = Phase::With { looks: 0, usual: 0.0 };
                    }
                    Finding::Unclear => {}
                }
            }
            Phase::With { looks, usual } => {
                *looks += 1;
                let rate = all.frame_rate();
                if *looks >= CHECK_EVERY || rate < *usual * RATE_FELL {
                    self.begin(look);
                } else {
                    *usual = if *usual > 0.0 { *usual + (rate - *usual) / 8.0 } else { rate };
                }
            }
        }
    }

    fn fail(&mut self) {
        self.failed = (2 * self.failed).clamp(FAILED_MIN, FAILED_MAX);
        self.phase = Phase::Without { left: self.failed, why: Why::Slower };
    }
}

fn trial() -> Trial {
    Trial::new(WITH, WITHOUT)
}
