//! Policies for calls to stock Linux guests: interrupts and CPU time of the same traffic (Dong 2011 §5.2 for several
//! guests, Thakur 2014 §V for containers). The guests are user-mode Linux's, which run natively, or QEMU's without KVM
//! where those do not run.
//!
//! All policies are measured in turn on the same guests, by `weir vif set`, with traffic of one
//! rate. User-mode Linux has no port for an agent: where a guest polls, its timer has the values
//! that the agent would set.

use std::time::Duration;

use weir_bed::{
    address,
    error::{Error, Result},
    iperf,
    lab::Lab,
    pktgen::Look,
    qemu::{Guest, GuestSpec},
    report::{Figure, Goal, Report, Samples},
    switch::Switch,
    uml::{self, UserModeLinux, Wire},
    weir::{self, Setup, Vif, Weir},
};

use super::Bench;

/// Duration of a flow in one measurement (s).
const SECONDS: u64 = 2;
const GRACE: Duration = Duration::from_secs(60);
const COMMAND: Duration = Duration::from_secs(20);
/// Echo requests for a delay, and the pause between two (s).
const ECHOES: u32 = 20;
const ECHO_PAUSE: f64 = 0.05;

/// Policy of the receivers' calls. weir has no uplink, so that nothing but the budget of the calls is split.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Way {
    moderation: &'static str,
    latency_budget: &'static str,
    /// The guest polls by its own timer.
    polls: bool,
}

/// The paper's guests poll a thousand times a second.
const HELD: Way = Way { moderation: "backend", latency_budget: "1ms", polls: false };
/// A lone packet can wait for the timeout of a container.
const GATHERED: Way = Way { moderation: "aggregate", latency_budget: "10ms", polls: false };

const WAYS: [Way; 6] = [
    Way { moderation: "immediate", ..HELD },
    HELD,
    Way { moderation: "frontend", polls: true, ..HELD },
    Way { moderation: "two-layer", ..HELD },
    GATHERED,
    Way { moderation: "aggregate-adaptive", ..GATHERED },
];
/// The indices in [`WAYS`] of single packets, and of containers with and without a fixed timeout.
const SINGLE: usize = 0;
const FIXED: usize = 4;
const ADAPTIVE: usize = 5;

/// Traffic to all receivers together, with packets or writes of `bytes`.
struct Flow {
    name: &'static str,
    udp: bool,
    bytes: u32,
    /// Packets or writes a second, of all receivers together.
    per_second: u32,
}

const FLOWS: [Flow; 4] = [
    Flow { name: "UDP, 50 bytes", udp: true, bytes: 50, per_second: 4_000 },
    Flow { name: "UDP, 1,472 bytes", udp: true, bytes: 1_472, per_second: 4_000 },
    Flow { name: "TCP, 50 bytes", udp: false, bytes: 50, per_second: 4_000 },
    Flow { name: "TCP, 1,472 bytes", udp: false, bytes: 1_472, per_second: 4_000 },
];

/// The CPU time and interrupts of receivers and switch for a flow.
#[derive(Clone, Copy)]
struct Spent {
    interrupts: f64,
    packets: f64,
    /// CPU time of the receivers and of the switch (s).
    receivers: f64,
    switch: f64,
}

impl Spent {
    fn now(weir: &Weir, receivers: &mut [Guest]) -> Result<Self> {
        let switch = weir.usage().cpu_time()?.as_secs_f64();
        let mut now = Self { interrupts: 0.0, packets: 0.0, receivers: 0.0, switch };
        for guest in receivers {
            let look = Look::at(guest)?;
            now.interrupts += look.interrupts;
            now.packets += look.packets;
            now.receivers += guest.usage().cpu_time_of_all()?.as_secs_f64();
        }
        Ok(now)
    }

