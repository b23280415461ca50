//! Adds and removes ports that are not guests' interfaces: uplinks, bonds, the overlay, and weir's
//! own ports in networks.

use std::fs::File;
use std::net::IpAddr;
use std::sync::Arc;

use weir_config::{GatewayConfig, NetworkConfig, PortName, UplinkConfig};
use weir_engine::{PortCounters, PortSettings};
use weir_evpn::Links;
use weir_fabric::{MacCheck, PortConfig, Vid, VlanMode};
use weir_policy::schedule::Share;
use weir_port_gateway::{
    Bell, GatewayPort, GatewaySettings, HostSide, HostSocket, LeaseSettings, NamesSettings,
    Service, Store,
};
use weir_port_tap::{Tap, UplinkPort};
use weir_port_vxlan::{OverlaySockets, VxlanPort};

use super::bond::{self, Bond, BondPort};
use super::evpn::{Evpn, EvpnDevices};
use super::gateways::{
    Gateway, HostTaps, LeaseFiles, Serving, dhcp_settings, dhcp6_settings, mac_of, nat_tasks,
    ra_settings,
};
use super::keeping::Kept;
use super::overlay::{self, Overlay, claims_groups};
use super::{Ports, Switch, SwitchError, Uplink, UplinkDevice, port_rules};
use crate::helper::Hands;
use crate::nat::Nat;

/// An uplink's share of each worker.
pub(super) fn uplink_share(config: &UplinkConfig) -> Share {
    Share { weight: config.weight.map_or(1, |weight| weight.get()), window: None }
}

impl Switch {
    /// Adds an uplink.
    ///
    /// # Errors
    /// [`SwitchError`]; nothing has changed then.
    pub fn add_uplink(&self, config: &UplinkConfig) -> Result<(), SwitchError> {
        self.plug_in(config, UplinkDevice::open(config, &self.keeper)?)
    }

    /// Adds an uplink whose device is open.
    ///
    /// # Errors
    /// [`SwitchError`]; nothing has changed then.
    pub fn plug_in(&self, config: &UplinkConfig, device: UplinkDevice) -> Result<(), SwitchError> {
        device.plug_in(self, config)
    }

