//! Running settings that belong to no port (those of the whole switch, of groups, templates and
//! patterns), where they differ from a file. A weir leaves them to the next one.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use weir_limits::GROUP_RULES_MAX;

use super::super::keys::{Key, Value};
use super::super::{
    Config, GroupConfig, Groups, OnDemandConfig, Problem, SecurityGroup, SwitchConfig,
    TemplateConfig, Templates, parse,
};
use super::{
    Able, DifferenceKind, Running, TableDifference, at_once, changed, compare_groups,
    compare_templates, differing,
};
use crate::Networks;

/// The tables of a configuration that belong to no port, with the keys that can change while weir
/// runs.
#[derive(Debug, Clone, Copy)]
pub struct Common<'a> {
    /// `[switch]`
    pub switch: &'a SwitchConfig,
    /// `[group.NAME]` and `[group-ids]`
    pub groups: &'a Groups,
    /// `[template.NAME]` and `[vif-on-demand.PATTERN]`
    pub templates: &'a Templates,
}

/// The running values of the tables that belong to no port, where they differ from a file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Beside {
    /// The running tables, as they would be in a file.
    text: String,
    /// By table: the keys that differ.
    changed: BTreeMap<String, BTreeSet<String>>,
    /// Tables that the file does not have.
    added: BTreeSet<String>,
    /// Tables that only the file has.
    removed: BTreeSet<String>,
}

impl Beside {
    /// The running values that differ from the file's.
    pub fn between(file: Common<'_>, now: Common<'_>) -> Self {
        let mut beside = Self::default();
        for TableDifference { table, kind, keys, .. } in differences(file, now) {
            // The difference is what a reload of the file would do.
            match kind {
                DifferenceKind::Added => beside.removed.extend([table]),
                DifferenceKind::Removed | DifferenceKind::Unlisted => beside.added.extend([table]),
                DifferenceKind::Changed => {
                    let keys = keys.into_iter().map(|key| key.key).collect();
                    beside.changed.extend([(table, keys)]);
                }
            }
        }
        if !beside.is_empty() {
            beside.text = text(now);
        }
        beside
    }

    /// True if the file says what runs.
    pub fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.added.is_empty() && self.removed.is_empty()
    }

    /// True if groups are among the tables.
    pub fn has_groups(&self) -> bool {
        let mut tables = self.changed.keys().chain(&self.added).chain(&self.removed);
        tables.any(|table| table.starts_with("group"))
    }

    /// The settings, each as `switch.schedule` or `group.web (added)`.
    pub fn names(&self) -> impl Iterator<Item = String> {
        let keys = self
            .changed
            .iter()
            .flat_map(|(table, keys)| keys.iter().map(move |key| format!("{table}.{key}")));
        let added = self.added.iter().map(|table| format!("{table} (added)"));
        let removed = self.removed.iter().map(|table| format!("{table} (removed)"));
        keys.chain(added).chain(removed)
    }

    /// The file's configuration with these settings. A changed table replaces the whole table of the file.
    ///
    /// # Errors
    /// This weir cannot read the settings. The text says why.
    pub fn onto(&self, file: &Config) -> Result<Config, String> {
        let (switch, groups, templates) = parse::common(&self.text).map_err(|it| told(&it))?;
        let mut config = file.clone();
        if let Some(keys) = self.changed.get("switch") {
            let which = |key: &Key| keys.contains(key.name);
            config.switch.change(&Key::TABLE, &which, None, &switch);
        }
        let own = &mut config.groups;
        self.tables(
            (&mut own.all, groups.all),
            |it| format!("group.{}", it.name),
            |to: &mut GroupConfig, keys, from| to.take(keys, from),
        );
        if let Some(ids) = self.changed.get("group-ids") {
            let ids = ids.iter().filter_map(|id| id.parse().ok());
            ids.for_each(|id: u16| own.ids.put(id, groups.ids.get(id)));
        }
        self.tables(
            (&mut config.templates.all, templates.all),
            |it| format!("template.{}", it.name),
            |to: &mut TemplateConfig, keys, from| {
                to.vif.change(&Key::TABLE, &|key| keys.contains(key.name), None, &from.vif);
            },
        );
        self.tables(
            (&mut config.templates.on_demand, templates.on_demand),
            OnDemandConfig::table,
            |to: &mut OnDemandConfig, keys, from| {
                to.keys.change(&Key::TABLE, &|key| keys.contains(key.name), None, &from.keys);
            },
        );
        Ok(config)
    }

    /// Changes the file's tables of one kind to what `now` has.
    fn tables<T>(
        &self,
        (file, now): (&mut Vec<T>, Vec<T>),
        name: impl Fn(&T) -> String,
        take: impl Fn(&mut T, &BTreeSet<String>, &T),
    ) {
        file.retain(|table| !self.removed.contains(&name(table)));
        for now in now {
            let table = name(&now);
            let before = file.iter_mut().find(|it| name(it) == table);
            match (before, self.changed.get(&table)) {
                (Some(before), _) if self.added.contains(&table) => *before = now,
                (Some(before), Some(keys)) => take(before, keys, &now),
                (None, _) if self.added.contains(&table) => file.push(now),
                _ => {}
            }
        }
    }
}

