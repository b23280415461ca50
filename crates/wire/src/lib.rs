//! The parts of a frame as checked values: Ethernet, VLAN, IPv4/IPv6, TCP/UDP and `struct virtio_net_hdr`.
//!
//! The crate does no I/O, allocates nothing on the datapath and has no `unsafe`. It never sees guest memory: callers
//! copy a frame's front once into a [`Head`], and everything here works on that copy. From the top down:
//!
//! 1. [`Ethernet::parse`] reads the fields of every frame that the switch needs: addresses, tag, ethertype.
//!    [`Head::strip_vlan`] and [`Head::insert_vlan`] change the tag.
//! 2. [`Layers::parse`] continues to IP and TCP/UDP for the few callers that need them. Only a short Ethernet
//!    header is an error; deeper truncated or garbled headers are `Other`.
//! 3. [`Offload::from_vnet`] checks a driver's [`VnetHdr`]; [`OffloadCaps::accepts`] tells whether a receiver takes
//!    the offload as it is.
//! 4. Otherwise [`Segmenter`] cuts a GSO frame and [`fill_checksum`] completes a checksum, both on
//!    [`checksum::Sum`].
//! 5. [`Merge`] makes one packet of TCP segments, for a receiver that takes such packets.
//! 6. [`container`] lays out several frames in one buffer, for a guest that unpacks them.
//! 7. [`flow_hash`] is the RSS hash of a frame's flow.
//! 8. [`Neighbour`] reads requests and claims of ARP and neighbour discovery, and [`Answer`] answers requests.
//! 9. [`TooBig`] tells the sender of a packet that it is too long.
//! 10. [`Head::traffic_class`] reads DSCP and ECN, and [`leave_tunnel`] marks a packet that met congestion in a tunnel.
#![forbid(unsafe_code)]

mod bytes;
pub mod checksum;
pub mod container;
pub mod ethernet;
pub mod flow;
pub mod gro;
pub mod gso;
pub mod head;
pub mod layers;
pub mod neighbour;
pub mod offload;
#[cfg(test)]
mod testing;
pub mod too_big;
pub mod traffic_class;
pub mod vlan;
pub mod vnet;

pub use checksum::{FillError, Sum, fill_checksum};
pub use ethernet::{Ethernet, ParseError, ethertype};
pub use ethernet::{Mac, MacParseError};
pub use flow::{Toeplitz, flow_hash, toeplitz};
pub use gro::{Merge, MergedPacket, Next, TcpSegment};
pub use gso::{GsoError, Segment, Segmenter};
pub use head::{Head, TagError};
pub use layers::{Ipv4, Ipv6, Layers, Network, Ports, Transport};
pub use neighbour::{Answer, Neighbour, Owner, rarp};
pub use offload::{
    CsumPartial, Fit, Gso, GsoKind, Offload, OffloadCaps, OffloadError, transport_csum,
};
pub use too_big::TooBig;
pub use traffic_class::{MarkedNotEct, leave_tunnel, traffic_class};
pub use vlan::{TagProtocol, Tci};
pub use vnet::VnetHdr;
