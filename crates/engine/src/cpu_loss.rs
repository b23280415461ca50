//! How long a worker was kept from its processor: what explains a call that came too late.
//!
//! Whoever runs the worker may take its processor away: the kernel gives it to another thread, or the host of
//! a virtual machine to another machine. Then the wall clock runs on and the thread's CPU clock does not. A
//! worker compares the two only when something came too late; all it does before is to note, once a
//! millisecond, where both stood, and how long it slept of its own will.

use std::cell::Cell;

use rustix::time::{ClockId, clock_gettime};

/// What the current thread knows.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// When both clocks were read (ns); 0 for a thread that is no worker.
    read_ns: u64,
    /// What the thread's CPU clock said then (ns).
    cpu_ns: u64,
    /// Since then: slept (ns).
    slept_ns: u64,
    /// Since then: by how much timers fired later than was allowed for (ns).
    overslept_ns: u64,
    /// Lost between the two readings before (ns): what is late now may have begun then.
    lost_before_ns: u64,
}

impl Known {
    const NOTHING: Self =
        Self { read_ns: 0, cpu_ns: 0, slept_ns: 0, overslept_ns: 0, lost_before_ns: 0 };
}

thread_local! {
    static KNOWN: Cell<Known> = const { Cell::new(Known::NOTHING) };
}

/// Where both clocks of this thread stand (ns).
pub(crate) fn note(now_ns: u64, cpu_ns: u64) {
    let lost_before_ns = KNOWN.get().lost_ns(now_ns, cpu_ns);
    KNOWN.set(Known { read_ns: now_ns, cpu_ns, lost_before_ns, ..Known::NOTHING });
}

/// This thread has slept so long (ns).
pub(crate) fn note_slept(slept_ns: u64) {
    let known = KNOWN.get();
    KNOWN.set(Known { slept_ns: known.slept_ns + slept_ns, ..known });
}

/// A timer of this thread fired so much later than was allowed for (ns).
pub(crate) fn note_overslept(overslept_ns: u64) {
    let known = KNOWN.get();
    KNOWN.set(Known { overslept_ns: known.overslept_ns + overslept_ns, ..known });
}

/// For how long this thread was kept from its processor lately: in the last milliseconds, or while the
/// last burst took (ns); 0 for a thread that is no worker.
#[cold]
pub fn lost_ns(now_ns: u64) -> u64 {
    let known = KNOWN.get();
    known.lost_before_ns.saturating_add(known.lost_ns(now_ns, thread_cpu_ns()))
}

impl Known {
    /// Lost since the clocks were read (ns).
    fn lost_ns(&self, now_ns: u64, cpu_ns: u64) -> u64 {
        if self.read_ns == 0 {
            return 0;
        }
        let awake_ns = now_ns.saturating_sub(self.read_ns).saturating_sub(self.slept_ns);
        awake_ns.saturating_sub(cpu_ns.saturating_sub(self.cpu_ns)) + self.overslept_ns
    }
}

/// The CPU time of the current thread (ns).
pub(crate) fn thread_cpu_ns() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    // Both fields are never negative for this clock.
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_awake_without_a_processor_is_lost_and_sleep_is_not() {
        let known = Known {
            read_ns: 1_000_000,
            cpu_ns: 500,
            slept_ns: 300_000,
            overslept_ns: 40_000,
            lost_before_ns: 9,
        };
        // A millisecond later, of which 600 us went by on the processor.
        assert_eq!(known.lost_ns(2_000_000, 500 + 600_000), 100_000 + 40_000);
        assert_eq!(known.lost_ns(2_000_000, 500 + 700_000), 40_000);
        assert_eq!(known.lost_ns(2_000_000, 500 + 900_000), 40_000, "clocks are read one by one");
    }

    #[test]
    fn a_thread_that_was_stopped_has_lost_that_time() {
        note(crate::clock::now_ns(), thread_cpu_ns());
        // Not of its own will, as far as anybody was told.
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(lost_ns(crate::clock::now_ns()) >= 15_000_000);
        // The next reading of the clocks does not forget it, the one after that does.
        note(crate::clock::now_ns(), thread_cpu_ns());
        assert!(lost_ns(crate::clock::now_ns()) >= 15_000_000);
        note(crate::clock::now_ns(), thread_cpu_ns());
        assert!(KNOWN.get().lost_before_ns < 15_000_000);
    }

    #[test]
    fn a_thread_that_is_no_worker_has_lost_nothing() {
        std::thread::spawn(|| assert_eq!(lost_ns(crate::clock::now_ns()), 0)).join().unwrap();
    }
}
