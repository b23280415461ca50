//! `[template.NAME]`: keys that interfaces have in common. `[vif-on-demand."PATTERN"]`: interfaces that come with a
//! monitor's socket and go with it.

use std::rc::Rc;

use weir_limits as limits;

use super::VifConfig;
use super::error::{Fault, HEADER, Problem};
use super::keys::{Key, NONE, Row, Rows, Value, keys};
use super::section::{Places, Section, missing};
use super::values::{
    ForgetSecs, NamePattern, OnDemandMax, PortName, SocketPath, SocketRole, TemplateName,
};

/// All templates of a switch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Templates {
    /// The templates, in the order of the file.
    pub all: Vec<TemplateConfig>,
    /// Patterns of interfaces on demand, in the order of the file: the first one that matches a socket counts.
    pub on_demand: Vec<OnDemandConfig>,
}

keys! {
    /// The keys of `[vif-on-demand."PATTERN"]`.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct OnDemandKeys {
        /// The directory in which monitors listen.
        directory: SocketPath = "/".parse().expect("a constant that is a valid path"), [];
        /// The template of the interfaces.
        template: Option<TemplateName> = None, [];
        /// The most interfaces at a time.
        max: OnDemandMax = OnDemandMax::default(), [];
        /// The seconds for which a monitor may be away before its interface is removed.
        forget_s: ForgetSecs = ForgetSecs::default(), [];
    }
}

/// `[vif-on-demand."PATTERN"]`: interfaces that exist as long as a monitor listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnDemandConfig {
    /// The names of the interfaces.
    pub pattern: NamePattern,
    /// The keys.
    pub keys: OnDemandKeys,
}

impl OnDemandConfig {
    /// The tables of all patterns.
    pub(crate) const TABLES: &str = "vif-on-demand";

    /// After an interface's name, the end of its socket's name.
    pub const SUFFIX: &str = ".sock";

    /// The table, as problems name it.
    pub fn table(&self) -> String {
        format!("{}.{}", Self::TABLES, self.pattern)
    }

    /// The socket of the interface `name`; `None` if the path is too long.
    pub fn socket(&self, name: &PortName) -> Option<SocketPath> {
        let file = format!("{name}{}", Self::SUFFIX);
        SocketPath::try_from(self.keys.directory.as_path().join(file).as_path()).ok()
    }

    /// True if the pattern keeps `vif`, which has come on demand.
    pub fn keeps(&self, vif: &VifConfig) -> bool {
        vif.by == Some(self.pattern.owner())
            && vif.socket.as_path().parent() == Some(self.keys.directory.as_path())
    }

    /// The first fault of the keys.
    fn fault(&self, templates: &Templates, control: &SocketPath) -> Option<Fault> {
        let directory = self.keys.directory.as_path();
        let of_directory = |reason: String| Fault {
            keys: ["directory", HEADER],
            reason,
            help: "choose a directory of its own, such as \"/run/weir/vms\"".into(),
        };
        let longest = "0".repeat(limits::PORT_NAME_LEN_MAX).parse().ok();
        if control.as_path().parent() == Some(directory) {
            return Some(of_directory("weir makes its own sockets there".into()));
        }
        if longest.is_some_and(|name| self.socket(&name).is_none()) {
            return Some(of_directory("the paths of its sockets can be too long".into()));
        }
        templates.get(self.keys.template.as_ref()?).err().map(Fault::from)
    }
}

/// `[template.NAME]`: an interface without the keys that each interface has for itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateConfig {
    /// The template's name.
    pub name: TemplateName,
    /// The template's keys.
    pub(crate) vif: VifConfig,
}

/// An interface's template that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no template {0}")]
pub struct NoSuchTemplate(pub TemplateName);

impl NoSuchTemplate {
    /// Advice on how to resolve it.
    pub fn help(&self) -> String {
        format!("add a table [template.{}]", self.0)
    }
}

impl TemplateConfig {
    /// A template with these `keys`. The name and the socket of the interface that holds them mean
    /// nothing.
    pub fn new(name: TemplateName, keys: VifConfig) -> Self {
        Self { name, vif: keys }
    }

    /// The template's keys, with a name and a socket that mean nothing.
    pub fn keys(&self) -> &VifConfig {
        &self.vif
    }

