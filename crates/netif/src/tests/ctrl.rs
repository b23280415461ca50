//! The control ring: each message, with each status that the header defines for it.

use proptest::prelude::*;
use weir_limits::INDIRECTION_LEN;
use weir_wire::flow::{DEFAULT_KEY, KEY_LEN, Toeplitz};
use weir_wire::{Layers, Network, Transport};

use super::tx::{tcp4, udp4};
use super::*;
use crate::ctrl_type::*;

const QUEUES: usize = 4;

fn request(kind: u16, data: [u32; 3]) -> CtrlRequest {
    CtrlRequest { id: 77, kind, data }
}

fn ask(state: &mut HashState, kind: u16, data: [u32; 3], page: &[u8]) -> (CtrlStatus, u32) {
    let answer = match state.apply(request(kind, data)) {
        Step::Answer(answer) => answer,
        Step::Copy(pending) => {
            assert_eq!((pending.segment.gref, pending.segment.offset), (data[0], 0));
            state.copied(pending, page.get(..pending.segment.len.into()))
        }
    };
    assert_eq!((answer.id, answer.kind), (77, kind));
    (answer.status, answer.data)
}

fn words(entries: &[u32]) -> Vec<u8> {
    entries.iter().flat_map(|entry| entry.to_le_bytes()).collect()
}

const OK: (CtrlStatus, u32) = (CtrlStatus::Success, 0);
const INVALID: (CtrlStatus, u32) = (CtrlStatus::InvalidParameter, 0);
const OVERFLOW: (CtrlStatus, u32) = (CtrlStatus::BufferOverflow, 0);
const UNSUPPORTED: (CtrlStatus, u32) = (CtrlStatus::NotSupported, 0);

fn with_toeplitz() -> HashState {
    let mut state = HashState::new(QUEUES);
    assert_eq!(ask(&mut state, SET_HASH_ALGORITHM, [1, 0, 0], &[]), OK);
    state
}

#[test]
fn flags_need_an_algorithm() {
    let mut state = HashState::new(QUEUES);
    assert_eq!(ask(&mut state, GET_HASH_FLAGS, [0; 3], &[]), UNSUPPORTED);
    assert_eq!(ask(&mut state, SET_HASH_FLAGS, [1, 0, 0], &[]), INVALID);
    let mut state = with_toeplitz();
    assert_eq!(ask(&mut state, GET_HASH_FLAGS, [0; 3], &[]), (CtrlStatus::Success, 0xf));
    assert_eq!(ask(&mut state, SET_HASH_FLAGS, [0xf, 0, 0], &[]), OK);
    assert_eq!(ask(&mut state, SET_HASH_FLAGS, [0x10, 0, 0], &[]), INVALID);
}

#[test]
fn algorithms_and_messages_that_do_not_exist_are_refused() {
    let mut state = with_toeplitz();
    assert_eq!(ask(&mut state, SET_HASH_ALGORITHM, [2, 0, 0], &[]), INVALID);
    assert_eq!(ask(&mut state, GET_HASH_FLAGS, [0; 3], &[]).0, CtrlStatus::Success, "kept");
    for kind in [0, 8, 9, 10, 11, u16::MAX] {
        assert_eq!(ask(&mut state, kind, [0; 3], &[]), UNSUPPORTED);
    }
}

#[test]
fn a_key_longer_than_the_hash_has_is_an_overflow_and_one_that_cannot_be_read_changes_nothing() {
    let mut state = with_toeplitz();
    ask(&mut state, SET_HASH_FLAGS, [0xf, 0, 0], &[]);
    assert_eq!(ask(&mut state, SET_HASH_KEY, [3, KEY_LEN as u32, 0], &DEFAULT_KEY), OK);
    let layers = Layers::parse(&tcp4()).unwrap();
    let hash = state.hash(&layers).unwrap();
    assert_ne!(hash.value, 0);
    for len in [KEY_LEN as u32 + 1, 4097, u32::MAX] {
        assert_eq!(ask(&mut state, SET_HASH_KEY, [3, len, 0], &[1; 5000]), OVERFLOW);
    }
    assert_eq!(ask(&mut state, SET_HASH_KEY, [3, 8, 0], &[]), INVALID);
    assert_eq!(state.hash(&layers), Some(hash));
    assert_eq!(ask(&mut state, SET_HASH_KEY, [3, 0, 0], &[]), OK);
    assert_eq!(state.hash(&layers).unwrap().value, 0, "the empty key's hash is 0");
}

