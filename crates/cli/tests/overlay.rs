//! Networks over hosts: two weirs and a Linux bridge with the kernel's VXLAN device in a routed underlay of network
//! namespaces, and whoever attacks them. That takes root; without it the tests are counted as skipped.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, ipproto};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use weir_testing::echo::answer;
use weir_testing::eventually;
use weir_vif::{Options, QueuePair, Vif, WaitFor};
use weir_wire::{Mac, Offload};

/// A process that is killed when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A host: a network namespace, with `/run` of its own.
struct Host {
    holder: Running,
    dir: PathBuf,
    weir: Option<Running>,
}

impl Host {
    fn new(dir: PathBuf) -> Self {
        const SETUP: &str =
            "mount -t tmpfs none /run && ip link set lo up && echo ready && exec sleep 600";
        fs::create_dir(&dir).unwrap();
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount", "sh", "-c", SETUP]).stdout(Stdio::piped());
        let mut holder = Running(command.spawn().unwrap());
        let mut line = String::new();
        BufReader::new(holder.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self { holder, dir, weir: None }
    }

    fn pid(&self) -> String {
        self.holder.0.id().to_string()
    }

    /// A command line there, in the host's directory.
    fn command(&self, line: &str) -> Command {
        let weir = Path::new(env!("CARGO_BIN_EXE_weir")).parent().unwrap();
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.pid(), "--net", "--mount", "sh", "-c"]);
        command.arg(format!("cd {} && exec {line}", self.dir.display()));
        command.env("PATH", format!("{}:{path}", weir.display())).stdin(Stdio::null());
        command
    }

    fn run(&self, line: &str) -> String {
        let output = self.command(line).output().unwrap();
        let (out, error) = (&output.stdout, String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{line}: {error}{}", String::from_utf8_lossy(out));
        String::from_utf8_lossy(out).into_owned()
    }

    fn start_weir(&mut self, config: &str) {
        fs::write(self.dir.join("weir.toml"), config).unwrap();
        self.spawn_weir("weir run weir.toml");
    }

    fn spawn_weir(&mut self, line: &str) {
        let log = File::create(self.dir.join("weir.log")).unwrap();
        let child = self.command(line).stderr(log).stdout(Stdio::null()).spawn().unwrap();
        self.weir = Some(Running(child));
        eventually("weir serves", || {
            self.command("weir stats --json").output().ok().filter(|it| it.status.success())
        });
    }

    /// Whether an address answers a ping with so many bytes, without a program for it: not every machine has one.
    fn pings(&self, ip: Ipv4Addr, bytes: usize) -> bool {
        self.within(|| {
            let kind = SocketType::RAW;
            let icmp = rustix::net::socket(AddressFamily::INET, kind, Some(ipproto::ICMP)).unwrap();
            // An echo request (RFC 792), whose sum is right: one identifier, and payload of zeros.
            let mut request = vec![0; 8 + bytes];
            request[..8].copy_from_slice(&[8, 0, 0xb5, 0xfe, 0x42, 0x01, 0, 0]);
            let to = SocketAddrV4::new(ip, 0);
            rustix::net::sendto(&icmp, &request, SendFlags::empty(), &to).unwrap();
            let wait = Duration::from_secs(2);
            set_socket_timeout(&icmp, Timeout::Recv, Some(wait)).unwrap();
            let mut answer = vec![0; 2048];
            while let Ok((len, _)) = rustix::net::recv(&icmp, &mut answer, RecvFlags::empty()) {
                // After IP's header of 20 bytes: an echo reply, as long as the request.
                let is_answer = answer[12..16] == ip.octets() && answer[20..22] == [0, 0];
                if is_answer && len == 20 + request.len() {
                    return true;
                }
            }
            false
        })
    }

    /// Has a thread do something in the host's network.
    fn within<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        let namespace = File::open(format!("/proc/{}/ns/net", self.pid())).unwrap();
        let in_thread = || {
            use std::os::fd::AsFd as _;
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            body()
        };
        let ended = thread::scope(|scope| scope.spawn(in_thread).join());
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// What a port of its weir has dropped for a reason.
    fn dropped(&self, port: &str, reason: &str) -> u64 {
        let stats: serde_json::Value =
            serde_json::from_str(&self.run("weir stats --json")).unwrap();
        let ports = stats["ports"].as_array().unwrap();
        let port = ports.iter().find(|it| it["name"] == port).unwrap();
        port["drops"][reason].as_u64().unwrap_or(0)
    }

    /// Where a socket of its weir is for the test.
    fn socket(&self, vif: &str) -> PathBuf {
        self.dir.join(format!("{vif}.sock"))
    }

    fn guest(&self, vif: &str, mac: Mac) -> Guest {
        let socket = self.socket(vif);
        let mut vif =
            eventually("a guest connects", || Vif::connect(&socket, &Options::new(mac)).ok());
        let pair = vif.queue_pairs().remove(0);
        Guest { _vif: vif, pair, mac }
    }
}

