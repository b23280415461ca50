//! The running configuration, saved into the file. Comments, order and keys that have not changed stay as they are.

use toml_edit::{Array, DocumentMut, InlineTable, Item, Table, TableLike, TomlError, Value};

use super::super::{
    Config, ConfigError, FilterRule, GroupIds, GroupRule, Groups, NamePattern, OnDemandConfig,
    OnDemandKeys, SwitchConfig, Templates, TrunkVids, UplinkConfig, VifChanges, VifConfig,
    VlanMode,
};
use super::Running;
use crate::Setting;
use crate::keys::{Key, NONE, Rows};
use crate::settings::from_text;
use crate::vlan::vlan_keys;

impl VifConfig {
    /// The interface with `settings` in place of its own. Other keys stay as they are, except for those that belong to
    /// another moderation policy or another VLAN mode.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] with every problem of the whole.
    pub fn with_settings(&self, settings: &[Setting]) -> Result<Self, ConfigError> {
        let mut vif = self.clone();
        let moderation: Vec<_> =
            settings.iter().filter(|it| it.key() == "moderation").cloned().collect();
        if !moderation.is_empty() {
            VifChanges::from_settings(&self.name, &moderation)?.apply(&mut vif);
        }
        let mut nothing = Port::vif(&vif);
        nothing.keys.iter_mut().for_each(|(_, value)| *value = None);
        (nothing.vlan, nothing.filter) = (&VlanMode::Unset, &[]);
        let mut document = DocumentMut::new();
        let table = table(&mut document, "vif", Some(self.name.as_str()));
        Port::vif(&vif).save(table, &nothing, &nothing);
        if settings.iter().any(|it| vlan_keys().any(|key| key == it.key())) {
            vlan_keys().for_each(|key| drop(table.remove(key)));
        }
        for setting in settings {
            // Here each key of the template is one of the interface.
            if vif.template.is_some() && setting.takes_back() {
                table.remove(setting.key());
                continue;
            }
            // The parser reports text that is not TOML, with its place.
            let line = setting.to_string().parse::<DocumentMut>();
            match line.ok().and_then(|mut line| line.remove(setting.key())) {
                Some(item) => drop(table.insert(setting.key(), item)),
                None => return VifConfig::from_settings(&self.name, settings, &self.socket),
            }
        }
        from_text(&document.to_string(), &self.socket)
    }
}

/// A port, as a table of the file.
struct Port<'a> {
    keys: Rows,
    vlan: &'a VlanMode,
    filter: &'a [FilterRule],
}

impl<'a> Port<'a> {
    fn vif(vif: &'a VifConfig) -> Self {
        Self { keys: vif.rows(), vlan: &vif.vlan, filter: &vif.filter }
    }

    fn uplink(uplink: &'a UplinkConfig) -> Self {
        Self { keys: uplink.own_rows(), vlan: &uplink.vlan, filter: &uplink.filter }
    }

    /// Changes `table` from `before` to this port. Keys as in `base`, the template or the defaults, are left out.
    fn save(&self, table: &mut dyn TableLike, before: &Port<'_>, base: &Port<'_>) {
        save_keys(table, &before.keys, &self.keys, &base.keys, |key| {
            !matches!(key.name, "vlan" | "filter")
        });
        if self.vlan != before.vlan {
            vlan_keys().for_each(|key| drop(table.remove(key)));
            for (key, value) in vlans(self.vlan).into_iter().filter(|_| self.vlan != base.vlan) {
                table.insert(key, Item::Value(value));
            }
            if *self.vlan == VlanMode::Unset && self.vlan != base.vlan {
                table.insert("vlan", Item::Value(NONE.into()));
            }
        }
        if self.filter != before.filter {
            table.remove("filter");
            if self.filter != base.filter {
                table.insert("filter", rules(self.filter));
            }
        }
    }
}

