//! TCP between a QEMU guest and what is beyond its switch: the host, or an outside host.
//!
//! To the host: weir with a TAP as uplink, and passt. To the outside by the host's address: weir with `nat`, and
//! libvirt's default network. To the outside by gvproxy: weir with a stream as uplink, and QEMU itself on gvproxy's
//! socket. The outside is another namespace behind a veth pair, with the kernel's TCP.

use std::time::{Duration, Instant};

use weir_bed::{
    address,
    error::{Error, Result, check},
    iperf::{self, Direction, Tcp},
    lab::Lab,
    netns::Netns,
    process::{Placement, Process, run_in, wait_until},
    qemu::{Guest, GuestSpec, Plug},
    report::{Figure, Goal, Report, Samples},
    switch::Switch,
    uplink::Uplink,
    weir::{Setup, Weir},
    workspace::socket_path,
};

use super::{
    Bench, Contender,
    machine::CpuTime,
    overlay::Hosts,
    peers::{
        passt::{self, Passt},
        tap_bridge::NatBridge,
    },
    vm_traffic::{self, Cpu, OMIT_SECONDS, TCP_SECONDS, Transfer},
};

/// The host's address in the guest's network.
pub(super) const HOST: &str = passt::HOST;

/// The outside host's address.
const OUTSIDE: &str = "192.0.2.2";

/// gvproxy, built by Go in the directory in which weir's own tests keep it.
const GVPROXY: &str = "github.com/containers/gvisor-tap-vsock/cmd/gvproxy@v0.8.7";
const GVPROXY_DIR: &str = "tmp/go";
/// gvproxy's own address and the guest's, in gvproxy's network.
const GVPROXY_ADDRESS: &str = "192.168.127.1";
const GVPROXY_GUEST: &str = "192.168.127.10/24";

const PATIENCE: Duration = Duration::from_secs(10);

/// Throughput to the host, and from it (Gbit/s).
type Run = [f64; 2];

pub(super) fn to_host(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let contenders = [Contender::Weir, Contender::Passt];
    let measure = |contender| run(bench, contender);
    let found = bench.interleaved("Gbit/s", contenders, measure, |run| run[0])?;
    let of = |runs: &Vec<Run>, which: usize| runs.iter().map(|run| run[which]).collect::<Samples>();
    let names = [
        ["vm_to_host_tcp_vs_passt", "vm_to_host_gbit_weir", "vm_to_host_gbit_passt"],
        ["host_to_vm_tcp_vs_passt", "host_to_vm_gbit_weir", "host_to_vm_gbit_passt"],
    ];
    let whats = [
        "a QEMU guest sends to its host by one TCP connection: weir with a TAP as uplink, or passt",
        "the same the other way",
    ];
    for (which, ([ratio, weir_name, passt_name], what)) in names.into_iter().zip(whats).enumerate()
    {
        let [weir, passt] = [of(&found[0], which), of(&found[1], which)];
        report.add(Figure::ratio(ratio, what, weir.ratio_to(&passt)));
        report.add(Figure::new(weir_name, "Gbit/s", "weir and its TAP", weir));
        report.add(Figure::new(passt_name, "Gbit/s", "passt", passt));
    }
    Ok(())
}

fn run(bench: &Bench<'_>, contender: Contender) -> Result<Run> {
    match contender {
        Contender::Passt => {
            let passt = Passt::start(&bench.lab.workspace).map_err(Error::absent("passt"))?;
            transfers(bench, &passt, passt.host(), passt::HOST)
        }
        _ => {
            let setup = Setup { uplink: Some(Uplink::Tap), ..Setup::vifs(1) };
            let weir = Weir::start(bench.lab, &setup)?;
            let site = weir.uplink()?;
            site.host().configure(site.interface(), &format!("{}/24", passt::HOST))?;
            transfers(bench, &weir, site.host(), passt::HOST)
        }
    }
}

fn transfers(bench: &Bench<'_>, switch: &dyn Switch, host: &Netns, server: &str) -> Result<Run> {
    let (mut guest, _server) = guest_and_server(bench.lab, switch, address::cidr(0), host)?;
    let mut gbit = |tcp: &Tcp| Ok::<_, Error>(tcp.run(&mut guest)?.gbit_per_second());
    let [to_host, from_host] = both_ways(server);
    Ok([gbit(&to_host)?, gbit(&from_host)?])
}

/// Boots a guest on `switch`, and starts a server on `host`.
fn guest_and_server(
    lab: &Lab,
    switch: &dyn Switch,
    cidr: String,
    host: &Netns,
) -> Result<(Guest, Process)> {
    let spec = GuestSpec { name: "host-peer".into(), cidr, vcpus: 1, plug: switch.plug(0)? };
    let logs = lab.workspace.run_dir("guests")?;
    let guest = Guest::boot(&lab.image, &spec, &logs)?;
    let argv = ["iperf3", "-s", "-p", &iperf::PORT.to_string()];
    let server = Process::start_logged(&argv, &host.placement(), &logs.join("iperf3.log"))?;
    Ok((guest, server))
}

