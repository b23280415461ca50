//! A monitor in a pod, as the guide's page on KubeVirt has it: it listens on a socket in a volume of the pod, and weir
//! connects. The volume appears late, the monitor comes and goes, and the way leads through a link of the operator's.
//! Other monitors have interfaces on demand.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use weir_testing::{eventually, is_root};

use super::{Host, text};

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
        // The first interfaces have made weir take what it keeps for later ones.
        if turn == 0 {
            eventually("the first have gone", || host.vifs().is_empty().then_some(()));
            std::thread::sleep(Duration::from_secs(2));
            before = Some(resources(host.weir.id()));
        }
    }
    let first = took.remove(0);
    took.sort();
    let (median, longest) = (took[TURNS / 2], took[TURNS - 1]);
    println!("ten sockets to ten answers: first {first:?}, median {median:?}, longest {longest:?}");
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
