//! The host's side of a TAP: its bridge, its addresses, and its MAC address, with a real kernel in namespaces.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use weir_testing::{has, is_root};

/// The beginning of each script: weir is run, and ended in order.
const FUNCTIONS: &str = r#"
set -e
starts() {
    $WEIR run "$1.toml" 2>>"$1.log" &
    weir=$!
    for i in $(seq 300); do
        $WEIR --control "$PWD/control.sock" status >/dev/null 2>&1 && return
        kill -0 $weir 2>/dev/null || { cat "$1.log" >&2; return 1; }
        sleep 0.05
    done
    cat "$1.log" >&2
    return 1
}
ends() { kill $weir; wait $weir || true; }
mac() { cat /sys/class/net/$1/address; }
gone() {
    for i in $(seq 200); do [ -e /sys/class/net/$1 ] || return 0; sleep 0.05; done
    return 1
}
"#;

/// Runs a script in a network of its own.
fn run(dir: &Path, script: &str) -> Output {
    let mut command = Command::new("unshare");
    // The script sees the network's own /sys.
    let script = format!("mount -t sysfs sysfs /sys\n{FUNCTIONS}{script}");
    command.args(["--net", "--mount", "timeout", "120", "sh", "-c", &script]).current_dir(dir);
    command.env("WEIR", env!("CARGO_BIN_EXE_weir")).stdin(Stdio::null()).output().unwrap()
}

fn does(dir: &Path, script: &str) -> String {
    let output = run(dir, script);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {said}{error}");
    said
}

/// A directory with a configuration for each name.
fn with(configs: &[(&str, &str)]) -> Option<tempfile::TempDir> {
    if !(is_root("TAPs and bridges in a network namespace") && has("ip", "iproute2")) {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    for (name, uplinks) in configs {
        let control = dir.path().join("control.sock");
        let text = format!("[switch]\ncontrol = {control:?}\nworkers = 1\n{uplinks}");
        fs::write(dir.path().join(format!("{name}.toml")), text).unwrap();
    }
    Some(dir)
}

#[test]
fn root_a_tap_is_in_its_bridge_and_the_host_has_its_addresses_until_weir_ends() {
    let configs = "[uplink.lan]\nkind = \"tap\"\nname = \"weir0\"\nbridge = \"br0\"\n\
                   [uplink.own]\nkind = \"tap\"\nname = \"weir1\"\nvlan = 2\n\
                   address = [\"10.9.0.1/24\", \"fd00:9::1/64\"]\n";
    let Some(dir) = with(&[("weir", configs)]) else { return };
    let said = does(
        dir.path(),
        r#"
ip link add br0 type bridge
ip link set br0 up
$WEIR check --host weir.toml
starts weir
readlink /sys/class/net/weir0/master
ip -o addr show dev weir1
first=$(mac weir0)
echo "found: $($WEIR --control "$PWD/control.sock" doctor | grep -c way-out)"
doctor() { $WEIR --control "$PWD/control.sock" doctor | grep way-out -B3 | tr '\n' ' '; }
ip link set weir0 nomaster
ip addr del 10.9.0.1/24 dev weir1
doctor
ip link set weir0 master br0
ip addr add 10.9.0.1/24 dev weir1
ip link set br0 down
doctor
ip link set br0 up
ip addr add 10.8.0.1/24 dev weir0
doctor
ip addr del 10.8.0.1/24 dev weir0
ip link set weir1 down
ip link set weir1 name other0
ip link set other0 up
$WEIR --control "$PWD/control.sock" doctor | grep -A1 'another name now'
ip link set other0 down
ip link set other0 name weir1
ends
gone weir0
gone weir1
echo "left: $(ip -o addr show | grep -c 10.9.0.1)"
starts weir
[ "$(mac weir0)" = "$first" ] && echo the same MAC
# Nothing of it depends on an end in order.
kill -KILL $weir; wait $weir || true
gone weir1
[ -e /sys/class/net/br0 ]
echo the bridge stays
"#,
    );
    for expected in [
        "br0\n",
        "10.9.0.1/24",
        "fd00:9::1/64",
        "the same MAC",
        "found: 0",
        "left: 0",
        "`weir0` is not a port of `br0`",
        "mend: `ip link set weir0 master br0`",
        "`weir1` does not have 10.9.0.1/24",
        "`br0`, the bridge of `weir0`, is down",
        "10.8.0.1/24 is on `weir0`, which is a port of `br0`",
        "/sys/class/net/weir1 is not there",
        "the bridge stays",
    ] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
}

#[test]
fn root_what_does_not_fit_the_host_is_said_before_and_at_the_start() {
    let tap = "[uplink.lan]\nkind = \"tap\"\nname = \"weir0\"\n";
    let bridged = format!("{tap}bridge = \"br0\"\n");
    let addressed = format!("{tap}address = \"10.9.0.1/24\"\n");
    let Some(dir) = with(&[("bridged", &bridged), ("addressed", &addressed)]) else { return };
    let refuses = |script: &str, says: &str| {
        let output = run(dir.path(), script);
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        let words: Vec<_> = said.split_whitespace().collect();
        assert!(!output.status.success() && words.join(" ").contains(says), "{script}: {said}");
    };
    // The same words by the check and by the start; a veth is no bridge.
    for command in ["$WEIR check --host", "$WEIR run"] {
        let missing = "the host has no bridge `br0`";
        refuses(&format!("{command} bridged.toml"), missing);
        refuses(
            &format!("ip link add br0 type veth peer name x0; {command} bridged.toml"),
            missing,
        );
        let elsewhere = "10.9.0.0/24 is what the host reaches by `d0`";
        let other = "ip link add d0 type veth peer name d1; ip addr add 10.9.0.7/24 dev d0; ip link set d0 up;";
        refuses(&format!("{other} {command} addressed.toml"), elsewhere);
    }
    // A user who may not make the TAP is told before the start, too.
    let user = "setpriv --bounding-set=-net_admin $WEIR check --host bridged.toml";
    refuses(
        &format!("ip link add br0 type bridge; {user}"),
        "this user may not make the TAP `weir0`",
    );
    // What would stay is not touched.
    let stays = "ip tuntap add weir0 mode tap vnet_hdr; $WEIR run addressed.toml";
    refuses(stays, "the TAP stays when weir ends");
    let script = "ip tuntap add weir0 mode tap vnet_hdr; $WEIR run addressed.toml || ip -o addr show dev weir0";
    assert!(!does(dir.path(), script).contains("10.9.0.1"));
}
