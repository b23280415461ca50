//! Primitives that `tests/model` replaces with its own, so that the model checker can run the code built on them.

pub(crate) use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
pub(crate) use std::sync::{Mutex, MutexGuard};

pub(crate) use crate::queue::turn::pause;
