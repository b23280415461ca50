//! weir's decisions as pure code: time and samples in, verdicts out.
//!
//! Nothing here does I/O, reads a clock, starts a thread or logs. Time is a `u64` of nanoseconds
//! (or a `u32` of seconds where that is all a rule needs) that the caller passes in, from any
//! monotonic origin. The same compiled code therefore runs under the engine on real time and under
//! a simulation on virtual time, and a result from the one holds for the other.
//!
//! - [`aggregation`]: when frames that gather for a guest are due as a whole.
//! - [`attempt`]: whether frames may be held in a way that no queue can judge by itself.
//! - [`budget`]: how a latency budget is split between the uplink and the guests' queues.
//! - [`costs`]: what a call and an uplink wake-up cost, from CPU times.
//! - [`dispatch`]: which worker serves which queue.
//! - [`lateness`]: how much earlier than a deadline to set the timer for it.
//! - [`law`]: the constants of all these, each with what it trades.
//! - [`moderation`]: when to interrupt the guest after frames were published in a receive queue.
//! - [`pace`]: what a worker without work does: look on, nap, sleep.
//! - [`placement`]: on which processors workers and virtual processors run.
//! - [`policing`]: which frames exceed what a receiver may get.
//! - [`schedule`]: whose queue a worker serves next, and rate limits.
//! - [`steering`]: which receive queue of a multi-queue interface a flow uses.
#![forbid(unsafe_code)]

pub mod aggregation;
pub mod attempt;
pub mod budget;
pub mod costs;
pub mod dispatch;
mod hold_off;
pub mod lateness;
pub mod law;
pub mod moderation;
pub mod pace;
pub mod placement;
pub mod policing;
pub mod schedule;
pub mod steering;
mod trial;
