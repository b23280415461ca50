//! The host's side of a TAP: its bridge, its addresses, and its MAC address, and the bridge of the host's card, with a
//! real kernel in namespaces.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use weir_testing::{SetAtEnd, eventually, has, is_root};

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

/// Runs a script in its own network.
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
    // The check and the start report the fault in the same words. A veth is no bridge.
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
    // A user who may not make the TAP gets the error before the start, too.
    let user = "setpriv --bounding-set=-net_admin $WEIR check --host bridged.toml";
    refuses(
        &format!("ip link add br0 type bridge; {user}"),
        "this user may not make the TAP `weir0`",
    );
    // weir does not change a TAP that would outlive it.
    let stays = "ip tuntap add weir0 mode tap vnet_hdr; $WEIR run addressed.toml";
    refuses(stays, "the TAP stays when weir ends");
    let script = "ip tuntap add weir0 mode tap vnet_hdr; $WEIR run addressed.toml || ip -o addr show dev weir0";
    assert!(!does(dir.path(), script).contains("10.9.0.1"));
}

/// A network with its own `/sys` and `/run`, as long as the value exists.
struct Net(Child);

impl Drop for Net {
    fn drop(&mut self) {
        // A process that waits to take a bridge back ends when nothing waits any more.
        let _ = self.command("rm -f /run/weir-bridge.*").status();
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Net {
    fn new() -> Self {
        const SETUP: &str = "mount -t sysfs sysfs /sys && mount -t tmpfs tmpfs /run && ip link set lo up \
                             && echo ready && exec sleep 600";
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount", "sh", "-c", SETUP]).stdin(Stdio::null());
        let mut holder = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self(holder)
    }

    fn command(&self, script: &str) -> Command {
        let mut command = Command::new("nsenter");
        let holder = self.0.id().to_string();
        command.args(["-t", &holder, "--net", "--mount", "sh", "-e", "-c", script]);
        command.env("WEIR", env!("CARGO_BIN_EXE_weir")).stdin(Stdio::null());
        command
    }

    /// Runs a script; returns what it has said, and whether all went well.
    fn says(&self, script: &str) -> (bool, String) {
        let output = self.command(script).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(said).unwrap())
    }

    fn does(&self, script: &str) -> String {
        let (well, said) = self.says(script);
        assert!(well, "{script}: {said}");
        said
    }

    /// Calls `of` in a thread that is in this network.
    fn within<T: Send>(&self, of: impl FnOnce() -> T + Send) -> T {
        let file = fs::File::open(format!("/proc/{}/ns/net", self.0.id())).unwrap();
        let enter = || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            of()
        };
        std::thread::scope(|scope| scope.spawn(enter).join().unwrap())
    }

    /// Addresses and routes of the host, without values that count down.
    fn state(&self) -> String {
        let shown = self.does(
            "ip -o addr show; ip route show table all; ip -6 route show table all; cat /sys/class/net/eth0/address",
        );
        let mut lines: Vec<_> = shown
            .lines()
            // The kernel adds the route to a link-local address a second later, when it has found
            // no second owner.
            .filter(|line| !line.contains("multicast") && !line.starts_with("local fe80"))
            .map(|line| {
                let counts =
                    |word: &str| word.ends_with("sec") || word == "\\" || word == "expires";
                // Nobody looks for a second owner of an address that was the host's all along.
                let of_search = |word: &str| ["nodad", "tentative"].contains(&word);
                // ip(8) of Debian 13 says that the kernel made an address, and who sets it again is not the kernel.
                let line = line.replace(" proto kernel_ll", "");
                let words = line.split(" valid_lft ").next().unwrap().split_whitespace();
                let words = words.filter(|word| !counts(word) && !of_search(word));
                words.collect::<Vec<_>>().join(" ")
            })
            .collect();
        lines.sort();
        lines.join("\n")
    }
}

