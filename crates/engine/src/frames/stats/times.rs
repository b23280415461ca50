//! Distributions of durations: cheap to add to under a queue's lock, and cheap to read, without the lock, for a thousand
//! queues.

use std::sync::atomic::{AtomicU64, Ordering};

use weir_limits::LATENCY_BUDGET_NS_MAX;

/// Each power of two is divided into this many steps (as a power of two): a time is known to 1.6 %.
const STEP_BITS: u32 = 6;

/// Steps up to the largest latency budget; the last one counts all longer times.
const STEPS: usize = step(LATENCY_BUDGET_NS_MAX) + 1;

/// Steps that are summed together in the search for a rank.
const BLOCK: usize = 1 << STEP_BITS;

/// The times (ns) up to which [`TimesSummary::at_most`] counts, as in histograms of monitoring systems.
pub const TIME_BOUNDS_NS: [u64; 10] =
    [5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 5_000_000, 50_000_000];

/// The step of a time.
#[inline]
const fn step(ns: u64) -> usize {
    // In the first two powers of two that have all their steps, each step is one ns.
    let octave = (ns | 1 << STEP_BITS).ilog2() - STEP_BITS;
    ((octave as usize) << STEP_BITS) + (ns >> octave) as usize
}

/// The longest time of a step.
const fn longest(step: usize) -> u64 {
    let octave = (step >> STEP_BITS).saturating_sub(1);
    let first = (step - (octave << STEP_BITS)) as u64;
    ((first + 1) << octave) - 1
}

/// Times in ns, to which one thread at a time adds: 13 KiB of counts. Readers take no lock, or a thread that adds would
/// wait for a reader that has lost its CPU.
#[derive(Debug)]
pub struct Times {
    steps: [AtomicU64; STEPS],
    sum_ns: AtomicU64,
    max_ns: AtomicU64,
}

impl Default for Times {
    fn default() -> Self {
        let (sum_ns, max_ns) = Default::default();
        Self { steps: [const { AtomicU64::new(0) }; STEPS], sum_ns, max_ns }
    }
}

impl Times {
    /// Records one time. No other thread may do so meanwhile.
    #[inline(always)]
    pub fn record(&self, ns: u64) {
        let add = |to: &AtomicU64, more: u64| {
            // The sum overflows after 584 years.
            to.store(to.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
        };
        if let Some(count) = self.steps.get(step(ns.min(LATENCY_BUDGET_NS_MAX))) {
            add(count, 1);
        }
        add(&self.sum_ns, ns);
        // A new maximum is rare: a branch costs less than a store.
        if ns > self.max_ns.load(Ordering::Relaxed) {
            self.max_ns.store(ns, Ordering::Relaxed);
        }
    }

    /// Summarizes the samples.
    pub fn summary(&self) -> TimesSummary {
        let mut read = TimesRead::default();
        read.add(self);
        read.summary()
    }
}

/// The samples of a distribution at one moment.
#[derive(Debug)]
pub struct TimesRead {
    steps: [u64; STEPS],
    sum_ns: u64,
    max_ns: u64,
}

impl Default for TimesRead {
    fn default() -> Self {
        Self { steps: [0; STEPS], sum_ns: 0, max_ns: 0 }
    }
}

/// The summary of times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TimesSummary {
    /// Samples.
    pub count: u64,
    /// The sum of the samples, in ns.
    pub sum: u64,
    /// Median, ns.
    pub p50: u64,
    /// 99th percentile, ns.
    pub p99: u64,
    /// Largest, ns.
    pub max: u64,
    /// The number of samples up to each of [`TIME_BOUNDS_NS`], to 1.6 % of it.
    pub at_most: [u64; TIME_BOUNDS_NS.len()],
}

impl TimesRead {
    /// Adds the times of a queue. A time that is recorded meanwhile may be left out, or be in the steps only.
    pub fn add(&mut self, times: &Times) {
        let read = |of: &AtomicU64| of.load(Ordering::Relaxed);
        let max_ns = read(&times.max_ns);
        // The steps behind the longest time are empty.
        let used = ..=step(max_ns.min(LATENCY_BUDGET_NS_MAX));
        self.steps.iter_mut().zip(&times.steps[used]).for_each(|(all, count)| *all += read(count));
        self.sum_ns = self.sum_ns.wrapping_add(read(&times.sum_ns));
        self.max_ns = self.max_ns.max(max_ns);
    }

