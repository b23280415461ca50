//! A worker: the thread that serves queues. Its loop is the whole life of a packet in weir:
//!
//! ```text
//! sleep ── kick ──▶ take a burst ──▶ forward it ──▶ ... until its queues are empty ──▶ look on,
//!                   (Port::take)     (Forwarder: FDB, then Port::deliver per receiver)  nap, or
//!                                                                                    arm and sleep
//! ```
//!
//! While it is awake its queues' kicks are off; before it sleeps it turns them on and looks once
//! more. How long it looks on before that is [`weir_policy::pace`]'s to say. With no traffic it
//! sleeps without a timeout.

use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::epoll;
use weir_fabric::PortId;
use weir_limits::{LATENCY_BUDGET_NS_MAX, TIMER_LEAD_NS_MAX, WORKER_PANICS_MAX};
use weir_policy::lateness::Lateness;
use weir_policy::pace::{Pace, Rest};

use crate::burst::Scratch;
use crate::clock;
use crate::cpu_loss;
use crate::crew::{Pair, Realization};
use crate::dear;
use crate::holds::Holds;
use crate::kicks::Kicks;
use crate::poller::{Event, QueueRef, Wait, Woken};
use crate::port::{PANICKED, Side, Take, Taken};
use crate::run_queue::{Ready, RunQueue, Turn};
use crate::shared::{Shared, WorkerHandle};
use crate::stages;
use crate::stalls::{Retry, Stalls};
use crate::switch::{Forwarder, Hold, Ingress, Ports, Slot, slot};
use crate::warm::Warm;

/// Rounds over busy queues between two looks at the epoll set: a queue that wakes up while others
/// keep the worker busy waits for at most this many bursts per busy queue.
const ROUNDS_PER_POLL: u32 = 8;
/// Events taken from the kernel at once.
const EVENTS_MAX: usize = 64;
/// How long a queue without work is looked at, kicks off, while others keep the worker busy (ns).
const WARM_NS: u64 = 100_000;
/// How long a worker with a core of its own looks at its queues before it looks at the epoll set (ns):
/// ports that cannot be looked at without a system call wait for that.
const DEDICATED_LOOK_NS: u64 = 20_000;
/// How often it is looked up how long frames may wait (ns): there may be a thousand ports.
const WAITS_NS: u64 = 1_000_000;
/// How late the kernel may end a sleep so as to join it with others (ns).
const TIMER_SLACK_NS: u64 = 1_000;

/// A queue that may have work. Only transmit queues are served; receive queues are filled.
type TxQueue = QueueRef;

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
    /// Before the last look at the warm queues, when they had no work (ns).
    looked_ns: u64,
    /// When it came back from its last sleep (ns).
    woken_ns: u64,
    /// The same, until it has taken a burst or anything else has taken time: one look at the clock is for both.
    fresh_ns: Option<u64>,
    /// When the last burst was taken (ns).
    taken_ns: u64,
    /// How long it took (ns).
    burst_ns: u64,
    /// Rounds since the last look at the epoll set.
    rounds: u32,
    stalls: Stalls,
    /// Frames to be tried again in the next round.
    retries: Vec<Retry>,
    /// Room for the queues whose frames are.
    retried: Vec<TxQueue>,
    holds: Holds,
    kicks: Kicks,
    /// When the timer fires that was set for one of them (ns).
    timer_ns: Option<u64>,
    lateness: Lateness,
    /// The shortest wait that the ports which receive allow (ns), and when it was looked up.
    wait_ns_max: (u64, u64),
    /// When this worker last swept the forwarding table (s).
    aged_secs: u32,
    /// The port that it looked at last: whom a panic is about.
    touched: Option<PortId>,
    /// Panics that were about none.
    panics: u32,
}