/// A host with a card, and a router behind the card by which it reaches 10.99.0.1 and fd00:99::1.
fn host_with_a_router() -> (Net, Net) {
    let (host, router) = (Net::new(), Net::new());
    host.does(&format!(
        "ip link add eth0 type veth peer name far0 netns {}; ip link set eth0 mtu 1400 up",
        router.0.id()
    ));
    router.does(
        "ip link set far0 mtu 1400 up; ip addr add 10.7.0.1/24 dev far0; ip addr add fd00:7::1/64 dev far0 nodad
         ip addr add 10.99.0.1/32 dev lo; ip addr add fd00:99::1/128 dev lo",
    );
    host.does(
        "ip addr add 10.7.0.2/24 broadcast + dev eth0; ip addr add 10.7.0.3/24 dev eth0
         ip addr add fd00:7::2/64 dev eth0 nodad valid_lft 86400 preferred_lft 80000
         ip addr add 10.8.0.2/24 dev eth0 noprefixroute
         ip route add 10.8.0.0/24 dev eth0 proto kernel scope link src 10.8.0.2 metric 50
         ip route add default via 10.7.0.1 proto static metric 100
         ip route add 10.98.0.0/16 via 10.7.0.1 table 7
         ip -6 route add default via fd00:7::1",
    );
    // The kernel's own address has to be there before it can be compared.
    eventually("the link is up", || {
        let shown = host.does("ip -6 addr show dev eth0 scope link");
        (shown.contains("fe80") && !shown.contains("tentative")).then_some(())
    });
    (host, router)
}

