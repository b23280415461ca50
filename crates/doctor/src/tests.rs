//! A healthy machine, in which no check finds anything, and each fault in it, which its own check finds and no other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use weir_config::{Config, Defaults, GroupDefault, PlacementMode, PortName, SocketPath};
use weir_switch::capture::Seen;
use weir_switch::control::{VifOrigin, VifStatus};
use weir_switch::explain::{
    AgentExplanation, AgentState, Explanation, GroupsExplanation, HostHeard, MachineSummary,
    OverlayExplanation, OverlayNetworkExplanation, PlacementExplanation, VifExplanation,
};
use weir_switch::host::Lack;
use weir_switch::stats::{
    BlockStats, CallSettings, GroupStats, KeeperState, Limit, OnDemandStats, PortKind, PortState,
    PortStats, QueuePairNumbers, RuleStats, Silence, SilentRing, StillThread, SwitchStats,
    Unclosed, WorkerStats,
};

use super::host::Process;
use super::*;

const VIF: &str = "web0";
const UPLINK: &str = "lan";
const SOCKET: &str = "/run/weir/web0.sock";
/// The process of the interface's VM.
const VM: u32 = 77;
const NOW_S: u64 = 1_800_000_000;

fn name(text: &str) -> PortName {
    text.parse().unwrap()
}

fn explained(agent: Option<AgentState>) -> Explanation {
    let agent = agent.map(|state| AgentExplanation {
        socket: "/run/weir/web0.agent".parse().unwrap(),
        state,
        version: None,
        asked_poll_ns: None,
        poll_ns: None,
        interrupts_per_s: None,
        why: None,
        wishes: None,
        error: None,
    });
    let shortest = serde_json::json!({
        "name": VIF,
        "state": PortState::Running,
        "latency_budget_ns": 250_000,
        "calls": CallSettings::default(),
        "budget_breaches": {},
        "queues": [],
    });
    let vif: VifExplanation = serde_json::from_value(shortest).unwrap();
    Explanation::Vif(Box::new(VifExplanation { agent, ..vif }))
}

/// A machine with one cache.
fn placement() -> PlacementExplanation {
    PlacementExplanation {
        mode: PlacementMode::Off,
        pin_vcpus: false,
        machine: Some(MachineSummary {
            cpus: 4,
            cores: 4,
            caches: vec!["0-3".into()],
            caches_known: true,
            nodes: 1,
            nodes_known: true,
            efficiency: String::new(),
            allowed: "0-3".into(),
        }),
        problem: None,
        workers: Vec::new(),
        guests: Vec::new(),
        settling: None,
        moves: 0,
        vcpu_moves: 0,
        refused: 0,
    }
}

fn uplink(interface: &str) -> Explanation {
    uplink_called(UPLINK, interface)
}

fn uplink_called(name: &str, interface: &str) -> Explanation {
    let of = serde_json::json!({
        "name": name, "interface": interface, "layer": { "state": "worker_only" },
        "cost": { "ns": 1000, "source": "default" },
    });
    Explanation::Uplink(Box::new(serde_json::from_value(of).unwrap()))
}

fn on_demand(facts: &mut Facts, error: Option<&str>, refused: &[&str]) {
    let refused: Vec<_> = refused.iter().map(|&it| it.to_owned()).collect();
    let stats = OnDemandStats {
        pattern: "vm-*".into(),
        interfaces: Limit { used: 16, max: 16 },
        refused_total: refused.len() as u64,
        error: error.map(str::to_owned),
        refused,
    };
    facts.switch.as_mut().unwrap().on_demand.push(stats);
}

/// A VM that runs well and has an uplink.
fn healthy() -> Facts {
    let control = SocketPath::try_from(Path::new("/run/weir/control.sock")).unwrap();
    let defaults = Defaults { control, control_named: true, keeper: None };
    let text = "[vif.web0]\nmtu = 1500\n";
    let config = Config::from_toml("weir.toml", text, &defaults).unwrap().vifs.remove(0);
    let status = VifStatus {
        config,
        state: PortState::Running,
        stopped_reason: None,
        front_end: Some(VM),
        xen: false,
        origin: VifOrigin::File,
        unsaved: Vec::new(),
    };
    let mut vif = PortStats::new(name(VIF), PortKind::Vif);
    vif.state = PortState::Running;
    vif.queue_pairs = Some(QueuePairNumbers { configured: 1, session: Some(1), in_use: 1 });
    (vif.rx.frames, vif.tx.frames, vif.rx.calls) = (1_000_000, 1_000_000, 100_000);
    // A few of these happen to every guest.
    vif.drops = [("rx_not_ready".to_owned(), 3), ("filtered_tx".to_owned(), 5)].into();
    vif.budget_breaches = [("no_cpu".to_owned(), 7)].into();
    vif.limits = [("memory_bytes".to_owned(), Limit { used: 1, max: 256 })].into();
    let mut lan = PortStats::new(name(UPLINK), PortKind::Uplink);
    lan.state = PortState::Running;
    let switch = SwitchStats {
        uptime_s: 3600.0,
        workers: vec![WorkerStats::default(); 2],
        ports: vec![vif, lan],
        ..SwitchStats::default()
    };
    let permissions = |mode, group| Permissions { mode, user: 900, group };
    let above = vec![("/run/weir".into(), permissions(0o40_750, 64_055))];
    let socket = SocketFile { file: permissions(0o140_660, 64_055), above, has_records: true };
    let link = Link { mtu: 1500, is_up: true, has_carrier: true, port_state: None };
    let qemu = Qemu {
        pid: VM,
        user: 64_055,
        groups: vec![64_055],
        args: vec![
            "qemu-system-x86_64".into(),
            format!("socket,id=weir-web0,path={SOCKET},reconnect=1"),
            "memory-backend-memfd,id=mem,size=1G,share=on".into(),
            "q35,memory-backend=mem".into(),
        ],
        version: Some((10, 0)),
        is_stopped: false,
        unseen: Vec::new(),
    };
    Facts {
        host: Host {
            now_s: Some(NOW_S),
            kernel: Some((6, 12)),
            clocksource: Some("tsc".into()),
            cpus_online: Some(4),
            cpus: Some(4),
            cpu_quota: Some(2.0),
            hugepages: Some((0, 0)),
            irqs: [
                ("eth0".into(), vec!["0".into(), "1".into()]),
                ("eth1".into(), vec!["0".into()]),
            ]
            .into(),
            links: [("eth0".into(), link)].into(),
            bridges: BTreeMap::new(),
            qemu_version: Some((10, 0)),
            qemus: vec![qemu],
            sockets: [(SOCKET.into(), socket)].into(),
            seccomp: Vec::new(),
            denied: Vec::new(),
            bad_file: None,
            unlike_file: Vec::new(),
            lacks: Vec::new(),
            doubts: Vec::new(),
            ended: Vec::new(),
            others: Vec::new(),
            is_replaced: false,
            addresses: vec![("eth0".into(), "10.1.1.1".parse().unwrap())],
        },
        before: Some(switch.clone()),
        seen: Vec::new(),
        switch: Some(switch),
        placement: Some(placement()),
        vifs: vec![status],
        explained: [
            (name(VIF), explained(Some(AgentState::Connected))),
            (name(UPLINK), uplink("eth0")),
        ]
        .into(),
    }
}

fn vif(facts: &mut Facts) -> &mut PortStats {
    &mut facts.switch.as_mut().unwrap().ports[0]
}

fn drop_many(facts: &mut Facts, reason: &str) {
    vif(facts).drops.insert(reason.into(), 50_000);
}

fn socket(facts: &mut Facts) -> &mut SocketFile {
    facts.host.sockets.values_mut().next().unwrap()
}

/// A line of the kernel's audit log, `ago_s` seconds old.
fn audited(ago_s: u64, said: &str) -> Vec<String> {
    vec![format!("[ 12.3] audit: type=1400 audit({}.678:9): {said}", NOW_S - ago_s)]
}

/// A function that puts a fault into a machine.
type Seed = fn(&mut Facts);

