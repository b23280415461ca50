//! One function for each fault. None looks anywhere but at the facts.

use std::collections::BTreeMap;

use weir_config::SocketRole;
use weir_limits::LIMIT_SHOWN_PERCENT;
use weir_switch::explain::{AgentState, Explanation};
use weir_switch::stats::{Limits, PortKind, PortState, PortStats, Silence};

use super::reasons::explained;
use super::{Check, Facts, Finding, Qemu};

/// The oldest kernel that weir is tried on.
const KERNEL_MIN: (u32, u32) = (5, 10);
/// The oldest QEMU that weir is tried with, which ends with vectors where it emulates the processor.
const QEMU_MIN: (u32, u32) = (7, 2);
/// Clocks that are read without a system call.
const FAST_CLOCKS: [&str; 4] =
    ["tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page"];
/// From one of so many frames, or calls, on, drops and late calls are wrong.
const ONE_OF: u64 = 100;

/// All checks, in the order of the guide's table.
pub const CHECKS: &[Check] = &[
    Check { name: "not-running", find: not_running },
    Check { name: "waiting-socket-mode", find: socket_mode },
    Check { name: "waiting-socket-missing", find: socket_missing },
    Check { name: "waiting-monitor", find: waiting },
    Check { name: "second-vm", find: second_vm },
    Check { name: "driver-absent", find: driver_absent },
    Check { name: "stopped", find: stopped },
    Check { name: "uplink-stopped", find: uplink_stopped },
    Check { name: "queues-differ", find: queues_differ },
    Check { name: "silent-ring", find: silent_ring },
    Check { name: "src-mac", find: src_mac },
    Check { name: "vlan", find: vlan },
    Check { name: "receiver-not-ready", find: receiver_not_ready },
    Check { name: "receiver-slow", find: receiver_slow },
    Check { name: "offloads", find: offloads },
    Check { name: "tx-disabled", find: tx_disabled },
    Check { name: "mtu", find: mtu },
    Check { name: "limits-of-port", find: limits_of_port },
    Check { name: "budget-no-cpu", find: budget_no_cpu },
    Check { name: "budget-late", find: budget_late },
    Check { name: "agent-absent", find: agent_absent },
    Check { name: "no-records", find: no_records },
    Check { name: "thread-still", find: thread_still },
    Check { name: "helper-ended", find: helper_ended },
    Check { name: "seccomp", find: seccomp },
    Check { name: "limit-near", find: limit_near },
    Check { name: "kernel-old", find: kernel_old },
    Check { name: "clocksource", find: clocksource },
    Check { name: "cpus-few", find: cpus_few },
    Check { name: "cpu-quota", find: cpu_quota },
    Check { name: "irq-one-cpu", find: irq_one_cpu },
    Check { name: "hugepages-idle", find: hugepages_idle },
    Check { name: "qemu-old", find: qemu_old },
    Check { name: "qemu-vectors", find: qemu_vectors },
];

/// What is wrong, or worth knowing.
fn finding(
    check: &'static str,
    subject: impl ToString,
    what: impl Into<String>,
    known_by: impl Into<String>,
    mend: impl Into<String>,
) -> Finding {
    Finding {
        check,
        wrong: true,
        subject: subject.to_string(),
        what: what.into(),
        known_by: known_by.into(),
        mend: mend.into().into(),
    }
}

fn note(found: Finding) -> Finding {
    Finding { wrong: false, ..found }
}

fn not_running(facts: &Facts, found: &mut Vec<Finding>) {
    if facts.switch.is_none() {
        found.push(finding(
            "not-running",
            "switch",
            "no weir answers on the control socket, so only the host was looked at",
            "connecting to the control socket",
            "systemctl start weir, or weir run; weir doctor --control PATH for another socket",
        ));
    }
}

