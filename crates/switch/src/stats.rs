//! The data model of `weir stats`.
//!
//! Directions are the port's own, as virtio names a guest's queues: a port receives **rx** from the switch and
//! sends **tx** into it. For an uplink, rx leaves for the host and tx comes from it.
//!
//! Counters start at zero when the port is added (a filter rule's, when the rules are set) and only grow.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_config::{
    ContainerBytes, MacAddress, Moderation, PortName, RxFrames, RxUsecs, VifConfig, VlanMode,
};
pub use weir_engine::stats::TIME_BOUNDS_NS;
use weir_engine::stats::TimesSummary;

mod guard;
mod limits;
mod loops;
mod placement;
mod queue_pairs;
mod rules;
mod silent;
mod stages;

pub use guard::{GuardExplanation, LeaseExplanation};
pub use limits::{Limit, Limits, descriptors, limits};
pub use loops::{BlockStats, LoopStats};
pub use placement::PlacementStats;
pub use queue_pairs::QueuePairNumbers;
pub use rules::RuleStats;
pub use silent::{Silence, SilentRing};
pub use stages::StageStats;

/// The whole switch at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SwitchStats {
    /// weir's version.
    pub version: String,
    /// Seconds since the switch started.
    pub uptime_s: f64,
    /// Whether a keeper holds what outlives weir.
    #[serde(default)]
    pub keeper: KeeperState,
    /// The file that it was started with, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub file: Option<PathBuf>,
    /// What runs otherwise than that file says, as `vif.web0.mac`: `weir save` writes it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unsaved: Vec<String>,
    /// One entry for each worker thread.
    pub workers: Vec<WorkerStats>,
    /// How often a queue pair was given to another worker.
    #[serde(default)]
    pub queues_moved: u64,
    /// Threads that panicked, which is weir's mistake.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub panicked: Vec<PanickedThread>,
    /// Threads that stand still, as the watchdog has found them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub still: Vec<StillThread>,
    /// Who has sent descriptors that do not close.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unclosed: Vec<Unclosed>,
    /// What placement did.
    #[serde(default)]
    pub placement: PlacementStats,
    /// What the look for loops did.
    #[serde(default)]
    pub loops: LoopStats,
    /// One entry for each worker that served bursts while stages were measured; none without measurement.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<StageStats>,
    /// How much is used of what the whole switch is bounded in.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, Limit>)]
    pub limits: Limits,
    /// One entry for each port, VIFs and uplinks.
    pub ports: Vec<PortStats>,
}

/// What there is of a keeper.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum KeeperState {
    /// None is configured: a weir that is killed takes its guests' sessions with it.
    #[default]
    None,
    /// It is there.
    There,
    /// One is configured, and does not answer.
    Gone,
}

/// A thread that panicked, other than a worker.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PanickedThread {
    /// Its name, as the log has it.
    pub name: String,
    /// How often it did. It begins anew each time, up to 16 times.
    pub panics: u32,
    /// It does nothing any more.
    pub ended: bool,
}

/// A thread that has something to do and has had no turn for some seconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StillThread {
    /// Its name, as the log has it.
    pub name: String,
    /// What it does.
    pub does: String,
    /// For which port.
    pub port: Option<PortName>,
    /// Or for which other party: an agent, a client, an interface's front end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub party: Option<String>,
    /// For how long (s).
    pub seconds: f64,
    /// Where it is, as the kernel says.
    pub kernel: String,
}

/// A party that has sent a descriptor which no signal closes, as of a file whose server does not answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Unclosed {
    /// An interface, an agent's socket, a user of the control socket.
    pub party: String,
    /// How many of its descriptors wait to be closed, that one included.
    pub descriptors: u64,
    /// For how long that one has (s).
    pub seconds: f64,
}

/// One worker thread.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WorkerStats {
    /// Its number, from 0.
    pub id: u32,
    /// How often it woke from sleep.
    pub wakeups: u64,
    /// And what for, by name.
    #[serde(default)]
    pub wakeups_for: BTreeMap<String, u64>,
    /// How many bursts of frames it forwarded.
    pub bursts: u64,
    /// Processor time it used, in nanoseconds.
    pub cpu_ns: u64,
    /// The most that its timers have lately been late, and a quarter, in ns: holds end so much earlier.
    pub timer_lead_ns: u64,
    /// How often a timer was later than that: a hold may have ended too late.
    pub late_timers: u64,
}

/// What kind of port it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PortKind {
    /// A guest's interface.
    #[default]
    Vif,
    /// The way to the host or the outside.
    Uplink,
}

