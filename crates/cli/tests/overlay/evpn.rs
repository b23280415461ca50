//! Networks under BGP EVPN: FRR on each host provides the location of stations. Debian's package `frr` has FRR. Also
//! the replacement of a weir by another one, as other hosts see it.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use std::{fs, thread};

use weir_bed::fabric::{Frr, of_frr};
use weir_bed::process::Process;
use weir_limits::{EVPN_ADOPT_NS, EVPN_WITHDRAWN_NS};
use weir_testing::eventually;
use weir_wire::Mac;

use crate::bed::{Guest, Guide, Host, Underlay, experimental, mac, vif};

/// True if the test can run: as root, with FRR and ethtool.
pub(crate) fn has_frr() -> bool {
    if !weir_testing::is_root("network namespaces") {
        return false;
    }
    let is_there = Frr::is_installed();
    if !is_there {
        weir_testing::skipped(
            "FRR is not installed here, nor in WEIR_FRR_ROOT: apt-get install frr",
        );
    }
    is_there && weir_testing::has("ethtool", "ethtool")
}

/// FRR on host `n`, with others as neighbours.
pub(crate) fn start_frr(host: &Host, n: usize, others: &[usize]) -> Frr {
    Frr::start(host, n, others, None).unwrap()
}

/// FRR on a host with a configuration of the test's own.
fn start_frr_as(host: &Host, text: &str) -> Frr {
    Frr::prepare(host).unwrap();
    fs::write(host.dir.join("frr.conf"), text).unwrap();
    host.run("cp frr.conf /run/frr/frr.conf");
    Frr::with(host, "/run/frr/frr.conf", &["zebra", "bgpd"]).unwrap()
}

/// Prints the state of each host if a test fails.
pub(crate) struct Tells<'a>(pub(crate) &'a Underlay);

impl Drop for Tells<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        for host in &self.0.hosts {
            for line in ["cat weir.log", "tail -n 30 bgpd.log zebra.log", "bridge fdb show"] {
                let output = host.command(line).output().unwrap();
                eprintln!("--- {}: {line}", host.dir.display());
                eprintln!("{}", String::from_utf8_lossy(&output.stdout));
            }
        }
    }
}

/// The configuration of host `n`, with locations from FRR.
pub(crate) fn config(n: usize, networks: &[(&str, u32)], ports: &str) -> String {
    let overlay = format!("[overlay]\nlocal = \"192.0.2.{n}\"\ninterface = \"u0\"\nevpn = true\n");
    let network = |(name, vni): &(&str, u32)| format!("[network.{name}]\nvni = {vni}\n");
    overlay + &networks.iter().map(network).collect::<String>() + ports
}

const NETWORKS: [(&str, u32); 2] = [("blue", 100), ("red", 200)];

/// Starts a weir with a guest in each network, whose address is configured, and one in blue that may have any
/// address.
fn start_weir(underlay: &mut Underlay, n: usize) {
    let here = &underlay.hosts[n - 1];
    let vifs = NETWORKS.map(|(name, _)| vif(here, name, name, Some(mac(n as u8))));
    let any = vif(here, "any", "blue", None) + "mac_check = false\n";
    let text = config(n, &NETWORKS, &(vifs.concat() + &any));
    underlay.hosts[n - 1].start_weir(&text);
}

fn guests(host: &Host, n: usize) -> [Guest; 2] {
    ["blue", "red"].map(|name| host.guest(name, mac(n as u8)))
}

/// Sets up host `n` as a Linux bridge for each network.
pub(crate) fn make_bridges(host: &Host, n: usize) {
    host.run("ethtool -K u0 tx off");
    for (_, vni) in NETWORKS {
        host.run(&format!("ip link add br{vni} type bridge"));
        host.run(&format!(
            "ip link add vx{vni} type vxlan id {vni} local 192.0.2.{n} dstport 4789 nolearning"
        ));
        host.run(&format!("ip link set vx{vni} mtu 1450 master br{vni}"));
        host.run(&format!("ip link set vx{vni} type bridge_slave learning off neigh_suppress on"));
        host.run(&format!("ip link set vx{vni} up"));
        host.run(&format!("ip link set br{vni} up"));
    }
}

