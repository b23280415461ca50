//! Requests and responses, as serde writes them.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use weir_config::reload::Difference;
use weir_config::{FilterRule, PortName, VifChanges, VifConfig};

use crate::explain::{PlacementExplanation, UplinkExplanation, VifExplanation};
use crate::stats::{PortState, SwitchStats};

/// What a client can ask for: `{"request":"vif_del","name":"web0"}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Whether weir is there. Answer: [`Response::Ok`].
    Ping,
    /// Adds an interface. Answer: [`Response::Ok`].
    VifAdd {
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
    /// Every interface with its configuration. Answer: [`Response::Vifs`].
    VifList,
    /// What the policies of an interface do, and why. Answer: [`Response::Explained`],
    /// [`Response::UplinkExplained`] if the name is an uplink's, or [`Response::PlacementExplained`] if it is
    /// `placement` and no port's.
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
    /// Changes the switch to what a configuration says. Answer: [`Response::Reloaded`].
    Reload {
        /// Its text.
        text: String,
        /// Changes what can be changed where not all can be.
        #[serde(default)]
        partly: bool,
    },
    /// The counters. Answer: [`Response::Stats`].
    Stats,
    /// Measures what stages of a packet's way cost, or does so no longer. Answer: [`Response::Ok`].
    Stages {
        /// Whether to measure.
        on: bool,
    },
}

/// What weir answers: `{"response":"ok"}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "response", rename_all = "snake_case")]
pub enum Response {
    /// It is done.
    Ok,
    /// It is done, and there is something to know about it.
    Noted {
        /// What.
        note: String,
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
        explanation: UplinkExplanation,
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
    /// It is not done.
    Error {
        /// Why not.
        message: String,
        /// What to do about it.
        help: Option<String>,
    },
}

impl Response {
    /// The answer to what cannot be done.
    pub fn error(message: impl Into<String>) -> Self {
        Self::Error { message: message.into(), help: None }
    }
}

/// What has become of a reload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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

/// An interface as it is now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VifStatus {
    /// Its configuration, with changes made since.
    pub config: VifConfig,
    /// How far it has come.
    pub state: PortState,
    /// Why it stopped, if it did.
    pub stopped_reason: Option<String>,
    /// It is a Xen guest's: the toolstack has attached it.
    #[serde(default)]
    pub xen: bool,
}
