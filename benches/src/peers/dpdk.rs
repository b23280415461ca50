//! Switches with DPDK: Open vSwitch with its DPDK datapath (one polling thread, vhost-user ports), and `dpdk-testpmd`
//! between two vhost-user ports, where each packet from one port leaves by the other.
//!
//! Open vSwitch runs from Debian's packages with its own database, sockets and logs, beside any Open vSwitch of the
//! machine. Its network namespace holds its bridge's TAP devices. testpmd reads no address and learns nothing: it is
//! the upper limit of DPDK's vhost library, not a switch.

use std::{
    ffi::OsStr,
    io::Write,
    path::{Path, PathBuf},
    time::Duration,
};

use weir_bed::{
    address,
    error::{Error, Result, check},
    netns::Netns,
    packages::VSWITCHD,
    process::{Dialogue, Placement, Process, run_in, wait_until},
    qemu::{MEMORY, Plug, Qemu},
    switch::{Switch, Work},
    testpmd::{HugePages, Link},
    uplink::{Uplink, UplinkSite},
    usage::Usage,
    workspace::{Workspace, socket_path},
};

const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

/// The socket of the database.
const DATABASE: &str = "db.sock";

/// The switch's control socket.
const CONTROL: &str = "vswitchd.ctl";

/// Longest wait for an answer from the daemons.
const PATIENCE: Duration = Duration::from_secs(30);

/// CPU of the polling thread, which has it alone. The other threads are on CPU 0.
pub const POLLING_CPU: usize = 1;

/// A running Open vSwitch with one bridge.
pub struct OvsDpdk {
    // The fields are dropped in order: the switch, its database, then their resources.
    vswitchd: Process,
    _database: Process,
    home: Home,
    _pages: HugePages,
    dir: PathBuf,
    qemu: Qemu,
}

/// The namespaces in which the switch runs.
enum Home {
    Own(Netns),
    /// A site with an uplink.
    Site(UplinkSite),
}

impl OvsDpdk {
    /// Starts a bridge with `ports` vhost-user ports.
    pub fn start(workspace: &Workspace, qemu: Qemu, ports: u8) -> Result<Self> {
        Self::start_at(Home::Own(Netns::new()?), workspace, qemu, ports)
    }

    /// Starts a bridge with one vhost-user port and a TAP as uplink, by DPDK's driver.
    pub fn with_tap(workspace: &Workspace, qemu: Qemu) -> Result<Self> {
        let site = UplinkSite::new(Uplink::Tap)?;
        let switch = Self::start_at(Home::Site(site), workspace, qemu, 1)?;
        let env = [("OVS_RUNDIR", switch.dir.as_os_str())];
        let server = format!("unix:{}", switch.dir.join(DATABASE).display());
        let vsctl = Vsctl { server: &server, dir: &switch.dir, env: &env };
        let interface = Uplink::Tap.interface();
        let devargs = format!("options:dpdk-devargs=\"net_tap0,iface={interface}\"");
        let add = ["add-port", "br0", "tap0", "--", "set", "Interface", "tap0", "type=dpdk"];
        // The driver needs equal numbers of receive and transmit queues, and there is a transmit queue per thread.
        vsctl.run(&[&add[..], &["options:n_rxq=2", &devargs]].concat())?;
        let error = vsctl.ask(&["get", "Interface", "tap0", "error"])?;
        check(error.trim() == "[]", || format!("Open vSwitch has no TAP: {error}"))?;
        Ok(switch)
    }

    /// Returns the uplink's site.
    pub fn uplink(&self) -> Result<&UplinkSite> {
        match &self.home {
            Home::Site(site) => Ok(site),
            Home::Own(_) => Err(Error::Check("this Open vSwitch has no uplink".into())),
        }
    }

    /// Gives the bridge these flows in place of those that it began with.
    pub fn set_flows(&self, flows: &[&str]) -> Result<()> {
        let bridge = format!("unix:{}", self.dir.join("br0.mgmt").display());
        run_in(&["ovs-ofctl", "del-flows", &bridge], &self.dir, &[])?;
        for flow in flows {
            run_in(&["ovs-ofctl", "add-flow", &bridge, flow], &self.dir, &[])?;
        }
        Ok(())
    }

