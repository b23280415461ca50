//! What is to be run: plain data, checked before it runs.

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

/// A host with its guests, uplinks and loads, and how long they run.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// What all chance comes from.
    pub seed: u64,
    /// The host's CPUs.
    pub topology: Topology,
    /// What things cost.
    pub profile: Profile,
    /// weir's workers.
    pub workers: Vec<Thread>,
    /// The worker that has all queues at first; they are the workers' in turn, if `None`.
    pub first_worker: Option<usize>,
    /// What moving queues between workers is for; `None` where they do not move.
    pub dispatch: Option<Aim>,
    /// The guests.
    pub guests: Vec<Guest>,
    /// The ways out of the host.
    pub uplinks: Vec<Uplink>,
    /// Threads that compute without end, and have nothing to do with weir.
    pub rivals: Vec<Thread>,
    /// How weir is realized, and what else there is.
    pub realization: Realization,
    /// The traffic.
    pub loads: Vec<Load>,
    /// Each load begins at a random time below this (ns); all at once, if 0.
    pub start_ns: u64,
    /// Time before anything is measured (ns).
    pub warm_up_ns: u64,
    /// Time that is measured (ns).
    pub run_ns: u64,
    /// The constants of control: [`LAW`](weir_policy::law::LAW), but where it is asked what one is worth.
    pub law: &'static Law,
    /// Check every invariant after every event, not only some at the end. Slow.
    pub check_each_event: bool,
}

/// A thread of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Where it may run; anywhere, if empty.
    pub cpus: Vec<CpuId>,
    /// How it is scheduled.
    pub class: Class,
}

/// A guest: one vCPU, one queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guest {
    /// Its name in reports.
    pub name: String,
    /// Where its vCPU may run; anywhere, if empty.
    pub cpus: Vec<CpuId>,
    /// How its vCPU is scheduled.
    pub class: Class,
    /// Entries of its receive ring.
    pub rx_ring: u16,
    /// Entries of its transmit ring.
    pub tx_ring: u16,
    /// Bytes of a receive buffer; where frames are longer it is as long as the usual one, up to a page (Linux).
    pub buffer_bytes: u32,
    /// Frames that wait in the guest while its transmit ring is full (`txqueuelen`).
    pub queue_max: usize,
    /// When it is called.
    pub calls: Calls,
    /// Whether it polls on its own timer (Dong 2011, FVIC).
    pub poll: Option<GuestPoll>,
    /// A nested guest: its hypervisor is weir's guest on the same vCPU, polls weir's rings this often (ns), and
    /// shows the guest frames only then.
    pub hypervisor_poll_ns: Option<u64>,
    /// Its driver merges TCP segments that one poll finds (LRO; Zhang 2010).
    pub lro: bool,
}

/// When a guest is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calls {
    /// Which policy decides.
    pub kind: Kind,
    /// Longest time that a frame may be held in all (ns).
    pub latency_budget_ns: u64,
    /// `rx-usecs` (ns).
    pub rx_ns: Option<u64>,
    /// `rx-frames`.
    pub rx_frames: Option<u32>,
}

impl Calls {
    /// How long a frame may wait for others in its sender's ring (ns).
    pub const fn wait_ns_max(&self) -> u64 {
        self.kind.wait_ns_max(self.latency_budget_ns, self.rx_ns)
    }
}

/// A guest that polls on its own timer (Linux: `gro_flush_timeout`, `napi_defer_hard_irqs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestPoll {
    /// Between two polls (ns).
    pub interval_ns: u64,
    /// Polls in a row that find nothing before it asks for calls again.
    pub empty_polls: u32,
    /// The timer keeps its own pace while the guest polls (Dong 2011 §4.1); otherwise each poll sets it, as in
    /// Linux.
    pub periodic: bool,
}

impl GuestPoll {
    /// When to poll next after a poll that ends now (ns); `due_ns`: when the last one was due.
    pub(crate) fn next_ns(&self, now_ns: u64, due_ns: Option<u64>) -> u64 {
        let from_ns = due_ns.filter(|_| self.periodic).unwrap_or(now_ns);
        match now_ns.checked_sub(from_ns) {
            Some(passed_ns) => from_ns + (passed_ns / self.interval_ns + 1) * self.interval_ns,
            // Something else had it poll, and its timer is still to come.
            None => from_ns,
        }
    }
}

/// An uplink with a peer at its other end, whose own work takes no time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uplink {
    /// Its name in reports.
    pub name: String,
    /// Rate of the link, each way.
    pub bits_per_s: u64,
    /// Time on the wire (ns), each way.
    pub delay_ns: u64,
    /// Frames that wait for the link, each way.
    pub queue_max: usize,
    /// Frames that the host has room for before a worker takes them.
    pub ring: usize,
    /// How long the host's side gathers frames before it shows them (ns): T_p of Dong 2011 Eq. 1.
    pub hold_ns: u64,
}

