//! Requests for an interface to exist with given settings: it is added, changed, or left as it is. Templates, from
//! which such settings can come.

use std::sync::{Arc, PoisonError};

use serde_json::{Map, Value};
use weir_config::reload::{KeyDifference, SettingFrom, shown_vif, vif_difference};
use weir_config::{
    Defaults, PortName, SocketPath, TemplateName, Templates, VifChanges, VifConfig, mirror_note,
};
use weir_engine::guest::{PortInfo, State};

use super::settings::Settings;
use super::{Link, Ports, Seen, Switch, Vif, failed, refused, xen};
use crate::control::{Put, PutOutcome, Response, VifOrigin, VifShown};
use crate::unix_socket::{Access, socket_group};

/// The changes of an interface.
#[derive(Default)]
pub(super) struct Changed {
    pub(super) keys: Vec<String>,
    /// A note for the interface's owner.
    pub(super) note: Option<String>,
}

impl Vif {
    /// The origin of the interface.
    pub(super) fn origin(&self) -> VifOrigin {
        match (&self.link, self.from_file) {
            (Link::Xen, _) => VifOrigin::Xen,
            (_, true) => VifOrigin::File,
            (_, false) => VifOrigin::Command,
        }
    }
}

impl Switch {
    pub(super) fn vif_set(&self, name: &PortName, changes: VifChanges) -> Response {
        let keeper = self.keeper_socket();
        let mut ports = self.ports();
        let Some(index) = ports.vifs.iter().position(|vif| vif.config.name == *name) else {
            return ports.no_such_vif(name);
        };
        let mut config = VifConfig::clone(&ports.vifs[index].config);
        self.networks.unsettle(&mut config);
        let sizes = changes.queues.is_some();
        changes.apply(&mut config);
        match self.becomes(&mut ports, keeper.as_ref(), index, config) {
            Err(refusal) => *refusal,
            // A note repeats that the number of queues still waits for the front end.
            Ok(Changed { note, keys }) => {
                let vif = &mut ports.vifs[index];
                let has_owner = vif.config.by.is_some();
                vif.set.extend(keys.into_iter().filter(|_| has_owner));
                let waits = || ports.vifs[index].queue_pairs().note().filter(|_| sizes);
                note.or_else(waits).map_or(Response::Ok, |note| Response::Noted { note })
            }
        }
    }

    /// An interface, setting by setting.
    pub(super) fn vif_show(&self, name: &PortName) -> Response {
        let source = self.source();
        let ports = self.ports();
        let Some(vif) = ports.vifs.iter().find(|vif| vif.config.name == *name) else {
            return ports.no_such_vif(name);
        };
        let listed = source.as_ref().map(|source| &source.listed);
        let file = listed.and_then(|listed| match vif.origin() {
            VifOrigin::Command => None,
            VifOrigin::File => listed.vifs.iter().find(|it| it.name == *name),
            VifOrigin::Xen => listed.xen.iter().find(|it| it.name == *name),
        });
        // The default is the switch's budget, whatever the interface sets itself.
        let unset = VifConfig { latency_budget: None, ..VifConfig::clone(&vif.config) };
        let budget = self.budget(&unset);
        let PortInfo { state, stop_reason, .. } = vif.port.info();
        let mut settings = shown_vif(&vif.config, file, &self.templates(), &self.networks, budget);
        let of_group = settings.iter_mut().find(|it| it.key == "socket_mode");
        if let Some(mode) = of_group.filter(|_| vif.config.socket_mode.is_none()) {
            mode.value = Some(Access::of(&vif.config).mode.to_string());
            if socket_group().is_some() {
                mode.from = SettingFrom::Switch;
            }
        }
        let shown = VifShown {
            name: name.clone(),
            state: state.into(),
            stopped_reason: stop_reason.filter(|_| state == State::Stopped),
            origin: vif.origin(),
            settings,
        };
        Response::Shown { vif: Box::new(shown) }
    }

