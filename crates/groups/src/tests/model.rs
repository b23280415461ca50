//! Compares the table with a plain map under the same rules, written independently, for any order
//! of frames. Compares lists of frames in rows with the same frames one by one.

use std::collections::HashMap;

use proptest::prelude::*;
use weir_limits::{BURST_MAX, HEAD_LEN};

use super::frames::{ACK, FIN, Packet, RST, SYN, icmp_error, ping, tcp, udp};
use super::{Bed, GUEST, PEER, SECOND, closed_in, front, rule};
use crate::{Decision, Direction, Frame, GroupId, Other, Peer, Policy, Table, Vlans};

/// A frame of a small world: two peers, two ports at each end.
#[derive(Clone, Copy, Debug)]
enum Sent {
    Tcp {
        peer: u8,
        own: u16,
        other: u16,
        flags: u8,
    },
    Udp {
        peer: u8,
        own: u16,
        other: u16,
    },
    Ping {
        peer: u8,
        asks: bool,
    },
    Error {
        about: u16,
        other: u16,
    },
    /// Multiples of 7 s, which no timeout is.
    Pause {
        secs: u64,
    },
}

fn sent() -> impl Strategy<Value = (bool, Sent)> {
    let flags = prop_oneof![
        4 => Just(SYN), 4 => Just(SYN | ACK), 6 => Just(ACK), 2 => Just(FIN | ACK), 1 => Just(RST),
    ];
    let ends = (0..2u8, 1..3u16, 80..82u16);
    let frame = prop_oneof![
        6 => (ends.clone(), flags).prop_map(|((peer, own, other), flags)| Sent::Tcp { peer, own, other, flags }),
        2 => ends.prop_map(|(peer, own, other)| Sent::Udp { peer, own, other }),
        1 => (0..2u8, any::<bool>()).prop_map(|(peer, asks)| Sent::Ping { peer, asks }),
        1 => (1..3u16, 80..82u16).prop_map(|(about, other)| Sent::Error { about, other }),
        1 => prop_oneof![Just(7), Just(28), Just(70), Just(203)].prop_map(|secs| Sent::Pause { secs }),
    ];
    (any::<bool>(), frame)
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Asked,
    BothAsked,
    Agreed,
    Open,
    /// The ends that have sent FIN: opener, other end.
    Ending(bool, bool),
    Done,
    Broken,
    TakenUp,
    Once,
    Both,
}

#[derive(Clone, Copy, Debug)]
struct Flow {
    phase: Phase,
    /// The guest has opened the connection, or was heard first, if the connection was taken up.
    by_guest: bool,
    seen: u64,
}

#[derive(Default)]
struct Model {
    /// The flows, by kind, peer, own port and other port.
    flows: HashMap<(char, u8, u16, u16), Flow>,
}

impl Model {
    fn lives(flow: &Flow, kind: char, now: u64) -> bool {
        let secs = match (flow.phase, kind) {
            (Phase::Asked | Phase::BothAsked | Phase::Agreed, _)
            | (Phase::Once, _)
            | (Phase::Both, 'i' | 'o') => 30,
            (Phase::Open, _) => 24 * 3600,
            (Phase::Ending(..), _) => 120,
            (Phase::Done, _) => 60,
            (Phase::Broken, _) => 10,
            (Phase::TakenUp, _) => 300,
            (Phase::Both, _) => 180,
        };
        now - flow.seen <= secs
    }

    /// True if the frame passes. The guest may open all connections; others may open TCP to port 1.
    fn passes(&mut self, out: bool, sent: Sent, now: u64) -> bool {
        self.flows.retain(|key, flow| Self::lives(flow, key.0, now));
        match sent {
            Sent::Pause { .. } => true,
            Sent::Tcp { peer, own, other, flags } => self.tcp(out, (peer, own, other), flags, now),
            Sent::Udp { peer, own, other } => self.plain(('u', peer, own, other), out, out, now),
            Sent::Ping { peer, asks: true } => {
                self.plain((if out { 'o' } else { 'i' }, peer, 0, 0), out, out, now)
            }
            Sent::Ping { peer, asks: false } => {
                let key = (if out { 'i' } else { 'o' }, peer, 0, 0);
                match self.flows.get_mut(&key) {
                    Some(flow) => {
                        (flow.phase, flow.seen) = (Phase::Both, now);
                        true
                    }
                    None => out,
                }
            }
            // The error quotes a datagram that the guest has sent to the first peer.
            Sent::Error { about, other } => out || self.flows.contains_key(&('u', 0, about, other)),
        }
    }

