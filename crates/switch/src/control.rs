//! Requests to a switch, and its answers. `weir-api` carries both over HTTP.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use miette::Diagnostic;
use weir_config::reload::{Difference, ShownSetting};
use weir_config::{
    FilterRule, GroupConfig, PortName, SecurityGroup, TemplateName, VifChanges, VifConfig,
};
use weir_limits::CONTROL_PORTS_MAX;
use weir_wire::Mac;

use crate::capture::{CaptureRefused, CaptureRequest, Recording};
use crate::events::Glance;
use crate::explain::{OverlayExplanation, PlacementExplanation, UplinkExplanation, VifExplanation};
use crate::named::NoSuchPort;
use crate::stats::{ConnectionPage, PortState, PortStats, SwitchStats};
use crate::trace::{FollowRequest, LiveTrace, Trace};

/// The changes of a reload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Makes all changes, or none if one is impossible.
    Whole,
    /// Makes the changes that are possible.
    Possible,
    /// Makes no change: the configuration equals the running state, and the switch takes it as the
    /// content of its file.
    Nothing,
}

/// A part of a list, in the order of its keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part<Key = PortName> {
    /// The key behind which the part begins: the last one of the part before. `None` begins the list.
    pub after: Option<Key>,
    /// Most entries of the part, at least one and at most as many as the list allows.
    pub limit: usize,
}

impl Default for Part {
    fn default() -> Self {
        Self { after: None, limit: CONTROL_PORTS_MAX }
    }
}

impl Part {
    /// This part of `all`, and the number of entries in `all`.
    pub fn of<T>(&self, mut all: Vec<T>, name: fn(&T) -> &PortName) -> (Vec<T>, usize) {
        let total = all.len();
        all.retain(|it| self.after.as_ref().is_none_or(|after| name(it) > after));
        all.sort_by(|a, b| name(a).cmp(name(b)));
        all.truncate(self.limit.clamp(1, CONTROL_PORTS_MAX));
        (all, total)
    }
}

/// A request to the switch.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// Adds an interface. Answer: [`Response::Ok`].
    VifAdd {
        /// The interface.
        config: Box<VifConfig>,
    },
    /// Adds an interface, or changes the one of the same name. Answer: [`Response::Put`].
    VifPut {
        /// The interface.
        config: Box<VifConfig>,
    },
    /// Changes an interface in use. Answer: [`Response::Ok`], or [`Response::Noted`].
    VifSet {
        /// The interface's name.
        name: PortName,
        /// The changes.
        changes: Box<VifChanges>,
    },
    /// Removes an interface; its guest is disconnected. Answer: [`Response::Ok`].
    VifDel {
        /// The interface's name.
        name: PortName,
    },
    /// Replaces the filter rules of an interface or an uplink at once. Answer: [`Response::Ok`].
    FilterSet {
        /// The port's name.
        name: PortName,
        /// All rules, in their order.
        rules: Vec<FilterRule>,
    },
    /// Gives the switch a group, or changes the one of the same name. Answer: [`Response::Ok`], or
    /// [`Response::Noted`] if it is so already.
    GroupPut {
        /// The group.
        group: GroupConfig,
    },
    /// Removes a group that nothing names. Answer: [`Response::Ok`].
    GroupDel {
        /// The group's name.
        name: SecurityGroup,
    },
    /// One interface, setting by setting. Answer: [`Response::Shown`].
    VifShow {
        /// The interface's name.
        name: PortName,
    },
    /// The interface that a template makes. It is not added. Answer: [`Response::Vif`].
    VifOfTemplate {
        /// The template's name.
        template: TemplateName,
        /// The interface's name.
        name: PortName,
        /// Keys that differ from the template, as those of [`VifConfig`].
        keys: serde_json::Map<String, serde_json::Value>,
    },
    /// Interfaces with their configurations. Answer: [`Response::Vifs`].
    VifList(Part),
    /// The effect of an interface's policies, with the reasons. Answer: [`Response::Explained`],
    /// [`Response::UplinkExplained`] if the name is an uplink's, [`Response::OverlayExplained`] if it is the overlay
    /// port's, or
    /// [`Response::PlacementExplained`] if it is `placement` and no port has that name.
    VifExplain {
        /// The port's name.
        name: PortName,
    },
    /// The file that weir was started with. Answer: [`Response::ConfigFile`].
    ConfigFile,
    /// The changes that a configuration would make. Answer: [`Response::Difference`].
    Diff {
        /// The configuration's text.
        text: String,
    },
    /// A configuration's text with the running settings written into it. Answer: [`Response::Text`].
    Saved {
        /// The configuration's text.
        text: String,
    },
    /// Changes the switch to match a configuration. Answer: [`Response::Reloaded`].
    Reload {
        /// The configuration's text.
        text: String,
        /// The changes that are wanted.
        extent: Extent,
    },
    /// Replaces this weir by the program that is installed now. Answer: [`Response::Noted`].
    Upgrade,
    /// The counters of the switch without those of its ports. Answer: [`Response::Stats`].
    Stats,
    /// The names of all ports. Answer: [`Response::PortNames`].
    PortNames,
    /// The counters of the ports with these names, as far as there are such. Answer: [`Response::Ports`].
    Ports(Vec<PortName>),
    /// Stations that the switch knows, a page at a time. Answer: [`Response::Addresses`].
    Addresses(Part<(u16, Mac)>),
    /// Connections of an interface in groups. Answer: [`Response::Connections`].
    Connections {
        /// The interface's name.
        name: PortName,
        /// The place to begin at: 0, or `next` of a page.
        from: u32,
    },
    /// Forgets connections. Answer: [`Response::Noted`].
    Flush {
        /// The interface, or the network whose interfaces are meant; `None`: all interfaces.
        of: Option<String>,
    },
    /// The path of a frame through the switch, without sending it. Answer: [`Response::Traced`].
    Trace {
        /// The port that would send the frame.
        name: PortName,
        /// The frame's bytes, beginning with the destination address.
        frame: Vec<u8>,
    },
    /// Starts or stops the measurement of each stage's cost for a packet. Answer: [`Response::Ok`].
    Stages {
        /// True starts the measurement.
        on: bool,
    },
}

