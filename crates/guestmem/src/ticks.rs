//! The processor's own counter, the cheapest clock, and the kernel's clocks.

use rustix::time::{ClockId, clock_gettime};

/// Unit of [`now`], for people.
pub const UNIT: &str = if cfg!(target_arch = "x86_64") {
    "TSC cycles"
} else if cfg!(target_arch = "aarch64") {
    "CNTVCT ticks"
} else {
    "ns"
};

#[inline]
fn ns(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    // Both fields are never negative for these clocks.
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Returns the time of `CLOCK_MONOTONIC` (ns).
#[inline]
pub fn now_ns() -> u64 {
    ns(ClockId::Monotonic)
}

/// Returns the CPU time of the calling thread (ns).
pub fn thread_cpu_ns() -> u64 {
    ns(ClockId::ThreadCPUTime)
}

/// Reads the CPU's counter. Its rate is constant whatever the core's clock does, and a machine's
/// cores agree on it as far as a kernel that uses it for its own clock can tell. The read does not
/// wait for earlier instructions, so it is a few dozen cycles early or late.
#[inline]
pub fn now() -> u64 {
    counter()
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn counter() -> u64 {
    // SAFETY: RDTSC is part of x86-64 and accesses no memory. A kernel that forbids it to programs
    // (PR_SET_TSC) ends this one, as it was asked to.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(target_arch = "aarch64")]
#[inline]
fn counter() -> u64 {
    let ticks: u64;
    // SAFETY: Linux lets programs read CNTVCT_EL0; that accesses no memory and no flags.
    unsafe {
        std::arch::asm!(
            "mrs {}, cntvct_el0",
            out(reg) ticks,
            options(nomem, nostack, preserves_flags)
        );
    }
    ticks
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn counter() -> u64 {
    use std::sync::OnceLock;
    use std::time::Instant;
    static START: OnceLock<Instant> = OnceLock::new();
    // 2^64 ns are 584 years.
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::now;

    #[test]
    fn the_counter_goes_on_and_never_back() {
        let start = now();
        let mut last = start;
        while last == start {
            let next = now();
            assert!(next >= last);
            last = next;
        }
    }
}
