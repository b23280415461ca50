//! weir's decisions as pure code: time and samples in, verdicts out.
//!
//! Nothing here does I/O, reads a clock, starts a thread or logs. Time is a `u64` of nanoseconds
//! (or a `u32` of seconds) that the caller passes in, from any monotonic origin. The same compiled
//! code therefore runs under the engine on real time and under a simulation on virtual time, and a
//! result of the simulation holds for the engine.
//!
//! - [`aggregation`]: when frames that gather for a guest are due as a whole.
//! - [`attempt`]: trials of holds that no single queue can judge.
//! - [`budget`]: how a latency budget is split between the uplink and the guests' queues.
//! - [`costs`]: the cost of a call and of an uplink wake-up, from CPU times.
//! - [`dispatch`]: which worker serves which queue.
//! - [`lateness`]: how much earlier than a deadline to set the timer for it.
//! - [`law`]: the constants of all these, each with its trade-off.
//! - [`moderation`]: when to interrupt the guest after frames were published in a receive queue.
//! - [`pace`]: busy-polling, naps and sleep of a worker without work.
//! - [`placement`]: on which processors workers and virtual processors run.
//! - [`policing`]: which frames exceed a receiver's rate.
//! - [`schedule`]: whose queue a worker serves next, and rate limits.
//! - [`steering`]: which receive queue of a multi-queue interface a flow uses.
#![forbid(unsafe_code)]

pub mod aggregation;
pub mod attempt;
pub mod budget;
pub mod costs;
pub mod dispatch;
pub mod lateness;
pub mod law;
pub mod moderation;
pub mod pace;
pub mod placement;
pub mod policing;
pub mod schedule;
pub mod steering;
mod trial;
