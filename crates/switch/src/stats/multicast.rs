//! Multicast groups, as commands and the API show them.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_config::PortName;

/// Multicast snooping in a VLAN, for one IP version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MulticastStats {
    /// The VLAN, or 4096 plus a network's number.
    pub vlan: u16,
    /// The IP version: 4 or 6.
    pub ip: u8,
    /// The querier's address; without one all groups are flooded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub querier: Option<IpAddr>,
    /// The port behind which the querier is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub querier_port: Option<PortName>,
    /// Memberships, in the order of groups: as many as an answer has room for.
    #[serde(default)]
    pub members: Vec<MemberStats>,
    /// Ports that get all groups, because they report more than they may.
    #[serde(default)]
    pub over: Vec<PortName>,
    /// The number of memberships and of such ports beyond those that the answer shows.
    #[serde(default)]
    pub unshown: u64,
}

/// A port that is a member of a multicast group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemberStats {
    /// The group.
    #[schema(value_type = String)]
    pub group: IpAddr,
    /// The port.
    pub port: PortName,
    /// Seconds until the membership ends without another report.
    pub left_s: u32,
}
