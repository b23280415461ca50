//! What the checks look at.

use std::collections::BTreeMap;
use std::path::PathBuf;

use weir_config::PortName;
use weir_switch::control::VifStatus;
use weir_switch::explain::{Explanation, PlacementExplanation};
use weir_switch::stats::{PortKind, PortStats, SwitchStats};

/// All of it, at one moment.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The machine.
    pub host: Host,
    /// The counters of the running switch; `None` where none runs.
    pub switch: Option<SwitchStats>,
    /// The same a while before: what has grown since goes on.
    pub before: Option<SwitchStats>,
    /// Its interfaces.
    pub vifs: Vec<VifStatus>,
    /// What policies do, of the ports that say.
    pub explained: BTreeMap<PortName, Explanation>,
    /// Where workers run.
    pub placement: Option<PlacementExplanation>,
}

/// The machine; what could not be read is absent, and nothing is found of it.
#[derive(Clone, Debug, Default)]
pub struct Host {
    /// The time of day (s since the epoch).
    pub now_s: Option<u64>,
    /// The kernel's release, as major and minor number.
    pub kernel: Option<(u32, u32)>,
    /// What the kernel tells time by.
    pub clocksource: Option<String>,
    /// Processors in service.
    pub cpus_online: Option<usize>,
    /// Those of them on which weir may run.
    pub cpus: Option<usize>,
    /// How much processor time the control groups of weir may have, in processors.
    pub cpu_quota: Option<f64>,
    /// Huge pages of the default size: all, and free ones.
    pub hugepages: Option<(u64, u64)>,
    /// By interface of the host: the processors that may get each of its interrupts.
    pub irqs: BTreeMap<String, Vec<String>>,
    /// The host's interfaces.
    pub links: BTreeMap<String, Link>,
    /// The bridge that each interface of the host is a port of, if it is.
    pub bridges: BTreeMap<String, String>,
    /// The installed QEMU's version.
    pub qemu_version: Option<(u32, u32)>,
    /// The QEMUs that run, and whatever else is at the other end of an interface's socket.
    pub qemus: Vec<Qemu>,
    /// Sockets of interfaces.
    pub sockets: BTreeMap<PathBuf, SocketFile>,
    /// Lines of the kernel's log about system calls of weir's threads.
    pub seccomp: Vec<String>,
    /// Lines of it about what AppArmor or SELinux has denied.
    pub denied: Vec<String>,
    /// Processes beside weir that have ended before it.
    pub ended: Vec<String>,
}

/// An interface of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its MTU.
    pub mtu: u32,
    /// Whether it was brought up.
    pub is_up: bool,
    /// Whether there is somebody at its other end.
    pub has_carrier: bool,
}

/// A QEMU that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qemu {
    /// Its process.
    pub pid: u32,
    /// Whose it is.
    pub user: u32,
    /// Its groups.
    pub groups: Vec<u32>,
    /// Its command line.
    pub args: Vec<String>,
    /// What its program says of its version.
    pub version: Option<(u32, u32)>,
}

/// A socket on which weir listens, as a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketFile {
    /// Who may open it.
    pub file: Permissions,
    /// Who may pass through the directories above it.
    pub above: Vec<(PathBuf, Permissions)>,
    /// The file of records is beside it.
    pub has_records: bool,
}

/// What a file says of who may use it.
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
    /// To write, which connecting to a socket takes.
    pub(super) const WRITE: u32 = 2;
    /// To pass through a directory.
    pub(super) const PASS: u32 = 1;

    /// Whether `qemu` may do that.
    pub(super) fn allow(self, qemu: &Qemu, what: u32) -> bool {
        let bits = match () {
            () if qemu.user == 0 => return true,
            () if qemu.user == self.user => self.mode >> 6,
            () if qemu.groups.contains(&self.group) => self.mode >> 3,
            () => self.mode,
        };
        bits & what != 0
    }
}

impl Facts {
    /// The guests' interfaces.
    pub(super) fn guests(&self) -> impl Iterator<Item = &PortStats> {
        self.ports().filter(|port| port.kind == PortKind::Vif)
    }

    /// All ports.
    pub(super) fn ports(&self) -> impl Iterator<Item = &PortStats> {
        self.switch.iter().flat_map(|switch| &switch.ports)
    }

    /// What a counter of a port was a while before; 0 where the port was not there.
    pub(super) fn before(&self, port: &PortStats, counter: impl Fn(&PortStats) -> u64) -> u64 {
        let mut ports = self.before.iter().flat_map(|switch| &switch.ports);
        ports.find(|before| before.name == port.name).map_or(0, counter)
    }
}
