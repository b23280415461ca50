//! Run-time settings that differ from the file. They hold until the file is reloaded, and no restart of weir opens a
//! port that they have closed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use weir_config::reload::Beside;
use weir_config::{
    Config, Defaults, FilterRule, Groups, PortName, SwitchConfig, TableFault, Templates,
    UplinkConfig, VifConfig, VlanMode, Whole, XenConfig, filter,
};

use super::noted::Noted;

/// Fields that are groups of keys: each key in a group is set by itself.
const GROUPS: [&str; 4] = ["storm", "guarding", "sharing", "receive"];

/// Keys of one port that differ from the file, as paths, with their values; `null` is no value.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Settings(BTreeMap<String, Value>);

impl Settings {
    /// The run-time settings of a port that is `file` in the file and `now` in the switch, for any keys.
    pub(super) fn between<T: Serialize>(file: &T, now: &T) -> serde_json::Result<Self> {
        let mut settings = Self::default();
        settings.add("", &fields(file)?, &fields(now)?);
        Ok(settings)
    }

    /// Settings that a request names.
    pub(super) fn of(keys: &Map<String, Value>) -> Self {
        let mut settings = Self::default();
        settings.named("", keys);
        settings
    }

    fn named(&mut self, path: &str, keys: &Map<String, Value>) {
        for (key, value) in keys {
            match value {
                Value::Object(inner) if GROUPS.contains(&key.as_str()) => {
                    self.named(&format!("{path}{key}."), inner);
                }
                value => drop(self.0.insert(format!("{path}{key}"), value.clone())),
            }
        }
    }

    fn add(&mut self, path: &str, file: &Map<String, Value>, now: &Map<String, Value>) {
        let keys: BTreeSet<_> = file.keys().chain(now.keys()).collect();
        for key in keys {
            match (file.get(key), now.get(key)) {
                (Some(Value::Object(file)), Some(Value::Object(now)))
                    if GROUPS.contains(&key.as_str()) =>
                {
                    self.add(&format!("{path}{key}."), file, now);
                }
                (file, now) if file != now => {
                    self.0.insert(format!("{path}{key}"), now.cloned().unwrap_or_default());
                }
                _ => {}
            }
        }
    }

    /// The keys as the file names them.
    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        let name = |path: &str| VifConfig::key_at(path).or_else(|| UplinkConfig::key_at(path));
        self.0.keys().map(move |path| name(path).unwrap_or(path))
    }

    /// The file's port with these settings applied.
    ///
    /// # Errors
    /// This weir does not know a key or a value.
    pub(super) fn onto<T: Serialize + DeserializeOwned>(&self, file: &T) -> serde_json::Result<T> {
        let mut all = fields(file)?;
        self.0.iter().for_each(|(path, value)| put(&mut all, path, value));
        serde_json::from_value(all.into())
    }
}

/// Sets the key at `path` to this value. If the group's type has changed, parsing the whole refuses it later.
fn put(fields: &mut Map<String, Value>, path: &str, value: &Value) {
    match (path.split_once('.'), value) {
        (Some((group, rest)), _) => {
            match fields.entry(group).or_insert_with(|| Map::new().into()) {
                Value::Object(inner) => put(inner, rest, value),
                other => *other = value.clone(),
            }
        }
        (None, Value::Null) => drop(fields.remove(path)),
        (None, value) => drop(fields.insert(path.into(), value.clone())),
    }
}

fn fields<T: Serialize>(port: &T) -> serde_json::Result<Map<String, Value>> {
    match serde_json::to_value(port)? {
        Value::Object(fields) => Ok(fields),
        _ => Ok(Map::new()),
    }
}

/// The configuration from which the switch was set up.
pub(super) struct Source {
    /// The configuration file's absolute path.
    pub(super) file: Option<PathBuf>,
    pub(super) defaults: Defaults,
    /// The settings of the switch, including changes made since.
    pub(super) switch: SwitchConfig,
    pub(super) xen: Option<XenConfig>,
    pub(super) may_pin: bool,
    /// The content of weir's own file when weir last read it. Differences were set by commands since.
    pub(super) listed: Listed,
}

