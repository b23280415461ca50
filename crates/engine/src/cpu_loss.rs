//! When a worker was kept from its CPU: the explanation of a late call.
//!
//! The kernel may give the CPU to another thread, or a virtual machine's host to another machine. Then the wall
//! clock runs on and the thread's CPU clock does not, or a timer fires late. Only a loss during the hold explains a
//! late call. So this module keeps *when* time was lost, as exactly as it is known, and counts the part that was
//! certainly within the hold.
//!
//! A worker reads the wall clock at each burst. It reads its CPU clock, a system call, after a sleep; under load
//! once a millisecond; after a long gap between two looks; and when something came too late. It does not read it
//! before a sleep: falling asleep and waking up take CPU time, which would hide a loss.

use std::cell::{Cell, RefCell};

use rustix::time::{ClockId, clock_gettime};

use crate::{blocked, clock};

/// An awake worker that has not read the clock for so long (ns) may have been preempted: bursts are shorter.
const AWAY_NS: u64 = 50_000;
/// The maximum age of a reading of the CPU clock (ns). Shorter losses than [`AWAY_NS`] are located no more exactly.
const CPU_CHECK_NS: u64 = 1_000_000;
/// What the two clocks may seem to be apart since they are read one by one (ns).
const LOST_NS_MIN: u64 = 2_000;
/// Remembered losses, each a long absence or a millisecond: more than fit into the budgets for which small delays
/// matter.
const LOSSES: usize = 16;

/// By which clock a worker finds out that it was kept from its processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CpuClock {
    /// Its thread's.
    #[default]
    Thread,
    /// Runs while awake and asleep, as if it always had its CPU: for tests.
    Running,
    /// One that stands still, as if it never had it: for tests.
    Stopped,
}

impl CpuClock {
    fn now_ns(self) -> u64 {
        match self {
            Self::Thread => thread_cpu_ns(),
            Self::Running => clock::now_ns(),
            Self::Stopped => 0,
        }
    }
}

/// Time that a worker did not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Loss {
    /// It was lost between these times (ns),
    from_ns: u64,
    /// and
    until_ns: u64,
    /// so much of it (ns).
    lost_ns: u64,
}

impl Loss {
    const NONE: Self = Self { from_ns: 0, until_ns: 0, lost_ns: 0 };

    /// How much of it was lost within these times, wherever it was (ns).
    fn within_ns(&self, from_ns: u64, until_ns: u64) -> u64 {
        let before_ns = from_ns.clamp(self.from_ns, self.until_ns) - self.from_ns;
        let after_ns = self.until_ns - until_ns.clamp(self.from_ns, self.until_ns);
        self.lost_ns.saturating_sub(before_ns + after_ns)
    }
}

/// What one worker has lost.
#[derive(Debug)]
struct Losses {
    clock: CpuClock,
    /// When both clocks were read (ns); 0: never, by a thread that is no worker.
    read_ns: u64,
    /// What the CPU clock said then (ns).
    cpu_ns: u64,
    known: [Loss; LOSSES],
    /// The next one replaces this one.
    oldest: usize,
}

impl Losses {
    const NONE: Self = Self {
        clock: CpuClock::Thread,
        read_ns: 0,
        cpu_ns: 0,
        known: [Loss::NONE; LOSSES],
        oldest: 0,
    };

    /// Both clocks were read, after the last wall clock look at `looked_ns`. Returns the CPU clock's advance (ns).
    fn read(&mut self, looked_ns: u64, now_ns: u64, cpu_ns: u64) -> u64 {
        for loss in self.since_read(looked_ns, now_ns, cpu_ns) {
            self.push(loss);
        }
        self.read_ns = now_ns;
        cpu_ns.saturating_sub(std::mem::replace(&mut self.cpu_ns, cpu_ns))
    }

