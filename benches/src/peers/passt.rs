//! passt: user-mode networking for VMs. A guest's TCP goes through sockets of the host, without privileges.
//!
//! The host is a namespace with an interface and a default route, without which passt does not start. Its address is
//! also the guest's, and the guest reaches the host at the gateway's address (passt(1)).

use std::{path::PathBuf, time::Duration};

use weir_bed::{
    address,
    error::{Error, Result},
    netns::Netns,
    process::{Placement, Process, wait_until},
    qemu::Plug,
    switch::Switch,
    usage::Usage,
    workspace::{Workspace, socket_path},
};

/// The program.
pub const PROGRAM: &str = "/usr/bin/passt";

/// The host's address for the guest.
pub const HOST: &str = "10.77.0.254";

const PATIENCE: Duration = Duration::from_secs(10);

/// A running passt for one guest.
pub struct Passt {
    process: Process,
    socket: PathBuf,
    host: Netns,
}

impl Passt {
    /// Starts passt with the options of passt(1), in the foreground.
    pub fn start(workspace: &Workspace) -> Result<Self> {
        let host = Netns::new()?;
        host.ip(&["link", "add", "u0", "type", "veth", "peer", "name", "u1"])?;
        host.ip(&["link", "set", "u1", "up"])?;
        host.configure("u0", "192.0.2.1/24")?;
        host.ip(&["route", "add", "default", "via", "192.0.2.254"])?;
        let dir = workspace.run_dir("passt")?;
        let socket = socket_path(&dir, "passt.sock")?;
        let (path, ip) = (socket.to_string_lossy(), address::ip(0));
        let argv = [
            PROGRAM,
            "--foreground",
            "--socket",
            &path,
            "--address",
            &ip,
            "--netmask",
            "24",
            "--gateway",
            HOST,
            "--runas",
            "0:0",
        ];
        let log = dir.join("passt.log");
        let mut process = Process::start_logged(&argv, &host.placement(), &log)?;
        wait_until("passt's socket", PATIENCE, || {
            process.check_alive()?;
            Ok(socket.exists())
        })?;
        Ok(Self { process, socket, host })
    }

    /// Returns the host.
    pub fn host(&self) -> &Netns {
        &self.host
    }
}

impl Switch for Passt {
    fn plug(&self, index: u8) -> Result<Plug> {
        if index > 0 {
            return Err(Error::Check("passt has one guest".into()));
        }
        let path = self.socket.to_string_lossy();
        Ok(stream_plug(&path, &address::mac(index), self.host.placement()))
    }

    fn cpu_time(&self) -> Result<Duration> {
        Usage::of(self.process.pid()).cpu_time()
    }
}

/// Returns QEMU's own connection to a stream socket. Nothing on the socket says that work is left to a peer, so that
/// guests get no offloads.
pub fn stream_plug(path: &str, mac: &str, placement: Placement) -> Plug {
    let netdev = format!("stream,id=net0,server=off,addr.type=unix,addr.path={path}");
    let device = format!("virtio-net-pci,netdev=net0,mac={mac}");
    let qemu_args = vec![String::from("-netdev"), netdev, String::from("-device"), device];
    Plug { qemu_args, placement }
}
