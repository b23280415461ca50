//! The data model of `weir stats`.
//!
//! Directions are the port's own, as virtio names a guest's queues: a port receives **rx** from the switch and sends
//! **tx** into it. On an uplink, rx goes out to the host and tx comes in from the host.
//!
//! Counters start at zero when the port is added (those of a filter rule, when the rules are set). They only grow.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_config::{
    BondMode, ContainerBytes, MacAddress, Moderation, PortName, RxFrames, RxUsecs, VifConfig,
    VlanMode,
};
use weir_engine::guest::State;
pub use weir_engine::stats::TIME_BOUNDS_NS;
use weir_engine::stats::{PortCounters, TimesSummary};

mod fabric;
mod guard;
mod limits;
mod queues;
mod workers;

pub use fabric::{BlockStats, LoopStats, MemberStats, MulticastStats};
pub use guard::{
    ConnectionPage, ConnectionStats, GroupStats, GuardExplanation, LeaseExplanation, RuleStats,
};
pub use limits::{Limit, Limits, descriptors, limits};
pub use queues::{QueuePairNumbers, RingSizes, Silence, SilentRing};
pub use workers::{PlacementStats, StageStats};

/// The number of ports that [`SwitchStats::greatest`] names.
const GREATEST: usize = 3;

/// The whole switch at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SwitchStats {
    /// weir's version.
    pub version: String,
    /// The host's name.
    #[serde(default)]
    pub host: String,
    /// The time at which the switch started, in milliseconds of Unix time. It distinguishes the
    /// counters of one start from those of another.
    #[serde(default)]
    pub started_unix_ms: u64,
    /// Seconds since the switch started.
    pub uptime_s: f64,
    /// In a [difference](Self::since): the seconds that its counters cover.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over_s: Option<f64>,
    /// The state of the keeper, which holds sockets and sessions across a restart of weir.
    #[serde(default)]
    pub keeper: KeeperState,
    /// The configuration file with which weir was started, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub file: Option<PathBuf>,
    /// Running settings that differ from that file, as `vif.web0.mac`; `weir save` writes them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unsaved: Vec<String>,
    /// One entry for each worker thread.
    pub workers: Vec<WorkerStats>,
    /// Moves of a queue pair to another worker.
    #[serde(default)]
    pub queues_moved: u64,
    /// Threads that panicked because of a bug in weir.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub panicked: Vec<PanickedThread>,
    /// Threads that the watchdog has found stalled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub still: Vec<StillThread>,
    /// Parties that have sent descriptors whose close does not return.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unclosed: Vec<Unclosed>,
    /// Programs for ports (`on_up`, `on_down`) that failed when they ran last: the reason, by port.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = BTreeMap<String, String>)]
    pub programs_failed: BTreeMap<PortName, String>,
    /// Counters of placement.
    #[serde(default)]
    pub placement: PlacementStats,
    /// Counters of loop detection.
    #[serde(default)]
    pub loops: LoopStats,
    /// One entry for each worker that served bursts while stages were measured; empty without a measurement.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<StageStats>,
    /// Usage of the limits of the whole switch.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, Limit>)]
    pub limits: Limits,
    /// Security groups, in the order of the file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupStats>,
    /// Multicast snooping: two entries for each VLAN that has it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub multicast: Vec<MulticastStats>,
    /// Interfaces on demand, by pattern, as at the last look into the directories.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub on_demand: Vec<OnDemandStats>,
    /// One entry for each port: VIFs and uplinks.
    pub ports: Vec<PortStats>,
}

/// Interfaces on demand of one pattern, each of which comes with a monitor's socket.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OnDemandStats {
    /// The pattern.
    pub pattern: String,
    /// Its interfaces, and the most that it may have.
    pub interfaces: Limit,
    /// Some of the sockets and other files that have no interface, each with the reason.
    pub refused: Vec<String>,
    /// The number of all of them.
    pub refused_total: u64,
    /// The reason why the directory cannot be looked at, or is not watched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The state of the keeper.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum KeeperState {
    /// No keeper is configured: if weir is killed, its guests' sessions end.
    #[default]
    None,
    /// The keeper is connected.
    There,
    /// A keeper is configured but does not answer.
    Gone,
}

/// A thread that panicked, other than a worker.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PanickedThread {
    /// The thread's name, as in the log.
    pub name: String,
    /// Panics of the thread. It restarts after each one, up to 16 times.
    pub panics: u32,
    /// The thread has ended for good.
    pub ended: bool,
}

