use std::collections::BinaryHeap;

use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;
const OURS: Mac = Mac([2, 0, 0, 0, 0, 1]);
const THEIRS: Mac = Mac([2, 0, 0, 0, 0, 2]);

/// A frame under way: the time of arrival, the end, the link, and its bytes.
type UnderWay = std::cmp::Reverse<(u64, usize, u8, Vec<u8>)>;

/// Two ends of some links, in virtual time. A frame takes a millisecond.
struct Cables {
    now_ns: u64,
    ends: [Lacp; 2],
    under_way: BinaryHeap<UnderWay>,
    /// Links on which everything is lost.
    dead: Places,
    sent: [u32; 2],
}

impl Cables {
    fn new(ends: [Lacp; 2]) -> Self {
        let under_way = BinaryHeap::new();
        Self { now_ns: 1_000 * SECOND_NS, ends, under_way, dead: 0, sent: [0; 2] }
    }

    fn pair(rate: LacpRate, links: usize) -> Self {
        Self::new([OURS, THEIRS].map(|system| Lacp::new(system, rate, links)))
    }

    fn set_up(&mut self, up: Places) {
        let now_ns = self.now_ns;
        self.ends.iter_mut().for_each(|end| end.set_up(up, now_ns));
    }

    /// Runs for a time. `lost` tells for each frame whether it is lost.
    fn run(&mut self, for_ns: u64, mut lost: impl FnMut() -> bool) {
        let end_ns = self.now_ns + for_ns;
        loop {
            let arrives = self.under_way.peek().map_or(u64::MAX, |it| it.0.0);
            let due = self.ends.iter().map(Lacp::due_ns).min().unwrap();
            let next_ns = arrives.min(due).max(self.now_ns);
            if next_ns > end_ns {
                self.now_ns = end_ns;
                return;
            }
            self.now_ns = next_ns;
            while self.under_way.peek().is_some_and(|it| it.0.0 <= self.now_ns) {
                let Some(std::cmp::Reverse((_, at, link, frame))) = self.under_way.pop() else {
                    break;
                };
                self.ends[at].hear(link, &frame, self.now_ns);
            }
            for from in [0, 1] {
                for (link, frame) in self.ends[from].act(self.now_ns) {
                    self.sent[from] += 1;
                    if !has(self.dead, link) && !lost() {
                        let arrival = (self.now_ns + MS, 1 - from, link, frame.to_vec());
                        self.under_way.push(std::cmp::Reverse(arrival));
                    }
                }
            }
        }
    }

    fn carry(&self) -> [Places; 2] {
        [self.ends[0].carriers(), self.ends[1].carriers()]
    }
}

fn never() -> bool {
    false
}

#[test]
fn two_ends_are_together_within_milliseconds_and_stay_so() {
    for rate in [LacpRate::Slow, LacpRate::Fast] {
        let mut cables = Cables::pair(rate, 2);
        assert_eq!(cables.carry(), [0, 0]);
        cables.set_up(0b11);
        cables.run(10 * MS, never);
        assert_eq!(cables.carry(), [0b11, 0b11], "{rate}");
        assert_eq!(cables.ends[0].partner(1), Some(THEIRS));
        cables.sent = [0; 2];
        cables.run(600 * SECOND_NS, never);
        assert_eq!(cables.carry(), [0b11, 0b11], "{rate}");
        // Each link sends a frame each second, or each half minute.
        let expected = if rate == LacpRate::Fast { 1200 } else { 40 };
        assert!(cables.sent.iter().all(|sent| sent.abs_diff(expected) <= 8), "{:?}", cables.sent);
    }
}

#[test]
fn a_link_without_a_carrier_ends_at_once_and_comes_back() {
    let mut cables = Cables::pair(LacpRate::Slow, 2);
    cables.set_up(0b11);
    cables.run(10 * MS, never);
    cables.set_up(0b10);
    assert_eq!(cables.carry(), [0b10, 0b10]);
    cables.run(SECOND_NS, never);
    cables.set_up(0b11);
    cables.run(2 * SECOND_NS, never);
    assert_eq!(cables.carry(), [0b11, 0b11]);
}

