//! Networks that configure themselves: guests with a real DHCP client (busybox's), in their own
//! namespaces.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::ops::{Range, RangeFrom};
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use weir_bed::fabric;
use weir_bed::process::{Process, output_of};
use weir_port_tap::{Tap, TapOptions};
use weir_testing::document::blocks;
use weir_testing::{SetAtEnd, eventually};
use weir_vif::{Health, Options, QueuePair, Vif, WaitFor};
use weir_wire::{Mac, Offload, Sum, VnetHdr};

use super::bed::{Host, Underlay};
use super::evpn::{start_keeper, upgrade};

/// The client's script, which applies a lease and records it.
const SCRIPT: &str = "#!/bin/sh
[ $1 = bound ] || [ $1 = renew ] || exit 0
ip -4 addr flush dev $interface
ip addr add $ip/$mask dev $interface
[ -z \"$router\" ] || ip route replace default via $router
for server in $dns; do echo \"nameserver $server\"; done >resolv.conf
echo \"search $domain\" >>resolv.conf
set -- $staticroutes
while [ $# -gt 1 ]; do ip route replace $1 via $2; shift 2; done
echo \"$ip $mask $router $dns $domain $mtu $lease\" >lease
";

/// The variables of dhclient's script, as a file.
const DHCLIENT_SCRIPT: &str = "#!/bin/sh
[ $reason = BOUND ] || exit 0
ip addr add $new_ip_address/$new_subnet_mask dev $interface
echo \"$new_ip_address $new_subnet_mask $new_domain_name_servers $new_domain_name $new_dhcp_lease_time \
$new_rfc3442_classless_static_routes\" >${0%/*}/lease
";

/// The options that dhclient requests, with routes as in Debian's configuration.
const DHCLIENT_CONF: &str = "
option rfc3442-classless-static-routes code 121 = array of unsigned integer 8;
request subnet-mask, domain-name-servers, domain-name, rfc3442-classless-static-routes, routers;
";

/// A guest: a namespace whose `eth0` is an interface of weir, driven from user space.
pub(super) struct Station {
    host: fabric::Host,
    ends: Arc<AtomicBool>,
    carrier: Option<JoinHandle<()>>,
}

impl Drop for Station {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(carrier) = self.carrier.take() {
            let _ = carrier.join();
        }
    }
}

impl Station {
    pub(super) fn new(dir: &Path, at: &Host, vif: &str) -> Self {
        let host = fabric::Host::new(dir.join(vif)).unwrap();
        fs::write(host.dir.join("script"), SCRIPT).unwrap();
        host.run("chmod +x script").unwrap();
        own_resolvers(&host, "");
        let options = TapOptions { name: "eth0".into(), queues: 1, mtu: None, mac: None };
        let tap = host.within(|| Tap::open(&options)).unwrap().unwrap();
        let ends = Arc::new(AtomicBool::default());
        // The socket is beside weir's control socket, or in the host's own mount.
        let (there, beside) = (at.pid(), at.socket(vif));
        let socket = match beside.exists() {
            true => beside,
            false => format!("/proc/{there}/root/run/weir/{vif}.sock").into(),
        };
        let until = Arc::clone(&ends);
        let carry = move || carry(&socket, &tap, &until);
        let carrier = Some(std::thread::spawn(carry));
        Self { host, ends, carrier }
    }

    pub(super) fn run(&self, line: &str) -> String {
        self.host.run(line).unwrap()
    }

    fn start(&self, line: &str) -> Process {
        self.host.start("program", line).unwrap()
    }

    fn within<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        self.host.within(body).unwrap()
    }

    /// Requests an address; returns the lease: address, prefix length, router, name servers, and so on.
    pub(super) fn asks(&self) -> Option<Vec<String>> {
        let line = "busybox udhcpc -i eth0 -q -n -f -t 5 -T 2 -O staticroutes -s ./script";
        let asked = self.host.command(line).output().unwrap();
        let lease = fs::read_to_string(self.host.dir.join("lease")).ok();
        let lease = lease.filter(|_| asked.status.success())?;
        Some(lease.split_whitespace().map(str::to_owned).collect())
    }

    /// The line that a client's script writes to `file`. The file exists before its line does.
    fn has_written(&self, file: &str) -> String {
        let read = || fs::read_to_string(self.host.dir.join(file)).ok();
        eventually(file, || read().filter(|line| line.ends_with('\n')))
    }

    /// The address that a name stands for.
    fn looks_up(&self, name: &str) -> Option<Ipv4Addr> {
        let said = self.host.command(&format!("getent ahostsv4 {name}")).output().unwrap();
        let said = String::from_utf8(said.stdout).unwrap();
        said.split_whitespace().next()?.parse().ok()
    }

    /// Pings an address, or the station that has a name.
    pub(super) fn pings(&self, to: &str) {
        let by_name = || eventually(&format!("{to} is known"), || self.looks_up(to));
        let to = to.parse().unwrap_or_else(|_| by_name());
        eventually(&format!("{to} answers"), || self.host.pings(to, 56).unwrap().then_some(()));
    }
}

/// Gives a host its own file of resolvers.
fn own_resolvers(host: &fabric::Host, text: &str) {
    fs::write(host.dir.join("resolv.conf"), text).unwrap();
    host.run("mount --bind resolv.conf /etc/resolv.conf").unwrap();
}

/// A resolver in a host, by which `example.org` is 9.9.9.9 and no other name exists.
struct Resolver {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<Vec<u8>>>>,
}

impl Resolver {
    fn new(host: &Host) -> Self {
        let own = host.within(|| UdpSocket::bind("127.0.0.53:53")).unwrap();
        own.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let ends = Arc::new(AtomicBool::default());
        let until = Arc::clone(&ends);
        let serve = move || {
            let (mut names, mut bytes) = (Vec::new(), [0; 1500]);
            while !until.load(Ordering::Relaxed) {
                let Ok((len, from)) = own.recv_from(&mut bytes) else { continue };
                let question = &bytes[..len];
                let end = 12 + question[12..].iter().position(|byte| *byte == 0).unwrap() + 5;
                let name = question[12..end - 4].to_ascii_lowercase();
                let is_known = name == b"\x07example\x03org\0" && question[end - 3] == 1;
                let records = if is_known { 1 } else { 0 };
                let code = if is_known { 0x80 } else { 0x83 };
                let head = [question[0], question[1], 0x81, code, 0, 1, 0, records, 0, 0, 0, 0];
                let record = [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 9, 9, 9, 9];
                let record = if is_known { &record[..] } else { &[] };
                let _ = own.send_to(&[&head[..], &question[12..end], record].concat(), from);
                names.push(name);
            }
            names
        };
        Self { ends, thread: Some(std::thread::spawn(serve)) }
    }

