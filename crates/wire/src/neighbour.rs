//! Requests, claims and answers of ARP (RFC 826, RFC 5227) and of neighbour discovery (RFC 4861).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::bytes::{array_at, be16_at, u8_at};
use crate::checksum::Sum;
use crate::ethernet::Mac;
use crate::ethernet::{Ethernet, HEADER_LEN, ethertype};
use crate::layers::{IPV6_HEADER_LEN, protocol};

/// Hardware and protocol types of ARP, and the lengths of their addresses.
const ETHERNET_IPV4: [u8; 6] = [0, 1, 8, 0, 6, 4];
const REQUEST: u16 = 1;
const REPLY: u16 = 2;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Options with the link-layer address of the sender, and of the target (RFC 4861 §4.6.1).
const SOURCE_ADDRESS: u8 = 1;
const TARGET_ADDRESS: u8 = 2;
/// "Not forwarded by a router" (RFC 4861 §7.1.1).
const HOP_LIMIT: u8 = 255;
/// The offset of the ICMPv6 message: without extension headers, since they can hide it (RFC 6980).
const ICMP_AT: usize = HEADER_LEN + IPV6_HEADER_LEN as usize;
/// Bytes of a solicitation or an advertisement before its options.
const MESSAGE_LEN: usize = 24;
const ADVERTISEMENT_LEN: usize = ICMP_AT + MESSAGE_LEN + 8;
/// The minimum length of an Ethernet frame without its checksum.
const FRAME_LEN: usize = 60;

/// "Request reverse" (RFC 903).
const REQUEST_REVERSE: u16 = 3;

/// A RARP "who am I" for `mac`, broadcast (RFC 903): switches learn from it where the station has moved.
pub fn rarp(mac: Mac) -> [u8; FRAME_LEN] {
    let head = [&Mac::BROADCAST.0[..], &mac.0, &ethertype::RARP.to_be_bytes()].concat();
    let operation = REQUEST_REVERSE.to_be_bytes();
    // The station's address is that of the sender and of the target, and neither has an IP address.
    let of = [&mac.0[..], &[0; 4]].concat();
    let mut bytes = [&head[..], &ETHERNET_IPV4, &operation, &of, &of].concat().into_iter();
    std::array::from_fn(|_| bytes.next().unwrap_or(0))
}

/// The contents of a message: its sender's address, and the address that it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The sender, in the Ethernet header and in the message.
    pub mac: Mac,
    /// The IP address that the sender claims.
    pub claims: Option<IpAddr>,
    /// The IP address that a request to all stations asks for.
    pub asks: Option<IpAddr>,
}

impl Neighbour {
    /// Reads a frame that begins with `head`, without a tag. `None` for a message whose sender differs from the
    /// Ethernet header's, and for an incomplete one.
    pub fn read(head: &[u8]) -> Option<Self> {
        let ethernet = Ethernet::parse(head).ok()?;
        if ethernet.tag.is_some() || ethernet.src.is_multicast() {
            return None;
        }
        match ethernet.ethertype {
            ethertype::ARP => Self::arp(head, &ethernet),
            ethertype::IPV6 => Self::discovery(head, &ethernet),
            _ => None,
        }
    }

    /// True if a frame that begins with `head` may be a message for [`read`](Self::read).
    #[inline]
    pub fn may_be(head: &[u8]) -> bool {
        match be16_at(head, HEADER_LEN - 2) {
            Some(ethertype::ARP) => true,
            Some(ethertype::IPV6) => u8_at(head, HEADER_LEN + 6) == Some(protocol::ICMPV6),
            _ => false,
        }
    }

    fn arp(head: &[u8], ethernet: &Ethernet) -> Option<Self> {
        let at = HEADER_LEN;
        let operation = be16_at(head, at + 6)?;
        let mac = Mac(array_at(head, at + 8)?);
        let is_known = matches!(operation, REQUEST | REPLY);
        if array_at(head, at)? != ETHERNET_IPV4 || !is_known || mac != ethernet.src {
            return None;
        }
        let address = |at| array_at(head, at).map(|ip: [u8; 4]| Ipv4Addr::from(ip));
        let (sender, target) = (address(at + 14)?, address(at + 24)?);
        // A request to one station is answered by the station itself: that shows that a neighbour is reachable.
        let asks = operation == REQUEST && ethernet.dst.is_multicast() && sender != target;
        Some(Self {
            mac,
            claims: Some(sender.into()).filter(is_station),
            asks: Some(target.into()).filter(|target| asks && is_station(target)),
        })
    }

