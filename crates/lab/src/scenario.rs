//! The description of a run: plain data, checked before it runs.

use weir_limits::{
    FRAME_LEN_MAX, FRAME_LEN_MIN, LAB_BITS_PER_S_MAX, LAB_CLIENTS_MAX, LAB_COST_MAX, LAB_NS_MAX,
    LAB_QUEUE_MAX, LAB_WEIGHT_MAX, LATENCY_BUDGET_NS_MAX, PORTS_MAX, QUEUE_SIZE_MAX,
};
use weir_policy::dispatch::Aim;
use weir_policy::law::Law;
use weir_policy::moderation::Kind;

use crate::cpus::Class;
use crate::profile::Profile;
use crate::random::Distribution;
use crate::realization::Realization;
use crate::topology::{CpuId, Topology};

/// A host with its guests, uplinks and loads, and the length of the run.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Seed of all randomness.
    pub seed: u64,
    /// The host's CPUs.
    pub topology: Topology,
    /// The costs.
    pub profile: Profile,
    /// weir's workers.
    pub workers: Vec<Thread>,
    /// The worker that has all queues at first; `None`: the workers take turns.
    pub first_worker: Option<usize>,
    /// Aim of moving queues between workers; `None` if they do not move.
    pub dispatch: Option<Aim>,
    /// The guests.
    pub guests: Vec<Guest>,
    /// The host's uplinks.
    pub uplinks: Vec<Uplink>,
    /// Threads that compute without end, unrelated to weir.
    pub rivals: Vec<Thread>,
    /// Variants of weir and its host.
    pub realization: Realization,
    /// The traffic.
    pub loads: Vec<Load>,
    /// Upper bound of each load's random beginning (ns); 0: all begin at once.
    pub start_ns: u64,
    /// Time before measurements begin (ns).
    pub warm_up_ns: u64,
    /// Time of the measurements (ns).
    pub run_ns: u64,
    /// The constants of control: [`LAW`](weir_policy::law::LAW), except in experiments about one of
    /// them.
    pub law: &'static Law,
    /// Checks every invariant after every event, not only some at the end. Slow.
    pub check_each_event: bool,
}

/// A thread of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// CPUs on which the thread may run; any if empty.
    pub cpus: Vec<CpuId>,
    /// Scheduling class.
    pub class: Class,
}

/// A guest: one vCPU, one queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guest {
    /// The guest's name in reports.
    pub name: String,
    /// CPUs on which the guest's vCPU may run; any if empty.
    pub cpus: Vec<CpuId>,
    /// Scheduling class of the guest's vCPU.
    pub class: Class,
    /// Entries of the guest's receive ring.
    pub rx_ring: u16,
    /// Entries of the guest's transmit ring.
    pub tx_ring: u16,
    /// Length of a receive buffer (bytes); for longer frames it is as long as the usual frame, up
    /// to a page (Linux).
    pub buffer_bytes: u32,
    /// Frames that wait in the guest while its transmit ring is full (`txqueuelen`).
    pub queue_max: usize,
    /// Policy of calls to the guest.
    pub calls: Calls,
    /// Poll timer, if the guest has one (Dong 2011, FVIC).
    pub poll: Option<GuestPoll>,
    /// Poll interval of a nested guest (ns): its hypervisor is weir's guest on the same vCPU, polls
    /// weir's rings at this interval, and shows the guest frames only then.
    pub hypervisor_poll_ns: Option<u64>,
    /// Interval of the tick of the guest's kernel (ns; Linux before `NO_HZ`: always). A periodic poll timer of the same
    /// interval is this tick.
    pub tick_ns: Option<u64>,
    /// Merges TCP segments of one poll (LRO; Zhang 2010).
    pub lro: bool,
}

/// Policy of a guest's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calls {
    /// Kind of the policy.
    pub kind: Kind,
    /// Longest hold of a frame in all (ns).
    pub latency_budget_ns: u64,
    /// `rx-usecs` (ns).
    pub rx_ns: Option<u64>,
    /// `rx-frames`.
    pub rx_frames: Option<u32>,
}

impl Calls {
    /// Returns how long a frame may wait for others in its sender's ring (ns).
    pub const fn wait_ns_max(&self) -> u64 {
        self.kind.wait_ns_max(self.latency_budget_ns, self.rx_ns)
    }
}

