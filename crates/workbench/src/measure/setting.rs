//! Converts a point of an experiment's sweeps to a switch with built-in guests, if this machine can run it.

use std::time::Duration;

use thiserror::Error;
use weir_bench::rig;
use weir_config::{LatencyBudget, Moderation, ValueError};
use weir_lab::random::Distribution;
use weir_lab::realization::Realization;
use weir_lab::scenario::{Endpoint, Guest, Load, LoadKind, Scenario};
use weir_switch::stats::CallSettings;
use weir_vif::load::{bulk, pingpong, small};

/// Length of a TCP segment's headers without options: Ethernet (14), IPv4 (20), TCP (20).
const TCP_HEADERS: u32 = 54;
const ETHERNET_HEADER: u32 = 14;
/// Segments per acknowledgement, here and in the lab (RFC 1122 §4.2.3.2).
const ACK_EVERY: u32 = 2;

/// The reason why a point cannot be measured here. Each fits on a line.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unreal {
    /// The point has an uplink.
    #[error("it has an uplink, and there is no other host here")]
    Uplink,
    /// The point's guests are virtual machines.
    #[error(
        "its guests are virtual machines, and those here are threads (`realization.guests_are_threads`)"
    )]
    Machines,
    /// The point has several workers.
    #[error("it has {0} workers, and only one can be measured")]
    Workers(usize),
    /// A feature that a single switch does not have, or that only the lab has.
    #[error("{0} can only be simulated")]
    Played(&'static str),
    /// A thread needs a CPU that this process may not use.
    #[error("it needs CPU {cpu}, and this process may use {usable}")]
    Cpu {
        /// The CPU.
        cpu: usize,
        /// The usable CPUs.
        usable: String,
    },
    /// A thread is not pinned, or may run on several CPUs.
    #[error("{0} is not pinned to one CPU, so runs would differ")]
    NotPinned(&'static str),
    /// A guest has more than one flow.
    #[error("{0} belongs to two flows, and a measured guest is one thread with one flow")]
    TwoFlows(String),
    /// There is no traffic.
    #[error("no frame would be sent")]
    Silent,
    /// The ring sizes are not possible.
    #[error("{guest} has rings of {rx} and {tx}; a measured guest needs one size, a power of two")]
    Rings {
        /// Name of the guest.
        guest: String,
        /// Entries of the receive ring.
        rx: u16,
        /// Entries of the transmit ring.
        tx: u16,
    },
    /// Built-in guests cannot make the traffic.
    #[error("load `{load}`: {what}")]
    Traffic {
        /// The load.
        load: String,
        /// The unsupported part.
        what: String,
    },
    /// weir refuses a setting.
    #[error(transparent)]
    Value(#[from] ValueError),
}

/// A measurable point.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Policy of the guests' calls.
    pub calls: CallSettings,
    pub latency_budget: LatencyBudget,
    /// Entries of each ring.
    pub ring: u16,
    /// CPU of the worker.
    pub worker_cpu: usize,
    pub flows: Vec<Flow>,
    /// Time before the measurements, and time of the measurements.
    pub warm_up: Duration,
    pub run: Duration,
}

/// Traffic between two guests that have no other traffic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flow {
    /// CPUs of the two ends.
    pub cpus: [usize; 2],
    pub traffic: rig::Load,
    /// Length of a frame that counts as throughput (bytes).
    pub frame_bytes: u32,
    /// True if the flow belongs to the first load, whose latency is reported.
    pub first: bool,
}

