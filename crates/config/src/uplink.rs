//! `[uplink.NAME]`: the kinds of ports to the host or the outside, and the keys of such a port.

use serde::{Deserialize, Serialize};
use weir_limits::STREAM_MTU_MAX;

use super::error::{Fault, HEADER};
use super::filter::FilterRule;
use super::gateway::HostAddresses;
use super::keys::{Key, NEEDS_A_RESTART, Rows, keys};
use super::section::from_toml_string;
use super::switch::Program;
use super::values::{
    BondMode, BondUplinks, InterfaceName, LacpRate, Mtu, PortName, QueuePairs, SocketPath,
    TagProtocol, VlanMode, Weight, words,
};
use super::vlan::IN_PLACE_OF_VLAN;

/// The reason why keys of the device are fixed.
const DEVICE_IS_OPEN: &str = "the device is open; needs a restart";

words! {
    /// The kind of device behind an uplink.
    UplinkKind {
        /// A TAP interface, made if it does not exist (`IFF_MULTI_QUEUE` with several queues).
        #[default]
        Tap = "tap",
        /// An existing interface. Packet sockets share its frames by flow.
        AfPacket = "af_packet",
        /// An existing interface that weir has for itself, with an AF_XDP socket for each receive queue.
        AfXdp = "af_xdp",
        /// A stream socket that somebody else listens on, such as gvproxy's; each frame has its length in front.
        Stream = "stream",
        ;
        /// Several of these together, as one port. It is a table of its own, `[bond.NAME]`.
        Bond = "bond",
    }
}

from_toml_string! {
    UplinkKind = UplinkKind::EXPECTED;
}

/// The device behind an uplink, as the rest of weir distinguishes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behind {
    /// An interface of the host that weir makes if it does not exist.
    Made,
    /// An existing interface of the host, whose interrupts weir can set.
    Card,
    /// A socket.
    Socket,
    /// Other uplinks.
    Uplinks,
}

impl UplinkKind {
    /// The device behind an uplink of this kind.
    pub fn behind(self) -> Behind {
        match self {
            Self::Tap => Behind::Made,
            Self::AfPacket | Self::AfXdp => Behind::Card,
            Self::Stream => Behind::Socket,
            Self::Bond => Behind::Uplinks,
        }
    }

    /// True if weir makes its interface of the host.
    pub fn is_made(self) -> bool {
        self.behind() == Behind::Made
    }

    /// True if it uses an existing interface of the host, whose interrupts weir can set.
    pub fn has_card(self) -> bool {
        self.behind() == Behind::Card
    }

    /// True if it has an interface of the host.
    pub fn has_interface(self) -> bool {
        self.is_made() || self.has_card()
    }

    /// True if weir has the card's receive queues for itself. Another weir cannot take them over.
    pub fn has_cards_queues(self) -> bool {
        self == Self::AfXdp
    }
}

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
        /// The bridge of the host whose port a TAP becomes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bridge: Option<InterfaceName> = None, [fixed(DEVICE_IS_OPEN)];
        /// The host's addresses on a TAP, each with its subnet.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        address: Option<HostAddresses> = None, [fixed(DEVICE_IS_OPEN)];
        /// The program that runs when the uplink has come up, in place of the switch's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        on_up: Option<Program> = None, [fixed(NEEDS_A_RESTART)];
        /// The program that runs when the uplink has gone down, in place of the switch's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        on_down: Option<Program> = None, [fixed(NEEDS_A_RESTART)];
        /// The socket of the other end, of a stream.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        path: Option<SocketPath> = None, [fixed(DEVICE_IS_OPEN)];
        /// Whether guests reach the host's loopback by gvproxy, and gvproxy's API.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        host_access: Option<bool> = None, [fixed(DEVICE_IS_OPEN)];
        /// The port to the weir below, in a guest.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent_port: Option<SocketPath> = None, [fixed(DEVICE_IS_OPEN)];
        /// Its queues.
        queues: QueuePairs = QueuePairs::default(), [fixed(DEVICE_IS_OPEN)];
        /// The VLAN of an access port; another kind of port has a key in its place.
        vlan: VlanMode = VlanMode::Unset, [beside(IN_PLACE_OF_VLAN)];
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
        /// The uplinks of a bond, the preferred one first.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        uplinks: Option<BondUplinks> = None, [fixed(DEVICE_IS_OPEN)];
        /// Which uplinks of a bond carry frames.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mode: Option<BondMode> = None, [];
        /// How often the other end is to speak LACP.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lacp_rate: Option<LacpRate> = None, [];
    }
}

