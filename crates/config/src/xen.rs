//! `[xen]`: the vifs of Xen guests that weir serves, and their settings.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use toml::Spanned;
use toml::de::DeValue;

use super::VifConfig;
use super::error::Problem;
use super::keys::{Key, NEEDS_A_RESTART, Rows, Value, keys};
use super::section::{Fault, FromToml, Places, Section, each};
use super::template;
use super::values::{ChannelName, InterfaceName, MacAddress, PortName, SocketPath, ValueError};

keys! {
    /// `[xen]`: the vifs of this domain, which the toolstack attaches and detaches. By default every vif, with the
    /// defaults of any other interface.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct XenConfig {
        /// Vifs of these bridges only, by `bridge` of the guest's configuration; by default every vif.
        bridges: Option<Bridges> = None, [fixed(NEEDS_A_RESTART)];
        /// The channel to the agent in a guest, if there is one.
        agent_channel: Option<ChannelName> = None, [fixed(NEEDS_A_RESTART)];
        /// Whether guests may have an event channel for each ring of a queue, instead of one for both.
        split_event_channels: bool = false, [fixed(NEEDS_A_RESTART)];
        /// The settings of each vif; its name, its socket and its MAC address come with the guest.
        vif: VifConfig = VifConfig::template(), [];
        /// The settings of vifs with their own table, `[xen-vif."NAME.N"]`.
        own: OwnVifs = OwnVifs::default(), [];
    }
}

/// The beginning of the name of a single vif's table.
const OWN: &str = "xen-vif.";

/// A word of `vlan` that no Xen guest's interface has.
const MIRROR: (&str, &str) = ("mirror", "mirror to an uplink, such as a TAP of dom0");

impl VifConfig {
    /// Keys that no Xen guest's interface has, and in which this interface differs from `wanted`. Each comes with the
    /// setting that is in its place.
    pub fn keys_not_of_xen(&self, wanted: &Self) -> Vec<(&'static str, &'static str)> {
        let rows = self.rows().into_iter().zip(wanted.rows());
        let differs = rows.filter(|((key, now), (_, then))| !key.of_one_xen && now != then);
        let keys = differs.filter_map(|((key, _), _)| Some((key.name, key.xen?)));
        let mirrors = self.vlan != wanted.vlan && !wanted.vlan.mirrored().is_empty();
        keys.chain(mirrors.then_some(MIRROR)).collect()
    }
}

impl XenConfig {
    /// True if weir serves a vif on this bridge.
    pub fn takes(&self, bridge: Option<&str>) -> bool {
        let Some(bridges) = &self.bridges else { return true };
        bridge.is_some_and(|name| bridges.iter().any(|bridge| bridge.as_str() == name))
    }

    /// The keys of the table with their values. A key of each vif changes with a restart, too.
    pub(super) fn keys(&self) -> Rows {
        let of_all = self.rows().into_iter().filter(|(key, _)| key.xen.is_none());
        of_all.map(|(key, value)| (key.fixed(NEEDS_A_RESTART), value)).collect()
    }

    /// The vif `name` of a guest, whose front end is at `frontend` in xenstore. `guest` is the name of its domain with
    /// the vif's number in it.
    pub fn vif(
        &self,
        guest: Option<&str>,
        name: PortName,
        frontend: SocketPath,
        mac: MacAddress,
    ) -> VifConfig {
        let own = guest.and_then(|guest| self.own.0.get(guest)).unwrap_or(&self.vif);
        VifConfig { name, socket: frontend, mac: Some(mac), ..own.clone() }
    }

    /// The tables with settings of vifs.
    pub(super) fn tables(&self) -> impl Iterator<Item = (String, &VifConfig)> {
        let own = self.own.0.iter().map(|(name, vif)| (Self::own_table(name), vif));
        std::iter::once(("xen".to_owned(), &self.vif)).chain(own)
    }

    /// The table of the vif `name`, as faults and differences call it.
    pub(super) fn own_table(name: &str) -> String {
        format!("{OWN}{name}")
    }

    /// The keys of each table of a single vif, with their values.
    pub(super) fn own_keys(&self) -> BTreeMap<String, Rows> {
        let of_one = |vif: &VifConfig| {
            let rows = vif.rows().into_iter().filter(|(key, _)| key.of_one_xen);
            rows.map(|(key, value)| (key.fixed(NEEDS_A_RESTART), value)).collect()
        };
        self.own.0.iter().map(|(name, vif)| (Self::own_table(name), of_one(vif))).collect()
    }

