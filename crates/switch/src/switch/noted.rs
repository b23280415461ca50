//! What of the switch itself lies with the keeper: what was set while weir ran, interfaces that no file has, and what
//! was learned behind ports.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::PoisonError;

use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use weir_config::{Config, PortName, VifConfig};
use weir_engine::clock;
use weir_fabric::source_guard::{Lease, Origin};
use weir_fabric::{Known, PortId, SourceGuard, Vid};
use weir_limits::KEPT_NOTED_BYTES_MAX;
use weir_wire::Mac;

use super::settings::Settings;
use super::{Link, Meeting, Switch, SwitchError};

/// Of what the fields of [`Noted`] mean; new ones have defaults. A weir that does not know one does not start: it might
/// leave out a rule. Since 2 there are settings.
const VERSION: u32 = 2;

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Noted {
    pub(super) version: u32,
    /// Interfaces of `weir vif add`, as they are now. Each is read by itself: a later release may know more keys.
    pub(super) added: Vec<serde_json::Value>,
    /// What was set of ports that the file names, by port.
    pub(super) settings: BTreeMap<String, Settings>,
    /// Ports that the file names, and that were removed.
    pub(super) deleted: BTreeSet<String>,
    /// By port: VLAN, address, and the second in which it was seen last, on the machine's monotonic clock.
    pub(super) addresses: BTreeMap<String, Vec<(u16, u64, u32)>>,
    /// By interface: what it was given by DHCP.
    pub(super) leases: BTreeMap<String, Vec<NotedLease>>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct NotedLease {
    address: IpAddr,
    /// On the same clock.
    until_secs: u32,
    /// The server's port, and the VLAN id of its answer.
    from: (String, u16),
}

/// Whether nobody but the file is to know of an interface: who keeps it adds it again.
fn nobodys(added: &serde_json::Value) -> bool {
    added["by"].is_null()
}

impl Noted {
    /// What another weir has noted.
    ///
    /// # Errors
    /// [`SwitchError::Noted`]: it cannot be read, or a later release has written it.
    pub(super) fn read(file: OwnedFd) -> Result<Self, SwitchError> {
        let read = || -> io::Result<Self> {
            let mut file = File::from(file);
            file.rewind()?;
            let mut text = Vec::new();
            file.take(KEPT_NOTED_BYTES_MAX).read_to_end(&mut text)?;
            Ok(serde_json::from_slice(&text)?)
        };
        let noted = read().map_err(|source| SwitchError::Noted { source })?;
        match noted.version <= VERSION {
            true => Ok(noted),
            false => {
                let (version, known) = (noted.version, VERSION);
                Err(SwitchError::NewerSettings { version, known })
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
    /// Keys of an interface that the file does not say, or `added`.
    pub(super) fn unsaved_of(&self, vif: &str) -> Vec<String> {
        let keys = self.settings.get(vif).into_iter().flat_map(Settings::keys);
        let added = self.added.iter().filter(|added| added["name"] == vif && nobodys(added));
        let added = added.map(|_| "added");
        keys.chain(added).map(str::to_owned).collect()
    }

    /// What was set of vifs of Xen guests.
    pub(super) fn of_xen(&self, config: &Config) -> BTreeMap<String, Settings> {
        if config.xen.is_none() {
            return BTreeMap::new();
        }
        // Such as vif3.0, and no name of the file's.
        let is_vif = |name: &str| {
            let numbers = name.strip_prefix("vif").and_then(|rest| rest.split_once('.'));
            let is_number = |text: &str| text.parse::<u32>().is_ok();
            let listed = config.vifs.iter().any(|vif| vif.name.as_str() == name);
            !listed && numbers.is_some_and(|(domain, vif)| is_number(domain) && is_number(vif))
        };
        let of_xen = self.settings.iter().filter(|(name, _)| is_vif(name));
        of_xen.map(|(name, settings)| (name.clone(), settings.clone())).collect()
    }

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
    /// Without a keeper it is what the next one is given.
    pub fn note(&self) {
        // A switch that has not all of its ports yet has nothing that is truer than what the last one has noted.
        if !self.keeper.is_configured() || self.source().is_none() {
            return;
        }
        let mut last = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = self.to_note().map_err(io::Error::from).and_then(|noted| {
            if *last != noted {
                self.keeper.keep_noted(noted.to_file()?);
                *last = noted;
            }
            Ok(())
        });
        if let Err(error) = kept {
            tracing::error!(%error, "what was set and learned since is not kept");
        }
    }

    fn to_note(&self) -> serde_json::Result<Noted> {
        let now_secs = clock::secs(clock::now_ns());
        let ports = self.ports();
        let vifs = ports.vifs.iter().map(|vif| (vif.port.id(), &vif.config.name));
        let uplinks = ports.uplinks.iter().map(|uplink| (uplink.id, &uplink.config.name));
        let own = ports.gateways.iter().map(|gateway| (gateway.id, &gateway.name));
        let names: BTreeMap<PortId, String> =
            vifs.chain(uplinks).chain(own).map(|(id, name)| (id, name.to_string())).collect();
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
        drop(ports);
        Ok(Noted { addresses, leases, ..self.set_since()? })
    }

    /// What was set of ports since the file was read, without what was learned.
    pub(super) fn set_since(&self) -> serde_json::Result<Noted> {
        let mut noted = Noted { version: VERSION, ..Noted::default() };
        let source = self.source();
        let Some(listed) = source.as_ref().map(|source| &source.listed) else { return Ok(noted) };
        let ports = self.ports();
        noted.settings.clone_from(&listed.left);
        for vif in &ports.vifs {
            let now = &vif.config;
            let is_xen = matches!(vif.link, Link::Xen);
            let file = match is_xen {
                true => listed.xen.iter().find(|it| it.name == now.name),
                false => listed.vifs.iter().find(|it| it.name == now.name && vif.from_file),
            };
            match file {
                None if is_xen => {}
                Some(file) if file == now => {}
                Some(file) => {
                    noted.settings.insert(now.name.to_string(), Settings::between(file, now)?);
                }
                None => noted.added.push(serde_json::to_value(now)?),
            }
        }
        for uplink in &ports.uplinks {
            let now = &uplink.config;
            let Some(file) = listed.uplinks.iter().find(|it| it.name == now.name) else { continue };
            if file != now {
                noted.settings.insert(now.name.to_string(), Settings::between(file, now)?);
            }
        }
        let vifs = listed.vifs.iter().map(|vif| &vif.name);
        let names = vifs.chain(listed.uplinks.iter().map(|uplink| &uplink.name));
        let is_there = |name: &PortName| {
            ports.is_uplink(name) || ports.vifs.iter().any(|vif| vif.config.name == *name)
        };
        noted.deleted = names.filter(|name| !is_there(name)).map(ToString::to_string).collect();
        Ok(noted)
    }

    /// What the file that weir was started with does not say of the switch, each as `vif.web0.mac`: it ends with an orderly
    /// end of weir.
    pub fn unsaved(&self) -> Vec<String> {
        let noted = self.set_since().unwrap_or_default();
        let ports = self.ports();
        let table = |name: &str| {
            let uplink = ports.uplinks.iter().any(|it| it.config.name.as_str() == name);
            format!("{}.{name}", if uplink { "uplink" } else { "vif" })
        };
        let keys = noted.settings.iter().flat_map(|(name, settings)| {
            let table = table(name);
            settings.keys().map(move |key| format!("{table}.{key}")).collect::<Vec<_>>()
        });
        let added = noted.added.iter().filter(|vif| nobodys(vif));
        let added = added.filter_map(|vif| vif["name"].as_str());
        let added = added.map(|name| format!("{} (added)", table(name)));
        let deleted = noted.deleted.iter().map(|name| format!("{} (removed)", table(name)));
        keys.chain(added).chain(deleted).collect()
    }

    /// What interfaces were given by DHCP. Those whose servers were not there yet may come a second time.
    pub(super) fn recall_leases(&self, noted: &Noted, vif: &str, guard: Option<&SourceGuard>) {
        let Some(guard) = guard else { return };
        let ports = self.ports();
        let port = |name: &str| {
            let vif = ports.vifs.iter().find(|vif| vif.config.name.as_str() == name);
            let uplink = ports.uplinks.iter().find(|uplink| uplink.config.name.as_str() == name);
            let own = ports.gateways.iter().find(|gateway| gateway.name.as_str() == name);
            let other = uplink.map(|uplink| uplink.id).or(own.map(|own| own.id));
            vif.map(|vif| vif.port.id()).or(other)
        };
        noted.recall(vif, guard, port);
    }

    /// Adds the interfaces that were added under another weir. One that cannot be is left out: it passes no frames.
    pub(super) fn add_noted(&self, noted: &Noted, added: Vec<VifConfig>) {
        for config in added {
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
        let noted = Noted::read(recorded.to_file().unwrap()).unwrap();
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
    fn what_a_later_release_or_nobody_has_written_is_refused() {
        let later = Noted { version: VERSION + 1, ..Noted::default() };
        let refusal = Noted::read(later.to_file().unwrap()).unwrap_err();
        assert!(matches!(refusal, SwitchError::NewerSettings { .. }), "{refusal}");
        let mut file = File::from(memfd_create("weir-switch", MemfdFlags::CLOEXEC).unwrap());
        file.write_all(b"{\"version\":1,\"added\":7}").unwrap();
        let refusal = Noted::read(file.into()).unwrap_err();
        assert!(matches!(refusal, SwitchError::Noted { .. }), "{refusal}");
    }
}
