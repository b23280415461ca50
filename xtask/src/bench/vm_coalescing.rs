//! What a latency budget saves two stock guests: interrupts, and CPU for the same bytes.
//!
//! Both guests and all contenders have `EVENT_IDX`, which already leaves out every interrupt that a
//! guest does not want; what is counted is what is left.

use std::{
    fmt,
    time::{Duration, Instant},
};

use super::{
    Bench, Contender,
    vm_traffic::{OMIT_SECONDS, TCP_SECONDS, UDP_FRAME_BYTES, UDP_SECONDS, two_guests},
};
use crate::{
    address,
    error::Result,
    iperf::{self, Tcp},
    peers::Switch,
    pktgen::{self, Look, Pace},
    process::wait_until,
    qemu::Guest,
    report::{Figure, Goal, Report},
};

/// The budget that is spent.
pub(super) const BUDGET: &str = "1ms";

/// Less than an emulated guest can take in, so that it comes to rest between packets: one that never
/// does takes no interrupts, whatever the switch holds.
const UDP_PACKETS_PER_SECOND: u32 = 20_000;

/// Until an agent has spoken.
const AGENT_PATIENCE: Duration = Duration::from_secs(30);

/// What is measured of a contender in a round.
struct Measured {
    /// Interrupts for each datagram, and the share of datagrams that arrived.
    udp_interrupts: f64,
    udp_arrived: f64,
    /// CPU microseconds of both guests and the switch for a datagram.
    udp_cpu: f64,
    /// Interrupts for each packet of a TCP transfer, and its throughput.
    tcp_interrupts: f64,
    tcp_gbit: f64,
    /// CPU seconds of both guests and the switch for a gigabyte by TCP.
    cpu_per_gb: f64,
}

/// What `auto` is compared with.
#[derive(Clone, Copy)]
enum Against {
    Immediate,
    TapBridge,
}

/// A figure of `auto` to the same figure of another.
struct Ratio {
    name: &'static str,
    /// The name of the same without agents in the guests, where that is a figure too.
    without_agents: Option<&'static str>,
    what: &'static str,
    of: fn(&Measured) -> f64,
    against: Against,
    goal: Goal,
}

const RATIOS: [Ratio; 7] = [
    Ratio {
        name: "vm_irqs_udp_vs_immediate",
        without_agents: Some("vm_irqs_udp_without_agents"),
        what: "the network device's interrupts for each received packet, 20,000 UDP frames of 64 B a second, auto with \
               1 ms and weir-agent in the guests, which may poll on a timer / immediate without",
        of: |round| round.udp_interrupts,
        against: Against::Immediate,
        goal: Goal::AtMost(0.1),
    },
    Ratio {
        name: "vm_udp_packets_vs_immediate",
        without_agents: None,
        what: "share of what was sent that was received, in the same runs",
        of: |round| round.udp_arrived,
        against: Against::Immediate,
        goal: Goal::AtLeast(1.0),
    },
    Ratio {
        name: "vm_irqs_tcp_vs_immediate",
        without_agents: Some("vm_irqs_tcp_without_agents"),
        what: "the same, one TCP connection",
        of: |round| round.tcp_interrupts,
        against: Against::Immediate,
        goal: Goal::AtMost(0.5),
    },
    Ratio {
        name: "vm_tcp_gbit_vs_immediate",
        without_agents: Some("vm_tcp_gbit_without_agents"),
        what: "throughput in the same runs",
        of: |round| round.tcp_gbit,
        against: Against::Immediate,
        goal: Goal::AtLeast(0.98),
    },
    Ratio {
        name: "vm_cpu_udp_vs_immediate",
        without_agents: Some("vm_cpu_udp_without_agents"),
        what: "CPU of both guests and the switch for a datagram, its sender's pktgen included",
        of: |round| round.udp_cpu,
        against: Against::Immediate,
        goal: Goal::AtMost(1.0),
    },
    Ratio {
        name: "vm_cpu_vs_immediate",
        without_agents: Some("vm_cpu_without_agents"),
        what: "CPU of both guests and the switch for the same bytes by TCP",
        of: |round| round.cpu_per_gb,
        against: Against::Immediate,
        goal: Goal::AtMost(0.85),
    },
    Ratio {
        name: "vm_cpu_vs_tap_bridge",
        without_agents: None,
        what: "the same against the kernel's TAP and bridge",
        of: |round| round.cpu_per_gb,
        against: Against::TapBridge,
        goal: Goal::AtMost(0.7),
    },
];

