//! Networks of a fabric under BGP EVPN (RFC 7432, RFC 8365). FRR, unchanged, tells which stations are behind which
//! host, and weir tells which stations are here. Both do so by objects that zebra watches in the kernel
//! ([0043](../../docs/design/0043-evpn.md)).
//!
//! | file | what |
//! |---|---|
//! | `objects.rs` | [`Objects`]: the devices of each network that zebra watches |
//! | `announce.rs` | [`Herald`], [`Announced`]: the stations here, for zebra |
//! | `claims.rs` | [`Claims`]: the IP addresses of stations here; pure |
//! | `watch.rs` | [`Watch`]: zebra's entries, from the kernel |
//! | `table.rs` | [`Table`]: the stations behind other hosts, from these entries; pure |
//! | `neighbours.rs` | the IP addresses of stations behind other hosts; pure |
//! | `presence.rs` | [`Presence`], [`Resync`]: FRR is there or not; a zebra that was restarted alone; pure |
//! | `version.rs` | [`FrrVersion`]: the version of FRR |
//! | `links.rs` | [`Links`]: the interfaces that have a carrier, for bonds of uplinks |
//! | `socket.rs` | rtnetlink |
//! | `error.rs` | [`EvpnError`], with advice |
//!
//! Reading takes no privilege. Devices and announcements take `CAP_NET_ADMIN`, which a confined weir's helper has.
#![forbid(unsafe_code)]

mod announce;
mod claims;
mod error;
mod links;
mod neighbours;
mod objects;
mod presence;
mod socket;
mod table;
mod version;
mod watch;

pub use announce::{Announced, Herald, How, Owned, Place};
pub use claims::{Claims, Judged};
pub use error::EvpnError;
pub use links::Links;
pub use objects::{Devices, Objects, bridge_name, tap_name, vxlan_name};
pub use presence::{Presence, QUESTION, Resync};
pub use table::{Dirty, Noted, Remote, Table};
pub use version::{FRR_OVER_IPV6, FrrVersion};
pub use watch::Watch;

#[cfg(test)]
mod tests;
