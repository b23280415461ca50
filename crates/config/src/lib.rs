//! The configuration of `weir.toml`, `weir vif add` and `weir vif set`.
//!
//! ```toml
//! [switch]
//! workers = "auto"
//! latency_budget = "250us"
//!
//! [uplink.lan]
//! kind = "tap"
//! name = "weir0"
//!
//! [vif.web0]
//! latency_budget = "1ms"
//! queues = 2
//! vlan = 10
//! ```
//!
//! * [`values`]: the types of single values; each one can only hold a valid value.
//! * [`Config`] and its parts: plain structs, independent of TOML.
//! * `parse`: TOML to those structs. It collects every problem instead of stopping at the first.
//! * [`cost`]: the cost of a text, checked before the text is read.
//! * [`error`]: rules that do not hold, and problems as diagnostics that show the line.
//! * `moderation`: the policy of interrupt moderation.
//! * `calls`: the calls (interrupts) of an interface's guest.
//! * `overlay`: the networks of tenants, and the other hosts in them.
//! * [`filter`]: the frames that a port can send and receive.
//! * `gateway`: weir's services for the guests of a network.
//! * `group`: the connections that guests can open.
//! * `guard`: the addresses from which a guest may send.
//! * `sharing`: an interface's part of the workers, and its rate limits.
//! * `port`: the part of a port's configuration that the fabric enforces.
//! * `keys`: tables of keys; each key is declared once.
//! * `check`: the rules for settings that must fit together.
//! * `switch`: the keys of the whole switch, and access to the HTTP API.
//! * `template`: keys that interfaces have in common, and interfaces on demand.
//! * `uplink`: the keys of a port to the host or the outside.
//! * `vif`: the keys of a guest's interface.
//! * `vlan`: the keys that say in which VLANs or network a port is.
//! * `xen`: the vifs of Xen guests that weir serves, and their settings.
//! * [`reload`]: the differences between a file and a running switch.
//! * [`settings`]: the same keys given as `KEY=VALUE` on the command line.

#![deny(unsafe_code)]

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use weir_limits as limits;

mod calls;
mod check;
pub mod cost;
pub mod descriptors;
pub mod error;
pub mod filter;
mod gateway;
mod group;
mod guard;
mod keys;
mod mirror;
mod overlay;
mod parse;
mod port;
pub mod reload;
mod section;
pub mod settings;
mod sharing;
mod suggest;
mod switch;
mod template;
mod uplink;
pub mod values;
mod vif;
mod vlan;
mod xen;

#[cfg(test)]
mod tests;

pub use calls::Moderation;
pub use check::{PLACEMENT, TableFault, Whole};
pub use cost::give_back;
pub use error::{ConfigError, Fault, Problem};
pub use filter::{Expression, FilterRule, FilterRules};
pub use gateway::{
    AddressRange, BootClient, BootConfig, BootFile, DhcpConfig, DomainName, FixedAddress, Forward,
    ForwardProtocol, GatewayConfig, HostAddresses, NatConfig, OwnAddress, Route,
};
pub use group::{
    GroupConfig, GroupIds, GroupRule, Groups, NoSuchGroup, RuleProtocol, RuleSide, RuleValues,
    TO_A_GROUP, VifGroups,
};
pub use guard::{Addresses, GuardChanges, Guarding};
pub use keys::{Change, Key};
pub use mirror::{MirrorError, check_mirrors, mirror_note};
pub use overlay::{
    GbpPeers, NetworkConfig, NetworkError, NetworkKind, Networks, OverlayConfig, OverlayNetwork,
};
pub use settings::Setting;
pub use sharing::{Receiving, ReceivingChanges, Sharing, SharingChanges};
pub use switch::{Admins, ApiConfig, ListenAddress, PlacementConfig, Program, SwitchConfig};
pub use template::{NoSuchTemplate, OnDemandConfig, OnDemandKeys, TemplateConfig, Templates};
pub use uplink::{Behind, UplinkConfig, UplinkKind};
pub use values::{
    BitRate, BondMode, BondUplinks, BurstSize, ChannelName, ContainerBytes, Direction, Dscp,
    Execution, FdbEntries, FilePath, FilterAction, ForgetSecs, GroupDefault, GroupName, GuardMode,
    HostAddress, InterfaceName, LacpRate, LateTurns, LatencyBudget, LeaseTime, MacAddress,
    MemoryMax, MirroredPorts, Mtu, NamePattern, NetworkName, OnDemandMax, OverlayDscp, Owner,
    PacketBurst, PacketRate, Period, PlacementMode, PortName, QueuePairs, Realization, RingSize,
    RuleDirection, RxFrames, RxUsecs, Schedule, SecurityGroup, SocketMode, SocketPath, SocketRole,
    TagProtocol, TemplateName, TrunkVids, UdpPort, UserName, ValueError, Vid, VlanMode, Vni,
    Weight, WorkerCount, Workers,
};
pub use vif::{StormChanges, StormControl, VifChanges, VifConfig};
pub use xen::{Bridges, XenConfig};

