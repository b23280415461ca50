//! When a container of frames is due (Thakur 2014, after Bourguiba 2012).
//!
//! Frames for one guest gather in a *container* that is handed over as a whole: one publication, one
//! call, and for a guest that unpacks them itself one buffer. [`Container`] knows what has gathered and
//! when that is due by its size and its timeout; [`Playout`] estimates whether it is worth waiting for
//! more. The policies `aggregate` and `aggregate-adaptive` of [`crate::moderation`] are made of them.

mod container;
mod playout;

pub use container::{Container, Limits};
pub use playout::Playout;

#[cfg(test)]
mod tests;
