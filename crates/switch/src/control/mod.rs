//! The control socket: how `weir vif`, `weir stats` and other programs talk to a running switch.
//!
//! A Unix stream socket with permissions `0600`. A request is one line of JSON, at most
//! `CONTROL_REQUEST_BYTES_MAX` bytes with its newline; each is answered with one line of JSON, in
//! order. Try it with
//!
//! ```sh
//! echo '{"request":"stats"}' | socat - UNIX:/run/weir/control.sock
//! ```

pub mod client;
mod line;
pub mod protocol;
pub mod server;

#[cfg(test)]
mod tests;

pub use client::{ClientError, ControlClient};
pub use protocol::{ReloadOutcome, Request, Response, VifStatus};
pub use server::{ControlHandler, ControlServer};
