//! A vif's back end: what xenstore says about it, and what is done about that.

mod backend;
mod keys;
mod vifs;

pub use backend::{Action, Backend, Seen, XenbusState};
pub use keys::{FrontKeys, KeyError, Offer, QueueKeys, RingKeys, VifKeys};
pub use vifs::{Serve, VifId, Vifs};

#[cfg(test)]
mod tests;
