//! Comparison of weir with its peers and its goals on this machine.
//!
//! A round starts and measures every contender once, so that a disturbance of the machine affects all. Ratios are
//! within a round.

#![forbid(unsafe_code)]

mod evpn;
mod groups;
mod guest_calls;
pub mod instructions;
mod load_cost;
mod machine;
mod overlay;
mod packet_rate;
mod peers {
    //! The switches that weir is compared with. Each measurement starts a new one.

    pub mod dpdk;
    pub mod passt;
    pub mod tap_bridge;
}
mod relay;
mod request_response;
mod uml_traffic;
mod uplink_rate;
mod vif_programs;
mod vm_coalescing;
mod vm_traffic;
mod watched;
mod way_out;
mod weir_bench;

use std::{
    cell::{OnceCell, RefCell},
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    thread::{CpuSet, sched_setaffinity},
};
use weir_bed::{
    error::{Error, Result, check},
    lab::Lab,
    report::{Figure, Report, Samples},
    switch::Switch,
    weir::{Setup, Weir},
};

use self::{
    machine::{Looks, Machine, Speed},
    overlay::{KernelPair, WeirPair},
    peers::{
        dpdk::{OvsDpdk, TestpmdVhost},
        passt::Passt,
        tap_bridge::TapBridge,
    },
    vif_programs::VifPrograms,
    way_out::WayOut,
};

/// CPUs of the contenders. Guests are never pinned; `SWITCH_CPU` and `CLIENT_CPU` apply to the
/// rest.
const PINNING: &str = "\
QEMU guests and user-mode Linux: nothing is pinned, the scheduler places guests and switches;
  OVS-DPDK pins its polling thread itself (CPU 1).
Packet rate, requests, uplinks and CPU under load: the switch's packet thread is pinned to CPU 1 (weir, testpmd: the
  whole process; OVS-DPDK: its polling thread, its other threads on CPU 0), the client with all
  its threads to CPU 0.
Policies, filters, TSO, 1 to 32 interfaces, and two cores that answer each other: the worker, or the
  thread that answers, on the last CPU, and the guests, or the thread that asks, on the first; where
  containers are compared (`aggregate_pps_*`) the sender is on the last, too.
Several workers, sharing, interfaces that come and go: nothing is pinned. Switch and guests are
  threads of one process there.";

/// CPU of a pinned switch in measurements of packet rates.
const SWITCH_CPU: usize = peers::dpdk::POLLING_CPU;

const CLIENT_CPU: usize = 0;

/// Common state of the rows.
struct Bench<'a> {
    lab: &'a Lab,
    programs: OnceCell<VifPrograms>,
    /// Number of measurements of each contender.
    rounds: u32,
    /// Load of other programs before each measurement.
    other_load: RefCell<Samples>,
    machine: Machine,
}

impl Bench<'_> {
    /// Returns the load programs, which are built for the first row that runs one.
    fn programs(&self) -> Result<&VifPrograms> {
        if let Some(programs) = self.programs.get() {
            return Ok(programs);
        }
        let built = VifPrograms::build(&self.lab.workspace)?;
        Ok(self.programs.get_or_init(|| built))
    }

    /// Records the load of other programs and the machine's speed. No program of the benchmark may run meanwhile.
    fn note_other_load(&self) -> Result<()> {
        let percent = machine::percent()?;
        if percent >= machine::DISTURBING_PERCENT {
            println!("disturbed: others use {percent:.0} % of this machine");
        }
        self.other_load.borrow_mut().push(percent);
        self.machine.look()
    }

    /// Returns the results of `measure` in each round, without rounds in which the machine's speed changed.
    fn rounds<T>(&self, measure: impl FnMut(u32) -> Result<T>) -> Result<Vec<T>> {
        self.machine.rounds(self.rounds, measure)
    }

    /// Measures every contender in turn, in all rounds: A B C A B C ... `rate` is the printed part
    /// of a result.
    fn interleaved<T, const N: usize>(
        &self,
        unit: &str,
        contenders: [Contender; N],
        measure: impl Fn(Contender) -> Result<T>,
        rate: impl Fn(&T) -> f64,
    ) -> Result<[Vec<T>; N]> {
        let rounds = self.rounds(|round| {
            let mut found = Vec::new();
            for contender in contenders {
                self.note_other_load()?;
                let value = measure(contender)?;
                let (rounds, name) = (self.rounds, contender.name());
                println!("round {round}/{rounds}: {name:<12}{:>14.3} {unit}", rate(&value));
                found.push(value);
            }
            Ok(found)
        })?;
        let mut all = [const { Vec::new() }; N];
        for round in rounds {
            all.iter_mut().zip(round).for_each(|(of_contender, value)| of_contender.push(value));
        }
        Ok(all)
    }
}

