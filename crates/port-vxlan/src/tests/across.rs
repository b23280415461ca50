//! Questions and answers between hosts about latency budgets, by sockets.

use super::*;
use crate::across::LEN;
use crate::{Between, Here};

const BUDGET_NS: u64 = 1_000_000;
const SECOND_NS: u64 = 1_000_000_000;
/// Offsets in a word: the numbers of its question and its answer, and the share that it gives.
const ASKS: usize = 8;
const ANSWERS: usize = 16;
const SHARE: usize = 48;

impl Rig {
    pub(super) fn exchange(&self, now_ns: u64) {
        self.port.exchange(
            &Here {
                wait_ns: u64::MAX,
                wakeup_cost_ns: 4_000.0,
                call_cost_ns: 4_000.0,
                receivers: 1,
                budget_ns: BUDGET_NS,
                wait_ns_there: u64::MAX,
                told_late: 0,
            },
            now_ns,
        );
    }

    /// Makes this host send a frame to host `last`.
    pub(super) fn send_to(&mut self, last: u8) {
        self.send(last, VNIS[0], &frame(GUEST, FAR, 0, 60));
        self.take_and_learn();
        self.deliver_plain(BLUE, &[frame(FAR, GUEST, 1, 200)]);
        self.received(last);
    }

    /// The time at which a frame from host `last` counts as having come, if it is taken at `now_ns`.
    fn arrival(&mut self, last: u8, now_ns: u64) -> u64 {
        self.send(last, VNIS[0], &frame(GUEST, FAR, 1, 60));
        let mut arrived = Vec::new();
        let _ = self.port.take(0, Take::New.at(now_ns), &mut self.scratch, &mut |burst| {
            arrived.extend(burst.frames().iter().map(|frame| frame.arrived_ns));
        });
        assert_eq!(arrived.len(), 1);
        arrived[0]
    }
}

fn field(word: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(*word[at..].first_chunk().unwrap())
}

fn set(word: &mut [u8], at: usize, value: u64) {
    word[at..at + 8].copy_from_slice(&value.to_be_bytes());
}

#[test]
fn what_a_member_says_of_budgets_counts_and_what_a_stranger_says_does_not() {
    let mut rig = Rig::new();
    rig.exchange(SECOND_NS);
    assert!((2..=5).all(|last| rig.is_silent(last)), "no frames, no questions");
    rig.send_to(2);
    rig.exchange(SECOND_NS);
    let (mut word, _) = receive(rig.host(2)).unwrap();
    assert!(word.len() == LEN && (3..=5).all(|last| rig.is_silent(last)));

    // Host 2 also has a weir, host 5 pretends to have one, and host 3 has none.
    let asked = field(&word, ASKS);
    set(&mut word, ANSWERS, asked);
    set(&mut word, SHARE, 30_000);
    rig.send_raw(5, &word);
    rig.send_raw(2, &[&word[..], &[0]].concat());
    assert_eq!(rig.take_all(Take::New), []);
    assert_eq!(rig.drops(), [("bad_encapsulation", 2)]);
    assert_eq!(rig.port.between(BLUE), []);
    rig.send_raw(2, &word);
    assert_eq!(rig.take_all(Take::New), []);
    let [Between { host, share_ns: Some(30_000), waited_ns: 0, .. }] = rig.port.between(BLUE)[..]
    else {
        panic!("{:?}", rig.port.between(BLUE))
    };
    assert_eq!(host, rig.ip(2));
    assert_eq!(rig.port.between(RED), []);

    // A share limits how long any frame waits here. The question of host 2 is answered.
    assert_eq!(rig.port.wait_ns_max(), 250_000);
    rig.exchange(2 * SECOND_NS);
    assert_eq!(rig.port.wait_ns_max(), 30_000);
    let (answer, _) = receive(rig.host(2)).unwrap();
    assert_eq!((field(&answer, ANSWERS), field(&answer, SHARE)), (asked, BUDGET_NS / 2));
    let now_ns = 2 * SECOND_NS + 1;
    assert_eq!(rig.arrival(2, now_ns), now_ns - BUDGET_NS / 2);
    assert_eq!(rig.arrival(3, now_ns), now_ns, "a kernel's");
    assert_eq!(rig.port.free_buffers(0), OVERLAY_BUFFERS);
}

#[test]
fn a_flood_of_questions_is_answered_once_a_look() {
    let mut rig = Rig::new();
    rig.send_to(2);
    rig.exchange(SECOND_NS);
    let (question, _) = receive(rig.host(2)).unwrap();
    for _ in 0..200 {
        rig.send_raw(2, &question);
    }
    while rig.take(Take::New, |_| panic!("no frame")).more {}
    rig.exchange(2 * SECOND_NS);
    assert_eq!(receive(rig.host(2)).unwrap().0.len(), LEN);
    assert!(rig.is_silent(2) && rig.drops().is_empty());
    assert_eq!(rig.port.free_buffers(0), OVERLAY_BUFFERS);
}

#[test]
fn a_frame_that_leaves_later_than_its_share_is_a_breach_here() {
    let mut rig = Rig::new();
    rig.send_to(2);
    rig.exchange(clock::now_ns());
    let (mut word, _) = receive(rig.host(2)).unwrap();
    let asked = field(&word, ASKS);
    set(&mut word, ANSWERS, asked);
    set(&mut word, SHARE, 1_000);
    rig.send_raw(2, &word);
    // The frame counts as taken when the clock began.
    rig.send_to(2);
    assert_eq!(rig.counters.breaches().map(|(_, n)| n).sum::<u64>(), 1);
    assert_eq!(rig.port.between(BLUE)[0].left_late_here, 1);
    // A host without a weir has given no share, so a frame for it is never late.
    rig.send_to(3);
    assert_eq!(rig.counters.breaches().map(|(_, n)| n).sum::<u64>(), 1);
}
