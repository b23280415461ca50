//! `[xen]`: which vifs of Xen guests weir serves, and what holds for each of them.

use std::collections::BTreeSet;

use toml::Spanned;
use toml::de::DeValue;

use super::error::Problem;
use super::filter;
use super::moderation::Moderation;
use super::parse;
use super::section::{Fault, FromToml, Located, Section};
use super::sharing::Sharing;
use super::values::{
    ContainerBytes, InterfaceName, LatencyBudget, MacAddress, PortName, QueuePairs, RxFrames,
    RxUsecs, SocketPath, ValueError,
};
use super::{FilterRule, SwitchConfig, VifConfig, VlanMode};

/// `[xen]`: the vifs of this domain, which the toolstack attaches and detaches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XenConfig {
    /// Vifs of these bridges only, by the `bridge` of the guest's configuration; every vif where nothing
    /// is said.
    pub bridges: Option<BTreeSet<InterfaceName>>,
    /// The channel by which the agent in a guest is met, if there is one.
    pub agent_channel: Option<ChannelName>,
    /// Most queue pairs a guest may use.
    pub queues: QueuePairs,
    /// Whether guests may have an event channel for each ring of a queue, instead of one for both.
    pub split_event_channels: bool,
    /// The latency budget of each vif; without it the switch's holds.
    pub latency_budget: Option<LatencyBudget>,
    /// When a guest is called.
    pub moderation: Moderation,
    /// How long a call is held, by the policies with a fixed hold.
    pub rx_usecs: Option<RxUsecs>,
    /// With how many frames a call is held no longer.
    pub rx_frames: Option<RxFrames>,
    /// With how many bytes withheld frames are shown, by the policies that withhold them.
    pub container_bytes: Option<ContainerBytes>,
    /// Whether a guest may send only from the address that its configuration gives it.
    pub mac_check: bool,
    /// Whether entries of the indirection table move between receive queues by load.
    pub rss_rebalance: bool,
    /// VLANs of each port.
    pub vlan: VlanMode,
    /// Which frames each may send and receive.
    pub filter: Vec<FilterRule>,
    /// What each is entitled to of the workers, and how fast it may send.
    pub sharing: Sharing,
}

/// What there is in place of the same addresses for all guests.
const ADDRESSES: &str =
    "each guest has its own: `weir vif set vif3.0 source_guard=configured addresses=...`";

/// Keys of `[vif.NAME]` that a Xen guest's interface has not, and what there is in their place.
const NOT_HERE: [(&str, &str); 9] = [
    ("socket", "a Xen guest is met in xenstore"),
    ("mode", "a Xen guest is met in xenstore"),
    ("socket_mode", "a Xen guest is met in xenstore"),
    ("agent", "name the channel of the guest's configuration: agent_channel = \"weir.agent\""),
    ("mac", "the guest's configuration gives each its own: vif = ['mac=00:16:3e:00:00:01,...']"),
    ("source_guard", ADDRESSES),
    ("addresses", ADDRESSES),
    ("router", ADDRESSES),
    ("mtu", "set it in the guest; netfront is not told one"),
];

impl Default for XenConfig {
    /// Every vif, as any other interface.
    fn default() -> Self {
        Self {
            bridges: None,
            agent_channel: None,
            queues: QueuePairs::default(),
            split_event_channels: false,
            latency_budget: None,
            moderation: Moderation::default(),
            rx_usecs: None,
            rx_frames: None,
            container_bytes: None,
            mac_check: VifConfig::MAC_CHECK_DEFAULT,
            rss_rebalance: VifConfig::RSS_REBALANCE_DEFAULT,
            vlan: VlanMode::Unset,
            filter: Vec::new(),
            sharing: Sharing::default(),
        }
    }
}

impl XenConfig {
    /// Whether a vif on this bridge is weir's.
    pub fn takes(&self, bridge: Option<&str>) -> bool {
        let Some(bridges) = &self.bridges else { return true };
        bridge.is_some_and(|name| bridges.iter().any(|bridge| bridge.as_str() == name))
    }

    /// The vif `name` of a guest, whose front end is at `frontend` in xenstore.
    pub fn vif(&self, name: PortName, frontend: SocketPath, mac: MacAddress) -> VifConfig {
        VifConfig {
            queues: self.queues,
            latency_budget: self.latency_budget,
            moderation: self.moderation,
            rx_usecs: self.rx_usecs,
            rx_frames: self.rx_frames,
            container_bytes: self.container_bytes,
            mac: Some(mac),
            mac_check: self.mac_check,
            rss_rebalance: self.rss_rebalance,
            vlan: self.vlan.clone(),
            filter: self.filter.clone(),
            sharing: self.sharing,
            ..VifConfig::new(name, frontend)
        }
    }

