//! A vif as the engine sees it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use weir_engine::burst::{Burst, Scratch};
use weir_engine::guest::{CallPolicy, QueueDecision, Received, State, TransmitCalls};
use weir_engine::stats::{QueueCounters, Times, TimesSummary};
use weir_engine::{
    Delivered, DropReason, Outgoing, Port, PortCounters, ReadyQueues, Side, Take, Taken, Watch,
    clock, lock, symmetric_hash,
};
use weir_fabric::PortId;
use weir_limits::QUEUE_PAIRS_MAX;
use weir_policy::moderation::{self, GuestPoll};
use weir_policy::steering::{Mark, Receiver, Steering};
use weir_xen::vif::VifId;
use weir_xen::{EventChannel, Hypervisor};

use crate::control::{self, Control, GuestHash};
use crate::error::StopReason;
use crate::manager::{Failures, Services};
use crate::multicast::Groups;
use crate::rx::{RxQueue, has_taken};
use crate::tx::{Context, Sending, TxQueue, TxRing};

/// What a vif is made with.
#[derive(Debug, Clone)]
pub struct XenOptions {
    /// Which vif.
    pub vif: VifId,
    /// Most queue pairs that a driver may use, 1 to [`QUEUE_PAIRS_MAX`].
    pub queue_pairs: usize,
    /// When to notify the guest.
    pub calls: CallPolicy,
}

/// A snapshot of a vif.
#[derive(Debug, Clone)]
pub struct XenInfo {
    /// How far it is.
    pub state: State,
    /// Why it stopped last, if it ever did otherwise than in order.
    pub stop_reason: Option<String>,
    /// Front ends connected since the vif was attached.
    pub opened: u64,
    /// Those that closed in order.
    pub closed: u64,
    /// Those that could not be connected, or broke a rule.
    pub failed: u64,
    /// Receive queues in use.
    pub rx_queues: usize,
    /// Hold times: from frames being ready to the guest being told of them.
    pub hold: TimesSummary,
}

/// What the connection tells the statistics.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    pub(crate) connected: bool,
    pub(crate) stop_reason: Option<String>,
    pub(crate) opened: u64,
    pub(crate) closed: u64,
    pub(crate) failed: u64,
}

pub(crate) struct Pair {
    pub(crate) tx: TxQueue,
    pub(crate) rx: Mutex<RxQueue>,
    /// The front end gave them one event channel.
    pub(crate) one_channel: AtomicBool,
}

/// A vif of a Xen guest.
pub struct XenPort {
    pub(crate) vif: VifId,
    /// What logs call it.
    name: String,
    /// Its number in the switch.
    id: PortId,
    counters: Arc<PortCounters>,
    pub(crate) hypervisor: Arc<dyn Hypervisor>,
    pub(crate) pairs: Vec<Pair>,
    /// Queues whose rings are in service.
    rx_ready: ReadyQueues,
    steering: Steering,
    latency_budget_ns: AtomicU64,
    wait_ns_max: AtomicU64,
    pub(crate) groups: Groups,
    hash: GuestHash,
    pub(crate) control: Mutex<Option<Control>>,
    /// A worker found the guest breaking the rules: nothing is served until a front end starts afresh.
    failed: AtomicBool,
    failures: Arc<Failures>,
    pub(crate) watches: Mutex<Vec<Watch>>,
    pub(crate) shown: Mutex<Shown>,
}

