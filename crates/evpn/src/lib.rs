//! Networks of a fabric under BGP EVPN (RFC 7432, RFC 8365). FRR, unchanged, tells which stations are behind which
//! host, and weir tells which stations are here. Both do so by objects that zebra watches in the kernel
//! ([0043](../../docs/design/overlay.md#0043)).
//!
//! | file | what |
//! |---|---|
//! | `objects.rs` | [`Objects`]: the devices of each network that zebra watches |
//! | `announce.rs` | [`Herald`], [`Announced`]: the stations here, for zebra |
//! | `claims.rs` | [`Claims`]: the IP addresses of stations here; pure |
//! | `watch.rs` | [`Watch`]: zebra's entries, from the kernel |
//! | `table.rs` | [`Table`]: the stations behind other hosts, from these entries; pure |
//! | `neighbours.rs` | the IP addresses of stations behind other hosts; pure |
//! | `presence.rs` | [`Presence`], [`Resync`]: FRR is there or not; a zebra that was restarted alone; pure |
//! | `links.rs` | [`Links`]: the interfaces that have a carrier, for bonds of uplinks; rtnetlink |
//! | `error.rs` | [`EvpnError`], with advice; [`FrrVersion`]: the version of FRR |
//!
//! Reading needs no privilege. Devices and announcements take `CAP_NET_ADMIN`, which a confined
//! weir's helper has.
#![forbid(unsafe_code)]

mod announce;
mod claims;
mod error;
mod links;
mod neighbours;
mod objects;
mod presence;
mod table;
mod watch;

