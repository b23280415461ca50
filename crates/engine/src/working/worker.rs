//! A worker: the thread that serves queues. Its loop is the whole life of a packet in weir:
//!
//! ```text
//! sleep ── kick ──▶ take a burst ──▶ forward it ──▶ ... until its queues are empty ──▶ poll,
//!                   (Port::take)     (Forwarder: FDB, then Port::deliver per receiver)  nap, or
//!                                                                                    arm and sleep
//! ```
//!
//! | file | what |
//! |---|---|
//! | `worker.rs` | the loop |
//! | `worker/rest.rs` | without work: poll, nap or sleep, and wake up |
//! | `worker/kicked.rs` | kicks, ignored kicks, and retries of frames that wait for a receiver |
//! | `worker/on_time.rs` | held calls on time, although timers are late and bursts take time |
//!
//! While a worker is awake, its queues' kicks are suppressed; before it sleeps it enables them and polls once more.
//! [`weir_policy::pace`] decides how long it polls before that. Without traffic it sleeps without a timeout.

mod kicked;
mod on_time;
mod rest;

use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::event::epoll;
use weir_fabric::PortId;
use weir_guestmem::monitor::Pause;
use weir_limits::{LATENCY_BUDGET_NS_MAX, WORKER_PANICS_MAX};
use weir_policy::lateness::Lateness;
use weir_policy::pace::{Pace, Successors};

use crate::frames::burst::{Burst, Scratch};
use crate::frames::port::QueueRef;
use crate::frames::port::{PANICKED, Side, Take, Taken};
use crate::lost::blocked;
use crate::lost::cpu_loss;
use crate::lost::dear;
use crate::switching::switch::{Forwarder, Hold, InBond, Ingress, Ports, Slot, slot};
use crate::taps::tap;
use crate::threads::beat::{Beats, Place, Role};
use crate::threads::clock;
use crate::threads::stages;
use crate::working::crew::WorkerHandle;
use crate::working::holds::Holds;
use crate::working::kicks::Kicks;
use crate::working::poller::Event;
use crate::working::run_queue::Warm;
use crate::working::run_queue::{Ready, RunQueue, Turn};
use crate::working::shared::Shared;
use crate::working::stalls::{Retry, Stalls};

/// Rounds over busy queues between two polls of the epoll set. A queue that wakes up waits for at most this number of
/// bursts of each busy queue.
const ROUNDS_PER_POLL: u32 = 8;
/// Events taken from the kernel at once.
const EVENTS_MAX: usize = 64;
/// Lateness that the kernel may add to a timer to join it with others (ns).
const TIMER_SLACK_NS: u64 = 1_000;

/// A queue that may have work. Only transmit queues are served; receive queues are filled.
type TxQueue = QueueRef;

/// The loop.
impl Worker {
    /// Serves queues until the engine stops.
    fn serve(&mut self) {
        while !self.is_stopping() {
            self.rest();
            self.begin_round();
            while !self.ready.is_empty() && !self.is_stopping() {
                for _ in 0..self.ready.len() {
                    self.serve_next();
                    self.expire_holds_after_burst();
                }
                self.look_at_warm_after_round();
                self.begin_round();
                self.rounds += 1;
                if self.rounds >= ROUNDS_PER_POLL {
                    self.poll();
                }
            }
        }
    }

    /// Serves one burst of the next queue.
    fn serve_next(&mut self) {
        let now_ns = self.fresh_ns.take().unwrap_or_else(clock::now_ns);
        let Some(Ready { queue, since_ns }) = self.ready.next(now_ns) else { return };
        let turn = self.ready.turn(queue.port, now_ns);
        self.beats.beat(Place::Serves, Some(queue.port));
        match self.take(queue, Take::New, turn, since_ns, now_ns) {
            Some(taken) => self.put_back(Ready { queue, since_ns: now_ns }, turn, taken),
            None => self.let_go(queue, turn),
        }
    }

