//! Savings by a latency budget for two stock guests: interrupts, and CPU time for the same bytes.
//!
//! All contenders and guests use `EVENT_IDX`, which already suppresses every interrupt that a guest does not want.
//! The remaining ones are counted. weir's settings are measured in turn on the same two guests, by `weir vif set`: a
//! connection's speed differs by a fifth from boot to boot, more than between settings.

use std::{
    fmt,
    time::{Duration, Instant},
};

use weir_bed::{
    address,
    error::Result,
    iperf::{self, Tcp},
    pktgen::{self, Look, Pace},
    process::wait_until,
    qemu::Guest,
    report::{Figure, Goal, Report},
    switch::Switch,
    weir::{Setup, Vif, Weir},
};

use super::{
    Bench, Contender,
    vm_traffic::{OMIT_SECONDS, TCP_SECONDS, UDP_FRAME_BYTES, UDP_SECONDS, two_guests},
};
use crate::peers::tap_bridge::TapBridge;

pub(super) const BUDGET: &str = "1ms";

/// Rate below an emulated guest's capacity, so that the guest is idle between packets. A guest that is never idle
/// takes no interrupts under any policy.
const UDP_PACKETS_PER_SECOND: u32 = 20_000;

/// Longest time until weir knows that an agent has connected or disconnected.
const AGENT_PATIENCE: Duration = Duration::from_secs(30);

/// Results of a contender in a round.
#[derive(Clone, Copy)]
struct Measured {
    /// Interrupts per datagram, and the share of datagrams that arrived.
    udp_interrupts: f64,
    udp_arrived: f64,
    /// CPU time of both guests and the switch per datagram (us).
    udp_cpu: f64,
    /// Interrupts per packet of a TCP transfer, and its throughput.
    tcp_interrupts: f64,
    tcp_gbit: f64,
    /// CPU time of both guests and the switch per gigabyte by TCP (s).
    cpu_per_gb: f64,
    /// The switch's part of that CPU time.
    switch_cpu_per_gb: f64,
    /// Interrupts of both guests: per datagram, and per gigabyte of TCP.
    udp_interrupts_of_both: f64,
    interrupts_per_gb: f64,
}

/// weir's policy for calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Immediate,
    Auto,
    AutoWithAgents,
}

const WAYS: [Way; 3] = [Way::Immediate, Way::Auto, Way::AutoWithAgents];

/// Results of a round. weir's policies are in the order of [`WAYS`].
struct Round {
    ways: [Measured; 3],
    bridge: Measured,
}

impl Round {
    /// Returns the CPU time of an interrupt for the guest, its monitor and the switch (us), from the CPU time that a
    /// datagram with almost no interrupts saves.
    fn interrupt_cost_us(&self) -> f64 {
        let [immediate, _, few] = &self.ways;
        (immediate.udp_cpu - few.udp_cpu)
            / (immediate.udp_interrupts_of_both - few.udp_interrupts_of_both)
    }

    /// Returns the CPU time per gigabyte by TCP under `immediate`, without the cost of its
    /// interrupts (s).
    fn cpu_per_gb_uninterrupted(&self) -> f64 {
        let immediate = &self.ways[0];
        immediate.cpu_per_gb - 1e-6 * self.interrupt_cost_us() * immediate.interrupts_per_gb
    }
}

/// The contender with which `auto` is compared.
#[derive(Clone, Copy)]
enum Against {
    Immediate,
    TapBridge,
}

/// Ratio of `auto`'s figure to another contender's.
struct Ratio {
    name: &'static str,
    /// Name of the same ratio without agents in the guests, if there is such a figure.
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
               1 ms and weir-agent in the guests, which may poll on a timer / immediate without agents",
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

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Immediate => "immediate",
            Self::Auto => "auto",
            Self::AutoWithAgents => "auto+agents",
        }
    }

    fn moderation(self) -> &'static str {
        match self {
            Self::Immediate => "immediate",
            Self::Auto | Self::AutoWithAgents => "auto",
        }
    }
}

