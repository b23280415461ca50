//! Reads the state of the host: `/proc`, `/sys`, the installed QEMU. Anything that cannot be read is left out.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, DirEntry, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::SystemTime;

use weir_config::{Config, Defaults, Direction, PortName};
use weir_limits::CAPTURE_PORTS_MAX;
use weir_switch::capture::CaptureRequest;
use weir_switch::control::VifStatus;
use weir_switch::host::{cut_off, doubts, lacks, shown};
use weir_switch::stats::{PortKind, PortState, PortStats, SwitchStats};
use weir_topology::parse_cpu_list;

use super::bridging::Card;
use super::qemu::{self, version};
use super::{BadFile, Facts, Host, Link, Permissions, Qemu, SocketFile};

/// The name of weir's process in the kernel.
const WEIR: &str = "weir";
/// weir's other processes.
const HELPERS: [&str; 4] = ["weir-helper", "weir-starter", "weir-compiler", "weir-runner"];
/// The kernel's audit record of a seccomp filter's verdict.
const SECCOMP: &str = "type=1326";
/// The words with which AppArmor and SELinux report a denial.
const DENIED: [&str; 2] = ["apparmor=\"DENIED\"", "avc:  denied"];
/// The flag of an interface that was brought up (`IFF_UP`).
const UP: u32 = 1;

/// Expression for what stations say to their neighbours, for ICMP of their own by its TTL, and for what DHCP servers
/// answer.
const NEIGHBOURS: &str = "arp or (icmp6 and ip6[40] >= 135 and ip6[40] <= 136) or udp src port 67 \
    or (icmp and (ip[8] = 64 or ip[8] = 128 or ip[8] = 255))";

/// A capture of the words of some ports to their neighbours, for the time in which the counters are watched. Uplinks
/// come first, and then the guests that have received least.
pub fn watched(switch: &SwitchStats) -> CaptureRequest {
    let runs = |port: &&PortStats| port.state == PortState::Running && port.kind != PortKind::Own;
    let mut ports: Vec<_> = switch.ports.iter().filter(runs).collect();
    ports.sort_by_key(|port| (port.kind == PortKind::Vif, port.rx.frames));
    ports.truncate(CAPTURE_PORTS_MAX);
    let filter = format!("{NEIGHBOURS} or (vlan and ({NEIGHBOURS}))");
    CaptureRequest {
        ports: ports.into_iter().map(|port| port.name.clone()).collect(),
        direction: Some(Direction::Tx),
        filter: filter.parse().unwrap_or_default(),
        snap_len: Some(128),
        ..CaptureRequest::default()
    }
}

impl Facts {
    /// Adds what the file is like with which weir would start again, and what the host lacks for it. A file that cannot
    /// be read adds no facts.
    pub fn look_at_file(&mut self, path: &Path, defaults: &Defaults) {
        match Config::load(path, &Defaults { control_named: true, ..defaults.clone() }) {
            Ok(config) => {
                self.host.lacks = lacks(&config);
                self.host.lacks.extend(cut_off(&config));
                self.host.doubts = doubts(&config);
            }
            Err(error) if !error.problems().is_empty() => {
                self.host.bad_file = Some(BadFile { path: path.into(), mistakes: error.lines() });
            }
            Err(_) => {}
        }
    }
}

