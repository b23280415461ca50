//! Faults of the machine, its control groups, QEMU, and weir's own threads.

use weir_config::PortName;
use weir_config::descriptors::Carried;
use weir_config::values::{BondMode, PlacementMode};
use weir_limits::{DESCRIPTORS_OF_SWITCH, LIMIT_SHOWN_PERCENT};
use weir_switch::control::VifStatus;
use weir_switch::explain::UplinkLayer;
use weir_switch::host::Lack;
use weir_switch::stats::{
    KeeperState, Limits, PortKind, PortState, PortStats, StillThread, Unclosed,
};

use super::attach::names;
use crate::facts::{BadFile, Facts, Finding, Qemu, finding, note};
use crate::host::audited_s;

/// The oldest kernel that weir is tested on.
const KERNEL_MIN: (u32, u32) = (5, 10);
/// The oldest QEMU that weir is tested with. Under TCG it crashes if the device has interrupt vectors.
const QEMU_MIN: (u32, u32) = (7, 2);
/// Clocks that can be read without a system call.
const FAST_CLOCKS: [&str; 4] =
    ["tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page"];
/// A fault in the kernel's log that is older than this may have been repaired.
const DAY_S: u64 = 24 * 3600;

/// The interfaces of the host that are uplinks.
pub(super) fn uplinks(facts: &Facts) -> impl Iterator<Item = (&weir_config::PortName, &str)> {
    let all = facts.explained.keys();
    all.filter_map(|name| Some((name, facts.uplink(name)?.interface.as_str())))
}

/// The age of a line of the kernel's audit log (s).
fn age_s(facts: &Facts, line: &str) -> Option<u64> {
    facts.host.now_s?.checked_sub(audited_s(line)?)
}

pub(super) fn keeper_gone(facts: &Facts, found: &mut Vec<Finding>) {
    if facts.switch.as_ref().is_some_and(|switch| switch.keeper == KeeperState::Gone) {
        found.push(finding("switch",
            "the keeper has ended or does not answer: guests would be disconnected by a restart of weir",
            "`keeper` of `weir status`",
            "systemctl start weir-keeper, or weir-keeper SOCKET, with the `keeper` of [switch]",
        ));
    }
}

/// Reports a file with which weir would not start again.
pub(super) fn file_bad(facts: &Facts, found: &mut Vec<Finding>) {
    let Some(BadFile { path, mistakes }) = &facts.host.bad_file else { return };
    let Some((first, others)) = mistakes.split_first() else { return };
    let more = match others.len() {
        0 => String::new(),
        number => format!(", and {number} more"),
    };
    let what = "the configuration file has mistakes: weir neither starts nor reloads with it";
    let mend = format!("weir check {} shows each in its place", path.display());
    found.push(finding("switch", what, format!("{}: {first}{more}", path.display()), mend));
}

/// Reports settings that end with this weir, or that wait for a reload.
pub(super) fn unlike_file(facts: &Facts, found: &mut Vec<Finding>) {
    if facts.host.unlike_file.is_empty() {
        return;
    }
    let what = "what runs differs from the configuration file, with which weir would start again";
    let known_by = format!("weir diff: {}", facts.host.unlike_file.join(", "));
    let mend = "weir reload applies the file; weir save writes what runs into it";
    found.push(note(finding("switch", what, known_by, mend)));
}

pub(super) fn uplink_stopped(facts: &Facts, found: &mut Vec<Finding>) {
    let uplinks = facts.ports().filter(|port| port.kind != PortKind::Vif);
    for port in uplinks.filter(|port| port.state == PortState::Stopped) {
        found.push(finding(
            &port.name,
            "the way to the host is closed; guests reach each other only",
            port.stopped_reason.as_deref().unwrap_or("its state"),
            match facts.uplink(&port.name) {
                Some(it) if it.bond.is_some() => "bring up one of its uplinks: weir stats has them",
                Some(it) if it.interface.contains('/') => {
                    "start the program that listens there; weir connects to it within a second"
                }
                // The host's side of a network is not explained.
                None => "systemctl restart weir, which makes the interface anew",
                Some(it) if it.layer == UplinkLayer::WorkerOnly => {
                    "systemctl restart weir, which makes the TAP anew; then its bridge or address"
                }
                _ => "bring the interface back, then systemctl restart weir",
            },
        ));
    }
}

