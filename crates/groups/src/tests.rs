//! Tests of decisions, frame by frame.

mod frames;
mod model;

use std::net::IpAddr;

use frames::{ACK, FIN, Packet, RST, SYN, icmp_error, ip, ping, tcp, udp};
use weir_limits::{BURST_MAX, GROUP_CONNECTIONS_MAX, GROUP_REFUSALS, GROUP_TAKE_UP_NS, HEAD_LEN};

use crate::{
    Decision, Direction, Ends, Frame, GroupId, Other, Peer, Policy, Rows, Rule, Table, Vlans, Why,
};

const SECOND: u64 = 1_000_000_000;
/// A time long after the table was made.
const LATER: u64 = GROUP_TAKE_UP_NS + SECOND;

pub(crate) const GUEST: &str = "10.0.0.1";
pub(crate) const PEER: &str = "10.0.0.2";

pub(crate) fn rule(
    direction: Direction,
    protocol: Option<u8>,
    ports: &[(u16, u16)],
    other: Other,
) -> Rule {
    Rule { direction, protocol, values: ports.into(), other }
}

/// A policy that allows inbound connections by these rules only, and all outbound ones.
fn closed_in(rules: &[Rule]) -> Policy {
    Policy {
        allow_in: false,
        allow_out: true,
        rules: rules.into(),
        groups: [].into(),
        log: false,
        set_id: 0,
        generation: 1,
    }
}

/// The first bytes of a frame, as workers have them, and their number.
fn front(bytes: &[u8]) -> ([u8; HEAD_LEN], usize) {
    let (mut head, len) = ([0; HEAD_LEN], bytes.len().min(HEAD_LEN));
    head[..len].copy_from_slice(&bytes[..len]);
    (head, len)
}

struct Bed {
    table: Table,
    rows: Rows,
    policy: Policy,
    now_ns: u64,
}

impl Bed {
    fn new(policy: Policy) -> Self {
        Self { table: Table::new(7, 0), rows: Rows::default(), policy, now_ns: LATER }
    }

    fn goes_on(&mut self, direction: Direction, bytes: &[u8]) -> bool {
        self.goes_on_of(direction, bytes, None)
    }

    fn goes_on_of(&mut self, direction: Direction, bytes: &[u8], claimed: Option<u16>) -> bool {
        let ((head, len), mut goes_on) = (front(bytes), true);
        self.rows.read(1, |_| (&head, len, Vlans::default()));
        let id_of = claimed.map(|id| move |_| id);
        let id_of = id_of.as_ref().map(|id_of| id_of as &dyn Fn(usize) -> u16);
        let judge = &mut |_: &mut Table, _, _| goes_on = false;
        self.table.ask(&self.policy, direction, &self.rows, id_of, self.now_ns, judge);
        goes_on
    }

    /// Judges a frame as workers do, which pass frames that continue a connection without a
    /// judgement.
    fn judge_of(&mut self, direction: Direction, bytes: &[u8], peer: Peer<'_>) -> Decision {
        let frame = Frame { bytes, len: bytes.len() as u32, vid: 0, again: false };
        let would = self.table.would_judge(&self.policy, direction, frame, peer, self.now_ns);
        let would = would.unwrap();
        if self.goes_on_of(direction, bytes, peer.claimed) {
            assert!(matches!(would, Decision::Passes(_)), "goes on: {would:?}");
            return would;
        }
        let judged = self.table.judge(&self.policy, direction, frame, peer, self.now_ns);
        assert_eq!(Some(would), judged, "the thought differs from the fact");
        would
    }

    fn judge(&mut self, direction: Direction, bytes: &[u8]) -> Decision {
        self.judge_of(direction, bytes, Peer::default())
    }

    fn comes(&mut self, bytes: &[u8]) -> bool {
        matches!(self.judge(Direction::In, bytes), Decision::Passes(_))
    }

    fn goes(&mut self, bytes: &[u8]) -> bool {
        matches!(self.judge(Direction::Out, bytes), Decision::Passes(_))
    }

    fn shake_hands_outward(&mut self, port: u16) {
        self.shake_hands(GUEST, PEER, port);
    }

    fn shake_hands(&mut self, guest: &str, peer: &str, port: u16) {
        assert!(self.goes(&tcp(guest, peer, port, 80, SYN)));
        assert!(self.comes(&tcp(peer, guest, 80, port, SYN | ACK)));
        assert!(self.goes(&tcp(guest, peer, port, 80, ACK)));
    }
}

#[test]
fn an_outward_connection_is_answered_and_an_inward_one_is_refused() {
    let mut bed = Bed::new(closed_in(&[]));
    assert_eq!(
        bed.judge(Direction::In, &tcp(PEER, GUEST, 80, 5000, SYN)),
        Decision::Refused(Why::NoRule)
    );
    bed.shake_hands_outward(5000);
    let data = tcp(PEER, GUEST, 80, 5000, ACK);
    assert_eq!(bed.judge(Direction::In, &data), Decision::Passes(Why::Established));
    assert!(bed.goes_on(Direction::In, &data));
    bed.policy.generation += 1;
    assert!(!bed.goes_on(Direction::In, &data), "other rules are read first");
    bed.policy.generation -= 1;
    assert!(!bed.comes(&tcp(PEER, GUEST, 81, 5000, ACK)), "another port is another connection");
    assert!(!bed.comes(&tcp("10.0.0.3", GUEST, 80, 5000, ACK)));
    assert!(
        !bed.comes(&tcp(PEER, GUEST, 80, 5000, SYN)),
        "the other end opens nothing in its name"
    );
}

#[test]
fn a_worker_whose_clock_is_behind_finds_what_another_one_has_seen() {
    let tick = 1 << weir_limits::GROUP_TIME_SHIFT;
    let mut bed = Bed::new(closed_in(&[]));
    bed.now_ns += 1000 * SECOND;
    bed.shake_hands_outward(5000);
    assert!(bed.goes(&udp(GUEST, PEER, 5000, 53)));
    bed.now_ns += 2 * tick;
    let (data, answer) = (tcp(PEER, GUEST, 80, 5000, ACK), udp(PEER, GUEST, 53, 5000));
    assert!(bed.comes(&data) && bed.comes(&answer));
    bed.now_ns -= 2 * tick;
    assert_eq!(bed.judge(Direction::In, &data), Decision::Passes(Why::Established));
    assert!(bed.comes(&answer) && bed.goes(&tcp(GUEST, PEER, 5000, 80, ACK)));
    // New connections displace none of these connections.
    for port in 1..1000 {
        assert!(bed.goes(&udp(GUEST, PEER, 6000, port)));
    }
    assert!(bed.comes(&data) && bed.comes(&answer));
}

