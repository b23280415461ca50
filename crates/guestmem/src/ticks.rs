//! The processor's own counter, the cheapest clock.

/// Unit of [`now`], for people.
pub const UNIT: &str = if cfg!(target_arch = "x86_64") {
    "TSC cycles"
} else if cfg!(target_arch = "aarch64") {
    "CNTVCT ticks"
} else {
    "ns"
};

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
