//! The simulator as a tester: random hosts with faults, and policies alone under random load, until an invariant
//! breaks.
//!
//! ```text
//! seed ─▶ case.rs: a host, its loads and its faults ─▶ host::run_with: every check after every event
//!      └▶ drills/: each policy that the host lacks    ─▶ its invariants, after every step
//!                                        a check fails ─▶ case.rs: less of the same that still fails
//! ```
//!
//! A seed determines the whole run: [`play`] does the same on every machine.

mod case;
mod drills;

pub use case::Case;

use std::fmt;

use self::drills::balance::Balance;
use self::drills::steer::Steer;
use self::drills::turns::Turns;
use self::drills::{Drilled, STREAM, drill};
use crate::host::Error;
use crate::random::Random;

/// Most runs to shrink one failure.
const SHRINK_RUNS_MAX: u32 = 400;

/// Result of a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Played {
    /// Events of the host.
    pub events: u64,
    /// Steps of the drills.
    pub steps: u64,
}

/// A seed that breaks an invariant. Its printed form shows the invariant and the smallest case that
/// breaks one.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The broken invariant.
    pub broken: Broken,
    /// Number of runs to shrink it.
    pub runs: u32,
}

/// A broken invariant, and its subject.
#[derive(Clone, Debug)]
pub enum Broken {
    /// An invariant of a host.
    Host {
        /// Error of the seed's host.
        error: Error,
        /// A smaller host.
        case: Box<Case>,
        /// Error of the smaller host.
        shrunk: Error,
    },
    /// An invariant of a policy by itself.
    Policy(Drilled),
}

/// Plays a seed.
///
/// # Errors
/// The broken invariant, shrunk.
pub fn play(seed: u64) -> Result<Played, Box<Failure>> {
    let case = Case::draw(seed);
    let events = case.run().map_err(|error| {
        let fails = |case: &Case| case.run().err();
        let (case, shrunk, runs) =
            case::shrink((case, error.clone()), Case::smaller, fails, SHRINK_RUNS_MAX);
        let broken = Broken::Host { error, case: Box::new(case), shrunk };
        Box::new(Failure { seed, broken, runs })
    })?;
    let steps = play_drills(seed, SHRINK_RUNS_MAX).map_err(|(drilled, runs)| Failure {
        seed,
        broken: Broken::Policy(drilled),
        runs,
    })?;
    Ok(Played { events, steps })
}

/// Plays all drills of a seed. Returns the number of steps.
///
/// # Errors
/// The drill that failed, and the number of runs to shrink it.
fn play_drills(seed: u64, runs_max: u32) -> Result<u64, (Drilled, u32)> {
    let random = |number| Random::stream(seed, STREAM - number);
    Ok(drill::<Turns>(random(0), runs_max)?
        + drill::<Balance>(random(1), runs_max)?
        + drill::<Steer>(random(2), runs_max)?)
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
mod tests {
    //! The tester's behaviour, and the small size of its findings.

    use super::*;
    use crate::faults::Trouble;
    use crate::scenario::Scenario;

    /// A seed in which a queue moves from a worker without a CPU to a worker that had its CPU all the
    /// time.
    const MOVED: u64 = 795_453_434;

    #[test]
    fn seeds_pass_and_play_the_same_again() {
        for seed in (0..60).chain([MOVED]) {
            match play(seed) {
                Ok(played) if seed < 5 => assert_eq!(play(seed).ok(), Some(played)),
                Ok(_) => {}
                Err(failure) => panic!("{failure}"),
            }
        }
    }

    #[test]
    fn every_kind_of_fault_comes_up() {
        let faults = (0..100).flat_map(|seed| Case::draw(seed).faults);
        let kinds = faults.map(|fault| std::mem::discriminant(&fault.trouble));
        assert_eq!(kinds.collect::<std::collections::HashSet<_>>().len(), 7);
    }

    /// Fails as soon as guest 1 stalls on a host with a load to it.
    fn fails(case: &Case) -> Option<Error> {
        let stalls =
            |fault: &crate::faults::Fault| fault.trouble == Trouble::GuestStalls { guest: 1 };
        let broken = case.faults.iter().any(stalls) && !case.scenario.loads.is_empty();
        broken.then_some(Error::TooLong { events: 0 })
    }

    #[test]
    fn a_case_shrinks_to_what_it_takes_and_still_runs() {
        let (seed, case, error) = (0..1_000)
            .map(|seed| (seed, Case::draw(seed)))
            .find_map(|(seed, case)| {
                let large = case.scenario.loads.len() > 3 && case.faults.len() > 3;
                fails(&case).filter(|_| large).map(|error| (seed, case, error))
            })
            .expect("one of a thousand is large and has such a fault");
        let (shrunk, shrunk_error, runs) =
            case::shrink((case, error.clone()), Case::smaller, fails, SHRINK_RUNS_MAX);
        let Scenario { workers, guests, uplinks, rivals, loads, .. } = &shrunk.scenario;
        assert_eq!((shrunk.faults.len(), loads.len(), workers.len()), (1, 1, 1));
        assert!(guests.len() + uplinks.len() <= 3 && rivals.is_empty(), "{shrunk}");
        assert!(shrunk.run().is_ok(), "{shrunk}");
        let broken = Broken::Host { error, case: Box::new(shrunk), shrunk: shrunk_error };
        let printed = Failure { seed, broken, runs }.to_string();
        assert!(printed.contains(&format!("seed {seed}")), "{printed}");
        assert!(printed.contains("guest 1 stalls"), "{printed}");
    }
}
