//! A new weir takes the place of one that runs: `docs/design/0039-upgrade.md`.
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
//! | file | what |
//! |---|---|
//! | `starter.rs` | a process with the privileges that weir was started with, which starts weir again |
//! | `beside.rs` | the new weir's side |

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::helper::wire;

mod beside;
mod starter;

pub use beside::Beside;
pub(crate) use starter::{Next, Which};
pub use starter::{Starter, run_if_asked};

/// The argument of a weir that takes another one's place, which is at the other end of its standard input.
pub const FLAG: &str = "--take-over";

/// What the new weir says to the old one. Both may be of different releases: words are added, and none changes.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromNew {
    /// All is ready that can be before the old one stops.
    Prepared,
    /// It ends, and the old one goes on.
    Refused {
        /// Why.
        message: String,
        /// What to do about it.
        help: Option<String>,
    },
    /// It serves.
    Serves,
}

/// What the old one says.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromOld {
    /// It has stopped: all is with the keeper.
    Go,
}

/// Waits for one message for so long at most; `None` at the end of who should say it.
pub(crate) fn receive_within<T: DeserializeOwned>(
    socket: BorrowedFd<'_>,
    patience: Duration,
) -> io::Result<Option<T>> {
    let end = std::time::Instant::now() + patience;
    loop {
        let left = end.saturating_duration_since(std::time::Instant::now());
        let timeout =
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let mut fds = [PollFd::new(&socket, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => break,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(wire::receive(socket.as_fd())?.map(|(message, _)| message))
}
