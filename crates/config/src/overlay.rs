//! `[overlay]` and `[network.NAME]`: the networks of tenants, and the other hosts in them.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::ops::Range;

use ipnet::IpNet;
use toml::Spanned;
use toml::de::DeValue;
use weir_fabric::Vid as FabricVid;
use weir_limits as limits;

use super::error::Problem;
use super::gateway::{self, FixedAddress, GatewayConfig, GatewayKeys};
use super::group::RuleSide;
use super::keys::{Key, NEEDS_A_RESTART, Rows, Value, keys};
use super::section::{Fault, FromToml, Located, Section, each, missing, report_repeated};
use super::suggest;
use super::values::{
    HostAddress, InterfaceName, Mtu, NetworkName, OverlayDscp, PacketRate, PortName, QueuePairs,
    UdpPort, ValueError, Vid, VlanMode, Vni,
};
use super::{UplinkConfig, VifConfig};

keys! {
    /// `[overlay]`: the tunnels between hosts.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct OverlayConfig {
        /// This host's address in the underlay.
        local: HostAddress = "192.0.2.1".parse().expect("a constant that is a valid address"),
            [fixed(NEEDS_A_RESTART)];
        /// The only interface of the underlay, if one is configured.
        interface: Option<InterfaceName> = None, [fixed(NEEDS_A_RESTART)];
        /// The UDP port of all hosts.
        port: UdpPort = UdpPort::VXLAN, [fixed(NEEDS_A_RESTART)];
        /// The default MTU of guests in networks of the overlay.
        mtu: Mtu = Mtu::within_ethernet(limits::OVERLAY_OVERHEAD_V4), [fixed(NEEDS_A_RESTART)];
        /// The number of sockets, among which the kernel distributes received flows.
        queues: QueuePairs = QueuePairs::default(), [fixed(NEEDS_A_RESTART)];
        /// The DSCP of the datagrams.
        dscp: OverlayDscp = OverlayDscp::default(), [fixed(NEEDS_A_RESTART)];
        /// Whether networks without peers learn their stations and hosts from FRR, by BGP EVPN.
        evpn: bool = false, [fixed(NEEDS_A_RESTART)];
        /// The hosts whose frames, and this host's to them, have the ID of their sender's groups (`[group-ids]`).
        gbp: GbpPeers = GbpPeers::None, [fixed(NEEDS_A_RESTART)];
    }
}

impl OverlayConfig {
    /// The name of the overlay's port.
    pub const PORT_NAME: &str = "overlay";

    fn mtu_default(local: HostAddress) -> Mtu {
        Mtu::within_ethernet(match local.get() {
            IpAddr::V4(_) => limits::OVERLAY_OVERHEAD_V4,
            IpAddr::V6(_) => limits::OVERLAY_OVERHEAD_V6,
        })
    }
}

keys! {
    /// The keys of `[network.NAME]`, as in the file.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct NetworkKeys {
        /// The VLAN that the network is.
        vlan: Option<Vid> = None, [fixed(NEEDS_A_RESTART)];
        /// The VXLAN network identifier, of a network that spans hosts.
        vni: Option<Vni> = None, [fixed(NEEDS_A_RESTART)];
        /// The other hosts that are members.
        peers: Option<Peers> = None, [fixed(NEEDS_A_RESTART)];
        /// How many packets a second go to all peers.
        flood_per_second: Option<PacketRate> = None, [fixed(NEEDS_A_RESTART)];
        /// Whether weir answers for stations behind other hosts, with EVPN.
        neigh_suppress: Option<bool> = None, [fixed(NEEDS_A_RESTART)];
        /// Whether the network's interfaces are isolated by default.
        isolated: Option<bool> = None, [fixed(NEEDS_A_RESTART)];
        /// Whether frames for multicast groups go to their members only.
        multicast_snooping: Option<bool> = None, [fixed(NEEDS_A_RESTART)];
        /// The services of weir for the network's guests.
        gateway: GatewayKeys = GatewayKeys::default(), [];
    }
}

/// Hosts, by their addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GbpPeers {
    /// No host.
    None,
    /// All hosts.
    All,
    /// The hosts with an address in one of these networks.
    Some(Vec<IpNet>),
}

impl GbpPeers {
    /// True if the host is one of them.
    pub fn has(&self, host: IpAddr) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::Some(nets) => nets.iter().any(|net| net.contains(&host)),
        }
    }
}

