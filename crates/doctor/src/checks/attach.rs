//! Obstacles to a guest's service: its socket, its VM, its driver, its agent; ports that are connected to each other
//! outside weir.

use weir_config::{PortName, SocketRole};
use weir_switch::control::{VifOrigin, VifStatus};
use weir_switch::explain::{AgentState, Explanation};
use weir_switch::stats::{BlockStats, PortKind, PortState, PortStats, Silence};

use super::machine::{of_vifs, uplinks};
use crate::facts::{Facts, Finding, Qemu, finding, note};
use crate::host::joined;
use crate::reasons::explained;

/// Seconds for which an event that is over is worth a note.
pub(super) const RECENT_S: u64 = 600;

/// Interfaces that wait for a VM.
fn waiting_vifs(facts: &Facts) -> impl Iterator<Item = &VifStatus> {
    facts.vifs.iter().filter(|vif| vif.state == PortState::Waiting && !vif.xen)
}

pub(super) fn not_running(facts: &Facts, found: &mut Vec<Finding>) {
    if facts.switch.is_none() {
        found.push(finding(
            "switch",
            "no weir answers on the control socket, so only the host was looked at",
            "connecting to the control socket",
            "systemctl start weir, or weir run; weir doctor --control PATH for another socket",
        ));
    }
}

pub(super) fn socket_mode(facts: &Facts, found: &mut Vec<Finding>) {
    for vif in waiting_vifs(facts) {
        let path = vif.config.socket.as_path();
        let Some(socket) = facts.host.sockets.get(path) else { continue };
        let name = &vif.config.name;
        for qemu in facts.host.qemus.iter().filter(|qemu| names(qemu, path)) {
            let Some(closed) = socket.closed_to(path, qemu.user, &qemu.groups) else { continue };
            let Qemu { pid, user, .. } = qemu;
            let known_by = format!("{closed}, and QEMU (process {pid}) runs as user {user}");
            let mend = closed.mend(&mode_of(vif));
            let what = "its VM may not open the socket";
            found.push(finding(name, what, known_by, mend));
            break;
        }
    }
}

/// The setting that opens a socket to its group.
fn mode_of(vif: &VifStatus) -> String {
    let name = &vif.config.name;
    match vif.origin {
        VifOrigin::File => format!("socket_mode = \"0660\" in [vif.{name}]"),
        // Settings of sockets do not change in place.
        VifOrigin::Command | VifOrigin::Xen => {
            format!("weir vif del {name}, and weir vif add {name} with socket_mode=0660")
        }
    }
}

pub(super) fn socket_missing(facts: &Facts, found: &mut Vec<Finding>) {
    for vif in facts.vifs.iter().filter(|vif| vif.config.mode == SocketRole::Server && !vif.xen) {
        let (name, path) = (&vif.config.name, vif.config.socket.as_path());
        if !facts.host.sockets.contains_key(path) {
            found.push(finding(
                name,
                "the file of its socket has gone: no VM can connect",
                format!("there is no socket at {}", path.display()),
                format!("remove what may be there instead; weir vif del {name}; weir reload"),
            ));
        }
    }
}

