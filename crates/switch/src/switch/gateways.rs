//! Networks in which weir itself is a station: weir's port there, and the guests that it serves.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use ipnet::{IpNet, Ipv4Net};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
use weir_config::{
    BootClient, BootConfig, Config, DhcpConfig, FixedAddress, Forward, GatewayConfig, LeaseTime,
    MacAddress, NetworkConfig, NetworkName, Networks, PortName, VifConfig,
};
use weir_engine::lock;
use weir_fabric::{PortId, SourceGuard, Vid, VlanMode};
use weir_foreign::place;
use weir_limits::RA_ROUTER_SECS;
use weir_port_gateway::{
    Asked, BootSettings, Dhcp6Settings, DhcpSettings, GatewayPort, Guest, HostSocket, RaSettings,
    Service,
};
use weir_port_tap::{Tap, TapOptions};
use weir_wire::Mac;

use super::keeping::Kept;
use super::{Keeping, SwitchError, tap_mac};
use crate::nat::{HostInterface, NatForward, NatTask, check_others, tell_resolved};

/// The directory in which the service manager lets weir keep state across restarts (systemd.exec(5),
/// `StateDirectory=`).
const STATE_DIRECTORY: &str = "STATE_DIRECTORY";

/// Lease files, by network and IP version (`true`: IPv6).
pub(super) type LeaseFiles = BTreeMap<(NetworkName, bool), File>;

/// Opens the lease files of each network in which weir gives addresses.
///
/// # Errors
/// [`SwitchError::Leases`]
pub(super) fn open_leases(config: &Config) -> Result<LeaseFiles, SwitchError> {
    let given = |(_, network, gateway): (_, &NetworkConfig, &GatewayConfig)| {
        let both = [(false, gateway.dhcp.is_some()), (true, gateway.dhcp6)];
        let name = network.name.clone();
        both.into_iter().filter(|(_, is)| *is).map(move |(v6, _)| (name.clone(), v6))
    };
    let open = |of: (NetworkName, bool)| {
        let path = leases_path(config.switch.control.as_path(), &of);
        let file = place::open_or_make(&path);
        file.map(|file| (of, file)).map_err(|source| SwitchError::Leases { path, source })
    };
    config.networks.with_gateway().flat_map(given).map(open).collect()
}

/// TAPs that connect the host to networks, by network, each with the socket at which the host asks for names.
pub(super) type HostTaps = BTreeMap<NetworkName, (Tap, Option<HostSocket>)>;

/// Opens the TAP of each network with a way out through the host, and gives the host its addresses.
///
/// # Errors
/// [`SwitchError::WayOut`]
pub(super) fn open_taps(networks: &Networks, keeping: &Keeping) -> Result<HostTaps, SwitchError> {
    let mut taps = HostTaps::new();
    for (vid, network, gateway) in networks.with_gateway() {
        let (Some(nat), Some(name)) = (&gateway.nat, network.port_name()) else { continue };
        let refused = |help, source: Box<dyn std::error::Error + Send + Sync>| {
            SwitchError::WayOut { network: network.name.clone(), help, source }
        };
        let addresses: Vec<IpNet> = gateway.addresses.iter().map(|it| it.get()).collect();
        check_others(&nat.interface, &addresses, false)
            .map_err(|(help, source)| refused(help, source.into()))?;
        let overlay = networks.overlay.as_ref().filter(|_| vid.network().is_some());
        let mtu = overlay.map(|overlay| overlay.mtu.get());
        let options = TapOptions {
            name: nat.interface.to_string(),
            queues: 1,
            mtu,
            mac: tap_mac::of(&nat.interface),
        };
        let tap = Tap::go_on(&options, keeping.queues(&name))
            .map_err(|error| refused(error.help(), error.into()))?;
        let mac = Some(mac_of(&name)).filter(|mac| tap.info().mac != *mac);
        let host = HostInterface { name: &nat.interface, mac, addresses: &addresses, bridge: None };
        host.set_up().map_err(|source| refused(None, source.into()))?;
        let own = gateway.ipv4().filter(|_| gateway.answers_names()).map(|own| own.addr());
        let asked = own.and_then(names_socket);
        if let Some((_, own)) = &asked {
            tell_resolved(&nat.interface, *own, gateway.domain());
        }
        taps.insert(network.name.clone(), (tap, asked));
    }
    Ok(taps)
}

