//! Random numbers. The seed is the process ID, so that a run can be repeated.

use std::sync::atomic::{AtomicU64, Ordering};

use rand::seq::SliceRandom as _;
use rand::{Rng as _, RngExt as _, SeedableRng as _};
use rand_xoshiro::SplitMix64;

/// A random number generator.
#[derive(Debug)]
pub struct Random(SplitMix64);

static MADE: AtomicU64 = AtomicU64::new(0);

impl Random {
    /// A generator with another sequence each time.
    pub fn new() -> Self {
        let made = MADE.fetch_add(1, Ordering::Relaxed);
        Self(SplitMix64::seed_from_u64(u64::from(std::process::id()) << 32 | made))
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0.random_range(..end.max(1))
    }

    /// Shuffles `items`.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        items.shuffle(&mut self.0);
    }
}
