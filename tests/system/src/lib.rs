//! System tests of weir with programs that it does not control, with the test bed of `tests/bed`.
//!
//! [`guests`] are the system tests of `make test`: Linux guests, the kernel, DPDK. [`frontends`] is `make frontends`,
//! [`xen`] is `make test-xen`. Each prints as it goes and returns a [`Tally`](weir_bed::error::Tally).

#![forbid(unsafe_code)]

pub mod frontends;
pub mod guests;
pub mod xen;

/// A TCP stream that flows is faster on any machine, however busy that is. The tests do not check how fast it is.
const TCP_BITS_PER_SECOND_MIN: f64 = 1e6;
