//! The new weir's side: it is there beside the old one until that has stopped.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use miette::Diagnostic;

use super::{FromNew, FromOld};
use crate::helper::wire;

/// The old weir, whose place this process is to take.
#[derive(Debug)]
pub struct Beside {
    socket: OwnedFd,
}

impl Beside {
    /// The one at the other end of standard input, which is nobody's from here on.
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

    /// All is ready that can be before the old one stops. Returns when it has, or was killed: either way all that it had
    /// is with the keeper.
    ///
    /// # Errors
    /// Of the socket, or the old one says what this one does not know.
    pub fn prepared(&self) -> io::Result<()> {
        wire::send(self.socket.as_fd(), &FromNew::Prepared, None)?;
        match wire::receive(self.socket.as_fd())? {
            Some((FromOld::Go, _)) | None => Ok(()),
        }
    }

    /// Guests are served: the old one may end.
    pub fn serves(&self) {
        // One that has been killed is not to know.
        let _ = wire::send(self.socket.as_fd(), &FromNew::Serves, None);
    }

    /// It does not come up: the old one goes on.
    pub fn refuse(&self, error: &dyn Diagnostic) {
        let help = error.help().map(|help| help.to_string());
        let refused = FromNew::Refused { message: with_causes(error), help };
        let _ = wire::send(self.socket.as_fd(), &refused, None);
    }
}

fn with_causes(error: &dyn Diagnostic) -> String {
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
