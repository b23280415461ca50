//! What can be asked of a switch, and what it answers. `weir-api` carries both over HTTP.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use weir_config::reload::{Difference, ShownSetting};
use weir_config::{FilterRule, PortName, VifChanges, VifConfig};

use crate::capture::{CaptureRefused, CaptureRequest, Recording};
use crate::events::Glance;
use crate::explain::{OverlayExplanation, PlacementExplanation, UplinkExplanation, VifExplanation};
use crate::stats::{PortState, SwitchStats};
use crate::trace::{FollowRequest, LiveTrace, Trace};

/// What can be asked for.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// Adds an interface. Answer: [`Response::Ok`].
    VifAdd {
        /// The interface.
        config: Box<VifConfig>,
    },
    /// Sees to it that there is such an interface: adds it, or changes the one of its name. Answer: [`Response::Put`].
    VifPut {
        /// The interface.
        config: Box<VifConfig>,
    },
    /// Changes an interface in use. Answer: [`Response::Ok`], or [`Response::Noted`].
    VifSet {
        /// Its name.
        name: PortName,
        /// What changes.
        changes: Box<VifChanges>,
    },
    /// Removes an interface; its guest is disconnected. Answer: [`Response::Ok`].
    VifDel {
        /// Its name.
        name: PortName,
    },
    /// Replaces the filter rules of an interface or an uplink at once. Answer: [`Response::Ok`].
    FilterSet {
        /// Its name.
        name: PortName,
        /// All of them, in their order.
        rules: Vec<FilterRule>,
    },
    /// One interface, setting by setting. Answer: [`Response::Shown`].
    VifShow {
        /// Its name.
        name: PortName,
    },
    /// Every interface with its configuration. Answer: [`Response::Vifs`].
    VifList,
    /// What the policies of an interface do, and why. Answer: [`Response::Explained`],
    /// [`Response::UplinkExplained`] if the name is an uplink's, [`Response::OverlayExplained`] of the overlay's port, or
    /// [`Response::PlacementExplained`] if it is `placement` and no port's.
    VifExplain {
        /// Its name.
        name: PortName,
    },
    /// The file that weir was started with. Answer: [`Response::ConfigFile`].
    ConfigFile,
    /// What a configuration would change. Answer: [`Response::Difference`].
    Diff {
        /// Its text.
        text: String,
    },
    /// The text of a configuration with what runs in it. Answer: [`Response::Text`].
    Saved {
        /// Its text.
        text: String,
    },
    /// Changes the switch to what a configuration says. Answer: [`Response::Reloaded`].
    Reload {
        /// Its text.
        text: String,
        /// Changes what can be changed where not all can be.
        partly: bool,
    },
    /// Has the program that lies there now take this weir's place. Answer: [`Response::Noted`].
    Upgrade,
    /// The counters. Answer: [`Response::Stats`].
    Stats,
    /// The stations that it knows. Answer: [`Response::Addresses`].
    Addresses,
    /// What would become of a frame. Answer: [`Response::Traced`].
    Trace {
        /// Who would send it.
        name: PortName,
        /// Its bytes, from the destination address on.
        frame: Vec<u8>,
    },
    /// Measures what stages of a packet's way cost, or does so no longer. Answer: [`Response::Ok`].
    Stages {
        /// Whether to measure.
        on: bool,
    },
}

/// What a switch answers.
#[derive(Debug, Clone, PartialEq)]
pub enum Response {
    /// It is done.
    Ok,
    /// It is done, and there is something to know about it.
    Noted {
        /// What.
        note: String,
    },
    /// An interface.
    Shown {
        /// Setting by setting.
        vif: Box<VifShown>,
    },
    /// There is what was asked for.
    Put {
        /// What was done for it.
        put: Put,
    },
    /// The interfaces.
    Vifs {
        /// In the order in which they were added.
        vifs: Vec<VifStatus>,
    },
    /// What the policies of an interface do.
    Explained {
        /// At the moment of the answer.
        explanation: Box<VifExplanation>,
    },
    /// What an uplink does with the frames that come in on it.
    UplinkExplained {
        /// At the moment of the answer.
        explanation: Box<UplinkExplanation>,
    },
    /// Networks that span hosts, and whom of these weir hears.
    OverlayExplained {
        /// At the moment of the answer.
        explanation: Box<OverlayExplanation>,
    },
    /// Where workers and virtual processors run.
    PlacementExplained {
        /// At the moment of the answer.
        explanation: Box<PlacementExplanation>,
    },
    /// The configuration's file.
    ConfigFile {
        /// An absolute path, if weir was started with a file.
        path: Option<PathBuf>,
    },
    /// What a configuration would change.
    Difference {
        /// From the running switch.
        difference: Box<Difference>,
    },
    /// A configuration.
    Text {
        /// Its text.
        text: String,
    },
    /// What has become of a reload.
    Reloaded {
        /// What the configuration would change, before anything was.
        difference: Box<Difference>,
        /// What was done about it.
        outcome: ReloadOutcome,
    },
    /// The counters.
    Stats {
        /// At the moment of the answer.
        stats: Box<SwitchStats>,
    },
    /// The stations.
    Addresses {
        /// In no order.
        addresses: Vec<AddressEntry>,
    },
    /// What would become of a frame.
    Traced {
        /// Stage by stage.
        trace: Trace,
    },
    /// It is not done.
    Error {
        /// What kind of refusal it is.
        kind: Refusal,
        /// Why not.
        message: String,
        /// What to do about it.
        help: Option<String>,
    },
}

