//! weir's side of one agent: the connection of one virtual machine's port.
//!
//! The caller owns the thread and the clock. It watches the link's descriptor, level-triggered, and calls
//! [`AgentLink::readable`], [`AgentLink::writable`] while [`AgentLink::wants_write`], and [`AgentLink::tick`] at
//! [`AgentLink::deadline_ns`] or more often. After an error it drops the link, and should wait a second before the
//! next connection.

mod session;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use weir_foreign::Foreign;
use weir_limits::{AGENT_POLL_NS_MAX, AGENT_POLL_NS_MIN, AGENT_READ_BYTES_MAX};
use weir_wire::Mac;

use crate::channel::{Channel, ChannelError};
use crate::protocol::{GuestMessage, HostMessage, VERSION};
use session::{Due, HostSession};
pub use session::{Event, Violation};

/// Reason why a link is unusable.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The connection ended, or carried an invalid message.
    #[error("agent: {0}")]
    Channel(#[from] ChannelError),
    /// The agent broke the rules.
    #[error("agent: {0}")]
    Violation(#[from] Violation),
}

/// Reason why a setting is not sent. The link continues, except after [`SetError::Link`].
#[derive(Debug, thiserror::Error)]
pub enum SetError {
    /// No agent has said hello.
    #[error("no agent in the guest")]
    NoAgent,
    /// The interface does not belong to this virtual machine.
    #[error("{mac} is not an interface of this virtual machine")]
    NotServed {
        /// The address.
        mac: Mac,
    },
    /// No guest polls at that interval.
    #[error("an interval of {poll_ns} ns is outside {AGENT_POLL_NS_MIN} to {AGENT_POLL_NS_MAX} ns")]
    Range {
        /// The interval (ns).
        poll_ns: u64,
    },
    /// The link is unusable.
    #[error(transparent)]
    Link(#[from] LinkError),
}

/// The connection to one agent.
#[derive(Debug)]
pub struct AgentLink {
    channel: Channel<Foreign<UnixStream>>,
    session: HostSession,
}

impl AgentLink {
    /// Returns a link over an accepted connection to the port of a virtual machine whose interfaces
    /// have the addresses `macs`. Messages about other addresses are ignored.
    ///
    /// # Errors
    /// The stream cannot be made non-blocking.
    pub fn new(stream: impl Into<Foreign<UnixStream>>, macs: Vec<Mac>) -> io::Result<Self> {
        let stream = stream.into();
        stream.set_nonblocking(true)?;
        Ok(Self { channel: Channel::new(stream), session: HostSession::new(macs) })
    }

    /// Reads at most `AGENT_READ_BYTES_MAX`, and answers a hello.
    ///
    /// # Errors
    /// [`LinkError`]; messages before the error are lost with the link.
    pub fn readable(
        &mut self,
        now_ns: u64,
    ) -> Result<impl Iterator<Item = Event> + use<>, LinkError> {
        let mut events = Vec::new();
        let mut read = 0;
        while read < AGENT_READ_BYTES_MAX
            && let Some(len) = self.channel.fill()?
        {
            read += len;
            self.session.count_bytes(len, now_ns)?;
            while let Some(message) = self.channel.next::<GuestMessage>()? {
                let event = self.session.received(message, now_ns)?;
                if let Some(Event::Hello(hello)) = &event {
                    let welcome = HostMessage::Welcome { version: VERSION, session: hello.session };
                    self.channel.send(&welcome)?;
                }
                events.extend(event);
            }
        }
        Ok(events.into_iter())
    }

    /// Returns true if an agent has said hello and was heard lately.
    pub fn has_agent(&self) -> bool {
        self.session.is_open()
    }

    /// Requests that an interface is polled at `poll_ns`, or restored. The answer is an
    /// [`Event::Applied`].
    pub fn set(&mut self, mac: Mac, poll_ns: Option<u64>) -> Result<(), SetError> {
        if !self.session.is_open() {
            return Err(SetError::NoAgent);
        }
        if !self.session.serves(mac) {
            return Err(SetError::NotServed { mac });
        }
        if let Some(poll_ns) = poll_ns
            && !(AGENT_POLL_NS_MIN..=AGENT_POLL_NS_MAX).contains(&poll_ns)
        {
            return Err(SetError::Range { poll_ns });
        }
        let sent = self.channel.send(&HostMessage::Set { mac, poll_ns });
        sent.map_err(|error| SetError::Link(error.into()))
    }

    /// Pings an agent each second. An agent that is silent for three seconds counts as ended.
    pub fn tick(&mut self, now_ns: u64) -> Result<Option<Event>, LinkError> {
        match self.session.due(now_ns) {
            Some(Due::Ping) => {
                self.channel.send(&HostMessage::Ping)?;
                Ok(None)
            }
            Some(Due::Gone) => Ok(Some(Event::Gone)),
            None => Ok(None),
        }
    }

    /// Returns the latest time for the next [`AgentLink::tick`] (ns); `None` while there is no
    /// agent.
    pub fn deadline_ns(&self) -> Option<u64> {
        self.session.deadline_ns()
    }

    /// Returns true if bytes wait for the connection to become writable.
    pub fn wants_write(&self) -> bool {
        self.channel.wants_write()
    }

    /// Sends waiting bytes.
    pub fn writable(&mut self) -> Result<(), LinkError> {
        Ok(self.channel.flush()?)
    }

    /// Notifies the agent that weir wants nothing more. Otherwise the agent notices by silence or the connection's end.
    pub fn bye(mut self) {
        // An agent that does not receive the message restores its settings as well.
        let _ = self.channel.send(&HostMessage::Bye);
    }
}

impl AsFd for AgentLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.stream().as_fd()
    }
}