#[test]
fn refusals_are_counted_and_the_latest_are_told_by_their_ends() {
    let mut bed = Bed::new(closed_in(&[]));
    for port in [22, 22, 23] {
        assert!(!bed.comes(&tcp(PEER, GUEST, 5000 + port, port, SYN)));
        bed.now_ns += SECOND;
    }
    assert!(!bed.comes(&tcp(PEER, GUEST, 5000, 22, SYN | FIN)), "no host sends this");
    let told = |bed: &mut Bed| {
        let mut told = Vec::new();
        let missed = bed.table.refusals_mut().take(|refusal, frames| {
            let Ends { src, dst, value, protocol } = refusal.ends.unwrap();
            assert_eq!((src.to_string(), dst.to_string()), (PEER.to_owned(), GUEST.to_owned()));
            assert_eq!((refusal.direction, protocol), (Direction::In, 6));
            told.push((refusal.why, value.unwrap(), frames));
        });
        (told, missed)
    };
    let first = [(Why::NoRule, 22, 2), (Why::NoRule, 23, 1), (Why::Invalid, 22, 1)];
    assert_eq!(told(&mut bed), (first.to_vec(), 0));
    assert!(!bed.comes(&tcp(PEER, GUEST, 5000, 23, SYN)));
    assert_eq!(told(&mut bed), (vec![(Why::NoRule, 23, 1)], 0), "only what came since");

    // A scan of all ports takes no more memory. The oldest refusals are displaced, and the counts keep their frames.
    for port in 1..=u16::MAX {
        bed.now_ns += 1;
        assert!(!bed.comes(&tcp(PEER, GUEST, 5000, port, SYN)));
    }
    let (latest, missed) = told(&mut bed);
    assert_eq!(latest.len(), GROUP_REFUSALS);
    assert_eq!(missed, u64::from(u16::MAX) - GROUP_REFUSALS as u64);
    let counts: Vec<_> = bed.table.refusals().counts(Direction::In).collect();
    assert_eq!(counts[..2], [(Why::NoRule, 4 + u64::from(u16::MAX)), (Why::Invalid, 1)]);
    assert!(bed.table.refusals().counts(Direction::Out).all(|(_, frames)| frames == 0));
}

#[test]
fn ports_and_sides_of_rules_count() {
    let web = GroupId::of("web");
    let lb = GroupId::of("lb");
    let net: IpAddr = "10.0.0.0".parse().unwrap();
    let mut bed = Bed::new(closed_in(&[
        rule(Direction::In, Some(6), &[(80, 80), (8000, 8100)], Other::Group(lb)),
        rule(Direction::In, Some(17), &[], Other::Prefix(net, 30)),
    ]));
    let open = |bed: &mut Bed, port, groups: &[GroupId]| {
        let peer = Peer { groups, ..Peer::default() };
        bed.judge_of(Direction::In, &tcp(PEER, GUEST, 4000, port, SYN), peer)
    };
    assert_eq!(open(&mut bed, 8050, &[web, lb]), Decision::Passes(Why::Rule(0)));
    assert_eq!(open(&mut bed, 8101, &[lb]), Decision::Refused(Why::NoRule));
    assert_eq!(open(&mut bed, 80, &[web]), Decision::Refused(Why::NoRule));
    assert_eq!(bed.judge(Direction::In, &udp(PEER, GUEST, 9, 9)), Decision::Passes(Why::Rule(1)));
    assert!(!bed.comes(&udp("10.0.0.4", GUEST, 9, 9)));
    assert!(!bed.comes(&udp("fd00::2", "fd00::1", 9, 9)), "a prefix of IPv4 is none of IPv6");
}

#[test]
fn prefixes_of_every_length_match_what_they_name() {
    for (prefix, len, inside, outside) in [
        ("0.0.0.0", 0, "255.1.2.3", None),
        ("10.0.0.2", 32, "10.0.0.2", Some("10.0.0.3")),
        ("::", 0, "fd00::7", None),
        ("fd00::", 16, "fd00:ffff::1", Some("fd01::1")),
        ("fd00::2", 128, "fd00::2", Some("fd00::3")),
    ] {
        let any = rule(Direction::In, None, &[], Other::Prefix(prefix.parse().unwrap(), len));
        let mut bed = Bed::new(closed_in(&[any]));
        let guest = if prefix.contains(':') { "fd00::1" } else { GUEST };
        assert!(bed.comes(&udp(inside, guest, 1, 2)), "{inside} in {prefix}/{len}");
        if let Some(outside) = outside {
            assert!(!bed.comes(&udp(outside, guest, 1, 2)), "{outside} in {prefix}/{len}");
        }
    }
}

#[test]
fn udp_and_ping_are_answered_as_long_as_they_live() {
    let mut bed = Bed::new(closed_in(&[]));
    assert!(!bed.comes(&udp(PEER, GUEST, 53, 5000)));
    assert!(bed.goes(&udp(GUEST, PEER, 5000, 53)));
    assert!(bed.comes(&udp(PEER, GUEST, 53, 5000)));
    assert!(bed.goes(&ping(GUEST, PEER, 1, true)));
    assert!(bed.comes(&ping(PEER, GUEST, 1, false)));
    assert!(!bed.comes(&ping(PEER, GUEST, 2, false)), "an answer to nobody");
    assert!(!bed.comes(&ping(PEER, GUEST, 1, true)), "a question with the same identifier");
    bed.now_ns += 31 * SECOND;
    assert!(!bed.comes(&ping(PEER, GUEST, 1, false)));
    assert!(bed.comes(&udp(PEER, GUEST, 53, 5000)), "an answered one lives longer");
    bed.now_ns += 181 * SECOND;
    assert!(!bed.comes(&udp(PEER, GUEST, 53, 5000)));
}

#[test]
fn the_same_holds_over_ipv6_behind_extension_headers() {
    let mut bed = Bed::new(closed_in(&[]));
    let (guest, peer) = ("fd00::1", "fd00::2");
    let extended = |packet: Vec<u8>| Packet(packet).extended().0;
    assert!(bed.goes(&extended(tcp(guest, peer, 5000, 80, SYN))));
    assert!(bed.comes(&tcp(peer, guest, 80, 5000, SYN | ACK)));
    assert!(!bed.comes(&extended(tcp(peer, guest, 80, 5001, SYN))));
    assert!(bed.goes(&ping(guest, peer, 1, true)));
    assert!(bed.comes(&extended(ping(peer, guest, 1, false))));
}

#[test]
fn an_icmp_error_passes_if_it_quotes_a_packet_of_a_connection() {
    for (guest, peer, router) in [(GUEST, PEER, "10.9.9.9"), ("fd00::1", "fd00::2", "fd00::9")] {
        let mut bed = Bed::new(closed_in(&[]));
        let sent = udp(guest, peer, 5000, 53);
        assert!(!bed.comes(&icmp_error(router, guest, &sent)), "nothing was sent yet");
        assert!(bed.goes(&sent));
        let error = icmp_error(router, guest, &sent);
        assert_eq!(bed.judge(Direction::In, &error), Decision::Passes(Why::Related));
        assert!(!bed.comes(&icmp_error(router, guest, &udp(guest, peer, 5001, 53))));
        assert!(
            !bed.comes(&icmp_error(router, guest, &udp(peer, guest, 53, 5000))),
            "not sent by the guest"
        );
        let other = if guest == GUEST { "10.0.0.7" } else { "fd00::7" };
        assert!(!bed.comes(&icmp_error(router, other, &sent)), "for another host");
    }
}

