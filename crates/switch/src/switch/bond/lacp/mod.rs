//! LACP (IEEE 802.1AX-2008 §5.4) for the links of one bond; pure: time and frames come from outside.
//!
//! | file | content |
//! |---|---|
//! | `pdu.rs` | the frames |
//!
//! Each link has these state machines for its other end. **Receive**: what the partner said, until
//! it is too old (current, expired, defaulted). **Selection**: the links that lead to the same
//! system and key are together. **Mux**: a selected link carries frames as soon as both ends say
//! that they have it together. **Periodic** and **transmit**: when this end speaks. **Markers** of
//! the other end are answered.

use weir_config::LacpRate;
use weir_wire::Mac;

use super::choice::{self, Places, has};
pub(super) use pdu::SLOW_PROTOCOLS;
use pdu::{LEN, Pdu, Port, flag};

mod pdu;
#[cfg(test)]
mod tests;

const SECOND_NS: u64 = 1_000_000_000;
/// `Fast_Periodic_Time` and `Slow_Periodic_Time` (§5.4.4).
const FAST_PERIOD_NS: u64 = SECOND_NS;
const SLOW_PERIOD_NS: u64 = 30 * SECOND_NS;
/// `Short_Timeout_Time` and `Long_Timeout_Time` (§5.4.4).
const SHORT_TIMEOUT_NS: u64 = 3 * SECOND_NS;
const LONG_TIMEOUT_NS: u64 = 90 * SECOND_NS;
/// Most frames that a link sends in `FAST_PERIOD_NS` (§5.4.16).
const SENT_MAX: u32 = 3;
/// Most markers that a link answers in that time (annex 57A.3 of IEEE 802.3: ten frames of slow protocols a second).
const ANSWERED_MAX: u32 = 5;
/// The priorities and the key of this end. They are the usual ones of Linux.
const SYSTEM_PRIORITY: u16 = 0xffff;
const PORT_PRIORITY: u16 = 0xff;
const KEY: u16 = 1;

/// The parts of a partner's state that this end repeats to it (§5.4.9 `update_NTT`).
const REPEATED: u8 = flag::ACTIVE | flag::SHORT_TIMEOUT | flag::IN_SYNC | flag::AGGREGATES;

/// A link's knowledge of its partner (§5.4.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receive {
    /// The link has no carrier.
    Disabled,
    /// The partner was heard lately.
    Current,
    /// The partner has not been heard for a timeout, or never.
    Expired,
    /// Nothing was heard for another timeout either: there is no partner.
    Defaulted,
}

/// An aggregation of the partner: its system, its key, and its port if that does not aggregate.
type Group = ((u16, [u8; 6]), u16, Option<(u16, u16)>);

#[derive(Clone, Debug)]
struct Link {
    receive: Receive,
    /// The end of the present state of `receive`.
    until_ns: u64,
    partner: Port,
    /// The link is in the aggregation that carries frames.
    attached: bool,
    /// A frame is to be sent.
    must_send: bool,
    /// The time of the last sent frame, the start of the present second, and the number of frames sent in that second.
    sent_ns: Option<u64>,
    second_ns: u64,
    sent: u32,
    /// The answers to markers, the start of the present second, and the number of answers in that second.
    answers: Vec<[u8; LEN]>,
    answered_ns: u64,
    answered: u32,
}

impl Link {
    fn new() -> Self {
        Self {
            receive: Receive::Disabled,
            until_ns: u64::MAX,
            partner: Port::default(),
            attached: false,
            must_send: false,
            sent_ns: None,
            second_ns: 0,
            sent: 0,
            answers: Vec::new(),
            answered_ns: 0,
            answered: 0,
        }
    }

    /// Counts the answer to a marker, unless the other end asks too often.
    fn will_answer(&mut self, answer: [u8; LEN], now_ns: u64) {
        if self.answered_ns + FAST_PERIOD_NS <= now_ns {
            (self.answered_ns, self.answered) = (now_ns, 0);
        }
        if self.receive != Receive::Disabled && self.answered < ANSWERED_MAX {
            self.answered += 1;
            self.answers.push(answer);
        }
    }

    /// The partner, as long as there is one.
    fn group(&self) -> Option<Group> {
        let Port { system, key, port, state } = self.partner;
        let knows = matches!(self.receive, Receive::Current | Receive::Expired);
        let alone = state & flag::AGGREGATES == 0;
        (knows && self.partner != Port::default()).then_some((system, key, alone.then_some(port)))
    }

