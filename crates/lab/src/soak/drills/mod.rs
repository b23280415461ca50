//! Policies alone under random load, where the host model lacks them.
//!
//! A drill is a setup and a list of steps; shrinking leaves steps out. The policy is a parameter, so tests can pass
//! a faulty one.

pub(super) mod balance;
pub(super) mod steer;
pub(super) mod turns;

use std::fmt::Debug;

use super::case::{shorter, shrink};
use crate::random::Random;

/// Random stream of the first drill; the next ones lie below it.
pub(super) const STREAM: u64 = u64::MAX - 1;
const STEPS_MAX: u64 = 400;

/// A policy's test.
pub(super) trait Drill: Clone + Debug {
    /// A step of the drill.
    type Step: Clone + Debug;
    /// Name of the policy.
    const NAME: &'static str;

    /// Draws a setup.
    fn draw(random: &mut Random) -> Self;

    /// Draws the next step.
    fn step(&self, random: &mut Random) -> Self::Step;

    /// Plays the steps.
    fn play(&self, steps: &[Self::Step]) -> Result<(), String>;
}

/// A drill that failed.
#[derive(Clone, Debug)]
pub struct Drilled {
    /// Name of the drill.
    pub drill: &'static str,
    /// The broken invariant.
    pub error: String,
    /// The setup.
    pub setup: String,
    /// The fewest steps that break an invariant.
    pub steps: Vec<String>,
    /// The invariant that these steps break.
    pub shrunk: String,
}

/// Plays a drill. Returns the number of steps.
///
/// # Errors
/// The drill that failed, and the number of runs to shrink it.
pub(super) fn drill<D: Drill>(mut random: Random, runs_max: u32) -> Result<u64, (Drilled, u32)> {
    let setup = D::draw(&mut random);
    let count = 1 + random.below(STEPS_MAX);
    let steps: Vec<_> = (0..count).map(|_| setup.step(&mut random)).collect();
    let Err(error) = setup.play(&steps) else { return Ok(count) };
    let smaller = |steps: &Vec<D::Step>| shorter(steps).collect();
    let fails = |steps: &Vec<D::Step>| setup.play(steps).err();
    let (steps, shrunk, runs) = shrink((steps, error.clone()), smaller, fails, runs_max);
    let steps = steps.iter().map(|step| format!("{step:?}")).collect();
    Err((Drilled { drill: D::NAME, error, setup: format!("{setup:?}"), steps, shrunk }, runs))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether a drill with a faulty policy fails for one of `seeds` seeds.
    pub(super) fn fails<D: Drill>(
        seeds: u64,
        play: impl Fn(&D, &[D::Step]) -> Result<(), String>,
    ) -> Option<String> {
        (0..seeds).find_map(|seed| {
            let mut random = Random::stream(seed, STREAM);
            let setup = D::draw(&mut random);
            let count = 1 + random.below(STEPS_MAX);
            let steps: Vec<_> = (0..count).map(|_| setup.step(&mut random)).collect();
            play(&setup, &steps).err()
        })
    }
}
