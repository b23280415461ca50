//! A fabric: hosts as network namespaces, a routed underlay between them, and FRR on each host.
//!
//! ```text
//!  host 1, 192.0.2.1 --- u0 == r1 --- router, 192.0.2.254 --- r2 == u0 --- 192.0.2.2, host 2   ... and so on
//! ```
//!
//! A namespace lasts as long as its holder: a shell that waits for the end of this process, by any cause. The shell
//! then kills all processes in the namespace, which removes the interfaces too.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader},
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant, SystemTime},
};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketType, ipproto,
        sockopt::{Timeout, set_socket_timeout},
    },
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

use crate::{
    error::{Error, Result, check},
    lab::Lab,
    process::{Placement, Process, output_of, wait_until},
    weir::{Overlay, Setup, Vif, Weir},
};

/// Each host's interface in the underlay.
pub const INTERFACE: &str = "u0";
/// The underlay's 1500 bytes less the VXLAN headers.
pub const MTU: u32 = 1450;
/// The underlay's router. Host `n` is 192.0.2.n.
const ROUTER: &str = "192.0.2.254";
/// Directory of the daemons in Debian's package `frr`.
const DAEMONS: &str = "/usr/lib/frr";
const PATIENCE: Duration = Duration::from_secs(60);
/// Time between two echo requests to a watched address.
const WATCH_INTERVAL: Duration = Duration::from_millis(4);

/// Reports that the namespace exists. Ends all processes in the namespace when its standard input is closed.
const HOLDER: &str = "\
    [ /proc/1/ns/net -ef /proc/$$/ns/net ] && exit 1
    trap '' INT TERM HUP
    mount -t tmpfs none /run && ip link set lo up && echo ready && cat >/dev/null
    for it in /proc/[0-9]*; do
        pid=${it#/proc/}
        [ $it/ns/net -ef /proc/$$/ns/net ] && [ $pid != $$ ] && kill -KILL $pid
    done 2>/dev/null";

/// The address of host `n` in the underlay.
pub fn address(n: usize) -> Ipv4Addr {
    Ipv4Addr::new(192, 0, 2, n as u8)
}

/// The TAP by which a host takes part in the first network of a [`Fabric`].
const PROBE: &str = "probe0";

/// Host `n`'s own address in the first network.
pub fn probe(n: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, 200 + n as u8)
}

/// A host: a network namespace with its own `/run`. Its processes end when it is dropped.
pub struct Host {
    holder: Child,
    /// Directory of logs and sockets. Its path is the same outside the namespace.
    pub dir: PathBuf,
}

impl Host {
    /// A single host whose only interface is `lo`, in a new directory.
    pub fn new(dir: PathBuf) -> Result<Self> {
        fs::create_dir_all(&dir).map_err(Error::io("make", &dir))?;
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount", "sh", "-c", HOLDER]);
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let holder =
            piped.map_err(|source| Error::Io { what: "make a namespace".into(), source })?;
        let mut host = Self { holder, dir };
        let mut line = String::new();
        if let Some(out) = host.holder.stdout.take() {
            let read = BufReader::new(out).read_line(&mut line);
            read.map_err(Error::io("hear of", &host.dir))?;
        }
        check(line == "ready\n", || String::from("no namespace is to be had (see above)"))?;
        Ok(host)
    }

    /// The process that holds the host's namespaces.
    pub fn pid(&self) -> u32 {
        self.holder.id()
    }

    /// Placement of processes on this host.
    pub fn placement(&self) -> Placement {
        Placement { host: Some(self.pid()), ..Placement::default() }
    }