    fn carries(&self) -> bool {
        self.attached && self.partner.state & flag::IN_SYNC != 0
    }

    /// The time between two frames: as the partner asks, or, without one, as this end asks.
    fn period_ns(&self, rate: LacpRate) -> u64 {
        let fast = match self.receive {
            Receive::Expired => true,
            Receive::Current => self.partner.state & flag::SHORT_TIMEOUT != 0,
            Receive::Defaulted | Receive::Disabled => rate == LacpRate::Fast,
        };
        if fast { FAST_PERIOD_NS } else { SLOW_PERIOD_NS }
    }

    /// The earliest time at which the link may send.
    fn may_send_ns(&self) -> u64 {
        if self.sent < SENT_MAX { 0 } else { self.second_ns + FAST_PERIOD_NS }
    }

    /// The time at which the link has something to do.
    fn due_ns(&self, rate: LacpRate) -> u64 {
        if self.receive == Receive::Disabled {
            return u64::MAX;
        }
        if !self.answers.is_empty() {
            return 0;
        }
        let period = self.sent_ns.map_or(0, |sent| sent + self.period_ns(rate));
        let speaks = if self.must_send { 0 } else { period };
        self.until_ns.min(speaks.max(self.may_send_ns()))
    }
}

/// The links of a bond that speaks LACP.
#[derive(Clone, Debug)]
pub(super) struct Lacp {
    system: Mac,
    rate: LacpRate,
    links: Vec<Link>,
    /// The aggregation of the partner that carries frames.
    chosen: Option<Group>,
    carries: Places,
}

impl Lacp {
    /// This end of `links` links, none of which has a carrier yet.
    pub(super) fn new(system: Mac, rate: LacpRate, links: usize) -> Self {
        Self { system, rate, links: vec![Link::new(); links], chosen: None, carries: 0 }
    }

    /// The links that carry frames.
    pub(super) fn carriers(&self) -> Places {
        self.carries
    }

    /// The partner's system, if a link has one.
    pub(super) fn partner(&self, place: u8) -> Option<Mac> {
        let ((_, system), ..) = self.links.get(usize::from(place))?.group()?;
        Some(Mac(system))
    }

    /// The time at which [`act`](Self::act) is due.
    pub(super) fn due_ns(&self) -> u64 {
        self.links.iter().map(|link| link.due_ns(self.rate)).min().unwrap_or(u64::MAX)
    }

    /// Sets another rate.
    pub(super) fn set_rate(&mut self, rate: LacpRate) {
        if self.rate != rate {
            self.rate = rate;
            self.links.iter_mut().for_each(|link| link.must_send = true);
        }
    }

    /// Notes which links have a carrier.
    pub(super) fn set_up(&mut self, up: Places, now_ns: u64) {
        for (place, link) in (0..).zip(&mut self.links) {
            match (has(up, place), link.receive) {
                (false, _) => {
                    let (sent_ns, second_ns, sent) = (link.sent_ns, link.second_ns, link.sent);
                    *link = Link { sent_ns, second_ns, sent, ..Link::new() };
                }
                (true, Receive::Disabled) => {
                    // The partner is given a short timeout's time to answer before it counts as none.
                    link.receive = Receive::Expired;
                    link.until_ns = now_ns + SHORT_TIMEOUT_NS;
                    link.must_send = true;
                }
                (true, _) => {}
            }
        }
        self.settle();
    }

    /// The report of this end about one of its ports.
    fn actor(&self, place: u8) -> Port {
        let mut state = flag::ACTIVE | flag::AGGREGATES;
        if self.rate == LacpRate::Fast {
            state |= flag::SHORT_TIMEOUT;
        }
        if let Some(link) = self.links.get(usize::from(place)) {
            state |= match link.receive {
                Receive::Defaulted => flag::DEFAULTED,
                Receive::Expired => flag::EXPIRED,
                Receive::Current | Receive::Disabled => 0,
            };
            if link.attached {
                state |= flag::IN_SYNC;
            }
            if link.carries() {
                state |= flag::COLLECTS | flag::DISTRIBUTES;
            }
        }
        let port = (PORT_PRIORITY, u16::from(place) + 1);
        Port { system: (SYSTEM_PRIORITY, self.system.0), key: KEY, port, state }
    }