/// The poll timer of a guest (Linux: `gro_flush_timeout`, `napi_defer_hard_irqs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestPoll {
    /// Interval of the polls (ns).
    pub interval_ns: u64,
    /// Consecutive empty polls after which the guest asks for calls again.
    pub empty_polls: u32,
    /// True if the timer keeps its own period (Dong 2011 §4.1), even while the guest polls; otherwise each poll restarts
    /// it, as in Linux.
    pub periodic: bool,
}

/// An uplink with a peer at its other end, whose own work takes no time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uplink {
    /// The uplink's name in reports.
    pub name: String,
    /// Rate of the link, each way.
    pub bits_per_s: u64,
    /// Time on the wire (ns), each way.
    pub delay_ns: u64,
    /// Most frames that wait for the link, each way.
    pub queue_max: usize,
    /// Most frames at the host before a worker takes them.
    pub ring: usize,
    /// Time for which the host's side gathers frames before it shows them (ns): T_p of Dong 2011
    /// Eq. 1.
    pub hold_ns: u64,
}

/// Source or destination of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// The guest with this index.
    Guest(usize),
    /// The peer of the uplink with this index.
    Peer(usize),
}

/// One flow, or two in opposite directions.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// The load's name in reports.
    pub name: String,
    /// The end that sends first.
    pub from: Endpoint,
    /// The other end.
    pub to: Endpoint,
    /// Kind of traffic.
    pub kind: LoadKind,
}

/// A kind of traffic.
#[derive(Clone, Debug, PartialEq)]
pub enum LoadKind {
    /// Frames without answers (UDP).
    Datagrams {
        /// Lengths, Ethernet header included (bytes).
        bytes: Distribution,
        /// Gaps between frames (ns).
        gap: Distribution,
        /// On and off times; `None`: always on.
        on_off: Option<OnOff>,
    },
    /// Clients that send a request, wait for the answer, and think before the next.
    Requests {
        /// Number of clients.
        outstanding: u32,
        /// Length of a request's frame (bytes).
        request_bytes: u32,
        /// Length of an answer's frame (bytes).
        answer_bytes: u32,
        /// Time from an answer to the next request (ns).
        think: Distribution,
        /// Cost of a request to a server that is a guest (ns of its vCPU).
        serve_ns: u64,
    },
    /// A bulk transfer without end over one TCP connection (Reno).
    Stream {
        /// Length of a segment's frame (bytes); above the MTU where the ports do segmentation.
        segment_bytes: u32,
        /// The receiver's window, in segments.
        window: u32,
    },
    /// Frames without answers from an uplink's peer, as fast as they go: a program writes until its socket's buffer is
    /// full, and goes on when half of it is free (Linux: `sock_def_write_space`).
    Socket {
        /// Length of a frame, Ethernet header included (bytes).
        bytes: u32,
        /// The buffer (bytes; Linux: `net.core.wmem_default`), in which frames count until they have left the host.
        buffer_bytes: u32,
    },
}

/// Traffic that alternates between on and off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnOff {
    /// Length of the on time (ns).
    pub on_ns: u64,
    /// Length of the off time (ns).
    pub off_ns: u64,
}

/// Reason why a scenario cannot run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScenarioError {
    /// There are no CPUs, or too many.
    #[error("the host has no CPUs, or more than {}", weir_limits::LAB_CPUS_MAX)]
    Cpus,
    /// There are no workers.
    #[error("there is no worker")]
    NoWorker,
    /// There are too many ports.
    #[error("there are more than {PORTS_MAX} guests and uplinks")]
    Ports,
    /// A thread's CPU does not exist.
    #[error("{thread} may run on CPU {cpu}, and the host has {cpus}")]
    NoSuchCpu {
        /// Name of the thread.
        thread: String,
        /// The CPU.
        cpu: CpuId,
        /// Number of CPUs.
        cpus: usize,
    },
    /// The worker that has all queues at first does not exist.
    #[error("queues start on worker {worker}, and workers are 0 to {workers} exclusive")]
    NoSuchWorker {
        /// The worker, from 0.
        worker: usize,
        /// Number of workers.
        workers: usize,
    },
    /// Queues may go to any worker, while each worker has its own queues.
    #[error("`{key}` moves queues to any worker, and {whose}")]
    AnyWorker {
        /// The setting that gives each worker its own queues.
        key: &'static str,
        /// The setting that contradicts `key`.
        whose: &'static str,
    },
    /// An end of a load does not exist.
    #[error("load `{load}`: there is no {endpoint:?}")]
    NoSuchEndpoint {
        /// The load's name.
        load: String,
        /// The end.
        endpoint: Endpoint,
    },
    /// Both ends of a load are the same.
    #[error("load `{load}` has one endpoint as source and destination")]
    SameEndpoint {
        /// The load's name.
        load: String,
    },
    /// A value is invalid.
    #[error("{of}: {what} is {value}; {expected}")]
    Value {
        /// Part of the scenario.
        of: String,
        /// Name of the value.
        what: &'static str,
        /// The value.
        value: u64,
        /// Valid values.
        expected: String,
    },
    /// Two hosts are not as required.
    #[error("two hosts {what}")]
    Twins {
        /// The requirement.
        what: &'static str,
    },
    /// A distribution gives no usable values.
    #[error("load `{load}`: {what}: {fault}")]
    Distribution {
        /// The load's name.
        load: String,
        /// The quantity.
        what: &'static str,
        /// The fault.
        fault: &'static str,
    },
}

