//! Networks over hosts: weirs and Linux bridges with the kernel's VXLAN device, in a routed underlay of network
//! namespaces, and attacks on them. The tests need root; without root they are counted as skipped.

mod addresses;
mod attack;
mod bed;
mod budget;
mod evpn;
mod groups;
mod mtu;
mod suppress;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use weir_testing::eventually;
use weir_wire::Mac;

use bed::{Guest, Guide, Host, Underlay, datagram, experimental, mac, vif};

#[test]
fn root_tenants_with_the_same_addresses_on_two_hosts_hear_their_own_only() {
    if !weir_testing::is_root("network namespaces") {
        return;
    }
    let mut underlay = Underlay::new(3);
    for (n, other) in [(1, 2), (2, 1)] {
        let here = &underlay.hosts[n - 1];
        // The address is the same in both networks, and host 3 is not in red.
        let vifs = ["blue", "red"].map(|network| vif(here, network, network, Some(mac(n as u8))));
        let networks: [(&str, u32, &[usize]); 2] =
            [("blue", 100, &[other, 3]), ("red", 200, &[other])];
        let config = Underlay::config(n, &networks, &vifs.concat());
        underlay.hosts[n - 1].start_weir(&config);
    }
    let [one, two] = [1, 2].map(|n| {
        let guest = |name: &str| underlay.hosts[n - 1].guest(name, mac(n as u8));
        ["blue", "red"].map(guest)
    });
    let ([mut blue1, mut red1], [mut blue2, mut red2]) = (one, two);

    // The first frame is a broadcast, and the next ones go to the host that answered.
    blue1.say(Mac::BROADCAST, "blue to all");
    assert_eq!(blue2.must_hear(), (mac(1), "blue to all".into()));
    red1.say(Mac::BROADCAST, "red to all");
    assert_eq!(red2.must_hear(), (mac(1), "red to all".into()));
    for round in 0..50 {
        let words = ["blue", "red"].map(|colour| format!("{colour} {round}"));
        blue2.say(mac(1), &words[0]);
        red2.say(mac(1), &words[1]);
        assert_eq!(blue1.must_hear(), (mac(2), words[0].clone()));
        assert_eq!(red1.must_hear(), (mac(2), words[1].clone()));
        blue1.say(mac(2), &words[0]);
        red1.say(mac(2), &words[1]);
        assert_eq!(blue2.must_hear(), (mac(1), words[0].clone()));
        assert_eq!(red2.must_hear(), (mac(1), words[1].clone()));
    }

    // Each kind of attack has its counter, and no guest receives anything.
    let forged = |vni, src: Mac| datagram(vni, &experimental(Mac::BROADCAST, src, "forged"));
    let send = |from: usize, datagrams: &[Vec<u8>]| {
        underlay.hosts[from - 1].within(|| {
            let socket = UdpSocket::bind((Ipv4Addr::new(192, 0, 2, from as u8), 0)).unwrap();
            for datagram in datagrams {
                socket.send_to(datagram, "192.0.2.1:4789").unwrap();
            }
        });
    };
    let first = &underlay.hosts[0];
    // Host 3 is no member of red, no host has network 300, and the rest is no VXLAN.
    send(3, &[forged(200, mac(77)), forged(300, mac(77)), b"nonsense".to_vec(), Vec::new()]);
    // A member claims an address that is configured here, sends a tagged frame, and sends a truncated frame.
    let mut tagged = experimental(Mac::BROADCAST, mac(78), "forged");
    tagged[12..14].copy_from_slice(&[0x81, 0x00]);
    send(2, &[forged(100, mac(1)), datagram(100, &tagged), datagram(100, &[1; 13])]);
    let expected = [
        ("remote_unknown", 1),
        ("network_unknown", 1),
        ("bad_encapsulation", 3),
        ("src_mac_owned", 1),
        ("frame_too_short", 1),
    ];
    for (reason, count) in expected {
        eventually(reason, || (first.dropped("overlay", reason) == count).then_some(()));
    }
    assert!([&mut blue1, &mut red1].into_iter().all(Guest::hears_nothing));
    // The address is still the guest's.
    blue2.say(mac(1), "after the attack");
    assert_eq!(blue1.must_hear(), (mac(2), "after the attack".into()));

    // A tenant asks for the underlay's addresses. There is no answer, and its frames to them go nowhere else.
    let question = |target: [u8; 4]| {
        let arp = [&[0, 1, 8, 0, 6, 4, 0, 1][..], &mac(1).0, &[192, 0, 2, 99], &[0; 6], &target];
        [&[0xff; 6][..], &mac(1).0, &[8, 6], &arp.concat(), &[0; 18]].concat()
    };
    for last in [1, 2, 254] {
        blue1.send(&question([192, 0, 2, last]));
    }
    blue1.say(Mac::BROADCAST, "asked");
    assert_eq!(blue2.must_hear(), (mac(1), "asked".into()));
    let mut frame = Vec::new();
    assert!(blue1.pair.recv_into(&mut frame).is_none(), "an answer: {frame:?}");
    assert!(red2.hears_nothing() && red1.hears_nothing());

    // No frame was lost, and no host sent a received frame back.
    for n in [1, 2] {
        let stats = underlay.hosts[n - 1].run("weir stats --json");
        let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
        let overlay = stats["ports"].as_array().unwrap().iter().find(|it| it["name"] == "overlay");
        let drops = overlay.unwrap()["drops"].as_object().unwrap().clone();
        let known = |reason: &str| n == 1 && expected.iter().any(|(known, _)| *known == reason);
        assert!(drops.keys().all(|reason| known(reason)), "host {n}: {drops:?}");
    }
}