#[test]
fn what_nobody_can_do_without_needs_no_rule_and_forged_answers_do_not_pass() {
    let nothing = Policy {
        allow_in: false,
        allow_out: false,
        rules: [].into(),
        groups: [].into(),
        log: false,
        set_id: 0,
        generation: 1,
    };
    let mut bed = Bed::new(nothing);
    let mut arp = vec![0; 42];
    arp[12..14].copy_from_slice(&[8, 6]);
    assert!(bed.comes(&arp) && bed.goes(&arp));
    let igmp = |to: &str, hops| ip(PEER, to, 2, hops, &[0x11, 100, 0, 0, 0, 0, 0, 0]);
    assert!(bed.comes(&igmp("224.0.0.1", 1)) && bed.goes(&igmp("239.1.2.3", 1)));
    assert!(!bed.goes(&igmp(PEER, 1)) && !bed.goes(&igmp("239.1.2.3", 2)), "not beyond the link");
    assert!(bed.goes(&udp("0.0.0.0", "255.255.255.255", 68, 67)));
    assert!(!bed.goes(&udp(GUEST, PEER, 68, 67)), "no way out for whatever a guest puts in");
    let answer = udp(PEER, GUEST, 67, 68);
    assert!(!bed.comes(&answer), "from who gives no addresses");
    let server = Peer { serves: true, ..Peer::default() };
    let judged = bed.judge_of(Direction::In, &answer, server);
    assert_eq!(judged, Decision::Passes(Why::Needed));
    assert!(!bed.goes(&answer), "the guest is no server");
    for (kind, hops, from, comes) in [
        (135, 255, false, true),
        (135, 64, false, false),
        (134, 255, false, false),
        (134, 255, true, true),
    ] {
        let message = frames::icmp6(PEER6, GUEST6, kind, hops);
        let peer = Peer { serves: from, ..Peer::default() };
        let passes = matches!(bed.judge_of(Direction::In, &message, peer), Decision::Passes(_));
        assert_eq!(passes, comes, "type {kind}, hop limit {hops}");
    }
    assert!(!bed.goes(&tcp(GUEST, PEER, 1, 2, SYN)));
}

const GUEST6: &str = "fe80::1";
const PEER6: &str = "fe80::2";

#[test]
fn the_first_fragment_decides_and_later_ones_follow() {
    for (guest, peer) in [(GUEST, PEER), ("fd00::1", "fd00::2")] {
        let web = rule(Direction::In, Some(17), &[(53, 53)], Other::Anyone);
        let mut bed = Bed::new(closed_in(&[web]));
        let allowed = Packet(udp(peer, guest, 9, 53)).padded(64);
        let refused = Packet(udp(peer, guest, 9, 54)).padded(64);
        let part = |packet: &Packet, id, from, to, more| packet.fragment(id, from, to, more).0;
        assert!(!bed.comes(&part(&allowed, 1, 24, 64, false)), "before the first one");
        assert!(bed.comes(&part(&allowed, 1, 0, 24, true)));
        assert!(!bed.comes(&part(&allowed, 1, 0, 24, true)), "the first one again");
        assert!(bed.comes(&part(&allowed, 1, 48, 64, false)));
        assert!(!bed.comes(&part(&allowed, 1, 48, 64, false)), "the last one again");
        assert!(bed.comes(&part(&allowed, 1, 24, 48, true)));
        for (id, from, to) in [(5, 16, 40), (6, 0, 32)] {
            assert!(bed.comes(&part(&allowed, id, 0, 24, true)));
            assert!(!bed.comes(&part(&allowed, id, from, to, true)), "over the first one");
            assert!(!bed.comes(&part(&allowed, id, 24, 64, false)), "behind one that overlaps");
        }
        assert!(!bed.comes(&part(&refused, 2, 0, 24, true)));
        assert!(!bed.comes(&part(&refused, 2, 24, 64, false)));
        assert!(!bed.comes(&part(&allowed, 3, 0, 20, true)), "an end that nothing can continue");
        let tiny = Packet(tcp(peer, guest, 9, 53, SYN)).fragment(4, 0, 8, true).0;
        assert_eq!(bed.judge(Direction::In, &tiny), Decision::Refused(Why::Invalid));
        bed.now_ns += 16 * SECOND;
        assert!(!bed.comes(&part(&allowed, 1, 64, 72, false)), "too late");
    }
}

#[test]
fn rfc_8200_4_5_fragments_follow_by_their_number_whatever_header_is_cut() {
    let mut bed = Bed::new(closed_in(&[]));
    // The part that is cut begins with options for the destination.
    let mut whole = Packet(udp("fd00::1", "fd00::2", 9, 53)).padded(64);
    let next = std::mem::replace(&mut whole.0[20], 60);
    whole.0.splice(54..54, [next, 0, 1, 4, 0, 0, 0, 0]);
    assert!(bed.goes(&whole.fragment(1, 0, 24, true).0));
    assert!(bed.goes(&whole.fragment(1, 24, 72, false).0));
}

#[test]
fn udp_lite_is_known_by_its_ports() {
    let mut bed = Bed::new(closed_in(&[]));
    let lite = |src, dst, sport, dport| {
        let mut frame = udp(src, dst, sport, dport);
        frame[23] = 136;
        frame
    };
    assert!(bed.goes(&lite(GUEST, PEER, 9, 53)));
    assert!(bed.comes(&lite(PEER, GUEST, 53, 9)));
    assert!(!bed.comes(&lite(PEER, GUEST, 53, 10)), "to another port");
}

#[test]
fn a_fragment_that_has_waited_is_judged_again_and_passes() {
    let mut bed = Bed::new(closed_in(&[]));
    let whole = Packet(udp(GUEST, PEER, 9, 53)).padded(64);
    let mut goes = |from, to, more, again| {
        let bytes = whole.fragment(1, from, to, more).0;
        let frame = Frame { bytes: &bytes, len: bytes.len() as u32, vid: 0, again };
        let peer = Peer::default();
        let judged = bed.table.judge(&bed.policy, Direction::Out, frame, peer, bed.now_ns);
        matches!(judged.unwrap(), Decision::Passes(_))
    };
    assert!(goes(0, 24, true, false) && goes(24, 64, false, false));
    assert!(goes(0, 24, true, true) && goes(24, 64, false, true));
    assert!(!goes(8, 24, true, true), "where the headers are");
}

#[test]
fn a_segment_in_the_middle_is_taken_up_by_the_written_rule() {
    let mut bed = Bed::new(closed_in(&[]));
    assert!(
        !bed.comes(&tcp(PEER, GUEST, 80, 5000, ACK)),
        "the table is old, and the guest has said nothing"
    );
    assert!(bed.goes(&tcp(GUEST, PEER, 5000, 80, ACK)), "the guest may open such a connection");
    assert!(bed.comes(&tcp(PEER, GUEST, 80, 5000, ACK)));
    let mut bed = Bed { now_ns: SECOND, ..Bed::new(closed_in(&[])) };
    assert!(
        bed.comes(&tcp(PEER, GUEST, 80, 5000, ACK)),
        "the table is new: who waits for data says nothing"
    );
    assert!(!bed.comes(&tcp(PEER, GUEST, 80, 5001, SYN)));
    let answer = tcp(PEER, GUEST, 80, 5002, SYN | ACK);
    assert!(!bed.comes(&answer), "it would reach a closed port");
    assert!(bed.goes(&tcp(GUEST, PEER, 5002, 80, SYN)), "the guest asks again");
    assert!(bed.comes(&answer));
    let serves = rule(Direction::In, Some(6), &[(80, 80)], Other::Anyone);
    let mut bed = Bed { now_ns: SECOND, ..Bed::new(closed_in(&[serves])) };
    assert!(bed.goes(&tcp(GUEST, PEER, 80, 5000, SYN | ACK)), "the guest itself answers");
    let deny_out = Policy { allow_out: false, ..closed_in(&[]) };
    let mut bed = Bed { now_ns: SECOND, ..Bed::new(deny_out) };
    assert!(
        !bed.comes(&tcp(PEER, GUEST, 80, 5000, ACK)),
        "the guest may not open such a connection"
    );
}

