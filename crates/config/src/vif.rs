//! `[vif.NAME]`: the keys of a guest's interface.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_engine::{Rate, StormLimit};
use weir_limits::{STORM_BURST_MIN, STORM_BURST_NS};

use super::calls::Moderation;
use super::filter::FilterRule;
use super::group::VifGroups;
use super::guard::{GuardChanges, Guarding};
use super::keys::{Alters, Change, Key, keys};
use super::sharing::{Sharing, SharingChanges};
use super::values::{
    ContainerBytes, GroupName, LatencyBudget, MacAddress, MemoryMax, Mtu, Owner, PacketRate,
    PortName, QueuePairs, RingSize, RxFrames, RxUsecs, SocketMode, SocketPath, SocketRole,
    TagProtocol, TemplateName, UserName, VlanMode,
};
use super::vlan::IN_PLACE_OF_VLAN;

/// The reason why keys of the socket are fixed.
const SOCKET_EXISTS: &str =
    "the socket exists; `weir vif del NAME` and a reload disconnect its guest";
/// The reason why a template lacks a key.
const EACH_ITS_OWN: &str = "each interface has its own";
/// The time when a virtual machine gets the rings that weir asks for.
const WITH_ARGUMENTS: &str = "when its VM starts with new arguments";
/// The reason why a Xen guest has no ring of another size.
const ONE_PAGE: &str = "a ring of a Xen guest is one page";
/// The thing that a Xen guest has in place of a socket.
const IN_XENSTORE: &str = "a Xen guest is met in xenstore";

