//! The parts of a host beside its workers and guests, and the events in a host.
//!
//! | type | what | at work |
//! |---|---|---|
//! | [`Uplink`] | two links, and the host's queue | `uplink.rs` |
//! | [`Load`] | its frames so far, and the state of its ends | `loads.rs` |
//! | [`Dispatcher`] | the worker of each port's queue | `manager.rs` |
//! | [`Manager`] | knowledge of the guests' traffic | `manager.rs` |
//! | [`Place`] | knowledge of the threads' places | `manager.rs` |
//! | [`Demux`] | the handler of interrupt identifiers | `signals.rs` |
//! | [`Ticks`] | handlers of ticks | `mod.rs` |
//! | [`Thief`] | a thread that takes a CPU | `trouble.rs` |

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use weir_policy::attempt::Attempt;
use weir_policy::dispatch::{Dispatch, Move};
use weir_policy::moderation::Kind;
use weir_policy::placement::{Cpu, Placer};

use crate::cpus;
use crate::cpus::{Cpus, ThreadId};
use crate::link::{Frame, Link};
use crate::random::{Random, Sampler};
use crate::realization::Identifiers;
use crate::report::LoadReport;
use crate::scenario::{self, LoadKind, Scenario};
use crate::stats::Times;
use crate::tcp::{Receiver, Sender};
use crate::topology::{CpuId, Topology};

#[derive(Debug)]
pub(super) struct Uplink {
    pub(super) out: Link<Frame>,
    pub(super) into: Link<Frame>,
    /// Frames that have arrived and are not visible to the host yet.
    pub(super) gathering: VecDeque<Frame>,
    /// Frames for a worker.
    pub(super) ring: VecDeque<Frame>,
    pub(super) ring_max: usize,
    /// Time for which frames gather (ns), from the scenario or the manager.
    pub(super) hold_ns: u64,
    /// Started streams and sockets of each thread at the other end, next turn first ([`Realization::client_threads`]).
    ///
    /// [`Realization::client_threads`]: crate::realization::Realization::client_threads
    pub(super) turns: Vec<VecDeque<usize>>,
    /// Number of faults that keep the link down.
    pub(super) down: u32,
    /// The worker wants a wake-up for the next frame.
    pub(super) kick_wanted: bool,
}

impl Uplink {
    pub(super) fn new(spec: &scenario::Uplink, client_threads: usize) -> Self {
        let link = || Link::new(spec.bits_per_s, spec.delay_ns, spec.queue_max);
        Self {
            out: link(),
            into: link(),
            gathering: VecDeque::new(),
            ring: VecDeque::new(),
            ring_max: spec.ring,
            hold_ns: spec.hold_ns,
            turns: vec![VecDeque::new(); client_threads],
            down: 0,
            kick_wanted: true,
        }
    }

    pub(super) fn frames(&self) -> impl Iterator<Item = &Frame> {
        self.out.items().chain(self.into.items()).chain(&self.gathering).chain(&self.ring)
    }

    /// Takes the next frame for a worker.
    pub(super) fn take(&mut self) -> Option<Frame> {
        self.ring.pop_front()
    }

    pub(super) fn has_more(&self) -> bool {
        !self.ring.is_empty()
    }

    /// Returns the next frame, without taking it.
    pub(super) fn first(&self) -> Option<&Frame> {
        self.ring.front()
    }

    pub(super) fn link(&mut self, direction: Direction) -> &mut Link<Frame> {
        match direction {
            Direction::Out => &mut self.out,
            Direction::In => &mut self.into,
        }
    }
}

#[derive(Debug)]
pub(super) struct Load {
    /// Frames since the beginning, both ways.
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) dropped: u64,
    /// By direction: the next frame's number, and the number of the last one read.
    pub(super) next: [u64; 2],
    pub(super) last: [Option<u64>; 2],
    /// Measurements.
    sent_from: u64,
    received_from: u64,
    dropped_from: u64,
    pub(super) bytes: u64,
    pub(super) latency: Times,
    retransmits_from: u64,
    pub(super) kind: State,
}

#[derive(Debug)]
pub(super) enum State {
    Datagrams {
        bytes: Sampler,
        gap: Sampler,
        /// Due time of the next frame, if its sender is a thread (ns).
        due_ns: u64,
    },
    Requests {
        think: Sampler,
    },
    Socket {
        /// Frames that have not left the writer's host, as they count in the buffer (bytes).
        held: u32,
        /// The writer found the buffer full, and it is not half free since.
        waits: bool,
    },
    Stream {
        sender: Box<Sender>,
        receiver: Receiver,
        /// Time of the next [`Event::Resend`](super::parts::Event::Resend) (ns).
        resend_ns: Option<u64>,
        /// Deadline of the pending acknowledgement (ns).
        ack_ns: u64,
        /// An [`Event::DelayedAck`](super::parts::Event::DelayedAck) is scheduled.
        ack_timer: bool,
    },
}

