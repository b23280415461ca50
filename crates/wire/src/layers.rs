//! A deeper parse of a frame: IPv4/IPv6 and TCP/UDP, for callers that need more than [`Ethernet`].

use std::net::{Ipv4Addr, Ipv6Addr};

use weir_limits::IPV6_EXT_HEADERS_MAX;

use crate::bytes::{array_at, be16_at, u8_at};
use crate::ethernet::{Ethernet, ParseError, ethertype};

/// Values of the protocol and next-header fields (IANA protocol numbers).
pub mod protocol {
    /// IPv6 hop-by-hop options.
    pub const HOP_BY_HOP: u8 = 0;
    /// ICMP.
    pub const ICMP: u8 = 1;
    /// IGMP.
    pub const IGMP: u8 = 2;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// IPv6 routing header.
    pub const ROUTING: u8 = 43;
    /// IPv6 fragment header.
    pub const FRAGMENT: u8 = 44;
    /// IPv6 authentication header.
    pub const AUTHENTICATION: u8 = 51;
    /// ICMPv6.
    pub const ICMPV6: u8 = 58;
    /// IPv6 destination options.
    pub const DESTINATION_OPTIONS: u8 = 60;
    /// SCTP.
    pub const SCTP: u8 = 132;
    /// IPv6 mobility header.
    pub const MOBILITY: u8 = 135;
    /// UDP-Lite.
    pub const UDP_LITE: u8 = 136;
    /// Host identity protocol.
    pub const HIP: u8 = 139;
    /// Shim6.
    pub const SHIM6: u8 = 140;

    /// True if another header can follow this IPv6 header, even if weir does not parse it (IANA IPv6 extension header
    /// types, without ESP and those for experiments).
    pub fn is_extension(number: u8) -> bool {
        matches!(
            number,
            HOP_BY_HOP
                | ROUTING
                | FRAGMENT
                | AUTHENTICATION
                | DESTINATION_OPTIONS
                | MOBILITY
                | HIP
                | SHIM6
        )
    }
}

/// Bytes of an IPv4 header without options.
pub const IPV4_HEADER_LEN_MIN: u16 = 20;
/// Bytes of an IPv6 header without extension headers.
pub const IPV6_HEADER_LEN: u16 = 40;
/// Bytes of a TCP header without options.
pub const TCP_HEADER_LEN_MIN: u16 = 20;
/// Bytes of a UDP header.
pub const UDP_HEADER_LEN: u16 = 8;

// Offsets are u16: the walk stays in range, since an extension header has at most 2048 bytes.
const _: () = assert!(IPV6_EXT_HEADERS_MAX * 2048 < u16::MAX as usize / 2);

/// A frame's headers. Offsets count from the frame's first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layers {
    /// Addresses, tag and ethertype. Its `header_len` is the offset of the network header.
    pub ethernet: Ethernet,
    /// The network header.
    pub network: Network,
    /// The transport header.
    pub transport: Transport,
}

/// A network header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// IPv4.
    Ipv4(Ipv4),
    /// IPv6.
    Ipv6(Ipv6),
    /// Another ethertype, or a truncated or invalid IP header.
    Other,
}

/// An IPv4 header (RFC 791).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4 {
    /// Source address.
    pub src: Ipv4Addr,
    /// Destination address.
    pub dst: Ipv4Addr,
    /// Bytes of the header with its options, 20 to 60.
    pub header_len: u16,
    /// Protocol of the payload.
    pub protocol: u8,
    /// True for a fragment, including the first one.
    pub fragment: bool,
    /// Bytes of header and payload according to the sender; not compared with the frame.
    pub total_len: u16,
}

/// An IPv6 header and its extension headers (RFC 8200).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6 {
    /// Source address.
    pub src: Ipv6Addr,
    /// Destination address.
    pub dst: Ipv6Addr,
    /// Bytes of the header and of the extension headers that were walked, at least 40.
    pub header_len: u16,
    /// The protocol behind these headers. If the walk ended at an extension header, the header's number.
    pub protocol: u8,
    /// True for a fragment, including the first one. An atomic fragment (RFC 6946) does not count.
    pub fragment: bool,
    /// Bytes after the fixed header according to the sender; not compared with the frame.
    pub payload_len: u16,
}

/// A transport header. It is `Other` if its fixed part is not completely in the head, and in every fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Tcp {
        /// The offset of the header.
        offset: u16,
        /// Bytes of the header with its options, 20 to 60. Options can lie beyond the head.
        header_len: u16,
        /// The segment's ports.
        ports: Ports,
    },
    /// UDP.
    Udp {
        /// The offset of the header.
        offset: u16,
        /// The datagram's ports.
        ports: Ports,
    },
    /// Another protocol, a fragment, or a truncated or invalid header.
    Other,
}

