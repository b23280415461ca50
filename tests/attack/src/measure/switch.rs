//! The attacked weir.
//!
//! Facts about weir from `/proc`.
//!
//! Answers of the HTTP API, in the parts that attacks need.

use std::{
    fmt::Write as _,
    fs,
    io::{self, BufRead, BufReader, Write},
    net::{Ipv4Addr, Ipv6Addr, TcpListener, UdpSocket},
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use procfs::process::{Process, Status};
use rustix::process::{Pid, Signal, kill_process};

use super::attacker::SOMEBODY;
use crate::attack::Setting;

/// The name of the control socket.
pub const CONTROL: &str = "control.sock";
/// The name of the keeper's socket.
pub const KEEPER: &str = "keeper.sock";
/// Number of the attacker's interfaces. This many front ends with all queues once used up all descriptors.
pub const EVILS: usize = 20;
/// Addresses of the two guests that exchange frames, and of a gateway that does not exist.
pub const ADDRESSES: [[u8; 6]; 3] =
    [[0x52, 0x54, 0, 0, 0, 0xa], [0x52, 0x54, 0, 0, 0, 0xb], [0x52, 0x54, 0, 0, 0, 1]];
/// The gateway's address.
pub const GATEWAY: [u8; 6] = ADDRESSES[2];

/// Number of interfaces of the one tenant. This many front ends once used up all memory that may be mapped.
pub const TENANTS: usize = 104;
/// A directory of a tenant, in which weir connects to sockets.
pub const CALLS: &str = "calls";
/// A path in that directory, with the same name as one of weir's own sockets.
pub const CALLER: &str = "within/evil19.sock";
/// A directory in which sockets make interfaces on demand, and the most such interfaces at a time.
pub const DEMAND: &str = "demand";
/// See [`DEMAND`].
pub const DEMANDED: usize = 4;
/// Files with configured values for attackers: the API's TCP port.
pub const API_PORT: &str = "api.port";
/// The overlay's UDP port.
pub const OVERLAY_PORT: &str = "overlay.port";
/// The underlay addresses of weir and its peer.
pub const UNDERLAY: [[u8; 4]; 2] = [[192, 0, 2, 1], [192, 0, 2, 2]];
/// The underlay addresses of weir and its peer by IPv6.
pub const UNDERLAY6: [[u8; 16]; 2] = [host6(1), host6(2)];
/// The interface to the underlay.
pub const CABLE: &str = "under0";
/// The VNI of the only network.
pub const VNI: u32 = 100;
/// Packets per second that `limited` may send and `limited_rx` may receive.
pub const PACKETS: u32 = 1000;

/// A guest in the group `web`, which has [`OPEN_PORT`] open.
pub const GROUPED: &str = "grouped";
/// The port.
pub const OPEN_PORT: u16 = 80;
/// A guest in the group `closed`, to which nobody may open a connection.
pub const SHUT: &str = "shut";
/// weir's own address in the network `green`, in which `asker0` and `asker1` are.
pub const GREEN: [u8; 4] = [10, 77, 0, 1];
/// weir's IPv6 address in `green`, of a subnet of which weir gives addresses.
pub const GREEN6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1);
/// The first and the last address that weir gives in that subnet: as many as one guest may have.
pub const GIVEN: [[u8; 4]; 2] = [[10, 77, 0, 100], [10, 77, 0, 115]];
/// The address of the guest `secret`, in another network.
pub const SECRET: [u8; 4] = [10, 78, 0, 9];
/// The host's resolver, which answers nobody.
pub const RESOLVER: [u8; 4] = UNDERLAY[1];

/// Two guests whose network has a way out by the host, and two whose network's members FRR says. Only root has either.
pub const ROUTED: [&str; 2] = ["routed0", "routed1"];
/// See [`ROUTED`].
pub const FABRIC: [&str; 2] = ["fabric0", "fabric1"];
/// Two guests in the VLAN of a bond with LACP. Only root has it.
pub const BONDED: [&str; 2] = ["bonded0", "bonded1"];
/// Two guests in the VLAN of an AF_XDP uplink, and the numbers of their addresses. Only root has it.
pub const CARDED: [&str; 2] = ["carded0", "carded1"];
/// See [`CARDED`].
pub const CARDED_NUMBERS: [u8; 2] = [212, 213];
/// The directories of the attacked weir, and of another one beside it.
pub const DIRS: [&str; 2] = ["a", "b"];
/// Their interfaces of the host, by [`number`].
pub const WIRES: [&str; 2] = ["wire97", "wire98"];

