//! The simulator as a tester: random hosts with faults, and policies alone under random load, until an invariant
//! breaks.
//!
//! ```text
//! seed ─▶ case.rs: a host, its loads and its faults ─▶ host::run_with: every check after every event
//!      └▶ drills/: each policy that the host lacks    ─▶ its invariants, after every step
//!                                        a check fails ─▶ shrink.rs: less of the same that still fails
//! ```
//!
//! A seed determines the whole run: [`play`] does the same on every machine.

mod case;
mod drills;
mod shrink;

pub use case::Case;

use std::fmt;

use self::drills::Drilled;
use crate::host::Error;

/// Runs that shrinking one failure may take.
const SHRINK_RUNS_MAX: u32 = 400;

/// What a seed came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Played {
    /// Events of its host.
    pub events: u64,
    /// Steps of the policies on their own.
    pub steps: u64,
}

/// A seed that breaks an invariant. Printed, it says which, in the least that still breaks one.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// What does not hold.
    pub broken: Broken,
    /// Runs that shrinking took.
    pub runs: u32,
}

/// What does not hold, and of what.
#[derive(Clone, Debug)]
pub enum Broken {
    /// Of a host.
    Host {
        /// What it said of the host as the seed has it.
        error: Error,
        /// A smaller one.
        case: Box<Case>,
        /// What it says of that.
        shrunk: Error,
    },
    /// Of a policy on its own.
    Policy(Drilled),
}

/// Plays what a seed stands for.
///
/// # Errors
/// The invariant that does not hold, shrunk.
pub fn play(seed: u64) -> Result<Played, Box<Failure>> {
    let case = Case::draw(seed);
    let events = case.run().map_err(|error| {
        let fails = |case: &Case| case.run().err();
        let (case, shrunk, runs) =
            shrink::shrink((case, error.clone()), Case::smaller, fails, SHRINK_RUNS_MAX);
        let broken = Broken::Host { error, case: Box::new(case), shrunk };
        Box::new(Failure { seed, broken, runs })
    })?;
    let steps = drills::play(seed, SHRINK_RUNS_MAX).map_err(|(drilled, runs)| Failure {
        seed,
        broken: Broken::Policy(drilled),
        runs,
    })?;
    Ok(Played { events, steps })
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, broken, runs } = self;
        match broken {
            Broken::Host { error, case, shrunk } => {
                writeln!(f, "seed {seed}: {error}")?;
                write!(f, "shrunk in {runs} runs to\n{case}  {shrunk}")
            }
            Broken::Policy(Drilled { drill, error, setup, steps, shrunk }) => {
                writeln!(f, "seed {seed}, {drill}: {error}")?;
                writeln!(f, "shrunk in {runs} runs to\n  {setup}")?;
                steps.iter().try_for_each(|step| writeln!(f, "  {step}"))?;
                write!(f, "  {shrunk}")
            }
        }
    }
}

#[cfg(test)]
mod tests;