#[test]
fn rules_that_forbid_a_connection_end_it_at_once_and_others_go_on() {
    let web = rule(Direction::In, Some(6), &[(80, 81)], Other::Anyone);
    let mut bed = Bed::new(closed_in(&[web]));
    for port in [80, 81] {
        assert!(bed.comes(&tcp(PEER, GUEST, 4000, port, SYN)));
        assert!(bed.goes(&tcp(GUEST, PEER, port, 4000, SYN | ACK)));
        assert!(bed.comes(&tcp(PEER, GUEST, 4000, port, ACK)));
    }
    assert!(bed.goes(&udp(GUEST, PEER, 5000, 53)));
    let fewer = rule(Direction::In, Some(6), &[(81, 81)], Other::Anyone);
    bed.policy = Policy { generation: 2, ..closed_in(&[fewer]) };
    assert!(
        !bed.goes(&tcp(GUEST, PEER, 80, 4000, ACK)),
        "the guest does not take it up as its own"
    );
    assert!(!bed.comes(&tcp(PEER, GUEST, 4000, 80, ACK)));
    assert!(!bed.goes(&tcp(GUEST, PEER, 80, 4000, ACK)));
    assert!(bed.comes(&tcp(PEER, GUEST, 4000, 81, ACK)));
    assert!(bed.comes(&udp(PEER, GUEST, 53, 5000)));
    bed.policy = Policy { allow_out: false, generation: 3, ..closed_in(&[]) };
    assert!(!bed.comes(&udp(PEER, GUEST, 53, 5000)));
}

#[test]
fn an_answer_to_another_host_waits_for_that_hosts_next_frame_to_be_held_to_new_rules() {
    let (web, lb) = (GroupId::of("web"), GroupId::of("lb"));
    let from = |group| rule(Direction::In, None, &[], Other::Group(group));
    let closed =
        |group, generation| Policy { allow_out: false, generation, ..closed_in(&[from(group)]) };
    let there = Peer { serves: true, hides: true, ..Peer::default() };
    let goes = |bed: &mut Bed, bytes: &[u8]| bed.judge_of(Direction::Out, bytes, there);
    let comes = |bed: &mut Bed, bytes: &[u8], groups: &[GroupId]| {
        bed.judge_of(Direction::In, bytes, Peer { groups, serves: true, ..Peer::default() })
    };
    let established = Decision::Passes(Why::Established);
    let refused = Decision::Refused(Why::NoRule);
    let (syn, ack) = (tcp(PEER, GUEST, 4000, 80, SYN), tcp(PEER, GUEST, 4000, 80, ACK));
    let (answer, data) = (tcp(GUEST, PEER, 80, 4000, SYN | ACK), tcp(GUEST, PEER, 80, 4000, ACK));
    let mut bed = Bed::new(closed(lb, 1));
    assert_eq!(comes(&mut bed, &syn, &[web]), refused);
    assert_eq!(comes(&mut bed, &syn, &[]), refused);
    assert_eq!(comes(&mut bed, &syn, &[web, lb]), Decision::Passes(Why::Rule(0)));
    assert_eq!(goes(&mut bed, &answer), established);
    assert_eq!(comes(&mut bed, &ack, &[lb]), established);
    // The guest's frames go on until the other end's next frame shows its groups.
    bed.policy = closed(lb, 2);
    assert_eq!([(); 3].map(|()| goes(&mut bed, &data)), [established; 3]);
    assert_eq!(comes(&mut bed, &ack, &[lb]), established);
    bed.policy = closed(web, 3);
    assert_eq!(goes(&mut bed, &data), established);
    assert_eq!(comes(&mut bed, &ack, &[lb]), refused);
    assert_eq!(goes(&mut bed, &data), refused);
    assert_eq!(comes(&mut bed, &ack, &[lb]), refused);
    // Without any rule that names a group there is no guess.
    bed.policy = Policy { allow_out: false, generation: 4, ..closed_in(&[]) };
    assert_eq!(goes(&mut bed, &data), refused);

    // A new table accepts the guest's segments in the middle of a connection, and the other end's groups still count.
    let mut bed = Bed::new(closed(lb, 1));
    assert_eq!(goes(&mut bed, &data), Decision::Passes(Why::Rule(0)));
    assert_eq!(comes(&mut bed, &ack, &[web]), refused);
    assert_eq!(goes(&mut bed, &tcp(GUEST, PEER, 5000, 80, SYN)), refused, "nothing is opened");
    let mut bed = Bed::new(closed(lb, 1));
    assert_eq!(goes(&mut bed, &data), Decision::Passes(Why::Rule(0)));
    assert_eq!(comes(&mut bed, &ack, &[lb]), established);
    // A rule outward that names a group has nothing to guess.
    let to = rule(Direction::Out, None, &[], Other::Group(lb));
    let mut bed = Bed::new(Policy { allow_out: false, ..closed_in(&[to]) });
    assert_eq!(goes(&mut bed, &udp(GUEST, PEER, 5000, 53)), refused);
}