fn socket_mode(facts: &Facts, found: &mut Vec<Finding>) {
    for vif in facts.vifs.iter().filter(|vif| vif.state == PortState::Waiting && !vif.xen) {
        let path = vif.config.socket.as_path();
        let Some(file) = facts.host.sockets.get(path) else { continue };
        let name = &vif.config.name;
        let named = path.display().to_string();
        let excluded = facts.host.qemus.iter().find(|qemu| {
            let may = match () {
                () if qemu.user == 0 => true,
                () if qemu.user == file.user => file.mode & 0o200 != 0,
                () if qemu.groups.contains(&file.group) => file.mode & 0o020 != 0,
                () => file.mode & 0o002 != 0,
            };
            !may && qemu.args.iter().any(|arg| arg.contains(&named))
        });
        if let Some(qemu) = excluded {
            found.push(finding(
                "waiting-socket-mode",
                name,
                "its VM may not open the socket",
                format!(
                    "{named} has mode {:04o}, and QEMU (process {}) runs as user {}",
                    file.mode & 0o7777,
                    qemu.pid,
                    qemu.user
                ),
                format!("socket_mode = \"0660\" in [vif.{name}] and a group that weir and QEMU share, or \"0666\""),
            ));
        }
    }
}

fn socket_missing(facts: &Facts, found: &mut Vec<Finding>) {
    for vif in facts.vifs.iter().filter(|vif| vif.config.mode == SocketRole::Server && !vif.xen) {
        let (name, path) = (&vif.config.name, vif.config.socket.as_path());
        if !facts.host.sockets.contains_key(path) {
            found.push(finding(
                "waiting-socket-missing",
                name,
                "the file of its socket has gone: no VM can connect",
                format!("{} is not there", path.display()),
                format!("weir vif del {name}; weir reload"),
            ));
        }
    }
}

/// A VM that has named the socket and is not there has given up.
fn waiting(facts: &Facts, found: &mut Vec<Finding>) {
    for vif in facts.vifs.iter().filter(|vif| vif.state == PortState::Waiting && !vif.xen) {
        let (name, path) = (&vif.config.name, vif.config.socket.as_path().display().to_string());
        let runs = facts.host.qemus.iter().find(|qemu| {
            let mut chardevs = qemu.args.iter().filter(|arg| arg.contains(&path)).peekable();
            chardevs.peek().is_some() && chardevs.all(|arg| !arg.contains("reconnect"))
        });
        if let Some(qemu) = runs {
            found.push(finding(
                "waiting-monitor",
                name,
                "its VM runs, is not connected, and does not try again",
                format!("QEMU (process {}) names {path} without reconnect", qemu.pid),
                format!("start the VM anew with $(weir qemu-args {name})"),
            ));
        }
    }
}

fn second_vm(facts: &Facts, found: &mut Vec<Finding>) {
    for port in facts.guests().filter(|port| port.sessions.turned_away > 0) {
        found.push(finding(
            "second-vm",
            &port.name,
            "a second VM wants this interface, which belongs to one",
            format!("{} front ends were turned away", port.sessions.turned_away),
            "weir vif add NAME, and weir qemu-args NAME for the other VM",
        ));
    }
}

fn driver_absent(facts: &Facts, found: &mut Vec<Finding>) {
    for port in facts.guests().filter(|port| port.state == PortState::Connected) {
        found.push(finding(
            "driver-absent",
            &port.name,
            "its VM is there, and the guest's driver has not started a receive ring",
            "the state `connected` of weir stats",
            "in the guest: ip link set eth0 up; a kernel with virtio-net",
        ));
    }
}

fn stopped(facts: &Facts, found: &mut Vec<Finding>) {
    for port in facts.guests().filter(|port| port.state == PortState::Stopped) {
        let reason = port.stopped_reason.as_deref().unwrap_or("no reason is known");
        let (what, mend) = explained(reason);
        let mend = mend.replace("NAME", port.name.as_str());
        found.push(finding(
            "stopped",
            &port.name,
            format!("it serves nobody: {what}"),
            reason,
            mend,
        ));
    }
}

