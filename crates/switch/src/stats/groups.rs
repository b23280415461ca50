//! Security groups, as commands and the API show them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_config::{GroupDefault, PortName};

/// A security group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GroupStats {
    /// The group's name.
    pub name: String,
    /// The action for connections to the group's interfaces that match no rule.
    pub default_in: GroupDefault,
    /// The action for connections from the group's interfaces that match no rule.
    pub default_out: GroupDefault,
    /// Connections that are allowed, such as `in tcp 80,443 from group:lb`.
    pub rules: Vec<String>,
    /// The interfaces in the group.
    pub vifs: Vec<PortName>,
}