    /// Reads `[xen]` and the tables of single vifs.
    pub(super) fn from_sections(
        section: Option<Section<'_>>,
        own: Vec<Section<'_>>,
        problems: &mut Vec<Problem>,
    ) -> Option<(Self, Vec<Places>)> {
        let Some(section) = section else {
            if let Some(first) = own.first() {
                problems.push(
                    Problem::new(format!("`{}` without `[xen]`", first.title))
                        .label(first.span.clone(), "has no effect")
                        .help("add `[xen]`, with which weir serves the vifs of Xen guests"),
                );
            }
            return None;
        };
        let (mut xen, places) = Self::from_section(section, problems);
        let mut places = vec![places];
        for mut section in own {
            let name = section.title.strip_prefix(OWN).unwrap_or_default().to_owned();
            let is_number =
                |number: &str| number.parse::<u32>().is_ok_and(|it| it.to_string() == number);
            if !name
                .rsplit_once('.')
                .is_some_and(|(guest, number)| !guest.is_empty() && is_number(number))
            {
                problems.push(
                    Problem::new(format!("`{name}` is no vif of a Xen guest"))
                        .label(section.span.clone(), "not a domain's name and a number")
                        .help("write the domain's name, a dot and the vif's number: [xen-vif.\"web.0\"]"),
                );
            }
            let mut vif = template::under(&xen.vif, &mut section);
            vif.read_keys(&mut section, |key| key.of_one_xen, problems);
            refuse(&mut section, |key| !key.of_one_xen, problems);
            places.push(section.places());
            section.finish(problems);
            xen.own.0.insert(name, vif);
        }
        Some((xen, places))
    }

    /// Reads the table.
    fn from_section(mut section: Section<'_>, problems: &mut Vec<Problem>) -> (Self, Places) {
        let mut xen = Self::default();
        xen.read_chosen(&Key::TABLE, &mut section, |key| key.xen.is_none(), problems);
        refuse(&mut section, |_| true, problems);
        let places = section.places();
        section.finish(problems);
        (xen, places)
    }
}

/// Reports keys that no table of Xen guests' vifs has, and those of `which` that this table does not have.
fn refuse(section: &mut Section<'_>, which: fn(&Key) -> bool, problems: &mut Vec<Problem>) {
    let rows = VifConfig::template().rows();
    let instead = rows.into_iter().filter(|(key, _)| which(key));
    let instead = instead.filter_map(|(key, _)| Some((key.name, key.xen?)));
    for (key, instead) in instead.chain([MIRROR]) {
        if let Some(span) = section.refuse(key) {
            problems.push(
                Problem::new(format!("`{key}` cannot be said of Xen guests' interfaces"))
                    .label(span, format!("not a key of [{}]", section.title))
                    .help(instead),
            );
        }
    }
}

/// Names of bridges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bridges(BTreeSet<InterfaceName>);

impl Bridges {
    /// The names, in order.
    pub fn iter(&self) -> impl Iterator<Item = &InterfaceName> {
        self.0.iter()
    }
}

impl fmt::Display for Bridges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.iter().map(InterfaceName::as_str).collect::<Vec<_>>().join(", "))
    }
}

/// The settings of single vifs, by the domain's name and the vif's number. Their tables are not keys of `[xen]`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnVifs(BTreeMap<String, VifConfig>);

impl OwnVifs {
    /// True if no vif has its own table.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Value for OwnVifs {
    fn read(&mut self, _: &Key, _: &mut Section<'_>, _: &mut Vec<Problem>) {}

    fn show(&self, _: Key, _: &mut Rows) {}

    fn key_at(_: &Key, _: &str) -> Option<&'static str> {
        None
    }
}