keys! {
    /// `[vif.NAME]`: a guest's interface.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    #[serde(deny_unknown_fields)]
    pub struct VifConfig(
        /// The port's name.
        name: PortName
    ) {
        /// The vhost-user socket.
        socket: SocketPath = "/".parse().expect("a constant that is a valid path"),
            [fixed(SOCKET_EXISTS), not_of_xen(IN_XENSTORE), not_of_templates(EACH_ITS_OWN)];
        /// The template of its keys, except for those that it has itself.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        template: Option<TemplateName> = None, [
            not_of_xen("the keys of [xen] are those of all Xen guests"),
            not_of_templates("an interface has one template")
        ];
        /// Which side of the socket listens.
        mode: SocketRole = SocketRole::default(), [fixed(SOCKET_EXISTS), not_of_xen(IN_XENSTORE)];
        /// The permissions of the socket's file; by default for weir's own user only.
        socket_mode: Option<SocketMode> = None, [fixed(SOCKET_EXISTS), not_of_xen(IN_XENSTORE)];
        /// The user who owns the socket's file; by default the one who started weir.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        socket_user: Option<UserName> = None, [fixed(SOCKET_EXISTS), not_of_xen(IN_XENSTORE)];
        /// The group to which the socket's file belongs; by default the switch's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        socket_group: Option<GroupName> = None, [fixed(SOCKET_EXISTS), not_of_xen(IN_XENSTORE)];
        /// The most queue pairs that the guest may use.
        queues: QueuePairs => Option<QueuePairs> = QueuePairs::default(),
            [later("when its front end connects again")];
        /// The entries of each ring on which the guest receives.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rx_ring: Option<RingSize> => Change<RingSize> = None,
            [later(WITH_ARGUMENTS), not_of_xen(ONE_PAGE)];
        /// The entries of each ring from which the guest sends.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tx_ring: Option<RingSize> => Change<RingSize> = None,
            [later(WITH_ARGUMENTS), not_of_xen(ONE_PAGE)];
        /// The longest time that weir may hold a frame; by default the switch's.
        latency_budget: Option<LatencyBudget> => Change<LatencyBudget> = None, [];
        /// The policy that decides when the guest is interrupted.
        moderation: Moderation => Option<Moderation> = Moderation::default(), [];
        /// The time for which an interrupt is held, by policies with a fixed hold.
        rx_usecs: Option<RxUsecs> => Change<RxUsecs> = None, [];
        /// The number of frames that ends a hold.
        rx_frames: Option<RxFrames> => Change<RxFrames> = None, [];
        /// The bytes of frames that fill a container, by policies that aggregate.
        container_bytes: Option<ContainerBytes> => Change<ContainerBytes> = None, [];
        /// The socket for the guest's agent; interfaces of one VM name the same.
        agent: Option<SocketPath> = None, [
            fixed(SOCKET_EXISTS),
            not_of_templates("each virtual machine has its own"),
            not_of_xen("name the channel of the guest's configuration: agent_channel = \"weir.agent\"")
        ];
        /// The guest's MAC address, and then its only source address.
        mac: Option<MacAddress> => Change<MacAddress> = None, [
            not_of_templates(EACH_ITS_OWN),
            not_of_xen("the guest's configuration gives each its own: vif = ['mac=00:16:3e:00:00:01,...']")
        ];
        /// The program that keeps it, such as `libvirt:UUID`.
        by: Option<Owner> = None, [
            fixed("it belongs to whom it was added by"),
            not_of_templates("an owner adds each of its interfaces: `weir vif add NAME by=...`"),
            not_of_xen("the toolstack keeps a Xen guest's interfaces")
        ];
        /// Whether the guest is held to one source MAC address.
        mac_check: bool => Option<bool> = true, [];
        /// Whether it reaches no other isolated interface; by default its network's.
        isolated: Option<bool> => Change<bool> = None, [not_of_copies()];
        /// Whether a multicast router may be in the guest.
        #[serde(default)]
        multicast_router: bool => Option<bool> = false, [];
        /// Whether flows move from busy receive queues to idle ones.
        rss_rebalance: bool => Option<bool> = true, [];
        /// The VLAN of an access port; another kind of port has a key in its place.
        vlan: VlanMode => Option<VlanMode> = VlanMode::Unset, [beside(IN_PLACE_OF_VLAN)];
        /// The kind of tags that are the port's own.
        #[serde(default, skip_serializing_if = "TagProtocol::is_default")]
        tag_protocol: TagProtocol => Option<TagProtocol> = TagProtocol::default(), [];
        /// The MTU, which the guest is told; longer frames are dropped.
        mtu: Option<Mtu> => Change<Mtu> = None, [
            later("the guest is told when its VM starts with new arguments"),
            not_of_copies(),
            not_of_xen("the guest's configuration says it: vif = ['mtu=9000,...']")
        ];
        /// Whether `VIRTIO_F_ACCESS_PLATFORM` is offered.
        #[serde(default)]
        access_platform: bool => Option<bool> = false,
            [later("when its VM starts anew"), not_of_xen("it is a feature of virtio")];
        /// The memory that its front end may share.
        #[serde(default = "memory_max_default")]
        memory_max: MemoryMax => Option<MemoryMax> = MemoryMax::DEFAULT, [
            later("when its front end shares memory again"),
            not_of_xen("a Xen guest grants its pages one by one")
        ];
        /// The filters of the frames that it sends and receives.
        #[serde(
            default,
            skip_serializing_if = "Vec::is_empty",
            deserialize_with = "super::filter::rules_of_a_port"
        )]
        filter: Vec<FilterRule> = Vec::new(), [not_of_copies()];
        /// The security groups, whose rules say which connections it may have.
        #[serde(default, skip_serializing_if = "VifGroups::is_empty")]
        groups: VifGroups => Change<VifGroups> = VifGroups::default(), [not_of_copies()];
        /// How much of what it sends may be flooded.
        #[serde(default)]
        storm: StormControl => StormChanges = StormControl::default(), [];
        /// From which addresses it may send.
        #[serde(default)]
        guarding: Guarding => GuardChanges = Guarding::default(), [];
        /// What the interface is entitled to of the workers, and how fast it may send.
        #[serde(default)]
        sharing: Sharing => SharingChanges = Sharing::default(), [];
    }

    /// The keys that `weir vif set` changes while the interface is in use.
    #[derive(Debug, Clone)]
    pub struct VifChanges;
}

