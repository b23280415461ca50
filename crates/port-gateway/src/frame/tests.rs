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
    for (from, to) in [("192.168.77.9:4000", "192.168.77.1:53"), ("[fd00::9]:4000", "[fd00::1]:53")]
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
        assert_eq!(station.wants(&elsewhere), None, "a datagram for all stations is not answered");
    }
    station.has_names = false;
    assert_eq!(station.wants(&question("192.168.77.9:4000", "192.168.77.1:53")), None);
}