    /// The steps up to the longest time: the others are empty.
    fn used(&self) -> &[u64] {
        &self.steps[..=step(self.max_ns.min(LATENCY_BUDGET_NS_MAX))]
    }

    /// Summarizes the samples.
    pub fn summary(&self) -> TimesSummary {
        let steps = self.used();
        let (mut before, mut count) = ([0; STEPS.div_ceil(BLOCK)], 0);
        for (before, block) in before.iter_mut().zip(steps.chunks(BLOCK)) {
            *before = count;
            count += block.iter().sum::<u64>();
        }
        let before = &before[..steps.len().div_ceil(BLOCK)];
        let up_to = |step: usize| match steps.get(step / BLOCK * BLOCK..=step) {
            Some(block) => before[step / BLOCK] + block.iter().sum::<u64>(),
            None => count,
        };
        // The time that this percentage of the samples does not exceed.
        let time_of = |percent: u64| {
            let rank = (count * percent).div_ceil(100);
            let block = before.partition_point(|before| *before < rank).saturating_sub(1);
            let mut seen = before[block];
            let within = steps[block * BLOCK..].iter().position(|count| {
                seen += count;
                seen >= rank
            });
            within.map_or(self.max_ns, |at| longest(block * BLOCK + at)).min(self.max_ns)
        };
        TimesSummary {
            count,
            sum: self.sum_ns,
            p50: time_of(50),
            p99: time_of(99),
            max: self.max_ns,
            at_most: TIME_BOUNDS_NS.map(|ns| up_to(step(ns))),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn times_give_quantiles_and_merge() {
        let times = Times::default();
        assert_eq!(TimesRead::default().summary(), TimesSummary::default());
        (1..=100).for_each(|us| times.record(us * 1000));
        let mut sum = TimesRead::default();
        sum.add(&times);
        sum.add(&times);
        let summary = sum.summary();
        assert_eq!((summary.count, summary.sum, summary.max), (200, 10_100_000, 100_000));
        assert!((50_000..=50_800).contains(&summary.p50), "{summary:?}");
        assert!((99_000..=100_000).contains(&summary.p99), "{summary:?}");
        assert_eq!(summary.at_most, [10, 20, 50, 100, 200, 200, 200, 200, 200, 200]);
    }

    proptest! {
        #[test]
        fn a_summary_is_what_sorting_gives(shifted in vec((any::<u64>(), 24_u32..64), 1..300)) {
            let mut all: Vec<u64> = shifted.into_iter().map(|(ns, by)| ns >> by).collect();
            let times = Times::default();
            all.iter().for_each(|ns| times.record(*ns));
            all.sort_unstable();
            let max = all[all.len() - 1];
            let as_known = |ns: u64| longest(step(ns.min(LATENCY_BUDGET_NS_MAX))).min(max);
            let of = |percent: usize| as_known(all[(all.len() * percent).div_ceil(100) - 1]);
            let at_most = TIME_BOUNDS_NS.map(|bound| {
                all.iter().filter(|ns| step(**ns) <= step(bound)).count() as u64
            });
            let summary = times.summary();
            prop_assert_eq!((summary.p50, summary.p99, summary.max), (of(50), of(99), max));
            prop_assert_eq!((summary.count, summary.at_most), (all.len() as u64, at_most));
        }
    }

    #[test]
    fn each_time_is_in_one_step_that_is_narrow() {
        let mut before = None;
        for ns in (0..100_000).chain((17..30).flat_map(|bits| (1 << bits) - 2..(1 << bits) + 2)) {
            let (at, most) = (step(ns), longest(step(ns)));
            assert!(ns <= most && most - ns <= ns / 64, "{ns}: {at}, {most}");
            assert!(at == 0 || longest(at - 1) < ns, "{ns} is in two");
            assert!(before <= Some(at), "{ns}");
            before = Some(at);
        }
    }

    #[test]
    fn what_is_longer_than_any_budget_counts_and_keeps_its_length() {
        let times = Times::default();
        times.record(0);
        times.record(10 * LATENCY_BUDGET_NS_MAX);
        let TimesSummary { count, sum, p50, max, at_most, .. } = times.summary();
        assert_eq!((count, p50, max), (2, 0, 10 * LATENCY_BUDGET_NS_MAX));
        assert_eq!((sum, at_most), (max, [1; TIME_BOUNDS_NS.len()]));
    }
}