impl XenPort {
    /// A vif whose front end is not connected.
    pub(crate) fn new(
        id: PortId,
        counters: Arc<PortCounters>,
        options: &XenOptions,
        xen: &Services,
    ) -> Self {
        let queue_pairs = options.queue_pairs.clamp(1, QUEUE_PAIRS_MAX);
        let pair = |_| Pair {
            tx: TxQueue::new(None, TransmitCalls::patient(&options.calls)),
            rx: Mutex::new(RxQueue::new(None, &options.calls)),
            one_channel: AtomicBool::new(false),
        };
        Self {
            vif: options.vif,
            name: options.vif.to_string(),
            id,
            counters,
            hypervisor: Arc::clone(&xen.hypervisor),
            pairs: (0..queue_pairs).map(pair).collect(),
            rx_ready: ReadyQueues::default(),
            steering: Steering::new(1).expect("one queue is a valid number of queues"),
            latency_budget_ns: AtomicU64::new(options.calls.latency_budget_ns),
            wait_ns_max: AtomicU64::new(options.calls.wait_ns_max()),
            groups: Groups::default(),
            hash: GuestHash::default(),
            control: Mutex::default(),
            failed: AtomicBool::new(false),
            failures: Arc::clone(&xen.failures),
            watches: Mutex::default(),
            shown: Mutex::default(),
        }
    }

    /// Its number in the switch.
    pub fn id(&self) -> PortId {
        self.id
    }

    /// Queue pairs that a driver may use.
    pub fn queue_pairs(&self) -> usize {
        self.pairs.len()
    }

    /// What it counts.
    pub fn counters(&self) -> &PortCounters {
        &self.counters
    }

    /// Changes the moderation policy while traffic flows. A held event is given first.
    pub fn set_moderation(&self, calls: &CallPolicy) {
        self.latency_budget_ns.store(calls.latency_budget_ns, Ordering::Relaxed);
        self.wait_ns_max.store(calls.wait_ns_max(), Ordering::Relaxed);
        for (index, pair) in self.pairs.iter().enumerate() {
            let new = calls.build();
            // The old one is freed here, outside the lock.
            let _old = lock(&pair.rx).set_moderation(index, new, calls, &self.counters);
            pair.tx.lock().set_policy(index, calls, &self.counters);
        }
    }

    /// Sets the limit of holds (ns) of one pair of queues, or of all, while traffic flows: the manager's
    /// share of the budget for them. What the budget leaves for holds is never exceeded.
    pub fn set_hold_ns_max(&self, queue: Option<usize>, hold_ns_max: u64) {
        let limit_ns = moderation::hold_ns_max(self.latency_budget_ns.load(Ordering::Relaxed));
        let hold_ns_max = hold_ns_max.min(limit_ns);
        for (index, pair) in self.pairs.iter().enumerate() {
            if queue.is_none_or(|queue| queue == index) {
                lock(&pair.rx).calls.set_hold_ns_max(hold_ns_max);
                pair.tx.lock().calls.set_hold_ns_max(hold_ns_max);
            }
        }
    }

    /// All interfaces are held together, or no longer: see [`Moderation::set_together`]. To be said again after
    /// [`set_moderation`](Self::set_moderation).
    ///
    /// [`Moderation::set_together`]: weir_policy::moderation::Moderation::set_together
    pub fn set_together(&self, together: bool) {
        for pair in self.pairs.iter() {
            lock(&pair.rx).calls.set_together(together);
        }
    }

    /// The guest polls its receive queues at this interval (ns), or no longer. Linux's netfront asks for
    /// events even so; under `frontend` they are held for that time, in which it mostly takes the frames by
    /// itself. To be said again after [`set_moderation`](Self::set_moderation).
    pub fn set_guest_poll_ns(&self, poll_ns: Option<u64>) {
        // netfront asks for events while it polls.
        let poll = poll_ns.map(|every_ns| GuestPoll { every_ns, asks: true });
        for pair in &self.pairs {
            lock(&pair.rx).calls.set_guest_poll(poll);
        }
    }

    /// What the policy of each receive queue does now.
    pub fn decisions(&self) -> Vec<QueueDecision> {
        let decision =
            |(pair, counted): (&Pair, &QueueCounters)| lock(&pair.rx).calls.decision(counted);
        self.pairs.iter().zip(&self.counters.rx).map(decision).collect()
    }

