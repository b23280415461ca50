//! The host's side of a TAP, as in `docs/guide/host-network.md`: systemd-networkd runs in its own
//! namespaces, and netplan and ifupdown say what they would do.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use weir_testing::document::blocks;
use weir_testing::{has, is_root, skipped};

const NETWORKD: &str = "/lib/systemd/systemd-networkd";

/// Blocks of the page in this language, each as a file.
fn files(language: &str) -> Vec<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/host-network.md");
    let page = fs::read_to_string(page).unwrap();
    let blocks = blocks(&page).into_iter().filter(|block| block.language == language);
    blocks.map(|block| block.lines.join("\n") + "\n").collect()
}

/// networkd in a network with a card, where a TAP comes later; shows links and addresses at the end.
fn networkd(dir: &Path) -> Output {
    // With a read-only /sys networkd does not wait for udev.
    let script = "set -e
        mount -t sysfs -o ro sysfs /sys
        mount -t tmpfs tmpfs /run
        mkdir -p /run/systemd/network
        cp \"$0\"/* /run/systemd/network/
        ip link add eth0 type veth peer name far0
        /lib/systemd/systemd-networkd >/run/log 2>&1 & daemon=$!
        # The log of systemd 257 does not tell when it has seen all links.
        until [ -e /run/systemd/netif/state ]; do sleep 0.1; done
        ip tuntap add weir0 mode tap
        for _ in $(seq 100); do
            ip -d link show weir0 | grep -q 'master br0' && break
            ip addr show weir0 | grep -q 192.168.50.1 && break
            sleep 0.1
        done
        ip -o link show; ip -o addr show
        cat /run/log >&2
        kill $daemon";
    let mut command = Command::new("timeout");
    command.args(["60", "unshare", "-n", "-m", "--propagation", "private", "bash", "-c", script]);
    command.arg(dir).output().unwrap()
}

fn line<'o>(shown: &'o str, of: &str) -> &'o str {
    shown.lines().find(|line| line.contains(of)).unwrap_or_else(|| panic!("no {of}: {shown}"))
}

#[test]
fn root_networkd_joins_the_tap_whenever_it_comes_and_gives_it_its_address() {
    if !is_root("namespaces") {
        return;
    }
    if !Path::new(NETWORKD).exists() {
        skipped("systemd-networkd is not installed");
        return;
    }
    let files = files("ini");
    let [bridge, ports, address, alone] = &files[..] else { panic!("{files:?}") };
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("50-br0.netdev"), bridge).unwrap();
    fs::write(dir.path().join("50-br0-ports.network"), ports).unwrap();
    fs::write(dir.path().join("50-br0.network"), address).unwrap();
    let output = networkd(dir.path());
    let (shown, log) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    for port in [" eth0@far0", " weir0"] {
        assert!(line(&shown, port).contains("master br0"), "{shown}\n{log}");
    }
    let understood =
        ["Unknown", "Failed to parse", "Invalid"].iter().all(|word| !log.contains(word));
    assert!(understood, "{log}");

    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("50-weir0.network"), alone).unwrap();
    let shown = String::from_utf8(networkd(dir.path()).stdout).unwrap();
    assert!(shown.contains("inet 192.168.50.1/24"), "{shown}");
}

#[test]
fn netplan_has_networkd_do_the_same() {
    let generate = "/usr/libexec/netplan/generate";
    if !Path::new(generate).exists() {
        skipped("netplan is not installed: apt-get install netplan.io");
        return;
    }
    let files = files("yaml");
    assert_eq!(files.len(), 2);
    for (file, wanted) in files.iter().zip(["Bridge=br0", "Address=192.168.50.1/24"]) {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("etc/netplan")).unwrap();
        fs::write(dir.path().join("etc/netplan/60-weir.yaml"), file).unwrap();
        let output = Command::new(generate).arg("--root-dir").arg(dir.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let made = dir.path().join("run/systemd/network/10-netplan-weir0.network");
        let made = fs::read_to_string(made).unwrap();
        assert!(made.contains(wanted) && made.contains("RequiredForOnline=no"), "{made}");
    }
}

#[test]
fn ifupdown_brings_the_tap_up_as_the_page_says() {
    if !has("ifup", "ifupdown") {
        return;
    }
    let files = files("interfaces");
    assert_eq!(files.len(), 2);
    let wanted = ["ip link set dev weir0 master br0 up", "ip addr add 192.168.50.1/255.255.255.0"];
    for (file, wanted) in files.iter().zip(wanted) {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("interfaces");
        fs::write(&at, file).unwrap();
        let mut command = Command::new("ifup");
        command.args(["--no-act", "--force", "--verbose", "--interfaces"]).arg(&at).arg("weir0");
        let output = command.output().unwrap();
        let said =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains(wanted), "{said}");
    }
}
