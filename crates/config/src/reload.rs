//! The differences between a configuration and a running switch: as data for people ([`Difference`]), and as the steps
//! of a reload ([`Steps`]).
//!
//! The file decides about the tables that it has, and about those that it had when it was last read. Interfaces from
//! `weir vif add` stay.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::check::{TableFault, Whole};
use super::keys::{Key, NEEDS_A_RESTART, Rows};
use super::{
    Config, GroupConfig, GroupIds, Groups, LatencyBudget, NamePattern, NetworkConfig, NetworkName,
    Networks, OnDemandConfig, OverlayConfig, PlacementConfig, PortName, Schedule, SocketPath,
    SocketRole, SwitchConfig, TemplateConfig, Templates, UplinkConfig, VifConfig, XenConfig,
};

mod beside;
mod save;
mod shown;
#[cfg(test)]
mod tests;

pub use beside::{Beside, Common};
pub use shown::{SettingFrom, ShownSetting, shown_vif};

/// The differences between a configuration and a running switch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Difference {
    /// Tables that differ: `[switch]` and `[xen]`, uplinks, then interfaces.
    pub tables: Vec<TableDifference>,
}

/// The difference of one table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TableDifference {
    /// The table's name in the file, such as `vif.web0`.
    pub table: String,
    /// The kind of difference.
    pub kind: DifferenceKind,
    /// True if weir can make the change while it runs. In a changed table, each key has its own answer.
    pub alive: bool,
    /// A note for the user.
    pub note: Option<String>,
    /// The keys that differ; of a new table, the keys that differ from the defaults.
    pub keys: Vec<KeyDifference>,
}

/// The kind of difference between a table of the file and the running switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DifferenceKind {
    /// Only the file has the table.
    Added,
    /// The file no longer has the table.
    Removed,
    /// Both have the table.
    Changed,
    /// The file never had the table. The interface came by `weir vif add`, and stays.
    Unlisted,
}

/// The difference of one key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeyDifference {
    /// The key's name in the file. `vlan` stands for `trunk` and `native`, too.
    pub key: String,
    /// The running value; `None` is the default.
    pub from: Option<String>,
    /// The value in the file.
    pub to: Option<String>,
    /// True if the key can change while weir runs.
    pub alive: bool,
    /// The reason why the key cannot change, or the time when the change takes effect.
    pub note: Option<String>,
}

/// A running switch, as far as a file can change it.
#[derive(Debug, Clone)]
pub struct Running<'a> {
    /// The settings of the whole switch.
    pub switch: &'a SwitchConfig,
    /// The networks.
    pub networks: &'a Networks,
    /// The groups.
    pub groups: &'a Groups,
    /// Its templates.
    pub templates: &'a Templates,
    /// Its uplinks.
    pub uplinks: Vec<&'a UplinkConfig>,
    /// The interfaces.
    pub vifs: Vec<RunningVif<'a>>,
    /// The settings for Xen guests, if weir serves them.
    pub xen: Option<&'a XenConfig>,
    /// The privileges that weir still has.
    pub able: Able<'a>,
}

/// An interface of a running switch.
#[derive(Debug, Clone, Copy)]
pub struct RunningVif<'a> {
    /// The running configuration.
    pub config: &'a VifConfig,
    /// True if the file had the interface when it was last read.
    pub from_file: bool,
    /// True if the toolstack attached the interface for a Xen guest.
    pub xen: bool,
}

/// Actions of a running weir that need a privilege.
#[derive(Clone, Copy)]
pub struct Able<'a> {
    /// True if weir can make, or connect to, a socket at this path.
    pub sockets: &'a dyn Fn(&SocketPath, SocketRole) -> bool,
    /// True if weir can open devices of uplinks.
    pub uplinks: bool,
    /// True if weir can place guests' virtual processors.
    pub pin_vcpus: bool,
}

impl std::fmt::Debug for Able<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { uplinks, pin_vcpus, sockets: _ } = self;
        f.debug_struct("Able").field("uplinks", uplinks).field("pin_vcpus", pin_vcpus).finish()
    }
}