/// Threads of [`Setting::Open`] alone, each of an option that opens sockets. `true`: of one that takes root.
const OF_OPTIONS: [(&str, bool); 7] = [
    ("weir-keeper", false),
    ("weir-on-demand", false),
    ("weir-stream", false),
    ("weir-gateway", false),
    ("weir-names", false),
    ("weir-evpn", true),
    ("weir-bond", true),
];

/// The socket of the program behind the stream uplink, and two guests in that VLAN.
pub const PROGRAM: &str = "program.sock";
/// See [`PROGRAM`].
pub const NEAR: [&str; 2] = ["near0", "near1"];
/// The numbers of their addresses.
pub const NEAR_NUMBERS: [u8; 2] = [210, 211];

const PATIENCE: Duration = Duration::from_secs(60);

/// A host of the underlay.
pub const fn host6(number: u8) -> [u8; 16] {
    [0xfd, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, number]
}

/// The number of the weir in this directory. Two weirs share a network namespace, and each has interfaces, networks and
/// addresses of its own there.
pub fn number(dir: &Path) -> u8 {
    dir.file_name().and_then(|name| name.as_encoded_bytes().first().copied()).unwrap_or(0)
}

/// The host's address in the network of [`ROUTED`], at which weir answers for names.
pub fn way_out(dir: &Path) -> Ipv4Addr {
    Ipv4Addr::new(10, 79, number(dir), 1)
}

/// The interface that the weir in this directory has by AF_XDP.
pub fn card(dir: &Path) -> String {
    format!("card{}", number(dir))
}

/// A running weir. It is ended when it is dropped.
#[derive(Debug)]
pub struct Switch {
    child: Child,
    keeper: Option<Child>,
    dir: PathBuf,
}

/// Two isolated guests, and one in their VLAN that is not.
pub const FENCED: [&str; 3] = ["fenced0", "fenced1", "unfenced"];

/// Interfaces of a network with multicast snooping: a multicast router, and two guests.
pub const TV_ROUTER: &str = "tv_router";
/// See [`TV_ROUTER`].
pub const TV_MEMBER: &str = "tv_member";
/// See [`TV_ROUTER`].
pub const TV_GUEST: &str = "tv_guest";

/// The group of readers, which exists on every Linux.
const READERS: &str = "users";

/// The ID of the group of readers; `None` if there is no such group.
pub fn readers() -> Option<u32> {
    let groups = fs::read_to_string("/etc/group").ok()?;
    let group = groups.lines().find_map(|line| line.strip_prefix(READERS)?.strip_prefix(':'))?;
    group.split(':').nth(1)?.parse().ok()
}

