//! What happens next, by chance: the same from the same seed, for ever.

use std::time::Duration;

use rand::{RngExt as _, SeedableRng as _};
use rand_xoshiro::Xoshiro256PlusPlus;

/// A generator.
#[derive(Debug)]
pub struct Random(Xoshiro256PlusPlus);

impl Random {
    /// The one of this seed.
    pub fn new(seed: u64) -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0.random_range(..end.max(1))
    }

    /// A time below `end`.
    pub fn pause(&mut self, end: Duration) -> Duration {
        Duration::from_micros(self.below(u64::try_from(end.as_micros()).unwrap_or(u64::MAX)))
    }
}

/// A seed that nobody has had yet.
pub fn seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |now| now.as_micros() as u64) % 1_000_000_000
}
