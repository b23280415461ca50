//! weir and the kernel's back end between the same two guests, measured in turn within one boot.

use std::time::Duration;

use weir_bed::{
    error::{Error, Result},
    iperf::{self, Tcp, Transfer},
    qemu::parse_interrupts,
    report::{Figure, Goal, Report, Samples},
};

use super::{
    bed::{BackEnd, Bed, Domain, PATIENCE},
    scenarios::{connect_all, disconnect_all},
};

const CLIENT: Domain = Domain(0);
const SERVER: Domain = Domain(1);

/// Default number of rounds, which fit into three minutes.
pub const ROUNDS: u32 = 3;

/// Duration of each measured TCP transfer.
const TCP_SECONDS: u64 = 8;

/// Duration of each measured UDP transfer.
const UDP_SECONDS: u64 = 2;

/// Duration of the transfer before, in which the connection's windows open and `auto` finds its limit.
const SETTLE_SECONDS: u64 = 2;

/// Sends 2500 datagrams a second, each in one frame.
const UDP: &str = "-u -l 1000 -b 20M";

/// The results of one back end by round.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Payload of one TCP connection, in bits per second.
    pub tcp_bits_per_second: Samples,
    /// CPU time of all domains per gigabyte of TCP payload, as Xen counts it.
    pub cpu_per_gb: Samples,
    /// dom0's part of that CPU time.
    pub dom0_cpu_per_gb: Samples,
    /// Packets that the receiving guest took per second of that transfer: segments of up to 64 KiB.
    pub tcp_packets_per_second: Samples,
    /// Interrupts of the receiving guest's interface per packet.
    pub tcp_events_per_packet: Samples,
    /// Interrupts for the guest's sent acknowledgements per packet.
    pub tcp_sent_events_per_packet: Samples,
    /// Interrupts of the receiving guest's interface per packet, under UDP.
    pub udp_events_per_packet: Samples,
    /// Packets that the receiving guest took per second, under UDP.
    pub udp_packets_per_second: Samples,
}

/// Measures netback and weir in turn.
pub fn compare(bed: &mut Bed, rounds: u32) -> Result<Report> {
    let (mut netback, mut weir) = (Figures::default(), Figures::default());
    for _ in 0..rounds {
        let kernel = BackEnd::netback(bed)?;
        measure(bed, &mut netback)?;
        kernel.stop(bed)?;
        let ours = BackEnd::weir(bed)?;
        measure(bed, &mut weir)?;
        ours.stop(bed)?;
    }
    Ok(report(&netback, &weir))
}

