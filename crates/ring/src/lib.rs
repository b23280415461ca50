//! Virtqueues (virtio 1.2 §2.7): the device side, which weir is, and the driver side, which the
//! user-space guest `vif` and the tests are.
//!
//! | file | what |
//! |---|---|
//! | `index.rs` | arithmetic of free-running 16-bit indices, in one place |
//! | `layout.rs` | where a split ring's fields lie, and its flags |
//! | `split/device.rs` | [`SplitDevice`]: take chains, complete, publish, call or not |
//! | `split/chain.rs` | the walk over a chain that a guest wrote, with every check |
//! | `split/driver.rs` | [`SplitDriver`]: offer buffers, kick or not, take back |
//!
//! Nothing a guest writes into a ring can do more than yield a [`RingError`].
#![forbid(unsafe_code)]

mod error;
mod index;
mod layout;
mod split;

pub use error::{RingError, SetupError};
pub use layout::{Addresses, RingConfig, area_sizes};
pub use split::chain::Chain;
pub use split::device::SplitDevice;
pub use split::driver::{Buffer, SplitDriver, Used};

#[cfg(test)]
mod tests;