pub(super) fn way_out(facts: &Facts, found: &mut Vec<Finding>) {
    let lack = |Lack { what, help }: &Lack, known_by: &str| {
        let what = format!("guests may be cut off: {what}");
        let mend = "do so; `weir check --host FILE` tells when all is there";
        finding("host", what, known_by, help.as_deref().unwrap_or(mend))
    };
    let by_file = "the host's routes and settings, as `weir check --host` reads them";
    found.extend(facts.host.lacks.iter().map(|it| lack(it, by_file)));
    let by_tables = "the host's tables of nftables, and its sockets";
    found.extend(facts.host.doubts.iter().map(|it| note(lack(it, by_tables))));
}

/// Weirs that share nothing with this one, which a site may mean, and one that is older than the installed one.
pub(super) fn other_weir(facts: &Facts, found: &mut Vec<Finding>) {
    for other in &facts.host.others {
        let what = "another weir runs: its guests and this one's do not reach each other";
        let mend = "weir --control PATH speaks to it; end the one that is not meant";
        found.push(note(finding("switch", what, other, mend)));
    }
    if facts.host.is_replaced {
        let what = "the program that runs was replaced or removed: it is not the installed one";
        let mend = "weir upgrade, with a keeper; else systemctl restart weir";
        found.push(note(finding("switch", what, "/proc/PID/exe of weir: (deleted)", mend)));
    }
}

pub(super) fn uplink_down(facts: &Facts, found: &mut Vec<Finding>) {
    for (name, interface) in uplinks(facts) {
        let Some(link) = facts.host.links.get(interface) else {
            // A stream is no interface.
            let runs = |port: &&PortStats| port.name == *name && port.state == PortState::Running;
            if let Some(bond) = facts.uplink(name).and_then(|it| it.bond.as_ref()) {
                let mut alone = bond.uplinks.iter().filter(|it| it.carries && it.partner.is_none());
                if let Some(it) = alone.next().filter(|_| bond.mode == BondMode::Lacp) {
                    let what =
                        "no switch speaks LACP at the bond's other end: one uplink carries frames";
                    let known_by = format!("weir explain {name}: {} carries frames", it.name);
                    let mend = "LACP on the other switch's ports; or mode = \"active-backup\"";
                    found.push(note(finding(name, what, known_by, mend)));
                }
                continue;
            }
            if !interface.contains('/') && facts.ports().any(|port| runs(&port)) {
                found.push(finding(name,
                    "its interface has another name now, or is in another network namespace",
                    format!("/sys/class/net/{interface} is not there, and weir has the interface open"),
                    format!("name it {interface} again, or change `name` of [uplink.{name}] and systemctl restart weir"),
                ));
            }
            continue;
        };
        let (known_by, mend) = match (link.is_up, link.has_carrier) {
            (true, true) => {
                found.extend(at_bridge(facts, name, interface));
                continue;
            }
            (false, _) => {
                (format!("{interface} was brought down"), format!("ip link set {interface} up"))
            }
            (true, false) => {
                let known_by = format!("/sys/class/net/{interface}/carrier: 0");
                (known_by, "plug the cable in, or bring the other end up".to_owned())
            }
        };
        let what = match facts.uplink(name).and_then(|it| it.in_bond.as_ref()) {
            Some(_) => "the bond does without it: its interface is down",
            None => "nothing passes to the host: its interface is down",
        };
        found.push(finding(name, what, known_by, mend));
    }
}

/// The bridge of which this interface is a port passes nothing on.
fn at_bridge(facts: &Facts, name: &PortName, interface: &str) -> Option<Finding> {
    const STATES: [&str; 5] = ["disabled", "listening", "learning", "forwarding", "blocking"];
    let (host, bridge) = (&facts.host, facts.host.bridges.get(interface)?);
    let state = host.links.get(interface)?.port_state.and_then(|it| STATES.get(usize::from(it)));
    if let Some(state) = state.filter(|it| **it != "forwarding") {
        let what = format!("nothing passes to the host: its bridge {bridge} is {state} there");
        let known_by = format!("/sys/class/net/{interface}/brport/state");
        let mend = "wait for its spanning tree (`bridge link`), or `ip link set NAME type bridge stp_state 0`";
        return Some(finding(name, what, known_by, mend.replace("NAME", bridge)));
    }
    let others = host.bridges.iter().filter(|(port, of)| *of == bridge && *port != interface);
    let mut others = others.filter_map(|(port, _)| Some((port, host.links.get(port)?))).peekable();
    let (first, _) = *others.peek()?;
    others.all(|(_, link)| !(link.is_up && link.has_carrier)).then(|| {
        let what = format!("guests reach the host alone: no other port of {bridge} is connected");
        let known_by = format!("/sys/class/net/{first}/carrier: 0, or it is down");
        finding(name, what, known_by, format!("plug the cable in, or ip link set {first} up"))
    })
}