/// Every fault that the checks know, as a change of a healthy machine.
fn faults() -> Vec<(&'static str, Seed)> {
    vec![
        ("not-running", |it| *it = Facts { host: it.host.clone(), ..Facts::default() }),
        ("other-weir", |it| it.host.others = vec!["process 12: weir run /root/weir.toml".into()]),
        ("file-bad", |it| {
            let mistakes = vec!["line 3: unknown key `rat`".into(), "line 4: more".into()];
            it.host.bad_file = Some(BadFile { path: "/etc/weir/weir.toml".into(), mistakes });
        }),
        ("unlike-file", |it| it.host.unlike_file = vec!["vif.web0".into()]),
        ("waiting-socket-mode", |it| {
            it.vifs[0].state = PortState::Waiting;
            socket(it).file.mode = 0o140_600;
        }),
        ("waiting-socket-missing", |it| it.host.sockets.clear()),
        ("waiting-other-path", |it| {
            it.vifs[0].state = PortState::Waiting;
            it.host.qemus[0].args[1] = "socket,id=c,path=/var/run/vms/web0.sock,reconnect=1".into();
        }),
        ("waiting-monitor", |it| {
            it.vifs[0].state = PortState::Waiting;
            it.host.qemus[0].args[1] = format!("socket,id=weir-web0,path={SOCKET}");
        }),
        ("on-demand", |it| {
            on_demand(it, None, &["vm-7: there are 16 interfaces already (`max`)"]);
            on_demand(it, Some("/run/vms: No such file or directory"), &[]);
        }),
        ("second-vm", |it| vif(it).sessions.turned_away = 2),
        ("memory-private", |it| {
            (it.vifs[0].state, vif(it).state) = (PortState::Connected, PortState::Connected);
            it.host.qemus[0].args.truncate(2);
        }),
        ("driver-absent", |it| vif(it).state = PortState::Connected),
        ("halted", |it| vif(it).state = PortState::Halted),
        ("stopped", |it| {
            vif(it).state = PortState::Stopped;
            vif(it).stopped_reason =
                Some("ring 1: the descriptor area at 0x1000 is not in shared memory".into());
        }),
        ("session-fails", |it| {
            vif(it).sessions.failed = 3;
            vif(it).sessions.last_error =
                Some("ring 4 does not exist, this interface has 2".into());
        }),
        ("uplink-stopped", |it| it.switch.as_mut().unwrap().ports[1].state = PortState::Stopped),
        ("uplink-down", |it| it.host.links.get_mut("eth0").unwrap().is_up = false),
        ("loop", |it| {
            let with = name(UPLINK);
            let block = BlockStats { with, vlan: 1, seconds: 5.0, retry_s: 5.0, tries: 0 };
            vif(it).blocked = Some(block);
        }),
        ("uplinks-joined", |it| {
            it.explained.insert(name("lan1"), uplink_called("lan1", "eth2"));
            let bridges = ["eth0", "eth2"].map(|it| (it.to_owned(), "br0".to_owned()));
            it.host.bridges = bridges.into();
        }),
        ("queues-differ", |it| {
            vif(it).queue_pairs =
                Some(QueuePairNumbers { configured: 2, session: Some(1), in_use: 1 });
        }),
        ("silent-ring", |it| {
            let waits = Silence::NoTranslation { questions: 3, seconds: 12 };
            let kick = SilentRing { ring: 1, why: Silence::BuffersWithoutKick };
            vif(it).silent = vec![kick, SilentRing { ring: 0, why: waits }];
        }),
        ("src-mac", |it| drop_many(it, "src_mac_spoofed")),
        ("vlan", |it| drop_many(it, "vlan_not_allowed")),
        ("vlan-alone", |it| {
            let Explanation::Vif(mut vif) = explained(None) else { panic!("a guest's") };
            vif.traffic.state = PortState::Running;
            it.explained.insert(name(VIF), Explanation::Vif(vif));
        }),
        ("filter-all", |it| {
            let rule = "tx drop".parse().unwrap();
            vif(it).filter = vec![RuleStats { rule, packets: 3, bytes: 180 }];
        }),
        ("group-all", |it| {
            let Some(Explanation::Vif(vif)) = it.explained.get_mut(&name(VIF)) else { panic!() };
            let closed = vec!["web".parse().unwrap()];
            vif.groups = Some(GroupsExplanation {
                groups: closed.clone(),
                close_in: closed.clone(),
                close_out: closed,
                refused_in: [("no_rule".to_owned(), 3)].into(),
                ..GroupsExplanation::default()
            });
            it.switch.as_mut().unwrap().groups = vec![GroupStats {
                name: "web".into(),
                default_in: GroupDefault::Deny,
                default_out: GroupDefault::Deny,
                log: false,
                rules: Vec::new(),
                vifs: vec![name(VIF)],
            }];
        }),
        ("overlay-host", |it| {
            let host = HostHeard {
                host: "192.0.2.2".parse().unwrap(),
                has_weir: false,
                unanswered: 3,
                stations: 0,
                disputed_ids: Vec::new(),
                heard_s: None,
            };
            let network = OverlayNetworkExplanation {
                name: "blue".parse().unwrap(),
                vni: 100,
                evpn: false,
                hosts: vec![host],
            };
            let overlay = OverlayExplanation {
                name: name("overlay"),
                local: "192.0.2.1".parse().unwrap(),
                udp_port: 4789,
                mtu: 1450,
                networks: vec![network],
            };
            it.explained.insert(name("overlay"), Explanation::Overlay(Box::new(overlay)));
        }),
        ("way-out", |it| {
            let what = "the host does not route: net.ipv4.ip_forward is 0".into();
            it.host.lacks = vec![Lack { what, help: Some("`sysctl -w ...`".into()) }];
        }),
        ("guest-address", |it| {
            let Some(Explanation::Vif(vif)) = it.explained.get_mut(&name(VIF)) else { panic!() };
            vif.traffic.astray = Some("its guest uses 10.5.5.5".into());
        }),
        ("unanswered", |it| {
            vif(it).answers = [
                ("dhcp_no_address".into(), 2),
                ("dns_failed".into(), 3),
                ("leases_unsaved".into(), 1),
            ]
            .into();
        }),
        ("receiver-not-ready", |it| drop_many(it, "rx_not_ready")),
        ("receiver-slow", |it| drop_many(it, "rx_waited_too_long")),
        ("offloads", |it| drop_many(it, "rx_buffer_too_small")),
        ("tx-disabled", |it| drop_many(it, "tx_disabled")),
        ("mtu", |it| it.host.links.get_mut("eth0").unwrap().mtu = 1400),
        ("limits-of-port", |it| drop_many(it, "policed_rx")),
        ("drops", |it| drop_many(it, "source_guard_ip")),
        ("budget-no-cpu", |it| _ = vif(it).budget_breaches.insert("no_cpu".into(), 5000)),
        ("budget-late", |it| _ = vif(it).budget_breaches.insert("asked_late".into(), 5000)),
        ("agent-absent", |it| {
            it.explained.insert(name(VIF), explained(Some(AgentState::Silent)));
        }),
        ("no-records", |it| socket(it).has_records = false),
        ("keeper-gone", |it| it.switch.as_mut().unwrap().keeper = KeeperState::Gone),
        ("thread-still", |it| {
            let still = StillThread { name: "weir-worker-0".into(), ..StillThread::default() };
            it.switch.as_mut().unwrap().still = vec![still];
        }),
        ("program-fails", |it| {
            let reason = "on_up, 9 s ago: /etc/weir/up: exit status: 1".into();
            it.switch.as_mut().unwrap().programs_failed = [(name(VIF), reason)].into();
        }),
        ("unclosed", |it| {
            let unclosed = Unclosed { party: VIF.into(), descriptors: 64, seconds: 9.0 };
            it.switch.as_mut().unwrap().unclosed = vec![unclosed];
        }),
        ("helper-ended", |it| it.host.ended = vec!["weir-helper".into()]),
        ("seccomp", |it| {
            it.host.seccomp = audited(60, "comm=\"weir-worker-0\" syscall=41");
        }),
        ("access-denied", |it| {
            it.vifs[0].state = PortState::Waiting;
            it.host.denied = audited(60, &format!("apparmor=\"DENIED\" name=\"{SOCKET}\""));
        }),
        ("descriptors-few", |it| {
            let limits = &mut it.switch.as_mut().unwrap().limits;
            _ = limits.insert("descriptors".into(), Limit { used: 20, max: 40 });
        }),
        ("limit-near", |it| {
            _ = vif(it).limits.insert("memory_bytes".into(), Limit { used: 250, max: 256 })
        }),
        ("kernel-old", |it| it.host.kernel = Some((4, 19))),
        ("clocksource", |it| it.host.clocksource = Some("hpet".into())),
        ("cpus-few", |it| it.host.cpus = Some(1)),
        ("cpu-quota", |it| it.host.cpu_quota = Some(0.5)),
        ("caches-many", |it| {
            let machine = it.placement.as_mut().unwrap().machine.as_mut().unwrap();
            machine.caches = vec!["0-1".into(), "2-3".into()];
        }),
        ("irq-one-cpu", |it| _ = it.host.irqs.insert("eth0".into(), vec!["3".into(); 4])),
        ("hugepages-idle", |it| it.host.hugepages = Some((512, 512))),
        ("qemu-old", |it| it.host.qemu_version = Some((6, 2))),
        ("qemu-vectors", |it| {
            it.host.qemus[0].version = Some((7, 2));
            it.host.qemus[0].args.push("virtio-net-pci,netdev=weir-web0,vectors=4".into());
        }),
    ]
}