    /// Takes the frames that `turn` allows, at `now_ns`, and forwards them; new frames arrived at `since_ns` at the
    /// earliest. The sender pays the cost. `None` if the port was removed, or the queue has another worker.
    fn take(
        &mut self,
        queue: TxQueue,
        what: Take,
        turn: Turn,
        since_ns: u64,
        now_ns: u64,
    ) -> Option<Taken> {
        let begun = self.ready.begin(now_ns);
        stages::begin();
        let ports = self.shared.ports.load();
        let slot = slot(&ports, queue.port).filter(|slot| is_of(self.index, slot, queue))?;
        self.taken_ns = now_ns;
        self.scratch.frames_max = turn.frames_max().min(self.ready.frames_max(queue));
        let burst = self.forward(slot, &ports, queue, what, since_ns.min(now_ns), now_ns);
        self.note(queue, what, &burst);
        self.age(now_ns);

        let Forwarded { taken, on_wire, .. } = burst;
        self.ready.settle(queue.port, turn, taken.frames, on_wire);
        let others_ns = if dear::any() { charge_calls(&mut self.ready, &ports) } else { 0 };
        let cost = self.ready.charge(queue.port, begun, others_ns);
        self.ready.took(queue, cost.worker_ns);
        self.kicks.brought(queue, taken.frames);
        slot.counters.charge(cost.worker_ns, cost.violations);
        self.burst_ns = cost.worker_ns + others_ns;
        if let Some(pair) = slot.pairs.get(queue.queue) {
            pair.busy_ns.add(cost.worker_ns);
        }
        Some(taken)
    }

    /// Makes the port take a burst, and the switch deliver the burst.
    #[inline]
    fn forward(
        &mut self,
        slot: &Slot,
        ports: &Ports,
        queue: TxQueue,
        what: Take,
        since_ns: u64,
        now_ns: u64,
    ) -> Forwarded {
        let (mut sent_bytes, mut on_wire, mut parked) = (0, (0, 0), 0);
        let Self { scratch, forwarder, stalls, shared, .. } = self;
        let taken = catch_unwind(AssertUnwindSafe(|| {
            let mut forward = |burst: &mut Burst<'_>| {
                blocked::bring_in(burst);
                sent_bytes = burst.bytes();
                on_wire = burst.on_wire();
                // The view is read after the frames were taken, so they reach all ports that were present when they
                // were sent.
                let view = shared.fabric.view();
                let port = match &slot.in_bond {
                    None => queue.port,
                    Some(InBond { comes_in_by, inbox }) => {
                        inbox.iter().for_each(|inbox| inbox.look(burst.frames()));
                        comes_in_by.unwrap_or(queue.port)
                    }
                };
                let counters = &slot.counters;
                forwarder.forward(Ingress { view: &view, ports, port, counters, now_ns }, burst);
                parked = burst.room.parked.len();
                for parked in &burst.room.parked {
                    stalls.waits(queue, parked.port);
                }
            };
            let take = || slot.port.take(queue.queue, what.at(since_ns), scratch, &mut forward);
            blocked::touching(queue.port, take)
        }));
        let taken = taken.unwrap_or_else(|_| {
            // No action of a guest should lead here. If one does, only its own port stops.
            slot.port.fail(PANICKED);
            *scratch = Scratch::default();
            forwarder.start_over(ports);
            Taken::default()
        });
        Forwarded { taken, sent_bytes, on_wire, parked }
    }

    /// Decides what becomes of a queue after its burst: it has another turn, waits for its rate, is polled, or asks for
    /// a kick.
    fn put_back(&mut self, ready: Ready, turn: Turn, taken: Taken) {
        let queue = ready.queue;
        if let Turn::WaitUntil(until_ns) = turn {
            // No frame was taken, and the queue's kicks are suppressed now.
            self.ready.wait(ready, until_ns);
            let ports = self.shared.ports.load();
            if let Some(slot) = slot(&ports, queue.port) {
                slot.counters.rate_waits.add(1);
            }
        } else if taken.more || taken.frames >= self.scratch.frames_max {
            self.ready.again(ready);
        } else if taken.peek {
            self.warm.insert(queue, self.served_ns());
        } else {
            let ports = self.shared.ports.load();
            self.touched = Some(queue.port);
            let arm = |slot: &Slot| blocked::touching(queue.port, || slot.port.arm_tx(queue.queue));
            if slot(&ports, queue.port).is_some_and(arm) {
                self.ready.again(ready);
            }
        }
    }

    /// Gives up a queue that now has another worker, or none.
    #[cold]
    fn let_go(&mut self, queue: TxQueue, turn: Turn) {
        self.ready.settle(queue.port, turn, 0, (0, 0));
        let ports = self.shared.ports.load();
        if let Some(slot) = slot(&ports, queue.port) {
            hand_over(&self.shared, slot, queue);
        }
    }

    /// Notes the work that a burst leaves for later: held calls, and waiting frames.
    #[inline]
    fn note(&mut self, queue: TxQueue, what: Take, burst: &Forwarded) {
        let &Forwarded { taken, sent_bytes, parked, .. } = burst;
        stages::end(taken.frames);
        self.handle.bursts.add(u64::from(taken.frames > 0));
        if taken.frames > 0 {
            let number = usize::from(queue.port.get()) + queue.queue;
            self.successors.served(queue, number, taken.peek);
        }
        self.pace.served(taken.frames, sent_bytes);
        for hold in self.forwarder.holds.drain(..) {
            self.holds.push(hold);
        }
        if let Some(until_ns) = taken.hold_until {
            let QueueRef { port, queue, side } = queue;
            self.holds.push(Hold { until_ns, port, queue, side });
        }
        let is_new = self.stalls.note(queue, taken.parked_until);
        // Another worker has parked frames. Their receivers' kicks may have come before this worker knew of the frames.
        if is_new && taken.parked > parked && what != Take::Parked(None) {
            self.retries.push(Retry::Sender(queue));
        }
        self.retries.extend(self.forwarder.refilled.drain(..).map(Retry::Receiver));
    }

    /// Brings back queues that have tokens again, and retries frames that waited for a receiver.
    fn begin_round(&mut self) {
        for (port, ns) in blocked::take_found() {
            self.stop_who_blocks(port, ns);
        }
        self.ready.refresh(&self.shared.shares, clock::now_ns);
        self.retry_stalled();
    }

    /// Stops a port whose memory keeps this worker waiting.
    #[cold]
    fn stop_who_blocks(&self, port: PortId, ns: u64) {
        let ports = self.shared.ports.load();
        if let Some(slot) = slot(&ports, port) {
            slot.port.blocks(ns);
        }
    }

    fn is_stopping(&self) -> bool {
        self.shared.stopping.load(Ordering::Relaxed)
    }

    /// Once a second under traffic, sweeps a part of the forwarding table. Lookups check an entry's age themselves; the
    /// sweep only makes room.
    fn age(&mut self, now_ns: u64) {
        let now_secs = clock::secs(now_ns);
        if std::mem::replace(&mut self.aged_secs, now_secs) != now_secs {
            self.shared.fabric.fdb().age(now_secs);
        }
    }
}

