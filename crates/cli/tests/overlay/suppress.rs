//! Requests for neighbours (ARP, neighbour discovery) that are answered locally: FRR provides the owners of IP
//! addresses behind other hosts, and gets those of this host. The test uses Debian's FRR, and as third host a Linux
//! bridge that does the same.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use weir_testing::eventually;
use weir_vif::WaitFor;
use weir_wire::{Mac, Neighbour, Offload, ethertype};

use crate::bed::{Guest, Host, Underlay, mac, vif};
use crate::evpn::{Tells, config, has_frr, is_member, make_bridges, start_frr, station};

fn v4(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, last)
}

fn v6(last: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last)
}

/// An ARP request to all: the station at `src`, which has `ip`, asks for another address.
fn arp(src: Mac, ip: Ipv4Addr, asks: Ipv4Addr) -> Vec<u8> {
    let sender = [&src.0[..], &ip.octets(), &[0; 6], &asks.octets()].concat();
    let packet = [&[0, 1, 8, 0, 6, 4, 0, 1][..], &sender, &[0; 18]].concat();
    [&[0xff; 6][..], &src.0, &ethertype::ARP.to_be_bytes(), &packet].concat()
}

/// The request by neighbour discovery.
fn solicit(src: Mac, ip: Ipv6Addr, asks: Ipv6Addr) -> Vec<u8> {
    let [.., x, y, z] = asks.octets();
    let group =
        Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(x), u16::from_be_bytes([y, z]));
    let mut message = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &asks.octets(), &[1, 1], &src.0].concat();
    let mut sum = weir_wire::Sum::new();
    sum.add(&[ip.octets(), group.octets()].concat());
    sum.add_u32(message.len() as u32);
    sum.add_u32(58);
    sum.add(&message);
    message[2..4].copy_from_slice(&sum.finish().to_be_bytes());
    let header = [0x60, 0, 0, 0, 0, message.len() as u8, 58, 255];
    let header = [&header[..], &ip.octets(), &group.octets()].concat();
    let ethernet = [&[0x33, 0x33, 0xff, x, y, z][..], &src.0, &[0x86, 0xdd]].concat();
    [ethernet, header, message].concat()
}

impl Guest {
    /// The next message about neighbours: the claim and the request in it.
    fn hears_of_neighbours(&mut self, patience: Duration) -> Option<Neighbour> {
        let end = Instant::now() + patience;
        let mut frame = Vec::new();
        while Instant::now() < end {
            while self.pair.recv_into(&mut frame).is_some() {
                // A guest also sends router solicitations and multicast listener reports, which are skipped.
                if let Some(said) = Neighbour::read(&frame) {
                    return Some(said);
                }
            }
            let _ = self.pair.wait(WaitFor::Receive, Duration::from_millis(5));
        }
        None
    }

    /// Asks until there is an answer; returns the MAC address in it.
    fn asks(&mut self, question: &[u8], for_whom: IpAddr) -> Mac {
        eventually("an answer", || {
            self.send(question);
            let said = self.hears_of_neighbours(Duration::from_millis(500))?;
            (said.claims == Some(for_whom)).then_some(said.mac)
        })
    }

    fn hears_no_neighbour(&mut self) -> bool {
        self.hears_of_neighbours(Duration::from_millis(300)).is_none()
    }
}

/// The owner of an IP address, as the host's weir knows it.
fn owner(host: &Host, ip: IpAddr) -> Option<String> {
    let all: serde_json::Value = serde_json::from_str(&host.run("weir addresses --json")).unwrap();
    let has = |it: &&serde_json::Value| {
        let ips = it["ips"].as_array();
        ips.is_some_and(|ips| ips.iter().any(|it| it.as_str() == Some(&ip.to_string())))
    };
    let entry = all.as_array().unwrap().iter().find(has)?;
    Some(entry["mac"].as_str().unwrap().to_owned())
}

/// The owner of the address, as FRR has entered it in the kernel of a host with a Linux bridge.
fn noted(host: &Host, ip: IpAddr) -> Option<String> {
    let all = host.run(&format!("ip neigh show {ip} dev br100"));
    let line = all.lines().find(|line| line.contains("extern_learn"))?;
    let (_, after) = line.split_once("lladdr ")?;
    after.split(' ').next().map(ToOwned::to_owned)
}