/// A station behind the bridge of a network on a host: a namespace of its own.
pub(crate) fn station(host: &Host, vni: u32, mac: Mac, ip: &str) -> Host {
    let station = Host::new(host.dir.join(format!("station{vni}")));
    let there = station.pid();
    host.run(&format!("ip link add s{vni} type veth peer name e0 netns {there}"));
    host.run(&format!("ip link set s{vni} master br{vni} up"));
    station.run(&format!("ip link set e0 address {mac} mtu 1450 up"));
    station.run(&format!("ip addr add {ip}/24 dev e0"));
    station
}

/// True if FRR on a host has recorded that an address is at host `at`.
pub(crate) fn is_noted(host: &Host, device: &str, mac: Mac, at: usize) -> bool {
    let all = host.run(&format!("bridge fdb show dev {device}"));
    let expected = format!("{mac} dst 192.0.2.{at} ");
    all.lines().any(|line| line.starts_with(&expected))
}

/// True if the host counts host `at` as a member of the network.
pub(crate) fn is_member(host: &Host, device: &str, at: usize) -> bool {
    is_noted(host, device, Mac([0; 6]), at)
}

/// The host behind which weir has an address of a network.
pub(crate) fn behind(host: &Host, network: &str, mac: Mac) -> Option<String> {
    let all: serde_json::Value = serde_json::from_str(&host.run("weir addresses --json")).unwrap();
    let of = |it: &&serde_json::Value| it["network"] == network && it["mac"] == mac.to_string();
    let entry = all.as_array().unwrap().iter().find(of)?;
    entry["host"].as_str().map(ToOwned::to_owned)
}

/// Frames that a device has received.
fn received(host: &Host, device: &str) -> u64 {
    let link = host.run(&format!("ip -s -j link show dev {device}"));
    let link: serde_json::Value = serde_json::from_str(&link).unwrap();
    link[0]["stats64"]["rx"]["packets"].as_u64().unwrap()
}