pub use announce::{Announced, Herald, How, Owned, Place};
pub use claims::{Claims, Judged};
pub use error::{EvpnError, FRR_OVER_IPV6, FrrVersion};
pub use links::Links;
pub use objects::{Devices, Objects, bridge_name, tap_name, vxlan_name};
pub use presence::{Presence, QUESTION, Resync};
pub use table::{Dirty, Noted, Remote, Table};
pub use watch::Watch;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs::File;
    use std::io::{BufRead, BufReader};
    use std::net::{IpAddr, Ipv4Addr, UdpSocket};
    use std::os::fd::AsFd;
    use std::process::{Child, Command, Stdio};
    use std::time::Duration;

    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
    use weir_limits::EVPN_DEVICE_PORT;
    use weir_wire::{Mac, Owner};

    use crate::{
        Devices, EvpnError, Herald, How, Objects, Table, Watch, bridge_name, tap_name, vxlan_name,
    };

    const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

    /// A namespace that this thread has entered; its only other process holds it.
    struct Namespace(Child);

    impl Namespace {
        fn enter() -> Self {
            let mut command = Command::new("unshare");
            command.args([
                "--net",
                "sh",
                "-c",
                "ip link set lo up && echo ready && exec sleep 100",
            ]);
            let mut holder = command.stdout(Stdio::piped()).spawn().unwrap();
            let mut line = String::new();
            BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
            assert_eq!(line, "ready\n");
            let namespace = File::open(format!("/proc/{}/ns/net", holder.id())).unwrap();
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            run(&format!("ip tuntap add {} mode tap", tap_name(100)));
            run(&format!("ip addr add {LOCAL}/32 dev lo"));
            Self(holder)
        }
    }

    impl Drop for Namespace {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn run(line: &str) -> String {
        let output = Command::new("sh").args(["-c", line]).output().unwrap();
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn links() -> String {
        run("ip -o link")
    }

    #[test]
    fn root_what_zebra_looks_at_is_made_found_again_and_removed() {
        if !weir_testing::is_root("network namespaces") {
            return;
        }
        let _namespace = Namespace::enter();
        let mut objects = Objects::open().unwrap();
        assert!(objects.make(7, LOCAL).is_err(), "no TAP");
        assert!(!links().contains("weirb7") && !links().contains("weirv7"));
        let made = objects.make(100, LOCAL).unwrap();
        assert_eq!(Objects::open().unwrap().make(100, LOCAL).unwrap(), made, "found again");
        assert_eq!(objects.tap(100).unwrap(), Some(made.tap));
        let ports = run("bridge -d link");
        let port = |name: String| {
            let line = ports.lines().skip_while(move |line| !line.contains(&name)).take(2);
            line.collect::<String>()
        };
        let (vxlan, tap) = (port(vxlan_name(100)), port(tap_name(100)));
        assert!(vxlan.contains("state disabled") && vxlan.contains("neigh_suppress on"), "{vxlan}");
        assert!(vxlan.contains("learning off") && tap.contains("learning off"), "{tap}");
        assert_eq!(run("ip -6 addr show dev weirb100"), "");

        // A datagram to the device's port reaches nobody.
        let frame = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 9], &[0x88, 0xb5], &[0; 46]].concat();
        let datagram = [&[8, 0, 0, 0, 0, 0, 100, 0][..], &frame].concat();
        let socket = UdpSocket::bind((LOCAL, 0)).unwrap();
        socket.send_to(&datagram, (LOCAL, EVPN_DEVICE_PORT)).unwrap();
        let packets = |device: &str, way: &str| {
            let path = format!("ip -s -j link show dev {device}");
            let stats: serde_json::Value = serde_json::from_str(&run(&path)).unwrap();
            stats[0]["stats64"][way]["packets"].as_u64().unwrap()
        };
        assert_eq!(packets("weirv100", "rx"), 1, "it came to the device");
        assert_eq!(packets("weirb100", "rx"), 0);
        assert!(!run("bridge fdb show").contains("02:00:00:00:00:09"));

        objects.remove_left_over(100);
        assert!(links().contains(&bridge_name(100)), "a weir has its TAP open");
        run("ip tuntap del weirt100 mode tap");
        objects.remove_left_over(100);
        assert!(!links().contains("weir"), "{}", links());
        // zebra takes one device for each VNI.
        run("ip link add pve100 type vxlan id 100 dstport 4789");
        // A weir reads the host's devices once, when it starts.
        let mut objects = Objects::open().unwrap();
        let refused = objects.make(100, LOCAL).unwrap_err();
        assert!(matches!(&refused, EvpnError::Taken { vni: 100, name } if name == "pve100"));
        assert_eq!(links().matches("weir").count(), 0, "{}", links());
        run("ip link del pve100");
        let mut objects = Objects::open().unwrap();
        // Devices of another kind, or for another address, are made again.
        run("ip link add weirb100 type veth peer name other");
        run("ip link add weirv100 type vxlan id 100 local 192.0.2.77 dstport 5000");
        run("ip tuntap add weirt100 mode tap");
        objects.make(100, LOCAL).unwrap();
        assert!(run("ip -d link show dev weirv100").contains("local 192.0.2.1 "));
    }

    #[test]
    fn root_the_same_is_made_for_an_underlay_of_ipv6() {
        if !weir_testing::is_root("network namespaces") {
            return;
        }
        let _namespace = Namespace::enter();
        let local = "2001:db8::1".parse().unwrap();
        run("ip addr add 2001:db8::1/128 dev lo nodad");
        let mut objects = Objects::open().unwrap();
        let made = objects.make(100, local).unwrap();
        assert!(run("ip -d link show dev weirv100").contains("local 2001:db8::1 "));
        assert_eq!(objects.make(100, local).unwrap(), made, "found again");
        let anew = objects.make(100, LOCAL).unwrap();
        assert_ne!(anew.vxlan, made.vxlan, "of another family");
    }

    #[test]
    fn root_a_vni_goes_and_comes_with_its_device_whose_port_stays_disabled() {
        if !weir_testing::is_root("network namespaces") {
            return;
        }
        let _namespace = Namespace::enter();
        let mut objects = Objects::open().unwrap();
        assert!(objects.renew(100).is_err(), "there is none");
        let made = objects.make(100, LOCAL).unwrap();
        let entry = "02:00:00:00:00:09 dev weirv100 dst 192.0.2.9 self dynamic extern_learn";
        run(&format!("bridge fdb add {entry}"));
        objects.renew(100).unwrap();
        assert!(!run("bridge fdb show").contains("02:00:00:00:00:09"), "it was down");
        let link = run("ip -o link show dev weirv100");
        assert!(link.contains(",UP"), "{link}");
        let port = run("bridge -d link show dev weirv100");
        assert!(port.contains("state disabled") && port.contains("learning off"), "{port}");
        assert_eq!(objects.make(100, LOCAL).unwrap(), made);
    }

    fn watch(devices: Devices) -> (Watch, Table) {
        (Watch::open([(0, devices)]).unwrap(), Table::new(20_000))
    }

    fn read(watch: &mut Watch, table: &mut Table) {
        while watch.read(256, table).unwrap() {}
    }

    #[test]
    fn root_who_is_here_and_who_is_away_is_told_and_heard() {
        if !weir_testing::is_root("network namespaces") {
            return;
        }
        let _namespace = Namespace::enter();
        let devices = Objects::open().unwrap().make(100, LOCAL).unwrap();
        let mut herald = Herald::open().unwrap();
        let (guest, other) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
        herald.tell(devices.tap, guest, Some(How::Sticky)).unwrap();
        let entry = || run("bridge fdb show dev weirt100");
        assert!(entry().contains("02:00:00:00:00:01 sticky master weirb100 static"), "{}", entry());

        let (mut watch, mut table) = watch(devices);
        // Zebra would note a member in this way.
        run("bridge fdb append 00:00:00:00:00:00 dev weirv100 dst 192.0.2.2 self permanent");
        let away = "bridge fdb replace 02:00:00:00:00:02 dev weirv100";
        run(&format!("{away} dst 192.0.2.2 self extern_learn"));
        run(&format!("{away} master extern_learn"));
        read(&mut watch, &mut table);
        let host = std::net::IpAddr::from([192, 0, 2, 2]);
        assert_eq!(table.members(0), [host]);
        assert_eq!(table.remote((0, other)).map(|it| (it.host, it.sticky)), Some((host, false)));
        assert_eq!(table.remote((0, guest)), None);
        // The address comes here, goes away again, and is withdrawn.
        herald.tell(devices.tap, other, Some(How::Plain)).unwrap();
        read(&mut watch, &mut table);
        assert_eq!(table.remote((0, other)), None);
        run(&format!("{away} master extern_learn"));
        read(&mut watch, &mut table);
        assert_eq!(table.remote((0, other)).map(|it| it.host), Some(host));
        run("bridge fdb del 02:00:00:00:00:02 dev weirv100 dst 192.0.2.2 self");
        read(&mut watch, &mut table);
        table.expire(|_| true);
        assert_eq!(table.remote((0, other)), None);
        // Withdrawing twice, or an address that another host has, is no error.
        for _ in 0..2 {
            herald.tell(devices.tap, guest, None).unwrap();
        }
        assert!(!entry().contains("02:00:00:00:00:01"));
    }

    #[test]
    fn root_who_has_which_ip_address_is_told_and_heard() {
        if !weir_testing::is_root("network namespaces") {
            return;
        }
        let _namespace = Namespace::enter();
        let devices = Objects::open().unwrap().make(100, LOCAL).unwrap();
        // Nobody has the TAP open: the bridge loses its carrier, and with it its neighbours.
        weir_testing::eventually("the bridge has settled", || {
            run("ip link show weirb100").contains("state DOWN").then_some(())
        });
        let mut herald = Herald::open().unwrap();
        let mac = |last| Mac([2, 0, 0, 0, 0, last]);
        for (here, away) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            let (mut watch, mut table) = watch(devices);
            let [here, away] = [here, away].map(|ip| (0, ip.parse::<IpAddr>().unwrap()));
            herald.tell_owner(devices.bridge, here.1, Some(mac(1))).unwrap();
            let noted = || run(&format!("ip neigh show {} dev weirb100", here.1));
            assert!(noted().contains("lladdr 02:00:00:00:00:01 PERMANENT"), "{}", noted());
            // Zebra would note the address in this way; then the address comes here, and is withdrawn.
            let by_zebra = format!("{} dev weirb100 lladdr 02:00:00:00:00:02", away.1);
            run(&format!("ip neigh replace {by_zebra} nud noarp router extern_learn"));
            read(&mut watch, &mut table);
            let owner = Owner { mac: mac(2), is_router: true };
            assert_eq!((table.owner(here), table.owner(away)), (None, Some(owner)));
            let dirty = table.take_dirty();
            assert_eq!(
                dirty.owned_here.get(&here),
                Some(&Some(mac(1))),
                "another weir may have told it"
            );
            assert!(dirty.owned.contains(&away));
            herald.tell_owner(devices.bridge, away.1, Some(mac(1))).unwrap();
            read(&mut watch, &mut table);
            assert_eq!(table.owner(away), None);
            run(&format!("ip neigh replace {by_zebra} nud noarp extern_learn"));
            read(&mut watch, &mut table);
            assert_eq!(table.owner(away), Some(Owner { is_router: false, ..owner }));
            run(&format!("ip neigh del {} dev weirb100", away.1));
            read(&mut watch, &mut table);
            assert!(table.owner(away).is_some() && table.stale_since().is_some());
            table.expire(|_| true);
            assert_eq!(table.owner(away), None);
            for _ in 0..2 {
                herald.tell_owner(devices.bridge, here.1, None).unwrap();
            }
            assert_eq!(noted(), "");
        }
    }

    #[test]
    fn root_changes_that_are_lost_are_found_by_reading_all() {
        const MACS: u32 = 15_000;
        if !weir_testing::is_root("network namespaces") {
            return;
        }
        let _namespace = Namespace::enter();
        let devices = Objects::open().unwrap().make(100, LOCAL).unwrap();
        let (mut watch, mut table) = watch(devices);
        read(&mut watch, &mut table);
        let file = std::env::temp_dir().join(format!("weir-evpn-{}", std::process::id()));
        let batch = |verb: &str| {
            let line = |it: u32| {
                let [_, b, c, d] = it.to_be_bytes();
                let mac = Mac([2, 0, 1, b, c, d]);
                format!("fdb {verb} {mac} dev weirv100 dst 192.0.2.2 self extern_learn\n")
                    + &format!("fdb {verb} {mac} dev weirv100 master extern_learn\n")
            };
            std::fs::write(&file, (0..MACS).map(line).collect::<String>()).unwrap();
            run(&format!("bridge -batch {}", file.display()));
        };
        // Nobody reads meanwhile: the kernel does not have room for all these changes.
        batch("replace");
        let start = std::time::Instant::now();
        read(&mut watch, &mut table);
        assert_eq!(table.counts(), (MACS as usize, 0));
        let away: BTreeMap<_, _> =
            table.take_dirty().places.into_iter().map(|it| (it, ())).collect();
        assert_eq!(away.len(), MACS as usize);
        batch("del");
        read(&mut watch, &mut table);
        table.expire(|_| true);
        assert_eq!(table.counts(), (0, 0));
        assert!(start.elapsed() < Duration::from_secs(60));
        let _ = std::fs::remove_file(&file);
    }
}