fn memory_max_default() -> MemoryMax {
    MemoryMax::DEFAULT
}

impl VifConfig {
    /// Each key of an interface.
    pub fn keys() -> impl Iterator<Item = Key> {
        Self::template().rows().into_iter().flat_map(|(key, _)| key.with_others())
    }

    /// An interface that still needs a name and a socket.
    pub(super) fn template() -> Self {
        Self::defaults("new".parse().expect("a constant that is a valid name"))
    }

    /// An interface with every default.
    pub fn new(name: PortName, socket: SocketPath) -> Self {
        Self { socket, ..Self::defaults(name) }
    }

    /// Sets the moderation, and clears the settings that it ignores.
    pub(super) fn moderate(&mut self, moderation: Moderation) {
        self.moderation = moderation;
        self.rx_usecs = self.rx_usecs.filter(|_| moderation.takes_rx_usecs());
        self.rx_frames = self.rx_frames.filter(|_| moderation.takes_rx_frames());
        let takes_container_bytes = moderation.takes_container_bytes();
        self.container_bytes = self.container_bytes.filter(|_| takes_container_bytes);
    }

    /// The port's MTU: the configured one, or Ethernet's 1500.
    pub fn mtu(&self) -> Mtu {
        self.mtu.unwrap_or(Mtu::ETHERNET)
    }

    /// The number of entries for each receive ring and for each transmit ring that the virtual
    /// machine is asked for.
    pub fn ring_sizes(&self) -> [RingSize; 2] {
        [self.rx_ring, self.tx_ring].map(|size| size.unwrap_or(RingSize::DEFAULT))
    }

    /// The configured MAC address, or else the one derived from the name.
    pub fn mac_or_derived(&self) -> MacAddress {
        self.mac.unwrap_or_else(|| MacAddress::derived_from(&self.name))
    }
}

impl VifChanges {
    /// Each key that `weir vif set` changes.
    pub fn keys() -> impl Iterator<Item = Key> {
        <Self as Alters<VifConfig>>::keys(Key::TABLE).into_iter().flat_map(Key::with_others)
    }

    /// Settings of a replaced policy that the new one ignores go back to their defaults.
    fn settle(&mut self, vif: &mut VifConfig) {
        if let Some(moderation) = self.moderation {
            vif.moderate(moderation);
        }
    }
}

keys! {
    /// The most frames per second from the guest that weir floods.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct StormControl {
        /// The broadcasts that are flooded in a second.
        broadcasts_per_second: Option<PacketRate> => Change<PacketRate> = None, [];
        /// The multicasts that are flooded in a second.
        multicasts_per_second: Option<PacketRate> => Change<PacketRate> = None, [];
        /// The frames to unknown stations that are flooded in a second.
        unknown_per_second: Option<PacketRate> => Change<PacketRate> = None, [];
    }

    /// Changes of storm control by `weir vif set`.
    #[derive(Debug, Clone, Copy)]
    pub struct StormChanges;
}

impl StormControl {
    /// The limits for the engine.
    pub fn limit(&self) -> StormLimit {
        let rate = |rate: PacketRate| {
            let per_s = u64::from(rate.get());
            let burst = (per_s * (STORM_BURST_NS / 1_000_000) / 1000).max(STORM_BURST_MIN);
            Rate { per_s, burst }
        };
        StormLimit {
            broadcast: self.broadcasts_per_second.map(rate),
            multicast: self.multicasts_per_second.map(rate),
            unknown: self.unknown_per_second.map(rate),
        }
    }
}

impl StormChanges {
    /// No limit depends on another.
    fn settle(&mut self, _: &mut StormControl) {}
}