impl fmt::Display for GbpPeers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("false"),
            Self::All => f.write_str("true"),
            Self::Some(nets) => {
                let texts: Vec<_> =
                    nets.iter().map(|net| RuleSide::Net(*net).to_string()).collect();
                f.write_str(&texts.join(", "))
            }
        }
    }
}

impl FromToml for GbpPeers {
    fn from_toml(value: &Spanned<DeValue<'_>>) -> Result<Self, Fault> {
        let net = |item: &Spanned<DeValue<'_>>| match RuleSide::from_toml(item)? {
            RuleSide::Net(net) => Ok(net),
            RuleSide::Any | RuleSide::Group(_) => Err(Fault::new(
                item,
                ValueError::Quantity {
                    value: item.get_ref().as_str().unwrap_or_default().into(),
                    expected: "a host's address, or a prefix of hosts",
                },
            )),
        };
        match value.get_ref() {
            DeValue::Boolean(false) => Ok(Self::None),
            DeValue::Boolean(true) => Ok(Self::All),
            DeValue::Array(items) if items.len() > limits::OVERLAY_PEERS_MAX => {
                let (min, max) = (0, limits::OVERLAY_PEERS_MAX as u64);
                let value_is = format!("{} hosts", items.len());
                Err(Fault::new(value, ValueError::OutOfRange { min, max, value: value_is }))
            }
            DeValue::Array(items) if items.is_empty() => Ok(Self::None),
            DeValue::Array(items) => each(items.iter().map(net)).map(Self::Some),
            _ => Err(Fault::wrong_type(
                value,
                "true, false, or hosts in brackets, such as [\"192.0.2.2\"]",
            )),
        }
    }
}

/// The other hosts of a network, each with its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Peers(Vec<Located<HostAddress>>);

impl fmt::Display for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<_> = self.0.iter().map(|peer| peer.value.to_string()).collect();
        f.write_str(&texts.join(", "))
    }
}

impl FromToml for Peers {
    fn from_toml(value: &Spanned<DeValue<'_>>) -> Result<Self, Fault> {
        let DeValue::Array(items) = value.get_ref() else {
            let expected = "addresses in brackets, such as [\"192.0.2.2\"]";
            let found = value.get_ref().type_str();
            return Err(Fault::new(value, ValueError::WrongType { expected, found }));
        };
        let located = |item: &Spanned<DeValue<'_>>| {
            Ok(Located { value: HostAddress::from_toml(item)?, span: item.span() })
        };
        each(items.iter().map(located)).map(Self)
    }
}

/// `[network.NAME]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkConfig {
    /// The network's name.
    pub name: NetworkName,
    /// The VLAN or the overlay network.
    pub kind: NetworkKind,
    /// True if the network's interfaces are isolated by default.
    pub isolated: bool,
    /// True if frames for a multicast group go to its members only.
    pub multicast_snooping: bool,
    /// weir's services for the network's guests, if there are any.
    pub gateway: Option<GatewayConfig>,
}

impl NetworkConfig {
    /// The beginning of the name of weir's own port in the network.
    pub const PORT_PREFIX: &str = "gateway.";

    /// The keys of the table with their values.
    pub(super) fn rows(&self) -> Rows {
        let mut keys = NetworkKeys {
            isolated: self.isolated.then_some(true),
            multicast_snooping: self.multicast_snooping.then_some(true),
            gateway: self.gateway.as_ref().map_or_else(GatewayKeys::default, GatewayConfig::keys),
            ..NetworkKeys::default()
        };
        match &self.kind {
            NetworkKind::Vlan(vid) => keys.vlan = Some(*vid),
            NetworkKind::Overlay(of) => {
                let OverlayNetwork { vni, peers, flood_per_second, neigh_suppress } = of;
                keys.vni = Some(*vni);
                keys.flood_per_second = Some(*flood_per_second);
                match of.by_evpn() {
                    true => keys.neigh_suppress = Some(*neigh_suppress),
                    false => keys.peers = Some(Peers(peers.iter().map(Located::nowhere).collect())),
                }
            }
        }
        keys.rows()
    }

    /// The name of weir's own port in the network, if weir has one there.
    pub fn port_name(&self) -> Option<PortName> {
        self.gateway.as_ref()?;
        format!("{}{}", Self::PORT_PREFIX, self.name).parse().ok()
    }
}

