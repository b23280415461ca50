//! Classifies frames for weir, and answers those of ARP, neighbour discovery and echo.

use std::net::IpAddr;

use weir_wire::ethernet::HEADER_LEN;
use weir_wire::layers::{IPV4_HEADER_LEN_MIN, IPV6_HEADER_LEN, protocol};
use weir_wire::{
    Answer, Ethernet, Layers, Mac, Neighbour, Network, Owner, Ports, Transport, ethertype,
};

use crate::advert::RaSettings;
use crate::dhcp6;
use crate::frame;

/// Ports of DHCP: a client's, and a server's (RFC 2131 §4.1).
pub(crate) const DHCP_PORTS: Ports = Ports { src: 68, dst: 67 };
/// The port of DNS (RFC 1035 §4.2.1).
pub(crate) const DNS_PORT: u16 = 53;
/// The offsets of the target address in an ARP request and in a neighbour solicitation.
const ARP_TARGET_AT: usize = HEADER_LEN + 24;
const ND_TARGET_AT: usize = HEADER_LEN + IPV6_HEADER_LEN as usize + 8;
const SOLICITATION: u8 = 135;
const ROUTER_SOLICITATION: u8 = 133;

/// A kind of frame that weir answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// An ARP request or a neighbour solicitation for one of weir's addresses.
    Neighbour,
    /// An echo request.
    Echo,
    /// A router solicitation.
    Routers,
    /// A DHCP message, with the offset of its UDP header.
    Dhcp(u16),
    /// A DHCPv6 message, with the offset of its UDP header.
    Dhcp6(u16),
    /// A DNS question, with the offset of its UDP header.
    Names(u16),
    /// A segment of a connection for DNS, with the offset of its TCP header.
    Stream(u16),
}

/// weir as a station of a network.
#[derive(Clone, Debug)]
pub(crate) struct Station {
    pub(crate) mac: Mac,
    pub(crate) ips: Vec<IpAddr>,
    pub(crate) has_dhcp: bool,
    /// Guests ask weir for names.
    pub(crate) has_names: bool,
    /// The host has these addresses, and answers at them.
    pub(crate) is_host: bool,
    /// The contents of router advertisements, if weir sends them.
    pub(crate) ra: Option<RaSettings>,
}

impl Station {
    fn has(&self, ip: impl Into<IpAddr>) -> bool {
        self.ips.contains(&ip.into())
    }

    /// True if [`Self::wants`] has to parse the frame that begins with `head`, or if it may be a request of ARP. Most
    /// frames are the host's, and skip it.
    #[inline]
    pub(crate) fn may_want(&self, head: &[u8]) -> bool {
        const IPV4: [u8; 2] = ethertype::IPV4.to_be_bytes();
        const IPV6: [u8; 2] = ethertype::IPV6.to_be_bytes();
        const ARP: [u8; 2] = ethertype::ARP.to_be_bytes();
        const TO_NAMES: [u8; 2] = DNS_PORT.to_be_bytes();
        let is_to_names = |at: usize| head.get(at + 2..at + 4).is_some_and(|it| it == TO_NAMES);
        match head.get(HEADER_LEN - 2..HEADER_LEN) {
            Some(it) if it == IPV4 => match head.get(HEADER_LEN + 9) {
                Some(&protocol::TCP) => {
                    is_to_names(HEADER_LEN + 4 * usize::from(head[HEADER_LEN] & 0xf))
                }
                next => next == Some(&protocol::UDP),
            },
            Some(it) if it == IPV6 => match head.get(HEADER_LEN + 6) {
                Some(&protocol::TCP) => is_to_names(HEADER_LEN + usize::from(IPV6_HEADER_LEN)),
                next => matches!(next, Some(&(protocol::ICMPV6 | protocol::UDP))),
            },
            other => other.is_some_and(|it| it == ARP),
        }
    }

