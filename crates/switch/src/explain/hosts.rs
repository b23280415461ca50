//! What holds between this host and another one of the overlay.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_port_vxlan::Between;

/// How latency budgets are split with another host that has a weir. It says for itself what is `there`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HostExplanation {
    /// Its address in the underlay.
    #[schema(value_type = String)]
    pub host: IpAddr,
    /// How long a frame from there may wait there, and counts as having waited, in nanoseconds. The interface's budget
    /// less this is left here.
    pub from_ns: u64,
    /// Frames that left there for this host later than that.
    pub left_late_there: u64,
    /// How long a frame to there may wait here, in nanoseconds; none until it has said so.
    pub to_ns: Option<u64>,
    /// The smallest budget of its guests, in nanoseconds.
    pub budget_there_ns: u64,
    /// Frames that left here for it later than they may.
    pub left_late_here: u64,
    /// How often those guests were notified later than their budget allows, wherever frames came from.
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
