//! The decision about one frame.

use std::net::Ipv4Addr;

use weir_limits::{GROUP_CONNECTIONS_MAX, GROUP_TAKE_UP_NS};
use weir_wire::layers::protocol;

use crate::fragments::DatagramKey;
use crate::packet::{Carried, Flags, Flow, Key, Kind, Packet, Part, Quoted, Unread, read};
use crate::plain::{self, Rows};
use crate::refusals::{Ends, Refusal};
use crate::rules::{Allowed, Decision, Direction, GroupId, Policy, Why};
use crate::states::{Sent, Step, Tags};
use crate::table::{Known, Place, State, Table, Wanted, ticks};

/// A frame.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'b> {
    /// The first bytes, or all of them, without a tag.
    pub bytes: &'b [u8],
    /// The frame's length.
    pub len: u32,
    /// The VLAN as the interface sees it; 0 if the interface has no tags.
    pub vid: u16,
    /// The frame was judged before, and has waited for its receiver since.
    pub again: bool,
}

/// The port at the other end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Peer<'g> {
    /// The port's groups.
    pub groups: &'g [GroupId],
    /// The port may give addresses and advertise routes: an uplink, a router, weir itself.
    pub serves: bool,
    /// Groups are behind the port, and only the frames that come from there tell which.
    pub hides: bool,
    /// The ID in the header of a frame from another host, which stands for `groups`; 0 without one. `None` for a frame
    /// of this host.
    pub claimed: Option<u16>,
}

/// The change that a frame makes if it passes.
#[derive(Clone, Copy, Debug)]
enum Change {
    None,
    Note(Place, Key, Known),
    Remove(Place),
}

/// The change that a fragment makes, by which its datagram begins or goes on, or may be spoilt.
#[derive(Clone, Copy, Debug)]
enum PartChange {
    Begin(u32),
    Follow,
    Refuse,
}

/// A decision with the changes that it makes.
struct Thought {
    decision: Decision,
    change: Change,
    /// Tags of the association that is noted.
    tags: Option<Tags>,
    part: Option<(DatagramKey, Part, PartChange)>,
}

impl Thought {
    fn new(decision: Decision) -> Self {
        Self { decision, change: Change::None, tags: None, part: None }
    }

    fn refused(why: Why) -> Self {
        Self::new(Decision::Refused(why))
    }

    fn with(self, change: Change) -> Self {
        Self { change, ..self }
    }
}

fn by(allowed: Allowed) -> Decision {
    Decision::Passes(match allowed {
        Allowed::Rule(place) => Why::Rule(place),
        Allowed::Default => Why::Default,
    })
}

fn passes(allowed: Allowed) -> Thought {
    Thought::new(by(allowed))
}

impl Table {
    /// Passes the frames of `rows` that change nothing of their connection except the time when it
    /// was seen, and calls `judge` with the index of each other frame, in order. If a frame passes,
    /// the rest of its row passes too. For frames from another host, `claimed` gives the groups of
    /// the other end, as in [`Peer`], for each frame by itself: after a frame that passes, the
    /// frames of its row that claim the same groups pass too.
    #[inline(always)]
    pub fn ask(
        &mut self,
        policy: &Policy,
        direction: Direction,
        rows: &Rows,
        claimed: Option<&dyn Fn(usize) -> u16>,
        now_ns: u64,
        judge: &mut dyn FnMut(&mut Self, usize, Option<u16>),
    ) {
        let wanted = Wanted::new(direction, policy.generation, ticks(now_ns));
        if claimed.is_none() && self.is_well_filled() {
            return self.ask_together(rows, direction, wanted, judge);
        }
        let first =
            if claimed.is_some() { 0 } else { self.go_on_at_home(rows.all(), direction, wanted) };
        if first < rows.all().len() {
            self.ask_from((rows, first), direction, wanted, claimed, judge);
        }
    }

