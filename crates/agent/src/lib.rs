//! The coalescing client inside a Linux guest, and the host's half of its protocol (Dong 2011
//! §4.2).
//!
//! The client, `weir-agent`, makes a stock `virtio_net` or `xen-netfront` poll on its own timer
//! (front-end coalescing) at the interval that weir's manager asks for, reports the cost of
//! interrupts, and restores the original settings when it stops or hears nothing more.
//!
//! | file | contents |
//! |---|---|
//! | `protocol.rs` | [`GuestMessage`] and [`HostMessage`], their bytes |
//! | `channel.rs` | lines of bounded length, both ways, over any stream |
//! | `session.rs` | the agent's state machine; pure, in virtual time |
//! | `deferral.rs`, `state.rs` | the kernel's settings, and the file that keeps the original ones |
//! | `napi.rs` | settings of single NAPI instances |
//! | `guest.rs` | reads the guest's `/sys` and `/proc` |
//! | `report.rs` | counts of an interval, and the cost of an interrupt |
//! | `port.rs` | the port to the host |
//! | `agent.rs`, `args.rs` | the program |
//! | `below.rs` | [`Below`]: a weir in a guest is its own agent |
//! | `host/` | [`AgentLink`](host::AgentLink): weir's side of one agent |
//!
//! Times are nanoseconds of a monotonic clock, passed in by the caller.
#![forbid(unsafe_code)]

pub mod agent;
pub mod args;
mod below;
mod channel;
mod deferral;
#[cfg(test)]
#[path = "../tests/fake_guest/mod.rs"]
mod fake_guest;
mod guest;
pub mod host;
pub mod napi;
mod port;
mod protocol;
mod report;
mod session;
mod state;

pub use below::{Below, Totals};
pub use channel::{ChannelError, TooLong};
pub use deferral::DeferralError;
pub use guest::FileError;
pub use port::{Port, PortError};
pub use protocol::{
    Applied, DecodeError, EncodeError, GuestMessage, Hello, HostMessage, Interface, NotText,
    Report, Text, VERSION, Wish,
};
pub use state::StateError;
