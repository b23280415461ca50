//! A stream socket as an uplink: each frame behind four bytes of length, as QEMU's `-netdev stream` and gvproxy have it.
//!
//! | file | what |
//! |---|---|
//! | `device.rs` | [`StreamDevice`]: reads and sends, and the thread that connects |
//! | `frames.rs` | where a frame begins and ends in the stream |
//! | `guard.rs` | what of gvproxy itself guests do not reach |
//!
//! The port is a [`FramePort`](weir_port_tap::FramePort). A peer that goes away comes back: the port stays, and drops
//! frames for the peer meanwhile.
//!
//! # A frame's way
//!
//! **From the peer.** The epoll set of the device is readable, its entry in the worker's epoll set names the queue,
//! and a worker calls `Port::take`. `StreamDevice::receive` looks at what has come (`MSG_PEEK`), copies whole frames
//! into buffers of weir's, and takes exactly these from the socket. The part of a frame that is at the end stays in
//! the kernel, so the socket is all the state there is, and the next weir goes on with it.
//!
//! **To the peer.** `FramePort::deliver` sends a burst with one `sendmmsg`: of each frame its length and its front
//! from weir's checked copy, the rest from the sending guest's memory. A frame is one message, which the kernel takes
//! whole or not at all. A frame for which there is no room is dropped.
//!
//! # Tests
//!
//! `cargo test -p weir-port-stream`. The peer is a socket pair, or a listener in a directory of the test.
#![forbid(unsafe_code)]

mod device;
mod guard;

pub use device::{Dial, Keep, StreamDevice, StreamOptions, leads_to};

#[cfg(test)]
mod tests;