/// The steps of a reload: all parts of a [`Difference`] that are alive.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Steps {
    /// The new default latency budget.
    pub latency_budget: Option<LatencyBudget>,
    /// The new schedule.
    pub schedule: Option<Schedule>,
    /// The new placement.
    pub placement: Option<PlacementConfig>,
    /// All groups of the new file, if one differs.
    pub groups: Option<Groups>,
    /// All templates of the new file, if one differs.
    pub templates: Option<Templates>,
    /// Changed uplinks, with their new settings.
    pub uplinks_changed: Vec<UplinkConfig>,
    /// New uplinks.
    pub uplinks_added: Vec<UplinkConfig>,
    /// Uplinks to remove.
    pub uplinks_removed: Vec<PortName>,
    /// Changed interfaces, with their new settings.
    pub vifs_changed: Vec<VifConfig>,
    /// New interfaces.
    pub vifs_added: Vec<VifConfig>,
    /// Interfaces to remove. Their guests are disconnected.
    pub vifs_removed: Vec<PortName>,
}

impl Difference {
    /// True if a reload would change nothing.
    pub fn is_empty(&self) -> bool {
        self.tables.iter().all(|table| table.kind == DifferenceKind::Unlisted)
    }

    /// True if the file differs from the running switch in something that can change while weir runs.
    pub fn is_otherwise(&self) -> bool {
        use DifferenceKind::{Added, Changed, Removed, Unlisted};
        [Added, Removed, Changed, Unlisted].into_iter().any(|kind| self.count(kind) > 0)
    }

    /// The number of tables with this kind of difference that weir can change while it runs.
    pub fn count(&self, kind: DifferenceKind) -> usize {
        let does = |table: &&TableDifference| {
            table.alive && (table.keys.is_empty() || table.keys.iter().any(|key| key.alive))
        };
        self.tables.iter().filter(|table| table.kind == kind).filter(does).count()
    }

    /// The keys and tables that cannot change while weir runs, such as `switch.workers` or `uplink.lan`. Each has its
    /// reason.
    pub fn fixed(&self) -> impl Iterator<Item = (String, &str)> {
        self.tables.iter().flat_map(|table| {
            let whole = (!table.alive).then(|| (table.table.clone(), text(&table.note)));
            let keys = table.keys.iter().filter(|key| !key.alive && table.alive);
            let keys = keys.map(|it| (format!("{}.{}", table.table, it.key), text(&it.note)));
            whole.into_iter().chain(keys)
        })
    }
}

fn text(note: &Option<String>) -> &str {
    note.as_deref().unwrap_or_default()
}