fn uplink_stopped(facts: &Facts, found: &mut Vec<Finding>) {
    let uplinks = facts.ports().filter(|port| port.kind == PortKind::Uplink);
    for port in uplinks.filter(|port| port.state == PortState::Stopped) {
        found.push(finding(
            "uplink-stopped",
            &port.name,
            "the way to the host is closed; guests reach each other only",
            port.stopped_reason.as_deref().unwrap_or("its state"),
            "bring the interface back, then systemctl restart weir",
        ));
    }
}

fn queues_differ(facts: &Facts, found: &mut Vec<Finding>) {
    for port in facts.guests() {
        if let Some(what) = port.queue_pairs.and_then(|pairs| pairs.note()) {
            let mend = "start the VM anew with as many queues as weir qemu-args prints";
            found.push(note(finding("queues-differ", &port.name, what, "its session", mend)));
        }
    }
}

fn silent_ring(facts: &Facts, found: &mut Vec<Finding>) {
    for port in facts.guests() {
        for ring in &port.silent {
            let known_by = match ring.why {
                Silence::KicksWithoutBuffers { kicks } => {
                    format!("ring {}: {kicks} kicks, and no buffer where weir looks", ring.ring)
                }
                Silence::BuffersWithoutKick => {
                    format!("ring {}: buffers are there, and a kick never came", ring.ring)
                }
                Silence::NoCallDescriptor => {
                    format!("ring {}: the driver cannot be told of frames", ring.ring)
                }
            };
            let what = "front end and driver use different rings, kicks or calls";
            let mend =
                format!("weir explain {}; start the VM anew, or update its monitor", port.name);
            found.push(finding("silent-ring", &port.name, what, known_by, mend));
        }
    }
}

/// Drops of a port for one reason.
fn drops(port: &PortStats, reason: &str) -> u64 {
    port.drops.get(reason).copied().unwrap_or(0)
}

/// Whether so many of `all` are too many.
fn is_much(some: u64, all: u64) -> bool {
    some > 0 && some.saturating_mul(ONE_OF) >= all
}

/// Of what a port sends, or receives, too many frames are dropped for one of `reasons`: says so.
fn dropped(
    facts: &Facts,
    found: &mut Vec<Finding>,
    check: &'static str,
    reasons: &[&str],
    tell: impl Fn(&PortStats, &str) -> (String, String),
) {
    for port in facts.ports() {
        for reason in reasons {
            let number = drops(port, reason);
            // Whatever was dropped on its own account was not received, and was sent.
            let all = port.rx.frames.max(port.tx.frames);
            if is_much(number, all) {
                let (what, mend) = tell(port, reason);
                let known_by = format!("{reason}: {number} frames, beside {all} that were moved");
                found.push(finding(check, &port.name, what, known_by, mend));
            }
        }
    }
}

fn src_mac(facts: &Facts, found: &mut Vec<Finding>) {
    dropped(facts, found, "src-mac", &["src_mac_spoofed", "src_mac_owned"], |port, reason| {
        let name = &port.name;
        match reason {
            "src_mac_owned" => (
                "the guest sends from an address that another interface has".into(),
                format!("give one of the guests another address: weir vif set {name} mac=..."),
            ),
            _ => (
                "the guest sends from another address than the one it is held to".into(),
                format!("weir vif set {name} mac=..., or mac_check=false for a guest that bridges"),
            ),
        }
    });
}

fn vlan(facts: &Facts, found: &mut Vec<Finding>) {
    let reasons = [
        "vlan_tagged_on_access",
        "vlan_untagged_on_trunk",
        "vlan_not_allowed",
        "vlan_still_tagged",
    ];
    dropped(facts, found, "vlan", &reasons, |port, _| {
        let what = "frames come in with a VLAN tag, or without one, that the port does not take";
        let mend = format!("weir vif set {} vlan=N, or trunk=[...] native=N", port.name);
        (what.into(), mend)
    });
    // What a mirror sends is dropped, and that is how it is meant.
    for vif in facts.vifs.iter().filter(|vif| !vif.config.vlan.mirrored().is_empty()) {
        found.retain(|it| it.check != "vlan" || it.subject != vif.config.name.as_str());
    }
}