    fn plain(&mut self, key: (char, u8, u16, u16), out: bool, may: bool, now: u64) -> bool {
        match self.flows.get_mut(&key) {
            Some(flow) => {
                flow.seen = now;
                if flow.by_guest != out {
                    flow.phase = Phase::Both;
                }
                true
            }
            None if may => {
                self.flows.insert(key, Flow { phase: Phase::Once, by_guest: out, seen: now });
                true
            }
            None => false,
        }
    }

    fn tcp(&mut self, out: bool, (peer, own, other): (u8, u16, u16), flags: u8, now: u64) -> bool {
        let key = ('t', peer, own, other);
        // The rules, for this end as the one that opens.
        let may = out || own == 1;
        let fresh = |phase| Flow { phase, by_guest: out, seen: now };
        let Some(flow) = self.flows.get_mut(&key) else {
            return match flags {
                SYN if may => {
                    self.flows.insert(key, fresh(Phase::Asked));
                    true
                }
                SYN => false,
                RST => may,
                _ if flags == SYN | ACK => {
                    let answers = out && own == 1;
                    if answers {
                        let agreed = Flow { by_guest: false, ..fresh(Phase::Agreed) };
                        self.flows.insert(key, agreed);
                    }
                    answers
                }
                // Otherwise the guest answers a connection that the other end may have opened.
                _ if may || out && own == 1 => {
                    self.flows.insert(key, fresh(Phase::TakenUp));
                    true
                }
                _ => false,
            };
        };
        let opener = flow.by_guest == out;
        let next = match (flags, flow.phase) {
            (RST, Phase::Asked | Phase::TakenUp) => {
                self.flows.remove(&key);
                return true;
            }
            (RST, _) => Phase::Broken,
            (SYN, Phase::Done | Phase::Broken | Phase::Ending(true, true)) => {
                if may {
                    *flow = fresh(Phase::Asked);
                }
                return may;
            }
            (SYN, Phase::Asked) if !opener => Phase::BothAsked,
            (SYN, Phase::BothAsked) => flow.phase,
            (SYN, phase) if opener => phase,
            (SYN, _) => return may,
            (_, Phase::BothAsked) if flags == SYN | ACK => Phase::Agreed,
            (_, Phase::Asked) if flags == SYN | ACK && !opener => Phase::Agreed,
            (_, phase) if flags == SYN | ACK => match !opener || phase == Phase::Agreed {
                true => phase,
                false => return false,
            },
            (_, Phase::Asked | Phase::BothAsked) if opener || flags == FIN | ACK => return false,
            (_, Phase::Agreed | Phase::Open) if flags == FIN | ACK => {
                Phase::Ending(opener, !opener)
            }
            (_, Phase::Ending(a, b)) if flags == FIN | ACK => {
                Phase::Ending(a || opener, b || !opener)
            }
            (ACK, Phase::Agreed) if opener => Phase::Open,
            (ACK, Phase::Ending(true, true)) => Phase::Done,
            (ACK, Phase::TakenUp) if !opener => Phase::Open,
            (_, phase) => phase,
        };
        (flow.phase, flow.seen) = (next, now);
        true
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn any_frames_in_any_order_pass_as_a_plain_map_says(all in prop::collection::vec(sent(), 1..60)) {
        let mut bed = Bed::new(closed_in(&[rule(Direction::In, Some(6), &[(1, 1)], Other::Anyone)]));
        let (mut model, mut now) = (Model::default(), 0);
        for (nth, (out, sent)) in all.iter().copied().enumerate() {
            let ends = |peer: u8| if peer == 0 { PEER } else { "10.0.0.3" };
            let turned = |guest: &str, peer: &str| match out {
                true => (guest.to_owned(), peer.to_owned()),
                false => (peer.to_owned(), guest.to_owned()),
            };
            let bytes = match sent {
                Sent::Pause { secs } => {
                    now += secs;
                    bed.now_ns += secs * SECOND;
                    continue;
                }
                Sent::Tcp { peer, own, other, flags } => {
                    let (src, dst) = turned(GUEST, ends(peer));
                    let (sport, dport) = if out { (own, other) } else { (other, own) };
                    tcp(&src, &dst, sport, dport, flags)
                }
                Sent::Udp { peer, own, other } => {
                    let (src, dst) = turned(GUEST, ends(peer));
                    let (sport, dport) = if out { (own, other) } else { (other, own) };
                    udp(&src, &dst, sport, dport)
                }
                Sent::Ping { peer, asks } => {
                    let (src, dst) = turned(GUEST, ends(peer));
                    ping(&src, &dst, 7, asks)
                }
                Sent::Error { about, other } => {
                    let (src, dst) = turned(GUEST, "10.9.9.9");
                    icmp_error(&src, &dst, &udp(GUEST, PEER, about, other))
                }
            };
            let direction = if out { Direction::Out } else { Direction::In };
            let passes = matches!(bed.judge(direction, &bytes), Decision::Passes(_));
            prop_assert_eq!(passes, model.passes(out, sent, now), "frame {}: {} {:?}", nth, out, sent);
        }
    }

    #[test]
    fn no_bytes_at_all_make_it_panic(mut bytes in prop::collection::vec(any::<u8>(), 14..200), v6: bool, out: bool) {
        (bytes[12], bytes[13]) = if v6 { (0x86, 0xdd) } else { (8, 0) };
        let mut bed = Bed::new(closed_in(&[]));
        if bytes.len() > 14 {
            bytes[14] = if v6 { 0x60 } else { 0x45 };
        }
        bed.judge(if out { Direction::Out } else { Direction::In }, &bytes);
    }
}

/// The frames of a worker's list, their direction, and the question about each frame.
struct List<'l> {
    direction: Direction,
    heads: &'l [([u8; HEAD_LEN], usize)],
    vlans: &'l [Vlans],
    /// The ID of groups in the header of each frame from another host.
    claimed: Option<&'l [u16]>,
}

