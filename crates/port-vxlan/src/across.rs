//! Latency budgets of guests on two hosts: the questions and answers of their weirs, and the resulting shares.
//!
//! A frame may wait twice: in its sender's ring while a worker of that host naps, and at this host until its receiver
//! is called. The sending host asks for its share of the budget. The receiving host splits the budget, and counts each
//! frame from the other host as one that has used up its share. So no clocks are compared, and hosts without frames for
//! each other exchange nothing.

use std::net::IpAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use weir_engine::stats::{BreachReason, Counter};
use weir_engine::{PortCounters, lock};
use weir_limits::{LATENCY_BUDGET_NS_MAX, OVERLAY_ASK_NS, OVERLAY_ASKS_DOUBLED, OVERLAY_SHARE_NS};
use weir_policy::budget::{Load, Split};
use weir_policy::law::LAW;

/// Length of a word in bytes.
pub(crate) const LEN: usize = 80;
/// The mark in place of a VXLAN header. "The I flag MUST be set to 1 for a valid VXLAN Network ID" (RFC 7348 §5): the
/// mark does not set this flag, so a kernel drops the datagram. The last byte is the version.
const MARK: u64 = u64::from_be_bytes([0, b'w', b'e', b'i', b'r', 0, 0, 1]);
/// The value for a share that is not given.
const NOT_GIVEN: u64 = u64::MAX;

/// A message from one host to another. Times are in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Word {
    /// The number of a question for a share; 0 in a word that asks nothing.
    asks: u64,
    /// The number of the other host's question that this word answers; 0 in a word that answers none.
    answers: u64,
    /// The longest wait of frames at the sending host, even with a larger share.
    wait_ns: u64,
    /// The cost of a wake-up of the sending host's workers.
    wakeup_cost_ns: u64,
    /// The share that the host uses until there is an answer.
    using_ns: u64,
    /// The answer: the time for which frames for the host's guests may wait at the other host.
    share_ns: u64,
    /// The smallest budget of the host's guests.
    budget_ns: u64,
    /// The number of frames that left the host for the other one after their share had ended.
    left_late: u64,
    /// The number of times that the host's guests were notified later than their budget allows.
    told_late: u64,
}

impl Word {
    pub(crate) fn to_bytes(self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        let fields = [
            MARK,
            self.asks,
            self.answers,
            self.wait_ns,
            self.wakeup_cost_ns,
            self.using_ns,
            self.share_ns,
            self.budget_ns,
            self.left_late,
            self.told_late,
        ];
        for (place, field) in bytes.chunks_exact_mut(8).zip(fields) {
            place.copy_from_slice(&field.to_be_bytes());
        }
        bytes
    }

    /// Reads a word; `None` for anything else.
    pub(crate) fn parse(bytes: [u8; LEN]) -> Option<Self> {
        let mut fields = bytes.as_chunks().0.iter().map(|field| u64::from_be_bytes(*field));
        let mut next = || fields.next();
        if next() != Some(MARK) {
            return None;
        }
        Some(Self {
            asks: next()?,
            answers: next()?,
            wait_ns: next()?,
            wakeup_cost_ns: next()?,
            using_ns: next()?,
            share_ns: next()?,
            budget_ns: next()?,
            left_late: next()?,
            told_late: next()?,
        })
    }
}

/// This host's values for a word.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Here {
    /// The longest wait of frames for a worker of this host, even with a larger share (ns).
    pub wait_ns: u64,
    /// The cost of a wake-up of a worker (ns of CPU).
    pub wakeup_cost_ns: f64,
    /// The cost of a call (ns of CPU).
    pub call_cost_ns: f64,
    /// Guests with traffic.
    pub receivers: u32,
    /// The smallest budget of guests in networks of the overlay (ns).
    pub budget_ns: u64,
    /// The longest wait of these guests' frames for a worker of another host, even with a larger budget (ns).
    pub wait_ns_there: u64,
    /// The number of times that one of these guests was notified later than its budget allows.
    pub told_late: u64,
}

/// The terms between this host and another one that has a weir. Times are in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Between {
    /// The other host.
    pub host: IpAddr,
    /// The time that frames from the other host count as having waited there.
    pub waited_ns: u64,
    /// The time that frames to the other host may wait here; `None` if the other host has given no share.
    pub share_ns: Option<u64>,
    /// The smallest budget of the other host's guests.
    pub budget_ns: u64,
    /// The number of frames that left this host for the other one after their share had ended.
    pub left_late_here: u64,
    /// The number of frames that left the other host for this one after their share had ended, as the other host
    /// counts.
    pub left_late_there: u64,
    /// The number of times that the other host's guests were notified later than their budget allows, as the other host
    /// counts.
    pub told_late_there: u64,
}