/// The tables of a file, see [`Source::listed`].
pub(super) struct Listed {
    pub(super) switch: SwitchConfig,
    pub(super) groups: Arc<Groups>,
    pub(super) templates: Arc<Templates>,
    /// Running settings that differ from the file and are no port's.
    pub(super) beside: Beside,
    pub(super) vifs: Vec<VifConfig>,
    pub(super) uplinks: Vec<UplinkConfig>,
    /// Vifs of Xen guests, as `[xen]` and the toolstack define them.
    pub(super) xen: Vec<VifConfig>,
    /// Run-time settings, from another weir, of Xen guests' vifs that do not exist yet.
    pub(super) left: BTreeMap<String, Settings>,
}

/// A port whose settings cannot be applied.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) port: String,
    pub(super) why: String,
}

/// The ports of a switch that continues after another weir.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    /// Uplinks of the file, in its order.
    pub(super) uplinks: Vec<UplinkConfig>,
    /// Interfaces of the file, with run-time settings applied.
    pub(super) vifs: Vec<VifConfig>,
    /// Interfaces that were added at run time. The file may name some of them by now.
    pub(super) added: Vec<VifConfig>,
    /// Ports that pass no frames until an administrator decides.
    pub(super) held: Vec<Held>,
    /// The configuration with run-time settings that are no port's, if there are any and they can be applied.
    pub(super) config: Option<Box<Config>>,
    /// The reason why those settings cannot be applied.
    pub(super) not_set: Option<String>,
}

impl Wanted {
    /// Applies the run-time settings to the file. A port whose settings cannot be applied is held: it drops all frames.
    /// If the rules of groups cannot be applied, all ports in groups are held.
    pub(super) fn of(file: &Config, noted: &Noted) -> Self {
        if noted.tables.is_empty() {
            return Self::of_ports(file, noted);
        }
        let set = noted.tables.onto(file).and_then(|config| {
            let mut wanted = Self::of_ports(&config, noted);
            wanted.check_all(&config)?;
            wanted.config = Some(config.into());
            Ok(wanted)
        });
        set.unwrap_or_else(|why| {
            let mut wanted = Self::of_ports(file, noted);
            if noted.tables.has_groups() {
                let in_group = |vif: &VifConfig| {
                    let of_file = file.vifs.iter().find(|it| it.name == vif.name);
                    !vif.groups.is_empty() || of_file.is_some_and(|it| !it.groups.is_empty())
                };
                let all = wanted.vifs.iter_mut().chain(&mut wanted.added);
                for vif in all.filter(|vif| in_group(vif)) {
                    *vif = closed(vif);
                    wanted.held.push(Held { port: vif.name.to_string(), why: why.clone() });
                }
            }
            wanted.not_set = Some(why);
            wanted
        })
    }

    /// Checks that all ports fit the whole configuration. An interface that does not fit is held.
    ///
    /// # Errors
    /// Something else does not fit.
    fn check_all(&mut self, config: &Config) -> Result<(), String> {
        let faults = self.whole(config, self.vifs.iter().chain(&self.added).collect()).faults();
        for TableFault { table, fault, .. } in faults {
            let name = table.strip_prefix("vif.").unwrap_or_default();
            let is_held = self.held.iter().any(|held| held.port == name);
            let mut vifs = self.vifs.iter_mut().chain(&mut self.added);
            match vifs.find(|vif| vif.name.as_str() == name) {
                Some(_) if is_held => {}
                Some(vif) => {
                    *vif = closed(vif);
                    self.hold(name, &fault.reason);
                }
                None => return Err(format!("{table}: {}", fault.reason)),
            }
        }
        Ok(())
    }