impl List<'_> {
    fn judge_one(&self, table: &mut Table, policy: &Policy, nth: usize, now_ns: u64) -> bool {
        let (head, len) = &self.heads[nth];
        let (bytes, len) = (&head[..*len], *len as u32);
        let vid = self.vlans[nth].of(self.direction);
        let claimed = self.claimed.map(|ids| ids[nth]);
        let lb = [GroupId::of("lb")];
        let groups = if matches!(claimed, Some(17 | 18)) { &lb[..] } else { &[] };
        let peer = Peer { groups, claimed, ..Peer::default() };
        let frame = Frame { bytes, len, vid, again: false };
        let judged = table.judge(policy, self.direction, frame, peer, now_ns);
        matches!(judged, Some(Decision::Passes(_)))
    }

    /// Asks about several frames at once. Returns the frames that pass, and the places of those
    /// that are judged.
    fn ask(&self, bed: &mut Bed) -> (Vec<bool>, Vec<usize>) {
        let Bed { table, rows, policy, now_ns } = bed;
        let (mut passing, mut judged) = (vec![true; self.heads.len()], Vec::new());
        rows.read(self.heads.len(), |nth| {
            let (head, len) = &self.heads[nth];
            (head, *len, self.vlans[nth])
        });
        let id_of = self.claimed.map(|ids| move |nth: usize| ids[nth]);
        let id_of = id_of.as_ref().map(|id_of| id_of as &dyn Fn(usize) -> u16);
        table.ask(policy, self.direction, rows, id_of, *now_ns, &mut |table, nth, claimed| {
            assert_eq!(claimed, self.claimed.map(|ids| ids[nth]));
            judged.push(nth);
            passing[nth] = self.judge_one(table, policy, nth, *now_ns);
        });
        (passing, judged)
    }
}

/// Returns the places of the frames that are judged, if those in `passing` pass. The frames are in
/// their own VLANs.
fn judged(heads: &[([u8; HEAD_LEN], usize)], vlans: &[Vlans], passing: &[usize]) -> Vec<usize> {
    let (mut bed, mut judged) = (Bed::new(closed_in(&[])), Vec::new());
    let list = List { direction: Direction::Out, heads, vlans, claimed: None };
    bed.rows.read(heads.len(), |nth| (&heads[nth].0, heads[nth].1, vlans[nth]));
    let Bed { table, rows, policy, now_ns } = &mut bed;
    table.ask(policy, Direction::Out, rows, None, *now_ns, &mut |table, nth, _| {
        judged.push(nth);
        if passing.contains(&nth) {
            assert!(list.judge_one(table, policy, nth, *now_ns));
        }
    });
    judged
}