/// Hosts 1 to `count` at 192.0.2.1 and so on, each by a link of its own to a router.
struct Underlay {
    hosts: Vec<Host>,
    _router: Host,
    _dir: tempfile::TempDir,
}

impl Underlay {
    fn new(count: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let router = Host::new(dir.path().join("router"));
        router.run("sysctl -qw net.ipv4.ip_forward=1");
        let host = |n: usize| {
            let host = Host::new(dir.path().join(format!("host{n}")));
            let there = host.pid();
            router.run(&format!("ip link add r{n} type veth peer name u0 netns {there}"));
            router.run(&format!("ip addr add 192.0.2.254/32 dev r{n}"));
            router.run(&format!("ip link set r{n} up"));
            router.run(&format!("ip route add 192.0.2.{n}/32 dev r{n}"));
            host.run(&format!("ip addr add 192.0.2.{n}/32 dev u0"));
            host.run("ip link set u0 up");
            host.run("ip route add 192.0.2.254/32 dev u0");
            host.run("ip route add default via 192.0.2.254");
            host
        };
        let hosts = (1..=count).map(host).collect();
        Self { hosts, _router: router, _dir: dir }
    }

    /// The configuration of host `n` with these networks (name, VNI, other hosts) and ports.
    fn config(n: usize, networks: &[(&str, u32, &[usize])], ports: &str) -> String {
        let mut text = format!("[overlay]\nlocal = \"192.0.2.{n}\"\ninterface = \"u0\"\n");
        for (name, vni, peers) in networks {
            let peers: Vec<_> = peers.iter().map(|n| format!("\"192.0.2.{n}\"")).collect();
            text += &format!("[network.{name}]\nvni = {vni}\npeers = [{}]\n", peers.join(", "));
        }
        text + ports
    }
}

/// A guest that a test drives.
struct Guest {
    _vif: Vif,
    pair: QueuePair,
    mac: Mac,
}

impl Guest {
    fn send(&mut self, frame: &[u8]) {
        self.pair.send(frame, &Offload::NONE).unwrap();
        self.pair.flush();
    }

    /// A frame of an experimental type with words in it.
    fn say(&mut self, dst: Mac, words: &str) {
        let frame = experimental(dst, self.mac, words);
        self.send(&frame);
    }

    /// The next frame of that type: who says what. Other frames are passed over.
    fn hears(&mut self, patience: Duration) -> Option<(Mac, String)> {
        let end = Instant::now() + patience;
        let mut frame = Vec::new();
        while Instant::now() < end {
            while self.pair.recv_into(&mut frame).is_some() {
                if frame.get(12..14) == Some(&EXPERIMENTAL) {
                    let words = frame[14..].split(|byte| *byte == 0).next().unwrap_or_default();
                    let src = Mac(*frame[6..].first_chunk().unwrap());
                    return Some((src, String::from_utf8_lossy(words).into_owned()));
                }
            }
            let _ = self.pair.wait(WaitFor::Receive, Duration::from_millis(5));
        }
        None
    }

    fn must_hear(&mut self) -> (Mac, String) {
        self.hears(Duration::from_secs(60)).expect("a frame")
    }

    /// Whether nothing comes for a while in which much could.
    fn hears_nothing(&mut self) -> bool {
        self.hears(Duration::from_millis(300)).is_none()
    }

    /// Answers ARP and ping until it is told to end.
    fn answers(mut self, ip: Ipv4Addr, until: &AtomicBool) {
        let mut frame = Vec::new();
        while !until.load(Ordering::Relaxed) {
            while self.pair.recv_into(&mut frame).is_some() {
                if answer(&mut frame, self.mac, ip).is_some() {
                    let _ = self.pair.send(&frame, &Offload::NONE);
                }
            }
            self.pair.flush();
            let _ = self.pair.wait(WaitFor::Receive, Duration::from_millis(20));
        }
    }
}

