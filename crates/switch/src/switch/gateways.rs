//! Networks in which weir itself is a station: its port there, and guests that it serves.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use ipnet::Ipv4Net;
use rustix::fs::OFlags;
use weir_config::{
    Config, DhcpConfig, GatewayConfig, MacAddress, NetworkConfig, NetworkName, Networks, PortName,
    VifConfig,
};
use weir_engine::{PortCounters, lock};
use weir_fabric::{MacCheck, PortConfig, PortId, SourceGuard, Vid, VlanMode};
use weir_port_gateway::{Bell, DhcpSettings, GatewayPort, GatewaySettings, Guest, Service, Store};
use weir_port_tap::UplinkPort;
use weir_wire::Mac;

use super::{Switch, SwitchError};

/// Where the service manager has weir keep what outlives it (systemd.exec(5), `StateDirectory=`).
const STATE_DIRECTORY: &str = "STATE_DIRECTORY";

/// Files of leases, by network.
pub(super) type LeaseFiles = BTreeMap<NetworkName, File>;

/// Opens the file of leases of each network with DHCP.
///
/// # Errors
/// [`SwitchError::Leases`]
pub(super) fn open_leases(config: &Config) -> Result<LeaseFiles, SwitchError> {
    let dhcp = |(_, network, gateway): (_, &NetworkConfig, &GatewayConfig)| {
        gateway.dhcp.is_some().then(|| network.name.clone())
    };
    let open = |name: NetworkName| {
        let path = leases_path(config.switch.control.as_path(), &name);
        // That of the control socket is made for it later.
        let dir = path.parent().unwrap_or(Path::new("/"));
        let made = std::fs::create_dir_all(dir);
        let open = || {
            OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .mode(0o600)
                // In a directory that others may write to it could be somebody else's file.
                .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
                .open(&path)
                .and_then(|file| match file.metadata()?.is_file() {
                    true => Ok(file),
                    false => Err(io::Error::other("not a regular file")),
                })
        };
        let file = made.and_then(|()| open());
        file.map(|file| (name, file)).map_err(|source| SwitchError::Leases { path, source })
    };
    config.networks.with_gateway().filter_map(dhcp).map(open).collect()
}

/// In the directory that the service manager names, or beside the control socket.
fn leases_path(control: &Path, network: &NetworkName) -> PathBuf {
    let named = std::env::var_os(STATE_DIRECTORY);
    let first = named.as_deref().and_then(|all| std::env::split_paths(all).next());
    let dir = first.filter(|dir| dir.is_absolute());
    let file = format!("{network}.leases");
    dir.map_or_else(|| control.with_file_name(&file), |dir| dir.join(&file))
}

/// weir in a network.
pub(super) struct Gateway {
    pub(super) name: PortName,
    pub(super) id: PortId,
    pub(super) vid: Vid,
    pub(super) port: Arc<GatewayPort>,
    pub(super) counters: Arc<PortCounters>,
    pub(super) service: Service,
}

impl Gateway {
    /// Addresses that were given to stations, by the station's VLAN and address.
    pub(super) fn given(&self) -> BTreeMap<(Vid, Mac), Vec<IpAddr>> {
        let mut all = BTreeMap::<_, Vec<_>>::new();
        for (address, lease, _) in self.service.leases() {
            all.entry((self.vid, lease.client.mac)).or_default().push(address.into());
        }
        all
    }

    /// What it has answered.
    pub(super) fn answers(&self) -> BTreeMap<String, u64> {
        let all = self.port.answered().all().into_iter();
        all.filter(|(_, n)| *n > 0).map(|(name, n)| (name.to_owned(), n)).collect()
    }
}

/// weir in a network, for who tells it of guests.
struct Serving {
    vid: Vid,
    subnet: Option<Ipv4Net>,
    /// weir's addresses, and the router's.
    relied_on: Vec<IpAddr>,
    port: Arc<GatewayPort>,
}

/// Ports of weir's own that are told of guests.
#[derive(Default)]
pub(super) struct Served(Mutex<Vec<Serving>>);

impl Served {
    /// The guest behind a port is as `config` says.
    pub(super) fn set(&self, id: PortId, config: &VifConfig, networks: &Networks) {
        let VlanMode::Access(vid) = config.port_config(networks).vlan else {
            self.remove(id);
            return;
        };
        for serving in &*lock(&self.0) {
            let guest = || Guest {
                vif: config.name.to_string(),
                mtu: config.mtu.map(|mtu| mtu.get()),
                fixed: serving.subnet.and_then(|subnet| configured_in(subnet, config)),
            };
            serving.port.set_guest(id, (serving.vid == vid).then(guest));
        }
    }

