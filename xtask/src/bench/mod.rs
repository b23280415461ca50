//! weir against its peers on this machine, in interleaved rounds.
//!
//! A round measures every contender once, each brought up from nothing, so that whatever else the
//! machine does at the time meets all of them; ratios are taken within a round.

mod idle;
mod packet_rate;
mod vm_tcp;

use crate::{
    error::Result,
    lab::Lab,
    peers::{Switch, ovs_dpdk::OvsDpdk, tap_bridge::TapBridge},
    report::{Goal, Report, Samples},
    weir::{Setup, Weir},
};

/// Where contenders run. Guests are never pinned; `SWITCH_CPU` and `CLIENT_CPU` apply to packet rates.
const PINNING: &str = "\
VM throughput: nothing is pinned, the scheduler places guests and switches; OVS-DPDK pins its
  polling thread itself (CPU 1).
Packet rate: the switch's packet thread is pinned to CPU 1 (weir: the whole process; OVS-DPDK: its
  polling thread, its other threads on CPU 0), testpmd with all its threads to CPU 0.";

/// The CPU a switch is held on where packet rates are measured.
const SWITCH_CPU: usize = crate::peers::ovs_dpdk::POLLING_CPU;

/// The CPU of the client there.
const CLIENT_CPU: usize = 0;

/// A switch to be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contender {
    Weir,
    TapBridge,
    OvsDpdk,
}

impl Contender {
    fn name(self) -> &'static str {
        match self {
            Self::Weir => "weir",
            Self::TapBridge => "tap+bridge",
            Self::OvsDpdk => "ovs-dpdk",
        }
    }

    /// Starts it with two ports; `cpu` is where weir is held, if anywhere.
    fn start(self, lab: &Lab, cpu: Option<usize>) -> Result<Box<dyn Switch>> {
        Ok(match self {
            Self::Weir => Box::new(Weir::start(lab, &Setup { cpu, ..Setup::vifs(2) })?),
            Self::TapBridge => Box::new(TapBridge::start(2)?),
            Self::OvsDpdk => Box::new(OvsDpdk::start(&lab.workspace, lab.qemu, 2)?),
        })
    }
}

/// Measures everything and prints the table as it goes; what was found.
pub fn run(lab: &Lab, rounds: u32) -> Result<Report> {
    println!("{PINNING}\n");
    let mut report = Report::default();

    let [weir, bridge, ovs] = interleaved(
        rounds,
        "Gbit/s",
        [Contender::Weir, Contender::TapBridge, Contender::OvsDpdk],
        |contender| vm_tcp::gbit_per_second(lab, contender),
    )?;
    let at_least = |bound| Some(Goal::AtLeast(bound));
    report.add("vm_tcp_vs_tap_bridge", "x", weir.ratio_to(&bridge), at_least(1.0));
    report.add("vm_tcp_vs_ovs_dpdk", "x", weir.ratio_to(&ovs), at_least(3.0));
    report.add("vm_tcp_gbit_weir", "Gbit/s", weir, None);
    report.add("vm_tcp_gbit_tap_bridge", "Gbit/s", bridge, None);
    report.add("vm_tcp_gbit_ovs_dpdk", "Gbit/s", ovs, None);

    let mut wakeups = Samples::default();
    wakeups.push(idle::wakeups_per_second(lab)?);
    report.add("idle_wakeups_per_s", "/s", wakeups, Some(Goal::AtMost(1.0)));

    let [weir, ovs] =
        interleaved(rounds, "packets/s", [Contender::Weir, Contender::OvsDpdk], |contender| {
            packet_rate::packets_per_second(lab, contender)
        })?;
    report.add("pps64_vs_ovs_dpdk", "x", weir.ratio_to(&ovs), None);
    report.add("pps64_weir", "packets/s", weir, None);
    report.add("pps64_ovs_dpdk", "packets/s", ovs, None);

    println!("\n{}", report.table());
    Ok(report)
}

/// `measure` of every contender in turn, `rounds` times over: A B C A B C ...
fn interleaved<const N: usize>(
    rounds: u32,
    unit: &str,
    contenders: [Contender; N],
    mut measure: impl FnMut(Contender) -> Result<f64>,
) -> Result<[Samples; N]> {
    let mut all = [const { Samples::new() }; N];
    for round in 1..=rounds {
        for (samples, contender) in all.iter_mut().zip(contenders) {
            let value = measure(contender)?;
            let name = contender.name();
            println!("round {round}/{rounds}: {name:<12}{value:>14.3} {unit}");
            samples.push(value);
        }
    }
    Ok(all)
}
