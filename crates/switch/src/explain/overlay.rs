//! `weir explain overlay`: the networks that span hosts, and whom of these hosts weir hears.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_config::{NetworkName, PortName};

/// The overlay at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OverlayExplanation {
    /// Its port.
    pub name: PortName,
    /// This host's address in the underlay.
    #[schema(value_type = String)]
    pub local: IpAddr,
    /// The UDP port of all hosts.
    pub udp_port: u16,
    /// The MTU of guests in its networks.
    pub mtu: u16,
    /// Its networks.
    pub networks: Vec<OverlayNetworkExplanation>,
}

/// A network of the overlay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OverlayNetworkExplanation {
    /// Its name.
    #[schema(value_type = String)]
    pub name: NetworkName,
    /// Its number on the wire.
    pub vni: u32,
    /// FRR says who is a member.
    pub evpn: bool,
    /// The other hosts.
    pub hosts: Vec<HostHeard>,
}

/// Another host of a network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HostHeard {
    /// Its address in the underlay.
    #[schema(value_type = String)]
    pub host: IpAddr,
    /// It has a weir, which has said something.
    pub has_weir: bool,
    /// How often it was asked since, while frames went there, and said nothing. A host without a weir never answers.
    pub unanswered: u32,
    /// Stations of the network that are known to be at it.
    pub stations: u32,
    /// Seconds since one of them was heard; none where frames say nothing of it.
    pub heard_s: Option<u32>,
}

impl HostHeard {
    /// A host that is asked so often and says nothing is not heard.
    const UNANSWERED_MIN: u32 = 3;

    /// Nothing comes from there any more, though frames go there: a weir answers, and who has none has guests that do.
    #[must_use]
    pub fn is_unheard(&self) -> bool {
        self.unanswered >= Self::UNANSWERED_MIN && (self.has_weir || self.stations == 0)
    }

    /// Nothing has come from there so far.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.stations == 0 && !self.has_weir
    }
}