/// The kind of a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetworkKind {
    /// A VLAN, on this switch and beyond its uplinks.
    Vlan(Vid),
    /// A network of the overlay.
    Overlay(OverlayNetwork),
}

/// The settings of a network of the overlay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverlayNetwork {
    /// The network's VXLAN network identifier.
    pub vni: Vni,
    /// The other member hosts. Empty if FRR announces them.
    pub peers: Vec<HostAddress>,
    /// The largest rate of flooded frames (frames a second).
    pub flood_per_second: PacketRate,
    /// True if weir answers guests' ARP requests and neighbour solicitations for stations behind other hosts, and
    /// announces its guests' IP addresses. Only with EVPN.
    pub neigh_suppress: bool,
}

impl OverlayNetwork {
    /// True if the network learns its stations and hosts by EVPN.
    pub fn by_evpn(&self) -> bool {
        self.peers.is_empty()
    }
}

/// The networks of a switch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Networks {
    /// The overlay, if there is one.
    pub overlay: Option<OverlayConfig>,
    /// All networks, in the order of the file.
    pub all: Vec<NetworkConfig>,
}

/// The reason why a port cannot be in its network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// No network has this name.
    #[error("there is no network `{name}`")]
    Unknown {
        /// The name.
        name: NetworkName,
        /// Names to choose from: a similar one, or all.
        help: String,
    },
    /// The port's MTU is larger than the overlay's.
    #[error("an MTU of {mtu} does not fit into the overlay, whose networks have {max}")]
    Mtu {
        /// The port's MTU.
        mtu: Mtu,
        /// The overlay's MTU.
        max: Mtu,
    },
    /// An uplink names the interface that belongs to the host in a network with `nat`.
    #[error("the interface {interface} is the host's in `network.{network}`, which has `nat`")]
    Interface {
        /// The interface.
        interface: InterfaceName,
        /// The network.
        network: NetworkName,
    },
}

impl NetworkError {
    /// Advice for the user.
    pub fn help(&self) -> String {
        match self {
            Self::Unknown { help, .. } => help.clone(),
            Self::Mtu { max, .. } => format!(
                "leave `mtu` out, which makes it {max}; or raise `mtu` of [overlay] and the MTU of the underlay"
            ),
            Self::Interface { .. } => {
                "name another interface; guests of the network reach the host without an uplink"
                    .into()
            }
        }
    }

    /// The key that is to blame.
    pub(super) fn key(&self) -> &'static str {
        match self {
            Self::Unknown { .. } => "network",
            Self::Mtu { .. } => "mtu",
            Self::Interface { .. } => "name",
        }
    }
}

impl Networks {
    fn get(&self, name: &NetworkName) -> Option<&NetworkConfig> {
        self.all.iter().find(|network| network.name == *name)
    }

    /// The networks of the overlay, each with its number in the fabric.
    pub fn of_overlay(&self) -> impl Iterator<Item = (u16, &NetworkConfig, &OverlayNetwork)> {
        let overlaid = self.all.iter().filter_map(|network| match &network.kind {
            NetworkKind::Overlay(overlay) => Some((network, overlay)),
            NetworkKind::Vlan(_) => None,
        });
        (0..).zip(overlaid).map(|(number, (network, overlay))| (number, network, overlay))
    }

    /// The networks with EVPN: their numbers in the fabric, and their VNIs.
    pub fn by_evpn(&self) -> impl Iterator<Item = (u16, u32)> {
        let told = self.of_overlay().filter(|(.., network)| network.by_evpn());
        told.map(|(number, _, network)| (number, network.vni.get()))
    }

    /// The networks with EVPN and `neigh_suppress`: their numbers in the fabric.
    pub fn suppressed(&self) -> impl Iterator<Item = u16> {
        let told = self.of_overlay().filter(|(.., it)| it.by_evpn() && it.neigh_suppress);
        told.map(|(number, ..)| number)
    }

    /// The fabric's number of a network of the overlay.
    pub fn number(&self, name: &NetworkName) -> Option<u16> {
        let of = self.of_overlay().find(|(_, network, _)| network.name == *name);
        of.map(|(number, ..)| number)
    }

    /// The fabric's number of a port's network, if it is a network of the overlay.
    pub fn number_of(&self, vlan: &VlanMode) -> Option<u16> {
        match vlan {
            VlanMode::Network(name) => self.number(name),
            _ => None,
        }
    }