impl Setting {
    /// Returns the setting for `scenario` if this process may run on `usable`.
    ///
    /// # Errors
    /// The first requirement that cannot be met.
    pub fn of(scenario: &Scenario, usable: &[usize]) -> Result<Self, Unreal> {
        if !scenario.uplinks.is_empty() {
            return Err(Unreal::Uplink);
        }
        played(scenario)?;
        let [worker] = scenario.workers.as_slice() else {
            return Err(Unreal::Workers(scenario.workers.len()));
        };
        let worker_cpu = only_cpu("the worker", &worker.cpus, usable)?;
        let ends = |load: &Load| match (load.from, load.to) {
            (Endpoint::Guest(from), Endpoint::Guest(to)) => Ok([from, to]),
            _ => Err(Unreal::Uplink),
        };
        let mut busy = Vec::new();
        let mut flows = Vec::new();
        let first = scenario.loads.first().map(|load| group(&load.name));
        for load in &scenario.loads {
            let mut cpus = [0; 2];
            for (cpu, end) in cpus.iter_mut().zip(ends(load)?) {
                let Some(guest) = scenario.guests.get(end) else { return Err(Unreal::Silent) };
                if busy.contains(&end) {
                    return Err(Unreal::TwoFlows(guest.name.clone()));
                }
                busy.push(end);
                *cpu = only_cpu("a guest", &guest.cpus, usable)?;
            }
            let (traffic, frame_bytes) = traffic(load)?;
            let first = Some(group(&load.name)) == first;
            flows.push(Flow { cpus, traffic, frame_bytes, first });
        }
        // The guests of an experiment differ only in their CPUs.
        let (false, Some(guest)) = (flows.is_empty(), scenario.guests.first()) else {
            return Err(Unreal::Silent);
        };
        let (calls, latency_budget, ring) = guest_settings(guest)?;
        let [warm_up, run] = [scenario.warm_up_ns, scenario.run_ns].map(Duration::from_nanos);
        Ok(Self { calls, latency_budget, ring, worker_cpu, flows, warm_up, run })
    }
}

/// Returns the name of an experiment's load, without the numbers of guest and flow.
fn group(name: &str) -> &str {
    name.rsplit_once(' ').map_or(name, |(group, _)| group)
}

/// Refuses features that exist only in the lab.
fn played(scenario: &Scenario) -> Result<(), Unreal> {
    let Realization {
        dedicated,
        uplink_apart,
        identifiers,
        placement,
        cache_blind,
        guests_poll,
        tx_calls_when_full,
        guests_are_threads,
        timers_ahead,
        awaits_answers,
        hold_timers,
        manager,
        client_threads: _, // of an uplink, which is refused
        twins,
    } = scenario.realization;
    if !guests_are_threads {
        return Err(Unreal::Machines);
    }
    let guest = |has: fn(&Guest) -> bool| scenario.guests.iter().any(has);
    let asked = [
        (twins, "it has a second host"),
        (manager, "its manager may have an uplink gather"),
        (uplink_apart, "it has a worker for the uplink"),
        (hold_timers, "holds end by interrupts of timers"),
        (dedicated, "its worker looks on without end"),
        (identifiers.is_some(), "it has few interrupt identifiers"),
        (placement.is_some(), "it has a placer"),
        (cache_blind, "its scheduler ignores caches"),
        (guests_poll, "its guests look at their rings all the time"),
        (!tx_calls_when_full, "its guests want calls for sent frames (`tx_calls_when_full`)"),
        (!timers_ahead, "its workers' timers are not set ahead (`timers_ahead`)"),
        (!awaits_answers, "its workers do not wait awake for answers (`awaits_answers`)"),
        (guest(|it| it.poll.is_some()), "its guests poll by timers of their own"),
        (guest(|it| it.lro), "its guests merge segments"),
        (scenario.dispatch.is_some(), "its queues move"),
        (!scenario.rivals.is_empty(), "it has rivals"),
    ];
    match asked.into_iter().find(|(asked, _)| *asked) {
        Some((_, what)) => Err(Unreal::Played(what)),
        None => Ok(()),
    }
}

fn only_cpu(who: &'static str, cpus: &[usize], usable: &[usize]) -> Result<usize, Unreal> {
    let [cpu] = *cpus else { return Err(Unreal::NotPinned(who)) };
    if usable.contains(&cpu) {
        return Ok(cpu);
    }
    let usable: Vec<_> = usable.iter().map(usize::to_string).collect();
    Err(Unreal::Cpu { cpu, usable: usable.join(", ") })
}

