//! Ports that receive copies of other ports' frames.
//!
//! A configuration names ports, which can be added and removed. After each change the mirrors are adjusted to the
//! configuration, with the ports that exist.

use std::collections::BTreeMap;

use weir_config::{PortName, VlanMode};
use weir_engine::Engine;
use weir_engine::capture::mirror::Mirror;
use weir_engine::logs::Logs;
use weir_fabric::PortId;

/// A port that can be copied, and can be a mirror.
pub(super) struct Candidate<'p> {
    pub(super) name: &'p PortName,
    pub(super) id: PortId,
    pub(super) vlan: &'p VlanMode,
    /// True if the port may get copies.
    pub(super) may_mirror: bool,
}

/// The ports that a mirror connects.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ends {
    from: Vec<PortId>,
    to: PortId,
}

/// A running mirror with its ports.
struct Running {
    ends: Ends,
    mirror: Mirror,
}

/// The running mirrors, by the name of the port that receives copies.
#[derive(Default)]
pub(super) struct Mirrors {
    running: BTreeMap<PortName, Running>,
    /// Interfaces on demand change what a mirror copies.
    logs: Logs<2>,
}

impl Mirrors {
    /// Adjusts the mirrors to those that are [wanted].
    pub(super) fn settle(&mut self, engine: &Engine, mut wanted: BTreeMap<PortName, Ends>) {
        // Mirrors that end are removed first, because the number of mirrors is limited.
        self.running.retain(|name, running| {
            let stays = wanted.get(name) == Some(&running.ends) && running.mirror.is_whole();
            if stays {
                wanted.remove(name);
            }
            stays
        });
        for (name, ends) in wanted {
            match engine.mirror(&ends.from, ends.to) {
                Ok(mirror) => {
                    let ports = ends.from.len();
                    self.logs.say(0, |unsaid| {
                        tracing::info!(port = %name, ports, unsaid, "gets copies of other ports' frames");
                    });
                    self.running.insert(name, Running { ends, mirror });
                }
                Err(error) => self.logs.say(1, |unsaid| {
                    tracing::error!(port = %name, %error, unsaid, "gets no copies");
                }),
            }
        }
    }

    /// Ends all mirrors.
    pub(super) fn end(&mut self) {
        self.running.clear();
    }

    /// Ends a port's mirror before the port is removed, because another port may get its number.
    pub(super) fn end_of(&mut self, name: &PortName) {
        self.running.remove(name);
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty()
    }
}

/// The ports that each mirror copies. Mirrors that the checks would refuse are left out.
pub(super) fn wanted(ports: &[Candidate<'_>]) -> BTreeMap<PortName, Ends> {
    let takes_part = |port: &&Candidate<'_>| port.vlan.mirrored().is_empty();
    let source = |name: &PortName| {
        ports.iter().filter(takes_part).find(|port| port.name == name).map(|port| port.id)
    };
    let mirrors = ports.iter().filter(|port| port.may_mirror && !takes_part(port));
    let ends = mirrors.map(|port| {
        let from = port.vlan.mirrored().iter().filter_map(source);
        (port.name.clone(), Ends { from: from.collect(), to: port.id })
    });
    ends.filter(|(_, ends)| !ends.from.is_empty()).collect()
}
