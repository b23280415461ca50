//! Programs of others that make interfaces of a running weir: the hook script of Proxmox VE, called as `HOOK VMID
//! PHASE`, in order and out of order, the Python client, and a controller of pods.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rand::{RngExt as _, SeedableRng as _};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde_json::Value;
use tempfile::TempDir;
use weir_testing::{eventually, has, is_root};

/// The script that an administrator installs.
const HOOK: &str = include_str!("../../../../examples/proxmox/hook");

const CONFIG: &str = "[switch]\nworkers = 1\n[vif.file]\n\
                      [template.tenant]\nvlan = 10\nrate = \"1Gbit\"\nsocket_mode = \"0660\"\n";

/// A weir, and a host's settings of machines.
struct Host {
    weir: Child,
    dir: TempDir,
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.weir.kill();
        let _ = self.weir.wait();
    }
}

impl Host {
    fn start() -> Self {
        Self::with(|_| CONFIG.to_owned())
    }

    /// A host with the configuration that `config` makes for this directory, without `control`.
    fn with(config: impl FnOnce(&Path) -> String) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let control = path("control.sock");
        let config =
            config(dir.path()).replace("[switch]", &format!("[switch]\ncontrol = {control:?}"));
        fs::write(path("weir.toml"), config).unwrap();
        fs::create_dir(path("machines")).unwrap();
        let program = format!("{} --control {}", env!("CARGO_BIN_EXE_weir"), control.display());
        let hook = HOOK.replace("/usr/bin/weir", &program);
        let hook =
            hook.replace("/etc/weir/proxmox\n", &format!("{}\n", path("machines").display()));
        assert!(hook.contains(&program) && hook.contains("machines\n"), "{hook}");
        fs::write(path("hook"), hook).unwrap();
        let weir = run(dir.path());
        let host = Self { weir, dir };
        host.serves();
        host
    }

    fn serves(&self) {
        eventually("weir serves", || self.weir(&["vif", "list"]).status.success().then_some(()));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn weir(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.arg("--control").arg(self.path("control.sock")).args(args).output().unwrap()
    }

    /// The exit code of the hook, and all that it says.
    fn hook(&self, vmid: &str, phase: &str) -> (i32, String) {
        let mut command = Command::new("sh");
        let output = command.arg(self.path("hook")).args([vmid, phase]).output().unwrap();
        (output.status.code().unwrap(), text(&output))
    }

    fn does(&self, vmid: &str, phase: &str) {
        let (code, said) = self.hook(vmid, phase);
        assert_eq!(code, 0, "{vmid} {phase}: {said}");
    }

    fn machine(&self, vmid: &str, settings: &str) {
        fs::write(self.path("machines").join(vmid), settings).unwrap();
    }

    /// Each interface with its owner, by name.
    fn vifs(&self) -> Vec<(String, String)> {
        let vifs: Value =
            serde_json::from_slice(&self.weir(&["vif", "list", "--json"]).stdout).unwrap();
        let vifs = vifs.as_array().unwrap().iter().map(|vif| {
            let of = |key: &str| vif["config"][key].as_str().unwrap_or("").to_owned();
            (of("name"), of("by"))
        });
        let mut vifs: Vec<_> = vifs.filter(|(name, _)| name != "file").collect();
        vifs.sort();
        vifs
    }

    fn shown(&self, vif: &str) -> String {
        text(&self.weir(&["vif", "show", vif]))
    }
}

