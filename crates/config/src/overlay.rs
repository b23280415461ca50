//! `[overlay]` and `[network.NAME]`: networks of tenants, and the hosts that they reach.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::Range;

use ipnet::IpNet;
use weir_fabric::Vid as FabricVid;
use weir_limits as limits;

use super::error::Problem;
use super::gateway::{self, GatewayConfig};
use super::parse::{missing, report_repeated};
use super::section::{Located, Section};
use super::suggest;
use super::values::{
    HostAddress, InterfaceName, Mtu, NetworkName, OverlayDscp, PacketRate, PortName, QueuePairs,
    UdpPort, Vid, VlanMode, Vni,
};
use super::{UplinkConfig, VifConfig};

/// `[overlay]`: how frames of networks travel between hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverlayConfig {
    /// This host's address in the underlay.
    pub local: HostAddress,
    /// The interface of the underlay, if nothing is to come or go by another one.
    pub interface: Option<InterfaceName>,
    /// The UDP port of all hosts.
    pub port: UdpPort,
    /// The MTU of guests in networks of the overlay, where theirs says nothing.
    pub mtu: Mtu,
    /// Sockets that share what comes by flow.
    pub queues: QueuePairs,
    /// The DSCP of the datagrams.
    pub dscp: OverlayDscp,
    /// FRR says who is where in networks without peers, by BGP EVPN.
    pub evpn: bool,
}

impl OverlayConfig {
    /// The port of the switch is called so.
    pub const PORT_NAME: &str = "overlay";

    fn mtu_default(local: HostAddress) -> Mtu {
        Mtu::within_ethernet(match local.get() {
            IpAddr::V4(_) => limits::OVERLAY_OVERHEAD_V4,
            IpAddr::V6(_) => limits::OVERLAY_OVERHEAD_V6,
        })
    }
}

/// `[network.NAME]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkConfig {
    /// Its name.
    pub name: NetworkName,
    /// What it is.
    pub kind: NetworkKind,
    /// Its interfaces are isolated, unless they say otherwise.
    pub isolated: bool,
    /// What weir does for its guests, if it does anything.
    pub gateway: Option<GatewayConfig>,
}

impl NetworkConfig {
    /// What begins the name of weir's own port in it.
    const PORT_PREFIX: &str = "gateway.";

    /// The name of weir's own port in it, if it has one.
    pub fn port_name(&self) -> Option<PortName> {
        self.gateway.as_ref()?;
        format!("{}{}", Self::PORT_PREFIX, self.name).parse().ok()
    }
}

/// What a network is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetworkKind {
    /// This VLAN, on this switch and beyond its uplinks.
    Vlan(Vid),
    /// One of the overlay.
    Overlay(OverlayNetwork),
}

/// What a network has in the overlay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverlayNetwork {
    /// Its number on the wire.
    pub vni: Vni,
    /// The other hosts that are members of it; none where FRR says who they are.
    pub peers: Vec<HostAddress>,
    /// Frames a second that may go to all of them.
    pub flood_per_second: PacketRate,
    /// Guests' questions for stations behind other hosts are answered here, and others are told which IP addresses
    /// guests here have; only where FRR says who is where.
    pub neigh_suppress: bool,
}

impl OverlayNetwork {
    /// Whether FRR says who is where in it.
    pub fn by_evpn(&self) -> bool {
        self.peers.is_empty()
    }
}

/// The networks of a switch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Networks {
    /// How they reach other hosts, if they do.
    pub overlay: Option<OverlayConfig>,
    /// In the order of the file.
    pub all: Vec<NetworkConfig>,
}

/// Why a port cannot be in its network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// There is none of that name.
    #[error("there is no network `{name}`")]
    Unknown {
        /// The name.
        name: NetworkName,
        /// One that sounds like it, or all.
        help: String,
    },
    /// Its packets would not fit.
    #[error("an MTU of {mtu} does not fit into the overlay, whose networks have {max}")]
    Mtu {
        /// The port's.
        mtu: Mtu,
        /// The overlay's.
        max: Mtu,
    },
    /// The interface of an uplink is the one by which a network has its way out.
    #[error("the interface {interface} is the host's in `network.{network}`, which has `nat`")]
    Interface {
        /// The interface.
        interface: InterfaceName,
        /// The network.
        network: NetworkName,
    },
}

