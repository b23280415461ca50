//! Waiting longer after each failure before what failed is tried again.

use crate::law::Law;

/// A number of turns to let go by, which doubles with every failure: 1, 3, 7 and so on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HoldOff {
    /// Turns to go by yet.
    pub(crate) left: u32,
    last: u32,
}

impl HoldOff {
    /// There were no failures.
    pub(crate) const NONE: Self = Self { left: 0, last: 0 };

    pub(crate) fn failed(&mut self, law: &Law) {
        self.last = (2 * self.last + 1).min(law.memory);
        self.left = self.last;
    }

    /// A turn has gone by.
    pub(crate) fn tick(&mut self) {
        self.left = self.left.saturating_sub(1);
    }

    /// It worked: the next failure counts for half.
    pub(crate) fn ease(&mut self) {
        self.last /= 2;
        self.left = 0;
    }

    /// There were no failures.
    pub(crate) fn forget(&mut self) {
        *self = Self::NONE;
    }
}