    /// Like [`ask`](Self::ask), in a table where many connections are elsewhere than in the place that is read first.
    #[inline(never)]
    fn ask_together(
        &mut self,
        rows: &Rows,
        direction: Direction,
        wanted: Wanted,
        judge: &mut dyn FnMut(&mut Self, usize, Option<u16>),
    ) {
        let mut go_on = self.go_on_together(rows.all(), direction, wanted);
        for place in 0..rows.all().len() {
            if go_on & 1 == 0 && self.ask_row((rows, place), direction, wanted, None, judge) {
                // A judged frame may have changed any other connection.
                go_on = 0;
            }
            go_on >>= 1;
        }
    }

    /// Like [`ask`](Self::ask), for the rows from index `place` on. The connection of the first one has to be looked
    /// for.
    #[inline(never)]
    fn ask_from(
        &mut self,
        (rows, mut place): (&Rows, usize),
        direction: Direction,
        wanted: Wanted,
        claimed: Option<&dyn Fn(usize) -> u16>,
        judge: &mut dyn FnMut(&mut Self, usize, Option<u16>),
    ) {
        while let Some(left @ [_, ..]) = rows.all().get(place..) {
            self.ask_row((rows, place), direction, wanted, claimed, judge);
            place += 1;
            if claimed.is_none() {
                place += self.go_on_at_home(&left[1..], direction, wanted);
            }
        }
    }

    /// Like [`ask_from`](Self::ask_from), for one row. True if its connection may have changed, or any other one.
    #[inline(always)]
    fn ask_row(
        &mut self,
        (rows, place): (&Rows, usize),
        direction: Direction,
        wanted: Wanted,
        claimed: Option<&dyn Fn(usize) -> u16>,
        judge: &mut dyn FnMut(&mut Self, usize, Option<u16>),
    ) -> bool {
        let key = rows.key_of(place, direction);
        let (mut noted, mut is_judged) = (None, false);
        for nth in rows.frames_of(place) {
            let claimed = claimed.map(|claimed| claimed(nth));
            if claimed.is_some() && claimed == noted {
                continue;
            }
            if key.is_some_and(|key| self.go_on(&key, wanted, claimed)) {
                if claimed.is_none() {
                    break;
                }
                noted = claimed;
            } else {
                (noted, is_judged) = (None, true);
                let segment = match key {
                    Some(key) => {
                        (key.protocol() == protocol::TCP).then_some((key, Flags(Flags::ACK)))
                    }
                    None => rows.segment(place, direction),
                };
                let steps_on = |(key, flags)| {
                    self.step_on(&key, flags, (direction, None), wanted.rules_and_time())
                };
                if claimed.is_some() || !segment.is_some_and(steps_on) {
                    judge(self, nth, claimed);
                }
            }
        }
        is_judged
    }

    /// Judges a frame that goes `direction`; `None` if its headers continue behind the available bytes.
    pub fn judge(
        &mut self,
        policy: &Policy,
        direction: Direction,
        frame: Frame<'_>,
        peer: Peer<'_>,
        now_ns: u64,
    ) -> Option<Decision> {
        if let Some((key, flags)) = plain::segment(frame.bytes, direction, frame.vid) {
            let times = (policy.generation, ticks(now_ns));
            if self.step_on(&key, flags, (direction, peer.claimed), times) {
                return Some(Decision::Passes(Why::Established));
            }
            if flags.only_opens()
                && !key.is_v6()
                && let Some(judged) = self.open(policy, direction, (frame, key), peer, now_ns)
            {
                return Some(judged);
            }
        }
        let carried = read(frame.bytes, frame.len);
        let ends = || carried.as_ref().ok().and_then(Ends::of);
        let judge = Judge { table: self, policy, direction, frame, peer, now_ns };
        let Some(Thought { mut decision, change, tags, part }) = judge.think(&carried) else {
            self.note_refused(direction, Why::Invalid, (frame.vid, None), now_ns);
            return None;
        };
        let noted = match change {
            Change::None => true,
            Change::Note(place, key, known) => {
                let at = self.note(place, &key, known, peer.claimed);
                if let (Some(at), Some(tags)) = (at, tags) {
                    self.sctp[at % GROUP_CONNECTIONS_MAX] = tags;
                }
                at.is_some()
            }
            Change::Remove(place) => {
                self.remove(place);
                true
            }
        };
        if !noted && matches!(decision, Decision::Passes(_)) {
            decision = Decision::Refused(Why::Full);
        } else if let Some((key, part, change)) = part {
            match change {
                PartChange::Begin(ports) => self.fragments.begin(&key, part, ports, now_ns),
                PartChange::Follow => self.fragments.follow(&key, part, now_ns),
                PartChange::Refuse => self.fragments.refuse(&key, part, now_ns),
            }
        }
        if let Decision::Refused(why) = decision {
            self.note_refused(direction, why, (frame.vid, ends()), now_ns);
        }
        Some(decision)
    }

