//! The headers of an answer, and echo replies.

use std::net::{IpAddr, SocketAddr};

use weir_wire::checksum::{Sum, nonzero};
use weir_wire::ethernet::HEADER_LEN;
use weir_wire::layers::{IPV4_HEADER_LEN_MIN, IPV6_HEADER_LEN, UDP_HEADER_LEN, protocol};
use weir_wire::{Mac, ethertype};

/// The hop limit of weir's packets.
const HOPS: u8 = 64;
/// The offsets of checksums in the headers of UDP and TCP.
const UDP_CHECKSUM_AT: usize = 6;
const TCP_CHECKSUM_AT: usize = 16;
/// The types of ICMP and of ICMPv6 (RFC 792, RFC 4443 §4.1).
const ECHO_REQUEST: [u8; 2] = [8, 128];
const ECHO_REPLY: [u8; 2] = [0, 129];

/// The addresses of a datagram or a connection from weir to a guest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    /// weir's MAC address, and the guest's.
    pub(crate) macs: (Mac, Mac),
    pub(crate) from: SocketAddr,
    /// The guest's address, of the same family.
    pub(crate) to: SocketAddr,
}

impl Way {
    /// The frame of a datagram.
    pub(crate) fn datagram(&self, payload: &[u8]) -> Option<Vec<u8>> {
        let udp_len = u16::try_from(usize::from(UDP_HEADER_LEN) + payload.len()).ok()?;
        let mut datagram = Vec::with_capacity(udp_len.into());
        datagram.extend(self.from.port().to_be_bytes());
        datagram.extend(self.to.port().to_be_bytes());
        datagram.extend(udp_len.to_be_bytes());
        datagram.extend([0, 0]);
        datagram.extend(payload);
        self.packet(protocol::UDP, &datagram, UDP_CHECKSUM_AT)
    }

    /// The frame of a TCP segment, complete except for its checksum.
    pub(crate) fn segment(&self, segment: &[u8]) -> Option<Vec<u8>> {
        self.packet(protocol::TCP, segment, TCP_CHECKSUM_AT)
    }

    /// The frame of a packet, whose checksum is filled in.
    fn packet(&self, protocol: u8, payload: &[u8], checksum_at: usize) -> Option<Vec<u8>> {
        let len = u16::try_from(payload.len()).ok()?;
        let mut frame =
            Vec::with_capacity(HEADER_LEN + usize::from(IPV6_HEADER_LEN) + payload.len());
        frame.extend(self.macs.1.0);
        frame.extend(self.macs.0.0);
        match (self.from.ip(), self.to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let total_len = IPV4_HEADER_LEN_MIN.checked_add(len)?;
                frame.extend(ethertype::IPV4.to_be_bytes());
                frame.extend([0x45, 0]);
                frame.extend(total_len.to_be_bytes());
                // No identification, and not to be fragmented.
                frame.extend([0, 0, 0x40, 0, HOPS, protocol, 0, 0]);
                frame.extend(from.octets());
                frame.extend(to.octets());
                let mut sum = Sum::new();
                sum.add(frame.get(HEADER_LEN..)?);
                put(&mut frame, HEADER_LEN + 10, sum.finish());
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                frame.extend(ethertype::IPV6.to_be_bytes());
                frame.extend([0x60, 0, 0, 0]);
                frame.extend(len.to_be_bytes());
                frame.extend([protocol, HOPS]);
                frame.extend(from.octets());
                frame.extend(to.octets());
            }
            _ => return None,
        }
        let at = frame.len();
        let addresses = if self.from.is_ipv4() { 2 * 4 } else { 2 * 16 };
        // With the pseudo header of RFC 768 and of RFC 9293 §3.1.
        let mut sum = Sum::new();
        sum.add(frame.get(at - addresses..)?);
        sum.add_u32(protocol.into());
        sum.add_u32(len.into());
        frame.extend(payload);
        sum.add(frame.get(at..)?);
        put(&mut frame, at + checksum_at, nonzero(sum.finish()));
        Some(frame)
    }
}

/// The reply to the echo request whose ICMP message begins at `at`. The MAC addresses are swapped, and so are the IP
/// addresses, which have `address_len` bytes each and begin at `addresses`.
pub(crate) fn echo_reply(
    frame: &[u8],
    own: Mac,
    at: usize,
    (addresses, address_len): (usize, usize),
) -> Option<Vec<u8>> {
    let (kind, code) = (*frame.get(at)?, *frame.get(at + 1)?);
    let which = ECHO_REQUEST.iter().position(|request| *request == kind).filter(|_| code == 0)?;
    let mut reply = frame.to_vec();
    let asker: [u8; 6] = frame.get(6..12)?.try_into().ok()?;
    reply.get_mut(..6)?.copy_from_slice(&asker);
    reply.get_mut(6..12)?.copy_from_slice(&own.0);
    let (from, to) =
        reply.get_mut(addresses..addresses + 2 * address_len)?.split_at_mut(address_len);
    from.swap_with_slice(to);
    *reply.get_mut(at)? = ECHO_REPLY[which];
    // The checksum is updated for the new type only (RFC 1624), so that a wrong one stays wrong.
    let sum = u16::from_be_bytes(frame.get(at + 2..at + 4)?.try_into().ok()?);
    let [before, after] = [ECHO_REQUEST, ECHO_REPLY].map(|kinds| u16::from(kinds[which]) << 8);
    let mut changed = Sum::new();
    changed.add(&(!sum).to_be_bytes());
    changed.add(&(!before).to_be_bytes());
    changed.add(&after.to_be_bytes());
    put(&mut reply, at + 2, changed.finish());
    Some(reply)
}

