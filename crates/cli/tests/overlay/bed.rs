//! Hosts of the test bed, with weirs and guests.

use std::fs;
use std::net::Ipv4Addr;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use weir_bed::fabric;
use weir_bed::process::{Process, output_of};
use weir_testing::document::blocks;
use weir_testing::echo::answer;
use weir_testing::eventually;
use weir_vif::{Options, QueuePair, Vif, WaitFor};
use weir_wire::{Mac, Offload};

/// A host of the test bed with its weir. A failure on the host fails the test.
pub(crate) struct Host {
    // weir ends before its host.
    pub(crate) weir: Option<Process>,
    host: fabric::Host,
}

impl Deref for Host {
    type Target = fabric::Host;

    fn deref(&self) -> &fabric::Host {
        &self.host
    }
}

impl Host {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { weir: None, host: fabric::Host::new(dir).unwrap() }
    }

    /// A command in the host's directory, with weir in its search path.
    pub(crate) fn command(&self, line: &str) -> Command {
        let mut command = self.host.command(line);
        command.env("PATH", path());
        command
    }

    pub(crate) fn run(&self, line: &str) -> String {
        output_of(self.command(line)).unwrap()
    }

    pub(crate) fn start_weir(&mut self, config: &str) {
        fs::write(self.dir.join("weir.toml"), config).unwrap();
        self.spawn_weir("weir run weir.toml");
    }

    pub(crate) fn spawn_weir(&mut self, line: &str) {
        let line = format!("env PATH={} {line}", path());
        self.weir = Some(self.host.start("weir", &line).unwrap());
        eventually("weir serves", || {
            self.command("weir stats --json").output().ok().filter(|it| it.status.success())
        });
    }

    /// True if an address answers a ping with this many bytes.
    pub(crate) fn pings(&self, ip: Ipv4Addr, bytes: usize) -> bool {
        self.host.pings(ip, bytes).unwrap()
    }

    /// Runs a thread in the host's network.
    pub(crate) fn within<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        self.host.within(body).unwrap()
    }

    /// The frames that a port of the host's weir has dropped for a reason.
    pub(crate) fn dropped(&self, port: &str, reason: &str) -> u64 {
        let stats: serde_json::Value =
            serde_json::from_str(&self.run("weir stats --json")).unwrap();
        let ports = stats["ports"].as_array().unwrap();
        let port = ports.iter().find(|it| it["name"] == port).unwrap();
        port["drops"][reason].as_u64().unwrap_or(0)
    }

    /// The path of an interface's socket, as the test sees it.
    pub(crate) fn socket(&self, vif: &str) -> PathBuf {
        self.dir.join(format!("{vif}.sock"))
    }

    pub(crate) fn guest(&self, vif: &str, mac: Mac) -> Guest {
        let socket = self.socket(vif);
        let mut vif =
            eventually("a guest connects", || Vif::connect(&socket, &Options::new(mac)).ok());
        let pair = vif.queue_pairs().remove(0);
        Guest { _vif: vif, pair, mac }
    }
}

/// The search path of programs, beginning with weir's directory.
fn path() -> String {
    let weir = Path::new(env!("CARGO_BIN_EXE_weir")).parent().unwrap();
    format!("{}:{}", weir.display(), std::env::var("PATH").unwrap_or_default())
}

/// Hosts 1 to `count` at 192.0.2.1 and so on, each connected to a router by its own link.
pub(crate) struct Underlay {
    pub(crate) hosts: Vec<Host>,
    pub(crate) router: fabric::Host,
    _dir: tempfile::TempDir,
}

impl Underlay {
    pub(crate) fn new(count: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let fabric::Underlay { hosts, router } = fabric::Underlay::new(dir.path(), count).unwrap();
        let hosts = hosts.into_iter().map(|host| Host { weir: None, host }).collect();
        Self { hosts, router, _dir: dir }
    }

    /// Also gives each host `n` the address 2001:db8::n.
    pub(crate) fn speak_ipv6(&self) {
        let router = |line: &str| self.router.run(line).unwrap();
        router("sysctl -qw net.ipv6.conf.all.forwarding=1");
        for (n, host) in (1..).zip(&self.hosts) {
            router(&format!("ip addr add 2001:db8::ffff/128 dev r{n} nodad"));
            router(&format!("ip route add 2001:db8::{n}/128 dev r{n}"));
            host.run(&format!("ip addr add 2001:db8::{n}/128 dev u0 nodad"));
            host.run("ip route add 2001:db8::ffff/128 dev u0");
            host.run("ip route add 2001:db8::/64 via 2001:db8::ffff");
        }
    }