#[test]
fn a_table_is_set_piece_by_piece_and_names_queues_only() {
    let mut state = with_toeplitz();
    let max = INDIRECTION_LEN as u32;
    assert_eq!(ask(&mut state, GET_HASH_MAPPING_SIZE, [0; 3], &[]), (CtrlStatus::Success, max));
    assert_eq!(ask(&mut state, SET_HASH_MAPPING_SIZE, [max + 1, 0, 0], &[]), INVALID);
    assert_eq!(ask(&mut state, SET_HASH_MAPPING_SIZE, [4, 0, 0], &[]), OK);
    let queue = |state: &HashState, value| state.queue(FlowHash { kind: 0, value });
    assert_eq!([0, 1, 2, 3].map(|value| queue(&state, value)), [0; 4], "a new table is all 0");
    assert_eq!(ask(&mut state, SET_HASH_MAPPING, [9, 2, 2], &words(&[3, 1])), OK);
    assert_eq!([0, 1, 2, 3, 6].map(|value| queue(&state, value)), [0, 0, 3, 1, 3]);

    let before = [0, 1, 2, 3].map(|value| queue(&state, value));
    // The cases: a queue that does not exist, an end beyond the table, sums that overflow, no grant.
    assert_eq!(ask(&mut state, SET_HASH_MAPPING, [9, 2, 0], &words(&[1, 4])), INVALID);
    assert_eq!(ask(&mut state, SET_HASH_MAPPING, [9, 2, 3], &words(&[1, 1])), INVALID);
    assert_eq!(ask(&mut state, SET_HASH_MAPPING, [9, 2, u32::MAX], &words(&[1, 1])), INVALID);
    assert_eq!(ask(&mut state, SET_HASH_MAPPING, [9, max + 1, 0], &[]), OVERFLOW);
    assert_eq!(ask(&mut state, SET_HASH_MAPPING, [9, u32::MAX, 1], &[]), OVERFLOW);
    assert_eq!(ask(&mut state, SET_HASH_MAPPING, [9, 2, 0], &[]), INVALID);
    assert_eq!([0, 1, 2, 3].map(|value| queue(&state, value)), before, "nothing changed");
    for data in [[9, 2, 3], [9, 0, 5], [9, 1, u32::MAX]] {
        let step = state.apply(request(SET_HASH_MAPPING, data));
        assert!(matches!(step, Step::Answer(_)), "no copy for what is in no table: {data:?}");
    }

    assert_eq!(ask(&mut state, SET_HASH_MAPPING_SIZE, [4, 0, 0], &[]), OK);
    assert_eq!([0, 1, 2, 3].map(|value| queue(&state, value)), [0; 4], "the old one is gone");
    assert_eq!(ask(&mut state, SET_HASH_MAPPING_SIZE, [0; 3], &[]), OK);
    assert_eq!([5, 6].map(|value| queue(&state, value)), [1, 2], "modular arithmetic");
}

#[test]
fn a_table_that_shrinks_while_a_page_is_copied_stays_as_it_is() {
    let mut state = with_toeplitz();
    // One entry is beyond the end, or both are.
    for offset in [6, 3] {
        ask(&mut state, SET_HASH_MAPPING_SIZE, [8, 0, 0], &[]);
        let step = state.apply(request(SET_HASH_MAPPING, [1, 2, offset]));
        let Step::Copy(pending) = step else { panic!("{step:?}") };
        ask(&mut state, SET_HASH_MAPPING_SIZE, [4, 0, 0], &[]);
        let answer = state.copied(pending, Some(&words(&[1, 1])));
        assert_eq!(answer.status, CtrlStatus::InvalidParameter);
        assert_eq!(state.queue(FlowHash { kind: 0, value: 3 }), 0);
    }
}