pub(super) fn thread_still(facts: &Facts, found: &mut Vec<Finding>) {
    let Some(switch) = &facts.switch else { return };
    for StillThread { name, seconds, does, kernel, .. } in &switch.still {
        let what = format!("the thread {name} stands still");
        let known_by = format!("no turn for {seconds:.0} s while it {does}; {kernel}");
        let mend = "state D: look at disk, swap and the guest's memory file; else report it";
        found.push(finding("switch", what, known_by, mend));
    }
    for thread in &switch.panicked {
        let ended = if thread.ended { ", and has ended" } else { "" };
        let what = format!("the thread {} panicked{ended}: a bug in weir", thread.name);
        let mend = "report it with the log: journalctl -u weir";
        found.push(finding("switch", what, format!("{} panics", thread.panics), mend));
    }
}

pub(super) fn unclosed(facts: &Facts, found: &mut Vec<Finding>) {
    let Some(switch) = &facts.switch else { return };
    for Unclosed { party, descriptors, seconds } in &switch.unclosed {
        found.push(finding(party.as_str(),
            "it sent a descriptor that does not close: it takes no new front end, agent or message until that has ended",
            format!("{descriptors} wait to be closed, the first for {seconds:.0} s"),
            "end the server of the file system that the descriptor is of, or unmount it (umount -f); then end its program",
        ));
    }
}

pub(super) fn program_fails(facts: &Facts, found: &mut Vec<Finding>) {
    let Some(switch) = &facts.switch else { return };
    for (port, reason) in &switch.programs_failed {
        found.push(finding(port.as_str(),
            "its program has failed: what that does for the port is not done",
            reason,
            "run it by hand with the same environment; it runs again when the port comes up or goes down next",
        ));
    }
}

pub(super) fn helper_ended(facts: &Facts, found: &mut Vec<Finding>) {
    for process in &facts.host.ended {
        let does = match process.as_str() {
            "weir-starter" => "weir cannot be upgraded: the process that starts the next one",
            "weir-compiler" => "weir takes no filter expressions: the process that compiles them",
            "weir-runner" => "no `on_up` or `on_down` runs any more: the process that starts them",
            _ => "weir cannot open files or make sockets: the process that does so for it",
        };
        let what = format!("{does} has ended");
        let known_by = format!("the process {process} is a zombie");
        found.push(finding("switch", what, known_by, "systemctl restart weir"));
    }
}

pub(super) fn seccomp(facts: &Facts, found: &mut Vec<Finding>) {
    if let Some(line) = facts.host.seccomp.last() {
        let of_weir = finding(
            "switch",
            "a thread of weir made a system call outside its list, and weir ended or was refused",
            line,
            "report the line; until then weir run --sandbox=log",
        );
        let is_old = age_s(facts, line).is_some_and(|age| age > DAY_S);
        found.push(if is_old { note(of_weir) } else { of_weir });
    }
}

/// Reports denials by AppArmor or SELinux. A denial from before weir's start concerns another weir, and a guest that is
/// served was not denied anything.
pub(super) fn access_denied(facts: &Facts, found: &mut Vec<Finding>) {
    let Some(switch) = &facts.switch else { return };
    let is_new =
        |line: &&String| age_s(facts, line).is_none_or(|age| age as f64 <= switch.uptime_s);
    for line in facts.host.denied.iter().filter(is_new) {
        let of_socket = facts.vifs.iter().find(|vif| line.contains(&vif.config.socket.to_string()));
        let (subject, what, mend) = match of_socket {
            Some(vif) if vif.state != PortState::Waiting => continue,
            Some(vif) => (
                vif.config.name.to_string(),
                "AppArmor or SELinux keeps its VM from the socket",
                "a rule for the VM's program: aa-logprof, or ausearch -m AVC | audit2allow",
            ),
            None => (
                "switch".to_owned(),
                "AppArmor or SELinux denies something to weir",
                "a rule in /etc/apparmor.d/local/weir, then apparmor_parser -r /etc/apparmor.d/weir",
            ),
        };
        if !found.iter().any(|known| known.check.is_empty() && known.subject == subject) {
            found.push(finding(subject, what, line, mend));
        }
    }
}