fn receiver_not_ready(facts: &Facts, found: &mut Vec<Finding>) {
    dropped(facts, found, "receiver-not-ready", &["rx_not_ready"], |_, _| {
        let what = "frames come for a guest whose receive ring does not run";
        (what.into(), "in the guest: ip link set eth0 up".into())
    });
}

fn receiver_slow(facts: &Facts, found: &mut Vec<Finding>) {
    let reasons = ["rx_ring_full", "rx_waited_too_long", "mirror_lost"];
    dropped(facts, found, "receiver-slow", &reasons, |port, reason| match reason {
        "mirror_lost" => (
            "copies for this mirror come faster than they are delivered".into(),
            format!("mirror fewer ports: weir vif set {} mirror=...", port.name),
        ),
        _ => (
            "a guest does not post receive buffers fast enough".into(),
            "rx_queue_size=1024 for its VM, more vCPUs, or queues=N".into(),
        ),
    });
}

fn offloads(facts: &Facts, found: &mut Vec<Finding>) {
    dropped(facts, found, "offloads", &["rx_buffer_too_small", "offload_unsupported"], |_, _| {
        let what = "the guest's driver cannot take large frames: it has no mergeable buffers";
        (what.into(), "mrg_rxbuf=on for the VM's device, or update the guest's driver".into())
    });
}

fn tx_disabled(facts: &Facts, found: &mut Vec<Finding>) {
    dropped(facts, found, "tx-disabled", &["tx_disabled"], |_, _| {
        let what = "the driver sends on a queue that it has not enabled";
        (what.into(), "in the guest: ethtool -L eth0 combined N; update its driver".into())
    });
}

fn mtu(facts: &Facts, found: &mut Vec<Finding>) {
    dropped(facts, found, "mtu", &["over_mtu_tx", "over_mtu_rx"], |port, _| {
        let what = "frames are longer than the MTU of the interface";
        (
            what.into(),
            format!(
                "one MTU for all: mtu = N in [vif.{}], then weir reload; in the guest",
                port.name
            ),
        )
    });
    // An interface of the host that carries less than the guests think.
    for (name, explained) in &facts.explained {
        let Explanation::Uplink(uplink) = explained else { continue };
        let Some(host) = facts.host.mtus.get(&uplink.interface) else { continue };
        let guests =
            facts.vifs.iter().filter_map(|vif| Some((vif, u32::from(vif.config.mtu?.get()))));
        for (vif, mtu) in guests.filter(|(_, mtu)| mtu > host) {
            found.push(finding(
                "mtu",
                name,
                format!(
                    "{} may send longer frames than the way to the host carries",
                    vif.config.name
                ),
                format!("mtu {mtu} of the interface, {host} of {}", uplink.interface),
                format!(
                    "mtu = {host} in [vif.{}], then weir reload; or ip link set {} mtu {mtu}",
                    vif.config.name, uplink.interface
                ),
            ));
        }
    }
}

/// What was asked for: worth knowing where a VM is slow.
fn limits_of_port(facts: &Facts, found: &mut Vec<Finding>) {
    let mut dropped_by = Vec::new();
    let reasons = [
        "policed_rx",
        "filtered_tx",
        "filtered_rx",
        "storm_broadcast",
        "storm_multicast",
        "storm_unknown",
    ];
    dropped(facts, &mut dropped_by, "limits-of-port", &reasons, |port, reason| {
        let name = &port.name;
        match reason {
            "policed_rx" => (
                "more comes for the guest than it may receive".into(),
                format!("weir vif set {name} rx_rate=..., rx_packets_per_second=..."),
            ),
            "filtered_tx" | "filtered_rx" => {
                ("a packet filter drops frames".into(), format!("weir filter list {name}"))
            }
            _ => ("storm control drops frames".into(), format!("weir explain {name}")),
        }
    });
    found.extend(dropped_by.into_iter().map(note));
    for port in facts.guests().filter(|port| is_much(port.rate_waits, port.tx.frames)) {
        found.push(note(finding(
            "limits-of-port",
            &port.name,
            "the guest sends as much as its rate allows",
            format!("{} waits for its rate", port.rate_waits),
            format!("weir vif set {} rate=... or packets_per_second=...", port.name),
        )));
    }
}

