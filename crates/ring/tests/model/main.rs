//! The real rings under the model checker `loom`, which tries every interleaving of two sides and every stale value
//! that the memory model permits: `docs/design/proofs.md#0008`.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p weir-ring --test model --profile model --target-dir target/loom
//! ```
//!
//! | file | waiting side, and the event it waits for |
//! |---|---|
//! | `transmit.rs` | the device for chains to send; each for the other, around a ring that is too short |
//! | `complete.rs` | the driver for returned chains |
//! | `fill.rs` | the driver for frames of two workers |
//! | `side_by_side.rs` | two workers that send from one ring, each for its turn |
//! | `waiting.rs` | the device for enough receive buffers; two workers for those of one ring |
#![cfg(loom)]

/// The engine's order of workers that fill one ring.
#[allow(dead_code)]
#[path = "../../../engine/src/queue/fill.rs"]
mod order;

mod complete;
mod fill;
mod rig;
mod side_by_side;
mod transmit;
mod waiting;