#[test]
fn a_link_that_loses_everything_ends_after_the_timeout() {
    let mut cables = Cables::pair(LacpRate::Fast, 2);
    cables.set_up(0b11);
    cables.run(10 * MS, never);
    cables.dead = 0b01;
    cables.run(2 * SECOND_NS, never);
    assert_eq!(cables.carry(), [0b11, 0b11]);
    cables.run(2 * SECOND_NS, never);
    assert_eq!(cables.carry(), [0b10, 0b10]);
    assert!(cables.ends[0].partner(0).is_some(), "it may come back");
    cables.run(3 * SECOND_NS, never);
    assert_eq!(cables.ends[0].partner(0), None);
    assert_eq!(cables.carry(), [0b10, 0b10], "one without a partner carries beside others never");
    cables.dead = 0;
    cables.run(2 * SECOND_NS, never);
    assert_eq!(cables.carry(), [0b11, 0b11]);
}

#[test]
fn without_any_partner_one_link_carries() {
    let mut cables = Cables::pair(LacpRate::Slow, 3);
    cables.dead = 0b111;
    cables.set_up(0b110);
    cables.run(3 * SECOND_NS - 1, never);
    assert_eq!(cables.carry(), [0, 0], "the partner may still answer");
    cables.run(1, never);
    assert_eq!(cables.carry(), [0b010, 0b010]);
    cables.set_up(0b111);
    cables.run(9 * SECOND_NS, never);
    assert_eq!(cables.carry(), [0b010, 0b010], "it goes on");
    cables.set_up(0b101);
    cables.run(3 * SECOND_NS, never);
    assert_eq!(cables.carry(), [0b001, 0b001]);
    // Only the other link has a partner, and it alone carries frames.
    cables.dead = 0b011;
    cables.run(31 * SECOND_NS, never);
    assert_eq!(cables.carry(), [0b100, 0b100]);
}

#[test]
fn links_to_two_systems_are_not_together_and_the_one_with_more_links_carries() {
    let mut ours = Lacp::new(OURS, LacpRate::Fast, 3);
    let mut others = [(THEIRS, 0b001), (Mac([2, 0, 0, 0, 0, 3]), 0b110)]
        .map(|(system, up)| (Lacp::new(system, LacpRate::Fast, 3), up));
    let mut now_ns = SECOND_NS;
    ours.set_up(0b111, now_ns);
    others.iter_mut().for_each(|(end, up)| end.set_up(*up, now_ns));
    let mut seen = 0;
    for _ in 0..2000 {
        now_ns += 10 * MS;
        for (place, frame) in ours.act(now_ns) {
            for (end, up) in others.iter_mut().filter(|(_, up)| has(*up, place)) {
                assert!(has(*up, place));
                end.hear(place, &frame, now_ns);
            }
        }
        for (end, up) in &mut others {
            for (place, frame) in end.act(now_ns).into_iter().filter(|(place, _)| has(*up, *place))
            {
                ours.hear(place, &frame, now_ns);
            }
        }
        let carries = ours.carriers();
        assert!(matches!(carries, 0 | 0b001 | 0b010 | 0b100 | 0b110), "{carries:b}");
        seen |= carries;
    }
    // The first partner that answers stays.
    assert!(matches!(ours.carriers(), 0b001 | 0b110) && seen == ours.carriers());
    let other = 0b111 & !ours.carriers();
    ours.set_up(other, now_ns);
    for _ in 0..400 {
        now_ns += 10 * MS;
        for (end, _) in &mut others {
            for (place, frame) in end.act(now_ns) {
                ours.hear(place, &frame, now_ns);
            }
        }
        for (place, frame) in ours.act(now_ns) {
            others.iter_mut().filter(|(_, up)| has(*up, place)).for_each(|(end, _)| {
                end.hear(place, &frame, now_ns);
            });
        }
    }
    assert_eq!(ours.carriers(), other);
}

#[test]
fn a_link_that_leads_back_here_has_no_partner() {
    let mut ours = Lacp::new(OURS, LacpRate::Fast, 2);
    ours.set_up(0b11, 0);
    for tick in 0..800 {
        for (place, frame) in ours.act(tick * 10 * MS) {
            ours.hear(1 - place, &frame, tick * 10 * MS);
        }
    }
    assert_eq!((ours.partner(0), ours.carriers()), (None, 0b01));
}