/// Keeps connections to the router open while `body` runs. `body` gets a function that waits until
/// each connection has made progress.
fn with_connections(host: &Net, router: &Net, body: impl FnOnce(&dyn Fn(&str))) {
    let stop = AtomicBool::new(false);
    let counts = [AtomicU64::new(0), AtomicU64::new(0)];
    std::thread::scope(|scope| {
        let _stops = SetAtEnd(&stop);
        for (count, address) in counts.iter().zip(["10.99.0.1:7", "[fd00:99::1]:7"]) {
            let address: SocketAddr = address.parse().unwrap();
            let listener = router.within(|| TcpListener::bind(address).unwrap());
            let mut client = host.within(|| TcpStream::connect(address).unwrap());
            let (mut server, _) = listener.accept().unwrap();
            let stop = &stop;
            scope.spawn(move || {
                let mut byte = [0];
                while server.read(&mut byte).is_ok_and(|read| read > 0) {
                    server.write_all(&byte).unwrap();
                }
            });
            scope.spawn(move || {
                client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    let mut byte = [7];
                    let answered =
                        client.write_all(&byte).and_then(|()| client.read_exact(&mut byte));
                    match answered {
                        Ok(()) => count.fetch_add(1, Ordering::Relaxed),
                        Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                        Err(error) => panic!("the connection to {address} is gone: {error}"),
                    };
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
        }
        body(&|when| {
            let before = counts.each_ref().map(|count| count.load(Ordering::Relaxed));
            eventually(&format!("connections go on {when}"), || {
                let now = counts.each_ref().map(|count| count.load(Ordering::Relaxed));
                now.iter().zip(&before).all(|(now, before)| *now > before + 20).then_some(())
            });
        });
    });
}

#[test]
fn root_connections_outlive_the_move_to_a_bridge_and_the_way_back() {
    if !(is_root("a network namespace") && has("ip", "iproute2")) {
        return;
    }
    let (host, router) = host_with_a_router();
    let before = host.state();
    with_connections(&host, &router, |go_on| {
        go_on("before");
        let said = host.does(
            "ip tuntap add weir0 mode tap; $WEIR uplink bridge eth0 --with weir0 --within 600",
        );
        assert!(said.contains("weir uplink bridge eth0 --confirm"), "{said}");
        go_on("behind the bridge");
        let moved = host.state();
        // All that the card had is the bridge's, and the card has nothing.
        let (card, bridge): (Vec<_>, Vec<_>) =
            (moved.lines().filter(|it| it.contains(" eth0")).collect(), moved.lines().collect());
        assert!(card.is_empty(), "{moved}");
        let renamed = |text: &str| {
            let numbered = text.split_once(": ").map_or(text, |(_, rest)| rest);
            numbered.replace("eth0", "br0")
        };
        for line in before.lines().filter(|line| line.contains("eth0")) {
            let wanted = renamed(line);
            let words = |text: &str| {
                text.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ")
            };
            let wanted = words(&wanted);
            assert!(bridge.iter().any(|it| words(&renamed(it)) == wanted), "{wanted}: {moved}");
        }
        let macs = host.does("cat /sys/class/net/eth0/address /sys/class/net/br0/address");
        let macs: Vec<_> = macs.lines().collect();
        assert_eq!(macs[0], macs[1]);
        assert!(host.does("ip link show master br0").contains("weir0"));
        // The command is given again, first as things are, then with weir0 out of the bridge.
        let again = host.does("$WEIR uplink bridge eth0 --with weir0");
        assert_eq!(again, "eth0 is a port of br0 already: --confirm has it stay\n");
        assert_eq!(host.state(), moved);
        let (well, said) =
            host.says("ip link set weir0 nomaster; $WEIR uplink bridge eth0 --with weir0");
        let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(!well && words.contains("ip link set weir0 master br0"), "{said}");
        // One change of a card at a time.
        let (well, said) = host.says("$WEIR uplink bridge eth0 --name br1");
        assert!(!well && said.contains("belongs to br0 already"), "{said}");
        host.does("$WEIR uplink bridge eth0 --undo; ip link del weir0");
        go_on("after it was taken back");
        assert_eq!(host.state(), before);
        host.does("$WEIR uplink bridge eth0 --undo");
        assert_eq!(host.state(), before);

        // Nobody confirms.
        host.does("$WEIR uplink bridge eth0 --within 5");
        go_on("behind it again");
        eventually("it is taken back", || (host.state() == before).then_some(()));
        go_on("after nobody has confirmed");
        let said = eventually("it says so", || {
            let (well, said) = host.says("$WEIR uplink bridge eth0 --confirm");
            assert!(!well, "{said}");
            said.contains("nobody had confirmed it within 5 s").then_some(said)
        });
        assert!(said.contains("was taken back"), "{said}");

        // Somebody confirms the change, and it stays after its time is over.
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/host-network.md");
        let page = fs::read_to_string(page).unwrap();
        let (first, second) = page
            .split_once("```sh\n")
            .and_then(|(_, lines)| lines.split_once("\n```")?.0.split_once('\n'))
            .unwrap();
        host.does("ip tuntap add weir0 mode tap");
        let script =
            format!("{first} --within 5\n{second}\nsleep 7").replace("weir uplink", "$WEIR uplink");
        let said = host.does(&script);
        assert!(said.contains("stays"), "{said}");
        // Each line a second time: the same state, and exit 0.
        let once = host.state();
        let twice = host.does(script.trim_end_matches("sleep 7"));
        assert!(
            twice.contains("eth0 is a port of br0 already\n") && twice.contains("stays"),
            "{twice}"
        );
        assert_eq!(host.state(), once);
        assert_eq!(host.does("readlink /sys/class/net/eth0/master | sed 's=.*/=='"), "br0\n");
        go_on("at the end");
        let (well, said) = host.says("$WEIR uplink bridge eth0 --undo");
        assert!(!well && said.contains("no change of eth0 waits"), "{said}");
    });
}

#[test]
fn root_a_step_that_fails_and_a_command_that_is_killed_leave_the_card_as_it_was() {
    if !(is_root("a network namespace") && has("ip", "iproute2")) {
        return;
    }
    // The command is killed at another moment each time. Only the process that was started for it
    // takes the change back.
    std::thread::scope(|scope| {
        for delay_ms in [5, 15, 25, 40, 60, 80, 110, 150] {
            scope.spawn(move || {
                let (host, _router) = host_with_a_router();
                let before = host.state();
                let mut command = host.command("exec $WEIR uplink bridge eth0 --within 5");
                let mut command =
                    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
                std::thread::sleep(Duration::from_millis(delay_ms));
                command.kill().unwrap();
                command.wait().unwrap();
                eventually("nothing waits any more", || {
                    let left = host.does("ls /run");
                    (left.is_empty() || left.contains(".over")).then_some(())
                });
                eventually(&format!("all is as it was, after {delay_ms} ms"), || {
                    (host.state() == before).then_some(())
                });
            });
        }
    });
    // A card whose routes cannot be moved is not touched; neither is one that a bridge cannot have.
    let (host, _router) = host_with_a_router();
    host.does(
        "ip route add 10.97.0.0/16 nexthop via 10.7.0.1 dev eth0 nexthop via 10.7.0.9 dev eth0",
    );
    let before = host.state();
    for (script, says) in [
        ("$WEIR uplink bridge eth0", "goes by eth0"),
        ("$WEIR uplink bridge none0", "there is no interface none0"),
        ("$WEIR uplink bridge eth0 --with weir9", "there is no interface weir9"),
        ("$WEIR uplink bridge lo", "no Ethernet interface that is up"),
        ("setpriv --bounding-set=-net_admin $WEIR uplink bridge eth0", "may not change"),
        ("$WEIR uplink bridge eth0 --confirm", "no change of eth0 waits"),
    ] {
        let (well, said) = host.says(script);
        let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(!well && words.contains(says), "{script}: {said}");
    }
    // A bridge cannot be a port of another bridge: the step before this one is undone.
    host.does("ip route del 10.97.0.0/16; ip link add br7 type bridge");
    let before_fault = host.state();
    let (well, said) = host.says("$WEIR uplink bridge eth0 --with br7");
    assert!(!well && said.contains("stays as it was"), "{said}");
    assert_eq!(host.state(), before_fault);
    assert!(host.does("ls /run").is_empty());
    drop(before);
}