const EXPERIMENTAL: [u8; 2] = [0x88, 0xb5];

fn experimental(dst: Mac, src: Mac, words: &str) -> Vec<u8> {
    let mut frame = [&dst.0[..], &src.0, &EXPERIMENTAL, words.as_bytes()].concat();
    frame.resize(60.max(frame.len() + 1), 0);
    frame
}

fn mac(last: u8) -> Mac {
    Mac([0x52, 0x54, 0, 0, 0x42, last])
}

fn vif(host: &Host, name: &str, network: &str, mac: Option<Mac>) -> String {
    let socket = host.socket(name);
    let mac = mac.map_or_else(String::new, |mac| format!("mac = \"{mac}\"\n"));
    format!("[vif.{name}]\nsocket = {socket:?}\nnetwork = \"{network}\"\n{mac}")
}

fn datagram(vni: u32, frame: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = vni.to_be_bytes();
    [&[8, 0, 0, 0, a, b, c, 0], frame].concat()
}

#[test]
fn root_tenants_with_the_same_addresses_on_two_hosts_hear_their_own_only() {
    if !weir_testing::is_root("network namespaces") {
        return;
    }
    let mut underlay = Underlay::new(3);
    for (n, other) in [(1, 2), (2, 1)] {
        let here = &underlay.hosts[n - 1];
        // The same address in both networks, and no host 3 in red.
        let vifs = ["blue", "red"].map(|network| vif(here, network, network, Some(mac(n as u8))));
        let networks: [(&str, u32, &[usize]); 2] =
            [("blue", 100, &[other, 3]), ("red", 200, &[other])];
        let config = Underlay::config(n, &networks, &vifs.concat());
        underlay.hosts[n - 1].start_weir(&config);
    }
    let [one, two] = [1, 2].map(|n| {
        let guest = |name: &str| underlay.hosts[n - 1].guest(name, mac(n as u8));
        ["blue", "red"].map(guest)
    });
    let ([mut blue1, mut red1], [mut blue2, mut red2]) = (one, two);

    // By a broadcast, then to where the answer came from.
    blue1.say(Mac::BROADCAST, "blue to all");
    assert_eq!(blue2.must_hear(), (mac(1), "blue to all".into()));
    red1.say(Mac::BROADCAST, "red to all");
    assert_eq!(red2.must_hear(), (mac(1), "red to all".into()));
    for round in 0..50 {
        let words = ["blue", "red"].map(|colour| format!("{colour} {round}"));
        blue2.say(mac(1), &words[0]);
        red2.say(mac(1), &words[1]);
        assert_eq!(blue1.must_hear(), (mac(2), words[0].clone()));
        assert_eq!(red1.must_hear(), (mac(2), words[1].clone()));
        blue1.say(mac(2), &words[0]);
        red1.say(mac(2), &words[1]);
        assert_eq!(blue2.must_hear(), (mac(1), words[0].clone()));
        assert_eq!(red2.must_hear(), (mac(1), words[1].clone()));
    }

    // Attacks. Each kind has its counter, and nobody hears anything.
    let forged = |vni, src: Mac| datagram(vni, &experimental(Mac::BROADCAST, src, "forged"));
    let send = |from: usize, datagrams: &[Vec<u8>]| {
        underlay.hosts[from - 1].within(|| {
            let socket = UdpSocket::bind((Ipv4Addr::new(192, 0, 2, from as u8), 0)).unwrap();
            for datagram in datagrams {
                socket.send_to(datagram, "192.0.2.1:4789").unwrap();
            }
        });
    };
    let first = &underlay.hosts[0];
    // Host 3 is no member of red; nobody has 300; what is no VXLAN.
    send(3, &[forged(200, mac(77)), forged(300, mac(77)), b"nonsense".to_vec(), Vec::new()]);
    // A member claims the address that is configured here, and sends a tag, and a frame that is none.
    let mut tagged = experimental(Mac::BROADCAST, mac(78), "forged");
    tagged[12..14].copy_from_slice(&[0x81, 0x00]);
    send(2, &[forged(100, mac(1)), datagram(100, &tagged), datagram(100, &[1; 13])]);
    let expected = [
        ("remote_unknown", 1),
        ("network_unknown", 1),
        ("bad_encapsulation", 3),
        ("src_mac_owned", 1),
        ("frame_too_short", 1),
    ];
    for (reason, count) in expected {
        eventually(reason, || (first.dropped("overlay", reason) == count).then_some(()));
    }
    assert!([&mut blue1, &mut red1].into_iter().all(Guest::hears_nothing));
    // The address is still the guest's.
    blue2.say(mac(1), "after the attack");
    assert_eq!(blue1.must_hear(), (mac(2), "after the attack".into()));

    // A tenant asks for the underlay's addresses: nobody answers, and what it sends to them goes nowhere else.
    let question = |target: [u8; 4]| {
        let arp = [&[0, 1, 8, 0, 6, 4, 0, 1][..], &mac(1).0, &[192, 0, 2, 99], &[0; 6], &target];
        [&[0xff; 6][..], &mac(1).0, &[8, 6], &arp.concat(), &[0; 18]].concat()
    };
    for last in [1, 2, 254] {
        blue1.send(&question([192, 0, 2, last]));
    }
    blue1.say(Mac::BROADCAST, "asked");
    assert_eq!(blue2.must_hear(), (mac(1), "asked".into()));
    let mut frame = Vec::new();
    assert!(blue1.pair.recv_into(&mut frame).is_none(), "an answer: {frame:?}");
    assert!(red2.hears_nothing() && red1.hears_nothing());

    // Nothing was lost on the way, and what a host got it did not send back.
    for n in [1, 2] {
        let stats = underlay.hosts[n - 1].run("weir stats --json");
        let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
        let overlay = stats["ports"].as_array().unwrap().iter().find(|it| it["name"] == "overlay");
        let drops = overlay.unwrap()["drops"].as_object().unwrap().clone();
        let known = |reason: &str| n == 1 && expected.iter().any(|(known, _)| *known == reason);
        assert!(drops.keys().all(|reason| known(reason)), "host {n}: {drops:?}");
    }
}

