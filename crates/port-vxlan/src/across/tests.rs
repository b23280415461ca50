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
        let words = talk(&pairs, [BUDGET_NS; 2], 200 * OVERLAY_ASK_NS + part * OVERLAY_ASK_NS / 10);
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
    assert_eq!(after(2, 200_000), (Some(100_000), BUDGET_NS / 2), "the answer may have been lost");
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
    /// Clocks differ, words are lost or late, budgets change, and hosts are silent for minutes: the share that one host
    /// uses never exceeds the share that the other one counts.
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