    /// The kind of the frame that begins with `head`, if weir answers it.
    pub(crate) fn wants(&self, head: &[u8]) -> Option<Wanted> {
        if self.is_host && !self.may_want(head) {
            return None;
        }
        let ethernet = Ethernet::parse(head).ok()?;
        if ethernet.tag.is_some() || ethernet.src.is_multicast() {
            return None;
        }
        if ethernet.ethertype == ethertype::ARP && !self.is_host {
            let target: [u8; 4] = head.get(ARP_TARGET_AT..)?.first_chunk().copied()?;
            return self.has(target).then_some(Wanted::Neighbour);
        }
        let layers = Layers::parse(head).ok()?;
        match (layers.network, layers.transport) {
            (Network::Ipv4(ip), Transport::Udp { offset, ports }) => {
                let for_weir = ip.dst.is_broadcast() || self.has(ip.dst);
                let is_dhcp = self.has_dhcp && ports == DHCP_PORTS && for_weir;
                match is_dhcp {
                    true => Some(Wanted::Dhcp(offset)),
                    false => {
                        self.asks(&ethernet, layers.network, ports).then_some(Wanted::Names(offset))
                    }
                }
            }
            (Network::Ipv6(ip), Transport::Udp { offset, ports })
                if self.ra.is_some() && ports == dhcp6::PORTS =>
            {
                let is_near = ip.src.is_unicast_link_local() && !ip.fragment;
                (is_near && ip.dst == dhcp6::SERVERS).then_some(Wanted::Dhcp6(offset))
            }
            (network @ Network::Ipv6(_), Transport::Udp { offset, ports }) => {
                self.asks(&ethernet, network, ports).then_some(Wanted::Names(offset))
            }
            (network, Transport::Tcp { offset, ports, .. }) => {
                self.asks(&ethernet, network, ports).then_some(Wanted::Stream(offset))
            }
            (Network::Ipv4(ip), _) if ip.protocol == protocol::ICMP && !ip.fragment => {
                // IPv4 options could request another route for the answer.
                let is_plain = ip.header_len == IPV4_HEADER_LEN_MIN;
                let for_weir = ethernet.dst == self.mac && self.has(ip.dst) && is_plain;
                for_weir.then_some(Wanted::Echo)
            }
            (Network::Ipv6(ip), _) if ip.protocol == protocol::ICMPV6 && !ip.fragment => {
                if ip.header_len != IPV6_HEADER_LEN {
                    return None;
                }
                match *head.get(HEADER_LEN + usize::from(IPV6_HEADER_LEN))? {
                    ROUTER_SOLICITATION => {
                        // A hop limit of 255 shows that no router has forwarded the frame (RFC 4861 §6.1.1).
                        let is_near = head.get(HEADER_LEN + 7) == Some(&255);
                        (is_near && self.ra.is_some()).then_some(Wanted::Routers)
                    }
                    _ if self.is_host => None,
                    SOLICITATION => {
                        let target: [u8; 16] = head.get(ND_TARGET_AT..)?.first_chunk().copied()?;
                        self.has(target).then_some(Wanted::Neighbour)
                    }
                    _ => (ethernet.dst == self.mac && self.has(ip.dst)).then_some(Wanted::Echo),
                }
            }
            _ => None,
        }
    }

    /// True if a packet is for weir's DNS, and has a sender that can be answered.
    fn asks(&self, ethernet: &Ethernet, network: Network, ports: Ports) -> bool {
        let (is_from_one, is_for_weir) = match network {
            Network::Ipv4(ip) => {
                let is_group = ip.src.is_broadcast() || ip.src.is_multicast();
                (!is_group && !ip.src.is_unspecified() && !ip.fragment, self.has(ip.dst))
            }
            Network::Ipv6(ip) => {
                let is_one = !ip.src.is_multicast() && !ip.src.is_unspecified();
                (is_one && !ip.fragment, self.has(ip.dst))
            }
            Network::Other => return false,
        };
        let is_to_names = self.has_names && ports.dst == DNS_PORT && ethernet.dst == self.mac;
        is_to_names && is_from_one && is_for_weir && ports.src != 0
    }

    /// The answer to a question for a neighbour.
    pub(crate) fn neighbour(&self, head: &[u8]) -> Option<Vec<u8>> {
        // `Neighbour::read` reports only requests to a group address. A request to weir alone gets the same answer.
        let mut asked = head.to_vec();
        asked.get_mut(..6)?.copy_from_slice(&Mac::BROADCAST.0);
        let ip = Neighbour::read(&asked)?.asks?;
        if !self.has(ip) {
            return None;
        }
        let answer = Answer::to(&asked, Owner { mac: self.mac, is_router: false })?;
        Some(answer.as_slice().to_vec())
    }

    /// The answer to an echo request.
    pub(crate) fn echo(&self, whole: &[u8]) -> Option<Vec<u8>> {
        match Layers::parse(whole).ok()?.network {
            Network::Ipv4(ip) => {
                if ip.src.is_multicast() || ip.src.is_broadcast() || ip.src.is_unspecified() {
                    return None;
                }
                let at = HEADER_LEN + usize::from(ip.header_len);
                let end = HEADER_LEN + usize::from(ip.total_len);
                let whole = whole.get(..end).filter(|_| end > at + 7)?;
                frame::echo_reply(whole, self.mac, at, (HEADER_LEN + 12, 4))
            }
            Network::Ipv6(ip) => {
                if ip.src.is_multicast() || ip.src.is_unspecified() {
                    return None;
                }
                let at = HEADER_LEN + usize::from(ip.header_len);
                let end = HEADER_LEN + usize::from(IPV6_HEADER_LEN) + usize::from(ip.payload_len);
                let whole = whole.get(..end).filter(|_| end > at + 7)?;
                frame::echo_reply(whole, self.mac, at, (HEADER_LEN + 8, 16))
            }
            Network::Other => None,
        }
    }
}
