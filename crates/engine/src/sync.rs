//! Atomics of what `tests/model` runs under a model checker, with those of the checker in their place.

pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