#[test]
fn root_tcp_flows_between_weirs_and_a_linux_bridge_with_the_kernels_vxlan() {
    if !weir_testing::is_root("network namespaces") {
        return;
    }
    let mut underlay = Underlay::new(3);
    for (n, peers) in [(1, [2, 3]), (2, [1, 3])] {
        let here = &underlay.hosts[n - 1];
        let probe =
            "[uplink.probe]\nkind = \"tap\"\nname = \"probe0\"\nnetwork = \"blue\"\nmtu = 1450\n";
        let ports = probe.to_owned() + &vif(here, "web0", "blue", None);
        let config = Underlay::config(n, &[("blue", 100, &peers[..])], &ports);
        underlay.hosts[n - 1].start_weir(&config);
        underlay.hosts[n - 1].run(&format!("ip addr add 10.0.0.{n}/24 dev probe0"));
    }
    let kernel = &underlay.hosts[2];
    // A veth leaves checksums and segments of what is inside to its other end, where a socket has nobody to do them. A
    // network card has done them before the wire.
    kernel.run("ethtool -K u0 tx off");
    kernel.run("ip link add br100 type bridge");
    kernel.run("ip link add vxlan100 type vxlan id 100 local 192.0.2.3 dstport 4789");
    for n in [1, 2] {
        kernel.run(&format!("bridge fdb append 00:00:00:00:00:00 dev vxlan100 dst 192.0.2.{n}"));
    }
    kernel.run("ip link set vxlan100 mtu 1450 master br100 up");
    kernel.run("ip link set br100 up");
    kernel.run("ip addr add 10.0.0.3/24 dev br100");

    let end = AtomicBool::new(false);
    thread::scope(|scope| {
        let _at_the_end = Sets(&end);
        let guests = [1, 2].map(|n: u8| {
            (
                underlay.hosts[usize::from(n) - 1].guest("web0", mac(n)),
                Ipv4Addr::new(10, 0, 0, 10 + n),
            )
        });
        for (guest, ip) in guests {
            let end = &end;
            scope.spawn(move || guest.answers(ip, end));
        }
        // Everybody reaches everybody: TAPs, the bridge, and guests behind rings.
        for (n, host) in (1..).zip(&underlay.hosts) {
            for target in [1, 2, 3, 11, 12].into_iter().filter(|target| *target != n) {
                let what = format!("host {n} reaches 10.0.0.{target}");
                // With the headers of IP and ICMP as long as the MTU.
                let target = Ipv4Addr::new(10, 0, 0, target);
                eventually(&what, || host.pings(target, 1422).then_some(()));
            }
        }
    });

    for (from, to) in [(1, 2), (2, 1), (1, 3), (3, 1), (3, 2)] {
        transfer(&underlay.hosts[from - 1], &underlay.hosts[to - 1], to as u8);
    }
    for n in [1, 2] {
        for reason in ["over_mtu_rx", "over_mtu_tx", "over_path_mtu", "bad_encapsulation"] {
            assert_eq!(underlay.hosts[n - 1].dropped("overlay", reason), 0, "host {n}: {reason}");
        }
    }
}

