//! A worker: the loop of `engine/working/worker.rs`, cut where time passes.
//!
//! The original calls the kernel and waits. Here each step returns its duration, and the next step
//! runs when the worker's thread has spent that time. `weir_policy::pace` chooses between
//! busy-polling, a nap and sleep, as in the engine.

mod queues;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use weir_limits::{BURST_MAX, PARKED_NS_MAX, TAP_BURST_MAX};
use weir_policy::lateness::Lateness;
use weir_policy::law::Law;
use weir_policy::pace::{Pace, Rest, Successors};

use super::Host;
use super::parts::{Event, PortId, Side};
use crate::cpus::ThreadId;
use crate::link::Frame;
use crate::profile::Profile;
use crate::report::WorkerReport;
use crate::topology::CpuId;

/// Rounds over busy queues between two polls of the epoll set.
pub(super) const ROUNDS_PER_POLL: u32 = 8;
/// Time between a dedicated worker's polls of the epoll set (ns). A kick cuts it short, so it is
/// longer than the engine's.
const DEDICATED_LOOK_NS: u64 = 10_000_000;
/// Time between a dedicated worker's polls while frames wait for a receiver (ns): the receiver may have had room for
/// them.
const STALLED_LOOK_NS: u64 = 20_000;

/// A port whose transmit queue has work, or had lately; with the time of its beginning or end.
#[derive(Clone, Copy, Debug)]
struct Queue {
    port: PortId,
    since_ns: u64,
}

/// A worker's position in its loop.
#[derive(Debug)]
pub(super) enum Phase {
    /// The worker has run out of work.
    Rest,
    /// Looks at warm queues until `end_ns`.
    Look { start_ns: u64, end_ns: u64 },
    /// Falls asleep, after one more look at its queues.
    Settle { rest: Rest },
    /// Sleeps; naps if there is a length.
    Asleep { nap_ns: Option<u64> },
    /// Wakes up from the sleep.
    Awake { nap_ns: Option<u64> },
    /// Retries parked frames of these queues.
    Retry(Vec<PortId>),
    /// Serves a round: `left` queues remain; `any`: one was served.
    Round { left: usize, any: bool },
    /// Forwards a burst.
    Burst(Burst),
}

#[derive(Debug)]
pub(super) struct Burst {
    pub(super) port: PortId,
    frames: Vec<Frame>,
    /// Frames whose receivers had no buffers at the beginning: examined, and not copied.
    rest: Vec<Frame>,
    /// The frames were parked before.
    again: bool,
    next: Box<Phase>,
}

enum Step {
    /// Continue with the next step at once.
    Next,
    /// Work for this time (ns).
    Work(u64),
    /// Sleep.
    Sleep,
}

#[derive(Debug)]
pub(super) struct Worker {
    pub(super) thread: ThreadId,
    pub(super) phase: Phase,
    pace: Pace,
    successors: Successors<PortId>,
    ready: VecDeque<Queue>,
    warm: Vec<Queue>,
    /// Time of the last look at the warm queues (ns), if they had no work.
    looked_ns: u64,
    /// Time of the last burst (ns).
    taken_ns: u64,
    /// Duration of the last burst (ns).
    burst_ns: u64,
    rounds: u32,
    /// Kicks that the worker has not seen.
    kicked: Vec<(PortId, Side)>,
    /// Ports with parked frames, and when the oldest have waited long enough (ns).
    stalled: Vec<(PortId, u64)>,
    /// A receiver with waiting frames has buffers.
    pub(super) retry: bool,
    /// Held calls with their deadlines.
    pub(super) holds: BinaryHeap<Reverse<(u64, PortId, Side)>>,
    /// Additional work, done before anything else (ns).
    pub(super) debt_ns: u64,
    /// The worker is doing that work.
    pays: bool,
    sleeps: u64,
    /// Lateness of timers, and duration of bursts.
    lateness: Lateness,
    /// Planned end of the present or last sleep (ns), and whether the timer ended it.
    timer_ns: Option<u64>,
    timer_fired: bool,
    /// Time of the last timer for deadlines (ns), which may be obsolete.
    set_ns: Option<u64>,
    pub(super) did: WorkerReport,
    cpu_from_ns: u64,
}