    /// Judges a first SYN over IPv4 with this key, as [`Judge`] does but in fewer instructions; `None` if its connection
    /// is known.
    fn open(
        &mut self,
        policy: &Policy,
        direction: Direction,
        (frame, key): (Frame<'_>, Key),
        peer: Peer<'_>,
        now_ns: u64,
    ) -> Option<Decision> {
        let seen = ticks(now_ns);
        let (place, None) = self.find(&key, seen) else { return None };
        let why = match policy.allows(direction, &key.segments_v4(direction), Some(peer.groups)) {
            None => Why::NoRule,
            Some(allowed) => {
                let (state, generation) = (State::SynSent, policy.generation);
                let known = Known { state, opener: direction, heard: direction, generation, seen };
                match self.note(place, &key, known, peer.claimed) {
                    Some(_) => return Some(by(allowed)),
                    None => Why::Full,
                }
            }
        };
        let ends = read(frame.bytes, frame.len).ok().as_ref().and_then(Ends::of);
        self.note_refused(direction, why, (frame.vid, ends), now_ns);
        Some(Decision::Refused(why))
    }

    fn note_refused(
        &mut self,
        direction: Direction,
        why: Why,
        (vid, ends): (u16, Option<Ends>),
        now_ns: u64,
    ) {
        self.refusals.note(Refusal { direction, why, vid, ends }, now_ns);
    }

    /// The decision about a frame, without any change.
    pub fn would_judge(
        &self,
        policy: &Policy,
        direction: Direction,
        frame: Frame<'_>,
        peer: Peer<'_>,
        now_ns: u64,
    ) -> Option<Decision> {
        let judge = Judge { table: self, policy, direction, frame, peer, now_ns };
        judge.think(&read(frame.bytes, frame.len)).map(|thought| thought.decision)
    }
}

struct Judge<'j> {
    table: &'j Table,
    policy: &'j Policy,
    direction: Direction,
    frame: Frame<'j>,
    peer: Peer<'j>,
    now_ns: u64,
}

