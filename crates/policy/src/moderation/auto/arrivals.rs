//! Interval and size of batches.

use crate::law::Law;

/// Fraction bits of [`Arrivals::gap`], so that small gaps do not round away.
const FRACTION: u32 = 4;
/// Longest gap that counts (ns). It also keeps the arithmetic far from overflow.
const GAP_NS_MAX: u64 = weir_limits::LATENCY_BUDGET_NS_MAX * 4;

/// The usual time between two publications, smoothed.
///
/// Batches are counted, not frames, since a hold saves calls, and a batch costs one call.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Arrivals {
    /// Smoothed gap (ns times 2^[`FRACTION`]). Zero before the second batch.
    gap: u64,
    last_ns: Option<u64>,
}

impl Arrivals {
    /// Notes a batch. Returns the time since the batch before (ns).
    ///
    /// A gap longer than `gap_ns_max` is an interruption of the load, and counts as `gap_ns_max`.
    pub(super) fn batch(&mut self, law: &Law, now_ns: u64, gap_ns_max: u64) -> u64 {
        let Some(last_ns) = self.last_ns.replace(now_ns) else { return 0 };
        let gap_ns = now_ns.saturating_sub(last_ns);
        let sample = gap_ns.min(gap_ns_max).min(GAP_NS_MAX) << FRACTION;
        self.gap = if self.gap == 0 {
            sample
        } else {
            self.gap - (self.gap >> law.step) + (sample >> law.step)
        };
        gap_ns
    }

    /// Returns the usual gap (ns).
    pub(super) fn gap_ns(&self) -> u64 {
        self.gap >> FRACTION
    }

    /// Returns the time of the last batch (ns).
    pub(super) fn last_ns(&self) -> u64 {
        self.last_ns.unwrap_or(0)
    }

    /// Returns whether to expect `batches` more batches within `within_ns`. Expects none before the
    /// usual gap is known.
    pub(super) fn promise(&self, batches: u64, within_ns: u64) -> bool {
        self.gap != 0 && self.gap.saturating_mul(batches) <= within_ns.saturating_mul(1 << FRACTION)
    }
}

/// Detects that nearly all batches (at least eight of nine) that come with nothing pending are
/// large enough for a call by themselves.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Full {
    /// Full batches, less eight times the others.
    more: u32,
    are: bool,
}

impl Full {
    /// Notes a batch that has come with nothing pending. Returns whether the answer has changed.
    pub(super) fn batch(&mut self, law: &Law, full: bool) -> bool {
        let most = law.in_a_row * law.in_a_row;
        self.more = match full {
            true => (self.more + 1).min(most),
            false => self.more.saturating_sub(law.in_a_row),
        };
        let are = self.more == most || (self.are && self.more > 0);
        are != std::mem::replace(&mut self.are, are)
    }

    /// Returns whether nearly all batches are full.
    pub(super) fn are(&self) -> bool {
        self.are
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::law::LAW;

    /// Returns how often the answer changes over `batches` batches of which one in `every` is not
    /// full.
    fn changes(full: &mut Full, batches: u32, every: u32) -> u32 {
        (1..=batches).map(|batch| u32::from(full.batch(&LAW, !batch.is_multiple_of(every)))).sum()
    }

    #[test]
    fn batches_are_full_where_nearly_all_are() {
        let mut full = Full::default();
        assert_eq!((changes(&mut full, 1_000, 5), full.are()), (0, false), "four of five");
        assert_eq!((changes(&mut full, 1_000, 50), full.are()), (1, true), "49 of 50");
        assert_eq!((changes(&mut full, 1_000, 12), full.are()), (0, true), "11 of 12");
        assert_eq!((changes(&mut full, 1_000, 1), full.are()), (1, false), "none");
    }
}