impl Load {
    pub(super) fn new(spec: &scenario::Load, random: [Random; 2]) -> Self {
        let [first, second] = random;
        let kind = match &spec.kind {
            LoadKind::Datagrams { bytes, gap, .. } => State::Datagrams {
                bytes: Sampler::new(bytes.clone(), first),
                gap: Sampler::new(gap.clone(), second),
                due_ns: 0,
            },
            LoadKind::Requests { think, .. } => {
                State::Requests { think: Sampler::new(think.clone(), first) }
            }
            LoadKind::Socket { .. } => State::Socket { held: 0, waits: false },
            LoadKind::Stream { window, .. } => State::Stream {
                sender: Box::new(Sender::new(*window)),
                receiver: Receiver::default(),
                resend_ns: None,
                ack_ns: 0,
                ack_timer: false,
            },
        };
        Self {
            sent: 0,
            received: 0,
            dropped: 0,
            next: [0; 2],
            last: [None; 2],
            sent_from: 0,
            received_from: 0,
            dropped_from: 0,
            bytes: 0,
            latency: Times::default(),
            retransmits_from: 0,
            kind,
        }
    }

    fn retransmits(&self) -> u64 {
        match &self.kind {
            State::Stream { sender, .. } => sender.retransmits,
            _ => 0,
        }
    }

    pub(super) fn forget(&mut self) {
        (self.sent_from, self.received_from, self.bytes) = (self.sent, self.received, 0);
        self.dropped_from = self.dropped;
        self.latency = Times::default();
        self.retransmits_from = self.retransmits();
    }

    pub(super) fn report(&self, name: &str) -> LoadReport {
        LoadReport {
            name: name.to_owned(),
            sent: self.sent - self.sent_from,
            received: self.received - self.received_from,
            dropped: self.dropped - self.dropped_from,
            bytes: self.bytes,
            latency: self.latency.clone(),
            retransmits: self.retransmits() - self.retransmits_from,
        }
    }
}

/// The worker of each port's queue.
#[derive(Debug)]
pub(super) struct Dispatcher {
    pub(super) policy: Option<Dispatch>,
    pub(super) ports: Vec<Port>,
    pub(super) moves: Vec<Move>,
    pub(super) moved: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Port {
    /// The assigned worker, in place of the one by number.
    pub(super) worker: Option<usize>,
    /// The next worker, once the present burst is forwarded.
    pub(super) next: Option<usize>,
    /// Duration of the queue's bursts since the last step (ns).
    pub(super) busy_ns: u64,
    /// See [`weir_policy::dispatch::Queue::stays`].
    pub(super) stays: u8,
}

impl Dispatcher {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let port = Port { worker: scenario.first_worker, ..Port::default() };
        let policy = scenario.dispatch.map(|aim| Dispatch::new(aim, scenario.workers.len()));
        let ports = vec![port; scenario.guests.len() + scenario.uplinks.len()];
        Self { policy, ports, moves: Vec::new(), moved: 0 }
    }

    /// Returns the worker assigned to a port's queue.
    pub(super) fn worker(&self, port: PortId) -> Option<usize> {
        self.ports[port].worker
    }

    /// Notes the time of a burst of a port's queue.
    pub(super) fn took(&mut self, port: PortId, ns: u64) {
        self.ports[port].busy_ns += ns;
    }
}

/// The manager, and its knowledge at the last look.
#[derive(Debug)]
pub(super) struct Manager {
    pub(super) together: Attempt,
    pub(super) looked_ns: u64,
    pub(super) guests: Vec<Counted>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    pub(super) frames: u64,
    pub(super) bytes: u64,
    /// Time until which there is traffic (ns).
    pub(super) busy_until_ns: u64,
}

impl Manager {
    /// Returns the manager; `None` if it would have nothing to decide.
    pub(super) fn new(scenario: &Scenario) -> Option<Self> {
        let auto = scenario.guests.iter().all(|guest| guest.calls.kind == Kind::Auto);
        let any = !scenario.guests.is_empty() && !scenario.uplinks.is_empty();
        (scenario.realization.manager && auto && any).then(|| Self {
            together: Attempt::under(scenario.law),
            looked_ns: 0,
            guests: vec![Counted::default(); scenario.guests.len()],
        })
    }

    /// Restarts the loads' byte counts.
    pub(super) fn forget(&mut self) {
        self.guests.iter_mut().for_each(|guest| guest.bytes = 0);
    }
}

/// A placer, and its knowledge at the last look.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) placer: Placer,
    pub(super) look_ns: u64,
    pub(super) cpus: Vec<Cpu>,
    pub(super) allowed: BTreeSet<u16>,
    /// CPU time of each thread at the last look (ns).
    pub(super) busy_ns: Vec<u64>,
    /// Frames that each worker carried for each guest since the last look.
    pub(super) carried: Vec<BTreeMap<u32, u64>>,
}

impl Place {
    pub(super) fn new(
        spec: crate::realization::Placement,
        topology: &Topology,
        workers: usize,
        threads: usize,
    ) -> Self {
        let cpus = processors(topology);
        Self {
            placer: Placer::new(spec.policy, spec.pin_vcpus),
            look_ns: spec.look_ns,
            allowed: cpus.iter().map(|cpu| cpu.id).collect(),
            cpus,
            busy_ns: vec![0; threads],
            carried: vec![BTreeMap::new(); workers],
        }
    }
}

