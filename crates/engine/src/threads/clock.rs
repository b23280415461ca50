//! The one clock of the data path.

#[cfg(test)]
thread_local! {
    /// The number of times that this thread has read the clock.
    pub(crate) static LOOKS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Nanoseconds of `CLOCK_MONOTONIC`.
///
/// A few instructions where the kernel has a vDSO clock. A system call elsewhere, such as with Xen's clock, unless
/// Xen itself uses the CPU's counter (`clocksource=tsc`).
#[inline]
pub fn now_ns() -> u64 {
    #[cfg(test)]
    LOOKS.set(LOOKS.get() + 1);
    weir_guestmem::ticks::now_ns()
}

/// Whole seconds of a time in nanoseconds: the unit of ages in the forwarding table.
#[inline]
pub fn secs(now_ns: u64) -> u32 {
    // 2^32 seconds of uptime are 136 years.
    (now_ns / 1_000_000_000) as u32
}
