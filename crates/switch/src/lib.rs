//! A switch as a library: [`Switch::start`] takes a configuration and serves guests until it is dropped.
//!
//! | module | what |
//! |---|---|
//! | `switch` | a whole switch put together, and what changes while it runs |
//! | `manager` | how the latency budget is spent, ten times a second; where workers run; a guest's agent |
//! | [`control`] | what can be asked of it; `weir-api` serves it |
//! | [`events`] | what happens, as it is told to those who watch |
//! | [`stats`] | what is counted; [`explain`]: what policies do, and why |
//! | [`capture`] | frames as they pass, as pcapng |
//! | [`trace`] | what would become of a frame |
//! | [`sandbox`] | what a program gives up before it serves anybody |
//! | [`compiler`] | filter expressions are compiled by another process |
//! | `helper` | who does for a confined program what it cannot do any more |
//! | [`watchdog`] | threads that stand still; news for the service manager |
//! | [`descriptors`] | how many interfaces and guests the limit of descriptors carries |
//! | [`memory`] | how much memory interfaces promise their front ends |
//! | [`upgrade`] | a new weir takes the place of one that runs |
//! | [`unix_socket`] | listening on a Unix socket with care |
//!
//! `examples/embed.rs` is a program around it.

#![forbid(unsafe_code)]

pub mod capture;
pub mod compiler;
pub mod control;
pub mod descriptors;
pub mod events;
pub mod explain;
mod helper;
mod loops;
mod manager;
pub mod memory;
mod nat;
pub mod sandbox;
pub mod stats;
mod switch;
pub mod trace;
pub mod unix_socket;
pub mod upgrade;
pub mod watchdog;

pub use helper::{Hands, run_if_asked as run_helper_if_asked};
pub use switch::{Devices, Keeping, Meeting, Switch, SwitchError, UplinkDevice};
pub use weir_engine::guest::GuestPort;
