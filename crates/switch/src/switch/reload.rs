//! `weir diff` and `weir reload`: the running switch is changed to match a configuration, while traffic flows.
//!
//! Steps that can fail come first: sockets and devices are opened before anything is changed. If a later step fails,
//! the steps before it are undone.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard, PoisonError};

use weir_config::reload::{
    Able, Beside, Common, Difference, DifferenceKind, Running, RunningVif, Steps,
};
use weir_config::{
    Config, ConfigError, Defaults, GroupConfig, Groups, LatencyBudget, PlacementConfig, PortName,
    SecurityGroup, SocketPath, SocketRole, SwitchConfig, Templates, UplinkConfig, VifConfig,
    read_text,
};
use weir_fabric::PortId;
use weir_limits::PORTS_MAX;
use weir_policy::schedule::Kind;

use super::plugging::uplink_share;
use super::settings::{Listed, Source};
use super::{
    Link, Meeting, Prepared, Switch, SwitchError, Uplink, UplinkDevice, Vif, failed, port_rules,
};
use crate::control::{Extent, ReloadOutcome, Response};
use crate::events::{self, Event, ReloadNews};
use crate::helper::Hands;
use crate::manager;

/// A configuration compared with the running switch.
struct Compared {
    config: Config,
    difference: Difference,
    steps: Steps,
    /// The result of the check that the ports do not conflict after the steps.
    check: Result<(), String>,
}

/// The reversal of a step.
enum Undo {
    Placement(PlacementConfig),
    /// The old schedule.
    Schedule(Kind),
    /// The old groups.
    Groups(Arc<Groups>),
    /// The old templates.
    Templates(Arc<Templates>),
    /// The old budget of the switch, and the old settings of interfaces.
    Vifs(LatencyBudget, Vec<VifConfig>),
    Uplink(Box<UplinkConfig>),
    RemoveVif(PortName),
    AddVif(Box<VifConfig>),
    RemoveUplink(PortName),
}

impl Switch {
    /// Notes the `file` and the `defaults` from which the switch's configuration was read.
    pub fn started_from(&self, file: &Path, defaults: &Defaults) {
        if let Some(source) = &mut *self.source() {
            source.file = std::path::absolute(file).ok();
            source.defaults = defaults.clone();
        }
    }

    /// Notes the configuration with which the switch was started, and the settings of the switch by now. Interfaces
    /// that were `added` while another weir ran do not belong to the configuration, even if it names them.
    pub(super) fn comes_from(&self, config: &Config, switch: SwitchConfig, added: &[PortName]) {
        let file =
            Common { switch: &config.switch, groups: &config.groups, templates: &config.templates };
        let (groups, templates) = (self.groups(), self.templates());
        let now = Common { switch: &switch, groups: &groups, templates: &templates };
        let beside = Beside::between(file, now);
        // A copy that is the same as what runs takes no memory.
        let (groups, templates) = match beside.is_empty() {
            true => (groups, templates),
            false => (Arc::new(config.groups.clone()), Arc::new(config.templates.clone())),
        };
        let confined = matches!(self.hands, Hands::Helper(_));
        *self.source() = Some(Source {
            file: None,
            defaults: Defaults {
                control: self.control.clone(),
                control_named: true,
                keeper: config.switch.keeper.clone(),
            },
            switch,
            xen: config.xen.clone(),
            may_pin: !confined || config.switch.placement.pin_vcpus,
            listed: Listed {
                switch: config.switch.clone(),
                groups,
                templates,
                beside,
                vifs: config.vifs.clone(),
                uplinks: config.uplinks.clone(),
                xen: Vec::new(),
                left: self.keeper.noted().of_xen(config),
            },
        });
        self.mark(config);
        for vif in &mut self.ports().vifs {
            vif.from_file &= !added.contains(&vif.config.name);
        }
    }