    /// A command line on this host, in the host's directory.
    pub fn command(&self, line: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.pid().to_string(), "--net", "--mount", "sh", "-c"]);
        command.arg(self.in_dir(line)).stdin(Stdio::null());
        command
    }

    fn in_dir(&self, line: &str) -> String {
        format!("cd {} && exec {line}", self.dir.display())
    }

    /// Runs a command line to its end and returns its standard output; an error unless it succeeds.
    pub fn run(&self, line: &str) -> Result<String> {
        output_of(self.command(line))
    }

    /// Starts a command line. Its output goes to `NAME.log` in the host's directory.
    pub fn start(&self, name: &str, line: &str) -> Result<Process> {
        let (line, log) = (self.in_dir(line), self.dir.join(format!("{name}.log")));
        Process::start_logged(&["sh", "-c", &line], &self.placement(), &log)
    }

    /// Runs `body` on a thread in the host's network namespace.
    pub fn within<T: Send>(&self, body: impl FnOnce() -> T + Send) -> Result<T> {
        let path = PathBuf::from(format!("/proc/{}/ns/net", self.pid()));
        let namespace = File::open(&path).map_err(Error::io("open", &path))?;
        let in_thread = || {
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(namespace.as_fd(), kind).map(|()| body())
        };
        let ended = thread::scope(|scope| scope.spawn(in_thread).join());
        let done = ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        done.map_err(|errno| Error::io("enter", &path)(errno.into()))
    }

    /// True if the address answers a ping of this many bytes. No program is needed: `ping` is not on every machine.
    pub fn pings(&self, ip: Ipv4Addr, bytes: usize) -> Result<bool> {
        self.within(|| Echo::open(ip)?.answers(bytes))?.map_err(self.no_ping(ip))
    }

    /// Pings an address every few milliseconds until `until` is set. Returns the times of the answers.
    pub fn watches(&self, ip: Ipv4Addr, until: &AtomicBool) -> Result<Vec<SystemTime>> {
        let watch = || {
            let (mut echo, mut seen) = (Echo::open(ip)?, Vec::new());
            set_socket_timeout(&echo.socket, Timeout::Recv, Some(WATCH_INTERVAL))?;
            while !until.load(Ordering::Relaxed) {
                let start = Instant::now();
                // A request that cannot be sent counts as unanswered.
                let _ = echo.ask(56);
                while start.elapsed() < WATCH_INTERVAL {
                    match echo.hears(56) {
                        Ok(true) => seen.push(SystemTime::now()),
                        Ok(false) => {}
                        Err(_) => break,
                    }
                }
            }
            Ok(seen)
        };
        self.within(watch)?.map_err(self.no_ping(ip))
    }

    fn no_ping(&self, ip: Ipv4Addr) -> impl Fn(Errno) -> Error {
        let what = format!("ping {ip} from {}", self.dir.display());
        move |errno| Error::Io { what: what.clone(), source: errno.into() }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

/// Echo requests (RFC 792).
struct Echo {
    socket: OwnedFd,
    ip: Ipv4Addr,
}

impl Echo {
    fn open(ip: Ipv4Addr) -> rustix::io::Result<Self> {
        let (family, kind) = (AddressFamily::INET, SocketType::RAW);
        let socket = rustix::net::socket(family, kind, Some(ipproto::ICMP))?;
        Ok(Self { socket, ip })
    }

    fn ask(&mut self, bytes: usize) -> rustix::io::Result<()> {
        // The checksum is a constant: the identifier is always the same and the payload is zeros.
        let mut request = vec![0; 8 + bytes];
        request[..8].copy_from_slice(&[8, 0, 0xb5, 0xfe, 0x42, 0x01, 0, 0]);
        let to = SocketAddrV4::new(self.ip, 0);
        rustix::net::sendto(&self.socket, &request, SendFlags::empty(), &to).map(drop)
    }

    /// True if the next packet is an answer of this length; an error if none comes in time.
    fn hears(&mut self, bytes: usize) -> rustix::io::Result<bool> {
        let mut answer = vec![0; 2048];
        let (len, _) = rustix::net::recv(&self.socket, &mut answer, RecvFlags::empty())?;
        // An echo reply follows the 20 bytes of the IP header and is as long as the request.
        let is_reply = answer[12..16] == self.ip.octets() && answer[20..22] == [0, 0];
        Ok(is_reply && len == 28 + bytes)
    }

    fn answers(&mut self, bytes: usize) -> rustix::io::Result<bool> {
        self.ask(bytes)?;
        set_socket_timeout(&self.socket, Timeout::Recv, Some(Duration::from_secs(2)))?;
        loop {
            match self.hears(bytes) {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(_) => return Ok(false),
            }
        }
    }
}

/// Hosts 1 to `count`. Each has its own link to a router.
pub struct Underlay {
    /// Host 1 first.
    pub hosts: Vec<Host>,
    /// The router between the hosts.
    pub router: Host,
}

impl Underlay {
    /// Makes a directory for each host below `dir`.
    pub fn new(dir: &Path, count: usize) -> Result<Self> {
        let router = Host::new(dir.join("router"))?;
        router.run("sysctl -qw net.ipv4.ip_forward=1")?;
        // The router sends no ICMP errors for disconnected hosts.
        router.run("ip route add blackhole 192.0.2.0/24")?;
        let hosts = (1..=count).map(|n| Self::host(dir, &router, n)).collect::<Result<_>>()?;
        Ok(Self { hosts, router })
    }

    fn host(dir: &Path, router: &Host, n: usize) -> Result<Host> {
        let host = Host::new(dir.join(format!("host{n}")))?;
        let (there, address) = (host.pid(), address(n));
        router.run(&format!("ip link add r{n} type veth peer name {INTERFACE} netns {there}"))?;
        router.run(&format!("ip addr add {ROUTER}/32 dev r{n}"))?;
        router.run(&format!("ip link set r{n} up"))?;
        router.run(&format!("ip route add {address}/32 dev r{n}"))?;
        host.run(&format!("ip addr add {address}/32 dev {INTERFACE}"))?;
        host.run(&format!("ip link set {INTERFACE} up"))?;
        host.run(&format!("ip route add {ROUTER}/32 dev {INTERFACE}"))?;
        host.run(&format!("ip route add default via {ROUTER}"))?;
        // BGP does not accept a default route as a route to a neighbour.
        host.run(&format!("ip route add 192.0.2.0/24 via {ROUTER}"))?;
        Ok(host)
    }

    /// Disconnects host `n` as a power failure would: no other host is notified.
    pub fn silence(&self, n: usize) -> Result<()> {
        self.router.run(&format!("ip link set r{n} down")).map(drop)
    }

    /// Bytes that host `n` has sent.
    pub fn sent_by(&self, n: usize) -> Result<u64> {
        let text = self.router.run(&format!("ip -s -j link show dev r{n}"))?;
        let link: Option<serde_json::Value> = serde_json::from_str(&text).ok();
        let bytes = link.and_then(|link| link[0]["stats64"]["rx"]["bytes"].as_u64());
        bytes.ok_or_else(|| Error::parse("a link's statistics", text))
    }
}

/// Environment variable with the root of another system (made by debootstrap) whose FRR is used.
pub const FRR_ROOT: &str = "WEIR_FRR_ROOT";

/// A command line in FRR's system: this system or the root in [`FRR_ROOT`].
pub fn of_frr(line: &str) -> String {
    match frr_root() {
        Some(root) => format!("chroot {} {line}", root.display()),
        None => line.to_owned(),
    }
}

fn frr_root() -> Option<PathBuf> {
    std::env::var_os(FRR_ROOT).filter(|root| !root.is_empty()).map(PathBuf::from)
}

/// Mounts into the other root the parts of the host that FRR needs. The mounts are visible on this host only.
fn enter_frr_root(host: &Host) -> Result<()> {
    let Some(root) = frr_root() else { return Ok(()) };
    let root = root.display();
    if host.run(&format!("mountpoint -q {root}/run")).is_ok() {
        return Ok(());
    }
    host.run("mkdir -p /etc/frr")?;
    for shared in ["/run", "/dev", "/proc", "/etc/frr"] {
        host.run(&format!("mount --bind {shared} {root}{shared}"))?;
    }
    Ok(())
}

/// Unmodified FRR on a host. It ends when it is dropped.
pub struct Frr {
    /// `zebra`, `bfdd` if there is BFD, and `bgpd` last.
    pub daemons: Vec<Process>,
}

impl Frr {
    /// Starts FRR on host `n`, with `others` as neighbours. If BFD is used, it sends every `bfd_ms`, and a host that
    /// misses three messages is down.
    pub fn start(host: &Host, n: usize, others: &[usize], bfd_ms: Option<u32>) -> Result<Self> {
        Self::prepare(host)?;
        let path = host.dir.join("frr.conf");
        fs::write(&path, config(n, others, bfd_ms)).map_err(Error::io("write", &path))?;
        host.run("cp frr.conf /run/frr/frr.conf")?;
        let all = ["zebra", "bfdd", "bgpd"];
        let wanted = |name: &&str| *name != "bfdd" || bfd_ms.is_some();
        Self::with(host, "/run/frr/frr.conf", &all.into_iter().filter(wanted).collect::<Vec<_>>())
    }

    /// Makes the directory of FRR's sockets.
    pub fn prepare(host: &Host) -> Result<()> {
        enter_frr_root(host)?;
        host.run(&of_frr("install -d -o frr -g frr /run/frr")).map(drop)
    }

    /// Starts `daemons` with the configuration file of a host that is [prepared](Self::prepare).
    pub fn with(host: &Host, config: &str, daemons: &[&str]) -> Result<Self> {
        let start = |name: &&str| {
            let line = format!("{DAEMONS}/{name} -f {config} --log stdout");
            let daemon = host.start(name, &of_frr(&line))?;
            let socket = format!("test -S /run/frr/{name}.vty");
            wait_until(name, PATIENCE, || Ok(host.run(&socket).is_ok()))?;
            Ok(daemon)
        };
        Ok(Self { daemons: daemons.iter().map(start).collect::<Result<_>>()? })
    }

    /// The version of FRR in the system at `root`; `None` if it has none.
    pub fn version_in(root: &Path) -> Option<String> {
        if !Self::is_in(root) {
            return None;
        }
        let program = format!("{DAEMONS}/bgpd");
        let said = Command::new("chroot").arg(root).args([&program, "--version"]).output().ok()?;
        let said = String::from_utf8_lossy(&said.stdout);
        let first = said.lines().next().filter(|line| !line.is_empty());
        Some(first.unwrap_or("FRR of an unknown version").to_owned())
    }

    /// The version of the FRR in use.
    pub fn version() -> Option<String> {
        Self::version_in(&frr_root().unwrap_or_else(|| PathBuf::from("/")))
    }

    /// True if FRR is installed.
    pub fn is_installed() -> bool {
        Self::is_in(&frr_root().unwrap_or_else(|| PathBuf::from("/")))
    }

    /// True if FRR is installed in the system at `root`.
    pub fn is_in(root: &Path) -> bool {
        root.join(DAEMONS.trim_start_matches('/')).join("bgpd").exists()
    }
}

impl Drop for Frr {
    fn drop(&mut self) {
        // BGP ends before the daemons that it needs.
        while self.daemons.pop().is_some() {}
    }
}

fn config(n: usize, others: &[usize], bfd_ms: Option<u32>) -> String {
    let here = address(n);
    let mut text =
        format!("router bgp 65000\n bgp router-id {here}\n no bgp default ipv4-unicast\n");
    for other in others.iter().map(|n| address(*n)) {
        text += &format!(" neighbor {other} remote-as 65000\n neighbor {other} timers connect 1\n");
        if bfd_ms.is_some() {
            text += &format!(" neighbor {other} bfd profile fast\n");
        }
    }
    text += " address-family l2vpn evpn\n";
    for other in others.iter().map(|n| address(*n)) {
        text += &format!("  neighbor {other} activate\n");
    }
    text += "  advertise-all-vni\n exit-address-family\n";
    if let Some(ms) = bfd_ms {
        text += &format!(
            "bfd\n profile fast\n  transmit-interval {ms}\n  receive-interval {ms}\n  detect-multiplier 3\n"
        );
    }
    text
}

/// A fabric: FRR and weir on each of its hosts.
pub struct Fabric {
    /// weir on each host, host 1 first; `None` on a host that is down.
    pub weirs: Vec<Option<Weir>>,
    /// FRR on each host, host 1 first.
    pub frr: Vec<Frr>,
    /// The underlay is dropped last.
    pub underlay: Underlay,
}

impl Fabric {
    /// Starts `count` hosts with the same interfaces on each, in `networks` (name and VNI).
    pub fn start(
        lab: &Lab,
        count: usize,
        networks: &[(&'static str, u32)],
        vifs: &[Vif],
        bfd_ms: Option<u32>,
    ) -> Result<Self> {
        let underlay = Underlay::new(&lab.workspace.run_dir("fabric")?, count)?;
        let (mut frr, mut weirs) = (Vec::new(), Vec::new());
        for (n, host) in (1..).zip(&underlay.hosts) {
            let others: Vec<_> = (1..=count).filter(|other| *other != n).collect();
            frr.push(Frr::start(host, n, &others, bfd_ms)?);
        }
        for (n, host) in (1..).zip(&underlay.hosts) {
            // A TAP would announce itself with a temporary IPv6 address. Some kernels have no IPv6.
            let _ = host.run("sysctl -qw net.ipv6.conf.default.disable_ipv6=1");
            let overlay = Overlay { local: address(n), networks: networks.to_vec(), probe: PROBE };
            let vifs = vifs.to_vec();
            let setup = Setup { vifs, overlay: Some(overlay), ..Setup::default() };
            weirs.push(Some(Weir::start_on(host, lab, &setup)?));
            host.run(&format!("ip link set {PROBE} address 52:54:00:77:01:{n:02x}"))?;
            host.run(&format!("ip addr add {}/24 dev {PROBE}", probe(n)))?;
        }
        Ok(Self { weirs, frr, underlay })
    }

    /// The weir of host `n`.
    pub fn weir(&self, n: usize) -> Result<&Weir> {
        let weir = self.weirs.get(n - 1).and_then(Option::as_ref);
        weir.ok_or_else(|| Error::Check(format!("host {n} is dead")))
    }

    /// The host behind which host `n` has an address of a network; `None` if the address is behind no host.
    pub fn behind(&self, n: usize, network: &str, mac: &str) -> Result<Option<Ipv4Addr>> {
        let text = self.weir(n)?.control(&["addresses", "--json"])?;
        let all: Vec<serde_json::Value> =
            serde_json::from_str(&text).map_err(|_| Error::parse("addresses", text))?;
        let entry = all.iter().find(|it| it["network"] == network && it["mac"] == mac);
        Ok(entry.and_then(|entry| entry["host"].as_str()?.parse().ok()))
    }

    /// Waits until host `n` knows that an address of a network is at host `at`.
    pub fn await_at(&self, n: usize, network: &str, mac: &str, at: usize) -> Result<()> {
        let what = format!("host {n} to know {mac} of {network} at host {at}");
        wait_until(&what, PATIENCE, || Ok(self.behind(n, network, mac)? == Some(address(at))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_neighbour_is_named_activated_and_watched() {
        let text = config(2, &[1, 3], Some(100));
        let lines = |part: &str| text.lines().filter(|line| line.contains(part)).count();
        assert_eq!((lines("remote-as 65000"), lines("activate"), lines("bfd profile")), (2, 2, 2));
        assert!(text.contains("router-id 192.0.2.2") && text.contains("transmit-interval 100"));
        assert!(!config(1, &[2], None).contains("bfd"));
    }
}