    fn of_ports(config: &Config, noted: &Noted) -> Self {
        let mut wanted = Self::default();
        for uplink in &noted.uplinks_of(config) {
            let port = wanted.uplink(config, noted, uplink);
            wanted.uplinks.push(port);
        }
        for value in &noted.uplinks {
            if let Err(error) = serde_json::from_value::<UplinkConfig>(value.clone()) {
                wanted.hold(value["name"].as_str().unwrap_or_default(), error);
            }
        }
        let mut unreadable = BTreeMap::new();
        for value in &noted.added {
            match serde_json::from_value::<VifConfig>(value.clone()) {
                // Interfaces on demand are made again, except those that the file has, and those whose pattern it no
                // longer has.
                Ok(vif) if config.templates.gave_up(&vif) || config.replaces(&vif) => {}
                Ok(vif) => wanted.added.push(noted.followed(config, &vif)),
                Err(error) => {
                    let name = value["name"].as_str().unwrap_or_default().to_owned();
                    unreadable.insert(name, error.to_string());
                }
            }
        }
        let mut set = Vec::new();
        for vif in &config.vifs {
            let name = vif.name.as_str();
            if noted.deleted.contains(name) || wanted.added.iter().any(|it| it.name == vif.name) {
                continue;
            }
            if unreadable.contains_key(name) {
                wanted.vifs.push(closed(vif));
                continue;
            }
            let Some(settings) = noted.settings.get(name) else {
                wanted.vifs.push(vif.clone());
                continue;
            };
            match settings.onto(vif) {
                Ok(vif) => {
                    set.push(vif.name.clone());
                    wanted.vifs.push(vif);
                }
                Err(error) => wanted.hold(name, error),
            }
            if wanted.vifs.last().is_none_or(|last| last.name != vif.name) {
                wanted.vifs.push(closed(vif));
            }
        }
        wanted.held.extend(unreadable.into_iter().map(|(port, why)| Held { port, why }));
        let all = wanted.vifs.iter_mut().chain(&mut wanted.added);
        all.for_each(|vif| config.networks.settle(vif));
        for name in set {
            wanted.check_set(config, &name);
        }
        wanted.check_added(config);
        wanted
    }

    /// The whole configuration with these interfaces.
    fn whole<'a>(&'a self, config: &'a Config, vifs: Vec<&'a VifConfig>) -> Whole<'a> {
        Whole { uplinks: self.uplinks.iter().collect(), vifs, ..config.whole() }
    }

    fn hold(&mut self, port: &str, why: impl ToString) {
        self.held.push(Held { port: port.into(), why: why.to_string() });
    }

    fn uplink(&mut self, config: &Config, noted: &Noted, file: &UplinkConfig) -> UplinkConfig {
        let name = file.name.as_str();
        let settings = noted.settings.get(name).cloned().unwrap_or_default();
        let set = settings.onto(file).map_err(|error| error.to_string()).and_then(|uplink| {
            filter::port_rules(&uplink.filter).map_err(|error| error.to_string())?;
            config.networks.check_uplink(&uplink).map_err(|error| error.to_string())?;
            Ok(uplink)
        });
        match set {
            Ok(uplink) => return uplink,
            Err(why) => self.hold(name, why),
        }
        UplinkConfig { filter: nothing(), ..file.clone() }
    }

    /// Checks that a port of the file does not conflict with the others after its run-time settings are applied.
    fn check_set(&mut self, config: &Config, name: &PortName) {
        let Some(at) = self.vifs.iter().position(|vif| vif.name == *name) else { return };
        let others = self.vifs.iter().filter(|it| it.name != *name);
        let result = goes_together(&self.whole(config, others.collect()), &self.vifs[at]);
        if let Err(why) = result {
            let file = config.vifs.iter().find(|vif| vif.name == *name);
            self.vifs[at] = closed(file.unwrap_or(&self.vifs[at]));
            // The interface that now has the address keeps it.
            self.vifs[at].mac = None;
            self.hold(name.as_str(), why);
        }
    }

    /// Checks the interfaces that were added at run time. An interface that conflicts with the file's is left out.
    fn check_added(&mut self, config: &Config) {
        let all = self.whole(config, self.vifs.iter().chain(&self.added).collect());
        if all.faults().is_empty()
            && self.added.iter().all(|vif| filter::port_rules(&vif.filter).is_ok())
        {
            return;
        }
        for vif in std::mem::take(&mut self.added) {
            let others = self.vifs.iter().chain(&self.added).collect();
            let result = goes_together(&self.whole(config, others), &vif);
            match result {
                Ok(()) => self.added.push(vif),
                Err(why) => self.hold(vif.name.as_str(), why),
            }
        }
    }
}

/// Checks that an interface fits the others.
fn goes_together(others: &Whole<'_>, vif: &VifConfig) -> Result<(), String> {
    filter::port_rules(&vif.filter).map_err(|error| error.to_string())?;
    let faults = others.faults_with(vif);
    let table = format!("vif.{}", vif.name);
    faults.first().map_or(Ok(()), |fault| Err(fault.reason(&table)))
}

/// Logs that a port is [closed].
pub(super) fn passes_nothing(port: &str, why: &str) {
    tracing::error!(
        port,
        why,
        "passes no frames, since what was set of it while weir ran cannot be applied: `weir vif set` and `weir filter \
         set` say anew what holds, or `weir reload` makes it what the file says"
    );
}