    fn discovery(head: &[u8], ethernet: &Ethernet) -> Option<Self> {
        let at = HEADER_LEN;
        let (next, hops) = (u8_at(head, at + 6)?, u8_at(head, at + 7)?);
        let address = |at| array_at(head, at).map(|ip: [u8; 16]| Ipv6Addr::from(ip));
        let (src, kind, code) =
            (address(at + 8)?, u8_at(head, ICMP_AT)?, u8_at(head, ICMP_AT + 1)?);
        if (next, hops, code) != (protocol::ICMPV6, HOP_LIMIT, 0) {
            return None;
        }
        let end = ICMP_AT + usize::from(be16_at(head, at + 4)?);
        let options = head.get(ICMP_AT + MESSAGE_LEN..end)?;
        let target = IpAddr::from(address(ICMP_AT + 8)?);
        let says = |option| link_address(options, option) == Some(ethernet.src);
        let (claims, asks) = match kind {
            SOLICITATION if src.is_unspecified() => (None, Some(target)),
            SOLICITATION => {
                (says(SOURCE_ADDRESS).then_some(src.into()), Some(target).filter(|it| *it != src))
            }
            ADVERTISEMENT => (says(TARGET_ADDRESS).then_some(target), None),
            _ => return None,
        };
        Some(Self {
            mac: ethernet.src,
            claims: claims.filter(is_station),
            asks: asks.filter(|it| ethernet.dst.is_multicast() && is_station(it)),
        })
    }
}

/// True if one station can have the address.
pub(crate) fn is_station(ip: &IpAddr) -> bool {
    let is_broadcast = *ip == IpAddr::V4(Ipv4Addr::BROADCAST);
    let of_no_network = matches!(ip, IpAddr::V4(ip) if ip.octets()[0] == 0);
    !(ip.is_unspecified() || ip.is_multicast() || ip.is_loopback() || is_broadcast || of_no_network)
}

/// The link-layer address in the first option of this kind.
fn link_address(mut options: &[u8], kind: u8) -> Option<Mac> {
    while let [this, units, ..] = *options {
        let len = usize::from(units) * 8;
        // "Nodes MUST silently discard a packet that contains an option with length zero" (RFC 4861 §4.6).
        if len == 0 {
            return None;
        }
        if this == kind {
            return (len == 8).then_some(Mac(array_at(options, 2)?));
        }
        options = options.get(len..)?;
    }
    None
}

/// The station that has an IP address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The station's MAC address.
    pub mac: Mac,
    /// True if the station is a router, which IPv6 hosts have to know (RFC 4861 §4.4, RFC 9047).
    pub is_router: bool,
}

/// A frame that answers a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer(Own<ADVERTISEMENT_LEN>);

impl Answer {
    /// The answer to the request in the frame that begins with `head`: `owner` has the address. `None` if the frame is
    /// no request.
    pub fn to(head: &[u8], owner: Owner) -> Option<Self> {
        let mac = owner.mac;
        let asked = Neighbour::read(head)?;
        let mut answer = Own::new();
        answer.push(&asked.mac.0);
        answer.push(&mac.0);
        match asked.asks? {
            IpAddr::V4(ip) => {
                let sender: [u8; 4] = array_at(head, HEADER_LEN + 14)?;
                answer.push(&ethertype::ARP.to_be_bytes());
                answer.push(&ETHERNET_IPV4);
                answer.push(&REPLY.to_be_bytes());
                answer.push(&mac.0);
                answer.push(&ip.octets());
                answer.push(&asked.mac.0);
                answer.push(&sender);
                answer.pad(FRAME_LEN);
            }
            IpAddr::V6(ip) => {
                advertise(&mut answer, ip, array_at(head, HEADER_LEN + 8)?, owner);
            }
        }
        Some(Self(answer))
    }

    /// The frame.
    pub fn as_slice(&self) -> &[u8] {
        self.0.as_slice()
    }
}

fn advertise(
    answer: &mut Own<ADVERTISEMENT_LEN>,
    ip: Ipv6Addr,
    asker: [u8; 16],
    Owner { mac, is_router }: Owner,
) {
    const LEN: u16 = (ADVERTISEMENT_LEN - ICMP_AT) as u16;
    // A station that checks whether an address is free has none itself: the answer goes to all nodes (RFC 4861 §7.2.4).
    let is_solicited = asker != [0; 16];
    let to = match is_solicited {
        true => asker,
        false => Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1).octets(),
    };
    let sum = answer.ipv6_of_icmp(LEN, HOP_LIMIT, (ip.octets(), to));
    // Router, solicited, override.
    let flags = u8::from(is_router) << 7 | u8::from(is_solicited) << 6 | 1 << 5;
    answer.push(&[ADVERTISEMENT, 0, 0, 0, flags, 0, 0, 0]);
    answer.push(&ip.octets());
    answer.push(&[TARGET_ADDRESS, 1]);
    answer.push(&mac.0);
    answer.fill_sum(ICMP_AT, ICMP_AT + 2, sum);
}

