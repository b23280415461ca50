//! What a latency budget saves two stock guests: interrupts, and CPU for the same bytes.
//!
//! Both guests and all contenders have `EVENT_IDX`, which already leaves out every interrupt that a
//! guest does not want; what is counted is what is left.

use std::time::{Duration, Instant};

use super::{
    Bench, Contender,
    vm_traffic::{OMIT_SECONDS, TCP_SECONDS, UDP_FRAME_BYTES, UDP_SECONDS, two_guests},
};
use crate::{
    address,
    error::Result,
    iperf::{self, Tcp},
    peers::Switch,
    pktgen::{self, Look, Pace, Sent},
    qemu::Guest,
    report::{Figure, Goal, Report, Samples},
};

/// The budget that is spent.
pub(super) const BUDGET: &str = "1ms";

/// Less than an emulated guest can take in, so that it comes to rest between packets: one that never
/// does takes no interrupts, whatever the switch holds.
const UDP_PACKETS_PER_SECOND: u32 = 20_000;

/// What is measured of a contender, round by round.
#[derive(Default)]
struct Measured {
    udp_interrupts: Samples,
    udp_packets: Samples,
    tcp_interrupts: Samples,
    tcp_gbit: Samples,
    /// CPU microseconds of both guests and the switch for a datagram.
    udp_cpu: Samples,
    /// CPU seconds of both guests and the switch for a gigabyte by TCP.
    cpu_per_gb: Samples,
}

pub(super) fn measure(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let contenders =
        [Contender::WeirHolding("auto"), Contender::WeirHolding("immediate"), Contender::TapBridge];
    let mut all = contenders.map(|_| Measured::default());
    for round in 1..=bench.rounds {
        for (measured, contender) in all.iter_mut().zip(contenders) {
            bench.note_other_load()?;
            let (udp, udp_cpu, tcp) = one(bench, contender)?;
            println!(
                "round {round}/{}: {:<16}UDP {:>8.0}/s {:.4} interrupts each, {udp_cpu:.1} CPU us each; \
                 TCP {:.2} Gbit/s {:.4} interrupts each, {:.2} CPU s/GB",
                bench.rounds,
                contender.name(),
                udp.received.packets_per_second,
                udp.received.interrupts_per_packet,
                tcp.gbit,
                tcp.interrupts_per_packet,
                tcp.cpu_per_gb,
            );
            measured.udp_interrupts.push(udp.received.interrupts_per_packet);
            measured.udp_packets.push(udp.arrived);
            measured.udp_cpu.push(udp_cpu);
            measured.tcp_interrupts.push(tcp.interrupts_per_packet);
            measured.tcp_gbit.push(tcp.gbit);
            measured.cpu_per_gb.push(tcp.cpu_per_gb);
        }
    }
    let [auto, immediate, bridge] = all;
    let mut ratio = |name, what, samples, goal| {
        report.add(Figure::ratio(name, what, samples).goal(Some(goal)));
    };
    ratio(
        "vm_irqs_udp_vs_immediate",
        "interrupts for each received packet, 20,000 UDP frames of 64 B a second, auto with 1 ms / immediate",
        auto.udp_interrupts.ratio_to(&immediate.udp_interrupts),
        Goal::AtMost(0.1),
    );
    ratio(
        "vm_udp_packets_vs_immediate",
        "share of what was sent that was received, in the same runs",
        auto.udp_packets.ratio_to(&immediate.udp_packets),
        Goal::AtLeast(1.0),
    );
    ratio(
        "vm_irqs_tcp_vs_immediate",
        "interrupts for each received packet, one TCP connection, auto with 1 ms / immediate",
        auto.tcp_interrupts.ratio_to(&immediate.tcp_interrupts),
        Goal::AtMost(0.5),
    );
    ratio(
        "vm_tcp_gbit_vs_immediate",
        "throughput in the same runs",
        auto.tcp_gbit.ratio_to(&immediate.tcp_gbit),
        Goal::AtLeast(0.98),
    );
    ratio(
        "vm_cpu_udp_vs_immediate",
        "CPU of both guests and the switch for a datagram, its sender's pktgen included",
        auto.udp_cpu.ratio_to(&immediate.udp_cpu),
        Goal::AtMost(1.0),
    );
    ratio(
        "vm_cpu_vs_immediate",
        "CPU of both guests and the switch for the same bytes by TCP",
        auto.cpu_per_gb.ratio_to(&immediate.cpu_per_gb),
        Goal::AtMost(0.85),
    );
    ratio(
        "vm_cpu_vs_tap_bridge",
        "the same against the kernel's TAP and bridge",
        auto.cpu_per_gb.ratio_to(&bridge.cpu_per_gb),
        Goal::AtMost(0.7),
    );
    Ok(())
}

/// A TCP transfer as the receiver, and the machine, saw it.
struct Transferred {
    gbit: f64,
    interrupts_per_packet: f64,
    cpu_per_gb: f64,
}

/// What came of the datagrams, CPU microseconds for each, and what came of TCP.
fn one(bench: &Bench<'_>, contender: Contender) -> Result<(Sent, f64, Transferred)> {
    let switch = contender.start(bench.lab, None)?;
    let [mut client, mut server] = two_guests(bench.lab, contender, &*switch)?;
    let (pace, bytes) = (Pace::PerSecond(UDP_PACKETS_PER_SECOND), UDP_FRAME_BYTES);
    let (start, cpu_before) = (Instant::now(), cpu_time(&*switch, [&client, &server])?);
    let udp = pktgen::send(&mut client, &mut server, pace, bytes, UDP_SECONDS)?;
    let cpu = cpu_time(&*switch, [&client, &server])?.saturating_sub(cpu_before);
    // The margins before and after what is counted have the same rate, or none.
    let datagrams = udp.received.packets_per_second * start.elapsed().as_secs_f64();
    let udp_cpu = 1e6 * cpu.as_secs_f64() / datagrams;

    iperf::serve(&mut server, iperf::PORT)?;
    let tcp = Tcp { omit_seconds: OMIT_SECONDS, ..Tcp::to(address::ip(1), TCP_SECONDS) };
    let (before, cpu_before) = (Look::at(&mut server)?, cpu_time(&*switch, [&client, &server])?);
    let transfer = tcp.run(&mut client)?;
    let cpu = cpu_time(&*switch, [&client, &server])?.saturating_sub(cpu_before);
    let received = Look::at(&mut server)?.since(before);
    // The seconds that are left out of the rate took CPU, too, and moved bytes at the same rate.
    let seconds = (TCP_SECONDS + OMIT_SECONDS) as f64;
    let gigabytes = transfer.bits_per_second * seconds / 8e9;
    let tcp = Transferred {
        gbit: transfer.gbit_per_second(),
        interrupts_per_packet: received.interrupts_per_packet,
        cpu_per_gb: cpu.as_secs_f64() / gigabytes,
    };
    Ok((udp, udp_cpu, tcp))
}

/// CPU time so far of both guests and what carries their packets.
fn cpu_time(switch: &dyn Switch, guests: [&Guest; 2]) -> Result<Duration> {
    let mut sum = switch.cpu_time()?;
    for guest in guests {
        sum += guest.usage().cpu_time()?;
    }
    Ok(sum)
}