fn guest_settings(guest: &Guest) -> Result<(CallSettings, LatencyBudget, u16), Unreal> {
    let Guest { calls, rx_ring, tx_ring, .. } = guest;
    if rx_ring != tx_ring || !rx_ring.is_power_of_two() {
        let (rx, tx) = (*rx_ring, *tx_ring);
        return Err(Unreal::Rings { guest: guest.name.clone(), rx, tx });
    }
    let settings = CallSettings {
        moderation: Moderation(calls.kind),
        rx_usecs: calls.rx_ns.map(|ns| (ns / 1_000).try_into()).transpose()?,
        rx_frames: calls.rx_frames.map(|frames| u64::from(frames).try_into()).transpose()?,
        container_bytes: None,
    };
    Ok((settings, format!("{}ns", calls.latency_budget_ns).parse()?, *rx_ring))
}

fn traffic(load: &Load) -> Result<(rig::Load, u32), Unreal> {
    let cannot = |what: &str| Unreal::Traffic { load: load.name.clone(), what: what.to_owned() };
    match &load.kind {
        LoadKind::Datagrams { bytes, gap, on_off: None } => {
            let Distribution::Constant(bytes) = bytes else {
                return Err(cannot("frames of one length only can be sent"));
            };
            let rate = |gap_ns: u64| 1_000_000_000 / gap_ns.max(1);
            let rate = match gap {
                Distribution::Constant(gap_ns) => small::Rate::PerSecond(rate(*gap_ns)),
                Distribution::Exponential { mean } => small::Rate::Random(rate(*mean)),
                _ => return Err(cannot("only regular and Poisson arrivals can be had")),
            };
            let frame_bytes = frame_len(*bytes).ok_or_else(|| cannot(FRAMES))?;
            let options = small::Options { frame_bytes, rate, ..small::Options::default() };
            Ok((rig::Load::Small(options), frame_bytes as u32))
        }
        LoadKind::Datagrams { .. } => Err(cannot("frames come without pauses only")),
        LoadKind::Socket { .. } => Err(cannot("datagrams have a rate only")),
        LoadKind::Requests { outstanding: 1, request_bytes, answer_bytes, think, serve_ns: 0 } => {
            let Distribution::Constant(think_ns) = think else {
                return Err(cannot("clients think for one time only"));
            };
            if *think_ns > 0 {
                return Err(cannot("clients do not think here (`think = \"0ns\"`)"));
            }
            if *answer_bytes != small::FRAME_BYTES_MIN as u32 {
                let what = format!("answers have {} bytes here", small::FRAME_BYTES_MIN);
                return Err(cannot(&what));
            }
            let frame_bytes = frame_len((*request_bytes).into()).ok_or_else(|| cannot(FRAMES))?;
            let options = pingpong::Options { frame_bytes, ..pingpong::Options::default() };
            Ok((rig::Load::RequestResponse(options), frame_bytes as u32))
        }
        LoadKind::Requests { .. } => {
            Err(cannot("a flow of requests has one client, and answers take no time"))
        }
        LoadKind::Stream { segment_bytes, window } => {
            let mtu = segment_bytes.checked_sub(ETHERNET_HEADER);
            let mtu = mtu.filter(|mtu| *mtu <= 1_500).and_then(|mtu| u16::try_from(mtu).ok());
            let mtu = mtu.ok_or_else(|| cannot("segments have at most 1514 bytes"))?;
            let payload = segment_bytes.saturating_sub(TCP_HEADERS);
            let window_bytes = u64::from(payload) * u64::from(*window);
            let options = bulk::Options {
                window_bytes,
                mtu,
                ack_every: ACK_EVERY,
                ..bulk::Options::default()
            };
            Ok((rig::Load::Bulk(options), *segment_bytes))
        }
    }
}

const FRAMES: &str = "frames have 58 to 1514 bytes here";

fn frame_len(bytes: u64) -> Option<usize> {
    let bytes = usize::try_from(bytes).ok()?;
    (small::FRAME_BYTES_MIN..=small::FRAME_BYTES_MAX).contains(&bytes).then_some(bytes)
}
