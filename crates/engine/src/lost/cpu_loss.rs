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

use weir_guestmem::ticks::thread_cpu_ns;

use crate::lost::blocked;
use crate::threads::clock;

/// An awake worker that has not read the clock for this time (ns) may have been preempted: bursts are shorter.
const AWAY_NS: u64 = 50_000;
/// The maximum age of a reading of the CPU clock (ns). Shorter losses than [`AWAY_NS`] are located no more exactly.
const CPU_CHECK_NS: u64 = 1_000_000;
/// Difference that the two clocks can show because they are read one after the other (ns).
const LOST_NS_MIN: u64 = 2_000;
/// The number of losses that are remembered. Each is a long absence or a millisecond, so there are
/// more than fit into a budget for which small delays matter.
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
    /// The loss was after this time (ns).
    from_ns: u64,
    /// The loss was before this time (ns).
    until_ns: u64,
    /// The length of the loss (ns).
    lost_ns: u64,
}

impl Loss {
    const NONE: Self = Self { from_ns: 0, until_ns: 0, lost_ns: 0 };

    /// The least part of the loss (ns) that lies between these times, wherever the loss was.
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
    /// The index of the oldest loss, which the next loss replaces.
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

    /// The loss that was certainly within these times (ns). `now` is not before the later time.
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

#[cfg(test)]
mod tests {
    //! Both clocks are simulated: the losses and their times follow from the readings.

    use super::*;

    const US: u64 = 1_000;
    const START_NS: u64 = 1_000_000;

    /// A worker whose clocks stand at [`START_NS`] and 0.
    fn started() -> Losses {
        let mut losses = Losses::NONE;
        losses.read(0, START_NS, 0);
        losses
    }

    #[test]
    fn time_awake_without_a_processor_is_lost_and_sleep_is_not() {
        let now_ns = START_NS + 1_000 * US;
        // The worker works for 400 us, sleeps for 300 us, and works again.
        let asleep = (START_NS + 400 * US, START_NS + 700 * US);
        let lost_ns = |cpu_before_ns, cpu_ns| {
            let mut losses = started();
            losses.slept(asleep.0, asleep, cpu_before_ns);
            losses.lost_ns((START_NS, now_ns), asleep.1, (now_ns, cpu_ns))
        };
        assert_eq!(lost_ns(400 * US, 700 * US), 0);
        assert_eq!(lost_ns(350 * US, 650 * US), 50 * US, "before it slept");
        assert_eq!(lost_ns(400 * US, 600 * US), 100 * US, "afterwards");
        assert_eq!(
            lost_ns(420 * US, 620 * US),
            100 * US,
            "what a sleep itself takes hides nothing"
        );
        assert_eq!(lost_ns(400 * US, 900 * US), 0, "clocks are read one by one");
    }

    #[test]
    fn what_was_lost_before_a_hold_or_after_it_explains_nothing() {
        let mut losses = started();
        // The worker is away for 400 us, of which it works for 100 us, and then works without a break.
        let (away_ns, back_ns) = (START_NS + 100 * US, START_NS + 500 * US);
        losses.read(away_ns, back_ns, 200 * US);
        let now = (back_ns + 400 * US, 600 * US);
        let lost_ns = |hold| losses.lost_ns(hold, now.0, now);
        assert_eq!(lost_ns((START_NS, now.0)), 300 * US);
        assert_eq!(lost_ns((away_ns, back_ns)), 300 * US);
        assert_eq!(lost_ns((back_ns, now.0)), 0, "lost before");
        assert_eq!(lost_ns((START_NS, away_ns)), 0, "lost after");
    }

    #[test]
    fn of_a_loss_that_began_before_a_hold_counts_what_must_have_been_within() {
        let mut losses = started();
        let back_ns = START_NS + 400 * US;
        losses.read(START_NS, back_ns, 100 * US);
        let lost_ns = |hold| losses.lost_ns(hold, back_ns, (back_ns, 100 * US));
        // 300 of 400 us were lost. Of any 150 us among these, the worker can have worked for 100.
        assert_eq!(lost_ns((back_ns - 150 * US, back_ns)), 50 * US);
        assert_eq!(lost_ns((START_NS, START_NS + 150 * US)), 50 * US);
        assert_eq!(lost_ns((back_ns - 100 * US, back_ns)), 0);
    }