pub(super) fn measure(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let mut rounds = Vec::new();
    for round in 1..=bench.rounds {
        bench.note_other_load()?;
        // The order rotates, since each contender inherits the state of the machine from its predecessor.
        let round = if round % 2 == 1 {
            let ways = weir(bench, round)?;
            Round { ways, bridge: bridge(bench, round)? }
        } else {
            let bridge = bridge(bench, round)?;
            Round { ways: weir(bench, round)?, bridge }
        };
        rounds.push(round);
    }
    for Ratio { name, without_agents, what, of, against, goal } in RATIOS {
        let ratios = |auto: fn(&Round) -> &Measured| {
            let ratio = |round: &Round| {
                let other = match against {
                    Against::Immediate => &round.ways[0],
                    Against::TapBridge => &round.bridge,
                };
                of(auto(round)) / of(other)
            };
            rounds.iter().map(ratio).collect()
        };
        report.add(Figure::ratio(name, what, ratios(|round| &round.ways[2])).goal(Some(goal)));
        if let Some(name) = without_agents {
            let what = "the same without the agents";
            report.add(Figure::ratio(name, what, ratios(|round| &round.ways[1])));
        }
    }
    limits(&rounds, report);
    Ok(())
}

/// Adds the limits of all policies: the stream's CPU time if interrupts took none, and if the switch took none,
/// either.
fn limits(rounds: &[Round], report: &mut Report) {
    let samples = |of: fn(&Round) -> f64| rounds.iter().map(of).collect();
    let what = "CPU that an interrupt takes, of guest, monitor and switch: what a datagram takes less with nearly none";
    let cost = samples(Round::interrupt_cost_us);
    report.add(Figure::new("vm_interrupt_cost", "us", what, cost));
    let what = "interrupts of both guests for a gigabyte by TCP, immediate";
    let count = samples(|round| round.ways[0].interrupts_per_gb);
    report.add(Figure::new("vm_interrupts_per_gb", "1/GB", what, count));
    let what = "vm_cpu_vs_immediate, if none of them were there";
    let ratio = samples(|round| round.cpu_per_gb_uninterrupted() / round.ways[0].cpu_per_gb);
    report.add(Figure::ratio("vm_cpu_limit", what, ratio));
    let what = "vm_cpu_vs_tap_bridge, if none of them were there and the switch took no CPU";
    let ratio = samples(|round| {
        (round.cpu_per_gb_uninterrupted() - round.ways[0].switch_cpu_per_gb)
            / round.bridge.cpu_per_gb
    });
    report.add(Figure::ratio("vm_cpu_vs_tap_bridge_limit", what, ratio));
}

impl fmt::Display for Measured {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "UDP {:.3} arrived, {:.4} interrupts each, {:.1} CPU us each; TCP {:.2} Gbit/s, {:.4} \
             interrupts each, {:.2} CPU s/GB, {:.2} of it the switch's",
            self.udp_arrived,
            self.udp_interrupts,
            self.udp_cpu,
            self.tcp_gbit,
            self.tcp_interrupts,
            self.cpu_per_gb,
            self.switch_cpu_per_gb,
        )
    }
}

impl Measured {
    fn mean(self, other: Self) -> Self {
        let mean = |of: fn(&Self) -> f64| f64::midpoint(of(&self), of(&other));
        Self {
            udp_interrupts: mean(|it| it.udp_interrupts),
            udp_arrived: mean(|it| it.udp_arrived),
            udp_cpu: mean(|it| it.udp_cpu),
            tcp_interrupts: mean(|it| it.tcp_interrupts),
            tcp_gbit: mean(|it| it.tcp_gbit),
            cpu_per_gb: mean(|it| it.cpu_per_gb),
            switch_cpu_per_gb: mean(|it| it.switch_cpu_per_gb),
            udp_interrupts_of_both: mean(|it| it.udp_interrupts_of_both),
            interrupts_per_gb: mean(|it| it.interrupts_per_gb),
        }
    }
}

/// Measures all policies of weir between two newly booted guests, in one order and then in the reverse one. Each
/// policy is first in turn, so that a machine that becomes slower favours none.
fn weir(bench: &Bench<'_>, round: u32) -> Result<[Measured; 3]> {
    let vif = Vif {
        moderation: Some(Way::Immediate.moderation()),
        latency_budget: Some(BUDGET),
        agent: true,
        ..Vif::default()
    };
    let weir = Weir::start(bench.lab, &Setup { vifs: vec![vif; 2], ..Setup::default() })?;
    let mut guests = two_guests(bench.lab, Contender::Weir, &weir)?;
    iperf::serve(&mut guests[1], iperf::PORT)?;
    let mut order = [0, 1, 2];
    order.rotate_left(round as usize % WAYS.len());
    let (mut measured, mut agents) = ([const { None::<Measured> }; 3], false);
    for at in order.into_iter().chain(order.into_iter().rev()) {
        let way = WAYS[at];
        for index in 0..2_u16 {
            weir.set(index, &format!("moderation={}", way.moderation()))?;
        }
        if agents != (way == Way::AutoWithAgents) {
            agents = !agents;
            set_agents(&weir, &mut guests, agents)?;
        }
        let now = traffic(&weir, &mut guests)?;
        println!("round {round}/{}: {:<16}{now}", bench.rounds, way.name());
        measured[at] = Some(measured[at].map_or(now, |before| before.mean(now)));
    }
    // The order has each policy, so each is measured.
    Ok(measured.map(|it| it.expect("measured")))
}