    fn start_at(home: Home, workspace: &Workspace, qemu: Qemu, ports: u8) -> Result<Self> {
        let pages = HugePages::reserve()?;
        let dir = workspace.run_dir("ovs")?;
        let log = dir.join("ovs.log");
        let env = [("OVS_RUNDIR", dir.as_os_str())];
        let placement = match &home {
            Home::Own(netns) => netns.placement(),
            Home::Site(site) => site.placement(),
        };
        // The daemons take their directories from the environment.
        let with_dirs = |argv: &[&str]| -> Result<Process> {
            let dir = dir.to_string_lossy();
            let dirs = ["OVS_RUNDIR", "OVS_DBDIR", "OVS_LOGDIR"].map(|key| format!("{key}={dir}"));
            let mut all = vec!["env"];
            all.extend(dirs.iter().map(String::as_str));
            all.extend(argv);
            Process::start_logged(&all, &placement, &log)
        };

        let conf = dir.join("conf.db").to_string_lossy().into_owned();
        let db_socket = socket_path(&dir, DATABASE)?;
        let remote = format!("punix:{}", db_socket.display());
        let server = format!("unix:{}", db_socket.display());
        run_in(&["ovsdb-tool", "create", &conf, SCHEMA], &dir, &env)?;
        let control = |name: &str| format!("--unixctl={}", dir.join(name).display());
        let database =
            with_dirs(&["ovsdb-server", &conf, "--remote", &remote, &control("ovsdb.ctl")])?;
        wait_until("Open vSwitch's database", PATIENCE, || Ok(db_socket.exists()))?;

        let vsctl = Vsctl { server: &server, dir: &dir, env: &env };
        vsctl.run(&["--no-wait", "init"])?;
        let polling_mask = format!("other_config:pmd-cpu-mask={:#x}", 1 << POLLING_CPU);
        vsctl.run(&[
            "--no-wait",
            "set",
            "Open_vSwitch",
            ".",
            "other_config:dpdk-init=true",
            "other_config:dpdk-socket-mem=512",
            "other_config:dpdk-lcore-mask=0x1",
            "other_config:dpdk-extra=--no-pci --in-memory --single-file-segments --no-telemetry",
            &polling_mask,
        ])?;
        let vswitchd = with_dirs(&[VSWITCHD, &server, &control(CONTROL)])?;
        vsctl.run(&["add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev"])?;
        for index in 0..ports {
            let port = port(index);
            vsctl.run(&[
                "add-port",
                "br0",
                &port,
                "--",
                "set",
                "Interface",
                &port,
                "type=dpdkvhostuser",
            ])?;
            let socket = socket_path(&dir, &port)?;
            wait_until("Open vSwitch's vhost-user socket", PATIENCE, || Ok(socket.exists()))?;
        }
        Ok(Self { vswitchd, _database: database, home, _pages: pages, dir, qemu })
    }
}

impl Switch for OvsDpdk {
    fn plug(&self, index: u8) -> Result<Plug> {
        let socket = socket_path(&self.dir, &port(index))?;
        let mac = address::mac(index);
        // The queue sizes are those of weir's QEMU arguments.
        let mut device =
            format!("virtio-net-pci,netdev=net0,mac={mac},rx_queue_size=1024,tx_queue_size=1024");
        if !self.qemu.has_msix() {
            device.push_str(",vectors=0");
        }
        let qemu_args = [
            "-object",
            &format!("memory-backend-memfd,id=mem0,size={MEMORY},share=on"),
            "-numa",
            "node,memdev=mem0",
            "-chardev",
            &format!("socket,id=chr0,path={}", socket.display()),
            "-netdev",
            "vhost-user,id=net0,chardev=chr0",
            "-device",
            &device,
        ];
        let qemu_args = qemu_args.map(str::to_owned).to_vec();
        Ok(Plug { qemu_args, placement: Placement::default() })
    }

    fn link(&self, index: u8) -> Result<Link> {
        Ok(Link { socket: socket_path(&self.dir, &port(index))?, mac: address::mac(index) })
    }

    fn cpu_time(&self) -> Result<Duration> {
        Usage::of(self.vswitchd.pid()).cpu_time()
    }

    fn work(&self) -> Result<Option<Work>> {
        let target = self.dir.join(CONTROL).display().to_string();
        let argv = ["ovs-appctl", "--target", &target, "dpif-netdev/pmd-stats-show"];
        let shown = run_in(&argv, &self.dir, &[])?;
        work(&shown).map(Some).ok_or_else(|| Error::parse("Open vSwitch's cycles", shown))
    }
}

/// Parses the cycles of the first polling thread: `idle cycles: 1234 (1.00%)` and `processing
/// cycles: ...`.
fn work(shown: &str) -> Option<Work> {
    let (_, thread) = shown.split_once("pmd thread")?;
    let cycles = |of: &str| -> Option<u64> {
        let (_, rest) = thread.split_once(of)?;
        rest.split_whitespace().next()?.parse().ok()
    };
    let (idle, busy) = (cycles("idle cycles:")?, cycles("processing cycles:")?);
    Some(Work { busy, of: idle + busy })
}

/// `ovs-vsctl` against one database.
struct Vsctl<'a> {
    server: &'a str,
    dir: &'a Path,
    env: &'a [(&'a str, &'a OsStr)],
}

