//! Traffic between two guests of one CPU each, virtio-net as QEMU and Linux set it up by default.

use super::{Bench, Contender};
use crate::{
    address,
    error::Result,
    iperf::{self, Tcp},
    lab::Lab,
    peers::Switch,
    pktgen::{self, Pace},
    qemu::{Guest, GuestSpec},
    report::{Figure, Goal, Report},
};

/// How long a round's TCP transfer is counted, after [`OMIT_SECONDS`].
pub(super) const TCP_SECONDS: u64 = 4;

/// Slow start is not what is compared.
pub(super) const OMIT_SECONDS: u64 = 1;

/// How long a round's datagrams are sent.
pub(super) const UDP_SECONDS: u64 = 3;

/// With check sequence.
pub(super) const UDP_FRAME_BYTES: u32 = 64;

pub(super) fn tcp(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let contenders = [Contender::Weir, Contender::TapBridge, Contender::OvsDpdk];
    let [weir, bridge, ovs] = bench
        .interleaved("Gbit/s", contenders, |contender| gbit_per_second(bench.lab, contender))?;
    let what = "two QEMU guests, one TCP connection";
    let at_least = |bound| Some(Goal::AtLeast(bound));
    let vs_bridge = Figure::ratio("vm_tcp_vs_tap_bridge", what, weir.ratio_to(&bridge));
    report.add(vs_bridge.goal(at_least(1.3)));
    let vs_ovs = Figure::ratio("vm_tcp_vs_ovs_dpdk", what, weir.ratio_to(&ovs));
    report.add(vs_ovs.goal(at_least(3.0)));
    report.add(Figure::new("vm_tcp_gbit_weir", "Gbit/s", what, weir));
    report.add(Figure::new("vm_tcp_gbit_tap_bridge", "Gbit/s", what, bridge));
    report.add(Figure::new("vm_tcp_gbit_ovs_dpdk", "Gbit/s", what, ovs));
    Ok(())
}

pub(super) fn small_udp(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let contenders = [Contender::Weir, Contender::TapBridge];
    let [weir, bridge] = bench.interleaved("packets/s", contenders, |contender| {
        datagrams_per_second(bench.lab, contender)
    })?;
    let what = "two QEMU guests, UDP of 64 B as fast as the sender's kernel can (pktgen): received";
    let ratio = Figure::ratio("vm_udp64_vs_tap_bridge", what, weir.ratio_to(&bridge));
    report.add(ratio.goal(Some(Goal::AtLeast(2.0))));
    report.add(Figure::new("vm_udp64_weir", "packets/s", what, weir));
    report.add(Figure::new("vm_udp64_tap_bridge", "packets/s", what, bridge));
    Ok(())
}

/// What arrives at the second guest when the first sends by one connection.
fn gbit_per_second(lab: &Lab, contender: Contender) -> Result<f64> {
    let switch = contender.start(lab, None)?;
    let [mut client, mut server] = two_guests(lab, contender, &*switch)?;
    iperf::serve(&mut server, iperf::PORT)?;
    let tcp = Tcp { omit_seconds: OMIT_SECONDS, ..Tcp::to(address::ip(1), TCP_SECONDS) };
    Ok(tcp.run(&mut client)?.gbit_per_second())
}

/// Small datagrams that arrive at the second guest per second.
fn datagrams_per_second(lab: &Lab, contender: Contender) -> Result<f64> {
    let switch = contender.start(lab, None)?;
    let [mut client, mut server] = two_guests(lab, contender, &*switch)?;
    let (pace, bytes) = (Pace::Flood, UDP_FRAME_BYTES);
    let sent = pktgen::send(&mut client, &mut server, pace, bytes, UDP_SECONDS)?;
    Ok(sent.received.packets_per_second)
}

pub(super) fn two_guests(
    lab: &Lab,
    contender: Contender,
    switch: &dyn Switch,
) -> Result<[Guest; 2]> {
    let specs = [0, 1].map(|index| {
        let plug = switch.plug(index)?;
        let name = format!("{}-{index}", contender.name());
        Ok(GuestSpec { name, cidr: address::cidr(index), vcpus: 1, plug })
    });
    let specs: Vec<_> = specs.into_iter().collect::<Result<_>>()?;
    let logs = lab.workspace.run_dir("guests")?;
    let guests = Guest::boot_all(&lab.image, &specs, &logs)?;
    guests.try_into().map_err(|_| unreachable!("two specs, two guests"))
}
