//! Rings written by an attacker. Every case ends in a named error; none in a panic, an endless loop
//! or a byte outside a page.

use proptest::prelude::*;
use weir_limits::{NETIF_EXTRAS_MAX, NETIF_TX_FRAGS_FATAL, NETIF_TX_FRAGS_MAX};

use super::*;
use crate::back::HEADER_BYTES;
use crate::message::{EXTRA_MORE, Extra, GSO_TCPV4, RxRequest, TX_SLOT_BYTES, TxRequest, tx_flags};

const MORE: u16 = tx_flags::MORE_DATA;
const INFO: u16 = tx_flags::EXTRA_INFO;

/// A transmit ring's back end, and raw access to the guest's memory.
struct Hostile {
    back: TxBack,
    raw: Window,
    written: u32,
}

impl Hostile {
    fn new() -> Self {
        let page = Page::new();
        TxFront::init(page.window()).unwrap();
        Self { back: TxBack::attach(page.window()).unwrap(), raw: page.window(), written: 0 }
    }

    fn entry(mut self, bytes: [u8; TX_SLOT_BYTES]) -> Self {
        self.raw.write(HEADER_BYTES + self.written as usize * TX_SLOT_BYTES, bytes);
        self.written += 1;
        self
    }

    fn request(self, flags: u16, offset: u16, size: u16) -> Self {
        let id = self.written as u16;
        self.entry(TxRequest { gref: 5, offset, flags, id, size }.to_bytes())
    }

    fn extra(self, bytes: [u8; 8]) -> Self {
        let [a, b, c, d, e, f, g, h] = bytes;
        self.entry([a, b, c, d, e, f, g, h, 0, 0, 0, 0])
    }

    fn take(mut self) -> Result<Option<Taken>, RingError> {
        self.raw.store32_release(0, self.written);
        self.back.ring().refill()?;
        self.back.take(&mut Vec::new())
    }

