//! Decides when a container of frames is due (Thakur 2014, after Bourguiba 2012).
//!
//! Frames for one guest gather in a *container* that is handed over as a whole: one publication,
//! one call, and for a guest that unpacks them itself one buffer. [`Container`] counts its frames
//! and knows when size or timeout make it due; [`Playout`] estimates whether it is worth waiting
//! for more. The policies `aggregate` and `aggregate-adaptive` of [`crate::moderation`] use both.

mod container;
mod playout;

pub use container::{Container, Limits};
pub use playout::Playout;

#[cfg(test)]
mod tests;