/// A socket at which the host's programs ask for names of guests; `None` if another server has the port.
fn names_socket(own: Ipv4Addr) -> Option<HostSocket> {
    let open = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
        // The weir whose place this one takes still has such a socket.
        sockopt::set_socket_reuseport(&socket, true)?;
        bind(&socket, &SocketAddrV4::new(own, 53))?;
        Ok((socket, own))
    };
    let failed = |error: &Errno| {
        tracing::warn!(%error, "the host cannot ask {own} for names of guests");
    };
    open().inspect_err(failed).ok()
}

/// weir's MAC address behind its port of this name.
pub(super) fn mac_of(port: &PortName) -> Mac {
    Mac::from(MacAddress::derived_from(port))
}

/// The rules of each way out.
pub(crate) fn nat_tasks(networks: &Networks) -> Vec<NatTask> {
    let task = |(_, _, gateway): (_, _, &GatewayConfig)| {
        let nat = gateway.nat.as_ref()?;
        let forward = |it: &Forward| {
            let guest = gateway.fixed_of(&it.vif)?;
            let Forward { protocol, port, vif_port, .. } = *it;
            Some(NatForward { protocol, port, guest, guest_port: vif_port })
        };
        Some(NatTask {
            interface: nat.interface.clone(),
            addresses: gateway.addresses.iter().map(|address| address.get()).collect(),
            forwards: nat.forward.iter().filter_map(forward).collect(),
        })
    };
    networks.with_gateway().filter_map(task).collect()
}

/// The path is in the directory that the service manager names, or beside the control socket.
fn leases_path(control: &Path, (network, v6): &(NetworkName, bool)) -> PathBuf {
    let named = std::env::var_os(STATE_DIRECTORY);
    let first = named.as_deref().and_then(|all| std::env::split_paths(all).next());
    let dir = first.filter(|dir| dir.is_absolute());
    let file = format!("{network}.leases{}", if *v6 { "6" } else { "" });
    dir.map_or_else(|| control.with_file_name(&file), |dir| dir.join(&file))
}

/// weir's port in a network, with its service.
pub(super) struct Gateway {
    pub(super) name: PortName,
    pub(super) network: NetworkName,
    pub(super) id: PortId,
    pub(super) vid: Vid,
    pub(super) port: Arc<GatewayPort>,
    pub(super) service: Service,
    /// The host's TAP, if the keeper keeps it across a restart of weir.
    pub(super) kept: Option<Kept>,
}

impl Gateway {
    /// Leased addresses, by the station's VLAN and MAC address.
    pub(super) fn given(&self) -> BTreeMap<(Vid, Mac), Vec<IpAddr>> {
        let mut all = BTreeMap::<_, Vec<_>>::new();
        for (address, mac) in self.service.bound() {
            all.entry((self.vid, mac)).or_default().push(address);
        }
        all
    }

    /// Counters of weir's answers.
    pub(super) fn answers(&self) -> BTreeMap<String, u64> {
        let all = self.port.answered().all().into_iter();
        all.filter(|(_, n)| *n > 0).map(|(name, n)| (name.to_owned(), n)).collect()
    }
}

/// weir's port in a network, as a receiver of facts about guests.
pub(super) struct Serving {
    pub(super) id: PortId,
    pub(super) vid: Vid,
    pub(super) subnets: Vec<IpNet>,
    /// weir's addresses, and the router's.
    pub(super) relied_on: Vec<IpAddr>,
    pub(super) fixed: Vec<FixedAddress>,
    pub(super) port: Arc<GatewayPort>,
}

/// weir's own ports, which need to know the guests.
#[derive(Default)]
pub(super) struct Served(Mutex<Vec<Serving>>);

impl Served {
    /// Adds one of weir's own ports.
    pub(super) fn add(&self, serving: Serving) {
        lock(&self.0).push(serving);
    }

    /// Notes that the guest behind a port is as `config` says.
    pub(super) fn set(&self, id: PortId, config: &VifConfig, networks: &Networks) {
        let VlanMode::Access(vid) = config.port_config(networks).vlan else {
            self.remove(id);
            return;
        };
        for serving in &*lock(&self.0) {
            let guest = || Guest {
                vif: config.name.to_string(),
                mtu: config.mtu.map(|mtu| mtu.get()),
                fixed: configured_in(&serving.subnets, config),
                ips: ips_in(&serving.subnets, config).collect(),
            };
            serving.port.set_guest(id, (serving.vid == vid).then(guest));
        }
    }

