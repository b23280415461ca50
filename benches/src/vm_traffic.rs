//! Traffic between two guests of one CPU each, with the default virtio-net of QEMU and Linux.

use std::time::{Duration, Instant};

use weir_bed::{
    address,
    error::Result,
    iperf::{self, Tcp},
    lab::Lab,
    pktgen::{self, Look, Pace},
    qemu::{Guest, GuestSpec},
    report::{Figure, Goal, Report, Samples},
    switch::Switch,
};

use super::{Bench, Contender};

/// Counted time of a round's TCP transfer (s), after [`OMIT_SECONDS`].
pub(super) const TCP_SECONDS: u64 = 4;

/// Duration of the slow start (s), which is not counted.
pub(super) const OMIT_SECONDS: u64 = 1;

/// Duration of a round's datagrams (s).
pub(super) const UDP_SECONDS: u64 = 3;

/// Length of a frame with check sequence (bytes).
pub(super) const UDP_FRAME_BYTES: u32 = 64;

/// Explanation of [`limits`].
pub(super) const LIMIT: &str = "\
    the same were weir's CPU time nothing and its guests' instead, where a packet costs them what it did, a virtual \
    CPU has one core at most, and a pktgen sender, which never rests, needs no more";

/// The names of a row's figures.
struct Names {
    ratio: &'static str,
    limit: &'static str,
    /// weir's rate, and the bridge's.
    rates: [&'static str; 2],
    /// Cores that weir, the sender and the receiver kept busy.
    weir_cores: [&'static str; 3],
    /// Cores that the sender and the receiver on the bridge kept busy.
    bridge_cores: [&'static str; 2],
}

const TCP: Names = Names {
    ratio: "vm_tcp_vs_tap_bridge",
    limit: "vm_tcp_vs_tap_bridge_limit",
    rates: ["vm_tcp_gbit_weir", "vm_tcp_gbit_tap_bridge"],
    weir_cores: ["vm_tcp_cores_weir", "vm_tcp_cores_sender", "vm_tcp_cores_receiver"],
    bridge_cores: ["vm_tcp_cores_bridge_sender", "vm_tcp_cores_bridge_receiver"],
};

const UDP: Names = Names {
    ratio: "vm_udp64_vs_tap_bridge",
    limit: "vm_udp64_vs_tap_bridge_limit",
    rates: ["vm_udp64_weir", "vm_udp64_tap_bridge"],
    weir_cores: ["vm_udp64_cores_weir", "vm_udp64_cores_sender", "vm_udp64_cores_receiver"],
    bridge_cores: ["vm_udp64_cores_bridge_sender", "vm_udp64_cores_bridge_receiver"],
};

pub(super) fn tcp(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let contenders = [Contender::Weir, Contender::TapBridge, Contender::OvsDpdk];
    let [weir, bridge, ovs] = interleaved(bench, "Gbit/s", contenders, tcp_transfer)?;
    let what = "two QEMU guests, one TCP connection";
    let at_least = |bound| Some(Goal::AtLeast(bound));
    TCP.add_to(report, "Gbit/s", what, at_least(1.3), [&weir, &bridge]);
    let vs_ovs = Figure::ratio("vm_tcp_vs_ovs_dpdk", what, rates(&weir).ratio_to(&rates(&ovs)));
    report.add(vs_ovs.goal(at_least(3.0)));
    report.add(Figure::new("vm_tcp_gbit_ovs_dpdk", "Gbit/s", what, rates(&ovs)));
    Ok(())
}

pub(super) fn small_udp(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let contenders = [Contender::Weir, Contender::TapBridge];
    let [weir, bridge] = interleaved(bench, "packets/s", contenders, datagrams)?;
    let what = "two QEMU guests, UDP of 64 B as fast as the sender's kernel can (pktgen): received";
    UDP.add_to(report, "packets/s", what, Some(Goal::AtLeast(2.0)), [&weir, &bridge]);
    Ok(())
}

impl Names {
    fn add_to(
        &self,
        report: &mut Report,
        unit: &'static str,
        what: &'static str,
        goal: Option<Goal>,
        [weir, bridge]: [&Vec<Transfer>; 2],
    ) {
        let bridge_rates = rates(bridge);
        let ratio = Figure::ratio(self.ratio, what, rates(weir).ratio_to(&bridge_rates));
        report.add(ratio.goal(goal));
        report.add(Figure::ratio(self.limit, LIMIT, limits(weir).ratio_to(&bridge_rates)));
        report.add(Figure::new(self.rates[0], unit, what, rates(weir)));
        report.add(Figure::new(self.rates[1], unit, what, bridge_rates));
        let mut cores = |name, says: &'static str, of: fn(&Transfer) -> f64, all: &[Transfer]| {
            report.add(Figure::new(name, "cores", says, all.iter().map(of).collect()));
        };
        let [switch, sender, receiver] = self.weir_cores;
        cores(switch, "weir itself, in those runs", |run| run.cores(run.switch), weir);
        cores(sender, "the sender's QEMU", |run| run.cores(run.sender.all), weir);
        cores(receiver, "the receiver's QEMU", |run| run.cores(run.receiver.all), weir);
        let [sender, receiver] = self.bridge_cores;
        let says = "on the bridge: the sender's QEMU, which moves its packets through the kernel";
        cores(sender, says, |run| run.cores(run.sender.all), bridge);
        let says = "on the bridge: the receiver's QEMU, which fetches its packets";
        cores(receiver, says, |run| run.cores(run.receiver.all), bridge);
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct GuestCpu {
    /// CPU time of the guest's virtual CPU.
    vcpu: Duration,
    /// CPU time of the guest's QEMU, including the virtual CPU.
    all: Duration,
}

impl GuestCpu {
    fn of(guest: &Guest) -> Result<Self> {
        Ok(Self { vcpu: guest.vcpu_time()?, all: guest.usage().cpu_time()? })
    }

    fn since(self, before: Self) -> Self {
        let Self { vcpu, all } = before;
        Self { vcpu: self.vcpu.saturating_sub(vcpu), all: self.all.saturating_sub(all) }
    }
}

/// CPU times of everything that takes part in a transfer.
pub(super) struct Cpu {
    at: Instant,
    switch: Duration,
    sender: GuestCpu,
    receiver: GuestCpu,
}

impl Cpu {
    /// `receiver` is `None` if only one of the two is a guest.
    pub(super) fn read(
        switch: &dyn Switch,
        sender: &Guest,
        receiver: Option<&Guest>,
    ) -> Result<Self> {
        let switch = switch.cpu_time()?;
        let receiver = receiver.map(GuestCpu::of).transpose()?.unwrap_or_default();
        let sender = GuestCpu::of(sender)?;
        Ok(Self { at: Instant::now(), switch, sender, receiver })
    }
}

/// Received traffic, and its cost.
pub(super) struct Transfer {
    /// Rate (Gbit or packets per second).
    rate: f64,
    /// Amount received while CPU time was counted, in the same unit.
    amount: f64,
    /// The sender spins when it cannot send, so its CPU time has no meaning.
    sender_spins: bool,
    time: Duration,
    switch: Duration,
    sender: GuestCpu,
    receiver: GuestCpu,
}

impl Transfer {
    pub(super) fn new(
        rate: f64,
        amount: f64,
        sender_spins: bool,
        before: &Cpu,
        after: &Cpu,
    ) -> Self {
        Self {
            rate,
            amount,
            sender_spins,
            time: after.at - before.at,
            switch: after.switch.saturating_sub(before.switch),
            sender: after.sender.since(before.sender),
            receiver: after.receiver.since(before.receiver),
        }
    }

    pub(super) fn rate(&self) -> f64 {
        self.rate
    }

    fn cores(&self, cpu: Duration) -> f64 {
        cpu.as_secs_f64() / self.time.as_secs_f64()
    }

    fn cost(&self, cpu: Duration) -> f64 {
        cpu.as_secs_f64() / self.amount
    }

    fn guests(&self) -> Duration {
        self.sender.all + self.receiver.all
    }

    /// Returns the rate of these guests with a switch that takes no CPU time and leaves it to the guests, at the same
    /// cost per packet. A vCPU has at most one core, and a sender that spins needs no more.
    fn limit(&self) -> f64 {
        let Self { rate, amount, switch, .. } = *self;
        let scaled = |cpu: Duration| rate * (switch + cpu).as_secs_f64() / cpu.as_secs_f64();
        let on_a_core = |vcpu: Duration| amount / vcpu.as_secs_f64();
        let receiver = on_a_core(self.receiver.vcpu);
        if self.sender_spins {
            return receiver.min(scaled(self.receiver.all));
        }
        let both = scaled(self.guests());
        both.min(receiver).min(on_a_core(self.sender.vcpu))
    }
}

/// Returns the CPU time of all parts (s) per Gbit or packet.
pub(super) fn costs(transfers: &[Transfer]) -> Samples {
    transfers.iter().map(|run| run.cost(run.switch + run.guests())).collect()
}

/// Returns the CPU time of the guests (s) per Gbit or packet.
pub(super) fn guests_costs(transfers: &[Transfer]) -> Samples {
    transfers.iter().map(|run| run.cost(run.guests())).collect()
}

pub(super) fn switch_cores(transfers: &[Transfer]) -> Samples {
    transfers.iter().map(|run| run.cores(run.switch)).collect()
}

/// Returns the [`Transfer::limit`] of each transfer.
pub(super) fn limits(transfers: &[Transfer]) -> Samples {
    transfers.iter().map(Transfer::limit).collect()
}

pub(super) fn rates(transfers: &[Transfer]) -> Samples {
    transfers.iter().map(|transfer| transfer.rate).collect()
}

/// Measures transfers with [`Bench::interleaved`].
pub(super) fn interleaved<const N: usize>(
    bench: &Bench<'_>,
    unit: &str,
    contenders: [Contender; N],
    measure: fn(&Lab, Contender) -> Result<Transfer>,
) -> Result<[Vec<Transfer>; N]> {
    let measure = |contender| measure(bench.lab, contender);
    bench.interleaved(unit, contenders, measure, |transfer| transfer.rate)
}

/// Measures one connection from the first guest to the second, at the second.
pub(super) fn tcp_transfer(lab: &Lab, contender: Contender) -> Result<Transfer> {
    let switch = contender.start(lab, None)?;
    let [mut client, mut server] = two_guests(lab, contender, &*switch)?;
    iperf::serve(&mut server, iperf::PORT)?;
    let tcp = Tcp { omit_seconds: OMIT_SECONDS, ..Tcp::to(address::ip(1), TCP_SECONDS) };
    let before = Cpu::read(&*switch, &client, Some(&server))?;
    let rate = tcp.run(&mut client)?.gbit_per_second();
    let after = Cpu::read(&*switch, &client, Some(&server))?;
    // The seconds outside the count took CPU time, too, and moved bytes at the same rate.
    let amount = rate * (TCP_SECONDS + OMIT_SECONDS) as f64;
    Ok(Transfer::new(rate, amount, false, &before, &after))
}

/// Measures small datagrams that arrive at the second guest.
pub(super) fn datagrams(lab: &Lab, contender: Contender) -> Result<Transfer> {
    let switch = contender.start(lab, None)?;
    let [mut client, mut server] = two_guests(lab, contender, &*switch)?;
    let (pace, bytes) = (Pace::Flood, UDP_FRAME_BYTES);
    let packets = Look::at(&mut server)?.packets;
    let before = Cpu::read(&*switch, &client, Some(&server))?;
    let sent = pktgen::send(&mut client, &mut server, pace, bytes, UDP_SECONDS)?;
    let after = Cpu::read(&*switch, &client, Some(&server))?;
    let amount = Look::at(&mut server)?.packets - packets;
    Ok(Transfer::new(sent.received.packets_per_second, amount, true, &before, &after))
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A transfer of 100 units in 10 s, with the CPU seconds of both QEMUs and of their virtual CPUs, which are a
    /// part.
    fn transfer(sender_spins: bool, [sender, receiver]: [(u64, u64); 2]) -> Transfer {
        let cpu = |(vcpu, all)| GuestCpu {
            vcpu: Duration::from_secs(vcpu),
            all: Duration::from_secs(all),
        };
        Transfer {
            rate: 10.0,
            amount: 100.0,
            sender_spins,
            time: Duration::from_secs(10),
            switch: Duration::from_secs(4),
            sender: cpu(sender),
            receiver: cpu(receiver),
        }
    }

    #[test]
    fn without_a_switch_both_guests_share_its_time() {
        let transfer = transfer(false, [(5, 10), (6, 10)]);
        assert_eq!(transfer.limit(), 10.0 * 24.0 / 20.0);
        assert_eq!(transfer.cores(transfer.switch), 0.4);
    }

    #[test]
    fn no_virtual_cpu_has_more_than_a_core() {
        assert_eq!(transfer(false, [(5, 6), (10, 10)]).limit(), 10.0);
        assert_eq!(transfer(true, [(10, 10), (8, 8)]).limit(), 12.5);
    }

    #[test]
    fn a_sender_that_spins_leaves_the_switchs_time_to_the_receiver() {
        assert_eq!(transfer(true, [(10, 10), (4, 8)]).limit(), 15.0);
    }
}
