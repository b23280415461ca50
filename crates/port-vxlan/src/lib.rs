//! An overlay as a port of the switch: networks whose frames travel between hosts in UDP datagrams (VXLAN, RFC 7348).
//!
//! | file | what |
//! |---|---|
//! | `header.rs` | the eight bytes before a frame |
//! | `networks.rs` | [`Networks`]: the networks, and the hosts that are members of each |
//! | `sockets.rs` | [`OverlaySockets`]: open and bind; [`OverlayError`], with advice |
//! | `tx.rs` | frames from other hosts, and the buffers in which they lie |
//! | `rx.rs` | frames to other hosts: the choice of the host, and of the source port; the words of `across.rs` |
//! | `across.rs` | latency budgets of two hosts: their words, and the resulting shares |
//! | `agreement.rs` | what IDs of groups mean at two hosts |
//! | `sightings.rs` | owners of addresses, and claims of addresses |
//! | `suppress.rs` | neighbour questions that are answered here; guests' claims of addresses |
//! | `port.rs` | [`VxlanPort`]: the engine's view of the port, and weir's own frames to guests |
//! | `sys.rs` | socket options; the only file with `unsafe` |
//!
//! Directions are the port's, as for a guest: *tx* frames come from other hosts into the switch,
//! *rx* frames go to them. To the engine the port is one uplink that is a member of all networks:
//! the number of a frame's network takes the place of a VLAN tag. In the forwarding table, the
//! port's *remote* is the host that has an address.
//!
//! The kernel has the outer headers: it routes, resolves neighbours, fills in checksums, learns the path's MTU, and
//! puts fragments together before a socket sees them. Datagrams have DF set, so that weir's own are not fragmented.
//!
//! # A frame's way
//!
//! **From another host.** The socket is readable. `TransmitQueue::take` calls `SocketQueue::fill`: one `recvmmsg`
//! brings up to 32 messages, each into a buffer of weir's, and a message holds up to 64 datagrams of one sender (UDP
//! GRO). Each datagram's header names a network, of which the sender has to be a member. `Burst::name_network` puts
//! the network where a trunk's frame has its tag. After the switch has learned the source address, the port notes the
//! sender as its remote.
//!
//! **To another host.** `VxlanPort::deliver` sorts the frames by the socket that their flow has. `emit` completes
//! checksums and cuts TSO frames. `guestmem`'s `Batch` gathers header and front from weir's copy, the rest from the
//! sending guest's memory, joins datagrams of one length for one host (UDP GSO), and sends all by `sendmmsg`.
//!
//! # Tests
//!
//! `cargo test -p weir-port-vxlan`. Hosts are loopback addresses, so most tests need no privilege.
//! Names that begin with `root_` make a network namespace. `crates/cli/tests/overlay` has whole
//! switches, and a kernel's VXLAN device as peer.
#![deny(unsafe_code)]

mod across;
mod agreement;
mod header;
mod networks;
mod port;
mod rx;
mod sightings;
mod sockets;
mod suppress;
#[allow(unsafe_code)]
mod sys;
mod tx;

pub use across::{Between, Heard, Here};
pub use networks::{ClaimsGroups, GroupSet, GroupSets, NetworkSpec, Networks};
pub use port::{AnswerCounters, VxlanPort};
pub use sightings::{Owned, Sighting};
pub use sockets::{OuterDscp, OverlayError, OverlayOptions, OverlaySockets};

#[cfg(test)]
mod tests;
