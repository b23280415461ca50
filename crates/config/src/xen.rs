//! `[xen]`: the vifs of Xen guests that weir serves, and their settings.

use std::collections::BTreeSet;
use std::fmt;

use toml::Spanned;
use toml::de::DeValue;

use super::VifConfig;
use super::error::Problem;
use super::keys::{Key, NEEDS_A_RESTART, Rows, Value, keys};
use super::section::{Fault, FromToml, Places, Section, each};
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
    }
}

/// A word of `vlan` that no Xen guest's interface has.
const MIRROR: (&str, &str) = ("mirror", "mirror to an uplink, such as a TAP of dom0");

impl VifConfig {
    /// Keys of which it and `wanted` differ, and that no Xen guest's interface has, with what there is in their place.
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

    /// The vif `name` of a guest, whose front end is at `frontend` in xenstore.
    pub fn vif(&self, name: PortName, frontend: SocketPath, mac: MacAddress) -> VifConfig {
        VifConfig { name, socket: frontend, mac: Some(mac), ..self.vif.clone() }
    }

    /// Reads the table.
    pub(super) fn from_section(
        mut section: Section<'_>,
        problems: &mut Vec<Problem>,
    ) -> (Self, Places) {
        let mut xen = Self::default();
        Value::read(&mut xen, &Key::TABLE, &mut section, |key| key.xen.is_none(), problems);
        let instead = xen.vif.rows().into_iter().filter_map(|(key, _)| Some((key.name, key.xen?)));
        for (key, instead) in instead.chain([MIRROR]) {
            if let Some(span) = section.refuse(key) {
                problems.push(
                    Problem::new(format!("`{key}` cannot be said of Xen guests' interfaces"))
                        .label(span, "not a key of [xen]")
                        .help(instead),
                );
            }
        }
        let places = section.places();
        section.finish(problems);
        (xen, places)
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
        let vif = xen.vif(name, frontend, mac);
        assert_eq!((vif.queues.get(), vif.mac, vif.mac_check), (2, Some(mac), false));
        assert_eq!(vif.vlan, VlanMode::Access(10.try_into().unwrap()));
        assert_eq!((vif.rx_usecs.map(RxUsecs::ns), vif.filter.len()), (Some(200_000), 1));
        assert!(vif.sharing.weight.is_some());
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
            ("[xen]\nmtu = 9000\n", "set it in the guest"),
            ("[xen]\nsocket = \"/run/a\"\n", "met in xenstore"),
            ("[xen]\ncontainer_bytes = 8192\n", "weir.toml:2:19"),
            ("xen = 1\n", "write the header [xen]"),
        ] {
            let shown = read(text).unwrap_err();
            assert!(shown.contains(says), "{text}: {shown}");
        }
    }
}