/// Checks that `value` lies within a range.
pub(crate) fn within(
    of: &str,
    what: &'static str,
    value: u64,
    range: std::ops::RangeInclusive<u64>,
) -> Result<(), ScenarioError> {
    if range.contains(&value) {
        return Ok(());
    }
    let expected = format!("it must lie between {} and {}", range.start(), range.end());
    Err(ScenarioError::Value { of: of.to_owned(), what, value, expected })
}

impl Scenario {
    /// Checks whether the scenario can run.
    ///
    /// # Errors
    /// The first fault.
    pub fn check(&self) -> Result<(), ScenarioError> {
        let cpus = self.topology.cpus().ok_or(ScenarioError::Cpus)?;
        if self.workers.is_empty() {
            return Err(ScenarioError::NoWorker);
        }
        let workers = self.workers.len();
        if let Some(worker) = self.first_worker.filter(|worker| *worker >= workers) {
            return Err(ScenarioError::NoSuchWorker { worker, workers });
        }
        if self.guests.len() + self.uplinks.len() > PORTS_MAX {
            return Err(ScenarioError::Ports);
        }
        within("the run", "`run_ns`", self.run_ns, 1..=LAB_NS_MAX)?;
        within("the run", "`warm_up_ns`", self.warm_up_ns, 0..=LAB_NS_MAX)?;
        within("the run", "`start_ns`", self.start_ns, 0..=LAB_NS_MAX)?;
        for (what, value) in self.profile.fields() {
            // Slices and bursts must take time, or a run would not end.
            let least = u64::from(matches!(what, "slice_ns" | "burst_ns" | "smt_permille"));
            within("the profile", what, value, least..=LAB_COST_MAX)?;
        }
        let workers = self.workers.iter().map(|worker| ("a worker", &worker.cpus, worker.class));
        let rivals = self.rivals.iter().map(|rival| ("a rival", &rival.cpus, rival.class));
        let guests = self.guests.iter().map(|it| (it.name.as_str(), &it.cpus, it.class));
        for (thread, allowed, class) in workers.chain(rivals).chain(guests) {
            if let Some(&cpu) = allowed.iter().find(|cpu| **cpu >= cpus) {
                return Err(ScenarioError::NoSuchCpu { thread: thread.to_owned(), cpu, cpus });
            }
            if let Class::Fair { weight } = class {
                within(thread, "`weight`", weight.into(), 1..=LAB_WEIGHT_MAX.into())?;
            }
        }
        self.guests.iter().try_for_each(Guest::check)?;
        self.uplinks.iter().try_for_each(Uplink::check)?;
        self.realization.check(self)?;
        self.loads.iter().try_for_each(|load| self.check_load(load))
    }