/// Sets it when this is dropped, by a panic too: who waits for it would wait for ever.
struct Sets<'a>(&'a AtomicBool);

impl Drop for Sets<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends some megabytes over TCP, which arrive unchanged.
fn transfer(from: &Host, to: &Host, address: u8) {
    const LEN: usize = 8 << 20;
    let sent: Vec<u8> = (0..LEN).map(|at| ((at * 131) >> 3) as u8).collect();
    let listener =
        to.within(|| TcpListener::bind((Ipv4Addr::new(10, 0, 0, address), 5001)).unwrap());
    thread::scope(|scope| {
        let receiver = scope.spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).unwrap();
            bytes
        });
        let mut stream =
            from.within(|| TcpStream::connect((Ipv4Addr::new(10, 0, 0, address), 5001)).unwrap());
        stream.write_all(&sent).unwrap();
        drop(stream);
        assert!(receiver.join().unwrap() == sent, "to 10.0.0.{address}: bytes differ");
    });
}

/// The blocks of a document with this language, each with the text line before it.
fn blocks<'d>(document: &'d str, language: &str) -> Vec<(&'d str, Vec<&'d str>)> {
    let (mut found, mut said, mut open) = (Vec::new(), "", None::<Vec<&str>>);
    for line in document.lines() {
        match &mut open {
            Some(lines) if line == "```" => {
                found.push((said, std::mem::take(lines)));
                open = None;
            }
            Some(lines) => lines.push(line),
            None if line == format!("```{language}") => open = Some(Vec::new()),
            None if line.is_empty() || line.starts_with("```") => {}
            None => said = line,
        }
    }
    found
}

#[test]
fn root_every_command_of_the_guide_for_two_hosts_works() {
    if !weir_testing::is_root("network namespaces") {
        return;
    }
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/two-hosts.md");
    let guide = fs::read_to_string(guide).unwrap();
    let mut underlay = Underlay::new(3);
    underlay.hosts[2].run("ethtool -K u0 tx off");
    let configurations = blocks(&guide, "toml");
    assert_eq!(configurations.len(), 2);
    for (said, lines) in configurations {
        let n = host_numbers(said);
        assert_eq!(n.len(), 1, "{said}");
        fs::write(underlay.hosts[n[0] - 1].dir.join("weir.toml"), lines.join("\n")).unwrap();
    }
    let mut commands = 0;
    for (said, lines) in blocks(&guide, "sh") {
        for n in host_numbers(said) {
            for line in &lines {
                commands += 1;
                let host = &mut underlay.hosts[n - 1];
                if let Some(line) = line.strip_suffix(" &") {
                    host.spawn_weir(line);
                } else if let Some(target) = line.strip_prefix("ping -c 3 ") {
                    eventually(line, || host.pings(target.parse().unwrap(), 56).then_some(()));
                } else {
                    host.run(line);
                }
            }
        }
    }
    assert!(commands >= 17, "{commands} commands");
}

/// The hosts that a line names: "On hosts 1 and 2, ...".
fn host_numbers(line: &str) -> Vec<usize> {
    let (_, after) = line.split_once("host").unwrap_or_else(|| panic!("no host: {line}"));
    let words = after.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words
        .map_while(|word| match word {
            "s" | "and" => Some(None),
            number => number.parse().ok().map(Some),
        })
        .flatten()
        .collect()
}