impl Worker {
    pub(super) fn new(thread: ThreadId, law: &'static Law) -> Self {
        Self {
            thread,
            phase: Phase::Rest,
            pace: Pace::under(law),
            successors: Successors::default(),
            ready: VecDeque::new(),
            warm: Vec::new(),
            looked_ns: 0,
            taken_ns: 0,
            burst_ns: 0,
            rounds: 0,
            kicked: Vec::new(),
            stalled: Vec::new(),
            retry: false,
            holds: BinaryHeap::new(),
            debt_ns: 0,
            pays: false,
            sleeps: 0,
            lateness: Lateness::default(),
            timer_ns: None,
            timer_fired: false,
            set_ns: None,
            did: WorkerReport::default(),
            cpu_from_ns: 0,
        }
    }

    pub(super) fn forget(&mut self, cpu_ns: u64) {
        self.did = WorkerReport::default();
        self.cpu_from_ns = cpu_ns;
    }

    pub(super) fn report(&self, cpu_ns: u64, last_cpu: Option<CpuId>) -> WorkerReport {
        WorkerReport { cpu_ns: cpu_ns - self.cpu_from_ns, last_cpu, ..self.did.clone() }
    }

    /// Iterates over the frames that are being forwarded.
    pub(super) fn frames(&self) -> impl Iterator<Item = &Frame> {
        let burst = match &self.phase {
            Phase::Burst(burst) => Some(burst.frames.iter().chain(&burst.rest)),
            _ => None,
        };
        burst.into_iter().flatten()
    }

    fn is_ready(&self, port: PortId) -> bool {
        self.ready.iter().any(|ready| ready.port == port)
    }

    fn is_warm(&self, port: PortId) -> bool {
        self.warm.iter().any(|warm| warm.port == port)
    }
}

