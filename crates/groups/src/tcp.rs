//! States of a TCP connection (RFC 9293), as seen between its ends.

use crate::packet::Flags;
use crate::table::State;

/// What a segment does to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The connection goes on, in this state.
    To(State),
    /// The segment opens a connection, in place of one that has ended.
    Opens,
    /// The segment would open a connection the other way, beside one that lives. The rules decide, and the state stays.
    Asks,
    /// The segment does not belong to this connection.
    Invalid,
}

/// What a segment of a connection in `state` does. `opener`: it comes from the end that has opened the connection.
pub(crate) fn step(state: State, flags: Flags, opener: bool) -> Step {
    use State::*;
    let (syn, ack) = (flags.has(Flags::SYN), flags.has(Flags::ACK));
    let to = if flags.has(Flags::RST) {
        Reset
    } else if syn && !ack {
        match (state, opener) {
            (TimeWait | Reset | Closing | Forbidden, _) => return Step::Opens,
            (SynSent, true) => SynSent,
            // Both ends open at once (RFC 9293 §3.5, figure 7).
            (SynSent, false) => SynReceived,
            (SynReceived, _) => SynReceived,
            (state, true) => state,
            (_, false) => return Step::Asks,
        }
    } else if syn {
        match (state, opener) {
            (SynSent, false) => SynReceived,
            (SynSent | Forbidden, _) => return Step::Invalid,
            (state, _) => state,
        }
    } else if flags.has(Flags::FIN) {
        match (state, opener) {
            (SynReceived | Established | FinOfOpener, true) => FinOfOpener,
            (SynReceived | Established | FinOfPeer, false) => FinOfPeer,
            (FinOfOpener, false) | (FinOfPeer, true) => Closing,
            (SynSent, false) | (Forbidden, _) => return Step::Invalid,
            (state, _) => state,
        }
    } else {
        match (state, opener) {
            (SynReceived, true) => Established,
            (Closing, _) => TimeWait,
            (Forbidden, _) => return Step::Invalid,
            (TakenUp, false) => Established,
            (state, _) => state,
        }
    };
    match (state, to) {
        (Forbidden, _) => Step::Invalid,
        _ => Step::To(to),
    }
}