/// Calls that came too late for one of `reasons`, if they are many.
fn late(port: &PortStats, reasons: &[&str]) -> Option<u64> {
    let count = |reason: &&str| port.budget_breaches.get(*reason).copied().unwrap_or(0);
    let late = reasons.iter().map(count).sum();
    is_much(late, port.rx.calls).then_some(late)
}

fn budget_no_cpu(facts: &Facts, found: &mut Vec<Finding>) {
    for port in facts.guests() {
        if let Some(late) = late(port, &["no_cpu"]) {
            found.push(finding(
                "budget-no-cpu",
                &port.name,
                "the guest is told of frames too late, since weir's worker has no processor",
                format!("{late} of {} calls came after the latency budget (no_cpu)", port.rx.calls),
                "keep other load off weir's processors: placement, CPUAffinity= or execution \"rt-threads\"",
            ));
        }
    }
}

fn budget_late(facts: &Facts, found: &mut Vec<Finding>) {
    for port in facts.guests() {
        if let Some(late) = late(port, &["forwarded_late", "asked_late"]) {
            found.push(finding(
                "budget-late",
                &port.name,
                "the guest is told of frames too late, since weir's worker has too much to do",
                format!("{late} of {} calls came after the latency budget", port.rx.calls),
                "more workers in [switch], or a larger latency_budget",
            ));
        }
    }
}

fn agent_absent(facts: &Facts, found: &mut Vec<Finding>) {
    for (name, explained) in &facts.explained {
        let Explanation::Vif(vif) = explained else { continue };
        let Some(agent) = &vif.agent else { continue };
        let (what, mend) = match agent.state {
            AgentState::Connected => continue,
            _ if vif.state != PortState::Running => continue,
            AgentState::Waiting => (
                "an agent is configured, and the VM has no channel for it",
                format!("start the VM with the channel of $(weir qemu-args {name})"),
            ),
            AgentState::Silent => (
                "an agent is configured, and none speaks in the guest",
                "in the guest: systemctl enable --now weir-agent".into(),
            ),
            AgentState::Elsewhere => (
                "the agent in the guest knows nothing of this interface",
                format!("the same `mac` in the guest and in [vif.{name}]"),
            ),
        };
        let known_by = format!("the socket {}", agent.socket);
        found.push(finding("agent-absent", name, what, known_by, mend));
    }
}

fn no_records(facts: &Facts, found: &mut Vec<Finding>) {
    for vif in facts.vifs.iter().filter(|vif| vif.state == PortState::Running && !vif.xen) {
        let path = vif.config.socket.as_path();
        if facts.host.sockets.get(path).is_some_and(|file| !file.has_records) {
            found.push(finding(
                "no-records",
                &vif.config.name,
                "the guest may need a reset after a SIGKILL of weir",
                format!("{}.rings is not there", path.display()),
                "journalctl -u weir says why; a directory where weir may make files",
            ));
        }
    }
}

