//! The switch's own state at the keeper: run-time settings, interfaces that no file names, and addresses learned
//! behind ports.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use weir_config::reload::Beside;
use weir_config::{Config, TemplateConfig, Templates, UplinkConfig, VifConfig};
use weir_fabric::source_guard::{Lease, Origin};
use weir_fabric::{Known, PortId, SourceGuard, Vid};
use weir_limits::KEPT_NOTED_BYTES_MAX;
use weir_wire::Mac;

use super::SwitchError;
use super::settings::Settings;

/// The version of [`Noted`]; new fields have defaults. A weir that does not know the version refuses to start,
/// because it might leave out a rule. Version 2 added settings, version 3 tables, version 4 uplinks.
pub(super) const VERSION: u32 = 4;

/// The state, see the module.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Noted {
    pub(super) version: u32,
    /// Interfaces of `weir vif add` as they are now. Each is parsed by itself, because a later release may know more
    /// keys.
    pub(super) added: Vec<serde_json::Value>,
    /// Uplinks that the file does not name, as they are now: bonds behind their members.
    pub(super) uplinks: Vec<serde_json::Value>,
    /// The templates of the interfaces in `added`, each as an interface.
    pub(super) templates: BTreeMap<String, serde_json::Value>,
    /// Run-time settings of ports that the file names, by port.
    pub(super) settings: BTreeMap<String, Settings>,
    /// Run-time settings that are no port's.
    pub(super) tables: Beside,
    /// For each interface with an owner: keys that commands have set and the owner has not.
    pub(super) set: BTreeMap<String, BTreeSet<String>>,
    /// Ports that the file names but that were removed.
    pub(super) deleted: BTreeSet<String>,
    /// The addresses of each port: VLAN, address, and the second when it was last seen, on the machine's monotonic
    /// clock.
    pub(super) addresses: BTreeMap<String, Vec<(u16, u64, u32)>>,
    /// By interface: addresses leased by DHCP.
    pub(super) leases: BTreeMap<String, Vec<NotedLease>>,
    /// By bond: the uplinks that carry frames.
    pub(super) carriers: BTreeMap<String, Vec<String>>,
    /// Ports for which `on_up` has run.
    pub(super) told_up: BTreeSet<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct NotedLease {
    pub(super) address: IpAddr,
    /// The end of the lease, on the same clock.
    pub(super) until_secs: u32,
    /// The server's port, and the VLAN id of its answer.
    pub(super) from: (String, u16),
}

/// True if only the file determines an interface. An interface with an owner is added again by its owner.
pub(super) fn nobodys(added: &serde_json::Value) -> bool {
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

    pub(super) fn to_file(&self) -> io::Result<OwnedFd> {
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
    /// The uplinks that continue, without settings by commands: those of the file except removed ones, and added ones
    /// that this weir can read and the file does not name.
    pub(super) fn uplinks_of(&self, config: &Config) -> Vec<UplinkConfig> {
        let file = config.uplinks.iter().filter(|it| !self.deleted.contains(it.name.as_str()));
        let added = self.uplinks.iter().filter_map(|it| serde_json::from_value(it.clone()).ok());
        let is_new = |it: &UplinkConfig| config.uplinks.iter().all(|file| file.name != it.name);
        file.cloned().chain(added.filter(is_new)).collect()
    }

    /// An added interface with the present settings of its template, if this weir can read the former template.
    pub(super) fn followed(&self, config: &Config, vif: &VifConfig) -> VifConfig {
        let before = self.templates.iter().filter_map(|(name, vif)| {
            let vif = serde_json::from_value(vif.clone()).ok()?;
            Some(TemplateConfig::new(name.parse().ok()?, vif))
        });
        let before = Templates { all: before.collect(), ..Templates::default() };
        let mut vif = vif.clone();
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
