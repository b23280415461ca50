//! What the model checker `loom` runs of this crate beside windows: the handler itself meets real signals.

#[path = "place.rs"]
mod place;

pub use place::Place;

mod atomic {
    pub(super) use loom::sync::atomic::{AtomicUsize, Ordering};

    pub(super) use crate::window::fence;
}
