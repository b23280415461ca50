//! States of a TCP connection (RFC 9293) and of an SCTP association (RFC 9260), as seen between their ends.
//!
//! The steps are those of the kernel's nf_conntrack, except as `tests/conntrack.rs` says. An association has TCP's
//! states: `SynSent` from INIT, `SynReceived` from COOKIE ECHO, `Established` from COOKIE ACK on, `FinOfOpener` and
//! `FinOfPeer` from SHUTDOWN, `Closing` from SHUTDOWN ACK, and `Reset` from SHUTDOWN COMPLETE or ABORT on.

use crate::chunks::Chunks;
use crate::packet::Flags;
use crate::rules::Direction;
use crate::table::{Place, State, Table};

/// The effect of a packet on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The connection goes on, in this state.
    To(State),
    /// The connection ends, and is forgotten, since only one of its ends was heard.
    Ends,
    /// The packet opens a connection, in place of one that has ended.
    Opens,
    /// The packet would open a connection in the opposite direction, while one exists. The rules
    /// decide, and the state stays.
    Asks,
    /// The packet does not belong to this connection.
    Invalid,
}

/// Verification tags of packets by their direction; 0 is a tag that is not known.
pub(crate) type Tags = [u32; 2];

/// The part of a packet that changes a connection with states.
pub(crate) trait Sent: Copy {
    /// True if the packet opens a connection.
    fn opens(self) -> bool;

    /// True if the packet only ends a connection, so that no connection is taken up with it.
    fn ends(self) -> bool;

    /// True if the packet answers a packet that opens a connection, and does not open one itself.
    /// Only an end that has asked waits for such an answer.
    fn answers(self) -> bool;

    /// The verification tags of a connection that begins with the packet, if it has some.
    fn first_tags(self, direction: Direction) -> Option<Tags>;

    /// The verification tags of a connection.
    fn noted_tags(table: &Table, place: Place) -> Tags;

    /// The effect on a connection in `state` with these tags, of which the packet may tell one. `opener`: it comes from
    /// the end that has opened the connection.
    fn step(self, state: State, tags: &mut Tags, direction: Direction, opener: bool) -> Step;
}

/// The effect of a segment on a connection in `state`. `opener`: it comes from the end that has opened the connection.
pub(crate) const fn step(state: State, flags: Flags, opener: bool) -> Step {
    use State::*;
    let (syn, ack) = (flags.has(Flags::SYN), flags.has(Flags::ACK));
    let to = if matches!(state, Forbidden) && (!syn || ack) {
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

impl Sent for Flags {
    fn opens(self) -> bool {
        self.has(Self::SYN) && !self.has(Self::ACK)
    }

    fn ends(self) -> bool {
        self.has(Self::RST)
    }

    fn answers(self) -> bool {
        self.has(Self::SYN)
    }

    fn first_tags(self, _: Direction) -> Option<Tags> {
        None
    }

    fn noted_tags(_: &Table, _: Place) -> Tags {
        Tags::default()
    }

    fn step(self, state: State, _: &mut Tags, _: Direction, opener: bool) -> Step {
        step(state, self, opener)
    }
}

impl Sent for Chunks {
    fn opens(self) -> bool {
        self.has(Self::INIT)
    }

    fn ends(self) -> bool {
        self.has(Self::ABORT) || self.has(Self::SHUTDOWN_COMPLETE)
    }

    fn answers(self) -> bool {
        self.has(Self::INIT_ACK)
    }

    fn first_tags(self, direction: Direction) -> Option<Tags> {
        let mut tags = [self.init_tag; 2];
        tags[direction as usize] = self.tag;
        Some(tags)
    }

    fn noted_tags(table: &Table, place: Place) -> Tags {
        place.at.and_then(|at| table.sctp.get(at)).copied().unwrap_or_default()
    }

    fn step(self, state: State, tags: &mut Tags, direction: Direction, opener: bool) -> Step {
        use State::*;
        let (own, other) = (direction as usize, direction.reverse() as usize);
        let is_half = state == SynSent;
        if self.opens() {
            match (state, opener) {
                (Reset | Forbidden, _) => return Step::Opens,
                (SynSent, _) => tags[other] = self.init_tag,
                (_, false) => return Step::Asks,
                // The end has restarted (§5.2.2), or a third party has forged the packet: neither breaks the
                // association.
                (_, true) if self.init_tag != tags[other] => *tags = [0; 2],
                _ => {}
            }
            return Step::To(state);
        }
        if state == Forbidden {
            return Step::Invalid;
        }
        if self.answers() && !is_half && !opener && self.tag != tags[own] {
            // The packet has the tag of an INIT that was not noted. The cookie that follows
            // decides.
            return Step::To(state);
        }
        let noted = &mut tags[if self.is_reflected { other } else { own }];
        match *noted {
            tag if tag == self.tag => {}
            // Only one end has sent so far, or this end has restarted.
            0 if !matches!(state, SynSent | Reset) => *noted = self.tag,
            _ => return Step::Invalid,
        }
        if self.answers() && (is_half || tags[other] == 0) {
            tags[other] = self.init_tag;
        }
        if self.has(Self::COOKIE_ECHO) && opener && !matches!(state, SynSent | Reset) {
            tags[other] = 0;
        }
        let to = match (state, opener) {
            _ if self.has(Self::ABORT) => Reset,
            (Closing, _) if self.has(Self::SHUTDOWN_COMPLETE) => Reset,
            (SynSent, _) if self.has(Self::COOKIE_ECHO) && !tags.contains(&0) => SynReceived,
            (SynReceived, _) if self.has(Self::COOKIE_ACK) => Established,
            (FinOfOpener | FinOfPeer, _) if self.has(Self::SHUTDOWN_ACK) => Closing,
            (Established, true) if self.has(Self::SHUTDOWN) => FinOfOpener,
            (Established, false) if self.has(Self::SHUTDOWN) => FinOfPeer,
            (TakenUp, false) => Established,
            (state, _) => state,
        };
        Step::To(to)
    }
}