    /// Reads the table.
    pub(super) fn from_section(
        mut section: Section<'_>,
        switch: &SwitchConfig,
        problems: &mut Vec<Problem>,
    ) -> Self {
        let default = Self::default();
        let bridges = section.take::<Bridges>("bridges", problems);
        let rx_usecs = section.take::<RxUsecs>("rx_usecs", problems);
        let rx_frames = section.take::<RxFrames>("rx_frames", problems);
        let container_bytes = section.take::<ContainerBytes>("container_bytes", problems);
        let moderation = section.take("moderation", problems).map(Located::into_value);
        let bad_moderation = moderation.is_none() && section.has("moderation");
        let xen = Self {
            bridges: bridges.map(|bridges| bridges.value.0),
            agent_channel: section.take("agent_channel", problems).map(Located::into_value),
            queues: section.take_or("queues", default.queues, problems),
            split_event_channels: section.take_or(
                "split_event_channels",
                default.split_event_channels,
                problems,
            ),
            latency_budget: section.take("latency_budget", problems).map(Located::into_value),
            moderation: moderation.unwrap_or_default(),
            rx_usecs: rx_usecs.as_ref().map(|usecs| usecs.value),
            rx_frames: rx_frames.as_ref().map(|frames| frames.value),
            container_bytes: container_bytes.as_ref().map(|bytes| bytes.value),
            mac_check: section.take_or("mac_check", default.mac_check, problems),
            rss_rebalance: section.take_or("rss_rebalance", default.rss_rebalance, problems),
            vlan: parse::vlan(&mut section, problems),
            filter: filter::rules(&mut section, problems),
            sharing: Sharing::from_section(&mut section, Some(switch.schedule), problems),
        };
        for (key, instead) in NOT_HERE {
            if let Some(span) = section.refuse(key) {
                problems.push(
                    Problem::new(format!("`{key}` cannot be said of Xen guests' interfaces"))
                        .label(span, "not a key of [xen]")
                        .help(instead),
                );
            }
        }
        let header = section.span.clone();
        section.finish(problems);
        let budget = xen.latency_budget.unwrap_or(switch.latency_budget);
        if !bad_moderation && let Err(error) = xen.sample().check_calls(budget) {
            let span = match error.key() {
                "rx_usecs" => rx_usecs.map(|usecs| usecs.span),
                "container_bytes" => container_bytes.map(|bytes| bytes.span),
                _ => rx_frames.map(|frames| frames.span),
            };
            problems.push(
                Problem::new(format!("`xen`: {error}"))
                    .label(span.unwrap_or(header), "does not fit")
                    .help(error.help()),
            );
        }
        xen
    }

    /// A vif as it will be, to check what all of them have in common.
    fn sample(&self) -> VifConfig {
        let name: PortName = "xen".parse().expect("a constant that is a valid name");
        let path: SocketPath = "/".parse().expect("a constant that is a valid path");
        let mac = MacAddress::derived_from(&name);
        self.vif(name, path, mac)
    }
}

/// The name of a channel, as in `channel=['name=...']` of a guest's configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelName(String);

impl ChannelName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromToml for ChannelName {
    fn from_toml(value: &Spanned<DeValue<'_>>) -> Result<Self, Fault> {
        let expected = "the name of a channel in quotes, without spaces, such as \"weir.agent\"";
        let wrong =
            |found| Fault { span: value.span(), error: ValueError::WrongType { expected, found } };
        match value.get_ref() {
            DeValue::String(name)
                if !name.is_empty() && name.chars().all(|c| c.is_ascii_graphic() && c != ',') =>
            {
                Ok(Self(name.clone().into_owned()))
            }
            DeValue::String(_) => Err(wrong("a string that is none")),
            other => Err(wrong(other.type_str())),
        }
    }
}

/// A list of bridges.
struct Bridges(BTreeSet<InterfaceName>);

impl FromToml for Bridges {
    fn from_toml(value: &Spanned<DeValue<'_>>) -> Result<Self, Fault> {
        let expected = "names of bridges in brackets, such as [\"br0\"]";
        let wrong =
            |found| Fault { span: value.span(), error: ValueError::WrongType { expected, found } };
        match value.get_ref() {
            DeValue::Array(items) if items.is_empty() => Err(wrong("an empty list")),
            DeValue::Array(items) => {
                items.iter().map(InterfaceName::from_toml).collect::<Result<_, _>>().map(Self)
            }
            other => Err(wrong(other.type_str())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Config, Defaults};
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
            ("[xen]\nrx_usecs = 10\nmoderation = \"immediate\"\n", "means nothing to moderation"),
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