#[test]
fn root_frr_says_who_is_where_among_weirs_and_linux_bridges() {
    if !has_frr() {
        return;
    }
    let mut underlay = Underlay::new(3);
    make_bridges(&underlay.hosts[2], 3);
    let mut frr = [1, 2, 3].map(|n| {
        let others: Vec<_> = (1..=3).filter(|other| *other != n).collect();
        start_frr(&underlay.hosts[n - 1], n, &others)
    });
    for n in [1, 2] {
        start_weir(&mut underlay, n);
    }
    let [one, two, three] = &underlay.hosts[..] else { panic!("three hosts") };
    let [mut blue1, mut red1] = guests(one, 1);
    let [mut blue2, mut red2] = guests(two, 2);
    let _tells = Tells(&underlay);

    // No station has sent a frame, but every host knows every location.
    eventually("the bridge hears of both weirs' guests", || {
        [1, 2].iter().all(|&n| is_noted(three, "vx100", mac(n as u8), n)).then_some(())
    });
    eventually("a frame for host 2's guest arrives", || {
        blue1.say(mac(2), "hello");
        blue2.hears(Duration::from_millis(100))
    });
    while blue2.hears(Duration::from_millis(100)).is_some() {}

    // Tenants with the same addresses receive only their own frames.
    blue1.say(Mac::BROADCAST, "blue to all");
    assert_eq!(blue2.must_hear(), (mac(1), "blue to all".into()));
    eventually("red knows its members", || {
        red1.say(Mac::BROADCAST, "red to all");
        red2.hears(Duration::from_millis(100))
    });
    for round in 0..20 {
        let words = ["blue", "red"].map(|colour| format!("{colour} {round}"));
        blue2.say(mac(1), &words[0]);
        red2.say(mac(1), &words[1]);
        assert_eq!(blue1.must_hear(), (mac(2), words[0].clone()));
        assert_eq!(red1.must_hear(), (mac(2), words[1].clone()));
    }
    assert!([&mut blue1, &mut blue2].into_iter().all(Guest::hears_nothing));

    // An address without a fixed host is at the host where it was last used.
    let [mut here, mut there] = [one, two].map(|host| host.guest("any", mac(7)));
    for _ in 0..2 {
        there.say(Mac::BROADCAST, "I am at host 2");
        eventually("the address is at host 2", || {
            (behind(one, "blue", mac(7))? == "192.0.2.2").then_some(())
        });
        here.say(Mac::BROADCAST, "I am at host 1");
        eventually("the address is at host 1", || {
            (behind(two, "blue", mac(7))? == "192.0.2.1").then_some(())
        });
        eventually("the bridge knows it, too", || {
            is_noted(three, "vx100", mac(7), 1).then_some(())
        });
    }
    drop((here, there));
    for guest in [&mut blue1, &mut blue2] {
        while guest.hears(Duration::from_millis(100)).is_some() {}
    }

    // Traffic with a station behind the bridge works both ways; the other network uses the same addresses.
    let at_blue = station(three, 100, mac(3), "10.0.0.3");
    let at_red = station(three, 200, mac(3), "10.0.0.3");
    let end = AtomicBool::new(false);
    thread::scope(|scope| {
        let _at_the_end = weir_testing::SetAtEnd(&end);
        let ip = |n| Ipv4Addr::new(10, 0, 0, n);
        for (guest, n) in [(&mut blue1, 11), (&mut blue2, 12), (&mut red2, 12)] {
            let end = &end;
            scope.spawn(move || guest.answers(ip(n), end));
        }
        for (station, n) in [(&at_blue, 11), (&at_blue, 12), (&at_red, 12)] {
            let what = format!("the station reaches 10.0.0.{n}");
            eventually(&what, || station.pings(ip(n), 1422).then_some(()));
        }
        assert!(!at_red.pings(ip(11), 56), "10.0.0.11 of the other tenant answers");
    });
    // The station's location comes from the bridge's FRR, not from frames.
    for network in ["blue", "red"] {
        eventually("host 1 hears of the station", || {
            (behind(one, network, mac(3))? == "192.0.2.3").then_some(())
        });
    }

    // A removed interface is withdrawn, in its network only.
    two.run("weir vif del red");
    eventually("the bridge hears that it is gone", || {
        (!is_noted(three, "vx200", mac(2), 2)).then_some(())
    });
    eventually("host 1 hears that it is gone", || {
        behind(one, "red", mac(2)).is_none().then_some(())
    });
    assert_eq!(behind(one, "blue", mac(2)).as_deref(), Some("192.0.2.2"));

    // BGP ends on host 1, and zebra removes its entries from the kernel. weir keeps them, for longer than withdrawn
    // ones.
    frr[0].daemons.pop();
    eventually("zebra has removed what it had noted", || {
        (!is_noted(one, "weirv100", mac(2), 2)).then_some(())
    });
    thread::sleep(3 * Duration::from_nanos(EVPN_WITHDRAWN_NS));
    assert_eq!(behind(one, "blue", mac(2)).as_deref(), Some("192.0.2.2"));
    // Host 2 has learned that host 1 has left, and accepts nothing from it. Host 1 still sends to host 2, and only
    // there.
    let (before, at_three) = (two.dropped("overlay", "remote_unknown"), received(three, "vx100"));
    blue1.say(mac(2), "without FRR");
    eventually("host 1 sends to host 2", || {
        (two.dropped("overlay", "remote_unknown") > before).then_some(())
    });
    assert_eq!(received(three, "vx100"), at_three);
    frr[0].daemons.clear();
    frr[0] = start_frr(one, 1, &[2, 3]);
    eventually("FRR is back", || is_noted(one, "weirv100", mac(2), 2).then_some(()));

    // A weir that dies is withdrawn with all its stations.
    drop((blue2, red2));
    two.run(&format!("kill -KILL {}", two.weir.as_ref().unwrap().pid()));
    eventually("the bridge hears that the weir is gone", || {
        let is_gone = !is_noted(three, "vx100", mac(2), 2) && !is_member(three, "vx100", 2);
        is_gone.then_some(())
    });
}