    /// Handles a frame that came in by a link. A frame that is neither an LACPDU nor a marker
    /// changes nothing, and neither does a frame that this end has sent: its link leads back here.
    pub(super) fn hear(&mut self, place: u8, frame: &[u8], now_ns: u64) {
        if let Some(answer) = pdu::answer(frame, self.system) {
            if let Some(link) = self.links.get_mut(usize::from(place)) {
                link.will_answer(answer, now_ns);
            }
            return;
        }
        let Some(Pdu { actor: theirs, partner: ours }) = Pdu::from_frame(frame) else { return };
        let own = self.actor(place);
        let timeout_ns =
            if self.rate == LacpRate::Fast { SHORT_TIMEOUT_NS } else { LONG_TIMEOUT_NS };
        let Some(link) = self.links.get_mut(usize::from(place)) else { return };
        if link.receive == Receive::Disabled || theirs.system == own.system {
            return;
        }
        let knows_us = ours.is(&own);
        // A partner that does not know this end yet is not together with it (§5.4.9 `recordPDU`).
        let is_in_sync =
            theirs.state & flag::IN_SYNC != 0 && (knows_us || theirs.state & flag::AGGREGATES == 0);
        link.partner = theirs;
        if !is_in_sync {
            link.partner.state &= !flag::IN_SYNC;
        }
        (link.receive, link.until_ns) = (Receive::Current, now_ns + timeout_ns);
        self.settle();
        let now = self.actor(place);
        if let Some(link) = self.links.get_mut(usize::from(place)) {
            link.must_send |= !knows_us || (ours.state ^ now.state) & REPEATED != 0;
        }
    }

    /// Does what is due at `now_ns`, and returns the frames to send, each with its link.
    pub(super) fn act(&mut self, now_ns: u64) -> Vec<(u8, [u8; LEN])> {
        for link in self.links.iter_mut().filter(|link| link.until_ns <= now_ns) {
            match link.receive {
                Receive::Current => {
                    // The partner is asked to speak each second (§5.4.12).
                    link.partner.state &= !flag::IN_SYNC;
                    link.partner.state |= flag::SHORT_TIMEOUT;
                    link.receive = Receive::Expired;
                    link.until_ns = now_ns + SHORT_TIMEOUT_NS;
                    link.must_send = true;
                }
                _ => {
                    link.partner = Port::default();
                    link.receive = Receive::Defaulted;
                    link.until_ns = u64::MAX;
                }
            }
        }
        self.settle();
        let (rate, mut frames) = (self.rate, Vec::new());
        for place in 0..self.links.len() as u8 {
            let actor = self.actor(place);
            let Some(link) = self.links.get_mut(usize::from(place)) else { break };
            frames.extend(link.answers.drain(..).map(|answer| (place, answer)));
            let is_due = link.receive != Receive::Disabled
                && (link.must_send
                    || link.sent_ns.is_none_or(|sent| sent + link.period_ns(rate) <= now_ns))
                && link.may_send_ns() <= now_ns;
            if !is_due {
                continue;
            }
            if link.second_ns + FAST_PERIOD_NS <= now_ns {
                (link.second_ns, link.sent) = (now_ns, 0);
            }
            link.sent += 1;
            (link.sent_ns, link.must_send) = (Some(now_ns), false);
            let pdu = Pdu { actor, partner: link.partner };
            frames.push((place, pdu.to_frame(self.system)));
        }
        frames
    }

    /// Chooses the links of the aggregation, and those that carry frames.
    fn settle(&mut self) {
        let count = |group: Group| self.links.iter().filter(|it| it.group() == Some(group)).count();
        let is_there = |group: &Group| count(*group) > 0;
        // The present aggregation stays while it has a link, because each change loses frames.
        let best = || {
            let groups = (0..).zip(self.links.iter().filter_map(Link::group));
            groups.max_by_key(|(place, group)| (count(*group), -place)).map(|(_, group)| group)
        };
        self.chosen = self.chosen.filter(is_there).or_else(best);
        let mut carries = 0;
        for (place, link) in (0_u32..).zip(&mut self.links) {
            let attached = self.chosen.is_some() && link.group() == self.chosen;
            let before = (link.attached, link.carries());
            link.attached = attached;
            link.must_send |= before != (link.attached, link.carries());
            carries |= Places::from(link.carries()) << place;
        }
        self.carries = match self.chosen {
            Some(_) => carries,
            // Nobody speaks LACP here: one link carries, as with `active-backup`.
            None => {
                let alone = (0_u32..).zip(&self.links);
                let alone = alone.filter(|(_, link)| link.receive == Receive::Defaulted);
                let alone = alone.fold(0, |places, (place, _)| places | 1 << place);
                choice::one(alone, self.carries)
            }
        };
    }
}