impl UplinkConfig {
    /// An uplink with every default.
    pub fn new(name: PortName, kind: UplinkKind, interface: InterfaceName) -> Self {
        Self { kind, interface, ..Self::defaults(name) }
    }

    /// Each key of an uplink or a bond.
    pub fn keys() -> impl Iterator<Item = Key> {
        Self::template().rows().into_iter().flat_map(|(key, _)| key.with_others())
    }

    /// An uplink that still needs a name and an interface.
    pub(super) fn template() -> Self {
        Self::defaults("new".parse().expect("a constant that is a valid name"))
    }

    /// The keys that the table of an uplink of this kind may have.
    pub(super) fn keys_of(kind: UplinkKind) -> fn(&Key) -> bool {
        match kind {
            UplinkKind::Bond => |key| {
                matches!(
                    key.name,
                    "uplinks"
                        | "mode"
                        | "lacp_rate"
                        | "vlan"
                        | "tag_protocol"
                        | "filter"
                        | "weight"
                )
            },
            _ => |key| !matches!(key.name, "uplinks" | "mode" | "lacp_rate"),
        }
    }

    /// The values that a table may leave out. Each table has to name its kind.
    pub(super) fn base() -> Rows {
        Self::template().rows().into_iter().filter(|(key, _)| key.name != "kind").collect()
    }

    /// The keys that its table may have.
    pub(super) fn own_rows(&self) -> Rows {
        let is_own = Self::keys_of(self.kind);
        self.rows().into_iter().filter(|(key, _)| is_own(key)).collect()
    }

    /// True if it is a bond of other uplinks.
    pub fn is_bond(&self) -> bool {
        self.kind == UplinkKind::Bond
    }

    /// The uplinks of a bond; none of another uplink.
    pub fn members(&self) -> &[PortName] {
        self.uplinks.as_ref().map_or(&[], BondUplinks::as_slice)
    }

