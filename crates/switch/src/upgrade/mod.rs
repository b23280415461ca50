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
//! | here | the new weir's side |

mod starter;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use miette::Diagnostic;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use weir_foreign::reach;
use weir_limits::HELPER_MESSAGE_BYTES_MAX;

use crate::helper::wire;

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

/// The old weir, which this process is to replace.
#[derive(Debug)]
pub struct Beside {
    socket: OwnedFd,
}

impl Beside {
    /// The old weir at the other end of standard input. Standard input is empty from now on.
    ///
    /// # Errors
    /// Standard input is no socket, or no descriptor is left.
    pub fn of_this_process() -> io::Result<Self> {
        let socket = rustix::stdio::stdin().try_clone_to_owned()?;
        rustix::net::sockopt::socket_type(&socket)?;
        let nothing = std::fs::File::open("/dev/null")?;
        rustix::stdio::dup2_stdin(&nothing)?;
        Ok(Self { socket })
    }

    /// Reports that this weir is ready for the old one to stop. Returns when the old one has stopped or was killed:
    /// in both cases the keeper holds its state.
    ///
    /// # Errors
    /// The socket's error, or an unknown message of the old weir.
    pub fn prepared(&self) -> io::Result<()> {
        wire::send(self.socket.as_fd(), &FromNew::Prepared, None)?;
        match wire::receive(self.socket.as_fd())? {
            Some((FromOld::Go, _)) | None => Ok(()),
        }
    }

    /// Reports that guests are served, so that the old weir can end.
    pub fn serves(&self) {
        // An old weir that was killed needs no message.
        let _ = wire::send(self.socket.as_fd(), &FromNew::Serves, None);
    }

    /// Reports that this weir does not start, so that the old one continues. `details` are lines that the error's text
    /// leaves out.
    pub fn refuse(&self, error: &dyn Diagnostic, details: &[String], help: Option<String>) {
        let help = help.or_else(|| error.help().map(|help| help.to_string()));
        let mut message = with_causes(error);
        for (nth, detail) in details.iter().enumerate() {
            // As JSON, a text with escapes is several times as long at worst.
            if message.len() + detail.len() > HELPER_MESSAGE_BYTES_MAX / 8 {
                break;
            }
            message += &format!("{} {detail}", if nth == 0 { ':' } else { ';' });
        }
        let refused = FromNew::Refused { message, help };
        let _ = wire::send(self.socket.as_fd(), &refused, None);
    }
}

/// An error with its causes on one line.
pub(crate) fn with_causes(error: &dyn Diagnostic) -> String {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let text = next.to_string();
        if !message.contains(&text) {
            message = format!("{message}: {text}");
        }
        cause = next.source();
    }
    message
}
