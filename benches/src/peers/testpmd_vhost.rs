//! `dpdk-testpmd` between two vhost-user ports: each packet from one port leaves by the other.
//!
//! testpmd reads no address and learns nothing: it is the upper limit of DPDK's vhost library, not a switch.

use std::{io::Write, path::PathBuf, time::Duration};

use weir_bed::{
    address,
    error::{Error, Result},
    process::{Dialogue, Placement, Process, wait_until},
    switch::Switch,
    testpmd::{HugePages, Link},
    workspace::{Workspace, socket_path},
};

/// Longest time until testpmd's sockets are open.
const PATIENCE: Duration = Duration::from_secs(30);

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