/// How far a port has come.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum PortState {
    /// Nobody is connected.
    #[default]
    Waiting,
    /// A front end is connected, the guest's driver has not started its rings.
    Connected,
    /// Packets could flow, and the front end has stopped the rings without its device being reset: its VM is paused, or
    /// its link is taken down.
    Halted,
    /// Packets can flow.
    Running,
    /// The other side did something weir does not put up with; see the reason.
    Stopped,
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Waiting => "waiting",
            Self::Connected => "connected",
            Self::Halted => "halted",
            Self::Running => "running",
            Self::Stopped => "stopped",
        })
    }
}

/// One port.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PortStats {
    /// Its name.
    pub name: PortName,
    /// VIF or uplink.
    pub kind: PortKind,
    /// How far it has come.
    pub state: PortState,
    /// Why it stopped, if it did.
    pub stopped_reason: Option<String>,
    /// It is blocked: nothing goes through it, whatever its state is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked: Option<BlockStats>,
    /// Connections of a front end.
    pub sessions: SessionStats,
    /// The configured MAC address.
    pub mac: Option<MacAddress>,
    /// VLANs of the port.
    pub vlan: VlanMode,
    /// How many queue pairs it has; none at an uplink.
    #[serde(default)]
    pub queue_pairs: Option<QueuePairNumbers>,
    /// One entry for each queue pair.
    pub queues: Vec<QueuePairStats>,
    /// The sum over the queues, RX.
    pub rx: QueueStats,
    /// The sum over the queues, TX.
    pub tx: QueueStats,
    /// Frames that waited in this port's memory for a receiver without buffers.
    pub parked: u64,
    /// Packets received that were merged from TCP segments (generic receive offload); `rx` counts the segments.
    pub gro: u64,
    /// Entries of the port's indirection table that moved to another receive queue.
    #[serde(default)]
    pub rss_moved: u64,
    /// Worker time that what this port sent has taken, in nanoseconds.
    #[serde(default)]
    pub worker_ns: u64,
    /// Calls that took more than is usual of whoever called.
    #[serde(default)]
    pub dear_calls: u64,
    /// What they took beyond, in nanoseconds; in `worker_ns`, too.
    #[serde(default)]
    pub dear_call_ns: u64,
    /// How often a queue with frames to send had to wait for the port's rate.
    #[serde(default)]
    pub rate_waits: u64,
    /// How often kicks of one of its rings were ignored for a millisecond, since they brought nothing.
    #[serde(default)]
    pub kick_pauses: u64,
    /// Windows in which more of the port's turns were late than may be.
    #[serde(default)]
    pub window_violations: u64,
    /// Frames that were dropped, by the reason's name; reasons that never occurred may be absent.
    pub drops: BTreeMap<String, u64>,
    /// What an overlay has answered in place of others, and claims of addresses that it passed over.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub answers: BTreeMap<String, u64>,
    /// How long calls to the guest were held back.
    pub hold_ns: Times,
    /// From the earliest moment at which a frame can have been in its sender's ring to the guest's notification, without
    /// frames that waited for buffers: what the budget bounds.
    #[serde(default)]
    pub latency_ns: Times,
    /// What the policy does now, on the receive queue that it holds longest; none at an uplink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<PortDecision>,
    /// The longest time that a frame may be held in all, in nanoseconds.
    pub latency_budget_ns: u64,
    /// How often the guest was notified later than that, by reason; absent reasons never occurred.
    #[serde(default)]
    pub budget_breaches: BTreeMap<String, u64>,
    /// When the guest is called; none at an uplink.
    #[serde(default)]
    pub calls: Option<CallSettings>,
    /// Its filter rules, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filter: Vec<RuleStats>,
    /// Rings in service that serve nobody.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub silent: Vec<SilentRing>,
    /// From which addresses its guest may send; none where nobody asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guard: Option<GuardExplanation>,
    /// How much is used of what it is bounded in.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, Limit>)]
    pub limits: Limits,
}

/// How long a policy would hold a frame that came now, and why.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PortDecision {
    /// So long, in nanoseconds.
    pub hold_ns: u64,
    /// Why.
    pub reason: String,
}

/// When a guest is called, as it is configured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CallSettings {
    /// The policy.
    pub moderation: Moderation,
    /// How long it holds a call, where that was set.
    pub rx_usecs: Option<RxUsecs>,
    /// With how many frames it holds it no longer, where that was set.
    pub rx_frames: Option<RxFrames>,
    /// With how many bytes of frames a container is full, where that was set.
    pub container_bytes: Option<ContainerBytes>,
}

