//! Queries for multicast groups: IGMPv3 (RFC 3376 §4.1) and MLDv2 (RFC 3810 §5.1).

use std::net::{IpAddr, Ipv4Addr};

use weir_limits::{MULTICAST_QUERY_SECS, MULTICAST_RESPONSE_SECS};
use weir_wire::ethernet::HEADER_LEN;
use weir_wire::layers::protocol;
use weir_wire::{Mac, Sum, ethertype};

use crate::advert::{ALL_NODES, link_local};

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
    use super::*;
    use weir_fabric::{Fabric, PortConfig, Snooping, Vid};

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
