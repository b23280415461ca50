//! Back-off: each failure doubles the wait before the next attempt.

use crate::law::Law;

/// A number of turns to skip, which grows with every failure: 1, 3, 7 and so on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HoldOff {
    /// Turns that are left to skip.
    pub(crate) left: u32,
    last: u32,
}

impl HoldOff {
    /// A back-off without failures.
    pub(crate) const NONE: Self = Self { left: 0, last: 0 };

    pub(crate) fn failed(&mut self, law: &Law) {
        self.last = (2 * self.last + 1).min(law.memory);
        self.left = self.last;
    }

    /// Counts one turn.
    pub(crate) fn tick(&mut self) {
        self.left = self.left.saturating_sub(1);
    }

    /// Notes a success: the last failure counts for half.
    pub(crate) fn ease(&mut self) {
        self.last /= 2;
        self.left = 0;
    }

    /// Forgets all failures.
    pub(crate) fn forget(&mut self) {
        *self = Self::NONE;
    }
}