    /// True if a port of this mode is in the network `name`: by the network's name, or by its VLAN.
    pub fn has(&self, name: &str, vlan: &VlanMode) -> bool {
        let vid = match vlan {
            VlanMode::Network(own) => return own.as_str() == name,
            VlanMode::Unset => Vid::DEFAULT,
            VlanMode::Access(vid) => *vid,
            VlanMode::Trunk { .. } | VlanMode::Mirror(_) => return false,
        };
        let mut all = self.all.iter();
        all.any(|it| it.name.as_str() == name && it.kind == NetworkKind::Vlan(vid))
    }

    /// True if interfaces of this mode are isolated by default. The mode names the network itself or its VLAN.
    pub(super) fn isolates(&self, vlan: &VlanMode) -> bool {
        let vlan = match vlan {
            VlanMode::Network(name) => {
                return self.get(name).is_some_and(|network| network.isolated);
            }
            VlanMode::Unset => NetworkKind::Vlan(Vid::DEFAULT),
            VlanMode::Access(vid) => NetworkKind::Vlan(*vid),
            VlanMode::Trunk { .. } | VlanMode::Mirror(_) => return false,
        };
        self.all.iter().any(|network| network.isolated && network.kind == vlan)
    }

    /// The networks with services of weir, each with its VID in the fabric.
    pub fn with_gateway(
        &self,
    ) -> impl Iterator<Item = (FabricVid, &NetworkConfig, &GatewayConfig)> {
        self.all.iter().filter_map(|network| {
            Some((self.vid(&network.name)?, network, network.gateway.as_ref()?))
        })
    }

    /// The networks with multicast snooping: their VIDs in the fabric.
    pub fn snooped(&self) -> impl Iterator<Item = FabricVid> {
        let snooped = self.all.iter().filter(|network| network.multicast_snooping);
        snooped.filter_map(|network| self.vid(&network.name))
    }

    /// The VID of a network in the fabric.
    pub(super) fn vid(&self, name: &NetworkName) -> Option<FabricVid> {
        match &self.get(name)?.kind {
            NetworkKind::Vlan(vid) => Some((*vid).into()),
            NetworkKind::Overlay(_) => FabricVid::of_network(self.number(name)?),
        }
    }

    /// The default MTU of interfaces of this mode.
    pub(super) fn mtu_of(&self, vlan: &VlanMode) -> Option<Mtu> {
        self.number_of(vlan).and(self.overlay.as_ref()).map(|overlay| overlay.mtu)
    }

    /// Removes the MTU of an interface if it is its network's, so that the interface can change its network.
    pub fn unsettle(&self, vif: &mut VifConfig) {
        let of_network = self.mtu_of(&vif.vlan);
        vif.mtu = vif.mtu.filter(|mtu| Some(*mtu) != of_network);
    }

    /// Gives an interface in a network of the overlay that network's MTU, unless the interface has its own.
    pub fn settle(&self, vif: &mut VifConfig) {
        if let Ok(max) = self.mtu_in(&vif.vlan, vif.mtu) {
            vif.mtu = vif.mtu.or(max);
        }
    }

    /// Checks that the interface's network exists, and that the interface's MTU fits.
    ///
    /// # Errors
    /// [`NetworkError`]
    pub fn check_vif(&self, vif: &VifConfig) -> Result<(), NetworkError> {
        self.mtu_in(&vif.vlan, vif.mtu).map(drop)
    }

    /// The number of weir's own ports.
    pub(super) fn own_ports(&self) -> usize {
        let gateways = self.all.iter().filter(|network| network.port_name().is_some());
        usize::from(self.overlay.is_some()) + gateways.count()
    }