/// Source and destination port of TCP or UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// Source port.
    pub src: u16,
    /// Destination port.
    pub dst: u16,
}

impl Layers {
    /// Reads the headers at the front of `head`, a frame or the first bytes of one.
    ///
    /// # Errors
    /// [`ParseError::Short`] if `head` ends inside the Ethernet header or the tag; nothing else is an error.
    pub fn parse(head: &[u8]) -> Result<Layers, ParseError> {
        let ethernet = Ethernet::parse(head)?;
        let l3 = ethernet.header_len;
        let network = match ethernet.ethertype {
            ethertype::IPV4 => Ipv4::parse(head, l3).map_or(Network::Other, Network::Ipv4),
            ethertype::IPV6 => Ipv6::parse(head, l3).map_or(Network::Other, Network::Ipv6),
            _ => Network::Other,
        };
        let transport = match network {
            Network::Ipv4(ip) if !ip.fragment => {
                Transport::parse(head, l3 + ip.header_len, ip.protocol)
            }
            Network::Ipv6(ip) if !ip.fragment => {
                Transport::parse(head, l3 + ip.header_len, ip.protocol)
            }
            _ => Transport::Other,
        };
        Ok(Layers { ethernet, network, transport })
    }

    /// The offset of the network header.
    pub fn l3_offset(&self) -> u16 {
        self.ethernet.header_len
    }

    /// Bytes of all headers up to the end of the TCP or UDP header; `None` for another transport. The number can exceed
    /// the head.
    pub fn headers_len(&self) -> Option<u16> {
        match self.transport {
            Transport::Tcp { offset, header_len, .. } => Some(offset + header_len),
            Transport::Udp { offset, .. } => Some(offset + UDP_HEADER_LEN),
            Transport::Other => None,
        }
    }
}

impl Ipv4 {
    fn parse(head: &[u8], l3: u16) -> Option<Ipv4> {
        let header: [u8; IPV4_HEADER_LEN_MIN as usize] = array_at(head, usize::from(l3))?;
        let [ver_ihl, _, len0, len1, _, _, frag0, frag1, _, protocol, _, _, addresses @ ..] =
            header;
        let [s0, s1, s2, s3, d0, d1, d2, d3] = addresses;
        let header_len = u16::from(ver_ihl & 0xf) * 4;
        if ver_ihl >> 4 != 4 || header_len < IPV4_HEADER_LEN_MIN {
            return None;
        }
        Some(Ipv4 {
            src: Ipv4Addr::new(s0, s1, s2, s3),
            dst: Ipv4Addr::new(d0, d1, d2, d3),
            header_len,
            protocol,
            // The more-fragments flag or an offset; the other two flags do not count.
            fragment: u16::from_be_bytes([frag0, frag1]) & 0x3fff != 0,
            total_len: u16::from_be_bytes([len0, len1]),
        })
    }
}

impl Ipv6 {
    fn parse(head: &[u8], l3: u16) -> Option<Ipv6> {
        let at = usize::from(l3);
        let [ver, _, _, _, len0, len1, next, _]: [u8; 8] = array_at(head, at)?;
        if ver >> 4 != 6 {
            return None;
        }
        let mut ip = Ipv6 {
            src: Ipv6Addr::from(array_at::<16>(head, at + 8)?),
            dst: Ipv6Addr::from(array_at::<16>(head, at + 24)?),
            header_len: IPV6_HEADER_LEN,
            protocol: next,
            fragment: false,
            payload_len: u16::from_be_bytes([len0, len1]),
        };
        for _ in 0..IPV6_EXT_HEADERS_MAX {
            if ip.fragment || ip.skip_extension(head, l3).is_none() {
                break;
            }
        }
        Some(ip)
    }

    /// Skips one extension header; `None` at one that weir does not parse or that is truncated.
    fn skip_extension(&mut self, head: &[u8], l3: u16) -> Option<()> {
        let at = usize::from(l3 + self.header_len);
        let len = match self.protocol {
            protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION_OPTIONS => {
                // In units of 8 bytes, without the first (RFC 8200 §4.3).
                (u16::from(u8_at(head, at + 1)?) + 1) * 8
            }
            protocol::FRAGMENT => {
                // Offset (13 bits), reserved (2), more-fragments (1).
                self.fragment = be16_at(head, at + 2)? & 0xfff9 != 0;
                8
            }
            _ => return None,
        };
        self.protocol = u8_at(head, at)?;
        self.header_len += len;
        Some(())
    }
}

impl Transport {
    fn parse(head: &[u8], offset: u16, protocol: u8) -> Transport {
        match protocol {
            protocol::TCP => Transport::tcp(head, offset),
            protocol::UDP => Transport::udp(head, offset),
            _ => None,
        }
        .unwrap_or(Transport::Other)
    }

