//! Neighbour discovery (RFC 4861): the address that a message is about, and the link-layer address that it gives for
//! it.

use std::net::{IpAddr, Ipv6Addr};

use weir_wire::ethernet::HEADER_LEN;
use weir_wire::layers::{IPV6_HEADER_LEN, protocol};
use weir_wire::{Ipv4, Ipv6, Layers, Network, ethertype};

use super::SourceGuard;
use super::dhcp;
use super::leases::{Arp, Seen, UDP_CSUM};
use crate::DropReason;

/// Types of ICMPv6 messages.
const MLD_REPORT: u8 = 131;
const MLD_DONE: u8 = 132;
const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;
const INVERSE_SOLICITATION: u8 = 141;
const INVERSE_ADVERTISEMENT: u8 = 142;
const MLD2_REPORT: u8 = 143;

/// Options with the link-layer address of the sender, and of the target (RFC 4861 §4.6.1).
const LINK_LAYER_ADDRESSES: [u8; 2] = [1, 2];

/// Judges the ICMPv6 message at `at`, whose IPv6 source the guest has unless it is unspecified.
pub(super) fn check(
    guard: &SourceGuard,
    seen: Seen<'_>,
    ip: &Ipv6,
    at: usize,
) -> Result<(), DropReason> {
    let refused = Err(DropReason::SourceGuardNd);
    let Some([kind]) = seen.array(at) else { return refused };
    let unspecified = ip.src.is_unspecified();
    let is_nd = (ROUTER_SOLICITATION..=REDIRECT).contains(&kind)
        || matches!(kind, INVERSE_SOLICITATION | INVERSE_ADVERTISEMENT);
    if !is_nd {
        // A guest without an address reports the groups that it listens to (RFC 3590, RFC 3810 §5.2.13).
        let reports = matches!(kind, MLD_REPORT | MLD_DONE | MLD2_REPORT) && !ip.fragment;
        return if !unspecified || reports { Ok(()) } else { Err(DropReason::SourceGuardIp) };
    }
    // Receivers ignore fragments (RFC 6980), or should.
    if ip.fragment {
        return refused;
    }
    let target = || seen.array::<16>(at + 8).map(Ipv6Addr::from);
    let own = || target().is_some_and(|target| guard.has(target.into(), seen));
    let options = match kind {
        ROUTER_SOLICITATION => Some(at + 8),
        // A guest may ask whether an address is free if the address would be its own.
        NEIGHBOUR_SOLICITATION if !unspecified || own() => Some(at + 24),
        NEIGHBOUR_ADVERTISEMENT if !unspecified && own() => Some(at + 24),
        // The options are about prefixes and servers, and may end beyond the bytes that weir sees.
        ROUTER_ADVERTISEMENT | REDIRECT if guard.router && !unspecified => return Ok(()),
        _ => None,
    };
    let sound = options.and_then(|options| options_are_of(seen, ip, options));
    sound.map_or(refused, Ok)
}

/// `Some` if weir sees all options from `at` on, and each link-layer address in them is that of their sender.
fn options_are_of(seen: Seen<'_>, ip: &Ipv6, mut at: usize) -> Option<()> {
    let end = HEADER_LEN + usize::from(IPV6_HEADER_LEN) + usize::from(ip.payload_len);
    if end > seen.len || end > seen.head.len() || at > end {
        return None;
    }
    while at < end {
        let [kind, units] = seen.array(at)?;
        let next = at + 8 * usize::from(units);
        let foreign = LINK_LAYER_ADDRESSES.contains(&kind)
            && (units != 1 || seen.array(at + 2)? != seen.src.0);
        if units == 0 || next > end || foreign {
            return None;
        }
        at = next;
    }
    Some(())
}

/// The role in which an ICMPv6 message speaks.
pub(super) enum SpeaksAs {
    /// The sender speaks as a router.
    Router,
    /// The sender speaks as the station that has this address, if the copied front shows the address.
    Station(Option<Ipv6Addr>),
    /// The sender makes no claim beyond its source address.
    Nobody,
}