/// A measurement, named after its main figure.
struct Row {
    name: &'static str,
    measure: fn(&Bench<'_>, &mut Report) -> Result<()>,
}

/// Rows before those of `weir bench` ([`weir_bench::ROWS`]), in order.
const ROWS: &[Row] = &[
    Row { name: "pps64_vs_ovs_dpdk", measure: packet_rate::small_vs_ovs_dpdk },
    Row { name: "pps64_vs_testpmd", measure: packet_rate::small_vs_testpmd },
    Row { name: "pps64_burst32_vs_testpmd", measure: packet_rate::small_32_vs_testpmd },
    Row { name: "pps64_packed_vs_testpmd", measure: packet_rate::small_packed_vs_testpmd },
    Row { name: "pps64_two_cores_vs_testpmd", measure: packet_rate::small_on_two_cores },
    Row { name: "pps1500_vs_testpmd", measure: packet_rate::large_vs_testpmd },
    Row { name: "pps1500_vs_ovs_dpdk", measure: packet_rate::large_vs_ovs_dpdk },
    Row { name: "imix_vs_testpmd", measure: packet_rate::mix_vs_testpmd },
    Row { name: "imix_vs_ovs_dpdk", measure: packet_rate::mix_vs_ovs_dpdk },
    Row { name: "group_pps64_vs_ovs_dpdk_ct", measure: groups::established },
    Row { name: "group_setup_vs_ovs_dpdk_ct", measure: groups::set_up },
    Row { name: "group_cost", measure: groups::cost },
    Row { name: "group_setup_beside_flood", measure: groups::set_up_beside_a_flood },
    Row { name: "rr_p99_vs_ovs", measure: request_response::measure },
    Row { name: "rr_stages", measure: request_response::stages },
    Row { name: "rr_front", measure: request_response::front },
    Row { name: "gbps_tso_per_core", measure: load_cost::large_segments },
    Row { name: "cpu_at_1gbps_1500B", measure: load_cost::paced },
    Row { name: "cpu_idle", measure: watched::cpu },
    Row { name: "idle_wakeups_per_s", measure: watched::wakeups },
    Row { name: "bytes_per_idle_port", measure: watched::memory },
    Row { name: "xdp_pps_vs_tap", measure: uplink_rate::outward },
    Row { name: "uplink_pps_vs_ovs_dpdk", measure: uplink_rate::vs_ovs_dpdk },
    Row { name: "instructions_per_packet", measure: instructions_per_packet },
    Row { name: "fdb_lookup_100k_vs_100", measure: load_cost::lookups },
    Row { name: "vm_tcp_vs_tap_bridge", measure: vm_traffic::tcp },
    Row { name: "vm_udp64_vs_tap_bridge", measure: vm_traffic::small_udp },
    Row { name: "uml_tcp_vs_bridge", measure: uml_traffic::measure },
    Row { name: "vm_to_host_tcp_vs_passt", measure: way_out::to_host },
    Row { name: "nat_tcp_vs_bridge", measure: way_out::nat },
    Row { name: "stream_tcp_vs_direct", measure: way_out::stream },
    Row { name: "overlay_tcp_vs_kernel", measure: overlay::tcp },
    Row { name: "overlay_pps64_vs_kernel", measure: overlay::small_udp },
    Row { name: "evpn_reachable_ms", measure: evpn::reachable },
    Row { name: "host_failure_ms", measure: evpn::host_failure },
    Row { name: "evpn_route", measure: evpn::cost },
    Row { name: "vm_irqs_vs_immediate", measure: vm_coalescing::measure },
    Row { name: "guest_calls_1", measure: guest_calls::among::<1> },
    Row { name: "guest_calls_3", measure: guest_calls::among::<3> },
    Row { name: "guest_calls_6", measure: guest_calls::among::<6> },
    Row { name: "guest_calls_9", measure: guest_calls::among::<9> },
    Row { name: "metrics_scrape_ms", measure: watched::scrape },
    Row { name: "ports_1000_time_vs_2", measure: watched::crowded_load },
    Row { name: "pps_while_scraped", measure: watched::scraped_load },
    Row { name: "top_cpu_percent", measure: watched::top },
    Row { name: "capture_on_pps", measure: watched::capture },
];

/// Pins the calling thread to one CPU.
fn pin(cpu: usize) -> Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    let failed =
        |errno: Errno| Error::Io { what: format!("move to CPU {cpu}"), source: errno.into() };
    sched_setaffinity(None, &cpus).map_err(failed)
}

