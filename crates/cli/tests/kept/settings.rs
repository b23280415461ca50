//! Run-time settings survive every end of weir, and no frame that they keep out passes in the meantime
//! (`docs/design/restarts.md#0049`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use weir_config::{VifChanges, VifConfig};
use weir_testing::{SetAtEnd, eventually};
use weir_vif::{Options, QueuePair, SendError, Vif, WaitFor};
use weir_wire::{Mac, Offload};

/// weir and its keeper. Dropping the value kills both.
struct Weir {
    dir: TempDir,
    keeper: Child,
    process: Child,
    /// The process that has replaced the first weir.
    later: Option<Pid>,
}

impl Weir {
    fn start(switch: &str, ports: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("keeper.sock");
        write(dir.path(), switch, ports);
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir-keeper"));
        let keeper = command.arg(&socket).stdin(Stdio::null()).spawn().unwrap();
        eventually("the keeper listens", || weir_keeper::connect(&socket).ok());
        let process = run(dir.path());
        let weir = Self { dir, keeper, process, later: None };
        weir.serves();
        weir
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn output(&self, args: &[&str]) -> Output {
        let control = self.path("control.sock");
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.env("COLUMNS", "500").arg("--control").arg(control).args(args).output().unwrap()
    }

    /// The output of a command that succeeds.
    fn does(&self, args: &[&str]) -> String {
        let output = self.output(args);
        assert!(output.status.success(), "{args:?}: {}\n{}", text(&output), self.log());
        text(&output)
    }

    fn serves(&self) {
        eventually("weir serves", || self.output(&["vif", "list"]).status.success().then_some(()));
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap()
    }

    fn signal(&mut self, signal: Signal) {
        match self.later.take() {
            None => {
                kill_process(Pid::from_child(&self.process), signal).unwrap();
                self.process.wait().unwrap();
            }
            Some(later) => {
                kill_process(later, signal).unwrap();
                eventually("it ends", || {
                    rustix::process::test_kill_process(later).is_err().then_some(())
                });
            }
        }
    }

    /// Kills weir with SIGKILL, and starts the next one.
    fn killed(&mut self) {
        self.signal(Signal::KILL);
        self.process = run(self.dir.path());
        self.serves();
    }

    fn upgraded(&mut self) {
        let said = self.does(&["upgrade"]);
        let (_, rest) = said.split_once("process ").unwrap();
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        if self.later.replace(Pid::from_raw(digits.parse().unwrap()).unwrap()).is_none() {
            self.process.wait().unwrap();
        }
        self.serves();
    }

    fn configs_of_the_next(&mut self) -> BTreeMap<String, Value> {
        self.process = run(self.dir.path());
        self.serves();
        self.configs()
    }

    fn configs(&self) -> BTreeMap<String, Value> {
        let vifs: Value = serde_json::from_str(&self.does(&["vif", "list", "--json"])).unwrap();
        let config = |vif: &Value| {
            let config = vif["config"].clone();
            (config["name"].as_str().unwrap().to_owned(), config)
        };
        vifs.as_array().unwrap().iter().map(config).collect()
    }

    fn guest(&self, name: &str, mac: Mac) -> (Vif, QueuePair) {
        let socket = self.path(&format!("{name}.sock"));
        let options = Options::new(mac);
        let mut vif = eventually("it is served", || Vif::connect(&socket, &options).ok());
        let pair = vif.queue_pairs().remove(0);
        (vif, pair)
    }
}

impl Drop for Weir {
    fn drop(&mut self) {
        if let Some(later) = self.later {
            let _ = kill_process(later, Signal::KILL);
        }
        for process in [&mut self.process, &mut self.keeper] {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn write(dir: &Path, switch: &str, ports: &str) {
    let (control, keeper) = (dir.join("control.sock"), dir.join("keeper.sock"));
    let text = format!(
        "[switch]\ncontrol = {control:?}\nkeeper = {keeper:?}\nworkers = 2\n{switch}\n{ports}"
    );
    fs::write(dir.join("weir.toml"), text).unwrap();
}

fn run(dir: &Path) -> Child {
    let log = fs::File::options().append(true).create(true).open(dir.join("log")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.arg("run").arg(dir.join("weir.toml"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8([&output.stdout[..], &output.stderr[..]].concat()).unwrap()
}

/// The keys of an interface by path, with their values.
fn keys(config: &Value) -> BTreeMap<String, Value> {
    fn add(path: &str, value: &Value, to: &mut BTreeMap<String, Value>) {
        match value {
            // A VLAN setting of several words is one value.
            Value::Object(fields) if !path.starts_with("vlan") => {
                let dot = if path.is_empty() { "" } else { "." };
                fields.iter().for_each(|(key, value)| add(&format!("{path}{dot}{key}"), value, to));
            }
            value => drop(to.insert(path.to_owned(), value.clone())),
        }
    }
    let mut all = BTreeMap::new();
    add("", config, &mut all);
    all.entry("filter".into()).or_insert(Value::Null);
    all
}

/// The settings with which an interface is added.
const ADDED: [&str; 11] = [
    "access_platform=true",
    "mode=client",
    "socket_mode=0660",
    "mtu=9000",
    "memory_max=1GiB",
    "broadcasts_per_second=100",
    "multicasts_per_second=100",
    "unknown_per_second=100",
    "queues=3",
    "mac=02:00:00:00:00:77",
    "template=t",
];

/// The owners of sockets that whoever runs this test may name.
fn owners() -> [String; 2] {
    let group = rustix::process::getegid().as_raw();
    [format!("socket_user={}", owner()), format!("socket_group={group}")]
}

/// Only root gives sockets to others, and never to itself.
fn owner() -> u32 {
    match rustix::process::geteuid().as_raw() {
        0 => 54_321,
        own => own,
    }
}

/// Settings of the file's interfaces, so that no key has its default.
const SET: [(&str, &[&str]); 3] = [
    (
        "a",
        &[
            "queues=2",
            "rx_ring=512",
            "tx_ring=256",
            "latency_budget=2ms",
            "moderation=aggregate",
            "rx_usecs=50",
            "rx_frames=7",
            "container_bytes=4096",
            "mac=02:00:00:00:00:0a",
            "rss_rebalance=false",
            "isolated=true",
            "multicast_router=true",
            "groups=web",
            "vlan=7",
            "tag_protocol=802.1ad",
            "source_guard=configured",
            "addresses=10.0.0.5,fd00::5",
            "router=true",
            "rate=100Mbit",
            "burst=64KiB",
            "packets_per_second=1000",
            "packet_burst=100",
            "rx_rate=200Mbit",
            "rx_burst=128KiB",
            "rx_packets_per_second=2000",
            "rx_packet_burst=200",
        ],
    ),
    ("b", &["mac_check=false", "trunk=[10, 20]", "native=1"]),
    ("c", &["mirror=a"]),
];

/// Keys of an interface that are not set here, each with the reason.
const NOT_TRIED: [(&str, &str); 1] =
    [("network", "another word for `vlan`, which needs a network")];

/// Each interface's settings, as `weir vif show` shows them.
fn shown(weir: &Weir) -> BTreeMap<(String, String), Value> {
    let mut all = BTreeMap::new();
    for name in weir.configs().into_keys() {
        let vif: Value =
            serde_json::from_str(&weir.does(&["vif", "show", &name, "--json"])).unwrap();
        for setting in vif["settings"].as_array().unwrap() {
            let key = setting["key"].as_str().unwrap().to_owned();
            all.insert((name.clone(), key), setting["value"].clone());
        }
    }
    all
}

/// The table of keys decides which keys exist: a new key has to be set here as well.
#[test]
fn each_key_of_the_table_is_set_in_the_next_test_or_has_a_reason() {
    let set = SET.iter().flat_map(|(_, settings)| settings.iter()).chain(&ADDED);
    let more = ["weight=", "window=", "period=", "filter=", "agent=", "socket=", "by="];
    let more = more.into_iter().chain(["socket_user=", "socket_group="]).collect::<Vec<_>>();
    let tried: BTreeSet<_> = set.chain(&more).filter_map(|it| it.split('=').next()).collect();
    let tried: BTreeSet<_> = tried.into_iter().chain(NOT_TRIED.map(|(key, _)| key)).collect();
    let keys = VifConfig::keys().chain(VifChanges::keys()).map(|key| key.name);
    assert_eq!(keys.collect::<BTreeSet<_>>(), tried);
}

#[test]
fn each_key_that_is_set_while_weir_runs_outlives_it() {
    let mut changed = BTreeMap::new();
    for (schedule, extra) in [("drr", &["weight=3"][..]), ("dwcs", &["window=1/4", "period=1ms"])] {
        let template = format!("[template.t]\nsocket_user = \"{}\"\n", owner());
        let ports = format!("[group.web]\n{template}[vif.a]\n[vif.b]\n[vif.c]\n[vif.gone]\n");
        let mut weir = Weir::start(&format!("schedule = \"{schedule}\""), &ports);
        let defaults = keys(&weir.configs()["b"]);
        for (name, settings) in SET {
            weir.does(&[&["vif", "set", name], settings].concat());
        }
        weir.does(&[&["vif", "set", "b"], extra].concat());
        weir.does(&["filter", "set", "a", "tx drop tcp dst port 25", "rx drop ip6"]);
        let agent = format!("agent={}", weir.path("agent.sock").display());
        let socket = format!("socket={}", weir.path("other.sock").display());
        let [user, group] = owners();
        let of_late = [&agent[..], &socket, &user, &group];
        weir.does(&[&["vif", "add", "late"], &ADDED[..], &of_late].concat());
        let socket = format!("socket={}", weir.path("owned.sock").display());
        weir.does(&["vif", "add", "owned", "by=libvirt:7", &socket]);
        weir.does(&["vif", "del", "gone"]);
        let (before, shown_before) = (weir.configs(), shown(&weir));
        type End = fn(&mut Weir);
        let ends: [End; 4] = [Weir::killed, Weir::upgraded, Weir::killed, Weir::upgraded];
        for end in ends {
            end(&mut weir);
            assert_eq!(weir.configs(), before, "{}", weir.log());
            assert_eq!(shown(&weir), shown_before, "{}", weir.log());
        }
        let listed = weir.does(&["vif", "list"]);
        for shown in ["late: added", "filter", "rx_packet_burst"] {
            assert!(listed.contains(shown), "{shown}: {listed}");
        }
        let difference = weir.does(&["diff"]);
        for shown in ["vif.gone", "vif.late", "filter", "container_bytes", "rx_packet_burst"] {
            assert!(difference.contains(shown), "{shown}: {difference}");
        }
        for config in before.values() {
            let all = keys(config);
            for (key, default) in &defaults {
                let differs = all.get(key) != Some(default);
                *changed.entry(key.clone()).or_insert(false) |= differs;
            }
        }
        // The file decides after a reload, and no older setting comes back.
        weir.does(&["reload"]);
        weir.killed();
        let after = weir.configs();
        assert_eq!(keys(&after["b"]), defaults);
        assert!(after.contains_key("gone") && after.contains_key("late"));
        assert_eq!(after["owned"]["by"], "libvirt:7");
        assert!(!listed.contains("owned: added") && listed.contains("libvirt:7"), "{listed}");
        assert!(difference.contains("kept by libvirt:7; stays"), "{difference}");
    }
    let as_by_default: Vec<_> = changed.iter().filter(|(_, differs)| !**differs).collect();
    assert!(as_by_default.is_empty(), "not tried: {as_by_default:?}");
}

/// Reloads another file, which has the text of weir's own after `change`.
fn another(weir: &Weir, change: impl Fn(&str) -> String) {
    let own = fs::read_to_string(weir.path("weir.toml")).unwrap();
    let other = change(&own);
    assert_ne!(other, own);
    fs::write(weir.path("other.toml"), other).unwrap();
    weir.does(&["reload", weir.path("other.toml").to_str().unwrap()]);
}

/// The settings that no file has.
fn unsaved(weir: &Weir) -> BTreeSet<String> {
    let stats: Value = serde_json::from_str(&weir.does(&["stats", "--json"])).unwrap();
    let unsaved = stats["unsaved"].as_array().into_iter().flatten();
    unsaved.map(|it| it.as_str().unwrap().to_owned()).collect()
}

/// Settings of the switch, groups, templates and patterns come by a reload of another file only.
#[test]
fn settings_that_are_no_ports_outlive_weir() {
    let ports = "[group.web]\n[group.gone]\n[group-ids]\n7 = [\"web\"]\n[template.t]\nqueues = 2\n[vif.a]\n";
    let mut weir = Weir::start("", ports);
    fs::create_dir(weir.path("vms")).unwrap();
    // A confined weir looks into no directory that the file did not name when it started.
    let own = fs::read_to_string(weir.path("weir.toml")).unwrap();
    let pattern =
        format!("[vif-on-demand.\"vm-*\"]\ndirectory = {:?}\nmax = 3\n", weir.path("vms"));
    fs::write(weir.path("weir.toml"), own + &pattern).unwrap();
    weir.killed();
    another(&weir, |text| {
        let switch =
            "workers = 2\nschedule = \"dwcs\"\nlatency_budget = \"3ms\"\nmove_irqs = false\n";
        let web = "[group.web]\nlog = true\nrules = [{ direction = \"in\", protocol = \"tcp\", ports = \"80\" }]\n";
        let text = text.replace("workers = 2\n", switch).replace("[group.web]\n", web);
        let text = text.replace("[group.gone]\n", "[group.new]\ndefault_out = \"deny\"\n");
        let text = text.replace("7 = [\"web\"]\n", "8 = [\"web\", \"new\"]\n");
        let text = text.replace("max = 3\n", "max = 5\n");
        text.replace("queues = 2\n", "queues = 4\n[template.u]\nmtu = 1400\n")
    });
    weir.does(&["vif", "set", "a", "groups=web,new", "window=1/4", "period=1ms"]);
    let before = weir.configs();
    let set = [
        "switch.latency_budget",
        "switch.move_irqs",
        "switch.schedule",
        "group.web.log",
        "group.web.rules",
        "group.gone (removed)",
        "group.new (added)",
        "group-ids.7",
        "group-ids.8",
        "template.t.queues",
        "template.u (added)",
        "vif-on-demand.vm-*.max",
        "vif.a.groups",
        "vif.a.period",
        "vif.a.window",
    ];
    let set: BTreeSet<_> = set.map(str::to_owned).into();
    let other = weir.path("other.toml");
    let ends: [fn(&mut Weir); 4] = [Weir::killed, Weir::upgraded, Weir::killed, Weir::upgraded];
    for end in ends {
        end(&mut weir);
        assert_eq!(weir.configs(), before, "{}", weir.log());
        assert_eq!(unsaved(&weir), set, "{}", weir.log());
        let difference = weir.does(&["diff", other.to_str().unwrap()]);
        assert!(difference.contains("vif.a"), "{difference}");
        for table in ["switch", "group.", "group-ids", "template", "on-demand"] {
            assert!(!difference.contains(table), "{difference}");
        }
    }
    // A changed key of the file takes effect, and the settings by commands stay.
    let own = fs::read_to_string(weir.path("weir.toml")).unwrap();
    let changed = own.replace("[group.web]\n", "[group.web]\ndefault_out = \"deny\"\n");
    fs::write(weir.path("weir.toml"), changed).unwrap();
    weir.upgraded();
    assert_eq!(unsaved(&weir), set, "{}", weir.log());
    let groups = weir.does(&["group", "show", "web"]);
    assert!(groups.contains("deny") && groups.contains("80"), "{groups}");
    // The file decides after a reload, and nothing older comes back.
    weir.does(&["reload"]);
    weir.killed();
    assert!(unsaved(&weir).is_empty());
    let difference = weir.does(&["diff"]);
    assert!(difference.contains("weir runs as the file says"), "{difference}");
}

#[test]
fn a_group_that_a_command_sets_outlives_weir_and_a_refused_one_changes_nothing() {
    let mut weir = Weir::start("", "[group.lb]\n[group-ids]\n7 = [\"lb\"]\n[vif.a]\n");
    let rules = ["--rule", "in tcp 80,443,8000-8100 from group:lb", "--rule", "out udp 53"];
    let set = [&["group", "set", "web", "--default-out", "deny", "--log"][..], &rules].concat();
    assert_eq!(weir.does(&set), "web: 2 rules set\n");
    assert_eq!(weir.does(&set), "web: nothing changed\n");
    weir.does(&["vif", "set", "a", "groups=web"]);
    let shown = |weir: &Weir| {
        [weir.does(&["group", "list", "--json"]), weir.does(&["group", "show", "web"])]
    };
    let before = shown(&weir);
    for rule in ["in tcp 80,443,8000-8100 from group:lb", "out udp 53 to any", "out deny", "a:"] {
        assert!(before[1].contains(rule), "{rule}: {}", before[1]);
    }
    let refused: [(&[&str], &str); 7] = [
        (&["set", "web", "--rule", "in tcp 80 from group:db"], "add a table [group.db]"),
        (&["set", "web", "--rule", "out udp"], "default_out = \"deny\""),
        (&["set", "web", "--rule", "in tcp 80 to any"], "a rule, such as"),
        (&["set", "web", "--rule", "in icmp 80-70"], "numbers and ranges"),
        (&["del", "web"], "vif.a: there is no group web"),
        (&["del", "lb"], "lb is in use; without it: `group.web.rules`: there is no group lb"),
        (&["del", "none"], "there is no group none"),
    ];
    let ends: [fn(&mut Weir); 4] = [Weir::killed, Weir::upgraded, Weir::killed, Weir::upgraded];
    for end in ends {
        for (args, says) in refused {
            let output = weir.output(&[&["group"], args].concat());
            assert!(!output.status.success() && text(&output).contains(says), "{}", text(&output));
        }
        assert_eq!(shown(&weir), before);
        end(&mut weir);
        assert_eq!(shown(&weir), before, "{}", weir.log());
        assert_eq!(unsaved(&weir), ["group.web (added)", "vif.a.groups"].map(str::to_owned).into());
        let difference = weir.does(&["diff"]);
        assert!(difference.contains("- group.web"), "{difference}");
    }
    weir.does(&["vif", "set", "a", "groups=none"]);
    let del = ["group", "del", "web", "--if-exists"];
    assert_eq!(weir.does(&del), "web: removed\n");
    assert_eq!(weir.does(&del), "there is no group web: nothing changed\n");
    assert!(unsaved(&weir).is_empty());
}

/// Hooks repeat commands, and so do people who are not sure of the first time.
#[test]
fn each_command_that_is_given_twice_ends_well_and_changes_nothing_more() {
    let weir = Weir::start("", "[vif.a]\nqueues = 2\n");
    let add = ["vif", "add", "web0", "--may-exist", "vlan=7", "isolated=true", "by=libvirt:7"];
    let twice = |args: &[&str]| [weir.does(args), weir.does(args)];
    let [first, second] = twice(&add);
    assert!(first.starts_with("web0: added, socket "), "{first}");
    assert_eq!(second, "web0: is as asked for, nothing changed\n");
    weir.does(&["vif", "set", "web0", "rate=1Gbit"]);
    weir.does(&["filter", "set", "web0", "tx drop tcp dst port 25"]);
    let before = weir.configs();
    weir.does(&add);
    assert_eq!(weir.configs(), before, "settings that are not named stay");
    let [first, second] = twice(&["vif", "add", "web0", "--may-exist", "vlan=9", "by=libvirt:7"]);
    assert_eq!(
        [first.as_str(), &second],
        ["web0: changed: vlan\n", "web0: is as asked for, nothing changed\n"]
    );
    let [first, second] = twice(&["vif", "add", "a", "--may-exist", "queues=2"]);
    assert_eq!(first, second, "an interface of the file is one, too");
    let refused = weir.output(&["vif", "add", "web0", "--may-exist", "by=proxmox:7"]);
    assert!(
        !refused.status.success() && text(&refused).contains("libvirt:7"),
        "{}",
        text(&refused)
    );
    for args in [
        &["vif", "set", "a", "rate=1Gbit"][..],
        &["filter", "set", "a", "tx drop"],
        &["filter", "clear", "a"],
    ] {
        twice(args);
    }
    let shown = weir.does(&["vif", "show", "web0"]);
    let lines: Vec<_> =
        shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for line in ["vlan 9 command", "rate 1Gbit command", "queues 1 default", "by libvirt:7 command"]
    {
        assert!(lines.iter().any(|it| it == line), "{line}: {shown}");
    }
    let a: Value = serde_json::from_str(&weir.does(&["vif", "show", "a", "--json"])).unwrap();
    let queues = a["settings"].as_array().unwrap().iter().find(|it| it["key"] == "queues").unwrap();
    assert_eq!((a["origin"].as_str(), queues["from"].as_str()), (Some("file"), Some("file")));
    let status = weir.does(&["status"]);
    assert!(
        status.contains("interfaces  2 waiting") && status.contains("keeper      there"),
        "{status}"
    );
    assert!(status.contains("vif.a.rate") && status.contains("vif.web0.rate (kept"), "{status}");
    let stats = weir.does(&["stats", "web0"]);
    assert!(stats.contains("web0") && !stats.contains("\na "), "{stats}");
    let missing = weir.output(&["stats", "nobody"]);
    assert!(
        !missing.status.success() && text(&missing).contains("there are: a, web0"),
        "{}",
        text(&missing)
    );
    let [first, second] = twice(&["vif", "del", "web0", "--if-exists"]);
    assert_eq!(first, "web0: removed\n");
    assert_eq!(second, "there is no interface called web0: nothing changed\n");
    assert!(!weir.output(&["vif", "del", "web0"]).status.success());
}

/// `weir save` leaves such an interface alone, and its owner adds it again without the rules.
#[test]
fn rules_of_an_interface_with_an_owner_are_named_at_the_end() {
    let mut weir = Weir::start("", "[vif.a]\n");
    weir.does(&["vif", "add", "web0", "by=libvirt:7", "vlan=7"]);
    assert!(unsaved(&weir).is_empty(), "its owner says all of it");
    weir.does(&["filter", "set", "web0", "tx drop"]);
    weir.does(&["vif", "set", "web0", "rate=1Gbit", "vlan=9"]);
    weir.does(&["vif", "add", "web0", "--may-exist", "vlan=8", "by=libvirt:7"]);
    let all = ["vif.web0.filter (kept by libvirt:7)", "vif.web0.rate (kept by libvirt:7)"];
    for end in [Weir::killed, Weir::upgraded] as [fn(&mut Weir); 2] {
        end(&mut weir);
        assert_eq!(unsaved(&weir), all.map(str::to_owned).into(), "{}", weir.log());
    }
    weir.does(&["save", "--yes"]);
    weir.keeper.kill().unwrap();
    weir.keeper.wait().unwrap();
    eventually("weir knows", || weir.does(&["status"]).contains("does not answer").then_some(()));
    weir.signal(Signal::TERM);
    let log = weir.log();
    let warned = log.lines().find(|line| line.contains("ends with weir")).unwrap_or(&log);
    assert!(all.iter().all(|it| warned.contains(it)), "{log}");
}

/// The other keys of the port follow the file.
#[test]
fn a_setting_holds_against_the_file_until_that_is_reloaded() {
    let mut weir = Weir::start("", "[vif.a]\nqueues = 2\n[vif.b]\n");
    weir.does(&["vif", "set", "a", "rate=10Mbit"]);
    weir.does(&["filter", "set", "b", "tx drop"]);
    write(weir.dir.path(), "", "[vif.a]\nqueues = 4\nrate = \"20Mbit\"\n");
    weir.upgraded();
    let configs = weir.configs();
    assert_eq!(configs.len(), 1, "the file names one");
    assert_eq!(configs["a"]["queues"], 4);
    assert_eq!(configs["a"]["sharing"]["rate"], "10Mbit");
    let difference = weir.does(&["diff"]);
    assert!(difference.contains("10Mbit") && difference.contains("20Mbit"), "{difference}");
    weir.does(&["reload"]);
    weir.killed();
    assert_eq!(weir.configs()["a"]["sharing"]["rate"], "20Mbit");
}

#[test]
fn a_port_whose_settings_can_hold_no_more_stops_an_upgrade_and_is_closed_after_a_kill() {
    let mut weir = Weir::start("schedule = \"drr\"", "[vif.a]\n[vif.b]\n");
    weir.does(&["vif", "set", "a", "weight=3"]);
    weir.does(&["filter", "set", "a", "tx drop tcp dst port 25"]);
    write(weir.dir.path(), "schedule = \"dwcs\"", "[vif.a]\n[vif.b]\n");
    let refused = weir.output(&["upgrade"]);
    assert!(!refused.status.success(), "{}", text(&refused));
    let said: Vec<_> = refused.stderr.split(|byte| byte.is_ascii_whitespace()).collect();
    let words = said.into_iter().filter(|word| !word.is_empty() && *word != "│".as_bytes());
    let said = String::from_utf8(words.collect::<Vec<_>>().join(&b' ')).unwrap();
    assert!(said.contains("what was set of a while weir ran cannot be applied"), "{said}");
    weir.killed();
    let listed = &weir.configs()["a"]["filter"];
    let rules: Vec<_> = listed.as_array().unwrap().iter().map(|it| &it["action"]).collect();
    assert_eq!(rules, ["drop", "drop"], "{}", weir.log());
    assert!(weir.log().contains("passes no frames"), "{}", weir.log());
    // The port stays closed until an administrator decides.
    weir.upgraded();
    assert_eq!(&weir.configs()["a"]["filter"], listed);
    weir.does(&["reload"]);
    assert!(weir.configs()["a"].get("filter").is_none());
}

#[test]
fn a_weir_that_does_not_come_up_forgets_nothing() {
    let mut weir = Weir::start("", "[vif.a]\n");
    weir.does(&["filter", "set", "a", "tx drop tcp dst port 25"]);
    let socket = format!("socket={}", weir.path("late.sock").display());
    weir.does(&["vif", "add", "late", &socket]);
    let before = weir.configs();
    weir.signal(Signal::KILL);
    let taken = std::os::unix::net::UnixListener::bind(weir.path("b.sock")).unwrap();
    write(weir.dir.path(), "", "[vif.a]\n[vif.b]\n");
    let mut next = run(weir.dir.path());
    let ended = eventually("it ends", || next.try_wait().unwrap());
    assert!(!ended.success(), "another program serves the socket");
    drop(taken);
    write(weir.dir.path(), "", "[vif.a]\n");
    assert_eq!(weir.configs_of_the_next(), before, "{}", weir.log());
}

#[test]
fn a_weir_that_is_not_given_the_keeper_of_the_last_one_is_told_who_has_its_sockets() {
    let mut weir = Weir::start("", "[vif.a]\n");
    weir.signal(Signal::KILL);
    let text = fs::read_to_string(weir.path("weir.toml")).unwrap();
    let without = text.lines().filter(|line| !line.starts_with("keeper")).collect::<Vec<_>>();
    fs::write(weir.path("weir.toml"), without.join("\n")).unwrap();
    let mut waiting: Vec<OwnedFd> = Vec::new();
    let address = rustix::net::SocketAddrUnix::new(weir.path("a.sock")).unwrap();
    for _ in 0..2 {
        // The first weir's helper ends a moment after it.
        eventually("who has the socket is told", || {
            fs::write(weir.path("log"), "").unwrap();
            weir.process = run(weir.dir.path());
            let ended = eventually("it ends", || weir.process.try_wait().unwrap());
            let log = weir.log().split_whitespace().collect::<Vec<_>>().join(" ");
            assert_eq!(ended.code(), Some(1), "{log}");
            assert!(log.contains("another program serves"), "{log}");
            log.contains("its keeper holds the socket").then_some(())
        });
        // weir must also start while the queue is full of the attempts of earlier starts.
        waiting.extend(std::iter::from_fn(|| {
            let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
            let socket = socket_with(family, kind, SocketFlags::NONBLOCK, None).unwrap();
            rustix::net::connect(&socket, &address).is_ok().then_some(socket)
        }));
    }
    drop(waiting);
    fs::write(weir.path("weir.toml"), text).unwrap();
    weir.process = run(weir.dir.path());
    weir.serves();
}

/// The next weir starts from this file, with or without a keeper.
#[test]
fn what_is_saved_is_what_runs_and_the_file_keeps_its_comments_and_its_order() {
    for (schedule, extra) in [("drr", &["weight=3"][..]), ("dwcs", &["window=1/4", "period=1ms"])] {
        let ports = "# Tenants\n[vif.b] # the first\n[vif.gone]\n[vif.a]\nqueues = 4 # many\n[vif.c]\n\
                     [group.web]\n[template.t]\n";
        let ports = format!("{ports}socket_user = \"{}\"\n", owner());
        let mut weir = Weir::start(&format!("schedule = \"{schedule}\""), &ports);
        for (name, settings) in SET {
            weir.does(&[&["vif", "set", name], settings].concat());
        }
        weir.does(&[&["vif", "set", "b"], extra].concat());
        weir.does(&["filter", "set", "a", "tx drop tcp dst port 25", "rx accept"]);
        let agent = format!("agent={}", weir.path("agent.sock").display());
        let socket = format!("socket={}", weir.path("other.sock").display());
        let [user, group] = owners();
        let of_late = [&agent[..], &socket, &user, &group];
        weir.does(&[&["vif", "add", "late"], &ADDED[..], &of_late].concat());
        weir.does(&["filter", "set", "late", "tx drop"]);
        weir.does(&["vif", "del", "gone"]);
        let before = weir.configs();
        let refused = weir.output(&["save"]);
        assert!(!refused.status.success() && text(&refused).contains("--yes"), "nobody was asked");
        weir.does(&["save", "--yes"]);
        let saved = fs::read_to_string(weir.path("weir.toml")).unwrap();
        for kept in ["# Tenants\n[vif.b] # the first\n", "\nqueues = 2 # many\n"] {
            assert!(saved.contains(kept), "{kept}: {saved}");
        }
        assert!(saved.find("[vif.b]") < saved.find("[vif.a]"), "{saved}");
        let difference = weir.does(&["diff"]);
        assert!(difference.contains("weir runs as the file says"), "{difference}{saved}");
        // After an orderly end the keeper holds nothing.
        weir.signal(Signal::TERM);
        assert!(!weir.log().contains("unsaved"), "{}", weir.log());
        assert_eq!(weir.configs_of_the_next(), before, "{saved}");
        weir.does(&["filter", "set", "b", "--save", "rx accept"]);
        weir.does(&["filter", "set", "b", "tx drop"]);
        weir.signal(Signal::TERM);
        assert!(weir.log().contains("unsaved=\"vif.b.filter\""), "{}", weir.log());
        // An orderly end opens no port either, as long as the keeper runs.
        let set = weir.configs_of_the_next();
        assert_eq!(set["b"]["filter"][0]["action"], "drop");
    }
}

/// Each command with `--save`, for files of every form that TOML has.
#[test]
fn each_command_saves_into_a_file_of_any_form() {
    let weir = Weir::start("", "[vif.a]\n[vif.b]\n");
    let own = fs::read_to_string(weir.path("weir.toml")).unwrap();
    let (switch, _) = own.split_once("\n\n").unwrap();
    let forms = [
        format!("# Tenants\n{own}"),
        format!("# Tenants\n{own}").replace('\n', "\r\n"),
        format!("# Tenants\nvif = {{ a = {{}}, b = {{ queues = 1 }} }}\n{switch}\n"),
        format!("# Tenants\nvif.a.queues = 1\nvif.b.queues = 1\n{switch}\n"),
        format!("# Tenants\n{switch}\n[vif]\na.queues = 1\nb = {{}}\n"),
    ];
    for form in forms {
        fs::write(weir.path("weir.toml"), &form).unwrap();
        weir.does(&["reload"]);
        let socket = format!("socket={}", weir.path("late.sock").display());
        let commands: [(&[&str], &str); 8] = [
            (&["group", "set", "web", "--save", "--rule", "in tcp 80"], "group.web"),
            (&["group", "del", "web", "--save"], "!web"),
            (&["vif", "set", "a", "--save", "rate=1Gbit", "trunk=[3, 4]"], "1Gbit"),
            (&["vif", "add", "late", "--save", "vlan=7", &socket], "late.sock"),
            (&["filter", "set", "late", "--save", "tx drop ip6"], "ip6"),
            (&["filter", "clear", "late", "--save"], "!ip6"),
            (&["vif", "del", "late", "--save"], "!late"),
            (&["vif", "del", "b", "--save"], "!vif.b"),
        ];
        for (command, says) in commands {
            let said = weir.does(command);
            let saved = fs::read_to_string(weir.path("weir.toml")).unwrap();
            assert!(said.contains("saved: ") && saved.contains("# Tenants"), "{said}{saved}");
            match says.strip_prefix('!') {
                None => assert!(saved.contains(says), "{command:?}: {saved}"),
                Some(gone) => assert!(!saved.contains(gone), "{command:?}: {saved}"),
            }
            let difference = weir.does(&["diff"]);
            assert!(difference.contains("weir runs as the file says"), "{difference}{saved}");
            assert!(unsaved(&weir).is_empty());
        }
    }
}

/// The command has changed the running switch, and reports that it could not write the file.
#[test]
fn a_command_that_cannot_save_says_so_and_the_file_is_as_it_was() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let is_root = rustix::process::geteuid().is_root();
    let switch = if is_root { "group = \"nogroup\"\nadmin = [\"nobody\"]" } else { "" };
    let weir = Weir::start(switch, "[vif.a]\n");
    let own = fs::read_to_string(weir.path("weir.toml")).unwrap();
    // root can write everywhere, so another user asks.
    let mode = fs::Permissions::from_mode(if is_root { 0o755 } else { 0o555 });
    fs::set_permissions(weir.dir.path(), mode).unwrap();
    let commands: [&[&str]; 4] = [
        &["vif", "set", "a", "--save", "rate=1Gbit"],
        &["filter", "set", "a", "--save", "tx drop"],
        &["filter", "clear", "a", "--save"],
        &["vif", "del", "a", "--save"],
    ];
    let after = ["vif.a.rate", "vif.a.filter", "vif.a.rate", "vif.a (removed)"];
    for (args, after) in commands.iter().zip(after) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.env("COLUMNS", "500").arg("--control").arg(weir.path("control.sock")).args(*args);
        if is_root {
            command.uid(65534).gid(65534);
        }
        let output = command.output().unwrap();
        let said = text(&output);
        assert!(!output.status.success() && said.contains("Permission denied"), "{args:?}: {said}");
        assert!(said.contains("weir.toml"), "{said}");
        assert!(unsaved(&weir).contains(after), "{after}: {said}");
        assert_eq!(fs::read_to_string(weir.path("weir.toml")).unwrap(), own);
    }
    fs::set_permissions(weir.dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let names = fs::read_dir(weir.dir.path()).unwrap().map(|it| it.unwrap().file_name());
    assert!(names.into_iter().all(|name| !name.to_string_lossy().ends_with(".new")));
    assert_eq!(unsaved(&weir), ["vif.a (removed)".to_owned()].into());
}

const RECEIVER: Mac = Mac([0x52, 0x54, 0, 0, 0, 1]);
const FILTERED: Mac = Mac([0x52, 0x54, 0, 0, 0, 2]);
const GUARDED: Mac = Mac([0x52, 0x54, 0, 0, 0, 3]);
const LIMITED: Mac = Mac([0x52, 0x54, 0, 0, 0, 4]);
const ISOLATED: Mac = Mac([0x52, 0x54, 0, 0, 0, 5]);
const GROUPED: Mac = Mac([0x52, 0x54, 0, 0, 0, 6]);
/// The packet burst of a guest that may send one packet per second.
const PACKET_BURST: u64 = 5;

/// The frames that the receiver got.
#[derive(Default)]
struct Came {
    /// Frames that every rule accepts.
    allowed: AtomicU64,
    failed_open: AtomicU64,
    /// The last frame that a rule should have dropped.
    wrong: Mutex<Vec<u8>>,
    limited: AtomicU64,
}

impl Came {
    fn receive(&self, pair: &mut QueuePair, stop: &AtomicBool) {
        let mut frame = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            while pair.recv_into(&mut frame).is_some() {
                // A guest that has sent nothing gets frames for stations that are not known yet.
                if frame[..6] == GROUPED.0 {
                    continue;
                }
                let count = match frame[12..14] {
                    [0x88, 0xb5] if frame[6..12] == LIMITED.0 => &self.limited,
                    [0x88, 0xb5] if frame[6..12] == FILTERED.0 => &self.allowed,
                    _ => {
                        self.wrong.lock().unwrap().clone_from(&frame);
                        &self.failed_open
                    }
                };
                count.fetch_add(1, Ordering::Relaxed);
            }
            pair.wait(WaitFor::Receive, Duration::from_millis(2)).unwrap();
        }
    }
}

fn frame(from: Mac, kind: u16) -> Vec<u8> {
    [&RECEIVER.0[..], &from.0, &kind.to_be_bytes(), &[0; 46]].concat()
}

/// An IPv4 packet from an address that is not the guest's.
fn spoofed() -> Vec<u8> {
    let mut packet = [0; 46];
    packet[..20]
        .copy_from_slice(&[0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 99, 10, 0, 0, 1]);
    [&RECEIVER.0[..], &GUARDED.0, &0x0800u16.to_be_bytes(), &packet].concat()
}

/// The first segment of a connection between two guests.
fn syn(from: Mac, to: Mac) -> Vec<u8> {
    let [from_ip, to_ip] = [from, to].map(|mac| [10, 0, 0, mac.0[5]]);
    let mut packet = vec![0x45, 0, 0, 40, 0, 1, 0, 0, 64, 6, 0, 0];
    packet.extend([from_ip, to_ip].concat());
    packet.extend([0x10, 0, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0x20, 0, 0, 0, 0, 0]);
    [&to.0[..], &from.0, &0x0800u16.to_be_bytes(), &packet, &[0; 6]].concat()
}

fn flood(pair: &mut QueuePair, frames: &[Vec<u8>], stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        for frame in frames.iter().cycle().take(32) {
            match pair.send(frame, &Offload::NONE) {
                Ok(()) => {}
                Err(SendError::Full) => {
                    pair.wait(WaitFor::Transmit, Duration::from_millis(2)).unwrap();
                }
                Err(error) => panic!("{error}"),
            }
        }
        pair.flush();
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Floods from guests that are filtered, guarded, limited, isolated and in a group, while `end` ends weir `ends` times.
fn floods(weir: &mut Weir, ends: u64, end: impl Fn(&mut Weir)) {
    let came = Came::default();
    let stop = AtomicBool::new(false);
    let begun = std::time::Instant::now();
    let mut guests = [
        weir.guest("receiver", RECEIVER),
        weir.guest("filtered", FILTERED),
        weir.guest("guarded", GUARDED),
        weir.guest("limited", LIMITED),
        weir.guest("isolated", ISOLATED),
        weir.guest("grouped", GROUPED),
    ];
    let [receiver, filtered, guarded, limited, isolated, grouped] =
        guests.each_mut().map(|(_, pair)| pair);
    std::thread::scope(|scope| {
        let _stops = SetAtEnd(&stop);
        scope.spawn(|| came.receive(receiver, &stop));
        let kinds = [0x88b5, 0x88b6, 0x88b7].map(|kind| frame(FILTERED, kind));
        let kinds = [&kinds[..], &[syn(FILTERED, GROUPED)]].concat();
        // Nothing may leave this guest, and nothing reach it.
        scope.spawn(|| {
            let stopped = || stop.load(Ordering::Relaxed);
            let (kinds, mut got) = ([syn(GROUPED, RECEIVER), frame(GROUPED, 0x88b5)], Vec::new());
            while !stopped() {
                for frame in &kinds {
                    let _ = grouped.send(frame, &Offload::NONE);
                }
                grouped.flush();
                while grouped.recv_into(&mut got).is_some() {
                    came.wrong.lock().unwrap().clone_from(&got);
                    came.failed_open.fetch_add(1, Ordering::Relaxed);
                }
                grouped.wait(WaitFor::Receive, Duration::from_millis(1)).unwrap();
            }
        });
        scope.spawn(|| {
            let kinds = kinds;
            flood(filtered, &kinds, &stop);
        });
        scope.spawn(|| flood(guarded, &[spoofed()], &stop));
        scope.spawn(|| flood(limited, &[frame(LIMITED, 0x88b5)], &stop));
        let to_one = frame(ISOLATED, 0x88b5);
        let to_all = [&[0xff; 6], &to_one[6..]].concat();
        let to_nobody = [&[2, 0, 0, 0, 0, 9], &to_one[6..]].concat();
        let kinds = [to_one, to_all, to_nobody];
        scope.spawn(|| {
            let kinds = kinds;
            flood(isolated, &kinds, &stop);
        });
        let flows = || {
            let before = came.allowed.load(Ordering::Relaxed);
            eventually("frames flow", || {
                (came.allowed.load(Ordering::Relaxed) > before + 100).then_some(())
            });
        };
        flows();
        for _ in 0..ends {
            end(weir);
            flows();
        }
        // The first frames may come before the receiver's rings run.
        eventually("a frame of the limited guest", || {
            (came.limited.load(Ordering::Relaxed) > 0).then_some(())
        });
    });
    let failed_open = came.failed_open.load(Ordering::Relaxed);
    println!("failed_open_frames {failed_open} in {ends} ends of weir");
    assert_eq!(failed_open, 0, "{:02x?}: {}", came.wrong.lock().unwrap(), weir.log());
    // Each weir's bucket starts full.
    let most = (ends + 1) * PACKET_BURST + begun.elapsed().as_secs() + 1;
    let limited = came.limited.load(Ordering::Relaxed);
    assert!((1..=most).contains(&limited), "{limited} of at most {most}");
}

/// Sets the rules that keep frames out, by commands.
fn set_rules(weir: &Weir) {
    weir.does(&["filter", "set", "filtered", "tx drop ether proto 0x88b6"]);
    weir.does(&["filter", "set", "receiver", "rx drop ether proto 0x88b7"]);
    let guarded = ["vif", "set", "guarded", "source_guard=configured", "addresses=10.0.0.5"];
    weir.does(&guarded);
    weir.does(&["vif", "set", "grouped", "groups=mute"]);
    let burst = format!("packet_burst={PACKET_BURST}");
    weir.does(&["vif", "set", "limited", "packets_per_second=1", &burst]);
    for isolated in ["receiver", "isolated"] {
        weir.does(&["vif", "set", isolated, "isolated=true"]);
    }
}

const PORTS: &str = "[group.mute]\ndefault_out = \"deny\"\n\
     [vif.receiver]\n[vif.filtered]\n[vif.guarded]\n[vif.limited]\n[vif.isolated]\n[vif.grouped]\n";

#[test]
fn failed_open_frames_are_none_when_weir_is_killed() {
    let mut weir = Weir::start("", PORTS);
    set_rules(&weir);
    floods(&mut weir, 8, Weir::killed);
}

#[test]
fn failed_open_frames_are_none_in_an_upgrade() {
    let mut weir = Weir::start("", PORTS);
    set_rules(&weir);
    floods(&mut weir, 8, Weir::upgraded);
}

/// The file with which weir was started lets the group's guest send.
#[test]
fn failed_open_frames_are_none_after_a_reload_of_another_file() {
    let deny = "default_out = \"deny\"\n";
    let mut weir = Weir::start("", &PORTS.replace(deny, ""));
    let group = "[group.mute]\n";
    another(&weir, |text| text.replace(group, &format!("{group}{deny}")));
    set_rules(&weir);
    floods(&mut weir, 4, |weir| match weir.later {
        None => weir.upgraded(),
        Some(_) => weir.killed(),
    });
}

/// `weir reload` replaces each run-time rule by the same rule of the file.
#[test]
fn failed_open_frames_are_none_in_a_reload() {
    let mut weir = Weir::start("", PORTS);
    set_rules(&weir);
    weir.does(&["save", "--yes"]);
    let saved = fs::read_to_string(weir.path("weir.toml")).unwrap();
    let other = saved.replace("0x88b6", "0x88b6 or ether proto 0x88b8");
    assert_ne!(other, saved);
    let file = weir.path("weir.toml");
    floods(&mut weir, 8, |weir| {
        let now = fs::read_to_string(&file).unwrap();
        fs::write(&file, if now == saved { &other } else { &saved }).unwrap();
        weir.does(&["reload"]);
    });
}

/// Guests reconnect to each weir, and flood from the first moment.
#[test]
fn failed_open_frames_are_none_after_a_start_with_saved_rules() {
    let mut weir = Weir::start("", PORTS);
    set_rules(&weir);
    weir.does(&["save", "--yes"]);
    for _ in 0..4 {
        weir.signal(Signal::TERM);
        weir.process = run(weir.dir.path());
        floods(&mut weir, 0, |_| {});
    }
}

/// Guests that are kept from the receiver, but for some frames of the first.
const FLOODING: [(&str, Mac); 4] =
    [("filtered", FILTERED), ("guarded", GUARDED), ("isolated", ISOLATED), ("grouped", GROUPED)];

/// Frames that weir has taken from a port, or dropped there.
fn taken(weir: &Weir, port: &str) -> u64 {
    let stats: Value = serde_json::from_str(&weir.does(&["stats", "--json"])).unwrap();
    let ports = stats["ports"].as_array().unwrap();
    let Some(port) = ports.iter().find(|it| it["name"] == port) else { return 0 };
    let drops = port["drops"].as_object().into_iter().flat_map(|drops| drops.values());
    drops.chain([&port["tx"]["frames"]]).filter_map(Value::as_u64).sum()
}

/// Floods from [`FLOODING`] without a pause, while `plug` brings each guest to another interface again and again: its
/// ring is full of frames in the interface's first moment. `plug` has the number of the round, and returns the weir, the
/// name of the interface, and the frames that were dropped there before.
fn plugged_in_again<'a>(
    receivers: &mut [(Vif, QueuePair)],
    guests: Vec<(Vif, QueuePair)>,
    mut plug: impl FnMut(&mut Vif, &str, usize) -> (&'a Weir, String, u64),
) {
    const ROUNDS: usize = 6;
    let (came, stop) = (Came::default(), AtomicBool::new(false));
    let to_all = |from: Mac| [&[0xff; 6], &frame(from, 0x88b5)[6..]].concat();
    let frames = [
        [0x88b5, 0x88b6, 0x88b7].map(|kind| frame(FILTERED, kind)).to_vec(),
        vec![spoofed()],
        vec![frame(ISOLATED, 0x88b5), to_all(ISOLATED)],
        vec![syn(GROUPED, RECEIVER), frame(GROUPED, 0x88b5), to_all(GROUPED)],
    ];
    let (mut vifs, mut pairs): (Vec<_>, Vec<_>) = guests.into_iter().unzip();
    std::thread::scope(|scope| {
        let (_stops, came, stop) = (SetAtEnd(&stop), &came, &stop);
        for (_, pair) in receivers {
            scope.spawn(move || came.receive(pair, stop));
        }
        for (pair, frames) in pairs.iter_mut().zip(&frames) {
            scope.spawn(move || flood(pair, frames, stop));
        }
        for round in 1..=ROUNDS {
            let before = came.allowed.load(Ordering::Relaxed);
            for (vif, (name, _)) in vifs.iter_mut().zip(FLOODING) {
                let (weir, port, before) = plug(vif, name, round);
                eventually("its frames come", || (taken(weir, &port) > before).then_some(()));
            }
            eventually("frames flow", || {
                (came.allowed.load(Ordering::Relaxed) > before + 100).then_some(())
            });
        }
    });
    let failed_open = came.failed_open.load(Ordering::Relaxed);
    println!("failed_open_frames {failed_open} in {ROUNDS} rounds");
    assert_eq!(failed_open, 0, "{:02x?}", came.wrong.lock().unwrap());
}

/// The guests' writes are logged, their rings stop at one host and go on at the other one in the same moment.
#[test]
fn failed_open_frames_are_none_in_a_live_migration() {
    let hosts = [(); 2].map(|()| Weir::start("", PORTS));
    hosts.iter().for_each(set_rules);
    let mut receivers = hosts.each_ref().map(|host| host.guest("receiver", RECEIVER));
    let guests = FLOODING.map(|(name, mac)| hosts[0].guest(name, mac)).into();
    plugged_in_again(&mut receivers, guests, |vif, name, round| {
        let to = &hosts[round % 2];
        let before = taken(to, name);
        vif.log_writes(true).unwrap();
        let socket = to.path(&format!("{name}.sock"));
        eventually("it goes on there", || {
            vif.reconnect(UnixStream::connect(&socket).unwrap()).ok()
        });
        (to, name.into(), before)
    });
}

/// Each monitor's socket is another one, for which weir makes the interface.
#[test]
fn failed_open_frames_are_none_on_a_socket_on_demand() {
    let vms = tempfile::tempdir().unwrap();
    let directory = vms.path();
    let rules = [
        "[[template.filtered.filter]]\ndirection = \"tx\"\nmatch = \"ether proto 0x88b6\"\naction = \"drop\"",
        "source_guard = \"configured\"\naddresses = [\"10.0.0.5\"]",
        "isolated = true",
        "groups = [\"mute\"]",
    ];
    let patterns = FLOODING.iter().zip(rules).map(|((name, _), rules)| {
        format!(
            "[template.{name}]\n{rules}\n\
             [vif-on-demand.\"{name}-*\"]\ndirectory = {directory:?}\ntemplate = \"{name}\"\n"
        )
    });
    let receiver = "[group.mute]\ndefault_out = \"deny\"\n\
                    [vif.receiver]\nisolated = true\n[[vif.receiver.filter]]\ndirection = \"rx\"\n\
                    match = \"ether proto 0x88b7\"\naction = \"drop\"\n";
    let weir = Weir::start("", &(receiver.to_owned() + &patterns.collect::<String>()));
    let meet = |name: &str| {
        let listener = UnixListener::bind(directory.join(format!("{name}.sock"))).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (stream, _) = eventually("weir connects", || listener.accept().ok());
        stream.set_nonblocking(false).unwrap();
        stream
    };
    let guests = FLOODING.map(|(name, mac)| {
        let mut vif = Vif::over(meet(&format!("{name}-0")), &Options::new(mac)).unwrap();
        let pair = vif.queue_pairs().remove(0);
        (vif, pair)
    });
    let mut receivers = [weir.guest("receiver", RECEIVER)];
    plugged_in_again(&mut receivers, guests.into(), |vif, name, round| {
        let name = format!("{name}-{round}");
        vif.reconnect(meet(&name)).unwrap();
        (&weir, name, 0)
    });
}

/// Two guests change places, and a third one comes to a fourth with the rule that mutes it: no state lets a frame pass.
#[test]
fn failed_open_frames_are_none_while_places_and_rules_change_together() {
    let weir = Weir::start(
        "",
        "[group.mute]\ndefault_out = \"deny\"\n[vif.a]\nvlan = 2\n[vif.b]\nvlan = 3\n\
         [vif.c]\nvlan = 4\n[vif.d]\nvlan = 5\n",
    );
    let file = weir.path("weir.toml");
    let one = fs::read_to_string(&file).unwrap();
    let other = one.replace("vlan = 2", "vlan = 0").replace("vlan = 3", "vlan = 2");
    let other = other.replace("vlan = 0", "vlan = 3");
    let (stop, came, sent) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let macs = [RECEIVER, FILTERED, GUARDED, LIMITED];
    let mut guests = ["a", "b", "c", "d"].into_iter().zip(macs).map(|(name, mac)| {
        let frame = [&[0xff; 6], &mac.0[..], &[0x88, 0xb5], &[0; 46]].concat();
        (weir.guest(name, mac), frame)
    });
    let mut guests: [_; 4] = std::array::from_fn(|_| guests.next().unwrap());
    std::thread::scope(|scope| {
        let _stops = SetAtEnd(&stop);
        for ((_, pair), frame) in &mut guests {
            let (stop, came, sent) = (&stop, &came, &sent);
            scope.spawn(move || {
                let mut got = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    for _ in 0..32 {
                        if pair.send(frame, &Offload::NONE).is_ok() {
                            sent.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    pair.flush();
                    while pair.recv_into(&mut got).is_some() {
                        came.fetch_add(1, Ordering::Relaxed);
                    }
                    std::thread::sleep(Duration::from_micros(100));
                }
            });
        }
        for round in 0..40 {
            let before = sent.load(Ordering::Relaxed);
            eventually("frames are sent", || {
                (sent.load(Ordering::Relaxed) > before + 100).then_some(())
            });
            weir.does(&["vif", "set", "c", "vlan=5", "groups=mute"]);
            fs::write(&file, if round % 2 == 0 { &other } else { &one }).unwrap();
            weir.does(&["reload"]);
        }
    });
    let came = came.load(Ordering::Relaxed);
    assert_eq!(came, 0, "of {}: {}", sent.load(Ordering::Relaxed), weir.log());
}