#[test]
fn root_a_station_that_is_withdrawn_after_zebra_was_restarted_alone_goes() {
    if !has_frr() {
        return;
    }
    let mut underlay = Underlay::new(2);
    make_bridges(&underlay.hosts[1], 2);
    let mut frr = [(1, 2), (2, 1)].map(|(n, other)| start_frr(&underlay.hosts[n - 1], n, &[other]));
    start_weir(&mut underlay, 1);
    let [one, two] = &underlay.hosts[..] else { panic!("two hosts") };
    let _tells = Tells(&underlay);
    let _guest = one.guest("blue", mac(1));
    two.run("ip link add s100 type veth peer name e100");
    two.run("ip link set s100 master br100 up");
    for last in [3, 4] {
        two.run(&format!("bridge fdb add {} dev s100 master static", mac(last)));
    }
    let knows = |last| behind(one, "blue", mac(last)).as_deref() == Some("192.0.2.2");
    eventually("host 1 hears of both stations", || (knows(3) && knows(4)).then_some(()));
    let said =
        |words: &str| std::fs::read_to_string(one.dir.join("weir.log")).unwrap().contains(words);

    frr[0].daemons.remove(0).kill();
    eventually("weir sees it end", || said("FRR is gone").then_some(()));
    let mut zebra = Frr::with(one, "/run/frr/frr.conf", &["zebra"]).unwrap();
    frr[0].daemons.insert(0, zebra.daemons.remove(0));
    eventually("bgpd is back at it", || said("zebra was restarted alone").then_some(()));
    eventually("the next zebra knows of the stations", || {
        let all = one.run(&of_frr("vtysh -c 'show evpn mac vni 100'"));
        [3, 4].iter().all(|&last| all.contains(&mac(last).to_string())).then_some(())
    });
    assert!(knows(3) && knows(4), "and weir has known of them all the time");
    two.run(&format!("bridge fdb del {} dev s100 master", mac(3)));
    eventually("the station is gone at host 1", || (!knows(3)).then_some(()));
    assert!(knows(4));
    eventually("host 2 knows of host 1's guest", || {
        is_noted(two, "vx100", mac(1), 1).then_some(())
    });
}

/// True if FRR installs stations behind hosts with IPv6 addresses.
fn has_vxlan_over_ipv6() -> bool {
    let version = Frr::version().unwrap();
    let numbers = version.split_whitespace().last().unwrap().split(['.', '-']);
    let numbers: Vec<u32> = numbers.map_while(|number| number.parse().ok()).collect();
    numbers >= vec![10, 6]
}

#[test]
fn root_an_underlay_of_ipv6_takes_an_frr_that_has_vxlan_over_it() {
    if !has_frr() {
        return;
    }
    let mut underlay = Underlay::new(2);
    underlay.speak_ipv6();
    let _frr = [(1, 2), (2, 1)].map(|(n, other)| {
        let host = &underlay.hosts[n - 1];
        let there = format!("neighbor 2001:db8::{other}");
        let text = format!(
            "router bgp 65000\n bgp router-id 192.0.2.{n}\n no bgp default ipv4-unicast\n {there} remote-as 65000\n \
             {there} timers connect 1\n address-family l2vpn evpn\n  {there} activate\n  advertise-all-vni\n"
        );
        start_frr_as(host, &text)
    });
    let configs = [1, 2].map(|n| {
        let blue = vif(&underlay.hosts[n - 1], "blue", "blue", Some(mac(n as u8)));
        Underlay::in_ipv6(&config(n, &[("blue", 100)], &blue))
    });
    if !has_vxlan_over_ipv6() {
        let host = &underlay.hosts[0];
        std::fs::write(host.dir.join("weir.toml"), &configs[0]).unwrap();
        let output = host.command("weir run weir.toml").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr)
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        assert!(!output.status.success());
        for words in ["has no VXLAN over IPv6", "take FRR 10.6 or later"] {
            assert!(said.contains(words), "{said}");
        }
        return;
    }
    for (host, text) in underlay.hosts.iter_mut().zip(configs) {
        host.start_weir(&text);
    }
    let [one, two] = &underlay.hosts[..] else { panic!("two hosts") };
    let _tells = Tells(&underlay);
    let [mut here, mut there] = [(one, 1), (two, 2)].map(|(host, n)| host.guest("blue", mac(n)));
    eventually("host 1 hears where host 2's guest is", || {
        (behind(one, "blue", mac(2))? == "2001:db8::2").then_some(())
    });
    eventually("a frame arrives", || {
        here.say(mac(2), "over IPv6");
        there.hears(Duration::from_millis(100))
    });
    drop(there);
    eventually("host 1 hears that the guest is gone", || {
        behind(one, "blue", mac(2)).is_none().then_some(())
    });
}

