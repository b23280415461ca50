//! Frames under way, and the interface of a port: all that the author of a port needs.
//!
//! | file | what |
//! |---|---|
//! | `burst.rs` | frames under way, their payload where it was |
//! | `burst/add.rs` | frames that ports add: their fronts are copied out and checked |
//! | `inbox.rs` | frames of a link's own protocol |
//! | `port.rs` | the engine's interface to a port; the name of one of its queues, and data for each |
//! | `turn.rs` | the order in which workers place frames from one queue |
//! | `egress.rs` | tag, checksum and segmentation for a receiver that needs them |
//! | `gro.rs` | TCP segments merged for a receiver that takes big packets |
//! | `flow.rs` | the hash that assigns flows to queues |
//! | `stats.rs`, `drop_reason.rs` | counters, hold times; the reasons why frames are dropped |

pub mod burst;
pub(crate) mod drop_reason;
pub mod egress;
pub(crate) mod flow;
pub mod gro;
pub(crate) mod inbox;
pub(crate) mod port;
pub mod stats;
pub(crate) mod turn;
