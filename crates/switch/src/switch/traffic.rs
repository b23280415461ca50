//! Facts that show whether traffic passes at a port, and which other hosts weir hears from.

use std::collections::BTreeMap;
use std::net::IpAddr;

use weir_config::VlanMode;
use weir_engine::PortCounters;
use weir_engine::clock;
use weir_engine::guest::PortInfo;
use weir_fabric::{Claim, PortId, Reach, Vid};
use weir_port_vxlan::Heard;

use super::shown::seconds_since;
use super::{Overlay, Switch, Uplink, Vif};
use crate::control::Response;
use crate::explain::{
    HostHeard, OverlayExplanation, OverlayNetworkExplanation, TrafficExplanation,
};
use crate::stats::PortState;

impl Switch {
    pub(super) fn vif_traffic(&self, vif: &Vif) -> TrafficExplanation {
        let PortInfo { state, stop_reason, stopped_ns, .. } = vif.port.info();
        TrafficExplanation {
            state: state.into(),
            last_error: stop_reason,
            last_error_s: seconds_since(stopped_ns),
            astray: self.served.astray(vif.port.id(), &vif.config.name),
            ..self.traffic(vif.port.id(), &vif.config.vlan, vif.port.interface().counters())
        }
    }

    pub(super) fn uplink_traffic(&self, uplink: &Uplink) -> TrafficExplanation {
        let last_error = uplink.port.trouble();
        let state = if last_error.is_some() { PortState::Stopped } else { PortState::Running };
        let counters = uplink.port.service().counters();
        let of = self.traffic(uplink.id, &uplink.config.vlan, counters);
        TrafficExplanation { state, last_error, ..of }
    }

    fn traffic(&self, id: PortId, vlan: &VlanMode, counters: &PortCounters) -> TrafficExplanation {
        let now_secs = clock::secs(clock::now_ns());
        let fabric = self.engine.fabric();
        let Reach { active, silent, isolated } = fabric.reach(id);
        // A configured address does not prove that the station was heard.
        let heard =
            fabric.fdb().behind(id, now_secs).filter(|it| !matches!(it.claim, Claim::Pinned));
        let frames = |queues: &[weir_engine::stats::QueueCounters]| {
            queues.iter().map(|queue| queue.frames.get()).sum::<u64>()
        };
        TrafficExplanation {
            is_mirror: !vlan.mirrored().is_empty(),
            vlan: match vlan {
                VlanMode::Unset => "its VLANs".to_owned(),
                VlanMode::Network(_) | VlanMode::Mirror(_) => vlan.to_string(),
                VlanMode::Access(_) | VlanMode::Trunk { .. } => format!("VLAN {vlan}"),
            },
            reaches: active,
            silent,
            isolated,
            addresses: fabric.fdb().learned_by(id).into(),
            heard_s: heard.map(|it| it.age_secs).min(),
            rx_frames: frames(&counters.rx),
            tx_frames: frames(&counters.tx),
            drops: counters.drops().map(|(reason, n)| (reason.to_owned(), n)).collect(),
            ..TrafficExplanation::default()
        }
    }

    /// The networks that span hosts, and the other hosts that weir hears from.
    pub(super) fn overlay_explain(&self, overlay: &Overlay) -> Response {
        let Some(config) = &self.networks.overlay else {
            return Response::error("there is no overlay");
        };
        let now_secs = clock::secs(clock::now_ns());
        let fdb = self.engine.fabric().fdb();
        let members = overlay.port.networks();
        let mut stations = BTreeMap::<(Vid, IpAddr), (u32, Option<u32>)>::new();
        for entry in fdb.behind(overlay.id, now_secs) {
            let remote = fdb.remote(entry.vid, entry.mac, entry.port, now_secs);
            let Some(host) = remote.and_then(|remote| members.host(remote)) else { continue };
            let (number, heard_s) = stations.entry((entry.vid, host)).or_default();
            *number += 1;
            if matches!(entry.claim, Claim::Uplink | Claim::Dynamic) {
                *heard_s = Some(heard_s.map_or(entry.age_secs, |it| it.min(entry.age_secs)));
            }
        }
        let networks = self.networks.of_overlay().map(|(number, network, of)| {
            let host = |Heard { host, has_weir, unanswered, disputed_ids }| {
                let of_host = Vid::of_network(number).and_then(|vid| stations.get(&(vid, host)));
                let (stations, heard_s) = of_host.copied().unwrap_or_default();
                HostHeard { host, has_weir, unanswered, stations, disputed_ids, heard_s }
            };
            OverlayNetworkExplanation {
                name: network.name.clone(),
                vni: of.vni.get(),
                evpn: of.by_evpn(),
                hosts: overlay.port.members(number).into_iter().map(host).collect(),
            }
        });
        let explanation = OverlayExplanation {
            name: overlay.name.clone(),
            local: config.local.get(),
            udp_port: config.port.get(),
            mtu: config.mtu.get(),
            networks: networks.collect(),
        };
        Response::OverlayExplained { explanation: Box::new(explanation) }
    }
}