    fn check_load(&self, load: &Load) -> Result<(), ScenarioError> {
        let name = || load.name.clone();
        for endpoint in [load.from, load.to] {
            let there = match endpoint {
                Endpoint::Guest(guest) => guest < self.guests.len(),
                Endpoint::Peer(uplink) => uplink < self.uplinks.len(),
            };
            if !there {
                return Err(ScenarioError::NoSuchEndpoint { load: name(), endpoint });
            }
        }
        if load.from == load.to {
            return Err(ScenarioError::SameEndpoint { load: name() });
        }
        let lengths = u64::from(FRAME_LEN_MAX);
        let frame = |what, bytes: u32| {
            within(&load.name, what, bytes.into(), FRAME_LEN_MIN.into()..=lengths)
        };
        let draws = |what, distribution: &Distribution| match distribution.fault() {
            Some(fault) => Err(ScenarioError::Distribution { load: name(), what, fault }),
            None => Ok(()),
        };
        match &load.kind {
            LoadKind::Datagrams { bytes, gap, on_off } => {
                draws("`bytes`", bytes)?;
                draws("`gap`", gap)?;
                if let Some(OnOff { on_ns, off_ns }) = on_off {
                    within(&load.name, "`on_ns`", *on_ns, 1..=LAB_NS_MAX)?;
                    within(&load.name, "`off_ns`", *off_ns, 0..=LAB_NS_MAX)?;
                }
                Ok(())
            }
            LoadKind::Requests { outstanding, request_bytes, answer_bytes, think, serve_ns } => {
                // A think time of zero is valid.
                if *think != Distribution::Constant(0) {
                    draws("`think`", think)?;
                }
                within(
                    &load.name,
                    "`outstanding`",
                    (*outstanding).into(),
                    1..=LAB_CLIENTS_MAX.into(),
                )?;
                within(&load.name, "`serve_ns`", *serve_ns, 0..=LAB_NS_MAX)?;
                frame("`request_bytes`", *request_bytes)?;
                frame("`answer_bytes`", *answer_bytes)
            }
            LoadKind::Stream { segment_bytes, window } => {
                within(&load.name, "`window`", (*window).into(), 1..=LAB_QUEUE_MAX.into())?;
                frame("`segment_bytes`", *segment_bytes)
            }
            LoadKind::Socket { bytes, .. } => {
                let from_guest = matches!(load.from, Endpoint::Guest(_));
                within(&load.name, "writers in guests", u64::from(from_guest), 0..=0)?;
                frame("`bytes`", *bytes)
            }
        }
    }
}

impl Guest {
    /// Returns a guest like QEMU's default: rings of 256 with buffers of 1536 bytes.
    pub fn new(name: &str, cpus: &[CpuId], calls: Calls) -> Self {
        Self {
            name: name.to_owned(),
            cpus: cpus.to_vec(),
            class: Class::Fair { weight: crate::cpus::WEIGHT_USUAL },
            rx_ring: 256,
            tx_ring: 256,
            buffer_bytes: 1_536,
            queue_max: 1_000,
            calls,
            poll: None,
            hypervisor_poll_ns: None,
            tick_ns: None,
            lro: false,
        }
    }

    fn check(&self) -> Result<(), ScenarioError> {
        for (what, size) in [("`rx_ring`", self.rx_ring), ("`tx_ring`", self.tx_ring)] {
            within(&self.name, what, size.into(), 2..=QUEUE_SIZE_MAX.into())?;
        }
        within(&self.name, "`buffer_bytes`", self.buffer_bytes.into(), 64..=u32::MAX.into())?;
        within(&self.name, "`queue_max`", self.queue_max as u64, 0..=LAB_QUEUE_MAX.into())?;
        let budget_ns = self.calls.latency_budget_ns;
        within(&self.name, "`latency_budget_ns`", budget_ns, 0..=LATENCY_BUDGET_NS_MAX)?;
        if let Some(ns) = self.hypervisor_poll_ns {
            within(&self.name, "`hypervisor_poll_ns`", ns, 1..=LAB_NS_MAX)?;
        }
        if let Some(ns) = self.tick_ns {
            within(&self.name, "`tick_ns`", ns, 1..=LAB_NS_MAX)?;
        }
        match self.poll {
            Some(poll) => within(&self.name, "`interval_ns`", poll.interval_ns, 1..=LAB_NS_MAX),
            None => Ok(()),
        }
    }
}

impl Uplink {
    fn check(&self) -> Result<(), ScenarioError> {
        within(&self.name, "`bits_per_s`", self.bits_per_s, 1..=LAB_BITS_PER_S_MAX)?;
        within(&self.name, "`delay_ns`", self.delay_ns, 0..=LAB_NS_MAX)?;
        within(&self.name, "`hold_ns`", self.hold_ns, 0..=LAB_NS_MAX)?;
        within(&self.name, "`queue_max`", self.queue_max as u64, 0..=LAB_QUEUE_MAX.into())?;
        within(&self.name, "`ring`", self.ring as u64, 1..=LAB_QUEUE_MAX.into())
    }
}