/// Starts or ends the guests' agents.
fn set_agents(weir: &Weir, guests: &mut [Guest; 2], on: bool) -> Result<()> {
    for (index, guest) in (0_u16..).zip(guests) {
        if on {
            guest.start_agent()?;
        } else {
            guest.end_agent()?;
        }
        let what = if on { "weir to hear of an agent" } else { "weir to miss an agent" };
        wait_until(what, AGENT_PATIENCE, || Ok(weir.hears_agent(index)? == on))?;
    }
    Ok(())
}

/// Measures the kernel's TAP and bridge as often.
fn bridge(bench: &Bench<'_>, round: u32) -> Result<Measured> {
    let switch = TapBridge::start(2)?;
    let mut guests = two_guests(bench.lab, Contender::TapBridge, &switch)?;
    iperf::serve(&mut guests[1], iperf::PORT)?;
    let mut once = || {
        let now = traffic(&switch, &mut guests)?;
        println!("round {round}/{}: {:<16}{now}", bench.rounds, Contender::TapBridge.name());
        Ok(now)
    };
    let first = once()?;
    Ok(first.mean(once()?))
}

/// Measures datagrams, then TCP.
fn traffic(switch: &dyn Switch, guests: &mut [Guest; 2]) -> Result<Measured> {
    let (pace, bytes) = (Pace::PerSecond(UDP_PACKETS_PER_SECOND), UDP_FRAME_BYTES);
    let (start, before) = (Instant::now(), Spent::now(switch, guests)?);
    let [client, server] = &mut *guests;
    let udp = pktgen::send(client, server, pace, bytes, UDP_SECONDS)?;
    let of_udp = Spent::now(switch, guests)?.since(&before);
    // The margins before and after the counted time have the same rate or no packets.
    let datagrams = udp.received.packets_per_second * start.elapsed().as_secs_f64();

    let tcp = Tcp { omit_seconds: OMIT_SECONDS, ..Tcp::to(address::ip(1), TCP_SECONDS) };
    let (first, before) = (Look::at(&mut guests[1])?, Spent::now(switch, guests)?);
    let transfer = tcp.run(&mut guests[0])?;
    let of_tcp = Spent::now(switch, guests)?.since(&before);
    let received = Look::at(&mut guests[1])?.since(first);
    // The seconds outside the count took CPU time, too, and moved bytes at the same rate.
    let seconds = (TCP_SECONDS + OMIT_SECONDS) as f64;
    let gigabytes = transfer.bits_per_second * seconds / 8e9;
    Ok(Measured {
        udp_interrupts: udp.received.interrupts_per_packet,
        udp_arrived: udp.arrived,
        udp_cpu: 1e6 * of_udp.cpu / datagrams,
        tcp_interrupts: received.interrupts_per_packet,
        tcp_gbit: transfer.gbit_per_second(),
        cpu_per_gb: of_tcp.cpu / gigabytes,
        switch_cpu_per_gb: of_tcp.switch_cpu / gigabytes,
        udp_interrupts_of_both: of_udp.interrupts / datagrams,
        interrupts_per_gb: of_tcp.interrupts / gigabytes,
    })
}

/// Cost of traffic.
struct Spent {
    /// CPU time of both guests and the switch (s).
    cpu: f64,
    /// The switch's part of that CPU time.
    switch_cpu: f64,
    /// Interrupts of both guests.
    interrupts: f64,
}

impl Spent {
    /// Returns the cost so far. The guests' shells must be free.
    fn now(switch: &dyn Switch, guests: &mut [Guest; 2]) -> Result<Self> {
        let switch_cpu = switch.cpu_time()?.as_secs_f64();
        let (mut cpu, mut interrupts) = (switch_cpu, 0.0);
        for guest in guests {
            interrupts += Look::at(guest)?.interrupts;
            cpu += guest.usage().cpu_time()?.as_secs_f64();
        }
        Ok(Self { cpu, switch_cpu, interrupts })
    }

    fn since(&self, before: &Self) -> Self {
        Self {
            cpu: self.cpu - before.cpu,
            switch_cpu: self.switch_cpu - before.switch_cpu,
            interrupts: self.interrupts - before.interrupts,
        }
    }
}