/// The guide has a line for such hosts, without which FRR announces nothing.
#[test]
fn root_hosts_of_different_ases_hear_of_each_other_by_the_line_of_the_guide() {
    if !has_frr() {
        return;
    }
    let guide = include_str!("../../../../docs/guide/evpn.md");
    let about = guide.split("**Another AS on each host**").nth(1).expect("a word on eBGP");
    let line = about.split('`').nth(1).expect("a line to write");
    let mut underlay = Underlay::new(2);
    let _frr = [(1, 2), (2, 1)].map(|(n, other)| {
        let there = format!("neighbor 192.0.2.{other}");
        let text = format!(
            "router bgp 6500{n}\n bgp router-id 192.0.2.{n}\n no bgp default ipv4-unicast\n \
             {there} remote-as 6500{other}\n {there} ebgp-multihop\n {there} timers connect 1\n \
             address-family l2vpn evpn\n  {there} activate\n  advertise-all-vni\n"
        );
        start_frr_as(&underlay.hosts[n - 1], &text)
    });
    for n in [1, 2] {
        start_weir(&mut underlay, n);
    }
    let hosts = &underlay.hosts;
    let _tells = Tells(&underlay);
    let _guests = [1, 2].map(|n| guests(&hosts[n - 1], n));
    let vtysh = |n: usize, lines: &[&str]| {
        let lines: String = lines.iter().map(|line| format!(" -c '{line}'")).collect();
        hosts[n - 1].run(&of_frr(&format!("vtysh{lines}")))
    };
    for n in [1, 2] {
        eventually("FRR has no policy", || {
            vtysh(n, &["show bgp l2vpn evpn summary"]).contains("(Policy)").then_some(())
        });
    }
    let knows = |n: usize| behind(&hosts[n - 1], "blue", mac(3 - n as u8)).is_some();
    assert!(!knows(1) && !knows(2));
    for n in [1, 2] {
        vtysh(n, &["configure terminal", &format!("router bgp 6500{n}"), line]);
        vtysh(n, &["clear bgp *"]);
    }
    eventually("each host hears of the other's guest", || (knows(1) && knows(2)).then_some(()));
}

#[test]
fn root_every_command_of_the_guide_for_a_fabric_works() {
    if !has_frr() {
        return;
    }
    let guide = Guide::read("evpn.md");
    let mut underlay = Underlay::new(3);
    for host in &underlay.hosts {
        // The files of Debian's package, for this host alone.
        host.run("mkdir -p /etc/frr");
        host.run("mount -t tmpfs none /etc/frr");
        host.run("printf 'zebra=yes\\nbgpd=no\\n' > /etc/frr/daemons");
        host.run("touch /etc/frr/vtysh.conf");
        Frr::prepare(host).unwrap();
    }
    underlay.hosts[2].run("ethtool -K u0 tx off");
    guide.write(&underlay, "toml", "weir.toml", 2);
    guide.write(&underlay, "conf", "/etc/frr/frr.conf", 3);
    let mut frr = Vec::new();
    let commands = guide.run(&mut underlay, |host, line| {
        // There is no service manager.
        let restarts = line == "systemctl restart frr";
        if restarts {
            host.run("grep -x bgpd=yes /etc/frr/daemons");
            frr.push(Frr::with(host, "/etc/frr/frr.conf", &["zebra", "bgpd"]).unwrap());
        }
        let asks = line.starts_with("vtysh ");
        if asks {
            host.run(&of_frr(line));
        }
        restarts || asks
    });
    assert!(commands >= 25 && frr.len() == 3, "{commands} commands");
    eventually("host 1 knows where the guest of host 3 is, by FRR", || {
        let addresses = underlay.hosts[0].run("weir addresses");
        let is_there = |line: &str| line.contains("192.0.2.3") && line.contains("evpn");
        addresses.lines().any(is_there).then_some(())
    });
}