/// Another host of a network, and the state of its answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// The other host.
    pub host: IpAddr,
    /// True if the host runs weir: a message about shares has come from there.
    pub has_weir: bool,
    /// The number of questions without an answer since the host's last word. Only questions with frames to the host
    /// count.
    pub unanswered: u32,
    /// IDs of groups that mean other groups there.
    pub disputed_ids: Vec<u16>,
}

/// The state between this host and another one.
#[derive(Debug)]
pub(crate) struct Pair {
    /// The time that frames from the other host count as having waited there (ns).
    waited_ns: AtomicU64,
    /// The time that frames to the other host may wait here (ns), or [`NOT_GIVEN`].
    share_ns: AtomicU64,
    /// True if frames went to the other host since the last question.
    sends: AtomicBool,
    left_late: Counter,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The other host's last word.
    heard: Option<Word>,
    /// The number of the other host's question that has no answer yet, or 0.
    to_answer: u64,
    /// The time at which the other host last got a share (ns).
    given_ns: u64,
    /// The number of the question that the other host has not answered, or 0.
    asked: u64,
    /// The time of the next question (ns), and the number of questions since the other host's last word.
    ask_ns: u64,
    unheard: u32,
    /// The time at which the other host last gave a share (ns).
    answered_ns: u64,
}

impl Default for Pair {
    fn default() -> Self {
        let (waited_ns, sends, left_late, state) = Default::default();
        Self { waited_ns, share_ns: AtomicU64::new(NOT_GIVEN), sends, left_late, state }
    }
}

impl Pair {
    /// The part of its budget that a frame from the other host has used up (ns).
    pub(crate) fn waited_ns(&self) -> u64 {
        self.waited_ns.load(Ordering::Relaxed)
    }

    pub(crate) fn share_ns(&self) -> Option<u64> {
        Some(self.share_ns.load(Ordering::Relaxed)).filter(|ns| *ns != NOT_GIVEN)
    }

    /// Notes that a frame that came at `arrived_ns` leaves for the other host. Counts it if it leaves too late.
    pub(crate) fn leaves(&self, arrived_ns: u64, now_ns: u64, counters: &PortCounters) {
        if !self.sends.load(Ordering::Relaxed) {
            self.sends.store(true, Ordering::Relaxed);
        }
        if now_ns > arrived_ns.saturating_add(self.share_ns.load(Ordering::Relaxed)) {
            self.left_late.add(1);
            counters.breached(BreachReason::ForwardedLate);
        }
    }

    /// Processes a word. A worker does not wait for the lock: the other host repeats a question whose word is lost.
    pub(crate) fn hear(&self, word: Word, now_ns: u64) {
        let Ok(mut state) = self.state.try_lock() else { return };
        let is_answer = word.answers != 0 && word.answers == state.asked;
        if is_answer {
            (state.asked, state.answered_ns) = (0, now_ns);
            self.share_ns.store(word.share_ns.min(LATENCY_BUDGET_NS_MAX), Ordering::Relaxed);
        }
        if word.asks != 0 {
            state.to_answer = word.asks;
        }
        if is_answer || word.asks != 0 {
            (state.heard, state.unheard) = (Some(word), 0);
            state.ask_ns = state.ask_ns.min(now_ns.saturating_add(OVERLAY_ASK_NS));
        }
    }