#[test]
fn of_a_healthy_machine_nothing_is_found() {
    assert_eq!(examine(&healthy()), []);
}

#[test]
fn each_fault_is_found_by_its_check_and_no_other() {
    let faults = faults();
    let seeded: Vec<_> = faults.iter().map(|(check, _)| *check).collect();
    assert_eq!(seeded, CHECKS.iter().map(|check| check.name).collect::<Vec<_>>());
    for (check, seed) in faults {
        let mut facts = healthy();
        seed(&mut facts);
        let found = examine(&facts);
        let by: BTreeSet<_> = found.iter().map(|finding| finding.check).collect();
        assert_eq!(by, [check].into(), "{found:#?}");
        assert!(found.iter().all(|finding| {
            [&finding.what, &finding.known_by, finding.mend.as_ref()]
                .iter()
                .all(|text| !text.is_empty())
        }));
    }
}

/// `port` says something to its neighbours: an ARP request, or with `from` as its target an announcement.
fn says(facts: &mut Facts, port: &str, tag: Option<u16>, from: [u8; 4], target: [u8; 4]) {
    let mac = [2, 0, 0, 0, 0, port.bytes().map(u32::from).sum::<u32>() as u8];
    let tag = tag.map_or_else(Vec::new, |vid| [[0x81, 0], vid.to_be_bytes()].concat());
    let frame = [
        &[0xff; 6][..],
        &mac,
        &tag,
        &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1],
        &mac,
        &from,
        &[0; 6],
        &target,
    ];
    facts.seen.push(Seen { port: name(port), frame: frame.concat() });
}

/// A guest that asks again and again.
fn asks(facts: &mut Facts, target: [u8; 4]) {
    (0..2).for_each(|_| says(facts, VIF, None, [10, 0, 0, 1], target));
}

/// A second guest, in the VLAN of this text.
fn second(facts: &mut Facts, vlan: &str) {
    let Explanation::Vif(mut vif) = explained(None) else { panic!("a guest's") };
    vif.traffic.vlan = vlan.into();
    facts.explained.insert(name("db0"), Explanation::Vif(vif));
}

fn traffic_of_vif(facts: &mut Facts) -> &mut weir_switch::explain::TrafficExplanation {
    let Some(Explanation::Vif(vif)) = facts.explained.get_mut(&name(VIF)) else {
        panic!("a guest's")
    };
    &mut vif.traffic
}

fn bridged(facts: &mut Facts) {
    let bridges = ["eth0", "eth1"].map(|it| (it.to_owned(), "br0".to_owned()));
    facts.host.bridges = bridges.into();
    facts.host.links.insert("eth1".into(), facts.host.links["eth0"]);
}

fn offers(facts: &mut Facts, port: &str, server: u8) {
    let mut frame = vec![2; 12];
    frame.extend([8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, server, 10, 0, 0, 9]);
    frame.extend([0, 67, 0, 68, 0, 8, 0, 0]);
    facts.seen.push(Seen { port: name(port), frame });
}

/// A ping of its own.
fn pings(facts: &mut Facts, port: &str) {
    let mut frame = vec![2; 6];
    frame.extend([2, 0, 0, 0, 0, port.len() as u8, 8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 1, 0, 0]);
    frame.extend([10, 0, 0, 5, 10, 0, 0, 9, 8, 0, 0, 0, 0, 0, 0, 0]);
    facts.seen.push(Seen { port: name(port), frame });
}

/// Faults that somebody made who did not know the checks: what was done, what finds it, and a part of the words.
const BY_OTHERS: &[(&str, Seed, &str, &str)] = &[
    (
        "the bridge's spanning tree listens",
        |it| {
            bridged(it);
            it.host.links.get_mut("eth0").unwrap().port_state = Some(1);
        },
        "uplink-down",
        "is listening there",
    ),
    (
        "the card in the bridge has no cable",
        |it| {
            bridged(it);
            it.host.links.get_mut("eth1").unwrap().has_carrier = false;
        },
        "uplink-down",
        "no other port of br0 is connected",
    ),
    (
        "two clones have one address",
        |it| {
            second(it, "its VLANs");
            traffic_of_vif(it).vlan = "its VLANs".into();
            [VIF, "db0"].iter().for_each(|port| says(it, port, None, [10, 0, 0, 5], [10, 0, 0, 5]));
        },
        "guest-address",
        "several stations with the address 10.0.0.5 are in VLAN 1: ",
    ),
    (
        "one subnet in two VLANs",
        |it| {
            second(it, "VLAN 20");
            traffic_of_vif(it).vlan = "VLAN 10".into();
            asks(it, [10, 0, 0, 2]);
            says(it, "db0", None, [10, 0, 0, 2], [10, 0, 0, 1]);
        },
        "guest-address",
        "db0 has it, in VLAN 20",
    ),
    (
        "the other one is behind a trunk",
        |it| {
            traffic_of_vif(it).vlan = "VLAN 10".into();
            asks(it, [10, 0, 0, 2]);
            says(it, UPLINK, Some(30), [10, 0, 0, 2], [10, 0, 0, 1]);
        },
        "guest-address",
        "lan has it, in VLAN 30",
    ),
    (
        "two isolated guests",
        |it| {
            second(it, "");
            let Some(Explanation::Vif(vif)) = it.explained.get_mut(&name("db0")) else { panic!() };
            vif.traffic.isolated = 1;
            traffic_of_vif(it).isolated = 1;
            asks(it, [10, 0, 0, 2]);
            says(it, "db0", None, [10, 0, 0, 2], [10, 0, 0, 1]);
        },
        "guest-address",
        "both are isolated",
    ),
    ("a gateway that is not there", |it| asks(it, [10, 0, 0, 254]), "guest-address", "10.0.0.254"),
    (
        "the host's address has no tag",
        |it| {
            traffic_of_vif(it).vlan = "VLAN 10".into();
            asks(it, [10, 1, 1, 1]);
        },
        "guest-address",
        "type vlan",
    ),
    (
        "a packet socket on the host's own card",
        |it| {
            let Some(Explanation::Uplink(uplink)) = it.explained.get_mut(&name(UPLINK)) else {
                panic!()
            };
            uplink.layer = weir_switch::explain::UplinkLayer::AsFound;
            asks(it, [10, 1, 1, 1]);
        },
        "guest-address",
        "a TAP as uplink",
    ),
    (
        "two clones that ping",
        |it| {
            second(it, "");
            [VIF, "db0"].iter().for_each(|port| pings(it, port));
        },
        "guest-address",
        "several stations with the address 10.0.0.5",
    ),
    (
        "two DHCP servers",
        |it| {
            offers(it, UPLINK, 1);
            offers(it, VIF, 66);
        },
        "guest-address",
        "several DHCP servers",
    ),
    (
        "a clone behind the uplink",
        |it| drop_many(it, "src_mac_owned"),
        "src-mac",
        "or behind an uplink",
    ),
    (
        "a guest that is a DHCP server",
        |it| drop_many(it, "source_guard_ip"),
        "drops",
        "router=true",
    ),
    (
        "an IPv6 address of stable privacy",
        |it| {
            let Some(Explanation::Vif(vif)) = it.explained.get_mut(&name(VIF)) else { panic!() };
            vif.guard = Some(serde_json::from_value(serde_json::json!({ "mode": "configured", "addresses": [], "leases": [], "router": false, "drops": {} })).unwrap());
            drop_many(it, "source_guard_ip");
        },
        "drops",
        "addrgenmode eui64",
    ),
    (
        "QEMU is stopped by Ctrl-Z",
        |it| it.host.qemus[0].is_stopped = true,
        "halted",
        "kill -CONT 77",
    ),
    (
        "QEMU listens itself",
        |it| {
            it.vifs[0].state = PortState::Waiting;
            it.host.qemus[0].args[1] = format!("socket,id=a,path={SOCKET},server=on,wait=off");
        },
        "waiting-monitor",
        "both listen",
    ),
    (
        "weir and QEMU both connect",
        |it| {
            it.vifs[0].state = PortState::Waiting;
            it.vifs[0].config.mode = weir_config::SocketRole::Client;
        },
        "waiting-monitor",
        "both connect",
    ),
    (
        "the VM has a card of another kind",
        |it| {
            it.vifs[0].state = PortState::Waiting;
            it.host.qemus[0].args = ["qemu-system-x86_64", "-name", "guest=web0,debug-threads=on"]
                .map(String::from)
                .into();
        },
        "waiting-other-path",
        "a VM of its name runs",
    ),
    (
        "QEMU in a file system of its own",
        |it| {
            it.vifs[0].state = PortState::Waiting;
            it.host.qemus[0].unseen = vec![SOCKET.into()];
        },
        "waiting-other-path",
        "a file system of its own",
    ),
    (
        "two weirs",
        |it| it.host.others = vec!["process 12: weir run a".into()],
        "other-weir",
        "process 12",
    ),
    ("an old weir after an upgrade", |it| it.host.is_replaced = true, "other-weir", "weir upgrade"),
    ("another VNI there", |it| drop_many(it, "network_unknown"), "drops", "the same `vni`"),
    ("a peer that is not listed", |it| drop_many(it, "remote_unknown"), "drops", "`peers`"),
    (
        "LACP without a partner",
        |it| {
            let Explanation::Uplink(mut bond) = uplink("eth0,eth1") else { panic!("an uplink's") };
            bond.bond = Some(
                serde_json::from_value(serde_json::json!({
                    "mode": "lacp", "changes": 1,
                    "uplinks": [{ "name": "eth0", "has_carrier": true, "carries": true }],
                }))
                .unwrap(),
            );
            it.explained.insert(name(UPLINK), Explanation::Uplink(bond));
        },
        "uplink-down",
        "no switch speaks LACP",
    ),
    (
        "a firewall between guests and host",
        |it| {
            it.host.doubts =
                vec![Lack { what: "the table `inet filter` drops".into(), help: None }];
        },
        "way-out",
        "inet filter",
    ),
];