    /// Interrupts, and CPU time of the receivers and of the switch (us), for each packet since `before`.
    fn each_since(self, before: Self) -> [f64; 3] {
        let packets = self.packets - before.packets;
        [
            (self.interrupts - before.interrupts) / packets,
            1e6 * (self.receivers - before.receivers) / packets,
            1e6 * (self.switch - before.switch) / packets,
        ]
    }
}

/// Measures each policy with a sender and this number of receivers.
pub(super) fn among<const RECEIVERS: u8>(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    bench.note_other_load()?;
    let vif = Vif { moderation: Some("immediate"), latency_budget: Some("1ms"), ..Vif::default() };
    let vifs = vec![vif; usize::from(RECEIVERS) + 1];
    let weir = Weir::start(bench.lab, &Setup { vifs, ..Setup::default() })?;
    let mut guests = boot(bench.lab, &weir, RECEIVERS + 1)?;
    let [sender, receivers @ ..] = &mut *guests else { return Ok(()) };
    receivers.iter_mut().try_for_each(|guest| iperf::serve(guest, iperf::PORT))?;

    // The costs are by flow and policy, with one entry for each round.
    let mut costs = vec![vec![Vec::new(); WAYS.len()]; FLOWS.len()];
    let mut delays = vec![Vec::new(); WAYS.len()];
    for _ in 0..bench.rounds {
        for (at, way) in WAYS.iter().enumerate() {
            way.set(&weir, receivers)?;
            delays[at].push(delay_ms(sender)?);
        }
        for (flow, costs) in FLOWS.iter().zip(&mut costs) {
            for (way, costs) in WAYS.iter().zip(costs) {
                way.set(&weir, receivers)?;
                let before = Spent::now(&weir, receivers)?;
                flow.send(sender, RECEIVERS)?;
                costs.push(Spent::now(&weir, receivers)?.each_since(before));
            }
        }
    }
    print(RECEIVERS, &costs, &delays);
    let ratio = |of: &dyn Fn(usize, usize) -> f64, by: usize| -> Samples {
        (0..delays[0].len()).map(|round| of(ADAPTIVE, round) / of(by, round)).collect()
    };
    if RECEIVERS == 1 {
        for (flow, costs) in FLOWS.iter().zip(&costs).filter(|(flow, _)| flow.udp) {
            let name = format!("containers_cpu_vs_single_{}B", flow.bytes);
            let what = "CPU of the receiver for a datagram, adaptive containers / single packets";
            let cpu = |way: usize, round: usize| costs[way][round][1];
            report
                .add(Figure::ratio(name, what, ratio(&cpu, SINGLE)).goal(Some(Goal::AtMost(0.8))));
        }
        // Thakur 2014 Table 1: 13.3497 and 4.18781 KB/s of clients that wait for each answer.
        let goal = Goal::AtMost(1.1 * 4.18781 / 13.3497);
        let what = "a round trip alone, containers that adapt / with a fixed timeout";
        let delay = |way: usize, round: usize| delays[way][round];
        let figure = Figure::ratio("containers_delay_vs_fixed", what, ratio(&delay, FIXED));
        report.add(figure.goal(Some(goal)));
    }
    Ok(())
}

/// Boots the guests of interfaces 0 to `count`.
fn boot(lab: &Lab, weir: &Weir, count: u8) -> Result<Vec<Guest>> {
    let Some(programs) = UserModeLinux::prepare_if_it_runs(&lab.workspace, &lab.image)? else {
        let spec = |index: u8| {
            let (name, plug) = (weir::name(index), weir.plug(index)?);
            Ok(GuestSpec { name, cidr: address::cidr(index), vcpus: 1, plug })
        };
        let specs = (0..count).map(spec).collect::<Result<Vec<_>>>()?;
        return Guest::boot_all(&lab.image, &specs, weir.dir());
    };
    let uml = |index: u8| {
        let console = weir.dir().join(format!("{index}.console"));
        let mut guest = programs.boot(&Wire::VhostUser(&weir.socket(index)?), &console)?;
        uml::set_addresses(&mut guest, index)?;
        Ok(guest)
    };
    (0..count).map(uml).collect()
}

