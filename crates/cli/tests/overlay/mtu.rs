//! Packets that are too long for the overlay: their sender is told.

use std::net::Ipv4Addr;
use std::time::Duration;

use weir_testing::eventually;
use weir_wire::{Mac, Offload};

use crate::bed::{Guest, Host, Underlay, mac, vif};
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

/// What the guest is told, if it is told anything.
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
        // Its own MTU holds, or that of the overlay's port.
        let mtu = ["mtu = 1450\n", ""][n - 1];
        let probe = "[uplink.probe]\nkind = \"tap\"\nname = \"probe0\"\nnetwork = \"blue\"\n";
        let guard = "source_guard = \"configured\"\naddresses = [\"10.0.0.11\"]\n";
        let ports = probe.to_owned() + mtu + &vif(here, "web0", "blue", Some(mac(n as u8))) + guard;
        let config = Underlay::config(n, &[("blue", 100, &peers[..])], &ports);
        underlay.hosts[n - 1].start_weir(&config);
        underlay.hosts[n - 1].run(&format!("ip addr add 10.0.0.{n}/24 dev probe0"));
        // Somebody who knows better, at both ends: neither tells the other.
        underlay.hosts[n - 1].run("ip link set probe0 mtu 3000");
    }
    let [one, two] = &underlay.hosts[..] else { panic!("two hosts") };
    transfer(one, two, 2);
    // The first has learned, and tells the other by its segment size.
    transfer(two, one, 1);
    assert!(told(one) > 0);
    assert!(one.dropped("probe", "over_mtu_tx") > 0);
    let route = one.run("ip route get 10.0.0.2");
    assert!(route.contains("mtu 1450"), "{route}");
    // Without DF the host cuts its packets then.
    eventually("a long ping", || one.pings(Ipv4Addr::new(10, 0, 0, 2), 1800).then_some(()));
    eventually("one back", || two.pings(Ipv4Addr::new(10, 0, 0, 1), 1800).then_some(()));
    assert!(two.dropped("overlay", "over_mtu_rx") > 0 && told(two) > 0);

    // A guest behind rings, and one that says it is another: that would be another's to hear.
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
    // As fast as it can: no faster than there may be answers, and others are served.
    for _ in 0..2000 {
        while guest.pair.send(&long(mac(1), 11, mac(9)), &Offload::NONE).is_err() {
            guest.pair.flush();
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    guest.pair.flush();
    assert!(one.pings(Ipv4Addr::new(10, 0, 0, 2), 56));
}
