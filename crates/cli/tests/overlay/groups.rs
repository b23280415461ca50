//! Security groups over hosts: two weirs, and the kernel's VXLAN device with `gbp`.

use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

use etherparse::PacketBuilder;
use weir_testing::eventually;
use weir_vif::WaitFor;
use weir_wire::Mac;

use crate::bed::{Guest, Host, Underlay, mac, vif};
use crate::evpn::{start_keeper, upgrade};

const SYN: u8 = 2;
const ACK: u8 = 16;

fn address(last: u8) -> [u8; 4] {
    [10, 0, 0, last]
}

/// A TCP segment from guest `from` to guest `to`.
fn tcp(from: u8, to: u8, ports: [u16; 2], flags: u8) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2(mac(from).0, mac(to).0)
        .ipv4(address(from), address(to), 64)
        .tcp(ports[0], ports[1], 7, 1000);
    let builder = if flags & SYN == 0 { builder } else { builder.syn() };
    let builder = if flags & ACK == 0 { builder } else { builder.ack(8) };
    let mut frame = Vec::new();
    builder.write(&mut frame, &[]).unwrap();
    frame
}

fn udp(from: u8, to: (Mac, u8), port: u16) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2(mac(from).0, to.0.0)
        .ipv4(address(from), address(to.1), 64)
        .udp(4000, port);
    let mut frame = Vec::new();
    builder.write(&mut frame, b"words").unwrap();
    frame
}

/// The next frame of IPv4 that the guest gets within a while.
fn hears(guest: &mut Guest, patience: Duration) -> Option<Vec<u8>> {
    let (end, mut frame) = (Instant::now() + patience, Vec::new());
    while Instant::now() < end {
        while guest.pair.recv_into(&mut frame).is_some() {
            if frame.get(12..14) == Some(&[8, 0]) {
                return Some(frame);
            }
        }
        let _ = guest.pair.wait(WaitFor::Receive, Duration::from_millis(5));
    }
    None
}

fn must_hear(guest: &mut Guest, expected: &[u8]) {
    assert_eq!(hears(guest, Duration::from_secs(60)).as_deref(), Some(expected));
}

/// Groups as all hosts have them.
fn groups(rules: &str) -> String {
    format!(
        "[group.lb]\n[group.web]\ndefault_out = \"deny\"\n\
         rules = [{{ direction = \"in\", from = \"group:lb\" }}{rules}]\n\
         [group-ids]\n17 = [\"lb\"]\n20 = [\"web\"]\n"
    )
}

fn with_gbp(config: &str) -> String {
    config.replacen("[overlay]\n", "[overlay]\ngbp = true\n", 1)
}

#[test]
fn root_a_connection_from_a_group_of_another_host_goes_on_after_an_upgrade() {
    if !weir_testing::is_root("network namespaces") {
        return;
    }
    let mut underlay = Underlay::new(2);
    let here = &underlay.hosts[0];
    let _keeper = start_keeper(here);
    let keeper = format!("[switch]\nkeeper = {:?}\n", here.socket("keeper"));
    let web = vif(here, "web0", "blue", Some(mac(1))) + "groups = [\"web\"]\n" + &groups("");
    let config = with_gbp(&Underlay::config(1, &[("blue", 100, &[2])], &web));
    underlay.hosts[0].start_weir(&(keeper + &config));
    let there = &underlay.hosts[1];
    let ports = vif(there, "lb0", "blue", Some(mac(2)))
        + "groups = [\"lb\"]\n"
        + &vif(there, "none0", "blue", Some(mac(3)))
        + &groups("");
    let config = with_gbp(&Underlay::config(2, &[("blue", 100, &[1])], &ports));
    underlay.hosts[1].start_weir(&config);
    let [one, two] = &underlay.hosts[..] else { panic!("two hosts") };
    let mut web = one.guest("web0", mac(1));
    let (mut lb, mut none) = (two.guest("lb0", mac(2)), two.guest("none0", mac(3)));
    let refused = |guest: &mut Guest, frame: &[u8]| {
        let before = one.dropped("web0", "group_in");
        guest.send(frame);
        let refused = || (one.dropped("web0", "group_in") == before + 1).then_some(());
        eventually("it is refused", refused);
    };

    refused(&mut none, &tcp(3, 1, [5000, 80], SYN));
    lb.send(&tcp(2, 1, [5000, 80], SYN));
    must_hear(&mut web, &tcp(2, 1, [5000, 80], SYN));
    web.send(&tcp(1, 2, [80, 5000], SYN | ACK));
    must_hear(&mut lb, &tcp(1, 2, [80, 5000], SYN | ACK));
    lb.send(&tcp(2, 1, [5000, 80], ACK));
    must_hear(&mut web, &tcp(2, 1, [5000, 80], ACK));

    // The next weir knows no connection. A connection goes on, whichever end sends first.
    for first in ["web", "lb"] {
        upgrade(one);
        let (data, answer) = (tcp(1, 2, [80, 5000], ACK), tcp(2, 1, [5000, 80], ACK));
        if first == "web" {
            web.send(&data);
            must_hear(&mut lb, &data);
        }
        lb.send(&answer);
        must_hear(&mut web, &answer);
        web.send(&data);
        must_hear(&mut lb, &data);
        refused(&mut none, &tcp(3, 1, [5001, 80], SYN));
    }
    assert_eq!(one.dropped("overlay", "bad_encapsulation"), 0);
}

