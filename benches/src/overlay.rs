//! A network over two hosts as namespaces with an underlay between them: two weirs, or two bridges with the kernel's
//! VXLAN device. The two guests are the same in both cases.

use std::{fmt::Write as _, fs, path::PathBuf, time::Duration};

use weir_bed::{
    address,
    error::{Error, Result},
    lab::Lab,
    netns::Netns,
    process::{Process, wait_until},
    qemu::{Plug, Qemu},
    report::{Figure, Goal, Report},
    switch::Switch,
    usage::Usage,
    weir,
    workspace::socket_path,
};

use super::{Bench, Contender, vm_traffic};

/// The guests' MTU: the underlay's 1500 less the VXLAN and IPv4 headers.
const MTU: u32 = 1450;
const VNI: u32 = 100;
const START_PATIENCE: Duration = Duration::from_secs(10);

/// Two hosts at 192.0.2.1 and 192.0.2.2.
pub(super) struct Hosts([Netns; 2]);

impl Hosts {
    pub(super) fn new() -> Result<Self> {
        let [one, two] = [Netns::new()?, Netns::new()?];
        one.ip(&["link", "add", "u0", "type", "veth", "peer", "name", "u0", "netns", two.name()])?;
        for (netns, address) in [(&one, "192.0.2.1/24"), (&two, "192.0.2.2/24")] {
            netns.configure("u0", address)?;
        }
        Ok(Self([one, two]))
    }

    pub(super) fn both(&self) -> &[Netns; 2] {
        &self.0
    }
}

/// A weir on each host, with one interface.
pub(super) struct WeirPair {
    weirs: [Process; 2],
    program: String,
    qemu: Qemu,
    configs: [PathBuf; 2],
    _hosts: Hosts,
}

impl WeirPair {
    pub(super) fn start(lab: &Lab) -> Result<Self> {
        let hosts = Hosts::new()?;
        let program = lab.weir.to_string_lossy().into_owned();
        let start = |index: u8| {
            let dir = lab.workspace.run_dir(&format!("overlay{index}"))?;
            let control = socket_path(&dir, "control.sock")?;
            let socket = socket_path(&dir, "vif.sock")?;
            let mut toml = format!("[switch]\nworkers = 1\ncontrol = {control:?}\n");
            let (here, there) = (index + 1, 2 - index);
            let _ = write!(
                toml,
                "[overlay]\nlocal = \"192.0.2.{here}\"\n[network.blue]\nvni = {VNI}\npeers = [\"192.0.2.{there}\"]\n\
                 [vif.vif{index}]\nsocket = {socket:?}\nnetwork = \"blue\"\nmac = \"{}\"\n",
                address::mac(index)
            );
            let config = dir.join("weir.toml");
            fs::write(&config, toml).map_err(Error::io("write", &config))?;
            let argv = [program.as_str(), "run", &config.to_string_lossy()];
            let placement = hosts.0[usize::from(index)].placement();
            let mut weir = Process::start_logged(&argv, &placement, &dir.join("weir.log"))?;
            wait_until("weir's sockets", START_PATIENCE, || {
                weir.check_alive()?;
                Ok(control.exists() && socket.exists())
            })?;
            Ok((weir, config))
        };
        let [(first, one), (second, two)] = [start(0)?, start(1)?];
        let (weirs, configs) = ([first, second], [one, two]);
        Ok(Self { weirs, program, qemu: lab.qemu, configs, _hosts: hosts })
    }
}

impl Switch for WeirPair {
    fn plug(&self, index: u8) -> Result<Plug> {
        let config = &self.configs[usize::from(index)];
        weir::plug(&self.program, self.qemu, &format!("vif{index}"), config)
    }

    fn cpu_time(&self) -> Result<Duration> {
        let [one, two] = &self.weirs;
        Ok(Usage::of(one.pid()).cpu_time()? + Usage::of(two.pid()).cpu_time()?)
    }
}

/// A bridge on each host, with a TAP and a VXLAN device.
pub(super) struct KernelPair(Hosts);