    /// A configuration with [IPv6](Self::speak_ipv6) addresses in place of the IPv4 ones.
    pub(crate) fn in_ipv6(config: &str) -> String {
        config.replace("192.0.2.", "2001:db8::")
    }

    /// The configuration of host `n` with these networks (name, VNI, other hosts) and ports.
    pub(crate) fn config(n: usize, networks: &[(&str, u32, &[usize])], ports: &str) -> String {
        let mut text = format!("[overlay]\nlocal = \"192.0.2.{n}\"\ninterface = \"u0\"\n");
        for (name, vni, peers) in networks {
            let peers: Vec<_> = peers.iter().map(|n| format!("\"192.0.2.{n}\"")).collect();
            text += &format!("[network.{name}]\nvni = {vni}\npeers = [{}]\n", peers.join(", "));
        }
        text + ports
    }
}

/// A guest that a test drives.
pub(crate) struct Guest {
    _vif: Vif,
    pub(crate) pair: QueuePair,
    mac: Mac,
}

impl Guest {
    pub(crate) fn send(&mut self, frame: &[u8]) {
        self.pair.send(frame, &Offload::NONE).unwrap();
        self.pair.flush();
    }

    /// Sends a frame of an experimental type that contains words.
    pub(crate) fn say(&mut self, dst: Mac, words: &str) {
        let frame = experimental(dst, self.mac, words);
        self.send(&frame);
    }

    /// The sender and the words of the next frame of that type. Other frames are skipped.
    pub(crate) fn hears(&mut self, patience: Duration) -> Option<(Mac, String)> {
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

    pub(crate) fn must_hear(&mut self) -> (Mac, String) {
        self.hears(Duration::from_secs(60)).expect("a frame")
    }

    /// True if no such frame arrives for a while.
    pub(crate) fn hears_nothing(&mut self) -> bool {
        self.hears(Duration::from_millis(300)).is_none()
    }

    /// Answers ARP and ping until it is stopped.
    pub(crate) fn answers(&mut self, ip: Ipv4Addr, until: &AtomicBool) {
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

pub(crate) const EXPERIMENTAL: [u8; 2] = [0x88, 0xb5];

pub(crate) fn experimental(dst: Mac, src: Mac, words: &str) -> Vec<u8> {
    let mut frame = [&dst.0[..], &src.0, &EXPERIMENTAL, words.as_bytes()].concat();
    frame.resize(60.max(frame.len() + 1), 0);
    frame
}

pub(crate) fn mac(last: u8) -> Mac {
    Mac([0x52, 0x54, 0, 0, 0x42, last])
}

pub(crate) fn vif(host: &Host, name: &str, network: &str, mac: Option<Mac>) -> String {
    let socket = host.socket(name);
    let mac = mac.map_or_else(String::new, |mac| format!("mac = \"{mac}\"\n"));
    format!("[vif.{name}]\nsocket = {socket:?}\nnetwork = \"{network}\"\n{mac}")
}

pub(crate) fn datagram(vni: u32, frame: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = vni.to_be_bytes();
    [&[8, 0, 0, 0, a, b, c, 0], frame].concat()
}

/// The hosts named in a line: "On hosts 1 and 2, ...".
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

/// A document whose commands are tested.
pub(crate) struct Guide(String);

impl Guide {
    pub(crate) fn read(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide").join(name);
        Self(fs::read_to_string(path).unwrap())
    }

    /// Writes each file of the document in this language on its host.
    pub(crate) fn write(&self, underlay: &Underlay, language: &str, path: &str, count: usize) {
        let files = blocks(&self.0).into_iter().filter(|block| block.language == language);
        let files: Vec<_> = files.collect();
        assert_eq!(files.len(), count);
        for file in files {
            let n = host_numbers(file.said);
            assert_eq!(n.len(), 1, "{}", file.said);
            let host = &underlay.hosts[n[0] - 1];
            fs::write(host.dir.join("file"), file.lines.join("\n") + "\n").unwrap();
            host.run(&format!("cp file {path}"));
        }
    }

    /// Runs the document's commands, except for those that `knows` has run in its own way; returns their number.
    pub(crate) fn run(
        &self,
        underlay: &mut Underlay,
        mut knows: impl FnMut(&Host, &str) -> bool,
    ) -> usize {
        let mut commands = 0;
        for block in blocks(&self.0).iter().filter(|block| block.language == "sh") {
            for n in host_numbers(block.said) {
                for (_, line) in &block.commands() {
                    commands += 1;
                    let host = &mut underlay.hosts[n - 1];
                    if knows(host, line) {
                        continue;
                    }
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
        commands
    }
}
