//! What the checks look at.

use std::collections::BTreeMap;
use std::path::PathBuf;

use weir_config::PortName;
use weir_switch::control::VifStatus;
use weir_switch::explain::Explanation;
use weir_switch::stats::{PortKind, PortStats, SwitchStats};

/// All of it, at one moment.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The machine.
    pub host: Host,
    /// The counters of the running switch; `None` where none runs.
    pub switch: Option<SwitchStats>,
    /// Its interfaces.
    pub vifs: Vec<VifStatus>,
    /// What policies do, of the ports that say.
    pub explained: BTreeMap<PortName, Explanation>,
}

/// The machine; what could not be read is absent, and nothing is found of it.
#[derive(Clone, Debug, Default)]
pub struct Host {
    /// The kernel's release, as major and minor number.
    pub kernel: Option<(u32, u32)>,
    /// What the kernel tells time by.
    pub clocksource: Option<String>,
    /// Processors in service.
    pub cpus: Option<usize>,
    /// How much processor time the control group of weir may have, in processors.
    pub cpu_quota: Option<f64>,
    /// Huge pages of the default size: all, and free ones.
    pub hugepages: Option<(u64, u64)>,
    /// By interface of the host: the processors that may get each of its interrupts.
    pub irqs: BTreeMap<String, Vec<String>>,
    /// MTUs of the host's interfaces.
    pub mtus: BTreeMap<String, u32>,
    /// The installed QEMU's version.
    pub qemu_version: Option<(u32, u32)>,
    /// The QEMUs that run.
    pub qemus: Vec<Qemu>,
    /// Sockets of interfaces.
    pub sockets: BTreeMap<PathBuf, SocketFile>,
    /// Lines of the kernel's log about weir's threads.
    pub kernel_log: Vec<String>,
    /// Processes beside weir that have ended before it.
    pub ended: Vec<String>,
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
}

/// A socket on which weir listens, as a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketFile {
    /// Permission bits.
    pub mode: u32,
    /// The owner.
    pub user: u32,
    /// The group.
    pub group: u32,
    /// The file of records is beside it.
    pub has_records: bool,
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
}
