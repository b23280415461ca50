//! A healthy machine, of which nothing is found; and each fault in it, which its check finds, and no other.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use weir_config::{Config, Defaults, PortName, SocketPath};
use weir_switch::control::VifStatus;
use weir_switch::explain::{AgentExplanation, AgentState, Explanation, VifExplanation};
use weir_switch::stats::{
    Limit, PortKind, PortState, PortStats, QueuePairNumbers, Silence, SilentRing, StillThread,
    SwitchStats, WorkerStats,
};

use super::*;
use crate::testing::explanation;

const VIF: &str = "web0";
const UPLINK: &str = "lan";
const SOCKET: &str = "/run/weir/web0.sock";

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
        error: None,
    });
    Explanation::Vif(Box::new(VifExplanation { agent, ..explanation(VIF) }))
}

fn uplink(interface: &str) -> Explanation {
    let of = serde_json::json!({
        "name": UPLINK, "interface": interface, "layer": { "state": "worker_only" },
        "cost": { "ns": 1000, "source": "default" },
    });
    Explanation::Uplink(Box::new(serde_json::from_value(of).unwrap()))
}

/// A VM that runs well, behind an uplink.
fn healthy() -> Facts {
    let control = SocketPath::try_from(Path::new("/run/weir/control.sock")).unwrap();
    let defaults = Defaults { control, control_named: true, keeper: None };
    let text = "[vif.web0]\nmtu = 1500\n";
    let config = Config::from_toml("weir.toml", text, &defaults).unwrap().vifs.remove(0);
    let status = VifStatus { config, state: PortState::Running, stopped_reason: None, xen: false };
    let mut vif = PortStats::new(name(VIF), PortKind::Vif);
    vif.state = PortState::Running;
    vif.queue_pairs = Some(QueuePairNumbers { configured: 1, session: Some(1), in_use: 1 });
    (vif.rx.frames, vif.tx.frames, vif.rx.calls) = (1_000_000, 1_000_000, 100_000);
    // Some of it happens to everybody.
    vif.drops = [("rx_not_ready".to_owned(), 3), ("filtered_tx".to_owned(), 5)].into();
    vif.budget_breaches = [("no_cpu".to_owned(), 7)].into();
    vif.limits = [("memory".to_owned(), Limit { used: 1, max: 256 })].into();
    let mut lan = PortStats::new(name(UPLINK), PortKind::Uplink);
    lan.state = PortState::Running;
    let switch = SwitchStats {
        workers: vec![WorkerStats::default(); 2],
        ports: vec![vif, lan],
        ..SwitchStats::default()
    };
    let socket = SocketFile { mode: 0o140_660, user: 900, group: 64_055, has_records: true };
    let qemu = Qemu {
        pid: 77,
        user: 64_055,
        groups: vec![64_055],
        args: vec![
            "qemu-system-x86_64".into(),
            format!("socket,id=weir-web0,path={SOCKET},reconnect=1"),
        ],
    };
    Facts {
        host: Host {
            kernel: Some((6, 12)),
            clocksource: Some("tsc".into()),
            cpus: Some(4),
            cpu_quota: Some(2.0),
            hugepages: Some((0, 0)),
            irqs: [
                ("eth0".into(), vec!["0".into(), "1".into()]),
                ("eth1".into(), vec!["0".into()]),
            ]
            .into(),
            mtus: [("eth0".into(), 1500)].into(),
            qemu_version: Some((10, 0)),
            qemus: vec![qemu],
            sockets: [(SOCKET.into(), socket)].into(),
            kernel_log: Vec::new(),
            ended: Vec::new(),
        },
        switch: Some(switch),
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

/// Makes a machine ill.
type Seed = fn(&mut Facts);

/// Each fault, seeded in a healthy machine.
fn faults() -> Vec<(&'static str, Seed)> {
    vec![
        ("not-running", |it| *it = Facts { host: it.host.clone(), ..Facts::default() }),
        ("waiting-socket-mode", |it| {
            it.vifs[0].state = PortState::Waiting;
            it.host.sockets.values_mut().next().unwrap().mode = 0o140_600;
        }),
        ("waiting-socket-missing", |it| it.host.sockets.clear()),
        ("waiting-monitor", |it| {
            it.vifs[0].state = PortState::Waiting;
            it.host.qemus[0].args[1] = format!("socket,id=weir-web0,path={SOCKET}");
        }),
        ("second-vm", |it| vif(it).sessions.turned_away = 2),
        ("driver-absent", |it| vif(it).state = PortState::Connected),
        ("stopped", |it| {
            vif(it).state = PortState::Stopped;
            vif(it).stopped_reason =
                Some("ring 1: the descriptor area at 0x1000 is not in shared memory".into());
        }),
        ("uplink-stopped", |it| it.switch.as_mut().unwrap().ports[1].state = PortState::Stopped),
        ("queues-differ", |it| {
            vif(it).queue_pairs =
                Some(QueuePairNumbers { configured: 2, session: Some(1), in_use: 1 });
        }),
        ("silent-ring", |it| {
            vif(it).silent = vec![SilentRing { ring: 1, why: Silence::BuffersWithoutKick }];
        }),
        ("src-mac", |it| drop_many(it, "src_mac_spoofed")),
        ("vlan", |it| drop_many(it, "vlan_not_allowed")),
        ("receiver-not-ready", |it| drop_many(it, "rx_not_ready")),
        ("receiver-slow", |it| drop_many(it, "rx_waited_too_long")),
        ("offloads", |it| drop_many(it, "rx_buffer_too_small")),
        ("tx-disabled", |it| drop_many(it, "tx_disabled")),
        ("mtu", |it| _ = it.host.mtus.insert("eth0".into(), 1400)),
        ("limits-of-port", |it| drop_many(it, "policed_rx")),
        ("budget-no-cpu", |it| _ = vif(it).budget_breaches.insert("no_cpu".into(), 5000)),
        ("budget-late", |it| _ = vif(it).budget_breaches.insert("asked_late".into(), 5000)),
        ("agent-absent", |it| {
            it.explained.insert(name(VIF), explained(Some(AgentState::Silent)));
        }),
        ("no-records", |it| it.host.sockets.values_mut().next().unwrap().has_records = false),
        ("thread-still", |it| {
            let still = StillThread { name: "weir-worker-0".into(), ..StillThread::default() };
            it.switch.as_mut().unwrap().still = vec![still];
        }),
        ("helper-ended", |it| it.host.ended = vec!["weir-helper".into()]),
        ("seccomp", |it| {
            it.host.kernel_log = vec!["audit: type=1326 comm=\"weir-worker-0\" syscall=41".into()];
        }),
        ("limit-near", |it| {
            _ = vif(it).limits.insert("memory".into(), Limit { used: 250, max: 256 })
        }),
        ("kernel-old", |it| it.host.kernel = Some((4, 19))),
        ("clocksource", |it| it.host.clocksource = Some("hpet".into())),
        ("cpus-few", |it| it.host.cpus = Some(1)),
        ("cpu-quota", |it| it.host.cpu_quota = Some(0.5)),
        ("irq-one-cpu", |it| _ = it.host.irqs.insert("eth0".into(), vec!["3".into(); 4])),
        ("hugepages-idle", |it| it.host.hugepages = Some((512, 512))),
        ("qemu-old", |it| it.host.qemu_version = Some((6, 2))),
        ("qemu-vectors", |it| {
            it.host.qemu_version = Some((7, 2));
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

fn guide() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/troubleshooting.md");
    fs::read_to_string(path).unwrap()
}

/// What stands in backquotes in the first cell of each row below the header `header`.
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
fn every_drop_of_the_guide_has_its_check() {
    let guide = guide();
    let rows = first_cells(&guide, "you see");
    for counter in rows.iter().flat_map(|row| row.split('`').skip(1).step_by(2)) {
        let counter = match counter {
            "vlan_*" => "vlan_not_allowed",
            other if other.contains(' ') => continue,
            other => other,
        };
        let mut facts = healthy();
        drop_many(&mut facts, counter);
        assert!(!examine(&facts).is_empty(), "{counter}");
    }
}

/// The points of the guide's lists, by their first words; which check sees it, or who says it where there is none.
const POINTS: &[(&str, Result<&str, &str>)] = &[
    ("**Another user.**", Ok("waiting-socket-mode")),
    ("**Another path.**", Ok("waiting-socket-missing")),
    ("**The VM monitor has given up.**", Ok("waiting-monitor")),
    ("**A second VM on one interface**", Ok("second-vm")),
    ("A silent ring", Ok("silent-ring")),
    ("For `src_mac_spoofed`", Ok("src-mac")),
    ("A larger `rx_queue_size`", Ok("receiver-slow")),
    ("**QEMU 7.2 under TCG", Ok("qemu-vectors")),
    ("**`iommu_platform=on`**", Err("QEMU, which does not start")),
    ("**`a confined weir may not listen on ...`**", Err("`weir vif add`")),
    ("**`weir's starter does not answer`**", Ok("helper-ended")),
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
fn of_a_mirror_it_is_not_found_that_it_sends_into_no_vlan() {
    let mut facts = healthy();
    let mirror = weir_config::VlanMode::Mirror("db0".parse().unwrap());
    facts.vifs[0].config.vlan = mirror;
    drop_many(&mut facts, "vlan_untagged_on_trunk");
    assert_eq!(examine(&facts), []);
    drop_many(&mut facts, "mirror_lost");
    let found = examine(&facts);
    assert_eq!(found.len(), 1);
    assert!(found[0].mend.contains("mirror fewer ports"), "{found:?}");
}

#[test]
fn processes_that_have_ended_beside_weir_are_seen() {
    assert_eq!(host::zombie("7 (weir-helper) Z 12 7"), Some(("weir-helper", 12)));
    assert_eq!(host::zombie("7 (weir-helper) S 1 7"), None);
    assert_eq!(host::zombie("7 (a) Z (weir-helper) S 1"), None);
    assert_eq!(host::zombie("7 (sh) Z 1"), None);
}

#[test]
fn this_machine_can_be_looked_at() {
    let host = look_at_host(&[]);
    assert!(host.kernel.is_some_and(|kernel| kernel > (4, 0)));
    assert!(host.cpus.is_some_and(|cpus| cpus > 0) && host.hugepages.is_some());
    assert!(host.mtus.contains_key("lo"));
}

#[test]
fn versions_and_quotas_are_read() {
    assert_eq!(host::version("6.12.0-13-amd64"), Some((6, 12)));
    assert_eq!(host::version("10.0.2 (Debian 1:10.0.2)"), Some((10, 0)));
    assert_eq!(host::version("none"), None);
    assert_eq!(host::quota("50000 100000"), Some(0.5));
    assert_eq!(host::quota("max 100000"), None);
}