/// Makes on host `n` what Proxmox VE makes of an EVPN zone with a VNet and of a VXLAN zone with another, as its own
/// tests expect (`evpn/exitnode_snat` and `vxlan/basic` of pve-network, August 2026).
fn make_zones(host: &Host, n: usize, other: usize) {
    host.run("ethtool -K u0 tx off");
    // A kernel without VRFs forwards in the VNets all the same.
    let vrf = host.command("ip link add vrf_myzone type vrf table 1001").output().unwrap();
    let has_vrf = vrf.status.success();
    if has_vrf {
        host.run("ip link set vrf_myzone up");
    }
    for (bridge, device, vni, of_frr) in [
        ("vrfbr_myzone", "vrfvx_myzone", 1000, true),
        ("myvnet", "vxlan_myvnet", 100, true),
        ("fixed", "vxlan_fixed", 300, false),
    ] {
        let how = if of_frr { format!("local 192.0.2.{n} nolearning") } else { String::new() };
        host.run(&format!("ip link add {bridge} type bridge stp_state 0 forward_delay 0"));
        host.run(&format!("ip link add {device} type vxlan id {vni} dstport 4789 {how}"));
        host.run(&format!("ip link set {device} mtu 1450 master {bridge}"));
        if of_frr {
            host.run(&format!(
                "ip link set {device} type bridge_slave learning off neigh_suppress on"
            ));
        }
        if of_frr && has_vrf {
            host.run(&format!("ip link set {bridge} master vrf_myzone"));
        }
        host.run(&format!("ip link set {device} up"));
        host.run(&format!("ip link set {bridge} up"));
    }
    host.run(&format!("bridge fdb append 00:00:00:00:00:00 dev vxlan_fixed dst 192.0.2.{other}"));
    host.run("ip addr add 10.1.0.1/24 dev myvnet");
}

/// FRR on host `n` as Proxmox VE configures it for such a zone.
fn start_frr_of_zones(host: &Host, n: usize, other: usize) -> Frr {
    let text = format!(
        "vrf vrf_myzone\n vni 1000\nexit-vrf\n!\nrouter bgp 65000\n bgp router-id 192.0.2.{n}\n \
         no bgp default ipv4-unicast\n coalesce-time 1000\n neighbor VTEP peer-group\n \
         neighbor VTEP remote-as 65000\n neighbor VTEP timers connect 1\n \
         neighbor 192.0.2.{other} peer-group VTEP\n !\n address-family l2vpn evpn\n  \
         neighbor VTEP activate\n  neighbor VTEP route-map MAP_VTEP_IN in\n  \
         neighbor VTEP route-map MAP_VTEP_OUT out\n  advertise-all-vni\n exit-address-family\nexit\n!\n\
         router bgp 65000 vrf vrf_myzone\n bgp router-id 192.0.2.{n}\nexit\n!\n\
         route-map MAP_VTEP_IN permit 1\nexit\n!\nroute-map MAP_VTEP_OUT permit 1\nexit\n"
    );
    start_frr_as(host, &text)
}