/// An answer of the switch.
#[derive(Debug, Clone, PartialEq)]
pub enum Response {
    /// The request was carried out.
    Ok,
    /// The request was carried out, and the caller should know something about it.
    Noted {
        /// The note.
        note: String,
    },
    /// An interface.
    Shown {
        /// The interface, setting by setting.
        vif: Box<VifShown>,
    },
    /// The configuration of an interface.
    Vif {
        /// The interface.
        config: Box<VifConfig>,
    },
    /// The interface is as requested.
    Put {
        /// The changes that the request needed.
        put: Put,
    },
    /// The interfaces.
    Vifs {
        /// The interfaces, in the order of their names.
        vifs: Vec<VifStatus>,
        /// The number of all interfaces.
        total: usize,
    },
    /// The effect of an interface's policies.
    Explained {
        /// The explanation at the moment of the answer.
        explanation: Box<VifExplanation>,
    },
    /// The treatment of frames that come in on an uplink.
    UplinkExplained {
        /// The explanation at the moment of the answer.
        explanation: Box<UplinkExplanation>,
    },
    /// The networks that span hosts, and the other hosts that weir hears from.
    OverlayExplained {
        /// The explanation at the moment of the answer.
        explanation: Box<OverlayExplanation>,
    },
    /// The placement of workers and virtual processors.
    PlacementExplained {
        /// The explanation at the moment of the answer.
        explanation: Box<PlacementExplanation>,
    },
    /// The configuration file.
    ConfigFile {
        /// An absolute path, if weir was started with a file.
        path: Option<PathBuf>,
    },
    /// The changes that a configuration would make.
    Difference {
        /// The difference from the running switch.
        difference: Box<Difference>,
    },
    /// A configuration.
    Text {
        /// The configuration's text.
        text: String,
    },
    /// The outcome of a reload.
    Reloaded {
        /// The difference between the configuration and the switch, taken before any change.
        difference: Box<Difference>,
        /// The outcome.
        outcome: ReloadOutcome,
    },
    /// The counters.
    Stats {
        /// The counters at the moment of the answer.
        stats: Box<SwitchStats>,
    },
    /// The names of ports.
    PortNames {
        /// The names, in the order in which [`SwitchStats`] has the ports.
        names: Vec<PortName>,
    },
    /// The counters of ports.
    Ports {
        /// The ports, in the same order.
        ports: Vec<PortStats>,
    },
    /// The stations.
    Addresses {
        /// The page, in the table's order.
        addresses: Vec<AddressEntry>,
        /// The number of all stations in the table.
        total: usize,
    },
    /// Connections of an interface.
    Connections {
        /// The page.
        page: ConnectionPage,
    },
    /// The path of a frame through the switch.
    Traced {
        /// The path, stage by stage.
        trace: Trace,
    },
    /// The request was refused.
    Error {
        /// The kind of refusal.
        kind: Refusal,
        /// The reason.
        message: String,
        /// Advice on how to resolve it.
        help: Option<String>,
    },
}

/// The kind of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such port.
    NotFound,
    /// The request conflicts with the present state, or is impossible.
    Conflict,
    /// The request may be made again in a moment.
    Later,
}

impl Response {
    /// A refusal because of a conflict.
    pub fn error(message: impl Into<String>) -> Self {
        Self::refused(message, None)
    }

    /// A refusal because of a conflict, with advice on how to resolve it.
    pub fn refused(message: impl Into<String>, help: impl Into<Option<String>>) -> Self {
        Self::Error { kind: Refusal::Conflict, message: message.into(), help: help.into() }
    }

    /// A refusal because the named port does not exist.
    pub fn not_found(message: impl Into<String>, help: impl Into<String>) -> Self {
        let help = Some(help.into());
        Self::Error { kind: Refusal::NotFound, message: message.into(), help }
    }
}

