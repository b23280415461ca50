//! The facts that the checks read.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::Serialize;
use weir_config::PortName;
use weir_switch::capture::Seen;
use weir_switch::control::VifStatus;
use weir_switch::explain::{
    Explanation, PlacementExplanation, TrafficExplanation, UplinkExplanation,
};
use weir_switch::host::Lack;
use weir_switch::stats::{PortKind, PortStats, SwitchStats};

/// All facts, of one moment.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The machine.
    pub host: Host,
    /// The counters of the running switch; `None` if none runs.
    pub switch: Option<SwitchStats>,
    /// The same switch's counters some time before. If a fault's counter has grown since, the fault continues.
    pub before: Option<SwitchStats>,
    /// The words of ports to their neighbours meanwhile; see [`watched`](crate::watched).
    pub seen: Vec<Seen>,
    /// The switch's interfaces.
    pub vifs: Vec<VifStatus>,
    /// The decisions of policies, for the ports that explain them.
    pub explained: BTreeMap<PortName, Explanation>,
    /// The placement of workers.
    pub placement: Option<PlacementExplanation>,
}

/// The machine. A fact that could not be read is absent, and no check then reports a fault in it.
#[derive(Clone, Debug, Default)]
pub struct Host {
    /// The time of day (s since the epoch).
    pub now_s: Option<u64>,
    /// The kernel's release, as major and minor number.
    pub kernel: Option<(u32, u32)>,
    /// The kernel's clock source.
    pub clocksource: Option<String>,
    /// Processors in service.
    pub cpus_online: Option<usize>,
    /// The processors among them on which weir may run.
    pub cpus: Option<usize>,
    /// The processor time that the control groups of weir allow, in processors.
    pub cpu_quota: Option<f64>,
    /// Huge pages of the default size: all, and free ones.
    pub hugepages: Option<(u64, u64)>,
    /// The processors that may get each interrupt, by interface of the host.
    pub irqs: BTreeMap<String, Vec<String>>,
    /// The host's interfaces.
    pub links: BTreeMap<String, Link>,
    /// The bridge of which each interface of the host is a port, if there is one.
    pub bridges: BTreeMap<String, String>,
    /// The installed QEMU's version.
    pub qemu_version: Option<(u32, u32)>,
    /// The running QEMUs, and any other process at the other end of an interface's socket.
    pub qemus: Vec<Qemu>,
    /// Sockets of interfaces.
    pub sockets: BTreeMap<PathBuf, SocketFile>,
    /// Lines of the kernel's log about system calls of weir's threads.
    pub seccomp: Vec<String>,
    /// Lines of the kernel's log about denials by AppArmor or SELinux.
    pub denied: Vec<String>,
    /// The configuration file with its mistakes, if it has some.
    pub bad_file: Option<BadFile>,
    /// The tables of the configuration file that differ from what runs.
    pub unlike_file: Vec<String>,
    /// What the host lacks for the ways out of networks.
    pub lacks: Vec<Lack>,
    /// Conditions of the host that need not be faults.
    pub doubts: Vec<Lack>,
    /// weir's other processes that ended before weir.
    pub ended: Vec<String>,
    /// Other weirs that serve.
    pub others: Vec<String>,
    /// True if weir's program is not on the disk any more.
    pub is_replaced: bool,
    /// The host's addresses, each with its interface.
    pub addresses: Vec<(String, IpAddr)>,
}

/// A configuration file that weir refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadFile {
    /// The file.
    pub path: PathBuf,
    /// The mistakes, each with its line.
    pub mistakes: Vec<String>,
}

/// An interface of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The interface's MTU.
    pub mtu: u32,
    /// True if the interface was brought up.
    pub is_up: bool,
    /// True if the interface has a carrier.
    pub has_carrier: bool,
    /// The state of a bridge's port, of which 3 is "forwarding" (the kernel's if_bridge.h).
    pub port_state: Option<u8>,
}

/// A QEMU that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qemu {
    /// QEMU's process id.
    pub pid: u32,
    /// The process's user.
    pub user: u32,
    /// The process's groups.
    pub groups: Vec<u32>,
    /// The process's command line.
    pub args: Vec<String>,
    /// The version that is written in the process's program.
    pub version: Option<(u32, u32)>,
    /// True if the process is stopped by a signal.
    pub is_stopped: bool,
    /// Interfaces' sockets that are not in the process's file system.
    pub unseen: Vec<PathBuf>,
}

/// A socket on which weir listens, as a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketFile {
    /// The permissions of the file.
    pub file: Permissions,
    /// The permissions of the directories above the file.
    pub above: Vec<(PathBuf, Permissions)>,
    /// True if the file of records exists beside the socket.
    pub has_records: bool,
}