impl Running<'_> {
    /// The text of `file` with the running configuration, except for keys that need a restart of the whole switch.
    ///
    /// # Errors
    /// The text is not TOML.
    pub fn saved(&self, text: &str, file: &Config) -> Result<String, TomlError> {
        let mut document: DocumentMut = text.parse()?;
        self.save_switch(&mut document, &file.switch);
        for uplink in &file.uplinks {
            if !self.uplinks.iter().any(|it| it.table() == uplink.table()) {
                remove(&mut document, uplink.table_kind(), uplink.name.as_str());
            }
        }
        for uplink in &self.uplinks {
            let (now, name) = (Port::uplink(uplink), uplink.name.as_str());
            let base = Port { keys: UplinkConfig::base(), vlan: &VlanMode::Unset, filter: &[] };
            let before = file.uplinks.iter().find(|it| it.table() == uplink.table());
            if before != Some(uplink) {
                let table = table(&mut document, uplink.table_kind(), Some(name));
                let before = before.map(Port::uplink);
                now.save(table, before.as_ref().unwrap_or(&base), &base);
            }
        }
        self.save_groups(&mut document, &file.groups);
        self.save_templates(&mut document, &file.templates);
        let vifs: Vec<_> = self
            .vifs
            .iter()
            .filter(|vif| !vif.xen && vif.config.by.is_none())
            .map(|vif| vif.config)
            .collect();
        for vif in &file.vifs {
            if !self.vifs.iter().any(|it| it.config.name == vif.name && !it.xen) {
                remove(&mut document, "vif", vif.name.as_str());
            }
        }
        for vif in vifs {
            let name = vif.name.as_str();
            let base = self.templates.base_of(vif);
            let mut base = Port::vif(&base);
            // `base` has the running socket, so a new socket would pass for the default and be left out.
            base.keys.retain(|(key, _)| key.name != "socket");
            // The file's templates are by now the running ones.
            let before = file.vifs.iter().find(|it| it.name == vif.name);
            let before = before.map(|it| file.templates.followed(self.templates, it));
            match &before {
                Some(before) if before == vif => {}
                before => {
                    let table = table(&mut document, "vif", Some(name));
                    let before = before.as_ref().map(Port::vif);
                    Port::vif(vif).save(table, before.as_ref().unwrap_or(&base), &base);
                }
            }
        }
        Ok(document.to_string())
    }

    /// The text of groups that the file already has stays as it is.
    fn save_groups(&self, document: &mut DocumentMut, file: &Groups) {
        for group in &file.all {
            if self.groups.get(&group.name).is_none() {
                remove(document, "group", group.name.as_str());
            }
        }
        for group in self.groups.all.iter().filter(|group| file.get(&group.name) != Some(group)) {
            let table = table(document, "group", Some(group.name.as_str()));
            table.insert("default_in", Item::Value(group.default_in.to_string().into()));
            table.insert("default_out", Item::Value(group.default_out.to_string().into()));
            table.remove("log");
            if group.log {
                table.insert("log", Item::Value(true.into()));
            }
            table.remove("rules");
            if !group.rules.is_empty() {
                table.insert("rules", lines(group.rules.iter().map(group_rule)));
            }
        }
        if self.groups.ids != file.ids {
            let table = table(document, GroupIds::TABLE, None);
            for (id, _) in file.ids.iter().filter(|(id, _)| self.groups.ids.get(*id).is_none()) {
                table.remove(&id.to_string());
            }
            let now = self.groups.ids.iter();
            for (id, groups) in now.filter(|(id, groups)| file.ids.get(*id) != Some(groups)) {
                let names = texts(groups.as_slice().iter().map(|name| name.as_str()));
                table.insert(&id.to_string(), Item::Value(names));
            }
        }
    }

    fn save_templates(&self, document: &mut DocumentMut, file: &Templates) {
        for template in &file.all {
            if self.templates.get(&template.name).is_err() {
                remove(document, "template", template.name.as_str());
            }
        }
        let defaults = VifConfig::template();
        for template in &self.templates.all {
            let before = file.get(&template.name).ok();
            if before == Some(template) {
                continue;
            }
            let before = before.map_or(&defaults, |it| &it.vif);
            let table = table(document, "template", Some(template.name.as_str()));
            Port::vif(&template.vif).save(table, &Port::vif(before), &Port::vif(&defaults));
        }
        let find = |all: &[OnDemandConfig], pattern: &NamePattern| {
            all.iter().find(|it| it.pattern == *pattern).map(|it| it.keys.clone())
        };
        for OnDemandConfig { pattern, .. } in &file.on_demand {
            if find(&self.templates.on_demand, pattern).is_none() {
                remove(document, OnDemandConfig::TABLES, pattern.as_str());
            }
        }
        let defaults = OnDemandKeys::default();
        for OnDemandConfig { pattern, keys } in &self.templates.on_demand {
            let before = find(&file.on_demand, pattern);
            if before.as_ref() != Some(keys) {
                let table = table(document, OnDemandConfig::TABLES, Some(pattern.as_str()));
                let before = before.unwrap_or_else(|| defaults.clone()).rows();
                save_keys(table, &before, &keys.rows(), &defaults.rows(), |_| true);
            }
        }
    }

    fn save_switch(&self, document: &mut DocumentMut, file: &SwitchConfig) {
        let (before, now) = (file.rows(), self.switch.rows());
        let differs =
            before.iter().zip(&now).any(|(before, now)| before.0.alive && before.1 != now.1);
        if differs {
            let defaults = SwitchConfig::new(file.control.clone()).rows();
            let table = table(document, "switch", None);
            save_keys(table, &before, &now, &defaults, |key| key.alive);
        }
    }
}