    /// Notes on networks whose settings are valid, but probably not intended.
    pub fn notes(&self, vifs: &[VifConfig]) -> Vec<String> {
        let mut notes = Vec::new();
        for NetworkConfig { name, kind, gateway, .. } in &self.all {
            let Some(gateway) = gateway else { continue };
            let unknown =
                gateway.fixed.iter().filter(|it| vifs.iter().all(|vif| vif.name != it.vif));
            notes.extend(unknown.map(|FixedAddress { vif, address }| {
                format!("`fixed` of network.{name} has {address} for {vif}, and there is no interface {vif} yet")
            }));
            let (Some(dhcp), Some(subnet)) = (&gateway.dhcp, gateway.ipv4()) else { continue };
            let is_in = |vif: &&VifConfig| match vif.vlan.of_vif() {
                VlanMode::Network(other) => other == *name,
                VlanMode::Access(vid) => *kind == NetworkKind::Vlan(vid),
                VlanMode::Trunk { .. } | VlanMode::Unset | VlanMode::Mirror(_) => false,
            };
            let guests = vifs.iter().filter(is_in).count();
            let range = dhcp.range;
            let taken = [Some(subnet.addr()), dhcp.router.filter(|it| *it != subnet.addr())];
            let taken = taken.into_iter().flatten().filter(|it| range.contains(*it)).count();
            let free = (range.last.to_bits() - range.first.to_bits()) as usize + 1 - taken;
            if guests > free {
                notes.push(format!(
                    "DHCP of network.{name} has {} for {}",
                    weir_text::count(free, "address"),
                    weir_text::count(guests, "interface"),
                ));
            }
            if guests == 0 && vifs.iter().any(|vif| vif.vlan == VlanMode::Unset) {
                notes.push(format!(
                    "no interface is in network.{name}: one without `network = \"{name}\"` is in VLAN {}, and gets no \
                     address of its DHCP",
                    Vid::DEFAULT.get()
                ));
            }
        }
        notes
    }

    /// The owner of this name, if one of weir's own ports has it. No other port can have the name.
    pub fn owner_of(&self, name: &PortName) -> Option<String> {
        if self.overlay.is_some() && name.as_str() == OverlayConfig::PORT_NAME {
            return Some("the name of the port of [overlay]".into());
        }
        let of_network = self.all.iter().find(|it| it.port_name().as_ref() == Some(name))?;
        Some(format!("the name of weir's own port in `network.{}`", of_network.name))
    }

    /// Checks that the uplink's network exists, and that the uplink's MTU fits.
    ///
    /// # Errors
    /// [`NetworkError`]
    pub fn check_uplink(&self, uplink: &UplinkConfig) -> Result<(), NetworkError> {
        let with_nat =
            self.all.iter().filter_map(|it| Some((it, it.gateway.as_ref()?.nat.as_ref()?)));
        let mut owners = with_nat.filter(|(_, nat)| nat.interface == uplink.interface);
        if let Some((network, _)) = owners.next() {
            let (interface, network) = (uplink.interface.clone(), network.name.clone());
            return Err(NetworkError::Interface { interface, network });
        }
        self.mtu_in(&uplink.vlan, uplink.mtu).map(drop)
    }

    /// The largest MTU of a port with this mode; `None` without a limit.
    fn mtu_in(&self, vlan: &VlanMode, mtu: Option<Mtu>) -> Result<Option<Mtu>, NetworkError> {
        let VlanMode::Network(name) = vlan else { return Ok(None) };
        let network = self.get(name).ok_or_else(|| {
            let names: Vec<_> = self.all.iter().map(|network| network.name.as_str()).collect();
            let help = match (suggest::closest(name.as_str(), &names), names.as_slice()) {
                (Some(near), _) => format!("did you mean `{near}`?"),
                (None, []) => format!("add a table [network.{name}] with its `vni` or its `vlan`"),
                (None, names) => format!("there are: {}", names.join(", ")),
            };
            NetworkError::Unknown { name: name.clone(), help }
        })?;
        let overlay = match network.kind {
            NetworkKind::Overlay(_) => self.overlay.as_ref(),
            NetworkKind::Vlan(_) => None,
        };
        match (overlay.map(|overlay| overlay.mtu), mtu) {
            (Some(max), Some(mtu)) if mtu > max => Err(NetworkError::Mtu { mtu, max }),
            (max, _) => Ok(max),
        }
    }
}

/// Reads `[overlay]`. Returns the overlay, and the place of the header if there is one.
pub(super) fn overlay(
    section: Option<Section<'_>>,
    problems: &mut Vec<Problem>,
) -> (Option<OverlayConfig>, Option<Range<usize>>) {
    let Some(mut section) = section else { return (None, None) };
    let header = section.span.clone();
    if !section.has("local") {
        let help = "add this host's address in the underlay, such as `local = \"192.0.2.1\"`";
        problems.push(missing(&section, "local", help));
    }
    let mut overlay = OverlayConfig::default();
    Value::read(&mut overlay, &Key::TABLE, &mut section, problems);
    if !section.has_good("mtu") {
        overlay.mtu = OverlayConfig::mtu_default(overlay.local);
    }
    if usize::from(overlay.queues.get()) > limits::OVERLAY_QUEUES_MAX {
        let max = limits::OVERLAY_QUEUES_MAX;
        problems.push(
            Problem::new(format!("`overlay` has at most {max} queues"))
                .label(
                    section.place("queues").unwrap_or_default(),
                    "one more is for answers of weir's own",
                )
                .help(format!("leave it out, or choose 1 to {max}")),
        );
    }
    let overlay = section.has_good("local").then_some(overlay);
    section.finish(problems);
    (overlay, Some(header))
}