/// The attacker's interfaces have storm control, as between tenants, except the interface `stormy`. `bridge` and
/// `bridge2` may send from any address. Frames of `watched` in both directions are copied to `mirror`.
fn configuration(dir: &Path, setting: Setting) -> std::io::Result<String> {
    let open = setting == Setting::Open;
    let mut text = format!("[switch]\nworkers = 1\ncontrol = {:?}\n", dir.join(CONTROL));
    text += &if open { options(dir)? } else { group() };
    text += "\n[network.tv]\nvlan = 22\nmulticast_snooping = true\n";
    let mut vif = |name: &str, keys: &str| {
        let socket = dir.join(format!("{name}.sock"));
        let _ = write!(text, "\n[vif.{name}]\nsocket = {socket:?}\nsocket_mode = \"0666\"\n{keys}");
    };
    for (name, mac) in ["a", "b", "gateway"].into_iter().zip(ADDRESSES) {
        let [a, b, c, d, e, f] = mac;
        vif(name, &format!("mac = \"{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}\"\n"));
    }
    vif("newcomer", "");
    vif("limited", &format!("packets_per_second = {PACKETS}\n"));
    vif("limited_rx", &format!("rx_packets_per_second = {PACKETS}\n"));
    let storms =
        "broadcasts_per_second = 100\nmulticasts_per_second = 100\nunknown_per_second = 100\n";
    for number in 0..EVILS {
        let agent = dir.join(format!("evil{number}.agent"));
        let agent = if open { format!("agent = {agent:?}\n") } else { String::new() };
        vif(
            &format!("evil{number}"),
            &format!("queues = 8\naccess_platform = true\n{agent}{storms}"),
        );
    }
    vif("stormy", "queues = 8\n");
    vif("bridge", &format!("mac_check = false\n{storms}"));
    vif("bridge2", &format!("mac_check = false\n{storms}"));
    vif("trunk", &format!("trunk = [1, 2]\n{storms}"));
    vif("watched", storms);
    for name in FENCED {
        vif(name, &format!("vlan = 24\nisolated = {}\n", name != FENCED[2]));
    }
    for (name, router) in [(TV_ROUTER, true), (TV_MEMBER, false), (TV_GUEST, false)] {
        vif(name, &format!("network = \"tv\"\nmulticast_router = {router}\n"));
    }
    vif("mirror", "mirror = [\"watched\"]\n");
    if open {
        for number in 0..TENANTS {
            vif(&format!("tenant{number}"), storms);
        }
        vif("away", "network = \"blue\"\n");
        vif(GROUPED, "groups = [\"web\"]\n");
        vif(SHUT, "groups = [\"closed\"]\n");
        for name in ["asker0", "asker1"] {
            vif(name, &format!("network = \"green\"\n{storms}"));
        }
        vif("secret", "network = \"red\"\n");
        for (name, number) in NEAR.into_iter().zip(NEAR_NUMBERS) {
            vif(name, &format!("vlan = 23\nmac = \"52:54:00:ee:00:{number:02x}\"\n"));
        }
        if rustix::process::geteuid().is_root() {
            let places = [(ROUTED, "network = \"out\""), (FABRIC, "network = \"fabric\"")];
            for (names, place) in places.into_iter().chain([(BONDED, "vlan = 26")]) {
                for name in names {
                    vif(name, &format!("{place}\n"));
                }
            }
            for (name, number) in CARDED.into_iter().zip(CARDED_NUMBERS) {
                vif(name, &format!("vlan = 27\nmac = \"52:54:00:ee:00:{number:02x}\"\n"));
            }
        }
        let program = dir.join(PROGRAM);
        let _ =
            write!(text, "\n[uplink.program]\nkind = \"stream\"\npath = {program:?}\nvlan = 23\n");
        let calls = dir.join(CALLS).join(CALLER);
        let _ = write!(text, "\n[vif.caller]\nmode = \"client\"\nsocket = {calls:?}\n");
        let demand = dir.join(DEMAND);
        let _ = write!(
            text,
            "\n[vif-on-demand.\"demand-*\"]\ndirectory = {demand:?}\nmax = {DEMANDED}\nforget_s = 1\n"
        );
    }
    Ok(text)
}

/// The key `group`, if there are readers.
fn group() -> String {
    let has = rustix::process::geteuid().is_root() && readers().is_some();
    if has { format!("group = {READERS:?}\n") } else { String::new() }
}