    /// The guard of a guest that has none configured: in a network in which other guests rely on weir, the guest may
    /// be neither a router nor a server, unless it is configured as one.
    pub(super) fn roles(
        &self,
        config: &VifConfig,
        networks: &Networks,
    ) -> Option<Arc<SourceGuard>> {
        let VlanMode::Access(vid) = config.port_config(networks).vlan else { return None };
        let all = lock(&self.0);
        let serving = all.iter().find(|serving| serving.vid == vid);
        let serving = serving.filter(|_| !config.guarding.router)?;
        Some(Arc::new(SourceGuard::of_roles(serving.relied_on.clone())))
    }

    /// weir's port in the network of this guest.
    pub(super) fn port_for(&self, config: &VifConfig, networks: &Networks) -> Option<PortId> {
        let VlanMode::Access(vid) = config.port_config(networks).vlan else { return None };
        lock(&self.0).iter().find(|serving| serving.vid == vid).map(|serving| serving.id)
    }

    /// The fault of a guest's addresses that its last request for a neighbour shows, if it shows one.
    pub(super) fn astray(&self, id: PortId, vif: &PortName) -> Option<String> {
        let all = lock(&self.0);
        let (it, (asked, other)) = all.iter().find_map(|it| Some((it, it.port.asked(id)?)))?;
        let says = astray(&it.subnets, asked, other.as_deref());
        let fixed = it.fixed.iter().find(|it| it.vif == *vif && it.address.is_ipv4());
        let unlike = |from: IpAddr, own: IpAddr| {
            let says = format!(
                "its guest uses {from}, and its own is {own} (`fixed`): `forward` leads there"
            );
            (from != own).then_some(says)
        };
        says.or_else(|| unlike(asked.from?, fixed?.address))
    }

    /// Notes that there is no guest behind the port any more.
    pub(super) fn remove(&self, id: PortId) {
        lock(&self.0).iter().for_each(|serving| serving.port.set_guest(id, None));
    }
}

/// After this number of seconds in which a guest has asked for a neighbour, nobody seems to answer.
const UNANSWERED_SECS: u32 = 3;

/// The fault of a guest's addresses that its request for a neighbour shows. `other` is a guest that uses the same
/// address.
fn astray(subnets: &[IpNet], asked: Asked, other: Option<&str>) -> Option<String> {
    let Asked { from, target, seconds, .. } = asked;
    let own: Vec<_> = subnets.iter().filter(|it| it.addr().is_ipv4()).map(IpNet::trunc).collect();
    let subnet = own.first()?;
    let is_within = |ip: &IpAddr| own.iter().any(|it| it.contains(ip));
    if let Some((from, other)) = from.zip(other) {
        return Some(format!(
            "its guest uses {from}, and so does {other}: one of them needs another address"
        ));
    }
    if let Some(from) = from.filter(|from| !is_within(from)) {
        return Some(format!(
            "its guest uses {from}, which is not of the network's {subnet}: in the guest, another address, or DHCP"
        ));
    }
    if !is_within(&target) {
        return Some(format!(
            "its guest looks for {target} in its own network, which is {subnet}: in the guest, netmask and routes"
        ));
    }
    (seconds >= UNANSWERED_SECS).then(|| {
        format!(
            "its guest asks for {target} again and again, and nobody answers: `ip route` in the guest says if that is \
             its gateway; else the station with this address is away"
        )
    })
}

/// Addresses in the subnets among those that a guest may send from.
fn ips_in<'c>(subnets: &'c [IpNet], config: &'c VifConfig) -> impl Iterator<Item = IpAddr> + 'c {
    let own = config.guarding.own_addresses();
    own.filter(|address| subnets.iter().any(|subnet| subnet.contains(address)))
}

/// The IPv4 address in the subnets from which a guest may send, if there is exactly one.
fn configured_in(subnets: &[IpNet], config: &VifConfig) -> Option<Ipv4Addr> {
    let mut own = ips_in(subnets, config)
        .filter_map(|address| match address {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        })
        .fuse();
    own.next().filter(|_| own.next().is_none())
}

