//! The switch's own state at the keeper: run-time settings, interfaces that no file names, and addresses learned
//! behind ports.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::PoisonError;

use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use weir_config::{Config, PortName, TemplateConfig, Templates, VifConfig};
use weir_engine::clock;
use weir_fabric::source_guard::{Lease, Origin};
use weir_fabric::{Known, PortId, SourceGuard, Vid};
use weir_limits::KEPT_NOTED_BYTES_MAX;
use weir_wire::Mac;

use super::settings::Settings;
use super::{Link, Meeting, Switch, SwitchError};

/// The version of [`Noted`]; new fields have defaults. A weir that does not know the version refuses to start,
/// because it might leave out a rule. Version 2 added settings.
const VERSION: u32 = 2;

/// The state, see the module.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Noted {
    pub(super) version: u32,
    /// Interfaces of `weir vif add` as they are now. Each is parsed by itself, because a later release may know more
    /// keys.
    pub(super) added: Vec<serde_json::Value>,
    /// Templates as the interfaces in `added` have them, each as an interface.
    pub(super) templates: BTreeMap<String, serde_json::Value>,
    /// Run-time settings of ports that the file names, by port.
    pub(super) settings: BTreeMap<String, Settings>,
    /// Ports that the file names but that were removed.
    pub(super) deleted: BTreeSet<String>,
    /// By port: VLAN, address, and the second when it was last seen, on the machine's monotonic clock.
    pub(super) addresses: BTreeMap<String, Vec<(u16, u64, u32)>>,
    /// By interface: addresses leased by DHCP.
    pub(super) leases: BTreeMap<String, Vec<NotedLease>>,
    /// By bond: the uplinks that carry frames.
    pub(super) carriers: BTreeMap<String, Vec<String>>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct NotedLease {
    address: IpAddr,
    /// The end of the lease, on the same clock.
    until_secs: u32,
    /// The server's port, and the VLAN id of its answer.
    from: (String, u16),
}

/// True if only the file determines an interface. An interface with an owner is added again by its owner.
fn nobodys(added: &serde_json::Value) -> bool {
    added["by"].is_null()
}

impl Noted {
    /// Reads the state that another weir has noted.
    ///
    /// # Errors
    /// [`SwitchError::Noted`] if it cannot be read, or a later release has written it.
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

    /// Addresses that were learned behind a port.
    pub(super) fn known(&self, port: &str) -> Vec<Known> {
        let known = |&(vid, mac, seen_secs): &(u16, u64, u32)| {
            let [0, 0, mac @ ..] = mac.to_be_bytes() else { return None };
            Some(Known { vid: Vid::from_bits(vid)?, mac: Mac(mac), seen_secs })
        };
        self.addresses.get(port).into_iter().flatten().filter_map(known).collect()
    }
}

impl Noted {
    /// An added interface as its template is by now, if this weir can read the template of before.
    pub(super) fn followed(&self, config: &Config, vif: &VifConfig) -> VifConfig {
        let before = self.templates.iter().filter_map(|(name, vif)| {
            let vif = serde_json::from_value(vif.clone()).ok()?;
            Some(TemplateConfig::new(name.parse().ok()?, vif))
        });
        let (before, mut vif) = (Templates { all: before.collect() }, vif.clone());
        config.networks.unsettle(&mut vif);
        before.followed(&config.templates, &vif)
    }

    /// Keys of an interface that differ from the file, or `added`.
    pub(super) fn unsaved_of(&self, vif: &str) -> Vec<String> {
        let keys = self.settings.get(vif).into_iter().flat_map(Settings::keys);
        let added = self.added.iter().filter(|added| added["name"] == vif && nobodys(added));
        let added = added.map(|_| "added");
        keys.chain(added).map(str::to_owned).collect()
    }

