//! The tools of every thread, which know no frame.
//!
//! | file | what |
//! |---|---|
//! | `clock.rs` | the time |
//! | `lock.rs`, `sync.rs` | locks, a count under a lock, and the primitives that the model checker replaces |
//! | `waits.rs` | a bell that rings when traffic begins, and a gate that threads pass when it opens |
//! | `beat.rs` | a word of each watched thread: what it does, and for which port; panics of other threads |
//! | `logs.rs` | limits on messages about one party |
//! | `slice.rs` | how soon a thread that wakes up gets its CPU |
//! | `stages.rs` | the cost of each datapath stage, in cycles |

pub mod beat;
pub mod clock;
pub(crate) mod lock;
pub mod logs;
#[allow(unsafe_code)]
pub(crate) mod slice;
pub mod stages;
pub(crate) mod sync;
pub(crate) mod waits;