pub(super) fn ra_settings(config: &GatewayConfig) -> RaSettings {
    let prefixes = config.addresses.iter().filter_map(|address| match address.get() {
        IpNet::V6(net) => Some(net.trunc()),
        IpNet::V4(_) => None,
    });
    let dns = config.dns.iter().filter_map(|server| match server {
        IpAddr::V6(server) => Some(*server),
        IpAddr::V4(_) => None,
    });
    // Without a way out through the host, weir is no router.
    let router_secs = if config.nat.is_some() { RA_ROUTER_SECS } else { 0 };
    let (prefixes, dns) = (prefixes.collect(), dns.collect());
    RaSettings { prefixes, dns, domain: domain(config), managed: config.dhcp6, router_secs }
}

/// The domain that weir tells guests.
fn domain(config: &GatewayConfig) -> Option<String> {
    let is_configured = config.dhcp.as_ref().is_some_and(|dhcp| dhcp.domain.is_some());
    (is_configured || config.answers_names()).then(|| config.domain().to_owned())
}

pub(super) fn dhcp_settings(
    own: Ipv4Net,
    dhcp: &DhcpConfig,
    config: &GatewayConfig,
) -> DhcpSettings {
    let dns = config.dns.iter().filter_map(|server| match server {
        IpAddr::V4(server) => Some(*server),
        IpAddr::V6(_) => None,
    });
    DhcpSettings {
        own,
        range: dhcp.range.first..=dhcp.range.last,
        router: dhcp.router,
        routes: dhcp.routes.iter().map(|it| (it.destination, it.gateway)).collect(),
        dns: dns.collect(),
        domain: domain(config),
        lease_secs: u32::try_from(dhcp.lease_time.get()).unwrap_or(u32::MAX),
        fixed: fixed(config, |ip| if let IpAddr::V4(ip) = ip { Some(ip) } else { None }),
        boot: boot_settings(&dhcp.boot),
    }
}

/// Addresses of the first IPv6 subnet.
pub(super) fn dhcp6_settings(config: &GatewayConfig) -> Option<Dhcp6Settings> {
    let own = config.addresses.iter().find_map(|address| match address.get() {
        IpNet::V6(own) => Some(own),
        IpNet::V4(_) => None,
    });
    let lease_time = config.dhcp.as_ref().map_or(LeaseTime::DEFAULT, |dhcp| dhcp.lease_time);
    let lease_secs = u32::try_from(lease_time.get()).unwrap_or(u32::MAX);
    let fixed = fixed(config, |ip| if let IpAddr::V6(ip) = ip { Some(ip) } else { None });
    own.filter(|_| config.dhcp6).map(|own| Dhcp6Settings { own, lease_secs, fixed })
}

/// The fixed addresses of one IP version.
fn fixed<A>(config: &GatewayConfig, of: impl Fn(IpAddr) -> Option<A>) -> BTreeMap<String, A> {
    config.fixed.iter().filter_map(|it| Some((it.vif.to_string(), of(it.address)?))).collect()
}

fn boot_settings(boot: &BootConfig) -> BootSettings {
    let mut settings = BootSettings { server: boot.server, ..BootSettings::default() };
    for it in &boot.files {
        let file = it.file.clone();
        match it.client {
            BootClient::Other => settings.others = Some(file),
            BootClient::Ipxe => settings.ipxe = Some(file),
            BootClient::Architecture(number) => {
                settings.by_architecture.insert(number, file);
            }
        }
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_a_network_is_said_of_a_request() {
        let subnets = ["fd00:77::1/64".parse().unwrap(), "192.168.77.1/24".parse().unwrap()];
        let says = |from: &str, target: &str, seconds, other: Option<&str>| {
            let (from, target) = (from.parse().ok(), target.parse().unwrap());
            astray(&subnets, Asked { from, target, seconds, at_secs: 0 }, other).unwrap_or_default()
        };
        let (own, near) = ("192.168.77.10", "192.168.77.11");
        assert_eq!(says(own, near, 2, None), "");
        assert_eq!(says("-", near, 1, None), "", "a probe");
        for (said, part) in [
            (
                says("10.5.5.5", "10.5.5.1", 1, None),
                "uses 10.5.5.5, which is not of the network's 192.168.77.0/24",
            ),
            (says(own, "192.5.5.5", 1, None), "looks for 192.5.5.5"),
            (says(own, near, 3, None), "asks for 192.168.77.11 again and again"),
            (says(own, near, 1, Some("db0")), "uses 192.168.77.10, and so does db0"),
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
        let target = near.parse().unwrap();
        let asked = Asked { from: None, target, seconds: 9, at_secs: 0 };
        assert_eq!(astray(&subnets[..1], asked, None), None, "a network of IPv6");
    }
}