    /// Ends the resolver. Returns the names that it was asked for.
    fn end(mut self) -> Vec<Vec<u8>> {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

/// Carries frames between a TAP and the rings of an interface, also after another weir has started.
fn carry(socket: &Path, tap: &Tap, until: &AtomicBool) {
    let queue = tap.queues()[0].as_fd();
    let mut buffer = vec![0; 70_000];
    let mut frame = Vec::new();
    while !until.load(Ordering::Relaxed) {
        let Ok(mut vif) = Vif::connect(socket, &Options::new(tap.info().mac)) else {
            std::thread::sleep(Duration::from_millis(20));
            continue;
        };
        let mut pair = vif.queue_pairs().remove(0);
        while !until.load(Ordering::Relaxed) && is_up(&vif) {
            while let Ok(len) = rustix::io::read(queue, &mut buffer) {
                let (header, rest) = buffer[..len].split_first_chunk().unwrap();
                while pair.send_raw(rest, &VnetHdr::from_bytes(header)).is_err() {
                    if until.load(Ordering::Relaxed) || !is_up(&vif) {
                        break;
                    }
                    std::thread::yield_now();
                }
            }
            pair.flush();
            while let Some(received) = pair.recv_into(&mut frame) {
                let whole = [&received.header.to_bytes()[..], &frame].concat();
                let _ = rustix::io::write(queue, &whole);
            }
            let _ = pair.wait(WaitFor::Receive, Duration::from_millis(1));
        }
    }
}

fn is_up(vif: &Vif) -> bool {
    vif.health().is_ok_and(|health| health == Health::Connected)
}

fn has_what_it_takes() -> bool {
    weir_testing::is_root("network namespaces") && weir_testing::has("busybox", "busybox-static")
}

#[test]
fn root_guests_get_addresses_by_which_they_reach_each_other_and_the_host() {
    if !has_what_it_takes() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut underlay = Underlay::new(1);
    let at = &mut underlay.hosts[0];
    let vif = |name: &str| format!("[vif.{name}]\nsocket = {:?}\n", at.socket(name));
    let config = "[network.lan]\naddress = [\"192.168.77.2/24\", \"fd00:77::2/64\"]\nra = true\ndhcp = true\n\
                  router = \"192.168.77.1\"\nroutes = [\"10.0.0.0/8 192.168.77.10\", \"11.0.0.0/8 192.168.77.9\"]\n\
                  dns = [\"192.168.77.1\", \"9.9.9.9\"]\ndomain = \"lab.internal\"\n\
                  fixed = \"db0 192.168.77.10\"\n\
                  [uplink.lan]\nkind = \"tap\"\nname = \"weir0\"\n"
        .to_owned()
        + &vif("web0")
        + "source_guard = \"snooped\"\n"
        + &vif("db0");
    at.start_weir(&config);
    at.run("ip addr add 192.168.77.1/24 dev weir0");
    let [web, db] = ["web0", "db0"].map(|vif| Station::new(dir.path(), at, vif));
    let lease = web.asks().expect("an address");
    assert_eq!(
        lease[1..],
        ["24", "192.168.77.1", "192.168.77.1", "9.9.9.9", "lab.internal", "3600"]
    );
    assert_eq!(db.asks().expect("an address")[0], "192.168.77.10");
    for address in ["192.168.77.1", "192.168.77.2", "192.168.77.10"] {
        web.pings(address);
    }
    let shown = at.run("weir addresses");
    assert!(shown.contains(&lease[0]) && shown.contains("192.168.77.10"), "{shown}");
    let mut routes: Vec<_> =
        web.run("ip route").lines().map(|line| line.trim().to_owned()).collect();
    routes.retain(|line| line.contains("via"));
    let expected = [
        "default via 192.168.77.1 dev eth0",
        "10.0.0.0/8 via 192.168.77.10 dev eth0",
        "11.0.0.0/8 via 192.168.77.9 dev eth0",
    ];
    assert_eq!(routes, expected);
    // A guest with a fixed address is a gateway, and reached by its route.
    db.run("ip addr add 10.1.2.3/32 dev lo");
    web.pings("10.1.2.3");
    // A guest gets no traffic for the address of a gateway if that gateway is not configured.
    db.run("ip addr add 192.168.77.9/32 dev lo");
    assert!(!web.host.pings(Ipv4Addr::new(192, 168, 77, 9), 56).unwrap());

    // A kernel forms an address from the prefix, but adds no route through a station that is no router.
    let made = || db.run("ip -6 addr show dev eth0 scope global");
    eventually("an address of IPv6", || made().contains("fd00:77:").then_some(()));
    eventually("weir answers", || {
        db.host
            .command("busybox ping6 -c 1 -W 1 fd00:77::2")
            .output()
            .ok()
            .filter(|it| it.status.success())
    });
    assert_eq!(db.run("ip -6 route show default"), "");

    // A station behind an uplink gets no lease.
    let asks = "busybox udhcpc -i weir0 -q -n -f -t 2 -T 1 -s /bin/true";
    assert!(!at.command(asks).output().unwrap().status.success());

    // After a SIGKILL addresses still belong to their guests, and a returning client keeps its own.
    at.weir = None;
    at.spawn_weir("weir run weir.toml");
    at.run("ip addr replace 192.168.77.1/24 dev weir0");
    assert_eq!(web.asks().expect("an address"), lease);
    let wanted = &lease[0];
    let steals = format!("busybox udhcpc -i eth0 -q -n -f -t 5 -T 2 -r {wanted} -s ./script");
    let _ = output_of(db.host.command(&steals));
    let got = fs::read_to_string(db.host.dir.join("lease")).unwrap();
    assert!(got.starts_with("192.168.77.10 "), "{got}");
    web.pings("192.168.77.10");
}

#[test]
fn root_every_command_of_the_guide_for_a_network_works_and_nothing_is_left_behind() {
    let tools = [("nft", "nftables"), ("dig", "bind9-dnsutils")];
    if !has_what_it_takes() || !tools.iter().all(|(it, package)| weir_testing::has(it, package)) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut underlay = Underlay::new(1);
    // The internet has a route to the host, but none to guests behind it.
    underlay.router.run("ip addr add 9.9.9.9/32 dev lo").unwrap();
    let others = "add table inet others\nadd chain inet others forward { type filter hook forward priority 0; }\n";
    let at = &mut underlay.hosts[0];
    // The file names systemd-resolved first, which in turn asks weir. weir itself skips
    // systemd-resolved.
    own_resolvers(at, "nameserver 127.0.0.53\n");
    // A program in place of `resolvectl` writes its arguments down.
    fs::create_dir(at.dir.join("bin")).unwrap();
    fs::write(at.dir.join("bin/resolvectl"), "#!/bin/sh\necho $@ >>/run/told\n").unwrap();
    at.run("chmod +x bin/resolvectl");
    at.run("mkdir -p /run/systemd/resolve");
    let resolved = UnixListener::bind(at.dir.join("resolved")).unwrap();
    at.run("ln -s $PWD/resolved /run/systemd/resolve/io.systemd.Resolve");
    at.run("mount -t overlay overlay -o lowerdir=$PWD/bin:/usr/bin /usr/bin");
    let resolver = Resolver::new(at);
    at.run(&format!("sh -c 'printf \"{}\" | nft -f -'", others.replace('\n', "\\n")));
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/network.md");
    let guide = fs::read_to_string(guide).unwrap();
    let blocks = blocks(&guide);
    let first = blocks.iter().find(|block| block.language == "toml").unwrap();
    fs::write(at.dir.join("weir.toml"), first.lines.join("\n") + "\n").unwrap();

    let mut guests = Vec::new();
    let mut commands = 0;
    for block in blocks.iter().filter(|block| block.language == "sh") {
        for (_, line) in block.commands() {
            commands += 1;
            if let Some(line) = line.strip_suffix(" &") {
                assert!(commands <= 3, "{commands} commands before guests can start");
                at.spawn_weir(line);
                guests = ["web0", "db0"].map(|vif| Station::new(dir.path(), at, vif)).into();
            } else if line == "udhcpc -i eth0" {
                let leases = guests.iter().map(|guest| guest.asks().expect("an address"));
                let leases: Vec<_> = leases.collect();
                assert_eq!(leases[0][..4], ["192.168.77.10", "24", "192.168.77.1", "192.168.77.1"]);
            } else if let Some(target) = line.strip_prefix("ping -c 3 ") {
                guests.iter().for_each(|guest| guest.pings(target));
            } else {
                at.run(&line);
            }
        }
    }
    assert!(commands >= 8, "{commands} commands");
    let off = ["default-route", "dnssec", "dnsovertls", "llmnr", "mdns"];
    let off = off.map(|it| format!("{it} weir-lan no\n")).concat();
    let told = format!("dns weir-lan 192.168.77.1\ndomain weir-lan internal\n{off}");
    assert_eq!(at.run("cat /run/told"), told);
    // The command runs as the service manager runs it, while weir serves. It says nothing about a
    // network for which nobody answers.
    at.run("weir tell-resolved weir.toml");
    assert_eq!(at.run("cat /run/told"), told.repeat(2));
    at.run("sed s/192.168.77/192.168.78/ weir.toml >other.toml");
    at.run("weir tell-resolved other.toml");
    drop(resolved);
    at.run("weir tell-resolved weir.toml");
    assert_eq!(at.run("cat /run/told"), told.repeat(2), "nobody is there to be told");
    let shown = at.run("weir addresses");
    assert!(shown.contains("192.168.77.10"), "{shown}");

    // The host knows guests by name, in both directions, and has its own resolver for other names. weir answers neither
    // a station beyond the host nor a program of the host that has another address.
    assert!(
        at.run("cat /etc/resolv.conf").starts_with("nameserver 192.168.77.1\nsearch internal\n")
    );
    let said = at.run("getent hosts web0");
    assert_eq!(said.split_whitespace().collect::<Vec<_>>(), ["192.168.77.10", "web0.internal"]);
    assert!(at.run("getent hosts 192.168.77.10").contains("web0.internal"));
    assert!(at.run("getent ahostsv4 example.org").starts_with("9.9.9.9 "));
    let dig = "dig +tries=1 +time=1 +short @192.168.77.1 web0.internal";
    assert_eq!(at.run(dig).trim(), "192.168.77.10");
    assert!(at.run(&format!("{dig} -t TXT")).trim().is_empty());
    assert!(at.command(&format!("{dig} -b 192.0.2.1")).output().unwrap().stdout.starts_with(b";;"));
    let answers = at.run("weir stats --json");
    let answers: serde_json::Value = serde_json::from_str(&answers).unwrap();
    let own = answers["ports"].as_array().unwrap().iter().find(|it| it["name"] == "gateway.lan");
    assert!(own.unwrap()["answers"]["dns_answered"].as_u64().unwrap() >= 4, "{answers}");

    // Names: a guest's own, in short, and one that nobody has. No question about a guest goes to the resolver.
    assert_eq!(guests[1].looks_up("web0"), Some(Ipv4Addr::new(192, 168, 77, 10)));
    assert_eq!(guests[1].looks_up("nobody.internal"), None);
    assert_eq!(guests[1].looks_up("nobody.example.org"), None);
    let said = guests[1].run("getent hosts 192.168.77.10");
    assert!(said.contains("web0.internal"), "{said}");
    // A name by TCP. The address is the host's as well, but weir answers.
    let mut stream = guests[1].within(|| TcpStream::connect(("192.168.77.1", 53)).unwrap());
    let asked = b"\x00\x1f\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x04web0\x08internal\x00\x00\x01\x00\x01";
    stream.write_all(asked).unwrap();
    let mut said = [0; 2 + 0x1f + 16];
    stream.read_exact(&mut said).unwrap();
    assert_eq!((&said[2..4], &said[said.len() - 4..]), (&asked[2..4], &[192, 168, 77, 10][..]));
    drop(stream);
    let names = resolver.end();
    let has = |what: &[u8]| names.iter().any(|name| name.windows(what.len()).any(|it| it == what));
    assert!(
        has(b"\x07example\x03org\0") && !has(b"\x04web0") && !has(b"\x08internal\0"),
        "{names:?}"
    );

    // A renewal goes to the address of the host, where weir takes it.
    let renewed = || {
        let stats: serde_json::Value = serde_json::from_str(&at.run("weir stats --json")).unwrap();
        let ports = stats["ports"].as_array().unwrap();
        let port = ports.iter().find(|it| it["name"] == "gateway.lan").unwrap();
        port["answers"]["dhcp_given"].as_u64().unwrap()
    };
    let lease = guests[1].host.dir.join("lease");
    fs::remove_file(&lease).unwrap();
    let client = guests[1].start("busybox udhcpc -i eth0 -f -t 5 -T 2 -s ./script");
    // A client that has not read its answer yet would not renew.
    eventually("it has an address", || lease.exists().then_some(()));
    let before = renewed();
    guests[1].run(&format!("kill -USR1 {}", client.pid()));
    eventually("it renews", || (renewed() > before).then_some(()));
    drop(client);

    // Forwarded ports are reached from outside and from another guest.
    let [web, db] = &guests[..] else { panic!("two guests") };
    let listener = web.within(|| TcpListener::bind("0.0.0.0:22").unwrap());
    let outside = |from: &dyn Fn() -> std::io::Result<TcpStream>| {
        let from = from().unwrap();
        let (mut accepted, peer) = listener.accept().unwrap();
        accepted.write_all(b"web0").unwrap();
        drop(accepted);
        let mut said = String::new();
        (&from).read_to_string(&mut said).unwrap();
        assert_eq!(said, "web0");
        peer
    };
    let connect = || TcpStream::connect("192.0.2.1:2222");
    let peer = outside(&|| underlay.router.within(connect).unwrap());
    assert_eq!(peer.ip().to_string(), "192.0.2.254", "web0 sees who comes");
    outside(&|| db.within(connect));
    // Unsolicited traffic is dropped, although the router has a route.
    let router = &underlay.router;
    router.run("ip route add 192.168.77.0/24 via 192.0.2.1 dev r1 onlink").unwrap();
    assert!(!router.pings(Ipv4Addr::new(192, 168, 77, 10), 56).unwrap());

    let at = &mut underlay.hosts[0];
    at.run("nft flush ruleset");
    assert!(at.run("nft list tables").contains("weir-lan-"), "others cannot remove it");
    web.pings("9.9.9.9");
    // A killed weir leaves no rules.
    at.weir.take().unwrap().kill();
    eventually("the table is gone", || at.run("nft list tables").is_empty().then_some(()));
    assert!(!at.run("ip link show").contains("weir-lan"));
    // A subnet that the host already has is refused.
    at.run("ip addr add 192.168.77.99/24 dev u0");
    let refused = at.command("weir run weir.toml").output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("reaches by `u0`"), "{said}");
}

#[test]
fn root_other_clients_get_addresses_names_and_prefixes() {
    let tools = [("dhclient", "isc-dhcp-client"), ("dig", "bind9-dnsutils"), ("rdisc6", "ndisc6")];
    if !weir_testing::is_root("network namespaces")
        || !tools.iter().all(|(program, package)| weir_testing::has(program, package))
    {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut underlay = Underlay::new(1);
    let at = &mut underlay.hosts[0];
    let config = "[network.lan]\naddress = [\"192.168.77.1/24\", \"fd00:77::1/64\"]\nra = true\ndhcp = true\n\
                  domain = \"lab.internal\"\nrouter = \"192.168.77.254\"\nroutes = [\"10.0.0.0/8 192.168.77.3\", \
                  \"172.16.8.0/21 192.168.77.4\"]\n";
    at.start_weir(&format!("{config}[vif.web0]\nsocket = {:?}\n", at.socket("web0")));
    let web = Station::new(dir.path(), at, "web0");
    fs::write(web.host.dir.join("script"), DHCLIENT_SCRIPT).unwrap();
    fs::write(web.host.dir.join("conf"), DHCLIENT_CONF).unwrap();

    // The kernel sends nothing by IPv6 before it has an address of the link.
    let said = eventually("a router advertisement", || {
        let asked = web.host.command("rdisc6 -r 3 -w 2000 eth0").output().ok()?;
        asked.status.success().then(|| String::from_utf8(asked.stdout).unwrap())
    });
    for what in ["fd00:77::/64", "Recursive DNS server", "fd00:77::1", "0 (0x00000000) seconds"] {
        assert!(said.contains(what), "{what}: {said}");
    }
    let client = "dhclient -4 -d -sf $PWD/script -lf $PWD/leases -pf $PWD/pid -cf $PWD/conf";
    fs::write(web.host.dir.join("leases"), "").unwrap();
    let running = web.start(&format!("{client} eth0"));
    let lease = web.has_written("lease");
    let (ip, told) = lease.trim().split_once(' ').unwrap();
    let routes = "8 10 192 168 77 3 21 172 16 8 192 168 77 4 0 192 168 77 254";
    assert_eq!(told, format!("255.255.255.0 192.168.77.1 lab.internal 3600 {routes}"));
    assert!(at.run("weir addresses").contains(ip));

    let dig = |line: &str| web.run(&format!("dig +tries=5 +time=2 @192.168.77.1 {line}"));
    for way in ["+notcp", "+tcp", "+noedns", "+dnssec", "+bufsize=512"] {
        assert_eq!(dig(&format!("{way} +short web0.lab.internal")).trim(), ip, "{way}");
    }
    assert_eq!(dig(&format!("+short -x {ip}")).trim(), "web0.lab.internal.");
    assert!(dig("nobody.lab.internal").contains("status: NXDOMAIN"));
    let said = dig("web0.lab.internal TXT");
    assert!(said.contains("status: NOERROR") && said.contains("ANSWER: 0"), "{said}");

    // The address belongs to nobody once it has been given back.
    web.run(&format!("{client} -r eth0"));
    drop(running);
    eventually("it is given back", || (!dig("web0.lab.internal").contains(ip)).then_some(()));
}

/// Settings by which networkd asks for an address, as a cloud image's do.
const NETWORKD_SETTINGS: &str = "[Match]\nName=eth0\n[Network]\nDHCP=yes\nIPv6AcceptRA=yes\n";
const NETWORKD: &str = "/lib/systemd/systemd-networkd";

/// The values that dhclient gets by DHCPv6, and the address for its interface.
const DHCLIENT6_SCRIPT: &str = "#!/bin/sh
[ $reason = BOUND6 ] || exit 0
ip -6 addr add $new_ip6_address/64 dev $interface nodad
echo \"$new_ip6_address $new_dhcp6_name_servers $new_dhcp6_domain_search $new_max_life\" >${0%/*}/lease6
";

#[test]
fn root_dhclient_has_an_address_of_ipv6_that_lasts_over_a_sigkill_and_an_upgrade() {
    let tools = [("dhclient", "isc-dhcp-client"), ("dig", "bind9-dnsutils")];
    if !has_what_it_takes() || !tools.iter().all(|(it, package)| weir_testing::has(it, package)) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut underlay = Underlay::new(1);
    let at = &mut underlay.hosts[0];
    let keeper = start_keeper(at);
    let config = format!(
        "[switch]\nkeeper = {:?}\n[network.lan]\naddress = [\"192.168.77.1/24\", \"fd00:77::1/64\"]\nra = true\n\
         dhcp = true\ndhcp6 = true\ndomain = \"lab.internal\"\nfixed = \"mail0 fd00:77::25\"\n",
        at.socket("keeper")
    );
    let vifs = ["web0", "db0", "mail0"];
    let vifs = vifs.map(|vif| format!("[vif.{vif}]\nsocket = {:?}\n", at.socket(vif)));
    let guards = [
        "source_guard = \"snooped\"\n",
        "addresses = \"fd00:77::10\"\nsource_guard = \"configured\"\n",
    ];
    let fixed = format!("{}{}", vifs[2], guards[0]);
    let config = format!("{config}{}{}{}{}{fixed}", vifs[0], guards[0], vifs[1], guards[1]);
    at.start_weir(&config);
    let asks = |station: &Station| {
        fs::write(station.host.dir.join("script6"), DHCLIENT6_SCRIPT).unwrap();
        station.run("chmod +x script6");
        // A client asks from an address of the link, which takes a moment to be the station's.
        eventually("an address of the link", || {
            let shown = station.run("ip -6 addr show dev eth0 scope link");
            (shown.contains("fe80:") && !shown.contains("tentative")).then_some(())
        });
        let client = "dhclient -6 -d -sf $PWD/script6 -lf $PWD/leases6 -pf $PWD/pid6 eth0";
        fs::write(station.host.dir.join("leases6"), "").unwrap();
        let running = station.start(client);
        let lease = station.has_written("lease6");
        (running, lease.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    };
    let [web, db, mail] = ["web0", "db0", "mail0"].map(|vif| Station::new(dir.path(), at, vif));
    let (_client, lease) = asks(&web);
    let ip = lease[0].clone();
    assert!(ip.starts_with("fd00:77:") && ip != "fd00:77::10", "{lease:?}");
    assert_eq!(lease[1..], ["fd00:77::1", "lab.internal.", "3600"]);
    let (_other, fixed) = asks(&db);
    assert_eq!(fixed[0], "fd00:77::10");
    // The network has an address for its interface, by which others know it before it asks.
    let dig = "dig +tries=5 +time=2 +short @fd00:77::1 AAAA mail0.lab.internal";
    assert_eq!(db.run(dig).trim(), "fd00:77::25");
    let (_third, fixed) = asks(&mail);
    assert_eq!(fixed[0], "fd00:77::25");
    // Each has that address alone: none was formed from the prefix.
    for station in [&web, &db, &mail] {
        let shown = station.run("ip -6 -o addr show dev eth0 scope global");
        assert_eq!(shown.lines().count(), 1, "{shown}");
    }
    // The guard lets it send from the address, and names and `weir addresses` know it.
    let known = |station: &Station| {
        let dig = "dig +tries=5 +time=2 +short @fd00:77::1 AAAA web0.lab.internal";
        assert_eq!(station.run(dig).trim(), ip);
    };
    known(&web);
    assert_eq!(web.run(&format!("dig +short @fd00:77::1 -x {ip}")).trim(), "web0.lab.internal.");
    let shown = at.run("weir addresses");
    assert!(shown.contains(&ip) && shown.contains("fd00:77::10"), "{shown}");
    let process = upgrade(at);
    known(&web);
    assert!(at.run("weir addresses").contains(&ip));
    // The leases are there after a SIGKILL, before web0 asks again.
    at.run(&format!("kill -KILL {process}"));
    at.weir = None;
    at.start_weir(&config);
    known(&db);
    known(&web);
    drop(keeper);
}

#[test]
fn root_networkd_gets_an_address_routes_and_a_domain() {
    networkd_gets_what_it_needs(false);
    networkd_gets_what_it_needs(true);
}

fn networkd_gets_what_it_needs(dhcp6: bool) {
    if !weir_testing::is_root("network namespaces") {
        return;
    }
    if !Path::new(NETWORKD).exists() {
        weir_testing::skipped("systemd-networkd is not installed");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut underlay = Underlay::new(1);
    let at = &mut underlay.hosts[0];
    let config = "[network.lan]\naddress = [\"192.168.77.1/24\", \"fd00:77::1/64\"]\nra = true\ndhcp = true\n\
                  domain = \"lab.internal\"\nrouter = \"192.168.77.254\"\nroutes = \"10.0.0.0/8 192.168.77.3\"\n";
    let config = format!("{config}dhcp6 = {dhcp6}\n");
    at.start_weir(&format!("{config}[vif.web0]\nsocket = {:?}\nmtu = 1400\n", at.socket("web0")));
    let web = Station::new(dir.path(), at, "web0");
    fs::write(web.host.dir.join("settings"), NETWORKD_SETTINGS).unwrap();
    web.run("mkdir -p /run/systemd/network");
    web.run("cp settings /run/systemd/network/50-eth0.network");
    // With a read-only /sys networkd does not wait for udev.
    web.run("mount -t sysfs -o ro sysfs /sys");
    let _networkd = web.start(NETWORKD);
    eventually("a default route", || {
        web.run("ip route").contains("default via 192.168.77.254").then_some(())
    });
    let routes = web.run("ip route");
    assert!(routes.contains("10.0.0.0/8 via 192.168.77.3 dev eth0"), "{routes}");
    let lease = eventually("a lease", || {
        web.host.run("cat /run/systemd/netif/leases/*").ok().filter(|it| !it.is_empty())
    });
    for says in ["DNS=192.168.77.1", "DOMAINNAME=lab.internal", "MTU=1400"] {
        assert!(lease.lines().any(|line| line == says), "{says}: {lease}");
    }
    eventually("an address of IPv6", || {
        web.run("ip -6 addr show dev eth0 scope global").contains("fd00:77:").then_some(())
    });
    let shown = at.run("weir addresses");
    let ips = web.run("ip -6 -o addr show dev eth0 scope global");
    let is_leased = |line: &str| line.contains("/128");
    assert!(ips.lines().all(|line| is_leased(line) == dhcp6), "{ips}");
    let given = web.run("ip -4 addr show dev eth0");
    let given = given.split_whitespace().find_map(|word| word.strip_suffix("/24")).unwrap();
    assert!(shown.contains(given), "{given}: {shown}");
}

/// The segment size of a station's connections to a port.
fn segments(host: &fabric::Host, port: u16) -> u32 {
    let said = host.run(&format!("ss -tinH '( sport = :{port} or dport = :{port} )'")).unwrap();
    let word = said.split_whitespace().find_map(|word| word.strip_prefix("mss:"));
    word.unwrap_or_else(|| panic!("{said}")).parse().unwrap()
}

#[test]
fn root_ipv6_and_datagrams_pass_the_host_as_groups_allow_and_tcp_fits_a_narrower_way_out() {
    if !has_what_it_takes() || !weir_testing::has("nft", "nftables") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut underlay = Underlay::new(1);
    underlay.speak_ipv6();
    let at = &mut underlay.hosts[0];
    at.run("sysctl -qw net.ipv4.ip_forward=1");
    at.run("sysctl -qw net.ipv6.conf.all.forwarding=1");
    at.run("ip link set u0 mtu 1300");
    let config = "[network.lan]\naddress = [\"192.168.77.1/24\", \"fd00:77::1/64\"]\ndhcp = true\nra = true\n\
                  nat = true\nfixed = \"web0 192.168.77.10\"\nforward = \"udp 5300 web0:53\"\n"
        .to_owned();
    let vif = |name: &str| format!("[vif.{name}]\nsocket = {:?}\n", at.socket(name));
    let config = config
        + &vif("db0")
        + &vif("web0")
        + "groups = [\"shut\"]\n[group.shut]\ndefault_out = \"deny\"\n";
    let group = |name: &str, rule: &str| {
        format!("[group.{name}]\ndefault_out = \"deny\"\nrules = [{{ {rule} }}]\n")
    };
    let config = config
        + &group("out", "direction = \"out\", protocol = \"tcp\", ports = 7777")
        + &group("served", "direction = \"in\", protocol = \"udp\", ports = 53");
    at.start_weir(&config);
    let at = &underlay.hosts[0];
    let router = &underlay.router;
    let [web, db] = ["web0", "db0"].map(|vif| Station::new(dir.path(), at, vif));
    web.asks().expect("an address");
    db.asks().expect("an address");

    // DHCP and router advertisements need no rule. An outgoing connection needs a rule, and its answers need none.
    let refused = |reason: &str| {
        eventually("it is refused", || (at.dropped("web0", reason) > 0).then_some(()));
    };
    let in_vain = web.within(|| {
        let to = "192.0.2.254:7777".parse().unwrap();
        TcpStream::connect_timeout(&to, Duration::from_millis(500)).is_err()
    });
    assert!(in_vain);
    refused("group_out");
    at.run("weir vif set web0 groups=shut,out");
    // The router knows no way to the guests' prefix: it sees the host's address alone.
    for (to, own, fits) in
        [("2001:db8::ffff", "2001:db8::1", 1300 - 60), ("192.0.2.254", "192.0.2.1", 1300 - 40)]
    {
        let to: std::net::IpAddr = to.parse().unwrap();
        let listener = router.within(|| TcpListener::bind((to, 7777))).unwrap().unwrap();
        let dial = || {
            web.within(|| {
                TcpStream::connect_timeout(&(to, 7777).into(), Duration::from_secs(2)).ok()
            })
        };
        let connection = eventually("a way out", dial);
        let (accepted, peer) = listener.accept().unwrap();
        assert_eq!(peer.ip().to_string(), own);
        for (who, host) in [("the router", router), ("the guest", &web.host)] {
            let mss = segments(host, 7777);
            assert!(mss <= fits && mss > fits - 60, "{who}: {mss}");
        }
        drop((connection, accepted));
    }

    // Datagrams from outside, and from another guest.
    let bind = |port: u16| {
        let socket = UdpSocket::bind(("0.0.0.0", port)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        socket
    };
    let server = web.within(|| bind(53));
    // A forwarded port is a connection inward, to the guest's port.
    router.within(|| bind(0)).unwrap().send_to(b"from", "192.0.2.1:5300").unwrap();
    refused("group_in");
    at.run("weir vif set web0 groups=shut,out,served");
    for client in [router.within(|| bind(0)).unwrap(), db.within(|| bind(0))] {
        let mut bytes = [0; 9];
        client.send_to(b"from", "192.0.2.1:5300").unwrap();
        let (len, from) = server.recv_from(&mut bytes).unwrap();
        assert_eq!(&bytes[..len], b"from");
        server.send_to(b"back", from).unwrap();
        let (len, from) = client.recv_from(&mut bytes).unwrap();
        assert_eq!((&bytes[..len], from), (&b"back"[..], "192.0.2.1:5300".parse().unwrap()));
    }
}

/// The clients that Kea's program plays. Their messages come by one socket; here those of each client go through an
/// interface of their own.
struct Clients {
    /// The protocol of IPv6.
    v6: bool,
    socket: UdpSocket,
    vifs: Vec<(Vif, QueuePair)>,
    /// The interface of a client, by its MAC address.
    of: HashMap<[u8; 6], usize>,
    /// The times when the first message came from Kea's client, and when the last address was given
    /// to one.
    first: Option<Instant>,
    last: Option<Instant>,
    given: HashSet<Vec<u8>>,
    /// Messages of clients and of weir.
    asked: usize,
    answered: usize,
}

/// The offsets of a message's hop count, of its relay's address, of its client's address and new
/// address, and of its options.
const HOPS: usize = 3;
const GIADDR: Range<usize> = 24..28;
const CHADDR: Range<usize> = 28..34;
const YIADDR: Range<usize> = 16..20;
const OPTIONS: RangeFrom<usize> = 240..;
/// The option that says that an address is given.
const ACK: [u8; 3] = [53, 1, 5];
/// The message that gives an address of IPv6, the head of the option with the address, and that of a client's
/// identifier, whose last bytes are its MAC address (a DUID-LLT).
const REPLY: u8 = 7;
const IA_ADDRESS: [u8; 4] = [0, 5, 0, 24];
const CLIENT: [u8; 4] = [0, 1, 0, 14];

/// The bytes behind a mark.
fn behind<const N: usize>(message: &[u8], mark: &[u8], more: usize) -> Option<[u8; N]> {
    let at = message.windows(mark.len()).position(|it| it == mark)? + mark.len() + more;
    message.get(at..at + N)?.try_into().ok()
}

impl Clients {
    fn carry(&mut self, until: &AtomicBool) {
        let (mut bytes, mut frame) = ([0; 1500], Vec::new());
        let mut peer = None;
        while !until.load(Ordering::Relaxed) {
            while let Ok((len, from)) = self.socket.recv_from(&mut bytes) {
                peer = Some(from);
                self.first.get_or_insert_with(Instant::now);
                self.asked += 1;
                let message = &mut bytes[..len];
                let mac = if self.v6 {
                    behind(message, &CLIENT, 8).unwrap()
                } else {
                    // Kea's client takes itself for a relay.
                    message[HOPS] = 0;
                    message[GIADDR].fill(0);
                    message[CHADDR].try_into().unwrap()
                };
                let next = self.of.len();
                let of = *self.of.entry(mac).or_insert(next);
                let pair = &mut self.vifs[of].1;
                let frame = if self.v6 { solicited(mac, message) } else { asked(mac, message) };
                while pair.send(&frame, &Offload::NONE).is_err() {
                    std::thread::yield_now();
                }
                pair.flush();
            }
            for (_, pair) in &mut self.vifs {
                while pair.recv_into(&mut frame).is_some() {
                    let Some(message) = answered(&frame, self.v6) else { continue };
                    self.answered += 1;
                    let given = if self.v6 {
                        let is_it = message[0] == REPLY;
                        behind::<16>(message, &IA_ADDRESS, 0).filter(|_| is_it).map(Vec::from)
                    } else {
                        let is_it = message[OPTIONS].windows(3).any(|it| it == ACK);
                        is_it.then(|| message[YIADDR].to_vec())
                    };
                    if let Some(given) = given {
                        self.given.insert(given);
                        self.last = Some(Instant::now());
                    }
                    self.socket.send_to(message, peer.unwrap()).unwrap();
                }
            }
        }
    }
}

/// A frame with a client's message to everybody.
fn asked(mac: [u8; 6], message: &[u8]) -> Vec<u8> {
    let len = |more: usize| u16::try_from(message.len() + more).unwrap().to_be_bytes();
    let mut ip = [0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255];
    ip[2..4].copy_from_slice(&len(28));
    let mut sum = Sum::new();
    sum.add(&ip);
    ip[10..12].copy_from_slice(&sum.finish().to_be_bytes());
    let [high, low] = len(8);
    let udp = [0, 68, 0, 67, high, low, 0, 0];
    [&[0xff; 6][..], &mac, &[8, 0], &ip, &udp, message].concat()
}

/// A frame with a client's message to all servers.
fn solicited(mac: [u8; 6], message: &[u8]) -> Vec<u8> {
    let [high, low] = u16::try_from(message.len() + 8).unwrap().to_be_bytes();
    let [a, b, c, d, e, f] = mac;
    let own = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f];
    let servers = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 2];
    let mut udp = [&[2, 34, 2, 35, high, low, 0, 0], message].concat();
    let mut sum = Sum::new();
    [&own[..], &servers, &[0, 0, high, low, 0, 0, 0, 17], &udp]
        .iter()
        .for_each(|part| sum.add(part));
    udp[6..8].copy_from_slice(&sum.finish().to_be_bytes());
    let head = [0x33, 0x33, 0, 1, 0, 2, a, b, c, d, e, f, 0x86, 0xdd];
    let ip = [0x60, 0, 0, 0, high, low, 17, 64];
    [&head[..], &ip, &own, &servers, &udp].concat()
}

/// The server's message in a frame, if it is one.
fn answered(frame: &[u8], v6: bool) -> Option<&[u8]> {
    if v6 {
        let is_it = frame.get(12..14)? == [0x86, 0xdd] && frame.get(54..58)? == [2, 35, 2, 34];
        return frame.get(62..).filter(|_| is_it);
    }
    let is_it = frame.get(12..14)? == [8, 0] && frame.get(34..38)? == [0, 67, 0, 68];
    frame.get(42..).filter(|_| is_it)
}

/// Each message of the four has one pass of a worker, for which the worker wakes once at most; the guest gets weir's two
/// and nothing else.
#[test]
fn root_an_address_takes_four_messages_and_one_pass_of_a_worker_for_each() {
    if !weir_testing::is_root("network namespaces") {
        return;
    }
    let mut underlay = Underlay::new(1);
    let at = &mut underlay.hosts[0];
    let socket = at.socket("web0");
    at.start_weir(&format!(
        "[network.lan]\naddress = \"10.77.0.1/16\"\ndhcp = true\n[vif.web0]\nsocket = {socket:?}\n"
    ));
    let at = &underlay.hosts[0];
    let mac = [2, 0x77, 0, 0, 0, 1];
    let options = Options::new(Mac(mac));
    let mut vif = eventually("a guest", || Vif::connect(&socket, &options).ok());
    let mut pair = vif.queue_pairs().remove(0);
    let worked = || {
        let stats: serde_json::Value = serde_json::from_str(&at.run("weir stats --json")).unwrap();
        let workers = stats["workers"].as_array().unwrap();
        ["bursts", "wakeups"]
            .map(|what| workers.iter().map(|worker| worker[what].as_u64().unwrap()).sum::<u64>())
    };
    eventually("it runs", || at.run("weir stats").contains("running").then_some(()));
    // The rings' first kicks are over when nothing has changed for a while.
    let mut before = worked();
    eventually("workers sleep", || {
        std::thread::sleep(Duration::from_millis(200));
        let now = worked();
        (std::mem::replace(&mut before, now) == now).then_some(())
    });
    let mut answers = Vec::new();
    let mut message = [&[1, 1, 6, 0][..], &[7; 4], &[0; 20], &mac, &[0; 202]].concat();
    message.extend([99, 130, 83, 99, 53, 1, 1, 255]);
    for kind in [2, 5] {
        pair.send(&asked(mac, &message), &Offload::NONE).unwrap();
        pair.flush();
        let mut frame = Vec::new();
        eventually("an answer", || {
            while pair.recv_into(&mut frame).is_some() {
                answers.push(frame.clone());
            }
            let answer = answers.last().and_then(|frame| answered(frame, false))?;
            answer[OPTIONS].windows(3).any(|it| it == [53, 1, kind]).then_some(())
        });
        let offered = &answered(&answers[0], false).unwrap()[YIADDR];
        message.truncate(240);
        message.extend([&[53, 1, 3, 50, 4][..], offered, &[54, 4, 10, 77, 0, 1, 255]].concat());
    }
    let [bursts, wakeups] = worked();
    println!("four messages: {} bursts, {} wake-ups", bursts - before[0], wakeups - before[1]);
    assert_eq!((answers.len(), bursts - before[0]), (2, 4), "{answers:02x?}");
    assert!(wakeups - before[1] <= 4, "{} wake-ups", wakeups - before[1]);
}

/// `WEIR_DHCP_CLIENTS=1000` has as many ask at once.
#[test]
fn root_guests_that_ask_at_once_have_addresses_as_keas_client_says() {
    for isolated in [false, true] {
        guests_ask_at_once(isolated, false);
    }
}

#[test]
fn root_guests_that_ask_at_once_have_addresses_of_ipv6_as_keas_client_says() {
    guests_ask_at_once(false, true);
}

fn guests_ask_at_once(isolated: bool, v6: bool) {
    if !weir_testing::is_root("network namespaces") || !weir_testing::has("perfdhcp", "kea-admin") {
        return;
    }
    let number = std::env::var("WEIR_DHCP_CLIENTS").map_or(64, |number| number.parse().unwrap());
    let mut underlay = Underlay::new(1);
    let at = &mut underlay.hosts[0];
    let (address, keys) = match v6 {
        true => ("fd00:77::1/64", "ra = true\ndhcp6 = true"),
        false => ("10.77.0.1/16", "dhcp = true"),
    };
    let mut config =
        format!("[network.lan]\naddress = {address:?}\n{keys}\nisolated = {isolated}\n");
    for it in 0..number {
        config += &format!("[vif.v{it}]\nsocket = {:?}\n", at.socket(&format!("v{it}")));
    }
    at.start_weir(&config);
    let at = &underlay.hosts[0];
    let vif = |it: usize| {
        let mac = Mac([2, 0x77, 0, 0, (it >> 8) as u8, it as u8]);
        let (socket, options) = (at.socket(&format!("v{it}")), Options::new(mac));
        let mut vif = eventually("a guest", || Vif::connect(&socket, &options).ok());
        let pair = vif.queue_pairs().remove(0);
        (vif, pair)
    };
    let vifs: Vec<_> = (0..number).map(vif).collect();
    let to = if v6 { "::1" } else { "127.0.0.1" };
    let socket = at.within(|| UdpSocket::bind((to, 6767))).unwrap();
    socket.set_nonblocking(true).unwrap();
    // Both buffers have room for the datagrams that arrive while the other side has no CPU.
    at.run("sysctl -qw net.core.rmem_default=16777216");
    let (of, first, last, given) = (HashMap::new(), None, None, HashSet::new());
    let (asked, answered) = (0, 0);
    let mut clients = Clients { v6, socket, vifs, of, first, last, given, asked, answered };
    let ends = AtomicBool::default();
    let said = std::thread::scope(|scope| {
        scope.spawn(|| clients.carry(&ends));
        let _ends = SetAtEnd(&ends);
        let of = if v6 { "-6 -l lo" } else { "-4 -l 127.0.0.1" };
        let line =
            format!("perfdhcp {of} -u -L 6768 -N 6767 --scenario avalanche -R {number} {to}");
        at.command(&format!("timeout 60 {line}")).output().unwrap()
    });
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.status.success(), "{text}");
    println!("{text}");
    let received = format!("received packets: {number}\n");
    for line in ["rejected leases: 0\n", &received] {
        assert_eq!(text.matches(line).count(), 2, "{line}: {text}");
    }
    assert_eq!((clients.of.len(), clients.given.len()), (number, number));
    let shown = at.run("weir addresses");
    let net = if v6 { "fd00:77::" } else { "10.77." };
    let leases = shown.lines().filter(|line| line.contains(net)).count();
    assert_eq!(leases, number, "{shown}");
    // Each message of a client has one answer, and none was lost on either way.
    assert_eq!(clients.answered, clients.asked, "{text}");
    let took = clients.last.unwrap() - clients.first.unwrap();
    println!(
        "{number} interfaces (isolated: {isolated}, IPv6: {v6}) have addresses {} ms after the first has asked: {} \
         messages, {} answers",
        took.as_millis(),
        clients.asked,
        clients.answered
    );
}

#[test]
fn root_what_a_host_lacks_for_a_way_out_is_said_before_the_start() {
    if !weir_testing::is_root("network namespaces") || !weir_testing::has("nft", "nftables") {
        return;
    }
    let mut underlay = Underlay::new(1);
    let config =
        "[network.lan]\naddress = \"192.168.77.1/24\"\ndhcp = true\nnat = true\n[vif.web0]\n";
    // A weir that starts nevertheless logs the same, and `weir doctor` reports it.
    let at = &mut underlay.hosts[0];
    at.run("sysctl -qw net.ipv4.ip_forward=0");
    at.run("ip route add 192.168.0.0/16 dev u0");
    at.start_weir(config);
    let log = fs::read_to_string(at.dir.join("weir.log")).unwrap();
    let doctor = || {
        let said = at.command("weir doctor").output().unwrap().stdout;
        String::from_utf8(said).unwrap()
    };
    for lack in ["net.ipv4.ip_forward is 0", "reaches by `u0` (192.168.0.0/16)"] {
        assert!(log.contains(lack), "{lack}: {log}");
        assert!(doctor().contains(lack), "{lack}: {}", doctor());
    }
    at.run("ip route del 192.168.0.0/16 dev u0");
    at.run("sysctl -qw net.ipv4.ip_forward=1");
    let default = at.command("ip route show default").output().unwrap().stdout;
    at.run("ip route del default");
    assert!(doctor().contains("this host has no default route for IPv4"), "{}", doctor());
    at.run(&format!("ip route add {}", String::from_utf8(default).unwrap().trim()));
    assert!(!doctor().contains("way-out"), "{}", doctor());
    // Changes that other programs make on the host meanwhile.
    for (seed, says, mend) in [
        (
            "nft 'add table ip others { chain FORWARD { type filter hook forward priority 0; policy drop; }; }'",
            "`ip others` of nftables drops",
            "nft delete table ip others",
        ),
        (
            "ip addr del 192.168.77.1/24 dev weir-lan",
            "`weir-lan` does not have 192.168.77.1/24",
            "ip addr add 192.168.77.1/24 dev weir-lan",
        ),
    ] {
        at.run(seed);
        assert!(doctor().contains(says), "{says}: {}", doctor());
        at.run(mend);
        assert!(!doctor().contains("way-out"), "{}", doctor());
    }
    // A TAP that serves this weir serves no other one.
    let uplink = "[switch]\ncontrol = \"/run/weir/other.sock\"\n[uplink.l]\nkind = \"tap\"\nname = \"weir-lan\"\n";
    fs::write(at.dir.join("other.toml"), uplink).unwrap();
    let output = at.command("timeout 20 weir run other.toml").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("TAP `weir-lan` is in use by another process"), "{said}");
    at.weir = None;
    let at = &underlay.hosts[0];
    fs::write(at.dir.join("weir.toml"), config).unwrap();
    let lacks = || {
        let output = at.command("weir check --host weir.toml").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.success(), !said.contains("host:"), "{said}{output:?}");
        said
    };
    at.run("sysctl -qw net.ipv4.ip_forward=0");
    let said = lacks();
    assert!(said.contains("host: the host does not route: net.ipv4.ip_forward is 0"), "{said}");
    assert!(said.contains("sysctl -w net.ipv4.ip_forward=1"), "{said}");
    at.run("sysctl -qw net.ipv4.ip_forward=1");
    assert!(!lacks().contains("host:"));
    // An address of the host, and a route to others.
    for (add, remove) in [
        ("ip addr add 192.168.77.99/24 dev u0", "ip addr del 192.168.77.99/24 dev u0"),
        ("ip route add 192.168.0.0/16 dev u0", "ip route del 192.168.0.0/16 dev u0"),
    ] {
        at.run(add);
        let said = lacks();
        assert!(said.contains("network `lan`") && said.contains("reaches by `u0`"), "{said}");
        at.run(remove);
    }
    // A user without the right is told by both commands.
    for line in ["weir check --host weir.toml", "timeout 20 weir run weir.toml"] {
        let line = format!("setpriv --bounding-set=-net_admin {line}");
        let output = at.command(&line).output().unwrap();
        let said =
            [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned());
        assert!(!output.status.success() && said.concat().contains("CAP_NET_ADMIN"), "{said:?}");
        assert!(said.concat().contains("kind = \"stream\""), "{said:?}");
    }
    at.run("sh -c 'for dir in /usr/sbin /sbin; do [ -L $dir ] || mount -t tmpfs none $dir; done'");
    assert!(lacks().contains("host: there is no program `nft`"));
}