    /// The interface `name` with the template's keys.
    pub fn vif(&self, name: PortName, socket: SocketPath) -> VifConfig {
        VifConfig { name, socket, template: Some(self.name.clone()), ..self.vif.clone() }
    }

    /// Characters of the template's values, which each of its interfaces takes over.
    fn len(&self) -> usize {
        self.vif.rows().iter().filter_map(|(_, value)| value.as_ref()).map(String::len).sum()
    }

    /// Each key that the template sets, with its value. All keys of a template can change; an interface says which of
    /// its own cannot.
    pub(super) fn rows(&self) -> Rows {
        let rows = self.vif.rows().into_iter().zip(VifConfig::template().rows());
        let rows = rows.filter(|((key, _), _)| key.template.is_none());
        let said = |((Key { name, .. }, value), (_, default)): (Row, Row)| {
            (Key::new(name, ""), value.filter(|it| default.as_ref() != Some(it)))
        };
        rows.map(said).collect()
    }
}

impl Templates {
    /// The interface on demand of this name: it has the keys of the pattern's template.
    pub fn demanded(&self, by: &OnDemandConfig, name: &PortName) -> Option<VifConfig> {
        let socket = by.socket(name)?;
        let vif = match &by.keys.template {
            Some(template) => self.get(template).ok()?.vif(name.clone(), socket),
            None => VifConfig::new(name.clone(), socket),
        };
        Some(VifConfig { mode: SocketRole::Client, by: Some(by.pattern.owner()), ..vif })
    }

    /// True if `vif` has come on demand, and no pattern keeps it.
    pub fn gave_up(&self, vif: &VifConfig) -> bool {
        vif.by.as_ref().is_some_and(|by| by.is_on_demand())
            && !self.on_demand.iter().any(|pattern| pattern.keeps(vif))
    }

    /// Each rule for patterns that does not hold, with its table.
    pub(super) fn faults(&self, control: &SocketPath) -> impl Iterator<Item = (String, Fault)> {
        self.on_demand.iter().filter_map(|it| Some((it.table(), it.fault(self, control)?)))
    }

    /// The template with this name.
    ///
    /// # Errors
    /// [`NoSuchTemplate`]
    pub fn get(&self, name: &TemplateName) -> Result<&TemplateConfig, NoSuchTemplate> {
        let found = self.all.iter().find(|template| template.name == *name);
        found.ok_or_else(|| NoSuchTemplate(name.clone()))
    }

    /// `vif` with only the keys of its template, or with defaults if it has no template.
    pub fn base_of(&self, vif: &VifConfig) -> VifConfig {
        let template = vif.template.as_ref().and_then(|name| self.get(name).ok());
        let base = template.map_or_else(VifConfig::template, |template| template.vif.clone());
        VifConfig { name: vif.name.clone(), socket: vif.socket.clone(), ..base }
    }

    /// `vif` after its template has become that of `new`: keys that had the old template's value
    /// get the new one's.
    pub fn followed(&self, new: &Self, vif: &VifConfig) -> VifConfig {
        let mut vif = vif.clone();
        let of =
            |templates: &Self| vif.template.as_ref().and_then(|it| templates.get(it).ok().cloned());
        if let (Some(from), Some(to)) = (of(self), of(new)) {
            vif.change(&Key::TABLE, &|_| true, Some(&from.vif), &to.vif);
        }
        vif
    }
}

/// Reads the tables `[template.NAME]`.
pub(super) fn templates(
    sections: Vec<Section<'_>>,
    problems: &mut Vec<Problem>,
) -> (Templates, Vec<(TemplateName, Rc<Places>)>) {
    if let Some(one_more) = sections.get(limits::TEMPLATES_MAX) {
        let most = limits::TEMPLATES_MAX;
        problems.push(
            Problem::new(format!("{} templates are too many", sections.len()))
                .label(one_more.span.clone(), format!("one more than {most}")),
        );
        return Default::default();
    }
    let each = sections.into_iter().filter_map(|section| template(section, problems));
    let (all, places): (Vec<_>, Vec<_>) =
        each.map(|(it, places)| (it.clone(), (it.name, Rc::new(places)))).unzip();
    (Templates { all, on_demand: Vec::new() }, places)
}