impl CallSettings {
    /// Those of an interface.
    pub fn of(vif: &VifConfig) -> Self {
        let VifConfig { moderation, rx_usecs, rx_frames, container_bytes, .. } = *vif;
        Self { moderation, rx_usecs, rx_frames, container_bytes }
    }
}

/// Connections of vhost-user front ends to one port.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionStats {
    /// Begun.
    pub opened: u64,
    /// Ended by the front end, in order.
    pub closed: u64,
    /// Ended by weir for an error.
    pub failed: u64,
    /// The last such error.
    pub last_error: Option<String>,
    /// Came while there was one, and were turned away.
    #[serde(default)]
    pub turned_away: u64,
    /// How often one had to pause: it took too much time, or came too often.
    #[serde(default)]
    pub throttled: u64,
    /// Messages about the port that were not logged, because they had been too many.
    #[serde(default)]
    pub log_lines_unsaid: u64,
    /// Bytes of guest memory that are mapped, with what is left of older memory tables.
    #[serde(default)]
    pub memory_mapped_bytes: u64,
    /// Bytes that the front end may share (`memory_max`); 0 for who shares none.
    #[serde(default)]
    pub memory_max_bytes: u64,
}

/// One queue pair.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueuePairStats {
    /// Into the port.
    pub rx: QueueStats,
    /// Out of the port.
    pub tx: QueueStats,
}

/// One virtqueue, or one direction of an uplink's queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueueStats {
    /// Frames moved (a GSO frame counts once).
    pub frames: u64,
    /// Their bytes, without virtio headers.
    pub bytes: u64,
    /// Interrupts sent to the guest.
    pub calls: u64,
    /// Interrupts that the guest had asked not to get: it was looking anyway.
    pub calls_suppressed: u64,
    /// Notifications received from the guest.
    pub kicks: u64,
}

impl std::ops::AddAssign for QueueStats {
    fn add_assign(&mut self, other: Self) {
        self.frames += other.frames;
        self.bytes += other.bytes;
        self.calls += other.calls;
        self.calls_suppressed += other.calls_suppressed;
        self.kicks += other.kicks;
    }
}

/// A distribution of times in nanoseconds; all zero where there was none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Times {
    /// How many.
    #[serde(default)]
    pub count: u64,
    /// All of them together.
    #[serde(default)]
    pub sum: u64,
    /// The median.
    pub p50: u64,
    /// 99 of 100 are at most this.
    pub p99: u64,
    /// The longest.
    pub max: u64,
    /// How many were at most 5, 10, 25, 50, 100, 250 and 500 us, 1, 5 and 50 ms ([`TIME_BOUNDS_NS`]).
    #[serde(default)]
    pub at_most: [u64; TIME_BOUNDS_NS.len()],
}

impl From<TimesSummary> for Times {
    fn from(times: TimesSummary) -> Self {
        let TimesSummary { count, sum, p50, p99, max, at_most } = times;
        Self { count, sum, p50, p99, max, at_most }
    }
}

impl PortStats {
    /// A port that has done nothing yet.
    pub fn new(name: PortName, kind: PortKind) -> Self {
        Self {
            name,
            kind,
            state: PortState::default(),
            stopped_reason: None,
            blocked: None,
            sessions: SessionStats::default(),
            mac: None,
            vlan: VlanMode::default(),
            queue_pairs: None,
            queues: Vec::new(),
            rx: QueueStats::default(),
            tx: QueueStats::default(),
            parked: 0,
            gro: 0,
            rss_moved: 0,
            worker_ns: 0,
            dear_calls: 0,
            dear_call_ns: 0,
            rate_waits: 0,
            kick_pauses: 0,
            window_violations: 0,
            drops: BTreeMap::new(),
            answers: BTreeMap::new(),
            hold_ns: Times::default(),
            latency_ns: Times::default(),
            decision: None,
            latency_budget_ns: 0,
            budget_breaches: BTreeMap::new(),
            calls: None,
            filter: Vec::new(),
            silent: Vec::new(),
            guard: None,
            limits: Limits::new(),
        }
    }

    /// Sets the queues and the sums over them.
    pub fn set_queues(&mut self, queues: Vec<QueuePairStats>) {
        self.rx = QueueStats::default();
        self.tx = QueueStats::default();
        for pair in &queues {
            self.rx += pair.rx;
            self.tx += pair.tx;
        }
        self.queues = queues;
    }

    /// Frames dropped for any reason.
    pub fn dropped(&self) -> u64 {
        self.drops.values().sum()
    }
}
