//! How a port takes part in VLANs.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{NetworkName, Vid};

/// The VLANs a trunk carries with a tag.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TrunkVids {
    /// Every VLAN.
    All,
    /// These.
    Only(BTreeSet<Vid>),
}

impl fmt::Display for TrunkVids {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Only(vids) => {
                f.write_str(&vids.iter().map(Vid::to_string).collect::<Vec<_>>().join(","))
            }
        }
    }
}

/// How a port takes part in VLANs (IEEE 802.1Q).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum VlanMode {
    /// Nothing is configured: the fabric's default for the kind of port holds.
    #[default]
    Unset,
    /// Frames are untagged on the port and belong to this VLAN.
    Access(Vid),
    /// Frames are untagged on the port and belong to the network of this name.
    Network(NetworkName),
    /// Frames carry their VLAN's tag.
    Trunk {
        /// The VLANs the port is a member of.
        allowed: TrunkVids,
        /// The VLAN of untagged frames; without it they are dropped.
        native: Option<Vid>,
    },
}

impl VlanMode {
    /// The network that the port is in: addresses may be the same in another one.
    pub fn network(&self) -> Option<&NetworkName> {
        match self {
            Self::Network(name) => Some(name),
            Self::Unset | Self::Access(_) | Self::Trunk { .. } => None,
        }
    }
}

impl fmt::Display for VlanMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Unset => "-".into(),
            Self::Access(vid) => vid.to_string(),
            Self::Network(name) => format!("network {name}"),
            Self::Trunk { allowed, native: None } => format!("trunk {allowed}"),
            Self::Trunk { allowed, native: Some(vid) } => format!("trunk {allowed} native {vid}"),
        };
        f.pad(&text)
    }
}
