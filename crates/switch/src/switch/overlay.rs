//! The port of the overlay, and interfaces in its networks.

use std::sync::Arc;

use weir_config::{
    Config, NetworkError, Networks, OverlayConfig, OverlayNetwork, PortName, VifConfig,
};
use weir_engine::PortCounters;
use weir_fabric::{PortConfig, PortId, Vid};
use weir_port_tap::UplinkPort;
use weir_port_vxlan::{NetworkSpec, OverlayOptions, OverlaySockets, VxlanPort};

use super::evpn::{Evpn, EvpnDevices};
use super::keeping::Kept;
use super::{Keeping, Switch, SwitchError, UplinkDevice, refused};
use crate::control::Response;
use crate::stats::{Limit, Limits, limits};

/// What a switch has opened before it gives up its privileges.
#[derive(Default)]
pub struct Devices {
    /// Those of all uplinks, in their order.
    pub uplinks: Vec<UplinkDevice>,
    /// The overlay's sockets, if there is one.
    pub overlay: Option<OverlaySockets>,
    /// What FRR looks at, if it says who is where.
    pub evpn: Option<EvpnDevices>,
}

impl Devices {
    /// What `config` names; a device that another weir has left goes on.
    ///
    /// # Errors
    /// [`SwitchError::Uplink`], [`SwitchError::Overlay`], [`SwitchError::Evpn`]; what was opened is closed.
    pub fn open(config: &Config, keeping: &Keeping) -> Result<Self, SwitchError> {
        let overlay = config.networks.overlay.as_ref();
        Ok(Self {
            uplinks: UplinkDevice::open_all(&config.uplinks, keeping)?,
            overlay: overlay.map(|overlay| open(overlay, keeping)).transpose()?,
            evpn: EvpnDevices::open(&config.networks, keeping)?,
        })
    }
}

fn open(overlay: &OverlayConfig, keeping: &Keeping) -> Result<OverlaySockets, SwitchError> {
    let options = OverlayOptions {
        local: overlay.local.get(),
        interface: overlay.interface.as_ref().map(ToString::to_string),
        port: overlay.port.get(),
        queues: overlay.queues.get().into(),
        mtu: overlay.mtu.get(),
    };
    OverlaySockets::go_on(&options, keeping.queues(&port_name()))
        .map_err(|source| SwitchError::Overlay { help: source.help(), source })
}

/// The overlay in use.
pub(super) struct Overlay {
    pub(super) name: PortName,
    pub(super) id: PortId,
    pub(super) port: Arc<VxlanPort>,
    pub(super) counters: Arc<PortCounters>,
    /// The thread that FRR is told and heard by.
    pub(super) evpn: Option<Evpn>,
    /// Its sockets outlive this weir.
    pub(super) kept: Option<Kept>,
}

fn port_name() -> PortName {
    OverlayConfig::PORT_NAME.parse().expect("a constant that is a valid name")
}

fn specs(networks: &Networks) -> Vec<NetworkSpec> {
    let spec = |(number, _, network): (u16, _, &OverlayNetwork)| NetworkSpec {
        number,
        vni: network.vni.get(),
        peers: network.peers.iter().map(|peer| peer.get()).collect(),
        floods_per_s: network.flood_per_second.get(),
    };
    networks.of_overlay().map(spec).collect()
}

impl Switch {
    /// Adds the overlay, whose sockets are open.
    pub(super) fn plug_in_overlay(
        &self,
        sockets: OverlaySockets,
        evpn: Option<EvpnDevices>,
    ) -> Result<(), SwitchError> {
        let Some(overlay) = &self.networks.overlay else { return Ok(()) };
        let name = port_name();
        let kept = self.keeper.keep_queues(&name, sockets.queues());
        let networks = weir_port_vxlan::Networks::new(&specs(&self.networks), overlay.port.get());
        let fdb = Arc::clone(self.engine.fabric().fdb());
        let (mut made, fdb_entries) = (None, fdb.capacity());
        let (id, port) = self
            .engine
            .add_port(PortConfig::overlay(fdb_entries), |id, counters| {
                made = Some(Arc::clone(&counters));
                Arc::new(VxlanPort::new(name.to_string(), id, sockets, networks, fdb, counters))
            })
            .map_err(|source| SwitchError::Port { name: name.clone(), source })?;
        self.engine.set_mtu(id, Some(overlay.mtu.get()));
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
        let counters = made.unwrap_or_default();
        let evpn = evpn.map(|devices| self.join_fabric(devices, id, &port)).transpose()?;
        self.ports().overlay = Some(Overlay { name, id, port, counters, evpn, kept });
        Ok(())
    }

    /// How many addresses of other hosts are known, in all and in each network.
    pub(super) fn overlay_limits(&self, id: PortId) -> Limits {
        let mut all = limits([("addresses", self.addresses(id))]);
        all.extend(self.networks.of_overlay().filter_map(|(number, network, _)| {
            let known = self.engine.fabric().fdb().learned_in(Vid::of_network(number)?);
            let limit = Limit::new(known, self.engine.fabric().fdb().per_network_max());
            Some((format!("addresses_{}", network.name), limit))
        }));
        all
    }

    /// Ends what [`plug_in_overlay`](Self::plug_in_overlay) began.
    pub(super) fn unplug_overlay(&self, mut overlay: Overlay) {
        overlay.evpn.take();
        overlay.port.stop(&self.engine, overlay.id);
        self.engine.remove_port(overlay.id);
        drop(overlay.kept);
    }

    /// Puts an interface into its network, or says why it cannot be there.
    pub(super) fn settle(&self, config: &mut VifConfig) -> Option<Response> {
        let refusal = |error: NetworkError| refused(&error, error.help());
        self.networks.settle(config).err().map(refusal)
    }
}
