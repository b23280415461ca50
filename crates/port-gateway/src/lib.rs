//! weir itself as a station of a network: a port of the switch behind which weir answers for its own addresses, and
//! gives addresses to guests (DHCP, RFC 2131).
//!
//! | file | what |
//! |---|---|
//! | `port.rs` | [`GatewayPort`]: what the engine asks of a port; which frames are worth a look, and of whom |
//! | `desk.rs` | frames that wait to be looked at, and answers that wait to be sent |
//! | `service.rs` | [`Service`]: the thread that looks and answers |
//! | `answer.rs` | what becomes of one frame: ARP, neighbour discovery, echo, DHCP |
//! | `dhcp.rs` | `Dhcp`: what becomes of one message of a client |
//! | `names.rs` | `Names`: names of guests, and what of a question goes to the host's resolver |
//! | `forward.rs` | the thread that asks the resolver |
//! | `leases.rs` | `Leases`: who has which address, and until when |
//! | `store.rs` | [`Store`]: the file in which leases outlive weir |
//! | `advert.rs` | router advertisements |
//! | `frame.rs` | headers around an answer |
//!
//! Frames reach the port as they reach any station: by the address of the port, or by a flood. Frames between others do
//! not come here, and meet no code of this crate. A worker only copies a frame that is for weir, if its sender may send
//! another one; a thread of its own does the rest. Answers are frames that the port sends.
//!
//! Who asks is known by the port that an address is behind (`weir_fabric::Fdb`), never by what a frame says. Only guests'
//! ports are served. An answer leaves only while its receiver is still behind the port that asked: it never gets to an
//! uplink, nor to another guest.
#![forbid(unsafe_code)]

mod advert;
mod answer;
mod desk;
mod dhcp;
mod forward;
mod frame;
mod leases;
mod names;
mod port;
mod service;
mod store;

pub use advert::RaSettings;
pub use desk::{Bell, GatewayCounters, HostSide};
pub use dhcp::DhcpSettings;
pub use forward::Dial;
pub use leases::{Client, Hold, Lease};
pub use port::{GatewayPort, GatewaySettings, Guest};
pub use service::{NamesSettings, Service};
pub use store::Store;
