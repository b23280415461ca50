//! Packets of honest guests, and packets that netback answers with an error; the receive ring; checksums and GSO
//! between netif's flags and virtio-net's.

use proptest::prelude::*;
use weir_limits::{NETIF_TX_FRAGS_FATAL, NETIF_TX_FRAGS_MAX};
use weir_wire::vnet::VnetHdr;
use weir_wire::{GsoKind, Mac, Offload, OffloadCaps as Caps, OffloadError, vnet};

use super::*;
use crate::message::{
    Extra, GSO_TCPV4, GSO_TCPV6, RX_SLOT_BYTES, RxRequest, RxResponse, rx_flags, tx_flags,
};

struct Pair {
    front: TxFront,
    back: TxBack,
    slots: Vec<TxSlot>,
}

impl Pair {
    fn new() -> Self {
        let page = Page::new();
        let front = TxFront::init(page.window()).unwrap();
        Self { front, back: TxBack::attach(page.window()).unwrap(), slots: Vec::new() }
    }

    fn send(&mut self, slots: &[(Segment, u16)], flags: u16, extras: &[Extra]) {
        assert!(self.front.send(slots, flags, extras));
        self.front.ring().push();
        self.back.ring().refill().unwrap();
    }

    fn take(&mut self) -> Option<Taken> {
        self.back.take(&mut self.slots).unwrap()
    }

    fn packet(&mut self) -> TxPacket {
        match self.take() {
            Some(Taken::Packet(packet)) => packet,
            other => panic!("{other:?}"),
        }
    }

    /// Returns the ids and statuses of the responses.
    fn answers(&mut self) -> Vec<(u16, i16)> {
        self.back.ring().push();
        self.front.ring().refill().unwrap();
        let front = &mut self.front;
        std::iter::from_fn(|| front.response()).map(|rsp| (rsp.id, rsp.status)).collect()
    }
}

fn frags(count: usize) -> Vec<(Segment, u16)> {
    (0..count).map(|nth| (segment(nth as u32, 0, 100), nth as u16)).collect()
}

#[test]
fn the_first_size_is_the_whole_packets_and_its_slot_has_the_rest() {
    let mut pair = Pair::new();
    let sent = [(segment(7, 100, 60), 1), (segment(8, 0, 4096), 2), (segment(9, 4000, 96), 3)];
    pair.send(&sent, 0, &[]);
    let packet = pair.packet();
    assert_eq!((packet.len, packet.slots), (60 + 4096 + 96, (0, 3)));
    let segments: Vec<_> = pair.slots.iter().map(|slot| (slot.segment, slot.id)).collect();
    assert_eq!(segments, sent);
    pair.back.complete(&packet, &pair.slots, Status::Okay);
    assert_eq!(pair.answers(), [(1, 0), (2, 0), (3, 0)]);
}

#[test]
fn packets_are_completed_in_any_order() {
    let mut pair = Pair::new();
    pair.send(&[(segment(1, 0, 60), 10), (segment(2, 0, 8), 11)], 0, &[]);
    pair.send(&[(segment(3, 0, 60), 12)], 0, &[]);
    let (first, second) = (pair.packet(), pair.packet());
    assert_eq!(pair.take(), None);
    pair.back.complete(&second, &pair.slots, Status::Okay);
    pair.back.complete(&first, &pair.slots, Status::Dropped);
    assert_eq!(pair.answers(), [(12, 0), (10, -2), (11, -2)]);
}

#[test]
fn gso_hash_and_blank_checksum_are_read() {
    let mut pair = Pair::new();
    let extras = [
        Extra::Gso { size: 1448, kind: GSO_TCPV6 },
        Extra::Hash { kind: 3, algorithm: 1, value: 0x0102_0304 },
        Extra::Xdp { headroom: 256 },
    ];
    let flags = tx_flags::CSUM_BLANK | tx_flags::DATA_VALIDATED;
    pair.send(&[(segment(1, 0, 2000), 5), (segment(2, 0, 2000), 6)], flags, &extras);
    let packet = pair.packet();
    assert_eq!(packet.gso, Some(TxGso { kind: GsoKind::Tcp6, size: 1448 }));
    assert_eq!((packet.hash, packet.csum_blank, packet.extras), (Some(0x0102_0304), true, 3));
    pair.back.complete(&packet, &pair.slots, Status::Okay);
    assert_eq!(pair.back.ring().unanswered(), 0, "extra infos are answered, too");
    assert_eq!(pair.answers(), [(5, 0), (6, 0)]);
    assert_eq!(pair.front.ring().free(), 256);
}