/// A VM that names a socket of the same name elsewhere.
pub(super) fn other_path(facts: &Facts, found: &mut Vec<Finding>) {
    for vif in waiting_vifs(facts) {
        let (name, path) = (&vif.config.name, vif.config.socket.as_path());
        let elsewhere = |option: &&str| {
            let named = option.strip_prefix("path=").map(std::path::Path::new);
            named.is_some_and(|it| it != path && it.file_name() == path.file_name())
        };
        let seen = facts.host.qemus.iter().find_map(|qemu| {
            let mut options = qemu.args.iter().flat_map(|arg| arg.split(','));
            options.find(elsewhere).map(|option| (qemu.pid, option))
        });
        let anew = format!("start the VM anew with $(weir qemu-args {name})");
        if let Some((pid, option)) = seen {
            let what = "a VM looks for its socket in another place";
            let known_by =
                format!("QEMU (process {pid}) has {option}, and weir has {}", path.display());
            found.push(finding(name, what, known_by, anew));
            continue;
        }
        let is_unseen = |qemu: &&Qemu| qemu.unseen.iter().any(|it| it == path) && names(qemu, path);
        if let Some(Qemu { pid, .. }) = facts.host.qemus.iter().find(is_unseen) {
            let what = "its VM is in a file system of its own, in which the socket is not";
            let known_by = format!("there is no /proc/{pid}/root{}", path.display());
            let mend = format!(
                "a `socket` of [vif.{name}] that both see: no PrivateTmp=, or the container's"
            );
            found.push(finding(name, what, known_by, mend));
        }
        let has_other_card = |qemu: &&Qemu| {
            let of = qemu.args.windows(2).find(|it| it[0] == "-name").map(|it| it[1].as_str());
            let called = of.and_then(|it| it.split(',').next()).unwrap_or_default();
            let is_weirs = qemu.args.iter().any(|arg| arg.contains("vhost-user"));
            called.trim_start_matches("guest=") == name.as_str() && !is_weirs
        };
        if let Some(Qemu { pid, .. }) = facts.host.qemus.iter().find(has_other_card) {
            let known_by = format!("QEMU (process {pid}) is called {name}, and has no vhost-user");
            let what = "a VM of its name runs, with no interface of weir's";
            found.push(note(finding(name, what, known_by, anew)));
        }
    }
}

/// True if a VM's arguments have this path.
pub(super) fn names(qemu: &Qemu, path: &std::path::Path) -> bool {
    qemu.args.iter().any(|arg| arg.contains(&path.display().to_string()))
}

/// A VM that has named the socket and is not connected has given up.
pub(super) fn waiting(facts: &Facts, found: &mut Vec<Finding>) {
    for vif in waiting_vifs(facts) {
        let (name, path) = (&vif.config.name, vif.config.socket.as_path().display().to_string());
        let listens = |arg: &String| {
            let is_server = arg.split(',').any(|it| matches!(it, "server" | "server=on"));
            arg.contains(&path).then_some(is_server)
        };
        let chardev = |qemu: &Qemu| Some((qemu.pid, qemu.args.iter().find_map(listens)?));
        let is_client = vif.config.mode == SocketRole::Client;
        let same = facts.host.qemus.iter().filter_map(chardev).find(|(_, it)| *it != is_client);
        let anew = format!("start the VM anew with $(weir qemu-args {name})");
        if let Some((pid, server)) = same {
            let both = if server { "listen: neither connects" } else { "connect: neither listens" };
            let known_by =
                format!("the chardev of QEMU (process {pid}), and `mode` of [vif.{name}]");
            found.push(finding(name, format!("VM and weir both {both}"), known_by, anew));
            continue;
        }
        let runs = facts.host.qemus.iter().find(|qemu| {
            let mut chardevs = qemu.args.iter().filter(|arg| arg.contains(&path)).peekable();
            chardevs.peek().is_some() && chardevs.all(|arg| !arg.contains("reconnect"))
        });
        if let Some(qemu) = runs {
            let what = "its VM runs, is not connected, and does not try again";
            let known_by = format!("QEMU (process {}) names {path} without reconnect", qemu.pid);
            found.push(finding(name, what, known_by, anew));
        }
    }
}

