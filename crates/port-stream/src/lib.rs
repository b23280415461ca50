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
#![forbid(unsafe_code)]

mod device;
mod frames;
mod guard;

pub use device::{Dial, Keep, StreamDevice, StreamOptions, leads_to};

#[cfg(test)]
mod tests;
