//! The part of this crate, besides windows, that the model checker `loom` runs. The handler itself
//! handles real signals.

#[path = "place.rs"]
mod place;

pub use place::Place;

mod atomic {
    pub(super) use loom::sync::atomic::{AtomicUsize, Ordering};

    pub(super) use crate::window::fence;
}