impl KernelPair {
    pub(super) fn start() -> Result<Self> {
        let hosts = Hosts::new()?;
        for (netns, here, there) in [(&hosts.0[0], 1, 2), (&hosts.0[1], 2, 1)] {
            netns.add_bridge("br0")?;
            netns.add_tap("tap0", "br0")?;
            let (vni, local) = (VNI.to_string(), format!("192.0.2.{here}"));
            let remote = format!("192.0.2.{there}");
            let device = ["link", "add", "vxlan0", "type", "vxlan", "id", &vni, "local", &local];
            netns.ip(&[&device[..], &["remote", &remote, "dstport", "4789"]].concat())?;
            let mtu = MTU.to_string();
            netns.ip(&["link", "set", "vxlan0", "mtu", &mtu, "master", "br0", "up"])?;
            netns.ip(&["link", "set", "tap0", "mtu", &mtu])?;
        }
        Ok(Self(hosts))
    }
}

impl Switch for KernelPair {
    fn plug(&self, index: u8) -> Result<Plug> {
        let netdev = "tap,id=net0,ifname=tap0,script=no,downscript=no".to_owned();
        let mac = address::mac(index);
        let device =
            format!("virtio-net-pci,netdev=net0,mac={mac},rx_queue_size=1024,host_mtu={MTU}");
        let qemu_args = vec![String::from("-netdev"), netdev, String::from("-device"), device];
        Ok(Plug { qemu_args, placement: self.0.0[usize::from(index)].placement() })
    }
}

/// Measures one TCP connection between the hosts' guests, and its cost.
pub(super) fn tcp(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let contenders = [Contender::WeirOverlay, Contender::KernelOverlay];
    let [weir, kernel] =
        vm_traffic::interleaved(bench, "Gbit/s", contenders, vm_traffic::tcp_transfer)?;
    let what = "QEMU guests on two hosts, one TCP connection through VXLAN";
    let rates = vm_traffic::rates;
    let ratio = rates(&weir).ratio_to(&rates(&kernel));
    let goal = Some(Goal::AtLeast(1.3));
    report.add(Figure::ratio("overlay_tcp_vs_kernel", what, ratio).goal(goal));
    let limit = vm_traffic::limits(&weir).ratio_to(&rates(&kernel));
    report.add(Figure::ratio("overlay_tcp_vs_kernel_limit", vm_traffic::LIMIT, limit));
    report.add(Figure::new("overlay_tcp_gbit_weir", "Gbit/s", what, rates(&weir)));
    report.add(Figure::new("overlay_tcp_gbit_kernel", "Gbit/s", what, rates(&kernel)));
    let what = "the same: CPU time of switches and guests for a Gbit";
    let costs = vm_traffic::costs;
    let ratio = costs(&weir).ratio_to(&costs(&kernel));
    let goal = Some(Goal::AtMost(0.8));
    report.add(Figure::ratio("overlay_cpu_per_gbit_vs_kernel", what, ratio).goal(goal));
    let limit = vm_traffic::guests_costs(&weir).ratio_to(&costs(&kernel));
    let what = "the same were weir's CPU time nothing";
    report.add(Figure::ratio("overlay_cpu_per_gbit_vs_kernel_limit", what, limit));
    let what = "both weirs, in those runs";
    let cores = vm_traffic::switch_cores(&weir);
    report.add(Figure::new("overlay_tcp_cores_weir", "cores", what, cores));
    Ok(())
}

/// Measures small datagrams between the hosts' guests.
pub(super) fn small_udp(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let contenders = [Contender::WeirOverlay, Contender::KernelOverlay];
    let [weir, kernel] =
        vm_traffic::interleaved(bench, "packets/s", contenders, vm_traffic::datagrams)?;
    let what = "QEMU guests on two hosts, UDP of 64 B through VXLAN as fast as the sender's kernel can: received";
    let rates = vm_traffic::rates;
    let ratio = rates(&weir).ratio_to(&rates(&kernel));
    let goal = Some(Goal::AtLeast(2.0));
    report.add(Figure::ratio("overlay_pps64_vs_kernel", what, ratio).goal(goal));
    let limit = vm_traffic::limits(&weir).ratio_to(&rates(&kernel));
    report.add(Figure::ratio("overlay_pps64_vs_kernel_limit", vm_traffic::LIMIT, limit));
    report.add(Figure::new("overlay_pps64_weir", "packets/s", what, rates(&weir)));
    report.add(Figure::new("overlay_pps64_kernel", "packets/s", what, rates(&kernel)));
    Ok(())
}