#[test]
fn of_a_row_only_frames_up_to_the_first_that_goes_on_are_judged() {
    let sent = |vids: [u16; 6]| vids.map(|vid| Vlans::new(vid, 0));
    for (guest, peer) in [(GUEST, PEER), ("fd00::1", "fd00::2")] {
        let datagram = |port| front(&Packet(udp(guest, peer, port, 80)).padded(30).0);
        let heads = [1, 1, 1, 2, 1, 1].map(datagram);
        let one_vlan = [Vlans::new(7, 0); BURST_MAX];
        assert_eq!(judged(&heads, &one_vlan, &[0, 3]), [0, 3]);
        assert_eq!(judged(&heads, &one_vlan, &[1, 3]), [0, 1, 3]);
        assert_eq!(judged(&heads, &one_vlan, &[5]), [0, 1, 2, 3, 4, 5]);
        assert_eq!(judged(&heads, &one_vlan, &[]), [0, 1, 2, 3, 4, 5]);
        let vlans = sent([1, 7, 7, 1, 1, 7]);
        assert_eq!(judged(&heads, &vlans, &[0, 1, 3]), [0, 1, 3]);
        assert_eq!(judged(&heads, &vlans, &[1, 3]), [0, 1, 3, 4], "another VLAN is another flow");
        for count in 0..=BURST_MAX {
            let alike = [heads[0]; BURST_MAX];
            assert_eq!(judged(&alike[..count], &one_vlan, &[0]), [0][..count.min(1)]);
            assert_eq!(judged(&alike[..count], &one_vlan, &[]).len(), count);
        }
    }
}

#[test]
fn a_receivers_vlans_keep_connections_apart_and_its_senders_do_not() {
    for (guest, peer) in [(GUEST, PEER), ("fd00::1", "fd00::2")] {
        let asks = |port| front(&Packet(udp(guest, peer, port, 80)).padded(30).0);
        let told = |port| front(&Packet(udp(peer, guest, 80, port)).padded(30).0);
        let mut bed = Bed::new(closed_in(&[]));
        // The guest asks in VLAN 7. VLAN 7 is the other end's untagged VLAN.
        let own = |vid| Vlans::new(vid, 0);
        let (heads, vlans) = ([asks(1)], [own(7)]);
        let list = List { direction: Direction::Out, heads: &heads, vlans: &vlans, claimed: None };
        assert_eq!(list.ask(&mut bed).0, [true]);
        // Answers count by the VLAN as the guest gets it, whichever tag they had at their sender.
        let heads = [told(1); 5];
        let vlans = [(0, 7), (0, 8), (7, 0), (9, 7), (7, 8)].map(|(at, to)| Vlans::new(at, to));
        let list = List { direction: Direction::In, heads: &heads, vlans: &vlans, claimed: None };
        assert_eq!(list.ask(&mut bed).0, [true, false, false, true, false]);
        // The same frames come among frames without a tag, which belong to another connection.
        let (heads, vlans) = ([asks(2)], [own(0)]);
        let list = List { direction: Direction::Out, heads: &heads, vlans: &vlans, claimed: None };
        assert_eq!(list.ask(&mut bed).0, [true]);
        let (heads, vlans) = ([told(2); 4], [0, 0, 7, 0].map(|to| Vlans::new(0, to)));
        let list = List { direction: Direction::In, heads: &heads, vlans: &vlans, claimed: None };
        assert_eq!(list.ask(&mut bed).0, [true, true, false, true]);
    }
}

#[test]
fn each_frame_of_a_row_counts_with_the_groups_that_it_claims_itself() {
    for (guest, peer) in [(GUEST, PEER), ("fd00::1", "fd00::2")] {
        let from = rule(Direction::In, None, &[], Other::Group(GroupId::of("lb")));
        let mut bed = Bed::new(closed_in(&[from]));
        let heads = [front(&Packet(udp(peer, guest, 80, 5000)).padded(30).0); BURST_MAX];
        let vlans = [Vlans::default(); BURST_MAX];
        let mut ask = |ids: &[u16]| {
            let (heads, vlans) = (&heads[..ids.len()], &vlans[..ids.len()]);
            List { direction: Direction::In, heads, vlans, claimed: Some(ids) }.ask(&mut bed)
        };
        assert_eq!(ask(&[17, 17, 17, 17]), (vec![true; 4], vec![0]));
        assert_eq!(ask(&[17, 17, 17, 17]), (vec![true; 4], vec![]));
        let with_others = [17, 17, 20, 17, 0, 18, 18, 17];
        let passing = with_others.map(|id| matches!(id, 17 | 18));
        assert_eq!(ask(&with_others), (passing.to_vec(), vec![2, 3, 4, 5, 7]));
        assert_eq!(ask(&[20, 20, 17]), (vec![false, false, true], vec![0, 1, 2]));
    }
}

