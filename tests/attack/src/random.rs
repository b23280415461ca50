//! Numbers by chance, other ones in each process: the seed is its number, so that a run can be had again.

use std::sync::atomic::{AtomicU64, Ordering};

/// A generator (splitmix64).
#[derive(Debug)]
pub struct Random(u64);

static MADE: AtomicU64 = AtomicU64::new(0);

impl Random {
    /// Another one each time.
    pub fn new() -> Self {
        let made = MADE.fetch_add(1, Ordering::Relaxed);
        Self(u64::from(std::process::id()) << 32 | made)
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// Another order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            let other = self.below(at as u64 + 1) as usize;
            items.swap(at, other);
        }
    }
}