/// Returns one connection to `server` that sends, and one that receives.
fn both_ways(server: &str) -> [Tcp; 2] {
    let to = Tcp { omit_seconds: OMIT_SECONDS, ..Tcp::to(server.into(), TCP_SECONDS) };
    let from = Tcp { direction: Direction::ToClient, ..to.clone() };
    [to, from]
}

/// The names of a row's figures, and its goals.
struct Names {
    /// Name of the way, the first part of each figure's.
    way: &'static str,
    peer: &'static str,
    what: &'static str,
    /// Goal of the rates' ratios.
    goal: Goal,
}

pub(super) fn nat(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let what = "by the host's address: weir with `nat`, or QEMU's TAP on a bridge with dnsmasq and nftables";
    let names = Names { way: "nat", peer: "bridge", what, goal: Goal::AtLeast(1.15) };
    names.measure(bench, [Contender::WeirNat, Contender::NatBridge], report)
}

pub(super) fn stream(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let what = "by gvproxy: weir with a stream as uplink, or QEMU on gvproxy's socket";
    let names = Names { way: "stream", peer: "direct", what, goal: Goal::AtLeast(0.9) };
    names.measure(bench, [Contender::WeirStream, Contender::Gvproxy], report)
}

/// A transfer, and the CPU time that all of the machine has for it.
struct Crossing {
    transfer: Transfer,
    /// CPU time (s) for a Gbit.
    machine: f64,
}

impl Names {
    /// Measures weir and a peer, each with a guest that sends and then receives.
    fn measure(
        &self,
        bench: &Bench<'_>,
        contenders: [Contender; 2],
        report: &mut Report,
    ) -> Result<()> {
        let measure = |contender: Contender| {
            let way = WayOut::start(bench.lab, contender)?;
            let crossings = way.crossings(bench.lab)?;
            println!("  and back: {:.3} Gbit/s", crossings[1].transfer.rate());
            Ok(crossings)
        };
        let [weir, peer] =
            bench.interleaved("Gbit/s", contenders, measure, |run| run[0].transfer.rate())?;
        let split = |runs: Vec<[Crossing; 2]>| -> [Vec<Crossing>; 2] {
            let (to, from) = runs.into_iter().map(<(_, _)>::from).unzip();
            [to, from]
        };
        let ways = ["", "_back"].into_iter().zip(["sends", "receives"]);
        for ((back, does), (weir, peer)) in ways.zip(split(weir).into_iter().zip(split(peer))) {
            self.add_to(report, back, does, [weir, peer]);
        }
        Ok(())
    }

    fn add_to(&self, report: &mut Report, back: &str, does: &str, crossings: [Vec<Crossing>; 2]) {
        let Self { way, peer, what, goal } = *self;
        let what = format!("a QEMU guest {does} by one TCP connection, {what}");
        let machine = crossings.each_ref().map(|all| all.iter().map(|it| it.machine).collect());
        let [weir_cost, peer_cost]: [Samples; 2] = machine;
        let [weir, others] = crossings
            .map(|all| all.into_iter().map(|crossing| crossing.transfer).collect::<Vec<_>>());
        let (rates, peers) = (vm_traffic::rates(&weir), vm_traffic::rates(&others));
        let ratio = format!("{way}_tcp{back}_vs_{peer}");
        let figure = Figure::ratio(ratio.clone(), what, rates.ratio_to(&peers));
        report.add(figure.goal(Some(goal)));
        let limit = vm_traffic::limits(&weir).ratio_to(&peers);
        report.add(Figure::ratio(format!("{ratio}_limit"), vm_traffic::LIMIT, limit));
        let gbit = |of: &str| format!("{way}_tcp{back}_gbit_{of}");
        report.add(Figure::new(gbit("weir"), "Gbit/s", "weir", rates));
        report.add(Figure::new(gbit(peer), "Gbit/s", "the other", peers));
        let ratio = weir_cost.ratio_to(&peer_cost);
        let cpu = "the same: CPU time of all of the machine for a Gbit";
        report.add(Figure::ratio(format!("{way}_cpu{back}_vs_{peer}"), cpu, ratio));
        let cores = format!("{way}_tcp{back}_cores_weir");
        let says = "weir itself, in those runs";
        report.add(Figure::new(cores, "cores", says, vm_traffic::switch_cores(&weir)));
    }
}

/// A guest's connection to the outside. The guest itself is on no host's network.
pub(super) struct WayOut {
    switch: Box<dyn Switch>,
    _gvproxy: Option<Process>,
    hosts: Hosts,
    /// The guest's address with prefix length, and its router.
    cidr: String,
    router: &'static str,
}

