//! A stream socket as an uplink: each frame behind four bytes of length, as QEMU's `-netdev stream` and gvproxy
//! have it.
//!
//! | file | what |
//! |---|---|
//! | `device.rs` | [`StreamDevice`]: reads and sends, and the thread that connects |
//! | `frames.rs` | where a frame begins and ends in the stream |
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

use std::net::Ipv4Addr;

use weir_wire::ethernet::HEADER_LEN;
use weir_wire::layers::protocol;

pub use device::{Dial, Keep, StreamDevice, StreamOptions, leads_to};

/// gvproxy's own address (`gatewayIP` in its `cmd/gvproxy/main.go`).
const GATEWAY: Ipv4Addr = Ipv4Addr::new(192, 168, 127, 1);
/// The address that stands for the host's loopback (`hostIP`).
const HOST: Ipv4Addr = Ipv4Addr::new(192, 168, 127, 254);

const TYPE_IPV4: [u8; 2] = [0x08, 0x00];
const DNS: u16 = 53;
const DHCP_SERVER: u16 = 67;

/// The services of gvproxy that guests may use. gvproxy answers at two addresses, which its command line cannot change.
/// At the gateway's address it serves its API, by which a guest opens ports of the host. Packets to the other address
/// go to the host's loopback.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Guard {
    /// The API, and the host's loopback.
    pub(crate) host_access: bool,
    /// Addresses by DHCP.
    pub(crate) asks_dhcp: bool,
}

/// The fields of an IPv4 packet that name its receiver.
struct Packet {
    protocol: u8,
    to: Ipv4Addr,
    /// The destination port; `None` in a fragment, whose port is in another fragment or can be overwritten by one.
    port: Option<u16>,
}

impl Packet {
    /// The packet at the front of a frame; `None` without IPv4.
    fn of(frame: &[u8]) -> Option<Self> {
        // gvproxy reads no frame with a tag.
        if frame.get(12..HEADER_LEN)? != TYPE_IPV4 {
            return None;
        }
        let packet = frame.get(HEADER_LEN..)?;
        let header = packet.first_chunk::<20>()?;
        let header_len = usize::from(header[0] & 0xf) * 4;
        let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
        let port = packet.get(header_len + 2..header_len + 4).filter(|_| !fragment);
        Some(Self {
            protocol: header[9],
            to: Ipv4Addr::new(header[16], header[17], header[18], header[19]),
            port: port.and_then(|port| Some(u16::from_be_bytes(*port.first_chunk()?))),
        })
    }
}

impl Guard {
    /// True if the peer may get a frame with this front, which reaches to the end of any headers of IPv4.
    pub(crate) fn lets_pass(self, front: &[u8]) -> bool {
        let Some(Packet { protocol, to, port }) = Packet::of(front) else { return true };
        if !self.asks_dhcp && protocol == protocol::UDP && port == Some(DHCP_SERVER) {
            return false;
        }
        if self.host_access {
            return true;
        }
        // A connection to 0.0.0.0 is one to the loopback.
        if to.is_loopback() || to.octets()[0] == 0 || to == HOST {
            return false;
        }
        to != GATEWAY
            || match protocol {
                protocol::ICMP => true,
                protocol::UDP => matches!(port, Some(DNS | DHCP_SERVER)),
                protocol::TCP => port == Some(DNS),
                _ => false,
            }
    }
}

#[cfg(test)]
mod tests;
