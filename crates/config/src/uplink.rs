//! `[uplink.NAME]`: the keys of a port to the host or the outside.

use serde::{Deserialize, Serialize};

use super::filter::FilterRule;
use super::keys::keys;
use super::values::{
    InterfaceName, Mtu, PortName, QueuePairs, TagProtocol, UplinkKind, VlanMode, Weight,
};

/// Why keys of the device are fixed.
const DEVICE_IS_OPEN: &str = "the device is open; needs a restart";

keys! {
    /// `[uplink.NAME]`: a port to the host or the outside.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct UplinkConfig(
        /// The port's name.
        name: PortName
    ) {
        /// What stands behind the port.
        kind: UplinkKind = UplinkKind::default(), [fixed(DEVICE_IS_OPEN)];
        /// The interface of the host.
        interface: InterfaceName = "none".parse().expect("a constant that is a valid name"),
            [named("name"), fixed(DEVICE_IS_OPEN)];
        /// Its queues.
        queues: QueuePairs = QueuePairs::default(), [fixed(DEVICE_IS_OPEN)];
        /// VLANs of the port.
        vlan: VlanMode = VlanMode::Unset, [];
        /// What kind of tags are the port's own.
        #[serde(default, skip_serializing_if = "TagProtocol::is_default")]
        tag_protocol: TagProtocol = TagProtocol::default(), [];
        /// The configured MTU; [`UplinkConfig::mtu`] is the one in use.
        mtu: Option<Mtu> = None, [fixed(DEVICE_IS_OPEN)];
        /// Which frames it may send and receive.
        #[serde(
            default,
            skip_serializing_if = "Vec::is_empty",
            deserialize_with = "super::filter::rules_of_a_port"
        )]
        filter: Vec<FilterRule> = Vec::new(), [];
        /// Whether entries of the indirection table move between the interface's queues by load.
        rss_rebalance: bool = true, [];
        /// Its part of a worker's time, in proportion to others'; 1 where nothing is said.
        weight: Option<Weight> = None, [];
    }
}

impl UplinkConfig {
    /// An uplink with every default.
    pub fn new(name: PortName, kind: UplinkKind, interface: InterfaceName) -> Self {
        Self { kind, interface, ..Self::defaults(name) }
    }

    /// An uplink that is to get a name and an interface yet.
    pub(super) fn template() -> Self {
        Self::defaults("new".parse().expect("a constant that is a valid name"))
    }

    /// The port's MTU: the configured one, or Ethernet's 1500.
    pub fn mtu(&self) -> Mtu {
        self.mtu.unwrap_or(Mtu::ETHERNET)
    }
}
