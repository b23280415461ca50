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
mod tests {
    //! The agent's side in virtual time.

    use proptest::prelude::*;

    use super::*;

    const MAC: Mac = Mac([0x52, 0x54, 0, 0, 0, 1]);
    const SECOND: u64 = 1_000_000_000;
    const POLL: Action = Action::Apply { mac: MAC, poll_ns: Some(1_000_000) };

    fn set() -> HostMessage {
        HostMessage::Set { mac: MAC, poll_ns: Some(1_000_000) }
    }

    fn welcome(session: u32) -> HostMessage {
        HostMessage::Welcome { version: VERSION, session }
    }

    /// Connects and greets at `now_ns`. Returns the session number.
    fn greeted(session: &mut Session, now_ns: u64) -> u32 {
        session.connected(now_ns);
        let Some(Action::Hello { session: number }) = session.due(now_ns) else {
            panic!("no hello: {session:?}");
        };
        number
    }

    fn open() -> Session {
        let mut session = Session::new(7);
        let number = greeted(&mut session, 0);
        assert_eq!(session.received(welcome(number), 0), Ok(None));
        assert!(session.is_open());
        session
    }

    #[test]
    fn hellos_go_on_with_one_number_until_there_is_a_welcome() {
        let mut session = Session::new(7);
        let number = greeted(&mut session, 0);
        assert_eq!(session.due(SECOND - 1), None);
        assert_eq!(session.deadline_ns(), Some(SECOND));
        assert_eq!(session.due(SECOND), Some(Action::Hello { session: number }));
        assert_eq!(session.due(SECOND), None);
    }

    #[test]
    fn what_was_meant_for_the_agent_before_is_passed_over() {
        let mut session = Session::new(7);
        let number = greeted(&mut session, 0);
        for stale in [set(), HostMessage::Ping, HostMessage::Bye, welcome(number.wrapping_sub(1))] {
            assert_eq!(session.received(stale, 1), Ok(None));
            assert!(!session.is_open());
        }
        assert_eq!(session.received(welcome(number), 2), Ok(None));
        assert_eq!(session.received(set(), 3), Ok(Some(POLL)));
    }

    #[test]
    fn another_version_is_refused() {
        let mut session = Session::new(7);
        let number = greeted(&mut session, 0);
        let answer = HostMessage::Welcome { version: VERSION + 1, session: number };
        assert_eq!(session.received(answer, 1), Err(OtherVersion { host: VERSION + 1 }));
        assert!(!session.is_open());
    }

    #[test]
    fn a_host_that_pings_is_reported_to_each_second() {
        let mut session = open();
        for second in 1..100 {
            assert_eq!(session.received(HostMessage::Ping, second * SECOND), Ok(None));
            assert_eq!(session.due(second * SECOND), Some(Action::Report));
            assert_eq!(session.due(second * SECOND), None);
        }
    }

    #[test]
    fn silence_restores_and_begins_anew_with_another_number() {
        let mut session = open();
        let number = session.number;
        assert_eq!(session.received(set(), SECOND), Ok(Some(POLL)));
        assert_eq!(session.due(4 * SECOND - 1), Some(Action::Report));
        assert_eq!(session.deadline_ns(), Some(4 * SECOND));
        assert_eq!(session.due(4 * SECOND), Some(Action::Restore(Reason::Silence)));
        let Some(Action::Hello { session: next }) = session.due(4 * SECOND) else { panic!() };
        assert_ne!(next, number);
        // The host was only slow: its messages meanwhile belong to a session that is over.
        assert_eq!(session.received(set(), 4 * SECOND), Ok(None));
        assert_eq!(session.received(welcome(next), 5 * SECOND), Ok(None));
        assert_eq!(session.received(set(), 5 * SECOND), Ok(Some(POLL)));
    }

    #[test]
    fn bye_restores_once_and_greets_after_a_second() {
        let mut session = open();
        assert_eq!(session.received(HostMessage::Bye, 5), Ok(Some(Action::Restore(Reason::Bye))));
        assert_eq!(session.received(HostMessage::Bye, 6), Ok(None));
        assert_eq!(session.due(SECOND + 4), None);
        assert!(matches!(session.due(SECOND + 5), Some(Action::Hello { .. })));
    }

    #[test]
    fn a_closed_connection_restores_once() {
        let mut session = open();
        assert_eq!(session.closed(), Some(Action::Restore(Reason::Closed)));
        assert_eq!(session.closed(), None);
        assert_eq!((session.due(u64::MAX / 2), session.deadline_ns()), (None, None));
        assert_eq!(session.received(set(), 9), Ok(None));
    }

    #[test]
    fn other_interfaces_begin_anew() {
        let mut session = open();
        assert_eq!(session.interfaces_changed(3), Some(Action::Restore(Reason::Interfaces)));
        assert!(matches!(session.due(3), Some(Action::Hello { .. })));
        assert_eq!(session.interfaces_changed(4), None);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Connected,
        Message(u8),
        Interfaces,
        Closed,
        Wait(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            Just(Step::Connected),
            (0_u8..6).prop_map(Step::Message),
            Just(Step::Interfaces),
            Just(Step::Closed),
            (0..4 * SECOND).prop_map(Step::Wait),
        ]
    }

    proptest! {
        /// In any case settings are in force only while the session is open and the host was heard
        /// within the last three seconds.
        #[test]
        fn settings_never_outlive_the_session(steps in prop::collection::vec(step(), 1..200)) {
            let mut session = Session::new(0);
            let (mut now_ns, mut heard_ns, mut in_force) = (0, 0, false);
            for step in steps {
                let mut actions = Vec::new();
                match step {
                    // A new connection begins only after the previous one.
                    Step::Connected if session.deadline_ns().is_none() => session.connected(now_ns),
                    Step::Connected => {}
                    Step::Interfaces => actions.extend(session.interfaces_changed(now_ns)),
                    Step::Closed => actions.extend(session.closed()),
                    Step::Wait(ns) => now_ns += ns,
                    Step::Message(kind) => {
                        heard_ns = now_ns;
                        let message = match kind {
                            0 => HostMessage::Ping,
                            1 => HostMessage::Bye,
                            2 => welcome(session.number.wrapping_sub(1)),
                            3 => welcome(session.number),
                            _ => set(),
                        };
                        actions.extend(session.received(message, now_ns).unwrap());
                    }
                }
                while let Some(action) = session.due(now_ns) {
                    actions.push(action);
                }
                for action in actions {
                    match action {
                        Action::Apply { .. } => in_force = true,
                        Action::Restore(_) => in_force = false,
                        Action::Hello { .. } => prop_assert!(!in_force),
                        Action::Report => {}
                    }
                }
                prop_assert!(!in_force || session.is_open());
                prop_assert!(!in_force || now_ns - heard_ns < AGENT_SILENCE_NS);
            }
        }
    }
}
