//! Packets that are too long for the overlay: their sender is notified.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sendto, socket};

use weir_testing::eventually;
use weir_wire::{Mac, Offload};

use crate::bed::{Guest, Host, Underlay, experimental, mac, vif};
use crate::transfer;

fn told(host: &Host) -> u64 {
    let stats: serde_json::Value = serde_json::from_str(&host.run("weir stats --json")).unwrap();
    let overlay = stats["ports"].as_array().unwrap().iter().find(|it| it["name"] == "overlay");
    overlay.unwrap()["answers"]["too_big_answered"].as_u64().unwrap()
}

/// A datagram of 1600 bytes from one address to another.
fn long(from: Mac, ip: u8, to: Mac) -> Vec<u8> {
    let header = [0x45, 0, 6, 64, 0, 1, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, ip, 10, 0, 0, 99];
    let udp = [0, 7, 0, 7, 6, 44, 0, 0];
    [&to.0[..], &from.0, &[8, 0], &header, &udp, &[0; 1572]].concat()
}

/// The ICMP message that the guest receives, if any.
fn hears(guest: &mut Guest) -> Option<Vec<u8>> {
    let mut frame = Vec::new();
    for _ in 0..20 {
        while guest.pair.recv_into(&mut frame).is_some() {
            // ICMP over IPv4: "fragmentation needed".
            if frame.get(12..14) == Some(&[8, 0]) && frame[34..36] == [3, 4] {
                return Some(frame);
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    None
}

#[test]
fn root_who_sends_packets_that_are_too_long_is_told_and_recovers() {
    if !weir_testing::is_root("network namespaces") {
        return;
    }
    let mut underlay = Underlay::new(2);
    for (n, peers) in [(1, [2]), (2, [1])] {
        let here = &underlay.hosts[n - 1];
        // The port's own MTU applies, or the overlay's.
        let mtu = ["mtu = 1450\n", ""][n - 1];
        let probe = "[uplink.probe]\nkind = \"tap\"\nname = \"probe0\"\nnetwork = \"blue\"\n";
        let guard = "source_guard = \"configured\"\naddresses = [\"10.0.0.11\"]\n";
        let ports = probe.to_owned() + mtu + &vif(here, "web0", "blue", Some(mac(n as u8))) + guard;
        let config = Underlay::config(n, &[("blue", 100, &peers[..])], &ports);
        underlay.hosts[n - 1].start_weir(&config);
        underlay.hosts[n - 1].run(&format!("ip addr add 10.0.0.{n}/24 dev probe0"));
        // Both ends wrongly set a larger MTU, so neither tells the other.
        underlay.hosts[n - 1].run("ip link set probe0 mtu 3000");
    }
    let [one, two] = &underlay.hosts[..] else { panic!("two hosts") };
    transfer(one, two, 2);
    // The first host has learned the MTU, and tells the other by its segment size.
    transfer(two, one, 1);
    assert!(told(one) > 0);
    assert!(one.dropped("probe", "over_mtu_tx") > 0);
    let route = one.run("ip route get 10.0.0.2");
    assert!(route.contains("mtu 1450"), "{route}");
    // Without DF the host then fragments its packets.
    eventually("a long ping", || one.pings(Ipv4Addr::new(10, 0, 0, 2), 1800).then_some(()));
    eventually("one back", || two.pings(Ipv4Addr::new(10, 0, 0, 1), 1800).then_some(()));
    assert!(two.dropped("overlay", "over_mtu_rx") > 0 && told(two) > 0);

    // The senders are a guest behind rings, and one that forges another's address: the answer would go to the other.
    let mut guest = one.guest("web0", mac(1));
    let frame = eventually("the guest is told", || {
        guest.send(&long(mac(1), 11, mac(9)));
        hears(&mut guest)
    });
    assert_eq!((&frame[..6], &frame[26..30]), (&mac(1).0[..], &[10, 0, 0, 99][..]));
    assert_eq!(frame[40..42], 1450_u16.to_be_bytes());
    assert_eq!(frame[42..62], long(mac(1), 11, mac(9))[14..34]);
    let before = told(one);
    for forged in
        [long(mac(1), 12, mac(9)), long(mac(8), 11, mac(9)), long(mac(1), 11, Mac::BROADCAST)]
    {
        guest.send(&forged);
        assert_eq!(hears(&mut guest), None);
    }
    assert_eq!(told(one), before);
    // The guest sends as fast as it can, but gets no more answers than the limit, and others are served.
    for _ in 0..2000 {
        while guest.pair.send(&long(mac(1), 11, mac(9)), &Offload::NONE).is_err() {
            guest.pair.flush();
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    guest.pair.flush();
    assert!(one.pings(Ipv4Addr::new(10, 0, 0, 2), 56));
}

/// The address family of the underlay in a test.
#[derive(Clone, Copy, PartialEq)]
enum Family {
    V4,
    V6,
}

impl Family {
    fn address(self, n: u8) -> IpAddr {
        match self {
            Self::V4 => Ipv4Addr::new(192, 0, 2, n).into(),
            Self::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, n.into()).into(),
        }
    }

    fn octets(self, n: u8) -> Vec<u8> {
        match self.address(n) {
            IpAddr::V4(ip) => ip.octets().into(),
            IpAddr::V6(ip) => ip.octets().into(),
        }
    }

    /// Ports from which the weir of host 1 sends (proc_net(5)).
    fn sending_ports(self, host: &Host) -> Vec<u16> {
        let path = match self {
            Self::V4 => "/proc/thread-self/net/udp",
            Self::V6 => "/proc/thread-self/net/udp6",
        };
        let table = host.within(|| fs::read_to_string(path).unwrap());
        let words = self.octets(1);
        let words = words.chunks(4).map(|it| u32::from_ne_bytes(it.try_into().unwrap()));
        let address = words.map(|word| format!("{word:08X}")).collect::<String>() + ":";
        let of_line = |line: &str| {
            let local = line.split_whitespace().nth(1)?;
            let port = local.strip_prefix(&address)?;
            u16::from_str_radix(port, 16).ok().filter(|port| *port != 4789)
        };
        table.lines().filter_map(of_line).collect()
    }

    /// "Packet too big" messages that a host has received, or for IPv4 all ICMP messages.
    fn heard(self, host: &Host) -> Option<usize> {
        let read = |path: &str| host.within(|| fs::read_to_string(path).unwrap());
        let number = |line: &str| line.split_whitespace().nth(1)?.parse().ok();
        match self {
            Self::V4 => {
                let table = read("/proc/thread-self/net/snmp");
                number(table.lines().filter(|line| line.starts_with("Icmp:")).nth(1)?)
            }
            Self::V6 => {
                let table = read("/proc/thread-self/net/snmp6");
                number(table.lines().find(|line| line.starts_with("Icmp6InPktTooBigs"))?)
            }
        }
    }

    /// A message in the name of host `from`, which says that host 1's packets to host 2 from this
    /// port are too long.
    fn too_long(self, from: u8, port: u16) -> Vec<u8> {
        let (from, one, two) = (self.octets(from), self.octets(1), self.octets(2));
        let quoted_udp =
            [&port.to_be_bytes()[..], &4789_u16.to_be_bytes(), &[5, 200, 0, 0]].concat();
        match self {
            Self::V4 => {
                let quoted_ip = [0x45, 0, 5, 220, 0, 0, 0x40, 0, 64, 17, 0, 0];
                let mut icmp =
                    [&[3, 4, 0, 0, 0, 0, 2, 40][..], &quoted_ip, &one, &two, &quoted_udp].concat();
                let sum = checksum(&icmp);
                icmp[2..4].copy_from_slice(&sum);
                // The kernel fills in the rest.
                let header = [0x45, 0, 0, 0, 0, 0, 0, 0, 64, 1, 0, 0];
                [&header[..], &from, &one, &icmp].concat()
            }
            Self::V6 => {
                let quoted_ip = [0x60, 0, 0, 0, 5, 200, 17, 64];
                let mut icmp =
                    [&[2, 0, 0, 0, 0, 0, 5, 0][..], &quoted_ip, &one, &two, &quoted_udp].concat();
                let len = icmp.len() as u8;
                let pseudo = [&from[..], &one, &[0, 0, 0, len, 0, 0, 0, 58], &icmp].concat();
                icmp[2..4].copy_from_slice(&checksum(&pseudo));
                let header = [0x60, 0, 0, 0, 0, len, 58, 64];
                [&header[..], &from, &one, &icmp].concat()
            }
        }
    }
}

fn checksum(words: &[u8]) -> [u8; 2] {
    let sum: u32 = words.chunks(2).map(|it| u32::from(u16::from_be_bytes([it[0], it[1]]))).sum();
    (!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes()
}

/// Hosts 1 and 2 are peers, and host 3 is nobody's peer.
fn nobody_outside_says_how_long_frames_may_be(family: Family) {
    let mut underlay = Underlay::new(3);
    underlay.speak_ipv6();
    for (n, other) in [(1, 2), (2, 1)] {
        let here = &underlay.hosts[n - 1];
        let ports = vif(here, "web0", "blue", Some(mac(n as u8)));
        let config = Underlay::config(n, &[("blue", 100, &[other][..])], &ports);
        let config = if family == Family::V6 { Underlay::in_ipv6(&config) } else { config };
        underlay.hosts[n - 1].start_weir(&config);
    }
    let [one, two, three] = &underlay.hosts[..] else { panic!("three hosts") };
    let [mut web1, mut web2] = [(one, 1), (two, 2)].map(|(host, n)| host.guest("web0", mac(n)));
    web1.say(Mac::BROADCAST, "hello");
    assert_eq!(web2.must_hear().1, "hello");

    let ports = family.sending_ports(one);
    assert!(!ports.is_empty());
    let raw = |host: &Host| -> OwnedFd {
        let family = if family == Family::V6 { AddressFamily::INET6 } else { AddressFamily::INET };
        let protocol = Some(ipproto::RAW);
        host.within(|| socket(family, SocketType::RAW, protocol).unwrap())
    };
    let said = |from: &Host, name: u8| {
        let socket = raw(from);
        for port in &ports {
            let to = SocketAddr::new(family.address(1), 0);
            let packet = family.too_long(name, *port);
            sendto(&socket, &packet, SendFlags::empty(), &to).unwrap();
        }
    };
    // The messages come from a host that is nobody's peer, in its own name and in another's, and from a peer.
    said(three, 3);
    said(three, 2);
    said(two, 2);
    // The kernel has received the messages; its counter is not weir's.
    eventually("the host hears ICMP", || {
        family.heard(one).filter(|heard| *heard >= 2 * ports.len())
    });
    let longest = if family == Family::V6 { 1444 } else { 1464 };
    for round in 0..50 {
        let words = format!("round {round}");
        let mut long = experimental(mac(2), mac(1), &words);
        long.resize(longest, 0);
        web1.send(&long);
        assert_eq!(web2.must_hear().1, words);
    }
    assert_eq!(one.dropped("overlay", "over_path_mtu"), 0);
    if family == Family::V6 {
        // weir's sockets do not make the host believe the messages either.
        let way = one.run("ip route get 2001:db8::2");
        assert!(!way.contains("mtu"), "{way}");
    }
}

#[test]
fn root_nobody_outside_says_how_long_frames_may_be() {
    if weir_testing::is_root("network namespaces") {
        nobody_outside_says_how_long_frames_may_be(Family::V4);
    }
}

#[test]
fn root_nobody_outside_says_how_long_frames_may_be_by_ipv6() {
    if weir_testing::is_root("network namespaces") {
        nobody_outside_says_how_long_frames_may_be(Family::V6);
    }
}
