//! States of a TCP connection (RFC 9293), as seen between its ends.

use crate::packet::Flags;
use crate::table::State;

/// The effect of a segment on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The connection goes on, in this state.
    To(State),
    /// The connection ends, and is forgotten, since only one of its ends was heard.
    Ends,
    /// The segment opens a connection, in place of one that has ended.
    Opens,
    /// The segment would open a connection the other way, beside one that lives. The rules decide, and the state stays.
    Asks,
    /// The segment does not belong to this connection.
    Invalid,
}

/// The effect of a segment on a connection in `state`. `opener`: it comes from the end that has opened the connection.
/// The steps are those of the kernel's nf_conntrack, except as `tests/conntrack.rs` says.
pub(crate) fn step(state: State, flags: Flags, opener: bool) -> Step {
    use State::*;
    let (syn, ack) = (flags.has(Flags::SYN), flags.has(Flags::ACK));
    let to = if state == Forbidden && (!syn || ack) {
        return Step::Invalid;
    } else if flags.has(Flags::RST) {
        match state {
            SynSent | TakenUp => return Step::Ends,
            _ => Reset,
        }
    } else if syn && !ack {
        match (state, opener) {
            (TimeWait | Reset | Closing | Forbidden, _) => return Step::Opens,
            (SynSent, false) | (Crossed, _) => Crossed,
            (state, true) => state,
            (_, false) => return Step::Asks,
        }
    } else if syn {
        match (state, opener) {
            (SynSent, false) | (Crossed, _) => SynReceived,
            (SynReceived, true) => SynReceived,
            (_, true) => return Step::Invalid,
            (state, false) => state,
        }
    } else if flags.has(Flags::FIN) {
        match (state, opener) {
            (SynReceived | Established | FinOfOpener, true) => FinOfOpener,
            (SynReceived | Established | FinOfPeer, false) => FinOfPeer,
            (FinOfOpener, false) | (FinOfPeer, true) => Closing,
            (SynSent | Crossed, _) => return Step::Invalid,
            (state, _) => state,
        }
    } else {
        match (state, opener) {
            (SynSent | Crossed, true) => return Step::Invalid,
            (SynReceived, true) => Established,
            (Closing, _) => TimeWait,
            (TakenUp, false) => Established,
            (state, _) => state,
        }
    };
    Step::To(to)
}
