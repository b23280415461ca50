//! Ports that get copies of others' frames.
//!
//! A configuration names ports, which come and go. After each change the mirrors are made what it says: of those of its
//! ports that are there.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use weir_config::{PortName, VifConfig, VlanMode, check_mirrors};
use weir_engine::capture::mirror::Mirror;
use weir_fabric::PortId;

use super::{Link, Ports, Switch};
use crate::control::Response;

/// Those that run, by the names of the ports that get copies.
pub(super) type Mirrors = BTreeMap<PortName, Running>;

/// A mirror, and between which ports.
pub(super) struct Running {
    ends: Ends,
    mirror: Mirror,
}

/// Whose copies go where.
#[derive(Debug, PartialEq, Eq)]
struct Ends {
    from: Vec<PortId>,
    to: PortId,
}

impl Ports {
    /// Why an interface may not mirror what it says, if it may not.
    pub(super) fn mirror_refusal(&self, config: &VifConfig) -> Option<Response> {
        let others = self.vifs.iter().map(|vif| (&vif.config.name, &vif.config.vlan));
        let uplinks = self.uplinks.iter().map(|it| (&it.config.name, &it.config.vlan));
        let others = others.chain(uplinks).filter(|(name, _)| **name != config.name);
        let ports: Vec<_> = others.chain([(&config.name, &config.vlan)]).collect();
        let error = check_mirrors(&ports).and_then(|()| config.check_mirror()).err()?;
        Some(Response::refused(error.to_string(), error.help()))
    }

    /// What each mirror that can be is to copy. Those that the checks would refuse are left out.
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

    /// A port whose frames may be copied: no mirror.
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
    /// Makes mirrors what the ports that are there say.
    pub(super) fn settle_mirrors(&self) {
        let mut mirrors = self.mirrors.lock().unwrap_or_else(PoisonError::into_inner);
        let mut wanted = self.ports().mirrors();
        // Those that end come first: there are only so many.
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

    /// Nothing is copied any more.
    pub(super) fn end_mirrors(&self) {
        self.mirrors.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// The port is about to go: another may get its number.
    pub(super) fn end_mirror(&self, name: &PortName) {
        self.mirrors.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }
}