/// Reads the tables `[vif-on-demand."PATTERN"]`.
pub(super) fn on_demand(
    sections: Vec<Section<'_>>,
    problems: &mut Vec<Problem>,
) -> (Vec<OnDemandConfig>, Vec<Places>) {
    if let Some(one_more) = sections.get(limits::ON_DEMAND_PATTERNS_MAX) {
        let most = limits::ON_DEMAND_PATTERNS_MAX;
        problems.push(
            Problem::new(format!("{} patterns of interfaces are too many", sections.len()))
                .label(one_more.span.clone(), format!("one more than {most}")),
        );
        return Default::default();
    }
    sections.into_iter().filter_map(|section| pattern(section, problems)).unzip()
}

fn pattern(
    mut section: Section<'_>,
    problems: &mut Vec<Problem>,
) -> Option<(OnDemandConfig, Places)> {
    let name = section.title.split_once('.').map_or("", |(_, name)| name).parse::<NamePattern>();
    let pattern = name.map_err(|error| {
        let mut problem = Problem::new("bad names of interfaces");
        problem.help = error.help();
        problems.push(problem.label(section.span.clone(), error.to_string()));
    });
    if !section.has("directory") {
        let help = "say where monitors listen: directory = \"/run/weir/vms\"";
        problems.push(missing(&section, "directory", help));
    }
    let mut keys = OnDemandKeys::default();
    Value::read(&mut keys, &Key::TABLE, &mut section, problems);
    let places = section.places();
    section.finish(problems);
    Some((OnDemandConfig { pattern: pattern.ok()?, keys }, places))
}

fn template(
    mut section: Section<'_>,
    problems: &mut Vec<Problem>,
) -> Option<(TemplateConfig, Places)> {
    let name = section.title.strip_prefix("template.").unwrap_or_default().parse::<TemplateName>();
    let name = name.map_err(|error| {
        let mut problem = Problem::new("bad name of a template");
        problem.help = error.help();
        problems.push(problem.label(section.span.clone(), error.to_string()));
    });
    let mut vif = VifConfig::template();
    vif.read_keys(&mut section, |key| key.template.is_none(), problems);
    for (key, _) in vif.rows() {
        if let (Some(why), Some(span)) = (key.template, section.refuse(key.name)) {
            problems.push(
                Problem::new(format!("`{}` has `{}`", section.title, key.name))
                    .label(span, "not a key of a template")
                    .help(why),
            );
        }
    }
    let places = section.places();
    section.finish(problems);
    Some((TemplateConfig { name: name.ok()?, vif }, places))
}

/// Characters of values that interfaces have taken from templates.
#[derive(Default)]
pub(super) struct Copied(usize);

impl Copied {
    /// Counts one more interface of `template`; false if the values copied from templates are too long together.
    pub(super) fn fits(&mut self, template: &TemplateConfig) -> bool {
        self.0 += template.len();
        self.0 <= limits::TEMPLATES_COPIED_MAX
    }

    /// Reports that the copied values were too long.
    pub(super) fn report(&self, problems: &mut Vec<Problem>) {
        let most = limits::TEMPLATES_COPIED_MAX;
        if self.0 > most {
            problems.push(Problem::new("too many interfaces have long templates").help(format!(
                "values from templates have at most {most} characters together: put fewer rules into the templates"
            )));
        }
    }
}

