//! The cost of each datapath stage, in cycles (after Raj & Schwan 2006, Fig. 6).
//!
//! A worker marks the boundaries of stages with [`lap`], once or twice for each burst; the time since the previous mark
//! belongs to the stage. While it is off, the default, a mark is one load and one branch; while it is on, a mark reads
//! the CPU's counter ([`weir_guestmem::ticks`]).
//!
//! A stage includes any preemption within it. Only bursts with frames count: not polls of empty queues, and not the
//! work of a worker between bursts (sleep, poll, deadlines of held calls).
//!
//! Counts belong to the process, by worker number: engines of one process, as in tests, count together.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use weir_guestmem::ticks;
pub use weir_guestmem::ticks::UNIT;
use weir_limits::WORKERS_MAX;

/// A part of a packet's way through weir.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The sender's ring is read, and each frame's header copied out and checked.
    Take,
    /// VLAN, source address and forwarding table: the way of each frame is determined.
    Classify,
    /// Receivers' buffers are reserved and filled, and each chain completed.
    Copy,
    /// Used indices are written, and the sender's chains completed.
    Publish,
    /// The policy decides, the guest's suppression of calls is checked, and its eventfd is written.
    Call,
}

impl Stage {
    /// All stages, in the order of a packet's way.
    pub const ALL: [Self; 5] = [Self::Take, Self::Classify, Self::Copy, Self::Publish, Self::Call];

    /// The stage's name in statistics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Take => "take",
            Self::Classify => "classify",
            Self::Copy => "copy",
            Self::Publish => "publish",
            Self::Call => "call",
        }
    }
}

/// The costs of one worker's stages since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageCosts {
    /// Bursts that were measured.
    pub bursts: u64,
    /// Frames in these bursts.
    pub frames: u64,
    /// By [`Stage`], in [`UNIT`].
    pub ticks: [u64; Stage::ALL.len()],
}

impl StageCosts {
    /// The costs since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        let mut ticks = self.ticks;
        for (ticks, before) in ticks.iter_mut().zip(earlier.ticks) {
            *ticks = ticks.saturating_sub(before);
        }
        Self {
            bursts: self.bursts.saturating_sub(earlier.bursts),
            frames: self.frames.saturating_sub(earlier.frames),
            ticks,
        }
    }

    /// Frames of a burst, mean; `None` while there was no burst.
    pub fn frames_per_burst(&self) -> Option<f64> {
        (self.bursts > 0).then(|| self.frames as f64 / self.bursts as f64)
    }

    /// Ticks of `stage` for each frame; `None` while there was no frame.
    pub fn per_frame(&self, stage: Stage) -> Option<f64> {
        (self.frames > 0).then(|| self.ticks[stage as usize] as f64 / self.frames as f64)
    }
}

/// The counters behind [`StageCosts`].
struct Costs {
    bursts: AtomicU64,
    frames: AtomicU64,
    ticks: [AtomicU64; Stage::ALL.len()],
}

impl Costs {
    const fn none() -> Self {
        let ticks = [const { AtomicU64::new(0) }; Stage::ALL.len()];
        Self { bursts: AtomicU64::new(0), frames: AtomicU64::new(0), ticks }
    }
}

static COSTS: [Costs; WORKERS_MAX] = [const { Costs::none() }; WORKERS_MAX];

/// 0 while marks are off. Otherwise the number of this period, new at each start: a burst that began before has no
/// valid start.
static PERIOD: AtomicU32 = AtomicU32::new(0);
static LAST_PERIOD: AtomicU32 = AtomicU32::new(0);

/// A burst under way.
struct Stopwatch {
    /// The worker's number.
    worker: Cell<usize>,
    /// The [`PERIOD`] in which the burst began; 0 between bursts.
    period: Cell<u32>,
    /// The counter at the last mark.
    last: Cell<u64>,
    ticks: [Cell<u64>; Stage::ALL.len()],
}

thread_local! {
    static STOPWATCH: Stopwatch = const {
        Stopwatch {
            worker: Cell::new(0),
            period: Cell::new(0),
            last: Cell::new(0),
            ticks: [const { Cell::new(0) }; Stage::ALL.len()],
        }
    };
}

/// Switches measuring on or off, for all workers, from their next bursts on.
pub fn set_on(on: bool) {
    let period = match on {
        // After 2^32 - 1 starts the number can be 0 once, and marks stay off.
        true => LAST_PERIOD.fetch_add(1, Ordering::Relaxed).wrapping_add(1),
        false => 0,
    };
    PERIOD.store(period, Ordering::Relaxed);
}

/// True if measuring is on.
pub fn is_on() -> bool {
    PERIOD.load(Ordering::Relaxed) != 0
}