impl FromToml for Bridges {
    fn from_toml(value: &Spanned<DeValue<'_>>) -> Result<Self, Fault> {
        let expected = "names of bridges in brackets, such as [\"br0\"]";
        let wrong = |found| Fault::new(value, ValueError::WrongType { expected, found });
        match value.get_ref() {
            DeValue::Array(items) if items.is_empty() => Err(wrong("an empty list")),
            DeValue::Array(items) => {
                let names = each(items.iter().map(InterfaceName::from_toml))?;
                Ok(Self(names.into_iter().collect()))
            }
            other => Err(wrong(other.type_str())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Config, Defaults, RxUsecs, VlanMode};
    use super::*;

    fn read(text: &str) -> Result<Config, String> {
        let defaults = Defaults::of_user(true, None).unwrap();
        Config::from_toml("weir.toml", text, &defaults)
            .map_err(|error| format!("{:?}", miette::Report::new(error)))
    }

    #[test]
    fn without_a_table_no_vif_is_taken_and_with_an_empty_one_each() {
        assert_eq!(read("").unwrap().xen, None);
        let xen = read("[xen]\n").unwrap().xen.unwrap();
        assert_eq!(xen, XenConfig::default());
        assert!(xen.takes(None) && xen.takes(Some("br0")));
        assert!(!xen.split_event_channels);
        let split = read("[xen]\nsplit_event_channels = true\n").unwrap().xen.unwrap();
        assert!(split.split_event_channels);
    }

    #[test]
    fn vifs_of_other_bridges_are_left_alone() {
        let xen = read("[xen]\nbridges = [\"br0\", \"br1\"]\n").unwrap().xen.unwrap();
        assert!(xen.takes(Some("br1")) && !xen.takes(Some("br2")) && !xen.takes(None));
    }

    #[test]
    fn what_is_said_of_all_holds_for_each() {
        let text = "[xen]\nqueues = 2\nlatency_budget = \"1ms\"\nmoderation = \"backend\"\n\
                    rx_usecs = 200\nvlan = 10\nmac_check = false\nweight = 3\n\
                    [[xen.filter]]\ndirection = \"tx\"\naction = \"drop\"\nmatch = \"port 25\"\n";
        let xen = read(text).unwrap().xen.unwrap();
        let name: PortName = "vif3.0".parse().unwrap();
        let frontend: SocketPath = "/local/domain/3/device/vif/0".parse().unwrap();
        let mac: MacAddress = "00:16:3e:00:00:01".parse().unwrap();
        let vif = xen.vif(None, name, frontend, mac);
        assert_eq!((vif.queues.get(), vif.mac, vif.mac_check), (2, Some(mac), false));
        assert_eq!(vif.vlan, VlanMode::Access(10.try_into().unwrap()));
        assert_eq!((vif.rx_usecs.map(RxUsecs::ns), vif.filter.len()), (Some(200_000), 1));
        assert!(vif.sharing.weight.is_some());
    }

    #[test]
    fn a_vif_has_the_keys_of_all_but_for_those_of_its_own_table() {
        let text = "[xen]\nqueues = 2\nvlan = 10\nrate = \"1Gbit\"\nmoderation = \"backend\"\nrx_usecs = 9\n\
                    [xen-vif.\"web.1.0\"]\nrate = \"none\"\ntrunk = [1, 2]\nmoderation = \"immediate\"\n\
                    source_guard = \"configured\"\naddresses = [\"192.0.2.1\"]\n";
        let xen = read(text).unwrap().xen.unwrap();
        let vif = |guest| {
            let name: PortName = "vif3.0".parse().unwrap();
            let frontend: SocketPath = "/local/domain/3/device/vif/0".parse().unwrap();
            xen.vif(guest, name, frontend, "00:16:3e:00:00:01".parse().unwrap())
        };
        let shown = |vif: &VifConfig| {
            (
                vif.queues.get(),
                vif.vlan.to_string(),
                vif.sharing.rate.is_some(),
                vif.guarding.addresses.as_slice().len(),
            )
        };
        let own = vif(Some("web.1.0"));
        assert_eq!(shown(&own), (2, "trunk 1,2".into(), false, 1));
        assert_eq!((own.rx_usecs, own.name.as_str()), (None, "vif3.0"));
        for other in [None, Some("web.1"), Some("web.1.1"), Some("db.0")] {
            assert_eq!(shown(&vif(other)), (2, "10".into(), true, 0), "{other:?}");
        }
    }

    #[test]
    fn what_does_not_fit_is_shown_with_its_place() {
        for (text, says) in [
            ("[xen]\nbridges = []\n", "weir.toml:2:11"),
            ("[xen]\nbridges = \"br0\"\n", "names of bridges in brackets"),
            ("[xen]\nagent_channel = \"\"\n", "the name of a channel"),
            ("[xen]\nagent_channel = 1\n", "weir.toml:2:17"),
            ("[xen]\nagent_channel = \"a,b\"\n", "a string that is none"),
            ("[xen]\nbridge = [\"br0\"]\n", "did you mean `bridges`?"),
            ("[xen]\nrx_usecs = 10\nmoderation = \"immediate\"\n", "has no effect with moderation"),
            ("[xen]\nbridges = [\"a b\"]\n", "without spaces"),
            ("[xen]\nagent = \"/run/a\"\n", "agent_channel"),
            ("[xen]\nmac = \"00:16:3e:00:00:01\"\n", "each its own"),
            ("[xen]\nmtu = 9000\n", "'mtu=9000,...'"),
            ("[xen]\nsocket = \"/run/a\"\n", "met in xenstore"),
            ("[xen]\ncontainer_bytes = 8192\n", "weir.toml:2:19"),
            ("xen = 1\n", "write the header [xen]"),
            ("[xen-vif.\"web.0\"]\n", "without `[xen]`"),
            ("[xen]\n[xen-vif.web]\n", "a dot and the vif's number"),
            ("[xen]\n[xen-vif.\"web.00\"]\n", "a dot and the vif's number"),
            ("[xen]\n[xen-vif.\".0\"]\n", "a dot and the vif's number"),
            ("[xen]\n[xen-vif.\"web.0\"]\nmac = \"00:16:3e:00:00:01\"\n", "each its own"),
            ("[xen]\n[xen-vif.\"web.0\"]\nbridges = [\"br0\"]\n", "weir.toml:3:1"),
            (
                "[xen]\n[xen-vif.\"web.0\"]\nrx_usecs = 10\nmoderation = \"immediate\"\n",
                "has no effect with moderation",
            ),
        ] {
            let shown = read(text).unwrap_err();
            assert!(shown.contains(says), "{text}: {shown}");
        }
    }
}