/// Reads each `[network.NAME]`, and checks that the networks and the overlay fit together.
pub(super) fn networks(
    sections: Vec<Section<'_>>,
    (overlay, header): (Option<OverlayConfig>, Option<Range<usize>>),
    problems: &mut Vec<Problem>,
) -> Networks {
    if let Some(one_more) = sections.get(limits::NETWORKS_MAX) {
        problems.push(
            Problem::new(format!("{} networks are too many", sections.len()))
                .label(one_more.span.clone(), format!("one more than {}", limits::NETWORKS_MAX)),
        );
        return Networks::default();
    }
    let has_overlay = header.is_some();
    let mut vnis = Vec::new();
    let read = |section: Section<'_>| {
        let header = section.span.clone();
        let network = network(section, overlay.as_ref(), has_overlay, &mut vnis, problems)?;
        Some((network, header))
    };
    let (all, headers): (Vec<_>, Vec<_>) = sections.into_iter().filter_map(read).unzip();
    let by_evpn = |network: &NetworkConfig| match &network.kind {
        NetworkKind::Overlay(network) => network.by_evpn(),
        NetworkKind::Vlan(_) => false,
    };
    if let (Some(header), Some(OverlayConfig { evpn: true, .. })) = (&header, overlay.as_ref())
        && !vnis.is_empty()
        && problems.is_empty()
        && !all.iter().any(by_evpn)
    {
        problems.push(
            Problem::new("`overlay` has `evpn`, and no network for it")
                .label(header.clone(), "each network names its `peers`")
                .help("leave `peers` out where FRR says who is a member, or leave `evpn` out"),
        );
    }
    if let Some(header) = header
        && vnis.is_empty()
    {
        problems.push(
            Problem::new("`overlay` carries no network")
                .label(header, "no network has a `vni`")
                .help("add a table such as [network.blue] with `vni = 100` and `peers`"),
        );
    }
    let vnis = vnis.into_iter().map(|vni| (vni.value.to_string(), vni.span));
    report_repeated(("VNI", "", "give each network its own"), vnis, problems);
    let with_nat = all.iter().zip(&headers).filter(|(network, _)| {
        network.gateway.as_ref().is_some_and(|gateway| gateway.nat.is_some())
    });
    if let Some((_, header)) = with_nat.clone().nth(limits::WAYS_OUT_MAX) {
        let max = limits::WAYS_OUT_MAX;
        problems.push(
            Problem::new(format!("{} networks with `nat` are too many", with_nat.clone().count()))
                .label(header.clone(), format!("one more than {max}")),
        );
    }
    let interfaces = with_nat.clone().filter_map(|(network, header)| {
        let nat = network.gateway.as_ref()?.nat.as_ref()?;
        Some((nat.interface.to_string(), header.clone()))
    });
    let said =
        ("interface", "of `nat`", "name another one in each network: `interface = \"weir1\"`");
    report_repeated(said, interfaces, problems);
    let ways_out: Vec<_> = with_nat.take(limits::WAYS_OUT_MAX).collect();
    share_no_host(&ways_out, problems);
    let with_gateway = all.iter().zip(headers).filter(|(network, _)| network.gateway.is_some());
    let vlans = with_gateway.filter_map(|(network, header)| match network.kind {
        NetworkKind::Vlan(vid) => Some((vid.to_string(), header)),
        NetworkKind::Overlay(_) => None,
    });
    let said = ("VLAN", "of networks with an `address`", "give each its own, such as `vlan = 10`");
    report_repeated(said, vlans, problems);
    Networks { overlay, all }
}