#[test]
fn root_zones_of_proxmox_ve_go_on_beside_weirs_networks_on_another_port() {
    if !has_frr() {
        return;
    }
    let mut underlay = Underlay::new(3);
    let mut frr = Vec::new();
    for (n, other) in [(1, 2), (2, 1)] {
        make_zones(&underlay.hosts[n - 1], n, other);
        frr.push(start_frr_of_zones(&underlay.hosts[n - 1], n, other));
    }
    // A machine in each VNet of each host.
    let stations: Vec<_> = [1, 2]
        .into_iter()
        .flat_map(|n| [("myvnet", n, 1), ("fixed", n, 3)])
        .map(|(bridge, n, net)| {
            let host = &underlay.hosts[n - 1];
            let station = Host::new(host.dir.join(format!("in-{bridge}")));
            let there = station.pid();
            host.run(&format!("ip link add tap{net} type veth peer name e0 netns {there}"));
            host.run(&format!("ip link set tap{net} master {bridge} up"));
            station.run(&format!("ip link set e0 address {} mtu 1450 up", mac(10 * net + n as u8)));
            station.run(&format!("ip addr add 10.{net}.0.1{n}/24 dev e0"));
            station
        })
        .collect();
    let zones_work = |when: &str| {
        for (station, net) in stations[..2].iter().zip([1, 3]) {
            let there = Ipv4Addr::new(10, net, 0, 12);
            eventually(&format!("VNet {net} works {when}"), || {
                station.pings(there, 1000).then_some(())
            });
        }
    };
    zones_work("alone");

    let text = |n: usize, vni: u32, port: &str| {
        let ports = vif(&underlay.hosts[n - 1], "web0", "blue", Some(mac(n as u8)));
        let evpn = format!("evpn = true\n{port}");
        config(n, &[("blue", vni)], &ports).replace("evpn = true\n", &evpn)
    };
    let other_port = "port = 4790\n";
    let configs = [1, 2].map(|n| text(n, 200, other_port));
    let third = text(3, 200, "");
    for (text, expected) in [
        (text(1, 200, ""), "give [overlay] another `port`"),
        (text(1, 100, other_port), "VNI 100 is that of the VXLAN device vxlan_myvnet"),
        (text(1, 1000, other_port), "VNI 1000 is that of the VXLAN device vrfvx_myzone"),
    ] {
        let host = &underlay.hosts[0];
        fs::write(host.dir.join("weir.toml"), &text).unwrap();
        let output = host.command("timeout 60 weir run weir.toml").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.split_whitespace().filter(|it| *it != "│").collect::<Vec<_>>().join(" ");
        assert!(!output.status.success() && said.contains(expected), "{expected}: {said}");
        assert!(!host.run("ip -o link").contains("weir"), "{expected}");
    }
    zones_work("after refusals");

    for (host, text) in underlay.hosts.iter_mut().zip(&configs) {
        host.start_weir(text);
    }
    let [one, two, three] = &underlay.hosts[..] else { panic!("three hosts") };
    let tells = Tells(&underlay);
    let [mut here, mut there] = [(one, 1), (two, 2)].map(|(host, n)| host.guest("web0", mac(n)));
    eventually("FRR says where host 2's guest is", || {
        (behind(one, "blue", mac(2))? == "192.0.2.2").then_some(())
    });
    eventually("a frame arrives", || {
        here.say(mac(2), "beside the zones");
        there.hears(Duration::from_millis(100))
    });
    zones_work("beside weir");
    // FRR's other networks are none of weir's.
    assert_eq!(behind(one, "blue", mac(12)), None);
    assert!(is_noted(one, "vxlan_myvnet", mac(12), 2));
    drop((here, there, tells));

    // Where weir was first, it is the zone that does not come up.
    let _third = start_frr(three, 3, &[1]);
    underlay.hosts[2].start_weir(&third);
    let three = &underlay.hosts[2];
    three.run("ip link add vxlan_myvnet type vxlan id 100 local 192.0.2.3 dstport 4789 nolearning");
    let output = three.command("ip link set vxlan_myvnet up").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("Address already in use"), "{said}");
    // Without weir the zones are as before.
    underlay.hosts.iter_mut().for_each(|host| host.weir = None);
    zones_work("after weir");
}

/// The VXLAN device of the other host, whose bridge represents the fabric.
const DEVICE: &str = "vx100";

pub(super) fn start_keeper(host: &Host) -> Process {
    let (program, socket) = (Path::new(env!("CARGO_BIN_EXE_weir-keeper")), host.socket("keeper"));
    let _ = fs::remove_file(&socket);
    let line = format!("{} {}", program.display(), socket.display());
    let keeper = host.start("keeper", &line).unwrap();
    eventually("the keeper listens", || weir_keeper::connect(&socket).ok());
    keeper
}

/// Replaces the running weir by another one, as soon as the running one has a keeper. Returns the number of the new
/// process.
pub(super) fn upgrade(host: &Host) -> String {
    let said = eventually("weir is upgraded", || {
        let output = host.command("weir upgrade").output().unwrap();
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    });
    let (_, rest) = said.split_once("process ").unwrap();
    rest.chars().take_while(char::is_ascii_digit).collect()
}

/// The entries that the other host has removed.
fn withdrawn(other: &Host) -> Vec<String> {
    let log = fs::read_to_string(other.dir.join("monitor.log")).unwrap();
    let gone = log.lines().filter(|line| line.starts_with("Deleted") && line.contains(DEVICE));
    gone.map(str::to_owned).collect()
}

