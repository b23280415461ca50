//! Virtqueues, split (virtio 1.2 §2.7) and packed (§2.8): the device side for weir, and the driver side for the
//! user-space guest `vif` and the tests.
//!
//! | file | what |
//! |---|---|
//! | `index.rs` | arithmetic of free-running 16-bit indices and wrap counters, in one place |
//! | `layout.rs` | positions of the fields, and the flags |
//! | `buffers.rs` | a descriptor, and the checks that make it a piece of memory |
//! | `device.rs` | [`DeviceRing`]: take chains, complete, publish, decide about calls; any format |
//! | `dirty.rs` | [`RingLog`]: the bytes that a device has written, for a guest that migrates |
//! | `driver.rs` | [`DriverRing`]: offer buffers, decide about kicks, take back; any format |
//! | `in_order.rs` | completions that wait for their turn (`VIRTIO_F_IN_ORDER`) |
//! | `split/`, `packed/` | for each format: `device.rs`, `driver.rs`, and `chain.rs`, the walk over a guest's descriptors |
//!
//! The worst that a guest can write into a ring is a [`RingError`].
#![forbid(unsafe_code)]

mod buffers;
mod device;
mod dirty;
mod driver;
mod error;
mod in_order;
mod index;
mod layout;
mod packed;
mod record;
mod split;

pub use buffers::{Chain, Direction, Plain, Taken, Token};
pub use device::DeviceRing;
pub use dirty::RingLog;
pub use driver::{Buffer, DriverRing, Used};
pub use error::{RingError, SetupError};
pub use layout::{Addresses, RingConfig, area_sizes, ring_size};
pub use packed::device::is_untouched;
pub use record::{Origin, Record};

#[cfg(test)]
mod tests;