/// The access rights of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permissions {
    /// Permission bits.
    pub mode: u32,
    /// The owner.
    pub user: u32,
    /// The group.
    pub group: u32,
}

impl Permissions {
    /// Permission to write, which connecting to a socket needs.
    const WRITE: u32 = 2;
    /// Permission to pass through a directory.
    const PASS: u32 = 1;

    /// True if a user with these groups has this permission.
    fn allow(self, user: u32, groups: &[u32], what: u32) -> bool {
        let bits = match () {
            () if user == 0 => return true,
            () if user == self.user => self.mode >> 6,
            () if groups.contains(&self.group) => self.mode >> 3,
            () => self.mode,
        };
        bits & what != 0
    }
}

/// The obstacle that keeps a user from opening a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closed {
    /// The socket, or a directory above it.
    at: PathBuf,
    permissions: Permissions,
    is_directory: bool,
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, permissions: Permissions { mode, user, group }, .. } = self;
        let mode = mode & 0o7777;
        write!(f, "{} has mode {mode:04o}, user {user} and group {group}", at.display())
    }
}

impl Closed {
    /// The way to open the socket. `mode` sets the socket's mode.
    pub fn mend(&self, mode: &str) -> String {
        let group = "set `socket_group` of [switch] to a group of QEMU's user, and restart weir";
        if self.is_directory {
            let at = self.at.display();
            format!("a directory that QEMU may enter: chmod o+x {at}, or chgrp")
        } else if self.permissions.mode >> 3 & Permissions::WRITE != 0 {
            group.to_owned()
        } else {
            format!("{mode}; and {group}")
        }
    }
}

impl SocketFile {
    /// The obstacle that keeps a user with these groups from opening the socket at `path`.
    pub fn closed_to(&self, path: &Path, user: u32, groups: &[u32]) -> Option<Closed> {
        let closed = |(_, dir): &&(_, Permissions)| !dir.allow(user, groups, Permissions::PASS);
        match self.above.iter().find(closed) {
            Some((dir, permissions)) => {
                Some(Closed { at: dir.clone(), permissions: *permissions, is_directory: true })
            }
            None if self.file.allow(user, groups, Permissions::WRITE) => None,
            None => {
                Some(Closed { at: path.to_owned(), permissions: self.file, is_directory: false })
            }
        }
    }
}

impl Facts {
    /// The guests' interfaces.
    pub(super) fn guests(&self) -> impl Iterator<Item = &PortStats> {
        self.ports().filter(|port| port.kind == PortKind::Vif)
    }

    /// The facts about an uplink.
    pub(super) fn uplink(&self, name: &PortName) -> Option<&UplinkExplanation> {
        match self.explained.get(name)? {
            Explanation::Uplink(uplink) => Some(uplink),
            _ => None,
        }
    }

    /// The facts about the traffic at a port.
    pub(super) fn traffic(&self, port: &PortName) -> Option<&TrafficExplanation> {
        match self.explained.get(port)? {
            Explanation::Vif(vif) => Some(&vif.traffic),
            _ => Some(&self.uplink(port)?.traffic),
        }
    }

    /// All ports.
    pub(super) fn ports(&self) -> impl Iterator<Item = &PortStats> {
        self.switch.iter().flat_map(|switch| &switch.ports)
    }

    /// The earlier value of a port's counter; 0 if the port did not exist then.
    pub(super) fn before(&self, port: &PortStats, counter: impl Fn(&PortStats) -> u64) -> u64 {
        let mut ports = self.before.iter().flat_map(|switch| &switch.ports);
        ports.find(|before| before.name == port.name).map_or(0, counter)
    }
}

/// A result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The name of the check in the guide. It is added when the check has ended.
    pub check: &'static str,
    /// True if something does not work as it should; otherwise the finding is only worth knowing.
    pub wrong: bool,
    /// The interface or uplink, or `host` or `switch`.
    pub subject: String,
    /// The fault, in plain words.
    pub what: String,
    /// The evidence.
    pub known_by: String,
    /// The remedy, a command if there is one.
    pub mend: Cow<'static, str>,
}

/// A finding: a fault, or something worth knowing.
pub(crate) fn finding(
    subject: impl ToString,
    what: impl Into<String>,
    known_by: impl Into<String>,
    mend: impl Into<String>,
) -> Finding {
    Finding {
        check: "",
        wrong: true,
        subject: subject.to_string(),
        what: what.into(),
        known_by: known_by.into(),
        mend: mend.into().into(),
    }
}

pub(crate) fn note(found: Finding) -> Finding {
    Finding { wrong: false, ..found }
}