    /// Notes that the switch now matches its own file, as far as it can change.
    fn is_as_listed(&self) {
        let ports = self.ports();
        let vifs = ports.vifs.iter().filter(|vif| vif.from_file);
        let vifs = vifs.map(|vif| VifConfig::clone(&vif.config));
        let uplinks = ports.uplinks.iter().map(|uplink| uplink.config.clone());
        let (vifs, uplinks) = (vifs.collect(), uplinks.collect());
        drop(ports);
        let (groups, templates) = (self.groups(), self.templates());
        if let Some(source) = &mut *self.source() {
            let listed = &mut source.listed;
            (listed.vifs, listed.uplinks, listed.beside) = (vifs, uplinks, Beside::default());
            (listed.groups, listed.templates) = (groups, templates);
            listed.switch.clone_from(&source.switch);
        }
    }

    /// Notes how the switch differs from its own file, in settings that are no port's.
    fn is_beside_what_is_listed(&self) {
        let (groups, templates) = (self.groups(), self.templates());
        if let Some(Source { switch, listed, .. }) = &mut *self.source() {
            let file = Common {
                switch: &listed.switch,
                groups: &listed.groups,
                templates: &listed.templates,
            };
            let now = Common { switch, groups: &groups, templates: &templates };
            listed.beside = Beside::between(file, now);
        }
    }

    /// True if `text` is the content of the file with which weir was started; true also without a file.
    fn is_own_file(&self, text: &str) -> bool {
        let Some(file) = self.config_file() else { return true };
        let own = self.hands.open_config(&file).and_then(|open| read_text(open, &file));
        own.is_ok_and(|own| own == text)
    }

    /// Marks interfaces that the file names as belonging to the file.
    fn mark(&self, config: &Config) {
        let named: BTreeSet<_> = config.vifs.iter().map(|vif| &vif.name).collect();
        for vif in &mut self.ports().vifs {
            vif.from_file = named.contains(&vif.config.name) && vif.config.by.is_none();
        }
    }

    pub(super) fn source(&self) -> MutexGuard<'_, Option<Source>> {
        self.source.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn config_file(&self) -> Option<PathBuf> {
        self.source().as_ref()?.file.clone()
    }

    /// The keeper's socket, if there is one. Call it before the ports are locked.
    pub(super) fn keeper_socket(&self) -> Option<SocketPath> {
        self.source().as_ref()?.switch.keeper.clone()
    }