fn report(netback: &Figures, weir: &Figures) -> Report {
    let mut report = Report::default();
    let what = "one TCP connection between two PV guests: weir / xen-netback and a bridge";
    let ratio = weir.tcp_bits_per_second.ratio_to(&netback.tcp_bits_per_second);
    report.add(Figure::ratio("xen_tcp_vs_netback", what, ratio).goal(Some(Goal::AtLeast(1.0))));
    let what = "CPU time of all domains for the same bytes, as Xen counts it";
    let ratio = weir.cpu_per_gb.ratio_to(&netback.cpu_per_gb);
    report.add(Figure::ratio("xen_cpu_vs_netback", what, ratio));
    let what = "interrupts of the receiving guest's interface per packet it took in that transfer, auto with 1 ms";
    let ratio = weir.tcp_events_per_packet.ratio_to(&netback.tcp_events_per_packet);
    report.add(Figure::ratio("xen_events_vs_netback", what, ratio).goal(Some(Goal::AtMost(0.5))));
    let what = "the same under UDP, of which the two deliver different shares";
    let ratio = weir.udp_events_per_packet.ratio_to(&netback.udp_events_per_packet);
    report.add(Figure::ratio("xen_udp_events_vs_netback", what, ratio));
    let figures = [
        [
            "xen_tcp_weir",
            "xen_cpu_weir",
            "xen_dom0_cpu_weir",
            "xen_tcp_packets_weir",
            "xen_tcp_events_weir",
            "xen_tcp_sent_events_weir",
            "xen_udp_events_weir",
            "xen_udp_weir",
        ],
        [
            "xen_tcp_netback",
            "xen_cpu_netback",
            "xen_dom0_cpu_netback",
            "xen_tcp_packets_netback",
            "xen_tcp_events_netback",
            "xen_tcp_sent_events_netback",
            "xen_udp_events_netback",
            "xen_udp_netback",
        ],
    ];
    for ([tcp, cpu, dom0, tcp_packets, tcp_events, sent, udp_events, udp], of) in
        figures.into_iter().zip([weir, netback])
    {
        let add = [
            (tcp, "bit/s", "payload of the connection", &of.tcp_bits_per_second),
            (cpu, "s/GB", "CPU time of all domains", &of.cpu_per_gb),
            (dom0, "s/GB", "CPU time of dom0", &of.dom0_cpu_per_gb),
            (
                tcp_packets,
                "packets/s",
                "packets the receiving guest took",
                &of.tcp_packets_per_second,
            ),
            (tcp_events, "1/packet", "interrupts under TCP", &of.tcp_events_per_packet),
            (
                sent,
                "1/packet",
                "those of a channel that tells of sent acknowledgements only",
                &of.tcp_sent_events_per_packet,
            ),
            (udp_events, "1/packet", "interrupts under UDP", &of.udp_events_per_packet),
            (udp, "packets/s", "datagrams that arrived", &of.udp_packets_per_second),
        ];
        for (name, unit, what, samples) in add {
            report.add(Figure::new(name, unit, what, samples.clone()));
        }
    }
    report
}

fn measure(bed: &mut Bed, figures: &mut Figures) -> Result<()> {
    connect_all(bed)?;
    let serve = iperf::serve_command("pidof iperf3 || iperf3 -s -D;", iperf::PORT);
    bed.run_in(SERVER, &serve, PATIENCE)?;

    let transfer = |bed: &mut Bed, seconds: u64| {
        let tcp = Tcp::to(SERVER.ip(), seconds);
        // iperf3 prints no reports during the transfer, since consoles are slow.
        bed.run_in(CLIENT, &format!("{} -i 0", tcp.argv().join(" ")), tcp.patience())
    };
    transfer(bed, SETTLE_SECONDS)?;
    let (before, cpu_before) = (Received::now(bed)?, CpuSeconds::now(bed)?);
    let report = transfer(bed, TCP_SECONDS)?;
    let (cpu, received) = (CpuSeconds::now(bed)?, Received::now(bed)?.since(&before));
    let bits_per_second = Transfer::parse(&report)?.bits_per_second;
    figures.tcp_bits_per_second.push(bits_per_second);
    let seconds = Duration::from_secs(TCP_SECONDS).as_secs_f64();
    let gigabytes = bits_per_second * seconds / 8e9;
    figures.cpu_per_gb.push((cpu.all - cpu_before.all) / gigabytes);
    figures.dom0_cpu_per_gb.push((cpu.dom0 - cpu_before.dom0) / gigabytes);
    figures.tcp_packets_per_second.push(received.packets / seconds);
    figures.tcp_events_per_packet.push(received.events_per_packet());
    figures.tcp_sent_events_per_packet.push(received.sent_events / received.packets);

    let before = Received::now(bed)?;
    let udp = format!("iperf3 -c {} -t {UDP_SECONDS} -i 0 {UDP}", SERVER.ip());
    bed.run_in(CLIENT, &udp, Tcp::to(SERVER.ip(), UDP_SECONDS).patience())?;
    let received = Received::now(bed)?.since(&before);
    figures.udp_events_per_packet.push(received.events_per_packet());
    let seconds = Duration::from_secs(UDP_SECONDS).as_secs_f64();
    figures.udp_packets_per_second.push(received.packets / seconds);
    disconnect_all(bed)
}