/// A thread that has had work for some seconds without making progress.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StillThread {
    /// The thread's name, as in the log.
    pub name: String,
    /// The thread's task.
    pub does: String,
    /// The port for which it works.
    pub port: Option<PortName>,
    /// Another party for which it works: an agent, a client, an interface's front end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub party: Option<String>,
    /// Duration of the stall (s).
    pub seconds: f64,
    /// The thread's state, call and position in the kernel, as the kernel reports them.
    pub kernel: String,
}

/// A party that has sent a descriptor whose close blocks and ignores signals, such as a file on a server that does
/// not answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Unclosed {
    /// The party: an interface, an agent's socket or a user of the control socket.
    pub party: String,
    /// The party's descriptors that wait to be closed, including the blocked one.
    pub descriptors: u64,
    /// Duration of the blocked close (s).
    pub seconds: f64,
}

/// One worker thread.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WorkerStats {
    /// The worker's number, from 0.
    pub id: u32,
    /// Wake-ups from sleep.
    pub wakeups: u64,
    /// Wake-ups by cause.
    #[serde(default)]
    pub wakeups_for: BTreeMap<String, u64>,
    /// Bursts of frames that the worker forwarded.
    pub bursts: u64,
    /// Processor time that the worker used, in nanoseconds.
    pub cpu_ns: u64,
    /// The greatest recent lateness of the worker's timers plus a quarter, in ns. Holds end earlier by this time.
    pub timer_lead_ns: u64,
    /// Timers that were later than `timer_lead_ns`: a hold may have ended too late.
    pub late_timers: u64,
}

/// The kind of a port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PortKind {
    /// A guest's interface.
    #[default]
    Vif,
    /// A port to the host or the outside.
    Uplink,
    /// weir itself in a network.
    Own,
}

/// The state of a port.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum PortState {
    /// No front end is connected.
    #[default]
    Waiting,
    /// A front end is connected, but the guest's driver has not started its rings.
    Connected,
    /// Packets were able to flow, and then the front end stopped the rings without a reset of the device: its VM is
    /// paused, or its link is down.
    Halted,
    /// Packets can flow.
    Running,
    /// weir stopped serving the other side because of a violation; see the reason.
    Stopped,
}

