//! Guests that may send from any address, but not act as a station that others rely on: a router, a DHCP server, or a
//! station that is known to be somebody else.

use std::net::IpAddr;

use weir_wire::ethernet::HEADER_LEN;
use weir_wire::layers::protocol;
use weir_wire::{Ipv4, Ipv6, Layers, Network, ethertype};

use super::seen::{Arp, Seen, UDP_CSUM};
use super::{dhcp, neighbour};
use crate::DropReason;

/// Addresses of others, which the guest must not claim.
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
        // Filled in, the packet would say something else.
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
                // Ports that are not in sight could be any.
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
                let claimed = match neighbour::speaks_as(seen, at) {
                    neighbour::SpeaksAs::Router => return hidden,
                    neighbour::SpeaksAs::Station(address) => address,
                    neighbour::SpeaksAs::Nobody => return Ok(()),
                };
                // An address that is not in sight could be any.
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
