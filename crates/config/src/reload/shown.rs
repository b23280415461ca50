//! The settings of an interface, each with its source.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{LatencyBudget, Networks, SocketMode, Templates, VifConfig};

/// A key of `[vif.NAME]`, as it is in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ShownSetting {
    /// The key's name in the file; `vlan` for `trunk`, `native`, `network` and `mirror`, too.
    pub key: String,
    /// The value in force, as it would be in a file; `None` if there is none.
    pub value: Option<String>,
    /// The source of the value.
    pub from: SettingFrom,
}

/// The source of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SettingFrom {
    /// The default.
    Default,
    /// The file, as weir has read it last; for a Xen guest, `[xen]` or the toolstack.
    File,
    /// The interface's template.
    Template,
    /// A command, or the API.
    Command,
    /// The interface's network, or the overlay.
    Network,
    /// `[switch]`.
    Switch,
}

impl fmt::Display for SettingFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Default => "default",
            Self::File => "file",
            Self::Template => "template",
            Self::Command => "command",
            Self::Network => "network",
            Self::Switch => "switch",
        })
    }
}

impl VifConfig {
    /// The value in force of a key that is not set.
    fn in_force(&self, key: &str) -> Option<String> {
        match key {
            "socket_mode" => Some(SocketMode::OWNER.to_string()),
            "vlan" => Some(self.vlan.of_vif().to_string()),
            "isolated" => Some(false.to_string()),
            "mtu" => Some(self.mtu().to_string()),
            "weight" => Some(self.sharing.share().weight.to_string()),
            _ => None,
        }
    }
}

/// Each setting of `vif`. `file` is the same interface as the file has it, if the file names it.
pub fn shown_vif(
    vif: &VifConfig,
    file: Option<&VifConfig>,
    templates: &Templates,
    networks: &Networks,
    budget: LatencyBudget,
) -> Vec<ShownSetting> {
    let defaults = VifConfig::new(vif.name.clone(), vif.socket.clone()).rows();
    let base = templates.base_of(vif).rows();
    let file = file.map(VifConfig::rows);
    let inherited = |key: &str| match key {
        "isolated" if networks.isolates(&vif.vlan) => {
            Some((true.to_string(), SettingFrom::Network))
        }
        "mtu" => Some((networks.mtu_of(&vif.vlan)?.to_string(), SettingFrom::Network)),
        "latency_budget" => Some((budget.to_string(), SettingFrom::Switch)),
        _ => None,
    };
    let each = vif.rows().into_iter().zip(defaults.into_iter().zip(base)).enumerate();
    let shown = each.map(|(at, ((key, value), ((_, default), (_, base))))| {
        let in_file = file.as_ref().and_then(|file| file.get(at)).map(|(_, value)| value);
        let key = key.name;
        let inherited = inherited(key);
        // An interface in a network of the overlay has its MTU from the start.
        let is_inherited = inherited.as_ref().is_some_and(|(it, _)| value.as_ref() == Some(it));
        let (value, from) = match inherited {
            Some((it, from)) if value.is_none() || is_inherited && key == "mtu" => (Some(it), from),
            _ if value == base && base != default => (value, SettingFrom::Template),
            _ if in_file == Some(&value) && (value != default || base != default) => {
                (value, SettingFrom::File)
            }
            _ if in_file.is_none() && value == default && base == default => {
                (value, SettingFrom::Default)
            }
            _ if in_file == Some(&value) => (value, SettingFrom::Default),
            _ => (value, SettingFrom::Command),
        };
        let value = value.or_else(|| vif.in_force(key));
        ShownSetting { key: key.into(), value, from }
    });
    shown.collect()
}
