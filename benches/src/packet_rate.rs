//! Packets through two ports, from a polling client, with one core for the switch.

use std::{os::unix::net::UnixStream, thread, time::Duration};

use weir_bed::{
    error::{Error, Result},
    report::{Figure, Goal, Report, Samples},
    switch::Switch,
    testpmd::{HugePages, Rings, Testpmd, Traffic},
    weir::{Setup, Weir},
};
use weir_vhost_user::FrontEnd;

use super::{Bench, CLIENT_CPU, Contender, SWITCH_CPU};

/// Time for adaptive switches to notice the load.
const WARM_UP: Duration = Duration::from_secs(1);

/// Duration of the count.
const TIME: Duration = Duration::from_millis(2500);

/// `VIRTIO_F_RING_PACKED` and `VIRTIO_F_IN_ORDER` (virtio 1.2 §6).
const PACKED_FEATURES: [(u32, &str); 2] = [(34, "VIRTIO_F_RING_PACKED"), (35, "VIRTIO_F_IN_ORDER")];

/// Number of CPUs needed. Polling threads cannot share one, since the scheduler would switch between them every few
/// milliseconds.
const CPUS_OF_TWO_CORES: usize = 3;

/// 256 packets in flight in each direction, in bursts of one size.
///
/// Rings have the peer's fastest size: DPDK's split rings are slower with all entries in flight; its packed rings,
/// and those of large packets, are faster if they fit in caches.
const IN_FLIGHT_256: Traffic<'static> = Traffic {
    small_pages: false,
    cache: None,
    device: "",
    root: None,
    queues: 1,
    packet_bytes: 64,
    burst: 256,
    first_bursts: 1,
    imix: false,
    queue_size: 512,
    rings: Rings::Split,
};

