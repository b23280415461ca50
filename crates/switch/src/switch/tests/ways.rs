//! A change by `weir reload`, and the same by single commands.

use std::path::Path;

use proptest::prelude::*;
use weir_config::ConfigError;

use super::put::refusal;
use super::*;
use crate::control::{Extent, ReloadOutcome};

/// Settings that are good by themselves, in each combination.
const SETTINGS: &[&str] = &[
    "queues = 2",
    "rx_ring = 512",
    "mtu = 1400",
    "memory_max = \"1GiB\"",
    "access_platform = true",
    "isolated = true",
    "multicast_router = true",
    "tag_protocol = \"802.1ad\"",
    "latency_budget = \"1ms\"",
    "moderation = \"backend\"\nrx_usecs = 20",
    "rate = \"1Gbit\"\nburst = \"1MiB\"",
    "rx_packets_per_second = 1000",
    "broadcasts_per_second = 100",
    "source_guard = \"configured\"\naddresses = [\"10.0.0.5\"]",
    "filter = [{ direction = \"tx\", action = \"drop\", match = \"ip6\" }]",
    "socket_mode = \"0660\"",
    "mode = \"client\"",
];
/// VLAN settings of an interface, of which it has one or none.
const VLANS: &[&str] =
    &["", "vlan = 7", "trunk = \"all\"\nnative = 7", "network = \"blue\"", "mirror = [\"a\"]"];
/// The address that another interface, which is in no file, can have as well.
const MAC: &str = "mac = \"52:54:00:00:00:07\"";

/// The template of a file. Its keys may be the same as those of an interface, or conflict with them.
const TEMPLATES: &[&str] = &[
    "",
    "vlan = 7\nmtu = 1400",
    "moderation = \"backend\"\nrx_usecs = 20\nisolated = true",
    "network = \"blue\"\nrate = \"1Gbit\"\nbroadcasts_per_second = 100",
    "filter = [{ direction = \"tx\", action = \"drop\", match = \"ip6\" }]\nqueues = 2",
    "socket_mode = \"0660\"",
];
/// Lines with which an interface has no template, has the template, or takes keys of the template back.
const UNDER: &[&str] =
    &["", "", "template = \"t\"", "template = \"t\"\nrate = \"none\"\nmtu = \"none\""];

/// A good file with some interfaces of `a`, `b` and `c`.
fn file() -> impl Strategy<Value = String> {
    let settings = prop::sample::subsequence(SETTINGS, 0..4);
    let under = prop::sample::select(UNDER);
    let vif = (under, prop::sample::select(VLANS), prop::bool::weighted(0.2), settings);
    let vifs = prop::array::uniform3(prop::option::weighted(0.8, vif));
    let text = (prop::sample::select(TEMPLATES), vifs).prop_map(|(template, vifs)| {
        let mut text = "[switch]\nworkers = 2\n[network.blue]\nvlan = 20\n".to_owned();
        text += &format!("[template.t]\n{template}\n");
        for (name, vif) in ["a", "b", "c"].into_iter().zip(vifs) {
            let Some((under, vlan, has_mac, settings)) = vif else { continue };
            let mac = if has_mac { MAC } else { "" };
            let mut settings = settings.join("\n");
            for key in ["rate", "mtu"].into_iter().filter(|key| under.contains(&format!("\n{key}")))
            {
                settings = settings.replace(&format!("{key} = "), &format!("# {key} = "));
            }
            text += &format!("[vif.{name}]\n{under}\n{vlan}\n{mac}\n{settings}\n");
        }
        text
    });
    text.prop_filter("it is good", |text| read(Path::new("/run/weir"), text).is_ok())
}

fn read(dir: &Path, text: &str) -> Result<Config, ConfigError> {
    let control = SocketPath::try_from(dir.join("control.sock").as_path()).unwrap();
    let defaults = Defaults { control, control_named: true, keeper: None };
    Config::from_toml("weir.toml", text, &defaults)
}

