//! The replacement of a running weir by a new one: `docs/design/restarts.md#0039`.
//!
//! ```text
//!  weir (old)          starter                 weir (new)              keeper
//!    | start ------------>| program, arguments ---->| reads its file, looks --->| copies of all
//!    |<------------------------------- prepared ----|                           |
//!    | leaves: sessions, workers, keeper            |                           |
//!    | go ----------------------------------------->| takes ------------------->|
//!    |<--------------------------------- serves ----|
//!    | ends
//! ```
//!
//! | file | content |
//! |---|---|
//! | `starter.rs` | a process with the privileges that weir was started with, which starts weir again |
//! | `beside.rs` | the new weir's side |

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use weir_foreign::reach;

use crate::helper::wire;

mod beside;
mod starter;

pub use beside::Beside;
pub(crate) use beside::with_causes;
pub(crate) use starter::{Next, NotUp, Which};
pub use starter::{Starter, run_if_asked};

/// The argument of a weir that replaces another one, which is at the other end of its standard input.
pub const FLAG: &str = "--take-over";

/// The means of an upgrade.
pub(crate) struct Upgrades {
    pub(crate) starter: Starter,
    /// Called with the new process's number when that process serves.
    pub(crate) then: Box<dyn Fn(u32) + Send + Sync>,
}

/// A message of the new weir to the old one. Both may be of different releases: messages are added, and none changes.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromNew {
    /// The new weir is ready for the old one to stop.
    Prepared,
    /// The new weir ends, and the old one continues.
    Refused {
        /// The reason.
        message: String,
        /// Advice on how to resolve it.
        help: Option<String>,
    },
    /// The new weir serves.
    Serves,
}

/// A message of the old weir to the new one.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromOld {
    /// The old weir has stopped, and the keeper holds its state.
    Go,
}

/// Waits at most this time for one message; `None` if the other end is closed.
pub(crate) fn receive_within<T: DeserializeOwned>(
    socket: BorrowedFd<'_>,
    patience: Duration,
) -> io::Result<Option<T>> {
    reach::await_readable(socket, patience)?;
    Ok(wire::receive(socket.as_fd())?.map(|(message, _)| message))
}