impl Worker {
    pub(crate) fn new(shared: Arc<Shared>, index: usize, handle: Arc<WorkerHandle>) -> Self {
        let ready = RunQueue::new(shared.crew.options.schedule);
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
        }
    }

    pub(crate) fn run(mut self) {
        // Guests' memory is large, and to unmap it takes long.
        weir_guestmem::leave_unmapping_to_others();
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        self.handle.thread_id.store(tid.unsigned_abs(), Ordering::Relaxed);
        stages::enter(self.index);
        cpu_loss::enter(self.shared.crew.options.cpu_clock);
        // The kernel's usual 50 us would double a nap. If it refuses, naps and holds are longer.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(TIMER_SLACK_NS));
        while catch_unwind(AssertUnwindSafe(|| self.serve())).is_err() {
            self.recover();
        }
    }

    /// A look at a port has ended in a panic. That port stops; everything that this worker serves is looked at anew,
    /// since what it had in hand is gone.
    #[cold]
    fn recover(&mut self) {
        let ports = self.shared.ports.load();
        let touched = self.touched.take();
        match touched.and_then(|port| slot(&ports, port)) {
            Some(slot) => slot.port.fail(PANICKED),
            None => {
                tracing::error!(
                    worker = self.index,
                    "a worker panicked; it begins anew (please report it)"
                );
                self.panics += 1;
                if self.panics > WORKER_PANICS_MAX {
                    tracing::error!(worker = self.index, "it does so again and again: weir ends");
                    std::process::abort();
                }
            }
        }
        self.scratch = Scratch::default();
        self.forwarder.start_over(&ports);
        self.stalls.hurry();
        // Kicks that are left are taken up then.
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

    /// Until the engine stops.
    fn serve(&mut self) {
        while !self.shared.stopping.load(Ordering::Relaxed) {
            self.rest();
            self.ready.refresh(&self.shared.shares, clock::now_ns);
            self.retry_stalled();
            while !self.ready.is_empty() && !self.shared.stopping.load(Ordering::Relaxed) {
                for _ in 0..self.ready.len() {
                    self.serve_next();
                    self.expire_holds_after_burst();
                }
                let before_ns = self.taken_ns;
                self.look_at_warm(if self.is_dedicated() {
                    0
                } else {
                    self.served_ns().saturating_sub(WARM_NS)
                });
                self.looked_ns = before_ns;
                self.ready.refresh(&self.shared.shares, clock::now_ns);
                self.retry_stalled();
                self.rounds += 1;
                if self.rounds >= ROUNDS_PER_POLL {
                    self.poll();
                }
            }
        }
    }

    /// There is nothing to do: returns when there may be.
    fn rest(&mut self) {
        self.listen_again();
        // A receiver has got buffers since the last try.
        if self.handle.is_told() || !self.retries.is_empty() {
            self.poll();
            return;
        }
        let start_ns = clock::now_ns();
        self.looked_ns = start_ns;
        self.fresh_ns = None;
        if self.is_dedicated() && !self.warm.is_empty() {
            self.look_on(start_ns, DEDICATED_LOOK_NS);
            self.poll();
            return;
        }
        let mut rest = self.how_to_rest(start_ns);
        if let Rest::Poll(window_ns) = rest {
            let gap_ns = self.look_on(start_ns, window_ns);
            self.pace.polled(gap_ns);
            if gap_ns.is_some() {
                return;
            }
            rest = self.how_to_rest(start_ns);
        }
        let now_ns = self.expire_holds_before_sleep(self.looked_ns);
        if let Rest::Nap(nap_ns) = rest {
            self.nap(now_ns, nap_ns);
            self.look_at_warm(self.woken_ns.saturating_sub(nap_ns));
        } else {
            // Kicks on, and a last look.
            self.look_at_warm(u64::MAX);
            if self.ready.is_empty() {
                self.sleep(now_ns);
            }
            if !self.ready.is_empty() {
                // Where the last look found it, it was not asleep.
                self.pace.slept(self.woken_ns.saturating_sub(start_ns));
            }
        }
        if !self.holds.is_empty() {
            self.expire_holds_after_rest(self.fresh_ns.unwrap_or_else(clock::now_ns));
        }
    }

    /// It has a core of its own: it never sleeps while it has queues to look at.
    fn is_dedicated(&self) -> bool {
        self.shared.crew.options.realization == Realization::Dedicated
    }

    fn how_to_rest(&mut self, now_ns: u64) -> Rest {
        if self.warm.is_empty() {
            return Rest::Sleep;
        }
        let wait_ns_max = self.wait_ns_max(now_ns);
        match self.pace.rest(now_ns, wait_ns_max.saturating_sub(self.lateness.lead_ns())) {
            // A receiver's kick, which frames wait for, is not seen while looking at rings.
            Rest::Poll(_) if !self.stalls.is_empty() => Rest::Sleep,
            rest => rest,
        }
    }

    /// The shortest time (ns) that whoever may receive what comes while this worker naps lets it wait.
    pub(crate) fn wait_ns_max(&mut self, now_ns: u64) -> u64 {
        let (mut wait_ns_max, looked_up_ns) = self.wait_ns_max;
        if now_ns.saturating_sub(looked_up_ns) >= WAITS_NS {
            let ports = self.shared.ports.load();
            let receivers = ports.iter().flatten().filter(|slot| slot.port.rx_queues() > 0);
            let waits = receivers.map(|slot| slot.port.wait_ns_max());
            wait_ns_max = waits.min().unwrap_or(LATENCY_BUDGET_NS_MAX);
            self.wait_ns_max = (wait_ns_max, now_ns);
        }
        wait_ns_max
    }

    /// Looks at the warm queues until one has work, and says after how long (ns) from `start_ns` on;
    /// `None` if none had any in `window_ns`. Held calls that are due meanwhile are given.
    fn look_on(&mut self, start_ns: u64, window_ns: u64) -> Option<u64> {
        loop {
            self.look_at_warm(0);
            let now_ns = clock::now_ns();
            cpu_loss::look(now_ns);
            self.ready.refresh(&self.shared.shares, || now_ns);
            if !self.ready.is_empty() {
                return Some(now_ns.saturating_sub(start_ns));
            }
            self.looked_ns = now_ns;
            let stopping = self.shared.stopping.load(Ordering::Relaxed);
            if now_ns >= start_ns + window_ns || stopping {
                return None;
            }
            self.expire_holds(now_ns, self.lateness.work_ns());
            std::hint::spin_loop();
        }
    }

    /// Looks at every warm queue. One with work is ready; one that has had none since `armed_ns` or before gets
    /// its kicks on and is looked at once more: none with 0, all with [`u64::MAX`].
    fn look_at_warm(&mut self, armed_ns: u64) {
        if self.warm.is_empty() {
            return;
        }
        let ports = self.shared.ports.load();
        let mut warm = std::mem::take(&mut self.warm);
        warm.retain(|queue, since_ns| {
            let Some(slot) = slot(&ports, queue.port) else { return false };
            self.touched = Some(queue.port);
            if !is_of(self.index, slot, queue) {
                hand_over(&self.shared, slot, queue);
                return false;
            }
            let work = if armed_ns < u64::MAX && slot.port.peek_tx(queue.queue) {
                true
            } else if since_ns > armed_ns {
                return true;
            } else {
                slot.port.arm_tx(queue.queue)
            };
            if work {
                self.ready.wake(Ready { queue, since_ns: self.looked_ns.max(since_ns) });
            }
            false
        });
        self.warm = warm;
    }

    /// When to be back from a sleep at the latest (ns); `None` where nothing says so.
    fn wake_ns(&self) -> Option<u64> {
        let hold = self.holds.wake_ns(self.lateness.lead_ns());
        let others = [self.stalls.wake_ns(), self.ready.next_release_ns(), self.kicks.wake_ns()];
        others.into_iter().chain([hold]).flatten().min()
    }

    /// Sleeps from `now_ns` until something happens, at the latest until shortly before the next deadline.
    fn sleep(&mut self, now_ns: u64) {
        let wake_ns = self.wake_ns();
        if let Some(wake_ns) = wake_ns {
            // One that fires too early costs a wake-up, and to set it again costs about as much.
            let set = self.timer_ns.is_some_and(|at_ns| now_ns < at_ns && at_ns <= wake_ns);
            if !set {
                let handle = &self.handle;
                if wake_ns <= now_ns || handle.poller.set_timer(wake_ns).is_err() {
                    self.poll();
                    return;
                }
                self.timer_ns = Some(wake_ns);
            }
        }
        let woken = self.wait(now_ns, Wait::ForEvents);
        // One that is left from before is for nobody any more.
        if let Some(at_ns) = self.timer_ns.filter(|_| wake_ns.is_some()) {
            self.note_lateness(at_ns, woken);
        }
    }

    /// Sleeps from `now_ns` for `nap_ns`, at the latest until shortly before the next deadline.
    fn nap(&mut self, now_ns: u64, nap_ns: u64) {
        let until_ns = self.wake_ns().unwrap_or(u64::MAX);
        let until_ns = until_ns.clamp(now_ns, now_ns.saturating_add(nap_ns));
        let woken = self.wait(now_ns, Wait::For(Duration::from_nanos(until_ns - now_ns)));
        self.note_lateness(until_ns, woken);
    }

    /// A sleep has ended that was to end at `until_ns`. Something else may have ended it, and the worker
    /// still come back after that.
    fn note_lateness(&mut self, until_ns: u64, woken: Woken) {
        let Some(late_ns) = self.woken_ns.checked_sub(until_ns) else { return };
        let lead_ns = self.lateness.lead_ns();
        cpu_loss::overslept(until_ns + lead_ns, self.woken_ns);
        if matches!(woken, Woken::Timer | Woken::TimeOver) {
            self.lateness.fired(late_ns);
        }
        self.handle.late_timers.add(u64::from(late_ns > lead_ns));
        self.handle.timer_lead_ns.store(self.lateness.lead_ns(), Ordering::Relaxed);
    }

    /// Looks at the epoll set.
    fn poll(&mut self) {
        self.listen_again();
        self.handle.poller.wait(&mut self.events, Wait::Look, &mut self.kicked);
        self.take_up_kicks(None);
    }

    /// Sleeps from `start_ns` on.
    fn wait(&mut self, start_ns: u64, how_long: Wait) -> Woken {
        let handle = &self.handle;
        let woken = handle.poller.wait(&mut self.events, how_long, &mut self.kicked);
        self.lateness.took(self.burst_ns);
        self.woken_ns = clock::now_ns();
        self.fresh_ns = Some(self.woken_ns);
        cpu_loss::slept(start_ns, self.woken_ns);
        handle.wakeups.add(1);
        self.shared.activity.worker_woke();
        self.take_up_kicks(self.fresh_ns);
        woken
    }

    /// Queues that were kicked have work, or room. It was found out at `now_ns`, if that is known.
    fn take_up_kicks(&mut self, mut now_ns: Option<u64>) {
        self.rounds = 0;
        if self.kicked.is_empty() {
            return;
        }
        let ports = self.shared.ports.load();
        // In their order, and one by one: those behind one that panics are not lost.
        self.kicked.reverse();
        while let Some(event) = self.kicked.pop() {
            let queue = event.queue();
            let Some(slot) = slot(&ports, queue.port) else {
                continue;
            };
            self.touched = Some(queue.port);
            match event {
                Event::Kick(_) => slot.port.kicked(queue.queue, queue.side),
                Event::Nudge(_) => self.handle.nudges.add(1),
            }
            let has_one_kick = slot.port.has_one_kick(queue.queue);
            let refilled = queue.side == Side::Rx || has_one_kick;
            if refilled && self.shared.refilled(slot, queue.port, self.index) {
                self.kicks.was_awaited(queue);
                self.retries.push(Retry::Receiver(queue.port));
            } else if matches!(event, Event::Kick(_)) && self.kicks.came(queue) && !has_one_kick {
                // Where one kick is for both rings it is the kernel's, which holds back who sends it in vain.
                let now_ns = *now_ns.get_or_insert_with(clock::now_ns);
                ignore(&self.shared, &mut self.kicks, slot, queue, now_ns);
            }
            match queue.side {
                // A kick that can be taken once only may have been for its new worker.
                Side::Tx if !is_of(self.index, slot, queue) => {
                    hand_over(&self.shared, slot, queue);
                }
                Side::Tx if !self.ready.contains(queue) => {
                    self.warm.remove(queue);
                    self.ready
                        .wake(Ready { queue, since_ns: *now_ns.get_or_insert_with(clock::now_ns) });
                }
                Side::Tx | Side::Rx => {}
            }
        }
    }

    /// Kicks that were ignored for long enough are events again.
    #[inline]
    fn listen_again(&mut self) {
        if !self.kicks.is_empty() {
            self.listen_to_due();
        }
    }

    #[cold]
    fn listen_to_due(&mut self) {
        let now_ns = clock::now_ns();
        while let Some(queue) = self.kicks.due(now_ns) {
            if !self.shared.crew.listen(queue, true) {
                self.kicks.ignore(queue, now_ns);
            }
        }
    }

    /// One burst of the queue whose turn it is.
    fn serve_next(&mut self) {
        let now_ns = self.fresh_ns.take().unwrap_or_else(clock::now_ns);
        let Some(Ready { queue, since_ns }) = self.ready.next(now_ns) else {
            return;
        };
        let turn = self.ready.turn(queue.port, now_ns);
        let Some(taken) = self.take(queue, Take::New, turn, since_ns, now_ns) else {
            self.ready.settle(queue.port, turn, 0, 0);
            let ports = self.shared.ports.load();
            if let Some(slot) = slot(&ports, queue.port) {
                hand_over(&self.shared, slot, queue);
            }
            return;
        };
        let ready = Ready { queue, since_ns: now_ns };
        if let Turn::WaitUntil(until_ns) = turn {
            // Nothing was taken, and its kicks are off now.
            self.ready.wait(ready, until_ns);
            let ports = self.shared.ports.load();
            if let Some(slot) = slot(&ports, queue.port) {
                slot.counters.rate_waits.add(1);
            }
            return;
        }
        if taken.more || taken.frames >= self.scratch.frames_max {
            self.ready.again(ready);
            return;
        }
        if taken.peek {
            self.warm.insert(queue, self.served_ns());
            return;
        }
        let ports = self.shared.ports.load();
        self.touched = Some(queue.port);
        if slot(&ports, queue.port).is_some_and(|slot| slot.port.arm_tx(queue.queue)) {
            self.ready.again(ready);
        }
    }

    /// Takes what `turn` allows, at `now_ns`, and forwards it; new frames have not waited longer than
    /// since `since_ns`. What that costs is the sender's. `None` when the port is gone, or the
    /// queue has another worker.
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
        let since_ns = since_ns.min(now_ns);
        let (mut sent_bytes, mut parked) = (0, 0);
        self.scratch.frames_max = turn.frames_max().min(self.ready.frames_max(queue));
        let (scratch, forwarder) = (&mut self.scratch, &mut self.forwarder);
        let stalls = &mut self.stalls;
        let (fabric, ports) = (&self.shared.fabric, &*ports);
        let taken = catch_unwind(AssertUnwindSafe(|| {
            slot.port.take(queue.queue, what, since_ns, scratch, &mut |burst| {
                sent_bytes = burst.frames().iter().map(|frame| u64::from(frame.len)).sum();
                // After the frames were taken: whoever was there when they were sent gets them.
                let view = fabric.view();
                let (port, counters) = (queue.port, &slot.counters);
                forwarder.forward(Ingress { view: &view, ports, port, counters, now_ns }, burst);
                parked = burst.parked.len();
                for parked in &burst.parked {
                    stalls.waits(queue, parked.port);
                }
            })
        }));
        let taken = taken.unwrap_or_else(|_| {
            // Nothing a guest does should come here. If it does, it takes only its own port along.
            slot.port.fail(PANICKED);
            self.scratch = Scratch::default();
            self.forwarder.start_over(ports);
            Taken::default()
        });
        stages::end(taken.frames);
        self.handle.bursts.add(u64::from(taken.frames > 0));
        self.pace.served(taken.frames, sent_bytes);
        for hold in self.forwarder.holds.drain(..) {
            self.holds.push(hold);
        }
        if let Some(until_ns) = taken.hold_until {
            let QueueRef { port, queue, side } = queue;
            self.holds.push(Hold { until_ns, port, queue, side });
        }
        let is_new = self.stalls.note(queue, taken.parked_until);
        // Frames that another worker has parked: their receivers' kicks may have come before this one knew.
        if is_new && taken.parked > parked && what != Take::Parked(None) {
            self.retries.push(Retry::Sender(queue));
        }
        self.retries.extend(self.forwarder.refilled.drain(..).map(Retry::Receiver));
        self.age(now_ns);
        self.ready.settle(queue.port, turn, taken.frames, sent_bytes);
        let others_ns = if dear::any() { charge_calls(&mut self.ready, ports) } else { 0 };
        let cost = self.ready.charge(queue.port, begun, others_ns);
        self.ready.took(queue, cost.worker_ns);
        self.kicks.brought(queue, taken.frames);
        slot.counters.charge(cost);
        self.burst_ns = cost.worker_ns + others_ns;
        if let Some(pair) = slot.pairs.get(queue.queue) {
            pair.busy_ns.add(cost.worker_ns);
        }
        Some(taken)
    }

    /// Once a second while there is traffic, forgets a part of what has not been heard of for long.
    /// Lookups judge an entry's age themselves; this only makes room.
    fn age(&mut self, now_ns: u64) {
        let now_secs = clock::secs(now_ns);
        if std::mem::replace(&mut self.aged_secs, now_secs) != now_secs {
            self.shared.fabric.fdb().age(now_secs);
        }
    }

    /// Tries frames again whose receivers have buffers, and those that have waited long enough.
    fn retry_stalled(&mut self) {
        if self.handle.is_told() {
            self.handle.take_told(&mut self.retries);
        }
        if self.retries.is_empty() && self.stalls.is_empty() {
            return;
        }
        self.fresh_ns = None;
        let now_ns = clock::now_ns();
        // What comes up meanwhile is for the next round: others have their turn first.
        let mut retries = std::mem::take(&mut self.retries);
        let mut queues = std::mem::take(&mut self.retried);
        for retry in retries.drain(..) {
            match retry {
                Retry::Receiver(receiver) => {
                    self.stalls.take_waiting_for(receiver, &mut queues);
                    for queue in queues.drain(..) {
                        self.retry(queue, Some(receiver), now_ns);
                    }
                }
                Retry::Sender(queue) => self.retry(queue, None, now_ns),
            }
        }
        self.stalls.take_due(now_ns, &mut queues);
        for queue in queues.drain(..) {
            self.retry(queue, None, now_ns);
        }
        retries.append(&mut self.retries);
        (self.retries, self.retried) = (retries, queues);
    }

    /// Tries frames of a queue again that wait for `receiver`, or for anybody.
    fn retry(&mut self, queue: TxQueue, receiver: Option<PortId>, now_ns: u64) {
        // All at once: a receiver's kick in between would ask for the first ones again, and be taken for the rest.
        let taken = loop {
            let what = Take::Parked(receiver);
            let taken = self.take(queue, what, Turn::Whole, now_ns, clock::now_ns());
            self.expire_holds_after_burst();
            if !taken.is_some_and(|taken| taken.parked_more) {
                break taken;
            }
        };
        match taken {
            // It is another worker's, and so is what waits in it.
            None => {
                self.stalls.note(queue, None);
                let ports = self.shared.ports.load();
                if let Some(slot) = slot(&ports, queue.port)
                    && let Some(worker) = slot.pairs.get(queue.queue).and_then(Pair::worker)
                {
                    self.shared.crew.tell(worker, Retry::Sender(queue));
                }
            }
            // Room was made: what the sender has had to keep back may come now.
            Some(taken) if taken.more && !self.ready.contains(queue) => {
                self.warm.remove(queue);
                self.ready.wake(Ready { queue, since_ns: now_ns });
            }
            Some(_) => {}
        }
    }

    /// Asks about those that would end before this worker is back from its next sleep; where there is something to take first, only
    /// about those that would end during that burst, which may be as long as the one before. The calls of the others
    /// are then for what it takes, too: that is what the worker came back a little before their ends for.
    fn expire_holds_after_rest(&mut self, now_ns: u64) {
        let ahead_ns = match self.ready.is_empty() {
            true => self.lateness.lead_ns(),
            false => self.burst_ns.min(TIMER_LEAD_NS_MAX).max(self.lateness.work_ns()),
        };
        self.expire_holds(now_ns, ahead_ns);
    }

    /// Asks about those that have ended by the end of the burst before, and those that would end during the
    /// next one, which may be as long.
    #[inline]
    fn expire_holds_after_burst(&mut self) {
        let ahead_ns = self.burst_ns.min(TIMER_LEAD_NS_MAX);
        self.expire_holds(self.served_ns(), ahead_ns);
    }

    /// When the last burst ended (ns), without a look at the clock, which may be a system call.
    #[inline]
    fn served_ns(&self) -> u64 {
        self.taken_ns + self.burst_ns
    }

    /// Asks about those that would end before this worker is back from a sleep which begins at `now_ns`. That has
    /// taken time if there were any: says when it begins now.
    fn expire_holds_before_sleep(&mut self, now_ns: u64) -> u64 {
        let lead_ns = self.lateness.lead_ns();
        let Some(ended) = self.holds.ended(now_ns, lead_ns) else { return now_ns };
        self.end_holds(ended, now_ns, lead_ns);
        clock::now_ns()
    }

    /// Asks about the held calls whose time has come at `now_ns`, those for received frames `lead_ns` ahead of
    /// it: that is for a worker which may sleep next, and be back too late.
    #[inline]
    fn expire_holds(&mut self, now_ns: u64, lead_ns: u64) {
        if let Some(ended) = self.holds.ended(now_ns, lead_ns) {
            self.end_holds(ended, now_ns, lead_ns);
        }
    }

    fn end_holds(&mut self, first: (Hold, u64), now_ns: u64, lead_ns: u64) {
        self.fresh_ns = None;
        let ports = self.shared.ports.load();
        let mut ended = Some(first);
        while let Some((hold, by_ns)) = ended {
            self.touched = Some(hold.port);
            let next = slot(&ports, hold.port)
                .and_then(|slot| slot.port.expired(hold.queue, hold.side, by_ns));
            if let Some(until_ns) = next {
                self.holds.push(Hold { until_ns: until_ns.max(by_ns + 1), ..hold });
            }
            ended = self.holds.ended(now_ns, lead_ns);
        }
        if dear::any() {
            charge_calls(&mut self.ready, &ports);
        }
    }
}

