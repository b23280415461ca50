//! Small packets from a `vif` guest out of an uplink: AF_XDP on a veth against a TAP, and weir against OVS-DPDK.
//!
//! The host's interface counts the packets: the veth's far end, or the TAP. The host drops the packets at once, since
//! they are for another MAC address, in both cases on the switch's core. A further run feeds an uplink's port the
//! same burst again and again without a switch: no switch can be faster than this kernel limit.

use std::time::{Duration, Instant};

use weir_bed::{
    error::{Error, Result, check},
    process::Placement,
    report::{Figure, Goal, Report, Samples},
    switch::Switch as _,
    uplink::{Uplink, UplinkSite},
    weir::{Setup, Vif, Weir},
};

use super::{Bench, CLIENT_CPU, SWITCH_CPU, peers::dpdk::OvsDpdk};
use crate::vif_programs::{EverySecond, MACS};

const FRAME_BYTES: u32 = 64;

/// Duration of the count (s). The second before and the one after are left out, since an interface may be removed with
/// its program.
const SECONDS: u32 = 3;

pub(super) fn outward(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let rounds = bench.rounds(|round| {
        let mut rates = [0.0; 4];
        for (rate, (measure, uplink, what)) in rates.iter_mut().zip([
            (through_weir as Measure, Uplink::AfXdp, "weir"),
            (through_weir, Uplink::Tap, "weir"),
            (port_alone, Uplink::AfXdp, "port alone"),
            (port_alone, Uplink::Tap, "port alone"),
        ]) {
            bench.note_other_load()?;
            *rate = measure(bench, uplink)?.per_core;
            check(*rate > 0.0, || format!("{uplink}: nothing arrived"))?;
            let rounds = bench.rounds;
            println!("round {round}/{rounds}: {what}, {uplink}: {rate:.0} packets/s per core");
        }
        Ok(rates)
    })?;
    let [xdp, tap, xdp_limit, tap_limit] =
        [0, 1, 2, 3].map(|at: usize| rounds.iter().map(|rates| rates[at]).collect::<Samples>());
    let what = "64 B without offloads, polling vif guest to uplink, per core: AF_XDP (copy mode) on a veth \
                against TAP";
    let figure = Figure::ratio("xdp_pps_vs_tap", what, xdp.ratio_to(&tap));
    report.add(figure.goal(Some(Goal::AtLeast(2.0))));
    let what = "the same without a switch: what the kernel takes";
    report.add(Figure::ratio("xdp_limit_vs_tap_limit", what, xdp_limit.ratio_to(&tap_limit)));
    let what = "weir with AF_XDP against the kernel's limit";
    report.add(Figure::ratio("xdp_pps_vs_limit", what, xdp.ratio_to(&xdp_limit)));
    let what = "weir's uplink, counted by the host, by weir's share of its core";
    report.add(Figure::new("pps64_uplink_xdp", "packets/s per core", what, xdp));
    report.add(Figure::new("pps64_uplink_tap", "packets/s per core", what, tap));
    let what = "the port alone, counted by the host, by its share of its core";
    report.add(Figure::new("pps64_limit_xdp", "packets/s per core", what, xdp_limit));
    report.add(Figure::new("pps64_limit_tap", "packets/s per core", what, tap_limit));
    Ok(())
}