impl Running<'_> {
    /// The differences to `file`, and the steps of a reload. The steps leave out changes that need a restart.
    pub fn compare(&self, file: &Config) -> (Difference, Steps) {
        let (mut tables, mut steps) = (Vec::new(), Steps::default());
        tables.extend(self.compare_switch(&file.switch, &mut steps));
        compare_networks(self.networks, &file.networks, &mut tables);
        compare_groups(self.groups, &file.groups, &mut tables);
        steps.groups = (*self.groups != file.groups).then(|| file.groups.clone());
        compare_templates(self.templates, &file.templates, &mut tables);
        let templates = self.compare_on_demand(&file.templates, &mut tables);
        let xen = (self.xen.map(XenConfig::keys), file.xen.as_ref().map(XenConfig::keys));
        tables.extend(with_a_restart("xen".into(), xen));
        let own = |xen: Option<&XenConfig>| xen.map(XenConfig::own_keys).unwrap_or_default();
        let (mut now, mut wanted) = (own(self.xen), own(file.xen.as_ref()));
        for table in now.keys().chain(wanted.keys()).cloned().collect::<BTreeSet<_>>() {
            let rows = (now.remove(&table), wanted.remove(&table));
            tables.extend(with_a_restart(table, rows));
        }
        self.compare_uplinks(file, &mut tables, &mut steps);
        self.compare_vifs(file, &templates, &mut tables, &mut steps);
        steps.templates = (*self.templates != templates).then_some(templates);
        (Difference { tables }, steps)
    }

    /// Compares the patterns. Returns the file's templates without the patterns that need a restart.
    fn compare_on_demand(&self, file: &Templates, tables: &mut Vec<TableDifference>) -> Templates {
        let find = |templates: &Templates, pattern: &NamePattern| {
            templates.on_demand.iter().find(|it| it.pattern == *pattern).cloned()
        };
        let now = &self.templates.on_demand;
        let new = file.on_demand.iter().filter(|it| find(self.templates, &it.pattern).is_none());
        for OnDemandConfig { pattern, .. } in now.iter().chain(new) {
            let keys = |templates| find(templates, pattern).map(|it| it.keys.rows());
            let (now, wanted) = (keys(self.templates), keys(file));
            let gone = wanted.is_none();
            let table = at_once(OnDemandConfig::TABLES, pattern.as_str(), now, wanted);
            tables.extend(table.map(|mut table| {
                let far = "a confined weir looks into no directory elsewhere; needs a restart";
                let far = (!gone && !self.reaches(file, pattern)).then(|| far.to_owned());
                let moved = table.keys.iter_mut().filter(|key| key.key == "directory");
                match (table.kind, far) {
                    (DifferenceKind::Removed, _) => {
                        table.note = Some("removes its interfaces".into());
                    }
                    (DifferenceKind::Changed, far) => moved.for_each(|key| {
                        key.alive = far.is_none();
                        key.note = far.clone().or(Some("removes its interfaces".into()));
                    }),
                    (_, Some(far)) => (table.alive, table.note) = (false, Some(far)),
                    _ => {}
                }
                table
            }));
        }
        let wanted = file.on_demand.iter().filter_map(|it| match self.reaches(file, &it.pattern) {
            true => Some(it.clone()),
            false => find(self.templates, &it.pattern),
        });
        Templates { on_demand: wanted.collect(), all: file.all.clone() }
    }

    /// True if weir can connect to sockets in the directory of this pattern of the file.
    fn reaches(&self, file: &Templates, pattern: &NamePattern) -> bool {
        let some = "0".parse().expect("a constant that is a valid name");
        let of_pattern = file.on_demand.iter().filter(|it| it.pattern == *pattern);
        let mut sockets = of_pattern.filter_map(|it| it.socket(&some));
        sockets.all(|socket| (self.able.sockets)(&socket, SocketRole::Client))
    }

    fn compare_switch(&self, file: &SwitchConfig, steps: &mut Steps) -> Option<TableDifference> {
        let now = self.switch;
        let pins = file.placement.pin_vcpus && !self.able.pin_vcpus;
        let mut keys = differing("switch", now.rows(), file.rows());
        for key in keys.iter_mut().filter(|key| pins && key.key == "pin_vcpus") {
            let why = "a confined weir pins only if it was started to; needs a restart";
            (key.alive, key.note) = (false, Some(why.into()));
        }
        if now.latency_budget != file.latency_budget {
            steps.latency_budget = Some(file.latency_budget);
        }
        steps.schedule = (now.schedule != file.schedule).then_some(file.schedule);
        let placement =
            PlacementConfig { pin_vcpus: !pins && file.placement.pin_vcpus, ..file.placement };
        if now.placement != placement {
            steps.placement = Some(placement);
        }
        changed("switch".into(), keys)
    }

    fn compare_uplinks(&self, file: &Config, tables: &mut Vec<TableDifference>, steps: &mut Steps) {
        // The uplinks of a bond are together from its start to its end.
        let all = || self.uplinks.iter().copied().chain(&file.uplinks);
        let is_bonded = |uplink: &UplinkConfig| {
            uplink.is_bond() || all().any(|bond| bond.members().contains(&uplink.name))
        };
        for uplink in &self.uplinks {
            let Some(wanted) = file.uplinks.iter().find(|it| it.name == uplink.name) else {
                let mut table = whole(uplink.table(), DifferenceKind::Removed, None);
                if is_bonded(uplink) {
                    (table.alive, table.note) = (false, Some(NEEDS_A_RESTART.into()));
                } else {
                    steps.uplinks_removed.push(uplink.name.clone());
                    let back = "comes back only with a restart";
                    table.note = (!self.able.uplinks).then(|| back.into());
                }
                tables.push(table);
                continue;
            };
            let keys = differing(uplink.name.as_str(), uplink.rows(), wanted.rows());
            let wanted = wanted.clone().with_fixed_of(uplink);
            if wanted != **uplink {
                steps.uplinks_changed.push(wanted);
            }
            tables.extend(changed(uplink.table(), keys));
        }
        for uplink in &file.uplinks {
            if self.uplinks.iter().any(|it| it.name == uplink.name) {
                continue;
            }
            let taken = self.uplinks.iter().find(|it| it.device() == uplink.device());
            let obstacle = match (taken, self.name_is_taken(&uplink.name)) {
                _ if !self.able.uplinks => {
                    Some("a confined weir opens no devices; needs a restart".into())
                }
                _ if is_bonded(uplink) => Some(NEEDS_A_RESTART.into()),
                (Some(other), _) => {
                    Some(format!("{} belongs to {}; reload twice", uplink.device(), other.table()))
                }
                (None, taken) => taken,
            };
            let mut table = whole(uplink.table(), DifferenceKind::Added, None);
            table.keys = given(uplink.own_rows(), &UplinkConfig::base());
            (table.alive, table.note) = (obstacle.is_none(), obstacle);
            if table.alive {
                steps.uplinks_added.push(uplink.clone());
            }
            tables.push(table);
        }
    }

    fn compare_vifs(
        &self,
        file: &Config,
        templates: &Templates,
        tables: &mut Vec<TableDifference>,
        steps: &mut Steps,
    ) {
        for RunningVif { config: vif, from_file, xen } in self.vifs.iter().copied() {
            let table = format!("vif.{}", vif.name);
            let wanted = file.vifs.iter().find(|it| it.name == vif.name);
            let stays = !xen && (vif.by.is_some() || wanted.is_none() && !from_file);
            let followed = stays.then(|| self.followed(file, vif)).filter(|it| it != vif);
            if file.replaces(vif) || templates.gave_up(vif) {
                steps.vifs_removed.push(vif.name.clone());
                let note = Some("came on demand; disconnects its guest".into());
                tables.push(whole(table, DifferenceKind::Removed, note));
                continue;
            }
            match wanted.filter(|_| !stays).or(followed.as_ref()) {
                // The vif is reported at the place where it is added.
                Some(_) if xen => {}
                Some(wanted) => {
                    let keys = vif_difference(vif, wanted);
                    let wanted = wanted.clone().with_fixed_of(vif);
                    if wanted != *vif {
                        steps.vifs_changed.push(wanted);
                    }
                    tables.extend(changed(table, keys));
                }
                None if xen => {}
                None if stays => {
                    let note = match &vif.by {
                        Some(by) => format!("kept by {by}; stays"),
                        None => "added by `weir vif add`; stays".into(),
                    };
                    tables.push(whole(table, DifferenceKind::Unlisted, Some(note)));
                }
                None => {
                    steps.vifs_removed.push(vif.name.clone());
                    let note = Some("disconnects its guest".into());
                    tables.push(whole(table, DifferenceKind::Removed, note));
                }
            }
        }
        for vif in &file.vifs {
            let before = self.vifs.iter().find(|it| it.config.name == vif.name);
            let replaces = before.is_some_and(|it| file.replaces(it.config));
            if before.is_some_and(|it| !it.xen) && !replaces {
                continue;
            }
            let taken = self.name_is_taken(&vif.name).filter(|_| !replaces);
            let obstacle = taken.or_else(|| self.unreachable(vif));
            let mut table = whole(format!("vif.{}", vif.name), DifferenceKind::Added, None);
            let defaults = VifConfig::new(vif.name.clone(), vif.socket.clone());
            table.keys = given(vif.rows(), &defaults.rows());
            (table.alive, table.note) = (obstacle.is_none(), obstacle);
            if table.alive {
                steps.vifs_added.push(vif.clone());
            }
            tables.push(table);
        }
    }

    /// An interface that no file names, after a change of its template.
    fn followed(&self, file: &Config, vif: &VifConfig) -> VifConfig {
        let mut now = vif.clone();
        self.networks.unsettle(&mut now);
        let mut followed = self.templates.followed(&file.templates, &now);
        self.networks.settle(&mut followed);
        followed
    }

    /// The reason why there can be no port of this name next to the present ports.
    fn name_is_taken(&self, name: &PortName) -> Option<String> {
        if let Some(uplink) = self.uplinks.iter().find(|uplink| uplink.name == *name) {
            return Some(format!("{} has the name; reload twice", uplink.table()));
        }
        let vif = self.vifs.iter().find(|vif| vif.config.name == *name)?;
        Some(match vif.xen {
            true => format!("{name} is a Xen guest's interface"),
            false => format!("vif.{name} has the name; reload twice"),
        })
    }

    /// The reason why weir cannot make or reach an interface's sockets, if there is one.
    fn unreachable(&self, vif: &VifConfig) -> Option<String> {
        let agent = vif.agent.as_ref().map(|path| (path, SocketRole::Client));
        let mut paths = [Some((&vif.socket, vif.mode)), agent].into_iter().flatten();
        let (path, _) = paths.find(|(path, role)| !(self.able.sockets)(path, *role))?;
        Some(format!(
            "a confined weir gets no socket at {path}, only beside the control socket; needs a restart"
        ))
    }

    /// Checks that the switch after `steps` fits together, with the interfaces from `weir vif add` that are in no file.
    ///
    /// # Errors
    /// The faults, as one text.
    pub fn check(&self, steps: &Steps) -> Result<(), String> {
        let networks = self.networks;
        let before = Whole {
            control: &self.switch.control,
            keeper: self.switch.keeper.as_ref(),
            latency_budget: self.switch.latency_budget,
            schedule: self.switch.schedule,
            groups: self.groups,
            templates: self.templates,
            networks,
            uplinks: self.uplinks.clone(),
            vifs: self.vifs.iter().map(|vif| vif.config).collect(),
            xen: self.xen,
        };
        let mut vifs: Vec<_> =
            steps.vifs_changed.iter().chain(&steps.vifs_added).cloned().collect();
        vifs.iter_mut().for_each(|vif| networks.settle(vif));
        let mut after = before.clone();
        let gone: BTreeSet<_> =
            steps.vifs_removed.iter().chain(vifs.iter().map(|vif| &vif.name)).collect();
        after.vifs.retain(|vif| !gone.contains(&vif.name));
        after.vifs.extend(&vifs);
        let uplinks = || steps.uplinks_changed.iter().chain(&steps.uplinks_added);
        let gone: BTreeSet<_> =
            steps.uplinks_removed.iter().chain(uplinks().map(|it| &it.name)).collect();
        after.uplinks.retain(|uplink| !gone.contains(&uplink.name));
        after.uplinks.extend(uplinks());
        after.groups = steps.groups.as_ref().unwrap_or(self.groups);
        after.templates = steps.templates.as_ref().unwrap_or(self.templates);
        after.schedule = steps.schedule.unwrap_or(after.schedule);
        after.latency_budget = steps.latency_budget.unwrap_or(after.latency_budget);
        let reason = |it: &TableFault| match it.fault.keys {
            // The file's networks take effect only after a restart.
            ["network", ..] => format!("{} before a restart", it.reason("")),
            _ => it.reason(""),
        };
        let faults: Vec<_> = after.faults_since(&before).iter().map(reason).collect();
        if faults.is_empty() { Ok(()) } else { Err(faults.join("; ")) }
    }
}