/// Returns the host's CPUs for the placer. The lab's limits keep their numbers within the types.
fn processors(topology: &Topology) -> Vec<Cpu> {
    let number = |it: usize| u16::try_from(it).unwrap_or(u16::MAX);
    let threads = topology.threads_per_core.max(1);
    let each_llc = threads * topology.cores_per_llc.max(1);
    let each_socket = each_llc * topology.llcs_per_socket.max(1);
    let cpu = |id: usize| Cpu {
        id: number(id),
        core: number(id / threads),
        cache: number(id / each_llc),
        node: number(id / each_socket),
        efficiency: false,
    };
    (0..topology.cpus().unwrap_or(0)).map(cpu).collect()
}

/// The handler of one host, and its pending identifiers.
#[derive(Debug)]
pub(super) struct Demux {
    pub(super) thread: ThreadId,
    pub(super) cpu: CpuId,
    pub(super) count: usize,
    /// Pending identifiers in order; the first is being handled.
    pub(super) pending: VecDeque<(usize, Side)>,
    /// Guests of the first identifier that are not signalled yet.
    pub(super) left: VecDeque<usize>,
    /// CPU time of the present identifier (ns), and of all earlier ones.
    pub(super) spent_ns: u64,
    pub(super) spent: Times,
}

impl Demux {
    pub(super) fn new(cpus: &mut Cpus, identifiers: Identifiers, first_cpu: CpuId) -> Self {
        let cpu = first_cpu + identifiers.cpu;
        let thread = cpus.spawn_handler(cpu);
        let (pending, left) = (VecDeque::new(), VecDeque::new());
        let spent = Times::default();
        Self { thread, cpu, count: identifiers.count, pending, left, spent_ns: 0, spent }
    }
}

/// The ticks of a host.
#[derive(Debug)]
pub(super) struct Ticks {
    /// Handlers by CPU, if the profile has ticks.
    pub(super) handlers: Vec<ThreadId>,
    pub(super) random: Random,
}

impl Ticks {
    pub(super) fn new(cpus: &mut Cpus, scenario: &Scenario, random: Random) -> Self {
        let there_are = scenario.profile.tick_ns > 0 && scenario.profile.tick_every_ns > 0;
        let count = scenario.topology.cpus().filter(|_| there_are).unwrap_or(0);
        Self { handlers: (0..count).map(|cpu| cpus.spawn_handler(cpu)).collect(), random }
    }

    pub(super) fn len(&self) -> usize {
        self.handlers.len()
    }

    pub(super) fn exponential_ns(&mut self, mean_ns: u64) -> u64 {
        (-libm::log(self.random.unit()) * mean_ns as f64) as u64
    }
}

/// A thread that takes a CPU away from all others.
#[derive(Debug)]
pub(super) struct Thief {
    pub(super) cpu: CpuId,
    pub(super) thread: ThreadId,
    pub(super) works: bool,
    /// Work after the present work (ns).
    pub(super) more_ns: u64,
}

/// A port of the switch: a guest, or beyond the guests an uplink.
pub(super) type PortId = usize;

/// One link of an uplink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// The link to the peer.
    Out,
    /// The link from the peer.
    In,
}

/// One of a port's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Side {
    Rx,
    Tx,
}

/// An event in a host, with the part of the host that it concerns.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    Cpu(cpus::Event),
    /// A load begins.
    Start(usize),
    /// The next datagram of a load is due.
    Datagram(usize),
    /// A client of a load sends its next request.
    Request(usize),
    /// The sender of a load's segments checks its timer.
    Resend(usize),
    /// The receiver of a load's segments checks if it owes an acknowledgement.
    DelayedAck(usize),
    /// A guest's poll timer fires, if the number still matches.
    GuestTimer(usize, u64),
    /// The tick of a guest's kernel.
    GuestTick(usize),
    /// The nested hypervisor of a guest polls.
    HypervisorTimer(usize),
    /// A sleeping worker's timer fires, if the sleep's number still matches.
    WorkerTimer(usize, u64),
    /// An uplink shows gathered frames to the host.
    Gathered(usize),
    /// A frame has left one end of a link.
    Served(usize, Direction),
    /// A frame has reached the other end.
    Arrived(usize, Direction),
    /// A fault begins.
    Fault(usize),
    /// A fault ends.
    FaultOver(usize),
    /// The placer takes a look.
    Look,
    /// Queues may move between workers.
    Dispatch,
    /// The manager looks at latency budgets.
    Budget,
    /// A CPU's tick occurs.
    Tick(usize),
}

impl From<cpus::Event> for Event {
    fn from(event: cpus::Event) -> Self {
        Self::Cpu(event)
    }
}

/// The owner of a thread.
#[derive(Clone, Copy, Debug)]
pub(super) enum Owner {
    Worker(usize),
    Guest(usize),
    /// A host's interrupt controller.
    Demux(usize),
    Rival,
    Thief(usize),
    /// A CPU's tick.
    Tick,
}