    /// The word to send to the other host now, if there is one.
    pub(crate) fn say(&self, here: &Here, now_ns: u64) -> Option<Word> {
        let state = &mut *lock(&self.state);
        // The host that gives a share remembers it for longer than the host that uses it.
        if now_ns.saturating_sub(state.answered_ns) >= OVERLAY_SHARE_NS {
            self.share_ns.store(NOT_GIVEN, Ordering::Relaxed);
        }
        if now_ns.saturating_sub(state.given_ns) >= OVERLAY_SHARE_NS + 2 * OVERLAY_ASK_NS {
            self.waited_ns.store(0, Ordering::Relaxed);
        }
        let answers = std::mem::take(&mut state.to_answer);
        let mut share_ns = 0;
        if let Some(heard) = state.heard.filter(|_| answers != 0) {
            share_ns = share_of(here, &heard);
            // The other host uses either the share that its word states and this host has given, or the share that it
            // gets now.
            let using_ns = heard.using_ns.min(self.waited_ns());
            self.waited_ns.store(share_ns.max(using_ns), Ordering::Relaxed);
            state.given_ns = now_ns;
        }
        let mut asks = 0;
        if now_ns >= state.ask_ns && self.sends.swap(false, Ordering::Relaxed) {
            // A host that does not see the question cannot guess its number.
            asks = now_ns | 1;
            (state.asked, state.ask_ns) = (asks, now_ns + (OVERLAY_ASK_NS << state.unheard));
            state.unheard = (state.unheard + 1).min(OVERLAY_ASKS_DOUBLED);
        }
        (asks != 0 || answers != 0).then(|| Word {
            asks,
            answers,
            wait_ns: here.wait_ns,
            // The other host clamps values that are out of bounds.
            wakeup_cost_ns: here.wakeup_cost_ns as u64,
            using_ns: self.share_ns().unwrap_or(0),
            share_ns,
            budget_ns: here.budget_ns,
            left_late: self.left_late.get(),
            told_late: here.told_late,
        })
    }

    pub(crate) fn heard(&self, host: IpAddr, disputed_ids: Vec<u16>) -> Heard {
        let state = lock(&self.state);
        Heard { host, has_weir: state.heard.is_some(), unanswered: state.unheard, disputed_ids }
    }

    pub(crate) fn between(&self, host: IpAddr) -> Option<Between> {
        let word = lock(&self.state).heard?;
        Some(Between {
            host,
            waited_ns: self.waited_ns(),
            share_ns: self.share_ns(),
            budget_ns: word.budget_ns,
            left_late_here: self.left_late.get(),
            left_late_there: word.left_late,
            told_late_there: word.told_late,
        })
    }
}