/// Makes the VXLAN device of a Linux host anew, with these words.
fn make_vxlan(kernel: &Host, words: &str) {
    let _ = kernel.command("ip link del vxlan100").output().unwrap();
    kernel.run(&format!(
        "ip link add vxlan100 address {} type vxlan id 100 local 192.0.2.2 remote 192.0.2.1 dstport 4789 {words}",
        mac(9)
    ));
    // The device's own neighbour discovery would be refused and counted.
    kernel.run("sysctl -qw net.ipv6.conf.vxlan100.disable_ipv6=1");
    kernel.run("ip link set vxlan100 mtu 1450 up");
    kernel.run("ip addr add 10.0.0.9/24 dev vxlan100");
    for guest in [1, 3] {
        kernel.run(&format!("ip neigh add 10.0.0.{guest} lladdr {} dev vxlan100", mac(guest)));
    }
}

/// Datagrams that have reached the port of the Linux host with the mark, as its rules count.
fn counted(kernel: &Host, mark: &str) -> u64 {
    let rules = kernel.run("nft list ruleset");
    let line = rules.lines().find(|line| line.contains(mark) && line.contains("packets"));
    let (_, count) = line.unwrap_or_else(|| panic!("{rules}")).split_once("packets ").unwrap();
    count.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn root_the_kernels_gbp_is_a_group_here_and_groups_here_are_its_mark() {
    if !weir_testing::is_root("network namespaces") || !weir_testing::has("nft", "nftables") {
        return;
    }
    let mut underlay = Underlay::new(2);
    let here = &underlay.hosts[0];
    let out = ", { direction = \"out\" }";
    let ports = vif(here, "web0", "blue", Some(mac(1)))
        + "groups = [\"web\"]\n"
        + &vif(here, "none0", "blue", Some(mac(3)))
        + &groups(out);
    let config = with_gbp(&Underlay::config(1, &[("blue", 100, &[2])], &ports));
    underlay.hosts[0].start_weir(&config);
    let [one, kernel] = &underlay.hosts[..] else { panic!("two hosts") };
    make_vxlan(kernel, "gbp");
    // The port of a datagram decides its mark: an ID alone, or an ID with the bits D and A.
    let rules = "table inet t {\n\
        chain out {\n type filter hook output priority 0;\n\
        udp dport 17 meta mark set 17\n\
        udp dport 18 meta mark set 18\n\
        udp dport 117 meta mark set 0x480011\n\
        udp dport 118 meta mark set 0x480012\n}\n\
        chain in {\n type filter hook input priority 0;\n\
        iifname \"vxlan100\" udp dport 9 meta mark 0x14 counter\n\
        iifname \"vxlan100\" udp dport 9 meta mark 0x0 counter\n}\n}\n";
    fs::write(kernel.dir.join("rules.nft"), rules).unwrap();
    kernel.run("nft -f rules.nft");
    let mut web = one.guest("web0", mac(1));
    let mut none = one.guest("none0", mac(3));

    let send = |port: u16| {
        kernel.within(|| {
            let socket = UdpSocket::bind((Ipv4Addr::new(10, 0, 0, 9), 0)).unwrap();
            socket.send_to(b"words", (Ipv4Addr::new(10, 0, 0, 1), port)).unwrap();
        });
    };
    for (port, passes) in [(7, false), (17, true), (18, false), (118, false), (117, true)] {
        let before = one.dropped("web0", "group_in");
        send(port);
        match passes {
            true => {
                let frame = hears(&mut web, Duration::from_secs(60)).expect("a datagram");
                assert_eq!(frame[36..38], port.to_be_bytes());
            }
            false => eventually("it is refused", || {
                (one.dropped("web0", "group_in") == before + 1).then_some(())
            }),
        }
    }
    assert_eq!(one.dropped("overlay", "bad_encapsulation"), 0);

    // The other host sees the mark of a guest's set on its frames, and no mark on frames of a guest in no group.
    for (guest, from, mark) in [(&mut web, 1, "0x00000014"), (&mut none, 3, "0x00000000")] {
        let before = counted(kernel, mark);
        guest.send(&udp(from, (mac(9), 9), 9));
        eventually("the kernel has the mark", || {
            (counted(kernel, mark) == before + 1).then_some(())
        });
    }

    // A device without gbp drops frames with an ID, and takes others.
    make_vxlan(kernel, "");
    let marks = ["0x00000014", "0x00000000"];
    let before = marks.map(|mark| counted(kernel, mark));
    web.send(&udp(1, (mac(9), 9), 9));
    none.send(&udp(3, (mac(9), 9), 9));
    eventually("the plain one arrives", || {
        (counted(kernel, marks[1]) == before[1] + 1).then_some(())
    });
    assert_eq!(counted(kernel, marks[0]), before[0]);
    let before = one.dropped("web0", "group_in");
    send(17);
    eventually("no ID, no group", || (one.dropped("web0", "group_in") == before + 1).then_some(()));
}

/// An ARP request of guest `from` for the address of guest `to`.
fn who_has(from: u8, to: u8) -> Vec<u8> {
    let asks = [&[0, 1, 8, 0, 6, 4, 0, 1][..], &mac(from).0, &address(from), &[0; 6], &address(to)];
    [&[0xff; 6][..], &mac(from).0, &[8, 6], &asks.concat(), &[0; 18]].concat()
}

/// A message of neighbour discovery of guest `from`: a solicitation or an advertisement by its type.
fn neighbour(from: u8, to: [u8; 6], kind: u8) -> Vec<u8> {
    let ip = |last| [&[0xfe, 0x80][..], &[0; 13], &[last]].concat().try_into().unwrap();
    let option = [&[if kind == 135 { 1 } else { 2 }, 1][..], &mac(from).0].concat();
    let target: [u8; 16] = ip(from);
    let builder = PacketBuilder::ethernet2(mac(from).0, to)
        .ipv6(ip(from), ip(1), 255)
        .icmpv6_raw(kind, 0, [0; 4]);
    let mut frame = Vec::new();
    builder.write(&mut frame, &[&target[..], &option].concat()).unwrap();
    frame
}

/// Waits until `enough` is true of the numbers of frames that the guest has received from each sender; returns these
/// frames.
fn got(guest: &mut Guest, from: &[u8], enough: impl Fn(&[usize]) -> bool) -> Vec<Vec<Vec<u8>>> {
    let (mut got, mut frame) = (vec![Vec::new(); from.len()], Vec::new());
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        while guest.pair.recv_into(&mut frame).is_some() {
            let sender = from.iter().position(|from| frame[6..12] == mac(*from).0);
            got[sender.expect("a frame of these")].push(frame.clone());
        }
        if enough(&got.iter().map(Vec::len).collect::<Vec<_>>()) {
            return got;
        }
        assert!(Instant::now() < end, "too few frames: {got:?}");
        let _ = guest.pair.wait(WaitFor::Receive, Duration::from_millis(5));
    }
}

