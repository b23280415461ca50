//! Security groups, as they are shown.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_config::{GroupDefault, PortName};

/// A security group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GroupStats {
    /// Its name.
    pub name: String,
    /// What becomes of connections to its interfaces that no rule allows.
    pub default_in: GroupDefault,
    /// And of those from them.
    pub default_out: GroupDefault,
    /// Connections that are allowed, such as `in tcp 80,443 from group:lb`.
    pub rules: Vec<String>,
    /// Interfaces that are in it.
    pub vifs: Vec<PortName>,
}
