//! Security groups, as commands and the API show them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_config::{GroupDefault, PortName, RuleDirection};

/// A security group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GroupStats {
    /// The group's name.
    pub name: String,
    /// The action for connections to the group's interfaces that match no rule.
    pub default_in: GroupDefault,
    /// The action for connections from the group's interfaces that match no rule.
    pub default_out: GroupDefault,
    /// Refusals by a direction that the group closes are logged.
    #[serde(default)]
    pub log: bool,
    /// Connections that are allowed, such as `in tcp 80,443 from group:lb`.
    pub rules: Vec<String>,
    /// The interfaces in the group.
    pub vifs: Vec<PortName>,
}

/// A connection of an interface in groups.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConnectionStats {
    /// The protocol, by the word or number of a rule.
    pub protocol: String,
    /// The VLAN's tag, if the interface has tags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// The guest's address, with its port if the protocol has ports.
    pub own: String,
    /// The address of the other end, with its port.
    pub peer: String,
    /// The identifier of ICMP queries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identifier: Option<u16>,
    /// The direction in which it was opened, seen from the guest.
    pub opened: RuleDirection,
    /// Its state in a word, such as `established`.
    pub state: String,
    /// Milliseconds since its last packet, in steps of 17.
    pub idle_ms: u64,
}

/// Connections of an interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConnectionPage {
    /// The interface.
    pub vif: PortName,
    /// At most 1,000 connections, in no particular order.
    pub connections: Vec<ConnectionStats>,
    /// The `from` of the next page, if there may be more.
    pub next: Option<u32>,
}
