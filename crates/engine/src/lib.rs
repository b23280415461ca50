//! The engine: workers that sleep until a kick, take bursts from ports, forward them, and put them into other ports,
//! with one copy from the sender's memory to the receiver's.
//!
//! The engine has rooms, each on a floor. A room uses rooms of lower floors only:
//!
//! | floor | room | what |
//! |---|---|---|
//! | 6 | `engine.rs` | start and stop, ports in and out |
//! | | `capture/` | copies of frames for an observer, and frames that are followed |
//! | | `trace.rs` | the way that a frame would take, and the reasons |
//! | | `own.rs` | frames that weir sends itself |
//! | 5 | `working/` | the workers: whose turn it is, waits, and queues that move |
//! | | `guest/` | an interface of a guest: its queues, its state |
//! | 4 | `taps/` | the observers at ports |
//! | | `queue/` | one queue of a port, with any rings: turns, parking, order of publication, stop |
//! | 3 | `switching/` | the way of a burst's frames to their receivers |
//! | | `calls/` | the times of calls to a guest, and the calls that are owed |
//! | | `lost/` | time that workers lose |
//! | 2 | `frames/` | frames under way, counters, and the interface of a port |
//! | 1 | `threads/` | the tools of every thread |
//!
//! Nothing here knows whether a port is a virtqueue, a TAP or something else.
#![deny(unsafe_code)]

mod calls;
pub mod capture;
mod engine;
mod frames;
pub mod guest;
mod lost;
mod own;
pub mod queue;
mod switching;
mod taps;
mod threads;
pub mod trace;
mod working;

pub use engine::{Engine, Priority, WorkerStats, is_real_time, set_priority, thread_cpu_ns};
pub use frames::drop_reason::DropReason;
pub use frames::flow::{record_flows, symmetric_hash};
pub use frames::inbox::Inbox;
pub use frames::port::QueueRef;
pub use frames::port::{
    Ask, Claims, Delivered, Forward, Outgoing, Overlay, Port, Side, Take, Taken,
};
pub use frames::stats::PortCounters;
pub use frames::{burst, egress, gro, stats};
pub use lost::cpu_loss::CpuClock;
pub use lost::dear;
pub use switching::limits::StormLimit;
pub use switching::limits::{Rate, RateLimit};
pub use switching::pair::{Pair, Pairs};
pub use switching::settings::PortSettings;
pub use switching::switch::{Forwarder, Hold, Ingress, Ports, Slot};
pub use switching::{filter, groups};
pub use threads::beat::{Panics, panicked, supervise};
pub use threads::lock::lock;
pub use threads::{beat, clock, logs, stages};
pub use working::crew::WokenFor;
pub use working::crew::{Execution, Options, Realization};
pub use working::dispatcher::Moved;
pub use working::meter::{ns_of_ticks, ticks_of_ns};
pub use working::poller::Watch;

#[cfg(test)]
mod tests;