    /// Reads the file with which the switch was started again, and changes the switch to it. The outcome is logged.
    pub fn reload_file(&self) {
        let Some(file) = self.config_file() else {
            tracing::warn!("nothing to reload: weir was started without a file");
            return;
        };
        let text = self.hands.open_config(&file).and_then(|open| read_text(open, &file));
        match text {
            Ok(text) => {
                self.reload(&text, Extent::Whole);
                drop(text);
                weir_config::give_back();
            }
            Err(error) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                tracing::error!(%error, cause, "not reloaded, nothing changed");
            }
        }
    }

    pub(super) fn diff(&self, text: &str) -> Response {
        match self.parsed(text).and_then(|config| self.compare(config)) {
            Ok(Compared { difference, .. }) => {
                Response::Difference { difference: difference.into() }
            }
            Err(refusal) => *refusal,
        }
    }

    /// The configuration is parsed before the lock is taken, because compiling its expressions can take long.
    pub(super) fn reload(&self, text: &str, extent: Extent) -> Response {
        let (config, own) = (self.parsed(text), self.is_own_file(text));
        self.one_after_the_other(|it| it.change_to(config, extent, own))
    }

    fn change_to(
        &self,
        config: Result<Config, Box<Response>>,
        extent: Extent,
        own: bool,
    ) -> Response {
        let compared = config.and_then(|config| self.compare(config));
        let Compared { config, difference, steps, check } = match compared {
            Ok(compared) => compared,
            Err(refusal) => {
                if let Response::Error { message, .. } = &*refusal {
                    tracing::error!(problem = message, "not reloaded, nothing changed");
                }
                return *refusal;
            }
        };
        let fixed: Vec<_> = difference.fixed().map(|(what, _)| what).collect();
        let outcome = if extent == Extent::Nothing && difference.is_otherwise() {
            tracing::warn!("what runs was changed while it was saved; it goes on");
            ReloadOutcome::Refused
        } else if !fixed.is_empty() && extent == Extent::Whole {
            tracing::error!(
                cannot_change = fixed.join(", "),
                "not reloaded, nothing changed; `weir diff` says more"
            );
            ReloadOutcome::Refused
        } else if let Err(problem) = check {
            tracing::error!(problem, "not reloaded, nothing changed");
            return Response::error(problem);
        } else {
            let outcome = self.carry_out(&config, steps, &difference, own);
            self.look_on_demand();
            outcome
        };
        let news = match &outcome {
            ReloadOutcome::Applied { .. } => ReloadNews::Applied,
            ReloadOutcome::Refused => ReloadNews::Refused,
            ReloadOutcome::Undone { .. } => ReloadNews::Undone,
        };
        events::tell(Event::Reloaded { outcome: news, tables: difference.tables.len() });
        Response::Reloaded { difference: difference.into(), outcome }
    }

    /// The text with the running settings written into it.
    pub(super) fn saved(&self, text: &str) -> Response {
        let config = self.parsed(text);
        let saved = config.and_then(|config| self.beside(|running| running.saved(text, &config)));
        match saved {
            Ok(Ok(text)) => Response::Text { text },
            Ok(Err(error)) => Response::error(error.to_string()),
            Err(refusal) => *refusal,
        }
    }

    fn parsed(&self, text: &str) -> Result<Config, Box<Response>> {
        let defaults = self.source().as_ref().map(|source| source.defaults.clone());
        let defaults = defaults.ok_or_else(no_source)?;
        let config = Config::from_toml("the configuration", text, &defaults);
        config.map_err(|error| refusal(&error).into())
    }

    fn compare(&self, config: Config) -> Result<Compared, Box<Response>> {
        let gone = self.uplinks_gone();
        let (difference, steps, check) = self.beside(|running| {
            // An uplink whose interface was removed counts as missing.
            let mut running = running.clone();
            let is_wanted = |name: &PortName| config.uplinks.iter().any(|it| it.name == *name);
            running.uplinks.retain(|it| !(gone.contains(&it.name) && is_wanted(&it.name)));
            let (difference, steps) = running.compare(&config);
            let check = running.check(&steps);
            (difference, steps, check)
        })?;
        Ok(Compared { config, difference, steps, check })
    }

    /// Calls `look` with a copy of the running state, so that no lock is held meanwhile.
    fn beside<T>(&self, look: impl FnOnce(&Running<'_>) -> T) -> Result<T, Box<Response>> {
        let (switch, xen, may_pin) = {
            let source = self.source();
            let source = source.as_ref().ok_or_else(no_source)?;
            (source.switch.clone(), source.xen.clone(), source.may_pin)
        };
        let (vifs, uplinks) = {
            let ports = self.ports();
            let vifs = ports
                .vifs
                .iter()
                .map(|vif| (vif.config.clone(), vif.from_file, matches!(vif.link, Link::Xen)));
            let uplinks = ports.uplinks.iter().map(|uplink| uplink.config.clone());
            (vifs.collect::<Vec<_>>(), uplinks.collect::<Vec<_>>())
        };
        let (groups, templates) = (self.groups(), self.templates());
        let running = Running {
            switch: &switch,
            networks: &self.networks,
            groups: &groups,
            templates: &templates,
            uplinks: uplinks.iter().collect(),
            vifs: vifs
                .iter()
                .map(|(config, from_file, xen)| RunningVif {
                    config,
                    from_file: *from_file,
                    xen: *xen,
                })
                .collect(),
            xen: xen.as_ref(),
            able: Able {
                sockets: &|path, role| match role {
                    SocketRole::Server => self.hands.may_use(path),
                    SocketRole::Client => self.hands.check_connect(path).is_ok(),
                },
                uplinks: matches!(self.hands, Hands::Own),
                pin_vcpus: may_pin,
            },
        };
        Ok(look(&running))
    }

    fn carry_out(
        &self,
        config: &Config,
        steps: Steps,
        difference: &Difference,
        own: bool,
    ) -> ReloadOutcome {
        let (mut undo, mut notes) = (Vec::new(), Vec::new());
        let (budget, placement) = (steps.latency_budget, steps.placement);
        let schedule = steps.schedule;
        let [shut, stay] = self.shut_for(&steps);
        if let Err(error) = self.take_steps(steps, [&shut, &stay], &mut undo, &mut notes) {
            self.shut(&shut);
            self.undo(undo, &shut, &mut notes);
            self.open(&self.ports(), &shut);
            let Response::Error { message, help, .. } = failed(&error) else {
                unreachable!("a failure is an error")
            };
            tracing::error!(
                failure = message,
                notes = notes.join("; "),
                "not reloaded, the changes are undone"
            );
            return ReloadOutcome::Undone { failure: message, help, notes };
        }
        if let Some(source) = &mut *self.source() {
            source.switch.latency_budget = budget.unwrap_or(source.switch.latency_budget);
            source.switch.schedule = schedule.unwrap_or(source.switch.schedule);
            source.switch.placement = placement.unwrap_or(source.switch.placement);
        }
        self.mark(config);
        notes.extend(self.still_gone());
        match (own, self.config_file()) {
            (false, Some(file)) => {
                self.is_beside_what_is_listed();
                notes.push(format!(
                    "weir starts with {}, which says otherwise; the next start without a keeper is by that file",
                    file.display()
                ));
            }
            _ => self.is_as_listed(),
        }
        let [added, removed, changed] =
            [DifferenceKind::Added, DifferenceKind::Removed, DifferenceKind::Changed]
                .map(|kind| difference.count(kind));
        let left = difference.fixed().count();
        tracing::info!(added, removed, changed, left, "reloaded");
        for note in &notes {
            tracing::warn!("{note}");
        }
        ReloadOutcome::Applied { notes }
    }

    /// If several changes affect what passes or which ports exist, shuts the ports that change.
    /// Returns these ports, and those of them that stay.
    fn shut_for(&self, steps: &Steps) -> [Vec<PortId>; 2] {
        let ports = self.ports();
        let mut changes = steps.vifs_added.len() + steps.uplinks_added.len();
        let mut shut = [Vec::new(), Vec::new()];
        let mut note = |id, own: usize, goes: bool| {
            changes += own + usize::from(goes);
            shut[0].extend((own > 0 || goes).then_some(id));
            shut[1].extend((own > 0 && !goes).then_some(id));
        };
        let now = self.groups();
        for vif in &ports.vifs {
            let config = &vif.config;
            let wanted = steps.vifs_changed.iter().find(|it| it.name == config.name);
            let judges_anew =
                |new: &Groups| new.policy(&config.groups) != now.policy(&config.groups);
            let is_grouped = steps.groups.as_ref().is_some_and(judges_anew);
            let own = wanted.map_or(0, |wanted| self.steps_between(config, wanted));
            let goes = steps.vifs_removed.contains(&config.name);
            note(vif.port.id(), own + usize::from(is_grouped), goes);
        }
        for Uplink { config, id, .. } in &ports.uplinks {
            let changes = steps.uplinks_changed.iter().any(|it| it.name == config.name);
            note(*id, 2 * usize::from(changes), steps.uplinks_removed.contains(&config.name));
        }
        if changes < 2 {
            return Default::default();
        }
        self.shut(&shut[0]);
        shut
    }

    /// Gives the switch this group, or takes it away. Connections that the new rules forbid end at once.
    pub(super) fn group_becomes(
        &self,
        name: &SecurityGroup,
        group: Option<GroupConfig>,
    ) -> Response {
        let now = self.groups();
        if now.get(name) == group.as_ref() {
            let missing = format!("there is no group {name}");
            return match group {
                None => Response::not_found(missing, "`weir group list` shows those there are"),
                Some(_) => Response::Noted { note: "nothing changed".into() },
            };
        }
        let goes = group.is_none();
        let refused = |problem: String, help: Option<String>| match goes {
            true => Response::refused(
                format!("group {name} is in use; without it: {problem}"),
                "take the group away there first: `weir vif set NAME groups=none`".to_owned(),
            ),
            false => Response::refused(problem, help),
        };
        let steps = match now.with(name, group) {
            Ok(groups) => Steps { groups: Some(groups), ..Steps::default() },
            Err((problems, help)) => return refused(problems, help),
        };
        match self.beside(|running| running.check(&steps)) {
            Err(refusal) => return *refusal,
            Ok(Err(problem)) => return refused(problem, None),
            Ok(Ok(())) => {}
        }
        let [shut, stay] = self.shut_for(&steps);
        let taken = self.take_steps(steps, [&shut, &stay], &mut Vec::new(), &mut Vec::new());
        self.is_beside_what_is_listed();
        taken.map_or_else(|error| failed(&error), |()| Response::Ok)
    }

    fn take_steps(
        &self,
        steps: Steps,
        [shut, stay]: [&[PortId]; 2],
        undo: &mut Vec<Undo>,
        notes: &mut Vec<String>,
    ) -> Result<(), SwitchError> {
        let (first, last) = self.order(steps.vifs_added, &steps.vifs_removed);
        let all = &steps.uplinks_added;
        let open = |uplink| UplinkDevice::open_among(all, uplink, &self.keeper);
        let devices = all.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let ready = self.prepare_all(first)?;
        // Nothing has been changed up to here.
        if let Some(placement) = steps.placement {
            undo.push(Undo::Placement(self.place(placement)));
        }
        let old = steps.templates.map(|templates| self.replace_templates(Arc::new(templates)));
        undo.extend(old.map(Undo::Templates));
        // New groups apply to interfaces once all groups exist.
        let regrouped = steps.groups.map(|groups| self.replace_groups(Arc::new(groups)));
        let is_regrouped = regrouped.is_some();
        undo.extend(regrouped.map(Undo::Groups));
        if let Some(schedule) = steps.schedule {
            undo.push(Undo::Schedule(self.engine.set_schedule(schedule.0)));
        }
        self.set_all(steps.latency_budget, &steps.vifs_changed, undo, shut)?;
        if is_regrouped {
            self.hold_to_groups();
        }
        for uplink in steps.uplinks_changed {
            undo.extend(self.change_uplink(uplink, shut)?.map(|old| Undo::Uplink(old.into())));
        }
        // Ports that are about to be removed pass nothing any more.
        self.open(&self.ports(), stay);
        for prepared in ready {
            let name = prepared.config.name.clone();
            self.begin([self.plug_prepared(prepared)?])?;
            undo.push(Undo::RemoveVif(name));
        }
        for name in &steps.vifs_removed {
            undo.extend(self.config_of(name).map(|vif| Undo::AddVif(vif.into())));
            if let Response::Error { message, .. } = self.vif_del(name) {
                notes.push(message);
            }
        }
        for vif in last {
            let name = vif.name.clone();
            self.add_vif(vif, Meeting::Configured)?;
            undo.push(Undo::RemoveVif(name));
        }
        for (uplink, device) in steps.uplinks_added.iter().zip(devices) {
            // Unplugging removes the remains of an uplink whose interface was removed.
            self.unplug(&uplink.name);
            self.plug_in(uplink, device)?;
            undo.push(Undo::RemoveUplink(uplink.name.clone()));
        }
        for name in &steps.uplinks_removed {
            self.unplug(name);
        }
        Ok(())
    }

    /// Undoes steps, the last one first.
    fn undo(&self, steps: Vec<Undo>, shut: &[PortId], notes: &mut Vec<String>) {
        for step in steps.into_iter().rev() {
            let undone = match step {
                Undo::Placement(placement) => {
                    self.place(placement);
                    Ok(())
                }
                Undo::Schedule(schedule) => {
                    self.engine.set_schedule(schedule);
                    Ok(())
                }
                Undo::Groups(groups) => {
                    self.replace_groups(groups);
                    self.hold_to_groups();
                    Ok(())
                }
                Undo::Templates(templates) => {
                    self.replace_templates(templates);
                    Ok(())
                }
                Undo::Vifs(budget, vifs) => {
                    self.set_all(Some(budget), &vifs, &mut Vec::new(), shut)
                }
                Undo::Uplink(uplink) => self.change_uplink(*uplink, shut).map(drop),
                Undo::RemoveUplink(name) => {
                    self.unplug(&name);
                    Ok(())
                }
                Undo::RemoveVif(name) => {
                    if let Response::Error { message, .. } = self.vif_del(&name) {
                        notes.push(message);
                    }
                    Ok(())
                }
                Undo::AddVif(vif) => {
                    let name = vif.name.clone();
                    let added = self.add_vif(*vif, Meeting::Configured);
                    if added.is_ok() {
                        self.mark_one(&name);
                        notes.push(format!(
                            "{name} was removed and added again, which disconnected its guest"
                        ));
                    }
                    added
                }
            };
            if let Err(error) = undone
                && let Response::Error { message, .. } = failed(&error)
            {
                notes.push(format!("not undone: {message}"));
            }
        }
    }

    /// Uplinks that have stopped and whose interfaces can be opened again: a TAP is made again.
    fn uplinks_gone(&self) -> Vec<PortName> {
        let can_open = |uplink: &UplinkConfig| {
            let interface = Path::new("/sys/class/net").join(uplink.interface.as_str());
            matches!(self.hands, Hands::Own) && (uplink.kind.is_made() || interface.exists())
        };
        let ports = self.ports();
        let gone = ports.uplinks.iter().filter(|uplink| uplink.port.failure().is_some());
        let gone = gone.filter(|uplink| can_open(&uplink.config));
        gone.map(|uplink| uplink.config.name.clone()).collect()
    }

    /// Notes on uplinks that a reload does not bring back.
    fn still_gone(&self) -> Vec<String> {
        let ports = self.ports();
        let gone = ports.uplinks.iter().filter_map(|uplink| {
            let failure = uplink.port.failure()?;
            let name = &uplink.config.name;
            Some(format!("uplink {name} stays closed until weir is started again: {failure}"))
        });
        gone.collect()
    }

    fn mark_one(&self, name: &PortName) {
        let mut ports = self.ports();
        if let Some(vif) = ports.vifs.iter_mut().find(|vif| vif.config.name == *name) {
            vif.from_file = vif.config.by.is_none();
        }
    }

    pub(super) fn config_of(&self, name: &PortName) -> Option<VifConfig> {
        let ports = self.ports();
        let vif = ports.vifs.iter().find(|vif| vif.config.name == *name)?;
        Some(VifConfig::clone(&vif.config))
    }

    /// The new interfaces that can be added first, and those that need a resource of a removed one.
    fn order(
        &self,
        added: Vec<VifConfig>,
        removed: &[PortName],
    ) -> (Vec<VifConfig>, Vec<VifConfig>) {
        let ports = self.ports();
        let room = PORTS_MAX.saturating_sub(ports.len());
        let gone: Vec<_> =
            ports.vifs.iter().filter(|vif| removed.contains(&vif.config.name)).collect();
        let is_free = |vif: &VifConfig| {
            gone.iter().all(|gone| {
                let shares_agent = vif.agent.is_some() && vif.agent == gone.config.agent;
                !vif.shares_with(&gone.config, &self.networks) && !shares_agent
            })
        };
        match added.len() > room {
            true => (Vec::new(), added),
            false => added.into_iter().partition(is_free),
        }
    }

    /// Opens the sockets of all interfaces, or of none.
    fn prepare_all(&self, vifs: Vec<VifConfig>) -> Result<Vec<Prepared>, SwitchError> {
        let mut ready: Vec<Prepared> = Vec::new();
        for vif in vifs {
            match self.prepare(vif, Meeting::Configured, &ready, None) {
                Ok(prepared) => ready.push(prepared),
                Err(error) => {
                    for Prepared { config, records, .. } in ready {
                        if records.is_some() {
                            self.hands.remove_records(&config.socket);
                        }
                    }
                    return Err(error);
                }
            }
        }
        Ok(ready)
    }

    /// Sets the switch's budget, and changes interfaces to `wanted`.
    fn set_all(
        &self,
        budget: Option<LatencyBudget>,
        wanted: &[VifConfig],
        undo: &mut Vec<Undo>,
        shut: &[PortId],
    ) -> Result<(), SwitchError> {
        if budget.is_none() && wanted.is_empty() {
            return Ok(());
        }
        let mut ports = self.ports();
        let calls = |vif: &Vif| self.calls(&vif.config);
        let before: Vec<_> = ports.vifs.iter().map(calls).collect();
        let old_budget = {
            let mut now = self.latency_budget.lock().unwrap_or_else(PoisonError::into_inner);
            let new = budget.unwrap_or(*now);
            std::mem::replace(&mut *now, new)
        };
        let mut old = Vec::new();
        let mut result = Ok(());
        for (vif, before) in ports.vifs.iter_mut().zip(&before) {
            let config = wanted.iter().find(|it| it.name == vif.config.name);
            let inherits = budget.is_some() && vif.config.latency_budget.is_none();
            if config.is_none() && !inherits {
                continue;
            }
            let config = config.unwrap_or(&vif.config).clone();
            old.push(VifConfig::clone(&vif.config));
            result = self.change(vif, config, before, shut);
            if result.is_err() {
                break;
            }
        }
        undo.push(Undo::Vifs(old_budget, old));
        result
    }

    /// Changes the placement of workers; returns the old placement.
    pub(super) fn place(&self, placement: PlacementConfig) -> PlacementConfig {
        let host = manager::Host { hands: self.hands.clone(), ..manager::Host::default() };
        self.manager.place(placement, host);
        self.source().as_ref().map_or(placement, |source| source.switch.placement)
    }

    /// Changes an uplink to `wanted`, except for its device; returns the old settings.
    fn change_uplink(
        &self,
        wanted: UplinkConfig,
        shut: &[PortId],
    ) -> Result<Option<UplinkConfig>, SwitchError> {
        let rules = port_rules(&wanted.name, &wanted.filter)?;
        let mut ports = self.ports();
        let uplink = ports.uplinks.iter_mut().find(|it| it.config.name == wanted.name);
        let Some(Uplink { config, id, rules: shown, bond, .. }) = uplink else { return Ok(None) };
        let port_config = self.uplink_port_config(&wanted);
        if port_config != self.uplink_port_config(config) {
            let failed = |source| SwitchError::Port { name: wanted.name.clone(), source };
            self.engine.fabric().update_port(*id, port_config).map_err(failed)?;
        }
        // An unchanged filter keeps its rules' counters.
        if wanted.filter != config.filter {
            *shown = rules;
        }
        self.engine.change_settings(*id, |settings| {
            if !shut.contains(id) {
                settings.rules = shown.clone();
            }
            settings.share = uplink_share(&wanted);
        });
        let in_bond = |it: &UplinkConfig| (it.mode, it.lacp_rate);
        if let Some(bond) = bond.as_ref().filter(|_| in_bond(&wanted) != in_bond(config)) {
            bond.set_mode(&wanted);
        }
        if wanted.rss_rebalance != config.rss_rebalance {
            self.manager.change_uplink(&wanted.name, wanted.rss_rebalance);
        }
        Ok(Some(std::mem::replace(config, wanted)))
    }

    /// Removes an uplink. Its device is closed when the last burst to it has ended.
    fn unplug(&self, name: &PortName) {
        let mut ports = self.ports();
        let index = ports.uplinks.iter().position(|uplink| uplink.config.name == *name);
        let Some(uplink) = index.map(|index| ports.uplinks.remove(index)) else { return };
        drop(ports);
        self.mirrors.lock().unwrap_or_else(|e| e.into_inner()).end_of(name);
        self.manager.remove_uplink(name);
        self.loops.remove(uplink.id);
        uplink.port.stop(&self.engine, uplink.id);
        self.engine.remove_port(uplink.id);
        tracing::info!(uplink = %name, "uplink removed");
    }
}

fn no_source() -> Box<Response> {
    Response::error("this switch was not set up by a configuration").into()
}

/// The problems of a configuration, each on one line.
fn refusal(error: &ConfigError) -> Response {
    let help = "`weir check FILE` shows them in their places".to_owned();
    Response::refused(format!("{error}: {}", error.lines().join("; ")), help)
}