/// Reports patterns that cannot look into their directory, and sockets of theirs that have no interface.
pub(super) fn on_demand(facts: &Facts, found: &mut Vec<Finding>) {
    for stats in facts.switch.iter().flat_map(|switch| &switch.on_demand) {
        let pattern = &stats.pattern;
        if let Some(error) = &stats.error {
            found.push(finding(pattern,
                "sockets of this pattern get no interface, or get it late: its directory cannot be looked at",
                error,
                "make the directory, or let weir's user read it; the key is `directory` of [vif-on-demand]",
            ));
        }
        let Some(first) = stats.refused.first() else { continue };
        let without = finding(
            pattern,
            format!("{} of the files in its directory have no interface", stats.refused_total),
            first,
            "weir stats shows more of them; remove files whose monitors have ended, or raise `max` of [vif-on-demand]",
        );
        // Left-over files harm nobody.
        let is_full = stats.interfaces.used >= stats.interfaces.max;
        found.push(if is_full { without } else { note(without) });
    }
}

/// A VM that was turned away and has given up since is worth a note for a while.
pub(super) fn second_vm(facts: &Facts, found: &mut Vec<Finding>) {
    for port in facts.guests().filter(|port| port.sessions.turned_away > 0) {
        let before = facts.before(port, |before| before.sessions.turned_away);
        let now = port.sessions.turned_away.saturating_sub(before);
        let of_two = finding(
            &port.name,
            "a second VM wants this interface, which belongs to one",
            format!(
                "{now} front ends were turned away just now, {} in all",
                port.sessions.turned_away
            ),
            "weir vif add NAME, and weir qemu-args NAME for the other VM",
        );
        let is_recent = port.sessions.turned_away_s.is_some_and(|ago_s| ago_s < RECENT_S);
        match now {
            0 if !is_recent => {}
            0 => found.push(note(of_two)),
            _ => found.push(of_two),
        }
    }
}

/// True if a VM's arguments share its memory with others: the machine, or a node of it, names a
/// shared backend.
fn shares_memory(qemu: &Qemu) -> bool {
    // JSON is converted to the other form: `{"id":"mem","share":true}` becomes id=mem, share=true.
    let options: Vec<Vec<_>> = qemu
        .args
        .iter()
        .map(|arg| {
            let plain = arg.replace(['"', '{', '}'], "");
            let plain = if arg.starts_with('{') { plain.replace(':', "=") } else { plain };
            plain.split(',').map(|option| option.trim().replace("= ", "=")).collect()
        })
        .collect();
    let value = |of: &[String], key: &str| {
        of.iter().find_map(|it| it.strip_prefix(key)?.strip_prefix('=').map(str::to_owned))
    };
    let is_shared = |of: &[String]| {
        let kind = of
            .iter()
            .find_map(|it| it.trim_start_matches("qom-type=").strip_prefix("memory-backend-"));
        match value(of, "share").as_deref() {
            Some(share) => kind.is_some() && ["on", "yes", "true"].contains(&share),
            // These back ends share memory unless configured otherwise (QEMU's hostmem-memfd.c, hostmem-shm.c).
            None => matches!(kind, Some("memfd" | "shm")),
        }
    };
    let shared: Vec<_> =
        options.iter().filter(|of| is_shared(of)).filter_map(|of| value(of, "id")).collect();
    let mut named =
        options.iter().flat_map(|of| [value(of, "memory-backend"), value(of, "memdev")]);
    named.any(|named| named.is_some_and(|id| shared.contains(&id)))
}

/// Reports a VM whose memory weir cannot get: QEMU then continues without a network, or with rings that weir sees empty.
pub(super) fn memory_private(facts: &Facts, found: &mut Vec<Finding>) {
    let sent =
        |vif: &VifStatus| facts.ports().any(|it| it.name == vif.config.name && it.tx.frames > 0);
    let is_served = |vif: &VifStatus| vif.state == PortState::Running && sent(vif);
    for vif in facts.vifs.iter().filter(|vif| !is_served(vif) && !vif.xen) {
        let names_it = |qemu: &&Qemu| names(qemu, vif.config.socket.as_path());
        let private = facts.host.qemus.iter().filter(names_it).find(|qemu| !shares_memory(qemu));
        if let Some(qemu) = private {
            let name = &vif.config.name;
            found.push(finding(name,
                "the guest's memory is not shared: weir can neither read nor write its frames",
                format!(
                    "QEMU (process {}) has no memory backend with share=on that its -machine names (memory-backend=)",
                    qemu.pid
                ),
                format!("start the VM anew with $(weir qemu-args {name})"),
            ));
        }
    }
}

