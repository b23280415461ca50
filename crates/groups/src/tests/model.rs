//! The table against a plain map with the same rules, written down again: what passes, for any order of frames.

use std::collections::HashMap;

use proptest::prelude::*;

use super::frames::{ACK, FIN, RST, SYN, icmp_error, ping, tcp, udp};
use super::{Bed, GUEST, PEER, SECOND, closed_in, rule};
use crate::{Decision, Direction, Other};

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
    /// The guest has opened it, or was heard first of one that was taken up.
    by_guest: bool,
    seen: u64,
}

#[derive(Default)]
struct Model {
    /// By kind, peer, own port, other port.
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
            // It quotes a datagram that the guest has sent to the first peer.
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
                // Else the guest answers one that the other end may have opened.
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