    #[test]
    fn what_is_lost_now_counts_before_anybody_has_noted_it() {
        let losses = started();
        let looked_ns = START_NS + 500 * US;
        let now_ns = looked_ns + 200 * US;
        // The worker has worked since, except for 150 us, which it cannot have lost before the last reading.
        let now = (now_ns, 550 * US);
        assert_eq!(losses.lost_ns((looked_ns, now_ns), looked_ns, now), 150 * US);
        assert_eq!(losses.lost_ns((now_ns - 60 * US, now_ns), looked_ns, now), 10 * US);
        // A loss longer than the time since the last reading was partly earlier, at an unknown time.
        let now = (now_ns, 450 * US);
        assert_eq!(losses.lost_ns((looked_ns, now_ns), looked_ns, now), 200 * US);
        assert_eq!(losses.lost_ns((START_NS, now_ns), looked_ns, now), 250 * US);
    }

    #[test]
    fn a_timer_that_fires_late_is_a_loss_from_then_on() {
        let mut losses = started();
        let (due_ns, back_ns) = (START_NS + 100 * US, START_NS + 180 * US);
        losses.slept(START_NS, (START_NS, back_ns), 0);
        losses.push(Loss { from_ns: due_ns, until_ns: back_ns, lost_ns: back_ns - due_ns });
        let lost_ns = |hold| losses.lost_ns(hold, back_ns, (back_ns, 0));
        assert_eq!(
            lost_ns((START_NS, back_ns)),
            80 * US,
            "once, although it was a part of a sleep"
        );
        assert_eq!(lost_ns((due_ns + 30 * US, back_ns)), 50 * US);
        assert_eq!(lost_ns((START_NS, due_ns)), 0);
    }

    #[test]
    fn the_latest_losses_are_remembered() {
        let mut losses = started();
        let at_ns = |number: u64| START_NS + number * 100 * US;
        for number in 0..3 * LOSSES as u64 {
            losses.read(at_ns(number), at_ns(number + 1), (number + 1) * 40 * US);
        }
        let (last, end_ns) = (3 * LOSSES as u64, at_ns(3 * LOSSES as u64));
        let lost_ns =
            |number| losses.lost_ns((at_ns(number), end_ns), end_ns, (end_ns, last * 40 * US));
        assert_eq!(lost_ns(last - 5), 5 * 60 * US);
        assert_eq!(lost_ns(0), LOSSES as u64 * 60 * US, "and no more of them");
    }

    #[test]
    fn clocks_that_go_backwards_are_no_loss() {
        let losses = started();
        assert_eq!(losses.lost_ns((0, u64::MAX), 0, (START_NS - 1, 0)), 0);
        assert_eq!(losses.lost_ns((0, u64::MAX), u64::MAX, (START_NS, u64::MAX)), 0);
    }

    #[test]
    fn a_thread_that_was_stopped_has_lost_that_time_and_only_then() {
        let before_ns = clock::now_ns();
        look(before_ns);
        // The sleep is not reported, so it counts as a loss.
        std::thread::sleep(std::time::Duration::from_millis(20));
        let stopped_ns = clock::now_ns();
        assert!(lost_ns(before_ns, stopped_ns, stopped_ns) >= 15_000_000);
        look(stopped_ns);
        let now_ns = clock::now_ns();
        assert!(lost_ns(before_ns, stopped_ns, now_ns) >= 15_000_000);
        assert!(lost_ns(stopped_ns, now_ns, now_ns) <= now_ns - stopped_ns);
    }

    #[test]
    fn a_thread_that_is_no_worker_has_lost_nothing() {
        std::thread::spawn(|| {
            let now_ns = clock::now_ns();
            assert_eq!(lost_ns(0, now_ns, now_ns), 0);
        })
        .join()
        .unwrap();
    }
}
