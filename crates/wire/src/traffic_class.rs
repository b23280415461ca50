//! The traffic class of an IP packet: DSCP (RFC 2474) and ECN (RFC 3168), and their values after the end of a tunnel
//! (RFC 6040, RFC 2983).

use crate::bytes::{be16_at, put};
use crate::checksum::IPV4_CSUM_OFFSET;
use crate::ethernet::{ETHERTYPE_OFFSET, ethertype};
use crate::head::Head;
use crate::vlan::TAG_LEN;

/// Values of the two low bits of a traffic class (RFC 3168 §5).
pub mod ecn {
    /// The bits.
    pub const MASK: u8 = 0b11;
    /// The sender ignores marks.
    pub const NOT_ECT: u8 = 0b00;
    /// The sender respects marks, in a protocol that defines this value.
    pub const ECT_1: u8 = 0b01;
    /// The sender respects marks.
    pub const ECT_0: u8 = 0b10;
    /// There was congestion on the way.
    pub const CE: u8 = 0b11;
}

/// Bits of a traffic class below the DSCP.
pub const DSCP_SHIFT: u32 = 2;

/// A packet left a tunnel in which there was congestion, and its sender ignores marks: only the loss signals the
/// congestion (RFC 6040 §4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("congestion was marked on the way of a packet whose sender heeds no mark")]
pub struct MarkedNotEct;

/// An IP header in a frame.
#[derive(Clone, Copy)]
struct Header {
    at: usize,
    first: u16,
    v6: bool,
}

impl Header {
    /// Finds the header behind any tags; `None` if there is no IP packet.
    fn find(frame: &[u8]) -> Option<Self> {
        let mut at = ETHERTYPE_OFFSET + 2;
        loop {
            let kind = be16_at(frame, at - 2)?;
            let v6 = match kind {
                ethertype::IPV4 => false,
                ethertype::IPV6 => true,
                ethertype::VLAN | ethertype::QINQ => {
                    at += TAG_LEN;
                    continue;
                }
                _ => return None,
            };
            let first = be16_at(frame, at)?;
            let version = if v6 { 6 } else { 4 };
            return (first >> 12 == version).then_some(Self { at, first, v6 });
        }
    }

    /// The distance of the traffic class from the low end of the first two bytes.
    fn shift(self) -> u32 {
        if self.v6 { 4 } else { 0 }
    }

    fn class(self) -> u8 {
        (self.first >> self.shift()) as u8
    }

    /// `None`, and no change, if the header is truncated.
    fn set_ecn(self, frame: &mut [u8], value: u8) -> Option<()> {
        let first =
            self.first & !(u16::from(ecn::MASK) << self.shift()) | u16::from(value) << self.shift();
        if !self.v6 {
            let checksum = be16_at(frame, self.at + IPV4_CSUM_OFFSET)?;
            let checksum = updated(checksum, self.first, first);
            put(frame, self.at + IPV4_CSUM_OFFSET, checksum.to_be_bytes())?;
        }
        put(frame, self.at, first.to_be_bytes())
    }
}

/// A checksum after one word of the header has changed (RFC 1624 Eq. 3). A wrong one stays wrong.
fn updated(checksum: u16, old: u16, new: u16) -> u16 {
    let sum = u32::from(!checksum) + u32::from(!old) + u32::from(new);
    let sum = (sum >> 16) + (sum & 0xffff);
    !((sum >> 16) + (sum & 0xffff)) as u16
}

/// The traffic class of the IP packet in a frame, or in the front of one, behind any VLAN tags; `None` if there is no
/// IP packet.
pub fn traffic_class(frame: &[u8]) -> Option<u8> {
    Header::find(frame).map(Header::class)
}

impl Head {
    /// The traffic class of the frame's IP packet; 0 if there is none.
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        const L3: usize = ETHERTYPE_OFFSET + 2;
        let front = self.front();
        let first = u16::from_be_bytes([front[L3], front[L3 + 1]]);
        match self.ethertype() {
            _ if self.len() < L3 + 2 => 0,
            ethertype::IPV4 if first >> 12 == 4 => first as u8,
            ethertype::IPV6 if first >> 12 == 6 => (first >> 4) as u8,
            ethertype::VLAN | ethertype::QINQ => behind_tags(self.as_slice()),
            _ => 0,
        }
    }
}

#[cold]
#[inline(never)]
fn behind_tags(frame: &[u8]) -> u8 {
    traffic_class(frame).unwrap_or(0)
}

/// Marks a frame that leaves a tunnel with the congestion in the tunnel: `outer` is the traffic class of the packet
/// that carried it. `frame` may be only the front. Returns true if it was changed.
///
/// The DSCP stays the sender's (RFC 2983's pipe model); frames without an IP packet stay as they are.
///
/// # Errors
/// [`MarkedNotEct`]: the frame must be dropped.
pub fn leave_tunnel(frame: &mut [u8], outer: u8) -> Result<bool, MarkedNotEct> {
    let Some(header) = Header::find(frame) else { return Ok(false) };
    // RFC 6040 figure 4, for the cases in which the result differs from the inner value.
    let value = match (header.class() & ecn::MASK, outer & ecn::MASK) {
        (ecn::NOT_ECT, ecn::CE) => return Err(MarkedNotEct),
        (ecn::ECT_0 | ecn::ECT_1, ecn::CE) => ecn::CE,
        (ecn::ECT_0, ecn::ECT_1) => ecn::ECT_1,
        _ => return Ok(false),
    };
    Ok(header.set_ecn(frame, value).is_some())
}

#[cfg(test)]
mod tests {
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
        // The field has a flow label beside the class.
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
}
