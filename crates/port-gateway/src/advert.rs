//! Messages that weir sends unasked: router advertisements (RFC 4861 §4.2), with the prefixes for the guests' addresses
//! (RFC 4862) and their DNS servers (RFC 8106), and queries for multicast groups: IGMPv3 (RFC 3376 §4.1) and MLDv2
//! (RFC 3810 §5.1).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::Ipv6Net;
use weir_limits::{
    MULTICAST_QUERY_SECS, MULTICAST_RESPONSE_SECS, RA_DNS_SECS, RA_PREFERRED_SECS, RA_VALID_SECS,
};
use weir_wire::ethernet::HEADER_LEN;
use weir_wire::layers::{IPV6_HEADER_LEN, protocol};
use weir_wire::{Mac, Sum, ethertype};

const ADVERTISEMENT: u8 = 134;
/// The hop limit of a packet that no router has forwarded (RFC 4861 §7.1.1), and the guests' hop limit.
const HOPS: u8 = 255;
const HOPS_OF_GUESTS: u8 = 64;
/// Options (RFC 4861 §4.6, RFC 8106 §5.1).
const SOURCE_ADDRESS: u8 = 1;
const PREFIX: u8 = 3;
const MTU: u8 = 5;
const DNS: u8 = 25;
/// The L and A flags of a prefix (RFC 4861 §4.6.2).
const ON_LINK: u8 = 1 << 7;
const AUTONOMOUS: u8 = 1 << 6;
/// The only prefix length for autoconfigured addresses (RFC 4862 §5.5.3).
const AUTONOMOUS_LEN: u8 = 64;
pub(crate) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// Flags of an advertisement: DHCPv6 has addresses and settings, or has settings (RFC 4861 §4.2).
const MANAGED: u8 = 1 << 7;
const OTHER: u8 = 1 << 6;

/// The settings of guests that have IPv6.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RaSettings {
    /// Prefixes of the network.
    pub prefixes: Vec<Ipv6Net>,
    /// DNS servers.
    pub dns: Vec<Ipv6Addr>,
    /// The domain of guests' names, which DHCPv6 clients get.
    pub domain: Option<String>,
    /// DHCPv6 gives guests their addresses, and they form none themselves.
    pub managed: bool,
    /// The router lifetime of the host (s); 0 if the host is no default router.
    pub router_secs: u16,
}

/// The link-local address of a station, from its MAC address (RFC 4291 appendix A).
pub(crate) fn link_local(mac: Mac) -> Ipv6Addr {
    let Mac([a, b, c, d, e, f]) = mac;
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

/// An advertisement in a frame to one station (RFC 6085). A multicast frame would leave by the uplinks, too.
pub(crate) fn advertisement(
    own: Mac,
    to: Mac,
    settings: &RaSettings,
    mtu: Option<u16>,
) -> Option<Vec<u8>> {
    let mut flags = if settings.managed { MANAGED } else { 0 };
    if !settings.dns.is_empty() || settings.domain.is_some() {
        flags |= OTHER;
    }
    let mut message = vec![ADVERTISEMENT, 0, 0, 0, HOPS_OF_GUESTS, flags];
    message.extend(settings.router_secs.to_be_bytes());
    // The reachable time and the retransmission timer are not specified: each guest uses its own.
    message.extend([0; 8]);
    message.extend([SOURCE_ADDRESS, 1]);
    message.extend(own.0);
    if let Some(mtu) = mtu {
        message.extend([MTU, 1, 0, 0]);
        message.extend(u32::from(mtu).to_be_bytes());
    }
    for prefix in &settings.prefixes {
        let forms = !settings.managed && prefix.prefix_len() == AUTONOMOUS_LEN;
        let autonomous = if forms { AUTONOMOUS } else { 0 };
        message.extend([PREFIX, 4, prefix.prefix_len(), ON_LINK | autonomous]);
        message.extend(RA_VALID_SECS.to_be_bytes());
        message.extend(RA_PREFERRED_SECS.to_be_bytes());
        message.extend([0; 4]);
        message.extend(prefix.network().octets());
    }
    if !settings.dns.is_empty() {
        let units = 1 + 2 * u8::try_from(settings.dns.len()).ok()?;
        message.extend([DNS, units, 0, 0]);
        message.extend(RA_DNS_SECS.to_be_bytes());
        settings.dns.iter().for_each(|server| message.extend(server.octets()));
    }
    let len = u16::try_from(message.len()).ok()?;
    let from = link_local(own);
    let mut sum = Sum::new();
    sum.add(&from.octets());
    sum.add(&ALL_NODES.octets());
    sum.add_u32(len.into());
    sum.add_u32(protocol::ICMPV6.into());
    sum.add(&message);
    message.get_mut(2..4)?.copy_from_slice(&sum.finish().to_be_bytes());
    let mut frame = Vec::with_capacity(HEADER_LEN + usize::from(IPV6_HEADER_LEN) + message.len());
    frame.extend(to.0);
    frame.extend(own.0);
    frame.extend(ethertype::IPV6.to_be_bytes());
    frame.extend([0x60, 0, 0, 0]);
    frame.extend(len.to_be_bytes());
    frame.extend([protocol::ICMPV6, HOPS]);
    frame.extend(from.octets());
    frame.extend(ALL_NODES.octets());
    frame.extend(message);
    Some(frame)
}

const IGMP_QUERY: u8 = 0x11;
const MLD_QUERY: u8 = 130;
const ALL_HOSTS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);
/// The option that makes routers look at the packet (RFC 2113), and the hop-by-hop header with it (RFC 2711).
const ROUTER_ALERT: [u8; 4] = [0x94, 4, 0, 0];
const ROUTER_ALERT_HEADER: [u8; 8] = [protocol::ICMPV6, 0, 5, 2, 0, 0, 1, 0];
/// The number of queries of which one may be lost, and the interval of queries (s).
const ROBUSTNESS: u8 = 2;
const INTERVAL: u8 = MULTICAST_QUERY_SECS as u8;
/// The field of the response time, in tenths of a second and in milliseconds. Larger values have another form.
const TENTHS: u8 = (MULTICAST_RESPONSE_SECS * 10) as u8;
const MILLIS: u16 = (MULTICAST_RESPONSE_SECS * 1000) as u16;
const _: () = assert!(MULTICAST_QUERY_SECS < 128 && MULTICAST_RESPONSE_SECS * 10 < 128);

