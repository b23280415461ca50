//! Network namespaces, and the interfaces in them, by `ip`.
//!
//! Every interface of a test lives in its own namespace: the machine's network stays as it is, and all goes with
//! the namespace.

use std::{
    fs,
    path::Path,
    process::id,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use crate::{
    error::Result,
    process::{Placement, run, wait_until},
};

/// What the names of all namespaces made here start with; the owner's process id follows.
const PREFIX: &str = "weir-t-";

/// Where `ip netns` keeps its namespaces.
const NETNS_DIR: &str = "/run/netns";

/// How long an interface may take to appear.
const INTERFACE_PATIENCE: Duration = Duration::from_secs(5);

/// A network namespace, removed when dropped.
///
/// Keep it in a field after the processes in it: fields are dropped in order.
#[derive(Debug)]
pub struct Netns {
    name: String,
}

impl Netns {
    /// A new namespace with nothing but `lo`, which is up.
    pub fn new() -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{number}", id());
        run(&["ip", "netns", "add", &name])?;
        let netns = Self { name };
        // No router solicitations and no neighbour discovery: nothing talks unless a test does.
        // A kernel without IPv6 has no such switch, and needs none.
        let _ = netns.exec(&["sh", "-c", "echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6"]);
        netns.ip(&["link", "set", "lo", "up"])?;
        Ok(netns)
    }

    /// Its name, as `ip netns` shows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// For processes that are to run in this namespace, on any CPU.
    pub fn placement(&self) -> Placement {
        Placement { netns: Some(self.name.clone()), ..Placement::default() }
    }

    /// Runs `argv` in this namespace to its end.
    pub fn exec(&self, argv: &[&str]) -> Result<String> {
        let mut all = vec!["ip", "netns", "exec", &self.name];
        all.extend(argv);
        run(&all)
    }

    /// `ip ARGS` in this namespace.
    pub fn ip(&self, args: &[&str]) -> Result<String> {
        let mut all = vec!["ip", "-n", &self.name];
        all.extend(args);
        run(&all)
    }

    /// A bridge that neither learns from nor sends spanning tree messages, and is up.
    pub fn add_bridge(&self, name: &str) -> Result<()> {
        self.ip(&["link", "add", name, "type", "bridge", "stp_state", "0"])?;
        self.ip(&["link", "set", name, "up"])?;
        Ok(())
    }

    /// A TAP with `virtio_net_hdr`, so that offloads pass, as a port of `bridge`.
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

/// Removes the namespaces of processes that were killed before they could.
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