/// Adds the machine's state during the row `name`, and separate ratios for each speed from the figures from index
/// `first` on.
fn add_looks(name: &'static str, looks: Looks, first: usize, report: &mut Report) {
    let Looks { speeds, bounces, dropped, .. } = looks;
    let has_rounds = dropped > 0 || !speeds.is_empty();
    report.split_ratios(first, &speeds.into_iter().map(Speed::name).collect::<Vec<_>>());
    if !bounces.is_empty() {
        let what = "a cache line's way from one of the two CPUs to the other, in these rounds";
        report.add(Figure::new(format!("{name}_bounce_ns"), "ns", what, bounces));
    }
    if has_rounds {
        let what = "rounds in which that changed between near and far, which do not count";
        let dropped = Samples::one(dropped.into());
        report.add(Figure::new(format!("{name}_rounds_dropped"), "rounds", what, dropped));
    }
}

/// Counts weir's instructions per packet, which do not depend on the machine's load.
fn instructions_per_packet(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    for (name, instructions) in instructions::count(&bench.lab.workspace)? {
        let what = "counted by callgrind: from one guest's ring to another's, or of groups alone";
        report.add(Figure::new(name, "instructions", what, Samples::one(instructions)));
    }
    Ok(())
}

/// A switch to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contender {
    Weir,
    /// weir whose guests are in a security group.
    WeirWithGroups,
    /// weir with two workers, not pinned.
    WeirOnTwoCores,
    TapBridge,
    OvsDpdk,
    /// The same with flows of connection tracking.
    OvsDpdkConntrack,
    /// A guest's connection to the host, without a switch.
    Passt,
    /// weir with `nat`.
    WeirNat,
    /// libvirt's default network.
    NatBridge,
    /// weir with gvproxy as its uplink.
    WeirStream,
    /// gvproxy without a switch.
    Gvproxy,
    /// Two weirs, on two hosts.
    WeirOverlay,
    /// A bridge and the kernel's VXLAN device on each of two hosts.
    KernelOverlay,
    /// Two vhost-user ports without a switch, with bursts of `burst` packets, on one core or two.
    TestpmdVhost {
        burst: u32,
        cores: usize,
    },
}