#[test]
fn a_dummy_packet_changes_multicast_addresses_and_carries_no_data() {
    let mut pair = Pair::new();
    let address = Mac([1, 0, 0x5e, 0, 0, 1]);
    for (extra, add) in [(Extra::McastAdd(address), true), (Extra::McastDel(address), false)] {
        pair.send(&[(segment(0, 0, 0), 9)], 0, &[extra]);
        let Some(Taken::Multicast(multicast)) = pair.take() else { panic!() };
        assert_eq!((multicast.address, multicast.add), (address, add));
        pair.back.complete(&multicast.packet, &pair.slots, Status::Error);
        assert_eq!(pair.answers(), [(9, -1)]);
        pair.slots.clear();
    }
}

#[test]
fn the_most_slots_that_netback_takes_pass() {
    let mut pair = Pair::new();
    pair.send(&frags(1 + NETIF_TX_FRAGS_MAX), 0, &[]);
    assert_eq!(pair.packet().slots, (0, 1 + NETIF_TX_FRAGS_MAX));
}

#[test]
fn a_packet_with_a_few_slots_too_many_is_answered_by_an_error_and_the_next_one_passes() {
    for slots in [NETIF_TX_FRAGS_MAX + 1, NETIF_TX_FRAGS_FATAL] {
        let mut pair = Pair::new();
        pair.send(&frags(1 + slots), 0, &[Extra::Gso { size: 1, kind: GSO_TCPV6 }]);
        pair.send(&frags(1), 0, &[]);
        let Some(Taken::Refused(packet, error)) = pair.take() else { panic!() };
        assert_eq!(error, PacketError::Slots { slots });
        assert_eq!(pair.packet().slots, (1 + slots, 1));
        assert_eq!(pair.answers(), [], "the order is the caller's");
        pair.back.complete(&packet, &pair.slots, Status::Error);
        assert_eq!(pair.answers(), (0..=slots as u16).map(|id| (id, -1)).collect::<Vec<_>>());
    }
}

#[test]
fn a_first_slot_without_an_ethernet_header_is_answered_by_an_error() {
    for (len, good) in [(0, false), (13, false), (14, true)] {
        let mut pair = Pair::new();
        pair.send(&[(segment(1, 0, len), 1), (segment(2, 0, 100), 2)], 0, &[]);
        let taken = pair.take();
        if good {
            assert!(matches!(taken, Some(Taken::Packet(_))));
        } else {
            let Some(Taken::Refused(packet, error)) = taken else { panic!() };
            assert_eq!(error, PacketError::FirstSlotShort { len });
            pair.back.complete(&packet, &pair.slots, Status::Error);
            assert_eq!(pair.answers(), [(1, -1), (2, -1)]);
        }
    }
}

#[test]
fn a_slot_without_bytes_is_answered_like_any_other() {
    let mut pair = Pair::new();
    pair.send(&[(segment(1, 0, 64), 1), (segment(2, 4096, 0), 2)], 0, &[]);
    let packet = pair.packet();
    pair.back.complete(&packet, &pair.slots, Status::Okay);
    assert_eq!(pair.answers(), [(1, 0), (2, 0)]);
}

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