    fn tcp(head: &[u8], offset: u16) -> Option<Transport> {
        let header: [u8; TCP_HEADER_LEN_MIN as usize] = array_at(head, usize::from(offset))?;
        let [s0, s1, d0, d1, _, _, _, _, _, _, _, _, data_offset, ..] = header;
        let header_len = u16::from(data_offset >> 4) * 4;
        (header_len >= TCP_HEADER_LEN_MIN).then_some(Transport::Tcp {
            offset,
            header_len,
            ports: Ports::from_bytes([s0, s1, d0, d1]),
        })
    }

    fn udp(head: &[u8], offset: u16) -> Option<Transport> {
        let [s0, s1, d0, d1, ..]: [u8; UDP_HEADER_LEN as usize] =
            array_at(head, usize::from(offset))?;
        Some(Transport::Udp { offset, ports: Ports::from_bytes([s0, s1, d0, d1]) })
    }
}

impl Ports {
    fn from_bytes([s0, s1, d0, d1]: [u8; 4]) -> Ports {
        Ports { src: u16::from_be_bytes([s0, s1]), dst: u16::from_be_bytes([d0, d1]) }
    }
}

#[cfg(test)]
mod tests {
    use etherparse::{LinkExtHeader, NetHeaders, PacketHeaders, TransportHeader};
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{L4, Net, Spec, specs};
    use crate::vlan::Tci;

    fn ipv6_udp(extensions: &[(u8, u8)]) -> Spec {
        let network = Net::V6 { extensions: extensions.to_vec() };
        Spec { network, transport: L4::Udp, payload: vec![1, 2, 3], ..Spec::default() }
    }

    #[test]
    fn what_is_cut_deeper_than_ethernet_is_other() {
        let frame = Spec { network: Net::V4 { id: 1, options: 2 }, ..Spec::default() }.frame();
        let (l4, end) = (14 + 28, 14 + 28 + 20);
        for len in 14..=end {
            let layers = Layers::parse(&frame[..len]).unwrap();
            assert_eq!(layers.network == Network::Other, len < 34, "{len}");
            assert_eq!(layers.transport == Transport::Other, len < end, "{len}");
            assert_eq!(layers.headers_len().is_some(), len == end);
        }
        assert!(Layers::parse(&frame[..13]).is_err());
        assert!(matches!(
            Layers::parse(&frame[..end]).unwrap().transport,
            Transport::Tcp { offset, header_len: 20, ports: Ports { src: 40000, dst: 443 } }
                if usize::from(offset) == l4
        ));
    }

    #[test]
    fn garbled_headers_are_other() {
        let good = Spec::default().frame();
        let network = |at: usize, byte: u8| {
            let mut frame = good.clone();
            frame[at] = byte;
            Layers::parse(&frame).unwrap()
        };
        assert_eq!(network(14, 0x55).network, Network::Other, "version");
        assert_eq!(network(14, 0x44).network, Network::Other, "header shorter than 20 bytes");
        assert_eq!(network(23, 1).transport, Transport::Other, "ICMP");
        assert_eq!(
            network(34 + 12, 0x4f).transport,
            Transport::Other,
            "TCP header shorter than 20 bytes"
        );
        assert_eq!(network(12, 0x86).network, Network::Other, "ethertype");
    }

    #[test]
    fn fragments_have_no_transport_header() {
        for (flags, fragment) in
            [(0x2000, true), (0x0001, true), (0x1fff, true), (0x4000, false), (0x8000, false)]
        {
            let mut frame = Spec::default().frame();
            frame[20..22].copy_from_slice(&u16::to_be_bytes(flags));
            let layers = Layers::parse(&frame).unwrap();
            assert!(
                matches!(layers.network, Network::Ipv4(ip) if ip.fragment == fragment),
                "{flags:#x}"
            );
            assert_eq!(layers.transport == Transport::Other, fragment, "{flags:#x}");
        }
    }

    #[test]
    fn rfc_6946_atomic_fragment_is_whole() {
        let spec = ipv6_udp(&[(protocol::FRAGMENT, 1)]);
        for (offset_and_more, fragment) in
            [(0, false), (1, true), (8, true), (0xfff8, true), (6, false)]
        {
            let mut frame = spec.frame();
            frame[56..58].copy_from_slice(&u16::to_be_bytes(offset_and_more));
            let layers = Layers::parse(&frame).unwrap();
            assert!(matches!(layers.network, Network::Ipv6(ip) if ip.fragment == fragment));
            assert_eq!(layers.transport == Transport::Other, fragment, "{offset_and_more}");
        }
    }