pub(super) fn driver_absent(facts: &Facts, found: &mut Vec<Finding>) {
    for port in facts.guests().filter(|port| port.state == PortState::Connected) {
        let is_told =
            |it: &Finding| it.check == "memory-private" && it.subject == port.name.as_str();
        let waits = port.silent.iter().any(|it| it.why.unanswered().is_some());
        if waits || found.iter().any(is_told) {
            continue;
        }
        found.push(finding(&port.name,
            "its VM is there, and no driver serves the device: the VM boots still or was not started (-S, -incoming), \
             the guest has no driver, or the device was unplugged",
            "the state `connected` of weir stats",
            "in QEMU's monitor: info status, then cont; in the guest: ip link set eth0 up; a kernel with virtio-net",
        ));
    }
}

pub(super) fn halted(facts: &Facts, found: &mut Vec<Finding>) {
    for (vif, Qemu { pid, .. }) in of_vifs(facts).filter(|(_, qemu)| qemu.is_stopped) {
        let what = "the process of its VM is stopped, as by Ctrl-Z or a debugger";
        let mend = format!("fg in its terminal, or kill -CONT {pid}");
        let known_by = format!("/proc/{pid}/status: State T");
        found.push(finding(&vif.config.name, what, known_by, mend));
    }
    for port in facts.guests().filter(|port| port.state == PortState::Halted) {
        found.push(note(finding(&port.name,
            "its VM has stopped the device, which worked: the VM is paused, its link is taken down, or, where the front \
             end does not tell of resets (QEMU 7.2), the guest's driver has gone",
            "the state `halted` of weir stats",
            "in QEMU's monitor: info status, then cont; or set_link NETDEV on",
        )));
    }
}

pub(super) fn stopped(facts: &Facts, found: &mut Vec<Finding>) {
    for port in facts.guests().filter(|port| port.state == PortState::Stopped) {
        let reason = port.stopped_reason.as_deref().unwrap_or("no reason is known");
        let (what, mend) = explained(reason);
        let mend = mend.replace("NAME", port.name.as_str());
        found.push(finding(&port.name, format!("it serves nobody: {what}"), reason, mend));
    }
}

/// Reports front ends that connect and are refused because of an error, again and again. Between two attempts the
/// port's state is `waiting`.
pub(super) fn session_fails(facts: &Facts, found: &mut Vec<Finding>) {
    let ended = |port: &&PortStats| port.state != PortState::Stopped && port.sessions.failed > 0;
    for port in facts.guests().filter(ended) {
        let now = port.sessions.failed
            - facts.before(port, |it| it.sessions.failed).min(port.sessions.failed);
        let is_recent = port.sessions.last_error_s.is_none_or(|ago_s| ago_s < RECENT_S);
        if now == 0 && (port.state == PortState::Running || !is_recent) {
            continue;
        }
        let reason = port.sessions.last_error.as_deref().unwrap_or("no reason is known");
        let (what, mend) = explained(reason);
        let failing = finding(
            &port.name,
            format!("its VM connects, and weir ends the session: {what}"),
            format!("{} sessions ended so, {now} of them just now: {reason}", port.sessions.failed),
            mend.replace("NAME", port.name.as_str()),
        );
        // If the front end no longer comes, the fault may have been repaired.
        found.push(if now > 0 { failing } else { note(failing) });
    }
}

pub(super) fn queues_differ(facts: &Facts, found: &mut Vec<Finding>) {
    for port in facts.guests() {
        if let Some(what) = port.queue_pairs.and_then(|pairs| pairs.note()) {
            let mend = "start the VM anew with as many queues as weir qemu-args prints";
            found.push(note(finding(&port.name, what, "its session", mend)));
        }
    }
}