fn run(dir: &Path) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.arg("run").arg(dir.join("weir.toml"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

fn owned(names: &[(&str, &str)]) -> Vec<(String, String)> {
    names.iter().map(|(name, vmid)| ((*name).into(), format!("proxmox:{vmid}"))).collect()
}

#[test]
fn a_machine_has_its_interfaces_from_its_start_to_its_end() {
    let host = Host::start();
    host.machine(
        "100",
        "# the customer's\nvm100-0 template=tenant rate=2Gbit\n\nvm100-1 trunk=[10,20]",
    );
    host.machine("10", "vm10-0\n");
    let both = owned(&[("vm100-0", "100"), ("vm100-1", "100")]);
    for _ in 0..2 {
        for phase in ["pre-start", "post-start", "pre-stop"] {
            host.does("100", phase);
            host.does("100", phase);
            assert_eq!(host.vifs(), both, "{phase}");
        }
        let shown = host.shown("vm100-0");
        let row = |key: &str| {
            let line = shown.lines().find(|line| line.starts_with(key)).unwrap();
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(row("rate"), "rate 2Gbit command");
        assert_eq!(row("vlan"), "vlan 10 template");
        assert_eq!(row("by"), "by proxmox:100 command");
        host.does("10", "pre-start");
        host.does("100", "post-stop");
        host.does("100", "post-stop");
        assert_eq!(host.vifs(), owned(&[("vm10-0", "10")]), "another machine's stays");
        host.does("10", "post-stop");
        assert_eq!(host.vifs(), []);
    }
    // The file of a machine changes, and goes, while it runs.
    host.does("100", "pre-start");
    host.machine("100", "vm100-2 vlan=11\n");
    host.does("100", "pre-start");
    assert_eq!(host.vifs(), owned(&[("vm100-2", "100")]));
    fs::remove_file(host.path("machines/100")).unwrap();
    host.does("100", "pre-start");
    host.does("100", "post-stop");
    assert_eq!(host.vifs(), []);
}

#[test]
fn a_machine_that_cannot_have_its_interfaces_is_told_why() {
    let mut host = Host::start();
    for (settings, says) in [
        ("file\n", "by is none and not proxmox:7"),
        ("vm7-0 vlan=10 speed=1\n", "unknown key `speed`"),
        ("vm7-0 template=nobody\n", "there is no template nobody"),
        ("vm7-0 by=proxmox:8\n", "by"),
        ("vm7-0 ; touch PLACE/pwned $(touch PLACE/pwned)\n", "KEY=VALUE"),
        ("--help vlan=1\n", "cannot be the name"),
    ] {
        host.machine("7", &settings.replace("PLACE", host.dir.path().to_str().unwrap()));
        let (code, said) = host.hook("7", "pre-start");
        assert!(code != 0 && said.contains(says), "{settings}: {code}: {said}");
        assert_eq!(host.vifs(), [], "{settings}");
    }
    assert!(!host.path("pwned").exists());
    for vmid in ["", "7/../8", "-1", "*"] {
        let (code, said) = host.hook(vmid, "pre-start");
        assert!(code == 2 && said.contains("is not the number"), "{vmid}: {said}");
    }
    host.machine("7", "vm7-0\n");
    for phase in ["", "post-restore", "pre-stop"] {
        host.does("7", phase);
        assert_eq!(host.vifs(), [], "{phase}");
    }
    host.weir.kill().unwrap();
    host.weir.wait().unwrap();
    let (code, said) = host.hook("7", "pre-start");
    assert!(code != 0 && said.contains("no weir answers"), "{said}");
    host.does("8", "pre-start");
    // On a busy host weir takes longer to come back.
    let patient = fs::read_to_string(host.path("hook")).unwrap().replace("left=5\n", "left=90\n");
    fs::write(host.path("hook"), patient).unwrap();
    for phase in ["pre-start", "post-start"] {
        let mut hook =
            Command::new("sh").arg(host.path("hook")).args(["7", phase]).spawn().unwrap();
        host.weir = run(host.dir.path());
        assert!(hook.wait().unwrap().success(), "weir is back within the hook's patience");
        assert_eq!(host.vifs(), owned(&[("vm7-0", "7")]), "{phase}: it has ended with weir");
        host.weir.kill().unwrap();
        host.weir.wait().unwrap();
    }
}

#[test]
fn phases_in_any_order_leave_what_the_last_one_says() {
    let host = Host::start();
    let seed = rand::random();
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let machines = ["1", "11", "111"];
    for vmid in machines {
        host.machine(vmid, &format!("vm{vmid}-0 template=tenant\nvm{vmid}-1\n"));
    }
    let mut present = [false; 3];
    for turn in 0..40 {
        let at = random.random_range(0..machines.len());
        let phase = ["pre-start", "post-start", "pre-stop", "post-stop"][random.random_range(0..4)];
        host.does(machines[at], phase);
        present[at] = phase.ends_with("-start") || present[at] && phase != "post-stop";
        let there = machines.iter().zip(present).filter(|(_, is)| *is);
        let mut names: Vec<_> = there
            .flat_map(|(vmid, _)| {
                [0, 1].map(|nr| (format!("vm{vmid}-{nr}"), format!("proxmox:{vmid}")))
            })
            .collect();
        names.sort();
        assert_eq!(host.vifs(), names, "seed {seed}, turn {turn}: {} {phase}", machines[at]);
    }
    machines.iter().for_each(|vmid| host.does(vmid, "post-stop"));
    assert_eq!(host.vifs(), []);
}

/// A program as a user writes it: each assertion ends it with an error.
const PROGRAM: &str = r#"
import sys, threading, weir

api = weir.Weir(sys.argv[1])
assert api.switch()["version"]
assert [it["config"]["name"] for it in api.vifs()] == ["file"]
seen = []
events = api.events()
listens = threading.Thread(target=lambda: seen.append(next(e for e in events if e.get("port") == "event")))
listens.start()

put = lambda **keys: api.put_vif("web0", keys, template="tenant")["outcome"]
assert put(queues=2) == "added"
assert put(queues=2) == "unchanged"
assert put(queues=2, vlan={"access": 7}, sharing={"weight": 3}) == "changed"
[_, vif] = api.vifs()
config = vif["config"]
assert config["template"] == "tenant" and config["queues"] == 2 and config["vlan"] == {"access": 7}, config
assert config["sharing"]["rate"] == "1Gbit" and config["sharing"]["weight"] == 3, config
assert config["socket"].endswith("/web0.sock"), config
assert {it["key"]: it["from"] for it in api.vif("web0")["settings"]}["rate"] == "template"
assert api.vif_of_template("tenant", "x")["name"] == "x"

assert api.add_vif({"name": "db0"}, template="tenant") == {"note": None}
api.change_vif("db0", {"latency_budget": {"set": "1ms"}})
api.set_filter("db0", [{"direction": "tx", "match": "port 25", "action": "drop"}])
web = {"name": "web", "rules": ["in tcp 80,443 from any"]}
assert [api.put_group("web", web)["note"] for _ in range(2)] == [None, "nothing changed"]
assert [it["rules"] for it in api.switch()["groups"]] == [web["rules"]]
[rule] = api.filter("db0")
assert rule["packets"] == 0, rule
assert "weir_" in api.metrics()
assert api.trace("db0", bytes(60))["steps"]
while listens.is_alive():
    api.add_vif({"name": "event"}, template="tenant")
    api.remove_vif("event")
assert seen[0]["event"].startswith("port_"), seen

def refused(call, status, says):
    try:
        call()
    except weir.Refused as refusal:
        assert refusal.status == status and says in str(refusal), refusal
        return
    raise AssertionError(says)

refused(lambda: api.add_vif({"name": "db0"}, template="tenant"), 409, "exists already")
refused(lambda: api.add_vif({"name": "db1"}, template="nobody"), 404, "there is no template nobody")
refused(lambda: api.add_vif({"name": "db1", "speed": 1}, template="tenant"), 409, "speed")
refused(lambda: api.add_vif({}, template="tenant"), 400, "no `name`")
refused(lambda: api.remove_vif("../switch"), 400, "cannot be the name")
assert "nothing" not in str(api.remove_vif("web0"))
assert api.remove_vif("web0", if_exists=True)["note"]
refused(lambda: api.put_group("db", web), 400, "the path names db")
assert api.remove_group("web") == {"note": None}
refused(lambda: api.remove_group("web"), 404, "there is no group web")
api.remove_vif("db0")
assert len(api.vifs()) == 1
text = "[template.tenant]\nrate = \"2Gbit\"\n[vif.file]\ntemplate = \"tenant\"\n"
assert api.difference(text)["tables"]
assert "applied" in api.reload(text, partly=True)["outcome"]
assert api.vifs()[0]["config"]["sharing"]["rate"] == "2Gbit"
"#;

#[test]
fn the_python_client_is_that_of_the_description_and_works() {
    if !has("python3", "python3") {
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let client = root.join("examples/python");
    let description = fs::File::open(root.join("docs/openapi.json")).unwrap();
    let mut generate = Command::new("python3");
    let output = generate.arg(client.join("generate.py")).stdin(description).output().unwrap();
    let written = fs::read(client.join("weir.py")).unwrap();
    assert!(output.status.success() && output.stdout == written, "{}", text(&output));
    let page = include_str!("../../../../docs/guide/clients.md");
    let shown = weir_testing::document::blocks(page);
    let shown = shown.iter().find(|block| block.language == "python").unwrap().lines.join("\n");
    let host = Host::start();
    let control = host.path("control.sock").display().to_string();
    let mut program = Command::new("python3");
    program.args(["-B", "-c", &shown.replace("/run/weir/control.sock", &control)]);
    let output = program.env("PYTHONPATH", &client).output().unwrap();
    assert!(output.status.success() && text(&output).contains("added"), "{}", text(&output));
    drop(host);
    let host = Host::start();
    let mut program = Command::new("python3");
    program.args(["-B", "-c", PROGRAM]).arg(host.path("control.sock")).env("PYTHONPATH", &client);
    let output = program.output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
}

/// The path of a volume below the kubelet's directory.
const VOLUME: &str =
    "pods/45483214-7a48-4ccd-984e-90eeeb27086e/volumes/kubernetes.io~empty-dir/shared-dir";

fn start() -> Host {
    Host::with(|dir| {
        let client_dir = dir.join("node");
        format!("[switch]\nworkers = 1\nallow_symlinks = true\nclient_dir = {client_dir:?}\n")
    })
}

impl Host {
    /// True if `weir` succeeded, and its output.
    fn tells(&self, arguments: &[&str]) -> (bool, String) {
        let output = self.weir(arguments);
        (output.status.success(), text(&output))
    }

    fn add(&self, socket: &Path) -> (bool, String) {
        let socket = format!("socket={}", socket.display());
        self.tells(&["vif", "add", "pod", "mode=client", &socket, "by=pod", "--may-exist"])
    }
}

/// Listens as a monitor in the pod does. There the path is short.
fn listen(volume: &Path) -> UnixListener {
    let dir = fs::File::open(volume).unwrap();
    UnixListener::bind(format!("/proc/self/fd/{}/pod.sock", dir.as_raw_fd())).unwrap()
}

/// Waits for weir to connect, and asks for its features (vhost-user's `GET_FEATURES`).
fn served(monitor: &UnixListener) -> UnixStream {
    monitor.set_nonblocking(true).unwrap();
    let mut session = eventually("weir connects", || monitor.accept().ok()).0;
    session.set_nonblocking(false).unwrap();
    let request = [1_u32, 1, 0].map(u32::to_ne_bytes).concat();
    session.write_all(&request).unwrap();
    let mut answer = [0; 20];
    session.read_exact(&mut answer).unwrap();
    assert_eq!(answer[..4], 1_u32.to_ne_bytes());
    assert_ne!(answer[12..], [0; 8], "weir offers features");
    session
}

#[test]
fn a_monitor_in_a_pod_comes_late_goes_and_comes_again() {
    let host = start();
    let (kubelet, shown) = (host.path("node/kubelet"), host.path("node/sockets"));
    fs::create_dir_all(&kubelet).unwrap();
    symlink(kubelet.join(VOLUME), &shown).unwrap();

    let socket = kubelet.join(VOLUME).join("pod.sock");
    assert!(socket.as_os_str().len() > 107, "a listener's path could not be so long");
    // The request comes twice, as from a controller that has restarted.
    for _ in 0..2 {
        let (good, said) = host.add(&socket);
        assert!(good, "{said}");
    }
    fs::create_dir_all(kubelet.join(VOLUME)).unwrap();
    for _ in 0..3 {
        let monitor = listen(&kubelet.join(VOLUME));
        let session = served(&monitor);
        drop((session, monitor));
        fs::remove_file(&socket).unwrap();
    }

    // The pod has gone, and another comes: its controller names a path through the operator's link.
    assert!(host.tells(&["vif", "del", "pod", "--if-exists"]).0);
    let (good, said) = host.add(&shown.join("pod.sock"));
    assert!(good, "{said}");
    let monitor = listen(&kubelet.join(VOLUME));
    served(&monitor);
    assert!(host.tells(&["vif", "del", "pod"]).0);
    assert!(host.tells(&["vif", "del", "pod", "--if-exists"]).0);
    assert!(!host.tells(&["vif", "list"]).1.contains("pod"));
}

#[test]
fn the_lines_of_the_page_are_for_such_a_node() {
    let host = start();
    let page = include_str!("../../../../docs/guide/kubevirt.md");
    let blocks = weir_testing::document::blocks(page);
    let lines = &blocks.iter().find(|block| block.run_by.is_some()).unwrap().lines;
    // Each line runs twice, and the second run changes nothing.
    let script = lines.iter().flat_map(|line| [*line, line]).collect::<Vec<_>>().join("\n");
    let weir =
        format!("{} --control {}", env!("CARGO_BIN_EXE_weir"), host.path("control.sock").display());
    let pods = host.path("node/pods").display().to_string();
    let script =
        script.replace("\nweir ", &format!("\n{weir} ")).replace("/var/lib/kubelet/pods", &pods);
    let output = Command::new("bash").args(["-euxc", &script]).output().unwrap();
    let said = text(&output);
    assert!(output.status.success() && said.contains("web0: added"), "{said}");
    assert_eq!(said.matches("added").count(), 1, "{said}");
    assert!(!host.tells(&["vif", "list"]).1.contains("web0"));
}

#[test]
fn a_confined_weir_says_at_once_that_it_may_not_connect() {
    if !is_root("only a weir with privileges gives them up") {
        return;
    }
    let host = start();
    for elsewhere in ["elsewhere/pod.sock", "node/../elsewhere/pod.sock", "nodes/pod.sock"] {
        let (good, said) = host.add(&host.path(elsewhere));
        assert!(!good && said.contains("may not connect") && said.contains("client_dir"), "{said}");
    }
    assert!(!host.tells(&["vif", "list"]).1.contains("pod"));
}

/// A host whose monitors listen in a directory of weir's, and the pattern's table.
fn on_demand(keys: &str) -> Host {
    Host::with(|dir| {
        let vms = dir.join("vms");
        fs::create_dir(&vms).unwrap();
        format!(
            "[switch]\nworkers = 1\n[template.tenant]\nvlan = 7\n\
             [vif-on-demand.\"vm-*\"]\ndirectory = {vms:?}\ntemplate = \"tenant\"\n{keys}"
        )
    })
}

/// Descriptors and threads of a weir and of its helper.
fn resources(process: u32) -> (usize, usize) {
    let of = |process: u32, what: &str| {
        fs::read_dir(format!("/proc/{process}/{what}")).map_or(0, |all| all.count())
    };
    let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap();
    let children = children.split_whitespace().map(|it| it.parse().unwrap());
    let all: Vec<u32> = children.chain([process]).collect();
    let sum = |what| all.iter().map(|it| of(*it, what)).sum();
    (sum("fd"), sum("task"))
}

#[test]
fn a_thousand_monitors_in_turn_have_an_interface_each_and_leave_nothing() {
    const TURNS: usize = 100;
    const AT_ONCE: usize = 10;
    /// Turns. Each one waits until the monitors of the turn before have gone.
    const CALM: usize = 10;
    let host = on_demand("");
    let vms = host.path("vms");
    let (mut before, mut took) = (None, Vec::new());
    for turn in 0..=TURNS {
        let begun = Instant::now();
        let names: Vec<_> = (0..AT_ONCE).map(|n| format!("vm-{}", turn * AT_ONCE + n)).collect();
        let socket = |name: &String| vms.join(format!("{name}.sock"));
        let monitors: Vec<_> =
            names.iter().map(|it| UnixListener::bind(socket(it)).unwrap()).collect();
        let sessions: Vec<_> = monitors.iter().map(served).collect();
        took.push(begun.elapsed());
        if turn == 0 {
            let vifs = host.vifs();
            assert_eq!((vifs.len(), vifs[0].1.as_str()), (AT_ONCE, "on-demand:vm-*"));
        }
        names.iter().for_each(|it| fs::remove_file(socket(it)).unwrap());
        drop((monitors, sessions));
        if turn <= CALM {
            eventually("they have gone", || host.vifs().is_empty().then_some(()));
        }
        // weir has allocated memory for the first interfaces that it keeps for later ones.
        if turn == 0 {
            std::thread::sleep(Duration::from_secs(2));
            before = Some(resources(host.weir.id()));
        }
    }
    let (calm, busy) = took[1..].split_at_mut(CALM);
    for (when, took) in [("alone", calm), ("while ten others go", busy)] {
        took.sort();
        let (median, longest) = (took[took.len() / 2], took[took.len() - 1]);
        println!("ten sockets to ten answers, {when}: median {median:?}, longest {longest:?}");
    }
    eventually("all have gone", || host.vifs().is_empty().then_some(()));
    let left: Vec<_> = fs::read_dir(&vms).unwrap().flatten().map(|it| it.file_name()).collect();
    assert!(left.is_empty(), "{left:?}");
    let before = before.unwrap();
    eventually(&format!("no more than {before:?}"), || {
        let now = resources(host.weir.id());
        (now.0 <= before.0 && now.1 <= before.1).then_some(())
    });
    let stats: serde_json::Value =
        serde_json::from_slice(&host.weir(&["stats", "--json"]).stdout).unwrap();
    let of = |limit: &str| stats["limits"][limit]["used"].as_u64().unwrap();
    assert_eq!((of("ports"), of("memory_regions")), (0, 0), "{}", stats["limits"]);
    assert!(host.tells(&["diff", host.path("weir.toml").to_str().unwrap()]).0);
}