/// The differences between a running interface and `wanted`, key by key.
pub fn vif_difference(vif: &VifConfig, wanted: &VifConfig) -> Vec<KeyDifference> {
    differing(vif.name.as_str(), vif.rows(), wanted.rows())
}

fn compare_networks(now: &Networks, file: &Networks, tables: &mut Vec<TableDifference>) {
    let overlay = |networks: &Networks| networks.overlay.as_ref().map(OverlayConfig::rows);
    tables.extend(with_a_restart("overlay".into(), (overlay(now), overlay(file))));
    let named = |networks: &Networks, name: &NetworkName| {
        networks.all.iter().find(|network| network.name == *name).map(NetworkConfig::rows)
    };
    let new = file.all.iter().filter(|it| now.all.iter().all(|other| other.name != it.name));
    for NetworkConfig { name, .. } in now.all.iter().chain(new) {
        let both = (named(now, name), named(file, name));
        tables.extend(with_a_restart(format!("network.{name}"), both));
    }
}

fn compare_groups(now: &Groups, file: &Groups, tables: &mut Vec<TableDifference>) {
    let new = file.all.iter().filter(|it| now.get(&it.name).is_none());
    for GroupConfig { name, .. } in now.all.iter().chain(new) {
        let keys = |groups: &Groups| groups.get(name).map(GroupConfig::rows);
        tables.extend(at_once("group", name.as_str(), keys(now), keys(file)));
    }
    let ids: BTreeSet<_> = now.ids.iter().chain(file.ids.iter()).map(|(id, _)| id).collect();
    let keys = ids.into_iter().map(|id| {
        let groups = |groups: &Groups| groups.ids.get(id).map(ToString::to_string);
        KeyDifference {
            key: id.to_string(),
            from: groups(now),
            to: groups(file),
            alive: true,
            note: None,
        }
    });
    let keys = shrunk(keys.filter(|key| key.from != key.to).collect());
    tables.extend(changed(GroupIds::TABLE.into(), keys));
}