impl NetworkError {
    /// What its user can do.
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

    /// Those of the overlay, each with its number in the fabric.
    pub fn of_overlay(&self) -> impl Iterator<Item = (u16, &NetworkConfig, &OverlayNetwork)> {
        let overlaid = self.all.iter().filter_map(|network| match &network.kind {
            NetworkKind::Overlay(overlay) => Some((network, overlay)),
            NetworkKind::Vlan(_) => None,
        });
        (0..).zip(overlaid).map(|(number, (network, overlay))| (number, network, overlay))
    }

    /// Those of which FRR says who is where: their numbers in the fabric, and their VNIs.
    pub fn by_evpn(&self) -> impl Iterator<Item = (u16, u32)> {
        let told = self.of_overlay().filter(|(.., network)| network.by_evpn());
        told.map(|(number, _, network)| (number, network.vni.get()))
    }

    /// Those of these in which questions for neighbours are answered here.
    pub fn suppressed(&self) -> impl Iterator<Item = u16> {
        let told = self.of_overlay().filter(|(.., it)| it.by_evpn() && it.neigh_suppress);
        told.map(|(number, ..)| number)
    }

    /// The number in the fabric of a network of the overlay.
    pub fn number(&self, name: &NetworkName) -> Option<u16> {
        let of = self.of_overlay().find(|(_, network, _)| network.name == *name);
        of.map(|(number, ..)| number)
    }

    /// The same of the network that a port is in, if it is in one of the overlay.
    pub fn number_of(&self, vlan: &VlanMode) -> Option<u16> {
        match vlan {
            VlanMode::Network(name) => self.number(name),
            _ => None,
        }
    }

    /// Whether interfaces of this mode are isolated where they say nothing of it: by the name of their network, or by
    /// its VLAN.
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

    /// Those in which weir does something for guests, each with what the fabric calls it.
    pub fn with_gateway(
        &self,
    ) -> impl Iterator<Item = (FabricVid, &NetworkConfig, &GatewayConfig)> {
        self.all.iter().filter_map(|network| {
            Some((self.vid(&network.name)?, network, network.gateway.as_ref()?))
        })
    }

    /// What the fabric calls a network.
    pub(super) fn vid(&self, name: &NetworkName) -> Option<FabricVid> {
        match &self.get(name)?.kind {
            NetworkKind::Vlan(vid) => Some((*vid).into()),
            NetworkKind::Overlay(_) => FabricVid::of_network(self.number(name)?),
        }
    }

    /// The MTU that interfaces of this mode have where they say nothing of it.
    pub(super) fn mtu_of(&self, vlan: &VlanMode) -> Option<Mtu> {
        self.number_of(vlan).and(self.overlay.as_ref()).map(|overlay| overlay.mtu)
    }

    /// Takes an MTU that is its network's from an interface, which may go elsewhere.
    pub fn unsettle(&self, vif: &mut VifConfig) {
        let of_network = self.mtu_of(&vif.vlan);
        vif.mtu = vif.mtu.filter(|mtu| Some(*mtu) != of_network);
    }

    /// Gives an interface in a network of the overlay its MTU, unless it has one or there is no such network.
    pub fn settle(&self, vif: &mut VifConfig) {
        if let Ok(max) = self.mtu_in(&vif.vlan, vif.mtu) {
            vif.mtu = vif.mtu.or(max);
        }
    }

    /// Whether it is in a network that there is, with an MTU that fits.
    pub(super) fn check_vif(&self, vif: &VifConfig) -> Result<(), NetworkError> {
        self.mtu_in(&vif.vlan, vif.mtu).map(drop)
    }

    /// Ports of weir's own.
    pub(super) fn own_ports(&self) -> usize {
        let gateways = self.all.iter().filter(|network| network.port_name().is_some());
        usize::from(self.overlay.is_some()) + gateways.count()
    }

    /// Whose the port of this name is, if it is weir's own: no other port may have the name.
    pub(super) fn owner_of(&self, name: &PortName) -> Option<String> {
        if self.overlay.is_some() && name.as_str() == OverlayConfig::PORT_NAME {
            return Some("the name of the port of [overlay]".into());
        }
        let of_network = self.all.iter().find(|it| it.port_name().as_ref() == Some(name))?;
        Some(format!("the name of weir's own port in `network.{}`", of_network.name))
    }

