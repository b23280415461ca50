//! The switch's knowledge of its ports: loops that block them, and groups of multicast behind them.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_config::PortName;

/// Counters of loop detection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LoopStats {
    /// Suspected loops for which probes were sent.
    pub suspected: u64,
    /// Loops that probes have confirmed. Each one blocked a port.
    pub found: u64,
}

/// A blocked port: frames that leave by it come back by another port, or the other way round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BlockStats {
    /// The port to which it is joined outside the switch; the port itself if its guest sends back the frames that it
    /// receives.
    pub with: PortName,
    /// The VLAN in which the loop was found, or 4096 plus a network's number.
    pub vlan: u16,
    /// Time since the port was blocked (s).
    pub seconds: f64,
    /// Time until weir probes the loop again (s).
    pub retry_s: f64,
    /// Probes of the loop since the port was blocked.
    pub tries: u64,
}

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