fn put(frame: &mut [u8], at: usize, value: u16) {
    if let Some(place) = frame.get_mut(at..at + 2) {
        place.copy_from_slice(&value.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    //! Datagrams, as another implementation reads them and as weir does.

    use etherparse::{NetHeaders, PacketHeaders, PayloadSlice, TransportHeader};

    use super::*;
    use crate::answer::{Station, Wanted};

    const WEIR: Mac = Mac([0x52, 0x54, 0, 0, 0, 0xfe]);
    const GUEST: Mac = Mac([0x52, 0x54, 0, 0, 0, 1]);

    fn question(from: &str, to: &str) -> Vec<u8> {
        let way = Way { macs: (GUEST, WEIR), from: from.parse().unwrap(), to: to.parse().unwrap() };
        way.datagram(b"some bytes").unwrap()
    }

    #[test]
    fn datagrams_of_both_families_are_what_others_take_for_such() {
        for (from, to) in
            [("192.168.77.9:4000", "192.168.77.1:53"), ("[fd00::9]:4000", "[fd00::1]:53")]
        {
            let frame = question(from, to);
            let headers = PacketHeaders::from_ethernet_slice(&frame).unwrap();
            let PayloadSlice::Udp(payload) = headers.payload else { panic!("{headers:?}") };
            assert_eq!(payload, b"some bytes");
            let Some(TransportHeader::Udp(udp)) = headers.transport else { panic!() };
            assert_eq!((udp.source_port, udp.destination_port), (4000, 53));
            let (sum, addresses) = match headers.net.unwrap() {
                NetHeaders::Ipv4(ip, _) => {
                    assert_eq!(ip.header_checksum, ip.calc_header_checksum());
                    let addresses = (ip.source.into(), ip.destination.into());
                    (udp.calc_checksum_ipv4(&ip, payload), addresses)
                }
                NetHeaders::Ipv6(ip, _) => {
                    let addresses = (ip.source.into(), ip.destination.into());
                    (udp.calc_checksum_ipv6(&ip, payload), addresses)
                }
                other => panic!("{other:?}"),
            };
            assert_eq!(udp.checksum, sum.unwrap());
            let [from, to] = [from, to].map(|it| it.parse::<SocketAddr>().unwrap().ip());
            assert_eq!(addresses, (from, to));
        }
        let mixed = Way {
            macs: (GUEST, WEIR),
            from: "192.168.77.9:4000".parse().unwrap(),
            to: "[fd00::1]:53".parse().unwrap(),
        };
        assert_eq!(mixed.datagram(b""), None);
    }

    #[test]
    fn names_are_asked_of_weir_at_its_own_addresses_and_by_who_can_be_answered() {
        let ips = ["192.168.77.1", "fd00::1"].map(|ip| ip.parse().unwrap());
        let mut station = Station {
            mac: WEIR,
            ips: ips.into(),
            has_dhcp: true,
            has_names: true,
            is_host: true,
            ra: None,
        };
        for (from, to, is_asked) in [
            ("192.168.77.9:4000", "192.168.77.1:53", true),
            ("[fd00::9]:4000", "[fd00::1]:53", true),
            ("192.168.77.9:4000", "192.168.77.1:54", false),
            ("192.168.77.9:4000", "192.168.77.2:53", false),
            ("[fd00::9]:4000", "[fd00::2]:53", false),
            ("192.168.77.9:0", "192.168.77.1:53", false),
            ("0.0.0.0:4000", "192.168.77.1:53", false),
            ("255.255.255.255:4000", "192.168.77.1:53", false),
            ("224.0.0.251:4000", "192.168.77.1:53", false),
            ("[::]:4000", "[fd00::1]:53", false),
            ("[ff02::fb]:4000", "[fd00::1]:53", false),
        ] {
            let frame = question(from, to);
            // weir answers questions for names even if the host has the address.
            for is_host in [false, true] {
                station.is_host = is_host;
                let wanted = station.wants(&frame);
                assert_eq!(matches!(wanted, Some(Wanted::Names(_))), is_asked, "{from} {to}");
            }
            let mut elsewhere = frame.clone();
            elsewhere[..6].copy_from_slice(&Mac::BROADCAST.0);
            assert_eq!(
                station.wants(&elsewhere),
                None,
                "a datagram for all stations is not answered"
            );
        }
        station.has_names = false;
        assert_eq!(station.wants(&question("192.168.77.9:4000", "192.168.77.1:53")), None);
    }
}