    /// The kind of its table in the file.
    pub(crate) fn table_kind(&self) -> &'static str {
        if self.is_bond() { "bond" } else { "uplink" }
    }

    /// Its table in the file.
    pub fn table(&self) -> String {
        format!("{}.{}", self.table_kind(), self.name)
    }

    /// A key that an uplink of a bond leaves to the bond, if it has one.
    pub(super) fn key_of_a_whole_port(&self) -> Option<&'static str> {
        let has = [
            ("vlan", self.vlan != VlanMode::Unset),
            ("tag_protocol", !self.tag_protocol.is_default()),
            ("filter", !self.filter.is_empty()),
            ("weight", self.weight.is_some()),
        ];
        has.into_iter().find(|(_, has)| *has).map(|(key, _)| key)
    }

    /// The host's interface behind the uplink, a stream's socket, or the uplinks of a bond.
    pub fn device(&self) -> String {
        match (&self.path, self.kind.behind()) {
            (Some(path), Behind::Socket) => path.to_string(),
            (_, Behind::Uplinks) => {
                self.uplinks.as_ref().map_or(String::new(), ToString::to_string)
            }
            _ => self.interface.to_string(),
        }
    }

    /// The MTU to which its frames are held. A socket has none of its own.
    pub fn mtu_held(&self) -> Option<Mtu> {
        match self.kind.behind() {
            Behind::Socket => Some(self.mtu()),
            _ => self.mtu,
        }
    }

    /// Keys that do not fit its kind.
    pub(super) fn kind_faults(&self) -> Vec<Fault> {
        let fault = |key, reason: &str, help: &str| Fault {
            keys: [key, HEADER],
            reason: reason.to_owned(),
            help: help.to_owned(),
        };
        let mut faults = Vec::new();
        if self.kind != UplinkKind::Tap {
            let help = "leave it out, or say `kind = \"tap\"`";
            if self.bridge.is_some() {
                faults.push(fault("bridge", "only a TAP has a `bridge`", help));
            }
            if self.address.is_some() {
                faults.push(fault("address", "only a TAP has an `address`", help));
            }
        } else if self.bridge.is_some() && self.address.is_some() {
            let reason = "the port of a bridge has no address of its own";
            let help =
                "give the bridge the address, which is not weir's to do, or leave `bridge` out";
            faults.push(fault("address", reason, help));
        }
        if self.agent_port.is_some() && !self.kind.has_card() {
            let help = "leave it out, or say `kind = \"af_packet\"` or `\"af_xdp\"`";
            faults.push(fault(
                "agent_port",
                "only an uplink with a card has an `agent_port`",
                help,
            ));
        }
        if self.is_bond() {
            if self.uplinks.is_none() {
                let help = "name them, such as `uplinks = [\"eth0\", \"eth1\"]`";
                faults.push(fault("uplinks", "a bond needs its `uplinks`", help));
            }
            if self.lacp_rate.is_some() && self.mode != Some(BondMode::Lacp) {
                let help = "leave it out, or say `mode = \"lacp\"`";
                faults.push(fault("lacp_rate", "only `mode = \"lacp\"` has a `lacp_rate`", help));
            }
            return faults;
        }
        if self.kind != UplinkKind::Stream {
            let help = "leave it out, or say `kind = \"stream\"`";
            if self.path.is_some() {
                faults.push(fault("path", "only a stream has a `path`", help));
            }
            if self.host_access.is_some() {
                faults.push(fault("host_access", "only a stream has `host_access`", help));
            }
            return faults;
        }
        if self.path.is_none() {
            let help =
                "name the socket that the other end listens on: `path = \"/run/weir/out.sock\"`";
            faults.push(fault("path", "a stream needs a `path`", help));
        }
        if self.interface != Self::template().interface {
            let help = "leave it out: `path` says where a stream goes";
            faults.push(fault("name", "a stream has no interface", help));
        }
        if self.queues.get() != 1 {
            faults.push(fault("queues", "a stream is one queue", "leave it out"));
        }
        if self.mtu().get() > STREAM_MTU_MAX {
            let reason = format!("a stream has frames of an MTU up to {STREAM_MTU_MAX}");
            faults.push(fault("mtu", &reason, "choose a smaller `mtu`"));
        }
        faults
    }

    /// The port's MTU: the configured one, or Ethernet's 1500.
    pub fn mtu(&self) -> Mtu {
        self.mtu.unwrap_or(Mtu::ETHERNET)
    }
}

#[cfg(test)]
pub(super) mod examples {
    use super::UplinkKind;

    /// A table of this kind of uplink, with the keys that only this kind has, and the other tables that it needs.
    pub(crate) fn of(kind: UplinkKind) -> (&'static str, &'static str) {
        match kind {
            UplinkKind::Tap => (
                "[uplink.u]\nkind = \"tap\"\nname = \"weir0\"\nqueues = 2\naddress = [\"10.9.0.1/24\", \"fd00:9::1/64\"]\n",
                "",
            ),
            UplinkKind::AfPacket => (
                "[uplink.u]\nkind = \"af_packet\"\nname = \"eth0\"\ntrunk = [10, 20]\nnative = 10\n",
                "",
            ),
            UplinkKind::AfXdp => (
                "[uplink.u]\nkind = \"af_xdp\"\nname = \"eth0\"\nagent_port = \"/dev/virtio-ports/org.weir.agent.0\"\nrss_rebalance = false\nweight = 3\n",
                "",
            ),
            UplinkKind::Stream => (
                "[uplink.u]\nkind = \"stream\"\npath = \"/run/weir/out.sock\"\nhost_access = true\nmtu = 1400\n",
                "",
            ),
            UplinkKind::Bond => (
                "[bond.u]\nuplinks = [\"e1\", \"e2\"]\nmode = \"balance\"\nvlan = 7\n",
                "[uplink.e1]\nkind = \"tap\"\nname = \"e1\"\n[uplink.e2]\nkind = \"tap\"\nname = \"e2\"\n",
            ),
        }
    }
}