/// A frame of up to `N` bytes. Bytes without room are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Own<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Own<N> {
    /// An empty frame.
    pub(crate) fn new() -> Self {
        Self { bytes: [0; N], len: 0 }
    }

    pub(crate) fn push(&mut self, part: &[u8]) {
        let end = self.len + part.len();
        if let Some(place) = self.bytes.get_mut(self.len..end) {
            place.copy_from_slice(part);
            self.len = end;
        }
    }

    /// Appends zeros up to this length.
    pub(crate) fn pad(&mut self, len: usize) {
        self.len = self.len.max(len.min(N));
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Appends the ethertype and the IPv6 header of an ICMPv6 message of `len` bytes from one address to another.
    /// Returns the sum of its pseudo-header (RFC 8200 section 8.1).
    pub(crate) fn ipv6_of_icmp(
        &mut self,
        len: u16,
        hops: u8,
        (from, to): ([u8; 16], [u8; 16]),
    ) -> Sum {
        self.push(&ethertype::IPV6.to_be_bytes());
        self.push(&[0x60, 0, 0, 0]);
        self.push(&len.to_be_bytes());
        self.push(&[protocol::ICMPV6, hops]);
        self.push(&from);
        self.push(&to);
        let mut sum = Sum::new();
        sum.add(&from);
        sum.add(&to);
        sum.add_u32(len.into());
        sum.add_u32(protocol::ICMPV6.into());
        sum
    }

    /// Fills in the checksum of the message that begins at `at`. `sum` is the sum of other bytes that the
    /// checksum covers, such as a pseudo-header.
    pub(crate) fn fill_sum(&mut self, at: usize, field: usize, mut sum: Sum) {
        sum.add(self.bytes.get(at..self.len).unwrap_or_default());
        if let Some(place) = self.bytes.get_mut(field..field + 2) {
            place.copy_from_slice(&sum.finish().to_be_bytes());
        }
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::checksum::Sum;

    const A: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const B: Mac = Mac([2, 0, 0, 0, 0, 2]);

    const OWNER: Owner = Owner { mac: B, is_router: false };

    fn v4(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn v6(last: u16) -> Ipv6Addr {
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last)
    }

    fn arp(dst: Mac, operation: u8, sender: (Mac, u8), target: u8) -> Vec<u8> {
        let packet = [&[0, 1, 8, 0, 6, 4, 0, operation][..], &sender.0.0, &[10, 0, 0, sender.1]];
        let packet = [&packet.concat()[..], &[0; 6], &[10, 0, 0, target]].concat();
        [&dst.0[..], &A.0, &[8, 6], &packet, &[0; 18]].concat()
    }

    fn discovery(
        dst: Mac,
        src: Ipv6Addr,
        kind: u8,
        target: Ipv6Addr,
        option: Option<(u8, Mac)>,
    ) -> Vec<u8> {
        let mut message = [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &target.octets()].concat();
        if let Some((kind, mac)) = option {
            message.extend([kind, 1]);
            message.extend(mac.0);
        }
        let header =
            [&[0x60, 0, 0, 0, 0, message.len() as u8, 58, 255][..], &src.octets()].concat();
        [&dst.0[..], &A.0, &[0x86, 0xdd], &header, &[0xff; 16], &message].concat()
    }

    const GROUP: Mac = Mac([0x33, 0x33, 0xff, 0, 0, 2]);

    #[test]
    fn a_request_claims_and_asks_and_a_probe_asks_only() {
        let said = |frame: &[u8]| Neighbour::read(frame).map(|it| (it.claims, it.asks));
        let broadcast = Mac::BROADCAST;
        assert_eq!(said(&arp(broadcast, 1, (A, 1), 2)), Some((Some(v4(1)), Some(v4(2)))));
        let mut probe = arp(broadcast, 1, (A, 1), 2);
        probe[28..32].fill(0);
        assert_eq!(said(&probe), Some((None, Some(v4(2)))));
        assert_eq!(
            said(&arp(broadcast, 1, (A, 1), 1)),
            Some((Some(v4(1)), None)),
            "an announcement"
        );
        assert_eq!(said(&arp(B, 1, (A, 1), 2)), Some((Some(v4(1)), None)), "asked directly");
        assert_eq!(said(&arp(B, 2, (A, 1), 2)), Some((Some(v4(1)), None)), "a reply");
        assert_eq!(said(&arp(broadcast, 1, (B, 1), 2)), None, "in another's name");
        assert_eq!(said(&arp(broadcast, 3, (A, 1), 2)), None);
        assert_eq!(said(&arp(broadcast, 1, (A, 1), 2)[..41]), None, "not whole");
    }

    #[test]
    fn solicitations_and_advertisements_claim_what_their_options_confirm() {
        let said = |frame: &[u8]| Neighbour::read(frame).map(|it| (it.claims, it.asks));
        let (one, two) = (IpAddr::from(v6(1)), IpAddr::from(v6(2)));
        let solicit = |src, option| discovery(GROUP, src, 135, v6(2), option);
        assert_eq!(said(&solicit(v6(1), Some((1, A)))), Some((Some(one), Some(two))));
        assert_eq!(said(&solicit(v6(1), Some((1, B)))), Some((None, Some(two))), "another's");
        assert_eq!(said(&solicit(v6(1), None)), Some((None, Some(two))));
        assert_eq!(
            said(&solicit(Ipv6Addr::UNSPECIFIED, None)),
            Some((None, Some(two))),
            "is it free?"
        );
        assert_eq!(said(&discovery(B, v6(1), 135, v6(2), Some((1, A)))), Some((Some(one), None)));
        let advertise = |option| discovery(GROUP, v6(1), 136, v6(2), option);
        assert_eq!(said(&advertise(Some((2, A)))), Some((Some(two), None)));
        assert_eq!(said(&advertise(Some((2, B)))), Some((None, None)));
        let mut routed = solicit(v6(1), Some((1, A)));
        routed[14 + 7] = 254;
        assert_eq!(said(&routed), None, "it came by a router");
    }

    #[test]
    fn an_answer_is_what_its_owner_would_say() {
        let answer = Answer::to(&arp(Mac::BROADCAST, 1, (A, 1), 2), OWNER).unwrap();
        let owner = Neighbour::read(answer.as_slice()).unwrap();
        assert_eq!((owner.mac, owner.claims), (B, Some(v4(2))));
        assert_eq!(answer.as_slice()[..6], A.0);
        assert_eq!(answer.as_slice()[32..42], [&A.0[..], &[10, 0, 0, 1]].concat());
        assert_eq!(answer.as_slice().len(), 60);
        assert_eq!(Answer::to(&arp(Mac::BROADCAST, 2, (A, 1), 2), OWNER), None);

        for (src, flags, to) in [
            (v6(1), 0x60, v6(1)),
            (Ipv6Addr::UNSPECIFIED, 0x20, Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1)),
        ] {
            for is_router in [false, true] {
                let asked = discovery(GROUP, src, 135, v6(2), Some((1, A)));
                let answer = Answer::to(&asked, Owner { is_router, ..OWNER }).unwrap();
                let bytes = answer.as_slice();
                let owner = Neighbour::read(bytes).unwrap();
                assert_eq!((owner.mac, owner.claims), (B, Some(v6(2).into())));
                assert_eq!(bytes[ICMP_AT + 4], flags | u8::from(is_router) << 7);
                assert_eq!(bytes[38..54], to.octets());
                // The answer's checksum, which includes the pseudo-header, is right (RFC 4443 §2.3).
                let mut sum = Sum::new();
                sum.add(&bytes[22..54]);
                sum.add_u32((bytes.len() - ICMP_AT) as u32);
                sum.add_u32(58);
                sum.add(&bytes[ICMP_AT..]);
                assert_eq!(sum.finish(), 0);
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_harm(kind in 0..3, bytes in prop::collection::vec(any::<u8>(), 0..140)) {
            let mut frame = bytes;
            if let Some(place) = frame.get_mut(12..14) {
                place.copy_from_slice([&[8, 6], &[0x86, 0xdd], &[8, 0]][kind as usize]);
            }
            let may_be = Neighbour::may_be(&frame);
            if let Some(said) = Neighbour::read(&frame) {
                prop_assert!(may_be && !said.mac.is_multicast());
                let answer = Answer::to(&frame, OWNER);
                prop_assert_eq!(answer.is_some(), said.asks.is_some());
            }
        }

        #[test]
        fn any_discovery_is_read_without_harm(change in 0..94usize, to: u8, cut in 0..94usize) {
            let mut frame = discovery(GROUP, v6(1), 135, v6(2), Some((1, A)));
            if let Some(byte) = frame.get_mut(change) {
                *byte = to;
            }
            frame.truncate(cut);
            if let Some(said) = Neighbour::read(&frame) {
                prop_assert_eq!(Answer::to(&frame, OWNER).is_some(), said.asks.is_some());
            }
        }
    }
}