impl WayOut {
    pub(super) fn start(lab: &Lab, contender: Contender) -> Result<Self> {
        let hosts = Hosts::new()?;
        let [host, _] = hosts.both();
        let (switch, gvproxy, cidr, router): (Box<dyn Switch>, _, _, _) = match contender {
            Contender::WeirNat | Contender::NatBridge => {
                host.exec(&["sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"])?;
                let switch: Box<dyn Switch> = if contender == Contender::WeirNat {
                    let network = format!("address = \"{HOST}/24\"\ndhcp = true\nnat = true");
                    let setup = Setup { network: Some(network), ..Setup::vifs(1) };
                    Box::new(Weir::start_at(host.placement(), lab, &setup)?)
                } else {
                    let bridge = NatBridge::start(host, &lab.workspace);
                    Box::new(bridge.map_err(Error::absent("a bridge with dnsmasq"))?)
                };
                (switch, None, address::cidr(0), HOST)
            }
            Contender::WeirStream | Contender::Gvproxy => {
                let dir = lab.workspace.run_dir("gvproxy")?;
                let socket = socket_path(&dir, "out.sock")?;
                let path = socket.to_string_lossy();
                let gvproxy = start_gvproxy(lab, &path, host.placement());
                let gvproxy = gvproxy.map_err(Error::absent("gvproxy"))?;
                let switch: Box<dyn Switch> = if contender == Contender::WeirStream {
                    let uplink = format!("[uplink.out]\nkind = \"stream\"\npath = {path:?}\n");
                    let setup = Setup { more: uplink, ..Setup::vifs(1) };
                    Box::new(Weir::start(lab, &setup)?)
                } else {
                    Box::new(Direct { socket: path.into_owned() })
                };
                (switch, Some(gvproxy), GVPROXY_GUEST.to_owned(), GVPROXY_ADDRESS)
            }
            other => {
                let name = other.name();
                return Err(Error::Check(format!("{name} is no way to the outside")));
            }
        };
        Ok(Self { switch, _gvproxy: gvproxy, hosts, cidr, router })
    }
}

impl WayOut {
    /// Measures one connection to the outside host, and one from there.
    fn crossings(&self, lab: &Lab) -> Result<[Crossing; 2]> {
        let [_, outside] = self.hosts.both();
        let (mut guest, _server) =
            guest_and_server(lab, &*self.switch, self.cidr.clone(), outside)?;
        guest.run(&format!("ip route add default via {}", self.router), PATIENCE)?;
        let mut cross = |tcp: &Tcp| {
            let before = Cpu::read(&*self.switch, &guest, None)?;
            let (begin, machine) = (Instant::now(), CpuTime::read()?);
            let rate = tcp.run(&mut guest)?.gbit_per_second();
            let busy = CpuTime::read()?.busy_cores_since(machine)? * begin.elapsed().as_secs_f64();
            let after = Cpu::read(&*self.switch, &guest, None)?;
            check(rate > 0.0, || "nothing arrived".into())?;
            // The seconds outside the count took CPU time, too, and moved bytes at the same rate.
            let amount = rate * (TCP_SECONDS + OMIT_SECONDS) as f64;
            let transfer = Transfer::new(rate, amount, false, &before, &after);
            Ok::<_, Error>(Crossing { transfer, machine: busy / amount })
        };
        let [to, from] = both_ways(OUTSIDE);
        Ok([cross(&to)?, cross(&from)?])
    }
}

impl Switch for WayOut {
    fn plug(&self, index: u8) -> Result<Plug> {
        self.switch.plug(index)
    }

    fn cpu_time(&self) -> Result<Duration> {
        self.switch.cpu_time()
    }
}

/// Starts gvproxy, which serves one client at the socket `path`.
fn start_gvproxy(lab: &Lab, path: &str, placement: Placement) -> Result<Process> {
    let dir = lab.workspace.target(GVPROXY_DIR)?;
    let program = dir.join("gvproxy");
    if !program.exists() {
        println!("making gvproxy");
        let argv = ["timeout", "300", "go", "install", GVPROXY];
        run_in(&argv, &lab.workspace.root, &[("GOBIN", dir.as_os_str())])?;
    }
    let (program, socket) = (program.to_string_lossy(), format!("unix://{path}"));
    let argv = [&*program, "-listen-qemu", &socket, "-ssh-port", "-1"];
    let log = lab.workspace.run_dir("gvproxy")?.join("log");
    let mut process = Process::start_logged(&argv, &placement, &log)?;
    wait_until("gvproxy's socket", PATIENCE, || {
        process.check_alive()?;
        Ok(std::path::Path::new(path).exists())
    })?;
    Ok(process)
}

/// QEMU's own connection to gvproxy's socket.
struct Direct {
    socket: String,
}

impl Switch for Direct {
    fn plug(&self, index: u8) -> Result<Plug> {
        let mac = address::mac(index);
        Ok(passt::stream_plug(&self.socket, &mac, Placement::default()))
    }
}