/// Ignores the kicks of `queue` for a while.
#[cold]
fn ignore(shared: &Shared, kicks: &mut Kicks, slot: &Slot, queue: QueueRef, now_ns: u64) {
    if shared.crew.listen(queue, false) {
        kicks.ignore(queue, now_ns);
        slot.counters.kick_pauses.add(1);
    }
}

/// Charges calls that were dear to those who were called, and says what that is in all (ns).
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

/// Whether a queue is that worker's. Another's may be among those that a worker keeps in mind, until it
/// comes to it.
fn is_of(worker: usize, slot: &Slot, queue: QueueRef) -> bool {
    slot.pairs.get(queue.queue).is_some_and(|pair| pair.is_served_by(worker))
}

/// A queue that was kept in mind is another worker's now: that one is told, since this one may have turned
/// its kicks off after the other had looked.
#[cold]
fn hand_over(shared: &Shared, slot: &Slot, queue: QueueRef) {
    if let Some(pair) = slot.pairs.get(queue.queue) {
        shared.crew.hand_over(pair, queue);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crew::Options;

    fn worker() -> Worker {
        let handle = Arc::new(WorkerHandle::new().unwrap());
        Worker::new(Arc::new(Shared::new(Options::default()).unwrap()), 0, handle)
    }

    #[test]
    fn a_deadline_within_does_not_end_looking_on() {
        const WINDOW_NS: u64 = 2_000_000;
        let mut worker = worker();
        let start_ns = clock::now_ns();
        for until_ns in [start_ns + WINDOW_NS / 4, start_ns + WINDOW_NS / 2] {
            let port = PortId::new(0).unwrap();
            worker.holds.push(Hold { until_ns, port, queue: 0, side: Side::Rx });
        }
        assert_eq!(worker.look_on(start_ns, WINDOW_NS), None);
        assert!(clock::now_ns() >= start_ns + WINDOW_NS, "or it is taken for looking on in vain");
    }

    #[test]
    fn before_a_sleep_holds_end_that_would_end_during_it() {
        let mut worker = worker();
        worker.lateness.fired(weir_limits::TIMER_LEAD_NS_MAX);
        let port = PortId::new(0).unwrap();
        let soon_ns = clock::now_ns() + 1_000_000_000;
        for (until_ns, side) in
            [(clock::now_ns(), Side::Rx), (soon_ns, Side::Rx), (soon_ns, Side::Tx)]
        {
            worker.holds.push(Hold { until_ns, port, queue: 0, side });
        }
        worker.expire_holds(soon_ns - 50_000, 0);
        assert_eq!(worker.holds.wake_ns(0), Some(soon_ns), "awake it is back in time");
        worker.expire_holds(soon_ns - 50_000, worker.lateness.lead_ns());
        assert_eq!(worker.holds.wake_ns(u64::MAX), Some(soon_ns), "nobody waits for what was sent");
    }

    #[test]
    fn between_bursts_holds_end_that_would_end_during_the_next_one() {
        let mut worker = worker();
        (worker.taken_ns, worker.burst_ns) = (1_000_000, 30_000);
        let port = PortId::new(0).unwrap();
        for until_ns in [1_030_000, 1_060_000, 1_060_001] {
            worker.holds.push(Hold { until_ns, port, queue: 0, side: Side::Rx });
        }
        worker.expire_holds_after_burst();
        assert_eq!(worker.holds.wake_ns(0), Some(1_060_001));
        worker.burst_ns = 10 * TIMER_LEAD_NS_MAX;
        let until_ns = worker.taken_ns + worker.burst_ns + TIMER_LEAD_NS_MAX + 1;
        worker.holds.push(Hold { until_ns, port, queue: 0, side: Side::Rx });
        worker.expire_holds_after_burst();
        assert_eq!(worker.holds.wake_ns(0), Some(until_ns), "one long burst ends not all of them");
    }

    #[test]
    fn a_call_that_is_due_a_little_later_is_for_the_frames_that_are_there_too() {
        let mut worker = worker();
        worker.lateness.fired(40_000);
        worker.burst_ns = 10_000;
        let port = PortId::new(0).unwrap();
        let now_ns = clock::now_ns();
        for until_ns in [now_ns + 10_000, now_ns + 45_000] {
            worker.holds.push(Hold { until_ns, port, queue: 0, side: Side::Rx });
        }
        let queue = QueueRef { port, queue: 0, side: Side::Tx };
        worker.ready.wake(Ready { queue, since_ns: now_ns });
        worker.expire_holds_after_rest(now_ns);
        assert_eq!(worker.holds.wake_ns(0), Some(now_ns + 45_000), "but not past its end");
        let _ = worker.ready.next(now_ns);
        worker.expire_holds_after_rest(now_ns);
        assert_eq!(worker.holds.wake_ns(0), None, "it may sleep next");
    }

    #[test]
    fn only_a_holds_end_is_woken_up_for_early() {
        let mut worker = worker();
        worker.lateness.fired(40_000);
        let port = PortId::new(0).unwrap();
        let queue = QueueRef { port, queue: 0, side: Side::Tx };
        let now_ns = clock::now_ns();
        worker.ready.wait(Ready { queue, since_ns: now_ns }, now_ns + 900_000);
        assert_eq!(worker.wake_ns(), Some(now_ns + 900_000), "or it would spin until then");
        let until_ns = now_ns + 800_000;
        worker.holds.push(Hold { until_ns, port, queue: 0, side: Side::Rx });
        assert_eq!(worker.wake_ns(), Some(now_ns + 800_000 - 50_000));
    }

    #[test]
    fn coming_back_later_than_foreseen_is_counted_whatever_ended_the_sleep() {
        const LATE_NS: u64 = 50_000_000;
        let mut worker = worker();
        worker.woken_ns = clock::now_ns();
        let until_ns = worker.woken_ns - LATE_NS;
        worker.note_lateness(until_ns, Woken::Event);
        assert_eq!(worker.handle.late_timers.get(), 1);
        assert_eq!(worker.lateness.lead_ns(), 0, "it was no timer that was late");
        worker.note_lateness(until_ns, Woken::Timer);
        assert_eq!(worker.handle.late_timers.get(), 2);
        let lead_ns = worker.handle.timer_lead_ns.load(Ordering::Relaxed);
        assert_eq!(lead_ns, weir_limits::TIMER_LEAD_NS_MAX);
        worker.note_lateness(worker.woken_ns + LATE_NS, Woken::Event);
        assert_eq!(worker.handle.late_timers.get(), 2, "a sleep that ended in time");
    }

    /// A worker with so many ports, whose queues it serves if they are `its`.
    fn worker_of(ports: u16, its: bool) -> Worker {
        let worker = worker();
        let slots = (0..ports).map(|number| {
            let port = Arc::new(crate::tests::FakePort::new(PortId::new(number).unwrap()));
            let slot = Slot::new(port, Arc::default());
            slot.pairs[0].serve_by(usize::from(!its));
            Some(slot)
        });
        worker.shared.ports.store(Arc::new(slots.collect()));
        worker
    }

    fn queue(port: u16) -> QueueRef {
        QueueRef { port: PortId::new(port).unwrap(), queue: 0, side: Side::Tx }
    }

    #[test]
    fn tokens_of_a_queue_that_has_moved_are_given_back() {
        let mut worker = worker_of(1, false);
        let rate = crate::share::Rate { per_s: 1, burst: 10 };
        let limit = crate::share::RateLimit { bits: None, packets: Some(rate) };
        let port = PortId::new(0).unwrap();
        worker.shared.shares.set(port, weir_policy::schedule::Share::default(), limit);
        let shared = Arc::clone(&worker.shared);
        worker.ready.refresh(&shared.shares, clock::now_ns);
        for _ in 0..3 {
            worker.ready.wake(Ready { queue: queue(0), since_ns: clock::now_ns() });
            worker.serve_next();
            assert!(worker.ready.is_empty(), "it is another worker's");
        }
        let left = worker.ready.turn(port, clock::now_ns());
        assert!(left.frames_max() >= 10, "{left:?}");
    }

    #[test]
    fn a_kick_costs_as_much_among_a_thousand_busy_queues_as_among_two() {
        use crate::poller::COMPARED;
        let cost = |ports: u16| {
            let mut worker = worker_of(ports, true);
            // Some have work, some have had it, and some wait for their rate.
            for number in 0..ports {
                let ready = Ready { queue: queue(number), since_ns: 1 };
                match number % 3 {
                    0 => worker.ready.wake(ready),
                    1 => worker.warm.insert(queue(number), 1),
                    _ => worker.ready.wait(ready, u64::MAX),
                }
            }
            let (waiting, before) = (worker.ready.len(), COMPARED.get());
            for round in 0..3 {
                worker.kicked.extend((0..ports).map(queue).map(Event::Kick));
                worker.take_up_kicks(Some(round));
            }
            let warm = (usize::from(ports) + 1) / 3;
            assert_eq!(worker.ready.len(), waiting + warm, "each once");
            assert!(worker.warm.is_empty());
            (COMPARED.get() - before) / (3 * u64::from(ports))
        };
        assert_eq!([2, 30, 1_000].map(cost), [0; 3], "comparisons of queues for each kick");
    }

    #[test]
    fn whoever_is_told_of_buffers_and_does_not_serve_the_sender_any_more_tells_who_does() {
        let mut worker = worker_of(1, false);
        let handles = [(); 2].map(|()| worker.shared.crew.add().unwrap().unwrap().1);
        let receiver = PortId::new(5).unwrap();
        worker.stalls.note(queue(0), Some(u64::MAX));
        worker.stalls.waits(queue(0), receiver);
        worker.retries.push(Retry::Receiver(receiver));
        worker.retry_stalled();
        assert!(worker.stalls.is_empty());
        assert!(handles[1].is_told() && !handles[0].is_told());
        let mut told = Vec::new();
        handles[1].take_told(&mut told);
        assert_eq!(told, [Retry::Sender(queue(0))]);
    }

    #[test]
    fn a_receivers_kick_costs_nothing_where_nobody_waits_for_it() {
        use crate::poller::COMPARED;
        let mut worker = worker_of(1_000, true);
        let other = PortId::new(999).unwrap();
        for number in 0..998 {
            worker.stalls.note(queue(number), Some(u64::MAX));
            worker.stalls.waits(queue(number), other);
        }
        let before = COMPARED.get();
        let receiver = QueueRef { side: Side::Rx, ..queue(998) };
        worker.kicked.push(Event::Kick(receiver));
        worker.take_up_kicks(None);
        worker.retry_stalled();
        assert_eq!((COMPARED.get() - before, worker.handle.bursts.get()), (0, 0));
        assert!(worker.retries.is_empty());
    }
}