/// A frame of a small world, and whether it goes on in a row.
fn frame(out: bool) -> impl Strategy<Value = Vec<u8>> {
    let flags = prop_oneof![
        3 => Just(SYN), 3 => Just(SYN | ACK), 9 => Just(ACK), 1 => Just(FIN | ACK), 1 => Just(RST),
        1 => Just(ACK | 8),
    ];
    let kind = prop_oneof![6 => Just(0), 4 => Just(1), 1 => Just(2), 1 => Just(3), 1 => Just(4)];
    let ends = (any::<bool>(), 1..3_u16, 80..82_u16);
    (kind, ends, flags, 20..40_usize).prop_map(move |(kind, (v6, own, other), flags, len)| {
        let (guest, peer) = if v6 { ("fd00::1", "fd00::2") } else { (GUEST, PEER) };
        let (src, dst) = if out { (guest, peer) } else { (peer, guest) };
        let (sport, dport) = if out { (own, other) } else { (other, own) };
        match kind {
            0 => Packet(tcp(src, dst, sport, dport, flags)).padded(len).0,
            1 => Packet(udp(src, dst, sport, dport)).padded(len).0,
            2 => ping(src, dst, own, flags != SYN),
            3 => icmp_error(src, dst, &udp(dst, src, dport, sport)),
            _ => Packet(udp(src, dst, sport, dport)).fragment(1, 0, 16, true).0,
        }
    })
}

/// A frame, and one element for each time that it is sent in a row: the VLANs of both ends, and the ID that the frame
/// claims.
type Part = (Vec<u8>, Vec<(bool, bool, u16)>);

/// A list of frames that go one way: of another host or not, under the earlier rules or not, and
/// after a pause.
#[derive(Clone, Debug)]
struct Listed {
    out: bool,
    parts: Vec<Part>,
    claims: bool,
    rules_change: bool,
    pause_secs: u64,
}

fn listed() -> impl Strategy<Value = Listed> {
    let tags = (
        prop::bool::weighted(0.1),
        prop::bool::weighted(0.1),
        prop_oneof![8 => Just(17_u16), 1 => Just(18), 1 => Just(20)],
    );
    let rest = (
        any::<bool>(),
        prop::bool::weighted(0.1),
        prop_oneof![4 => Just(0_u64), 1 => Just(29), 1 => Just(70)],
    );
    (any::<bool>(), rest).prop_flat_map(move |(out, (claims, rules_change, pause_secs))| {
        let part = (frame(out), prop::collection::vec(tags.clone(), 1..5));
        prop::collection::vec(part, 1..10).prop_map(move |parts| {
            // Frames to the guest carry the groups of the other end.
            Listed { out, parts, claims: claims && !out, rules_change, pause_secs }
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn a_list_passes_and_leaves_behind_what_its_frames_do_one_by_one(lists in prop::collection::vec(listed(), 1..12)) {
        let rules = [
            rule(Direction::In, Some(6), &[(1, 1)], Other::Anyone),
            rule(Direction::In, None, &[(2, 2)], Other::Group(GroupId::of("lb"))),
        ];
        let mut bed = Bed::new(closed_in(&rules));
        // With the same seed, the same connections are in the same places.
        let mut one_by_one = Bed::new(closed_in(&rules));
        for listed in lists {
            for bed in [&mut bed, &mut one_by_one] {
                bed.now_ns += listed.pause_secs * SECOND;
                bed.policy.generation += u16::from(listed.rules_change);
            }
            let each = || listed.parts.iter().flat_map(|(frame, all)| all.iter().map(move |it| (frame, it)));
            let heads: Vec<_> = each().map(|(frame, _)| front(frame)).take(BURST_MAX).collect();
            let vid = |tagged: bool| if tagged { 7 } else { 0 };
            let vlans: Vec<_> = each().map(|(_, &(at, to, _))| Vlans::new(vid(at), vid(to))).collect();
            let ids: Vec<_> = each().map(|(_, &(_, _, id))| id).collect();
            let direction = if listed.out { Direction::Out } else { Direction::In };
            let claimed = listed.claims.then_some(&ids[..]);
            let list = List { direction, heads: &heads, vlans: &vlans, claimed };
            let (passing, _) = list.ask(&mut bed);
            let Bed { table, policy, now_ns, .. } = &mut one_by_one;
            let alone: Vec<_> = (0..heads.len()).map(|nth| list.judge_one(table, policy, nth, *now_ns)).collect();
            prop_assert_eq!(passing, alone);
        }
        prop_assert!(bed.table.is_like(&one_by_one.table));
    }
}
