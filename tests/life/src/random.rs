//! Random choice of the next event, always the same for a seed.

use std::time::Duration;

use rand::{RngExt as _, SeedableRng as _};
use rand_xoshiro::Xoshiro256PlusPlus;

/// A generator.
#[derive(Debug)]
pub struct Random(Xoshiro256PlusPlus);

impl Random {
    /// Returns the generator of this seed.
    pub fn new(seed: u64) -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// Returns a number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0.random_range(..end.max(1))
    }

    /// Returns a time below `end`.
    pub fn pause(&mut self, end: Duration) -> Duration {
        Duration::from_micros(self.below(u64::try_from(end.as_micros()).unwrap_or(u64::MAX)))
    }
}

/// Returns a new seed.
pub fn seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |now| now.as_micros() as u64) % 1_000_000_000
}
