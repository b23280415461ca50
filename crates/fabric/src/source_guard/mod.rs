//! Checks the source addresses of a guest's frames above Ethernet: in IPv4, IPv6, ARP and neighbour discovery.
//!
//! A frame is judged by its front, which is copied out of the sender's memory and delivered from the copy. A
//! message passes only if the front shows all of it: no later fragment, no headers beyond the front, no checksum
//! still to be filled in among the judged bytes. ARP and neighbour discovery must match the Ethernet source, which
//! has its own [check](crate::MacCheck).

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use ipnet::IpNet;
use weir_wire::ethernet::HEADER_LEN;
use weir_wire::layers::protocol;
use weir_wire::{Ethernet, Ipv4, Ipv6, Layers, Mac, Network, Ports, Transport, ethertype};

use crate::DropReason;

pub mod dhcp;
mod leases;
mod neighbour;
#[cfg(test)]
mod tests;

pub use leases::{Lease, Origin};

use dhcp::{Answer, Transaction};
use leases::{Arp, Leases, Seen, UDP_CSUM, UDP_LEN};
use neighbour::Roles;

/// The rules for a guest's frames.
#[derive(Debug)]
pub struct SourceGuard {
    addresses: Box<[IpNet]>,
    /// The guest may act as a router, or as a DHCP server.
    router: bool,
    /// The guest's addresses by DHCP, if these count.
    leases: Option<Arc<Leases>>,
    /// The guest may have any address except some, and must not act as a router or server.
    roles: Option<Roles>,
}

impl SourceGuard {
    /// A guard for a guest with these addresses. A `router` may also advertise itself as one, and answer DHCP.
    pub fn new(addresses: impl Into<Box<[IpNet]>>, router: bool) -> Self {
        Self { addresses: addresses.into(), router, leases: None, roles: None }
    }

    /// A guard for a guest that may send from any address except `others`, and is neither a router nor a DHCP server.
    pub fn of_roles(others: impl Into<Box<[IpAddr]>>) -> Self {
        let roles = Roles { others: others.into() };
        Self { roles: Some(roles), ..Self::new([], false) }
    }

    /// Adds the addresses that DHCP gives the guest from now on, and those that it had given under `before`.
    pub fn snooping(self, before: Option<&Self>) -> Self {
        let known = before.and_then(|before| before.leases.clone());
        Self { leases: Some(known.unwrap_or_default()), ..self }
    }

    /// True if the guard wants to see [answers](Self::snoop) of DHCP.
    pub fn snoops(&self) -> bool {
        self.leases.is_some()
    }

    /// The guest's addresses by DHCP.
    pub fn leases(&self, now_secs: u32) -> impl Iterator<Item = Lease> {
        self.leases.iter().flat_map(move |leases| leases.held(now_secs))
    }

    /// Adds an address that the guest had under another guard, if such addresses count.
    pub fn recall(&self, lease: Lease) {
        if let Some(leases) = &self.leases {
            leases.recall(lease);
        }
    }

    /// True if a frame that begins with `head` can be an answer of DHCP.
    pub fn may_be_answer(head: &[u8]) -> bool {
        datagram(head, false).is_some()
    }

    /// Learns from a DHCP answer to the guest, sent by a port that may give answers. An address that the guest did not
    /// have before becomes its own if it `is_free`.
    pub fn snoop(
        &self,
        frame: &[u8],
        origin: Origin,
        now_secs: u32,
        is_free: impl FnMut(IpAddr) -> bool,
    ) {
        let (Some(leases), Ok(ethernet)) = (&self.leases, Ethernet::parse(frame)) else { return };
        let Some((at, ports)) = datagram(frame, false) else { return };
        let message = frame.get(at + UDP_LEN..).unwrap_or(&[]);
        let answer = match ports.dst == dhcp::PORTS.0 {
            true => Answer::four(message),
            false => Answer::six(message),
        };
        if let Some(answer) = answer {
            leases.answered(&answer, ethernet.dst, origin, now_secs, is_free);
        }
    }

