//! What `tests/model` has in its own way, where the model checker runs what is built on it.

pub(crate) use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
pub(crate) use std::sync::{Mutex, MutexGuard};

pub(crate) use crate::queue::turn::pause;