    fn refused(self) -> PacketError {
        match self.take() {
            Ok(Some(Taken::Refused(_, error))) => error,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_producer_that_jumps_or_goes_back_is_refused() {
    let mut hostile = Hostile::new();
    hostile.raw.store32(0, 257);
    let jump = RingError::RequestProducer { from: 0, to: 257, size: 256 };
    assert_eq!(hostile.back.ring().refill(), Err(jump));
    hostile.raw.store32(0, 256);
    assert_eq!(hostile.back.ring().refill(), Ok(256), "a full ring is no jump");
    hostile.raw.store32(0, 255);
    let back = RingError::RequestProducer { from: 256, to: 255, size: 256 };
    assert_eq!(hostile.back.ring().refill(), Err(back));
    assert_eq!(hostile.back.ring().final_check(), Err(back));
    hostile.raw.store32(0, u32::MAX);
    assert!(hostile.back.ring().refill().is_err());
}

#[test]
fn a_producer_may_not_count_on_responses_that_were_not_pushed() {
    let mut hostile = Hostile::new();
    hostile.raw.store32(0, 256);
    hostile.back.ring().refill().unwrap();
    hostile.back.ring().request();
    hostile.back.ring().respond([0; 4]);
    hostile.raw.store32(0, 257);
    assert!(hostile.back.ring().refill().is_err());
    hostile.back.ring().push();
    assert_eq!(hostile.back.ring().refill(), Ok(256));
}

#[test]
fn a_packet_without_an_end_is_refused() {
    let taken = Hostile::new().request(MORE, 0, 100).request(MORE, 0, 10).take();
    assert_eq!(taken, Err(RingError::Unfinished { index: 0 }));
}

#[test]
fn a_packet_that_goes_round_the_ring_is_refused() {
    let mut hostile = Hostile::new().request(MORE, 0, u16::MAX);
    while hostile.written < 256 {
        hostile = hostile.request(MORE, 0, 0);
    }
    assert_eq!(hostile.take(), Err(RingError::TooManySlots { index: 0 }));
}

#[test]
fn one_slot_more_than_a_defective_guest_would_send_stops_the_interface() {
    let packet = |frags| {
        let mut hostile = Hostile::new().request(MORE, 0, 60);
        for nth in 1..=frags {
            hostile = hostile.request(if nth < frags { MORE } else { 0 }, 0, 0);
        }
        hostile.take()
    };
    assert!(matches!(packet(NETIF_TX_FRAGS_MAX), Ok(Some(Taken::Packet(_)))));
    assert!(matches!(packet(NETIF_TX_FRAGS_FATAL), Ok(Some(Taken::Refused(..)))));
    let error = RingError::TooManySlots { index: 0 };
    assert_eq!(packet(NETIF_TX_FRAGS_FATAL + 1), Err(error));
}

#[test]
fn extra_infos_without_an_end_are_refused() {
    assert_eq!(
        Hostile::new().request(INFO, 0, 60).take(),
        Err(RingError::MissingExtra { index: 0 })
    );
    let gso = Extra::Gso { size: 1448, kind: GSO_TCPV4 }.to_bytes(true);
    let taken = Hostile::new().request(INFO, 0, 60).extra(gso).take();
    assert_eq!(taken, Err(RingError::MissingExtra { index: 0 }));
    let mut hostile = Hostile::new().request(INFO, 0, 60);
    for _ in 0..=NETIF_EXTRAS_MAX {
        hostile = hostile.extra(gso);
    }
    assert_eq!(hostile.take(), Err(RingError::TooManyExtras { index: 0 }));
}

#[test]
fn extra_infos_of_no_type_are_refused() {
    for kind in [0, 6, 0xff] {
        let taken = Hostile::new().request(INFO, 0, 60).extra([kind, 0, 0, 0, 0, 0, 0, 0]).take();
        assert_eq!(taken, Err(RingError::ExtraType { index: 1, kind }));
    }
}

#[test]
fn gso_of_no_type_or_without_a_size_is_refused() {
    for kind in [0, 3, 0xff] {
        let gso = Extra::Gso { size: 1448, kind }.to_bytes(false);
        let taken = Hostile::new().request(INFO, 0, 60).extra(gso).take();
        assert_eq!(taken, Err(RingError::GsoType { index: 0, kind }));
    }
    let gso = Extra::Gso { size: 0, kind: GSO_TCPV4 }.to_bytes(false);
    let taken = Hostile::new().request(INFO, 0, 60).extra(gso).take();
    assert_eq!(taken, Err(RingError::GsoSizeZero { index: 0 }));
}

#[test]
fn bytes_beyond_a_page_are_refused_in_the_first_slot_and_in_the_others() {
    for (offset, size) in [(4096, 60), (4037, 60), (u16::MAX, u16::MAX), (0, 4097)] {
        let error = |index| Err(RingError::CrossesPage { index, offset, size });
        assert_eq!(Hostile::new().request(0, offset, size).take(), error(0));
        let taken = Hostile::new().request(MORE, 0, u16::MAX).request(0, offset, size).take();
        assert_eq!(taken, error(1));
    }
    assert!(matches!(Hostile::new().request(0, 4036, 60).take(), Ok(Some(Taken::Packet(_)))));
}

#[test]
fn a_page_that_is_crossed_stops_the_interface_in_a_packet_that_is_refused_anyway() {
    let taken = Hostile::new().request(MORE, 0, 60).request(MORE, 0, 100).request(0, 4000, 100);
    assert_eq!(taken.take(), Err(RingError::CrossesPage { index: 2, offset: 4000, size: 100 }));
}

#[test]
fn a_slot_that_is_longer_than_what_is_left_costs_the_packet() {
    // A frame of 65,536 + 60 bytes, as a field of 16 bits shows it.
    let error = Hostile::new().request(MORE, 0, 60).request(0, 0, 100).refused();
    assert_eq!(error, PacketError::SlotBeyondPacket { size: 100, left: 60 });
}

#[test]
fn undefined_flags_cost_the_packet() {
    for flags in [0x10, 0x8000, 0xfff0] {
        let error = PacketError::UnknownFlags { flags };
        assert_eq!(Hostile::new().request(flags, 0, 60).refused(), error);
        let refused = Hostile::new().request(MORE, 0, 100).request(flags, 0, 10).refused();
        assert_eq!(refused, error);
    }
    let gso = Extra::Gso { size: 1448, kind: GSO_TCPV4 }.to_bytes(false);
    let mut flagged = gso;
    flagged[1] = 2;
    let refused = Hostile::new().request(INFO, 0, 60).extra(flagged).refused();
    assert_eq!(refused, PacketError::UnknownFlags { flags: 2 });
    assert_eq!(EXTRA_MORE, 1);
}

#[test]
fn a_request_that_changes_after_it_was_taken_changes_nothing() {
    let mut hostile = Hostile::new().request(0, 0, 60);
    hostile.raw.store32_release(0, 1);
    hostile.back.ring().refill().unwrap();
    let mut slots = Vec::new();
    let Ok(Some(Taken::Packet(packet))) = hostile.back.take(&mut slots) else { panic!() };
    let raw = TxRequest { gref: 6, offset: 4095, flags: MORE, id: 99, size: 4000 };
    hostile.raw.write(HEADER_BYTES, raw.to_bytes());
    assert_eq!(slots, [TxSlot { segment: segment(5, 0, 60), id: 0 }]);
    hostile.back.complete(&packet, &slots, Status::Okay);
    assert_eq!(hostile.raw.read::<4>(HEADER_BYTES), [0, 0, 0, 0], "the id that was taken");
}

#[test]
fn a_back_end_that_answers_what_was_not_asked_is_refused() {
    let page = Page::new();
    let mut front = RxFront::init(page.window()).unwrap();
    front.offer(RxRequest { id: 1, gref: 1 });
    front.ring().push();
    page.window().store32(8, 2);
    let error = RingError::ResponseProducer { from: 0, to: 2, size: 256 };
    assert_eq!(front.ring().refill(), Err(error));
}

/// Generates entries that are often nearly right, so that walks get deeper.
fn entry() -> impl Strategy<Value = [u8; TX_SLOT_BYTES]> {
    let request = (0u16..=0x1f, 0u16..5000, 0u16..5000).prop_map(|(flags, offset, size)| {
        TxRequest { gref: 1, offset, flags, id: size, size }.to_bytes()
    });
    let small = (0u16..8, 0u16..100).prop_map(|(flags, size)| {
        TxRequest { gref: 1, offset: 0, flags, id: size, size: 60 + size }.to_bytes()
    });
    let extra = (0u8..7, 0u8..3, any::<[u8; 6]>()).prop_map(|(kind, flags, rest)| {
        let [a, b, c, d, e, f] = rest;
        [kind, flags, a, b, c, d, e, f, 0, 0, 0, 0]
    });
    prop_oneof![any::<[u8; TX_SLOT_BYTES]>(), request, small, extra]
}

proptest! {
    /// Any bytes in the ring give as many answers as requests, packets inside pages, and no panic.
    #[test]
    fn garbage_in_a_transmit_ring_ends_in_packets_or_an_error(
        entries in proptest::collection::vec(entry(), 1..=256),
        produced in prop_oneof![0u32..=256, any::<u32>()],
    ) {
        let mut hostile = Hostile::new();
        for bytes in entries {
            hostile = hostile.entry(bytes);
        }
        hostile.raw.store32_release(0, produced);
        let Hostile { mut back, raw, .. } = hostile;
        let mut slots = Vec::new();
        let mut packets = Vec::new();
        if back.ring().refill().is_err() {
            prop_assert!(produced > 256);
            return Ok(());
        }
        let failed = loop {
            match back.take(&mut slots) {
                Ok(Some(Taken::Packet(packet))) => packets.push(packet),
                Ok(Some(Taken::Multicast(multicast))) => {
                    back.complete(&multicast.packet, &slots, Status::Okay);
                }
                Ok(Some(Taken::Refused(packet, _))) => {
                    back.complete(&packet, &slots, Status::Error);
                }
                Ok(None) => break false,
                Err(_) => break true,
            }
        };
        for packet in &packets {
            let (from, count) = packet.slots;
            prop_assert!(count <= 1 + NETIF_TX_FRAGS_MAX);
            let parts = &slots[from..from + count];
            let sum: u32 = parts.iter().map(|slot| u32::from(slot.segment.len)).sum();
            prop_assert_eq!(sum, packet.len);
            for TxSlot { segment, .. } in parts {
                prop_assert!(usize::from(segment.offset) + usize::from(segment.len) <= XEN_PAGE_LEN);
            }
            back.complete(packet, &slots, Status::Okay);
        }
        back.ring().push();
        if !failed {
            prop_assert_eq!(raw.load32(8), produced, "one response for each request");
            back.ring().final_check().unwrap();
        }
    }

    /// Any bytes in a receive ring send frames into offered pages, or nowhere.
    #[test]
    fn garbage_in_a_receive_ring_places_frames_inside_pages(
        bytes in proptest::collection::vec(any::<[u8; 8]>(), 256),
        produced in prop_oneof![0u32..=256, any::<u32>()],
        lens in proptest::collection::vec(14u32..70_000, 1..40),
    ) {
        let page = Page::new();
        let mut back = RxBack::attach(page.window()).unwrap();
        let raw = page.window();
        for (nth, bytes) in bytes.iter().enumerate() {
            raw.write(HEADER_BYTES + 8 * nth, *bytes);
        }
        raw.store32_release(0, produced);
        if back.ring().refill().is_err() {
            return Ok(());
        }
        for len in lens {
            let mut segments = Vec::new();
            let placed = back.place(len, &RxMeta::default(), &mut segments);
            let sum: u32 = segments.iter().map(|rx| u32::from(rx.segment.len)).sum();
            prop_assert_eq!(sum, if placed { len } else { 0 });
            for RxSegment { segment, .. } in &segments {
                prop_assert!(usize::from(segment.len) <= XEN_PAGE_LEN && segment.offset == 0);
            }
            if let Some(last) = segments.last() {
                back.copy_failed(last);
            }
        }
        prop_assert!(back.ring().push() <= produced);
    }
}
