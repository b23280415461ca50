//! The time that a burst took of its worker.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use weir_guestmem::ticks;
use weir_limits::BURST_NS_MAX;

use crate::lost::cpu_loss;
use crate::threads::clock;

/// Time for which the processor's counter is compared with the clock.
const CALIBRATION: Duration = Duration::from_millis(2);

/// Measures bursts by the CPU's counter. Beyond [`BURST_NS_MAX`], the thread's CPU clock bounds how much of a burst was
/// work: preemption is charged to nobody.
#[derive(Debug)]
pub(crate) struct Meter {
    /// Nanoseconds of a tick, times 2^32.
    scale: u64,
}

/// A burst under way: the counter at its beginning.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(crate) struct Begun(u64);

/// Nanoseconds of a tick of the processor's counter ([`ticks`]), times 2^32.
fn scale() -> u64 {
    static SCALE: OnceLock<u64> = OnceLock::new();
    *SCALE.get_or_init(calibrate)
}

/// Converts ticks of the processor's counter to nanoseconds.
pub fn ns_of_ticks(ticks: u64) -> u64 {
    Meter::new().to_ns(ticks)
}

/// Converts nanoseconds to ticks of the processor's counter.
pub fn ticks_of_ns(ns: u64) -> u64 {
    let ticks = (u128::from(ns) << 32) / u128::from(scale().max(1));
    u64::try_from(ticks).unwrap_or(u64::MAX)
}

impl Meter {
    pub(crate) fn new() -> Self {
        Self { scale: scale() }
    }

    #[inline]
    pub(crate) fn begin(&self, now_ns: u64) -> Begun {
        cpu_loss::look(now_ns);
        Begun(ticks::now())
    }

    /// Ends the burst. Returns the time it took (ns).
    #[inline]
    pub(crate) fn end(&self, begun: Begun) -> u64 {
        let took_ns = self.to_ns(ticks::now().saturating_sub(begun.0));
        if took_ns <= BURST_NS_MAX { took_ns } else { took_ns.min(cpu_loss::read(clock::now_ns())) }
    }

    fn to_ns(&self, ticks: u64) -> u64 {
        let ns = (u128::from(ticks) * u128::from(self.scale)) >> 32;
        u64::try_from(ns).unwrap_or(u64::MAX)
    }
}

/// Nanoseconds of a tick, times 2^32.
fn calibrate() -> u64 {
    let (ticks_before, ns_before) = both_clocks();
    let start = Instant::now();
    while start.elapsed() < CALIBRATION {
        std::hint::spin_loop();
    }
    let (ticks_after, ns_after) = both_clocks();
    let ticks = ticks_after.saturating_sub(ticks_before).max(1);
    let ns = ns_after.saturating_sub(ns_before);
    u64::try_from((u128::from(ns) << 32) / u128::from(ticks)).unwrap_or(u64::MAX)
}

/// The counter and the clock (ns), read as close together as a few attempts allow.
fn both_clocks() -> (u64, u64) {
    let read = |_| {
        let before = ticks::now();
        let now_ns = clock::now_ns();
        let apart = ticks::now().saturating_sub(before);
        (apart, before + apart / 2, now_ns)
    };
    let closest = (0..10).map(read).min();
    closest.map_or((0, 0), |(_, ticks, ns)| (ticks, ns))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_guestmem::ticks::thread_cpu_ns;

    fn spin_for(ns: u64) {
        let start = thread_cpu_ns();
        while thread_cpu_ns() - start < ns {}
    }

    #[test]
    fn a_bursts_cost_is_its_time_on_the_core() {
        let meter = Meter::new();
        let mut measured_ns = 0;
        let start_ns = thread_cpu_ns();
        for _ in 0..200 {
            let begun = meter.begin(clock::now_ns());
            spin_for(50_000);
            measured_ns += meter.end(begun);
        }
        let cpu_ns = thread_cpu_ns() - start_ns;
        // A burst below the bound may include some time that the kernel took.
        assert!(measured_ns >= cpu_ns * 9 / 10, "{measured_ns} of {cpu_ns}");
        assert!(measured_ns <= cpu_ns * 4, "{measured_ns} of {cpu_ns}");
    }

    #[test]
    fn time_without_the_core_is_nobodys_cost() {
        let meter = Meter::new();
        let begun = meter.begin(clock::now_ns());
        std::thread::sleep(Duration::from_millis(300));
        assert!(meter.end(begun) < 150_000_000);
    }

    #[test]
    fn no_count_of_ticks_overflows() {
        let meter = Meter { scale: u64::MAX };
        assert_eq!(meter.to_ns(u64::MAX), u64::MAX);
        let meter = Meter { scale: 1 << 31 };
        assert_eq!(meter.to_ns(u64::MAX), u64::MAX / 2);
    }
}
