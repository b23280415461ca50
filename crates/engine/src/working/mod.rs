//! The workers: threads that sleep until a kick, take bursts from ports and forward them.
//!
//! | file | what |
//! |---|---|
//! | `worker.rs` | the loop: take, forward, repeat |
//! | `worker/` | without work: busy-poll, nap, sleep; kicks; retries of frames; held calls on time |
//! | `run_queue.rs` | the queue whose turn is next, queues that wait for their rate, queues to poll |
//! | `share.rs` | each port's share of the workers, and its rate |
//! | `meter.rs` | a burst's cost in worker time |
//! | `poller.rs` | epoll: kicks and wake-ups |
//! | `kicks.rs` | kicks without frames |
//! | `stalls.rs` | frames that wait for a receiver |
//! | `holds.rs` | the times at which a worker must ask its ports about held calls |
//! | `crew.rs` | the workers, the queues of each, and data of a worker that other threads see |
//! | `dispatcher.rs` | moves queues between workers by load |
//! | `shared.rs` | data that workers share |

pub(crate) mod crew;
pub(crate) mod dispatcher;
mod holds;
mod kicks;
pub(crate) mod meter;
pub(crate) mod poller;
mod run_queue;
pub(crate) mod share;
pub(crate) mod shared;
pub(crate) mod stalls;
pub(crate) mod worker;