/// Where frames come from or go to.
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
    /// Its name in reports.
    pub name: String,
    /// Who begins.
    pub from: Endpoint,
    /// Whom with.
    pub to: Endpoint,
    /// What it is.
    pub kind: LoadKind,
}

/// A kind of traffic.
#[derive(Clone, Debug, PartialEq)]
pub enum LoadKind {
    /// Frames that wait for nobody (UDP).
    Datagrams {
        /// Their lengths, Ethernet header included.
        bytes: Distribution,
        /// Between two of them (ns).
        gap: Distribution,
        /// Frames only in the first part of each period; without end, if `None`.
        on_off: Option<OnOff>,
    },
    /// Clients that send a request, wait for the answer, and think before the next.
    Requests {
        /// Clients.
        outstanding: u32,
        /// Length of a request's frame.
        request_bytes: u32,
        /// Length of an answer's frame.
        answer_bytes: u32,
        /// From an answer to the next request (ns).
        think: Distribution,
        /// What a request costs a server that is a guest (ns of its vCPU).
        serve_ns: u64,
    },
    /// A bulk transfer without end over one TCP connection (Reno).
    Stream {
        /// Length of a segment's frame; above the MTU where the ports do segmentation.
        segment_bytes: u32,
        /// The receiver's window, in segments.
        window: u32,
    },
}

/// Traffic that comes and goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnOff {
    /// On for so long (ns),
    pub on_ns: u64,
    /// then off for so long (ns).
    pub off_ns: u64,
}

/// Why a scenario cannot run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScenarioError {
    /// No CPUs, or too many.
    #[error("the host has no CPUs, or more than {}", weir_limits::LAB_CPUS_MAX)]
    Cpus,
    /// No workers.
    #[error("there is no worker")]
    NoWorker,
    /// Too many ports.
    #[error("there are more than {PORTS_MAX} guests and uplinks")]
    Ports,
    /// A thread may run on a CPU that the host does not have.
    #[error("{thread} may run on CPU {cpu}, and the host has {cpus}")]
    NoSuchCpu {
        /// Whose.
        thread: String,
        /// Which.
        cpu: CpuId,
        /// How many there are.
        cpus: usize,
    },
    /// All queues have a worker at first that there is not.
    #[error("queues start on worker {worker}, and workers are 0 to {workers} exclusive")]
    NoSuchWorker {
        /// Which, from 0.
        worker: usize,
        /// How many there are.
        workers: usize,
    },
    /// Queues would be given to any worker where each worker has queues of its own.
    #[error("`{key}` moves queues to any worker, and {whose}")]
    AnyWorker {
        /// What gives them.
        key: &'static str,
        /// Why it must not.
        whose: &'static str,
    },
    /// A load has an end that is not there.
    #[error("load `{load}`: there is no {endpoint:?}")]
    NoSuchEndpoint {
        /// The load's name.
        load: String,
        /// The end.
        endpoint: Endpoint,
    },
    /// Both ends of a load are one.
    #[error("load `{load}` has one endpoint as source and destination")]
    SameEndpoint {
        /// The load's name.
        load: String,
    },
    /// A value that makes no sense.
    #[error("{of}: {what} is {value}; {expected}")]
    Value {
        /// Of which part of the scenario.
        of: String,
        /// Which value.
        what: &'static str,
        /// The value.
        value: u64,
        /// What would be right.
        expected: String,
    },
    /// Two hosts that are not as they have to be.
    #[error("two hosts {what}")]
    Twins {
        /// What would be right.
        what: &'static str,
    },
    /// A distribution from which nothing sensible can be drawn.
    #[error("load `{load}`: {what}: {fault}")]
    Distribution {
        /// The load's name.
        load: String,
        /// Of what.
        what: &'static str,
        /// Why.
        fault: &'static str,
    },
}

/// An error unless `value` lies within.
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
    /// Whether it can run.
    ///
    /// # Errors
    /// The first thing found that makes no sense.
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
            // Time passes with each slice and each burst, so that a run ends.
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
                // To think for no time at all makes sense.
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
        }
    }
}

impl Guest {
    /// A guest like QEMU's by default: rings of 256 with buffers of 1536 bytes.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_with_a_pace_of_its_own_leaves_out_no_turn_that_is_still_to_come() {
        let poll = |periodic| GuestPoll { interval_ns: 100, empty_polls: 1, periodic };
        for (now_ns, due_ns, next_ns) in
            [(30, None, 130), (30, Some(0), 100), (100, Some(100), 200), (370, Some(100), 400)]
        {
            assert_eq!(poll(true).next_ns(now_ns, due_ns), next_ns, "{now_ns} {due_ns:?}");
            assert_eq!(poll(false).next_ns(now_ns, due_ns), now_ns + 100);
        }
        // It was called for a sent frame, and polled for that.
        assert_eq!(poll(true).next_ns(60, Some(100)), 100);
    }
}
