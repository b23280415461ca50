//! Both halves of a ring against each other, and against `public/io/ring.h`.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

/// Entries of a receive ring of one page.
const SIZE: u32 = 256;

fn pair(start: u32) -> (FrontRing<8>, BackRing<8>) {
    let page = Page::new();
    let front = FrontRing::init_at(page.window(), start).unwrap();
    (front, BackRing::attach(page.window()).unwrap())
}

#[test]
fn a_ring_of_one_page_holds_as_many_requests_as_it_has_entries() {
    let (mut front, mut back) = pair(0);
    for nth in 0..u64::from(SIZE) {
        assert!(front.request(nth.to_le_bytes()).is_some());
    }
    assert_eq!(front.request([0; 8]), None);
    front.push();
    assert_eq!(back.refill(), Ok(SIZE));
}

#[test]
fn several_pages_make_a_larger_ring() {
    let page = Page::of(4 * XEN_PAGE_LEN);
    let front = FrontRing::<12>::init(page.window()).unwrap();
    assert_eq!(front.size(), 1024);
}

#[test]
fn memory_that_is_no_ring_is_refused() {
    let page = Page::of(32 * XEN_PAGE_LEN);
    let refusal = |at, len| BackRing::<8>::attach(page.part(at, len)).unwrap_err();
    assert_eq!(refusal(0, 60), SetupError::Length(60));
    assert_eq!(refusal(0, 71), SetupError::Length(71));
    assert_eq!(refusal(0, 17 * XEN_PAGE_LEN), SetupError::Length(17 * XEN_PAGE_LEN));
    assert_eq!(refusal(2, XEN_PAGE_LEN), SetupError::Misaligned);
}

#[test]
fn a_ring_whose_indices_cannot_be_is_not_taken_over() {
    let page = Page::new();
    let raw = page.window();
    raw.store32(0, SIZE + 1);
    let error = SetupError::Indices { req_prod: SIZE + 1, rsp_prod: 0, size: SIZE };
    assert_eq!(BackRing::<8>::attach(page.window()).unwrap_err(), error);
    raw.store32(8, 1);
    assert!(BackRing::<8>::attach(page.window()).is_ok());
}

#[test]
fn the_first_request_after_a_final_check_asks_for_an_event_and_the_second_does_not() {
    let (mut front, mut back) = pair(0);
    assert_eq!(back.final_check(), Ok(0));
    front.request([0; 8]);
    assert!(front.push());
    front.request([0; 8]);
    assert!(!front.push());
    assert!(!front.push(), "nothing was added");
}

#[test]
fn requests_that_are_left_do_not_keep_the_next_from_asking_for_an_event() {
    let (mut front, mut back) = pair(0);
    front.request([0; 8]);
    front.push();
    assert_eq!(back.final_check(), Ok(1));
    // A receive ring needs two requests: it sleeps with one left.
    assert_eq!(back.final_check(), Ok(1));
    front.request([0; 8]);
    assert!(front.push());
}

#[test]
fn one_look_covers_several_pushes() {
    let (mut front, mut back) = pair(0);
    for _ in 0..2 {
        front.request([0; 8]);
    }
    front.push();
    front.final_check().unwrap();
    back.refill().unwrap();
    for nth in 1..=2 {
        back.request();
        back.respond([0; 8]);
        assert_eq!((back.push(), back.unannounced()), (1, nth));
    }
    assert!(back.needs_notify(), "the event lies between the two");
    assert!(!back.needs_notify(), "nothing was pushed since");
}

#[derive(Debug, Clone, Copy)]
enum Act {
    Request(u8),
    PushRequests,
    Take(u8),
    Respond(u8),
    PushResponses,
    BackSleeps,
    FrontSleeps,
    FrontTakes,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        (1u8..80).prop_map(Act::Request),
        Just(Act::PushRequests),
        (1u8..80).prop_map(Act::Take),
        (1u8..80).prop_map(Act::Respond),
        Just(Act::PushResponses),
        Just(Act::BackSleeps),
        Just(Act::FrontSleeps),
        Just(Act::FrontTakes),
    ]
}