pub(super) fn measure(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let contenders = [
        Contender::WeirWithAgents,
        Contender::WeirHolding("auto"),
        Contender::WeirHolding("immediate"),
        Contender::TapBridge,
    ];
    let mut all = contenders.map(|_| Vec::new());
    for round in 1..=bench.rounds {
        // Each begins a round in its turn: what one finds the last has left.
        for at in 0..contenders.len() {
            let at = (at + round as usize - 1) % contenders.len();
            let (rounds, contender) = (&mut all[at], contenders[at]);
            bench.note_other_load()?;
            let measured = one(bench, contender)?;
            println!("round {round}/{}: {:<16}{measured}", bench.rounds, contender.name());
            rounds.push(measured);
        }
    }
    let [with_agents, without, immediate, bridge] = all;
    for Ratio { name, without_agents, what, of, against, goal } in RATIOS {
        let others = match against {
            Against::Immediate => &immediate,
            Against::TapBridge => &bridge,
        };
        let ratios = |auto: &[Measured]| {
            auto.iter().zip(others).map(|(auto, other)| of(auto) / of(other)).collect()
        };
        report.add(Figure::ratio(name, what, ratios(&with_agents)).goal(Some(goal)));
        if let Some(name) = without_agents {
            let what = "the same without the agents";
            report.add(Figure::ratio(name, what, ratios(&without)));
        }
    }
    Ok(())
}

impl fmt::Display for Measured {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "UDP {:.3} arrived, {:.4} interrupts each, {:.1} CPU us each; TCP {:.2} Gbit/s, {:.4} \
             interrupts each, {:.2} CPU s/GB",
            self.udp_arrived,
            self.udp_interrupts,
            self.udp_cpu,
            self.tcp_gbit,
            self.tcp_interrupts,
            self.cpu_per_gb,
        )
    }
}

/// Datagrams, then TCP, between two guests that are booted for it.
fn one(bench: &Bench<'_>, contender: Contender) -> Result<Measured> {
    let switch = contender.start(bench.lab, None)?;
    let [mut client, mut server] = two_guests(bench.lab, contender, &*switch)?;
    if contender == Contender::WeirWithAgents {
        for (index, guest) in [(0, &mut client), (1, &mut server)] {
            guest.start_agent()?;
            wait_until("weir to hear of an agent", AGENT_PATIENCE, || switch.hears_agent(index))?;
        }
    }
    let (pace, bytes) = (Pace::PerSecond(UDP_PACKETS_PER_SECOND), UDP_FRAME_BYTES);
    let (start, cpu_before) = (Instant::now(), cpu_time(&*switch, [&client, &server])?);
    let udp = pktgen::send(&mut client, &mut server, pace, bytes, UDP_SECONDS)?;
    let udp_cpu = cpu_time(&*switch, [&client, &server])?.saturating_sub(cpu_before);
    // The margins before and after what is counted have the same rate, or none.
    let datagrams = udp.received.packets_per_second * start.elapsed().as_secs_f64();

    iperf::serve(&mut server, iperf::PORT)?;
    let tcp = Tcp { omit_seconds: OMIT_SECONDS, ..Tcp::to(address::ip(1), TCP_SECONDS) };
    let (before, cpu_before) = (Look::at(&mut server)?, cpu_time(&*switch, [&client, &server])?);
    let transfer = tcp.run(&mut client)?;
    let tcp_cpu = cpu_time(&*switch, [&client, &server])?.saturating_sub(cpu_before);
    let received = Look::at(&mut server)?.since(before);
    // The seconds that are left out of the rate took CPU, too, and moved bytes at the same rate.
    let seconds = (TCP_SECONDS + OMIT_SECONDS) as f64;
    let gigabytes = transfer.bits_per_second * seconds / 8e9;
    Ok(Measured {
        udp_interrupts: udp.received.interrupts_per_packet,
        udp_arrived: udp.arrived,
        udp_cpu: 1e6 * udp_cpu.as_secs_f64() / datagrams,
        tcp_interrupts: received.interrupts_per_packet,
        tcp_gbit: transfer.gbit_per_second(),
        cpu_per_gb: tcp_cpu.as_secs_f64() / gigabytes,
    })
}

/// CPU time so far of both guests and what carries their packets.
fn cpu_time(switch: &dyn Switch, guests: [&Guest; 2]) -> Result<Duration> {
    let mut sum = switch.cpu_time()?;
    for guest in guests {
        sum += guest.usage().cpu_time()?;
    }
    Ok(sum)
}