impl Host<'_> {
    /// Starts a worker, asleep.
    pub(super) fn start_worker(&mut self, worker: usize) {
        self.workers[worker].phase = Phase::Asleep { nap_ns: None };
    }

    pub(super) fn kicked(&mut self, port: PortId, side: Side) {
        let worker = self.owner(port);
        self.workers[worker].kicked.push((port, side));
        if let (Phase::Look { end_ns, .. }, true) =
            (&mut self.workers[worker].phase, self.scenario.realization.dedicated)
        {
            let (look_ns, now_ns) = (self.scenario.profile.look_ns, self.calendar.now_ns());
            *end_ns = (*end_ns).min(now_ns + look_ns);
            self.cpus.cut(&mut self.calendar, self.workers[worker].thread, look_ns);
        }
        let latency_ns = self.delays.wakeup_ns();
        self.wake(worker, latency_ns);
    }

    /// Notes a frame that came without a kick: a busy-polling worker finds it.
    pub(super) fn appeared(&mut self, port: PortId) {
        let worker = self.owner(port);
        let this = &self.workers[worker];
        let Worker { phase, warm, thread, pays, .. } = this;
        if matches!(phase, Phase::Look { .. }) && !pays && this.is_warm(port) {
            let mut look_ns = self.scenario.profile.look_ns;
            if self.scenario.realization.dedicated {
                // The worker reaches the frame after half of its queues, on average.
                look_ns = look_ns * (warm.len() as u64 + 1) / 2;
            }
            self.cpus.cut(&mut self.calendar, *thread, look_ns);
        }
    }

    /// Wakes a worker, if it sleeps.
    pub(super) fn wake(&mut self, worker: usize, latency_ns: u64) {
        let sleep_ns =
            self.after_idle_ns(self.workers[worker].thread, self.scenario.profile.sleep_ns);
        let Worker { phase, thread, sleeps, timer_fired, .. } = &mut self.workers[worker];
        if let Phase::Asleep { nap_ns } = *phase {
            *phase = Phase::Awake { nap_ns };
            *sleeps += 1;
            let timer_fired_ns = self.scenario.profile.timer_fired_ns;
            let work_ns = sleep_ns + if *timer_fired { timer_fired_ns } else { 0 };
            self.cpus.wake(&mut self.calendar, *thread, work_ns, latency_ns);
        }
    }

    /// Handles the end of a worker's step.
    pub(super) fn worker_done(&mut self, worker: usize) {
        let thread = self.workers[worker].thread;
        loop {
            // Additional work comes first, except during a burst, whose delivery is part of it.
            let delivers = matches!(self.workers[worker].phase, Phase::Burst(_));
            let debt_ns = match delivers {
                true => 0,
                false => std::mem::take(&mut self.workers[worker].debt_ns),
            };
            self.workers[worker].pays = debt_ns > 0;
            let step = if debt_ns > 0 { Step::Work(debt_ns) } else { self.step(worker) };
            match step {
                Step::Next => {}
                Step::Work(ns) => return self.cpus.go_on(&mut self.calendar, thread, ns),
                Step::Sleep => return self.cpus.block(&mut self.calendar, thread),
            }
        }
    }

    fn step(&mut self, worker: usize) -> Step {
        match std::mem::replace(&mut self.workers[worker].phase, Phase::Rest) {
            Phase::Rest | Phase::Asleep { .. } => self.rest(worker),
            Phase::Look { start_ns, end_ns } => self.look_on(worker, start_ns, end_ns),
            Phase::Settle { rest } => self.fall_asleep(worker, rest),
            Phase::Awake { nap_ns } => self.awake(worker, nap_ns),
            Phase::Retry(ports) => self.retry(worker, ports),
            Phase::Round { left, any } => self.round(worker, left, any),
            Phase::Burst(burst) => self.forward(worker, burst),
        }
    }

    fn how_to_rest(&mut self, worker: usize, now_ns: u64) -> Rest {
        let wait_ns_max = self.wait_ns_max.saturating_sub(self.lead_ns(worker));
        let awaited = self.awaited(worker).map(|(memory, _)| memory);
        let Worker { warm, pace, stalled, .. } = &mut self.workers[worker];
        if warm.is_empty() {
            return Rest::Sleep;
        }
        if self.scenario.realization.dedicated {
            // Frames that wait for a receiver are retried at each end of a look.
            let waits = !self.workers[worker].stalled.is_empty();
            return Rest::Poll(if waits { STALLED_LOOK_NS } else { DEDICATED_LOOK_NS });
        }
        match pace.rest(now_ns, wait_ns_max, awaited) {
            Rest::Poll(_) if !stalled.is_empty() => Rest::Sleep,
            rest => rest,
        }
    }

    /// Returns the queue that usually has work next, if the worker polls it, with the memory of polls for it.
    fn awaited(&self, worker: usize) -> Option<(usize, PortId)> {
        let awaited = self.workers[worker].successors.awaited();
        awaited.filter(|_| self.scenario.realization.awaits_answers)
    }

    /// Chooses what to do without work.
    fn rest(&mut self, worker: usize) -> Step {
        let now_ns = self.now_ns();
        self.workers[worker].looked_ns = now_ns;
        if self.scenario.realization.dedicated && !self.workers[worker].kicked.is_empty() {
            self.workers[worker].debt_ns += self.scenario.profile.poll_ns;
            self.look_at_kicks(worker);
            return self.retries(worker);
        }
        match self.how_to_rest(worker, now_ns) {
            Rest::Poll(window_ns) => {
                let end_ns = now_ns + window_ns;
                let awaited = self.awaited(worker).map(|(_, port)| port);
                let awaited = awaited.filter(|port| self.owner(*port) == worker);
                let this = &mut self.workers[worker];
                this.did.looks += 1;
                let look = Phase::Look { start_ns: now_ns, end_ns };
                match awaited.filter(|port| !this.is_ready(*port) && !this.is_warm(*port)) {
                    Some(port) => {
                        this.taken_ns = now_ns;
                        let frames = self.take_new(port, now_ns);
                        self.begin(worker, port, frames, false, look)
                    }
                    None => {
                        this.phase = look;
                        Step::Next
                    }
                }
            }
            rest => self.lie_down(worker, rest),
        }
    }

    /// Looks at warm queues until one has work or the time is up.
    fn look_on(&mut self, worker: usize, start_ns: u64, end_ns: u64) -> Step {
        let now_ns = self.now_ns();
        if self.scenario.realization.dedicated {
            // The worker polled each of its warm queues in the previous round.
            let Worker { warm, looked_ns, .. } = &mut self.workers[worker];
            let round_ns = self.scenario.profile.look_ns * warm.len() as u64;
            *looked_ns = (*looked_ns).max(now_ns.saturating_sub(round_ns));
        }
        self.look_at_warm(worker, None);
        let this = &mut self.workers[worker];
        if !this.ready.is_empty() {
            this.pace.polled(Some(now_ns - start_ns));
            return self.retries(worker);
        }
        this.looked_ns = now_ns;
        if now_ns >= end_ns && self.scenario.realization.dedicated {
            self.look_at_kicks(worker);
            self.workers[worker].phase = Phase::Rest;
            return self.retries(worker);
        }
        if now_ns >= end_ns {
            this.pace.polled(None);
            let rest = self.how_to_rest(worker, start_ns);
            return self.lie_down(worker, rest);
        }
        this.phase = Phase::Look { start_ns, end_ns };
        let work_ns = self.work_ns(worker);
        self.expire_holds(worker, work_ns);
        let this = &mut self.workers[worker];
        if this.debt_ns > 0 {
            return Step::Next;
        }
        let hold_ns = this.hold_ns(work_ns).unwrap_or(end_ns);
        Step::Work(hold_ns.min(end_ns).saturating_sub(now_ns).max(self.scenario.profile.look_ns))
    }

    /// Prepares a nap or a sleep, which may take time.
    fn lie_down(&mut self, worker: usize, rest: Rest) -> Step {
        self.expire_holds_before_sleep(worker);
        let Profile { settle_ns, timer_set_ns, .. } = self.scenario.profile;
        let sets_timer = self.workers[worker].sets_timer(rest, self.now_ns(), self.lead_ns(worker));
        let settle_ns = self.after_idle_ns(self.workers[worker].thread, settle_ns);
        match settle_ns + if sets_timer { timer_set_ns } else { 0 } {
            0 => self.fall_asleep(worker, rest),
            settle_ns => {
                self.workers[worker].phase = Phase::Settle { rest };
                Step::Work(settle_ns)
            }
        }
    }

    /// Naps or sleeps, unless there is work.
    fn fall_asleep(&mut self, worker: usize, rest: Rest) -> Step {
        let now_ns = self.now_ns();
        let nap_ns = match rest {
            Rest::Nap(nap_ns) => Some(nap_ns),
            Rest::Poll(_) | Rest::Sleep => None,
        };
        if nap_ns.is_none() {
            // Turns kicks on, and looks once more.
            self.look_at_warm(worker, Some(0));
        }
        let Worker { ready, pace, kicked, retry, stalled, phase, sleeps, .. } =
            &mut self.workers[worker];
        if !ready.is_empty() {
            pace.slept();
            return self.retries(worker);
        }
        if !kicked.is_empty() || (*retry && !stalled.is_empty()) {
            *phase = Phase::Awake { nap_ns };
            return Step::Work(self.scenario.profile.poll_ns);
        }
        *phase = Phase::Asleep { nap_ns };
        *sleeps += 1;
        let sleep = *sleeps;
        self.workers[worker].timer_fired = false;
        self.workers[worker].did.naps += u64::from(nap_ns.is_some());
        let nap_ns = nap_ns.map(|nap_ns| now_ns + nap_ns);
        let lead_ns = self.lead_ns(worker);
        let until_ns = self.workers[worker].deadline_ns(lead_ns).into_iter().chain(nap_ns).min();
        let until_ns = until_ns.map(|until_ns| until_ns.max(now_ns));
        let fires_ns = self.workers[worker].fires_ns(until_ns, nap_ns.is_some(), now_ns);
        self.workers[worker].timer_ns = until_ns.and(fires_ns);
        if let Some(fires_ns) = fires_ns {
            let late_ns = fires_ns + self.delays.timer_late_ns();
            self.calendar.at(late_ns, Event::WorkerTimer(worker, sleep));
        }
        Step::Sleep
    }

    /// Handles the end of a sleep.
    fn awake(&mut self, worker: usize, nap_ns: Option<u64>) -> Step {
        let now_ns = self.now_ns();
        self.workers[worker].did.wakeups += 1;
        let this = &mut self.workers[worker];
        this.lateness.took(this.burst_ns);
        this.note_lateness(now_ns);
        self.look_at_kicks(worker);
        if let Some(nap_ns) = nap_ns {
            self.look_at_warm(worker, Some(nap_ns));
        } else if !self.workers[worker].ready.is_empty() {
            self.workers[worker].pace.slept();
        }
        if self.workers[worker].ready.is_empty() {
            self.expire_holds_before_sleep(worker);
        } else if self.scenario.realization.timers_ahead {
            // Calls that are due soon also serve the frames it takes next.
            self.expire_holds(worker, self.work_ns(worker));
        }
        self.retries(worker)
    }

    /// Retries the parked frames that are due.
    fn retries(&mut self, worker: usize) -> Step {
        let now_ns = self.now_ns();
        let this = &mut self.workers[worker];
        let asked = std::mem::take(&mut this.retry);
        let due = this.stalled.iter().filter(|(_, until_ns)| asked || *until_ns <= now_ns);
        this.phase = Phase::Retry(due.map(|(port, _)| *port).collect());
        Step::Next
    }

    fn retry(&mut self, worker: usize, mut ports: Vec<PortId>) -> Step {
        let Some(port) = ports.pop() else {
            let left = self.workers[worker].ready.len();
            self.workers[worker].phase = Phase::Round { left, any: left > 0 };
            return Step::Next;
        };
        // The queue may have moved to another worker since.
        if self.owner(port) != worker {
            return self.retry(worker, ports);
        }
        self.workers[worker].taken_ns = self.now_ns();
        let frames = self.take_waiting(worker, port);
        self.begin(worker, port, frames, true, Phase::Retry(ports))
    }

    fn round(&mut self, worker: usize, left: usize, any: bool) -> Step {
        let now_ns = self.now_ns();
        let next_left = left.checked_sub(1);
        if let (Some(left), Some(Queue { port, since_ns })) =
            (next_left, next_left.and_then(|_| self.workers[worker].ready.pop_front()))
        {
            let frames = self.take_new(port, since_ns.min(now_ns));
            self.workers[worker].taken_ns = now_ns;
            return self.begin(worker, port, frames, false, Phase::Round { left, any });
        }
        if !any {
            self.expire_holds(worker, 0);
            self.workers[worker].phase = Phase::Rest;
            return Step::Next;
        }
        let before_ns = self.workers[worker].taken_ns;
        let keep_ns = (!self.scenario.realization.dedicated).then_some(self.scenario.law.warm_ns);
        self.look_at_warm(worker, keep_ns);
        self.workers[worker].looked_ns = before_ns;
        self.expire_holds(worker, 0);
        self.workers[worker].debt_ns += self.scenario.profile.look_ns;
        self.workers[worker].rounds += 1;
        if self.workers[worker].rounds >= ROUNDS_PER_POLL {
            self.workers[worker].debt_ns += self.scenario.profile.poll_ns;
            self.look_at_kicks(worker);
        }
        self.retries(worker)
    }

    /// Begins to forward a burst. Frames whose receivers have no buffers now are examined, and not
    /// copied.
    fn begin(
        &mut self,
        worker: usize,
        port: PortId,
        all: Vec<Frame>,
        again: bool,
        next: Phase,
    ) -> Step {
        let profile = &self.scenario.profile;
        let cpu = self.cpus.last_cpu(self.workers[worker].thread);
        let is_uplink = |port: PortId| port >= self.guests.len();
        let reads = is_uplink(port) && !again;
        let mut room = self.room(port, again);
        let mut ns = profile.burst_ns;
        let (frames, rest) = all.into_iter().partition(|frame| {
            let to = self.next_port(port, frame);
            ns += profile.take_ns(frame.bytes, reads) + self.far_ns(frame.cpu, cpu);
            let fits = is_uplink(to) || room.is_for(frame, to, &self.guests[to].rx);
            ns += if fits { profile.place_ns(frame.bytes, is_uplink(to)) } else { 0 };
            fits
        });
        self.dispatcher.took(port, ns);
        self.workers[worker].phase =
            Phase::Burst(Burst { port, frames, rest, again, next: next.into() });
        Step::Work(ns)
    }

    /// Makes a copied burst visible.
    fn forward(&mut self, worker: usize, burst: Burst) -> Step {
        let now_ns = self.now_ns();
        let Burst { port, frames, rest, again, next } = burst;
        let taken = frames.len() + rest.len();
        let bytes = frames.iter().chain(&rest).map(|frame| u64::from(frame.bytes)).sum();
        self.carries(worker, port, &frames);
        self.deliver(worker, port, frames, rest, again);
        let more = self.peek(port);
        let oldest_ns = self.waiting[port].front().map(|frame| frame.arrived_ns + PARKED_NS_MAX);
        let guest = port < self.guests.len();
        let this = &mut self.workers[worker];
        this.burst_ns = now_ns - this.taken_ns + this.debt_ns;
        this.did.bursts += u64::from(taken > 0);
        this.did.frames += taken as u64;
        this.pace.served(taken, bytes);
        if taken > 0 {
            this.successors.served(port, port, guest);
        }
        this.stalled.retain(|(stalled, _)| *stalled != port);
        this.stalled.extend(oldest_ns.map(|until_ns| (port, until_ns)));
        this.phase = *next;
        let since_ns = this.taken_ns;
        let burst_max = if guest { BURST_MAX } else { TAP_BURST_MAX };
        if again {
            if more && !this.is_ready(port) && !this.is_warm(port) {
                this.ready.push_back(Queue { port, since_ns: now_ns });
            }
        } else if more || taken >= burst_max {
            this.ready.push_back(Queue { port, since_ns });
        } else if guest || self.scenario.realization.dedicated {
            this.warm.push(Queue { port, since_ns: now_ns });
        } else {
            self.set_kicks(port, true);
        }
        self.hand_over(worker, port);
        Step::Next
    }
}
