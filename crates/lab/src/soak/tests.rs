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
    let stalls = |fault: &crate::faults::Fault| fault.trouble == Trouble::GuestStalls { guest: 1 };
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
        shrink::shrink((case, error.clone()), Case::smaller, fails, SHRINK_RUNS_MAX);
    let Scenario { workers, guests, uplinks, rivals, loads, .. } = &shrunk.scenario;
    assert_eq!((shrunk.faults.len(), loads.len(), workers.len()), (1, 1, 1));
    assert!(guests.len() + uplinks.len() <= 3 && rivals.is_empty(), "{shrunk}");
    assert!(shrunk.run().is_ok(), "{shrunk}");
    let broken = Broken::Host { error, case: Box::new(shrunk), shrunk: shrunk_error };
    let printed = Failure { seed, broken, runs }.to_string();
    assert!(printed.contains(&format!("seed {seed}")), "{printed}");
    assert!(printed.contains("guest 1 stalls"), "{printed}");
}