struct Forwarded {
    taken: Taken,
    sent_bytes: u64,
    /// See [`Burst::on_wire`].
    on_wire: (u64, u64),
    /// Frames of the burst that wait for receivers.
    parked: usize,
}

pub(crate) struct Worker {
    shared: Arc<Shared>,
    index: usize,
    handle: Arc<WorkerHandle>,
    scratch: Scratch,
    forwarder: Forwarder,
    events: Vec<epoll::Event>,
    kicked: Vec<Event>,
    /// Transmit queues with work.
    ready: RunQueue,
    warm: Warm,
    pace: Pace,
    successors: Successors<QueueRef>,
    /// The time (ns), before the last poll of the warm queues, at which none of them had work.
    looked_ns: u64,
    /// The time at which the worker came back from its last sleep (ns).
    woken_ns: u64,
    /// The time at which the worker woke up or saw work (ns). It holds until the worker takes a
    /// burst or spends time otherwise, so that one reading of the clock serves both.
    fresh_ns: Option<u64>,
    /// The time at which the last burst was taken (ns).
    taken_ns: u64,
    /// The duration of the last burst (ns).
    burst_ns: u64,
    /// Rounds since the last poll of the epoll set.
    rounds: u32,
    stalls: Stalls,
    /// Frames to be retried in the next round.
    retries: Vec<Retry>,
    /// Room for the queues of these frames.
    retried: Vec<TxQueue>,
    holds: Holds,
    kicks: Kicks,
    /// The time at which the timer set for a held call fires (ns).
    timer_ns: Option<u64>,
    lateness: Lateness,
    /// The shortest wait that receiving ports allow (ns), and the time at which it was looked up.
    wait_ns_max: (u64, u64),
    /// The time at which this worker last swept the forwarding table (s).
    aged_secs: u32,
    /// The port that the worker accessed last, which is blamed for a panic.
    touched: Option<PortId>,
    /// The number of panics for which no port was blamed.
    panics: u32,
    beats: Beats,
    /// The pause between two looks of a worker that polls all the time.
    pause: Pause,
}