/// The number of the host's interface in the network.
fn index(at: &Host) -> String {
    let shown = at.run("ip -o link show dev weir-lan");
    shown.split(':').next().unwrap().to_owned()
}

/// Checks that NAT continues: a connection, pings, the guest's address, one table, one interface.
struct Through<'t> {
    at: &'t Host,
    web: &'t Station,
    connection: TcpStream,
    lease: Vec<String>,
    /// The index of the host's interface.
    index: String,
}

impl Through<'_> {
    fn goes_on(&mut self, after: &str) {
        let dig = "dig +tries=5 +time=2 +short @192.168.77.1 web0.internal";
        assert_eq!(self.at.run(dig).trim(), "192.168.77.10", "the host asks {after}");
        self.web.pings("9.9.9.9");
        let mut heard = vec![0; after.len()];
        self.connection.write_all(after.as_bytes()).unwrap();
        self.connection.read_exact(&mut heard).unwrap_or_else(|error| panic!("{after}: {error}"));
        assert_eq!(heard, after.as_bytes());
        assert_eq!(self.web.asks().as_ref(), Some(&self.lease), "{after}");
        assert_eq!(index(self.at), self.index, "{after}");
        let tables = || self.at.run("nft list tables");
        eventually(&format!("one table {after}"), || {
            (tables().matches("weir-lan-").count() == 1).then_some(())
        });
    }
}

