//! The format of an experiment's TOML, with weir's variants in an experiment and its optional second host.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use weir_lab::realization::{Identifiers, Placement, Realization};
use weir_lab::scenario::{Guest, Scenario, Thread};
use weir_lab::topology::Topology;
use weir_policy::moderation::Kind;
use weir_policy::placement::Policy;

use super::error::Problem;
use super::profile::{BitRate, Rate, Time};

/// A whole file. `docs/guide/lab.md` explains the keys.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExperimentFile {
    pub title: String,
    pub paper: Option<String>,
    pub profile: String,
    #[serde(default = "one_seed")]
    pub seeds: Vec<u64>,
    /// Upper bound of each flow's random start.
    pub start: Option<Time>,
    pub warm_up: Time,
    pub run: Time,
    pub topology: TopologyFile,
    #[serde(default)]
    pub realization: RealizationFile,
    /// Execution model, as in `weir.toml`; `worker` has the details.
    #[serde(default)]
    pub execution: Execution,
    /// The worker that has all queues at first, counted from 0. By default the workers take turns.
    pub first_worker: Option<usize>,
    #[serde(default)]
    pub dispatch: DispatchFile,
    #[serde(rename = "worker")]
    pub workers: Vec<WorkerFile>,
    pub guests: GuestsFile,
    pub uplink: Option<UplinkFile>,
    #[serde(rename = "load")]
    pub loads: Vec<LoadFile>,
    #[serde(default, rename = "sweep")]
    pub sweeps: Vec<SweepFile>,
    pub plot: PlotFile,
    #[serde(default, rename = "claim")]
    pub claims: Vec<ClaimFile>,
    #[serde(default)]
    pub measured: Vec<MeasuredFile>,
}

impl ExperimentFile {
    /// Returns the names of a sweep's points; none if there is no such sweep.
    pub fn points_of(&self, sweep: &str) -> &[String] {
        self.sweeps.iter().find(|it| it.name == sweep).map_or(&[], |it| &it.points)
    }
}

pub fn one_seed() -> Vec<u64> {
    vec![1]
}

pub fn one() -> usize {
    1
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopologyFile {
    pub sockets: usize,
    pub llcs_per_socket: usize,
    pub cores_per_llc: usize,
    pub threads_per_core: usize,
}

/// Variants of weir and its surroundings.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RealizationFile {
    #[serde(default)]
    pub workers: Workers,
    /// The last worker serves only the uplink, and the others only guests.
    #[serde(default)]
    pub uplink_apart: bool,
    /// If 2, there is an equal second host at the other end of the wire.
    pub hosts: Option<usize>,
    /// True if woken threads go to any idle CPU.
    #[serde(default)]
    pub cache_blind: bool,
    /// True if vCPUs busy-poll their rings.
    #[serde(default)]
    pub guests_poll: bool,
    /// True if guests want calls for sent frames only while their rings are full.
    #[serde(default)]
    pub tx_calls_when_full: bool,
    /// True if guests are threads with weir's own driver.
    #[serde(default)]
    pub guests_are_threads: bool,
    /// True if workers set the timers of holds earlier.
    #[serde(default)]
    pub timers_ahead: bool,
    /// True if workers wait awake for the answer of another queue.
    #[serde(default)]
    pub awaits_answers: bool,
    /// True if the end of each hold is a timer's interrupt.
    #[serde(default)]
    pub hold_timers: bool,
    /// True if the manager may hold the calls of all guests together, at the uplink as well.
    #[serde(default)]
    pub manager: bool,
    /// Threads of an uplink's peer, each of which serves its streams and sockets in turn; each has its own if 0.
    #[serde(default)]
    pub client_threads: usize,
    pub identifiers: Option<IdentifiersFile>,
    pub placement: Option<PlacementFile>,
}