/// The visible state of the machine, of a weir, and of the sockets of `vifs`. `server` is the process that listens on
/// the control socket: weir, or its helper.
pub fn look_at_host(vifs: &[VifStatus], server: Option<u32>) -> Host {
    let weir = server.and_then(|pid| Root(Path::new("/")).weir_of(pid));
    let log = output(&mut Command::new("dmesg")).unwrap_or_default();
    let own = own(Path::new("/"), weir);
    let peers: Vec<_> = vifs.iter().filter_map(|vif| vif.front_end).collect();
    let sockets: Vec<_> = vifs.iter().map(|vif| vif.config.socket.as_path()).collect();
    let mut host = below(Path::new("/"), weir, &peers);
    for qemu in &mut host.qemus {
        let is_missing = |path: &&&Path| {
            let is_there = path.exists();
            let path = format!("/proc/{}/root{}", qemu.pid, path.display());
            is_there && fs::metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound)
        };
        qemu.unseen = sockets.iter().filter(is_missing).map(|path| path.to_path_buf()).collect();
    }
    // A weir whose process is not known, as behind a container, would count as another one.
    if weir.is_none() && !vifs.is_empty() {
        host.others.clear();
    }
    let cards: Vec<Card> = shown(&["-j", "addr", "show"]).unwrap_or_default();
    Host {
        addresses: cards.iter().flat_map(Card::addresses).collect(),
        now_s: SystemTime::UNIX_EPOCH.elapsed().ok().map(|since| since.as_secs()),
        kernel: rustix::system::uname().release().to_str().ok().and_then(version),
        qemu_version: qemu::installed_version(),
        sockets: sockets
            .iter()
            .filter_map(|path| Some(((*path).into(), look_at_socket(path, None)?)))
            .collect(),
        seccomp: lines(&log, |line| line.contains(SECCOMP) && is_of(line, &own)),
        denied: lines(&log, |line| is_denied(line, &own, &sockets)),
        ..host
    }
}

/// Two uplinks whose interfaces are ports of one bridge of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined<'u> {
    /// The uplink that is named first, and its interface.
    pub first: (&'u PortName, &'u str),
    /// The other uplink, and its interface.
    pub second: (&'u PortName, &'u str),
    /// The bridge.
    pub bridge: String,
}

impl fmt::Display for Joined<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first: (first, a), second: (second, b), bridge } = self;
        write!(f, "{a} of {first} and {b} of {second} are ports of the bridge {bridge}")?;
        f.write_str(": a loop in each VLAN that both uplinks have; weir blocks the second when it finds one")
    }
}

/// The pairs among `uplinks`, by their names and interfaces. `bridges` gives the bridge of which an interface is a
/// port.
pub(crate) fn joined<'u>(
    uplinks: impl IntoIterator<Item = (&'u PortName, &'u str)>,
    bridges: &BTreeMap<String, String>,
) -> Vec<Joined<'u>> {
    let mut first_of: BTreeMap<&str, (&PortName, &str)> = BTreeMap::new();
    let mut all = Vec::new();
    for second in uplinks {
        let Some(bridge) = bridges.get(second.1) else { continue };
        match first_of.get(bridge.as_str()) {
            Some(&first) => all.push(Joined { first, second, bridge: bridge.clone() }),
            None => _ = first_of.insert(bridge, second),
        }
    }
    all
}

/// Uplinks, with their names and interfaces, that are ports of one bridge of this host: a frame that leaves by one
/// comes in by the other.
pub fn joined_by_a_bridge<'u>(
    uplinks: impl IntoIterator<Item = (&'u PortName, &'u str)>,
) -> Vec<Joined<'u>> {
    joined(uplinks, &Root(Path::new("/")).bridges())
}

/// The state in the kernel's files below `root`; `peers` are at the other ends of interfaces' sockets.
pub(super) fn below(root: &Path, weir: Option<u32>, peers: &[u32]) -> Host {
    let root = Root(root);
    let weir = weir.filter(|pid| root.is_weir(*pid));
    let clock = "sys/devices/system/clocksource/clocksource0/current_clocksource";
    Host {
        clocksource: root.text(clock),
        cpus_online: root.text("sys/devices/system/cpu/online").and_then(|list| cpus(&list)),
        cpus: root.cpus(weir),
        cpu_quota: root.cpu_quota(weir),
        hugepages: root.hugepages(),
        irqs: root.irqs(),
        links: root.links(),
        bridges: root.bridges(),
        qemus: root.qemus(peers),
        ended: root.ended(weir),
        others: root.others(weir),
        is_replaced: root.is_replaced(weir),
        ..Host::default()
    }
}

