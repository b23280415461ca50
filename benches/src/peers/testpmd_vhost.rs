//! `dpdk-testpmd` between two vhost-user ports: each packet that enters at one leaves at the other.
//!
//! It reads no address and learns nothing: the upper limit of DPDK's vhost library, not a switch.

use std::{io::Write, path::PathBuf, time::Duration};

use weir_bed::{
    address,
    error::{Error, Result},
    hugepages::HugePages,
    process::{Dialogue, Placement, Process, wait_until},
    switch::Switch,
    testpmd::Link,
    workspace::{Workspace, socket_path},
};

/// How long it may take to open its sockets.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running testpmd with two ports, polling on one CPU.
pub struct TestpmdVhost {
    // In the order they must go: the program, what it says, then what it uses.
    _process: Process,
    _dialogue: Dialogue,
    _pages: HugePages,
    dir: PathBuf,
}

impl TestpmdVhost {
    /// Forwards `burst` packets at a time, all threads on CPU `cpu`.
    pub fn start(workspace: &Workspace, burst: u32, cpu: usize) -> Result<Self> {
        let pages = HugePages::reserve()?;
        let dir = workspace.run_dir("testpmd")?;
        let sockets = [socket_path(&dir, &socket_name(0))?, socket_path(&dir, &socket_name(1))?];
        let [vdev0, vdev1] = [0, 1].map(|number: usize| {
            format!("--vdev=net_vhost{number},iface={},queues=1", sockets[number].display())
        });
        let lcores = format!("--lcores=0@{cpu},1@{cpu}");
        let burst = format!("--burst={burst}");
        let argv = [
            "stdbuf",
            "-oL",
            "dpdk-testpmd",
            &lcores,
            "--no-pci",
            "--single-file-segments",
            "--in-memory",
            "-m",
            "256",
            "--no-telemetry",
            &vdev0,
            &vdev1,
            "--",
            "--interactive",
            "--nb-cores=1",
            "--forward-mode=io",
            "--total-num-mbufs=16384",
            &burst,
        ];
        let placement = Placement { cpu: Some(cpu), ..Placement::default() };
        let (mut process, mut dialogue) = Process::start_dialogue(&argv, &placement)?;
        wait_until("testpmd's vhost-user sockets", PATIENCE, || {
            process.check_alive()?;
            Ok(sockets.iter().all(|socket| socket.exists()))
        })?;
        writeln!(dialogue.stdin, "start")
            .map_err(|source| Error::Io { what: "tell testpmd `start`".into(), source })?;
        Ok(Self { _process: process, _dialogue: dialogue, _pages: pages, dir })
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