fn answered(host: &Host, what: &str) -> u64 {
    let stats: serde_json::Value = serde_json::from_str(&host.run("weir stats --json")).unwrap();
    let ports = stats["ports"].as_array().unwrap();
    let overlay = ports.iter().find(|it| it["name"] == "overlay").unwrap();
    overlay["answers"][what].as_u64().unwrap()
}

const BLUE: [(&str, u32); 1] = [("blue", 100)];

#[test]
fn root_frr_says_who_has_an_ip_address_and_questions_for_it_stay_where_they_are_asked() {
    if !has_frr() {
        return;
    }
    let mut underlay = Underlay::new(3);
    make_bridges(&underlay.hosts[2], 3);
    let _frr = [1, 2, 3].map(|n| {
        let others: Vec<_> = (1..=3).filter(|other| *other != n).collect();
        start_frr(&underlay.hosts[n - 1], n, &others)
    });
    for n in [1, 2] {
        let here = &underlay.hosts[n - 1];
        // The guests: one with configured addresses, one that may have any IP address, and one that may have any MAC
        // address.
        let guarded =
            format!("source_guard = \"configured\"\naddresses = [\"10.0.0.{n}\", \"fd00::{n}\"]\n");
        let guarded = vif(here, "own", "blue", Some(mac(n as u8))) + &guarded;
        let free = vif(here, "free", "blue", Some(mac(10 + n as u8)));
        let any = vif(here, "any", "blue", None) + "mac_check = false\n";
        let text = config(n, &BLUE, &(guarded + &free + &any));
        underlay.hosts[n - 1].start_weir(&text);
    }
    let _tells = Tells(&underlay);
    let [one, two, three] = &underlay.hosts[..] else { panic!("three hosts") };
    let [mut own1, mut free1] = [("own", 1), ("free", 11)].map(|(name, n)| one.guest(name, mac(n)));
    let [mut own2, mut free2] = [("own", 2), ("free", 12)].map(|(name, n)| two.guest(name, mac(n)));
    eventually("all are members", || {
        (is_member(three, "vx100", 1) && is_member(three, "vx100", 2)).then_some(())
    });

    // Configured addresses are known to all hosts, although no guest has sent a frame.
    for (of, n) in [(one, 2), (two, 1)] {
        for ip in [IpAddr::from(v4(n)), v6(n.into()).into()] {
            eventually("a weir knows who has an address", || {
                (owner(of, ip)? == mac(n).to_string()).then_some(())
            });
            eventually("the bridge's FRR does", || {
                (noted(three, ip)? == mac(n).to_string()).then_some(())
            });
        }
    }
    // Addresses that a guest claims are known to all hosts too.
    free2.send(&arp(mac(12), v4(12), v4(99)));
    free2.send(&solicit(mac(12), v6(12), v6(99)));
    for ip in [IpAddr::from(v4(12)), v6(12).into()] {
        eventually("host 1 knows", || (owner(one, ip)? == mac(12).to_string()).then_some(()));
        eventually("the bridge's FRR knows", || {
            (noted(three, ip)? == mac(12).to_string()).then_some(())
        });
    }
    for guest in [&mut own1, &mut free1, &mut own2, &mut free2] {
        while guest.hears_of_neighbours(Duration::from_millis(100)).is_some() {}
    }

    // A request is answered at once, and does not reach the other host.
    for (n, what) in [(2, "arp"), (12, "arp")] {
        assert_eq!(own1.asks(&arp(mac(1), v4(1), v4(n)), v4(n).into()), mac(n), "{what}");
        let asked = solicit(mac(1), v6(1), v6(n.into()));
        assert_eq!(own1.asks(&asked, v6(n.into()).into()), mac(n));
    }
    assert!(own2.hears_no_neighbour() && free2.hears_no_neighbour());
    assert_eq!((answered(one, "arp_answered"), answered(one, "nd_answered")), (2, 2));
    // Guests of the same host receive the request, as on any switch.
    let heard = free1.hears_of_neighbours(Duration::from_secs(10)).expect("the question");
    assert_eq!((heard.mac, heard.asks), (mac(1), Some(v4(2).into())));
    let question: String =
        arp(mac(1), v4(1), v4(2)).iter().map(|byte| format!("{byte:02x}")).collect();
    let traced = one.run(&format!("weir trace own --hex {question}"));
    assert!(traced.contains("weir answers in place of 52:54:00:00:42:02"), "{traced}");
    // A request for an unknown address is flooded.
    own1.send(&arp(mac(1), v4(1), v4(77)));
    let heard = own2.hears_of_neighbours(Duration::from_secs(10)).expect("the question");
    assert_eq!((heard.mac, heard.asks), (mac(1), Some(v4(77).into())));

    // With the bridge it works both ways: the bridge's kernel answers for weirs' guests, and weirs answer for the
    // station.
    let at_blue = station(three, 100, mac(3), "10.0.0.3");
    three.run("ip addr add 10.0.0.254/24 dev br100");
    eventually("the bridge's host reaches its station", || three.pings(v4(3), 56).then_some(()));
    eventually("host 1 knows", || (owner(one, v4(3).into())? == mac(3).to_string()).then_some(()));
    while own1.hears_of_neighbours(Duration::from_millis(100)).is_some() {}
    assert_eq!(own1.asks(&arp(mac(1), v4(1), v4(3)), v4(3).into()), mac(3));
    at_blue.pings(v4(12), 56);
    let neighbours = at_blue.run("ip neigh show 10.0.0.12");
    assert!(neighbours.contains(&mac(12).to_string()), "{neighbours}");
    assert!(own1.hears_no_neighbour(), "the bridge's station is answered by its bridge");

    // A guest claims addresses of others: a configured one, one at another host, and its neighbour's. No claim is
    // announced, and no request is answered with it.
    let mut any1 = one.guest("any", mac(66));
    let liar = mac(66).to_string();
    for _ in 0..10 {
        for n in [1, 2, 12] {
            any1.send(&arp(mac(66), v4(n), v4(n)));
            any1.send(&solicit(mac(66), v6(n.into()), v6(98)));
        }
        std::thread::sleep(Duration::from_millis(100));
        for host in [one, two] {
            let all = host.run("weir addresses --json");
            let all: Vec<serde_json::Value> = serde_json::from_str(&all).unwrap();
            let lies = all.iter().find(|it| it["mac"] == liar && !it["ips"].is_null());
            assert_eq!(lies, None);
        }
        let all = three.run("ip neigh show dev br100");
        assert!(!all.contains(&liar), "{all}");
    }
    for n in [1, 2] {
        assert_eq!(owner(two, v4(n).into()), Some(mac(n).to_string()), "what is configured stays");
    }
    // A guest that floods claims takes only its own room.
    for it in 0..2000_u16 {
        let [high, low] = it.to_be_bytes();
        let claim = arp(mac(66), Ipv4Addr::from([10, 1, high, low]), v4(77));
        while any1.pair.send(&claim, &Offload::NONE).is_err() {
            any1.pair.flush();
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let all: serde_json::Value = serde_json::from_str(&one.run("weir addresses --json")).unwrap();
    let of = |it: &&serde_json::Value| it["mac"] == mac(66).to_string();
    let ips =
        all.as_array().unwrap().iter().find(of).unwrap()["ips"].as_array().map_or(0, Vec::len);
    assert!(ips <= weir_limits::EVPN_CLAIMS_PER_MAC, "{ips}");

    eventually("those that found no room are counted", || {
        (answered(one, "claims_refused") > 0).then_some(())
    });
    assert!(answered(one, "claims_contested") > 0 && answered(two, "claims_contested") > 0);

    // The addresses of a removed interface are withdrawn.
    drop((own2, free2));
    two.run("weir vif del own");
    for ip in [IpAddr::from(v4(2)), v6(2).into()] {
        eventually("host 1 hears that it is gone", || owner(one, ip).is_none().then_some(()));
        eventually("the bridge does", || noted(three, ip).is_none().then_some(()));
    }
}