#[test]
fn a_connection_ends_when_the_other_end_claims_groups_that_no_rule_allows() {
    let lb = GroupId::of("lb");
    let from = rule(Direction::In, None, &[], Other::Group(lb));
    let dns = rule(Direction::Out, Some(17), &[(53, 53)], Other::Anyone);
    let mut bed = Bed::new(Policy { allow_out: false, ..closed_in(&[from, dns]) });
    let there = Peer { serves: true, hides: true, ..Peer::default() };
    let goes = |bed: &mut Bed, bytes: &[u8]| bed.judge_of(Direction::Out, bytes, there);
    let comes = |bed: &mut Bed, bytes: &[u8], id: u16| {
        let groups = if matches!(id, 17 | 18) { &[lb][..] } else { &[] };
        let peer = Peer { groups, serves: true, claimed: Some(id), ..Peer::default() };
        bed.judge_of(Direction::In, bytes, peer)
    };
    let established = Decision::Passes(Why::Established);
    let refused = Decision::Refused(Why::NoRule);
    let segment = |flags| tcp(PEER, GUEST, 4000, 80, flags);
    let (answer, data) = (tcp(GUEST, PEER, 80, 4000, SYN | ACK), tcp(GUEST, PEER, 80, 4000, ACK));
    assert_eq!(comes(&mut bed, &segment(SYN), 17), Decision::Passes(Why::Rule(0)));
    assert_eq!(goes(&mut bed, &answer), established);
    assert_eq!([(); 3].map(|()| comes(&mut bed, &segment(ACK), 17)), [established; 3]);
    assert!(bed.goes_on_of(Direction::In, &segment(ACK), Some(17)));
    // A connection passes under another set with the group, and the table remembers the new set at once.
    assert!(!bed.goes_on_of(Direction::In, &segment(ACK), Some(18)));
    assert_eq!(comes(&mut bed, &segment(ACK), 18), established);
    assert!(bed.goes_on_of(Direction::In, &segment(ACK), Some(18)));
    assert!(!bed.goes_on_of(Direction::In, &segment(ACK), Some(17)));
    // A sender that has left the group ends the connection, both ways, with whatever segment it sends.
    for (left, flags) in [(0, ACK), (20, FIN | ACK), (0, RST)] {
        let mut bed = Bed::new(bed.policy.clone());
        assert_eq!(comes(&mut bed, &segment(SYN), 17), Decision::Passes(Why::Rule(0)));
        assert_eq!(goes(&mut bed, &answer), established);
        assert_eq!(comes(&mut bed, &segment(ACK), 17), established);
        assert_eq!(comes(&mut bed, &segment(flags), left), refused, "{flags:#x}");
        assert_eq!(goes(&mut bed, &data), refused);
        assert_eq!(comes(&mut bed, &segment(ACK), left), refused);
        // The sender may come back, as after a change of rules.
        assert_eq!(comes(&mut bed, &segment(ACK), 17), established);
        assert_eq!(goes(&mut bed, &data), established);
    }
    // Datagrams have a state, too.
    let (asks, told) = (udp(PEER, GUEST, 4000, 5000), udp(GUEST, PEER, 5000, 4000));
    assert_eq!(comes(&mut bed, &asks, 17), Decision::Passes(Why::Rule(0)));
    assert_eq!(goes(&mut bed, &told), established);
    assert_eq!(comes(&mut bed, &asks, 0), refused);
    assert_eq!(goes(&mut bed, &told), refused);
    // A connection that needs no group passes, whatever groups the other end has.
    let (asks, told) = (udp(GUEST, PEER, 5000, 53), udp(PEER, GUEST, 53, 5000));
    assert_eq!(goes(&mut bed, &asks), Decision::Passes(Why::Rule(1)));
    for id in [0, 17, 18, 0] {
        assert_eq!(comes(&mut bed, &told, id), established);
    }
}

#[test]
fn states_follow_a_connection_to_its_end() {
    let mut bed = Bed::new(closed_in(&[]));
    bed.shake_hands_outward(5000);
    bed.now_ns += 3600 * SECOND;
    assert!(bed.comes(&tcp(PEER, GUEST, 80, 5000, ACK)), "an established one lives long");
    assert!(bed.goes(&tcp(GUEST, PEER, 5000, 80, FIN | ACK)));
    assert!(bed.comes(&tcp(PEER, GUEST, 80, 5000, ACK)), "the other half goes on");
    assert!(bed.comes(&tcp(PEER, GUEST, 80, 5000, FIN | ACK)));
    assert!(bed.goes(&tcp(GUEST, PEER, 5000, 80, ACK)));
    assert!(!bed.comes(&tcp(PEER, GUEST, 80, 5000, SYN)));
    bed.now_ns += 61 * SECOND;
    assert!(!bed.comes(&tcp(PEER, GUEST, 80, 5000, ACK)));
    bed.shake_hands_outward(5001);
    assert!(bed.comes(&tcp(PEER, GUEST, 80, 5001, RST)));
    bed.now_ns += 11 * SECOND;
    assert!(!bed.comes(&tcp(PEER, GUEST, 80, 5001, ACK)));
}

/// A packet of SCTP from port 7 with these chunks; INIT and INIT ACK ask for `init_tag`.
fn sctp(src: &str, dst: &str, tag: u32, chunks: &[u8], init_tag: u32) -> Vec<u8> {
    let mut packet = [&[0, 7, 0, 7][..], &tag.to_be_bytes(), &[0; 4]].concat();
    for chunk in chunks {
        let (kind, reflects) = (chunk & 0x7f, chunk >> 7);
        packet.extend([kind, reflects, 0, if matches!(kind, 1 | 2) { 20 } else { 8 }]);
        packet.extend(init_tag.to_be_bytes());
        packet.extend([0; 12].iter().take(if matches!(kind, 1 | 2) { 12 } else { 0 }));
    }
    ip(src, dst, 132, 64, &packet)
}

const INIT: u8 = 1;
const INIT_ACK: u8 = 2;
const ABORT: u8 = 6;
const SHUTDOWN: u8 = 7;
const SHUTDOWN_ACK: u8 = 8;
const COOKIE_ECHO: u8 = 10;
const COOKIE_ACK: u8 = 11;
const SHUTDOWN_COMPLETE: u8 = 14;
/// A packet with the tag of the other direction.
const REFLECTED: u8 = 0x80;

/// An association of SCTP, by steps: true for a packet of the guest.
struct Association<'b>(&'b mut Bed, [&'static str; 2]);

impl Association<'_> {
    fn sends(&mut self, out: bool, tag: u32, chunks: &[u8], init_tag: u32) -> Decision {
        let [guest, peer] = self.1;
        match out {
            true => self.0.judge(Direction::Out, &sctp(guest, peer, tag, chunks, init_tag)),
            false => self.0.judge(Direction::In, &sctp(peer, guest, tag, chunks, init_tag)),
        }
    }

    /// The guest's tag is 10, the peer's 20.
    fn shakes_hands(&mut self) {
        let (passes, by_rule) =
            (Decision::Passes(Why::Established), Decision::Passes(Why::Default));
        assert_eq!(self.sends(true, 0, &[INIT], 10), by_rule);
        assert_eq!(self.sends(false, 10, &[INIT_ACK], 20), passes);
        assert_eq!(self.sends(true, 20, &[COOKIE_ECHO, 0], 0), passes);
        assert_eq!(self.sends(false, 10, &[COOKIE_ACK, 3], 0), passes);
        assert_eq!(self.state(), "established");
    }

    fn state(&self) -> &'static str {
        let page = self.0.table.page(0, GROUP_CONNECTIONS_MAX, self.0.now_ns).0;
        page.into_iter().find(|it| it.protocol == 132).map_or("", |it| it.state)
    }
}