/// The source address of queries of this IP version from a station with these addresses.
pub(crate) fn source(own: Mac, ips: &[IpAddr], v6: bool) -> IpAddr {
    if v6 {
        return link_local(own).into();
    }
    let own = ips.iter().find(|ip| ip.is_ipv4()).copied();
    own.unwrap_or(Ipv4Addr::UNSPECIFIED.into())
}

/// A general query in a frame to one station (RFC 6085). A multicast frame would leave by the uplinks, too.
pub(crate) fn query(own: Mac, to: Mac, from: IpAddr) -> Vec<u8> {
    let mut frame = Vec::with_capacity(HEADER_LEN + 80);
    frame.extend(to.0);
    frame.extend(own.0);
    match from {
        IpAddr::V4(from) => {
            let message = [IGMP_QUERY, TENTHS, 0, 0, 0, 0, 0, 0, ROBUSTNESS, INTERVAL, 0, 0];
            let message = summed(message, 2, Sum::new());
            let mut header = [0; 24];
            header[..2].copy_from_slice(&[0x46, 0xc0]);
            header[3] = (header.len() + message.len()) as u8;
            header[8..10].copy_from_slice(&[1, protocol::IGMP]);
            header[12..16].copy_from_slice(&from.octets());
            header[16..20].copy_from_slice(&ALL_HOSTS.octets());
            header[20..].copy_from_slice(&ROUTER_ALERT);
            frame.extend(ethertype::IPV4.to_be_bytes());
            frame.extend(summed(header, 10, Sum::new()));
            frame.extend(message);
        }
        IpAddr::V6(from) => {
            let mut message = [0; 28];
            message[0] = MLD_QUERY;
            message[4..6].copy_from_slice(&MILLIS.to_be_bytes());
            message[24..26].copy_from_slice(&[ROBUSTNESS, INTERVAL]);
            let mut sum = Sum::new();
            sum.add(&from.octets());
            sum.add(&ALL_NODES.octets());
            sum.add_u32(message.len() as u32);
            sum.add_u32(protocol::ICMPV6.into());
            frame.extend(ethertype::IPV6.to_be_bytes());
            frame.extend([0x60, 0, 0, 0, 0, (ROUTER_ALERT_HEADER.len() + message.len()) as u8]);
            frame.extend([protocol::HOP_BY_HOP, 1]);
            frame.extend(from.octets());
            frame.extend(ALL_NODES.octets());
            frame.extend(ROUTER_ALERT_HEADER);
            frame.extend(summed(message, 2, sum));
        }
    }
    frame
}

