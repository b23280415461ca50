//! What is said of a port that its front end can have said again and again: [`weir_engine::logs`] bounds it.

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

/// Of one port.
pub(crate) type Logs = weir_engine::logs::Logs<8>;
