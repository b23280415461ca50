//! `weir explain overlay`: the networks that span hosts, the other hosts that weir hears from, and the split of latency
//! budgets with one of them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_config::{NetworkName, PortName};
use weir_port_vxlan::Between;

/// The overlay at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OverlayExplanation {
    /// The overlay's port.
    pub name: PortName,
    /// This host's address in the underlay.
    #[schema(value_type = String)]
    pub local: IpAddr,
    /// The UDP port of all hosts.
    pub udp_port: u16,
    /// The MTU of guests in its networks.
    pub mtu: u16,
    /// The overlay's networks.
    pub networks: Vec<OverlayNetworkExplanation>,
}

/// A network of the overlay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OverlayNetworkExplanation {
    /// The network's name.
    #[schema(value_type = String)]
    pub name: NetworkName,
    /// The network's number on the wire.
    pub vni: u32,
    /// True if FRR provides the list of members.
    pub evpn: bool,
    /// The other hosts.
    pub hosts: Vec<HostHeard>,
}

/// Another host of a network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HostHeard {
    /// The host's address in the underlay.
    #[schema(value_type = String)]
    pub host: IpAddr,
    /// True if the host runs weir and has sent a message.
    pub has_weir: bool,
    /// Requests without an answer since the host was last heard, while frames were sent to it. A host without weir
    /// never answers.
    pub unanswered: u32,
    /// Stations of the network that are known to be on the host.
    pub stations: u32,
    /// IDs of `[group-ids]` that mean other groups on the host. Frames from there with such an ID count as those of no
    /// group.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disputed_ids: Vec<u16>,
    /// Seconds since one of these stations was heard; none if frames do not show it.
    pub heard_s: Option<u32>,
}

impl OverlayExplanation {
    /// Hosts where IDs mean other groups, with these IDs. A host is the same in all networks.
    pub fn disputed(&self) -> BTreeMap<IpAddr, Vec<u16>> {
        let hosts = self.networks.iter().flat_map(|network| &network.hosts);
        let disputed = hosts.filter(|host| !host.disputed_ids.is_empty());
        disputed.map(|host| (host.host, host.disputed_ids.clone())).collect()
    }
}

impl HostHeard {
    /// After this many requests without an answer, a host counts as unheard.
    const UNANSWERED_MIN: u32 = 3;

    /// True if nothing comes from the host any more although frames are sent to it. A host with weir would answer,
    /// and a host without weir has guests that would.
    #[must_use]
    pub fn is_unheard(&self) -> bool {
        self.unanswered >= Self::UNANSWERED_MIN && (self.has_weir || self.stations == 0)
    }

    /// True if nothing has come from the host so far.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.stations == 0 && !self.has_weir
    }
}

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
