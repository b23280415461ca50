//! A change by `weir reload`, and the same by single commands.

use std::path::Path;

use proptest::prelude::*;
use weir_config::ConfigError;

use super::put::refusal;
use super::*;
use crate::control::{Extent, Part, ReloadOutcome};

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
/// VLAN settings of an interface, which has at most one of them.
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
        let Response::Vifs { vifs, .. } = self.switch.handle(Request::VifList(Part::default()))
        else {
            panic!("a list")
        };
        vifs.into_iter().find(|it| it.config.name.as_str() == vif).unwrap().config
    }

    /// Each interface, without the directory of this switch.
    fn vifs(&self) -> Vec<String> {
        let Response::Vifs { vifs, .. } = self.switch.handle(Request::VifList(Part::default()))
        else {
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

/// Settings that make the switch check frames: of the sender, and of the receiver.
const CHECKS: [&[&str]; 2] = [
    &[
        "mtu = 300",
        "isolated = true",
        "source_guard = \"configured\"\naddresses = [\"10.0.0.1\"]",
        "filter = [{ direction = \"tx\", action = \"drop\", match = \"udp dst port 81\" }]",
        "groups = [\"sender\"]",
        "trunk = \"all\"\nnative = 1",
    ],
    &[
        "mtu = 200",
        "isolated = true",
        "filter = [{ direction = \"rx\", action = \"drop\", match = \"udp dst port 82\" }]",
        "groups = [\"receiver\"]",
        "trunk = \"all\"\nnative = 1",
        "vlan = 7",
    ],
];

/// A datagram, or a frame that no guest should send.
fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let dst =
        prop::sample::select(vec![mac(2), mac(9), [0xff; 6], [1, 0x80, 0xc2, 0, 0, 3], mac(1)]);
    let src = prop::sample::select(vec![mac(1), mac(1), mac(1), mac(5), [1; 6]]);
    let port = prop::sample::select(vec![80_u8, 81, 82, 83, 84]);
    let from = prop::sample::select(vec![1_u8, 1, 1, 6]);
    let len = prop::sample::select(vec![20_usize, 20, 180, 290]);
    let tags = prop::sample::select(vec![
        &[][..],
        &[],
        &[],
        &[0x81, 0, 0, 7],
        &[0x81, 0, 0, 0, 0x81, 0, 0, 7],
    ]);
    (dst, src, port, from, len, tags).prop_map(|(dst, src, port, from, len, tags)| {
        let all = (28 + len) as u8;
        let (high, all) = if len > 220 { (1, (28 + len - 256) as u8) } else { (0, all) };
        let ip = [0x45, 0, high, all, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, from, 10, 0, 0, 2];
        let udp = [&[0, 9, 0, port][..], &((8 + len) as u16).to_be_bytes(), &[0; 2]].concat();
        [&dst[..], &src, tags, &[8, 0], &ip, &udp, &vec![7; len]].concat()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 0, ..ProptestConfig::with_cases(48) })]

    #[test]
    fn what_a_trace_says_of_any_frame_is_what_becomes_of_it(
        of_sender in prop::sample::subsequence(CHECKS[0], 0..4),
        of_receiver in prop::sample::subsequence(CHECKS[1], 0..4),
        frames in prop::collection::vec(any_frame(), 1..24),
    ) {
        let vlans = |all: &[&str]| all.iter().filter(|it| it.starts_with("trunk") || it.starts_with("vlan")).count();
        prop_assume!(vlans(&of_receiver) < 2);
        let groups = "[group.sender]\ndefault_out = \"deny\"\nrules = [{ direction = \"out\", protocol = \"udp\", ports = \"80-83\" }]\n\
            [group.receiver]\nrules = [{ direction = \"in\", protocol = \"udp\", ports = \"80,82\", from = \"10.0.0.1\" }]\n";
        let vif = |name, settings: &[&str]| format!("[vif.{name}]\n{}\n", settings.join("\n"));
        let text = groups.to_owned() + &vif("a", &of_sender) + &vif("b", &of_receiver);
        let bench = Bench::with(&text);
        let (_a, mut a) = bench.guest("a", 1, 1);
        let (_b, mut b) = bench.guest("b", 2, 1);
        // The second frame is taken after the switch has decided about the first, so the receiver
        // is known if its own checks let it send.
        for nth in 1..=2 {
            send(&mut b[0], [0xff; 6], 2, b"hello");
            eventually("it has spoken", || bench.port("b").tx.frames >= nth);
        }
        let ids = bench.switch.ports().vifs.iter().map(|vif| vif.port.id()).collect::<Vec<_>>();
        for frame in frames {
            // The counters show what became of the frame: drops of both ports, and frames that were
            // delivered.
            let counted = || {
                let ports = ["a", "b"].map(|vif| bench.port(vif));
                let of = |nth: usize| ports[nth].drops.clone();
                (of(0), of(1), ports[1].rx.frames)
            };
            let (mut sender, mut receiver, mut got) = counted();
            let steps = bench.switch.engine.trace(ids[0], &frame);
            for step in &steps {
                match step {
                    weir_engine::trace::Step::Dropped { port, reason } => {
                        let drops = if *port == ids[0] { &mut sender } else { &mut receiver };
                        *drops.entry(reason.as_str().into()).or_default() += 1;
                    }
                    weir_engine::trace::Step::Delivered { .. } => got += 1,
                    _ => {}
                }
            }
            eventually("room to send", || a[0].send_raw(&frame, &weir_wire::VnetHdr::default()).is_ok());
            // A frame that no counter shows is decided about when it is given back.
            eventually("it is taken", || {
                a[0].flush();
                a[0].in_flight() == 0
            });
            let end = Instant::now() + Duration::from_secs(20);
            while counted() != (sender.clone(), receiver.clone(), got) && Instant::now() < end {
                std::thread::sleep(Duration::from_micros(200));
            }
            prop_assert_eq!(counted(), (sender, receiver, got), "{} {:?} {:?}", text, steps, frame);
            while b[0].recv(|_| ()).is_some() {}
        }
    }
}