/// The costs of each worker that has measured, by its number.
pub fn costs() -> impl Iterator<Item = (usize, StageCosts)> {
    let read = |costs: &Costs| StageCosts {
        bursts: costs.bursts.load(Ordering::Relaxed),
        frames: costs.frames.load(Ordering::Relaxed),
        ticks: costs.ticks.each_ref().map(|ticks| ticks.load(Ordering::Relaxed)),
    };
    COSTS.iter().map(read).enumerate().filter(|(_, costs)| costs.bursts > 0)
}

/// Makes this thread worker `index`.
pub(crate) fn enter(index: usize) {
    STOPWATCH.with(|watch| watch.worker.set(index));
}

#[inline]
pub(crate) fn begin() {
    let period = PERIOD.load(Ordering::Relaxed);
    if period != 0 {
        STOPWATCH.with(|watch| watch.begin(period));
    }
}

/// Ends `stage` here.
#[inline]
pub fn lap(stage: Stage) {
    let period = PERIOD.load(Ordering::Relaxed);
    if period != 0 {
        STOPWATCH.with(|watch| watch.lap(period, stage, ticks::now()));
    }
}

#[inline]
pub(crate) fn end(frames: usize) {
    let period = PERIOD.load(Ordering::Relaxed);
    if period != 0 {
        STOPWATCH.with(|watch| watch.end(period, frames));
    }
}

impl Stopwatch {
    #[cold]
    fn begin(&self, period: u32) {
        self.ticks.iter().for_each(|ticks| ticks.set(0));
        self.period.set(period);
        self.last.set(ticks::now());
    }

    #[cold]
    fn lap(&self, period: u32, stage: Stage, now: u64) {
        if self.period.get() != period {
            return;
        }
        let ticks = &self.ticks[stage as usize];
        ticks.set(ticks.get().saturating_add(now.saturating_sub(self.last.replace(now))));
    }

    #[cold]
    fn end(&self, period: u32, frames: usize) {
        if self.period.replace(0) != period || frames == 0 {
            return;
        }
        let Some(costs) = COSTS.get(self.worker.get()) else { return };
        costs.bursts.fetch_add(1, Ordering::Relaxed);
        costs.frames.fetch_add(frames as u64, Ordering::Relaxed);
        for (sum, ticks) in costs.ticks.iter().zip(&self.ticks) {
            sum.fetch_add(ticks.get(), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(worker: usize) -> Stopwatch {
        Stopwatch {
            worker: Cell::new(worker),
            period: Cell::new(0),
            last: Cell::new(0),
            ticks: Default::default(),
        }
    }

    /// The costs of worker `index`; no engine has a worker of that number in these tests.
    fn costs_of(index: usize) -> StageCosts {
        let found = costs().find(|(worker, _)| *worker == index);
        found.map(|(_, costs)| costs).unwrap_or_default()
    }

    #[test]
    fn the_time_since_the_mark_before_is_the_stages() {
        const WORKER: usize = WORKERS_MAX - 1;
        let watch = watch(WORKER);
        watch.begin(1);
        watch.last.set(1_000);
        watch.lap(1, Stage::Take, 1_300);
        watch.lap(1, Stage::Copy, 1_350);
        watch.lap(1, Stage::Publish, 1_360);
        watch.lap(1, Stage::Copy, 1_400);
        watch.end(1, 10);
        let costs = costs_of(WORKER);
        assert_eq!((costs.bursts, costs.frames, costs.ticks), (1, 10, [300, 0, 90, 10, 0]));
        assert_eq!(costs.per_frame(Stage::Copy), Some(9.0));

        watch.begin(1);
        watch.last.set(0);
        watch.lap(1, Stage::Call, 7);
        watch.end(1, 1);
        let later = costs_of(WORKER).since(&costs);
        assert_eq!((later.bursts, later.frames, later.ticks), (1, 1, [0, 0, 0, 0, 7]));
        assert_eq!(StageCosts::default().per_frame(Stage::Take), None);
    }

    #[test]
    fn empty_bursts_and_those_that_began_before_it_was_on_count_nowhere() {
        const WORKER: usize = WORKERS_MAX - 2;
        let watch = watch(WORKER);
        watch.begin(1);
        watch.lap(1, Stage::Take, u64::MAX);
        watch.end(1, 0);
        // The measurement is switched off and on in the middle of a burst.
        watch.begin(1);
        watch.lap(2, Stage::Take, u64::MAX);
        watch.end(2, 5);
        watch.lap(2, Stage::Take, u64::MAX);
        watch.end(2, 5);
        assert_eq!(costs_of(WORKER), StageCosts::default());
    }

    #[test]
    fn counters_that_go_back_cost_nothing() {
        let watch = watch(WORKERS_MAX - 3);
        watch.begin(1);
        watch.last.set(500);
        watch.lap(1, Stage::Take, 400);
        assert_eq!(watch.ticks[Stage::Take as usize].get(), 0);
    }

    #[test]
    fn stages_are_numbered_in_their_order() {
        for (number, stage) in Stage::ALL.into_iter().enumerate() {
            assert_eq!(stage as usize, number);
        }
    }
}
