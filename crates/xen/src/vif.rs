//! A vif's back end: what xenstore says about it, and what is done about that.
//!
//! | file | what |
//! |---|---|
//! | `vifs.rs` | [`Vifs`]: finds vifs in xenstore and does what their back ends decide |
//! | `backend.rs` | [`Backend`]: one vif's state machine, pure |
//! | `channel.rs` | where a guest's channel is met |
//! | `keys.rs` | what both ends write into xenstore, parsed and bounded |

mod backend;
mod channel;
mod keys;
mod vifs;

pub use backend::{Action, Backend, Seen, XenbusState};
pub use channel::channel_socket;
pub use keys::{FrontKeys, KeyError, Offer, QueueKeys, RingKeys, VifKeys};
pub use vifs::{Serve, VifId, Vifs};

#[cfg(test)]
mod tests;