#[test]
fn root_an_isolated_guest_gets_no_frame_of_an_isolated_guest_of_another_host() {
    if !weir_testing::is_root("network namespaces") {
        return;
    }
    let mut underlay = Underlay::new(2);
    for (n, other) in [(1, 2), (2, 1)] {
        let here = &underlay.hosts[n - 1];
        // Guests 1 and 2 are isolated, and in a group; 3 and 4 are isolated; 5 and 6 are not.
        let of = |n: usize, more: &str| {
            vif(here, &format!("g{n}"), "blue", None) + "mac_check = false\nisolated = " + more
        };
        let ports = of(n, "true\ngroups = [\"any\"]\n")
            + &of(n + 2, "true\n")
            + &of(n + 4, "false\n")
            + "[group.any]\ndefault_in = \"allow\"\n[group-ids]\n17 = [\"any\"]\n";
        let config = with_gbp(&Underlay::config(n, &[("blue", 100, &[other])], &ports));
        underlay.hosts[n - 1].start_weir(&config);
    }
    let [one, two] = &underlay.hosts[..] else { panic!("two hosts") };
    let guests = |host: &Host, of: [u8; 3]| of.map(|n| host.guest(&format!("g{n}"), mac(n)));
    let mut ends = [(one, [1, 3, 5]), (two, [2, 4, 6])].map(|(host, of)| (guests(host, of), of));
    let kinds = |n: u8| {
        [
            udp(n, (Mac::BROADCAST, 255), 7),
            udp(n, (Mac([1, 0, 0x5e, 0, 0, 251]), 251), 7),
            udp(n, (Mac([0x33, 0x33, 0, 0, 0, 1]), 1), 7),
            udp(n, (mac(77), 77), 7), // an unknown station
            who_has(n, 1),
            who_has(n, n),
            neighbour(n, [0x33, 0x33, 0xff, 0, 0, 1], 135),
            neighbour(n, [0x33, 0x33, 0, 0, 0, 1], 136),
        ]
    };
    // The last guest of the three is not isolated. It gets all frames, and gets them after the
    // others.
    for (from, to) in [(0, 1), (1, 0)] {
        let [senders, receivers] = ends.get_disjoint_mut([from, to]).unwrap();
        for (guest, n) in senders.0.iter_mut().zip(senders.1) {
            kinds(n).iter().for_each(|frame| guest.send(frame));
        }
        let everybody = [senders.1, receivers.1].concat();
        let [isolated @ .., open] = &mut receivers.0;
        let all = got(open, &everybody, |got| got[..3] == [8; 3]);
        assert!((0..3).all(|n| kinds(senders.1[n]).iter().all(|frame| all[n].contains(frame))));
        for guest in isolated {
            let all = got(guest, &everybody, |got| got[2] == 8);
            assert_eq!([all[0].len(), all[1].len()], [0; 2], "{all:?}");
        }
        for guest in &mut senders.0 {
            got(guest, &everybody, |_| true);
        }
    }
    // Now all stations are known.
    let dropped = |host: &Host| host.dropped("overlay", "isolated");
    let before = [one, two].map(dropped);
    assert_eq!(before, [4; 2], "frames for the unknown station, of two, to two");
    let [(here, _), (there, _)] = &mut ends;
    for (from, n) in here.iter_mut().zip([1, 3, 5]) {
        for to in [2, 4, 6] {
            from.send(&udp(n, (mac(to), to), 8));
        }
    }
    for (to, expected) in there.iter_mut().zip([[0, 0, 1], [0, 0, 1], [1; 3]]) {
        let all = got(to, &[1, 3, 5], |got| got == expected);
        assert!(all.iter().flatten().all(|frame| frame[36..38] == [0, 8]));
    }
    eventually("others are counted", || (dropped(two) == before[1] + 4).then_some(()));
    // A guest that is no longer isolated gets the frames, by a known route.
    two.run("weir vif set g4 isolated=false");
    here[1].send(&udp(3, (mac(4), 4), 9));
    got(&mut there[1], &[3], |got| got == [1]);
    two.run("weir vif set g4 isolated=none");
    one.run("weir vif set g3 isolated=false");
    let before = dropped(two);
    here[1].send(&udp(3, (mac(4), 4), 9));
    got(&mut there[1], &[3], |got| got == [1]);
    assert_eq!(dropped(two), before);
    assert_eq!([one, two].map(|host| host.dropped("overlay", "bad_encapsulation")), [0; 2]);
}
