//! The protocols between workers and threads that change ports, under the model checker `loom`, which tries every
//! interleaving and every stale value that the memory model permits: `docs/design/proofs.md#0008`.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p weir-engine --test model --profile model --target-dir target/loom
//! ```
//!
//! | file | what |
//! |---|---|
//! | `waiters.rs` | a worker whose frames wait for a receiver is notified when it has buffers |
//! | `ready.rs` | queues that start at the same time are all counted, and none of a port that fails |
//! | `closing.rs` | a ring stops when all taken frames are settled, and nothing new begins |
//!
//! The engine's files are the production ones, with the checker's locks and atomics in place of `sync.rs`.
#![cfg(loom)]

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
    pub(crate) use loom::sync::{Mutex, MutexGuard};

    /// Like `threads::sync::pause`: lets other threads run first.
    pub(crate) fn pause(_: &mut u32) {
        loom::thread::yield_now();
    }
}

/// The place that these have in the engine.
mod threads {
    pub(crate) use crate::{lock, sync};
}

#[path = "../../src/threads/lock.rs"]
mod lock;
#[path = "../../src/threads/ready.rs"]
mod ready_queues;
#[path = "../../src/queue/under_way.rs"]
mod under_way;
#[path = "../../src/switching/waiters.rs"]
mod waiters_of;

mod closing;
mod ready;
mod waiters;