    /// A snapshot.
    pub fn info(&self) -> XenInfo {
        let mut hold = Times::default();
        for pair in &self.pairs {
            hold.merge(lock(&pair.rx).calls.times());
        }
        let shown = lock(&self.shown);
        let state = match (self.has_failed(), shown.connected) {
            (true, _) => State::Stopped,
            (false, true) => State::Running,
            (false, false) => State::Waiting,
        };
        XenInfo {
            state,
            stop_reason: shown.stop_reason.clone(),
            opened: shown.opened,
            closed: shown.closed,
            failed: shown.failed,
            rx_queues: self.rx_queues(),
            hold: hold.summary(),
        }
    }

    /// A new front end: service may begin again.
    pub(crate) fn clear_failure(&self) {
        self.failed.store(false, Ordering::Relaxed);
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// The guest loses its vif: the thread that follows xenstore tells it.
    fn stop(&self, reason: &StopReason) {
        let reason = reason.to_string();
        tracing::warn!(vif = self.name, reason, "interface stopped");
        self.failed.store(true, Ordering::SeqCst);
        self.rx_ready.none();
        lock(&self.shown).stop_reason = Some(reason.clone());
        self.failures.report(self.vif, reason);
    }

    pub(crate) fn count_ready(&self) {
        let failed = || self.failed.load(Ordering::SeqCst);
        let count = || self.pairs.iter().take_while(|pair| lock(&pair.rx).queue.is_some()).count();
        // 0 queues is an error and no spread: the engine asks `rx_queues` first.
        self.rx_ready.count(failed, count, |ready| _ = self.steering.set_queues(ready));
    }

    /// What tells of requests in the control ring, and whether there may be some that it does not tell of;
    /// `None` without one.
    pub(crate) fn control(&self) -> Option<(Arc<dyn EventChannel>, bool)> {
        if self.has_failed() {
            return None;
        }
        lock(&self.control).as_ref().map(|control| (control.channel(), control.more))
    }

    /// Answers requests of the control ring.
    pub(crate) fn serve_control(&self) {
        let mut control = lock(&self.control);
        let Some(control) = control.as_mut().filter(|_| !self.has_failed()) else { return };
        if let Err(reason) = control.serve(&self.hash, &self.steering, self) {
            self.stop(&reason);
        }
    }

    /// weir's own steering again.
    pub(crate) fn reset_hash(&self) {
        control::reset(&self.hash, &self.steering);
    }

    fn context(&self, index: usize) -> Context<'_> {
        Context { index, groups: &self.groups, hash: &self.hash, counters: &self.counters }
    }

    fn pair(&self, queue: usize) -> Option<&Pair> {
        self.pairs.get(queue).filter(|_| !self.has_failed())
    }

    /// A flow's replies go to the queue on which the guest sent it.
    fn follow(&self, queue: usize, burst: &Burst<'_>, now_secs: u32) {
        for frame in burst.frames() {
            let hash = symmetric_hash(frame.head.as_slice());
            self.steering.record(hash, queue, now_secs, self);
        }
    }
}

impl Receiver for XenPort {
    fn mark(&self, queue: usize) -> Mark {
        // Events tell by themselves how old they are: an index of 32 bits does not come round soon.
        let placed = |pair: &Pair| Mark { placed: lock(&pair.rx).placed(), event: None };
        self.pairs.get(queue).map_or(Mark::default(), placed)
    }

    fn has_taken(&self, queue: usize, placed: u64, _before: Mark) -> bool {
        self.pairs.get(queue).is_none_or(|pair| has_taken(&mut lock(&pair.rx), placed))
    }
}

impl Port for XenPort {
    fn take(
        &self,
        queue: usize,
        what: Take,
        now_ns: u64,
        scratch: &mut Scratch,
        forward: &mut dyn FnMut(&mut Burst<'_>),
    ) -> Taken {
        let Some(pair) = self.pair(queue) else { return Taken::default() };
        let follows = self.rx_queues() > 1 && !self.steering.is_given();
        let mut follow_and_forward = |burst: &mut Burst<'_>| {
            if follows {
                self.follow(queue, burst, clock::secs(now_ns));
            }
            forward(burst);
        };
        let source = Sending { port: self, index: queue };
        let taken = pair.tx.take(&source, what, now_ns, scratch, &mut follow_and_forward);
        taken.unwrap_or_else(|reason| {
            self.stop(&reason);
            Taken::default()
        })
    }

