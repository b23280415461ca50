//! The programs `weir` and `weir-vhost-user-net`.
//!
//! * [`args`]: the command line of `weir`; [`vhost_user_net`]: the command line of `weir-vhost-user-net`.
//! * [`run`]: `weir run` and `weir-vhost-user-net` around a switch.
//! * [`vm_args`]: the arguments that connect a VM to an interface.
//! * `ending`: signals, and an end within a time limit.
//! * `captured`: pcapng as it arrives; `frame`: a frame described in words.
//! * [`top`]: `weir top`.
//! * [`commands`]: the commands that need no switch in their own process; `show`: the tables that they print.

#![forbid(unsafe_code)]

pub mod args;
mod captured;
pub mod commands;
mod ending;
mod frame;
pub mod run;
mod show;
pub mod top;
pub mod vhost_user_net;
pub mod vm_args;