/// The problems as one text.
fn told(problems: &[Problem]) -> String {
    problems.iter().map(|problem| &*problem.message).collect::<Vec<_>>().join("; ")
}

impl Groups {
    /// These groups with `group` in place of the one of this name, or without it. They are checked as a file is.
    ///
    /// # Errors
    /// The problems as one text, and the help with the first.
    pub fn with(
        &self,
        name: &SecurityGroup,
        group: Option<GroupConfig>,
    ) -> Result<Self, (String, Option<String>)> {
        let rules = group.as_ref().map_or(0, |group| group.rules.len());
        if rules > GROUP_RULES_MAX {
            let told = format!("{name} has {rules} rules; at most {GROUP_RULES_MAX}");
            return Err((told, Some("several groups can hold more".into())));
        }
        let mut groups = self.clone();
        match (groups.all.iter_mut().find(|it| it.name == *name), group) {
            (Some(before), Some(group)) => *before = group,
            (None, Some(group)) => groups.all.push(group),
            (_, None) => groups.all.retain(|it| it.name != *name),
        }
        let (switch, templates) = (&SwitchConfig::default(), &Templates::default());
        let checked = parse::common(&text(Common { switch, groups: &groups, templates }));
        checked.map(|_| groups).map_err(|it| (told(&it), it[0].help.clone()))
    }
}

/// The differences of tables that can change while weir runs.
fn differences(file: Common<'_>, now: Common<'_>) -> Vec<TableDifference> {
    let mut tables = Vec::new();
    let mut keys = differing("switch", now.switch.rows(), file.switch.rows());
    keys.retain(|key| key.alive);
    tables.extend(changed("switch".into(), keys));
    compare_groups(now.groups, file.groups, &mut tables);
    compare_templates(now.templates, file.templates, &mut tables);
    let all = || now.templates.on_demand.iter().chain(&file.templates.on_demand);
    for pattern in all().map(|it| &it.pattern).collect::<BTreeSet<_>>() {
        let rows = |templates: &Templates| {
            let it = templates.on_demand.iter().find(|it| it.pattern == *pattern)?;
            Some(it.keys.rows())
        };
        let (now, file) = (rows(now.templates), rows(file.templates));
        tables.extend(at_once(OnDemandConfig::TABLES, pattern.as_str(), now, file));
    }
    tables
}

/// The tables, as they would be in a file. Keys of `[switch]` that need a restart are not among
/// them.
fn text(Common { switch, groups, templates }: Common<'_>) -> String {
    let running = Running {
        switch,
        networks: &Networks::default(),
        groups,
        templates,
        uplinks: Vec::new(),
        vifs: Vec::new(),
        xen: None,
        able: Able { sockets: &|_, _| true, uplinks: true, pin_vcpus: true },
    };
    let nothing = Config::of_vifs(SwitchConfig::new(switch.control.clone()), Vec::new());
    running.saved("", &nothing).unwrap_or_default()
}
