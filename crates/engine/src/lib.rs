//! The engine: workers that sleep until a kick, take bursts from ports, forward them, and put them into other ports,
//! with one copy from the sender's memory to the receiver's.
//!
//! | file | what |
//! |---|---|
//! | `worker.rs` | the loop: take, forward, repeat |
//! | `worker/` | without work: busy-poll, nap, sleep; kicks; retries of frames; held calls on time |
//! | `stalls.rs`, `waiters.rs` | frames that wait for a receiver, and the workers that its buffers notify |
//! | `warm.rs` | queues that are polled because their kicks are off |
//! | `run_queue.rs` | the queue whose turn is next, and queues that wait for their rate |
//! | `share.rs` | each port's share of the workers, and its rate |
//! | `meter.rs` | a burst's cost in worker time |
//! | `switch.rs` | one burst: classify each frame, serve each receiver once |
//! | `burst.rs` | frames under way, their payload where it was |
//! | `burst/add.rs` | frames that ports add: their fronts are copied out and checked |
//! | `fronts.rs` | fronts of merged frames |
//! | `remote.rs` | payload that is fetched only if it is read |
//! | `port.rs` | the engine's interface to a port |
//! | `queue/` | one queue of a port, with any rings: turns, parking, order of publication, stop |
//! | `guest/` | the times of calls to a guest, and the calls that are owed |
//! | `egress.rs` | tag, checksum and segmentation for a receiver that needs them |
//! | `gro.rs` | TCP segments merged for a receiver that takes big packets |
//! | `filter.rs` | the frames that a port may send and receive |
//! | `groups.rs` | the connections that a port may have |
//! | `capture/` | copies of frames for an observer |
//! | `own.rs` | frames that weir sends itself |
//! | `trace.rs` | the way that a frame would take, and the reasons |
//! | `mtu.rs` | limits on the length of a port's frames |
//! | `storm.rs` | limits on flooded frames of a port |
//! | `police.rs` | limits on the traffic that a port receives in a second |
//! | `flow.rs` | the hash that assigns flows to queues |
//! | `poller.rs` | epoll: kicks and wake-ups |
//! | `stats.rs` | counters, hold times |
//! | `drop_reason.rs` | the reasons for which frames are dropped |
//! | `stages.rs` | the cost of each datapath stage, in cycles |
//! | `engine.rs` | start and stop, ports in and out |
//! | `cpu_loss.rs` | times at which a worker was kept from its CPU |
//! | `dear.rs` | expensive calls, and the ports that pay for them |
//! | `crew.rs` | the workers, and the queues of each |
//! | `dispatcher.rs` | moves queues between workers by load |
//! | `activity.rs` | a bell that rings when traffic begins |
//! | `ready.rs` | the number of queues of a port that can receive |
//! | `shared.rs`, `handle.rs` | data that workers share, and data of one that others see |
//! | `logs.rs` | limits on messages about one party |
//! | `supervise.rs` | panics of other threads |
//!
//! Nothing here knows whether a port is a virtqueue, a TAP or something else.
#![forbid(unsafe_code)]

mod activity;
pub mod beat;
mod blocked;
pub mod burst;
pub mod capture;
pub mod clock;
mod cpu_loss;
mod crew;
pub mod dear;
mod dispatcher;
mod drop_reason;
pub mod egress;
mod engine;
pub mod filter;
mod flow;
mod fronts;
mod gate;
pub mod gro;
pub mod groups;
pub mod guest;
mod handle;
mod holds;
mod kicks;
mod lock;
pub mod logs;
mod meter;
mod mtu;
mod own;
mod per_queue;
mod police;
mod poller;
mod port;
pub mod queue;
mod ready;
pub mod remote;
mod run_queue;
mod share;
mod shared;
pub mod stages;
mod stalls;
pub mod stats;
mod storm;
mod supervise;
mod switch;
mod sync;
pub mod trace;
mod waiters;
mod warm;
mod worker;

pub use cpu_loss::CpuClock;
pub use crew::{Execution, Options, Pair, Pairs, Realization};
pub use dispatcher::Moved;
pub use drop_reason::DropReason;
pub use engine::{Engine, Priority, WorkerStats, is_real_time, set_priority, thread_cpu_ns};
pub use flow::{record_flows, symmetric_hash};
pub use handle::WokenFor;
pub use lock::lock;
pub use meter::{ns_of_ticks, ticks_of_ns};
pub use poller::{QueueRef, Watch};
pub use port::{Ask, Delivered, Forward, Outgoing, Port, Side, Take, Taken};
pub use share::{Rate, RateLimit};
pub use stats::PortCounters;
pub use storm::StormLimit;
pub use supervise::{Panics, panicked, supervise};
pub use switch::{Forwarder, Hold, Ingress, Ports, Slot};

#[cfg(test)]
mod tests;