#[test]
fn rfc_9260_4_states_follow_an_association_to_its_end_by_its_tags() {
    let (passes, invalid) = (Decision::Passes(Why::Established), Decision::Refused(Why::Invalid));
    for ends in [[GUEST, PEER], ["fd00::1", "fd00::2"]] {
        let mut bed = Bed::new(closed_in(&[]));
        let mut it = Association(&mut bed, ends);
        let refused = Decision::Refused(Why::NoRule);
        // No packet of the other end begins an association.
        for chunk in [0, INIT_ACK, COOKIE_ECHO, COOKIE_ACK, ABORT, SHUTDOWN, SHUTDOWN_ACK] {
            assert_eq!(it.sends(false, 10, &[chunk], 20), refused, "{chunk}");
        }
        assert_eq!(it.sends(false, 0, &[INIT], 20), refused);
        assert_eq!(it.sends(true, 0, &[INIT], 10), Decision::Passes(Why::Default));
        // The other end has the guest's tag from INIT alone, and the guest has the other end's from INIT ACK.
        assert_eq!(it.sends(false, 11, &[INIT_ACK], 20), invalid);
        assert_eq!(it.sends(true, 20, &[COOKIE_ECHO], 0), invalid);
        assert_eq!((it.state(), it.sends(false, 10, &[INIT_ACK], 20)), ("syn_sent", passes));
        assert_eq!(it.sends(true, 21, &[COOKIE_ECHO], 0), invalid);
        assert_eq!(it.sends(true, 20, &[COOKIE_ECHO], 0), passes);
        assert_eq!((it.state(), it.sends(false, 10, &[COOKIE_ACK], 0)), ("syn_received", passes));
        for (out, tag, wrong) in [(true, 20, 10), (false, 10, 20)] {
            assert_eq!(it.sends(out, tag, &[3, 0], 0), passes);
            for chunk in [0, SHUTDOWN, ABORT, SHUTDOWN_ACK, 4] {
                assert_eq!(it.sends(out, wrong, &[chunk], 0), invalid, "{chunk}");
            }
            assert_eq!(it.sends(out, tag, &[ABORT | REFLECTED], 0), invalid);
        }
        assert_eq!(it.state(), "established");
        it.0.now_ns += 299 * SECOND;
        assert_eq!(it.sends(true, 20, &[SHUTDOWN], 0), passes);
        assert_eq!(
            (it.state(), it.sends(false, 10, &[SHUTDOWN_ACK], 0)),
            ("fin_of_opener", passes)
        );
        assert_eq!((it.state(), it.sends(true, 20, &[SHUTDOWN_COMPLETE], 0)), ("closing", passes));
        assert_eq!(it.state(), "reset");
        it.0.now_ns += 11 * SECOND;
        assert_eq!(it.sends(false, 10, &[0], 0), refused);
        it.shakes_hands();
        assert_eq!(it.sends(false, 20, &[ABORT | REFLECTED], 0), passes);
        assert_eq!(
            (it.state(), it.sends(true, 0, &[INIT], 30)),
            ("reset", Decision::Passes(Why::Default))
        );
        assert_eq!(it.sends(false, 10, &[INIT_ACK], 20), invalid, "of the one before");
        it.0.now_ns += 31 * SECOND;
        assert_eq!(it.sends(false, 30, &[INIT_ACK], 20), refused, "it was half-open for 30 s");
    }
}

#[test]
fn rfc_9260_5_2_2_an_end_that_begins_anew_is_answered_and_a_forged_init_harms_nobody() {
    let passes = Decision::Passes(Why::Established);
    let mut bed = Bed::new(closed_in(&[]));
    let mut it = Association(&mut bed, [GUEST, PEER]);
    it.shakes_hands();
    // The guest begins anew, while the other end still sends to the old association.
    assert_eq!(it.sends(true, 0, &[INIT], 11), passes);
    assert_eq!(it.sends(false, 10, &[0], 0), passes);
    assert_eq!(it.sends(false, 11, &[INIT_ACK], 21), passes);
    assert_eq!(it.sends(true, 21, &[COOKIE_ECHO], 0), passes);
    assert_eq!(it.sends(false, 11, &[COOKIE_ACK], 0), passes);
    for wrong in [(true, 20), (false, 10)] {
        assert_eq!(it.sends(wrong.0, wrong.1, &[0], 0), Decision::Refused(Why::Invalid));
    }
    // The other end needs a rule, as for any association. A third party can forge such a packet in the guest's name;
    // both ends ignore it.
    assert_eq!(it.sends(false, 0, &[INIT], 5), Decision::Refused(Why::NoRule));
    assert_eq!(it.sends(true, 0, &[INIT], 5), passes);
    assert_eq!(it.sends(false, 5, &[INIT_ACK], 6), passes);
    for (out, tag) in [(true, 21), (false, 11)] {
        assert_eq!(it.sends(out, tag, &[0], 0), passes);
        assert_eq!(it.sends(out, tag + 1, &[0], 0), Decision::Refused(Why::Invalid));
    }
    assert_eq!(it.state(), "established");
}

#[test]
fn an_association_is_taken_up_in_the_middle_by_the_written_rule() {
    let passes = Decision::Passes(Why::Established);
    let mut bed = Bed::new(closed_in(&[]));
    let mut it = Association(&mut bed, [GUEST, PEER]);
    assert_eq!(it.sends(false, 10, &[0], 0), Decision::Refused(Why::NoRule));
    assert_eq!(it.sends(true, 20, &[0], 0), Decision::Passes(Why::Default));
    assert_eq!(
        (it.state(), it.sends(true, 21, &[0], 0)),
        ("taken_up", Decision::Refused(Why::Invalid))
    );
    assert_eq!(it.sends(false, 10, &[3], 0), passes);
    assert_eq!(
        (it.state(), it.sends(false, 11, &[3], 0)),
        ("established", Decision::Refused(Why::Invalid))
    );
    // Rules that forbid the association end it, and rules that allow it again take it up.
    it.0.policy.allow_out = false;
    it.0.policy.generation += 1;
    for out in [true, false] {
        assert_eq!(
            it.sends(out, if out { 20 } else { 10 }, &[0], 0),
            Decision::Refused(Why::NoRule)
        );
    }
    it.0.policy.allow_out = true;
    it.0.policy.generation += 1;
    assert_eq!(it.sends(true, 20, &[0], 0), passes);
}

#[test]
fn chunks_that_no_sender_bundles_go_nowhere_and_a_flood_of_init_takes_no_associations_place() {
    let mut bed = Bed::new(Policy { allow_in: true, ..closed_in(&[]) });
    let bad = [
        &[][..],
        &[INIT, 0],
        &[3, INIT],
        &[INIT_ACK, 3],
        &[3, COOKIE_ECHO],
        &[4, SHUTDOWN_COMPLETE],
    ];
    for (chunks, tag) in bad.into_iter().map(|bad| (bad, u32::from(!bad.starts_with(&[INIT])))) {
        let bytes = sctp(PEER, GUEST, tag, chunks, 7);
        assert_eq!(bed.judge(Direction::In, &bytes), Decision::Refused(Why::Invalid), "{chunks:?}");
    }
    for (chunk, tag, init_tag) in [(INIT, 1, 7), (INIT, 0, 0), (INIT_ACK, 1, 0), (INIT_ACK, 0, 7)] {
        let bytes = sctp(PEER, GUEST, tag, &[chunk], init_tag);
        assert_eq!(bed.judge(Direction::In, &bytes), Decision::Refused(Why::Invalid), "{chunk}");
    }
    Association(&mut bed, [GUEST, PEER]).shakes_hands();
    for n in 0..2 * GROUP_CONNECTIONS_MAX as u32 {
        let from = IpAddr::from((0x0b00_0000 + n).to_be_bytes()).to_string();
        bed.now_ns += 1000;
        assert!(bed.comes(&sctp(&from, GUEST, 0, &[INIT], 9)), "a flood keeps nobody out");
    }
    // The tags have moved with the connection, if it has moved.
    assert!(
        bed.comes(&sctp(PEER, GUEST, 10, &[0], 0)) && !bed.comes(&sctp(PEER, GUEST, 9, &[0], 0))
    );
}