    /// Adds the port that `make` builds to the switch.
    pub(super) fn plug<P: UplinkPort + 'static>(
        &self,
        config: &UplinkConfig,
        kept: Option<Kept>,
        make: impl FnOnce(Arc<PortCounters>) -> P,
    ) -> Result<Arc<P>, SwitchError> {
        let name = config.name.clone();
        let rules = port_rules(&name, &config.filter)?;
        let settings = PortSettings {
            rules: rules.clone(),
            share: uplink_share(config),
            mtu: config.mtu_held().map(|mtu| mtu.get()),
            ..PortSettings::default()
        };
        let port_config = self.uplink_port_config(config);
        let (id, port) = self
            .engine
            .add_port_with(port_config, settings, |_, counters| Arc::new(make(counters)))
            .map_err(|source| SwitchError::Port { name: name.clone(), source })?;
        let is_bonded = self.bond_of(&name).is_some();
        let started = match is_bonded {
            false => port.start(&self.engine, id),
            true => port.serve(&self.engine, id),
        };
        if let Err(source) = started {
            self.engine.remove_port(id);
            return Err(SwitchError::Watch { name, source });
        }
        let device = config.device();
        tracing::info!(uplink = %name, port = %id, device, "uplink added");
        self.engine.fabric().recall(id, &self.keeper.known(&name));
        let uplink_port: Arc<dyn UplinkPort> = Arc::clone(&port) as _;
        let interface = self.hands.interface(config, &self.control);
        if !is_bonded {
            self.loops.add(id, &name, true, true);
        }
        self.manager.add_uplink(config, id, Arc::clone(&uplink_port), interface);
        let config = config.clone();
        let uplink = Uplink { config, id, port: uplink_port, rules, _kept: kept, bond: None };
        self.ports().uplinks.push(uplink);
        self.settle_mirrors();
        Ok(port)
    }

    /// The bond that an uplink is in.
    pub(super) fn bond_of(&self, uplink: &PortName) -> Option<&PortName> {
        self.bonded.get()?.get(uplink)
    }

    /// The fabric's settings of an uplink's port. Nothing goes through the port of an uplink of a bond: the bond is the
    /// port.
    pub(super) fn uplink_port_config(&self, config: &UplinkConfig) -> PortConfig {
        match self.bond_of(&config.name) {
            None => config.port_config(&self.networks),
            Some(_) => PortConfig::of_a_bond(),
        }
    }

    /// Adds a bond of uplinks that are ports already.
    pub(super) fn plug_in_bond(
        &self,
        config: &UplinkConfig,
        links: Links,
    ) -> Result<(), SwitchError> {
        let (uplinks, senders, mtu) = {
            let ports = self.ports();
            let named = || members(&ports, config).into_iter();
            let uplinks: Vec<_> = named()
                .map(|it| bond::Uplink { name: it.config.name.clone(), id: it.id })
                .collect();
            let senders: Vec<_> = named().map(|it| Arc::clone(&it.port)).collect();
            let mtu = named().filter_map(|it| it.config.mtu_held()).map(|mtu| mtu.get()).min();
            (uplinks, senders, mtu)
        };
        let name = config.name.to_string();
        let make = |counters| BondPort::new(name, senders, counters);
        let port = self.plug(config, None, make)?;
        let id = {
            let ports = self.ports();
            ports.uplinks.iter().find(|it| it.config.name == config.name).map(|it| it.id)
        };
        let Some(id) = id else { return Ok(()) };
        self.engine.change_settings(id, |settings| settings.mtu = mtu);
        let noted = self.keeper.noted().carriers.get(config.name.as_str());
        let noted = noted.map_or(&[][..], Vec::as_slice);
        let bond = Bond::start(config, id, &port, uplinks, noted, &self.engine, links)?;
        let mut ports = self.ports();
        if let Some(uplink) = ports.uplinks.iter_mut().find(|it| it.id == id) {
            uplink.bond = Some(bond);
        }
        Ok(())
    }

    /// Adds the overlay, whose sockets are open.
    pub(super) fn plug_in_overlay(
        &self,
        sockets: OverlaySockets,
        evpn: Option<EvpnDevices>,
    ) -> Result<(), SwitchError> {
        let Some(overlay) = &self.networks.overlay else { return Ok(()) };
        let name = overlay::port_name();
        let kept = self.keeper.keep_queues(&name, sockets.queues());
        let networks = weir_port_vxlan::Networks::new(
            &overlay::specs(&self.networks),
            overlay.port.get(),
            claims_groups(overlay.gbp.clone()),
        );
        let fdb = Arc::clone(self.engine.fabric().fdb());
        let fdb_entries = fdb.capacity();
        let (id, port) = self
            .engine
            .add_port(PortConfig::overlay(fdb_entries), |id, counters| {
                Arc::new(VxlanPort::new(name.to_string(), id, sockets, networks, fdb, counters))
            })
            .map_err(|source| SwitchError::Port { name: name.clone(), source })?;
        self.engine.change_settings(id, |settings| settings.mtu = Some(overlay.mtu.get()));
        self.tell_group_sets(&port);
        for (number, _) in self.networks.by_evpn() {
            if let Some(vid) = Vid::of_network(number) {
                self.engine.fabric().fdb().told_behind(vid, id);
            }
        }
        if let Err(source) = port.start(&self.engine, id) {
            self.engine.remove_port(id);
            return Err(SwitchError::Watch { name, source });
        }
        let (local, udp_port) = (overlay.local, overlay.port);
        tracing::info!(port = %id, %local, %udp_port, mtu = %overlay.mtu, "overlay added");
        self.manager.set_overlay(Arc::clone(&port));
        let Self { engine, networks, owners, hands, keeper, .. } = self;
        let join = |it| Evpn::start(it, (id, &port), engine, networks, owners, hands, keeper);
        let evpn = evpn.map(join).transpose()?;
        self.ports().overlay =
            Some(Overlay { name, id, port, evpn, disputed: Arc::default(), kept });
        Ok(())
    }

    /// Undoes [`plug_in_overlay`](Self::plug_in_overlay).
    pub(super) fn unplug_overlay(&self, mut overlay: Overlay) {
        overlay.evpn.take();
        overlay.port.stop(&self.engine, overlay.id);
        self.engine.remove_port(overlay.id);
        drop(overlay.kept);
    }

    /// Adds weir's port to each network that has an address for weir. The lease files are open.
    pub(super) fn plug_in_gateways(
        &self,
        mut files: LeaseFiles,
        mut taps: HostTaps,
    ) -> Result<(), SwitchError> {
        for (vid, network, config) in self.networks.with_gateway() {
            let files = [false, true].map(|v6| files.remove(&(network.name.clone(), v6)));
            let host = taps.remove(&network.name);
            self.plug_in_gateway(vid, network, config, files, host)?;
        }
        // Otherwise a helper has made the rules.
        if matches!(self.hands, Hands::Own) {
            let rules: Result<Vec<_>, _> =
                nat_tasks(&self.networks).iter().map(Nat::start).collect();
            self.ports().nat = rules.map_err(SwitchError::Nat)?;
        }
        Ok(())
    }

    fn plug_in_gateway(
        &self,
        vid: Vid,
        network: &NetworkConfig,
        config: &GatewayConfig,
        [file, file6]: [Option<File>; 2],
        host: Option<(Tap, Option<HostSocket>)>,
    ) -> Result<(), SwitchError> {
        let (host, asked) = host.unzip();
        let Some(name) = network.port_name() else { return Ok(()) };
        let mac = mac_of(&name);
        let subnets: Vec<_> =
            config.addresses.iter().map(|address| address.get().trunc()).collect();
        let kept = host.as_ref().and_then(|tap| self.keeper.keep_queues(&name, tap.queues()));
        let snoops = self.networks.snooped().any(|snooped| snooped == vid);
        let snooping = self.engine.fabric().snooping().filter(|_| snoops).cloned();
        let settings = GatewaySettings {
            name: name.to_string(),
            vid,
            mac,
            ips: config.addresses.iter().map(|address| address.get().addr()).collect(),
            has_dhcp: config.dhcp.is_some(),
            has_names: config.answers_names(),
            ra: config.ra.then(|| ra_settings(config)),
            snooping: None,
            host: host.map(HostSide::new).transpose().map_err(SwitchError::Start)?,
        };
        let port_config = PortConfig {
            vlan: VlanMode::Access(vid),
            mac_check: MacCheck::Pinned(mac),
            ..PortConfig::vif()
        };
        let bell = Bell::new().map_err(SwitchError::Start)?;
        let fdb = Arc::clone(self.engine.fabric().fdb());
        let (id, port) = self
            .engine
            .add_port(port_config, |id, counters| {
                let snooping = snooping.map(|snooping| (snooping, id));
                let settings = GatewaySettings { snooping, ..settings };
                Arc::new(GatewayPort::new(settings, bell, fdb, counters))
            })
            .map_err(|source| SwitchError::Port { name: name.clone(), source })?;
        // Source guards take note of the leases that this port gives.
        self.engine.change_settings(id, |settings| settings.gives_leases = true);
        let dhcp = config.ipv4().zip(config.dhcp.as_ref());
        let dhcp = dhcp.map(|(own, dhcp)| (dhcp_settings(own, dhcp, config), file.map(Store::new)));
        let dhcp6 = dhcp6_settings(config).map(|settings| (settings, file6.map(Store::new)));
        let leases = LeaseSettings { dhcp, dhcp6 };
        let names = config.answers_names().then(|| NamesSettings {
            domain: config.domain().to_owned(),
            subnets: subnets.clone(),
            dial: config.asks_resolver().then(|| self.hands.dial_resolver(&self.networks)),
            host: asked.flatten(),
        });
        let started = Service::start(&port, leases, names).and_then(|service| {
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
        let own = port.addresses().iter().copied();
        let relied_on = own.chain(config.routers_elsewhere().map(IpAddr::from)).collect();
        let served = Arc::clone(&port);
        let fixed = config.fixed.clone();
        self.served.add(Serving { id, vid, subnets, relied_on, fixed, port: served });
        let network = network.name.clone();
        let gateway = Gateway { name, network, id, vid, port, service, kept };
        self.ports().gateways.push(gateway);
        Ok(())
    }

    /// Undoes [`plug_in_gateways`](Self::plug_in_gateways).
    pub(super) fn unplug_gateways(&self, gateways: Vec<Gateway>) {
        for Gateway { id, port, service, kept, .. } in gateways {
            port.stop(&self.engine, id);
            self.engine.remove_port(id);
            drop((service, kept));
        }
    }
}

/// The uplinks of a bond, in its order.
fn members<'p>(ports: &'p Ports, bond: &UplinkConfig) -> Vec<&'p Uplink> {
    let find = |name: &PortName| ports.uplinks.iter().find(|it| it.config.name == *name);
    bond.members().iter().filter_map(find).collect()
}