    /// The same for an uplink: its device keeps its MTU, if it fits, and is no network's way out.
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

/// Reads `[overlay]`; the place of its header, if there is one.
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
    let local = section.value::<HostAddress>("local", problems);
    let interface = section.value("interface", problems);
    let port = section.take_or("port", UdpPort::VXLAN, problems);
    let mtu = section.value("mtu", problems);
    let queues = section.take::<QueuePairs>("queues", problems);
    if let Some(queues) = &queues
        && usize::from(queues.value.get()) > limits::OVERLAY_QUEUES_MAX
    {
        let max = limits::OVERLAY_QUEUES_MAX;
        problems.push(
            Problem::new(format!("`overlay` has at most {max} queues"))
                .label(queues.span.clone(), "one more is for answers of weir's own")
                .help(format!("leave it out, or choose 1 to {max}")),
        );
    }
    let queues = queues.map_or(QueuePairs::default(), |queues| queues.value);
    let dscp = section.value("dscp", problems).unwrap_or_default();
    let evpn = section.take::<bool>("evpn", problems);
    section.finish(problems);
    let evpn = evpn.is_some_and(|evpn| evpn.value);
    let overlay = local.map(|local| OverlayConfig {
        local,
        interface,
        port,
        mtu: mtu.unwrap_or(OverlayConfig::mtu_default(local)),
        queues,
        dscp,
        evpn,
    });
    (overlay, Some(header))
}

/// Reads each `[network.NAME]`, and looks whether networks and overlay go together.
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
    report_repeated("VNI", vnis, problems);
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
    report_repeated("interface of `nat`", interfaces, problems);
    let ways_out: Vec<_> = with_nat.take(limits::WAYS_OUT_MAX).collect();
    share_no_host(&ways_out, problems);
    let with_gateway = all.iter().zip(headers).filter(|(network, _)| network.gateway.is_some());
    let vlans = with_gateway.filter_map(|(network, header)| match network.kind {
        NetworkKind::Vlan(vid) => Some((vid.to_string(), header)),
        NetworkKind::Overlay(_) => None,
    });
    report_repeated("VLAN of networks with an `address`", vlans, problems);
    Networks { overlay, all }
}

/// Networks with `nat` share the host: it routes by their subnets, and forwards its ports to their guests.
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
        // Two equal ones of one network are found in its table.
        let ports: BTreeSet<_> =
            forwards.map(|it| format!("{} {}", it.protocol, it.port)).collect();
        ports.into_iter().map(|port| (port, (*header).clone()))
    });
    report_repeated("host's port in `forward`", ports, problems);
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
    let vlan = section.take::<Vid>("vlan", problems);
    let vni = section.take::<Vni>("vni", problems);
    let peers = section.value::<Vec<Located<HostAddress>>>("peers", problems);
    let flood_per_second = section.take::<PacketRate>("flood_per_second", problems);
    let neigh_suppress = section.take::<bool>("neigh_suppress", problems);
    let isolated = section.take_or("isolated", false, problems);
    let gateway = gateway::gateway(&mut section, problems);
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
        // That of ports that name no VLAN.
        (None, None) if has_address => {}
        (None, None) => {
            let help = "add `vni = 100` and `peers`, or `vlan = 10` for one without other hosts; or an \
                        `address`, which makes it that of ports that name no VLAN";
            problems.push(missing(&section, "vni", help));
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
    // Where `[overlay]` is wrong, nobody knows whether it has `evpn`.
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
            let flood_per_second =
                flood_per_second.map_or(PacketRate::FLOODS_DEFAULT, |rate| rate.value);
            let neigh_suppress = neigh_suppress.is_none_or(|it| it.value);
            NetworkKind::Overlay(OverlayNetwork {
                vni: vni.value,
                peers,
                flood_per_second,
                neigh_suppress,
            })
        }
        (None, Some(vlan)) => NetworkKind::Vlan(vlan.value),
        (None, None) if has_address => NetworkKind::Vlan(Vid::DEFAULT),
        (None, None) => return None,
    };
    Some(NetworkConfig { name: name.ok()?, kind, isolated, gateway })
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
    report_repeated(&format!("peer of `{title}`"), places, problems);
}