#[test]
fn the_maximal_type_that_was_asked_for_is_calculated() {
    let mut state = with_toeplitz();
    ask(&mut state, SET_HASH_KEY, [3, KEY_LEN as u32, 0], &DEFAULT_KEY);
    let toeplitz = Toeplitz::new(&DEFAULT_KEY);
    let (tcp, udp) = (Layers::parse(&tcp4()).unwrap(), Layers::parse(&udp4()).unwrap());
    let (Network::Ipv4(ip), Transport::Tcp { ports, .. }) = (tcp.network, tcp.transport) else {
        panic!()
    };
    assert_eq!(state.hash(&tcp), None, "no flags: weir steers");
    let addresses = toeplitz.hash_v4(ip.src, ip.dst, None);
    for (flags, expected) in [
        (0b0001, Some(FlowHash { kind: 0, value: addresses })),
        (0b0011, Some(FlowHash { kind: 1, value: toeplitz.hash_v4(ip.src, ip.dst, Some(ports)) })),
        (0b1100, None),
    ] {
        ask(&mut state, SET_HASH_FLAGS, [flags, 0, 0], &[]);
        assert_eq!(state.hash(&tcp), expected);
    }
    ask(&mut state, SET_HASH_FLAGS, [0b0011, 0, 0], &[]);
    assert_eq!(state.hash(&udp).unwrap().kind, 0, "Xen has no type for UDP");
    ask(&mut state, SET_HASH_ALGORITHM, [0; 3], &[]);
    assert_eq!(state.hash(&tcp), None);
}

#[test]
fn requests_come_over_a_ring_and_answers_go_back() {
    let page = Page::new();
    let mut front = FrontRing::<CTRL_SLOT_BYTES>::init(page.window()).unwrap();
    let mut back = CtrlBack::attach(page.window()).unwrap();
    let mut state = HashState::new(QUEUES);
    assert_eq!(back.take(), Ok(None));
    assert_eq!(back.final_check(), Ok(false));
    front.request(request(GET_HASH_MAPPING_SIZE, [0; 3]).to_bytes());
    assert!(front.push());
    assert_eq!(front.final_check(), Ok(0));
    let asked = back.take().unwrap().unwrap();
    let Step::Answer(answer) = state.apply(asked) else { panic!() };
    assert!(back.answer(answer));
    front.refill().unwrap();
    let (_, bytes) = front.response().unwrap();
    assert_eq!(bytes[..12], [77, 0, 4, 0, 0, 0, 0, 0, INDIRECTION_LEN as u8, 0, 0, 0]);
}

proptest! {
    /// After any messages with any pages every entry names an existing queue, and no request needs
    /// more than a page.
    #[test]
    fn no_sequence_of_messages_leads_to_a_queue_that_is_not_there(
        messages in proptest::collection::vec(
            (0u16..12, prop_oneof![0u32..200, any::<u32>()], 0u32..200, 0u32..200), 0..60),
        page in proptest::collection::vec(0u8..6, 4096),
        value in any::<u32>(),
    ) {
        let mut state = HashState::new(QUEUES);
        for (kind, a, b, c) in messages {
            if let Step::Copy(pending) = state.apply(request(kind, [a, b, c])) {
                prop_assert!(usize::from(pending.segment.len) <= XEN_PAGE_LEN);
                let words: Vec<u8> =
                    page.chunks(4).flat_map(|word| [word[0], 0, 0, 0]).collect();
                state.copied(pending, words.get(..pending.segment.len.into()));
            }
            let queue = state.queue(FlowHash { kind: 0, value });
            prop_assert!(queue < QUEUES);
            let _ = state.hash(&Layers::parse(&tcp4()).unwrap());
        }
    }
}