/// The keys of `[switch]` that open sockets, and `[overlay]`.
fn options(dir: &Path) -> std::io::Result<String> {
    let tcp = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    fs::write(dir.join(API_PORT), tcp.port().to_string())?;
    let token = dir.join("token");
    fs::write(&token, "0123456789abcdef0123456789abcdef\n")?;
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600))?;
    let within = dir.join(CALLS).join(CALLER);
    for tenants in [&dir.join(CALLS), &dir.join(DEMAND), within.parent().unwrap_or(dir)] {
        fs::create_dir_all(tenants)?;
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(tenants, Some(SOMEBODY), Some(SOMEBODY))?;
        }
    }
    let [mut own, peer] = UNDERLAY.map(Ipv4Addr::from);
    let udp = if rustix::process::geteuid().is_root() {
        UdpSocket::bind((own, 0))?
    } else {
        // There is no underlay without root, but the socket is still opened.
        own = Ipv4Addr::LOCALHOST;
        UdpSocket::bind((own, 0))?
    };
    let udp = udp.local_addr()?.port();
    fs::write(dir.join(OVERLAY_PORT), udp.to_string())?;
    let [green, secret] = [GREEN, SECRET].map(Ipv4Addr::from);
    let [first, last] = GIVEN.map(Ipv4Addr::from);
    let [router, red] =
        [(GREEN, 254), (SECRET, 1)].map(|([a, b, c, _], d)| Ipv4Addr::new(a, b, c, d));
    let rule = |protocol: &str| {
        format!("{{ direction = \"in\", protocol = \"{protocol}\", ports = \"{OPEN_PORT}\" }},\n")
    };
    let rules = ["tcp", "udp"].map(rule).concat();
    let [evpn, of_root] = if rustix::process::geteuid().is_root() {
        ["evpn = true\n".into(), of_root(dir)]
    } else {
        [String::new(), String::new()]
    };
    Ok(format!(
        "keeper = {:?}\napi_listen = \"{tcp}\"\napi_token_file = {token:?}\n{}\
         \n[overlay]\nlocal = \"{own}\"\nport = {udp}\n{evpn}\
         \n[network.blue]\nvni = {VNI}\npeers = [\"{peer}\"]\n\
         \n[network.green]\nvlan = 20\naddress = [\"{green}/24\", \"{GREEN6}/64\"]\nra = true\ndhcp6 = true\ndhcp = true\nrange = \"{first}-{last}\"\nrouter = \"{router}\"\n\
         \n[network.red]\nvlan = 21\naddress = \"{red}/24\"\ndhcp = true\nfixed = [\"secret {secret}\"]\n\
         \n[group.closed]\n\n[group.web]\nrules = [\n{rules}]\n{of_root}",
        dir.join(KEEPER),
        group(),
    ))
}

/// Networks and uplinks that take root: a way out by the host, a network whose members FRR says, a bond of an interface
/// of the host and a TAP, and an interface by AF_XDP.
fn of_root(dir: &Path) -> String {
    let (number, own) = (number(dir), way_out(dir));
    format!(
        "\n[network.out]\nvlan = 25\naddress = \"{own}/24\"\ndhcp = true\nnat = true\ninterface = \"out{number}\"\n\
         \n[network.fabric]\nvni = 1{number:03}\n\
         \n[uplink.tap]\nkind = \"tap\"\nname = \"tap{number}\"\n\
         \n[uplink.wire]\nkind = \"af_packet\"\nname = \"wire{number}\"\n\
         \n[uplink.card]\nkind = \"af_xdp\"\nname = \"card{number}\"\nvlan = 27\n\
         \n[bond.both]\nuplinks = [\"wire\", \"tap\"]\nmode = \"lacp\"\nlacp_rate = \"fast\"\nvlan = 26\n"
    )
}

