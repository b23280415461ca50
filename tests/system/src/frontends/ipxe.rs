//! iPXE, the boot ROM of QEMU's network devices: a guest without an operating system, over the TAP uplink.

use std::{fs, path::Path, time::Duration};

use weir_bed::{
    address,
    error::{Error, Result},
    netns::Netns,
    process::{Placement, Process, wait_until},
    qemu::QEMU,
    switch::Switch,
    uplink::Uplink,
    weir::{self, Setup, Weir},
};

use super::{
    bed::RETURN_PATIENCE,
    linux::{Explanation, drops},
    qemu_cells::stop,
    record::{Record, Step, Verdict},
};

/// The only interface.
pub const GUEST: u8 = 0;
/// The namespace's own address in the guest's subnet, and its server's port.
pub const HOST: u8 = 100;
const PORT: u16 = 8080;

/// The guest fetches the first file again and again, and the second one when the first is complete.
const FILE_BYTES: usize = 1 << 20;
const DONE: &str = "url:/done";

/// TCP sends more and more until it finds the ROM's limit.
pub const FEW_BUFFERS: Explanation =
    ("rx_ring_full", "iPXE has eight receive buffers, and TCP sends more than weir keeps for it");

/// The ROM needs a while until it asks for an address.
const PATIENCE: Duration = Duration::from_secs(90);

/// Runs the cell.
pub fn boots(bed: &mut super::bed::Bed<'_>, record: &mut Record) -> Result<Verdict> {
    let lab = bed.lab;
    let dir = lab.workspace.run_dir("ipxe")?;
    let setup = Setup { uplink: Some(Uplink::Tap), ..Setup::vifs(1) };
    let mut weir = Weir::start_in(dir.clone(), lab, &setup)?;
    let busybox = lab.image.busybox.to_string_lossy();
    let served = Served::write(&dir)?;
    let netns_of = |weir: &Weir| -> Result<String> { Ok(weir.uplink()?.host().name().to_owned()) };
    let placement = Placement { netns: Some(netns_of(&weir)?), ..Placement::default() };
    configure(weir.uplink()?.host(), weir.uplink()?.interface())?;
    let [files, leases] = [&served.files, &served.dhcp].map(|path| path.to_string_lossy());
    let port = PORT.to_string();
    // The server has a process for each connection, which would outlive the server.
    let alone = ["unshare", "--pid", "--kill-child", "--fork"];
    let web = [&*busybox, "httpd", "-f", "-vv", "-p", &port, "-h", &files];
    let web = [&alone[..], &web].concat();
    let _web = Process::start_logged(&web, &placement, &served.log)?;
    let dhcp = [&*busybox, "udhcpd", "-f", &leases];
    let _dhcp = Process::start_logged(&dhcp, &placement, &dir.join("dhcp.log"))?;

    let plug = weir.plug(GUEST)?;
    let mut argv = vec![QEMU, "-accel", "tcg", "-nodefaults", "-display", "none", "-boot", "n"];
    argv.extend(plug.qemu_args.iter().map(String::as_str));
    let mut qemu = Process::start_logged(&argv, &plug.placement, &dir.join("qemu.log"))?;
    record.step(Step::Link, || {
        served.await_files(1, PATIENCE)?;
        Ok("DHCP".into())
    })?;
    record.step(Step::Ping, || ping(weir.uplink()?.host(), &busybox))?;
    record.leave_out(Step::Fragments, "iPXE sends no fragments");
    record.step(Step::Tcp, || {
        served.await_files(1, RETURN_PATIENCE)?;
        Ok("HTTP".into())
    })?;
    let before = weir.stats()?;
    record.step(Step::Reconnect, || {
        weir.crash();
        weir.launch_again()?;
        configure(weir.uplink()?.host(), weir.uplink()?.interface())?;
        weir.await_stats("the guest to be back", RETURN_PATIENCE, |stats| stats.all_running())?;
        served.await_files(2, PATIENCE)?;
        ping(weir.uplink()?.host(), &busybox)?;
        Ok("by itself".into())
    })?;
    record.step(Step::Drops, || {
        drops(&[before, weir.stats()?], &weir::name(GUEST), &[FEW_BUFFERS])
    })?;
    qemu.check_alive()?;
    stop(weir)
}

/// Gives the host's side of the uplink its address.
pub fn configure(host: &Netns, interface: &str) -> Result<()> {
    host.configure(interface, &address::cidr(HOST))
}

/// The ROM answers a ping when it polls its device, which it does all the time.
pub fn ping(host: &Netns, busybox: &str) -> Result<String> {
    host.exec(&[busybox, "ping", "-c", "3", "-W", "5", &address::ip(GUEST)])?;
    Ok("answers".into())
}

struct Served {
    files: std::path::PathBuf,
    dhcp: std::path::PathBuf,
    log: std::path::PathBuf,
}

impl Served {
    fn write(dir: &Path) -> Result<Self> {
        let files = dir.join("files");
        fs::create_dir_all(&files).map_err(Error::io("make", &files))?;
        let write = |path: &Path, content: &[u8]| {
            fs::write(path, content).map_err(Error::io("write", path))
        };
        let host = format!("http://{}:{PORT}", address::ip(HOST));
        let script = format!(
            "#!ipxe\n:again\nimgfetch {host}/data && imgfetch {host}/done ||\nimgfree\nsleep 1\ngoto again\n"
        );
        write(&files.join("script"), script.as_bytes())?;
        write(&files.join("data"), &vec![7; FILE_BYTES])?;
        write(&files.join("done"), b"done")?;
        let dhcp = dir.join("udhcpd.conf");
        let (guest, leases) = (address::ip(GUEST), dir.join("leases"));
        let text = format!(
            "start {guest}\nend {guest}\ninterface weir0\nlease_file {leases}\npidfile {dir}/udhcpd.pid\n\
             option subnet 255.255.255.0\nboot_file {host}/script\n",
            leases = leases.display(),
            dir = dir.display(),
        );
        write(&dhcp, text.as_bytes())?;
        write(&leases, b"")?;
        Ok(Self { files, dhcp, log: dir.join("http.log") })
    }

    /// Waits until `more` files have been fetched from now on.
    fn await_files(&self, more: usize, patience: Duration) -> Result<()> {
        let fetched = || {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            log.lines().filter(|line| line.contains(DONE)).count()
        };
        let before = fetched();
        wait_until("iPXE to fetch a file", patience, || Ok(fetched() >= before + more)).map_err(
            |error| {
                let log = fs::read_to_string(&self.log).unwrap_or_default();
                Error::Check(format!("{error}\n{log}"))
            },
        )
    }
}