proptest! {
    /// Compares with queues: every entry arrives once and in order, and a side that sleeps gets an
    /// event for new entries. The indices wrap in half of the cases.
    #[test]
    fn a_ring_is_two_queues_and_whoever_sleeps_is_called(
        start in prop_oneof![Just(0u32), (0u32..400).prop_map(|back| 0u32.wrapping_sub(back))],
        acts in proptest::collection::vec(act(), 1..200),
    ) {
        let (mut front, mut back) = pair(start);
        let (mut next, mut written, mut to_back) = (0u64, VecDeque::new(), VecDeque::new());
        let (mut taken, mut unpushed, mut to_front) =
            (VecDeque::new(), VecDeque::new(), VecDeque::new());
        // Each side that sleeps waits for an event of the other side.
        let (mut back_sleeps, mut front_sleeps) = (false, false);
        for act in acts {
            match act {
                Act::Request(count) => for _ in 0..count {
                    let outstanding = written.len() + to_back.len() + taken.len()
                        + unpushed.len() + to_front.len();
                    let index = front.request(next.to_le_bytes());
                    prop_assert_eq!(index.is_some(), outstanding < SIZE as usize);
                    if index.is_some() {
                        written.push_back(next);
                        next += 1;
                    }
                },
                Act::PushRequests => {
                    let new = !written.is_empty();
                    let event = front.push();
                    to_back.append(&mut written);
                    prop_assert!(!(back_sleeps && new) || event);
                    back_sleeps &= !event;
                }
                Act::Take(count) => {
                    prop_assert_eq!(back.refill().unwrap() as usize, to_back.len());
                    for _ in 0..count {
                        let request = back.request().map(u64::from_le_bytes);
                        prop_assert_eq!(request, to_back.pop_front());
                        taken.extend(request);
                    }
                }
                Act::Respond(count) => for _ in 0..count {
                    prop_assert_eq!(back.unanswered() as usize, taken.len());
                    let Some(value) = taken.pop_front() else { break };
                    back.respond((!value).to_le_bytes());
                    unpushed.push_back(!value);
                },
                Act::PushResponses => {
                    let new = !unpushed.is_empty();
                    prop_assert_eq!(back.push() as usize, unpushed.len());
                    to_front.append(&mut unpushed);
                    let event = back.needs_notify();
                    prop_assert!(!(front_sleeps && new) || event);
                    front_sleeps &= !event;
                }
                Act::BackSleeps => {
                    let before = back.available();
                    back_sleeps = back.final_check().unwrap() == before;
                }
                Act::FrontSleeps => front_sleeps = front.final_check().unwrap() == 0,
                Act::FrontTakes => {
                    prop_assert_eq!(front.refill().unwrap() as usize, to_front.len());
                    while let Some((_, value)) = front.response() {
                        prop_assert_eq!(Some(u64::from_le_bytes(value)), to_front.pop_front());
                    }
                }
            }
        }
    }
}

#[test]
fn what_a_front_end_has_surely_taken_is_known_by_its_requests_and_its_event() {
    let page = Page::new();
    let mut front = crate::FrontRing::<8>::init(page.window()).unwrap();
    let mut back = crate::BackRing::<8>::attach(page.window()).unwrap();
    let size = front.size();
    for _ in 0..size {
        front.request([0; 8]).unwrap();
    }
    front.push();
    assert_eq!((back.refill(), back.untaken_max()), (Ok(size), 0));
    for _ in 0..10 {
        back.request().unwrap();
        back.respond([0; 8]);
    }
    assert_eq!(back.untaken_max(), 10, "not even shown");
    assert!(!back.wants_notify());
    back.push();
    assert_eq!(back.untaken_max(), 10);
    // The question changes nothing.
    assert!(back.wants_notify() && back.wants_notify() && back.needs_notify());
    front.refill().unwrap();
    for _ in 0..6 {
        front.response().unwrap();
    }
    assert_eq!(back.untaken_max(), 10, "the back end cannot know");
    for _ in 0..4 {
        front.request([0; 8]).unwrap();
    }
    front.push();
    assert_eq!(back.untaken_max(), 6, "four entries are in use again");
    for _ in 0..4 {
        front.response().unwrap();
    }
    front.final_check().unwrap();
    assert_eq!(back.untaken_max(), 0);
    // The request for an event remains, whatever follows.
    back.request().unwrap();
    back.respond([0; 8]);
    back.push();
    assert_eq!(back.untaken_max(), 1);
}
