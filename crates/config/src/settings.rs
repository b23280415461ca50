//! The keys of `[vif.NAME]` given as `KEY=VALUE` on the command line.
//!
//! Settings are written out as TOML and read by the same parser, so they have the same meaning and the same errors.

use std::fmt::{self, Write as _};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use toml::Spanned;
use toml::de::DeValue;
use utoipa::ToSchema;

use super::VifConfig;
use super::error::{ConfigError, Problem};
use super::guard::GuardChanges;
use super::moderation::Moderation;
use super::parse;
use super::section::{Fault, FromToml, Section};
use super::sharing::SharingChanges;
use super::values::{
    ContainerBytes, LatencyBudget, MacAddress, PortName, QueuePairs, RxFrames, RxUsecs, SocketPath,
    TagProtocol, VlanMode,
};

/// What diagnostics call text that came from the command line.
const SOURCE_NAME: &str = "settings";
/// The word that takes a setting back to its default.
pub(super) const NONE: &str = "none";

/// One `KEY=VALUE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    key: String,
    value: String,
}

/// Text that is no [`Setting`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("write KEY=VALUE, for example queues=2")]
pub struct NotASetting;

impl Setting {
    /// Its key.
    pub fn key(&self) -> &str {
        &self.key
    }
}

impl FromStr for Setting {
    type Err = NotASetting;
    fn from_str(text: &str) -> Result<Self, NotASetting> {
        let (key, value) = text.split_once('=').ok_or(NotASetting)?;
        let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if key.is_empty() || !key.chars().all(bare) {
            return Err(NotASetting);
        }
        Ok(Self { key: key.into(), value: value.into() })
    }
}

impl fmt::Display for Setting {
    /// The setting as a line of TOML. Words that TOML does not know as numbers, truth values, lists
    /// or quoted text are quoted, so that `latency_budget=1ms` needs no quotes of its own.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verbatim = DeValue::parse(&self.value).is_ok_and(|value| {
            let value = value.get_ref();
            value.is_integer() || value.is_bool() || value.is_array() || value.is_str()
        });
        if verbatim {
            write!(f, "{} = {}", self.key, self.value.trim())
        } else {
            write!(f, "{} = {}", self.key, toml::Value::String(self.value.clone()))
        }
    }
}

fn as_toml(name: &PortName, settings: &[Setting]) -> String {
    // Only a dot needs the quotes; without them a diagnostic reads better.
    let quote = if name.as_str().contains('.') { "\"" } else { "" };
    let mut text = format!("[vif.{quote}{name}{quote}]\n");
    for setting in settings {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{setting}");
    }
    text
}

impl VifConfig {
    /// The interface `name` with `settings`; its default socket stands beside `control`.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] with every problem of the settings.
    pub fn from_settings(
        name: &PortName,
        settings: &[Setting],
        control: &SocketPath,
    ) -> Result<Self, ConfigError> {
        from_text(&as_toml(name, settings), control)
    }
}

/// The interface that `text` is a table of.
pub(super) fn from_text(text: &str, control: &SocketPath) -> Result<VifConfig, ConfigError> {
    parse::single_vif(text, control)
        .map_err(|problems| ConfigError::invalid(SOURCE_NAME, text, problems))
}

/// What to do with an optional setting.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Change<T> {
    /// Leave it as it is.
    #[default]
    Keep,
    /// Take it back to its default.
    Clear,
    /// Give it this value.
    Set(T),
}

impl<T> Change<T> {
    /// What belongs to a setting that `other` clears is cleared with it, unless it is set anew.
    pub(super) fn clear_with<U>(&mut self, other: &Change<U>) {
        if let (Self::Keep, Change::Clear) = (&self, other) {
            *self = Self::Clear;
        }
    }

    pub(super) fn apply(self, to: &mut Option<T>) {
        match self {
            Self::Keep => {}
            Self::Clear => *to = None,
            Self::Set(value) => *to = Some(value),
        }
    }
}

