//! The messages about a port that its front end can provoke again and again: [`weir_engine::logs`] bounds their number.

/// A kind of message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Said {
    Connected,
    Disconnected,
    Ended,
    TurnedAway,
    AcceptFailed,
    Stopped,
    NoRecord,
    Base,
}

/// The log limits of one port.
pub(crate) type Logs = weir_engine::logs::Logs<8>;
