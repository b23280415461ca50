//! Router advertisements (RFC 4861 §4.2): by which prefix guests make addresses (RFC 4862), and whom they ask for names
//! (RFC 8106).

use std::net::Ipv6Addr;

use ipnet::Ipv6Net;
use weir_limits::{RA_DNS_SECS, RA_PREFERRED_SECS, RA_VALID_SECS};
use weir_wire::ethernet::HEADER_LEN;
use weir_wire::layers::{IPV6_HEADER_LEN, protocol};
use weir_wire::{Mac, Sum, ethertype};

const ADVERTISEMENT: u8 = 134;
/// "Not forwarded by a router" (RFC 4861 §7.1.1), and the hop limit that guests are to use.
const HOPS: u8 = 255;
const HOPS_OF_GUESTS: u8 = 64;
/// Options (RFC 4861 §4.6, RFC 8106 §5.1).
const SOURCE_ADDRESS: u8 = 1;
const PREFIX: u8 = 3;
const MTU: u8 = 5;
const DNS: u8 = 25;
/// On-link, and one from which guests make addresses.
const ON_LINK: u8 = 1 << 7;
const AUTONOMOUS: u8 = 1 << 6;
/// Addresses are made of no other (RFC 4862 §5.5.3).
const AUTONOMOUS_LEN: u8 = 64;
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// What guests are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RaSettings {
    /// Prefixes of the network.
    pub prefixes: Vec<Ipv6Net>,
    /// Servers of names.
    pub dns: Vec<Ipv6Addr>,
    /// How long the host is the way out (s); 0 if it is none.
    pub router_secs: u16,
}

/// The address of its link that a station makes of its MAC address (RFC 4291 appendix A).
pub(crate) fn link_local(mac: Mac) -> Ipv6Addr {
    let Mac([a, b, c, d, e, f]) = mac;
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

/// An advertisement for one station, of which only that one hears (RFC 6085): it would otherwise go beyond uplinks.
pub(crate) fn advertisement(
    own: Mac,
    to: Mac,
    settings: &RaSettings,
    mtu: Option<u16>,
) -> Option<Vec<u8>> {
    let mut message = vec![ADVERTISEMENT, 0, 0, 0, HOPS_OF_GUESTS, 0];
    message.extend(settings.router_secs.to_be_bytes());
    // How long neighbours are reachable, and when they are asked again: as each guest likes.
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