#[test]
fn faults_of_other_hands_are_found_in_words_that_mend_them() {
    for (done, seed, check, words) in BY_OTHERS {
        let mut facts = healthy();
        seed(&mut facts);
        let found = examine(&facts);
        assert_eq!(
            found.iter().map(|it| it.check).collect::<Vec<_>>(),
            [*check],
            "{done}: {found:#?}"
        );
        assert!(lines(&found).contains(words), "{done}: {found:#?}");
    }
    assert_eq!(BY_OTHERS.len(), 25);
}

#[test]
fn what_healthy_neighbours_say_is_no_fault() {
    let mut facts = healthy();
    second(&mut facts, "its VLANs");
    traffic_of_vif(&mut facts).vlan = "its VLANs".into();
    bridged(&mut facts);
    facts.host.links.get_mut("eth0").unwrap().port_state = Some(3);
    // Asked twice and answered, asked once, the host's own questions, a probe, an announcement, one server.
    asks(&mut facts, [10, 0, 0, 2]);
    says(&mut facts, "db0", None, [10, 0, 0, 2], [10, 0, 0, 1]);
    says(&mut facts, "db0", None, [10, 0, 0, 2], [10, 0, 0, 7]);
    for _ in 0..3 {
        says(&mut facts, UPLINK, None, [10, 0, 0, 3], [10, 0, 0, 8]);
        says(&mut facts, VIF, None, [0; 4], [10, 0, 0, 9]);
        says(&mut facts, VIF, None, [10, 0, 0, 1], [10, 0, 0, 1]);
        offers(&mut facts, UPLINK, 1);
    }
    assert_eq!(examine(&facts), []);
    facts.seen.push(Seen { port: name(VIF), frame: vec![0xff; 5] });
    assert_eq!(examine(&facts), [], "half a frame");
    // A bond is no interface of the host.
    let seed = BY_OTHERS.iter().find(|it| it.0.contains("LACP")).unwrap().1;
    seed(&mut facts);
    let Some(Explanation::Uplink(lan)) = facts.explained.get_mut(&name(UPLINK)) else { panic!() };
    lan.bond.as_mut().unwrap().uplinks[0].partner = Some("02:00:00:00:00:99".parse().unwrap());
    assert_eq!(examine(&facts), []);
    let watched = watched(facts.switch.as_ref().unwrap());
    assert_eq!(watched.ports, [name(UPLINK), name(VIF)]);
    assert!(!watched.filter.is_empty());
}

fn guide() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/troubleshooting.md");
    fs::read_to_string(path).unwrap()
}

/// The text in backquotes in the first cell of each row below the header `header`.
fn first_cells<'g>(guide: &'g str, header: &str) -> Vec<&'g str> {
    let header = format!("| {header} |");
    let tables: Vec<_> = guide.split(&header).skip(1).collect();
    let rows = tables
        .into_iter()
        .flat_map(|table| table.lines().skip(2).take_while(|line| line.starts_with('|')));
    rows.map(|row| row.split('|').nth(1).unwrap().trim()).collect()
}

#[test]
fn the_guide_names_every_check_and_every_check_is_in_the_guide() {
    let guide = guide();
    let named: Vec<_> =
        first_cells(&guide, "check").into_iter().map(|cell| cell.trim_matches('`')).collect();
    assert_eq!(named, CHECKS.iter().map(|check| check.name).collect::<Vec<_>>());
}

#[test]
fn every_reason_of_the_guide_for_a_stopped_port_is_known() {
    let guide = guide();
    let rows = first_cells(&guide, "the reason says");
    assert!(rows.len() > 15, "{rows:?}");
    for row in &rows {
        let said = row.replace('`', "").replace("...", "it");
        let is_known = reasons::REASONS.iter().any(|(part, ..)| said.contains(part));
        assert!(is_known, "`weir doctor` does not know: {row}");
    }
    for (part, ..) in reasons::REASONS {
        assert!(
            rows.iter().any(|row| row.replace("...", "it").contains(part.trim())),
            "not in the guide: {part}"
        );
    }
}

#[test]
fn every_drop_that_is_counted_is_found_or_is_usual() {
    let counters = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/counters.md");
    let counters = fs::read_to_string(counters).unwrap();
    let section = counters.split_once("\n## Drops").unwrap().1;
    let names = first_cells(section, "name | the frame");
    let names: Vec<_> = names.iter().flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    assert!(names.len() > 40, "{names:?}");
    let mut unfound = Vec::new();
    for name in names {
        let mut facts = healthy();
        drop_many(&mut facts, name);
        let found = examine(&facts);
        assert!(found.len() < 2, "{name} is told twice: {found:#?}");
        unfound.extend(found.is_empty().then_some(name));
    }
    unfound.sort_unstable();
    let usual = "hairpin isolated multicast_unwanted port_inactive port_unknown reserved_group_address \
                 tx_stopped unknown_unicast";
    assert_eq!(unfound.join(" "), usual);
}

/// Rows of symptoms that no counter shows, and their checks.
const SEEN: &[(&str, &str)] = &[
    ("`ring N ...", "silent-ring"),
    ("`the monitor has not answered", "silent-ring"),
    ("nothing is counted", "uplink-down"),
];

#[test]
fn every_row_of_what_one_sees_has_its_check() {
    let guide = guide();
    for row in first_cells(&guide, "you see") {
        let counters = row.split('`').skip(1).step_by(2).filter(|quoted| !quoted.contains(' '));
        let seeded = counters.map(|counter| counter.replace("vlan_*", "vlan_not_allowed"));
        let seeded: Vec<_> = seeded.collect();
        if seeded.is_empty() {
            let (_, check) = SEEN.iter().find(|(words, _)| row.starts_with(words)).expect(row);
            assert!(CHECKS.iter().any(|it| it.name == *check), "{row}: {check}");
        }
        for counter in seeded {
            let mut facts = healthy();
            drop_many(&mut facts, &counter);
            assert!(!examine(&facts).is_empty(), "{counter}");
        }
    }
}