impl Bench {
    /// A switch with this file, and an interface that no file names, if they go together.
    fn of_file(text: &str, by_hand: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let config = read(dir.path(), text).unwrap();
        let bench = Self { switch: Switch::start(&config).unwrap(), dir };
        let config = match by_hand.strip_prefix("template=t") {
            Some(_) => {
                let (template, keys) = ("t".parse().unwrap(), Default::default());
                let request = Request::VifOfTemplate { template, name: name("late"), keys };
                let Response::Vif { config } = bench.switch.handle(request) else {
                    panic!("there is a template")
                };
                *config
            }
            None => bench.config("late", by_hand),
        };
        let added = bench.put(config);
        matches!(added, Response::Put { .. }).then_some(bench)
    }

    fn vif(&self, vif: &str) -> VifConfig {
        let Response::Vifs { vifs } = self.switch.handle(Request::VifList) else {
            panic!("a list")
        };
        vifs.into_iter().find(|it| it.config.name.as_str() == vif).unwrap().config
    }

    /// Each interface, without the directory of this switch.
    fn vifs(&self) -> Vec<String> {
        let Response::Vifs { vifs } = self.switch.handle(Request::VifList) else {
            panic!("a list")
        };
        let here = self.dir.path().to_str().unwrap();
        let mut vifs: Vec<_> =
            vifs.iter().map(|it| format!("{:?}", it.config).replace(here, "")).collect();
        vifs.sort();
        vifs
    }

    /// Removes and puts interfaces one by one, until a round changes nothing. Returns the refused ones with the
    /// reasons.
    fn by_commands(&self, wanted: &Config) -> Vec<(PortName, String)> {
        for vif in ["a", "b", "c"].map(name) {
            if !wanted.vifs.iter().any(|it| it.name == vif) {
                self.switch.handle(Request::VifDel { name: vif });
            }
        }
        let mut left = wanted.vifs.clone();
        loop {
            let before = left.len();
            let mut refused = Vec::new();
            left.retain(|vif| match self.put(vif.clone()) {
                Response::Put { .. } => false,
                other => {
                    refused.push((vif.name.clone(), refusal(other)));
                    true
                }
            });
            if left.is_empty() || left.len() == before {
                return refused;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_reload_and_single_commands_end_in_the_same_state_or_the_same_refusal(
        before in file(),
        after in file(),
        by_hand in prop::sample::select(&["queues=1", "mac=52:54:00:00:00:07", "mirror=b", "template=t"][..]),
    ) {
        let benches = [Bench::of_file(&before, by_hand), Bench::of_file(&before, by_hand)];
        let [Some(at_once), Some(one_by_one)] = benches else {
            return Err(TestCaseError::reject("they do not go together"));
        };
        let mut wanted = read(one_by_one.dir.path(), &after).unwrap();
        let before = read(one_by_one.dir.path(), &before).unwrap();
        let late = one_by_one.vif("late");
        wanted.vifs.push(before.templates.followed(&wanted.templates, &late));
        let refused = one_by_one.by_commands(&wanted);
        match at_once.switch.handle(Request::Reload { text: after, extent: Extent::Whole }) {
            Response::Reloaded { outcome: ReloadOutcome::Applied { .. }, .. } => {
                prop_assert!(refused.is_empty(), "by commands: {refused:?}");
                prop_assert_eq!(at_once.vifs(), one_by_one.vifs());
            }
            Response::Reloaded { outcome: ReloadOutcome::Refused, difference } => {
                for table in difference.tables {
                    let fixed = table.keys.iter().filter(|key| !key.alive);
                    for key in fixed {
                        let says = format!("{} is ", key.key);
                        let by_commands = refused.iter().find(|(vif, _)| format!("vif.{vif}") == table.table);
                        prop_assert!(by_commands.is_some_and(|(_, why)| why.contains(&says)), "{key:?}: {refused:?}");
                    }
                }
            }
            Response::Error { message, .. } => {
                prop_assert!(!refused.is_empty(), "by commands nothing is refused: {message}");
                let said = |why: &String| why.split("; ").all(|why| message.contains(why));
                prop_assert!(refused.iter().all(|(_, why)| said(why)), "{message}\n{refused:?}");
            }
            other => prop_assert!(false, "{other:?}"),
        }
    }
}