impl Judge<'_> {
    /// The judgement about a frame with this content; `None` if its headers continue behind the available bytes.
    fn think(&self, carried: &Result<Carried, Unread>) -> Option<Thought> {
        Some(match carried {
            Err(Unread::Beyond) => return None,
            Err(Unread::Malformed) => Thought::refused(Why::Invalid),
            Ok(Carried::Arp) => Thought::new(Decision::Passes(Why::Needed)),
            Ok(Carried::Other) if self.policy.is_open(self.direction) => passes(Allowed::Default),
            Ok(Carried::Other) => Thought::refused(Why::NoRule),
            Ok(Carried::Ip(packet)) => self.packet(packet),
        })
    }

    fn packet(&self, packet: &Packet) -> Thought {
        let Packet { flow, part, .. } = packet;
        let datagram =
            |part: &Part| DatagramKey::new(flow, self.direction, self.frame.vid, part.id);
        match (packet.kind, part) {
            (Kind::Fragment, Some(part)) => {
                let key = datagram(part);
                let fragments = &self.table.fragments;
                let follows = fragments.may_follow(&key, *part, self.frame.again, self.now_ns);
                let (decision, change) = match follows {
                    true => (Decision::Passes(Why::Fragment), PartChange::Follow),
                    false => (Decision::Refused(Why::Fragment), PartChange::Refuse),
                };
                Thought { part: Some((key, *part, change)), ..Thought::new(decision) }
            }
            (_, Some(part)) => {
                let thought = self.whole(packet);
                if let Decision::Refused(_) = thought.decision {
                    return thought;
                }
                let (key, again) = (datagram(part), self.frame.again);
                let ports = u32::from(flow.sport) << 16 | u32::from(flow.dport);
                match self.table.fragments.may_begin(&key, *part, ports, again, self.now_ns) {
                    false => Thought {
                        part: Some((key, *part, PartChange::Refuse)),
                        ..Thought::refused(Why::Fragment)
                    },
                    true => {
                        Thought { part: Some((key, *part, PartChange::Begin(ports))), ..thought }
                    }
                }
            }
            (_, None) if self.is_needed(packet) => Thought::new(Decision::Passes(Why::Needed)),
            (_, None) => self.whole(packet),
        }
    }

    /// True for packets that a guest cannot do without: its own questions, and answers of ports that may give them.
    fn is_needed(&self, packet: &Packet) -> bool {
        const BROADCAST: u128 = Ipv4Addr::BROADCAST.to_bits() as u128;
        /// All DHCPv6 servers and relays of the link, ff02::1:2.
        const SERVERS: u128 = 0xff02 << 112 | 0x1_0002;
        let Packet { flow, kind, hop_limit, .. } = packet;
        let out = self.direction == Direction::Out;
        match kind {
            // No router has passed it on (RFC 4861 §6.1).
            Kind::Link(135 | 136) => *hop_limit == 255,
            Kind::Link(133) => out && *hop_limit == 255,
            Kind::Link(134 | 137) => !out && self.peer.serves && *hop_limit == 255,
            Kind::Link(130) => !out,
            Kind::Link(131 | 132 | 143) => out,
            // Without queries and reports, a guest would lose its multicast groups.
            Kind::Other if flow.protocol == protocol::IGMP => {
                !flow.v6 && flow.dst >> 28 == 0xe && *hop_limit == 1
            }
            Kind::Ports if flow.protocol == protocol::UDP => {
                match (flow.v6, flow.sport, flow.dport) {
                    (false, 68, 67) => out && flow.dst == BROADCAST,
                    (true, 546, 547) => out && flow.dst == SERVERS,
                    (false, 67, 68) | (true, 547, 546) => !out && self.peer.serves,
                    _ => false,
                }
            }
            _ => false,
        }
    }

    /// Judges a packet, or the first fragment of one.
    fn whole(&self, packet: &Packet) -> Thought {
        let Packet { flow, kind, .. } = packet;
        match kind {
            Kind::Tcp(flags) if !flags.are_valid() => Thought::refused(Why::Invalid),
            Kind::Tcp(flags) => self.with_states(flow, *flags),
            Kind::Sctp(chunks) => self.with_states(flow, *chunks),
            Kind::Ports | Kind::Other => self.datagram(flow, None),
            Kind::Query => self.datagram(flow, Some(self.direction)),
            Kind::Answer => self.datagram(flow, Some(self.direction.reverse())),
            Kind::Error(quoted) if self.is_related(flow, quoted.as_ref()) => {
                Thought::new(Decision::Passes(Why::Related))
            }
            Kind::Error(_) | Kind::Link(_) | Kind::Message | Kind::Fragment => self.alone(flow),
        }
    }

    fn key(&self, flow: &Flow, query: Option<Direction>) -> Key {
        Key::new(flow, self.direction, self.frame.vid, query)
    }

    fn allowed(&self, flow: &Flow) -> Option<Allowed> {
        self.policy.allows(self.direction, flow, Some(self.peer.groups))
    }

    /// As [`allowed`](Self::allowed), if the other end had opened the connection. Hidden groups may be any.
    fn allowed_reversed(&self, flow: &Flow) -> Option<Allowed> {
        let opener = self.direction.reverse();
        let groups = Some(self.peer.groups).filter(|_| !self.guesses(opener));
        self.policy.allows(opener, &flow.reversed(), groups)
    }

    /// True if the opener's groups are hidden from this frame, which goes to the opener.
    fn guesses(&self, opener: Direction) -> bool {
        self.peer.hides && self.direction == Direction::Out && opener == Direction::In
    }

    /// True if the present rules still allow a connection. They are read only after a change of the rules, or of the
    /// other end's groups.
    fn is_allowed_still(&self, (place, known): (Place, &Known), flow: &Flow) -> bool {
        let allows = || match known.opener == self.direction {
            true => self.allowed(flow),
            false => self.allowed_reversed(flow),
        };
        !self.has_changed(place, known) || allows().is_some()
    }

    /// True if the connection was allowed under other rules, or for other groups of the other end.
    fn has_changed(&self, place: Place, known: &Known) -> bool {
        known.generation != self.policy.generation
            || self.table.claims_other(place, self.peer.claimed)
    }

    /// Judges a packet that belongs to no connection and opens none.
    fn alone(&self, flow: &Flow) -> Thought {
        self.allowed(flow).map_or_else(|| Thought::refused(Why::NoRule), passes)
    }

    fn is_related(&self, flow: &Flow, quoted: Option<&Quoted>) -> bool {
        let Some(Quoted { flow: about, is_query }) = quoted else { return false };
        let sent = self.direction.reverse();
        let query = is_query.map(|is_query| if is_query { sent } else { self.direction });
        let key = Key::new(about, sent, self.frame.vid, query);
        let (_, known) = self.table.find(&key, ticks(self.now_ns));
        let is_current = |known: Known| {
            known.generation == self.policy.generation && known.state != State::Forbidden
        };
        flow.dst == about.src && flow.v6 == about.v6 && known.is_some_and(is_current)
    }

    /// The connection as it is noted after this frame, in this state. A guess leaves the decision
    /// to the opener's next frame: until then, the connection counts as one under earlier rules.
    fn known(&self, state: State, opener: Direction) -> Known {
        let guessed = u16::from(self.guesses(opener));
        let (heard, generation) = (self.direction, self.policy.generation.wrapping_sub(guessed));
        Known { state, opener, heard, generation, seen: ticks(self.now_ns) }
    }

    /// Judges a packet of a protocol other than TCP. `query` is the direction of a query, if the
    /// packet is a query or its answer.
    fn datagram(&self, flow: &Flow, query: Option<Direction>) -> Thought {
        let key = self.key(flow, query);
        let (place, known) = self.table.find(&key, ticks(self.now_ns));
        if let Some(known) = known.filter(|known| self.is_allowed_still((place, known), flow)) {
            let state = if known.opener == self.direction { known.state } else { State::Answered };
            let change = self.changed(place, key, known, state);
            return Thought::new(Decision::Passes(Why::Established)).with(change);
        }
        let is_answer = query == Some(self.direction.reverse());
        match self.allowed(flow) {
            Some(allowed) if is_answer => passes(allowed),
            Some(allowed) => {
                let known = self.known(State::Unanswered, self.direction);
                passes(allowed).with(Change::Note(place, key, known))
            }
            None if known.is_some() => Thought::refused(Why::NoRule).with(Change::Remove(place)),
            None => Thought::refused(Why::NoRule),
        }
    }

    /// The change that brings a connection into `state`; `None` if the connection is noted so already.
    fn changed(&self, place: Place, key: Key, known: Known, state: State) -> Change {
        let generation = match self.guesses(known.opener) {
            true => known.generation,
            false => self.policy.generation,
        };
        let seen = ticks(self.now_ns);
        let now = Known { state, generation, seen, ..known };
        match now == known && !self.has_changed(place, &known) {
            true => Change::None,
            false => Change::Note(place, key, now),
        }
    }

    /// Judges a packet of a protocol whose connections have states.
    fn with_states<S: Sent>(&self, flow: &Flow, sent: S) -> Thought {
        let key = self.key(flow, None);
        let (place, known) = self.table.find(&key, ticks(self.now_ns));
        let Some(mut known) = known else {
            return match sent.opens() {
                true => self.open(place, key, flow, sent),
                false if sent.ends() => self.alone(flow),
                false => self.take_up(place, key, flow, sent),
            };
        };
        if self.has_changed(place, &known) {
            let still = self.is_allowed_still((place, &known), flow);
            match (still, known.state) {
                (true, State::Forbidden) => known = self.known(State::TakenUp, known.opener),
                (true, _) => {}
                (false, _) if sent.opens() => return self.open(place, key, flow, sent),
                // Otherwise, a later segment of the end that may open connections would cause the
                // connection to be accepted.
                (false, _) => {
                    let known = self.known(State::Forbidden, known.opener);
                    return Thought::refused(Why::NoRule).with(Change::Note(place, key, known));
                }
            }
        }
        let before = S::noted_tags(self.table, place);
        let mut tags = before;
        match sent.step(known.state, &mut tags, self.direction, known.first() == self.direction) {
            Step::To(state) => {
                let change = match self.changed(place, key, known, state) {
                    Change::None if tags != before => Change::Note(place, key, known),
                    change => change,
                };
                let thought = Thought::new(Decision::Passes(Why::Established)).with(change);
                Thought { tags: sent.first_tags(self.direction).map(|_| tags), ..thought }
            }
            Step::Ends => {
                Thought::new(Decision::Passes(Why::Established)).with(Change::Remove(place))
            }
            Step::Opens => self.open(place, key, flow, sent),
            Step::Asks => self.alone(flow),
            Step::Invalid if known.state == State::Forbidden => Thought::refused(Why::NoRule),
            Step::Invalid => Thought::refused(Why::Invalid),
        }
    }

    /// A first packet.
    fn open(&self, place: Place, key: Key, flow: &Flow, sent: impl Sent) -> Thought {
        let Some(allowed) = self.allowed(flow) else { return Thought::refused(Why::NoRule) };
        let known = self.known(State::SynSent, self.direction);
        let thought = passes(allowed).with(Change::Note(place, key, known));
        Thought { tags: sent.first_tags(self.direction), ..thought }
    }

    /// Judges a packet in the middle of a connection that is not known. The connection is taken up
    /// if the rules would let this end open it. It is also taken up if they would let the other end
    /// open it, and either the guest itself sends it or the table is new: the table before it ended
    /// with weir or with a move. SYN with ACK, or INIT ACK, to the guest is not taken up: it is no
    /// data that a guest waits for, and a guest that has asked sends its SYN again.
    fn take_up(&self, place: Place, key: Key, flow: &Flow, sent: impl Sent) -> Thought {
        let answers = sent.answers();
        let is_new = self.now_ns.saturating_sub(self.table.since_ns) < GROUP_TAKE_UP_NS;
        let may_answer = self.direction == Direction::Out || is_new && !answers;
        let own = self.allowed(flow).filter(|_| !answers);
        let other = || self.allowed_reversed(flow).filter(|_| may_answer);
        let (opener, allowed) = match own {
            Some(allowed) => (self.direction, Some(allowed)),
            None => (self.direction.reverse(), other()),
        };
        let Some(allowed) = allowed else { return Thought::refused(Why::NoRule) };
        let state = if answers { State::SynReceived } else { State::TakenUp };
        let known = self.known(state, opener);
        let thought = passes(allowed).with(Change::Note(place, key, known));
        Thought { tags: sent.first_tags(self.direction), ..thought }
    }
}