/// The process `weir` and its children, each with the time of day at which it began (s since the epoch).
pub(super) fn own(root: &Path, weir: Option<u32>) -> BTreeMap<u32, u64> {
    let root = Root(root);
    let boot = root.text("proc/stat").and_then(|stat| field(&stat, "btime ")?.parse::<u64>().ok());
    let (Some(boot_s), Some(weir)) = (boot, weir.filter(|pid| root.is_weir(*pid))) else {
        return BTreeMap::new();
    };
    let ticks_per_s = rustix::param::clock_ticks_per_second().max(1);
    let own = root.processes().into_iter().filter(|it| it.pid == weir || it.parent == weir);
    own.map(|it| (it.pid, boot_s + it.began_ticks / ticks_per_s)).collect()
}

/// The root of the kernel's files: `/`, or a test's directory.
pub(super) struct Root<'r>(pub(super) &'r Path);

impl Root<'_> {
    fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        Some(fs::read_to_string(self.0.join(path)).ok()?.trim().to_owned())
    }

    fn entries(&self, path: &str) -> impl Iterator<Item = DirEntry> + use<> {
        fs::read_dir(self.0.join(path)).into_iter().flatten().flatten()
    }

    fn is_weir(&self, pid: u32) -> bool {
        self.text(format!("proc/{pid}/comm")).as_deref() == Some(WEIR)
    }

    /// The weir process itself, or the weir whose helper `pid` is.
    pub(super) fn weir_of(&self, pid: u32) -> Option<u32> {
        if self.is_weir(pid) {
            return Some(pid);
        }
        let helper = process(&self.text(format!("proc/{pid}/stat"))?)?;
        let is_helper = HELPERS.contains(&helper.name.as_str()) && self.is_weir(helper.parent);
        is_helper.then_some(helper.parent)
    }

    /// The number of processors on which `weir` may run, or else this process.
    fn cpus(&self, weir: Option<u32>) -> Option<usize> {
        let process = weir.map_or_else(|| "self".into(), |pid| pid.to_string());
        let status = self.text(format!("proc/{process}/status"))?;
        cpus(field(&status, "Cpus_allowed_list:")?)
    }

    /// The processor time that the control group of `weir` and those around it allow: the least of them.
    fn cpu_quota(&self, weir: Option<u32>) -> Option<f64> {
        let groups = self.text(format!("proc/{}/cgroup", weir?))?;
        let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
        let of = |group: &Path| {
            quota(&self.text(Path::new("sys/fs/cgroup").join(group).join("cpu.max"))?)
        };
        Path::new(group).ancestors().filter_map(of).min_by(f64::total_cmp)
    }

    fn hugepages(&self) -> Option<(u64, u64)> {
        let meminfo = self.text("proc/meminfo")?;
        let pages = |name: &str| field(&meminfo, name)?.parse().ok();
        Some((pages("HugePages_Total:")?, pages("HugePages_Free:")?))
    }

    fn irqs(&self) -> BTreeMap<String, Vec<String>> {
        let mut irqs = BTreeMap::<_, Vec<_>>::new();
        for name in self.links().into_keys() {
            let numbers = self.entries(&format!("sys/class/net/{name}/device/msi_irqs"));
            for number in numbers.filter_map(|entry| entry.file_name().into_string().ok()) {
                let cpus = self.text(format!("proc/irq/{number}/effective_affinity_list"));
                irqs.entry(name.clone()).or_default().extend(cpus.filter(|cpus| !cpus.is_empty()));
            }
        }
        irqs
    }

    fn links(&self) -> BTreeMap<String, Link> {
        let link = |entry: DirEntry| {
            let name = entry.file_name().into_string().ok()?;
            let of = |file: &str| self.text(entry.path().join(file));
            let flags = of("flags")?;
            let is_up = u32::from_str_radix(flags.trim_start_matches("0x"), 16).ok()? & UP != 0;
            // The kernel does not give the carrier of an interface that is down.
            let has_carrier = of("carrier").is_none_or(|carrier| carrier == "1");
            let port_state = of("brport/state").and_then(|state| state.parse().ok());
            Some((name, Link { mtu: of("mtu")?.parse().ok()?, is_up, has_carrier, port_state }))
        };
        self.entries("sys/class/net").filter_map(link).collect()
    }

    fn bridges(&self) -> BTreeMap<String, String> {
        let bridge = |entry: DirEntry| {
            let master = fs::read_link(entry.path().join("master")).ok()?;
            let bridge = master.file_name()?.to_str()?;
            let is_one = self.0.join("sys/class/net").join(bridge).join("bridge").is_dir();
            Some((entry.file_name().into_string().ok()?, bridge.to_owned())).filter(|_| is_one)
        };
        self.entries("sys/class/net").filter_map(bridge).collect()
    }

    /// Every process whose program is called `qemu-system-...`, and the processes `peers`.
    fn qemus(&self, peers: &[u32]) -> Vec<Qemu> {
        let qemu = |entry: DirEntry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let line = fs::read(entry.path().join("cmdline")).ok()?;
            let args: Vec<_> = line
                .split(|byte| *byte == 0)
                .map(|arg| String::from_utf8_lossy(arg).into_owned())
                .collect();
            let program = Path::new(args.first()?).file_name()?.to_str()?;
            if !program.starts_with("qemu-system-") && !peers.contains(&pid) {
                return None;
            }
            let status = self.text(entry.path().join("status"))?;
            let numbers = |name: &str| -> Vec<u32> {
                let ids = field(&status, name).unwrap_or_default().split_whitespace();
                ids.filter_map(|id| id.parse().ok()).collect()
            };
            // The four numbers are the real, effective, saved and file-system user.
            let user = *numbers("Uid:").get(1)?;
            let mut groups = numbers("Groups:");
            groups.extend(numbers("Gid:").get(1));
            let version = qemu::version_in(&entry.path().join("exe"));
            let is_stopped = field(&status, "State:").is_some_and(|state| state.starts_with('T'));
            Some(Qemu { pid, user, groups, args, version, is_stopped, unseen: Vec::new() })
        };
        self.entries("proc").filter_map(qemu).collect()
    }

    /// Other weirs that serve, by their processes and commands.
    fn others(&self, weir: Option<u32>) -> Vec<String> {
        let is_other = |it: &Process| it.name == WEIR && Some(it.pid) != weir;
        let others =
            self.processes().into_iter().filter(|it| is_other(it) && Some(it.parent) != weir);
        let served = others.filter_map(|it| {
            let line = self.text(format!("proc/{}/cmdline", it.pid))?.replace('\0', " ");
            line.contains(" run ").then(|| format!("process {}: {}", it.pid, line.trim()))
        });
        served.collect()
    }

    /// True if the program of this process is not on the disk any more.
    fn is_replaced(&self, weir: Option<u32>) -> bool {
        let exe = weir.and_then(|pid| fs::read_link(self.0.join(format!("proc/{pid}/exe"))).ok());
        exe.is_some_and(|exe| exe.to_string_lossy().ends_with(" (deleted)"))
    }

    /// Processes of [`HELPERS`] that have ended while their weir continues without them.
    fn ended(&self, weir: Option<u32>) -> Vec<String> {
        let ended = |it: &Process| it.is_zombie && Some(it.parent) == weir;
        let ended = self.processes().into_iter().filter(ended).map(|it| it.name);
        ended.filter(|name| HELPERS.contains(&name.as_str())).collect()
    }

    fn processes(&self) -> Vec<Process> {
        let stats = self.entries("proc").filter_map(|entry| self.text(entry.path().join("stat")));
        stats.filter_map(|stat| process(&stat)).collect()
    }
}

