//! The state that the switch notes for the next weir, and reads from the last one.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, PoisonError};

use serde_json::json;
use weir_config::{PortName, VifConfig};
use weir_engine::clock;
use weir_fabric::source_guard::Lease;
use weir_fabric::{PortId, SourceGuard};
use weir_limits::CONTROL_PORTS_TOGETHER_MAX;

use super::noted::{Noted, NotedLease, VERSION, nobodys};
use super::settings::Settings;
use super::{Link, Meeting, Seen, Switch, Vif};
use crate::programs::{LastPrograms, Programs};

impl Switch {
    /// Gives the keeper the state for the next weir. The call can be slow, because it reads all
    /// addresses. While the keeper is missing, the state is kept for the next connection to it.
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

    /// Runs programs when ports come up and go down, from now on. Ports that go on where another weir has left them
    /// have come up already.
    ///
    /// # Errors
    /// The thread that looks at the ports cannot be started.
    pub fn runs(self: &Arc<Self>, programs: Programs) -> io::Result<()> {
        let (noted, left) = (self.keeper.noted(), self.keeper.left());
        let before = noted.told_up.intersection(&left).filter_map(|port| port.parse().ok());
        programs.before(&before.collect(), &self.up());
        let programs = Arc::clone(self.programs.get_or_init(|| Arc::new(programs)));
        let (switch, telling) = (Arc::downgrade(self), Arc::downgrade(&programs));
        programs.watch(move || {
            let (Some(switch), Some(programs)) = (switch.upgrade(), telling.upgrade()) else {
                return false;
            };
            if switch.has_left().is_some() {
                return false;
            }
            if programs.tell_changes(&switch.up()) {
                switch.note();
            }
            true
        })
    }

    /// Makes the programs run for all ports, since the switch is about to end in order. The keeper lets go of sessions,
    /// sockets and queues.
    pub fn ends_ports(&self) -> LastPrograms {
        self.keeper.end();
        self.programs.get().map(Programs::end).unwrap_or_default()
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
        let told_up = match self.programs.get() {
            Some(programs) => programs.up().iter().map(ToString::to_string).collect(),
            // The programs do not run yet.
            None => self.keeper.noted().told_up.clone(),
        };
        Ok(Noted { addresses, leases, carriers, told_up, ..self.set_since(|_, _| true)? })
    }

    /// Run-time settings since the file was read, without learned addresses. `whole` decides which interfaces are told
    /// whole, and hears whether each was added: of the others a changed one has no keys, and an added one no more than
    /// its name and its owner.
    pub(super) fn set_since(
        &self,
        mut whole: impl FnMut(&PortName, bool) -> bool,
    ) -> serde_json::Result<Noted> {
        let mut noted = Noted { version: VERSION, ..Noted::default() };
        for template in &self.templates().all {
            let vif = serde_json::to_value(template.keys())?;
            noted.templates.insert(template.name.to_string(), vif);
        }
        let source = self.source();
        let Some(listed) = source.as_ref().map(|source| &source.listed) else { return Ok(noted) };
        noted.tables.clone_from(&listed.beside);
        let ports = self.ports();
        noted.settings.clone_from(&listed.left);
        let (of_file, of_xen) = (by_name(&listed.vifs), by_name(&listed.xen));
        for vif in &ports.vifs {
            let now = &*vif.config;
            if !vif.set.is_empty() {
                noted.set.insert(now.name.to_string(), vif.set.clone());
            }
            let is_xen = matches!(vif.link, Link::Xen);
            let file = match is_xen {
                true => of_xen.get(&now.name),
                false => of_file.get(&now.name).filter(|_| vif.from_file),
            };
            match file.copied() {
                None if is_xen => {}
                Some(file) if file == now => {}
                Some(file) => {
                    let is_whole = whole(&now.name, false);
                    let keys = is_whole.then(|| Settings::between(file, now)).transpose()?;
                    noted.settings.insert(now.name.to_string(), keys.unwrap_or_default());
                }
                None if whole(&now.name, true) => noted.added.push(serde_json::to_value(now)?),
                None => noted.added.push(json!({ "name": now.name, "by": now.by })),
            }
        }
        for uplink in &ports.uplinks {
            let now = &uplink.config;
            let Some(file) = listed.uplinks.iter().find(|it| it.name == now.name) else {
                noted.uplinks.push(serde_json::to_value(now)?);
                continue;
            };
            if file != now {
                noted.settings.insert(now.name.to_string(), Settings::between(file, now)?);
            }
        }
        let vifs = listed.vifs.iter().map(|vif| &vif.name);
        let names = vifs.chain(listed.uplinks.iter().map(|uplink| &uplink.name));
        let there: BTreeSet<_> = ports.named().map(|(_, name)| name).collect();
        let gone = names.filter(|name| !there.contains(name));
        noted.deleted = gone.map(ToString::to_string).collect();
        Ok(noted)
    }