    fn deliver(
        &self,
        queue: usize,
        burst: &Burst<'_>,
        frames: &[Outgoing],
        _now_ns: u64,
    ) -> Delivered {
        let all = Delivered { frames: frames.len(), ..Delivered::default() };
        let Some(pair) = self.pair(queue) else {
            self.counters.dropped(DropReason::RxNotReady, frames.len() as u64);
            return all;
        };
        self.fill(pair, self.context(queue), burst, frames).unwrap_or_else(|reason| {
            self.stop(&reason);
            all
        })
    }

    fn expired(&self, queue: usize, side: Side, by_ns: u64) -> Option<u64> {
        let pair = self.pairs.get(queue)?;
        match side {
            Side::Rx => lock(&pair.rx).expired(queue, by_ns, &self.counters),
            Side::Tx => {
                // With a channel for each, netfront's handler for received frames frees nothing that was sent.
                let received = match pair.one_channel.load(Ordering::Relaxed) {
                    true => lock(&pair.rx).calls.standing(),
                    false => Received::Told,
                };
                let asked = pair.tx.lock().expired(queue, by_ns, received, &self.counters);
                if asked.call_for_received {
                    lock(&pair.rx).flush(queue, &self.counters);
                }
                asked.again_at
            }
        }
    }

    fn peek_tx(&self, queue: usize) -> bool {
        // What is wrong with the ring shows when it is served.
        self.pair(queue).is_some_and(|pair| pair.tx.lock().queue.as_mut().is_some_and(TxRing::peek))
    }

    fn share_tx(&self, queue: usize, on: bool) -> bool {
        let Some(pair) = self.pairs.get(queue) else { return false };
        pair.tx.set_side_by_side(on);
        true
    }

    fn copies_remote(&self) -> bool {
        true
    }

    fn wait_ns_max(&self) -> u64 {
        self.wait_ns_max.load(Ordering::Relaxed)
    }

    fn arm_tx(&self, queue: usize) -> bool {
        let Some(pair) = self.pair(queue) else { return false };
        match pair.tx.lock().queue.as_mut().map_or(Ok(false), TxRing::arm) {
            Ok(more) => more,
            Err(error) => {
                self.stop(&StopReason::tx(queue)(error));
                false
            }
        }
    }

    fn kicked(&self, queue: usize, side: Side) {
        let Some(pair) = self.pairs.get(queue) else { return };
        let acknowledged = match side {
            Side::Tx => {
                self.counters.tx[queue].kicks.add(1);
                pair.tx.lock().queue.as_ref().map(|ring| ring.link.acknowledge())
            }
            Side::Rx => {
                self.counters.rx[queue].kicks.add(1);
                lock(&pair.rx).queue.as_ref().map(|ring| ring.link.acknowledge())
            }
        };
        if let Some(Err(error)) = acknowledged {
            self.stop(&StopReason::Internal(format!("queue {queue}: event channel: {error}")));
        }
    }

    fn has_one_kick(&self, queue: usize) -> bool {
        self.pairs.get(queue).is_some_and(|pair| pair.one_channel.load(Ordering::Relaxed))
    }

    fn rx_queues(&self) -> usize {
        self.rx_ready.get()
    }

    fn steering(&self) -> Option<&Steering> {
        Some(&self.steering)
    }

    fn flow_hash(&self, head: &[u8]) -> u32 {
        self.hash.entry(head).unwrap_or_else(|| symmetric_hash(head))
    }

    fn fail(&self, reason: &str) {
        self.stop(&StopReason::Internal(reason.to_owned()));
    }
}

impl std::fmt::Debug for XenPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("XenPort").field("vif", &self.name).field("id", &self.id).finish()
    }
}