    /// The present templates of the switch.
    pub(super) fn templates(&self) -> Arc<Templates> {
        Arc::clone(&self.templates.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sets the switch's templates, and returns the former ones.
    pub(super) fn replace_templates(&self, templates: Arc<Templates>) -> Arc<Templates> {
        let mut now = self.templates.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut now, templates)
    }

    /// The interface `name` with the template's keys, except for those in `keys`. It is not added.
    pub(super) fn of_template(
        &self,
        template: &TemplateName,
        name: PortName,
        keys: &Map<String, Value>,
    ) -> Response {
        let templates = self.templates();
        let template = match templates.get(template) {
            Ok(template) => template,
            Err(error) => return Response::not_found(error.to_string(), error.help()),
        };
        let socket = match Defaults::vif_socket(&self.control, &name) {
            Ok(socket) => socket,
            Err(error) => return refused(&error, "name a `socket`"),
        };
        let vif = template.vif(name, socket);
        // Reading an interface compiles its filter, which only users with the right to write may cause.
        if keys.is_empty() {
            return Response::Vif { config: Box::new(vif) };
        }
        match Settings::of(keys).onto(&vif) {
            Ok(config) => Response::Vif { config: Box::new(config) },
            Err(error) => refused(&error, "the keys are those of an interface in GET /v1/vifs"),
        }
    }

    /// Changes an interface to `config`, or refuses if that conflicts with the others.
    pub(super) fn becomes(
        &self,
        ports: &mut Ports,
        keeper: Option<&SocketPath>,
        index: usize,
        mut config: VifConfig,
    ) -> Result<Changed, Box<Response>> {
        self.networks.settle(&mut config);
        let vif = &ports.vifs[index];
        let differs = vif_difference(&vif.config, &config);
        if differs.is_empty() {
            return Ok(Changed::default());
        }
        if differs.iter().any(|key| !key.alive) {
            return Err(cannot_become(&config.name, &differs).into());
        }
        if matches!(vif.link, Link::Xen) {
            xen::may_become(&vif.config, &config)?;
        }
        if let Some(refusal) = self.refusal(ports, keeper, Some(index), &config) {
            return Err(refusal.into());
        }
        let vif = &mut ports.vifs[index];
        let before = self.calls(&vif.config);
        let is_shut = self.steps_between(&vif.config, &config) > 1;
        let shut: Vec<_> = is_shut.then(|| vif.port.id()).into_iter().collect();
        self.shut(&shut);
        let changed = self.change(vif, config, &before, &shut).map_err(|error| failed(&error));
        self.open(ports, &shut);
        changed?;
        let vif = &mut ports.vifs[index];
        let notes = differs.iter().filter_map(|it| match it.key.as_str() {
            "queues" => vif.queue_pairs().note(),
            key => Some(format!("{key}: {}", it.note.as_ref()?)),
        });
        let notes: Vec<_> = notes.collect();
        let config = &ports.vifs[index].config;
        let exists = |name: &PortName| ports.named().any(|(_, other)| other == name);
        let missing = mirror_note(&config.name, &config.vlan, exists);
        let missing = missing.filter(|_| differs.iter().any(|it| it.key == "vlan"));
        let notes: Vec<_> = notes.into_iter().chain(missing).collect();
        let note = (!notes.is_empty()).then(|| notes.join("; "));
        Ok(Changed { keys: differs.into_iter().map(|it| it.key).collect(), note })
    }

    /// Adds an interface, or gives the interface of its name these settings.
    pub(super) fn vif_put(&self, config: VifConfig) -> Response {
        let keeper = self.keeper_socket();
        let mut ports = self.ports();
        let Some(index) = ports.vifs.iter().position(|vif| vif.config.name == config.name) else {
            drop(ports);
            return match self.vif_add(config) {
                Response::Ok => put(PutOutcome::Added, Vec::new(), None),
                other => other,
            };
        };
        if let Vif { seen: Seen { config, .. }, link: Link::Xen, .. } = &ports.vifs[index] {
            return xen::not_ours_to_put(config);
        }
        match self.becomes(&mut ports, keeper.as_ref(), index, config) {
            Err(refusal) => *refusal,
            Ok(Changed { keys, .. }) if keys.is_empty() => put(PutOutcome::Unchanged, keys, None),
            Ok(Changed { keys, note }) => {
                ports.vifs[index].set.retain(|key| !keys.contains(key));
                put(PutOutcome::Changed, keys, note)
            }
        }
    }
}

fn put(outcome: PutOutcome, changed: Vec<String>, note: Option<String>) -> Response {
    Response::Put { put: Put { outcome, changed, note } }
}

/// The refusal of changes to keys that cannot change while the interface runs.
fn cannot_become(name: &PortName, differs: &[KeyDifference]) -> Response {
    let fixed = differs.iter().filter(|key| !key.alive).map(|it| {
        let [from, to] = [&it.from, &it.to].map(|value| value.as_deref().unwrap_or("none"));
        format!("{} is {from} and not {to}", it.key)
    });
    let fixed = fixed.collect::<Vec<_>>().join(", ");
    let message = format!("{name} exists already, and is another: {fixed}");
    Response::refused(message, format!("`weir vif del {name}` first, which disconnects its guest"))
}