/// The interface whose table is `section`, with the keys of `base`, such as its template's. `none`
/// resets a key to its default. The other keys of the section are not read yet.
pub(super) fn under(base: &VifConfig, section: &mut Section<'_>) -> VifConfig {
    let mut vif = base.clone();
    let plain = VifConfig::template();
    for (key, _) in plain.rows() {
        // A trunk without `native` is still a trunk.
        for word in key.with_others().map(|it| it.name).filter(|name| *name != "native") {
            if section.is_word(word, NONE) {
                section.hide(word);
                vif.change(&Key::TABLE, &|it| it.name == key.name, None, &plain);
            }
        }
    }
    if let Some(moderation) = section.value("moderation", &mut Vec::new()) {
        vif.moderate(moderation);
    }
    vif
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reload::{DifferenceKind, SettingFrom, shown_vif};
    use crate::tests::{messages, parse, refused, settings};
    use crate::{VlanMode, reload};

    const TEMPLATE: &str = "[template.tenant]\nvlan = 10\nqueues = 2\nmoderation = \"backend\"\n\
                            rx_usecs = 20\nrate = \"1Gbit\"\ngroups = [\"web\"]\n\
                            filter = [{ direction = \"tx\", action = \"drop\", match = \"ip6\" }]\n\
                            [group.web]\n";

    fn vifs(text: &str) -> Vec<VifConfig> {
        parse(&format!("{TEMPLATE}{text}")).unwrap().vifs
    }

    #[test]
    fn an_interface_has_the_keys_of_its_template_except_for_its_own() {
        let text = "[vif.a]\ntemplate = \"tenant\"\n\
                    [vif.b]\ntemplate = \"tenant\"\nqueues = 4\ntrunk = \"all\"\nfilter = []\n\
                    [vif.c]\ntemplate = \"tenant\"\nmoderation = \"immediate\"\n\
                    [vif.d]\ntemplate = \"tenant\"\nvlan = \"none\"\nrate = \"none\"\ngroups = \"none\"\n\
                    [vif.e]\n";
        let [a, b, c, d, e] = vifs(text).try_into().unwrap();
        assert_eq!((a.queues.get(), a.vlan.clone()), (2, VlanMode::Access(10.try_into().unwrap())));
        assert!(a.rx_usecs.is_some() && a.sharing.rate.is_some() && !a.groups.is_empty());
        assert_eq!((a.filter.len(), a.name.as_str()), (1, "a"));
        assert_eq!(a.socket.to_string(), "/run/weir/a.sock");
        assert_eq!((b.queues.get(), b.filter.len()), (4, 0));
        assert!(matches!(b.vlan, VlanMode::Trunk { .. }));
        assert_eq!(
            (c.rx_usecs, c.queues),
            (None, a.queues),
            "its policy ignores the template's hold"
        );
        assert_eq!((d.vlan, d.sharing.rate, d.groups.is_empty()), (VlanMode::Unset, None, true));
        assert_eq!(e, VifConfig::new(e.name.clone(), e.socket.clone()));
    }

    #[test]
    fn a_fault_of_a_key_from_the_template_is_shown_there() {
        let text =
            "[template.t]\nrx_usecs = 20\n[vif.a]\ntemplate = \"t\"\nmoderation = \"immediate\"\n";
        assert_eq!(parse(text).unwrap().vifs[0].rx_usecs, None);
        let text =
            "[template.t]\nrx_usecs = 20\nmoderation = \"immediate\"\n[vif.a]\ntemplate = \"t\"\n";
        let shown = refused(text);
        assert!(
            shown.contains("has no effect with moderation") && shown.contains(":2:"),
            "{shown}"
        );
        for (text, says) in [
            ("[vif.a]\ntemplate = \"t\"\n", "there is no template t"),
            ("[template.t]\nmac = \"52:54:00:00:00:01\"\n", "`template.t` has `mac`"),
            ("[template.t]\nsocket = \"/run/a\"\n", "`template.t` has `socket`"),
            ("[template.t]\ntemplate = \"u\"\n", "`template.t` has `template`"),
            ("[template.t]\nagent = \"/run/a\"\n", "`template.t` has `agent`"),
            ("[template.t]\nqueue = 2\n", "unknown key `queue`"),
            ("[template.T]\n", "bad name of a template"),
            ("[template.t]\ngroups = [\"x\"]\n[vif.a]\ntemplate = \"t\"\n", "there is no group x"),
            ("[vif.a]\nrate = \"none\"\n", "bad value for"),
        ] {
            let messages = messages(text).join("; ");
            let shown = refused(text);
            assert!(messages.contains(says) || shown.contains(says), "{text}: {messages}\n{shown}");
        }
        // Only the bad value itself is reported.
        let text = "[template.t]\nmoderation = \"no\"\nrx_usecs = 20\n[vif.a]\ntemplate = \"t\"\n";
        assert_eq!(messages(text).len(), 1, "{:?}", messages(text));
        let many: String =
            (0..=limits::TEMPLATES_MAX).map(|n| format!("[template.t{n}]\n")).collect();
        assert!(messages(&many)[0].contains("templates are too many"));
    }

    #[test]
    fn templates_with_many_values_are_not_copied_without_end() {
        let vlans: Vec<_> = (1..4000).map(|vid| vid.to_string()).collect();
        let template = format!("[template.t]\ntrunk = [{}]\n", vlans.join(","));
        let vifs = |number: usize| -> String {
            (0..number).map(|n| format!("[vif.v{n}]\ntemplate = \"t\"\n")).collect()
        };
        assert_eq!(parse(&(template.clone() + &vifs(8))).unwrap().vifs.len(), 8);
        let text = template + &vifs(1000);
        assert_eq!(messages(&text), ["too many interfaces have long templates"]);
    }

    fn running<T>(
        now: &crate::Config,
        by_hand: &[VifConfig],
        look: impl FnOnce(&reload::Running<'_>) -> T,
    ) -> T {
        let vif = |from_file| move |config| reload::RunningVif { config, from_file, xen: false };
        look(&reload::Running {
            switch: &now.switch,
            networks: &now.networks,
            groups: &now.groups,
            templates: &now.templates,
            uplinks: Vec::new(),
            vifs: now.vifs.iter().map(vif(true)).chain(by_hand.iter().map(vif(false))).collect(),
            xen: None,
            able: reload::Able { sockets: &|_, _| true, uplinks: true, pin_vcpus: true },
        })
    }

    fn of_template(config: &crate::Config, name: &str) -> VifConfig {
        let template = config.templates.get(&"tenant".parse().unwrap()).unwrap();
        template.vif(name.parse().unwrap(), format!("/run/weir/{name}.sock").parse().unwrap())
    }

    #[test]
    fn interfaces_follow_their_template_by_the_rules_of_its_keys() {
        let now = parse(&format!("{TEMPLATE}[vif.a]\ntemplate = \"tenant\"\n")).unwrap();
        let own =
            of_template(&now, "own").with_settings(&settings(&["vlan=7", "rate=none"])).unwrap();
        assert_eq!(own.sharing.rate, None);
        let owned = of_template(&now, "owned");
        let owned = VifConfig { by: Some("libvirt:7".parse().unwrap()), ..owned };
        let by_hand = [own, owned];
        let changed = TEMPLATE.replace("vlan = 10", "vlan = 11").replace("1Gbit", "2Gbit");
        let file = parse(&format!("{changed}[vif.a]\ntemplate = \"tenant\"\n")).unwrap();
        let (difference, steps) = running(&now, &by_hand, |it| it.compare(&file));
        let tables = difference.tables.iter().map(|it| {
            let keys = it.keys.iter().map(|key| key.key.as_str()).collect::<Vec<_>>().join(" ");
            assert_eq!((it.kind == DifferenceKind::Changed, it.alive), (!keys.is_empty(), true));
            format!("{}: {keys}", it.table)
        });
        let expected =
            ["template.tenant: vlan rate", "vif.a: vlan rate", "vif.own: ", "vif.owned: vlan rate"];
        assert_eq!(tables.collect::<Vec<_>>(), expected);
        let vids = steps.vifs_changed.iter().map(|it| it.vlan.to_string()).collect::<Vec<_>>();
        assert_eq!(vids, ["11", "11"]);
        assert_eq!(running(&now, &by_hand, |it| it.check(&steps)), Ok(()));

        // A key that cannot change cannot change by way of a template either.
        let fixed = format!("{TEMPLATE}[vif.a]\ntemplate = \"tenant\"\n").replacen(
            "vlan",
            "mode = \"client\"\nvlan",
            1,
        );
        let (difference, _) = running(&now, &by_hand, |it| it.compare(&parse(&fixed).unwrap()));
        let fixed: Vec<_> = difference.fixed().map(|(what, _)| what).collect();
        assert_eq!(fixed, ["vif.a.mode", "vif.own.mode", "vif.owned.mode"]);

        // A template in use stays.
        let without = parse("[group.web]\n").unwrap();
        let check = running(&now, &by_hand, |it| it.check(&it.compare(&without).1));
        assert!(check.unwrap_err().contains("vif.own: there is no template tenant"));
    }

    #[test]
    fn what_is_saved_reads_back_as_what_runs() {
        let text = format!("{TEMPLATE}[vif.a]\ntemplate = \"tenant\" # of a customer\n");
        let now = parse(&text).unwrap();
        assert_eq!(running(&now, &[], |it| it.saved(&text, &now)).unwrap(), text);
        let set = |settings_of: &[&str]| {
            let vif = of_template(&now, "late");
            vif.with_settings(&settings(settings_of)).unwrap()
        };
        let by_hand = [
            VifConfig { filter: Vec::new(), ..set(&["vlan=none", "rate=none", "groups=none"]) },
            VifConfig {
                name: "other".parse().unwrap(),
                ..set(&["queues=1", "socket=/run/o.sock"])
            },
        ];
        for of in [text.clone(), text.replace("1Gbit", "3Gbit").replace("vlan = 10\n", "")] {
            let file = parse(&of).unwrap();
            let saved = running(&now, &by_hand, |it| it.saved(&of, &file)).unwrap();
            let read = parse(&saved).unwrap_or_else(|error| panic!("{saved}\n{error}"));
            assert_eq!(read.templates, now.templates, "{saved}");
            assert_eq!(read.vifs, [&now.vifs[..], &by_hand[..]].concat(), "{saved}");
            assert!(saved.contains("# of a customer"), "{saved}");
            assert_eq!(saved.matches("\"backend\"").count(), 1, "the template says it: {saved}");
        }
    }

    const PATTERN: &str =
        "[vif-on-demand.\"vm-*\"]\ndirectory = \"/run/weir/vms\"\ntemplate = \"tenant\"\n";

    fn demanded(config: &crate::Config, name: &str) -> VifConfig {
        let of = &config.templates.on_demand[0];
        config.templates.demanded(of, &name.parse().unwrap()).unwrap()
    }

    #[test]
    fn an_interface_on_demand_has_the_keys_of_the_template_and_a_monitor_that_listens() {
        let now = parse(&format!("{TEMPLATE}{PATTERN}")).unwrap();
        let [pattern] = &now.templates.on_demand[..] else { panic!("{:?}", now.templates) };
        assert_eq!((pattern.keys.max.get(), pattern.keys.forget_s.get()), (16, 60));
        let vif = demanded(&now, "vm-1");
        assert_eq!((vif.queues.get(), vif.mode), (2, SocketRole::Client));
        assert_eq!(vif.socket.to_string(), "/run/weir/vms/vm-1.sock");
        assert_eq!(vif.by.as_ref().unwrap().to_string(), "on-demand:vm-*");
        assert!(!now.templates.gave_up(&vif));
        for (name, is) in [("vm-1", true), ("vm-", true), ("vm", false), ("a-vm-1", false)] {
            assert_eq!(pattern.pattern.matches(name), is, "{name}");
        }
        let both: NamePattern = "a*a".parse().unwrap();
        assert!(both.matches("aa") && both.matches("aba") && !both.matches("a"));
        let evil = pattern.pattern.name("vm-\u{1b}[31m").unwrap_err().to_string();
        assert!(!evil.contains('\u{1b}'), "{evil:?}");
    }

    #[test]
    fn a_pattern_that_cannot_be_is_refused_in_its_place() {
        let table = |name: &str, keys: &str| format!("[vif-on-demand.\"{name}\"]\n{keys}\n");
        let good = "directory = \"/run/vms\"";
        let long = format!("directory = \"/{}\"", "d".repeat(230));
        for (name, keys, says) in [
            ("vm-*", "", "directory"),
            ("vm-*", "directory = \"/run/weir\"", "weir makes its own sockets there"),
            ("vm-*", &long, "the paths of its sockets can be too long"),
            ("vm-*", "directory = \"/run/vms\"\ntemplate = \"t\"", "there is no template t"),
            ("vm-*", "directory = \"/run/vms\"\nmax = 257", "257"),
            ("vm-*", "directory = \"/run/vms\"\nforget_s = 0", "forget_s"),
            ("vm-*", "directory = \"/run/vms\"\nqueues = 2", "unknown key `queues`"),
            ("vm", good, "is no pattern of names"),
            ("v*m*", good, "is no pattern of names"),
            ("VM-*", good, "is no pattern of names"),
            ("../*", good, "is no pattern of names"),
        ] {
            let shown = refused(&table(name, keys));
            assert!(shown.contains(says), "{name} {keys}: {shown}");
        }
        let most = limits::ON_DEMAND_PATTERNS_MAX;
        let all = |number| (0..number).map(|n| table(&format!("v{n}-*"), good)).collect::<String>();
        assert_eq!(parse(&all(most)).unwrap().templates.on_demand.len(), most);
        assert!(messages(&all(most + 1))[0].contains("too many"));
    }

    #[test]
    fn a_reload_leaves_interfaces_on_demand_alone_but_for_those_that_the_file_has_or_gives_up() {
        let text = format!("{TEMPLATE}{PATTERN}");
        let now = parse(&text).unwrap();
        let by_hand = [demanded(&now, "vm-1"), demanded(&now, "vm-2")];
        let told = |file: &str| {
            let (difference, steps) =
                running(&now, &by_hand, |it| it.compare(&parse(file).unwrap()));
            let tables = difference.tables.iter().map(|it| format!("{:?} {}", it.kind, it.table));
            let removed: Vec<_> = steps.vifs_removed.iter().map(ToString::to_string).collect();
            (tables.collect::<Vec<_>>(), removed, steps)
        };
        let (tables, removed, steps) = told(&text);
        assert_eq!(tables, ["Unlisted vif.vm-1", "Unlisted vif.vm-2"]);
        assert_eq!((removed.len(), &steps.templates), (0, &None));

        let (tables, removed, steps) = told(&format!("{text}[vif.vm-1]\n"));
        assert_eq!(tables, ["Removed vif.vm-1", "Unlisted vif.vm-2", "Added vif.vm-1"]);
        assert_eq!((removed, steps.vifs_added.len()), (vec!["vm-1".to_owned()], 1));
        assert_eq!(running(&now, &by_hand, |it| it.check(&steps)), Ok(()));

        let gone = ["vm-1", "vm-2"].map(str::to_owned);
        let (tables, removed, steps) = told(TEMPLATE);
        assert_eq!(tables[0], "Removed vif-on-demand.vm-*");
        assert_eq!((&removed[..], steps.templates.unwrap().on_demand.len()), (&gone[..], 0));
        let elsewhere = text.replace("/vms", "/others");
        let (tables, removed, steps) = told(&elsewhere);
        assert_eq!(tables[0], "Changed vif-on-demand.vm-*");
        assert_eq!((&removed[..], steps.templates.is_some()), (&gone[..], true));
        let (tables, removed, _) = told(&text.replace("template = \"tenant\"", "max = 2"));
        assert_eq!((tables[0].as_str(), removed.len()), ("Changed vif-on-demand.vm-*", 0));

        // A confined weir keeps the directories that it has.
        let file = parse(&elsewhere).unwrap();
        let (difference, steps) = running(&now, &by_hand, |it| {
            let sockets = |path: &SocketPath, _| !path.to_string().contains("/others/");
            let able = reload::Able { sockets: &sockets, ..it.able };
            reload::Running { able, ..it.clone() }.compare(&file)
        });
        let fixed: Vec<_> = difference.fixed().map(|(what, _)| what).collect();
        assert_eq!(fixed, ["vif-on-demand.vm-*.directory"]);
        assert_eq!((steps.templates, steps.vifs_removed.len()), (None, 0));

        // `weir save` writes the running configuration without interfaces on demand.
        for other in [TEMPLATE.to_owned(), elsewhere.clone(), text.clone()] {
            let file = parse(&other).unwrap();
            let saved = running(&now, &by_hand, |it| it.saved(&other, &file)).unwrap();
            let read = parse(&saved).unwrap_or_else(|error| panic!("{saved}\n{error}"));
            assert_eq!((read.templates, read.vifs.len()), (now.templates.clone(), 0), "{saved}");
        }
    }

    #[test]
    fn each_setting_says_whether_it_is_from_the_template() {
        let config =
            parse(&format!("{TEMPLATE}[vif.a]\ntemplate = \"tenant\"\nqueues = 1\nmtu = 9000\n"));
        let config = config.unwrap();
        let from = |vif: &VifConfig, file| {
            let budget = config.switch.latency_budget;
            let shown = shown_vif(vif, file, &config.templates, &config.networks, budget);
            let from = |key: &str| shown.iter().find(|it| it.key == key).unwrap().from;
            ["template", "vlan", "rate", "queues", "mtu", "weight"].map(from)
        };
        use SettingFrom::{Command, Default, File, Template};
        let a = &config.vifs[0];
        assert_eq!(from(a, Some(a)), [File, Template, Template, File, File, Default]);
        let set = a.with_settings(&settings(&["rate=none", "weight=2"])).unwrap();
        assert_eq!(from(&set, Some(a)), [File, Template, Command, File, File, Command]);
        let late = of_template(&config, "late");
        assert_eq!(from(&late, None), [Command, Template, Template, Template, Default, Default]);
    }
}
