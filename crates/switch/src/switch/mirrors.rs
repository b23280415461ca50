//! Ports that receive copies of other ports' frames.
//!
//! A configuration names ports, which can be added and removed. After each change the mirrors are adjusted to the
//! configuration, with the ports that exist.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use weir_config::{PortName, VlanMode};
use weir_engine::capture::mirror::Mirror;
use weir_fabric::PortId;

use super::{Link, Ports, Switch};

/// The running mirrors, by the name of the port that receives copies.
pub(super) type Mirrors = BTreeMap<PortName, Running>;

/// A running mirror with its ports.
pub(super) struct Running {
    ends: Ends,
    mirror: Mirror,
}

/// The ports that a mirror connects.
#[derive(Debug, PartialEq, Eq)]
struct Ends {
    from: Vec<PortId>,
    to: PortId,
}

impl Ports {
    /// The ports that each mirror copies. Mirrors that the checks would refuse are left out.
    fn mirrors(&self) -> BTreeMap<PortName, Ends> {
        let vifs = self.vifs.iter().filter(|vif| !matches!(vif.link, Link::Xen));
        let vifs = vifs.map(|vif| (&vif.config.name, &vif.config.vlan, vif.port.id()));
        let uplinks = self.uplinks.iter().map(|it| (&it.config.name, &it.config.vlan, it.id));
        let ports = vifs.chain(uplinks);
        let mirrors = ports.filter(|(_, vlan, _)| !vlan.mirrored().is_empty());
        let ends = mirrors.map(|(name, vlan, to)| {
            let from = vlan.mirrored().iter().filter_map(|other| self.source(other));
            (name.clone(), Ends { from: from.collect(), to })
        });
        ends.filter(|(_, ends)| !ends.from.is_empty()).collect()
    }

    /// A port whose frames may be copied, which is any port except a mirror.
    fn source(&self, name: &PortName) -> Option<PortId> {
        let takes_part = |vlan: &VlanMode| vlan.mirrored().is_empty();
        let vif = self.vifs.iter().find(|vif| vif.config.name == *name);
        let uplink = self.uplinks.iter().find(|uplink| uplink.config.name == *name);
        let overlay = self.overlay.iter().find(|overlay| overlay.name == *name);
        let vif = vif.filter(|vif| takes_part(&vif.config.vlan)).map(|vif| vif.port.id());
        let uplink = uplink.filter(|it| takes_part(&it.config.vlan)).map(|it| it.id);
        vif.or(uplink).or(overlay.map(|overlay| overlay.id))
    }
}

impl Switch {
    /// Adjusts the mirrors to the configuration of the existing ports.
    pub(super) fn settle_mirrors(&self) {
        let mut mirrors = self.mirrors.lock().unwrap_or_else(PoisonError::into_inner);
        let mut wanted = self.ports().mirrors();
        // Mirrors that end are removed first, because the number of mirrors is limited.
        mirrors.retain(|name, running| {
            let stays = wanted.get(name) == Some(&running.ends) && running.mirror.is_whole();
            if stays {
                wanted.remove(name);
            }
            stays
        });
        for (name, ends) in wanted {
            match self.engine.mirror(&ends.from, ends.to) {
                Ok(mirror) => {
                    let ports = ends.from.len();
                    tracing::info!(port = %name, ports, "gets copies of other ports' frames");
                    mirrors.insert(name, Running { ends, mirror });
                }
                Err(error) => tracing::error!(port = %name, %error, "gets no copies"),
            }
        }
    }

    /// Ends all mirrors.
    pub(super) fn end_mirrors(&self) {
        self.mirrors.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Ends a port's mirror before the port is removed, because another port may get its number.
    pub(super) fn end_mirror(&self, name: &PortName) {
        self.mirrors.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }
}
