//! TCP between a QEMU guest and its host: through weir and a TAP, and through passt.

use weir_bed::{
    address,
    error::{Error, Result},
    iperf::{self, Direction, Tcp},
    netns::Netns,
    process::Process,
    qemu::{Guest, GuestSpec},
    report::{Figure, Report, Samples},
    switch::Switch,
    uplink::Uplink,
    weir::{Setup, Weir},
};

use super::{
    Bench, Contender,
    peers::passt::{self, Passt},
    vm_traffic::{OMIT_SECONDS, TCP_SECONDS},
};

/// Throughput to the host, and from it (Gbit/s).
type Run = [f64; 2];

pub(super) fn measure(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
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
    let plug = switch.plug(0)?;
    let spec = GuestSpec { name: "host-peer".into(), cidr: address::cidr(0), vcpus: 1, plug };
    let logs = bench.lab.workspace.run_dir("guests")?;
    let mut guest = Guest::boot(&bench.lab.image, &spec, &logs)?;
    let argv = ["iperf3", "-s", "-p", &iperf::PORT.to_string()];
    let _server = Process::start_logged(&argv, &host.placement(), &logs.join("iperf3.log"))?;
    let to_host = Tcp { omit_seconds: OMIT_SECONDS, ..Tcp::to(server.into(), TCP_SECONDS) };
    let from_host = Tcp { direction: Direction::ToClient, ..to_host.clone() };
    let mut gbit = |tcp: &Tcp| Ok::<_, Error>(tcp.run(&mut guest)?.gbit_per_second());
    Ok([gbit(&to_host)?, gbit(&from_host)?])
}