    /// The most that can have been lost since the clocks were read, after the last look: the worker was never away
    /// long before.
    fn since_read(&self, looked_ns: u64, now_ns: u64, cpu_ns: u64) -> [Loss; 2] {
        if self.read_ns == 0 || now_ns < self.read_ns {
            return [Loss::NONE; 2];
        }
        let looked_ns = looked_ns.clamp(self.read_ns, now_ns);
        let awake_ns = now_ns - self.read_ns;
        let lost_ns = awake_ns.saturating_sub(cpu_ns.saturating_sub(self.cpu_ns));
        let latest_ns = lost_ns.min(now_ns - looked_ns);
        [
            Loss { from_ns: self.read_ns, until_ns: looked_ns, lost_ns: lost_ns - latest_ns },
            Loss { from_ns: looked_ns, until_ns: now_ns, lost_ns: latest_ns },
        ]
    }

    /// It slept between these times. Its CPU clock was read after that.
    fn slept(&mut self, looked_ns: u64, (from_ns, until_ns): (u64, u64), cpu_ns: u64) {
        self.read(looked_ns, from_ns, cpu_ns);
        self.read_ns = until_ns;
    }

    fn push(&mut self, loss: Loss) {
        if loss.lost_ns >= LOST_NS_MIN {
            self.known[self.oldest] = loss;
            self.oldest = (self.oldest + 1) % LOSSES;
        }
    }

    /// How much was lost within these times for certain, of which now is not before the later one (ns).
    fn lost_ns(&self, (from_ns, until_ns): (u64, u64), looked_ns: u64, now: (u64, u64)) -> u64 {
        let latest = self.since_read(looked_ns, now.0, now.1);
        let losses = self.known.iter().chain(&latest);
        losses.map(|loss| loss.within_ns(from_ns, until_ns)).sum()
    }
}

thread_local! {
    /// When the wall clock was looked at last, and when the CPU clock was read (ns).
    static LOOKED_NS: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
    static THIS: RefCell<Losses> = const { RefCell::new(Losses::NONE) };
}

/// This thread is a worker from now on.
pub(crate) fn enter(clock: CpuClock) {
    THIS.with_borrow_mut(|losses| losses.clock = clock);
}

/// This worker is awake at `now_ns`.
#[inline]
pub(crate) fn look(now_ns: u64) {
    let (looked_ns, read_ns) = LOOKED_NS.get();
    let away_ns = now_ns.saturating_sub(looked_ns);
    if away_ns >= AWAY_NS || now_ns.saturating_sub(read_ns) >= CPU_CHECK_NS {
        read(now_ns);
    } else {
        LOOKED_NS.set((now_ns, read_ns));
    }
}

/// Reads the CPU clock of this thread, awake at `now_ns`. Returns its CPU time since the previous reading (ns).
#[cold]
pub(crate) fn read(now_ns: u64) -> u64 {
    let (looked_ns, _) = LOOKED_NS.replace((now_ns, now_ns));
    // Whoever has never looked is no worker.
    blocked::away(if looked_ns == 0 { 0 } else { now_ns.saturating_sub(looked_ns) }, now_ns);
    THIS.with_borrow_mut(|losses| losses.read(looked_ns, now_ns, losses.clock.now_ns()))
}

/// This worker has slept between these times.
pub(crate) fn slept(from_ns: u64, until_ns: u64) {
    let (looked_ns, _) = LOOKED_NS.replace((until_ns, until_ns));
    THIS.with_borrow_mut(|losses| {
        losses.slept(looked_ns, (from_ns, until_ns), losses.clock.now_ns());
    });
}

/// This worker was to be back from a sleep at `from_ns`, and was at `until_ns`.
pub(crate) fn overslept(from_ns: u64, until_ns: u64) {
    let lost_ns = until_ns.saturating_sub(from_ns);
    THIS.with_borrow_mut(|losses| losses.push(Loss { from_ns, until_ns, lost_ns }));
}

/// The least time that this thread was off its CPU between `from_ns` and `until_ns` (ns), as known at `now_ns`; 0
/// for a thread that is no worker.
#[cold]
pub(crate) fn lost_ns(from_ns: u64, until_ns: u64, now_ns: u64) -> u64 {
    let (looked_ns, _) = LOOKED_NS.get();
    THIS.with_borrow(|losses| {
        losses.lost_ns((from_ns, until_ns), looked_ns, (now_ns, losses.clock.now_ns()))
    })
}

/// The CPU time of the current thread (ns).
pub(crate) fn thread_cpu_ns() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    // Both fields are never negative for this clock.
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests;
