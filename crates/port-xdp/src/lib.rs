//! An interface of the host as a port of the switch, by AF_XDP sockets: frames go between the interface's driver
//! and memory that weir shares with the kernel, without the host's network stack.
//!
//! | file | what |
//! |---|---|
//! | `device.rs` | [`XdpInterface`]: opens everything, in order; the XDP program; [`XdpError`], with advice |
//! | `socket.rs` | one socket: its memory of frames (UMEM) in chunks, its rings, its doorbells |
//! | `ring.rs` | a ring that is shared with the kernel; has `unsafe` |
//! | `port.rs` | [`XdpPort`]: the engine's interface |
//! | `tx.rs` | one queue's frames from the interface, where the kernel put them |
//! | `rx.rs` | one queue's frames to the interface |
//! | `sys.rs` | bpf(2); has `unsafe` |
//!
//! Directions are the port's, as for a guest: *tx* frames come from the interface into the switch, *rx* frames
//! leave by it. A frame from the interface stays in the UMEM until its receiver has copied it. A frame toward it is
//! copied there straight from the sending guest's memory, and the kernel is notified once for a whole burst. There are
//! no offloads: the engine cuts GSO frames and fills in checksums before.
//!
//! The interface is weir's alone: incoming frames do not reach the host's stack.
//!
//! # A frame's way
//!
//! **From the interface.** The kernel puts the frame into a chunk and its descriptor into the RX ring.
//! `XdpPort::take` hands the queue to `TransmitQueue::take` (`engine/src/queue/transmit.rs`), which calls
//! `SocketQueue::fill`: descriptors become frames where they lie. A chunk goes back to the fill ring when its
//! receivers have copied; a frame whose receiver is full keeps it (`XDP_PARKED_MAX`).
//!
//! **To the interface.** `XdpPort::deliver` copies each packet into a free chunk under the queue's lock, cuts what
//! the interface does not, and rings the doorbell once a burst. Where the kernel is busy, `expired` rings again.
//!
//! # Tests
//!
//! `cargo test -p weir-port-xdp`. Rings run without a kernel (`ring.rs`); tests whose names begin with `root_` use a
//! veth pair in a network namespace, in copy mode, and are passed over without root. `examples/uplink_limit.rs`
//! measures the most that an uplink takes.
#![deny(unsafe_code)]

// The nibbles of an instruction's registers have the other order.
#[cfg(target_endian = "big")]
compile_error!("XDP programs are built for a little-endian host");

mod device;
mod port;
#[allow(unsafe_code)]
mod ring;
mod rx;
mod socket;
#[allow(unsafe_code)]
mod sys;
mod tx;

pub use device::XdpMode;
pub use device::{XdpError, XdpInfo, XdpInterface, XdpOptions};
pub use port::XdpPort;

#[cfg(test)]
mod tests;