#[test]
fn root_connections_through_a_way_out_go_on_over_upgrades_and_a_sigkill() {
    if !has_what_it_takes() || !weir_testing::has("nft", "nftables") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut underlay = Underlay::new(1);
    underlay.router.run("ip addr add 9.9.9.9/32 dev lo").unwrap();
    let listener = underlay.router.within(|| TcpListener::bind("9.9.9.9:7777")).unwrap().unwrap();
    let echo = std::thread::spawn(move || {
        let (mut connection, _) = listener.accept().unwrap();
        let mut bytes = [0; 100];
        while let Ok(len @ 1..) = connection.read(&mut bytes) {
            connection.write_all(&bytes[..len]).unwrap();
        }
    });
    let at = &mut underlay.hosts[0];
    at.run("sysctl -qw net.ipv4.ip_forward=1");
    let keeper = start_keeper(at);
    let config = format!(
        "[switch]\nkeeper = {:?}\n[network.lan]\naddress = \"192.168.77.1/24\"\ndhcp = true\nnat = true\n\
         fixed = \"web0 192.168.77.10\"\nforward = \"tcp 2222 web0:22\"\n[vif.web0]\nsocket = {:?}\n",
        at.socket("keeper"),
        at.socket("web0"),
    );
    at.start_weir(&config);
    let at = &underlay.hosts[0];
    let web = Station::new(dir.path(), at, "web0");
    let lease = web.asks().expect("an address");
    let connection = web.within(|| TcpStream::connect("9.9.9.9:7777").unwrap());
    connection.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let index = index(at);
    let mut through = Through { at, web: &web, connection, lease, index };
    through.goes_on("at first");
    upgrade(at);
    through.goes_on("after an upgrade");
    let process = upgrade(at);
    through.goes_on("after another one");

    at.run(&format!("kill -KILL {process}"));
    eventually("the table is gone", || {
        (!at.run("nft list tables").contains("weir-lan-")).then_some(())
    });
    let program = env!("CARGO_BIN_EXE_weir");
    let next = at.start("next", &format!("{program} run weir.toml")).unwrap();
    eventually("the next weir serves", || {
        at.command("weir stats").output().ok()?.status.success().then_some(())
    });
    through.goes_on("after a SIGKILL");
    // A forwarded port still works.
    let listener = web.within(|| TcpListener::bind("0.0.0.0:22").unwrap());
    let _comes = underlay.router.within(|| TcpStream::connect("192.0.2.1:2222")).unwrap().unwrap();
    listener.accept().unwrap();

    drop(through);
    echo.join().unwrap();
    assert!(next.terminate().unwrap().success());
    eventually("nothing is left", || {
        let (tables, links) = (at.run("nft list tables"), at.run("ip link show"));
        (!tables.contains("weir-lan-") && !links.contains("weir-lan")).then_some(())
    });
    drop(keeper);
}
