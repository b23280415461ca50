//! The error messages to the sender of a packet that is too long: "fragmentation needed" (RFC 792, RFC 1191) and
//! "packet too big" (RFC 4443 §3.2).

use std::net::IpAddr;

use weir_limits::HEAD_LEN;

use crate::bytes::{be16_at, u8_at};
use crate::checksum::Sum;
use crate::ethernet::Mac;
use crate::ethernet::{Ethernet, HEADER_LEN, ethertype};
use crate::layers::{IPV4_HEADER_LEN_MIN, IPV6_HEADER_LEN, Layers, Network, protocol};
use crate::neighbour::{Own, is_station};

/// Echo and its reply, about which an error may be sent (RFC 1122 §3.2.2 forbids errors about errors).
const ECHOES: [u8; 2] = [0, 8];
/// Lower ICMPv6 types are errors (RFC 4443 §2.1).
const INFORMATIONAL: u8 = 128;
/// Bytes before the part of the packet that an answer repeats.
const ICMP_LEN: usize = 8;
/// The number of bytes behind the IP header that are repeated: the ports, and the sequence number of a TCP segment.
const REPEATED: usize = 8;

/// A frame that notifies a station that its packet is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooBig(Own<HEAD_LEN>);

impl TooBig {
    /// The message to the sender of the packet in the frame that begins with `head`, in the name of the packet's
    /// destination: `mtu` bytes would fit. It comes from the station at `mac`. `None` if no message is allowed: about
    /// errors, packets to many stations, and fragments other than the first.
    pub fn to(head: &[u8], mtu: u16, mac: Mac) -> Option<Self> {
        let Layers { ethernet, network, .. } = Layers::parse(head).ok()?;
        let Ethernet { src, dst, tag, .. } = ethernet;
        if src.is_multicast() || dst.is_multicast() || tag.is_some() {
            return None;
        }
        let mut answer = Own::new();
        answer.push(&src.0);
        answer.push(&mac.0);
        match network {
            Network::Ipv4(ip) => {
                let end = HEADER_LEN + usize::from(ip.header_len);
                let is_later = be16_at(head, HEADER_LEN + 6)? & 0x1fff != 0;
                let is_error =
                    ip.protocol == protocol::ICMP && !ECHOES.contains(&u8_at(head, end)?);
                let parties = [ip.src, ip.dst].map(IpAddr::from);
                if is_later || is_error || !parties.iter().all(is_station) {
                    return None;
                }
                let packet = head.get(HEADER_LEN..end + REPEATED)?;
                four(&mut answer, packet, (ip.dst.octets(), ip.src.octets()), mtu);
            }
            Network::Ipv6(ip) => {
                let at = HEADER_LEN + usize::from(ip.header_len);
                let is_error = ip.protocol == protocol::ICMPV6 && u8_at(head, at)? < INFORMATIONAL;
                let parties = [ip.src, ip.dst].map(IpAddr::from);
                let is_hidden = protocol::is_extension(ip.protocol) || ip.fragment;
                if is_error || is_hidden || !parties.iter().all(is_station) {
                    return None;
                }
                six(&mut answer, head.get(HEADER_LEN..)?, (ip.dst.octets(), ip.src.octets()), mtu);
            }
            Network::Other => return None,
        }
        Some(Self(answer))
    }

    /// The frame.
    pub fn as_slice(&self) -> &[u8] {
        self.0.as_slice()
    }
}

fn four(answer: &mut Own<HEAD_LEN>, packet: &[u8], (from, to): ([u8; 4], [u8; 4]), mtu: u16) {
    answer.push(&ethertype::IPV4.to_be_bytes());
    let at = answer.len();
    let len = usize::from(IPV4_HEADER_LEN_MIN) + ICMP_LEN + packet.len();
    answer.push(&[0x45, 0]);
    answer.push(&(len as u16).to_be_bytes()); // below 128
    answer.push(&[0, 0, 0, 0, 64, protocol::ICMP, 0, 0]);
    answer.push(&from);
    answer.push(&to);
    answer.fill_sum(at, at + 10, Sum::new());
    let at = answer.len();
    answer.push(&[3, 4, 0, 0, 0, 0]);
    answer.push(&mtu.to_be_bytes());
    answer.push(packet);
    answer.fill_sum(at, at + 2, Sum::new());
}

