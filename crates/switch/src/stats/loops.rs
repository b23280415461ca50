//! Ports that are blocked for a loop.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_config::PortName;

/// What the look for loops has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LoopStats {
    /// Suspicions that probes were sent for.
    pub suspected: u64,
    /// Loops that probes have shown, each of which has blocked a port.
    pub found: u64,
}

/// A port that is blocked, since what leaves by it or another port comes in by the other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BlockStats {
    /// The port with which it is joined outside; itself, if its guest sends back what it gets.
    pub with: PortName,
    /// The VLAN in which that was found, or a network's number and 4096.
    pub vlan: u16,
    /// For how long it has been blocked (s).
    pub seconds: f64,
    /// When it is tried whether the loop is still there (s from now).
    pub retry_s: f64,
    /// How often that was tried.
    pub tries: u64,
}