/// A whole configuration, checked: values are in bounds, and no two ports share a name, a socket, a
/// MAC address or an interface of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// `[switch]`
    pub switch: SwitchConfig,
    /// `[overlay]` and `[network.NAME]`
    pub networks: Networks,
    /// `[group.NAME]`
    pub groups: Groups,
    /// `[template.NAME]` and `[vif-on-demand.PATTERN]`
    pub templates: Templates,
    /// `[uplink.NAME]`, then `[bond.NAME]`, each in the order of the file.
    pub uplinks: Vec<UplinkConfig>,
    /// `[vif.NAME]`, in the order of the file.
    pub vifs: Vec<VifConfig>,
    /// `[xen]`, if weir is to serve Xen guests.
    pub xen: Option<XenConfig>,
}

/// The defaults that depend on the user and on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Defaults {
    /// The control socket. A VIF without a path of its own gets the socket `NAME.sock` in the same
    /// directory.
    pub control: SocketPath,
    /// True if `control` comes from the command line. It then takes precedence over the file.
    pub control_named: bool,
    /// The keeper's socket, if it comes from the command line. It then takes precedence over the file.
    pub keeper: Option<SocketPath>,
}

impl Defaults {
    /// The directory of root's and the system's sockets.
    pub const SYSTEM_DIR: &str = "/run/weir";
    /// The control socket of root's weir.
    pub const SYSTEM_CONTROL: &str = "/run/weir/control.sock";
    const CONTROL_NAME: &str = "control.sock";

    /// The defaults of the user who runs this process.
    ///
    /// # Errors
    /// If `$XDG_RUNTIME_DIR` makes no valid socket path.
    pub fn of_this_user() -> Result<Self, ValueError> {
        let root = rustix::process::geteuid().is_root();
        Self::of_user(root, std::env::var_os("XDG_RUNTIME_DIR").as_deref())
    }

    /// `/run/weir` for root, and for others `weir` in the runtime directory where there is one.
    ///
    /// # Errors
    /// If the runtime directory makes no valid socket path.
    pub fn of_user(root: bool, xdg_runtime_dir: Option<&OsStr>) -> Result<Self, ValueError> {
        let dir = match xdg_runtime_dir {
            Some(dir) if !root && !dir.is_empty() => Path::new(dir).join("weir"),
            _ => PathBuf::from(Self::SYSTEM_DIR),
        };
        let control = SocketPath::to_listen(&dir.join(Self::CONTROL_NAME))?;
        Ok(Self { control, control_named: false, keeper: None })
    }

    /// The socket of the interface `name` where none is configured: `NAME.sock` beside the control
    /// socket.
    ///
    /// # Errors
    /// If that path is too long.
    pub fn vif_socket(control: &SocketPath, name: &PortName) -> Result<SocketPath, ValueError> {
        let socket = control.as_path().with_file_name(format!("{name}.sock"));
        SocketPath::to_listen(&socket)
    }
}

impl Config {
    /// The default path of the configuration of `weir run`.
    pub const DEFAULT_PATH: &str = "/etc/weir/weir.toml";

    /// A sentence about rules of groups that do not cover guests of other hosts, if there are such
    /// hosts.
    pub fn note_of_groups(&self) -> Option<String> {
        self.networks.overlay.as_ref()?;
        self.groups.note_over_hosts()
    }