/// The answer to a request about a name that is no port's.
impl From<&NoSuchPort> for Response {
    fn from(absent: &NoSuchPort) -> Self {
        let (message, help) = (absent.to_string(), absent.help().map(|help| help.to_string()));
        match absent {
            NoSuchPort::Absent { .. } => Self::not_found(message, help.unwrap_or_default()),
            NoSuchPort::Own { .. } | NoSuchPort::Overlay(_) => Self::refused(message, help),
        }
    }
}

/// The outcome of a reload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReloadOutcome {
    /// Every change that is possible at run time was made.
    Applied {
        /// Deviations from the configuration that remain.
        notes: Vec<String>,
    },
    /// Nothing was changed, because some setting cannot change while weir runs.
    Refused,
    /// A step failed, and the steps before it were undone.
    Undone {
        /// The failed step, and the reason.
        failure: String,
        /// Advice on how to resolve it.
        help: Option<String>,
        /// Steps that could not be undone, or that a guest may have noticed.
        notes: Vec<String>,
    },
}

/// The outcome of a request for an interface to exist with given settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Put {
    /// The outcome in one word.
    pub outcome: PutOutcome,
    /// The keys that changed.
    #[serde(default)]
    pub changed: Vec<String>,
    /// A note for the caller.
    pub note: Option<String>,
}

/// See [`Put`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PutOutcome {
    /// The interface did not exist and was added.
    Added,
    /// The interface existed, and some of its settings changed.
    Changed,
    /// The interface existed and already had these settings.
    Unchanged,
}

/// The origin of an interface. An interface of `weir vif add` may have an owner besides (`by`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum VifOrigin {
    /// The configuration file.
    File,
    /// A command or the API.
    #[default]
    Command,
    /// Xen's toolstack.
    Xen,
}

impl fmt::Display for VifOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::File => "file",
            Self::Command => "command",
            Self::Xen => "xen",
        })
    }
}

/// An interface as it is now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VifStatus {
    /// The interface's configuration, including changes made since the start.
    pub config: VifConfig,
    /// The port's state.
    pub state: PortState,
    /// The reason why the port stopped, if it did.
    pub stopped_reason: Option<String>,
    /// The process at the other end of the interface's socket, if it is visible in weir's PID namespace.
    pub front_end: Option<u32>,
    /// The interface belongs to a Xen guest: the toolstack attached it.
    #[serde(default)]
    pub xen: bool,
    /// The origin of the interface.
    #[serde(default)]
    pub origin: VifOrigin,
    /// Keys that were set while weir ran and differ from the configuration file, as the file names them. If the file
    /// does not name the interface, the only entry is `added`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unsaved: Vec<String>,
}

/// An interface, setting by setting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VifShown {
    /// The interface's name.
    pub name: PortName,
    /// The port's state.
    pub state: PortState,
    /// The reason why the port stopped, if it did.
    pub stopped_reason: Option<String>,
    /// The origin of the interface.
    pub origin: VifOrigin,
    /// Each key of `[vif.NAME]`.
    pub settings: Vec<ShownSetting>,
}

/// The source of a station's location.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AddressOrigin {
    /// The station has sent frames.
    Learned,
    /// The configuration of the station's interface names the address.
    Configured,
    /// FRR reported the address.
    Evpn,
}

impl fmt::Display for AddressOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Learned => "learned",
            Self::Configured => "configured",
            Self::Evpn => "evpn",
        })
    }
}

/// A station that the switch knows, and its location.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AddressEntry {
    /// The station's VLAN.
    pub vlan: u16,
    /// The station's MAC address.
    pub mac: String,
    /// The port behind which the station is.
    pub port: PortName,
    /// The station's network, if it is in a network of the overlay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// The host of a station behind the overlay, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub host: Option<IpAddr>,
    /// IP addresses of the station, as far as weir and FRR exchange them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>)]
    pub ips: Vec<IpAddr>,
    /// The source of this entry.
    pub origin: AddressOrigin,
    /// True if the port's configuration fixes this address.
    pub configured: bool,
    /// Seconds since the station last sent a frame; `None` if the entry has another source.
    pub age_s: Option<u32>,
}

/// A handler of requests. Calls come from several threads at once.
pub trait ControlHandler: Send + Sync + 'static {
    /// Carries out `request`, or gives the reason for a refusal.
    fn handle(&self, request: Request) -> Response;

    /// Begins a capture, or gives the reason for a refusal.
    fn capture(&self, _request: CaptureRequest) -> Result<Recording, CaptureRefused> {
        Err(CaptureRefused::NoSwitch)
    }

    /// Begins to follow frames that `name` sends, or gives the reason for a refusal.
    fn follow(
        &self,
        _name: &PortName,
        _request: &FollowRequest,
    ) -> Result<LiveTrace, CaptureRefused> {
        Err(CaptureRefused::NoSwitch)
    }

    /// The present state of the switch, for clients that follow its events.
    fn glance(&self) -> Glance {
        Glance::default()
    }
}
