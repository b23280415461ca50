//! A vif's back end: its state in xenstore, and the actions that follow from it.
//!
//! | file | contents |
//! |---|---|
//! | `vifs.rs` | [`Vifs`]: finds vifs in xenstore and executes their back ends' decisions |
//! | `backend.rs` | [`Backend`]: one vif's state machine, pure |
//! | `channel.rs` | the socket of a guest's channel |
//! | `keys.rs` | the keys of both ends in xenstore, parsed and bounded |

mod backend;
mod channel;
mod keys;
mod vifs;

pub use backend::{Action, Backend, Seen, XenbusState};
pub use channel::{channel_socket, domain_name};
pub use keys::{Credit, FrontKeys, KeyError, Offer, QueueKeys, RingKeys, VifKeys};
pub use vifs::{Serve, VifId, Vifs};

#[cfg(test)]
mod tests;
