//! The programs `weir` and `weir-vhost-user-net`.
//!
//! * [`args`]: the command line of `weir`; [`vhost_user_net`]: that of `weir-vhost-user-net`.
//! * [`control`]: the control socket, both sides.
//! * [`switch`]: a whole switch put together; [`run`]: `weir run`.
//! * [`demo`]: `weir demo`; [`mod@bench`]: `weir bench`; [`rig`]: the switch and the guests of both.
//! * [`lab`]: the papers' experiments in virtual time, and verdicts on them.
//! * `manager`: how the latency budget is spent, ten times a second.
//! * [`stats`]: the counters' data model, as JSON and as a table; [`explain`]: what policies do.
//! * [`vm_args`]: what plugs a VM into an interface.
//! * [`commands`]: the commands that need no switch in their own process.
//! * [`unix_socket`]: listening on a Unix socket with care.
//! * `sandbox`: what weir gives up before it serves anybody; `helper`: who does for it what it cannot do any more.

#![forbid(unsafe_code)]

pub mod args;
pub mod bench;
pub mod commands;
pub mod control;
pub mod demo;
pub mod explain;
mod helper;
pub mod lab;
mod manager;
pub mod rig;
pub mod run;
mod sandbox;
pub mod stats;
pub mod switch;
pub mod unix_socket;
pub mod vhost_user_net;
pub mod vm_args;

pub use helper::run_if_asked as run_helper_if_asked;
