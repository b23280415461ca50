//! A TAP device as a port of the switch: the uplink to the host's network stack.
//!
//! | file | what |
//! |---|---|
//! | `device.rs` | [`Tap`]: open or attach, offloads |
//! | `link.rs` | [`Link`]: an interface's MTU, address, queues and state |
//! | `uplink.rs` | [`UplinkPort`]: the common part of all uplinks' ports |
//! | `port.rs` | [`FramePort`]: the engine's view of the port |
//! | `error.rs` | [`TapError`], and [`LinkError`] of all uplinks, with advice |
//! | `sys.rs` | the ioctls; the only file with `unsafe` |
//!
//! Directions are the port's, as for a guest: *tx* frames come from the host into the switch (read from the TAP),
//! *rx* frames go from the switch to the host (written into it). A frame toward the host is one `writev` straight
//! from the sending guest's memory. A frame from the host is one `read` into a buffer of weir's, from which each
//! receiver copies once. With `IFF_VNET_HDR` both carry a `virtio_net_hdr`, so checksums and segmentation stay
//! undone from end to end.
//!
//! # A frame's way
//!
//! **From the host.** The TAP is readable, and its epoll entry names the queue. The worker calls `FramePort::take`,
//! which hands the queue to `TransmitQueue::take` (`engine/src/queue/transmit.rs`). That calls `DeviceQueue::fill`:
//! one `read` a frame, at most 32, each into a buffer of weir's. Receivers copy from there. A frame whose receiver is
//! full keeps its buffer (`TAP_PARKED_MAX`). A read that finds nothing arms the queue: the descriptor is
//! edge-triggered.
//!
//! **To the host.** `FramePort::deliver` writes each packet with one `writev`: header and front from weir's checked
//! copy, the rest straight from the sending guest's memory. No lock is taken, and nothing is held: the kernel
//! publishes.
//!
//! # Tests
//!
//! `cargo test -p weir-port-tap`. `src/tests.rs` plays the host by a socket pair, with a property test of frames that
//! wait and of free buffers; `tests/side_by_side.rs` has several workers take from one queue; `tests/netns.rs` (names
//! begin with `root_`) makes a real TAP in a network namespace, and is passed over without root.
#![deny(unsafe_code)]

mod device;
mod error;
mod link;
mod port;
#[allow(unsafe_code)]
mod sys;
mod uplink;

pub use device::{Tap, TapInfo, TapOptions};
pub use error::{LinkError, NameError, NameProblem, TapError};
pub use link::{InterfaceName, Link};
pub use port::FramePort;
pub use port::{FrameDevice, SLOT_LEN};
pub use uplink::{DeviceFrames, FromDevice, Service, Uncalled, UplinkPort};

#[cfg(test)]
mod tests;