fn compare_templates(now: &Templates, file: &Templates, tables: &mut Vec<TableDifference>) {
    let new = file.all.iter().filter(|it| now.get(&it.name).is_err());
    for TemplateConfig { name, .. } in now.all.iter().chain(new) {
        let keys = |templates: &Templates| templates.get(name).ok().map(TemplateConfig::rows);
        tables.extend(at_once("template", name.as_str(), keys(now), keys(file)));
    }
}

/// A table whose keys can all change while weir runs.
fn at_once(
    kind: &str,
    name: &str,
    now: Option<Rows>,
    file: Option<Rows>,
) -> Option<TableDifference> {
    let table = format!("{kind}.{name}");
    match (now, file) {
        (Some(now), Some(file)) => changed(table, differing(name, now, file)),
        (None, Some(file)) => {
            let mut added = whole(table, DifferenceKind::Added, None);
            added.keys = given(file, &Rows::new());
            Some(added)
        }
        (Some(_), None) => Some(whole(table, DifferenceKind::Removed, None)),
        (None, None) => None,
    }
}

/// The difference of a table that changes only with a restart.
fn with_a_restart(
    table: String,
    (now, file): (Option<Rows>, Option<Rows>),
) -> Option<TableDifference> {
    let (kind, keys) = match (now, file) {
        (None, None) => return None,
        (Some(now), Some(file)) => {
            let keys = differing(&table, now, file);
            return changed(table, keys);
        }
        (None, Some(file)) => (DifferenceKind::Added, given(file, &Rows::new())),
        (Some(_), None) => (DifferenceKind::Removed, Vec::new()),
    };
    Some(TableDifference { table, kind, alive: false, note: Some(NEEDS_A_RESTART.into()), keys })
}

