//! Packets of honest guests, and packets that netback answers with an error.

use weir_limits::{NETIF_TX_FRAGS_FATAL, NETIF_TX_FRAGS_MAX};
use weir_wire::{GsoKind, Mac};

use super::*;
use crate::message::{Extra, GSO_TCPV6, tx_flags};

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