/// A row: the same traffic through weir and through a peer.
struct Comparison {
    weir: Contender,
    peer: Contender,
    traffic: Traffic<'static>,
    /// Names of the figures: the ratio, weir's rate, the peer's, and the client's limit.
    names: [&'static str; 4],
    what: &'static str,
    /// Name of the ratio of packets per second of busy time, by the switches' own counts.
    busy: Option<&'static str>,
    goal: Option<Goal>,
}

/// Results for a switch.
pub(super) struct Rate {
    packets_per_second: f64,
    /// Packets per second of busy time, if the switch counts it.
    pub(super) per_busy_second: Option<f64>,
    /// Largest rate of the client.
    limit: f64,
}

pub(super) fn small_vs_ovs_dpdk(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let row = Comparison {
        weir: Contender::Weir,
        peer: Contender::OvsDpdk,
        traffic: Traffic::default(),
        names: ["pps64_vs_ovs_dpdk", "pps64_weir", "pps64_ovs_dpdk", "pps64_client_limit"],
        what: "64 B, split rings, 4 bursts of 32 in flight each way; both switch by MAC",
        busy: Some("pps64_busy_vs_ovs_dpdk"),
        goal: Some(Goal::AtLeast(2.0)),
    };
    row.measure(bench, report)
}

pub(super) fn small_vs_testpmd(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let row = Comparison {
        weir: Contender::Weir,
        peer: Contender::TestpmdVhost { burst: IN_FLIGHT_256.burst, cores: 1 },
        traffic: IN_FLIGHT_256,
        names: [
            "pps64_vs_testpmd",
            "pps64_burst256_weir",
            "pps64_burst256_testpmd",
            "pps64_burst256_client_limit",
        ],
        what: "64 B, split rings, 256 in flight each way; weir switches by MAC, testpmd is blind",
        busy: None,
        goal: Some(Goal::AtLeast(1.3)),
    };
    row.measure(bench, report)
}

pub(super) fn small_32_vs_testpmd(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let traffic = Traffic { burst: 32, first_bursts: 1, ..Traffic::default() };
    let row = Comparison {
        weir: Contender::Weir,
        peer: Contender::TestpmdVhost { burst: traffic.burst, cores: 1 },
        traffic,
        names: [
            "pps64_burst32_vs_testpmd",
            "pps64_burst32_weir",
            "pps64_burst32_testpmd",
            "pps64_burst32_client_limit",
        ],
        what: "the same with 32 in flight each way",
        busy: None,
        goal: None,
    };
    row.measure(bench, report)
}

pub(super) fn small_packed_vs_testpmd(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let names = [
        "pps64_packed_vs_testpmd",
        "pps64_packed_weir",
        "pps64_packed_testpmd",
        "pps64_packed_client_limit",
    ];
    // testpmd silently falls back to split rings, so the back end's features are checked.
    if let Some(missing) = missing_packed_feature(bench)? {
        report.leave_out(names[0], format!("not supported by this back end: no {missing}"));
        return Ok(());
    }
    let row = Comparison {
        weir: Contender::Weir,
        peer: Contender::TestpmdVhost { burst: IN_FLIGHT_256.burst, cores: 1 },
        traffic: Traffic { rings: Rings::PackedInOrder, queue_size: 256, ..IN_FLIGHT_256 },
        names,
        what: "64 B, packed rings in order, 256 in flight each way; testpmd is blind",
        busy: None,
        goal: Some(Goal::AtLeast(1.0)),
    };
    row.measure(bench, report)
}

pub(super) fn large_vs_testpmd(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let row = Comparison {
        weir: Contender::Weir,
        peer: Contender::TestpmdVhost { burst: IN_FLIGHT_256.burst, cores: 1 },
        traffic: Traffic { packet_bytes: 1500, queue_size: 256, ..IN_FLIGHT_256 },
        names: ["pps1500_vs_testpmd", "pps1500_weir", "pps1500_testpmd", "pps1500_client_limit"],
        what: "1500 B, split rings, 256 in flight each way; testpmd is blind",
        busy: None,
        goal: Some(Goal::AtLeast(1.6)),
    };
    row.measure(bench, report)
}

/// 192 packets in flight in each direction, from 64 to 1500 bytes.
const MIX: Traffic<'static> = Traffic { imix: true, burst: 32, ..IN_FLIGHT_256 };

pub(super) fn mix_vs_testpmd(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let row = Comparison {
        weir: Contender::Weir,
        peer: Contender::TestpmdVhost { burst: MIX.burst, cores: 1 },
        traffic: MIX,
        names: ["imix_vs_testpmd", "imix_weir", "imix_testpmd", "imix_client_limit"],
        what: "64, 570 and 1500 B as 7:4:1, split rings, 192 in flight each way; testpmd is blind",
        busy: None,
        goal: None,
    };
    row.measure(bench, report)
}

pub(super) fn mix_vs_ovs_dpdk(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let row = Comparison {
        weir: Contender::Weir,
        peer: Contender::OvsDpdk,
        traffic: MIX,
        names: ["imix_vs_ovs_dpdk", "imix_2_weir", "imix_ovs_dpdk", "imix_2_client_limit"],
        what: "the same; both switch by MAC",
        busy: Some("imix_busy_vs_ovs_dpdk"),
        goal: None,
    };
    row.measure(bench, report)
}

pub(super) fn large_vs_ovs_dpdk(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let row = Comparison {
        weir: Contender::Weir,
        peer: Contender::OvsDpdk,
        traffic: Traffic { packet_bytes: 1500, ..Traffic::default() },
        names: [
            "pps1500_vs_ovs_dpdk",
            "pps1500_burst32_weir",
            "pps1500_ovs_dpdk",
            "pps1500_burst32_client_limit",
        ],
        what: "1500 B, split rings, 4 bursts of 32 in flight each way; both switch by MAC",
        busy: Some("pps1500_busy_vs_ovs_dpdk"),
        goal: None,
    };
    row.measure(bench, report)
}

/// Compares two workers with a forwarder that has a core for each port. The client has a third core.
pub(super) fn small_on_two_cores(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    if thread::available_parallelism().is_ok_and(|cpus| cpus.get() < CPUS_OF_TWO_CORES) {
        let why = "left out: two cores for the switch and one for the client are three CPUs";
        report.leave_out("pps64_two_cores_vs_testpmd", why.into());
        return Ok(());
    }
    let row = Comparison {
        weir: Contender::WeirOnTwoCores,
        peer: Contender::TestpmdVhost { burst: IN_FLIGHT_256.burst, cores: 2 },
        traffic: IN_FLIGHT_256,
        names: [
            "pps64_two_cores_vs_testpmd",
            "pps64_two_cores_weir",
            "pps64_two_cores_testpmd",
            "pps64_two_cores_client_limit",
        ],
        what: "64 B, 256 in flight each way; weir with two workers, testpmd with two forwarding threads",
        busy: None,
        goal: None,
    };
    row.measure(bench, report)
}

impl Comparison {
    fn measure(&self, bench: &Bench<'_>, report: &mut Report) -> Result<()> {
        let contenders = [self.weir, self.peer];
        let measure = |contender| packets_per_second(bench, contender, &self.traffic);
        let found =
            bench.interleaved("packets/s", contenders, measure, |rate| rate.packets_per_second)?;
        let rates = |rates: &Vec<Rate>| rates.iter().map(|rate| rate.packets_per_second).collect();
        let [weir, peer]: [Samples; 2] = [rates(&found[0]), rates(&found[1])];
        let busy =
            |rates: &Vec<Rate>| rates.iter().filter_map(|rate| rate.per_busy_second).collect();
        let [weir_busy, peer_busy]: [Samples; 2] = [busy(&found[0]), busy(&found[1])];
        let limits = found[0].iter().map(|rate| rate.limit).collect::<Samples>();
        let [ratio, weir_name, peer_name, limit_name] = self.names;
        report.add(Figure::ratio(ratio, self.what, weir.ratio_to(&peer)).goal(self.goal));
        let what =
            "the same were the switch's time nothing: the client's core, which then never waits";
        let limit = Figure::ratio(format!("{ratio}_limit"), what, limits.ratio_to(&peer));
        report.add(limit);
        report.add(Figure::new(weir_name, "packets/s", "both ports together", weir));
        report.add(Figure::new(peer_name, "packets/s", "both ports together", peer));
        let limit = "the client's core if it never waited for weir, by its own count of cycles";
        report.add(Figure::new(limit_name, "packets/s", limit, limits));
        if let Some(name) = self.busy {
            let what =
                "the same for each second that the switches spend on packets, by their own counts";
            report.add(Figure::ratio(name, what, weir_busy.ratio_to(&peer_busy)));
        }
        Ok(())
    }
}

/// Measures delivered packets, the sum of both directions.
fn packets_per_second(bench: &Bench<'_>, contender: Contender, traffic: &Traffic) -> Result<Rate> {
    let _pages = HugePages::reserve()?;
    through(&*contender.start(bench.lab, Some(SWITCH_CPU))?, traffic)
}

/// Measures a running switch.
pub(super) fn through(switch: &dyn Switch, traffic: &Traffic) -> Result<Rate> {
    let links = [&switch.link(0)?, &switch.link(1)?];
    let mut client = Testpmd::start(links, traffic, CLIENT_CPU)?;
    client.circulate()?;
    thread::sleep(WARM_UP);
    let before = switch.work()?;
    let packets_per_second = client.packets_per_second(TIME)?;
    let busy = before.zip(switch.work()?).map(|(before, now)| now.share_since(before));
    let limit = client.limit()?;
    client.quit()?;
    let per_busy_second = busy.map(|busy| packets_per_second / busy);
    Ok(Rate { packets_per_second, per_busy_second, limit })
}

/// Returns the first feature of packed in-order rings that weir's ports do not offer.
fn missing_packed_feature(bench: &Bench<'_>) -> Result<Option<&'static str>> {
    let weir = Weir::start(bench.lab, &Setup::vifs(1))?;
    let socket = weir.link(0)?.socket;
    let stream = UnixStream::connect(&socket).map_err(Error::io("connect to", &socket))?;
    let offered = FrontEnd::new(stream)
        .get_features()
        .map_err(|error| Error::Check(format!("weir's features: {error}")))?;
    let missing = PACKED_FEATURES.iter().find(|(bit, _)| offered & (1 << bit) == 0);
    Ok(missing.map(|&(_, name)| name))
}
