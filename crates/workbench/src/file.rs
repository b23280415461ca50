//! An experiment's TOML, as it is written.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use weir_policy::moderation::Kind;

use super::units::{BitRate, Rate, Time};

/// All of it. `docs/guide/lab.md` explains the keys.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExperimentFile {
    pub title: String,
    pub paper: Option<String>,
    pub profile: String,
    #[serde(default = "one_seed")]
    pub seeds: Vec<u64>,
    /// Each flow begins at a random time before this.
    pub start: Option<Time>,
    pub warm_up: Time,
    pub run: Time,
    pub topology: TopologyFile,
    #[serde(default)]
    pub realization: RealizationFile,
    /// As `weir.toml`'s; `worker` says more of each.
    #[serde(default)]
    pub execution: Execution,
    /// The worker that has all queues at first, from 0; they are the workers' in turn without it.
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
    /// What the points of a sweep are called; none, if there is no such sweep.
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

/// How weir is realized, and what else there is around it.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RealizationFile {
    #[serde(default)]
    pub workers: Workers,
    /// The last worker has the uplink, and the others the guests.
    #[serde(default)]
    pub uplink_apart: bool,
    /// 2: another host like this at the other end of the wire.
    pub hosts: Option<usize>,
    /// Who wakes up goes to any idle CPU.
    #[serde(default)]
    pub cache_blind: bool,
    /// vCPUs look at their rings all the time.
    #[serde(default)]
    pub guests_poll: bool,
    /// Guests want calls for sent frames only while their rings are full.
    #[serde(default)]
    pub tx_calls_when_full: bool,
    /// Guests are threads of weir's own driver.
    #[serde(default)]
    pub guests_are_threads: bool,
    /// Workers set the timers of holds ahead.
    #[serde(default)]
    pub timers_ahead: bool,
    /// The manager may have all guests held together, at the uplink too.
    #[serde(default)]
    pub manager: bool,
    pub identifiers: Option<IdentifiersFile>,
    pub placement: Option<PlacementFile>,
}

/// As `realization` in weir.toml.
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
    /// Where they are demultiplexed.
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

/// Which threads do weir's work (Dong 2011 §4.3.1).
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Execution {
    /// The workers that are written, each of which serves many queues.
    #[default]
    Tasklet,
    /// A worker for each guest and each uplink, under the ordinary scheduler.
    Threads,
    /// The same, of the real-time class.
    RtThreads,
}

/// What moving queues between workers is for: see [`weir_policy::dispatch::Aim`].
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum DispatchFile {
    /// They do not move.
    #[default]
    None,
    Spread,
    Pack,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerFile {
    /// So many like this; each on one of `cpus` then, in turn.
    #[serde(default = "one")]
    pub count: usize,
    #[serde(default)]
    pub cpus: Vec<usize>,
    /// Of the real-time class; of the fair class without one.
    pub priority: Option<u8>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestsFile {
    pub count: usize,
    /// Each guest on one of these, in turn; anywhere, if empty.
    #[serde(default)]
    pub cpus: Vec<usize>,
    #[serde(deserialize_with = "kind")]
    pub moderation: Kind,
    pub latency_budget: Time,
    pub rx_usecs: Option<Time>,
    pub rx_frames: Option<u32>,
    pub rx_ring: Option<u16>,
    /// Between two polls by the guest's own timer; "0ns" for none.
    pub poll: Option<Time>,
    #[serde(default)]
    pub empty_polls: u32,
    /// Whether that timer goes on at its own pace; it is set anew after each poll otherwise.
    #[serde(default)]
    pub poll_periodic: bool,
    /// Between two polls of a hypervisor around each guest; none without it.
    pub hypervisor_poll: Option<Time>,
    /// Whether the driver merges TCP segments (LRO).
    #[serde(default)]
    pub lro: bool,
}

pub fn kind<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Kind, D::Error> {
    String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UplinkFile {
    /// So many like this; guests have them in turn.
    #[serde(default = "one")]
    pub count: usize,
    pub rate: BitRate,
    pub delay: Time,
    #[serde(default = "queue")]
    pub queue: usize,
    #[serde(default = "ring")]
    pub ring: usize,
    /// How long frames gather before an interrupt.
    pub hold: Time,
}

pub fn queue() -> usize {
    1_000
}

pub fn ring() -> usize {
    512
}

/// One flow for each guest, or several.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadFile {
    pub name: String,
    pub from: End,
    pub to: End,
    #[serde(default = "one")]
    pub flows: usize,
    /// Only these guests, counted from 1.
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
        /// Thinks for a time between the two, by chance.
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
}

/// Keys that take one value after another, together.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SweepFile {
    pub name: String,
    /// What the values are called.
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

/// What is read off a run.
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
}

/// A point of the sweeps: what each is at.
pub type At = BTreeMap<String, String>;

/// What a paper says, to be held against what comes out here.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClaimFile {
    /// Which figure or table.
    pub figure: String,
    /// Where in the paper the number or statement stands.
    pub source: String,
    pub says: String,
    pub used: Use,
    pub y: Figure,
    pub is: Statement,
    /// Why it comes out otherwise here, where it does.
    pub reason: Option<String>,
}

/// What was measured on a real host at a point, to stand beside what comes out here.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredFile {
    pub at: At,
    pub y: Figure,
    pub mean: f64,
    /// Of several measurements, the least; the mean without it.
    pub min: Option<f64>,
    /// And the most.
    pub max: Option<f64>,
    /// Where and how it was measured.
    pub source: String,
}

/// Whether a profile was fitted to a claim.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Use {
    Fit,
    Predict,
}

impl Use {
    /// The word in files and output.
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
    /// The change from a point to another: in the unit of `y`, in percent, or only its sign.
    Change {
        from: At,
        to: At,
        by: Option<f64>,
        percent: Option<f64>,
        sign: Option<Sign>,
        /// What a sign alone may come to in percent, where the paper says "slightly".
        percent_max: Option<f64>,
    },
    /// The second over the first.
    Ratio { from: At, to: At, value: f64 },
    /// The change from a point to another is larger than another change, and the same way.
    More { from: At, to: At, than: Span },
    /// Points of the plot's x, from the least y on; those not named come after.
    Least { at: At, points: Vec<String> },
    /// A point of x loses at most so much to the best of the others, chosen with hindsight: the least y among those
    /// with nearly the most packets a second.
    Within { at: At, point: String, percent: f64 },
}

/// From a point to another.
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