    /// True if the guest got the address from a source of this kind.
    pub fn holds(&self, address: IpAddr, origin: Origin, now_secs: u32) -> bool {
        self.leases.as_ref().is_some_and(|leases| {
            leases.any(now_secs, |lease| (lease.address, lease.origin) == (address, origin))
        })
    }

    /// True if the guard wants to see a [question](Self::snoop_question) that the guest asks.
    pub fn may_be_question(&self, head: &[u8]) -> bool {
        self.snoops() && datagram(head, true).is_some()
    }

    /// Notes a DHCP message that the guest sends. The message must [pass](Self::check) and be from the guest's own MAC
    /// address: a question in another's name would get that station's address.
    pub fn snoop_question(&self, frame: &[u8], now_secs: u32) {
        let (Some(leases), Ok(ethernet)) = (&self.leases, Ethernet::parse(frame)) else { return };
        let Some((at, ports)) = datagram(frame, true) else { return };
        let message = frame.get(at + UDP_LEN..).unwrap_or(&[]);
        let transaction = match ports.src == dhcp::PORTS.0 {
            true => Transaction::four(message),
            false => Transaction::six(message),
        };
        if let Some(transaction) = transaction {
            leases.asked(transaction, ethernet.src, now_secs);
        }
        dhcp::each_released(message, |address| leases.released(address));
    }

    /// Judges a frame of `len` bytes that begins with `head`. Its VLAN tag was taken off. `csum_at` is the place of a
    /// checksum that is still to be filled in.
    ///
    /// # Errors
    /// [`DropReason::SourceGuardIp`], [`DropReason::SourceGuardArp`], [`DropReason::SourceGuardNd`] or
    /// [`DropReason::SourceGuardOther`].
    pub fn check(
        &self,
        head: &[u8],
        len: u32,
        csum_at: Option<usize>,
        now_secs: u32,
    ) -> Result<(), DropReason> {
        let ethernet = Ethernet::parse(head).map_err(|_| DropReason::SourceGuardOther)?;
        let seen = Seen { head, len: len as usize, src: ethernet.src, csum_at, now_secs };
        if let Some(roles) = &self.roles {
            return match ethernet.tag {
                Some(_) => Err(DropReason::SourceGuardOther),
                None => roles.check(seen, ethernet.ethertype),
            };
        }
        match ethernet.ethertype {
            // Another tag, or a protocol that carries other packets, could hide anything.
            _ if ethernet.tag.is_some() => Err(DropReason::SourceGuardOther),
            ethertype::IPV4 | ethertype::IPV6 => match Layers::parse(head).map(|it| it.network) {
                Ok(Network::Ipv4(ip)) => self.ipv4(seen, &ip),
                Ok(Network::Ipv6(ip)) => self.ipv6(seen, &ip),
                _ => Err(DropReason::SourceGuardIp),
            },
            ethertype::ARP => self.arp(seen).ok_or(DropReason::SourceGuardArp),
            ethertype::RARP => self.rarp(seen).ok_or(DropReason::SourceGuardArp),
            _ => Err(DropReason::SourceGuardOther),
        }
    }

    /// True if the guest has an address. Its link-local address is made from its MAC address (RFC 4291 appendix A).
    fn has(&self, address: IpAddr, seen: Seen<'_>) -> bool {
        self.addresses.iter().any(|own| own.contains(&address))
            || address == IpAddr::V6(link_local(seen.src))
            || self.leases.as_ref().is_some_and(|leases| leases.has(address, seen.now_secs))
    }

