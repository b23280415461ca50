//! The kernel's bridge between two TAPs, libvirt's default for a VM.
//!
//! QEMU itself moves packets between the guest and its TAP (no vhost-net), with all offloads of
//! virtio-net.

use weir_bed::{
    address,
    error::Result,
    netns::Netns,
    packages::DNSMASQ,
    process::{Placement, Process},
    qemu::Plug,
    switch::Switch,
    workspace::Workspace,
};

const BRIDGE: &str = "br0";

/// A bridge with TAPs `tap0`, `tap1`, ... in its own network namespace.
pub struct TapBridge {
    netns: Netns,
}

impl TapBridge {
    /// Makes a bridge with `ports` TAPs.
    pub fn start(ports: u8) -> Result<Self> {
        let netns = Netns::new()?;
        netns.add_bridge(BRIDGE)?;
        for index in 0..ports {
            netns.add_tap(&tap(index), BRIDGE)?;
        }
        Ok(Self { netns })
    }

    /// Returns the TAPs' placement.
    pub fn placement(&self) -> Placement {
        self.netns.placement()
    }
}

impl Switch for TapBridge {
    fn plug(&self, index: u8) -> Result<Plug> {
        Ok(plug(index, self.netns.placement()))
    }
}

/// Returns QEMU's own connection to TAP `index`.
fn plug(index: u8, placement: Placement) -> Plug {
    let netdev = format!("tap,id=net0,ifname={},script=no,downscript=no", tap(index));
    // Ring sizes are weir's, except TX: QEMU gives a TAP at most 256 entries.
    let mac = address::mac(index);
    let device = format!("virtio-net-pci,netdev=net0,mac={mac},rx_queue_size=1024");
    let qemu_args = vec![String::from("-netdev"), netdev, String::from("-device"), device];
    Plug { qemu_args, placement }
}

/// Returns the name of TAP `index`.
pub fn tap(index: u8) -> String {
    format!("tap{index}")
}

/// The host's address on the bridge of a [`NatBridge`], and the rest of its network.
const HOST: &str = "10.77.0.254/24";
const SUBNET: &str = "10.77.0.0/24";
const LEASES: &str = "10.77.0.100,10.77.0.200";

/// libvirt's default network: a bridge with an address of the host. dnsmasq serves it, and guests go out by the host's
/// address.
pub struct NatBridge {
    _dnsmasq: Process,
    placement: Placement,
}

impl NatBridge {
    /// Makes the network, with a TAP, on `host`.
    pub fn start(host: &Netns, workspace: &Workspace) -> Result<Self> {
        host.add_bridge(BRIDGE)?;
        host.configure(BRIDGE, HOST)?;
        host.add_tap(&tap(0), BRIDGE)?;
        host.exec(&["nft", &rules()])?;
        let dir = workspace.run_dir("dnsmasq")?;
        let leases = format!("--dhcp-leasefile={}", dir.join("leases").display());
        let (range, interface) =
            (format!("--dhcp-range={LEASES}"), format!("--interface={BRIDGE}"));
        let argv = [
            DNSMASQ,
            "--keep-in-foreground",
            "--conf-file=/dev/null",
            "--user=root",
            "--pid-file",
            "--bind-interfaces",
            "--except-interface=lo",
            &interface,
            &range,
            &leases,
        ];
        let placement = host.placement();
        let dnsmasq = Process::start_logged(&argv, &placement, &dir.join("log"))?;
        Ok(Self { _dnsmasq: dnsmasq, placement })
    }
}

/// Returns the rules that libvirt makes for a network with `forward mode='nat'`.
fn rules() -> String {
    let forward = "add rule inet lan forward";
    [
        "add table inet lan".to_owned(),
        "add chain inet lan postrouting { type nat hook postrouting priority srcnat; }".to_owned(),
        "add chain inet lan forward { type filter hook forward priority filter; }".to_owned(),
        format!("add rule inet lan postrouting ip saddr {SUBNET} ip daddr != {SUBNET} masquerade"),
        format!("{forward} oifname {BRIDGE} ip daddr {SUBNET} ct state established,related accept"),
        format!("{forward} iifname {BRIDGE} ip saddr {SUBNET} accept"),
        format!("{forward} oifname {BRIDGE} reject"),
        format!("{forward} iifname {BRIDGE} reject"),
    ]
    .join("; ")
}

impl Switch for NatBridge {
    fn plug(&self, index: u8) -> Result<Plug> {
        Ok(plug(index, self.placement.clone()))
    }
}
