//! The one clock of the data path.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of `CLOCK_MONOTONIC`.
#[inline]
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // Both fields are never negative for this clock.
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Whole seconds of a time in nanoseconds: what the forwarding table counts age in.
#[inline]
pub fn secs(now_ns: u64) -> u32 {
    // 2^32 seconds of uptime are 136 years.
    (now_ns / 1_000_000_000) as u32
}