    /// A switch with these interfaces and nothing else.
    pub fn of_vifs(switch: SwitchConfig, vifs: Vec<VifConfig>) -> Self {
        Self {
            switch,
            networks: Networks::default(),
            groups: Groups::default(),
            templates: Templates::default(),
            uplinks: Vec::new(),
            vifs,
            xen: None,
        }
    }

    /// Reads and checks a file.
    ///
    /// # Errors
    /// [`ConfigError::Read`] and [`ConfigError::TooLarge`] for the file, [`ConfigError::Invalid`]
    /// with every problem in it.
    pub fn load(path: &Path, defaults: &Defaults) -> Result<Self, ConfigError> {
        let text = read_text(open_file(path)?, path)?;
        Self::from_toml(&path.display().to_string(), &text, defaults)
    }

    /// Checks a configuration's text, which diagnostics call `source_name`.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] with every problem in it.
    pub fn from_toml(
        source_name: &str,
        text: &str,
        defaults: &Defaults,
    ) -> Result<Self, ConfigError> {
        parse::config(text, defaults)
            .map_err(|problems| ConfigError::invalid(source_name, text, problems))
    }

    /// The uplinks, with only the first one of each bond: the others may be in the same LAN.
    pub fn unbonded(&self) -> impl Iterator<Item = &UplinkConfig> {
        let further = |bond: &UplinkConfig, name: &PortName| {
            bond.members().iter().skip(1).any(|further| further == name)
        };
        self.uplinks
            .iter()
            .filter(move |it| !self.uplinks.iter().any(|bond| further(bond, &it.name)))
    }

    /// True if the configuration has an interface in the place of `vif`, which has come on demand.
    pub fn replaces(&self, vif: &VifConfig) -> bool {
        let on_demand = vif.by.as_ref().is_some_and(Owner::is_on_demand);
        on_demand && self.vifs.iter().any(|it| it.name == vif.name)
    }

    /// All of it, to be checked.
    pub fn whole(&self) -> Whole<'_> {
        Whole {
            control: &self.switch.control,
            keeper: self.switch.keeper.as_ref(),
            latency_budget: self.switch.latency_budget,
            schedule: self.switch.schedule,
            groups: &self.groups,
            templates: &self.templates,
            networks: &self.networks,
            uplinks: self.uplinks.iter().collect(),
            vifs: self.vifs.iter().collect(),
            xen: self.xen.as_ref(),
        }
    }

    /// The budget that holds for `vif`: its own, or the switch's.
    pub fn latency_budget(&self, vif: &VifConfig) -> LatencyBudget {
        vif.latency_budget.unwrap_or(self.switch.latency_budget)
    }
}

/// Opens a configuration's file, to be read by [`read_text`], perhaps by another process.
///
/// # Errors
/// [`ConfigError::Read`], [`ConfigError::NotAFile`]
pub fn open_file(path: &Path) -> Result<File, ConfigError> {
    let read = |error| ConfigError::Read { path: path.into(), source: error };
    // Without NONBLOCK, opening a pipe without a writer would block for ever.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::open(path, flags, Mode::empty());
    let file = File::from(file.map_err(|errno| read(errno.into()))?);
    match file.metadata().map_err(read)?.is_file() {
        true => Ok(file),
        false => Err(ConfigError::NotAFile { path: path.into() }),
    }
}

/// The text of an open `file`, which errors call `path`.
///
/// # Errors
/// [`ConfigError::Read`], [`ConfigError::TooLarge`]
pub fn read_text(file: File, path: &Path) -> Result<String, ConfigError> {
    let mut text = String::new();
    // One byte more than the limit distinguishes a file that is too large from one that just fits.
    file.take(limits::CONFIG_BYTES_MAX + 1)
        .read_to_string(&mut text)
        .map_err(|source| ConfigError::Read { path: path.into(), source })?;
    match text.len() as u64 > limits::CONFIG_BYTES_MAX {
        true => Err(ConfigError::TooLarge { path: path.into() }),
        false => Ok(text),
    }
}