/// Logs that settings which are no port's are [given up](Wanted::not_set).
pub(super) fn not_set(why: &str) {
    tracing::error!(
        why,
        "what was set of groups, templates or the switch while weir ran cannot be applied: the file's values hold, and \
         interfaces whose groups were changed pass no frames until `weir reload`"
    );
}

/// An interface that stays connected but passes no frames.
pub(super) fn closed(vif: &VifConfig) -> VifConfig {
    VifConfig { vlan: VlanMode::Unset, filter: nothing(), ..vif.clone() }
}

/// Rules of a port that passes nothing.
pub(super) fn nothing_passes() -> weir_engine::filter::PortRules {
    let rules = filter::port_rules(&nothing());
    rules.expect("two short rules")
}

/// Rules that drop all frames.
fn nothing() -> Vec<FilterRule> {
    ["tx drop", "rx drop"].map(|rule| rule.parse().expect("a constant that is a valid rule")).into()
}

#[cfg(test)]
mod tests {
    use weir_config::{Config, Defaults};

    use super::*;

    fn config(text: &str) -> Config {
        let control = "/run/weir/control.sock".parse().unwrap();
        let defaults = Defaults { control, control_named: true, keeper: None };
        Config::from_toml("weir.toml", text, &defaults).unwrap()
    }

    /// The settings that a weir with the first file notes after it has been changed to the second.
    fn noted(file: &Config, now: &Config) -> Noted {
        let mut noted = Noted::default();
        for (file, now) in file.vifs.iter().zip(&now.vifs) {
            let settings = Settings::between(file, now).unwrap();
            noted.settings.insert(now.name.to_string(), settings);
        }
        for (file, now) in file.uplinks.iter().zip(&now.uplinks) {
            let settings = Settings::between(file, now).unwrap();
            noted.settings.insert(now.name.to_string(), settings);
        }
        noted
    }

    fn held(wanted: &Wanted) -> Vec<&str> {
        wanted.held.iter().map(|held| held.port.as_str()).collect()
    }

    const RULE: &str = "filter = [{ direction = \"tx\", action = \"drop\" }]\n";

    #[test]
    fn what_was_set_of_interfaces_and_uplinks_holds_and_their_other_keys_are_the_files() {
        let file = config("[vif.a]\nqueues = 2\n[uplink.lan]\nkind = \"tap\"\nname = \"t0\"\n");
        let lan = "[uplink.lan]\nkind = \"tap\"\nname = \"t0\"\nvlan = 7\nweight = 3\n";
        let set =
            format!("{lan}{RULE}rss_rebalance = false\n[vif.a]\nqueues = 2\nvlan = 5\n{RULE}");
        let now = config(&format!("[switch]\nschedule = \"drr\"\n{set}"));
        let noted = noted(&file, &now);
        let later = "[switch]\nschedule = \"drr\"\n[vif.a]\nqueues = 4\ntrunk = [3]\n\
                 [uplink.lan]\nkind = \"tap\"\nname = \"t0\"\nvlan = 8\n";
        let wanted = Wanted::of(&config(later), &noted);
        assert_eq!((held(&wanted), &wanted.uplinks), (vec![], &now.uplinks));
        assert_eq!(wanted.vifs[0].queues.get(), 4);
        assert_eq!(
            (&wanted.vifs[0].vlan, &wanted.vifs[0].filter),
            (&now.vifs[0].vlan, &now.vifs[0].filter)
        );
    }

    #[test]
    fn each_key_that_was_set_is_named_as_the_file_names_it() {
        let file = config("[vif.a]\n[uplink.lan]\nkind = \"tap\"\nname = \"t0\"\n");
        let keys = [
            ("addresses", "[\"192.0.2.7\"]"),
            ("broadcasts_per_second", "9"),
            ("groups", "[\"web\"]"),
            ("rate", "\"1Gbit\""),
            ("rx_packet_burst", "700"),
            ("rx_packets_per_second", "7000"),
            ("source_guard", "\"configured\""),
            ("vlan", "5"),
        ];
        let lines: String = keys.iter().map(|(key, value)| format!("{key} = {value}\n")).collect();
        let lan = "[uplink.lan]\nkind = \"tap\"\nname = \"t1\"\nmtu = 1400\n[group.web]\n";
        let noted = noted(&file, &config(&format!("[vif.a]\n{lines}{lan}")));
        let of = |port: &str| {
            let mut of: Vec<_> = noted.settings[port].keys().collect();
            of.sort_unstable();
            of
        };
        assert_eq!(of("a"), keys.map(|(key, _)| key));
        assert_eq!(of("lan"), ["mtu", "name"]);
    }