/// Reports networks with `nat` that need the same part of the host: it routes by their subnets, and
/// forwards its ports to their guests.
fn share_no_host(ways_out: &[(&NetworkConfig, &Range<usize>)], problems: &mut Vec<Problem>) {
    let gateways =
        ways_out.iter().filter_map(|(it, header)| Some((*it, it.gateway.as_ref()?, *header)));
    let gateways: Vec<_> = gateways.collect();
    let nets = |it: &GatewayConfig| -> Vec<IpNet> {
        it.addresses.iter().map(|own| own.get().trunc()).collect()
    };
    for (nth, (network, gateway, header)) in gateways.iter().enumerate() {
        for (earlier, other, first) in gateways.iter().take(nth) {
            let others = nets(other);
            let overlap = nets(gateway).into_iter().find_map(|net| {
                let other = others.iter().find(|it| it.contains(&net) || net.contains(*it))?;
                Some((net, *other))
            });
            let Some((net, other)) = overlap else { continue };
            let (name, earlier) = (&network.name, &earlier.name);
            problems.push(
                Problem::new(format!("`network.{earlier}` and `network.{name}` share addresses"))
                    .label((*first).clone(), format!("has {other}"))
                    .label((*header).clone(), format!("has {net}"))
                    .help("the host routes to networks with `nat` by address: give one another subnet"),
            );
        }
    }
    let ports = gateways.iter().flat_map(|(_, gateway, header)| {
        let forwards = gateway.nat.iter().flat_map(|nat| &nat.forward);
        // Equal entries of one network are found in that network's table.
        let ports: BTreeSet<_> =
            forwards.map(|it| format!("{} {}", it.protocol, it.port)).collect();
        ports.into_iter().map(|port| (port, (*header).clone()))
    });
    let said = ("host's port", "in `forward`", "forward each port of the host to one guest");
    report_repeated(said, ports, problems);
}

fn network(
    mut section: Section<'_>,
    overlay: Option<&OverlayConfig>,
    has_overlay: bool,
    vnis: &mut Vec<Located<Vni>>,
    problems: &mut Vec<Problem>,
) -> Option<NetworkConfig> {
    let name = section.title.strip_prefix("network.").unwrap_or(&section.title);
    let name = name.parse::<NetworkName>().map_err(|error| {
        let mut problem = Problem::new("bad name of a network");
        problem.help = error.help();
        problems.push(problem.label(section.span.clone(), error.to_string()));
    });
    let mut keys = NetworkKeys::default();
    Value::read(&mut keys, &Key::TABLE, &mut section, problems);
    let NetworkKeys {
        vlan,
        vni,
        peers,
        flood_per_second,
        neigh_suppress,
        isolated,
        multicast_snooping,
        gateway,
    } = keys;
    let vni = section.located("vni", vni);
    let peers = peers.map(|Peers(peers)| peers);
    let gateway = gateway::gateway(&mut section, gateway, problems);
    let has_address = section.has("address");
    let title = section.title.clone();
    let (has_vlan, has_vni) = (section.has("vlan"), section.has("vni"));
    match (section.place("vlan"), section.place("vni")) {
        (Some(vlan), Some(vni)) => problems.push(
            Problem::new(format!("`{title}` has both `vlan` and `vni`"))
                .label(vlan, "makes it a VLAN of this host")
                .label(vni, "makes it one of the overlay")
                .help("keep one; a VLAN of an uplink's and a network of the overlay stay apart"),
        ),
        // The network is the default VLAN, which has the ports without a VLAN.
        (None, None) if has_address => {}
        (None, None) => {
            let help = "add an `address`, which makes it the network of ports that name no VLAN; or `vlan = 10`; or \
                        `vni = 100` and `peers` for one of several hosts";
            problems.push(
                Problem::new(format!("`{title}` has no `address`, no `vlan` and no `vni`"))
                    .label(section.span.clone(), "says not which network it is")
                    .help(help),
            );
        }
        (None, Some(vni)) if !has_overlay => problems.push(
            Problem::new(format!("`{title}` has a `vni`, and there is no overlay"))
                .label(vni, "a number in the overlay")
                .help("add the table [overlay] with `local`, this host's address in the underlay"),
        ),
        _ => {}
    }
    if has_vlan && !has_vni {
        for key in ["peers", "flood_per_second", "neigh_suppress"] {
            if let Some(span) = section.refuse(key) {
                problems.push(
                    Problem::new(format!("`{title}` has `{key}` without `vni`"))
                        .label(span, "means nothing to a VLAN")
                        .help("a VLAN reaches other hosts by an uplink"),
                );
            }
        }
    }
    // If `[overlay]` is not valid, its `evpn` is unknown. Missing peers are then no second error.
    let evpn = overlay.is_none_or(|overlay| overlay.evpn);
    if has_vni && !section.has("peers") && !(has_overlay && evpn) {
        let help = "name the other hosts, such as `peers = [\"192.0.2.2\"]`; or have FRR say who they are: \
                    `evpn = true` in [overlay]";
        problems.push(missing(&section, "peers", help));
    }
    if let (true, Some(peers), Some(suppress)) =
        (has_vni, section.place("peers"), section.place("neigh_suppress"))
    {
        problems.push(
            Problem::new(format!("`{title}` has `neigh_suppress` and `peers`"))
                .label(suppress, "takes FRR, which says who has which IP address")
                .label(peers, "makes it a network without FRR")
                .help(
                    "leave `neigh_suppress` out, or leave `peers` out where [overlay] has `evpn`",
                ),
        );
    }
    vnis.extend(vni.clone());
    let header = section.span.clone();
    let name_max = limits::PORT_NAME_LEN_MAX - NetworkConfig::PORT_PREFIX.len();
    if let Ok(name) = &name
        && gateway.is_some()
        && name.as_str().len() > name_max
    {
        problems.push(
            Problem::new(format!("`{title}` has an `address` and a long name"))
                .label(header.clone(), format!("more than {name_max} bytes"))
                .help("weir's own port in the network is called after it: choose a shorter name"),
        );
    }
    section.finish(problems);
    if let Some(peers) = &peers {
        check_peers(&title, &header, peers, overlay, problems);
    }
    let kind = match (vni, vlan) {
        (Some(vni), _) => {
            let peers = peers.or_else(|| evpn.then(Vec::new))?;
            let peers = peers.into_iter().map(|peer| peer.value).collect();
            let flood_per_second = flood_per_second.unwrap_or(PacketRate::FLOODS_DEFAULT);
            let neigh_suppress = neigh_suppress.unwrap_or(true);
            NetworkKind::Overlay(OverlayNetwork {
                vni: vni.value,
                peers,
                flood_per_second,
                neigh_suppress,
            })
        }
        (None, Some(vlan)) => NetworkKind::Vlan(vlan),
        (None, None) if has_address => NetworkKind::Vlan(Vid::DEFAULT),
        (None, None) => return None,
    };
    let isolated = isolated.unwrap_or(false);
    let multicast_snooping = multicast_snooping.unwrap_or(false);
    Some(NetworkConfig { name: name.ok()?, kind, isolated, multicast_snooping, gateway })
}