/// Why something is not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such port.
    NotFound,
    /// It does not go together with what there is, or cannot be done.
    Conflict,
}

impl Response {
    /// The answer to what cannot be done.
    pub fn error(message: impl Into<String>) -> Self {
        Self::refused(message, None)
    }

    /// The same, and what to do about it.
    pub fn refused(message: impl Into<String>, help: impl Into<Option<String>>) -> Self {
        Self::Error { kind: Refusal::Conflict, message: message.into(), help: help.into() }
    }

    /// The answer to who asks for a port that is not there.
    pub fn not_found(message: impl Into<String>, help: impl Into<String>) -> Self {
        let help = Some(help.into());
        Self::Error { kind: Refusal::NotFound, message: message.into(), help }
    }
}

/// What has become of a reload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReloadOutcome {
    /// All that can change while weir runs has changed.
    Applied {
        /// What is not quite as it should be.
        notes: Vec<String>,
    },
    /// Nothing was touched: something cannot change while weir runs.
    Refused,
    /// A step failed, and those before it were undone.
    Undone {
        /// Which one, and why.
        failure: String,
        /// What to do about it.
        help: Option<String>,
        /// What could not be undone, or not without being noticed.
        notes: Vec<String>,
    },
}

/// What was done for an interface that was to be there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Put {
    /// In a word.
    pub outcome: PutOutcome,
    /// The keys that have changed.
    #[serde(default)]
    pub changed: Vec<String>,
    /// What there is to know about it.
    #[serde(default)]
    pub note: Option<String>,
}

/// See [`Put`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PutOutcome {
    /// There was none.
    Added,
    /// There was one, and some of its settings were others.
    Changed,
    /// It was there, and is as it was.
    Unchanged,
}

/// By whose word an interface is there. An interface of `weir vif add` may have an owner besides (`by`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum VifOrigin {
    /// The configuration's.
    File,
    /// That of a command, or of the API.
    #[default]
    Command,
    /// That of Xen's toolstack.
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
    /// Its configuration, with changes made since.
    pub config: VifConfig,
    /// How far it has come.
    pub state: PortState,
    /// Why it stopped, if it did.
    pub stopped_reason: Option<String>,
    /// The process at the other end of its socket, of those that can be seen from weir's.
    #[serde(default)]
    pub front_end: Option<u32>,
    /// It is a Xen guest's: the toolstack has attached it.
    #[serde(default)]
    pub xen: bool,
    /// By whose word it is there.
    #[serde(default)]
    pub origin: VifOrigin,
    /// Keys that were set while weir ran, as paths, and that its file does not say; `added` and nothing else for one that
    /// the file does not name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unsaved: Vec<String>,
}

/// An interface, setting by setting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VifShown {
    /// Its name.
    pub name: PortName,
    /// How far it has come.
    pub state: PortState,
    /// Why it stopped, if it did.
    pub stopped_reason: Option<String>,
    /// By whose word it is there.
    pub origin: VifOrigin,
    /// Each key of `[vif.NAME]`.
    pub settings: Vec<ShownSetting>,
}

/// How it is known where a station is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AddressOrigin {
    /// It has sent frames.
    Learned,
    /// The configuration of its interface says so.
    Configured,
    /// FRR says so.
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

/// A station that the switch knows, and where it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AddressEntry {
    /// Its VLAN.
    pub vlan: u16,
    /// Its MAC address.
    pub mac: String,
    /// The port that it is behind.
    pub port: PortName,
    /// Its network, if it is in one of the overlay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// The host that it is at, if it is behind the overlay and that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub host: Option<IpAddr>,
    /// IP addresses that the station has, as far as weir tells FRR or FRR tells weir.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>)]
    pub ips: Vec<IpAddr>,
    /// How that is known.
    pub origin: AddressOrigin,
    /// Whether the port holds the address because it is configured so.
    pub configured: bool,
    /// Seconds since it last sent a frame; `None` where it is known by other means.
    pub age_s: Option<u32>,
}

/// What answers requests. Calls come from several threads at once.
pub trait ControlHandler: Send + Sync + 'static {
    /// Does what `request` asks, or says why not.
    fn handle(&self, request: Request) -> Response;

    /// Begins a capture, or says why not.
    fn capture(&self, _request: CaptureRequest) -> Result<Recording, CaptureRefused> {
        Err(CaptureRefused::NoSwitch)
    }

    /// Begins to follow frames that `name` sends, or says why not.
    fn follow(
        &self,
        _name: &PortName,
        _request: &FollowRequest,
    ) -> Result<LiveTrace, CaptureRefused> {
        Err(CaptureRefused::NoSwitch)
    }

    /// What the switch is like now, for whoever watches it.
    fn glance(&self) -> Glance {
        Glance::default()
    }
}
