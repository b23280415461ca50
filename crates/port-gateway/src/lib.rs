//! weir itself as a station of a network: a port of the switch behind which weir answers for its own addresses, and
//! gives addresses to guests (DHCP, RFC 2131).
//!
//! | file | what |
//! |---|---|
//! | `port.rs` | [`GatewayPort`]: the engine's port, which copies the frames for weir |
//! | `desk.rs` | the queues of frames for the thread, and of its answers |
//! | `service.rs` | [`Service`]: the thread that answers |
//! | `answer.rs` | classifies frames; answers ARP, neighbour discovery and echo |
//! | `dhcp.rs` | `Dhcp`: the DHCP server |
//! | `dhcp6.rs` | DHCPv6: settings, and `Dhcp6`, the server |
//! | `names.rs` | `Names`: names of guests, and questions for the host's resolver |
//! | `stream.rs` | `Streams`: connections (TCP) for names |
//! | `forward.rs` | the thread that asks the resolver |
//! | `leases.rs` | `Leases`: each address, its client and its end |
//! | `store.rs` | [`Store`]: the file in which leases outlive weir |
//! | `advert.rs` | router advertisements, and queries for multicast groups |
//! | `frame.rs` | headers around an answer |
//! | `testing.rs` | answers at once, without a thread, for the fuzz target |
//!
//! Frames reach the port as they reach any station: by its address, or by a flood. Frames between other stations do not
//! reach it, and run no code of this crate. A worker only copies a frame for weir, within the sender's rate. A separate
//! thread does the rest. Answers are frames that the port sends.
//!
//! weir identifies a sender by the port that its address is behind (`weir_fabric::Fdb`), never by the contents of a
//! frame. Only guests' ports are served. An answer leaves only while its receiver is still behind the port of the
//! question: it never reaches an uplink or another guest.
#![forbid(unsafe_code)]

mod advert;
mod answer;
mod desk;
mod dhcp;
mod dhcp6;
mod forward;
mod frame;
mod leases;
mod names;
mod port;
mod service;
mod store;
mod stream;
#[cfg(feature = "testing")]
pub mod testing;

pub use advert::RaSettings;
pub use desk::{Asked, Bell, GatewayCounters, HostSide};
pub use dhcp::{BootSettings, DhcpSettings};
pub use dhcp6::Dhcp6Settings;
pub use forward::{Dial, HostSocket, Means};
pub use leases::{Client, Hold, Lease};
pub use port::{GatewayPort, GatewaySettings, Guest};
pub use service::{LeaseSettings, NamesSettings, Service};
pub use store::Store;