impl From<State> for PortState {
    fn from(state: State) -> Self {
        match state {
            State::Waiting => Self::Waiting,
            State::Connected => Self::Connected,
            State::Halted => Self::Halted,
            State::Running => Self::Running,
            State::Stopped => Self::Stopped,
        }
    }
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

/// Declares [`PortStats`], where each counter of [`PortCounters`] has its sentence and stands once.
macro_rules! port_stats {
    (
        counters { $($(#[$about:meta])* $counter:ident,)* }
        others { $($(#[$meta:meta])* pub $field:ident: $type:ty,)* }
    ) => {
        /// One port.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
        pub struct PortStats {
            /// The port's name.
            pub name: PortName,
            /// The kind: VIF or uplink.
            pub kind: PortKind,
            $($(#[$meta])* pub $field: $type,)*
            $($(#[$about])* #[serde(default)] pub $counter: u64,)*
        }

        impl PortStats {
            /// A port with all counters at zero.
            pub fn new(name: PortName, kind: PortKind) -> Self {
                Self { name, kind, $($field: Default::default(),)* $($counter: 0,)* }
            }

            /// Takes the values of the port's counters.
            pub(crate) fn count(&mut self, counters: &PortCounters) {
                $(self.$counter = counters.$counter.get();)*
            }

            fn counters_since(&mut self, before: &Self) {
                $(less(&mut self.$counter, before.$counter);)*
            }
        }
    };
}

port_stats! {
    counters {
        /// Frames that this port sent and that waited in its memory for a receiver without buffers.
        parked,
        /// Received packets that were merged from TCP segments (generic receive offload); `rx` counts the segments.
        gro,
        /// Worker time spent on the frames that this port sent, in nanoseconds.
        worker_ns,
        /// Calls of this port's guest that took longer than calls usually do.
        dear_calls,
        /// Extra time that those calls took, in nanoseconds; included in `worker_ns`.
        dear_call_ns,
        /// Times that a queue with frames to send had to wait for the port's rate limit.
        rate_waits,
        /// Times that the kicks of a ring were ignored for a millisecond because they had brought no work.
        kick_pauses,
        /// Late turns of the port beyond the number that its window allows.
        window_violations,
    }
    others {
        /// The port's state.
        pub state: PortState,
        /// The reason why the port stopped, if it did.
        pub stopped_reason: Option<String>,
        /// Set if the port is blocked: nothing passes, whatever its state is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub blocked: Option<BlockStats>,
        /// Connections of front ends.
        pub sessions: SessionStats,
        /// The configured MAC address.
        pub mac: Option<MacAddress>,
        /// The port's VLANs.
        pub vlan: VlanMode,
        /// Numbers of queue pairs; none on an uplink.
        pub queue_pairs: Option<QueuePairNumbers>,
        /// One entry for each queue pair.
        pub queues: Vec<QueuePairStats>,
        /// The sum of RX over the queues.
        pub rx: QueueStats,
        /// The sum of TX over the queues.
        pub tx: QueueStats,
        /// Seconds for which no request for counters has seen new drops, late calls or waits for rates.
        #[serde(default)]
        pub quiet_s: u64,
        /// Entries of the port's indirection table that moved to another receive queue.
        #[serde(default)]
        pub rss_moved: u64,
        /// Dropped frames by the reason's name; reasons that never occurred can be absent.
        pub drops: BTreeMap<String, u64>,
        /// Requests that the overlay answered on behalf of other stations, and address claims that it ignored.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        pub answers: BTreeMap<String, u64>,
        /// Hold times of calls to the guest.
        pub hold_ns: Times,
        /// The time that the budget bounds: from the earliest moment at which a frame can have been in its sender's ring
        /// until the guest is notified. Frames that waited for buffers are excluded.
        #[serde(default)]
        pub latency_ns: Times,
        /// The mean difference between `latency_ns` of two notifications in a row (RFC 3550, smoothed over 16), on the
        /// receive queue with the largest.
        #[serde(default)]
        pub jitter_ns: u64,
        /// The policy's present decision, for the receive queue with the longest hold; none on an uplink.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub decision: Option<PortDecision>,
        /// The longest total time for which a frame can be held, in nanoseconds.
        pub latency_budget_ns: u64,
        /// Notifications of the guest that came later than the budget allows, by reason; absent reasons never occurred.
        #[serde(default)]
        pub budget_breaches: BTreeMap<String, u64>,
        /// Settings of calls to the guest; none on an uplink.
        pub calls: Option<CallSettings>,
        /// The port's filter rules, in their order.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub filter: Vec<RuleStats>,
        /// Rings in service that carry no frames.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub silent: Vec<SilentRing>,
        /// The source guard of the guest's addresses; none if it is off.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub guard: Option<GuardExplanation>,
        /// The uplinks of a bond; none on another port.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub bond: Option<BondStats>,
        /// Usage of the port's limits.
        #[serde(default)]
        #[schema(value_type = BTreeMap<String, Limit>)]
        pub limits: Limits,
    }
}

/// The hold that a policy would choose for a frame that arrived now, and the reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PortDecision {
    /// The hold, in nanoseconds.
    pub hold_ns: u64,
    /// The reason.
    pub reason: String,
}

/// The configured settings of calls to a guest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CallSettings {
    /// The policy.
    pub moderation: Moderation,
    /// The hold of a call, if it is configured.
    pub rx_usecs: Option<RxUsecs>,
    /// The number of frames that ends a hold, if it is configured.
    pub rx_frames: Option<RxFrames>,
    /// The number of bytes at which a container is full, if it is configured.
    pub container_bytes: Option<ContainerBytes>,
}

impl CallSettings {
    /// The call settings of an interface.
    pub fn of(vif: &VifConfig) -> Self {
        let VifConfig { moderation, rx_usecs, rx_frames, container_bytes, .. } = *vif;
        Self { moderation, rx_usecs, rx_frames, container_bytes }
    }
}

/// Connections of vhost-user front ends to one port.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionStats {
    /// Sessions that began.
    pub opened: u64,
    /// Sessions that the front end closed in order.
    pub closed: u64,
    /// Sessions that weir ended because of an error.
    pub failed: u64,
    /// The last such error.
    pub last_error: Option<String>,
    /// Seconds since that error; none if there was none.
    pub last_error_s: Option<u64>,
    /// Connections that were refused because a session was open.
    #[serde(default)]
    pub turned_away: u64,
    /// Seconds since the last of them; none if there was none.
    pub turned_away_s: Option<u64>,
    /// Pauses of sessions that took too much time or came too often.
    #[serde(default)]
    pub throttled: u64,
    /// Log messages about the port that were suppressed by the rate limit.
    #[serde(default)]
    pub log_lines_unsaid: u64,
    /// Mapped bytes of guest memory, including the remains of older memory tables.
    #[serde(default)]
    pub memory_mapped_bytes: u64,
    /// Bytes that the front end may share (`memory_max`); 0 if the port shares no memory.
    #[serde(default)]
    pub memory_max_bytes: u64,
}

/// One queue pair.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueuePairStats {
    /// The direction into the port.
    pub rx: QueueStats,
    /// The direction out of the port.
    pub tx: QueueStats,
}

/// A bond. Its uplinks count the frames.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BondStats {
    /// The uplinks that are to carry frames.
    #[schema(value_type = String)]
    pub mode: BondMode,
    /// The uplinks, the preferred one first.
    pub uplinks: Vec<BondUplinkStats>,
    /// Times that other uplinks began to carry frames, or one stopped.
    pub changes: u64,
}

/// An uplink of a bond.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BondUplinkStats {
    /// The uplink.
    pub name: PortName,
    /// True if its interface is up and has a carrier.
    pub has_carrier: bool,
    /// True if it carries frames.
    pub carries: bool,
    /// The system at the other end, as it names itself by LACP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partner: Option<MacAddress>,
}

/// One virtqueue, or one direction of an uplink's queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueueStats {
    /// Frames that were moved (a GSO frame counts once).
    pub frames: u64,
    /// Bytes of these frames, without virtio headers.
    pub bytes: u64,
    /// Interrupts sent to the guest.
    pub calls: u64,
    /// Interrupts that were not sent because the guest had disabled them: it was polling.
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

/// A distribution of times in nanoseconds; all zero if there are no samples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Times {
    /// Samples.
    #[serde(default)]
    pub count: u64,
    /// The sum of the samples.
    #[serde(default)]
    pub sum: u64,
    /// The median.
    pub p50: u64,
    /// The 99th percentile.
    pub p99: u64,
    /// The maximum.
    pub max: u64,
    /// Samples of at most 5, 10, 25, 50, 100, 250 and 500 us, 1, 5 and 50 ms ([`TIME_BOUNDS_NS`]).
    #[serde(default)]
    pub at_most: [u64; TIME_BOUNDS_NS.len()],
}

impl From<TimesSummary> for Times {
    fn from(times: TimesSummary) -> Self {
        let TimesSummary { count, sum, p50, p99, max, at_most } = times;
        Self { count, sum, p50, p99, max, at_most }
    }
}

impl Times {
    /// The distribution since `before`. A percentile or maximum is then the upper bound of its
    /// range.
    fn since(&mut self, before: &Self) {
        if self.count < before.count {
            return;
        }
        self.count -= before.count;
        less(&mut self.sum, before.sum);
        for (now, before) in self.at_most.iter_mut().zip(before.at_most) {
            less(now, before);
        }
        let Self { count, max, at_most, .. } = *self;
        let bound = |percent: u128| {
            let is_enough = |it: &u64| u128::from(*it) * 100 >= u128::from(count) * percent;
            let within = at_most.iter().position(is_enough).filter(|_| count > 0);
            let none = if count > 0 { max } else { 0 };
            within.map_or(none, |place| TIME_BOUNDS_NS[place].min(max))
        };
        (self.p50, self.p99) = (bound(50), bound(99));
        self.max = if max > before.max { max } else { bound(100) };
    }
}

impl QueueStats {
    fn since(&mut self, before: &Self) {
        let Self { frames, bytes, calls, calls_suppressed, kicks } = self;
        less(frames, before.frames);
        less(bytes, before.bytes);
        less(calls, before.calls);
        less(calls_suppressed, before.calls_suppressed);
        less(kicks, before.kicks);
    }
}

/// Subtracts the earlier count. A counter that has become smaller has started anew.
fn less(now: &mut u64, before: u64) {
    *now = now.checked_sub(before).unwrap_or(*now);
}

fn less_of_each(now: &mut BTreeMap<String, u64>, before: &BTreeMap<String, u64>) {
    for (name, count) in now {
        less(count, before.get(name).copied().unwrap_or(0));
    }
}

/// The earlier counters are those of another start of weir.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the earlier counters are of a weir that has ended")]
pub struct OtherStart;

impl SwitchStats {
    /// The counts since `earlier`. States, levels and panicked threads stay the present ones.
    ///
    /// # Errors
    /// [`OtherStart`]
    pub fn since(mut self, earlier: &Self) -> Result<Self, OtherStart> {
        let over_s = self.uptime_s - earlier.uptime_s;
        if earlier.started_unix_ms != self.started_unix_ms || over_s < 0.0 {
            return Err(OtherStart);
        }
        self.over_s = Some(over_s);
        less(&mut self.queues_moved, earlier.queues_moved);
        let (PlacementStats { moves, vcpu_moves, refused }, before) =
            (&mut self.placement, &earlier.placement);
        less(moves, before.moves);
        less(vcpu_moves, before.vcpu_moves);
        less(refused, before.refused);
        less(&mut self.loops.suspected, earlier.loops.suspected);
        less(&mut self.loops.found, earlier.loops.found);
        for now in &mut self.workers {
            let Some(before) = earlier.workers.iter().find(|it| it.id == now.id) else { continue };
            less(&mut now.wakeups, before.wakeups);
            less_of_each(&mut now.wakeups_for, &before.wakeups_for);
            less(&mut now.bursts, before.bursts);
            less(&mut now.cpu_ns, before.cpu_ns);
            less(&mut now.late_timers, before.late_timers);
        }
        for now in &mut self.stages {
            let before = earlier.stages.iter().find(|it| it.worker == now.worker);
            let Some(before) = before else { continue };
            less(&mut now.bursts, before.bursts);
            less(&mut now.frames, before.frames);
            less_of_each(&mut now.cost, &before.cost);
        }
        let before: BTreeMap<_, _> = earlier.ports.iter().map(|it| (&it.name, it)).collect();
        for now in &mut self.ports {
            if let Some(before) = before.get(&now.name).filter(|it| it.kind == now.kind) {
                now.since(before);
            }
        }
        Ok(self)
    }

    /// The ports that use most of a limit of the whole switch, the greatest first. A tenant can have several.
    pub fn greatest(&self, limit: &str) -> Vec<(&PortName, u64)> {
        let used = |port: &PortStats| port.limits.get(limit).map_or(0, |limit| limit.used);
        let mut all: Vec<_> = self.ports.iter().map(|port| (&port.name, used(port))).collect();
        all.retain(|(_, used)| *used > 0);
        all.sort_by_key(|(_, used)| std::cmp::Reverse(*used));
        all.truncate(GREATEST);
        all
    }

    /// These ports as words; empty if no port uses any.
    pub fn greatest_as_words(&self, limit: &str) -> String {
        let words = self.greatest(limit).into_iter().map(|(name, used)| format!("{name} {used}"));
        words.collect::<Vec<_>>().join(", ")
    }
}

impl PortStats {
    fn since(&mut self, before: &Self) {
        for (now, before) in self.queues.iter_mut().zip(&before.queues) {
            now.rx.since(&before.rx);
            now.tx.since(&before.tx);
        }
        self.rx.since(&before.rx);
        self.tx.since(&before.tx);
        self.counters_since(before);
        for (now, before) in [
            (&mut self.rss_moved, before.rss_moved),
            (&mut self.sessions.opened, before.sessions.opened),
            (&mut self.sessions.closed, before.sessions.closed),
            (&mut self.sessions.failed, before.sessions.failed),
            (&mut self.sessions.turned_away, before.sessions.turned_away),
            (&mut self.sessions.throttled, before.sessions.throttled),
            (&mut self.sessions.log_lines_unsaid, before.sessions.log_lines_unsaid),
        ] {
            less(now, before);
        }
        less_of_each(&mut self.drops, &before.drops);
        less_of_each(&mut self.answers, &before.answers);
        less_of_each(&mut self.budget_breaches, &before.budget_breaches);
        self.hold_ns.since(&before.hold_ns);
        self.latency_ns.since(&before.latency_ns);
        for (now, before) in self.filter.iter_mut().zip(&before.filter) {
            // Rules that were set in between count from zero.
            if now.rule == before.rule {
                less(&mut now.packets, before.packets);
                less(&mut now.bytes, before.bytes);
            }
        }
        if let (Some(now), Some(before)) = (&mut self.bond, &before.bond) {
            less(&mut now.changes, before.changes);
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
