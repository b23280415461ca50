//! Router advertisements (RFC 4861 §4.2): the prefixes for the guests' addresses (RFC 4862), and their DNS servers
//! (RFC 8106). DHCPv6 clients get the same settings (`dhcp6.rs`).

use std::net::Ipv6Addr;

use ipnet::Ipv6Net;
use weir_limits::{RA_DNS_SECS, RA_PREFERRED_SECS, RA_VALID_SECS};
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

/// The flag "other configuration" of an advertisement: DHCPv6 has settings (RFC 4861 §4.2).
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
    let flags = if settings.dns.is_empty() && settings.domain.is_none() { 0 } else { OTHER };
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
        let autonomous = if prefix.prefix_len() == AUTONOMOUS_LEN { AUTONOMOUS } else { 0 };
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
