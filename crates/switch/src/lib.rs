//! A switch as a library: [`Switch::start`] takes a configuration and serves guests until it is dropped.
//!
//! | module | content |
//! |---|---|
//! | `switch` | a whole switch, and its changes at run time |
//! | `manager` | the use of the latency budget, ten times a second; the placement of workers; a guest's agent |
//! | [`control`] | requests to a switch; `weir-api` serves them |
//! | [`events`] | events, as reported to watchers |
//! | [`stats`] | counters; [`explain`]: the effect of policies, with reasons |
//! | [`capture`] | captures of frames as pcapng |
//! | [`trace`] | the path of a frame through the switch |
//! | [`sandbox`] | the privileges that a program gives up before it serves guests |
//! | [`compiler`] | compilation of filter expressions in another process |
//! | `helper` | the privileged work of a confined program |
//! | [`watchdog`] | detection of stalled threads; messages to the service manager |
//! | [`host`] | the means that a host lacks for a configuration |
//! | [`memory`] | the memory that interfaces promise their front ends |
//! | [`programs`] | programs of the administrator's that run when ports come up and go down |
//! | [`upgrade`] | the replacement of a running weir by a new one |
//! | [`unix_socket`] | listening on a Unix socket with care |
//!
//! `examples/embed.rs` is a program that embeds a switch.

#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR2};

pub mod capture;
pub mod compiler;
pub mod control;
pub mod events;
pub mod explain;
mod helper;
pub mod host;
mod loops;
mod manager;
pub mod memory;
pub mod named;
mod nat;
pub mod programs;
mod resolver;
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

/// From now on, memory stays mapped and descriptors of others stay open until the process exits, which must be soon.
pub fn leave_to_exit() {
    weir_guestmem::leave_memory_to_exit();
    weir_foreign::leave_to_exit();
}

/// A process of weir's ignores the signals that everybody in a service gets: they are meant for weir alone.
fn leave_signals_to_weir() {
    for signal in [SIGINT, SIGTERM, SIGHUP, SIGUSR2] {
        let _ = signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)));
    }
}

/// Returns memory that this process needed to start but does not need to serve: freed memory, and
/// pages of the program that ran only once.
pub fn give_back_start() {
    weir_config::give_back();
    weir_guestmem::leave_program();
}