fn six(answer: &mut Own<HEAD_LEN>, packet: &[u8], ends: ([u8; 16], [u8; 16]), mtu: u16) {
    let room = HEAD_LEN - HEADER_LEN - usize::from(IPV6_HEADER_LEN) - ICMP_LEN;
    let packet = packet.get(..room).unwrap_or(packet);
    let len = (ICMP_LEN + packet.len()) as u16; // below 128
    let sum = answer.ipv6_of_icmp(len, 64, ends);
    let at = answer.len();
    answer.push(&[2, 0, 0, 0]);
    answer.push(&u32::from(mtu).to_be_bytes());
    answer.push(packet);
    answer.fill_sum(at, at + 2, sum);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const A: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const B: Mac = Mac([2, 0, 0, 0, 0, 2]);

    fn four(protocol: u8, fragment: u16, transport: &[u8]) -> Vec<u8> {
        let [f1, f0] = fragment.to_be_bytes();
        let header = [0x45, 0, 5, 220, 0, 1, f1, f0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        [&B.0[..], &A.0, &[8, 0], &header, transport, &[0; 60]].concat()
    }

    fn six(next: u8, transport: &[u8]) -> Vec<u8> {
        let address = |last| [&[0xfd][..], &[0; 14], &[last]].concat();
        let header = [&[0x60, 0, 0, 0, 5, 180, next, 64][..], &address(1), &address(2)].concat();
        [&B.0[..], &A.0, &[0x86, 0xdd], &header, transport, &[0; 60]].concat()
    }

    #[test]
    fn its_sender_is_told_in_the_name_of_who_was_to_get_it() {
        let frame = four(protocol::TCP, 0x4000, &[1, 2, 3, 4, 5, 6, 7, 8]);
        let answer = TooBig::to(&frame, 1450, B).unwrap();
        let bytes = answer.as_slice();
        assert_eq!(bytes[..12], [&A.0[..], &B.0].concat());
        assert_eq!(bytes[26..34], [10, 0, 0, 2, 10, 0, 0, 1]);
        assert_eq!(bytes[34..36], [3, 4]);
        assert_eq!(bytes[40..42], 1450_u16.to_be_bytes());
        assert_eq!(bytes[42..], frame[14..42], "the header, and eight bytes");
        for part in [&bytes[14..34], &bytes[34..]] {
            let mut sum = Sum::new();
            sum.add(part);
            assert_eq!(sum.finish(), 0);
        }
        let frame = six(protocol::UDP, &[1, 2, 3, 4, 5, 6, 7, 8]);
        let answer = TooBig::to(&frame, 1430, B).unwrap();
        let bytes = answer.as_slice();
        assert_eq!((bytes.len(), &bytes[54..56]), (HEAD_LEN, &[2, 0][..]));
        assert_eq!(bytes[58..62], 1430_u32.to_be_bytes());
        assert_eq!(bytes[62..], frame[14..14 + 66]);
        let mut sum = Sum::new();
        sum.add(&bytes[22..54]);
        sum.add_u32((bytes.len() - 54) as u32);
        sum.add_u32(58);
        sum.add(&bytes[54..]);
        assert_eq!(sum.finish(), 0);
    }

    #[test]
    fn nothing_is_said_of_errors_of_fragments_and_to_many() {
        let said = |frame: &[u8]| TooBig::to(frame, 1450, B).is_some();
        assert!(said(&four(protocol::ICMP, 0, &[8, 0])) && said(&six(protocol::ICMPV6, &[128, 0])));
        assert!(said(&four(protocol::UDP, 0x2000, &[0; 8])), "the first fragment");
        assert!(!said(&four(protocol::UDP, 0x2001, &[0; 8])));
        for kind in [3, 4, 5, 11, 12] {
            assert!(!said(&four(protocol::ICMP, 0, &[kind, 0])), "{kind}");
        }
        assert!(!said(&six(protocol::ICMPV6, &[2, 0])));
        assert!(!said(&six(protocol::FRAGMENT, &[17, 0, 0, 8, 0, 0, 0, 0])));
        for (at, part) in [(0, &[0xff; 6][..]), (30, &[224, 0, 0, 1]), (26, &[0; 4])] {
            let mut frame = four(protocol::UDP, 0, &[0; 8]);
            frame[at..at + part.len()].copy_from_slice(part);
            assert!(!said(&frame), "{at}");
        }
        assert!(!said(&four(protocol::UDP, 0, &[0; 8])[..40]));
    }

    proptest! {
        #[test]
        fn any_frame_is_answered_once_and_no_answer_is(kind in 0..2, bytes in prop::collection::vec(any::<u8>(), 14..200)) {
            let mut frame = bytes;
            frame[12..14].copy_from_slice([&[8, 0], &[0x86, 0xdd]][kind as usize]);
            if let Some(answer) = TooBig::to(&frame[..frame.len().min(HEAD_LEN)], 1450, B) {
                prop_assert!(answer.as_slice().len() <= HEAD_LEN);
                prop_assert_eq!(TooBig::to(answer.as_slice(), 1450, B), None);
            }
        }
    }
}