pub(super) fn limit_near(facts: &Facts, found: &mut Vec<Finding>) {
    let mut look = |subject: &str, limits: &Limits, most: &dyn Fn(&str) -> String| {
        for (name, limit) in limits.iter().filter(|(_, it)| it.percent() >= LIMIT_SHOWN_PERCENT) {
            let mend = match name.as_str() {
                "descriptors" => "LimitNOFILE= in the unit".into(),
                "memory_bytes" | "memory_mapped_bytes" if subject != "switch" => {
                    format!("memory_max = \"SIZE\" in [vif.{subject}], then weir reload")
                }
                "memory_mapped_bytes" => "a smaller memory_max for some; weir reload".into(),
                _ => "see counters.md for what the bound is".to_owned(),
            };
            let known_by = match most(name) {
                most if most.is_empty() => format!("{} of {}", limit.used, limit.max),
                most => format!("{} of {}, most of them by {most}", limit.used, limit.max),
            };
            found.push(finding(subject, format!("{name} is nearly used up"), known_by, mend));
        }
    };
    if let Some(switch) = &facts.switch {
        look("switch", &switch.limits, &|limit| switch.greatest_as_words(limit));
        let nobody = |_: &str| String::new();
        switch.ports.iter().for_each(|port| look(port.name.as_str(), &port.limits, &nobody));
    }
}

/// Warns before the first guest finds no descriptors: gives the number of guests that the limit allows.
pub(super) fn descriptors_few(facts: &Facts, found: &mut Vec<Finding>) {
    let limits = facts.switch.as_ref().map(|switch| &switch.limits);
    let Some(limit) = limits.and_then(|limits| limits.get("descriptors")) else { return };
    // The facts do not show whether there is a keeper. With a keeper the limit allows fewer guests.
    let vifs = facts.vifs.iter().map(|vif| &vif.config);
    let carried = Carried::by(limit.max, DESCRIPTORS_OF_SWITCH, vifs, false);
    if let Some(note) = carried.shortage() {
        let known_by = format!("{} of {} are in use", limit.used, limit.max);
        found.push(finding("switch", note, known_by, Carried::MEND));
    }
}

pub(super) fn kernel_old(facts: &Facts, found: &mut Vec<Finding>) {
    if let Some((major, minor)) = facts.host.kernel.filter(|kernel| *kernel < KERNEL_MIN) {
        let (least_major, least_minor) = KERNEL_MIN;
        let least = format!("{least_major}.{least_minor}");
        let what = format!("the kernel is older than any weir is tried on ({least})");
        let known_by = format!("uname -r: {major}.{minor}");
        found.push(finding("host", what, known_by, "update the kernel"));
    }
}