/// Compares TAP uplinks of weir and of a polling switch, each on one core, by the packets per second that arrive.
pub(super) fn vs_ovs_dpdk(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let rounds = bench.rounds(|round| {
        let ways: [(&str, &dyn Fn() -> Result<f64>); 3] = [
            ("weir", &|| Ok(through_weir(bench, Uplink::Tap)?.packets_per_second)),
            ("ovs-dpdk", &|| through_ovs(bench)),
            ("port alone", &|| Ok(port_alone(bench, Uplink::Tap)?.packets_per_second)),
        ];
        let mut rates = [0.0; 3];
        for (rate, (name, measure)) in rates.iter_mut().zip(ways) {
            bench.note_other_load()?;
            *rate = measure()?;
            println!("round {round}/{}: {name}: {rate:.0} packets/s", bench.rounds);
        }
        Ok(rates)
    })?;
    let [weir, ovs, alone] =
        [0, 1, 2].map(|at: usize| rounds.iter().map(|rates| rates[at]).collect::<Samples>());
    let what = "64 B from a polling vif guest to a TAP, a core for the switch";
    let figure = Figure::ratio("uplink_pps_vs_ovs_dpdk", what, weir.ratio_to(&ovs));
    report.add(figure.goal(Some(Goal::AtLeast(1.5))));
    let what = "the same without a switch: what the kernel takes";
    let figure = Figure::ratio("uplink_pps_vs_ovs_dpdk_limit", what, alone.ratio_to(&ovs));
    report.add(figure);
    report.add(Figure::new("uplink_pps_weir", "packets/s", "counted by the host", weir));
    report.add(Figure::new("uplink_pps_ovs_dpdk", "packets/s", "counted by the host", ovs));
    Ok(())
}

fn through_ovs(bench: &Bench<'_>) -> Result<f64> {
    let [_, outside] = MACS;
    let ovs = OvsDpdk::with_tap(&bench.lab.workspace, bench.lab.qemu)
        .map_err(Error::absent("ovs-dpdk with a TAP"))?;
    let site = ovs.uplink()?;
    site.announce(outside)?;
    let socket = ovs.link(0)?.socket;
    let load = bench.programs()?.outward(&socket, FRAME_BYTES, 2 + SECONDS, CLIENT_CPU)?;
    let rate = Rate::measure(site, || ovs.cpu_time(), load)?.packets_per_second;
    check(rate > 0.0, || "nothing arrived from Open vSwitch".into())?;
    Ok(rate)
}

/// Measures the packets that arrive at the host from a sending program.
type Measure = fn(&Bench<'_>, Uplink) -> Result<Rate>;

fn through_weir(bench: &Bench<'_>, uplink: Uplink) -> Result<Rate> {
    let [guest, outside] = MACS;
    let vifs = vec![Vif { mac: Some(guest), ..Vif::default() }];
    let setup = Setup { vifs, uplink: Some(uplink), cpu: Some(SWITCH_CPU), ..Setup::default() };
    let weir = Weir::start(bench.lab, &setup)?;
    let site = weir.uplink()?;
    site.announce(outside)?;
    let socket = weir.socket(0_u8)?;
    let load = bench.programs()?.outward(&socket, FRAME_BYTES, 2 + SECONDS, CLIENT_CPU)?;
    Rate::measure(site, || weir.usage().cpu_time(), load)
}

fn port_alone(bench: &Bench<'_>, uplink: Uplink) -> Result<Rate> {
    let site = UplinkSite::new(uplink)?;
    let placement = Placement { cpu: Some(SWITCH_CPU), ..site.placement() };
    let load = bench.programs()?.uplink_limit(uplink, FRAME_BYTES, 2 + SECONDS, &placement)?;
    let sender = load.usage();
    Rate::measure(&site, || sender.cpu_time(), load)
}

struct Rate {
    packets_per_second: f64,
    /// Packets per second of the sending program's CPU time.
    per_core: f64,
}

impl Rate {
    fn measure(
        site: &UplinkSite,
        cpu_time: impl Fn() -> Result<Duration>,
        mut load: EverySecond,
    ) -> Result<Self> {
        load.next()?;
        let (begin, packets, cpu) = (Instant::now(), site.received()?, cpu_time()?);
        for _ in 0..SECONDS {
            load.next()?;
        }
        let time = begin.elapsed();
        let packets = site.received()?.saturating_sub(packets) as f64;
        let cpu = cpu_time()?.saturating_sub(cpu);
        let packets_per_second = packets / time.as_secs_f64();
        Ok(Self { packets_per_second, per_core: packets / cpu.as_secs_f64() })
    }
}
