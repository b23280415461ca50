//! Guests over vhost-user: sessions, and virtqueues as a port of the switch.
//!
//! | file | what |
//! |---|---|
//! | `tx.rs` | transmit queues: ring to burst, and completion |
//! | `rx.rs` | receive queues: burst to ring (the one copy), and the call |
//! | `rx/container.rs` | several frames in one buffer, for guests that unpack them |
//! | `port.rs` | the interface as the engine sees it |
//! | `session.rs` | a front end's requests |
//! | `manager.rs` | sockets: listen or connect, one thread for all interfaces |
//! | `front_end.rs` | a thread for each front end that is there |
//! | `allowance.rs` | the processor time that a session may use |
//! | `records.rs` | ring state that survives a SIGKILL, and its file |
//! | `keep.rs`, `session/kept.rs` | the part of a session that outlives weir, and how the session is resumed |
//! | `migration.rs`, `session/log.rs` | the dirty log of a guest that is migrated |
//! | `features.rs` | offered and negotiated features |
//! | `queue.rs`, `notify.rs`, `error.rs` | a ring in service, and why it serves nobody; calls; why a port stopped |
//!
//! The engine has turns of workers, waiting frames, the order of publication and held calls
//! ([`weir_engine::queue`], [`weir_engine::guest`]).
//!
//! # A frame's way
//!
//! **From the guest.** A kick wakes the worker, which calls `VhostPort::take`. `TransmitQueue::take` locks the queue
//! and calls `Sending::fill`: chains are taken and checked, fronts copied out. It forwards the burst, and
//! `Sending::settle` completes the chains. A frame whose receiver is full keeps its chain (`DeviceRing::keep`).
//!
//! **To the guest.** `VhostPort::deliver` locks the receive queue. `rx::place` takes chains ahead and writes headers
//! and fronts; without the lock, `Copies::copy` copies the rest from the sender's memory; `rx::finish` publishes with
//! one index write, in the order of placing, and the policy says whether the guest is called.
//!
//! # Tests
//!
//! `cargo test -p weir-port-vhost`. `src/tests/` drives a whole switch with guests of its own over real sockets, in
//! all ring formats: traffic, hostile guests, sessions, several workers, rings resumed after a death.
//! `examples/vhost_crate.rs` is another implementation's front end; `examples/instructions` is what `xtask
//! instructions` counts.
#![forbid(unsafe_code)]

mod allowance;
mod error;
mod features;
mod front_end;
mod keep;
mod manager;
mod migration;
mod notify;
mod port;
mod queue;
mod records;
mod rx;
mod session;
mod tx;

pub use error::{Refusal, StopReason};
pub use keep::{Keep, Settled};
pub use manager::{Dial, Endpoint, Manager, ManagerGone, StillBusy};
pub use port::{VhostOptions, VhostPort};
pub use records::Records;

#[cfg(test)]
mod tests;