fn whole(table: String, kind: DifferenceKind, note: Option<String>) -> TableDifference {
    TableDifference { table, kind, alive: true, note, keys: Vec::new() }
}

/// The difference of a table that both have, if one of its keys differs.
fn changed(table: String, keys: Vec<KeyDifference>) -> Option<TableDifference> {
    let kind = DifferenceKind::Changed;
    (!keys.is_empty()).then_some(TableDifference { table, kind, alive: true, note: None, keys })
}

/// The keys of the table `name` with different values in `now` and in `file`.
fn differing(name: &str, now: Rows, file: Rows) -> Vec<KeyDifference> {
    let pairs = now.into_iter().zip(file).filter(|((_, from), (_, to))| from != to);
    let difference = |((Key { name: key, alive, note, .. }, from), (_, to))| {
        let note = note.map(|note: &str| note.replace("NAME", name));
        KeyDifference { key: String::from(key), from, to, alive, note }
    };
    shrunk(pairs.map(difference).collect())
}

/// The keys of a new table that differ from `defaults`, and always its socket.
fn given(keys: Rows, defaults: &Rows) -> Vec<KeyDifference> {
    let says = |(key, value): &(Key, Option<String>)| {
        let default = defaults.iter().find(|(it, _)| it.name == key.name);
        value.is_some() && (key.name == "socket" || default.is_none_or(|(_, it)| it != value))
    };
    let keys = keys.into_iter().filter(says);
    let key = |(key, to): (Key, _)| KeyDifference {
        key: key.name.into(),
        from: None,
        to,
        alive: true,
        note: None,
    };
    shrunk(keys.map(key).collect())
}

/// Frees spare room: a list that is collected from the rows may keep their larger allocation.
fn shrunk(mut keys: Vec<KeyDifference>) -> Vec<KeyDifference> {
    keys.shrink_to_fit();
    keys
}