#[test]
fn segments_with_impossible_flags_go_nowhere() {
    let mut bed = Bed::new(Policy { allow_in: true, ..closed_in(&[]) });
    let urgent = 32;
    let all = [0, FIN, SYN | FIN, SYN | RST, FIN | RST | ACK, SYN | FIN | ACK, RST | urgent];
    for flags in all {
        let decision = bed.judge(Direction::In, &tcp(PEER, GUEST, 1, 2, flags));
        assert_eq!(decision, Decision::Refused(Why::Invalid), "{flags:#x}");
    }
}

#[test]
fn frames_that_are_no_ip_need_an_open_direction() {
    let mut frame = vec![0; 60];
    frame[12..14].copy_from_slice(&[0x81, 0]);
    let mut bed = Bed::new(closed_in(&[]));
    assert!(bed.goes(&frame));
    assert!(!bed.comes(&frame), "a second tag hides what is behind it");
}

#[test]
fn a_flood_of_half_open_connections_takes_no_established_ones_place() {
    let all = rule(Direction::In, Some(6), &[], Other::Anyone);
    let mut bed = Bed::new(closed_in(&[all]));
    for port in 1..=500 {
        bed.shake_hands_outward(port);
    }
    for n in 0..3 * GROUP_CONNECTIONS_MAX as u32 {
        let from = IpAddr::from((0x0b00_0000 + n).to_be_bytes()).to_string();
        bed.now_ns += 1000;
        assert!(bed.comes(&tcp(&from, GUEST, 1, 80, SYN)), "a flood keeps nobody out");
    }
    assert!(bed.table.connections() as usize <= GROUP_CONNECTIONS_MAX);
    assert!(bed.table.connections() as usize > GROUP_CONNECTIONS_MAX * 9 / 10);
    for port in 1..=500 {
        assert!(bed.comes(&tcp(PEER, GUEST, 80, port, ACK)), "port {port}");
    }
}

#[test]
fn a_table_that_is_full_of_established_connections_refuses_and_counts() {
    let all = rule(Direction::In, None, &[], Other::Anyone);
    let mut bed = Bed::new(closed_in(&[all]));
    let mut n = 0;
    while bed.table.refused() == 0 {
        n += 1;
        assert!(n <= GROUP_CONNECTIONS_MAX as u32);
        let peer = IpAddr::from((0x0b00_0000 + n).to_be_bytes()).to_string();
        let frame = Frame { bytes: &udp(&peer, GUEST, 1, 2), len: 60, vid: 0, again: false };
        let judged = bed
            .table
            .judge(&bed.policy, Direction::In, frame, Peer::default(), bed.now_ns)
            .unwrap();
        if judged == Decision::Refused(Why::Full) {
            break;
        }
        assert!(bed.goes(&udp(GUEST, &peer, 2, 1)));
    }
    // Connections begin to move to their other buckets at about 0.73 of all places.
    assert!(n as usize > GROUP_CONNECTIONS_MAX * 9 / 10, "full after {n}");
    assert_eq!(bed.table.connections(), n - 1);
    let in_table = bed.table.page(0, GROUP_CONNECTIONS_MAX, bed.now_ns).0;
    assert_eq!(in_table.len() as u32, n - 1);
    for peer in 1..n {
        let peer = IpAddr::from((0x0b00_0000 + peer).to_be_bytes()).to_string();
        assert!(bed.comes(&udp(&peer, GUEST, 1, 2)), "{peer}");
    }
    bed.now_ns += 200 * SECOND;
    assert!(bed.comes(&udp(PEER, GUEST, 1, 2)), "places of those that are over are free");
}

#[test]
fn what_is_remembered_within_a_burst_holds_for_frames_of_the_same_flow_only() {
    for (guest, peer) in [(GUEST, PEER), ("fd00::1", "fd00::2")] {
        let mut bed = Bed::new(closed_in(&[]));
        bed.shake_hands(guest, peer, 5000);
        let (before, before_len) = front(&tcp(guest, peer, 5000, 80, ACK));
        let mut rows = Rows::default();
        let mut is_of = |bytes: Vec<u8>| {
            let (head, len) = front(&bytes);
            let both = [(&before, before_len), (&head, len)];
            rows.read(2, |nth| (both[nth].0, both[nth].1, Vlans::default()));
            rows.all().len() == 1
        };
        assert!(bed.goes_on(Direction::Out, &tcp(guest, peer, 5000, 80, ACK)));
        assert!(is_of(tcp(guest, peer, 5000, 80, ACK | 8)), "pushed data");
        let longer = Packet(tcp(guest, peer, 5000, 80, ACK)).padded(50);
        assert!(is_of(longer.0), "of another length");
        let mut shorter = tcp(guest, peer, 5000, 80, ACK);
        let at = if guest == GUEST { 17 } else { 19 };
        shorter[at] -= 1;
        assert!(!is_of(shorter), "it says that it ends within its header");
        for flags in [SYN, SYN | ACK, FIN | ACK, RST, RST | ACK, 0] {
            assert!(!is_of(tcp(guest, peer, 5000, 80, flags)), "{flags:#x}");
            let said = tcp(guest, peer, 5000, 80, flags);
            bed.now_ns += 121 * SECOND;
            bed.shake_hands(guest, peer, 5000);
            // A step of a connection over IPv4 is seen by its row.
            let steps = guest == GUEST && flags & (FIN | RST) != 0;
            assert_eq!(bed.goes_on(Direction::Out, &said), steps, "{flags:#x}");
            let state = bed.table.page(0, GROUP_CONNECTIONS_MAX, bed.now_ns).0[0].state;
            assert_eq!(state != "established", steps, "{flags:#x}: {state}");
        }
        assert!(!is_of(tcp(peer, guest, 80, 5000, ACK)));
        assert!(!is_of(udp(guest, peer, 5000, 80)));
        let original = tcp(guest, peer, 5000, 80, ACK);
        // Every bit of addresses and ports counts.
        let ends = if guest == GUEST { 26..38 } else { 22..58 };
        for bit in ends.start * 8..ends.end * 8 {
            let mut other = original.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_of(other), "bit {bit}");
        }
        // The offsets of IPv4's fields mean nothing in IPv6.
        for number in 0..=u8::MAX {
            let mut other = original.clone();
            (other[20], other[21], other[23]) = (0, 0, number);
            other[53] ^= 1;
            let is_same_v4 = guest == GUEST && number == original[23];
            assert_eq!(is_of(other), is_same_v4, "{number}");
        }
        let whole = Packet(original).padded(64);
        assert!(guest != GUEST || !is_of(whole.fragment(1, 0, 24, true).0));
        assert!(guest != GUEST || !is_of(whole.fragment(1, 24, 64, false).0));
    }
}