fn ipv4(protocol: u8, transport: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    let len = (20 + transport.len()) as u16;
    frame.extend([0x45, 0]);
    frame.extend(len.to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend(transport);
    frame
}

/// Returns a TCP segment of 100 bytes.
pub(crate) fn tcp4() -> Vec<u8> {
    let mut tcp = vec![0; 20 + 100];
    tcp[..4].copy_from_slice(&[0x30, 0x39, 0, 80]);
    tcp[12] = 5 << 4;
    ipv4(6, &tcp)
}

/// Returns a UDP datagram of 10 bytes.
pub(crate) fn udp4() -> Vec<u8> {
    ipv4(17, &[0x30, 0x39, 0, 53, 0, 18, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
}

fn packet(frame: &[u8], csum_blank: bool, gso: Option<TxGso>) -> TxPacket {
    let len = frame.len() as u32;
    TxPacket { slots: (0, 1), extras: 0, len, csum_blank, gso, hash: None }
}

const TSO4: Option<TxGso> = Some(TxGso { kind: GsoKind::Tcp4, size: 40 });

#[test]
fn a_blank_checksum_is_found_in_the_headers() {
    for (frame, offset) in [(tcp4(), 16), (udp4(), 6)] {
        let offload = packet(&frame, true, None).offload(&frame).unwrap();
        let csum = offload.csum().unwrap();
        assert_eq!((csum.start, csum.offset), (34, offset));
    }
    let icmp = ipv4(1, &[8, 0, 0, 0, 0, 0, 0, 0]);
    let error = TxOffloadError::NoChecksum;
    assert_eq!(packet(&icmp, true, None).offload(&icmp), Err(error));
    assert_eq!(packet(&icmp, false, None).offload(&icmp), Ok(Offload::NONE));
}

#[test]
fn gso_must_agree_with_the_headers_and_needs_a_blank_checksum() {
    let frame = tcp4();
    let gso = packet(&frame, true, TSO4).offload(&frame).unwrap().gso().unwrap();
    assert_eq!((gso.kind, gso.size, gso.hdr_len, gso.ecn), (GsoKind::Tcp4, 40, 54, false));
    let tso6 = Some(TxGso { kind: GsoKind::Tcp6, size: 40 });
    for (frame, blank, gso) in [(tcp4(), true, tso6), (udp4(), true, TSO4), (tcp4(), false, TSO4)] {
        let result = packet(&frame, blank, gso).offload(&frame);
        assert!(matches!(result, Err(TxOffloadError::Offload(_))), "{result:?}");
    }
    let short = TxPacket { len: 20, ..packet(&frame, true, TSO4) };
    assert!(matches!(
        short.offload(&frame),
        Err(TxOffloadError::Offload(OffloadError::CsumBeyondFrame { .. }))
    ));
}

#[test]
fn what_one_guest_asks_arrives_at_the_other() {
    let frame = tcp4();
    let offload = packet(&frame, true, TSO4).offload(&frame).unwrap();
    let meta = RxMeta::new(&offload, &frame).unwrap();
    let page = Page::new();
    let mut front = RxFront::init(page.window()).unwrap();
    let mut back = RxBack::attach(page.window()).unwrap();
    for id in 0..2 {
        front.offer(RxRequest { id, gref: 1 });
    }
    front.ring().push();
    back.ring().refill().unwrap();
    assert!(back.place(frame.len() as u32, &meta, &mut Vec::new()));
    back.ring().push();
    front.ring().refill().unwrap();
    let received = front.packet().unwrap();
    let blank = rx_flags::CSUM_BLANK | rx_flags::DATA_VALIDATED;
    assert_eq!(received.flags, blank | rx_flags::EXTRA_INFO);
    assert_eq!(received.extras, [Extra::Gso { size: 40, kind: GSO_TCPV4 }]);
}

#[test]
fn what_netif_cannot_say_is_not_said() {
    let frame = tcp4();
    let virtio = |gso_type, csum_start, csum_offset| {
        let flags = vnet::F_NEEDS_CSUM;
        let hdr = VnetHdr {
            flags,
            gso_type,
            gso_size: 40,
            csum_start,
            csum_offset,
            ..Default::default()
        };
        Offload::from_vnet(&hdr, &frame, frame.len() as u32).unwrap()
    };
    assert!(RxMeta::new(&virtio(vnet::GSO_TCPV4, 34, 16), &frame).is_some());
    assert_eq!(RxMeta::new(&virtio(vnet::GSO_TCPV4 | vnet::GSO_ECN, 34, 16), &frame), None);
    assert_eq!(RxMeta::new(&virtio(vnet::GSO_NONE, 40, 16), &frame), None, "not TCP's checksum");
    let valid = VnetHdr { flags: vnet::F_DATA_VALID, ..VnetHdr::default() };
    let valid = Offload::from_vnet(&valid, &frame, frame.len() as u32).unwrap();
    assert_eq!(RxMeta::new(&valid, &frame).unwrap().flags(), rx_flags::DATA_VALIDATED);
}

#[test]
fn features_of_a_front_end_are_capabilities() {
    let all =
        FrontFeatures { csum_v4: true, csum_v6: true, sg: true, gso_tcpv4: true, gso_tcpv6: true };
    assert_eq!(all.caps(), Caps::CSUM | Caps::TSO4 | Caps::TSO6);
    assert_eq!(FrontFeatures { sg: false, ..all }.caps(), Caps::CSUM);
    assert_eq!(FrontFeatures { gso_tcpv6: false, ..all }.caps(), Caps::CSUM | Caps::TSO4);
    assert_eq!(FrontFeatures { csum_v6: false, ..all }.caps(), Caps::NONE);
}