fn thread_still(facts: &Facts, found: &mut Vec<Finding>) {
    let Some(switch) = &facts.switch else { return };
    for thread in &switch.still {
        found.push(finding(
            "thread-still",
            "switch",
            format!("the thread {} stands still", thread.name),
            format!(
                "no turn for {:.0} s while it {}; {}",
                thread.seconds, thread.does, thread.kernel
            ),
            "state D: look at disk, swap and the guest's memory file; else report it",
        ));
    }
    for thread in &switch.panicked {
        let ended = if thread.ended { ", and has ended" } else { "" };
        found.push(finding(
            "thread-still",
            "switch",
            format!("the thread {} panicked{ended}: a bug in weir", thread.name),
            format!("{} panics", thread.panics),
            "report it with the log: journalctl -u weir",
        ));
    }
}

fn helper_ended(facts: &Facts, found: &mut Vec<Finding>) {
    for process in &facts.host.ended {
        let what = match process.as_str() {
            "weir-starter" => {
                "weir cannot be upgraded: the process that starts the next one has ended"
            }
            _ => {
                "weir cannot open files or make sockets: the process that does so for it has ended"
            }
        };
        let known_by = format!("the process {process} is a zombie");
        found.push(finding("helper-ended", "switch", what, known_by, "systemctl restart weir"));
    }
}

fn seccomp(facts: &Facts, found: &mut Vec<Finding>) {
    if let Some(line) = facts.host.kernel_log.last() {
        found.push(finding(
            "seccomp",
            "switch",
            "a thread of weir made a system call outside its list, and weir ended or was refused",
            line,
            "report the line; until then weir run --sandbox=log",
        ));
    }
}

fn limit_near(facts: &Facts, found: &mut Vec<Finding>) {
    let mut look = |subject: &str, limits: &Limits| {
        for (name, limit) in limits.iter().filter(|(_, it)| it.percent() >= LIMIT_SHOWN_PERCENT) {
            let mend = match name.as_str() {
                "descriptors" => "LimitNOFILE= in the unit".into(),
                "memory" | "memory_mapped" => {
                    format!("memory_max = \"SIZE\" in [vif.{subject}], then weir reload")
                }
                _ => "see counters.md for what the bound is".to_owned(),
            };
            found.push(finding(
                "limit-near",
                subject,
                format!("{name} is nearly used up"),
                format!("{} of {}", limit.used, limit.max),
                mend,
            ));
        }
    };
    if let Some(switch) = &facts.switch {
        look("switch", &switch.limits);
        switch.ports.iter().for_each(|port| look(port.name.as_str(), &port.limits));
    }
}

fn kernel_old(facts: &Facts, found: &mut Vec<Finding>) {
    if let Some((major, minor)) = facts.host.kernel.filter(|kernel| *kernel < KERNEL_MIN) {
        let (least_major, least_minor) = KERNEL_MIN;
        found.push(finding(
            "kernel-old",
            "host",
            format!("the kernel is older than any weir is tried on ({least_major}.{least_minor})"),
            format!("uname -r: {major}.{minor}"),
            "update the kernel",
        ));
    }
}

fn clocksource(facts: &Facts, found: &mut Vec<Finding>) {
    let clock = facts.host.clocksource.as_deref();
    if let Some(clock) = clock.filter(|clock| !FAST_CLOCKS.contains(clock)) {
        found.push(finding(
            "clocksource",
            "host",
            "each look at the clock is a system call, and weir looks often",
            format!("/sys/devices/system/clocksource/clocksource0/current_clocksource: {clock}"),
            "clocksource=tsc on the kernel's command line, if the hardware's counter is stable",
        ));
    }
}

fn workers(facts: &Facts) -> Option<usize> {
    facts.switch.as_ref().map(|switch| switch.workers.len())
}

fn cpus_few(facts: &Facts, found: &mut Vec<Finding>) {
    if let Some((workers, cpus)) = workers(facts).zip(facts.host.cpus).filter(|(w, c)| w > c) {
        found.push(finding(
            "cpus-few",
            "switch",
            "there are more workers than processors: workers wait for each other",
            format!("{workers} workers, {cpus} processors"),
            "workers = \"auto\" in [switch], then systemctl restart weir",
        ));
    }
}