/// Defines settings of an interface that may be left out, and what `weir vif set` changes of them.
macro_rules! optional_settings {
    (
        $(#[$doc:meta])* $name:ident, $(#[$changes_doc:meta])* $changes:ident {
            $($(#[$key_doc:meta])* $field:ident: $type:ty = $key:literal,)+
        }
        $($(#[$part_doc:meta])* $part:ident: $part_type:ty, $part_changes:ty)?
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            $($(#[$key_doc])* pub $field: Option<$type>,)+
            $($(#[$part_doc])* pub $part: $part_type,)?
        }

        $(#[$changes_doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
        #[serde(default, deny_unknown_fields)]
        pub struct $changes {
            $($(#[$key_doc])* pub $field: Change<$type>,)+
            $($(#[$part_doc])* pub $part: $part_changes,)?
        }

        impl $name {
            /// Reads the keys of an interface's section.
            fn read(section: &mut Section<'_>, problems: &mut Vec<Problem>) -> Self {
                Self {
                    $($field: section.value($key, problems),)+
                    $($part: <$part_type>::read(section, problems),)?
                }
            }
        }

        impl $changes {
            pub(super) fn read(section: &mut Section<'_>, problems: &mut Vec<Problem>) -> Self {
                Self {
                    $($field: section.take_or($key, Change::Keep, problems),)+
                    $($part: <$part_changes>::read(section, problems),)?
                }
            }

            fn apply_each(self, to: &mut $name) {
                $(self.$field.apply(&mut to.$field);)+
                $(self.$part.apply(&mut to.$part);)?
            }
        }
    };
}

pub(super) use optional_settings;

impl<T: FromToml> FromToml for Change<T> {
    fn from_toml(value: &Spanned<DeValue<'_>>) -> Result<Self, Fault> {
        match value.get_ref().as_str() {
            Some(NONE) => Ok(Self::Clear),
            _ => T::from_toml(value).map(Self::Set),
        }
    }
}

/// What `weir vif set` changes while the interface is in use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct VifChanges {
    /// Most queue pairs that the guest may use, from the next time on that its front end connects.
    pub queues: Option<QueuePairs>,
    /// The interface's own latency budget.
    pub latency_budget: Change<LatencyBudget>,
    /// When the guest is called.
    pub moderation: Option<Moderation>,
    /// How long a call is held.
    pub rx_usecs: Change<RxUsecs>,
    /// With how many frames it is held no longer.
    pub rx_frames: Change<RxFrames>,
    /// With how many bytes a container is full.
    pub container_bytes: Change<ContainerBytes>,
    /// The guest's MAC address.
    pub mac: Change<MacAddress>,
    /// Whether source addresses are checked.
    pub mac_check: Option<bool>,
    /// Whether it reaches no other isolated interface.
    pub isolated: Change<bool>,
    /// Whether entries of the indirection table move by load.
    pub rss_rebalance: Option<bool>,
    /// VLANs of the port.
    pub vlan: Option<VlanMode>,
    /// What kind of tags are the port's own.
    pub tag_protocol: Option<TagProtocol>,
    /// From which addresses its guest may send.
    pub guarding: GuardChanges,
    /// Its share of the workers and its rates.
    pub sharing: SharingChanges,
}

impl VifChanges {
    /// Keys of an interface that cannot change while it exists: the guest has negotiated them, its monitor knows them, or
    /// they are what its tenant is held to.
    const FIXED: [&'static str; 10] = [
        "by",
        "socket",
        "mode",
        "socket_mode",
        "mtu",
        "memory_max",
        "agent",
        "broadcasts_per_second",
        "multicasts_per_second",
        "unknown_per_second",
    ];

    /// The changes that `settings` ask for; `none` as a value takes a setting back to its default.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] with every problem of the settings.
    pub fn from_settings(name: &PortName, settings: &[Setting]) -> Result<Self, ConfigError> {
        let text = as_toml(name, settings);
        let invalid = |problems| ConfigError::invalid(SOURCE_NAME, &text, problems);
        let document = parse::document(&text).map_err(invalid)?;
        let mut problems = Vec::new();
        let mut root = Section::new(String::new(), 0..0, document.get_ref());
        let mut changes = Self::default();
        for section in root.subtables("vif", &mut problems) {
            changes = Self::from_section(section, name, &mut problems);
        }
        if problems.is_empty() { Ok(changes) } else { Err(invalid(problems)) }
    }

    fn from_section(
        mut section: Section<'_>,
        name: &PortName,
        problems: &mut Vec<Problem>,
    ) -> Self {
        let queues = section.value("queues", problems);
        let latency_budget = section.take_or("latency_budget", Change::Keep, problems);
        let moderation = section.value("moderation", problems);
        let rx_usecs = section.take_or("rx_usecs", Change::Keep, problems);
        let rx_frames = section.take_or("rx_frames", Change::Keep, problems);
        let container_bytes = section.take_or("container_bytes", Change::Keep, problems);
        let mac = section.take_or("mac", Change::Keep, problems);
        let mac_check = section.value("mac_check", problems);
        let isolated = section.take_or("isolated", Change::Keep, problems);
        let rss_rebalance = section.value("rss_rebalance", problems);
        let guarding = GuardChanges::from_section(&mut section, problems);
        let sharing = SharingChanges::read(&mut section, problems);
        let tag_protocol = section.value("tag_protocol", problems);
        let no_vlan = ["vlan", "trunk", "network", "mirror"]
            .into_iter()
            .any(|key| section.is_word(key, NONE));
        let vlan = if no_vlan {
            Some(VlanMode::Unset)
        } else {
            let mode = parse::vlan(&mut section, problems);
            (mode != VlanMode::Unset).then_some(mode)
        };
        for key in Self::FIXED {
            if let Some(span) = section.refuse(key) {
                problems.push(
                    Problem::new(format!("`{key}` cannot change while the interface exists"))
                        .label(span, "fixed when the interface is added")
                        .help(format!(
                            "`weir vif del {name}`, then `weir vif add {name} {key}=...`"
                        )),
                );
            }
        }
        if let Some(span) = section.refuse("filter") {
            problems.push(
                Problem::new("filters have a command of their own")
                    .label(span, "not a setting")
                    .help(format!("`weir filter set {name} RULE...`, such as \"tx drop port 25\"")),
            );
        }
        section.finish(problems);
        Self {
            queues,
            latency_budget,
            moderation,
            rx_usecs,
            rx_frames,
            container_bytes,
            mac,
            mac_check,
            isolated,
            rss_rebalance,
            vlan,
            tag_protocol,
            guarding,
            sharing,
        }
    }

    /// Changes `vif`. Settings of a replaced policy that the new one ignores go back to their defaults.
    pub fn apply(self, vif: &mut VifConfig) {
        vif.queues = self.queues.unwrap_or(vif.queues);
        self.latency_budget.apply(&mut vif.latency_budget);
        self.mac.apply(&mut vif.mac);
        if let Some(moderation) = self.moderation {
            vif.moderation = moderation;
            vif.rx_usecs = vif.rx_usecs.filter(|_| moderation.takes_rx_usecs());
            vif.rx_frames = vif.rx_frames.filter(|_| moderation.takes_rx_frames());
            let takes_container_bytes = moderation.takes_container_bytes();
            vif.container_bytes = vif.container_bytes.filter(|_| takes_container_bytes);
        }
        self.rx_usecs.apply(&mut vif.rx_usecs);
        self.rx_frames.apply(&mut vif.rx_frames);
        self.container_bytes.apply(&mut vif.container_bytes);
        self.sharing.apply(&mut vif.sharing);
        self.guarding.apply(&mut vif.guarding);
        vif.mac_check = self.mac_check.unwrap_or(vif.mac_check);
        self.isolated.apply(&mut vif.isolated);
        vif.rss_rebalance = self.rss_rebalance.unwrap_or(vif.rss_rebalance);
        if let Some(vlan) = self.vlan {
            vif.vlan = vlan;
        }
        vif.tag_protocol = self.tag_protocol.unwrap_or(vif.tag_protocol);
    }
}