#[test]
fn a_stranger_makes_a_link_send_three_frames_a_second_at_most() {
    let mut ours = Lacp::new(OURS, LacpRate::Fast, 1);
    ours.set_up(0b1, 0);
    let mut sent = 0;
    for tick in 0..10_000_u64 {
        let now_ns = tick * MS;
        // The partner reports that it knows nothing of this end. Such a report asks for an answer.
        let system = (1, tick.to_be_bytes()[2..].try_into().unwrap());
        let actor = Port { system, key: 1, port: (1, 1), state: 0x7 };
        let frame = Pdu { actor, partner: Port::default() }.to_frame(THEIRS);
        ours.hear(0, &frame, now_ns);
        sent += ours.act(now_ns).len();
    }
    assert!((20..=30).contains(&sent), "{sent} frames in ten seconds");
}

proptest! {
    /// Whatever is lost, and whatever goes up and down: as soon as frames pass, both ends agree on the links that carry.
    #[test]
    fn two_ends_over_lossy_links_agree(
        fast: (bool, bool),
        links in 1..=4_usize,
        changes in proptest::collection::vec((any::<u8>(), 0..8_000_u64), 0..12),
        lost in proptest::collection::vec(any::<bool>(), 1..64),
    ) {
        let rate = |fast| if fast { LacpRate::Fast } else { LacpRate::Slow };
        let ends = [
            Lacp::new(OURS, rate(fast.0), links),
            Lacp::new(THEIRS, rate(fast.1), links),
        ];
        let mut cables = Cables::new(ends);
        let all = ((1_u16 << links) - 1) as u8;
        let mut losses = lost.into_iter().cycle();
        for (up, ms) in changes {
            cables.set_up(up & all);
            cables.run(ms * MS, || losses.next().unwrap());
            for (end, carriers) in cables.carry().into_iter().enumerate() {
                prop_assert_eq!(carriers & !(up & all), 0, "end {} without a carrier", end);
            }
        }
        cables.set_up(all);
        // The longest wait is a slow period in which nothing is sent.
        cables.run(40 * SECOND_NS, never);
        prop_assert_eq!(cables.carry(), [all, all]);
        prop_assert_eq!(cables.ends[0].partner(0), Some(THEIRS));
        cables.run(300 * SECOND_NS, never);
        prop_assert_eq!(cables.carry(), [all, all]);
    }

    #[test]
    fn any_frame_is_heard(
        bytes in proptest::collection::vec(any::<u8>(), LEN..=LEN),
        kept in 0..LEN,
    ) {
        let mut ours = Lacp::new(OURS, LacpRate::Slow, 2);
        ours.set_up(0b11, 0);
        let mut frame = Pdu { actor: Port::default(), partner: Port::default() }.to_frame(THEIRS);
        frame[18..kept.max(18)].copy_from_slice(&bytes[18..kept.max(18)]);
        ours.hear(0, &frame, 1);
        prop_assert!(ours.act(2).len() <= 2);
        prop_assert!(ours.due_ns() > 2);
    }
}

#[test]
fn markers_are_answered_five_a_second_where_they_come_in() {
    let mut marker = [0; LEN];
    marker[..6].copy_from_slice(&SLOW_PROTOCOLS.0);
    marker[6..12].copy_from_slice(&THEIRS.0);
    marker[12..18].copy_from_slice(&[0x88, 0x09, 2, 1, 1, 22]);
    let mut lacp = Lacp::new(OURS, LacpRate::Slow, 2);
    lacp.hear(1, &marker, SECOND_NS);
    lacp.set_up(0b11, SECOND_NS);
    lacp.act(SECOND_NS);
    let mut answers = |now_ns| {
        for _ in 0..9 {
            lacp.hear(1, &marker, now_ns);
        }
        assert_eq!(lacp.due_ns(), 0);
        let is_answer = |(_, frame): &(u8, [u8; LEN])| frame[14..17] == [2, 1, 2];
        let answers: Vec<_> = lacp.act(now_ns).into_iter().filter(is_answer).collect();
        assert!(answers.iter().all(|(link, frame)| *link == 1 && frame[6..12] == OURS.0));
        assert_ne!(lacp.due_ns(), 0);
        answers.len()
    };
    assert_eq!(answers(2 * SECOND_NS), 5);
    assert_eq!(answers(3 * SECOND_NS), 5);
}