impl Way {
    fn set(self, weir: &Weir, receivers: &mut [Guest]) -> Result<()> {
        // The agent would set these values for a budget of 1 ms.
        let [empty_polls, timeout_ns] = if self.polls { [1_000, 1_000_000] } else { [0, 0] };
        let timer = format!(
            "cd /sys/class/net/eth0; echo {empty_polls} > napi_defer_hard_irqs; \
             echo {timeout_ns} > gro_flush_timeout; cd /"
        );
        for (index, guest) in (1_u16..).zip(receivers) {
            weir.set(index, &format!("moderation={}", self.moderation))?;
            weir.set(index, &format!("latency_budget={}", self.latency_budget))?;
            guest.run(&timer, COMMAND)?;
        }
        Ok(())
    }
}

impl Flow {
    /// Sends to all receivers at once.
    fn send(&self, sender: &mut Guest, receivers: u8) -> Result<()> {
        let Self { udp, bytes, per_second, .. } = *self;
        let bits = per_second / u32::from(receivers) * bytes * 8;
        // Each packet is sent when it is due, and not together with all others of the same
        // millisecond.
        let kind = if udp { "-u --pacing-timer 100" } else { "" };
        // A server does not listen for a moment after each test.
        let to = |index: u8| {
            format!(
                "(i=0; until iperf3 {kind} -c {} -t {SECONDS} -b {bits} -l {bytes} >/tmp/iperf.{index} 2>&1; do \
                 [ $((i+=1)) -lt 50 ] || exit 1; sleep 0.1; done) & pids=\"$pids $!\"",
                address::ip(index)
            )
        };
        let all: Vec<_> = (1..=receivers).map(to).collect();
        let command = format!(
            "pids=; {}; for pid in $pids; do wait $pid || {{ tail -n 3 /tmp/iperf.*; exit 1; }}; done",
            all.join("; ")
        );
        sender.run(&command, GRACE).map(drop)
    }
}

/// The mean round trip of echo requests to the first receiver (ms), one at a time.
fn delay_ms(sender: &mut Guest) -> Result<f64> {
    let ping = format!("ping -c {ECHOES} -i {ECHO_PAUSE} -W 5 {}", address::ip(1));
    let printed = sender.run(&ping, GRACE)?;
    let times = printed.split_once("min/avg/max").and_then(|(_, rest)| rest.split_once('='));
    let mean = times.and_then(|(_, times)| times.trim().split('/').nth(1)?.parse().ok());
    mean.ok_or_else(|| Error::parse("round trips", printed))
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    values.collect::<Samples>().median()
}

/// Prints medians over the rounds: each policy's values, and their ratios to those of single
/// packets.
fn print(receivers: u8, costs: &[Vec<Vec<[f64; 3]>>], delays: &[Vec<f64>]) {
    println!(
        "{receivers} receivers | policy | interrupts each | CPU us of receivers | of weir | ratios to immediate"
    );
    for (flow, costs) in FLOWS.iter().zip(costs) {
        for (way, of_way) in WAYS.iter().zip(costs) {
            let own = [0, 1, 2].map(|at| median(of_way.iter().map(|cost| cost[at])));
            let rounds = || of_way.iter().zip(&costs[SINGLE]);
            let ratio =
                [0, 1, 2].map(|at| median(rounds().map(|(cost, single)| cost[at] / single[at])));
            println!(
                "{} | {} | {:.3} | {:.1} | {:.1} | {:.2} {:.2} {:.2}",
                flow.name, way.moderation, own[0], own[1], own[2], ratio[0], ratio[1], ratio[2]
            );
        }
    }
    for (way, delays) in WAYS.iter().zip(delays) {
        println!(
            "round trip alone | {} | {:.3} ms",
            way.moderation,
            median(delays.iter().copied())
        );
    }
}