#[test]
fn headers_that_go_on_behind_the_bytes_at_hand_are_asked_for() {
    let bed = Bed::new(closed_in(&[]));
    let bytes = tcp(GUEST, PEER, 5000, 80, SYN);
    let frame = Frame { bytes: &bytes[..40], len: bytes.len() as u32, vid: 0, again: false };
    let peer = Peer::default();
    assert_eq!(bed.table.would_judge(&bed.policy, Direction::Out, frame, peer, LATER), None);
    let frame = Frame { len: 40, ..frame };
    let would = bed.table.would_judge(&bed.policy, Direction::Out, frame, peer, LATER);
    assert_eq!(would, Some(Decision::Refused(Why::Invalid)));
}

#[test]
fn connections_are_shown_page_by_page_and_can_be_forgotten() {
    let mut bed = Bed::new(closed_in(&[]));
    for port in 1..=30 {
        bed.shake_hands_outward(port);
    }
    assert!(bed.goes(&ping("fd00::1", "fd00::2", 7, true)));
    bed.now_ns += 2 * SECOND;
    let (mut all, mut from) = (Vec::new(), Some(0));
    while let Some(at) = from {
        let (page, next) = bed.table.page(at, 10, bed.now_ns);
        assert!(page.len() <= 10 && next.is_none_or(|next| next > at && next <= at + 80));
        all.extend(page);
        from = next;
    }
    assert_eq!(all.len(), 31);
    let of_ping = all.iter().find(|it| it.protocol == 58).unwrap();
    assert_eq!((of_ping.identifier, of_ping.ports, of_ping.state), (Some(7), None, "unanswered"));
    assert_eq!(of_ping.peer, "fd00::2".parse::<IpAddr>().unwrap());
    let of_tcp = all.iter().find(|it| it.ports == Some((5, 80))).unwrap();
    assert_eq!((of_tcp.own.to_string().as_str(), of_tcp.state), (GUEST, "established"));
    assert_eq!(of_tcp.opener, Direction::Out);
    assert!(of_tcp.idle_ns.abs_diff(2 * SECOND) < SECOND / 10);
    assert_eq!(bed.table.page(usize::MAX, 10, bed.now_ns), (Vec::new(), None));

    let mut other = Table::new(8, 0);
    bed.table.exchange(&mut other);
    assert_eq!(other.connections(), 31);
    assert_eq!(
        (bed.table.connections(), bed.table.page(0, GROUP_CONNECTIONS_MAX, bed.now_ns).0.len()),
        (0, 0)
    );
    assert!(!bed.comes(&tcp(PEER, GUEST, 80, 5, ACK)));
    assert!(bed.goes(&tcp(GUEST, PEER, 5, 80, ACK)), "what the rules allow goes on");
    assert_eq!(bed.table.connections(), 1);
    // Frames wait only until a few words are swapped: the connections stay where they are, each of
    // them whole.
    assert_eq!(other.page(0, GROUP_CONNECTIONS_MAX, bed.now_ns).0, all);
}

/// A UDP datagram between the guest and a peer, of flow `number`.
fn datagram(number: usize, direction: Direction) -> Vec<u8> {
    let (guest, peer) = (format!("10.1.0.{}", 1 + number / 60_000), PEER);
    let port = 1000 + (number % 60_000) as u16;
    match direction {
        Direction::Out => udp(&guest, peer, port, 53),
        Direction::In => udp(peer, &guest, 53, port),
    }
}

#[test]
fn a_list_ends_as_its_frames_one_by_one_in_a_well_filled_table() {
    const KNOWN: usize = GROUP_CONNECTIONS_MAX / 2;
    let mut beds = [(); 2].map(|()| Bed::new(closed_in(&[])));
    for bed in &mut beds {
        for number in 0..KNOWN {
            assert!(bed.goes(&datagram(number, Direction::Out)));
            assert!(bed.comes(&datagram(number, Direction::In)));
        }
        assert!(bed.table.is_well_filled());
    }
    let mut random = 1_u64;
    let mut below = |limit: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) as usize % limit
    };
    let (mut rows, mut passed, mut refused) = (Rows::default(), 0, 0);
    for list in 0..2000 {
        let direction = [Direction::Out, Direction::In][list % 2];
        let (peer, guest) = ("2001:db8::2", "2001:db8::1");
        let frames: Vec<_> = (0..2 + below(BURST_MAX - 1))
            .map(|_| match (below(24), below(4), direction) {
                (0, port, Direction::Out) => tcp(GUEST, PEER, 5000 + port as u16, 80, SYN),
                (0, port, Direction::In) => tcp(PEER, GUEST, 80, 5000 + port as u16, SYN | ACK),
                (1, port, Direction::Out) => {
                    let flags = [ACK, ACK, ACK, FIN | ACK, RST][below(5)];
                    tcp(GUEST, PEER, 5000 + port as u16, 80, flags)
                }
                (1, port, Direction::In) => {
                    let flags = [ACK, ACK, ACK, FIN | ACK, RST][below(5)];
                    tcp(PEER, GUEST, 80, 5000 + port as u16, flags)
                }
                (2, port, Direction::Out) => udp(guest, peer, 6000 + port as u16, 53),
                (2, port, Direction::In) => udp(peer, guest, 53, 6000 + port as u16),
                (3, port, _) => datagram(KNOWN + port + list / 100, direction),
                (_, _, _) => datagram(below(KNOWN), direction),
            })
            .collect();
        let fronts: Vec<_> = frames.iter().map(|bytes| front(bytes)).collect();
        let now_ns = LATER + list as u64 * SECOND / 100;
        let [together, one_by_one] = [frames.len(), 1].map(|together| {
            let bed = &mut beds[usize::from(together == 1)];
            let (policy, mut refused) = (&bed.policy, vec![]);
            for first in (0..frames.len()).step_by(together) {
                rows.read(together, |nth| {
                    let (head, len) = &fronts[first + nth];
                    (head, *len, Vlans::default())
                });
                let judge = &mut |table: &mut Table, nth: usize, _| {
                    let bytes = &frames[first + nth];
                    let frame = Frame { bytes, len: bytes.len() as u32, vid: 0, again: false };
                    let judged = table.judge(policy, direction, frame, Peer::default(), now_ns);
                    if !matches!(judged, Some(Decision::Passes(_))) {
                        refused.push(first + nth);
                    }
                };
                bed.table.ask(policy, direction, &rows, None, now_ns, judge);
            }
            refused
        });
        assert_eq!(together, one_by_one, "list {list}");
        passed += frames.len() - together.len();
        refused += together.len();
    }
    assert!(passed > 50_000 && refused > 500, "{passed} passed, {refused} refused");
    let now_ns = LATER + 21 * SECOND;
    let [one, other] = beds.map(|bed| bed.table.page(0, GROUP_CONNECTIONS_MAX, now_ns).0);
    assert!(one.len() > KNOWN);
    assert_eq!(one, other);
}

#[test]
fn a_connection_that_waits_for_its_answer_keeps_its_place_while_another_one_can_move() {
    let mut bed = Bed::new(closed_in(&[]));
    // Five of six places.
    let flows: Vec<_> = (0..GROUP_CONNECTIONS_MAX / 6 * 5).collect();
    for waiting in flows.chunks(BURST_MAX) {
        for number in waiting {
            assert!(bed.goes(&datagram(*number, Direction::Out)));
        }
        for number in waiting {
            assert!(bed.comes(&datagram(*number, Direction::In)), "flow {number}");
        }
    }
}
