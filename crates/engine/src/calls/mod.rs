//! The times of calls (virtual interrupts) to a guest, and calls owed to it.
//!
//! | file | what |
//! |---|---|
//! | `policy.rs` | the settings of an interface's calls, and what they have decided |
//! | `ring.rs` | the calls that a ring can make |
//! | `received.rs`, `sent.rs` | calls for received frames, and for sent ones |
//! | `held.rs` | a call that waits for more frames |

pub(crate) mod held;
mod policy;
mod received;
mod ring;
mod sent;

pub use policy::{CallPolicy, CallTimes, QueueDecision};
pub use received::ReceiveCalls;
pub use ring::{GuestRing, ReceiveRing, TransmitRing};
pub use sent::{Asked, Completed, TransmitCalls};
pub use weir_policy::moderation::Received;