impl Contender {
    fn name(self) -> &'static str {
        match self {
            Self::Weir => "weir",
            Self::WeirWithGroups => "weir, groups",
            Self::WeirOnTwoCores => "weir, 2 workers",
            Self::TapBridge => "tap+bridge",
            Self::OvsDpdk => "ovs-dpdk",
            Self::OvsDpdkConntrack => "ovs-dpdk, ct",
            Self::Passt => "passt",
            Self::WeirNat => "weir, nat",
            Self::NatBridge => "bridge, nat",
            Self::WeirStream => "weir, stream",
            Self::Gvproxy => "gvproxy",
            Self::WeirOverlay => "weir overlay",
            Self::KernelOverlay => "kernel vxlan",
            Self::TestpmdVhost { .. } => "testpmd",
        }
    }

    /// Starts the contender with two ports. `cpu` is weir's CPU if it is pinned.
    fn start(self, lab: &Lab, cpu: Option<usize>) -> Result<Box<dyn Switch>> {
        let started = self.start_anew(lab, cpu);
        let own = [Self::Weir, Self::WeirWithGroups, Self::WeirOnTwoCores, Self::WeirOverlay];
        if own.contains(&self) {
            return started;
        }
        started.map_err(Error::absent(self.name()))
    }

    fn start_anew(self, lab: &Lab, cpu: Option<usize>) -> Result<Box<dyn Switch>> {
        Ok(match self {
            Self::Weir => Box::new(Weir::start(lab, &Setup { cpu, ..Setup::vifs(2) })?),
            Self::WeirWithGroups => {
                let setup = Setup { cpu, group: Some(groups::RULES), ..Setup::vifs(2) };
                Box::new(Weir::start(lab, &setup)?)
            }
            Self::WeirOnTwoCores => {
                Box::new(Weir::start(lab, &Setup { workers: Some(2), ..Setup::vifs(2) })?)
            }
            Self::WeirOverlay => Box::new(WeirPair::start(lab)?),
            Self::TapBridge => Box::new(TapBridge::start(2)?),
            Self::OvsDpdk => Box::new(OvsDpdk::start(&lab.workspace, lab.qemu, 2)?),
            Self::OvsDpdkConntrack => {
                let switch = OvsDpdk::start(&lab.workspace, lab.qemu, 2)?;
                switch.set_flows(&groups::FLOWS)?;
                Box::new(switch)
            }
            Self::Passt => Box::new(Passt::start(&lab.workspace)?),
            Self::WeirNat | Self::NatBridge | Self::WeirStream | Self::Gvproxy => {
                Box::new(WayOut::start(lab, self)?)
            }
            Self::KernelOverlay => Box::new(KernelPair::start()?),
            Self::TestpmdVhost { burst, cores } => {
                let cpus = [SWITCH_CPU, SWITCH_CPU + 1];
                Box::new(TestpmdVhost::start(&lab.workspace, burst, &cpus[..cores])?)
            }
        })
    }
}

/// Describes the next row, and estimates the remaining time from the pace so far.
fn progress(done: usize, rows: usize, elapsed: Duration) -> String {
    let text = format!("row {} of {rows}", done + 1);
    let Some(each) = elapsed.checked_div(u32::try_from(done).unwrap_or(u32::MAX)) else {
        return text;
    };
    let left = each * u32::try_from(rows - done).unwrap_or(u32::MAX);
    let minutes = |time: Duration| time.as_secs().div_ceil(60);
    format!("{text}, {} min gone, about {} min left", minutes(elapsed), minutes(left))
}

/// Measures every row, or those whose name contains `only`, and prints as it goes. Returns the
/// results.
///
/// A row that cannot be measured is noted in the report and does not stop the others.
pub fn run(lab: &Lab, rounds: u32, only: Option<&str>) -> Result<Report> {
    let names =
        || ROWS.iter().map(|row| row.name).chain(weir_bench::ROWS.iter().map(|row| row.name));
    let wanted = |name: &str| only.is_none_or(|only| name.contains(only));
    check(names().any(wanted), || {
        format!("no such row; there are {}", names().collect::<Vec<_>>().join(", "))
    })?;
    println!("{PINNING}");
    let bench = Bench {
        lab,
        programs: OnceCell::new(),
        rounds,
        other_load: RefCell::default(),
        machine: Machine::new(machine::bounce_ns),
    };
    let mut report = Report::default();
    let (begun, rows) = (Instant::now(), names().filter(|name| wanted(name)).count());
    let mut done = 0;
    let mut row = |name, measure: &dyn Fn(&Bench<'_>, &mut Report) -> Result<()>| {
        if wanted(name) {
            println!("\n{name} ({})", progress(done, rows, begun.elapsed()));
            done += 1;
            let first = report.len();
            if let Err(error) = measure(&bench, &mut report) {
                println!("{error}");
                report.fail(name, &error);
            }
            add_looks(name, bench.machine.seen(), first, &mut report);
        }
    };
    ROWS.iter().for_each(|it| row(it.name, &it.measure));
    weir_bench::ROWS.iter().for_each(|it| row(it.name, &|bench, report| it.measure(bench, report)));
    let other_load = bench.other_load.into_inner();
    if !other_load.is_empty() {
        let what = "CPU time that others used right before each measurement";
        report.add(Figure::new("other_load", "% of the machine", what, other_load));
    }
    println!("\n{}", report.table());
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_told_once_a_row_is_done() {
        assert_eq!(progress(0, 4, Duration::ZERO), "row 1 of 4");
        let said = progress(2, 4, Duration::from_secs(250));
        assert_eq!(said, "row 3 of 4, 5 min gone, about 5 min left");
    }
}