pub(super) fn clocksource(facts: &Facts, found: &mut Vec<Finding>) {
    let clock = facts.host.clocksource.as_deref();
    if let Some(clock) = clock.filter(|clock| !FAST_CLOCKS.contains(clock)) {
        found.push(finding(
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

pub(super) fn cpus_few(facts: &Facts, found: &mut Vec<Finding>) {
    if let Some((workers, cpus)) = workers(facts).zip(facts.host.cpus).filter(|(w, c)| w > c) {
        let what = "there are more workers than processors: workers wait for each other";
        let mend = "workers = \"auto\" in [switch], then systemctl restart weir";
        found.push(finding("switch", what, format!("{workers} workers, {cpus} processors"), mend));
    }
}

pub(super) fn cpu_quota(facts: &Facts, found: &mut Vec<Finding>) {
    let quota = workers(facts).zip(facts.host.cpu_quota);
    if let Some((workers, quota)) = quota.filter(|(workers, quota)| *quota < *workers as f64) {
        let what = "the control group stops weir's workers for part of the time";
        let known_by = format!("cpu.max allows {quota:.2} processors for {workers} workers");
        let mend = "CPUQuota= in the unit: none, or 100% for each worker";
        found.push(finding("switch", what, known_by, mend));
    }
}

/// Reports a machine with several caches whose workers are not placed. With only one cache, the place of threads does
/// not matter.
pub(super) fn caches_many(facts: &Facts, found: &mut Vec<Finding>) {
    let Some(placement) = &facts.placement else { return };
    let known = placement.machine.as_ref().filter(|machine| machine.caches_known);
    let Some(machine) = known else { return };
    if placement.mode == PlacementMode::Off && machine.caches.len() > 1 {
        found.push(note(finding(
            "switch",
            "workers may run far from their guests: the machine has several last-level caches",
            format!("processors that share a cache: {}", machine.caches.join("; ")),
            "placement = \"dynamic\" in [switch], then weir reload",
        )));
    }
}

pub(super) fn irq_one_cpu(facts: &Facts, found: &mut Vec<Finding>) {
    for (name, interface) in uplinks(facts) {
        let irqs = facts.host.irqs.get(interface).map_or(&[][..], Vec::as_slice);
        if let [first, others @ ..] = irqs
            && !others.is_empty()
            && others.iter().all(|cpus| cpus == first)
            && !first.contains([',', '-'])
            && facts.host.cpus_online != Some(1)
        {
            found.push(finding(name,
                format!("all interrupts of {interface} go to one processor"),
                format!("/proc/irq/*/effective_affinity_list: {first}, {} times", irqs.len()),
                "systemctl start irqbalance, or one processor for each in /proc/irq/N/smp_affinity_list",
            ));
        }
    }
}

pub(super) fn hugepages_idle(facts: &Facts, found: &mut Vec<Finding>) {
    if let Some((all, free)) = facts.host.hugepages.filter(|(all, free)| *all > 0 && all == free) {
        let what = "memory is reserved as huge pages that nobody uses; weir needs none";
        let known_by = format!("/proc/meminfo: HugePages_Total {all}, HugePages_Free {free}");
        let mend = "sysctl vm.nr_hugepages=0, unless a VM will use them";
        found.push(note(finding("host", what, known_by, mend)));
    }
}

pub(super) fn qemu_old(facts: &Facts, found: &mut Vec<Finding>) {
    let (least_major, least_minor) = QEMU_MIN;
    let old = |subject: String, (major, minor): (u32, u32), known_by: &str| {
        finding(
            subject,
            format!("QEMU is older than any weir is tried with ({least_major}.{least_minor})"),
            format!("{known_by}: {major}.{minor}"),
            "update QEMU, and start its VMs anew",
        )
    };
    let is_old = |version: &(u32, u32)| *version < QEMU_MIN;
    if let Some(version) = facts.host.qemu_version.filter(is_old) {
        found.push(old("host".into(), version, "qemu-system-x86_64 --version"));
    }
    for (vif, qemu) in of_vifs(facts) {
        if let Some(version) = qemu.version.filter(is_old) {
            let known_by = format!("the program of its VM (process {})", qemu.pid);
            found.push(old(vif.config.name.to_string(), version, &known_by));
        }
    }
}

/// Interfaces, each with the QEMU that is connected to it or names its socket.
pub(super) fn of_vifs(facts: &Facts) -> impl Iterator<Item = (&VifStatus, &Qemu)> {
    facts.vifs.iter().filter_map(|vif| {
        let connected = |qemu: &&Qemu| vif.front_end == Some(qemu.pid);
        let names_it = |qemu: &&Qemu| names(qemu, vif.config.socket.as_path());
        let qemus = &facts.host.qemus;
        Some((vif, qemus.iter().find(connected).or_else(|| qemus.iter().find(names_it))?))
    })
}

/// QEMU 7.2 without KVM crashes sooner or later if its interface has vectors, which is QEMU's default. libvirt gives
/// QEMU its devices as JSON.
pub(super) fn qemu_vectors(facts: &Facts, found: &mut Vec<Finding>) {
    let has_vectors = |qemu: &Qemu| {
        let says = |text: &str| qemu.args.iter().any(|arg| arg.contains(text));
        let is_short = |arg: &String| arg.starts_with("virtio-net,");
        let has_device = says("virtio-net-pci") || qemu.args.iter().any(is_short);
        has_device && !says("vectors=0") && !says("\"vectors\":0")
    };
    let emulates = |qemu: &Qemu| {
        qemu.version == Some(QEMU_MIN) && !qemu.args.iter().any(|arg| arg.contains("kvm"))
    };
    for (vif, qemu) in of_vifs(facts).filter(|(_, qemu)| emulates(qemu) && has_vectors(qemu)) {
        let name = &vif.config.name;
        let what = "QEMU 7.2 that emulates the processor ends with vectors";
        let known_by = format!("QEMU (process {}) has no KVM, and no vectors=0", qemu.pid);
        let is_libvirts =
            vif.config.by.as_ref().is_some_and(|by| by.as_str().starts_with("libvirt:"));
        let mend = match is_libvirts {
            true => {
                format!("weir libvirt define DOMAIN {name}, with its settings; then start it anew")
            }
            false => format!("start the VM anew with $(weir qemu-args {name} --vectors 0)"),
        };
        found.push(finding(name, what, known_by, mend));
    }
}
