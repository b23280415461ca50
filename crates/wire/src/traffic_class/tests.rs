use etherparse::PacketBuilder;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::checksum::ipv4_header_checksum;

const L3: usize = 14;

fn v4(class: u8) -> Vec<u8> {
    let mut frame = Vec::new();
    PacketBuilder::ethernet2([1; 6], [2; 6])
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
        .udp(1, 2)
        .write(&mut frame, &[7; 30])
        .unwrap();
    frame[L3 + 1] = class;
    let checksum = ipv4_header_checksum(&frame[L3..L3 + 20]);
    frame[L3 + IPV4_CSUM_OFFSET..][..2].copy_from_slice(&checksum.to_be_bytes());
    frame
}

fn v6(class: u8) -> Vec<u8> {
    let mut frame = Vec::new();
    PacketBuilder::ethernet2([1; 6], [2; 6])
        .ipv6([1; 16], [2; 16], 64)
        .udp(1, 2)
        .write(&mut frame, &[7; 30])
        .unwrap();
    frame[L3] = 0x60 | class >> 4;
    // With a flow label beside it.
    frame[L3 + 1] = class << 4 | 0xa;
    frame
}

fn tagged(frame: &[u8], tags: &[u16]) -> Vec<u8> {
    let mut out = frame[..12].to_vec();
    for tag in tags {
        out.extend(tag.to_be_bytes());
        out.extend([0x20, 0x0a]);
    }
    out.extend(&frame[12..]);
    out
}

const TAGS: [&[u16]; 4] = [
    &[],
    &[ethertype::VLAN],
    &[ethertype::QINQ, ethertype::VLAN],
    &[ethertype::VLAN, ethertype::VLAN],
];

#[test]
fn the_class_of_a_packet_is_found_behind_any_tags() {
    for class in 0..=u8::MAX {
        for frame in [v4(class), v6(class)] {
            for tags in TAGS {
                let tagged = tagged(&frame, tags);
                assert_eq!(traffic_class(&tagged), Some(class), "{tags:x?}");
                assert_eq!(Head::copy_of(&tagged).traffic_class(), class, "{tags:x?}");
            }
        }
    }
}

#[test]
fn what_is_no_ip_packet_has_no_class_and_stays_as_it_is() {
    let mut arp = v4(0);
    arp[12..14].copy_from_slice(&ethertype::ARP.to_be_bytes());
    let mut other_version = v4(0);
    other_version[L3] = 0x65;
    let mut other_type = v4(0);
    other_type[12..14].copy_from_slice(&ethertype::IPV6.to_be_bytes());
    let cut = v4(0)[..L3 + 1].to_vec();
    let cut_tag = tagged(&v4(0), &[ethertype::VLAN])[..16].to_vec();
    for frame in [arp, other_version, other_type, cut, cut_tag, Vec::new()] {
        assert_eq!(traffic_class(&frame), None, "{frame:x?}");
        // The frame is written over bytes of another frame.
        let mut head = Head::copy_of(&[0xff; 80]);
        head.refill(frame.len()).copy_from_slice(&frame);
        assert_eq!(head.traffic_class(), 0, "{frame:x?}");
        let mut after = frame.clone();
        assert_eq!(leave_tunnel(&mut after, ecn::CE), Ok(false));
        assert_eq!(after, frame);
    }
}

#[test]
fn rfc_6040_4_2_a_packet_leaves_a_tunnel_with_the_mark_of_its_way() {
    use ecn::{CE, ECT_0, ECT_1, NOT_ECT};
    // Figure 4: by the inner value, for an outer one of Not-ECT, ECT(0), ECT(1), CE.
    let figure = [
        (NOT_ECT, [Some(NOT_ECT), Some(NOT_ECT), Some(NOT_ECT), None]),
        (ECT_0, [Some(ECT_0), Some(ECT_0), Some(ECT_1), Some(CE)]),
        (ECT_1, [Some(ECT_1), Some(ECT_1), Some(ECT_1), Some(CE)]),
        (CE, [Some(CE), Some(CE), Some(CE), Some(CE)]),
    ];
    for (inner, row) in figure {
        for (outer, expected) in [NOT_ECT, ECT_0, ECT_1, CE].into_iter().zip(row) {
            for dscp in [0, 46, 63] {
                for make in [v4, v6] {
                    for tags in TAGS {
                        let class = dscp << DSCP_SHIFT;
                        let before = tagged(&make(class | inner), tags);
                        let mut after = before.clone();
                        // The outer DSCP is the tunnel's own.
                        let left = leave_tunnel(&mut after, 0b1010_1000 | outer);
                        match expected {
                            Some(value) => {
                                assert_eq!(left, Ok(value != inner));
                                // The checksum is right, and nothing else has changed.
                                assert_eq!(after, tagged(&make(class | value), tags));
                            }
                            None => assert_eq!((left, after), (Err(MarkedNotEct), before)),
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_header_without_its_checksum_is_not_marked() {
    let frame = v4(ecn::ECT_0)[..L3 + IPV4_CSUM_OFFSET + 1].to_vec();
    let mut after = frame.clone();
    assert_eq!(leave_tunnel(&mut after, ecn::CE), Ok(false));
    assert_eq!(after, frame);
}

proptest! {
    #[test]
    fn any_bytes_are_read_and_right_checksums_stay_right(
        mut header in vec(any::<u8>(), 20..60),
        outer in any::<u8>(),
        words in 5..15u8,
    ) {
        header[0] = 0x40 | words;
        header.resize(usize::from(words) * 4, 0x5a);
        let checksum = ipv4_header_checksum(&header);
        header[IPV4_CSUM_OFFSET..][..2].copy_from_slice(&checksum.to_be_bytes());
        let mut frame = v4(0)[..L3].to_vec();
        frame.extend(&header);
        if leave_tunnel(&mut frame, outer) == Ok(true) {
            let stored = u16::from_be_bytes([frame[L3 + 10], frame[L3 + 11]]);
            let right = ipv4_header_checksum(&frame[L3..]);
            // Both are zero in ones' complement.
            prop_assert!(stored == right || (stored ^ right == 0xffff && right.min(stored) == 0));
        }
    }

    #[test]
    fn any_frame_is_read(mut frame in vec(any::<u8>(), 0..80), outer in any::<u8>()) {
        let len = frame.len();
        let class = traffic_class(&frame).unwrap_or(0);
        prop_assert_eq!(Head::copy_of(&frame).traffic_class(), class);
        let _ = leave_tunnel(&mut frame, outer);
        prop_assert_eq!(frame.len(), len);
    }
}