pub(super) fn silent_ring(facts: &Facts, found: &mut Vec<Finding>) {
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
                Silence::NoTranslation { .. } => {
                    format!("ring {}: {}", ring.ring, ring.why.unanswered().unwrap_or_default())
                }
            };
            let what = match ring.why {
                Silence::NoTranslation { .. } => {
                    "the VM's virtual IOMMU does not translate what its driver uses"
                }
                _ => "front end and driver use different rings, kicks or calls",
            };
            let mend =
                format!("weir explain {}; start the VM anew, or update its monitor", port.name);
            found.push(finding(&port.name, what, known_by, mend));
        }
    }
}

pub(super) fn agent_absent(facts: &Facts, found: &mut Vec<Finding>) {
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
        found.push(finding(name, what, known_by, mend));
    }
}

pub(super) fn no_records(facts: &Facts, found: &mut Vec<Finding>) {
    for vif in facts.vifs.iter().filter(|vif| vif.state == PortState::Running && !vif.xen) {
        let path = vif.config.socket.as_path();
        if facts.host.sockets.get(path).is_some_and(|file| !file.has_records) {
            let what = "the guest may need a reset after a SIGKILL of weir";
            let known_by = format!("{}.rings is not there, or is empty", path.display());
            let mend = "journalctl -u weir says why; a directory where weir may make files";
            found.push(finding(&vif.config.name, what, known_by, mend));
        }
    }
}

/// Reports blocked ports.
pub(super) fn loop_found(facts: &Facts, found: &mut Vec<Finding>) {
    for port in facts.ports() {
        let Some(BlockStats { with, vlan, seconds, retry_s, tries }) = &port.blocked else {
            continue;
        };
        let name = &port.name;
        let (what, mend) = match port.kind {
            PortKind::Uplink | PortKind::Own => (
                format!("blocked: what leaves by {with} comes back by {name}"),
                format!("take {name} or {with} out of the LAN that both are in"),
            ),
            PortKind::Vif if with == name => (
                "blocked: the guest sends back what it receives".to_owned(),
                "in the guest, take the interface out of the bridge or program that does it".into(),
            ),
            PortKind::Vif => (
                format!("blocked: the guest passes on between {name} and {with}"),
                format!("in the guest, take {name} out of the bridge that joins it with {with}"),
            ),
        };
        let known_by = format!(
            "loop: a probe came back {seconds:.0} s ago in VLAN {vlan}, tried {tries} times since"
        );
        let mend = format!("{mend}; weir tries again in {retry_s:.0} s");
        found.push(finding(name, what, known_by, mend));
    }
}

/// Reports uplinks that will form a loop.
pub(super) fn loop_ahead(facts: &Facts, found: &mut Vec<Finding>) {
    // The uplinks of a bond may be in one LAN.
    let uplinks_of = || facts.explained.keys().filter_map(|name| facts.uplink(name));
    let bonds = || uplinks_of().filter_map(|it| it.bond.as_ref());
    let is_further = |name: &PortName| {
        bonds().any(|bond| bond.uplinks.iter().skip(1).any(|uplink| uplink.name == *name))
    };
    let uplinks = uplinks(facts).filter(|(name, _)| !is_further(name));
    for joined in joined(uplinks, &facts.host.bridges) {
        let (second, interface) = joined.second;
        let is_blocked = facts.ports().any(|port| port.name == *second && port.blocked.is_some());
        if is_blocked {
            continue;
        }
        let known_by = format!("/sys/class/net/{interface}/master: {}", joined.bridge);
        let mend = format!("ip link set {interface} nomaster, or give the two different VLANs");
        let ahead = finding(second, joined.to_string(), known_by, mend);
        found.push(note(ahead));
    }
}
