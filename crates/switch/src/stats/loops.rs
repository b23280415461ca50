//! Ports that are blocked because of a loop.

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