    #[test]
    fn extension_headers_are_walked_up_to_the_bound() {
        let walked = ipv6_udp(&[(protocol::DESTINATION_OPTIONS, 1); IPV6_EXT_HEADERS_MAX]).frame();
        let layers = Layers::parse(&walked).unwrap();
        assert!(matches!(layers.transport, Transport::Udp { offset: 118, .. }));

        let longer =
            ipv6_udp(&[(protocol::DESTINATION_OPTIONS, 1); IPV6_EXT_HEADERS_MAX + 1]).frame();
        let layers = Layers::parse(&longer).unwrap();
        assert!(
            matches!(layers.network, Network::Ipv6(ip) if ip.protocol == protocol::DESTINATION_OPTIONS)
        );
        assert_eq!(layers.transport, Transport::Other);
    }

    #[test]
    fn extension_header_longer_than_the_frame_ends_the_walk() {
        let mut frame = ipv6_udp(&[(protocol::HOP_BY_HOP, 1)]).frame();
        frame[55] = 255;
        let layers = Layers::parse(&frame).unwrap();
        assert!(matches!(layers.network, Network::Ipv6(ip) if ip.header_len == 40 + 2048));
        assert_eq!(layers.transport, Transport::Other);
    }

    #[test]
    fn only_the_outer_tag_is_looked_behind() {
        let mut frame = Spec { tag: Some(5), ..Spec::default() }.frame();
        let inner = frame[12..16].to_vec();
        frame.splice(12..12, inner);
        let layers = Layers::parse(&frame).unwrap();
        assert_eq!(layers.ethernet.ethertype, ethertype::VLAN);
        assert_eq!(layers.network, Network::Other);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..200)) {
            let _ = Layers::parse(&bytes);
        }

        /// Arbitrary bytes seldom pass the ethertype. Damage to a valid frame gets deeper.
        #[test]
        fn arbitrary_damage_never_panics(
            spec in specs(8),
            damage in vec((0usize..160, any::<u8>()), 0..6),
            len in 0usize..160,
        ) {
            let mut frame = spec.frame();
            for (at, byte) in damage {
                if let Some(hit) = frame.get_mut(at) {
                    *hit = byte;
                }
            }
            frame.truncate(len);
            if let Ok(layers) = Layers::parse(&frame)
                && let Transport::Tcp { offset, .. } | Transport::Udp { offset, .. } = layers.transport
            {
                prop_assert!(usize::from(offset) + 8 <= frame.len());
                prop_assert!(layers.headers_len().unwrap() > offset);
            }
        }

        #[test]
        fn layers_are_those_of_etherparse(spec in specs(8)) {
            let frame = spec.frame();
            let layers = Layers::parse(&frame).unwrap();
            let oracle = PacketHeaders::from_ethernet_slice(&frame).unwrap();

            prop_assert_eq!(usize::from(layers.headers_len().unwrap()), spec.hdr_len());
            let link = oracle.link.unwrap().ethernet2().unwrap();
            prop_assert_eq!(layers.ethernet.src.0, link.source);
            prop_assert_eq!(layers.ethernet.dst.0, link.destination);
            let tag = oracle.link_exts.first().map(|ext| match ext {
                LinkExtHeader::Vlan(vlan) => {
                    Tci::new(vlan.vlan_id.value(), vlan.pcp.value(), vlan.drop_eligible_indicator).unwrap()
                }
                LinkExtHeader::Macsec(_) => unreachable!(),
            });
            prop_assert_eq!(layers.ethernet.tag, tag);

            match (layers.network, oracle.net.unwrap()) {
                (Network::Ipv4(ip), NetHeaders::Ipv4(expected, _)) => {
                    prop_assert_eq!(ip.src.octets(), expected.source);
                    prop_assert_eq!(ip.dst.octets(), expected.destination);
                    prop_assert_eq!(usize::from(ip.header_len), expected.header_len());
                    prop_assert_eq!(ip.protocol, expected.protocol.0);
                    prop_assert_eq!(ip.total_len, expected.total_len);
                    prop_assert!(!ip.fragment);
                }
                (Network::Ipv6(ip), NetHeaders::Ipv6(expected, extensions)) => {
                    prop_assert_eq!(ip.src.octets(), expected.source);
                    prop_assert_eq!(ip.dst.octets(), expected.destination);
                    prop_assert_eq!(usize::from(ip.header_len), 40 + extensions.header_len());
                    prop_assert_eq!(ip.payload_len, expected.payload_length);
                    prop_assert_eq!(ip.protocol, spec.protocol());
                }
                other => prop_assert!(false, "{:?}", other),
            }
            match (layers.transport, oracle.transport.unwrap()) {
                (Transport::Tcp { header_len, ports, .. }, TransportHeader::Tcp(expected)) => {
                    prop_assert_eq!(usize::from(header_len), expected.header_len());
                    prop_assert_eq!([ports.src, ports.dst], [expected.source_port, expected.destination_port]);
                }
                (Transport::Udp { ports, .. }, TransportHeader::Udp(expected)) => {
                    prop_assert_eq!([ports.src, ports.dst], [expected.source_port, expected.destination_port]);
                }
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }
}
