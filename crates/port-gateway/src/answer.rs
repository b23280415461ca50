//! Classifies frames for weir, and answers those of ARP, neighbour discovery and echo.

use std::net::IpAddr;

use weir_wire::ethernet::HEADER_LEN;
use weir_wire::layers::{IPV4_HEADER_LEN_MIN, IPV6_HEADER_LEN, protocol};
use weir_wire::{
    Answer, Ethernet, Layers, Mac, Neighbour, Network, Owner, Ports, Sum, Transport, ethertype,
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
/// The option with the MAC address of the sender (RFC 4861 §4.6.1), and the group of an address without the address's
/// last three bytes (RFC 4291 §2.7.1).
const SOURCE_ADDRESS: u8 = 1;
const SOLICITED_NODE: [u8; 13] = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff];
const ROUTER_SOLICITATION: u8 = 133;

/// True if a solicitation is valid (RFC 4861 §6.1.1, §7.1.1). Its station discards any other.
fn is_valid(whole: &[u8]) -> bool {
    const AT: usize = HEADER_LEN + IPV6_HEADER_LEN as usize;
    let Ok(Network::Ipv6(ip)) = Layers::parse(whole).map(|it| it.network) else { return false };
    let message = whole.get(AT..AT + usize::from(ip.payload_len));
    let (Some(message), Some(addresses)) = (message, whole.get(HEADER_LEN + 8..AT)) else {
        return false;
    };
    let (Some(&kind), Some(0)) = (message.first(), message.get(1)) else { return false };
    let Some(options) = message.get(if kind == SOLICITATION { 24 } else { 8 }..) else {
        return false;
    };
    let mut sum = Sum::new();
    sum.add(addresses);
    sum.add_u32(ip.payload_len.into());
    sum.add_u32(protocol::ICMPV6.into());
    sum.add(message);
    let (mut rest, mut says_mac) = (options, false);
    while let [option, units, ..] = *rest {
        let len = 8 * usize::from(units);
        let (Some(after), 1..) = (rest.get(len..), units) else { return false };
        says_mac |= option == SOURCE_ADDRESS;
        rest = after;
    }
    // A station that has no address yet sends no MAC address, and asks at the multicast group of the address that it
    // checks.
    let group = message.get(21..24).filter(|_| kind == SOLICITATION);
    let is_to_group = |last: &[u8]| ip.dst.octets().strip_prefix(&SOLICITED_NODE) == Some(last);
    let has_address = !ip.src.is_unspecified();
    let is_probe = !says_mac && group.is_none_or(is_to_group);
    whole.get(HEADER_LEN + 7) == Some(&255) && sum.finish() == 0 && (has_address || is_probe)
}

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

    /// True if only weir answers the question in a broadcast that begins with `head`. Other stations do not need the
    /// frame, and a DHCP server among them must not see it. An overlay learns who has an address from questions for
    /// neighbours, if the network `is_spread` over hosts.
    pub(crate) fn keeps(&self, head: &[u8], is_spread: bool) -> bool {
        if let Some(Neighbour { asks: Some(ip), .. }) = Neighbour::read(head) {
            return !is_spread && self.has(ip);
        }
        match self.wants(head) {
            Some(Wanted::Dhcp(_)) => true,
            // Where weir is no router, another station is, and must get the message.
            Some(Wanted::Routers) => self.ra.as_ref().is_some_and(|ra| ra.router_secs > 0),
            Some(Wanted::Dhcp6(at)) => dhcp6::is_answered(self.ra.as_ref(), head, usize::from(at)),
            _ => false,
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

    /// The sender of a router solicitation, if the message is valid.
    pub(crate) fn asker(&self, head: &[u8]) -> Option<Mac> {
        let ethernet = Ethernet::parse(head).ok().filter(|_| is_valid(head));
        Some(ethernet?.src)
    }

    /// The answer to a question for a neighbour.
    pub(crate) fn neighbour(&self, head: &[u8]) -> Option<Vec<u8>> {
        if Ethernet::parse(head).ok()?.ethertype == ethertype::IPV6 && !is_valid(head) {
            return None;
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    const GUEST: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const OWN: Mac = Mac([2, 0, 0, 0, 0, 9]);
    const NEAR: &str = "fe80::1";
    const TARGET: &str = "fd00:77::12:3456";
    const GROUP: &str = "ff02::1:ff12:3456";
    /// Options with the sender's MAC address, and with a nonce (RFC 7527), and one without a length.
    const MAC_OPTION: [u8; 8] = [1, 1, 2, 0, 0, 0, 0, 1];
    const NONCE: [u8; 8] = [14, 1, 6, 5, 4, 3, 2, 1];
    const EMPTY: [u8; 8] = [14, 0, 0, 0, 0, 0, 0, 0];

    fn station() -> Station {
        let ips = vec![TARGET.parse().unwrap()];
        let (has_dhcp, has_names, is_host, ra) = (false, false, false, None);
        Station { mac: OWN, ips, has_dhcp, has_names, is_host, ra }
    }

    fn octets(ip: &str) -> [u8; 16] {
        ip.parse::<std::net::Ipv6Addr>().unwrap().octets()
    }

    /// A solicitation of this kind with a right checksum.
    fn solicitation(kind: u8, (src, dst): (&str, &str), options: &[u8]) -> Vec<u8> {
        let target = if kind == SOLICITATION { &octets(TARGET)[..] } else { &[] };
        let message = [&[kind, 0, 0, 0, 0, 0, 0, 0], target, options].concat();
        let len = (message.len() as u16).to_be_bytes();
        let to = [&[0x33, 0x33][..], &octets(dst)[12..]].concat();
        let head = [&to[..], &GUEST.0, &[0x86, 0xdd, 0x60, 0, 0, 0], &len, &[58, 255]];
        let mut frame = [&head.concat()[..], &octets(src), &octets(dst), &message].concat();
        sum(&mut frame);
        frame
    }

    /// Makes the checksum right.
    fn sum(frame: &mut [u8]) {
        frame[56..58].fill(0);
        let mut sum = Sum::new();
        sum.add(&frame[22..54]);
        sum.add_u32(frame.len() as u32 - 54);
        sum.add_u32(58);
        sum.add(&frame[54..]);
        frame[56..58].copy_from_slice(&sum.finish().to_be_bytes());
    }

    fn asked(from_to: (&str, &str), options: &[u8]) -> Option<Vec<u8>> {
        station().neighbour(&solicitation(SOLICITATION, from_to, options))
    }

    #[test]
    fn rfc_4861_7_2_4_who_asks_for_weirs_address_is_told_its_mac_address() {
        for options in [&MAC_OPTION[..], &[], &[MAC_OPTION, NONCE].concat()] {
            // The guest asks at the address's group, and asks weir itself to check that it is still
            // there (§7.3.3).
            for dst in [GROUP, TARGET] {
                let answer = asked((NEAR, dst), options).unwrap();
                assert_eq!((&answer[..6], &answer[6..12]), (&GUEST.0[..], &OWN.0[..]));
                assert_eq!(
                    (&answer[22..38], &answer[38..54]),
                    (&octets(TARGET)[..], &octets(NEAR)[..])
                );
                // Solicited and override; the target and its MAC address.
                assert_eq!((answer[54], answer[58]), (136, 0x60));
                assert_eq!(answer[62..78], octets(TARGET));
                assert_eq!(answer[78..86], [&[2, 1], &OWN.0[..]].concat());
            }
        }
    }

    #[test]
    fn rfc_4862_5_4_3_who_checks_whether_weirs_address_is_free_learns_that_it_is_not() {
        for options in [&[][..], &NONCE] {
            let answer = asked(("::", GROUP), options).unwrap();
            assert_eq!((&answer[38..54], answer[58]), (&octets("ff02::1")[..], 0x20));
        }
    }

    #[test]
    fn rfc_4861_7_1_1_what_is_not_valid_has_no_answer() {
        assert_eq!(asked(("::", GROUP), &MAC_OPTION), None, "a MAC address of no station");
        assert_eq!(asked(("::", "ff02::1"), &[]), None, "not the address's group");
        assert_eq!(asked(("::", TARGET), &[]), None, "not the address's group");
        for options in [&EMPTY[..], &[MAC_OPTION, EMPTY].concat(), &[14, 2, 0, 0, 0, 0, 0, 0]] {
            assert_eq!(asked((NEAR, GROUP), options), None, "an option's length: {options:?}");
        }
        let good = solicitation(SOLICITATION, (NEAR, GROUP), &MAC_OPTION);
        for (at, wrong) in [(21, 254), (55, 1), (56, good[56] ^ 1)] {
            let mut frame = good.clone();
            frame[at] = wrong;
            if at == 55 {
                sum(&mut frame);
            }
            assert_eq!(station().neighbour(&frame), None, "byte {at}");
        }
        assert_eq!(station().neighbour(&good[..77]), None, "not whole");
    }

    #[test]
    fn rfc_4861_6_1_1_who_asks_for_routers_asks_as_it_has_to() {
        let asker = |src: &str, options: &[u8]| {
            station().asker(&solicitation(ROUTER_SOLICITATION, (src, "ff02::2"), options))
        };
        assert_eq!(asker(NEAR, &MAC_OPTION), Some(GUEST));
        assert_eq!(asker("::", &[]), Some(GUEST));
        assert_eq!(asker("::", &NONCE), Some(GUEST));
        assert_eq!(asker("::", &MAC_OPTION), None);
        assert_eq!(asker(NEAR, &EMPTY), None);
        let good = solicitation(ROUTER_SOLICITATION, (NEAR, "ff02::2"), &[]);
        for at in [21, 55, 57] {
            let mut frame = good.clone();
            frame[at] ^= 1;
            if at == 55 {
                sum(&mut frame);
            }
            assert_eq!(station().asker(&frame), None, "byte {at}");
        }
    }
}
