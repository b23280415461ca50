//! Looks at the host: `/proc`, `/sys`, the installed QEMU. What cannot be read is left out.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use weir_switch::control::VifStatus;

use super::{Host, Qemu, SocketFile};

/// Processes that weir has beside it.
const HELPERS: [&str; 2] = ["weir-helper", "weir-starter"];
/// What the program weir is called in the kernel's log.
const PROGRAM: &str = "/weir\"";
/// The kernel's audit record of a seccomp filter's verdict.
const SECCOMP: &str = "type=1326";

/// What there is to see of the machine, and of the sockets of `vifs`.
pub fn look_at_host(vifs: &[VifStatus]) -> Host {
    let uname = rustix::system::uname();
    let sys = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    Host {
        kernel: uname.release().to_str().ok().and_then(version),
        clocksource: text(sys),
        cpus: std::thread::available_parallelism().ok().map(usize::from),
        cpu_quota: cpu_quota(),
        hugepages: hugepages(),
        irqs: irqs(),
        mtus: mtus(),
        qemu_version: qemu_version(),
        qemus: qemus(),
        sockets: vifs.iter().filter_map(|vif| socket(vif.config.socket.as_path())).collect(),
        kernel_log: kernel_log(),
        ended: ended(),
    }
}

fn text(path: impl AsRef<Path>) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// The first two numbers of `6.12.0-13-amd64`, or of what stands behind `version` in a line.
pub(super) fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// What the control group of the service weir, or of this process, may use.
fn cpu_quota() -> Option<f64> {
    let own = text("/proc/self/cgroup")?
        .lines()
        .find_map(|line| line.strip_prefix("0::").map(str::to_owned));
    let groups = ["/system.slice/weir.service".to_owned(), own?];
    let max = groups.iter().find_map(|group| text(format!("/sys/fs/cgroup{group}/cpu.max")));
    quota(&max?)
}

/// Processors of a line of `cpu.max`; `None` without a limit.
pub(super) fn quota(max: &str) -> Option<f64> {
    let (quota, period) = max.split_once(' ')?;
    Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok().filter(|period| *period > 0.0)?)
}

fn hugepages() -> Option<(u64, u64)> {
    let meminfo = text("/proc/meminfo")?;
    let field = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse().ok()
    };
    Some((field("HugePages_Total:")?, field("HugePages_Free:")?))
}

/// By interface: who may get each of its interrupts.
fn irqs() -> BTreeMap<String, Vec<String>> {
    let mut irqs = BTreeMap::<_, Vec<_>>::new();
    for name in mtus().into_keys() {
        let dir = format!("/sys/class/net/{name}/device/msi_irqs");
        let numbers = fs::read_dir(dir).into_iter().flatten().flatten();
        for number in numbers.filter_map(|entry| entry.file_name().into_string().ok()) {
            let cpus = text(format!("/proc/irq/{number}/effective_affinity_list"));
            irqs.entry(name.clone()).or_default().extend(cpus.filter(|cpus| !cpus.is_empty()));
        }
    }
    irqs
}

fn mtus() -> BTreeMap<String, u32> {
    let interfaces = fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    let mtu = |entry: fs::DirEntry| {
        let mtu = text(entry.path().join("mtu"))?.parse().ok()?;
        Some((entry.file_name().into_string().ok()?, mtu))
    };
    interfaces.filter_map(mtu).collect()
}

fn qemu_version() -> Option<(u32, u32)> {
    let said = output(Command::new("qemu-system-x86_64").arg("--version"))?;
    version(said.split_once("version ")?.1)
}

fn output(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Processes of [`HELPERS`] that have ended, and whose weir goes on without them.
fn ended() -> Vec<String> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let stats = processes.filter_map(|entry| text(entry.path().join("stat")));
    // Of a weir that has ended, too, somebody else is the parent.
    let is_weirs = |parent| text(format!("/proc/{parent}/comm")).as_deref() == Some("weir");
    let zombie = |stat: String| Some(zombie(&stat).filter(|it| is_weirs(it.1))?.0.to_owned());
    stats.filter_map(zombie).collect()
}

/// The name of a process of [`HELPERS`] that nobody has waited for, and its parent: from its line of `stat`
/// (proc_pid_stat(5)).
pub(super) fn zombie(stat: &str) -> Option<(&str, u32)> {
    let (name, rest) = stat.split_once('(')?.1.rsplit_once(") ")?;
    let parent = rest.strip_prefix("Z ")?.split(' ').next()?.parse().ok()?;
    HELPERS.contains(&name).then_some((name, parent))
}

/// Every process whose program is called `qemu-system-...`.
fn qemus() -> Vec<Qemu> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let qemu = |entry: fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        let args: Vec<_> = line
            .split(|byte| *byte == 0)
            .map(|arg| String::from_utf8_lossy(arg).into_owned())
            .collect();
        let program = Path::new(args.first()?).file_name()?.to_str()?;
        if !program.starts_with("qemu-system-") {
            return None;
        }
        let status = text(entry.path().join("status"))?;
        let numbers = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            Some(line.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<u32>>())
        };
        // Real, effective, saved, of the file system.
        let user = *numbers("Uid:")?.get(1)?;
        let mut groups = numbers("Groups:").unwrap_or_default();
        groups.extend(numbers("Gid:").and_then(|gids| gids.get(1).copied()));
        Some(Qemu { pid, user, groups, args })
    };
    processes.filter_map(qemu).collect()
}

fn socket(path: &Path) -> Option<(PathBuf, SocketFile)> {
    let file = fs::metadata(path).ok().filter(|file| file.file_type().is_socket())?;
    let mut records = path.as_os_str().to_owned();
    records.push(".rings");
    let has_records = Path::new(&records).exists();
    let (mode, user, group) = (file.mode(), file.uid(), file.gid());
    Some((path.into(), SocketFile { mode, user, group, has_records }))
}

fn kernel_log() -> Vec<String> {
    let log = output(&mut Command::new("dmesg")).unwrap_or_default();
    let lines = log.lines().filter(|line| line.contains(SECCOMP) && line.contains(PROGRAM));
    lines.map(str::to_owned).collect()
}