    /// The table of keys decides which keys exist. A new key needs a value here.
    #[test]
    fn each_key_of_an_uplink_that_can_change_is_left_to_the_next_weir() {
        let (lan, bond) = (
            "[uplink.lan]\nkind = \"tap\"\nname = \"t0\"\n",
            "[uplink.p]\nkind = \"af_packet\"\nname = \"p\"\n[uplink.q]\nkind = \"af_packet\"\nname = \"q\"\n\
             [bond.lan]\nuplinks = [\"p\", \"q\"]\nmode = \"active-backup\"\n",
        );
        let keys: [(&str, &str, &str); 9] = [
            (lan, "vlan", "vlan = 7"),
            (lan, "trunk", "trunk = [7]"),
            (lan, "native", "trunk = [7]\nnative = 8"),
            (lan, "tag_protocol", "vlan = 7\ntag_protocol = \"802.1ad\""),
            (lan, "filter", RULE.trim()),
            (lan, "rss_rebalance", "rss_rebalance = false"),
            (lan, "weight", "weight = 3"),
            (bond, "mode", "mode = \"lacp\""),
            (bond, "lacp_rate", "mode = \"lacp\"\nlacp_rate = \"fast\""),
        ];
        // These are values of the field of `vlan`.
        let of_vlan = ["network", "mirror"];
        let all = UplinkConfig::keys().filter(|key| key.alive).map(|key| key.name);
        let tried = keys.iter().map(|(_, key, _)| *key).chain(of_vlan);
        assert_eq!(all.collect::<BTreeSet<_>>(), tried.collect::<BTreeSet<_>>());
        let switch = "[switch]\nschedule = \"drr\"\n";
        for (table, key, lines) in keys {
            let file = config(&format!("{switch}{table}"));
            let without = table.replace("mode = \"active-backup\"\n", "");
            let now = config(&format!("{switch}{without}{lines}\n"));
            assert_ne!(file.uplinks, now.uplinks, "{key}");
            let wanted = Wanted::of(&file, &noted(&file, &now));
            assert_eq!((held(&wanted), &wanted.uplinks), (vec![], &now.uplinks), "{key}");
        }
    }

    #[test]
    fn rules_that_were_taken_away_stay_away() {
        let file = config(&format!("[vif.a]\nmac = \"02:00:00:00:00:01\"\n{RULE}"));
        let now = config("[vif.a]\n");
        let wanted = Wanted::of(&file, &noted(&file, &now));
        assert_eq!(wanted.vifs, now.vifs);
    }

    #[test]
    fn a_port_with_a_setting_that_this_weir_does_not_know_drops_all_frames() {
        let file = config("[vif.a]\n[vif.b]\n[uplink.lan]\nkind = \"tap\"\nname = \"t0\"\n");
        let unknown = [("later".to_owned(), Value::from(7))];
        let unknown = Settings(unknown.into());
        let of = |port: &str| (port.to_owned(), unknown.clone());
        let noted = Noted { settings: [of("a"), of("lan")].into(), ..Noted::default() };
        let wanted = Wanted::of(&file, &noted);
        assert_eq!(held(&wanted), ["lan", "a"]);
        let (vif, uplink) = (&wanted.vifs[0], &wanted.uplinks[0]);
        assert_eq!((&vif.filter, &uplink.filter), (&nothing(), &nothing()));
        assert_eq!(wanted.vifs[1], file.vifs[1]);
    }

    #[test]
    fn an_address_that_another_interface_has_meanwhile_closes_the_one_that_it_was_set_of() {
        let file = config("[vif.a]\n[vif.b]\n");
        let now = config("[vif.a]\nmac = \"02:00:00:00:00:01\"\n[vif.b]\n");
        let later = config("[vif.a]\n[vif.b]\nmac = \"02:00:00:00:00:01\"\n");
        let wanted = Wanted::of(&later, &noted(&file, &now));
        assert_eq!(held(&wanted), ["a"]);
        assert_eq!(wanted.vifs[0].filter, nothing());
        assert_eq!(wanted.vifs[1], later.vifs[1]);
    }

