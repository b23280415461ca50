//! Network namespaces, and the interfaces in them, by `ip`; a time namespace, in which the monotonic and boot-time
//! clocks have an offset (`time_namespaces(7)`).
//!
//! Every interface of a test is in a namespace of the test. The machine's network and its clocks are not changed, and the
//! interfaces are removed with the namespace.

use std::{
    fs,
    path::{Path, PathBuf},
    process::id,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use crate::{
    error::Result,
    process::{Placement, Process, run, wait_until},
};

/// The prefix of the names of all namespaces of this module. The owner's process id follows.
const PREFIX: &str = "weir-t-";

/// Directory in which `ip netns` keeps its namespaces.
const NETNS_DIR: &str = "/run/netns";

/// Longest time until an interface appears.
const INTERFACE_PATIENCE: Duration = Duration::from_secs(5);

/// A network namespace. It is removed when it is dropped.
///
/// Keep it in a field after the processes in it: fields are dropped in order.
#[derive(Debug)]
pub struct Netns {
    name: String,
}

impl Netns {
    /// A new namespace whose only interface is `lo`, which is up.
    pub fn new() -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{number}", id());
        run(&["ip", "netns", "add", &name])?;
        let netns = Self { name };
        // Without IPv6 there are no router solicitations and no neighbour discovery, so that only tests send frames.
        // A kernel without IPv6 does not have this file.
        let _ = netns.exec(&["sh", "-c", "echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6"]);
        netns.ip(&["link", "set", "lo", "up"])?;
        Ok(netns)
    }

    /// The namespace's name in `ip netns`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Placement of processes in this namespace, on any CPU.
    pub fn placement(&self) -> Placement {
        Placement { netns: Some(self.name.clone()), ..Placement::default() }
    }

    /// Runs `argv` in this namespace to its end.
    pub fn exec(&self, argv: &[&str]) -> Result<String> {
        let mut all = vec!["ip", "netns", "exec", &self.name];
        all.extend(argv);
        run(&all)
    }

    /// Runs `ip ARGS` in this namespace.
    pub fn ip(&self, args: &[&str]) -> Result<String> {
        let mut all = vec!["ip", "-n", &self.name];
        all.extend(args);
        run(&all)
    }

    /// Adds a bridge that is up, does not learn, and sends no spanning tree messages.
    pub fn add_bridge(&self, name: &str) -> Result<()> {
        self.ip(&["link", "add", name, "type", "bridge", "stp_state", "0"])?;
        self.ip(&["link", "set", name, "up"])?;
        Ok(())
    }

    /// Adds a TAP with `virtio_net_hdr` (so that offloads pass) as a port of `bridge`.
    pub fn add_tap(&self, name: &str, bridge: &str) -> Result<()> {
        self.ip(&["tuntap", "add", name, "mode", "tap", "vnet_hdr"])?;
        self.ip(&["link", "set", name, "master", bridge, "up"])?;
        Ok(())
    }

    /// Waits for `interface` to appear, then gives it `address` (with prefix length) and sets it up.
    pub fn configure(&self, interface: &str, address: &str) -> Result<()> {
        let what = format!("interface {interface} to appear");
        wait_until(&what, INTERFACE_PATIENCE, || {
            Ok(self.ip(&["link", "show", "dev", interface]).is_ok())
        })?;
        self.ip(&["addr", "add", address, "dev", interface])?;
        self.ip(&["link", "set", interface, "up"])?;
        Ok(())
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        let _ = run(&["ip", "netns", "del", &self.name]);
    }
}

/// Removes the namespaces of processes that were killed before they could remove them.
pub(crate) fn clear_stale() {
    let Ok(entries) = fs::read_dir(NETNS_DIR) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(rest) = name.strip_prefix(PREFIX) else {
            continue;
        };
        let owner = rest.split('-').next().unwrap_or_default();
        if !owner.is_empty() && !Path::new("/proc").join(owner).exists() {
            let _ = run(&["ip", "netns", "del", &name]);
        }
    }
}

const PATIENCE: Duration = Duration::from_secs(5);

/// A time namespace. It is removed when it is dropped and no process is in it.
pub struct Clock {
    holder: Process,
}

impl Clock {
    /// A namespace whose monotonic clock is `seconds` ahead of the machine's. The clock cannot be negative.
    pub fn ahead(seconds: i64) -> Result<Self> {
        let [monotonic, boot] = ["monotonic", "boottime"].map(|name| format!("--{name}={seconds}"));
        let wait = ["--fork", "--kill-child", "sleep", "infinity"];
        let argv = [&["unshare", "--time", &monotonic, &boot][..], &wait].concat();
        let (holder, _) = Process::start_dialogue(&argv, &Placement::default())?;
        let mut clock = Self { holder };
        wait_until("a time namespace", PATIENCE, || {
            clock.holder.check_alive()?;
            let own = fs::read_link("/proc/self/ns/time").ok();
            Ok(fs::read_link(clock.path()).ok() != own)
        })?;
        Ok(clock)
    }

    /// The namespace's file, for [`Placement::clock`].
    pub fn path(&self) -> PathBuf {
        // `unshare` puts only its children into the time namespace, not itself.
        PathBuf::from(format!("/proc/{}/ns/time_for_children", self.holder.pid()))
    }
}