impl Vsctl<'_> {
    fn run(&self, args: &[&str]) -> Result<()> {
        self.ask(args).map(drop)
    }

    fn ask(&self, args: &[&str]) -> Result<String> {
        let timeout = format!("--timeout={}", PATIENCE.as_secs());
        let mut argv = vec!["ovs-vsctl", "--db", self.server, &timeout];
        argv.extend(args);
        run_in(&argv, self.dir, self.env)
    }
}

fn port(index: u8) -> String {
    format!("vhost{index}")
}

/// A running testpmd with two ports, polling on one CPU.
pub struct TestpmdVhost {
    // The fields are dropped in order: the program, its output, then its resources.
    process: Process,
    _dialogue: Dialogue,
    _pages: Option<HugePages>,
    dir: PathBuf,
}

impl TestpmdVhost {
    /// Forwards bursts of `burst` packets, with one thread for each of `cpus`. Other threads are on the first of
    /// these CPUs.
    pub fn start(workspace: &Workspace, burst: u32, cpus: &[usize]) -> Result<Self> {
        let pages = HugePages::reserve()?;
        let memory = ["--single-file-segments", "--in-memory"];
        Self::start_by(workspace, &["stdbuf", "-oL"], &memory, burst, cpus, Some(pages))
    }

    /// Starts testpmd as the last words of the command `wrapper`, without huge pages, and with copies that callgrind
    /// supports.
    pub fn start_wrapped(
        workspace: &Workspace,
        wrapper: &[&str],
        burst: u32,
        cpu: usize,
    ) -> Result<Self> {
        let memory = ["--no-huge", "--force-max-simd-bitwidth=128"];
        Self::start_by(workspace, wrapper, &memory, burst, &[cpu], None)
    }

    fn start_by(
        workspace: &Workspace,
        wrapper: &[&str],
        memory: &[&str],
        burst: u32,
        cpus: &[usize],
        pages: Option<HugePages>,
    ) -> Result<Self> {
        let [first, ..] = *cpus else {
            return Err(Error::Check("testpmd needs a CPU".into()));
        };
        let dir = workspace.run_dir("testpmd")?;
        let sockets = [socket_path(&dir, &socket_name(0))?, socket_path(&dir, &socket_name(1))?];
        let [vdev0, vdev1] = [0, 1].map(|number: usize| {
            format!("--vdev=net_vhost{number},iface={},queues=1", sockets[number].display())
        });
        let forwarding = (1..).zip(cpus).map(|(lcore, cpu)| format!(",{lcore}@{cpu}"));
        let lcores = format!("--lcores=0@{first}{}", forwarding.collect::<String>());
        let cores = format!("--nb-cores={}", cpus.len());
        let burst = format!("--burst={burst}");
        let argv = [
            "dpdk-testpmd",
            &lcores,
            "--file-prefix=back-end",
            "--no-pci",
            "-m",
            "256",
            "--no-telemetry",
            &vdev0,
            &vdev1,
        ];
        let options =
            ["--", "--interactive", &cores, "--forward-mode=io", "--total-num-mbufs=16384", &burst];
        let argv = [wrapper, &argv, memory, &options].concat();
        let cpu = (cpus.len() == 1).then_some(first);
        let placement = Placement { cpu, ..Placement::default() };
        let (mut process, mut dialogue) = Process::start_dialogue(&argv, &placement)?;
        wait_until("testpmd's vhost-user sockets", PATIENCE, || {
            process.check_alive()?;
            Ok(sockets.iter().all(|socket| socket.exists()))
        })?;
        writeln!(dialogue.stdin, "start")
            .map_err(|source| Error::Io { what: "tell testpmd `start`".into(), source })?;
        Ok(Self { process, _dialogue: dialogue, _pages: pages, dir })
    }

    /// Returns testpmd's process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }
}

impl Switch for TestpmdVhost {
    fn link(&self, index: u8) -> Result<Link> {
        let socket = socket_path(&self.dir, &socket_name(index))?;
        Ok(Link { socket, mac: address::mac(index) })
    }
}

fn socket_name(index: u8) -> String {
    format!("vhost{index}.sock")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cycles_are_those_of_the_polling_thread() {
        let shown = "pmd thread numa_id 0 core_id 1:\n  packets received: 7\n  \
                     idle cycles: 300 (75.00%)\n  processing cycles: 100 (25.00%)\n  \
                     avg cycles per packet: 57.14 (400/7)\n\
                     main thread:\n  packets received: 0\n";
        let now = work(shown).unwrap();
        assert_eq!(now, Work { busy: 100, of: 400 });
        assert_eq!(now.share_since(Work { busy: 50, of: 200 }), 0.25);
        assert_eq!(work("main thread:\n  packets received: 0\n"), None);
    }
}
