//! A TAP device as a port of the switch: the uplink to the host's network stack.
//!
//! | file | what |
//! |---|---|
//! | `device.rs` | [`Tap`]: open or attach, offloads, MTU, link |
//! | `port.rs` | [`TapPort`]: what the engine asks of a port |
//! | `tx.rs` | one queue's frames from the host, and the buffers they wait in |
//! | `error.rs` | [`TapError`], with what to do about it |
//! | `sys.rs` | the ioctls; the only file with `unsafe` |
//!
//! Directions are the port's, as for a guest: *tx* is what comes from the host into the switch
//! (read from the TAP), *rx* what the switch sends to the host (written into it). A frame toward the
//! host is one `writev` straight from the sending guest's memory; a frame from the host is one `read`
//! into a buffer of weir's, from which each receiver copies once. With `IFF_VNET_HDR` both carry a
//! `virtio_net_hdr`, so that checksums and segmentation are left undone from end to end.
#![deny(unsafe_code)]

mod device;
mod error;
mod port;
#[allow(unsafe_code)]
mod sys;
mod tx;

pub use device::{Tap, TapInfo, TapOptions};
pub use error::{NameProblem, TapError};
pub use port::TapPort;

#[cfg(test)]
mod tests;