/// A process, as its `stat` file describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) name: String,
    pub(super) parent: u32,
    /// The process has ended, and its parent has not waited for it.
    pub(super) is_zombie: bool,
    /// The time from the machine's start to the process's start (ticks).
    pub(super) began_ticks: u64,
}

/// Reads a line of `stat` (proc_pid_stat(5)). A name may have any characters.
pub(super) fn process(stat: &str) -> Option<Process> {
    let (pid, rest) = stat.split_once(" (")?;
    let (name, rest) = rest.rsplit_once(") ")?;
    // `fields` begins with the third field of the file.
    let fields: Vec<_> = rest.split(' ').collect();
    Some(Process {
        pid: pid.parse().ok()?,
        name: name.into(),
        parent: fields.get(1)?.parse().ok()?,
        is_zombie: *fields.first()? == "Z",
        began_ticks: fields.get(19)?.parse().ok()?,
    })
}

/// The number of processors in a list of the kernel's.
fn cpus(list: &str) -> Option<usize> {
    Some(parse_cpu_list(list).ok()?.len()).filter(|cpus| *cpus > 0)
}

/// The text after `name`, in the line that begins with `name`.
fn field<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// Processors of a line of `cpu.max`; `None` without a limit.
pub(super) fn quota(max: &str) -> Option<f64> {
    let (quota, period) = max.split_once(' ')?;
    Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok().filter(|period| *period > 0.0)?)
}