/// Mode of the workers, as `realization` in weir.toml.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Workers {
    #[default]
    Shared,
    Dedicated,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdentifiersFile {
    pub count: usize,
    /// CPU of the demultiplexer.
    pub cpu: usize,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlacementFile {
    pub policy: PlacementPolicy,
    pub look: Time,
    #[serde(default)]
    pub pin_vcpus: bool,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum PlacementPolicy {
    None,
    Static,
    Dynamic,
}

/// Threads for weir's work (Dong 2011 §4.3.1).
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Execution {
    /// The listed workers, each with many queues.
    #[default]
    Tasklet,
    /// A worker for each guest and each uplink, under the ordinary scheduler.
    Threads,
    /// As `Threads`, in the real-time class.
    RtThreads,
}

/// Aim of moves of queues between workers: see [`weir_policy::dispatch::Aim`].
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum DispatchFile {
    /// Queues do not move.
    #[default]
    None,
    Spread,
    Pack,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerFile {
    /// Number of equal workers. Each is then on one of `cpus`, in turn.
    #[serde(default = "one")]
    pub count: usize,
    #[serde(default)]
    pub cpus: Vec<usize>,
    /// Priority in the real-time class; `None` is the fair class.
    pub priority: Option<u8>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestsFile {
    pub count: usize,
    /// CPUs of the guests, in turn. Empty is any CPU.
    #[serde(default)]
    pub cpus: Vec<usize>,
    #[serde(deserialize_with = "kind")]
    pub moderation: Kind,
    pub latency_budget: Time,
    pub rx_usecs: Option<Time>,
    pub rx_frames: Option<u32>,
    pub rx_ring: Option<u16>,
    /// Interval of the guest's own poll timer. "0ns" is none.
    pub poll: Option<Time>,
    #[serde(default)]
    pub empty_polls: u32,
    /// True if the timer is periodic, false if each poll restarts it.
    #[serde(default)]
    pub poll_periodic: bool,
    /// Poll interval of a nested hypervisor around each guest. The default is none.
    pub hypervisor_poll: Option<Time>,
    pub tick: Option<Time>,
    /// True if the driver merges TCP segments (LRO).
    #[serde(default)]
    pub lro: bool,
}

pub fn kind<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Kind, D::Error> {
    String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UplinkFile {
    /// Number of equal guests.
    #[serde(default = "one")]
    pub count: usize,
    pub rate: BitRate,
    pub delay: Time,
    #[serde(default = "queue")]
    pub queue: usize,
    #[serde(default = "ring")]
    pub ring: usize,
    /// Time for which frames are gathered before an interrupt.
    pub hold: Time,
}

pub fn queue() -> usize {
    1_000
}

pub fn ring() -> usize {
    512
}

/// One or more flows per guest.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadFile {
    pub name: String,
    pub from: End,
    pub to: End,
    #[serde(default = "one")]
    pub flows: usize,
    /// Only these guests have the load, counted from 1.
    pub only: Option<Vec<usize>>,
    pub traffic: TrafficFile,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    Uplink,
    Guests,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum TrafficFile {
    Datagrams {
        bytes: u32,
        arrivals: Arrivals,
    },
    Requests {
        clients: u32,
        request: u32,
        answer: u32,
        think: Time,
        /// Upper bound of a random think time, with `think` as its lower bound.
        think_max: Option<Time>,
        serve: Time,
    },
    Stream {
        segment: u32,
        window: u32,
    },
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arrivals {
    Regular(Rate),
    Poisson(Rate),
    /// As fast as a socket's send buffer of this number of bytes permits.
    Buffer(u32),
}

/// Keys that take several values in turn, all at the same time.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SweepFile {
    pub name: String,
    /// Names of the values.
    pub points: Vec<String>,
    pub sweep: BTreeMap<String, Vec<toml::Value>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlotFile {
    pub x: String,
    pub series: Option<String>,
    pub y: Vec<Figure>,
}

/// A figure of a run.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    CpuPercent,
    WorkerCpuPercent,
    GuestCpuPercent,
    MbitPerS,
    PacketsPerS,
    CpuUsPerPacket,
    CallsPerS,
    InterruptsPerS,
    LatencyMeanUs,
    LatencyMedianUs,
    LatencyP99Us,
    JitterUs,
    SignalUs,
    RingWaitUs,
    IngressUs,
}

/// A point of the sweeps: the value of each sweep.
pub type At = BTreeMap<String, String>;

/// A paper's claim, for comparison with the results.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClaimFile {
    /// The figure or table.
    pub figure: String,
    /// The place in the paper.
    pub source: String,
    pub says: String,
    pub used: Use,
    pub y: Figure,
    pub is: Statement,
    /// The reason for a different result here.
    pub reason: Option<String>,
}

/// A measurement on an actual host at a point, for comparison with the results.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredFile {
    pub at: At,
    pub y: Figure,
    pub mean: f64,
    /// The least of several measurements. By default it is the mean.
    pub min: Option<f64>,
    /// Largest of several measurements.
    pub max: Option<f64>,
    /// The place and the method of the measurement.
    pub source: String,
}

/// The use of a claim: fitted to it or not.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Use {
    Fit,
    Predict,
}

impl Use {
    /// Returns the word in files and output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fit => "fit",
            Self::Predict => "predict",
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Statement {
    /// The value at a point.
    Value { at: At, value: f64 },
    /// The change from one point to another, in the unit of `y`, in percent, or its sign only.
    Change {
        from: At,
        to: At,
        by: Option<f64>,
        percent: Option<f64>,
        sign: Option<Sign>,
        /// Largest change that agrees with the sign (percent), if the paper says "slightly".
        percent_max: Option<f64>,
    },
    /// The ratio of the second point to the first.
    Ratio { from: At, to: At, value: f64 },
    /// The change from one point to another exceeds another change in the same direction.
    More { from: At, to: At, than: Span },
    /// Points of the plot's x in the order of y, the least first. Points that are not named follow.
    Least { at: At, points: Vec<String> },
    /// A point of x loses at most `percent` to the best of the others in hindsight: the one with the least y among
    /// those with nearly the most packets a second.
    Within { at: At, point: String, percent: f64 },
}

/// A pair of points.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Span {
    pub from: At,
    pub to: At,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Sign {
    Up,
    Down,
}

/// Reads `[realization]`.
pub fn realization(file: &RealizationFile) -> Result<Realization, Problem> {
    let hosts = file.hosts.unwrap_or(1);
    if !(1..=2).contains(&hosts) {
        let message = format!("there are {hosts} hosts, expected 1 or 2");
        return Err(Problem::new("realization.hosts", message));
    }
    let policy = |it: &PlacementFile| match it.policy {
        PlacementPolicy::None => None,
        PlacementPolicy::Static => Some(Policy::Static),
        PlacementPolicy::Dynamic => Some(Policy::Dynamic),
    };
    Ok(Realization {
        dedicated: file.workers == Workers::Dedicated,
        uplink_apart: file.uplink_apart,
        identifiers: file
            .identifiers
            .as_ref()
            .map(|it| Identifiers { count: it.count, cpu: it.cpu }),
        placement: file.placement.as_ref().and_then(|it| {
            let (look_ns, pin_vcpus) = (it.look.0, it.pin_vcpus);
            policy(it).map(|policy| Placement { policy, look_ns, pin_vcpus })
        }),
        cache_blind: file.cache_blind,
        guests_poll: file.guests_poll,
        tx_calls_when_full: file.tx_calls_when_full,
        guests_are_threads: file.guests_are_threads,
        timers_ahead: file.timers_ahead,
        awaits_answers: file.awaits_answers,
        hold_timers: file.hold_timers,
        manager: file.manager,
        client_threads: file.client_threads,
        twins: hosts == 2,
    })
}

/// Adds an equal second host at the other end of the uplink's wire.
pub fn doubled(one: Scenario) -> Scenario {
    let each = one.topology.cpus().unwrap_or(0);
    let on = |cpus: &[usize], host: usize| match cpus.is_empty() {
        true => (host * each..(host + 1) * each).collect(),
        false => cpus.iter().map(|cpu| cpu + host * each).collect(),
    };
    let worker = |host, it: &Thread| Thread { cpus: on(&it.cpus, host), ..it.clone() };
    let guest = |host, it: &Guest| Guest { cpus: on(&it.cpus, host), ..it.clone() };
    Scenario {
        topology: Topology { sockets: 2 * one.topology.sockets, ..one.topology },
        workers: (0..2)
            .flat_map(|host| one.workers.iter().map(move |it| worker(host, it)))
            .collect(),
        guests: (0..2).flat_map(|host| one.guests.iter().map(move |it| guest(host, it))).collect(),
        uplinks: (0..2).flat_map(|_| one.uplinks.iter().cloned()).collect(),
        ..one
    }
}