/// `bytes` with their checksum at `at`; `sum` is that of a pseudo header.
fn summed<const N: usize>(mut bytes: [u8; N], at: usize, mut sum: Sum) -> [u8; N] {
    sum.add(&bytes);
    bytes[at..at + 2].copy_from_slice(&sum.finish().to_be_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use weir_fabric::{Fabric, PortConfig, Snooping, Vid};

    use super::*;

    fn net() -> impl Strategy<Value = Ipv6Net> {
        let bits = any::<u128>().prop_map(|bits| Ipv6Addr::from(bits >> 3 | 1 << 125));
        (bits, 1..=126_u8).prop_map(|(ip, len)| Ipv6Net::new(ip, len).unwrap().trunc())
    }

    proptest! {
        /// A station reads the advertisement as RFC 4861 §6.1.2 and §6.3.4 and RFC 4862 §5.5.3 have it do.
        #[test]
        fn rfc_4861_6_1_2_an_advertisement_is_valid_and_says_what_is_configured(
            prefixes in prop::collection::vec(net(), 0..8),
            dns in prop::collection::vec(any::<u128>().prop_map(Ipv6Addr::from), 0..=4),
            (mtu, domain) in (prop::option::of(1280..=9000_u16), prop::option::of("[a-z]{1,9}")),
            managed: bool,
            router_secs in prop::sample::select(vec![0, weir_limits::RA_ROUTER_SECS]),
        ) {
            let (own, to) = (Mac([2, 0, 0, 0, 0, 9]), Mac([2, 0, 0, 0, 0, 1]));
            let settings = RaSettings { prefixes, dns, domain, managed, router_secs };
            let frame = advertisement(own, to, &settings, mtu).unwrap();
            let (ip, message) = frame[14..].split_at(40);
            prop_assert_eq!((&frame[..6], &frame[6..14]), (&to.0[..], &[2, 0, 0, 0, 0, 9, 0x86, 0xdd][..]));
            prop_assert_eq!((ip[0], ip[6], ip[7]), (0x60, 58, 255));
            prop_assert_eq!(usize::from(u16::from_be_bytes([ip[4], ip[5]])), message.len());
            let from: [u8; 16] = ip[8..24].try_into().unwrap();
            prop_assert!(Ipv6Addr::from(from).is_unicast_link_local());
            let mut sum = Sum::new();
            sum.add(&ip[8..]);
            sum.add_u32(message.len() as u32 + 58);
            sum.add(message);
            prop_assert_eq!((sum.finish(), message[0], message[1]), (0, 134, 0));
            prop_assert_eq!(&message[6..8], &router_secs.to_be_bytes());
            prop_assert_eq!(message[5] & 0x80 != 0, managed);
            let (mut told, mut servers, mut said_mtu) = (Vec::new(), Vec::new(), None);
            let mut rest = &message[16..];
            while !rest.is_empty() {
                prop_assert!(rest[1] > 0, "an option without a length");
                let (option, after) = rest.split_at(8 * usize::from(rest[1]));
                let ip = |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&option[at..at + 16]).unwrap());
                let secs = |at: usize| u32::from_be_bytes(option[at..at + 4].try_into().unwrap());
                match option[0] {
                    1 => prop_assert_eq!(&option[2..], &own.0),
                    3 => {
                        // Addresses are formed only from 64 bits, and not where DHCPv6 gives them; they are preferred
                        // no longer than they are valid.
                        let forms = option[2] == 64 && !managed;
                        prop_assert_eq!(option[3], if forms { 0xc0 } else { 0x80 });
                        prop_assert!(secs(8) <= secs(4) && secs(8) > 0);
                        told.push(Ipv6Net::new(ip(16), option[2]).unwrap());
                    }
                    5 => said_mtu = u16::try_from(secs(4)).ok(),
                    25 => {
                        prop_assert!(u64::from(secs(4)) >= 3 * weir_limits::RA_INTERVAL_SECS);
                        servers.extend((8..option.len()).step_by(16).map(ip));
                    }
                    other => prop_assert!(false, "option {}", other),
                }
                rest = after;
            }
            prop_assert_eq!((told, servers, said_mtu), (settings.prefixes, settings.dns, mtu));
        }
    }

    #[test]
    fn a_query_is_one_that_snooping_believes() {
        let own = Mac([2, 0, 0, 0, 0, 9]);
        let ips = ["fd00::1", "10.0.0.1"].map(|ip| ip.parse().unwrap());
        assert_eq!(source(own, &ips[..1], false), Ipv4Addr::UNSPECIFIED);
        let fabric = Fabric::new();
        fabric.snoop(Snooping::new([Vid::DEFAULT].into_iter()).unwrap());
        let uplink = fabric.add_port(PortConfig::uplink()).unwrap();
        let snooping = fabric.snooping().unwrap();
        for (v6, all) in [(false, [1, 0, 0x5e, 0, 0, 1]), (true, [0x33, 0x33, 0, 0, 0, 1])] {
            let from = source(own, &ips, v6);
            let frame = query(own, Mac(all), from);
            let (view, of) = (fabric.view(), (uplink, Vid::DEFAULT));
            assert_eq!(snooping.judge(&view, of, &frame, || &frame, 5), Ok(None));
            assert_eq!(snooping.standings(5, 1)[usize::from(v6)].querier, Some((from, uplink)));
            if !v6 {
                assert_eq!(
                    weir_wire::checksum::ipv4_header_checksum(&frame[14..38]).to_be_bytes(),
                    frame[24..26]
                );
            }
        }
    }
}