/// The share of the budget here for a host that sent `word` (ns), by Eq. 4. It is no more than either host lets frames
/// wait, and at least the margin, which is for the burst under way.
fn share_of(here: &Here, word: &Word) -> u64 {
    let split = Split::of(Load {
        budget_ns: here.budget_ns,
        uplink_cost_ns: word.wakeup_cost_ns as f64,
        call_cost_ns: here.call_cost_ns,
        vifs: here.receivers.max(1),
    });
    let wait_ns = word.wait_ns.min(here.wait_ns_there);
    split.uplink_ns.min(wait_ns).max(LAW.margin_ns).min(here.budget_ns)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    const BUDGET_NS: u64 = 1_000_000;
    const HERE: Here = Here {
        wait_ns: LATENCY_BUDGET_NS_MAX,
        wakeup_cost_ns: 4_000.0,
        call_cost_ns: 4_000.0,
        receivers: 1,
        budget_ns: BUDGET_NS,
        wait_ns_there: u64::MAX,
        told_late: 7,
    };

    fn with(budget_ns: u64) -> Here {
        Here { budget_ns, ..HERE }
    }

    /// A frame leaves for the other host, in time.
    fn send(pair: &Pair) {
        pair.leaves(0, 0, &PortCounters::default());
    }

    /// Two hosts exchange their words at `now_ns`; returns the number of words.
    fn talk(pairs: &[Pair; 2], budgets: [u64; 2], now_ns: u64) -> u32 {
        let mut words = 0;
        // The rounds are the question, the answer, and any further word.
        for (from, to) in [(0, 1), (1, 0), (0, 1), (1, 0)] {
            if let Some(word) = pairs[from].say(&with(budgets[from]), now_ns) {
                assert_eq!(Word::parse(word.to_bytes()), Some(word));
                pairs[to].hear(word, now_ns);
                words += 1;
            }
        }
        words
    }

    #[test]
    fn what_is_no_word_of_this_version_is_none() {
        let bytes = Word::default().to_bytes();
        for bit in 0..64 {
            let mut other = bytes;
            other[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Word::parse(other), None, "bit {bit}");
        }
        assert_eq!(crate::header::vni(*bytes.first_chunk().unwrap()), None, "nor is it a frame");
    }

    #[test]
    fn hosts_without_frames_for_each_other_say_nothing() {
        let pairs = [Pair::default(), Pair::default()];
        for second in 1..100 {
            assert_eq!(talk(&pairs, [BUDGET_NS; 2], second * OVERLAY_ASK_NS), 0);
        }
        // There is one question and one answer a second at most.
        for part in 1..=30 {
            send(&pairs[0]);
            let words =
                talk(&pairs, [BUDGET_NS; 2], 200 * OVERLAY_ASK_NS + part * OVERLAY_ASK_NS / 10);
            assert_eq!(words, if part % 10 == 1 { 2 } else { 0 }, "{part}");
        }
        let later_ns = 300 * OVERLAY_ASK_NS;
        assert_eq!(talk(&pairs, [BUDGET_NS; 2], later_ns), 2, "the last frames of all");
        assert_eq!(talk(&pairs, [BUDGET_NS; 2], later_ns + OVERLAY_ASK_NS), 0);
    }

    #[test]
    fn each_receiver_gives_a_share_of_its_own_budget() {
        let pairs = [Pair::default(), Pair::default()];
        pairs.iter().for_each(send);
        talk(&pairs, [BUDGET_NS, 200_000], OVERLAY_ASK_NS);
        // By Eq. 4 with equal costs the share is half. Frames from 1 to 0 have the budget of 0's guests.
        assert_eq!(pairs.each_ref().map(Pair::waited_ns), [BUDGET_NS / 2, 100_000]);
        assert_eq!(pairs.each_ref().map(Pair::share_ns), [Some(100_000), Some(BUDGET_NS / 2)]);
    }

    #[test]
    fn a_smaller_share_is_used_with_the_next_question_and_counted_with_the_one_after() {
        let pairs = [Pair::default(), Pair::default()];
        let after = |seconds, budget_ns| {
            send(&pairs[0]);
            talk(&pairs, [BUDGET_NS, budget_ns], seconds * OVERLAY_ASK_NS);
            (pairs[0].share_ns(), pairs[1].waited_ns())
        };
        assert_eq!(after(1, BUDGET_NS), (Some(BUDGET_NS / 2), BUDGET_NS / 2));
        assert_eq!(
            after(2, 200_000),
            (Some(100_000), BUDGET_NS / 2),
            "the answer may have been lost"
        );
        assert_eq!(after(3, 200_000), (Some(100_000), 100_000));
        assert_eq!(after(4, BUDGET_NS), (Some(BUDGET_NS / 2), BUDGET_NS / 2));
    }

    #[test]
    fn of_a_host_without_a_weir_the_whole_budget_is_here_and_it_is_asked_seldom() {
        let pair = Pair::default();
        let mut words = 0;
        for second in 0..600 {
            send(&pair);
            words += u32::from(pair.say(&HERE, second * OVERLAY_ASK_NS).is_some());
            assert_eq!((pair.waited_ns(), pair.share_ns()), (0, None));
        }
        assert!((30..50).contains(&words), "{words} in ten minutes");
    }

    #[test]
    fn a_host_that_vanishes_has_no_share_once_it_can_use_none() {
        let [here, there] = [Pair::default(), Pair::default()];
        send(&there);
        let pairs = [here, there];
        talk(&pairs, [BUDGET_NS; 2], 0);
        let [here, there] = &pairs;
        let both = |now_ns| {
            let _ = (here.say(&HERE, now_ns), there.say(&HERE, now_ns));
            (here.waited_ns(), there.share_ns())
        };
        assert_eq!(both(OVERLAY_SHARE_NS - 1), (BUDGET_NS / 2, Some(BUDGET_NS / 2)));
        assert_eq!(both(OVERLAY_SHARE_NS), (BUDGET_NS / 2, None));
        assert_eq!(both(OVERLAY_SHARE_NS + 2 * OVERLAY_ASK_NS), (0, None));
    }

    #[test]
    fn a_frame_that_leaves_after_its_share_is_counted_and_the_other_host_is_told() {
        let pairs = [Pair::default(), Pair::default()];
        let counters = PortCounters::default();
        pairs[0].leaves(0, BUDGET_NS, &counters);
        talk(&pairs, [BUDGET_NS; 2], 0);
        pairs[0].leaves(0, BUDGET_NS / 2, &counters);
        assert_eq!(counters.breaches().count(), 0, "there was no share, or it is in time");
        pairs[0].leaves(0, BUDGET_NS / 2 + 1, &counters);
        assert_eq!(counters.breaches().collect::<Vec<_>>(), [("forwarded_late", 1)]);
        talk(&pairs, [BUDGET_NS; 2], OVERLAY_ASK_NS);
        let there = pairs[1].between(IpAddr::from([192, 0, 2, 1])).unwrap();
        assert_eq!((there.left_late_there, there.told_late_there), (1, 7));
    }

    #[test]
    fn where_nothing_may_wait_a_host_gets_the_margin_only() {
        let pairs = [Pair::default(), Pair::default()];
        send(&pairs[0]);
        let question = pairs[0].say(&Here { wait_ns: 0, ..HERE }, 0).unwrap();
        pairs[1].hear(question, 0);
        assert_eq!(pairs[1].say(&HERE, 0).unwrap().share_ns, LAW.margin_ns);
        // A host whose receivers let nothing wait gets no share either.
        pairs[1].hear(Word { wait_ns: u64::MAX, ..question }, 0);
        let share_ns =
            |wait_ns_there| pairs[1].say(&Here { wait_ns_there, ..HERE }, 0).unwrap().share_ns;
        assert_eq!(share_ns(0), LAW.margin_ns);
    }

    #[test]
    fn an_answer_to_no_question_of_this_host_is_ignored() {
        let pair = Pair::default();
        send(&pair);
        let question = pair.say(&HERE, 5).unwrap();
        for answers in [0, 1, question.asks ^ 2] {
            pair.hear(Word { answers, ..Word::default() }, 6);
            assert_eq!((pair.share_ns(), pair.between(IpAddr::from([0; 4]))), (None, None));
        }
        let answer = Word { answers: question.asks, share_ns: u64::MAX, ..Word::default() };
        pair.hear(answer, 7);
        assert_eq!(pair.share_ns(), Some(LATENCY_BUDGET_NS_MAX), "within the bounds");
        pair.hear(Word { share_ns: 0, ..answer }, 8);
        assert_eq!(pair.share_ns(), Some(LATENCY_BUDGET_NS_MAX), "said again by somebody else");
    }

    proptest! {
        /// The share that one host uses never exceeds the share that the other host counts, even if clocks differ,
        /// messages are lost or late, budgets change, and hosts are silent for minutes.
        #[test]
        fn a_share_in_use_is_always_counted_by_who_has_given_it(
            steps in prop::collection::vec((
                20_000u64..5_000_000,
                any::<[bool; 2]>(),
                prop::array::uniform2(0u8..4),
                prop_oneof![9 => 0u64..500_000_000, 1 => 0u64..100_000_000_000],
            ), 1..100),
            ahead_ns in 0u64..1 << 60,
        ) {
            let pairs = [Pair::default(), Pair::default()];
            let mut under_way = [VecDeque::new(), VecDeque::new()];
            let mut now_ns = 0;
            for (budget_ns, sends, fates, pause_ns) in steps {
                let clocks = [now_ns, now_ns + ahead_ns];
                for (from, to) in [(0, 1), (1, 0)] {
                    if sends[from] {
                        send(&pairs[from]);
                    }
                    // A word is late by one step, which is less than the time between two questions.
                    while let Some(word) = under_way[from].pop_front() {
                        pairs[to].hear(word, clocks[to]);
                    }
                    match (pairs[from].say(&with(budget_ns), clocks[from]), fates[from]) {
                        (None, _) | (_, 0) => {}
                        (Some(word), 1) if pause_ns < OVERLAY_ASK_NS => under_way[from].push_back(word),
                        (Some(word), _) => pairs[to].hear(word, clocks[to]),
                    }
                }
                for (sender, receiver) in [(0, 1), (1, 0)] {
                    let waited_ns = pairs[receiver].waited_ns();
                    prop_assert!(pairs[sender].share_ns().is_none_or(|ns| ns <= waited_ns));
                }
                now_ns += pause_ns;
            }
        }

        #[test]
        fn whatever_is_said_leaves_a_share_within_the_budget(
            fields in any::<[u64; LEN / 8 - 1]>(),
            asks in 1u64..,
            budget_ns in 0..=LATENCY_BUDGET_NS_MAX,
            receivers in any::<u32>(),
        ) {
            let bytes: Vec<u8> = [MARK].iter().chain(&fields).flat_map(|it| it.to_be_bytes()).collect();
            let word = Word::parse(bytes.try_into().unwrap()).unwrap();
            let (pair, here) = (Pair::default(), Here { receivers, ..with(budget_ns) });
            pair.hear(Word { asks, ..word }, 0);
            let share_ns = pair.say(&here, 1).unwrap().share_ns;
            prop_assert!(share_ns <= budget_ns && share_ns >= LAW.margin_ns.min(budget_ns));
            prop_assert_eq!(pair.waited_ns(), share_ns, "what was never given is not in use");
            prop_assert_eq!(pair.share_ns(), None);
        }
    }
}
