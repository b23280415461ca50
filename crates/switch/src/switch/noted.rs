//! What of the switch itself lies with the keeper: interfaces that no file has, and what was learned behind ports.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::PoisonError;

use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use weir_config::VifConfig;
use weir_engine::clock;
use weir_fabric::source_guard::{Lease, Origin};
use weir_fabric::{Known, PortId, SourceGuard, Vid};
use weir_limits::KEPT_NOTED_BYTES_MAX;
use weir_wire::Mac;

use super::{Link, Meeting, Switch};

/// Of what the fields of [`Noted`] mean; new ones have defaults.
const VERSION: u32 = 1;

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Noted {
    version: u32,
    /// Interfaces of `weir vif add`, as they are now. Each is read by itself: a later release may know more keys.
    added: Vec<serde_json::Value>,
    /// By port: VLAN, address, and the second in which it was seen last, on the machine's monotonic clock.
    addresses: BTreeMap<String, Vec<(u16, u64, u32)>>,
    /// By interface: what it was given by DHCP.
    leases: BTreeMap<String, Vec<NotedLease>>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct NotedLease {
    address: IpAddr,
    /// On the same clock.
    until_secs: u32,
    /// The server's port, and the VLAN id of its answer.
    from: (String, u16),
}

impl Noted {
    /// What another weir has noted; nothing where that cannot be read.
    pub(super) fn read(file: OwnedFd) -> Self {
        let read = || -> io::Result<Self> {
            let mut file = File::from(file);
            file.rewind()?;
            let mut text = Vec::new();
            file.take(KEPT_NOTED_BYTES_MAX).read_to_end(&mut text)?;
            Ok(serde_json::from_slice(&text)?)
        };
        match read() {
            Ok(noted) if noted.version == VERSION => noted,
            Ok(noted) => {
                tracing::error!(
                    version = noted.version,
                    known = VERSION,
                    "interfaces that were added and addresses that were learned are not taken up: their state is of \
                     another release"
                );
                Self::default()
            }
            Err(error) => {
                tracing::error!(%error, "what the last weir has noted cannot be read");
                Self::default()
            }
        }
    }

    fn to_file(&self) -> io::Result<OwnedFd> {
        let mut file = File::from(memfd_create("weir-switch", MemfdFlags::CLOEXEC)?);
        file.write_all(&serde_json::to_vec(self)?)?;
        Ok(file.into())
    }

    /// What was learned behind a port.
    pub(super) fn known(&self, port: &str) -> Vec<Known> {
        let known = |&(vid, mac, seen_secs): &(u16, u64, u32)| {
            let [0, 0, mac @ ..] = mac.to_be_bytes() else { return None };
            Some(Known { vid: Vid::from_bits(vid)?, mac: Mac(mac), seen_secs })
        };
        self.addresses.get(port).into_iter().flatten().filter_map(known).collect()
    }
}

impl Noted {
    /// Has `guard` know what the interface was given, as far as the port is there that gave it.
    pub(super) fn recall(
        &self,
        vif: &str,
        guard: &SourceGuard,
        port: impl Fn(&str) -> Option<PortId>,
    ) {
        for lease in self.leases.get(vif).into_iter().flatten() {
            let NotedLease { address, until_secs, from: (name, vid) } = lease;
            if let Some(port) = port(name) {
                let origin = Origin { port, vid: *vid };
                guard.recall(Lease { address: *address, until_secs: *until_secs, origin });
            }
        }
    }
}

impl Switch {
    /// Has the keeper keep what a next weir is to know. For a thread that may take its time: it looks at all addresses.
    pub fn note(&self) {
        if !self.keeper.is_there() {
            return;
        }
        let noted = self.to_note();
        let mut last = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        if *last == noted {
            return;
        }
        match noted.to_file() {
            Ok(file) => {
                self.keeper.keep_noted(file);
                *last = noted;
            }
            Err(error) => tracing::warn!(%error, "what was learned is not kept"),
        }
    }

    fn to_note(&self) -> Noted {
        let now_secs = clock::secs(clock::now_ns());
        let ports = self.ports();
        let vifs = ports.vifs.iter().map(|vif| (vif.port.id(), &vif.config.name));
        let uplinks = ports.uplinks.iter().map(|uplink| (uplink.id, &uplink.config.name));
        let names: BTreeMap<PortId, String> =
            vifs.chain(uplinks).map(|(id, name)| (id, name.to_string())).collect();
        let mut addresses: BTreeMap<String, Vec<_>> = BTreeMap::new();
        for entry in self.engine.fabric().fdb().entries(now_secs) {
            if let Some(name) = names.get(&entry.port) {
                let seen_secs = now_secs.saturating_sub(entry.age_secs);
                let address = (entry.vid.get(), entry.mac.to_u64(), seen_secs);
                addresses.entry(name.clone()).or_default().push(address);
            }
        }
        let lease = |lease: Lease| {
            let from = (names.get(&lease.origin.port)?.clone(), lease.origin.vid);
            Some(NotedLease { address: lease.address, until_secs: lease.until_secs, from })
        };
        let guarded =
            ports.vifs.iter().filter_map(|vif| Some((&vif.config.name, vif.guard.as_ref()?)));
        let leases = guarded.map(|(name, guard)| {
            (name.to_string(), guard.leases(now_secs).filter_map(lease).collect::<Vec<_>>())
        });
        let leases = leases.filter(|(_, leases)| !leases.is_empty()).collect();
        let is_added = |vif: &&super::Vif| !vif.from_file && !matches!(vif.link, Link::Xen);
        let added = ports.vifs.iter().filter(is_added);
        let added = added.filter_map(|vif| serde_json::to_value(&vif.config).ok()).collect();
        Noted { version: VERSION, added, addresses, leases }
    }

    /// What interfaces were given by DHCP. Those whose servers were not there yet may come a second time.
    pub(super) fn recall_leases(&self, noted: &Noted, vif: &str, guard: Option<&SourceGuard>) {
        let Some(guard) = guard else { return };
        let ports = self.ports();
        let port = |name: &str| {
            let vif = ports.vifs.iter().find(|vif| vif.config.name.as_str() == name);
            let uplink = ports.uplinks.iter().find(|uplink| uplink.config.name.as_str() == name);
            vif.map(|vif| vif.port.id()).or(uplink.map(|uplink| uplink.id))
        };
        noted.recall(vif, guard, port);
    }

    /// Adds the interfaces that were added under another weir, and that the file does not have.
    pub(super) fn add_noted(&self, noted: &Noted) {
        for value in &noted.added {
            let config: VifConfig = match serde_json::from_value(value.clone()) {
                Ok(config) => config,
                Err(error) => {
                    tracing::error!(%error, %value, "an interface that was added is not taken up");
                    continue;
                }
            };
            if self.vif(&config.name).is_some() {
                continue;
            }
            let name = config.name.clone();
            if let Err(error) = self.add_vif(config, Meeting::Configured) {
                tracing::error!(vif = %name, %error, "an interface that was added is not taken up");
            }
        }
        let guards: Vec<_> = {
            let ports = self.ports();
            ports.vifs.iter().map(|vif| (vif.config.name.clone(), vif.guard.clone())).collect()
        };
        for (name, guard) in guards {
            self.recall_leases(noted, name.as_str(), guard.as_deref());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What 0.1.0 writes: the next release reads it.
    #[test]
    fn what_this_release_notes_is_read() {
        let recorded: Noted = serde_json::from_str(include_str!("noted/state-0.1.0.json")).unwrap();
        let noted = Noted::read(recorded.to_file().unwrap());
        assert_eq!(noted, recorded);
        let config: VifConfig = serde_json::from_value(noted.added[0].clone()).unwrap();
        assert_eq!(config.name.as_str(), "web7");
        let mac = Mac([0x52, 0x54, 0, 0, 0, 7]);
        let known = Known { vid: Vid::DEFAULT, mac, seen_secs: 4711 };
        assert_eq!((noted.known("web7"), noted.known("lan")), (vec![known], vec![]));
    }

    #[test]
    fn what_was_learned_in_a_network_is_known_there() {
        let vid = Vid::of_network(3).unwrap();
        let mac = Mac([0x52, 0x54, 0, 0, 0, 7]);
        let all = [("web7".to_owned(), vec![(vid.get(), mac.to_u64(), 7)])];
        let noted = Noted { addresses: all.into(), ..Noted::default() };
        assert_eq!(noted.known("web7"), [Known { vid, mac, seen_secs: 7 }]);
    }

    #[test]
    fn what_another_release_or_nobody_has_written_is_nothing() {
        let later = Noted { version: VERSION + 1, ..Noted::default() };
        assert_eq!(Noted::read(later.to_file().unwrap()), Noted::default());
        let mut file = File::from(memfd_create("weir-switch", MemfdFlags::CLOEXEC).unwrap());
        file.write_all(b"{\"version\":1,\"added\":7}").unwrap();
        assert_eq!(Noted::read(file.into()), Noted::default());
    }
}
