//! The split of latency budgets with another host of the overlay.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_port_vxlan::Between;

/// The split of latency budgets with another host that runs weir. The fields with `there` hold what that host
/// reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HostExplanation {
    /// The host's address in the underlay.
    #[schema(value_type = String)]
    pub host: IpAddr,
    /// The time that a frame from that host can wait there, in nanoseconds. It counts as spent, and the rest of the
    /// interface's budget is left for this host.
    pub from_ns: u64,
    /// Frames for this host that left that host later than their share of the budget allows.
    pub left_late_there: u64,
    /// The time that a frame to that host can wait here, in nanoseconds; none until that host has reported it.
    pub to_ns: Option<u64>,
    /// The smallest budget of that host's guests, in nanoseconds.
    pub budget_there_ns: u64,
    /// Frames for that host that left this host later than their share of the budget allows.
    pub left_late_here: u64,
    /// Notifications of that host's guests that came later than their budgets allow, for frames from any host.
    pub told_late_there: u64,
}

impl From<Between> for HostExplanation {
    fn from(it: Between) -> Self {
        Self {
            host: it.host,
            from_ns: it.waited_ns,
            left_late_there: it.left_late_there,
            to_ns: it.share_ns,
            budget_there_ns: it.budget_ns,
            left_late_here: it.left_late_here,
            told_late_there: it.told_late_there,
        }
    }
}
