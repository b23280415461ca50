//! Times at which a worker was kept from its CPU: the explanation of a late call.
//!
//! The kernel can give the CPU to another thread, or a virtual machine's host to another machine. Then the wall clock
//! runs on and the thread's CPU clock does not, or a timer fires late. Only a loss during the hold explains a late
//! call. So this module keeps *when* time was lost, as exactly as it is known, and counts the part that was certainly
//! within the hold.
//!
//! A worker reads the wall clock at each burst. It reads its CPU clock, a system call, after a sleep; under load once a
//! millisecond; after a long gap between two wall clock readings; and when something came too late. It does not read it
//! before a sleep: the CPU time of falling asleep and waking up would hide a loss.

use std::cell::{Cell, RefCell};

use rustix::time::{ClockId, clock_gettime};

use crate::lost::blocked;
use crate::threads::clock;

/// An awake worker that has not read the clock for this time (ns) may have been preempted: bursts are shorter.
const AWAY_NS: u64 = 50_000;
/// The maximum age of a reading of the CPU clock (ns). Shorter losses than [`AWAY_NS`] are located no more exactly.
const CPU_CHECK_NS: u64 = 1_000_000;
/// Difference that the two clocks can show because they are read one after the other (ns).
const LOST_NS_MIN: u64 = 2_000;
/// Remembered losses, each a long absence or a millisecond: more than fit into the budgets for which small delays
/// matter.
const LOSSES: usize = 16;

/// The clock by which a worker finds out that it was kept from its processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CpuClock {
    /// The CPU clock of the worker's thread.
    #[default]
    Thread,
    /// A clock that runs while awake and asleep, as if the worker always had its CPU: for tests.
    Running,
    /// A clock that does not advance, as if the worker never had its CPU: for tests.
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

/// Time for which a worker did not have its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Loss {
    /// The loss was after this time (ns),
    from_ns: u64,
    /// before this time (ns),
    until_ns: u64,
    /// and this long (ns).
    lost_ns: u64,
}

impl Loss {
    const NONE: Self = Self { from_ns: 0, until_ns: 0, lost_ns: 0 };

    /// The part of the loss that was at least within these times, wherever the loss was (ns).
    fn within_ns(&self, from_ns: u64, until_ns: u64) -> u64 {
        let before_ns = from_ns.clamp(self.from_ns, self.until_ns) - self.from_ns;
        let after_ns = self.until_ns - until_ns.clamp(self.from_ns, self.until_ns);
        self.lost_ns.saturating_sub(before_ns + after_ns)
    }
}

/// The losses of one worker.
#[derive(Debug)]
struct Losses {
    clock: CpuClock,
    /// The time at which both clocks were read (ns); 0 means never, as for a thread that is no worker.
    read_ns: u64,
    /// The CPU clock at that time (ns).
    cpu_ns: u64,
    known: [Loss; LOSSES],
    /// The index of the oldest one, which the next one replaces.
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

    /// Notes a reading of both clocks; the wall clock was last read at `looked_ns`. Returns the CPU clock's advance
    /// (ns).
    fn read(&mut self, looked_ns: u64, now_ns: u64, cpu_ns: u64) -> u64 {
        for loss in self.since_read(looked_ns, now_ns, cpu_ns) {
            self.push(loss);
        }
        self.read_ns = now_ns;
        cpu_ns.saturating_sub(std::mem::replace(&mut self.cpu_ns, cpu_ns))
    }

    /// The most that can have been lost since both clocks were read. It is placed after the last wall clock reading if
    /// it fits there: the worker was never away for long before that.
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

    /// Notes a sleep between these times. The CPU clock was read after it.
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

    /// The loss that was certainly within these times (ns). `now` is not before the later one.
    fn lost_ns(&self, (from_ns, until_ns): (u64, u64), looked_ns: u64, now: (u64, u64)) -> u64 {
        let latest = self.since_read(looked_ns, now.0, now.1);
        let losses = self.known.iter().chain(&latest);
        losses.map(|loss| loss.within_ns(from_ns, until_ns)).sum()
    }
}

thread_local! {
    /// The times at which the wall clock and the CPU clock were last read (ns).
    static LOOKED_NS: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
    static THIS: RefCell<Losses> = const { RefCell::new(Losses::NONE) };
}

/// Makes this thread a worker.
pub(crate) fn enter(clock: CpuClock) {
    THIS.with_borrow_mut(|losses| losses.clock = clock);
}

/// Notes that this worker is awake at `now_ns`.
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

/// Reads the CPU clock of this thread, which is awake at `now_ns`. Returns its CPU time since the previous reading
/// (ns).
#[cold]
pub(crate) fn read(now_ns: u64) -> u64 {
    let (looked_ns, _) = LOOKED_NS.replace((now_ns, now_ns));
    // A thread that has never read the clock is no worker.
    blocked::away(if looked_ns == 0 { 0 } else { now_ns.saturating_sub(looked_ns) }, now_ns);
    THIS.with_borrow_mut(|losses| losses.read(looked_ns, now_ns, losses.clock.now_ns()))
}

/// Notes that this worker has slept between these times.
pub(crate) fn slept(from_ns: u64, until_ns: u64) {
    let (looked_ns, _) = LOOKED_NS.replace((until_ns, until_ns));
    THIS.with_borrow_mut(|losses| {
        losses.slept(looked_ns, (from_ns, until_ns), losses.clock.now_ns());
    });
}

/// Notes that this worker should have woken from a sleep at `from_ns`, and woke at `until_ns`.
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