    /// What a guest without a guard of its own is held to: in a network in which others rely on weir it is no router and
    /// no server, unless it is configured as one.
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

    /// Nobody is behind the port any more.
    pub(super) fn remove(&self, id: PortId) {
        lock(&self.0).iter().for_each(|serving| serving.port.set_guest(id, None));
    }
}

/// The address that a guest's frames are held to, if it is one of the subnet and the only one.
fn configured_in(subnet: Ipv4Net, config: &VifConfig) -> Option<Ipv4Addr> {
    let own = config.guarding.own_addresses().filter_map(|address| match address {
        IpAddr::V4(address) => Some(address).filter(|address| subnet.contains(address)),
        IpAddr::V6(_) => None,
    });
    let mut own = own.fuse();
    own.next().filter(|_| own.next().is_none())
}

fn dhcp_settings(own: Ipv4Net, dhcp: &DhcpConfig) -> DhcpSettings {
    DhcpSettings {
        own,
        range: dhcp.range.first..=dhcp.range.last,
        router: dhcp.router,
        dns: dhcp.dns.clone(),
        domain: dhcp.domain.as_ref().map(ToString::to_string),
        lease_secs: u32::try_from(dhcp.lease_time.get()).unwrap_or(u32::MAX),
        fixed: dhcp.fixed.iter().map(|it| (it.vif.to_string(), it.address)).collect(),
    }
}

impl Switch {
    /// Puts weir into each network that has an address of its own, with open files of leases.
    pub(super) fn plug_in_gateways(&self, mut files: LeaseFiles) -> Result<(), SwitchError> {
        for (vid, network, config) in self.networks.with_gateway() {
            let Some(name) = network.port_name() else { continue };
            self.plug_in_gateway(vid, &name, config, files.remove(&network.name))?;
        }
        Ok(())
    }

    fn plug_in_gateway(
        &self,
        vid: Vid,
        name: &PortName,
        config: &GatewayConfig,
        file: Option<File>,
    ) -> Result<(), SwitchError> {
        let mac = Mac::from(MacAddress::derived_from(name));
        let settings = GatewaySettings {
            name: name.to_string(),
            vid,
            mac,
            ips: config.addresses.iter().map(|address| address.get().addr()).collect(),
            has_dhcp: config.dhcp.is_some(),
        };
        let port_config = PortConfig {
            vlan: VlanMode::Access(vid),
            mac_check: MacCheck::Pinned(mac),
            ..PortConfig::vif()
        };
        let bell = Bell::new().map_err(SwitchError::Start)?;
        let fdb = Arc::clone(self.engine.fabric().fdb());
        let mut made = None;
        let (id, port) = self
            .engine
            .add_port(port_config, |_, counters| {
                made = Some(Arc::clone(&counters));
                Arc::new(GatewayPort::new(settings, bell, fdb, counters))
            })
            .map_err(|source| SwitchError::Port { name: name.clone(), source })?;
        // What it gives, a source guard takes note of.
        self.engine.set_source_guard(id, None, true);
        let dhcp = config.ipv4().zip(config.dhcp.as_ref());
        let dhcp = dhcp.map(|(own, dhcp)| (dhcp_settings(own, dhcp), file.map(Store::new)));
        let started = Service::start(&port, dhcp).and_then(|service| {
            port.start(&self.engine, id)?;
            Ok(service)
        });
        let service = started.map_err(|source| {
            self.engine.remove_port(id);
            SwitchError::Gateway { name: name.clone(), source }
        })?;
        let addresses: Vec<_> = config.addresses.iter().map(ToString::to_string).collect();
        let dhcp = config.dhcp.is_some();
        tracing::info!(port = %id, name = %name, %mac, addresses = addresses.join(", "), dhcp, "weir is in a network");
        let own = config.addresses.iter().map(|address| address.get().addr());
        let router = config.dhcp.as_ref().and_then(|dhcp| dhcp.router);
        let relied_on = own.chain(router.map(IpAddr::from)).collect();
        let (subnet, served) = (config.ipv4(), Arc::clone(&port));
        lock(&self.served.0).push(Serving { vid, subnet, relied_on, port: served });
        let counters = made.unwrap_or_default();
        let gateway = Gateway { name: name.clone(), id, vid, port, counters, service };
        self.ports().gateways.push(gateway);
        Ok(())
    }

    /// Ends what [`plug_in_gateways`](Self::plug_in_gateways) began.
    pub(super) fn unplug_gateways(&self, gateways: Vec<Gateway>) {
        for Gateway { id, port, service, .. } in gateways {
            port.stop(&self.engine, id);
            self.engine.remove_port(id);
            drop(service);
        }
    }
}