fn check_peers(
    title: &str,
    header: &Range<usize>,
    peers: &[Located<HostAddress>],
    overlay: Option<&OverlayConfig>,
    problems: &mut Vec<Problem>,
) {
    if peers.is_empty() {
        problems.push(
            Problem::new(format!("`{title}` has no peers"))
                .label(header.clone(), "reaches nobody")
                .help(
                    "name the other hosts, such as `peers = [\"192.0.2.2\"]`, or make it a `vlan`",
                ),
        );
    }
    if let Some(one_more) = peers.get(limits::OVERLAY_PEERS_MAX) {
        problems.push(
            Problem::new(format!("`{title}` has {} peers, which are too many", peers.len()))
                .label(
                    one_more.span.clone(),
                    format!("one more than {}", limits::OVERLAY_PEERS_MAX),
                )
                .help("each frame for all of them is sent to each: split the network"),
        );
        return;
    }
    for peer in peers {
        let Some(OverlayConfig { local, .. }) = overlay else { break };
        if peer.value == *local {
            problems.push(
                Problem::new(format!("`{title}` has this host among its peers"))
                    .label(peer.span.clone(), "`local` of [overlay]")
                    .help("name the other hosts only"),
            );
        } else if peer.value.get().is_ipv4() != local.get().is_ipv4() {
            problems.push(
                Problem::new(format!("`{title}` has a peer that this host does not reach"))
                    .label(peer.span.clone(), format!("another family than {local}"))
                    .help("peers have addresses of the family of `local` in [overlay]"),
            );
        }
    }
    let places = peers.iter().map(|peer| (peer.value.to_string(), peer.span.clone()));
    let said = ("peer", &*format!("of `{title}`"), "name each host once");
    report_repeated(said, places, problems);
}