/// The points of the guide's lists, by their first words, each with the check that sees it, or the program that reports
/// it if no check does.
const POINTS: &[(&str, Result<&str, &str>)] = &[
    ("**Another user.**", Ok("waiting-socket-mode")),
    ("**Another path.**", Ok("waiting-other-path")),
    ("**SELinux or AppArmor.**", Ok("access-denied")),
    ("**The VM monitor has given up.**", Ok("waiting-monitor")),
    ("**A second VM on one interface**", Ok("second-vm")),
    ("A silent ring", Ok("silent-ring")),
    ("Behind a virtual IOMMU", Ok("silent-ring")),
    ("For `src_mac_spoofed`", Ok("src-mac")),
    ("A larger `rx_queue_size`", Ok("receiver-slow")),
    ("**QEMU 7.2 under TCG", Ok("qemu-vectors")),
    ("**`iommu_platform=on`**", Err("QEMU, which does not start")),
    ("**`a confined weir may not listen on ...`**", Err("`weir vif add`")),
    ("**`weir-compiler has ended`**", Ok("helper-ended")),
    ("**`weir's starter does not answer`**", Ok("helper-ended")),
    ("**`ended out of order`**", Err("who can be asked is another weir")),
    ("**`weir's helper does not answer`**", Ok("helper-ended")),
    ("**`a thread stands still`**", Ok("thread-still")),
    ("**`cannot confine weir`**", Ok("not-running")),
    ("`CALLS/FRAME` near 1", Err("no fault: so it is for a guest that sleeps between frames")),
    ("`parked` near the number of frames", Err("no fault: nothing is lost")),
    ("Several pairs of busy guests", Ok("budget-late")),
    ("`waited for its rate`", Ok("limits-of-port")),
    ("More than one vCPU", Err("no fault: advice")),
    ("`this guest may need a reset after a SIGKILL of weir`", Ok("no-records")),
    ("`cannot keep a record of a ring`", Ok("no-records")),
    ("Without a record", Ok("no-records")),
    ("The files may be removed", Err("no fault")),
];

#[test]
fn every_point_of_the_guide_has_its_check_or_is_said_by_somebody_else() {
    let guide = guide();
    let points: Vec<_> = guide.lines().filter_map(|line| line.strip_prefix("- ")).collect();
    let told: Vec<_> = POINTS.iter().map(|(words, _)| *words).collect();
    let unknown = points.iter().find(|point| !told.iter().any(|words| point.starts_with(words)));
    assert_eq!(unknown, None, "a point of the guide that no check sees: add it to `POINTS`");
    for (words, seen) in POINTS {
        assert!(points.iter().any(|point| point.starts_with(words)), "not in the guide: {words}");
        if let Ok(check) = seen {
            assert!(CHECKS.iter().any(|it| it.name == *check), "{words}: {check}");
        }
    }
}

#[test]
fn every_section_of_the_guide_is_one_that_the_table_leads_to_or_says_itself() {
    let guide = guide();
    let sections: Vec<_> = guide.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    for section in &sections {
        let anchor: String = section
            .to_lowercase()
            .chars()
            .filter(|c| c.is_alphanumeric() || [' ', '-'].contains(c))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect();
        assert!(guide.contains(&format!("](#{anchor})")), "no check leads to {section:?}");
    }
    assert!(sections.len() >= 8, "{sections:?}");
}

#[test]
fn what_mends_is_a_command_that_weir_takes() {
    let mut mends: Vec<_> = reasons::REASONS.iter().map(|(.., mend)| (*mend).to_owned()).collect();
    for (_, seed) in faults() {
        let mut facts = healthy();
        seed(&mut facts);
        mends.extend(examine(&facts).into_iter().map(|found| found.mend.into_owned()));
    }
    let mut settings = BTreeSet::new();
    for mend in mends.iter().filter(|mend| mend.contains("weir vif set")) {
        settings
            .extend(mend.split([' ', ',', ';']).filter_map(|word| Some(word.split_once('=')?.0)));
    }
    assert!(settings.len() > 5, "{settings:?}");
    for key in settings {
        let setting = format!("{key}=none").parse().unwrap();
        let Err(error) = weir_config::VifChanges::from_settings(&name(VIF), &[setting]) else {
            continue;
        };
        let said = error.lines().join(" ");
        assert!(!said.contains("cannot change") && !said.contains("unknown key"), "{said}");
    }
}

#[test]
fn a_closed_socket_is_opened_by_its_mode_or_by_the_group_whichever_is_wrong() {
    let mends = |mode: u32, origin| {
        let mut facts = healthy();
        (facts.vifs[0].state, facts.vifs[0].origin) = (PortState::Waiting, origin);
        facts.host.qemus[0].groups = vec![];
        socket(&mut facts).file.mode = 0o140_000 | mode;
        socket(&mut facts).above[0].1.mode = 0o40_755;
        examine(&facts).remove(0).mend
    };
    let (by_mode, by_group) = (mends(0o600, VifOrigin::File), mends(0o660, VifOrigin::File));
    assert!(by_mode.contains("in [vif.") && by_mode.contains("socket_group"), "{by_mode}");
    assert!(!by_group.contains("socket_mode") && by_group.contains("socket_group"), "{by_group}");
    let of_command = mends(0o600, VifOrigin::Command);
    assert!(
        of_command.contains("socket_mode=0660") && !of_command.contains("[vif"),
        "{of_command}"
    );
}

#[test]
fn what_has_ended_is_worth_a_note_and_what_happens_to_everybody_is_not() {
    let before = |it: &mut Facts, ports: fn(&mut PortStats)| {
        ports(&mut it.before.as_mut().unwrap().ports[0]);
    };
    let mut facts = healthy();
    drop_many(&mut facts, "src_mac_spoofed");
    assert!(examine(&facts)[0].wrong);
    before(&mut facts, |it| _ = it.drops.insert("src_mac_spoofed".into(), 50_000));
    vif(&mut facts).sessions.turned_away = 2;
    before(&mut facts, |it| it.sessions.turned_away = 2);
    vif(&mut facts).sessions.turned_away_s = Some(180);
    vif(&mut facts).budget_breaches.insert("asked_late".into(), 5000);
    before(&mut facts, |it| _ = it.budget_breaches.insert("asked_late".into(), 5000));
    let found = examine(&facts);
    assert_eq!(
        found.iter().map(|it| (it.check, it.wrong)).collect::<Vec<_>>(),
        [("second-vm", false), ("src-mac", false), ("budget-late", false),]
    );
    assert!(found[1].known_by.contains("0 just now") && found[1].known_by.contains("50000"));
    vif(&mut facts).quiet_s = 700;
    let aged: Vec<_> = examine(&facts).iter().map(|it| it.check).collect();
    assert_eq!(aged, ["second-vm"]);
    vif(&mut facts).quiet_s = 180;
    // Calls of a single moment are late on any busy host.
    vif(&mut facts).budget_breaches.insert("asked_late".into(), 99);
    before(&mut facts, |it| _ = it.budget_breaches.insert("asked_late".into(), 98));
    vif(&mut facts).rx.calls = 100_001;
    assert!(examine(&facts).iter().all(|it| it.check != "budget-late"), "{:?}", examine(&facts));
    // One of two questions was answered, and later none.
    vif(&mut facts).answers = [("dns_failed".into(), 1), ("dns_forwarded".into(), 1)].into();
    assert!(examine(&facts).iter().all(|it| it.check != "unanswered"));
    vif(&mut facts).answers.remove("dns_forwarded");
    assert!(examine(&facts).iter().any(|it| it.check == "unanswered" && it.wrong));
    before(&mut facts, |it| _ = it.answers.insert("dns_failed".into(), 1));
    assert!(examine(&facts).iter().any(|it| it.check == "unanswered" && !it.wrong));
    vif(&mut facts).answers.clear();
    vif(&mut facts).sessions.turned_away_s = Some(700);
    assert!(examine(&facts).iter().all(|it| it.check != "second-vm"), "a note ages");
    let mut facts = healthy();
    vif(&mut facts).sessions.failed = 3;
    before(&mut facts, |it| it.sessions.failed = 3);
    vif(&mut facts).state = PortState::Waiting;
    for (ago_s, is_told) in [(180, true), (700, false)] {
        vif(&mut facts).sessions.last_error_s = Some(ago_s);
        let found = examine(&facts);
        assert_eq!(found.iter().any(|it| it.check == "session-fails"), is_told, "{ago_s} s");
    }
    // Leases that could not be saved at first, and then were.
    let unsaved = [("leases_unsaved", 2), ("leases_saved_late", 1)];
    vif(&mut facts).answers = unsaved.map(|(name, count)| (name.into(), count)).into();
    before(&mut facts, |it| _ = it.answers.insert("leases_unsaved".into(), 2));
    before(&mut facts, |it| _ = it.answers.insert("leases_saved_late".into(), 1));
    assert!(examine(&facts).iter().any(|it| it.check == "unanswered"));
    vif(&mut facts).answers.insert("leases_saved_late".into(), 2);
    before(&mut facts, |it| _ = it.answers.insert("leases_saved_late".into(), 2));
    assert!(examine(&facts).iter().all(|it| it.check != "unanswered"));

    // Long ago most frames arrived; now none does.
    let mut facts = healthy();
    vif(&mut facts).tx.frames = 1_000_000_000;
    before(&mut facts, |it| it.tx.frames = 1_000_000_000);
    vif(&mut facts).drops.insert("rx_ring_full".into(), 12);
    assert!(examine(&facts).iter().any(|it| it.check == "receiver-slow" && it.wrong));

    // The guest boots.
    let mut facts = healthy();
    (vif(&mut facts).tx.frames, vif(&mut facts).rx.frames) = (20, 20);
    vif(&mut facts).drops = [("rx_not_ready".to_owned(), 8)].into();
    facts.before = Some(SwitchStats::default());
    assert_eq!(examine(&facts), []);
}

