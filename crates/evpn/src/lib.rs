//! Networks of a fabric under BGP EVPN (RFC 7432, RFC 8365): FRR, unchanged, says who is behind which host, and weir
//! says who is here. Both say it by what zebra looks at in the kernel
//! ([0043](../../docs/design/0043-evpn.md)).
//!
//! | file | what |
//! |---|---|
//! | `objects.rs` | [`Objects`]: the devices of each network that zebra looks at |
//! | `announce.rs` | [`Herald`], [`Announced`]: who is here, for zebra |
//! | `claims.rs` | [`Claims`]: which IP addresses those have who are here; pure |
//! | `watch.rs` | [`Watch`]: what zebra notes, as the kernel tells it |
//! | `table.rs` | [`Table`]: who is behind other hosts, from that; pure |
//! | `neighbours.rs` | which IP addresses those have; pure |
//! | `presence.rs` | [`Presence`]: whether FRR is there, and what is kept if not; pure |
//! | `resync.rs` | [`Resync`]: when a zebra that was restarted alone is to be told all anew; pure |
//! | `version.rs` | [`FrrVersion`]: which FRR there is |
//! | `socket.rs` | rtnetlink |
//! | `error.rs` | [`EvpnError`], with advice |
//!
//! Reading takes no privilege. Devices and announcements take `CAP_NET_ADMIN`, which a confined weir's helper has.
#![forbid(unsafe_code)]

mod announce;
mod claims;
mod error;
mod neighbours;
mod objects;
mod presence;
mod resync;
mod socket;
mod table;
mod version;
mod watch;

pub use announce::{Announced, Herald, How, Owned, Place};
pub use claims::{Claims, Judged};
pub use error::EvpnError;
pub use objects::{Devices, Objects, bridge_name, tap_name, vxlan_name};
pub use presence::Presence;
pub use resync::{QUESTION, Resync};
pub use table::{Dirty, Noted, Remote, Table};
pub use version::{FRR_OVER_IPV6, FrrVersion};
pub use watch::Watch;

#[cfg(test)]
mod tests;