impl Worker {
    pub(crate) fn new(shared: Arc<Shared>, index: usize, handle: Arc<WorkerHandle>) -> Self {
        let ready = RunQueue::new(shared.shares.schedule());
        Self {
            shared,
            index,
            handle,
            scratch: Scratch::default(),
            forwarder: Forwarder::of(index),
            events: Vec::with_capacity(EVENTS_MAX),
            kicked: Vec::with_capacity(EVENTS_MAX),
            ready,
            warm: Warm::default(),
            pace: Pace::default(),
            successors: Successors::default(),
            looked_ns: 0,
            woken_ns: 0,
            fresh_ns: None,
            taken_ns: 0,
            burst_ns: 0,
            rounds: 0,
            stalls: Stalls::default(),
            retries: Vec::new(),
            retried: Vec::new(),
            holds: Holds::default(),
            kicks: Kicks::default(),
            timer_ns: None,
            lateness: Lateness::default(),
            wait_ns_max: (LATENCY_BUDGET_NS_MAX, 0),
            aged_secs: 0,
            touched: None,
            panics: 0,
            beats: Beats::begin(format!("weir-worker-{index}"), Role::Worker),
            pause: Pause::default(),
        }
    }

    pub(crate) fn run(mut self) {
        // Guests' memory is large, and unmapping it takes long.
        weir_guestmem::leave_unmapping_to_others();
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        self.handle.thread_id.store(tid.unsigned_abs(), Ordering::Relaxed);
        stages::enter(self.index);
        tap::enter(self.index);
        cpu_loss::enter(self.shared.crew.options.cpu_clock);
        self.shared.watcher.enter();
        // The kernel's default of 50 us would double a nap. If the kernel refuses, naps and holds are longer.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(TIMER_SLACK_NS));
        self.shared.gate.pass();
        while catch_unwind(AssertUnwindSafe(|| self.serve())).is_err() {
            self.recover();
        }
    }

    /// Recovers from a panic in the service of a port. That port stops. The worker has lost its notes, and polls all
    /// its queues again.
    #[cold]
    fn recover(&mut self) {
        let ports = self.shared.ports.load();
        let touched = self.touched.take();
        match touched.and_then(|port| slot(&ports, port)) {
            Some(slot) => slot.port.fail(PANICKED),
            None => {
                tracing::error!(
                    worker = self.index,
                    "a worker panicked and is started again (please report it)"
                );
                self.panics += 1;
                if self.panics > WORKER_PANICS_MAX {
                    tracing::error!(worker = self.index, "a worker panicked too often: weir ends");
                    std::process::abort();
                }
            }
        }
        self.scratch = Scratch::default();
        self.forwarder.start_over(&ports);
        self.stalls.hurry();
        // Kicks that are not handled yet are handled after this.
        self.handle.poller.wake();
        for (port, slot) in ports.iter().enumerate() {
            let Some((slot, port)) = slot.as_ref().zip(PortId::new(port as u16)) else { continue };
            if touched == Some(port) {
                continue;
            }
            for (queue, pair) in slot.pairs.iter().enumerate() {
                if pair.is_served_by(self.index) {
                    for side in [Side::Tx, Side::Rx] {
                        self.handle.poller.nudge(QueueRef { port, queue, side });
                    }
                }
            }
        }
    }
}

/// Charges expensive calls to the called ports, and returns their total time (ns).
#[cold]
fn charge_calls(ready: &mut RunQueue, ports: &Ports) -> u64 {
    let mut all_ns = 0;
    dear::take(|port, ns| {
        all_ns += ns;
        ready.charge_call(port, ns);
        if let Some(slot) = slot(ports, port) {
            slot.counters.charge_call(ns);
        }
    });
    all_ns
}

/// True if the worker with this index serves the queue. A worker's notes can name a queue of
/// another worker until the next access.
fn is_of(worker: usize, slot: &Slot, queue: QueueRef) -> bool {
    slot.pairs.get(queue.queue).is_some_and(|pair| pair.is_served_by(worker))
}

/// Notifies another worker that it now has a queue which this worker had noted: this worker may have suppressed kicks
/// after the other worker's poll.
#[cold]
fn hand_over(shared: &Shared, slot: &Slot, queue: QueueRef) {
    if let Some(pair) = slot.pairs.get(queue.queue) {
        shared.crew.hand_over(pair, queue);
    }
}

#[cfg(test)]
mod tests;