#[test]
fn groups_that_close_one_direction_or_have_a_rule_are_as_they_should_be() {
    let (_, seed) = faults().into_iter().find(|(check, _)| *check == "group-all").unwrap();
    let found = |change: fn(&mut GroupStats, &mut GroupsExplanation)| {
        let mut facts = healthy();
        seed(&mut facts);
        let Some(Explanation::Vif(vif)) = facts.explained.get_mut(&name(VIF)) else { panic!() };
        let group = &mut facts.switch.as_mut().unwrap().groups[0];
        change(group, vif.groups.as_mut().unwrap());
        examine(&facts)
    };
    assert_eq!(found(|_, _| ()).len(), 1);
    assert_eq!(found(|group, _| group.rules = vec!["in tcp 80 from any".into()]), []);
    assert_eq!(found(|_, vif| vif.close_out.clear()), []);
    assert_eq!(found(|_, vif| vif.close_in.clear()), []);
    assert_eq!(found(|_, vif| vif.refused_in.clear()), []);
}

#[test]
fn shared_memory_counts_if_the_machine_has_it() {
    let is_found = |args: &[&str]| {
        let mut facts = healthy();
        (facts.vifs[0].state, vif(&mut facts).state) = (PortState::Connected, PortState::Connected);
        facts.host.qemus[0].args.truncate(2);
        facts.host.qemus[0].args.extend(args.iter().map(|it| (*it).to_owned()));
        examine(&facts).iter().any(|it| it.check == "memory-private")
    };
    let json =
        "{\"qom-type\":\"memory-backend-memfd\",\"id\":\"pc.ram\",\"share\":true,\"size\":1}";
    for shared in [
        &["memory-backend-memfd,id=a,size=1G", "q35,memory-backend=a"][..],
        &["memory-backend-file,size=1G,share=yes,mem-path=/x,id=a", "node,nodeid=0,memdev=a"],
        &[json, "pc-i440fx-8.2,usb=off,memory-backend=pc.ram"],
        &[json, "{\"driver\":\"pc-dimm\",\"memdev\":\"pc.ram\"}"],
    ] {
        assert!(!is_found(shared), "{shared:?}");
    }
    for private in [
        &["memory-backend-memfd,id=a,size=1G,share=on"][..],
        &["memory-backend-memfd,id=a,size=1G,share=on", "q35,memory-backend=ab"],
        &["memory-backend-memfd,id=a,size=1G,share=off", "q35,memory-backend=a"],
        &["memory-backend-file,id=a,size=1G,mem-path=/x", "q35,memory-backend=a"],
        &["memory-backend-ram,id=a,size=1G", "ivshmem,share=on", "q35,memory-backend=a"],
        &[json, "q35"],
    ] {
        assert!(is_found(private), "{private:?}");
    }
}

#[test]
fn a_few_frames_are_enough_where_no_other_has_passed() {
    let found = |reason: &str, drops, rx, tx| {
        let mut facts = healthy();
        let port = vif(&mut facts);
        (port.rx.frames, port.tx.frames) = (rx, tx);
        port.drops = [(reason.to_owned(), drops)].into();
        // The user has ended the ping before.
        facts.before = facts.switch.clone();
        examine(&facts).into_iter().map(|it| (it.check, it.wrong)).collect::<Vec<_>>()
    };
    for (reason, rx, tx, check) in [
        ("src_mac_spoofed", 5000, 4, "src-mac"),
        ("vlan_untagged_on_trunk", 5000, 4, "vlan"),
        ("source_guard_ip", 5000, 4, "drops"),
        ("over_mtu_tx", 5000, 4, "mtu"),
        ("group_out", 5000, 4, "limits-of-port"),
        ("group_in", 0, 5000, "limits-of-port"),
        ("filtered_rx", 0, 5000, "limits-of-port"),
    ] {
        assert_eq!(found(reason, 4, rx, tx), [(check, true)], "{reason}");
        assert_eq!(found(reason, 4, 5000, 5000), [], "{reason}: a few of many");
    }
    assert_eq!(found("src_mac_spoofed", 2, 0, 2), [], "too few to know");
    assert_eq!(found("rx_not_ready", 5, 0, 0), [], "so it is while a guest boots");
    assert_eq!(found("unknown_unicast", 5, 0, 5), [], "usual");
    let mut facts = healthy();
    let port = vif(&mut facts);
    port.drops = [("filtered_tx".to_owned(), 4)].into();
    (port.tx.frames, port.filter) =
        (4, vec![RuleStats { rule: "tx drop".parse().unwrap(), packets: 4, bytes: 240 }]);
    let checks: Vec<_> = examine(&facts).into_iter().map(|it| it.check).collect();
    assert_eq!(checks, ["filter-all"], "told once");
}

#[test]
fn an_emulated_vm_has_vectors_unless_it_says_that_it_has_none() {
    let mend = |device: &str, by: Option<&str>| {
        let mut facts = healthy();
        facts.vifs[0].config.by = by.map(|by| by.parse().unwrap());
        let qemu = &mut facts.host.qemus[0];
        qemu.version = Some((7, 2));
        qemu.args.push(device.into());
        let found = examine(&facts).into_iter().find(|it| it.check == "qemu-vectors");
        found.map(|it| it.mend).unwrap_or_default()
    };
    let libvirt = Some("libvirt:7");
    let json =
        |more: &str| format!("{{\"driver\":\"virtio-net-pci\",\"netdev\":\"hostnet0\"{more}}}");
    assert!(mend(&json(""), libvirt).starts_with("weir libvirt define DOMAIN"));
    assert_eq!(mend(&json(",\"vectors\":0"), libvirt), "");
    for device in ["virtio-net-pci,netdev=n", "virtio-net,netdev=n,vectors=4"] {
        assert!(mend(device, None).contains("--vectors 0"), "{device}");
    }
    assert_eq!(mend("virtio-net-pci,netdev=n,vectors=0", None), "");
    assert_eq!(mend("virtio-net-device,netdev=n", None), "", "it has no vectors");
}

#[test]
fn a_vm_is_judged_by_its_own_program_and_not_by_the_installed_one() {
    let vectors = "virtio-net-pci,netdev=weir-web0,vectors=4";
    let seen = |installed, running, connected: bool| {
        let mut facts = healthy();
        let qemu = &mut facts.host.qemus[0];
        qemu.version = running;
        qemu.args.push(vectors.into());
        if connected {
            // Another program hands QEMU the socket as a descriptor.
            qemu.args.retain(|arg| !arg.contains(SOCKET));
        }
        facts.host.qemu_version = installed;
        examine(&facts).into_iter().map(|it| (it.check, it.subject)).collect::<Vec<_>>()
    };
    let of_vm = |check| vec![(check, VIF.to_owned())];
    for connected in [false, true] {
        assert_eq!(seen(Some((7, 2)), Some((11, 1)), connected), []);
        assert_eq!(seen(Some((7, 2)), None, connected), [], "nobody knows");
        assert_eq!(seen(Some((11, 1)), Some((7, 2)), connected), of_vm("qemu-vectors"));
        assert_eq!(seen(Some((11, 1)), Some((6, 2)), connected), of_vm("qemu-old"));
    }
}

#[test]
fn what_is_said_of_a_vm_that_is_paused_and_of_one_that_boots_is_true_of_each() {
    let said = |state| {
        let mut facts = healthy();
        vif(&mut facts).state = state;
        drop_many(&mut facts, "rx_not_ready");
        let found = examine(&facts);
        let all: Vec<_> = found.iter().map(|it| format!("{} {}", it.what, it.mend)).collect();
        all.join("\n")
    };
    let paused = said(PortState::Halted);
    assert!(paused.contains("paused") && paused.contains("set_link"), "{paused}");
    assert!(!paused.contains("boot") && !paused.contains("ip link"), "{paused}");
    let boots = said(PortState::Connected);
    assert!(
        ["boots", "-S", "-incoming", "unplugged", "ip link"].iter().all(|it| boots.contains(it))
    );
}