    /// Run-time settings of vifs of Xen guests.
    pub(super) fn of_xen(&self, config: &Config) -> BTreeMap<String, Settings> {
        if config.xen.is_none() {
            return BTreeMap::new();
        }
        // A vif's name has the form vif3.0, and the file does not name it.
        let is_vif = |name: &str| {
            let numbers = name.strip_prefix("vif").and_then(|rest| rest.split_once('.'));
            let is_number = |text: &str| text.parse::<u32>().is_ok();
            let listed = config.vifs.iter().any(|vif| vif.name.as_str() == name);
            !listed && numbers.is_some_and(|(domain, vif)| is_number(domain) && is_number(vif))
        };
        let of_xen = self.settings.iter().filter(|(name, _)| is_vif(name));
        of_xen.map(|(name, settings)| (name.clone(), settings.clone())).collect()
    }

    /// Restores the interface's leases in `guard`, for each server's port that exists.
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
    /// Has the keeper hold the state for the next weir. The call can be slow, because it reads all addresses. While
    /// the keeper is missing, the state is kept for the next connection to it.
    pub fn note(&self) {
        // Until this switch has all of its ports, the state of the last weir is more complete.
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

    pub(super) fn to_note(&self) -> serde_json::Result<Noted> {
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
        let bonds =
            ports.uplinks.iter().filter_map(|it| Some((&it.config.name, it.bond.as_ref()?)));
        let carriers = bonds.map(|(name, bond)| (name.to_string(), bond.carriers())).collect();
        drop(ports);
        Ok(Noted { addresses, leases, carriers, ..self.set_since()? })
    }

    /// Run-time settings since the file was read, without learned addresses.
    pub(super) fn set_since(&self) -> serde_json::Result<Noted> {
        let mut noted = Noted { version: VERSION, ..Noted::default() };
        for template in &self.templates().all {
            let vif = serde_json::to_value(template.keys())?;
            noted.templates.insert(template.name.to_string(), vif);
        }
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
            ports.is_outward(name) || ports.vifs.iter().any(|vif| vif.config.name == *name)
        };
        noted.deleted = names.filter(|name| !is_there(name)).map(ToString::to_string).collect();
        Ok(noted)
    }

    /// Running settings that differ from the file with which weir was started, each as `vif.web0.mac`. They are lost
    /// at an orderly end of weir.
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

    /// Restores an interface's DHCP leases. The call can be repeated for leases whose server's port did not exist
    /// yet.
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

    /// Adds the interfaces that were added under another weir. An interface that cannot be added is left out, so it
    /// passes no frames.
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

    /// The format that 0.1.0 writes, which the next release must read.
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
    fn added_interfaces_follow_a_template_that_has_changed_meanwhile() {
        let config = |rate: &str| {
            let text = format!("[template.t]\nrate = \"{rate}\"\n");
            let defaults = weir_config::Defaults::of_user(true, None).unwrap();
            Config::from_toml("weir.toml", &text, &defaults).unwrap()
        };
        let before = config("1Gbit");
        let template = before.templates.get(&"t".parse().unwrap()).unwrap();
        let vif = template.vif("web0".parse().unwrap(), "/run/web0.sock".parse().unwrap());
        let set = vif.with_settings(&["rate=3Gbit".parse().unwrap()]).unwrap();
        let templates = [("t".to_owned(), serde_json::to_value(template.keys()).unwrap())].into();
        let noted = Noted { templates, ..Noted::default() };
        let noted = Noted::read(noted.to_file().unwrap()).unwrap();
        let rate = |noted: &Noted, vif: &VifConfig| {
            noted.followed(&config("2Gbit"), vif).sharing.rate.map(|rate| rate.to_string())
        };
        assert_eq!(rate(&noted, &vif).as_deref(), Some("2Gbit"));
        assert_eq!(rate(&noted, &set).as_deref(), Some("3Gbit"));
        assert_eq!(rate(&Noted::default(), &vif).as_deref(), Some("1Gbit"));
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