/// The role in which the message at `at` speaks.
pub(super) fn speaks_as(seen: Seen<'_>, at: usize) -> SpeaksAs {
    match seen.array(at) {
        Some([ROUTER_ADVERTISEMENT | REDIRECT]) => SpeaksAs::Router,
        Some([NEIGHBOUR_ADVERTISEMENT]) => {
            SpeaksAs::Station(seen.array::<16>(at + 8).map(Ipv6Addr::from))
        }
        Some(_) => SpeaksAs::Nobody,
        None => SpeaksAs::Station(None),
    }
}

/// Guests that may send from any address, but not act as a station that others rely on: a router, a DHCP server, or a
/// station that is known to be somebody else. The struct has the addresses of such stations, which these guests must
/// not claim.
#[derive(Debug)]
pub(super) struct Roles {
    pub(super) others: Box<[IpAddr]>,
}

impl Roles {
    pub(super) fn check(&self, seen: Seen<'_>, of: u16) -> Result<(), DropReason> {
        match of {
            ethertype::ARP => self.arp(seen).ok_or(DropReason::SourceGuardArp),
            ethertype::IPV4 | ethertype::IPV6 => {
                match Layers::parse(seen.head).map(|it| it.network) {
                    Ok(Network::Ipv4(ip)) => self.ipv4(seen, &ip),
                    Ok(Network::Ipv6(ip)) => self.ipv6(seen, &ip),
                    // No station takes such a frame.
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    fn is_others(&self, address: impl Into<IpAddr>) -> bool {
        self.others.contains(&address.into())
    }

    /// Refuses a packet that claims another station's address, for any MAC address.
    fn arp(&self, seen: Seen<'_>) -> Option<()> {
        // A checksum that a receiver fills in would change the packet after the check.
        if seen.csum_at.is_some() {
            return None;
        }
        match Arp::read(seen) {
            Some(arp) => (!self.is_others(arp.sender.1)).then_some(()),
            // The packet is not ARP of IPv4 over Ethernet.
            None => Some(()),
        }
    }

    fn ipv4(&self, seen: Seen<'_>, ip: &Ipv4) -> Result<(), DropReason> {
        let at = HEADER_LEN + usize::from(ip.header_len);
        let first = seen.be16(HEADER_LEN + 6).is_some_and(|field| field & 0x1fff == 0);
        let is_server = || {
            ip.protocol == protocol::UDP
                && first
                // Ports that weir does not see could be any.
                && (seen.ports(at).is_none_or(|ports| ports.0 == dhcp::PORTS.1)
                    || !seen.stays_up_to(at + UDP_CSUM))
        };
        match self.is_others(ip.src) || !seen.stays_up_to(at) || is_server() {
            true => Err(DropReason::SourceGuardIp),
            false => Ok(()),
        }
    }

    fn ipv6(&self, seen: Seen<'_>, ip: &Ipv6) -> Result<(), DropReason> {
        let (refused, hidden) = (Err(DropReason::SourceGuardIp), Err(DropReason::SourceGuardNd));
        if self.is_others(ip.src) {
            return refused;
        }
        let at = HEADER_LEN + usize::from(ip.header_len);
        if !seen.stays_up_to(at) {
            return hidden;
        }
        let first = !ip.fragment || seen.be16(at - 6).is_some_and(|field| field & 0xfff8 == 0);
        match ip.protocol {
            // The rule is that of any guard (RFC 7113).
            _ if protocol::is_extension(ip.protocol) => hidden,
            protocol::ICMPV6 if seen.csum_at.is_some() => hidden,
            protocol::ICMPV6 if first => {
                let claimed = match speaks_as(seen, at) {
                    SpeaksAs::Router => return hidden,
                    SpeaksAs::Station(address) => address,
                    SpeaksAs::Nobody => return Ok(()),
                };
                // An address that weir does not see could be any.
                match claimed.is_none_or(|address| self.is_others(address)) {
                    true => hidden,
                    false => Ok(()),
                }
            }
            protocol::UDP if first => {
                let is_server = seen.ports(at).is_none_or(|ports| ports.0 == dhcp::PORTS6.1);
                if is_server || !seen.stays_up_to(at + UDP_CSUM) { refused } else { Ok(()) }
            }
            _ => Ok(()),
        }
    }
}