/// CPU time used by domains (s).
#[derive(Clone, Copy, Debug, PartialEq)]
struct CpuSeconds {
    all: f64,
    dom0: f64,
}

impl CpuSeconds {
    fn now(bed: &mut Bed) -> Result<Self> {
        let printed = bed.run("xl list", PATIENCE)?;
        Self::parse(&printed).ok_or_else(|| Error::parse("domains and their times", printed))
    }

    /// Reads the output of `xl list`: a heading, and a line for each domain that ends with its time. dom0's is the
    /// first.
    fn parse(printed: &str) -> Option<Self> {
        let times =
            printed.lines().skip(1).map(|line| line.split_whitespace().last()?.parse::<f64>().ok());
        let times = times.collect::<Option<Vec<f64>>>()?;
        Some(Self { all: times.iter().sum(), dom0: *times.first()? })
    }
}

/// The receiving guest's counts.
struct Received {
    packets: f64,
    events: f64,
    /// Interrupts of the guest's transmit queue.
    sent_events: f64,
}

impl Received {
    fn now(bed: &mut Bed) -> Result<Self> {
        let command = "cat /sys/class/net/eth0/statistics/rx_packets /proc/interrupts";
        let printed = bed.run_in(SERVER, command, PATIENCE)?;
        Self::parse(&printed).ok_or_else(|| Error::parse("packets and interrupts", printed))
    }

    /// Reads a line with the packets, and then `/proc/interrupts`.
    fn parse(printed: &str) -> Option<Self> {
        let (packets, interrupts) = printed.split_once('\n')?;
        // The driver's names are `vif0-q0-rx`, or `eth0-q0-rx` once the interface has its name.
        let of_interface = |name: &str| name.starts_with("vif") || name.starts_with("eth");
        let counts = parse_interrupts(interrupts);
        let events: Vec<(&str, u64)> = counts
            .iter()
            .filter(|(name, _)| of_interface(name))
            .map(|(name, count)| (name.as_str(), *count))
            .collect();
        if events.is_empty() {
            return None;
        }
        let sent = events.iter().filter(|(name, _)| name.ends_with("-tx"));
        let count = |count: u64| u32::try_from(count).ok().map(f64::from);
        Some(Self {
            packets: count(packets.trim().parse().ok()?)?,
            events: count(events.iter().map(|(_, count)| count).sum())?,
            sent_events: count(sent.map(|(_, count)| count).sum())?,
        })
    }

    fn since(&self, before: &Self) -> Self {
        Self {
            packets: self.packets - before.packets,
            events: self.events - before.events,
            sent_events: self.sent_events - before.sent_events,
        }
    }

    fn events_per_packet(&self) -> f64 {
        self.events / self.packets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_all_domains_are_added_up() {
        let printed = "Name      ID   Mem VCPUs\tState\tTime(s)\nDomain-0   0  1024     2     r-----      29.0\n\
            u0         1   256     1     -b----       6.7\n";
        assert_eq!(CpuSeconds::parse(printed), Some(CpuSeconds { all: 35.7, dom0: 29.0 }));
        assert_eq!(CpuSeconds::parse("Name ID Time(s)\nu0 1 soon\n"), None);
        assert_eq!(CpuSeconds::parse(""), None);
    }

    #[test]
    fn interrupts_of_the_interface_are_counted_and_no_others() {
        let printed = "250\n           CPU0\n 17:  500  xen-percpu  -virq  timer0\n \
            49:  20  xen-dyn  -event  vif0-q0-tx\n 50:  100  xen-dyn  -event  vif0-q0-rx\n";
        let received = Received::parse(printed).unwrap();
        assert_eq!((received.packets, received.events, received.sent_events), (250.0, 120.0, 20.0));
        assert!(Received::parse("250\n  CPU0\n 17: 5 xen-percpu -virq timer0\n").is_none());
    }
}
