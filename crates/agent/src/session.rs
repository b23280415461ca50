//! The agent's state machine: it greets, reports, applies and restores. Pure: times and messages
//! in, actions out.
//!
//! ```text
//!              connected                welcome with our number
//!   Closed ───────────────▶ Greeting ──────────────────────────▶ Open
//!      ▲                     ▲    │ closed        bye, 3 s without │   │ closed
//!      │                     │    ▼               a message, other │   │
//!      └─────────────────────┼────┘               interfaces       │   │
//!      │                     └──── Restore ◀───────────────────────┘   │
//!      └────────────────────────── Restore ◀───────────────────────────┘
//! ```
//!
//! weir's settings are in force only in `Open`: every way out of it restores the original ones.

use std::fmt;

use weir_limits::{AGENT_PERIOD_NS, AGENT_SILENCE_NS};
use weir_wire::Mac;

use crate::protocol::{HostMessage, VERSION};

/// The agent's next action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a hello with this number.
    Hello {
        /// The session's number.
        session: u32,
    },
    /// Send a report for each interface.
    Report,
    /// Make an interface poll, or restore it, and send the result.
    Apply {
        /// Address of the interface.
        mac: Mac,
        /// Poll interval (ns); `None`: the original settings.
        poll_ns: Option<u64>,
    },
    /// Restore every interface.
    Restore(Reason),
}

/// Reason why weir's settings are no longer in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// weir said `bye`.
    Bye,
    /// weir was silent for `AGENT_SILENCE_NS`.
    Silence,
    /// The connection is closed.
    Closed,
    /// The guest's interfaces differ from those of the hello.
    Interfaces,
}

impl fmt::Display for Reason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Bye => "weir said goodbye",
            Self::Silence => "nothing was heard from weir",
            Self::Closed => "the connection ended",
            Self::Interfaces => "interfaces came or went",
        })
    }
}

/// weir speaks another version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "weir speaks version {host} of the protocol, this agent version {VERSION}: update one of them"
)]
pub struct OtherVersion {
    /// weir's version.
    pub host: u32,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Closed,
    Greeting { hello_at_ns: u64 },
    Open { heard_ns: u64, report_at_ns: u64 },
}

/// The agent's side of the conversation.
#[derive(Debug)]
pub struct Session {
    state: State,
    /// Number of the present session, or of the last one.
    number: u32,
}

impl Session {
    /// Returns a closed session. `seed` should differ from earlier agents', whose answers may still
    /// come.
    pub const fn new(seed: u32) -> Self {
        Self { state: State::Closed, number: seed }
    }

    /// Returns true if weir has answered and its settings are in force.
    pub const fn is_open(&self) -> bool {
        matches!(self.state, State::Open { .. })
    }

    /// Notes a new connection.
    pub fn connected(&mut self, now_ns: u64) {
        self.greet_at(now_ns);
    }

    /// Handles a message.
    ///
    /// # Errors
    /// [`OtherVersion`]; the connection is then useless.
    pub fn received(
        &mut self,
        message: HostMessage,
        now_ns: u64,
    ) -> Result<Option<Action>, OtherVersion> {
        match &mut self.state {
            State::Closed => Ok(None),
            State::Greeting { .. } => {
                let HostMessage::Welcome { version, session } = message else { return Ok(None) };
                if session != self.number {
                    return Ok(None);
                }
                if version != VERSION {
                    return Err(OtherVersion { host: version });
                }
                self.state =
                    State::Open { heard_ns: now_ns, report_at_ns: now_ns + AGENT_PERIOD_NS };
                Ok(None)
            }
            State::Open { heard_ns, .. } => {
                *heard_ns = now_ns;
                Ok(match message {
                    HostMessage::Set { mac, poll_ns } => Some(Action::Apply { mac, poll_ns }),
                    HostMessage::Bye => {
                        self.greet_at(now_ns + AGENT_PERIOD_NS);
                        Some(Action::Restore(Reason::Bye))
                    }
                    HostMessage::Ping | HostMessage::Welcome { .. } => None,
                })
            }
        }
    }

    /// Begins again, since the guest's interfaces differ from those of the hello.
    pub fn interfaces_changed(&mut self, now_ns: u64) -> Option<Action> {
        if !self.is_open() {
            return None;
        }
        self.greet_at(now_ns);
        Some(Action::Restore(Reason::Interfaces))
    }

    /// Notes that the connection is closed, or was given up.
    pub fn closed(&mut self) -> Option<Action> {
        let was_open = self.is_open();
        self.state = State::Closed;
        was_open.then_some(Action::Restore(Reason::Closed))
    }

    /// Returns the next due action. Call it until it returns `None`.
    pub fn due(&mut self, now_ns: u64) -> Option<Action> {
        match &mut self.state {
            State::Closed => None,
            State::Greeting { hello_at_ns } => (*hello_at_ns <= now_ns).then(|| {
                *hello_at_ns = now_ns + AGENT_PERIOD_NS;
                Action::Hello { session: self.number }
            }),
            State::Open { heard_ns, report_at_ns } => {
                if *heard_ns + AGENT_SILENCE_NS <= now_ns {
                    self.greet_at(now_ns);
                    return Some(Action::Restore(Reason::Silence));
                }
                (*report_at_ns <= now_ns).then(|| {
                    *report_at_ns = now_ns + AGENT_PERIOD_NS;
                    Action::Report
                })
            }
        }
    }

    /// Returns when to call [`Session::due`] again (ns); `None` without a connection.
    pub fn deadline_ns(&self) -> Option<u64> {
        match self.state {
            State::Closed => None,
            State::Greeting { hello_at_ns } => Some(hello_at_ns),
            State::Open { heard_ns, report_at_ns } => {
                Some(report_at_ns.min(heard_ns + AGENT_SILENCE_NS))
            }
        }
    }

    fn greet_at(&mut self, hello_at_ns: u64) {
        self.number = self.number.wrapping_add(1);
        self.state = State::Greeting { hello_at_ns };
    }
}

#[cfg(test)]
mod tests;
