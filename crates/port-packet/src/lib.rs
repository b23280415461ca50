//! An interface of the host as a port of the switch, by packet sockets (packet(7)): the uplink to a network that
//! any driver serves, without a bridge.
//!
//! | file | what |
//! |---|---|
//! | `socket.rs` | [`PacketSocket`]: open and bind, one socket per queue, and reading from it |
//! | `auxdata.rs` | the VLAN tag that Linux takes out of a frame, put back |
//! | `error.rs` | [`PacketError`], with advice |
//! | `sys.rs` | bind(2), getsockname(2) and the socket options; the only file with `unsafe` |
//!
//! The port itself is [`weir_port_tap::FramePort`], as for a TAP: a burst toward the interface is one `sendmmsg`
//! straight from the sending guest's memory, a burst from it one `recvmmsg` into buffers of weir's. With
//! `PACKET_VNET_HDR` frames carry a `virtio_net_hdr`: Linux segments and fills in checksums where the interface does not.
//!
//! The host keeps using the interface: its stack receives incoming frames too, and its own frames do not reach the
//! switch (`PACKET_IGNORE_OUTGOING`). An interface for weir alone should have no addresses.
//!
//! # A frame's way
//!
//! **From the interface.** The socket is readable, its epoll entry names the queue, and a worker calls `Port::take`.
//! `FramePort` calls `FrameDevice::receive`: one `recvmmsg` for up to 32 frames, each into a buffer of weir's
//! (`virtio_net_hdr`, frame, and the tag as auxiliary data). A frame stays in its buffer until its receivers have
//! copied it, or waits there for a full one.
//!
//! **To the interface.** `FramePort::deliver` sends a burst with one `sendmmsg`: of each packet header and front from
//! weir's checked copy, the rest from the sending guest's memory. A frame that the interface's queue has no room for
//! is dropped.
//!
//! Frames that this host sends on the interface are not taken (`PACKET_IGNORE_OUTGOING`).
//!
//! # Tests
//!
//! `cargo test -p weir-port-packet`. Tests whose names begin with `root_` make a network namespace and a veth pair,
//! and pass over that without root. The queue's own tests are those of `port-tap` and of `weir-engine`.
#![deny(unsafe_code)]

// PACKET_VNET_HDR has the host's byte order, and there is no option for another.
#[cfg(target_endian = "big")]
compile_error!("packet sockets with a little-endian virtio_net_hdr take a little-endian host");

use weir_port_tap::LinkError;

mod auxdata;
mod socket;
#[allow(unsafe_code)]
mod sys;

pub use socket::{PacketInfo, PacketOptions, PacketSocket, promiscuous};

/// The reason why [`PacketSocket::open`] failed.
#[derive(Debug, thiserror::Error)]
pub enum PacketError {
    /// The interface cannot be an uplink of any kind.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The privilege for packet sockets is missing.
    #[error("not permitted to open a packet socket on interface `{name}`")]
    NotPermitted {
        /// The interface.
        name: String,
    },
}

impl PacketError {
    /// Advice to the user, if there is any.
    pub fn help(&self) -> Option<String> {
        match self {
            Self::Link(error) => error.help(),
            Self::NotPermitted { .. } => {
                Some("give weir CAP_NET_RAW (and CAP_NET_ADMIN to set MTU and link state)".into())
            }
        }
    }
}

#[cfg(test)]
mod tests;