#[test]
fn a_vm_that_may_not_enter_the_directory_is_found_and_one_of_root_is_not() {
    let mut facts = healthy();
    facts.vifs[0].state = PortState::Waiting;
    assert_eq!(examine(&facts), []);
    socket(&mut facts).above[0].1.mode = 0o40_700;
    let found = examine(&facts);
    assert_eq!(found.len(), 1);
    assert!(found[0].known_by.starts_with("/run/weir has mode 0700, user 900"), "{found:?}");
    facts.host.qemus[0].user = 0;
    assert_eq!(examine(&facts), []);
    facts.host.qemus[0].user = 900;
    assert_eq!(examine(&facts), []);
}

#[test]
fn what_the_kernels_log_has_of_long_ago_is_of_another_weir() {
    let mut facts = healthy();
    facts.host.denied = audited(7200, "apparmor=\"DENIED\" profile=\"weir\"");
    assert_eq!(examine(&facts), []);
    facts.host.denied = audited(60, "apparmor=\"DENIED\" profile=\"weir\"");
    assert_eq!(examine(&facts)[0].subject, "switch");
    // A guest that is served was not denied anything.
    facts.host.denied = audited(60, &format!("apparmor=\"DENIED\" name=\"{SOCKET}\""));
    assert_eq!(examine(&facts), []);
    facts.host.seccomp = audited(100 * 3600, "comm=\"weir\"");
    assert!(!examine(&facts)[0].wrong);
}

#[test]
fn one_processor_gets_all_interrupts_and_that_is_no_fault() {
    let mut facts = healthy();
    facts.host.irqs.insert("eth0".into(), vec!["0".into(); 3]);
    assert_eq!(examine(&facts).len(), 1);
    facts.host.cpus_online = Some(1);
    assert_eq!(examine(&facts), []);
}

#[test]
fn of_a_mirror_it_is_not_found_that_it_sends_into_no_vlan() {
    let mut facts = healthy();
    traffic_of_vif(&mut facts).is_mirror = true;
    drop_many(&mut facts, "vlan_untagged_on_trunk");
    assert_eq!(examine(&facts), []);
    drop_many(&mut facts, "mirror_lost");
    let found = examine(&facts);
    assert_eq!(found.len(), 1);
    assert!(found[0].mend.contains("mirror fewer ports"), "{found:?}");

    // An uplink can be a mirror, too, and the host at its other end sends by itself.
    let mut facts = healthy();
    let Some(Explanation::Uplink(uplink)) = facts.explained.get_mut(&name(UPLINK)) else {
        panic!()
    };
    uplink.traffic.is_mirror = true;
    let lan = &mut facts.switch.as_mut().unwrap().ports[1];
    (lan.tx.frames, lan.drops) = (20, [("vlan_untagged_on_trunk".to_owned(), 20)].into());
    assert_eq!(examine(&facts), []);
}

#[test]
fn processes_that_have_ended_beside_weir_are_seen() {
    let zeros = "0 ".repeat(17);
    let read = |line: &str| host::process(&format!("{line} {zeros}4711 0"));
    let helper = Process {
        pid: 7,
        name: "weir-helper".into(),
        parent: 12,
        is_zombie: true,
        began_ticks: 4711,
    };
    assert_eq!(read("7 (weir-helper) Z 12"), Some(helper));
    assert!(!read("7 (weir-helper) S 1").unwrap().is_zombie);
    let odd = read("7 (a) Z (weir-helper) S 1").unwrap();
    assert_eq!((odd.name.as_str(), odd.is_zombie), ("a) Z (weir-helper", false));
    assert_eq!(host::process("7 (weir-helper) Z 12"), None);
}

/// A directory with the kernel's files.
fn kernel(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    dir
}

#[test]
fn each_fact_is_read_where_the_kernel_has_it() {
    let dir = kernel(&[
        ("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n"),
        ("sys/devices/system/cpu/online", "0-7\n"),
        ("proc/meminfo", "MemTotal: 4 kB\nHugePages_Total:     512\nHugePages_Free:      500\n"),
        ("sys/class/net/eth0/mtu", "1400\n"),
        ("sys/class/net/eth0/flags", "0x1003\n"),
        ("sys/class/net/eth0/carrier", "0\n"),
        ("sys/class/net/eth0/device/msi_irqs/24", "msix\n"),
        ("proc/irq/24/effective_affinity_list", "3\n"),
        ("sys/class/net/weir0/mtu", "1500\n"),
        ("sys/class/net/weir0/flags", "0x1002\n"),
        ("sys/class/net/weir0/brport/state", "1\n"),
        ("sys/class/net/br0/bridge/stp_state", "0\n"),
        ("sys/class/net/bond0/mtu", "none\n"),
        ("proc/9/comm", "weir\n"),
        ("proc/9/status", "Name:\tweir\nCpus_allowed_list:\t0-1,4\n"),
        ("proc/9/cgroup", "0::/system.slice/weir.service\n"),
        ("sys/fs/cgroup/system.slice/weir.service/cpu.max", "max 100000\n"),
        ("sys/fs/cgroup/system.slice/cpu.max", "150000 100000\n"),
        ("proc/stat", "cpu  1 2\nbtime 1000\nprocesses 9\n"),
        ("proc/9/stat", "9 (weir) S 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 500 0\n"),
        ("proc/10/stat", "10 (weir-helper) Z 9 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 700 0\n"),
        ("proc/11/stat", "11 (weir-starter) Z 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 800 0\n"),
        ("proc/12/cmdline", "/usr/bin/qemu-system-x86_64\0-chardev\0socket,path=/a\0"),
        (
            "proc/12/status",
            "State:\tT (stopped)\nUid:\t0\t7\t0\t0\nGid:\t0\t8\t0\t0\nGroups:\t5 6 \n",
        ),
        ("proc/12/exe", "\u{7f}ELF QEMU emulator version 11.1.3 (Debian)\n"),
        ("proc/15/stat", "15 (weir) S 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 900 0\n"),
        ("proc/15/cmdline", "weir\0run\0/a\0"),
        ("proc/16/stat", "16 (weir) S 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 900 0\n"),
        ("proc/16/cmdline", "weir\0doctor\0"),
        ("proc/13/cmdline", "less\0qemu-system-x86_64\0"),
        // The process at the other end of a socket counts, whatever its name.
        ("proc/14/cmdline", "/usr/libexec/vmm\0"),
        ("proc/14/status", "Uid:\t0\t7\t0\t0\nGid:\t0\t8\t0\t0\nGroups:\t\n"),
        ("proc/14/exe", "no QEMU"),
    ]);
    let net = dir.path().join("sys/class/net");
    std::os::unix::fs::symlink("../br0", net.join("weir0/master")).unwrap();
    std::os::unix::fs::symlink("../bond0", net.join("eth0/master")).unwrap();
    std::os::unix::fs::symlink("/usr/bin/weir (deleted)", dir.path().join("proc/9/exe")).unwrap();
    let host = host::below(dir.path(), Some(9), &[14]);
    assert_eq!(host.bridges, [("weir0".to_owned(), "br0".to_owned())].into(), "a bond is none");
    assert_eq!(host.clocksource.as_deref(), Some("hpet"));
    assert_eq!((host.cpus_online, host.cpus), (Some(8), Some(3)));
    assert_eq!((host.cpu_quota, host.hugepages), (Some(1.5), Some((512, 500))));
    let link = |mtu, is_up, has_carrier, port_state| Link { mtu, is_up, has_carrier, port_state };
    let links = [
        ("eth0".to_owned(), link(1400, true, false, None)),
        ("weir0".to_owned(), link(1500, false, true, Some(1))),
    ];
    assert_eq!(host.links, links.into());
    assert_eq!(host.irqs, [("eth0".to_owned(), vec!["3".to_owned()])].into());
    assert_eq!(host.ended, ["weir-helper"]);
    let ticks = rustix::param::clock_ticks_per_second();
    let own = [(9, 1000 + 500 / ticks), (10, 1000 + 700 / ticks)];
    assert_eq!(host::own(dir.path(), Some(9)), own.into());
    let root = host::Root(dir.path());
    assert_eq!([9, 10, 11, 12].map(|pid| root.weir_of(pid)), [Some(9), Some(9), None, None]);
    assert_eq!(host::own(dir.path(), Some(10)), Default::default(), "that is no weir");
    let mut qemus = host.qemus;
    qemus.sort_by_key(|qemu| qemu.pid);
    let [qemu, other] = qemus.as_slice() else { panic!("{qemus:?}") };
    assert_eq!((qemu.version, other.pid, other.version), (Some((11, 1)), 14, None));
    assert_eq!((qemu.pid, qemu.user, qemu.groups.as_slice()), (12, 7, &[5, 6, 8][..]));
    assert_eq!((qemu.is_stopped, other.is_stopped), (true, false));
    assert_eq!(qemu.args[2], "socket,path=/a");
    assert_eq!(
        (host.others.as_slice(), host.is_replaced),
        (&["process 15: weir run /a".to_owned()][..], true)
    );
    // Another process has weir's process number now.
    assert_eq!(host::below(dir.path(), Some(13), &[]).cpu_quota, None);
}

