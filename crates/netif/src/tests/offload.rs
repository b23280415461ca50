//! Checksums and GSO between netif's flags and virtio-net's.

use weir_wire::vnet::{self, VnetHdr};
use weir_wire::{GsoKind, Offload, OffloadCaps as Caps, OffloadError};

use super::*;
use crate::message::{Extra, GSO_TCPV4, RxRequest, rx_flags};

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