    fn ipv4(&self, seen: Seen<'_>, ip: &Ipv4) -> Result<(), DropReason> {
        let refused = Err(DropReason::SourceGuardIp);
        let at = HEADER_LEN + usize::from(ip.header_len);
        let first = seen.be16(HEADER_LEN + 6).is_some_and(|field| field & 0x1fff == 0);
        if !seen.stays_up_to(at) {
            return refused;
        }
        let (mut asks_for_an_address, mut renews) = (false, false);
        if ip.protocol == protocol::UDP && first {
            // Ports that cannot be read could be any ports.
            let Some(ports) = seen.ports(at) else { return refused };
            let from_client = ports == dhcp::PORTS;
            // A question in another's name would get that station's address.
            let forged = from_client && !dhcp::is_from(seen, at);
            if forged
                || ports.0 == dhcp::PORTS.1 && !self.router
                || !seen.stays_up_to(at + UDP_CSUM)
            {
                return refused;
            }
            asks_for_an_address = from_client && !ip.fragment && ip.dst.is_broadcast();
            // The guest continues to use an address that it got before weir could see it.
            renews = self.snoops()
                && from_client
                && !ip.fragment
                && dhcp::is_own_address(seen, at, ip.src);
        }
        let has = renews || self.has(ip.src.into(), seen);
        let may = has || ip.src.is_unspecified() && asks_for_an_address;
        if may { Ok(()) } else { refused }
    }

    /// Checks a request or a reply (RFC 826), or a probe (RFC 5227 §1.1).
    fn arp(&self, seen: Seen<'_>) -> Option<()> {
        let arp = Arp::read(seen)?;
        let probes = arp.operation == Arp::REQUEST && arp.sender.1.is_unspecified();
        let is_known = matches!(arp.operation, Arp::REQUEST | Arp::REPLY);
        let own = probes || self.has(arp.sender.1.into(), seen);
        (is_known && arp.sender.0 == seen.src && own).then_some(())
    }

    /// Checks a "who am I" (RFC 903), from which switches learn a guest that has moved.
    fn rarp(&self, seen: Seen<'_>) -> Option<()> {
        let arp = Arp::read(seen)?;
        let own = arp.sender.1.is_unspecified() || self.has(arp.sender.1.into(), seen);
        let asks_of_itself = [arp.sender.0, arp.target.0] == [seen.src; 2];
        (arp.operation == Arp::REVERSE_REQUEST && asks_of_itself && own).then_some(())
    }

    fn ipv6(&self, seen: Seen<'_>, ip: &Ipv6) -> Result<(), DropReason> {
        let (refused, hidden) = (Err(DropReason::SourceGuardIp), Err(DropReason::SourceGuardNd));
        let unspecified = ip.src.is_unspecified();
        if !unspecified && !self.has(ip.src.into(), seen) {
            return refused;
        }
        let at = HEADER_LEN + usize::from(ip.header_len);
        if !seen.stays_up_to(at) {
            return hidden;
        }
        // The fragment header is the last of the headers that were walked.
        let first = !ip.fragment || seen.be16(at - 6).is_some_and(|field| field & 0xfff8 == 0);
        match ip.protocol {
            // The headers continue beyond the front, are too many, or lie behind a fragment header (RFC 7112).
            _ if protocol::is_extension(ip.protocol) => return hidden,
            // No driver leaves this checksum to others.
            protocol::ICMPV6 if seen.csum_at.is_some() => return hidden,
            protocol::ICMPV6 if first => {
                return neighbour::check(self, seen, ip, at);
            }
            protocol::UDP if first => {
                let Some(ports) = seen.ports(at) else { return refused };
                if ports.0 == dhcp::PORTS6.1 && !self.router || !seen.stays_up_to(at + UDP_CSUM) {
                    return refused;
                }
            }
            _ => {}
        }
        if unspecified { refused } else { Ok(()) }
    }
}

/// The offset of the UDP header of a client's or a server's DHCP message, and its ports.
fn datagram(frame: &[u8], of_client: bool) -> Option<(usize, Ports)> {
    let Transport::Udp { offset, ports } = Layers::parse(frame).ok()?.transport else {
        return None;
    };
    let (client, server) = if of_client { (ports.src, ports.dst) } else { (ports.dst, ports.src) };
    let known = [dhcp::PORTS, dhcp::PORTS6].contains(&(client, server));
    known.then_some((usize::from(offset), ports))
}

/// The link-local address that a station makes of its MAC address.
fn link_local(mac: Mac) -> Ipv6Addr {
    let Mac([a, b, c, d, e, f]) = mac;
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}