#[test]
fn a_socket_is_seen_with_what_is_above_it() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o750)).unwrap();
    let path = dir.path().join("a.sock");
    assert_eq!(look_at_socket(&path, None), None);
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let file = look_at_socket(&path, None).unwrap();
    assert!(!file.has_records && file.file.mode & 0o170_000 == 0o140_000);
    assert_eq!((file.above[0].0.as_path(), file.above[0].1.mode), (dir.path(), 0o40_750));
    // On a full file system, a file can be created, but stays empty.
    fs::write(dir.path().join("a.sock.rings"), "").unwrap();
    assert!(!look_at_socket(&path, None).unwrap().has_records);
    fs::write(dir.path().join("a.sock.rings"), "records").unwrap();
    assert!(look_at_socket(&path, None).unwrap().has_records);
}

#[test]
fn a_line_of_the_log_is_wanted_if_this_weir_or_a_socket_is_meant() {
    let own = [(12, NOW_S), (13, NOW_S + 1)].into();
    let at = |s: u64, said: &str| format!("[ 1.2] audit: type=1400 audit({s}.5:9): {said}");
    let is_denied = |said: &str| host::is_denied(&at(NOW_S + 2, said), &own, &[Path::new(SOCKET)]);
    assert!(is_denied(
        "apparmor=\"DENIED\" profile=\"weir\" name=\"/etc/shadow\" pid=12 comm=\"x\""
    ));
    assert!(is_denied("apparmor=\"DENIED\" profile=\"libvirt-7\" name=\"/run/weir/web0.sock\""));
    assert!(is_denied("avc:  denied  { read } for  pid=13 comm=\"weir-helper\""));
    assert!(!is_denied("apparmor=\"ALLOWED\" profile=\"weir\" pid=12"));
    assert!(!is_denied("apparmor=\"DENIED\" profile=\"other\" name=\"/run/weir/web0.sock2\""));
    assert!(!is_denied("avc:  denied  { read } for  pid=14 comm=\"weir-helper\""), "another weir");
}

#[test]
fn weir_is_blamed_for_what_its_own_processes_did() {
    let own = [(12, NOW_S)].into();
    let line = |s: u64, pid: u32, exe: &str| {
        format!(
            "[ 9.1] audit: type=1326 audit({s}.123:45): auid=4294967295 uid=64773 ses=1 pid={pid} \
             comm=\"weir-worker-0\" exe=\"{exe}\" sig=31 arch=c000003e syscall=16 compat=0"
        )
    };
    assert!(host::is_of(&line(NOW_S, 12, "/usr/bin/weir"), &own));
    assert!(!host::is_of(&line(NOW_S, 13, "/usr/bin/weir"), &own), "another weir of this program");
    assert!(!host::is_of(&line(NOW_S - 1, 12, "/usr/bin/weir"), &own), "who had the number before");
    assert!(!host::is_of(&line(NOW_S, 1, "/opt/12/weir"), &own));
    assert!(!host::is_of("pid=12", &own) && !host::is_of("", &own));
    // Without known processes, no line is about weir.
    assert!(!host::is_of(&line(NOW_S, 12, "/usr/bin/weir"), &Default::default()));
}

#[test]
fn this_machine_can_be_looked_at() {
    let host = look_at_host(&[], None);
    assert!(host.kernel.is_some_and(|kernel| kernel > (4, 0)) && host.now_s > Some(NOW_S / 2));
    assert!(host.cpus.is_some_and(|cpus| cpus > 0) && host.hugepages.is_some());
    assert!(host.links["lo"].mtu > 1500);
}

#[test]
fn versions_and_quotas_are_read() {
    assert_eq!(qemu::version("6.12.0-13-amd64"), Some((6, 12)));
    assert_eq!(qemu::version("10.0.2 (Debian 1:10.0.2)"), Some((10, 0)));
    assert_eq!(qemu::version("none"), None);
    assert_eq!(host::quota("50000 100000"), Some(0.5));
    assert_eq!(host::quota("max 100000"), None);
}

#[test]
fn a_blocked_port_is_told_once_and_by_whose_it_is() {
    let mut facts = healthy();
    let block =
        |with| BlockStats { with: name(with), vlan: 7, seconds: 5.0, retry_s: 5.0, tries: 2 };
    vif(&mut facts).blocked = Some(block(UPLINK));
    drop_many(&mut facts, "loop");
    let found = examine(&facts);
    assert_eq!(found.len(), 1, "its drops are no other fault: {found:#?}");
    assert!(found[0].what.contains("between web0 and lan"), "{found:?}");
    assert!(found[0].known_by.contains("VLAN 7, tried 2 times"), "{found:?}");
    vif(&mut facts).blocked = Some(block(VIF));
    assert!(examine(&facts)[0].what.contains("sends back"), "{:?}", examine(&facts));
    vif(&mut facts).blocked = None;
    vif(&mut facts).drops.clear();
    let bridges = ["eth0", "eth2"].map(|it| (it.to_owned(), "br0".to_owned()));
    facts.host.bridges = bridges.into();
    facts.explained.insert(name("lan1"), uplink_called("lan1", "eth2"));
    facts.host.links.insert("eth2".into(), facts.host.links["eth0"]);
    assert_eq!(examine(&facts)[0].check, "uplinks-joined");
    let mut second = PortStats::new(name("lan1"), PortKind::Uplink);
    (second.state, second.blocked) = (PortState::Running, Some(block(UPLINK)));
    facts.switch.as_mut().unwrap().ports.push(second);
    let found = examine(&facts);
    let checks: Vec<_> = found.iter().map(|it| it.check).collect();
    assert_eq!(checks, ["loop"], "what was foreseen has come: {found:#?}");
    assert!(found[0].what.contains("comes back by lan1"), "{found:?}");
    // An interface that weir has open, although no interface has that name any more.
    let mut facts = healthy();
    facts.host.links.clear();
    let found = examine(&facts);
    assert!(found[0].check == "uplink-down" && found[0].what.contains("another name now"));
}

#[test]
fn uplinks_are_joined_by_a_bridge_that_both_are_ports_of() {
    let names = ["a", "b", "c", "d", "e"].map(name);
    let interfaces = ["eth0", "eth1", "eth2", "eth3", "eth4"];
    let uplinks = || names.iter().zip(interfaces);
    let of = |bridges: &[(&str, &str)]| {
        let bridges = bridges.iter().map(|(port, bridge)| ((*port).into(), (*bridge).into()));
        let bridges: BTreeMap<String, String> = bridges.collect();
        let joined = host::joined(uplinks(), &bridges);
        joined.iter().map(|it| format!("{}{}", it.first.0, it.second.0)).collect::<Vec<_>>()
    };
    assert!(of(&[]).is_empty());
    assert!(of(&[("eth0", "br0"), ("eth1", "br1"), ("tap9", "br0")]).is_empty());
    let bridges =
        [("eth0", "br0"), ("eth1", "br1"), ("eth2", "br0"), ("eth3", "br1"), ("eth4", "br0")];
    assert_eq!(of(&bridges), ["ac", "bd", "ae"]);
}

#[test]
fn whoever_uses_most_of_what_all_share_is_named() {
    let mut facts = healthy();
    let switch = facts.switch.as_mut().unwrap();
    let near = |used, max| [("memory_mapped_bytes".to_owned(), Limit { used, max })].into();
    switch.limits = near(950, 1_000);
    switch.ports[0].limits = near(900, 2_000);
    let found = examine(&facts);
    let found: Vec<_> = found.iter().filter(|it| it.check == "limit-near").collect();
    let [found] = found[..] else { panic!("{found:?}") };
    assert_eq!(found.subject, "switch");
    let known = format!("950 of 1000, most of them by {VIF} 900");
    assert_eq!(found.known_by, known);
    assert!(!found.mend.contains("[vif."), "{found:?}");
}
