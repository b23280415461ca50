//! VLAN modes of ports.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_limits::CAPTURE_PORTS_MAX;

use super::{NetworkName, PortName, ValueError, Vid, schema_as};

/// The VLANs a trunk carries with a tag.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TrunkVids {
    /// Every VLAN.
    All,
    /// Only these VLANs.
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

/// The VLAN mode of a port (IEEE 802.1Q).
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
        /// The VLAN of untagged frames; without it untagged frames are dropped.
        native: Option<Vid>,
    },
    /// The port is a mirror: it is in no VLAN, and gets copies of the frames that these ports send and receive.
    Mirror(MirroredPorts),
}

/// The ports that a mirror gets copies of: 1 to [`CAPTURE_PORTS_MAX`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<PortName>", into = "Vec<PortName>")]
pub struct MirroredPorts(Vec<PortName>);

schema_as!(MirroredPorts, Vec<String>);

impl MirroredPorts {
    /// The names of the ports.
    pub fn as_slice(&self) -> &[PortName] {
        &self.0
    }
}

impl TryFrom<Vec<PortName>> for MirroredPorts {
    type Error = ValueError;
    fn try_from(ports: Vec<PortName>) -> Result<Self, ValueError> {
        if !(1..=CAPTURE_PORTS_MAX).contains(&ports.len()) {
            let (max, value) = (CAPTURE_PORTS_MAX as u64, format!("{} ports", ports.len()));
            return Err(ValueError::OutOfRange { min: 1, max, value });
        }
        // A port that is named twice is copied once.
        let mut named = BTreeSet::new();
        Ok(Self(ports.into_iter().filter(|port| named.insert(port.clone())).collect()))
    }
}

impl From<MirroredPorts> for Vec<PortName> {
    fn from(MirroredPorts(ports): MirroredPorts) -> Self {
        ports
    }
}

impl FromStr for MirroredPorts {
    type Err = ValueError;
    /// Reads names with commas between them.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let ports = text.split(',').map(|name| name.trim().parse());
        ports.collect::<Result<Vec<_>, _>>()?.try_into()
    }
}

impl fmt::Display for MirroredPorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.0.iter().map(PortName::as_str).collect();
        f.write_str(&names.join(","))
    }
}

impl VlanMode {
    /// The ports that this port gets copies of; empty unless it is a mirror.
    pub fn mirrored(&self) -> &[PortName] {
        match self {
            Self::Mirror(ports) => ports.as_slice(),
            Self::Unset | Self::Access(_) | Self::Network(_) | Self::Trunk { .. } => &[],
        }
    }

    /// The VLANs of an interface: without a configured VLAN it is in [`Vid::DEFAULT`].
    #[must_use]
    pub fn of_vif(&self) -> Self {
        if *self == Self::Unset { Self::Access(Vid::DEFAULT) } else { self.clone() }
    }

    /// The port's network. Another network can have the same addresses.
    pub fn network(&self) -> Option<&NetworkName> {
        match self {
            Self::Network(name) => Some(name),
            Self::Unset | Self::Access(_) | Self::Trunk { .. } | Self::Mirror(_) => None,
        }
    }
}

impl fmt::Display for VlanMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Unset => "-".into(),
            Self::Access(vid) => vid.to_string(),
            Self::Network(name) => format!("network {name}"),
            Self::Mirror(ports) => format!("mirror {ports}"),
            Self::Trunk { allowed, native: None } => format!("trunk {allowed}"),
            Self::Trunk { allowed, native: Some(vid) } => format!("trunk {allowed} native {vid}"),
        };
        f.pad(&text)
    }
}
