//! Requests for an interface to exist with given settings: it is added, changed, or left as it is.

use weir_config::reload::{KeyDifference, shown_vif, vif_difference};
use weir_config::{PortName, VifConfig};
use weir_engine::guest::{PortInfo, State};

use super::{Link, Ports, Switch, Vif, failed, no_such_vif, port_state, xen};
use crate::control::{Put, PutOutcome, Response, VifOrigin, VifShown};

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
    /// An interface, setting by setting.
    pub(super) fn vif_show(&self, name: &PortName) -> Response {
        let source = self.source();
        let ports = self.ports();
        let Some(vif) = ports.vifs.iter().find(|vif| vif.config.name == *name) else {
            return no_such_vif(name, ports.is_uplink(name));
        };
        let listed = source.as_ref().map(|source| &source.listed);
        let file = listed.and_then(|listed| match vif.origin() {
            VifOrigin::Command => None,
            VifOrigin::File => listed.vifs.iter().find(|it| it.name == *name),
            VifOrigin::Xen => listed.xen.iter().find(|it| it.name == *name),
        });
        // The default is the switch's budget, whatever the interface sets itself.
        let unset = VifConfig { latency_budget: None, ..vif.config.clone() };
        let budget = self.budget(&unset);
        let PortInfo { state, stop_reason, .. } = vif.port.info();
        let shown = VifShown {
            name: name.clone(),
            state: port_state(state),
            stopped_reason: stop_reason.filter(|_| state == State::Stopped),
            origin: vif.origin(),
            settings: shown_vif(&vif.config, file, &self.networks, budget),
        };
        Response::Shown { vif: Box::new(shown) }
    }

    /// Changes an interface to `config`, or refuses if that conflicts with the others.
    pub(super) fn becomes(
        &self,
        ports: &mut Ports,
        index: usize,
        mut config: VifConfig,
    ) -> Option<Response> {
        if let Some(refusal) = self.settle(&mut config).or_else(|| self.refusal(&config)) {
            return Some(refusal);
        }
        let resized = config.queues != ports.vifs[index].config.queues;
        if let (true, Vif { config, link: Link::Xen, .. }) = (resized, &ports.vifs[index]) {
            return Some(xen::queues_are_in_xenstore(config));
        }
        let conflict = ports
            .vifs
            .iter()
            .filter(|vif| vif.config.name != config.name)
            .find_map(|vif| config.conflict_with(&vif.config));
        if let Some(conflict) = conflict {
            return Some(Response::error(conflict.to_string()));
        }
        if let Some(refusal) = ports.mirror_refusal(&config) {
            return Some(refusal);
        }
        let vif = &mut ports.vifs[index];
        let before = vif.config.call_policy(self.budget(&vif.config));
        self.change(vif, config, &before).err().map(|error| failed(&error))
    }

    /// Adds an interface, or changes the one of the same name.
    pub(super) fn vif_put(&self, mut config: VifConfig) -> Response {
        let mut ports = self.ports();
        let Some(index) = ports.vifs.iter().position(|vif| vif.config.name == config.name) else {
            drop(ports);
            return match self.vif_add(config) {
                Response::Ok => put(PutOutcome::Added, Vec::new(), None),
                other => other,
            };
        };
        if let Vif { config, link: Link::Xen, .. } = &ports.vifs[index] {
            return xen::not_ours_to_put(config);
        }
        if let Some(refusal) = self.settle(&mut config) {
            return refusal;
        }
        let differs = vif_difference(&ports.vifs[index].config, &config);
        if differs.is_empty() {
            return put(PutOutcome::Unchanged, Vec::new(), None);
        }
        if differs.iter().any(|key| !key.alive) {
            return cannot_become(&config.name, &differs);
        }
        if let Some(refusal) = self.becomes(&mut ports, index, config) {
            return refusal;
        }
        let changed: Vec<_> = differs.into_iter().map(|it| it.key).collect();
        let sizes = changed.iter().any(|key| key == "queues");
        let note = ports.vifs[index].queue_pairs().note().filter(|_| sizes);
        put(PutOutcome::Changed, changed, note)
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