#[test]
fn root_tcp_flows_between_weirs_and_a_linux_bridge_with_the_kernels_vxlan() {
    if !weir_testing::is_root("network namespaces") || !weir_testing::has("ethtool", "ethtool") {
        return;
    }
    let mut underlay = Underlay::new(3);
    for (n, peers) in [(1, [2, 3]), (2, [1, 3])] {
        let here = &underlay.hosts[n - 1];
        let probe =
            "[uplink.probe]\nkind = \"tap\"\nname = \"probe0\"\nnetwork = \"blue\"\nmtu = 1450\n";
        let ports = probe.to_owned() + &vif(here, "web0", "blue", None);
        let config = Underlay::config(n, &[("blue", 100, &peers[..])], &ports);
        underlay.hosts[n - 1].start_weir(&config);
        underlay.hosts[n - 1].run(&format!("ip addr add 10.0.0.{n}/24 dev probe0"));
    }
    let kernel = &underlay.hosts[2];
    // A veth leaves the checksums and segments of inner packets to its other end, where the socket does not complete
    // them. A network card completes them before the wire.
    kernel.run("ethtool -K u0 tx off");
    kernel.run("ip link add br100 type bridge");
    kernel.run("ip link add vxlan100 type vxlan id 100 local 192.0.2.3 dstport 4789");
    for n in [1, 2] {
        kernel.run(&format!("bridge fdb append 00:00:00:00:00:00 dev vxlan100 dst 192.0.2.{n}"));
    }
    kernel.run("ip link set vxlan100 mtu 1450 master br100 up");
    kernel.run("ip link set br100 up");
    kernel.run("ip addr add 10.0.0.3/24 dev br100");

    let end = AtomicBool::new(false);
    thread::scope(|scope| {
        let _at_the_end = weir_testing::SetAtEnd(&end);
        let guests = [1, 2].map(|n: u8| {
            (
                underlay.hosts[usize::from(n) - 1].guest("web0", mac(n)),
                Ipv4Addr::new(10, 0, 0, 10 + n),
            )
        });
        for (mut guest, ip) in guests {
            let end = &end;
            scope.spawn(move || guest.answers(ip, end));
        }
        // Every station reaches every other one: TAPs, the bridge, and guests behind rings.
        for (n, host) in (1..).zip(&underlay.hosts) {
            for target in [1, 2, 3, 11, 12].into_iter().filter(|target| *target != n) {
                let what = format!("host {n} reaches 10.0.0.{target}");
                // With the headers of IP and ICMP the packet is as long as the MTU.
                let target = Ipv4Addr::new(10, 0, 0, target);
                eventually(&what, || host.pings(target, 1422).then_some(()));
            }
        }
    });

    for (from, to) in [(1, 2), (2, 1), (1, 3), (3, 1), (3, 2)] {
        transfer(&underlay.hosts[from - 1], &underlay.hosts[to - 1], to as u8);
    }
    for n in [1, 2] {
        for reason in ["over_mtu_rx", "over_mtu_tx", "over_path_mtu", "bad_encapsulation"] {
            assert_eq!(underlay.hosts[n - 1].dropped("overlay", reason), 0, "host {n}: {reason}");
        }
    }
}

