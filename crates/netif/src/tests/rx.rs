//! The receive ring.

use proptest::prelude::*;
use weir_wire::Offload;

use super::*;
use crate::message::{Extra, RX_SLOT_BYTES, RxRequest, RxResponse, rx_flags};

fn pair(pages: u16) -> (RxFront, RxBack) {
    let page = Page::new();
    let mut front = RxFront::init(page.window()).unwrap();
    let mut back = RxBack::attach(page.window()).unwrap();
    for id in 0..pages {
        assert!(front.offer(RxRequest { id, gref: 100 + u32::from(id) }));
    }
    front.ring().push();
    back.ring().refill().unwrap();
    (front, back)
}

fn plain() -> RxMeta {
    RxMeta::new(&Offload::NONE, &[0; 14]).unwrap()
}

fn received(front: &mut RxFront, back: &mut RxBack) -> RxPacket {
    back.ring().push();
    front.ring().refill().unwrap();
    front.packet().unwrap()
}

#[test]
fn a_frame_fills_pages_in_the_order_of_the_requests() {
    let (mut front, mut back) = pair(4);
    let mut segments = Vec::new();
    assert!(back.place(9000, &plain(), &mut segments));
    let places: Vec<_> = segments.iter().map(|rx| rx.segment).collect();
    assert_eq!(places, [segment(100, 0, 4096), segment(101, 0, 4096), segment(102, 0, 808)]);
    let packet = received(&mut front, &mut back);
    assert_eq!(packet.parts, [(0, 0, 4096), (1, 0, 4096), (2, 0, 808)]);
    assert_eq!((packet.len(), packet.damaged), (9000, false));
}

#[test]
fn extra_infos_follow_the_first_slot_in_the_places_of_their_requests() {
    let (mut front, mut back) = pair(5);
    let meta = plain().with_hash(FlowHash { kind: 1, value: 0xdead_beef });
    assert_eq!(RxBack::slots_for(5000, &meta), 3);
    assert!(back.place(5000, &meta, &mut Vec::new()));
    let packet = received(&mut front, &mut back);
    assert_eq!(packet.parts, [(0, 0, 4096), (2, 0, 904)]);
    assert_eq!(packet.unused, [1], "its page comes back empty");
    assert_eq!(packet.extras, [Extra::Hash { kind: 1, algorithm: 1, value: 0xdead_beef }]);
    assert_eq!(packet.flags, rx_flags::EXTRA_INFO | rx_flags::MORE_DATA);
}

#[test]
fn a_frame_that_finds_too_few_pages_takes_none() {
    let (mut front, mut back) = pair(2);
    let mut segments = Vec::new();
    assert!(!back.place(8193, &plain(), &mut segments));
    assert!(segments.is_empty());
    assert_eq!((back.ring().available(), back.ring().push()), (2, 0));
    assert!(back.place(8192, &plain(), &mut segments));
    assert_eq!(received(&mut front, &mut back).len(), 8192);
}

#[test]
fn a_frame_that_is_not_copied_yet_stays_out_of_sight_behind_one_that_is() {
    let (mut front, mut back) = pair(3);
    let mut segments = Vec::new();
    assert!(back.place(60, &plain(), &mut segments));
    assert!(back.place(5000, &plain(), &mut segments));
    assert_eq!(back.ring().push_first(1), 1);
    front.ring().refill().unwrap();
    assert_eq!(front.packet().unwrap().len(), 60);
    assert!(front.packet().is_none());
    // A copy's failure may still be reported.
    back.copy_failed(&segments[2]);
    assert_eq!((back.ring().push_first(5), back.ring().push_first(5)), (2, 0));
    front.ring().refill().unwrap();
    assert!(front.packet().unwrap().damaged);
}

#[test]
fn a_page_that_cannot_be_written_costs_the_guest_that_frame_only() {
    let (mut front, mut back) = pair(3);
    let mut segments = Vec::new();
    assert!(back.place(5000, &plain(), &mut segments));
    assert!(back.place(60, &plain(), &mut segments));
    back.copy_failed(&segments[1]);
    let packet = received(&mut front, &mut back);
    assert!(packet.damaged);
    assert_eq!(packet.unused, [1]);
    let next = front.packet().unwrap();
    assert_eq!((next.parts, next.damaged), (vec![(2, 0, 60)], false));
}

#[test]
fn a_response_out_of_its_requests_order_is_noticed() {
    let page = Page::new();
    let mut front = RxFront::init(page.window()).unwrap();
    let mut back = BackRing::<RX_SLOT_BYTES>::attach(page.window()).unwrap();
    for id in 0..2 {
        front.offer(RxRequest { id, gref: 1 });
    }
    front.ring().push();
    back.refill().unwrap();
    for (id, offset, status) in [(1, 0, 60), (1, 4090, 7)] {
        back.request();
        back.respond(RxResponse { id, offset, flags: 0, status }.to_bytes());
    }
    back.push();
    front.ring().refill().unwrap();
    for unused in 0..2 {
        let packet = front.packet().unwrap();
        assert_eq!((packet.damaged, packet.unused), (true, vec![unused]));
    }
}

proptest! {
    /// The plan is the concatenation: each byte is copied once to its place, and no copy leaves a
    /// piece or a page.
    #[test]
    fn copies_move_every_byte_once_and_in_order(
        lens in proptest::collection::vec(0u32..9000, 0..12),
        room in proptest::collection::vec((0u16..4096, 0u16..4096), 0..20),
    ) {
        let to: Vec<_> = room.iter().enumerate()
            .map(|(n, (offset, len))| segment(n as u32, *offset, (*len).min(4096 - offset)))
            .collect();
        let from: Vec<(usize, u32)> = lens.iter().enumerate()
            .flat_map(|(n, len)| (0..*len).map(move |at| (n, at)))
            .collect();
        let into: Vec<(u32, u16)> = to.iter()
            .flat_map(|s| (0..s.len).map(move |at| (s.gref, s.offset + at)))
            .collect();
        let expected: Vec<_> = from.into_iter().zip(into).collect();
        let planned: Vec<_> = copies(lens.iter().copied(), to.iter().copied())
            .flat_map(|copy| (0..copy.to.len).map(move |n| {
                ((copy.piece, copy.at + u32::from(n)), (copy.to.gref, copy.to.offset + n))
            }))
            .collect();
        prop_assert_eq!(planned, expected);
        let count = copies(lens.iter().copied(), to.iter().copied()).count();
        prop_assert!(count <= lens.len() + to.len());
    }
}
