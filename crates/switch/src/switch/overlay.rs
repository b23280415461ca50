//! The port of the overlay, and interfaces in its networks.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use weir_config::{GbpPeers, Networks, OverlayConfig, OverlayDscp, OverlayNetwork, PortName};
use weir_engine::lock;
use weir_engine::logs::Logs;
use weir_fabric::PortId;
use weir_port_vxlan::{
    ClaimsGroups, NetworkSpec, OuterDscp, OverlayOptions, OverlaySockets, VxlanPort,
};
use weir_wire::Mac;

use super::evpn::Evpn;
use super::keeping::Kept;
use super::{Keeping, SwitchError};

/// Opens the sockets, or takes over those that another weir has left.
pub(super) fn open(
    overlay: &OverlayConfig,
    keeping: &Keeping,
) -> Result<OverlaySockets, SwitchError> {
    let options = OverlayOptions {
        local: overlay.local.get(),
        interface: overlay.interface.as_ref().map(ToString::to_string),
        port: overlay.port.get(),
        queues: overlay.queues.get().into(),
        mtu: overlay.mtu.get(),
        dscp: match overlay.dscp {
            OverlayDscp::Fixed(dscp) => OuterDscp::Fixed(dscp.get()),
            OverlayDscp::Inherit => OuterDscp::Inherit,
        },
    };
    OverlaySockets::go_on(&options, keeping.queues(&port_name()))
        .map_err(|source| SwitchError::Overlay { help: source.help(), source })
}

/// The overlay in use.
pub(super) struct Overlay {
    pub(super) name: PortName,
    pub(super) id: PortId,
    pub(super) port: Arc<VxlanPort>,
    /// The thread that exchanges announcements with FRR.
    pub(super) evpn: Option<Evpn>,
    /// Hosts where IDs of groups mean other groups, as the log has last named them.
    pub(super) disputed: Arc<Disputed>,
    /// The sockets, if the keeper keeps them across a restart of weir.
    pub(super) kept: Option<Kept>,
}

pub(super) fn port_name() -> PortName {
    OverlayConfig::PORT_NAME.parse().expect("a constant that is a valid name")
}

impl Overlay {
    /// The IP addresses of these stations on this and other hosts, by the station's network and address.
    pub(super) fn owned_by(
        &self,
        stations: &BTreeSet<(u16, Mac)>,
    ) -> BTreeMap<(u16, Mac), Vec<IpAddr>> {
        let mut all = BTreeMap::<_, Vec<_>>::new();
        let shown = self.evpn.as_ref().map(Evpn::shown).unwrap_or_default();
        let mut note = |(network, ip), mac| {
            if stations.contains(&(network, mac)) {
                all.entry((network, mac)).or_default().push(ip);
            }
        };
        shown.here.iter().for_each(|(of, mac)| note(*of, *mac));
        self.port.each_owner(note);
        all.values_mut().for_each(|ips| ips.sort_unstable());
        all
    }

    /// Counters of the overlay's answers, and of claims of IP addresses.
    pub(super) fn answers(&self) -> BTreeMap<String, u64> {
        let shown = self.evpn.as_ref().map(Evpn::shown).unwrap_or_default();
        let claims = [("claims_contested", shown.contested), ("claims_refused", shown.refused)];
        let all = self.port.counters.all().into_iter().chain(claims);
        all.map(|(name, n)| (name.to_owned(), n)).collect()
    }
}

pub(super) fn specs(networks: &Networks) -> Vec<NetworkSpec> {
    let spec = |(number, _, network): (u16, _, &OverlayNetwork)| NetworkSpec {
        number,
        vni: network.vni.get(),
        peers: network.peers.iter().map(|peer| peer.get()).collect(),
        floods_per_s: network.flood_per_second.get(),
        neigh_suppress: network.by_evpn() && network.neigh_suppress,
    };
    networks.of_overlay().map(spec).collect()
}

/// Log messages about hosts where IDs of groups mean other groups.
#[derive(Debug, Default)]
pub(super) struct Disputed {
    said: Mutex<Vec<(IpAddr, Vec<u16>)>>,
    logs: Logs<1>,
}

impl Disputed {
    /// Logs the hosts if they have changed. A change whose message is suppressed is logged by a later call.
    pub(super) fn log(&self, now: Vec<(IpAddr, Vec<u16>)>) {
        let mut said = lock(&self.said);
        let mut is_said = now.is_empty();
        if let Some((host, ids)) = now.first().filter(|_| *said != now) {
            self.logs.say(0, |unsaid| {
                is_said = true;
                tracing::warn!(
                    %host,
                    ?ids,
                    hosts = now.len(),
                    unsaid,
                    "another host has other groups for IDs in [group-ids]; they count as no group"
                );
            });
        }
        if is_said {
            *said = now;
        }
    }
}

pub(super) fn claims_groups(peers: GbpPeers) -> Option<ClaimsGroups> {
    (peers != GbpPeers::None).then(|| Arc::new(move |host| peers.has(host)) as ClaimsGroups)
}