    /// Running settings that differ from the file with which weir was started, each as `vif.web0.mac`. They are lost
    /// at an orderly end of weir. Of many changed interfaces only the first ones have their keys, and the others
    /// `vif.web0 (changed)`: whoever asks waits for this, and others wait for the thread.
    pub fn unsaved(&self) -> Vec<String> {
        let mut with_keys = 0;
        let noted = self.set_since(|_, is_added| {
            with_keys += usize::from(!is_added);
            !is_added && with_keys <= CONTROL_PORTS_TOGETHER_MAX
        });
        let noted = noted.unwrap_or_default();
        let source = self.source();
        let listed = source.iter().flat_map(|source| &source.listed.uplinks);
        let listed: BTreeSet<_> = listed.map(|uplink| uplink.name.to_string()).collect();
        drop(source);
        let ports = self.ports();
        let table = |name: &str| {
            let uplink = ports.uplinks.iter().any(|it| it.config.name.as_str() == name);
            let uplink = uplink || listed.contains(name);
            format!("{}.{name}", if uplink { "uplink" } else { "vif" })
        };
        let keys = noted.settings.iter().flat_map(|(name, settings)| {
            let table = table(name);
            let keys: Vec<_> = settings.keys().map(|key| format!("{table}.{key}")).collect();
            if keys.is_empty() { vec![format!("{table} (changed)")] } else { keys }
        });
        let keys = noted.tables.names().chain(keys);
        let added = noted.added.iter().filter(|vif| nobodys(vif)).chain(&noted.uplinks);
        let added = added.filter_map(|vif| vif["name"].as_str());
        let added = added.map(|name| format!("{} (added)", table(name)));
        let deleted = noted.deleted.iter().map(|name| format!("{} (removed)", table(name)));
        // No file has such interfaces, and their owners do not know of these keys.
        let of_owner = ports.vifs.iter().filter_map(|vif| Some((vif, vif.config.by.as_ref()?)));
        let of_owner = of_owner.flat_map(|(Vif { seen: Seen { config, .. }, set, .. }, by)| {
            set.iter().map(move |key| format!("vif.{}.{key} (kept by {by})", config.name))
        });
        keys.chain(added).chain(deleted).chain(of_owner).collect()
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
            let mut ports = self.ports();
            for vif in ports.vifs.iter_mut().filter(|vif| vif.config.by.is_some()) {
                vif.set = noted.set.get(vif.config.name.as_str()).cloned().unwrap_or_default();
            }
            ports.vifs.iter().map(|vif| (vif.config.name.clone(), vif.guard.clone())).collect()
        };
        for (name, guard) in guards {
            self.recall_leases(noted, name.as_str(), guard.as_deref());
        }
    }
}

fn by_name(vifs: &[VifConfig]) -> BTreeMap<&PortName, &VifConfig> {
    vifs.iter().map(|vif| (&vif.name, vif)).collect()
}