/// Writes the keys that differ between `before` and `now` into `table`.
fn save_keys(
    table: &mut dyn TableLike,
    before: &Rows,
    now: &Rows,
    defaults: &Rows,
    which: impl Fn(&Key) -> bool,
) {
    let value_in = |keys: &Rows, key: &str| -> Option<Option<String>> {
        keys.iter().find(|(it, _)| it.name == key).map(|(_, value)| value.clone())
    };
    for (key, value) in now.iter().filter(|(key, _)| which(key)) {
        let key = key.name;
        if value_in(before, key).as_ref() == Some(value) {
            continue;
        }
        match value {
            None if value_in(defaults, key).flatten().is_some() => {
                table.insert(key, Item::Value(NONE.into()));
            }
            Some(text) if value_in(defaults, key).as_ref() != Some(value) => {
                let mut new = value_of(key, text);
                // A comment behind the value stays.
                if let Some(old) = table.get(key).and_then(Item::as_value) {
                    *new.decor_mut() = old.decor().clone();
                }
                table.insert(key, Item::Value(new));
            }
            _ => drop(table.remove(key)),
        }
    }
}

/// The value as a setting of the command line has it, so that the parser of the file reads it.
fn value_of(key: &str, text: &str) -> Value {
    if matches!(key, "addresses" | "address" | "groups" | "uplinks") {
        return texts(text.split(',').map(str::trim));
    }
    let setting = format!("{key}={text}").parse::<Setting>().map(|setting| setting.to_string());
    let line = setting.ok().and_then(|line| line.parse::<DocumentMut>().ok());
    let value = line.and_then(|mut line| line.remove(key)).and_then(|item| item.into_value().ok());
    let mut value = value.unwrap_or_else(|| text.into());
    *value.decor_mut() = Default::default();
    value
}

fn texts<'a>(texts: impl IntoIterator<Item = &'a str>) -> Value {
    Value::Array(texts.into_iter().collect::<Array>())
}

fn vlans(vlan: &VlanMode) -> Vec<(&'static str, Value)> {
    match vlan {
        VlanMode::Unset => Vec::new(),
        VlanMode::Access(vid) => vec![("vlan", i64::from(vid.get()).into())],
        VlanMode::Network(name) => vec![("network", name.as_str().into())],
        VlanMode::Mirror(ports) => {
            vec![("mirror", texts(ports.as_slice().iter().map(|port| port.as_str())))]
        }
        VlanMode::Trunk { allowed, native } => {
            let allowed = match allowed {
                TrunkVids::All => "all".into(),
                TrunkVids::Only(vids) => {
                    let vids = vids.iter().map(|vid| i64::from(vid.get()));
                    Value::Array(vids.collect::<Array>())
                }
            };
            let native = native.map(|vid| ("native", i64::from(vid.get()).into()));
            [("trunk", allowed)].into_iter().chain(native).collect()
        }
    }
}

/// The rules as one array, with one rule per line: every kind of table can have an array.
fn rules(filter: &[FilterRule]) -> Item {
    lines(filter.iter().map(|FilterRule { direction, expression, action }| {
        let mut rule = InlineTable::new();
        rule.insert("direction", direction.to_string().into());
        if !expression.is_empty() {
            rule.insert("match", expression.to_string().into());
        }
        rule.insert("action", action.to_string().into());
        rule
    }))
}

fn group_rule(rule: &GroupRule) -> InlineTable {
    rule.keys().into_iter().map(|(key, value)| (key, Value::from(value))).collect()
}

/// One table per line, as one value. Every kind of table can hold such a value.
fn lines(tables: impl Iterator<Item = InlineTable>) -> Item {
    let mut array = Array::new();
    for table in tables {
        let mut table = Value::InlineTable(table);
        table.decor_mut().set_prefix("\n    ");
        array.push_formatted(table);
    }
    array.set_trailing("\n");
    array.set_trailing_comma(true);
    Item::Value(Value::Array(array))
}

/// The table of this name, which is made if it is missing.
fn table<'a>(
    document: &'a mut DocumentMut,
    name: &str,
    inner: Option<&str>,
) -> &'a mut dyn TableLike {
    let new = |implicit| {
        let mut table = Table::new();
        table.set_implicit(implicit);
        Item::Table(table)
    };
    let outer = document.entry(name).or_insert_with(|| new(inner.is_some()));
    let item = match inner {
        None => outer,
        Some(inner) => {
            let outer = outer.as_table_like_mut().expect("the parser of the file found a table");
            outer.entry(inner).or_insert_with(|| new(false))
        }
    };
    item.as_table_like_mut().expect("the parser of the file found a table")
}

fn remove(document: &mut DocumentMut, name: &str, inner: &str) {
    if let Some(outer) = document.get_mut(name).and_then(Item::as_table_like_mut) {
        outer.remove(inner);
    }
}