/// Runs `ip` with these arguments.
pub fn ip(line: &str) -> Result<(), String> {
    let output = Command::new("ip").args(line.split(' ')).output();
    let output = output.map_err(|error| format!("ip: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("`ip {line}`: {}", said.trim())) }
}

/// Makes a pair of veth devices unless there is one, and brings it up. The far end is `WIRE-end`.
pub fn lay(wire: &str) -> Result<(), String> {
    // The files below /sys are those of another network namespace.
    if ip(&format!("link show dev {wire}")).is_err() {
        ip(&format!("link add {wire} type veth peer name {wire}-end"))?;
    }
    ip(&format!("link set {wire}-end up"))?;
    ip(&format!("link set {wire} up"))
}

/// Starts the keeper that is in the directory of `weir`.
pub fn keeper(weir: &Path, dir: &Path) -> Result<Child, String> {
    let (program, socket) = (weir.with_file_name("weir-keeper"), dir.join(KEEPER));
    let mut command = Command::new(&program);
    command.arg(&socket).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let child = command.spawn().map_err(|error| format!("{}: {error}", program.display()))?;
    let end = Instant::now() + PATIENCE;
    while !socket.exists() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(child)
}

impl Switch {
    /// Starts `weir` in `dir` and waits for its sockets.
    pub fn start(weir: &Path, dir: &Path, setting: Setting) -> Result<Self, String> {
        let _ = fs::remove_dir_all(dir);
        fs::create_dir_all(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        let config = dir.join("weir.toml");
        let text = configuration(dir, setting).map_err(|error| error.to_string())?;
        fs::write(&config, text).map_err(|error| error.to_string())?;
        let keeper = if setting == Setting::Open { Some(keeper(weir, dir)?) } else { None };
        if setting == Setting::Open && rustix::process::geteuid().is_root() {
            // An attacker may have taken it away.
            lay(&card(dir))?;
        }
        let log = fs::File::create(dir.join("weir.log")).map_err(|error| error.to_string())?;
        let mut command = Command::new(weir);
        command.arg("run").arg(&config).env_remove("WEIR_LOG");
        // weir stays in this program's process group, so that Ctrl-C ends both.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = command.spawn().map_err(|error| format!("{}: {error}", weir.display()))?;
        let mut switch = Self { child, keeper, dir: dir.to_owned() };
        let end = Instant::now() + PATIENCE;
        while switch.stats(Duration::from_secs(1)).is_err() {
            if Instant::now() > end || !switch.is_alive() {
                return Err(format!("weir does not start:\n{}", switch.log()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(switch)
    }

    /// Ends weir as an administrator does. Its helper process then ends first and is waited for.
    ///
    /// # Errors
    /// weir ran, but did not end by SIGTERM or did not end well. It does not run any more.
    pub fn end(&mut self) -> Result<(), String> {
        self.end_within(PATIENCE)
    }

    fn end_within(&mut self, patience: Duration) -> Result<(), String> {
        if !self.is_alive() {
            return Ok(());
        }
        if let Some(pid) = Pid::from_raw(self.child.id().cast_signed()) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let end = Instant::now() + patience;
        while Instant::now() < end {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => {
                    let log = self.log();
                    let last = log.lines().last().unwrap_or_default();
                    return Err(format!("by SIGTERM weir ends with {status}: {last}"));
                }
                Ok(None) => std::thread::sleep(Duration::from_millis(2)),
                Err(_) => break,
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        Err(format!("weir does not end within {patience:?} of SIGTERM"))
    }

    /// The thread of an option that opens sockets that is not there, as it should be in this setting.
    pub fn lacks(&self, setting: Setting) -> Option<&'static str> {
        let is_root = rustix::process::geteuid().is_root();
        let names = self.observed().thread_names();
        let mut due = OF_OPTIONS.iter().filter(|(_, of_root)| is_root || !of_root);
        let lacks = due.find(|(name, _)| !names.iter().any(|it| it == name));
        lacks.filter(|_| setting == Setting::Open).map(|(name, _)| *name)
    }

    /// weir's process.
    pub fn observed(&self) -> Observed {
        Observed(self.child.id())
    }

    /// True if weir runs.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// weir's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The socket of an interface.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.sock"))
    }

    /// weir's log.
    pub fn log(&self) -> String {
        let bytes = fs::read(self.dir.join("weir.log")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Number of lines in the log.
    pub fn log_lines(&self) -> usize {
        let bytes = fs::read(self.dir.join("weir.log")).unwrap_or_default();
        bytes.iter().filter(|byte| **byte == b'\n').count()
    }

    /// The answer to `weir stats --json` within `patience`.
    pub fn stats(&self, patience: Duration) -> Result<serde_json::Value, String> {
        let answer = self.ask("GET /v1/switch", patience).map_err(|error| error.to_string())?;
        match answer {
            Some((200, json)) => serde_json::from_str(&json).map_err(|error| error.to_string()),
            other => Err(format!("no statistics in {other:?}")),
        }
    }

    /// Sends the request of `weir vif set NAME weight=1`. The answer must come within `patience`.
    pub fn set_vif(&self, name: &str, patience: Duration) -> Result<(), String> {
        let body = "{\"sharing\":{\"weight\":{\"set\":1}}}";
        let head = format!("PATCH /v1/vifs/{name}");
        match self.ask_with(&head, body, patience) {
            Ok(Some((200, _))) => Ok(()),
            Ok(other) => Err(format!("{head}: {other:?}")),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Makes weir connect to the compiler of expressions. weir keeps that connection from the first expression on.
    pub fn compiles(&self) {
        let path = "PUT /v1/ports/gateway/filter";
        let rule = r#"[{"direction":"tx","match":"ip","action":"accept"}]"#;
        for rules in [rule, "[]"] {
            let _ = self.ask_with(path, rules, Duration::from_secs(5));
        }
    }

    /// Removes what an attacker has left where sockets make interfaces: weir would try one after the other.
    pub fn clear_demand(&self) {
        let entries = fs::read_dir(self.dir.join(DEMAND)).into_iter().flatten().flatten();
        for entry in entries {
            let _ = fs::remove_file(entry.path());
        }
    }

    /// Removes an interface if it exists.
    pub fn forget(&self, name: &str) {
        let _ = self.ask(&format!("DELETE /v1/vifs/{name}"), Duration::from_secs(2));
    }

    fn ask(&self, line: &str, patience: Duration) -> std::io::Result<Option<(u16, String)>> {
        self.ask_with(line, "", patience)
    }

    fn ask_with(
        &self,
        line: &str,
        body: &str,
        patience: Duration,
    ) -> std::io::Result<Option<(u16, String)>> {
        let mut socket = UnixStream::connect(self.dir.join(CONTROL))?;
        socket.set_read_timeout(Some(patience))?;
        let length = body.len();
        let head = format!("{line} HTTP/1.1\r\nhost: weir\r\ncontent-length: {length}\r\n\r\n");
        socket.write_all(format!("{head}{body}").as_bytes())?;
        answer(&mut BufReader::new(socket))
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = self.end();
        if let Some(keeper) = &mut self.keeper {
            let _ = keeper.kill();
            let _ = keeper.wait();
        }
    }
}

/// A process by its ID.
#[derive(Clone, Copy, Debug)]
pub struct Observed(pub u32);

impl Observed {
    /// Number of descriptors; 0 if they cannot be read.
    pub fn fds(self) -> usize {
        self.process().and_then(|it| it.fd_count().ok()).unwrap_or(0)
    }

    /// Number of threads.
    pub fn threads(self) -> usize {
        self.status().map_or(0, |status| status.threads as usize)
    }

    /// The names of its threads.
    pub fn thread_names(self) -> Vec<String> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.0)).into_iter().flatten().flatten();
        let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).ok();
        tasks.filter_map(name).map(|name| name.trim_end().to_owned()).collect()
    }

    /// Private memory (`RssAnon`, KiB): neither guests' memory nor program text.
    pub fn own_kib(self) -> u64 {
        self.status().and_then(|status| status.rssanon).unwrap_or(0)
    }

    fn process(self) -> Option<Process> {
        Process::new(self.0.cast_signed()).ok()
    }

    fn status(self) -> Option<Status> {
        self.process()?.status().ok()
    }
}

/// The status and the body of the next answer; `None` at the end of the connection. A body without a length is not
/// read.
pub fn answer(from: &mut impl BufRead) -> io::Result<Option<(u16, String)>> {
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let no_http = || io::Error::new(io::ErrorKind::InvalidData, format!("not HTTP: {line:?}"));
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(no_http)?;
    let mut length = 0;
    loop {
        let mut header = String::new();
        if from.read_line(&mut header)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let header = header.trim_end().to_ascii_lowercase();
        if header.is_empty() {
            break;
        }
        if let Some(value) = header.strip_prefix("content-length:") {
            length = value.trim().parse().map_err(|_| no_http())?;
        }
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body)?;
    Ok(Some((status, String::from_utf8_lossy(&body).into_owned())))
}

#[cfg(test)]
mod tests {
    use std::io::BufRead;

    use super::*;

    /// Ends a shell that runs `at_sigterm` at SIGTERM in place of weir.
    fn ended(at_sigterm: &str) -> Result<(), String> {
        let script = format!("trap '{at_sigterm}' TERM; echo; while :; do sleep 0.01; done");
        let mut command = Command::new("sh");
        let mut child = command.args(["-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        let mut switch = Switch { child, keeper: None, dir: PathBuf::new() };
        let ended = switch.end_within(Duration::from_secs(2));
        assert!(!switch.is_alive());
        ended
    }

    #[test]
    fn a_weir_that_does_not_end_well_by_sigterm_is_told_of() {
        assert_eq!(ended("exit 0"), Ok(()));
        assert!(ended("exit 3").unwrap_err().contains("exit status: 3"));
        assert!(ended("").unwrap_err().contains("does not end"));
    }

    #[test]
    fn answers_are_read_one_after_the_other() {
        let mut bytes =
            &b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 404 Not Found\r\n\r\n"[..];
        assert_eq!(answer(&mut bytes).unwrap(), Some((200, "ok".into())));
        assert_eq!(answer(&mut bytes).unwrap(), Some((404, String::new())));
        assert_eq!(answer(&mut bytes).unwrap(), None);
        assert!(answer(&mut &b"{}\n"[..]).is_err());
    }
}