/// Transfers some megabytes over TCP, which must arrive unchanged.
pub(crate) fn transfer(from: &Host, to: &Host, address: u8) {
    const LEN: usize = 8 << 20;
    let sent: Vec<u8> = (0..LEN).map(|at| ((at * 131) >> 3) as u8).collect();
    let listener =
        to.within(|| TcpListener::bind((Ipv4Addr::new(10, 0, 0, address), 5001)).unwrap());
    thread::scope(|scope| {
        let receiver = scope.spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).unwrap();
            bytes
        });
        let mut stream =
            from.within(|| TcpStream::connect((Ipv4Addr::new(10, 0, 0, address), 5001)).unwrap());
        stream.write_all(&sent).unwrap();
        drop(stream);
        assert!(receiver.join().unwrap() == sent, "to 10.0.0.{address}: bytes differ");
    });
}

#[test]
fn root_every_command_of_the_guide_for_two_hosts_works() {
    if !weir_testing::is_root("network namespaces") || !weir_testing::has("ethtool", "ethtool") {
        return;
    }
    let guide = Guide::read("two-hosts.md");
    let mut underlay = Underlay::new(3);
    underlay.hosts[2].run("ethtool -K u0 tx off");
    guide.write(&underlay, "toml", "weir.toml", 2);
    let commands = guide.run(&mut underlay, |_, _| false);
    assert!(commands >= 17, "{commands} commands");
}

#[test]
fn root_commands_name_networks_and_the_hosts_that_are_not_heard() {
    if !weir_testing::is_root("network namespaces") {
        return;
    }
    let mut underlay = Underlay::new(3);
    for (n, other) in [(1, 2), (2, 1)] {
        let port = vif(&underlay.hosts[n - 1], "blue", "blue", Some(mac(n as u8)));
        // Host 3 has no guest that sends.
        let config = Underlay::config(n, &[("blue", 100, &[other, 3])], &port);
        underlay.hosts[n - 1].start_weir(&config);
    }
    let [mut one, mut two] = [1, 2].map(|n| underlay.hosts[n - 1].guest("blue", mac(n as u8)));
    let here = &underlay.hosts[0];
    one.say(Mac::BROADCAST, "to all");
    assert_eq!(two.must_hear(), (mac(1), "to all".into()));
    two.say(mac(1), "back");
    assert_eq!(one.must_hear(), (mac(2), "back".into()));
    let plain = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let explained = eventually("the weirs have spoken", || {
        one.say(mac(2), "again");
        Some(here.run("weir explain overlay")).filter(|it| it.contains("its weir answers"))
    });
    let words = plain(&explained);
    assert!(words.contains("blue 100 192.0.2.2 its weir answers 1"), "{explained}");
    assert!(words.contains("blue 100 192.0.2.3 nothing yet 0 -"), "{explained}");
    assert!(explained.contains("nothing has come so far from 192.0.2.3: ping"), "{explained}");
    let of_hosts = || {
        // The exit code reports that something is wrong.
        let doctor = here.command("weir doctor --json").output().unwrap();
        let doctor: serde_json::Value = serde_json::from_slice(&doctor.stdout).unwrap();
        let found = doctor["findings"].as_array().unwrap().clone();
        let found = found.into_iter().filter(|it| it["check"] == "overlay-host");
        found.map(|it| (it["wrong"] == true, it["what"].to_string())).collect::<Vec<_>>()
    };
    let found = of_hosts();
    assert!(found.len() == 1 && !found[0].0 && found[0].1.contains("192.0.2.3"), "{found:?}");
    let trace = here.run(&format!("weir trace blue 'eth.dst={}'", mac(2)));
    for says in ["is in network blue", "leaves for other hosts of its network", "is behind overlay"]
    {
        assert!(trace.contains(says), "{says}: {trace}");
    }
    assert!(!trace.contains("VLAN") && !trace.contains("port 1"), "{trace}");
    let known: serde_json::Value =
        serde_json::from_str(&here.run("weir addresses --json")).unwrap();
    for entry in known.as_array().unwrap() {
        assert_eq!(entry["age_s"].is_null(), entry["configured"] == true, "{known:#}");
    }
    let first = here.run("weir explain blue");
    assert!(first.starts_with("blue: traffic "), "{first}");
    assert!(!first.starts_with("blue: traffic does not pass"), "{first}");

    // A host that was heard falls silent.
    let other = &underlay.hosts[1];
    other.run(&format!("kill -KILL {}", other.weir.as_ref().unwrap().pid()));
    eventually("host 2 is asked in vain", || {
        one.say(mac(2), "are you there");
        let said = here.run("weir explain overlay");
        said.contains("nothing comes from 192.0.2.2").then_some(())
    });
    let found = of_hosts();
    assert!(found.iter().any(|(wrong, what)| *wrong && what.contains("192.0.2.2")), "{found:?}");
}