/// Checks that host 1 has its guests and knows the station behind the other host, and that a new station is
/// announced.
fn goes_on(one: &Host, other: &Host, guest: &mut Guest, last: u8) {
    eventually("host 1 knows the station", || {
        (behind(one, "blue", mac(3))? == "192.0.2.2").then_some(())
    });
    eventually("the other host hears of one more", || {
        guest.send(&experimental(Mac::BROADCAST, mac(last), "here I am"));
        is_noted(other, DEVICE, mac(last), 1).then_some(())
    });
    assert!(is_noted(other, DEVICE, mac(1), 1) && is_member(other, DEVICE, 1));
}

#[test]
fn root_no_other_host_hears_of_a_weir_that_takes_anothers_place() {
    if !has_frr() {
        return;
    }
    let mut underlay = Underlay::new(2);
    make_bridges(&underlay.hosts[1], 2);
    let _frr = [(1, 2), (2, 1)].map(|(n, other)| start_frr(&underlay.hosts[n - 1], n, &[other]));
    let here = &underlay.hosts[0];
    let mut keeper = start_keeper(here);
    let web0 = vif(here, "web0", "blue", Some(mac(1)));
    let any = vif(here, "any", "blue", None) + "mac_check = false\n";
    let switch = format!("[switch]\nkeeper = {:?}\n", here.socket("keeper"));
    let text = switch + &config(1, &[("blue", 100)], &(web0 + &any));
    underlay.hosts[0].start_weir(&text);
    let [one, two] = &underlay.hosts[..] else { panic!("two hosts") };
    let _tells = Tells(&underlay);
    let _web0 = one.guest("web0", mac(1));
    let mut any = one.guest("any", mac(7));
    // `e100` is a station behind the bridge.
    two.run("ip link add s100 type veth peer name e100");
    two.run("ip link set s100 master br100 up");
    two.run(&format!("bridge fdb add {} dev s100 master static", mac(3)));
    eventually("the bridge hears of host 1", || {
        (is_noted(two, DEVICE, mac(1), 1) && is_member(two, DEVICE, 1)).then_some(())
    });
    let _monitor = two.start("monitor", "bridge monitor fdb").unwrap();
    goes_on(one, two, &mut any, 7);

    upgrade(one);
    goes_on(one, two, &mut any, 8);
    // Another keeper gets everything that it must hold.
    keeper = {
        keeper.kill();
        start_keeper(one)
    };
    goes_on(one, two, &mut any, 9);
    let process = upgrade(one);
    goes_on(one, two, &mut any, 10);
    // Silent stations were learned by the previous weir.
    thread::sleep(Duration::from_nanos(2 * EVPN_ADOPT_NS));
    assert_eq!(withdrawn(two), [""; 0]);

    // After a SIGKILL, the next weir withdraws entries that no longer hold.
    one.run(&format!("kill -KILL {process}"));
    one.run(&format!("bridge fdb add {} dev weirt100 master static", mac(66)));
    eventually("the other host hears of that, too", || {
        is_noted(two, DEVICE, mac(66), 1).then_some(())
    });
    let program = env!("CARGO_BIN_EXE_weir");
    let next = one.start("next", &format!("{program} run weir.toml")).unwrap();
    eventually("the next weir serves", || {
        one.command("weir stats").output().ok()?.status.success().then_some(())
    });
    goes_on(one, two, &mut any, 11);
    eventually("who is gone is withdrawn", || (!is_noted(two, DEVICE, mac(66), 1)).then_some(()));
    let of =
        |line: &String| line.contains(&mac(1).to_string()) || line.contains("00:00:00:00:00:00");
    assert!(!withdrawn(two).iter().any(of), "{:?}", withdrawn(two));

    // A weir that ends for good leaves nothing with the keeper.
    assert!(next.terminate().unwrap().success());
    eventually("the other host hears that the weir is gone", || {
        (!is_noted(two, DEVICE, mac(1), 1) && !is_member(two, DEVICE, 1)).then_some(())
    });
    assert!(!one.run("ip link show").contains("weir"));
    drop(keeper);
}