    #[test]
    fn what_was_removed_stays_away_and_what_was_added_is_not_what_a_file_says_since() {
        let file = config("[vif.a]\n[vif.late]\n[uplink.lan]\nkind = \"tap\"\nname = \"t0\"\n");
        let late =
            config(&format!("[vif.late]\nsocket = \"/run/late.sock\"\n{RULE}")).vifs.remove(0);
        let noted = Noted {
            added: vec![serde_json::to_value(&late).unwrap()],
            deleted: ["a".to_owned(), "lan".to_owned()].into(),
            ..Noted::default()
        };
        let wanted = Wanted::of(&file, &noted);
        assert_eq!((&wanted.vifs, &wanted.added), (&vec![], &vec![late]));
        assert!(held(&wanted).is_empty() && wanted.uplinks.is_empty(), "{wanted:?}");
    }

    #[test]
    fn an_uplink_that_no_file_has_goes_on_unless_this_weir_cannot_read_it_or_the_file_has_one() {
        let uplink = |name: &str| format!("[uplink.{name}]\nkind = \"tap\"\nname = \"{name}\"\n");
        let now = config(&format!("{}{}vlan = 7\n", uplink("lan"), uplink("wan"))).uplinks;
        let uplinks: Vec<_> = now.iter().map(|it| serde_json::to_value(it).unwrap()).collect();
        let wanted =
            Wanted::of(&config(""), &Noted { uplinks: uplinks.clone(), ..Noted::default() });
        assert_eq!((&wanted.uplinks, held(&wanted)), (&now, vec![]));
        let file = config(&uplink("wan"));
        let later = [uplinks, vec![serde_json::json!({"name": "x", "later": 7})]].concat();
        let wanted = Wanted::of(&file, &Noted { uplinks: later, ..Noted::default() });
        assert_eq!(wanted.uplinks, [file.uplinks[0].clone(), now[0].clone()]);
        assert_eq!(held(&wanted), ["x"]);
    }

    #[test]
    fn what_was_added_and_cannot_be_read_closes_the_interface_that_a_file_calls_so() {
        let file = config("[vif.late]\n");
        let added = vec![serde_json::json!({"name": "late", "later": 7})];
        let wanted = Wanted::of(&file, &Noted { added, ..Noted::default() });
        assert_eq!((held(&wanted), &wanted.vifs[0].filter), (vec!["late"], &nothing()));
    }

    #[test]
    fn rules_of_groups_that_this_weir_cannot_read_close_each_port_in_a_group() {
        let file = config("[group.web]\n[vif.a]\ngroups = [\"web\"]\n[vif.b]\n");
        let tables = |text: &str, key: &str| {
            let (table, _) = key.split_once('/').unwrap();
            let changed = serde_json::json!({"text": text, "changed": {table: [key]}});
            Noted { tables: serde_json::from_value(changed).unwrap(), ..Noted::default() }
        };
        let wanted = Wanted::of(&file, &tables("[group.web]\nlater = 7\n", "group.web/later"));
        assert_eq!((held(&wanted), &wanted.vifs[0].filter), (vec!["a"], &nothing()));
        assert!(wanted.vifs[1] == file.vifs[1] && wanted.config.is_none());
        assert!(wanted.not_set.unwrap().contains("later"));
        let wanted = Wanted::of(&file, &tables("[switch]\nlater = 7\n", "switch/later"));
        assert_eq!((held(&wanted), &wanted.vifs), (vec![], &file.vifs));
        assert!(wanted.not_set.unwrap().contains("later"));
    }

    /// The file has had a weight since then. The schedule that was set at run time does not know
    /// weights.
    #[test]
    fn a_port_of_the_file_that_does_not_fit_what_was_set_of_the_switch_is_closed() {
        let text = |schedule: &str, a: &str| {
            config(&format!("[switch]\nschedule = \"{schedule}\"\n[vif.a]\n{a}[vif.b]\n"))
        };
        let (before, now) = (text("drr", ""), text("dwcs", ""));
        let common = |config: &'static Config| weir_config::reload::Common {
            switch: &config.switch,
            groups: &config.groups,
            templates: &config.templates,
        };
        let [before, now] = [before, now].map(|it| &*Box::leak(Box::new(it)));
        let tables = Beside::between(common(before), common(now));
        let noted = Noted { tables, ..Noted::default() };
        let file = text("drr", "weight = 3\n");
        let wanted = Wanted::of(&file, &noted);
        assert_eq!((held(&wanted), &wanted.vifs[0].filter), (vec!["a"], &nothing()));
        assert_eq!(wanted.config.unwrap().switch.schedule, now.switch.schedule);
    }
}