fn cpu_quota(facts: &Facts, found: &mut Vec<Finding>) {
    let quota = workers(facts).zip(facts.host.cpu_quota);
    if let Some((workers, quota)) = quota.filter(|(workers, quota)| *quota < *workers as f64) {
        found.push(finding(
            "cpu-quota",
            "switch",
            "the control group stops weir's workers for part of the time",
            format!("cpu.max allows {quota:.2} processors for {workers} workers"),
            "CPUQuota= in the unit: none, or 100% for each worker",
        ));
    }
}

fn irq_one_cpu(facts: &Facts, found: &mut Vec<Finding>) {
    let uplinks: BTreeMap<_, _> = facts
        .explained
        .iter()
        .filter_map(|(name, explained)| match explained {
            Explanation::Uplink(uplink) => Some((name, &uplink.interface)),
            _ => None,
        })
        .collect();
    for (name, interface) in uplinks {
        let irqs = facts.host.irqs.get(interface.as_str()).map_or(&[][..], Vec::as_slice);
        if let [first, others @ ..] = irqs
            && !others.is_empty()
            && others.iter().all(|cpus| cpus == first)
            && !first.contains([',', '-'])
        {
            found.push(finding(
                "irq-one-cpu",
                name,
                format!("all interrupts of {interface} go to one processor"),
                format!("/proc/irq/*/effective_affinity_list: {first}, {} times", irqs.len()),
                "systemctl start irqbalance, or one processor for each in /proc/irq/N/smp_affinity_list",
            ));
        }
    }
}

fn hugepages_idle(facts: &Facts, found: &mut Vec<Finding>) {
    if let Some((all, free)) = facts.host.hugepages.filter(|(all, free)| *all > 0 && all == free) {
        found.push(note(finding(
            "hugepages-idle",
            "host",
            "memory is reserved as huge pages that nobody uses; weir needs none",
            format!("/proc/meminfo: HugePages_Total {all}, HugePages_Free {free}"),
            "sysctl vm.nr_hugepages=0, unless a VM will use them",
        )));
    }
}

fn qemu_old(facts: &Facts, found: &mut Vec<Finding>) {
    if let Some((major, minor)) = facts.host.qemu_version.filter(|version| *version < QEMU_MIN) {
        let (least_major, least_minor) = QEMU_MIN;
        found.push(finding(
            "qemu-old",
            "host",
            format!("QEMU is older than any weir is tried with ({least_major}.{least_minor})"),
            format!("qemu-system-x86_64 --version: {major}.{minor}"),
            "update QEMU",
        ));
    }
}

/// QEMU 7.2 without KVM ends, sooner or later, if its interface has vectors.
fn qemu_vectors(facts: &Facts, found: &mut Vec<Finding>) {
    let has = |qemu: &Qemu, part: &str| qemu.args.iter().any(|arg| arg.contains(part));
    let vectors = |qemu: &Qemu| -> Option<u32> {
        let devices = qemu.args.iter().filter(|arg| arg.starts_with("virtio-net"));
        let mut options = devices.flat_map(|arg| arg.split(','));
        options.find_map(|option| option.strip_prefix("vectors=")?.parse().ok())
    };
    let emulates = facts.host.qemu_version == Some(QEMU_MIN);
    for qemu in facts.host.qemus.iter().filter(|qemu| emulates && !has(qemu, "kvm")) {
        let of_vif = facts.vifs.iter().find(|vif| has(qemu, &vif.config.socket.to_string()));
        let Some((vif, vectors)) = of_vif.zip(vectors(qemu).filter(|number| *number > 0)) else {
            continue;
        };
        let name = &vif.config.name;
        let what = "QEMU 7.2 that emulates the processor ends with vectors";
        let known_by = format!("QEMU (process {}) has vectors={vectors} and no KVM", qemu.pid);
        let mend = format!("start the VM anew with $(weir qemu-args {name} --vectors 0)");
        found.push(finding("qemu-vectors", name, what, known_by, mend));
    }
}