fn output(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The socket at `path`. If the file does not exist yet, `unmade` has the permissions that it will get.
pub fn look_at_socket(path: &Path, unmade: Option<Permissions>) -> Option<SocketFile> {
    let permissions =
        |file: Metadata| Permissions { mode: file.mode(), user: file.uid(), group: file.gid() };
    let file = fs::metadata(path).ok().filter(|file| file.file_type().is_socket());
    let file = file.map(permissions).or(unmade)?;
    let above = path.ancestors().skip(1);
    let above =
        above.filter_map(|dir| Some((dir.to_owned(), permissions(fs::metadata(dir).ok()?))));
    let mut records = path.as_os_str().to_owned();
    records.push(".rings");
    // On a full file system, weir can create the file, but the file stays empty.
    let has_records = fs::metadata(records).is_ok_and(|file| file.len() > 0);
    Some(SocketFile { file, above: above.collect(), has_records })
}

fn lines(log: &str, is_wanted: impl Fn(&str) -> bool) -> Vec<String> {
    log.lines().filter(|line| is_wanted(line)).map(str::to_owned).collect()
}

/// True if a line of the kernel's audit log is about one of these processes. A line that is older than the process does
/// not count, because another process may have had the number then.
pub(super) fn is_of(line: &str, own: &BTreeMap<u32, u64>) -> bool {
    let pid = line.split(' ').find_map(|word| word.strip_prefix("pid=")?.parse().ok());
    let began_s = pid.and_then(|pid: u32| own.get(&pid));
    began_s.is_some_and(|began_s| audited_s(line).is_some_and(|at_s| at_s >= *began_s))
}

/// The time at which the kernel's audit log got a line (s since the epoch): `audit(1732606789.123:45)`.
pub(super) fn audited_s(line: &str) -> Option<u64> {
    line.split_once("audit(")?.1.split('.').next()?.parse().ok()
}

/// True if a line of the kernel's log reports a denial to weir, or to others at one of weir's sockets.
pub(super) fn is_denied(line: &str, own: &BTreeMap<u32, u64>, sockets: &[&Path]) -> bool {
    let named = |path: &&Path| line.contains(&format!("=\"{}\"", path.display()));
    let denied = DENIED.iter().any(|part| line.contains(part));
    denied && (is_of(line, own) || sockets.iter().any(named))
}
